/* pulse.c - see pulse.h. */
#include "dist/pulse.h"

#include "base/clock.h"

enum { EACH_US = 250000, TAKEN_US = 1000000 };

static bool is_over_within(struct pulse *p, int64_t us) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + us % 1000000 * 1000;
    until.tv_sec += us / 1000000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    while (!p->is_over && pthread_cond_timedwait(&p->over, &p->lock, &until) == 0)
        ;
    return p->is_over;
}

static bool is_stalled(const struct pulse *p) { return clock_us() - atomic_load(&p->moved_us) > p->stall_us; }

static void *pulse_thread(void *arg) {
    struct pulse *p = arg;
    struct error err;
    pthread_mutex_lock(&p->lock);
    while (!is_over_within(p, EACH_US))
        if (!is_stalled(p) && wire_send(p->wire, p->kind, (struct str){"", 0}, clock_us() + TAKEN_US, &err) != OK) {
            wire_break(p->wire); // a frame may be there in part
            break;
        }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void pulse_moved(struct pulse *p) { atomic_store(&p->moved_us, clock_us()); }

void pulse_begin(struct pulse *p, struct wire *w, uint32_t kind, int64_t stall_us) {
    pthread_condattr_t attr;
    *p = (struct pulse){.wire = w, .kind = kind, .stall_us = stall_us, .moved_us = clock_us()};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->over, &attr);
    pthread_condattr_destroy(&attr);
    p->started = pthread_create(&p->thread, NULL, pulse_thread, p) == 0;
}

void pulse_end(struct pulse *p) {
    pthread_mutex_lock(&p->lock);
    p->is_over = true;
    pthread_cond_signal(&p->over);
    pthread_mutex_unlock(&p->lock);
    if (p->started)
        pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->over);
    pthread_mutex_destroy(&p->lock);
}
