/* lane_parts.h - what a lane and its tickets are made of, for the files of this folder: lane.c (answers), errands.c
 * (what other threads want of the engine besides), inbox.c (how tickets come to it), restart.c. */
#pragma once

#include "engine/engine.h"
#include "engine/lanes/lane.h"

#include <pthread.h>

/* Who waits until a prompt was computed. */
struct prompt_waiter {
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool has_moved, has_ended;
    const struct prompt_watch *watch;
};

/* Something to be done on the engine thread between steps. */
struct lane_errand {
    void (*run)(struct gyre *g, void *context);
    void *context;
    bool is_over, was_run;
    struct lane_errand *next;
};

/* One word, so that a look knows in the same moment whether its news were the last: had it read the two apart, it could
 * free an answer that the engine thread is about to tell of once more, or miss its end. */
enum ticket_state {
    HAS_NEWS = 1, // told, and not yet looked at
    HAS_ENDED = 2,
};

/* An answer with what only the service sees of it. */
struct ticket {
    struct answer answer; // first: listeners hold a pointer to it
    struct arena arena;
    struct lane *lane;
    struct request *request;              // until the engine thread has accepted it
    uint64_t id;                          // afterwards; engine thread only
    atomic_uint state;                    // of enum ticket_state
    atomic_bool wants_cancel, is_content; // content: cancelled because it has what it wanted
    atomic_bool wants_pause;
    bool is_paused;                    // engine thread
    int64_t max_tokens, last_token_us; // the latter the engine thread's
    struct prompt_waiter *waiter; // of a prompt that a thread waits for, in place of news; NULL: there is a listener
    struct ticket *next_inbox;
    _Atomic(struct ticket *) next_news;
    struct ticket *next_taken;  // listener's thread
    struct ticket *prev, *next; // all that are not released, under the lock
};

struct lane {
    struct gyre *engine;          // NULL: it has failed, and is opened anew
    pthread_rwlock_t engine_lock; // of that, for other threads
    int number;                   // among the service's, from 0
    int n_restarts_left;
    int64_t reopened_us;         // when that was tried last; 0: never
    struct service_state before; // counters of the engines that were here before
    struct service_options options;
    const struct gyre_info *info; // of every engine that is here
    pthread_mutex_t *telling;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; // inbox, all, state
    pthread_cond_t work;
    struct ticket *inbox, **inbox_end;
    struct lane_errand *errands;
    pthread_cond_t errand_over;
    struct lane_fetch fetch;
    int64_t n_fetching; // tickets that are not in the inbox for that reason
    int n_prompts;      // tickets with a waiter
    struct ticket *all;
    bool has_wishes, stopping; // wishes: to cancel, to pause
    bool is_opening;           // the engine, anew
    int64_t n_inbox;
    struct service_state state;
    atomic_bool has_failed;     // as the state says, for those without the lock
    struct telemetry telemetry; // engine thread writes
};

/* errands.c, for the engine thread: takes those that came; runs them, or with run false says that they will not be. */
struct lane_errand *lane_take_errands(struct lane *s);
void lane_do_errands(struct lane *s, struct lane_errand *first, bool run);
void lane_tell_prompts(struct lane *s); // who waits for one, that a step has ended

/* inbox.c. The first two under the lock: puts t into the inbox, or where it is fetched first; one that is cancelled and
 * waits there gets into the inbox at once. lane_close_fetch: nobody finds that place any more before it is closed. */
void lane_enqueue(struct lane *s, struct ticket *t);
void lane_cancel_fetch(struct lane *s, struct ticket *t);
void lane_close_fetch(struct lane *s);

/* restart.c, for the engine thread: opens the engine anew, if it has failed and may be, with nobody left in it. While
 * that cannot be done, or the lane drains, it waits; without an engine afterwards the lane is being stopped. */
void lane_restart(struct lane *s);
void lane_add_before(struct lane *s); // to the counters in the state, under the lock

/* lane.c: a ticket for the request, which the engine gets unless it is fetched first; refused as lane_submit says. */
enum status lane_put(struct lane *s, struct ticket *t, bool goes_on, struct error *err);
struct ticket *lane_ticket(struct lane *s, const struct gyre_request *request, struct error *err);
void lane_free_ticket(struct ticket *t);
