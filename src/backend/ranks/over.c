/* over.c - see over.h. */
#include "backend/ranks/over.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_TABLES = 8 }; // kinds in one process

static struct over tables[MAX_TABLES];

/* Whether all devices share the host's memory and processors. */
static bool shares_host(const struct over *t) { return t->of->in_place && !t->far; }

// ---- devices ----------------------------------------------------------------------------------------------------

static void over_close(struct device *d) {
    for (int i = 0; i < d->table->n; i++)
        if (d->of[i])
            over_ops(d->table, i)->close(d->of[i]);
    pool_free(d->pool);
    free(d);
}

static struct device_options options_of(const struct over *t, const struct device_options *given, int i) {
    struct device_options one = *given;
    if (!t->by_stage)
        one.n_ranks = t->n;
    if (t->far)
        one.index = i < t->n - 1 ? i + 1 : given->index; // the node
    else if (shares_host(t))
        one.n_threads = MAX((one.n_threads ? one.n_threads : (int)sysconf(_SC_NPROCESSORS_ONLN)) / t->n, 1);
    else
        one.index += i * MAX(t->of->n_devices, 1);
    return one;
}

static enum status over_open(const struct over *t, const struct device_options *options, struct device **out,
                             struct error *err) {
    struct device *d = xcalloc(1, sizeof *d);
    enum status st = OK;
    d->table = t;
    d->pool = pool_open(t->n);
    if (pool_size(d->pool) != t->n) // they wait for each other
        st = fail(err, ERR_MEMORY, "no thread could be started for each %s", t->by_stage ? "stage" : "rank");
    for (int i = 0; i < t->n && st == OK; i++) {
        struct device_options one = options_of(t, options, i);
        st = over_ops(t, i)->open(&one, &d->of[i], err);
    }
    if (st != OK) {
        over_close(d);
        d = NULL;
    }
    *out = d;
    return st;
}

/* Of all devices here; of the host the one there is. */
static void over_memory(const struct device *d, struct device_memory *out) {
    const struct over *t = d->table;
    t->of->memory(d->of[t->n - 1], out);
    for (int i = 0; i < t->n - 1 && !t->of->in_place && !t->far; i++) {
        struct device_memory one;
        t->of->memory(d->of[i], &one);
        out->total = out->total && one.total ? out->total + one.total : 0; // 0: not known
        out->taken += one.taken;
    }
}

// ---- faults -----------------------------------------------------------------------------------------------------

void tell_outcome(struct outcomes *o, int i, enum status st) {
    int none = 0;
    o->status[i] = st;
    if (st != OK)
        atomic_compare_exchange_strong(&o->first, &none, i + 1);
}

enum status first_fault(struct outcomes *o, struct error *err) {
    int first = atomic_load(&o->first) - 1;
    if (first < 0)
        return OK;
    *err = o->err[first];
    return o->status[first];
}

enum status over_check(const struct device *d, struct error *err) {
    if (d->fault.status != OK)
        *err = d->fault;
    return d->fault.status;
}

enum status over_stays_failed(struct device *d, enum status st, struct error *err) {
    if (st == OK)
        return OK;
    if (d->fault.status == OK)
        fail(&d->fault, ERR_DEVICE, "%s", err->text);
    *err = d->fault;
    return ERR_DEVICE;
}

static enum status over_check_each(struct device *d, struct error *err) {
    const struct over *t = d->table;
    enum status st = over_check(d, err);
    for (int i = 0; i < t->n && st == OK; i++)
        st = over_ops(t, i)->check ? over_ops(t, i)->check(d->of[i], err) : OK;
    return over_stays_failed(d, st, err);
}

// ---- what is loaded ---------------------------------------------------------------------------------------------

struct loading {
    struct loaded *loaded;
    const struct load_options *options;
    struct outcomes outcomes;
};

static void load_one(void *arg, int i, int n) {
    struct loading *w = arg;
    struct loaded *l = w->loaded;
    struct load_options one = *w->options;
    (void)n;
    if (i > 0)
        one.progress = (struct load_progress){0};
    tell_outcome(
        &w->outcomes, i,
        over_ops(l->device->table, i)->load(l->device->of[i], l->programs[i], &one, &l->of[i], &w->outcomes.err[i]));
}

/* Each takes its views of the one checkpoint. */
enum status over_load(struct loaded *l, const struct load_options *options, struct error *err) {
    struct loading w = {.loaded = l, .options = options};
    pool_run(l->device->pool, load_one, &w);
    return first_fault(&w.outcomes, err);
}

void over_unload(struct loaded *l) {
    if (!l)
        return;
    const struct over *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        if (l->of[i])
            over_ops(t, i)->unload(l->of[i]);
        program_free(l->programs[i]);
    }
    free(l);
}

// ---- caches -----------------------------------------------------------------------------------------------------

static enum status over_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err) {
    const struct over *t = l->device->table;
    for (int i = 0; i < t->n; i++)
        TRY(over_ops(t, i)->alloc_cache(l->of[i], config, err));
    return OK;
}

static enum status over_commit_cache(struct loaded *l, int group, int *n, struct error *err) {
    const struct over *t = l->device->table;
    int asked = *n, least = INT32_MAX;
    for (int i = 0; i < t->n; i++) {
        int usable = asked;
        TRY(t->of->commit_cache(l->of[i], group, &usable, err)); // where one fails, others have more than is used
        least = MIN(least, usable);
    }
    *n = least;
    return OK;
}

/* In the host's memory all blocks count; else the largest, as each device has memory of its own. */
static int64_t over_cache_block_bytes(const struct loaded *l, int group, int block_size) {
    const struct over *t = l->device->table;
    int64_t sum = 0, most = 0;
    for (int i = 0; i < t->n; i++) {
        int64_t one = over_ops(t, i)->cache_block_bytes(l->of[i], group, block_size);
        sum += one;
        most = MAX(most, one);
    }
    return shares_host(t) ? sum : most;
}

static int64_t over_handed_bytes(const struct loaded *l, int group) {
    const struct over *t = l->device->table;
    int64_t bytes = 0;
    for (int i = 0; i < t->n; i++)
        bytes += t->of->handover->bytes(l->of[i], group);
    return bytes;
}

static enum status over_prepare(struct loaded *l, struct error *err) {
    const struct over *t = l->device->table;
    for (int i = 0; i < t->n && t->of->handover->prepare; i++)
        TRY(t->of->handover->prepare(l->of[i], err));
    return OK;
}

static enum status over_get_cache(struct loaded *l, int group, const int32_t *blocks, int n, void *out, size_t stride,
                                  struct error *err) {
    const struct over *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        TRY(t->of->handover->get(l->of[i], group, blocks, n, out, stride, err));
        out = (char *)out + t->of->handover->bytes(l->of[i], group);
    }
    return OK;
}

static enum status over_put_cache(struct loaded *l, int group, const int32_t *blocks, int n, const void *in,
                                  size_t stride, struct error *err) {
    const struct over *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        TRY(t->of->handover->put(l->of[i], group, blocks, n, in, stride, err));
        in = (const char *)in + t->of->handover->bytes(l->of[i], group);
    }
    return OK;
}

static enum status over_check_handed(const struct loaded *l, int group, int32_t n_tokens, const void *in,
                                     struct error *err) {
    const struct over *t = l->device->table;
    for (int i = 0; i < t->n && t->of->handover->check; i++) {
        TRY(t->of->handover->check(l->of[i], group, n_tokens, in, err));
        in = (const char *)in + t->of->handover->bytes(l->of[i], group);
    }
    return OK;
}

static const struct backend_handover over_handover = {.bytes = over_handed_bytes,
                                                      .prepare = over_prepare,
                                                      .get = over_get_cache,
                                                      .put = over_put_cache,
                                                      .check = over_check_handed};

int64_t over_states_width(const struct program *p) { return p->ops[0].code == OP_STATES ? p->ops[0].out[0].width : 0; }

/* The least, as each has the same blocks; less what comes from the stage before. */
static enum status over_cache_room(struct loaded *l, struct bucket bucket, int n, int block_size,
                                   const int *table_width, double share, int64_t *out, struct error *err) {
    const struct over *t = l->device->table;
    *out = INT64_MAX;
    for (int i = 0; i < t->n; i++) {
        int64_t room;
        int mine = n * (i == t->n - 1 ? MAX(t->n_last, 1) : 1);
        TRY(over_ops(t, i)->cache_room(l->of[i], bucket, mine, block_size, table_width, share, &room, err));
        room -= mine * over_states_width(l->programs[i]) * bucket.max_tokens * (int64_t)sizeof(float);
        *out = MIN(*out, room);
    }
    return OK;
}

// ---- the tables -------------------------------------------------------------------------------------------------

/* backend_ops.open is not told of which table it is. */
#define OPEN_OF(i)                                                                                        \
    static enum status open_##i(const struct device_options *o, struct device **out, struct error *err) { \
        return over_open(&tables[i], o, out, err);                                                        \
    }
OPEN_OF(0)
OPEN_OF(1)
OPEN_OF(2)
OPEN_OF(3)
OPEN_OF(4)
OPEN_OF(5)
OPEN_OF(6)
OPEN_OF(7)
static enum status (*const opens[MAX_TABLES])(const struct device_options *, struct device **, struct error *) = {
    open_0, open_1, open_2, open_3, open_4, open_5, open_6, open_7};

static void fill_common(struct over *t, const struct over *want) {
    const struct backend_ops *of = want->of;
    *t = *want;
    struct backend_ops *ops = &t->ops;
    *ops = *of;
    ops->n_devices = (want->far ? 1 : want->n) * MAX(of->n_devices, 1);
    ops->stage = want->far ? want->n - 1 : 0;
    ops->n_stages = want->far ? want->n : 0;
    ops->rings_beyond = want->far ? NULL : of->rings_beyond; // other hosts record the program as it is
    ops->open = opens[t - tables];
    ops->memory = of->memory ? over_memory : NULL;
    ops->check = of->check || (want->far && want->far->check) ? over_check_each : NULL;
    ops->close = over_close;
    ops->unload = over_unload;
    ops->join = NULL;
    ops->alloc_cache = over_alloc_cache;
    ops->commit_cache = of->commit_cache && !want->far ? over_commit_cache : NULL;
    ops->cache_block_bytes = over_cache_block_bytes;
    ops->handover = of->handover && !want->far ? &over_handover : NULL;
    ops->cache_room = of->cache_room ? over_cache_room : NULL;
    ops->foreseen = NULL; // threads of ranks may be at it
    ops->states_from = NULL;
    ops->probes = NULL;
}

static bool is_same(const struct over *a, const struct over *b) {
    return a->of == b->of && a->far == b->far && a->n == b->n && a->by_stage == b->by_stage &&
           a->by_expert == b->by_expert;
}

enum status over_table(const struct over *want, void (*fill)(struct over *t), const struct backend_ops **out,
                       struct error *err) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    *out = NULL;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_TABLES && !*out; i++) {
        struct over *t = &tables[i];
        if (!t->of) {
            fill_common(t, want);
            fill(t);
        }
        if (is_same(t, want))
            *out = &t->ops;
    }
    pthread_mutex_unlock(&mutex);
    return *out ? OK
                : fail(err, ERR_LIMIT, "there are %d kinds of ranks and pipelines in this process already", MAX_TABLES);
}
