/* pool.c - see pool.h. */
#include "base/pool.h"

#include "base/clock.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A waiter looks for a while, a pause (some 20 ns) between looks, and then parks on a futex. Between two ops of a step
 * the wait is short, and a futex would cost more than the op. Between steps workers stay awake for about half a
 * millisecond, longer than the engine takes to prepare the next one, and an idle server does not heat a core.
 * Where others share the processors, the worker that is waited for may be one of those who want this one. So threads
 * without a processor each look for 2 us, and who was parked for longer than any op takes, as if the other had lost its
 * processor for a turn, has all look half as long the next time, and longer again where that is enough. (To offer the
 * processor by sched_yield costs a turn of all neighbours at each barrier; who parks comes before them when woken.) */
enum { MOST_LOOKS = 5000, FEWEST_LOOKS = 100, BETWEEN_RUNS = 5, TURN_US = 1000 };

/* A word that waiters watch. Waking is a system call only if somebody is parked. */
struct signal {
    _Alignas(64) atomic_uint value;
    atomic_int n_parked;
};

struct pool {
    struct signal generation; // bumped to start a run
    struct signal working;    // workers that have not finished this run
    struct signal barrier;    // bumped when all have arrived
    _Alignas(64) atomic_int n_arrived;
    void (*fn)(void *, int, int);
    void *arg;
    int n_threads;
    int most_looks;
    atomic_int looks; // of a waiter within a run
    atomic_bool stop;
    pthread_t *threads; // [n_threads - 1]
    struct worker {
        struct pool *pool;
        int index;
    } * workers;
};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void futex_wake_all(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

/* The value once it differs from `seen`; false: not within so many looks. */
static bool signal_seen(struct signal *s, unsigned seen, int looks, unsigned *now) {
    for (int i = 0; i < looks; i++) {
        *now = atomic_load_explicit(&s->value, memory_order_acquire);
        if (*now != seen)
            return true;
        pause_cpu();
    }
    return false;
}

/* A waiter counts itself as parked before it looks a last time, and signal_wake is called after the value was changed,
 * so no wake is lost. */
static unsigned signal_park(struct signal *s, unsigned seen) {
    atomic_fetch_add(&s->n_parked, 1);
    unsigned now;
    while ((now = atomic_load(&s->value)) == seen)
        futex_wait(&s->value, seen);
    atomic_fetch_sub(&s->n_parked, 1);
    return now;
}

static void signal_wake(struct signal *s) {
    if (atomic_load(&s->n_parked) > 0)
        futex_wake_all(&s->value);
}

/* Waits for a change of s, and learns from it how long to look. */
static void wait_within_run(struct pool *p, struct signal *s, unsigned seen) {
    int looks = atomic_load_explicit(&p->looks, memory_order_relaxed), next;
    unsigned now;
    if (signal_seen(s, seen, looks, &now)) {
        next = MIN(looks + looks / 16 + 1, p->most_looks);
    } else {
        int64_t since = clock_us();
        signal_park(s, seen);
        next = clock_us() - since > TURN_US ? MAX(looks / 2, FEWEST_LOOKS) : looks;
    }
    if (next != looks)
        atomic_store_explicit(&p->looks, next, memory_order_relaxed);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        int looks = BETWEEN_RUNS * atomic_load_explicit(&p->looks, memory_order_relaxed);
        unsigned now;
        seen = signal_seen(&p->generation, seen, looks, &now) ? now : signal_park(&p->generation, seen);
        if (atomic_load(&p->stop))
            return NULL;
        p->fn(p->arg, w->index, p->n_threads);
        if (atomic_fetch_sub(&p->working.value, 1) == 1)
            signal_wake(&p->working);
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
    int most_looks = n_threads > available_processors() ? FEWEST_LOOKS : MOST_LOOKS;
    struct pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    BUG_IF(!p);
    *p = (struct pool){.n_threads = n_threads, .most_looks = most_looks, .looks = most_looks};
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
    atomic_fetch_add(&p->generation.value, 1);
    signal_wake(&p->generation);
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
    atomic_store_explicit(&p->working.value, (unsigned)p->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add(&p->generation.value, 1);
    signal_wake(&p->generation);
    fn(arg, 0, p->n_threads);
    for (unsigned left; (left = atomic_load_explicit(&p->working.value, memory_order_acquire)) > 0;)
        wait_within_run(p, &p->working, left);
}

void pool_barrier(struct pool *p) {
    if (p->n_threads == 1)
        return;
    unsigned seen = atomic_load_explicit(&p->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add(&p->n_arrived, 1) < p->n_threads - 1) {
        wait_within_run(p, &p->barrier, seen);
        return;
    }
    atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
    atomic_fetch_add(&p->barrier.value, 1);
    signal_wake(&p->barrier);
}

/* ---- ranges ---- */

/* What is left of one worker's part: pieces [front, back), in one word so that both ends move together. */
struct part {
    _Alignas(64) _Atomic uint64_t span; // front << 32 | back
};

struct pool_range {
    int n_workers;
    int64_t n, piece;
    struct part *parts; // [n_workers]
};

struct pool_range *pool_range_new(int n_workers) {
    struct pool_range *r = xcalloc(1, sizeof *r);
    r->n_workers = n_workers;
    r->parts = aligned_alloc(64, (size_t)n_workers * sizeof *r->parts);
    BUG_IF(!r->parts);
    for (int i = 0; i < n_workers; i++)
        atomic_init(&r->parts[i].span, 0);
    return r;
}

void pool_range_free(struct pool_range *r) {
    if (!r)
        return;
    free(r->parts);
    free(r);
}

void pool_range_deal(struct pool_range *r, int64_t n, int64_t piece) {
    r->n = n;
    r->piece = piece;
    int64_t n_pieces = (n + piece - 1) / piece;
    BUG_IF(n_pieces > INT32_MAX);
    for (int i = 0; i < r->n_workers; i++) {
        uint64_t front = (uint64_t)(n_pieces * i / r->n_workers), back = (uint64_t)(n_pieces * (i + 1) / r->n_workers);
        atomic_store_explicit(&r->parts[i].span, front << 32 | back, memory_order_relaxed);
    }
}

/* One piece of a part, from its front or its back; false when it is empty. */
static bool take_from(struct part *part, bool from_front, int64_t *piece) {
    uint64_t span = atomic_load_explicit(&part->span, memory_order_relaxed);
    for (;;) {
        uint64_t front = span >> 32, back = span & UINT32_MAX;
        if (front >= back)
            return false;
        uint64_t rest = from_front ? (front + 1) << 32 | back : front << 32 | (back - 1);
        if (atomic_compare_exchange_weak_explicit(&part->span, &span, rest, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            *piece = (int64_t)(from_front ? front : back - 1);
            return true;
        }
    }
}

bool pool_range_take(struct pool_range *r, int worker, int64_t *begin, int64_t *end) {
    int64_t piece;
    bool found = take_from(&r->parts[worker], true, &piece);
    for (int i = 1; i < r->n_workers && !found; i++)
        found = take_from(&r->parts[(worker + i) % r->n_workers], false, &piece);
    if (!found)
        return false;
    *begin = piece * r->piece;
    *end = MIN(*begin + r->piece, r->n);
    return true;
}
