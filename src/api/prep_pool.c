/* prep_pool.c - see prep_pool.h. */
#include "api/prep_pool.h"

#include "base/fair_share.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    LARGE = 256 << 10, // bytes of a body: some 60,000 tokens, 20 ms of work
    LEAST_COST = 1024, // of a request, in bytes: what it takes besides its text
    NICER = 10,        // threads that take large bodies, by nice: a ninth of the engine's share of a processor
};

enum job_size { SMALL_JOB, LARGE_JOB, N_SIZES };

struct job {
    struct http_exchange *x;
    struct job *next; // of its tenant and size
    int64_t tag;
    uint64_t number; // by arrival: of equal tags the first is first
};

/* What waits of a tenant, in the order of its tags. */
struct tenant {
    struct job *first[N_SIZES], **last[N_SIZES];
    size_t n_bytes;
    struct tenant *next; // of those that have something waiting; NULL as well for the last one
    bool listed;
};

struct prep_pool {
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t work;
    struct fair_share fair;
    struct tenant *tenants; // [fair.n_tenants]
    struct tenant *waiting; // that have jobs
    int n_waiting, n_working;
    uint64_t n_arrived;
    size_t max_waiting;
    void (*do_work)(struct http_exchange *x);
    bool first_is_idle; // there are several threads, and the first has nothing to do
    bool stopping;
    pthread_t *threads; // [n_threads]
    int n_threads, n_started;
};

// ---- the queue, under the lock ----------------------------------------------------------------------------------

static size_t cost_of(const struct http_exchange *x) { return x->body.len + LEAST_COST; }

static enum job_size size_of(const struct http_exchange *x) {
    return http_body_most(x) > LARGE ? LARGE_JOB : SMALL_JOB;
}

static void push(struct prep_pool *p, struct tenant *t, struct job *job) {
    enum job_size size = size_of(job->x);
    *t->last[size] = job;
    t->last[size] = &job->next;
    t->n_bytes += cost_of(job->x);
    p->n_waiting++;
    if (t->listed)
        return;
    t->listed = true;
    t->next = p->waiting;
    p->waiting = t;
}

static struct job *take_first(struct prep_pool *p, struct tenant *t, enum job_size size) {
    struct job *job = t->first[size];
    t->first[size] = job->next;
    if (!t->first[size])
        t->last[size] = &t->first[size];
    t->n_bytes -= cost_of(job->x);
    p->n_waiting--;
    return job;
}

static void unlist_idle(struct prep_pool *p) {
    for (struct tenant **at = &p->waiting; *at;) {
        struct tenant *t = *at;
        if (t->first[SMALL_JOB] || t->first[LARGE_JOB]) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->listed = false;
    }
}

static bool is_before(const struct job *a, const struct job *b) {
    return a->tag != b->tag ? a->tag < b->tag : a->number < b->number;
}

/* The one with the least tag, of sizes from least to most; NULL when there is none. */
static struct job *pop(struct prep_pool *p, enum job_size least, enum job_size most) {
    struct tenant *best = NULL;
    enum job_size best_size = SMALL_JOB;
    for (struct tenant *t = p->waiting; t; t = t->next)
        for (int size = (int)least; size <= (int)most; size++)
            if (t->first[size] && (!best || is_before(t->first[size], best->first[best_size]))) {
                best = t;
                best_size = (enum job_size)size;
            }
    if (!best)
        return NULL;
    struct job *job = take_first(p, best, best_size);
    unlist_idle(p);
    fair_share_start(&p->fair, job->tag);
    return job;
}

bool prep_pool_add(struct prep_pool *p, struct http_exchange *x, int tenant) {
    struct tenant *t = &p->tenants[tenant];
    struct job *job = arena_alloc(&x->arena, sizeof *job);
    pthread_mutex_lock(&p->lock);
    bool fits = t->n_bytes == 0 || cost_of(x) <= p->max_waiting - MIN(t->n_bytes, p->max_waiting);
    if (fits) {
        bool idle = p->n_waiting == 0 && p->n_working == 0;
        *job = (struct job){
            .x = x, .tag = fair_share_arrive(&p->fair, tenant, (int64_t)cost_of(x), idle), .number = p->n_arrived++};
        http_lend(x);
        push(p, t, job);
        pthread_cond_broadcast(&p->work); // the one that may take it must wake
    }
    pthread_mutex_unlock(&p->lock);
    return fits;
}

// ---- the threads ------------------------------------------------------------------------------------------------

static bool large_waits(struct prep_pool *p) {
    pthread_mutex_lock(&p->lock);
    bool waits = false;
    for (const struct tenant *t = p->waiting; t; t = t->next)
        waits |= t->first[LARGE_JOB] != NULL;
    pthread_mutex_unlock(&p->lock);
    return waits;
}

/* What many small values were in is not given back to the system without malloc_trim. It takes the locks of every
 * thread's heap, for milliseconds: once behind several large ones, of which the last is known before it is answered. */
static void run(struct prep_pool *p, struct http_exchange *x) {
    bool large = size_of(x) == LARGE_JOB;
    if (!http_was_left(x))
        p->do_work(x);
    bool last = large && !large_waits(p);
    http_give_back(x);
    if (last)
        malloc_trim(0);
}

/* Small ones are left to the first thread while it is idle: the others are slower where processors are wanted. */
static struct job *take(struct prep_pool *p, bool small_only) {
    struct job *job =
        small_only ? pop(p, SMALL_JOB, SMALL_JOB) : pop(p, p->first_is_idle ? LARGE_JOB : SMALL_JOB, LARGE_JOB);
    if (!small_only)
        return job;
    p->first_is_idle = !job;
    if (job && p->n_waiting > 0)
        pthread_cond_broadcast(&p->work); // the others may take small ones now
    return job;
}

static void *thread_of_pool(void *arg) {
    struct prep_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    bool is_first = p->n_started++ == 0, small_only = is_first && p->n_threads > 1;
    if (!is_first) // of this thread alone, on Linux; refused or not, all goes on
        setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, (id_t)gettid()) + NICER);
    while (!p->stopping) {
        struct job *job = take(p, small_only);
        if (!job) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        p->n_working++;
        pthread_mutex_unlock(&p->lock);
        run(p, job->x);
        pthread_mutex_lock(&p->lock);
        p->n_working--;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Signals are for the thread that called us. */
static enum status start_threads(struct prep_pool *p, int n, struct error *err) {
    sigset_t all, before;
    int why = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&p->lock); // none looks before it is known how many there are
    while (p->n_threads < n && why == 0) {
        why = pthread_create(&p->threads[p->n_threads], NULL, thread_of_pool, p);
        p->n_threads += why == 0;
    }
    pthread_mutex_unlock(&p->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why ? fail(err, ERR_IO, "a thread that reads requests cannot be started: %s", strerror(why)) : OK;
}

enum status prep_pool_open(int n_threads, int n_tenants, size_t max_waiting, void (*work)(struct http_exchange *x),
                           struct prep_pool **out, struct error *err) {
    struct prep_pool *p = xcalloc(1, sizeof *p);
    *out = NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    fair_share_init(&p->fair, n_tenants);
    p->max_waiting = max_waiting;
    p->first_is_idle = n_threads > 1;
    p->do_work = work;
    p->tenants = xcalloc((size_t)n_tenants, sizeof *p->tenants);
    for (int i = 0; i < n_tenants; i++)
        for (int size = 0; size < N_SIZES; size++)
            p->tenants[i].last[size] = &p->tenants[i].first[size];
    p->threads = xcalloc((size_t)n_threads, sizeof *p->threads);
    enum status st = start_threads(p, n_threads, err);
    if (st != OK) {
        prep_pool_close(p);
        return st;
    }
    *out = p;
    return OK;
}

void prep_pool_close(struct prep_pool *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    for (struct job *job; (job = pop(p, SMALL_JOB, LARGE_JOB));)
        http_give_back(job->x); // their connections are closed
    fair_share_release(&p->fair);
    free(p->tenants);
    free(p->threads);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
