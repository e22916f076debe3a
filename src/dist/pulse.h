/* pulse.h - says on a wire, several times a second, that this process still works on what it was asked: whoever waits
 * can tell something long from a process that is gone or a link that is dead. And, later, from a thread that hangs in
 * itself: the pulse is another one, and falls silent when the work has not moved for stall_us. That must be longer than
 * the longest stretch of the work that tells nothing of itself. Meanwhile nobody else writes the wire. */
#pragma once

#include "dist/wire.h"

#include <pthread.h>
#include <stdatomic.h>

struct pulse {
    struct wire *wire;
    uint32_t kind; // of frames without bytes
    int64_t stall_us;
    _Atomic int64_t moved_us; // of the clock, the last time
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over, started;
};

/* Where no thread can be started nothing is said, and who waits gives up after its patience. */
void pulse_begin(struct pulse *p, struct wire *w, uint32_t kind, int64_t stall_us);
void pulse_moved(struct pulse *p); // by whoever works, every now and then
void pulse_end(struct pulse *p);
