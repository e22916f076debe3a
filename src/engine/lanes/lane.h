/* lane.h - one engine of a service, on a thread of its own: all of service.h but which of several engines a request
 * goes to. For service.c. */
#pragma once

#include "engine/service.h"

#include <pthread.h>

struct lane;

/* Takes the engine over, also when this fails. `telling` is held while listeners are told, so that of several lanes one
 * tells at a time. */
enum status lane_open(struct gyre *take_engine, const struct service_options *options, pthread_mutex_t *telling,
                      struct lane **out, struct error *err);
void lane_close(struct lane *s); // NULL is fine
void lane_drain(struct lane *s);

/* goes_on: as service_submit_more. */
enum status lane_submit(struct lane *s, const struct gyre_request *request, void *user, bool goes_on,
                        struct answer **out, struct error *err);

void lane_state(const struct lane *s, struct service_state *out);
bool lane_has_failed(const struct lane *s); // its device; for ever. Without the lock
const struct telemetry *lane_telemetry(const struct lane *s);
struct gyre *lane_engine(const struct lane *s); // for what never changes
