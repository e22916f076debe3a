/* lane.h - one engine of a service, on a thread of its own: all of service.h but which of several engines a request
 * goes to. For service.c. */
#pragma once

#include "engine/service.h"

#include <pthread.h>

struct lane;

/* Takes the engine over, also when this fails; it is number `number` of the service. `info` is what is known of the
 * service's engines, as long as the lane: one that is opened anew has the same sizes and ends of answers. `telling` is
 * held while listeners are told, so that of several lanes one tells at a time. */
enum status lane_open(struct gyre *take_engine, int number, const struct service_options *options,
                      const struct gyre_info *info, pthread_mutex_t *telling, struct lane **out, struct error *err);
void lane_drain(struct lane *s);
bool lane_is_opening(const struct lane *s); // anew; lane_stop waits for it
void lane_stop(struct lane *s);  // cancels all; who waits for a prompt or an errand goes on, and new ones are refused
void lane_close(struct lane *s); // stops it, if it was not; nobody else may use it any more. NULL is fine

/* goes_on: as service_submit_more. */
enum status lane_submit(struct lane *s, const struct gyre_request *request, void *user, bool goes_on,
                        struct answer **out, struct error *err);

void lane_state(const struct lane *s, struct service_state *out);
bool lane_has_failed(const struct lane *s); // its device; until it is opened anew. Without the lock
const struct telemetry *lane_telemetry(const struct lane *s);
struct gyre *lane_engine(const struct lane *s); // for what never changes; of a service of one engine
int lane_expert_loads(struct lane *s, int64_t *out, int most);

/* Any other thread: has something done on the engine thread between steps, which may be in flight, and waits for it.
 * false: it was not done, the lane is being closed. */
bool lane_errand(struct lane *s, void (*run)(struct gyre *g, void *context), void *context);

/* Any other thread: does something beside the engine's steps, while the engine stays. false: it is opened anew. */
bool lane_beside(struct lane *s, void (*run)(struct gyre *g, void *context), void *context);

/* Any other thread: computes a prompt of which nobody reads an answer, as any request, and waits for it. Meanwhile
 * `moved` is called on this thread when steps have ended since the last time; false: the prompt is not wanted any more.
 * `ended` is called on the engine's, between steps, once it has ended in whatever way and before the next step. Either
 * may be NULL. */
struct prompt_watch {
    bool (*moved)(void *context);
    void (*ended)(struct gyre *g, void *context);
    void *context;
};
enum status lane_prompt(struct lane *s, const struct gyre_request *request, const struct prompt_watch *watch,
                        struct error *err);

/* Somewhere else where prompts may be computed first (roles/prompt_fetch.h). A ticket that was pushed comes back by
 * lane_fetched, on any thread, or by cancel: the engine gets it then. All but close are called under the lane's lock,
 * and none any more when close is: they do not block, and call nothing of the lane. */
struct request;
struct ticket;
struct lane_fetch {
    bool (*wants)(const void *of, const struct request *r);
    void (*push)(void *of, struct ticket *t);
    bool (*cancel)(void *of, struct ticket *t); // wants_cancel is set. true: this gives it back; false: it was not
                                                // pushed, came back, or will soon
    void (*count)(void *of, struct service_state *out);
    void (*close)(void *of); // when all that was pushed has come back
    void *of;                // the lane's from now on
};
void lane_set_fetch(struct lane *s, const struct lane_fetch *fetch); // once
void lane_fetched(struct lane *s, struct ticket *t);

/* Of a service: its lane, if it has one alone; else NULL. Something that uses the lane from threads of its own, which
 * is closed when the lane has stopped, and before it is freed; set once, before anybody else sees the service. */
struct lane *service_lane(const struct service *s);
struct service_guest {
    void (*close)(void *of);
    void (*count)(void *of, struct service_state *out);
    void *of;
};
void service_take_guest(struct service *s, const struct service_guest *guest);
