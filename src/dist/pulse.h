/* pulse.h - says on a wire, several times a second, that this process still works on what it was asked: whoever waits
 * can tell something long from a process that is gone or a link that is dead. Not from a thread that hangs in itself:
 * the pulse is another one. Meanwhile nobody else writes the wire. */
#pragma once

#include "dist/wire.h"

#include <pthread.h>

struct pulse {
    struct wire *wire;
    uint32_t kind; // of frames without bytes
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over, started;
};

/* Where no thread can be started nothing is said, and who waits gives up after its patience. */
void pulse_begin(struct pulse *p, struct wire *w, uint32_t kind);
void pulse_end(struct pulse *p);
