/* prompt_server.h - the prefill role: computes prompts that other servers ask for, and gives them their cache.
 *
 * A prompt goes through the engine as any request, of no tokens to answer, and finds what is cached of it. Its blocks
 * are sent as steps compute them, where the model has no recurrent state; who is gone ends it. They are held until
 * the asker has taken them: one that is stopped holds those of its prompt for patience_us. To give the last ones back
 * before they are sent would wait for the engine's next step first. A thread a connection, MOST_ASKERS at most. Who
 * asks is not trusted: sizes are checked, another model is refused, and a question that has begun is not waited for
 * longer than patience_us. Who comes when all places are taken gets that of whom nothing whole was heard for the
 * longest time; of those whose prompts are computed or sent none is put out. So half a question keeps nobody waiting
 * meanwhile: it has a place that others may take, a thread that sleeps, and memory for what has come of it, 1 MiB
 * more at most. Who is put out for it and was well connects anew for its next question. */
#pragma once

#include "engine/lanes/lane.h"

enum { MOST_ASKERS = 64 };

struct prompt_server;

struct prompt_server_options {
    const char *address; // "host:port" to listen on
    uint64_t identity;   // of model and numerics (handover.h)
    int64_t patience_us,
        idle_us; // for a question to come whole, or an answer to be taken; for one to begin. 0: 60 s, a
                 // day
};

/* *port becomes the port. */
enum status prompt_server_open(struct lane *lane, const struct prompt_server_options *options,
                               struct prompt_server **out, int *port, struct error *err);
void prompt_server_close(struct prompt_server *s); // NULL is fine

/* So far: prompts; and the time of their parts, of each from when it settles and is copied until it was sent or, in
 * windows, taken. NULL has none. */
struct prompt_server_count {
    int64_t n_given, giving_us;
};
struct prompt_server_count prompt_server_count(const struct prompt_server *s);
