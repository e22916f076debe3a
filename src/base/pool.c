/* pool.c - see pool.h. */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 50 microseconds of pausing: longer than the serial gap between two ops of a step, short enough
 * that an idle server does not heat a core. */
enum { SPINS = 2000 };

struct pool {
    _Alignas(64) atomic_uint generation; // bumped to start a run; futex word
    _Alignas(64) atomic_int n_parked;
    _Alignas(64) atomic_int n_working; // workers that have not finished this run
    _Alignas(64) atomic_int barrier_count;
    atomic_uint barrier_generation;
    void (*fn)(void *, int, int);
    void *arg;
    int n_threads;
    atomic_bool stop;
    pthread_t *threads; // [n_threads - 1]
    struct worker {
        struct pool *pool;
        int index;
    } *workers;
};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned value) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); }
static void futex_wake_all(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

/* Returns once the generation differs from `seen`. A worker counts itself as parked before it looks a
 * last time, and the starter bumps the generation before it reads the count, so no wake is lost. */
static unsigned wait_for_work(struct pool *p, unsigned seen) {
    for (int i = 0; i < SPINS; i++) {
        unsigned now = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (now != seen)
            return now;
        pause_cpu();
    }
    atomic_fetch_add(&p->n_parked, 1);
    unsigned now;
    while ((now = atomic_load(&p->generation)) == seen)
        futex_wait(&p->generation, seen);
    atomic_fetch_sub(&p->n_parked, 1);
    return now;
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_work(p, seen);
        if (atomic_load(&p->stop))
            return NULL;
        p->fn(p->arg, w->index, p->n_threads);
        atomic_fetch_sub_explicit(&p->n_working, 1, memory_order_release);
    }
}

static int available_processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return MAX(1, CPU_COUNT(&set));
    return 1;
}

struct pool *pool_open(int n_threads) {
    if (n_threads <= 0)
        n_threads = available_processors();
    n_threads = MIN(n_threads, 1024);
    struct pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    BUG_IF(!p);
    *p = (struct pool){.n_threads = n_threads};
    p->threads = xcalloc((size_t)n_threads, sizeof *p->threads);
    p->workers = xcalloc((size_t)n_threads, sizeof *p->workers);
    for (int i = 1; i < n_threads; i++) {
        p->workers[i] = (struct worker){p, i};
        if (pthread_create(&p->threads[i], NULL, worker_main, &p->workers[i]) != 0) {
            p->n_threads = i; // fewer threads than asked for still compute the same; nothing runs yet
            break;
        }
    }
    return p;
}

void pool_free(struct pool *p) {
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->generation, 1);
    futex_wake_all(&p->generation);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p->workers);
    free(p);
}

int pool_size(const struct pool *p) { return p->n_threads; }

void pool_run(struct pool *p, void (*fn)(void *, int, int), void *arg) {
    if (p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->n_working, p->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->n_parked) > 0)
        futex_wake_all(&p->generation);
    fn(arg, 0, p->n_threads);
    for (int i = 0; atomic_load_explicit(&p->n_working, memory_order_acquire) > 0; i++) {
        if (i < SPINS * 10)
            pause_cpu();
        else
            sched_yield(); // a worker lost its processor: let it have ours
    }
}

void pool_barrier(struct pool *p) {
    if (p->n_threads == 1)
        return;
    unsigned generation = atomic_load(&p->barrier_generation);
    if (atomic_fetch_add(&p->barrier_count, 1) == p->n_threads - 1) {
        atomic_store(&p->barrier_count, 0);
        atomic_fetch_add(&p->barrier_generation, 1);
        return;
    }
    for (int i = 0; atomic_load(&p->barrier_generation) == generation; i++) {
        if (i < SPINS * 10)
            pause_cpu();
        else
            sched_yield();
    }
}
