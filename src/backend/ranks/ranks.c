/* ranks.c - see ranks.h. Each function of the table is the inner backend's, once a rank. */
#include "backend/ranks/ranks.h"

#include "base/pool.h"
#include "core/pass/pass.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TABLES = 4 }; // kinds of ranks in one process

struct table {
    struct backend_ops ops;
    const struct backend_ops *of;
    int n;
    bool by_expert;
};

static struct table tables[MAX_TABLES];

struct device {
    const struct table *table;
    struct device *of[MAX_RANKS_OF_A_MODEL];
    struct pool *pool;  // a thread a rank
    struct error fault; // of a step, sticky
};

struct loaded {
    struct device *device;
    const struct program *whole;
    struct program *programs[MAX_RANKS_OF_A_MODEL];
    struct loaded *of[MAX_RANKS_OF_A_MODEL];
};

struct executable {
    struct loaded *loaded;
    struct executable *of[MAX_RANKS_OF_A_MODEL];
    struct sample_result *results; // of the other ranks, [max_rows]
    int n_rows[2];                 // of steps in flight, by turns
    int64_t n_run, n_collected;
};

static const struct table *table_of(const struct executable *exe) { return exe->loaded->device->table; }

// ---- devices and what is loaded ---------------------------------------------------------------------------------

static void ranks_close(struct device *d) {
    for (int i = 0; i < d->table->n; i++)
        if (d->of[i])
            d->table->of->close(d->of[i]);
    pool_free(d->pool);
    free(d);
}

/* Ranks of a device in the host's memory share the one there is; others have one each, from the given one on. */
static enum status ranks_open(const struct table *t, const struct device_options *options, struct device **out,
                              struct error *err) {
    struct device *d = xcalloc(1, sizeof *d);
    enum status st = OK;
    d->table = t;
    d->pool = pool_open(t->n);
    if (pool_size(d->pool) != t->n) // ranks wait for each other
        st = fail(err, ERR_MEMORY, "no thread could be started for each rank");
    for (int i = 0; i < t->n && st == OK; i++) {
        struct device_options one = *options;
        one.n_ranks = t->n;
        one.index += t->of->in_place ? 0 : i;
        if (t->of->in_place)
            one.n_threads = MAX((one.n_threads ? one.n_threads : (int)sysconf(_SC_NPROCESSORS_ONLN)) / t->n, 1);
        st = t->of->open(&one, &d->of[i], err);
    }
    if (st != OK) {
        ranks_close(d);
        d = NULL;
    }
    *out = d;
    return st;
}

/* Of all devices, as each has a share of the weights; of the host the one there is. */
static void ranks_memory(const struct device *d, struct device_memory *out) {
    const struct table *t = d->table;
    t->of->memory(d->of[0], out);
    for (int i = 1; i < t->n && !t->of->in_place; i++) {
        struct device_memory one;
        t->of->memory(d->of[i], &one);
        out->total = out->total && one.total ? out->total + one.total : 0; // 0: not known
        out->taken += one.taken;
    }
}

static void ranks_unload(struct loaded *l) {
    if (!l)
        return;
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        if (l->of[i])
            t->of->unload(l->of[i]);
        program_free(l->programs[i]);
    }
    free(l);
}

/* What comes of what ranks do at the same time. The first that fails says why: others wait for it in vain. */
struct outcomes {
    enum status status[MAX_RANKS_OF_A_MODEL];
    struct error err[MAX_RANKS_OF_A_MODEL];
    atomic_int first; // 1 + that one; 0: none has
};

static void tell_outcome(struct outcomes *o, int rank, enum status st) {
    int none = 0;
    o->status[rank] = st;
    if (st != OK)
        atomic_compare_exchange_strong(&o->first, &none, rank + 1);
}

static enum status first_fault(struct outcomes *o, struct error *err) {
    int first = atomic_load(&o->first) - 1;
    if (first < 0)
        return OK;
    *err = o->err[first];
    return o->status[first];
}

struct loading {
    struct loaded *loaded;
    const struct load_options *options;
    struct outcomes outcomes;
};

/* Each takes its views of the one checkpoint. */
static void load_rank(void *arg, int rank, int n_ranks) {
    struct loading *w = arg;
    struct loaded *l = w->loaded;
    struct load_options one = *w->options;
    (void)n_ranks;
    if (rank > 0)
        one.progress = (struct load_progress){0};
    tell_outcome(
        &w->outcomes, rank,
        l->device->table->of->load(l->device->of[rank], l->programs[rank], &one, &l->of[rank], &w->outcomes.err[rank]));
}

static enum status load_ranks(struct loaded *l, const struct program *p, const struct load_options *options,
                              struct error *err) {
    const struct table *t = l->device->table;
    if (options->caches_of)
        return fail(err, ERR_UNSUPPORTED, "%s: a draft that reads another program's cache runs on one device only",
                    p->name);
    struct loading w = {.loaded = l, .options = options};
    for (int i = 0; i < t->n; i++)
        TRY(pass_shard(p, &(struct shard_options){i, t->n, t->by_expert}, &l->programs[i], err));
    pool_run(l->device->pool, load_rank, &w);
    TRY(first_fault(&w.outcomes, err));
    return t->of->join(l->of, t->n, err);
}

static enum status ranks_load(struct device *d, const struct program *p, const struct load_options *options,
                              struct loaded **out, struct error *err) {
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = d;
    l->whole = p;
    enum status st = load_ranks(l, p, options, err);
    if (st != OK) {
        ranks_unload(l);
        l = NULL;
    }
    *out = l;
    return st;
}

static enum status ranks_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err) {
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++)
        TRY(t->of->alloc_cache(l->of[i], config, err));
    return OK;
}

static enum status ranks_commit_cache(struct loaded *l, int group, int *n, struct error *err) {
    const struct table *t = l->device->table;
    int asked = *n, least = INT32_MAX;
    for (int i = 0; i < t->n; i++) {
        int usable = asked;
        TRY(t->of->commit_cache(l->of[i], group, &usable, err)); // where one fails, others have more than is used
        least = MIN(least, usable);
    }
    *n = least;
    return OK;
}

/* In the host's memory all ranks' blocks count. */
static int64_t ranks_cache_block_bytes(const struct loaded *l, int group, int block_size) {
    const struct table *t = l->device->table;
    int64_t bytes = 0;
    for (int i = 0; i < (t->of->in_place ? t->n : 1); i++)
        bytes += t->of->cache_block_bytes(l->of[i], group, block_size);
    return bytes;
}

/* A block is all ranks' blocks, one behind the other. */
static int64_t ranks_handed_bytes(const struct loaded *l, int group) {
    const struct table *t = l->device->table;
    int64_t bytes = 0;
    for (int i = 0; i < t->n; i++)
        bytes += t->of->handed_bytes(l->of[i], group);
    return bytes;
}

static enum status ranks_get_cache(struct loaded *l, int group, int block, void *out, struct error *err) {
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        TRY(t->of->get_cache(l->of[i], group, block, out, err));
        out = (char *)out + t->of->handed_bytes(l->of[i], group);
    }
    return OK;
}

static enum status ranks_put_cache(struct loaded *l, int group, int block, const void *in, struct error *err) {
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        TRY(t->of->put_cache(l->of[i], group, block, in, err));
        in = (const char *)in + t->of->handed_bytes(l->of[i], group);
    }
    return OK;
}

static enum status ranks_cache_room(struct loaded *l, struct bucket bucket, int block_size, const int *table_width,
                                    double share, int64_t *out, struct error *err) {
    const struct table *t = l->device->table;
    *out = INT64_MAX;
    for (int i = 0; i < t->n; i++) {
        int64_t room;
        TRY(t->of->cache_room(l->of[i], bucket, block_size, table_width, share, &room, err));
        *out = MIN(*out, room);
    }
    return OK;
}

// ---- steps ------------------------------------------------------------------------------------------------------

static void ranks_free_executable(struct executable *exe) {
    if (!exe)
        return;
    for (int i = 0; i < table_of(exe)->n; i++)
        if (exe->of[i])
            table_of(exe)->of->free_executable(exe->of[i]);
    free(exe->results);
    free(exe);
}

static enum status ranks_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    const struct table *t = l->device->table;
    struct executable *exe = xcalloc(1, sizeof *exe);
    enum status st = OK;
    exe->loaded = l;
    exe->results = xcalloc((size_t)bucket.max_rows + 1, sizeof *exe->results);
    for (int i = 0; i < t->n && st == OK; i++)
        st = t->of->compile(l->of[i], bucket, &exe->of[i], err);
    if (st != OK) {
        ranks_free_executable(exe);
        exe = NULL;
    }
    *out = exe;
    return st;
}

/* Ranks are alike. */
static bool ranks_warning(struct executable *exe, int i, char *out, size_t n) {
    return table_of(exe)->of->warning(exe->of[0], i, out, n);
}

static int ranks_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    const struct table *t = table_of(exe);
    int n = t->of->report(exe->of[0], out);
    for (int i = 1; i < t->n; i++) {
        struct device_report more[MAX_DEVICE_REPORTS];
        t->of->report(exe->of[i], more);
        for (int k = 0; k < n; k++)
            if (strcmp(out[k].unit, "bytes") == 0)
                out[k].value += more[k].value;
    }
    return n;
}

/* A step, or its draw, of all ranks at the same time. */
struct together {
    struct executable *exe;
    const struct batch_plan *plan; // NULL: a draw
    const struct sample_params *sample;
    struct outcomes outcomes;
};

static void do_rank(void *arg, int rank, int n_ranks) {
    struct together *w = arg;
    const struct backend_ops *of = table_of(w->exe)->of;
    (void)n_ranks;
    struct error *err = &w->outcomes.err[rank];
    tell_outcome(&w->outcomes, rank,
                 w->plan ? of->run(w->exe->of[rank], w->plan, w->sample, err)
                         : of->draw(w->exe->of[rank], w->sample, err));
}

/* Ranks of which one has failed do not go on: they would not meet. */
static enum status stays_failed(struct device *d, enum status st, struct error *err) {
    if (st == OK || d->fault.status != OK)
        return st;
    fail(&d->fault, ERR_DEVICE, "%s", err->text);
    *err = d->fault;
    return ERR_DEVICE;
}

static enum status check_fault(const struct device *d, struct error *err) {
    if (d->fault.status != OK)
        *err = d->fault;
    return d->fault.status;
}

static enum status do_all(struct together *w, struct error *err) {
    struct device *d = w->exe->loaded->device;
    TRY(check_fault(d, err));
    pool_run(d->pool, do_rank, w);
    return stays_failed(d, first_fault(&w->outcomes, err), err);
}

static enum status ranks_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                             struct error *err) {
    exe->n_rows[exe->n_run++ & 1] = plan->n_rows;
    return do_all(&(struct together){.exe = exe, .plan = plan, .sample = sample}, err);
}

static enum status ranks_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    return do_all(&(struct together){.exe = exe, .sample = sample}, err);
}

/* Ranks that draw different tokens would go on with different texts. */
static enum status collect_all(struct executable *exe, int n_rows, struct sample_result *results, struct error *err) {
    const struct table *t = table_of(exe);
    TRY(t->of->collect(exe->of[0], results, err));
    for (int i = 1; i < t->n; i++) {
        TRY(t->of->collect(exe->of[i], exe->results, err));
        for (int r = 0; r < n_rows; r++)
            if (exe->results[r].token != results[r].token)
                return fail(err, ERR_DEVICE, "ranks 0 and %d drew tokens %d and %d for one row", i, results[r].token,
                            exe->results[r].token);
    }
    return OK;
}

static enum status ranks_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    struct device *d = exe->loaded->device;
    TRY(check_fault(d, err));
    return stays_failed(d, collect_all(exe, exe->n_rows[exe->n_collected++ & 1], results, err), err);
}

/* All ranks route all tokens. */
static int ranks_expert_loads(const struct executable *exe, int64_t *out, int most) {
    return table_of(exe)->of->expert_loads(exe->of[0], out, most);
}

static enum status ranks_logits(struct executable *exe, int row, const float **out, struct error *err) {
    return table_of(exe)->of->logits(exe->of[0], row, out, err);
}

static enum status ranks_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err) {
    return table_of(exe)->of->hidden(exe->of[0], tap, t, out, err);
}

/* Each rank keeps whole states. */
static enum status ranks_states_from(struct executable *exe, int i, struct executable *from, int tap,
                                     struct error *err) {
    const struct table *t = table_of(exe);
    for (int r = 0; r < t->n; r++)
        TRY(t->of->states_from(exe->of[r], i, from->of[r], tap, err));
    return OK;
}

// ---- what a bench asks, of one rank: all are alike and compute at the same time ----------------------------------

static const struct weight *weight_of(const struct program *p, int at, int slot) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code != OP_ALL_REDUCE && p->ops[i].code != OP_ALL_GATHER && at-- == 0)
            return p->ops[i].weights[slot];
    return NULL;
}

/* Of the first rank's share of a weight of the whole program. */
static int64_t ranks_weight_bytes(const struct loaded *l, const struct weight *w) {
    const struct backend_probes *probes = l->device->table->of->probes;
    for (int i = 0; i < l->whole->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *mine = w && l->whole->ops[i].weights[k] == w ? weight_of(l->programs[0], i, k) : NULL;
            if (mine)
                return probes->weight_bytes ? probes->weight_bytes(l->of[0], mine) : weight_stored_bytes(mine);
        }
    return 0;
}

/* Products count whole, and are computed by all. */
static enum status ranks_measure(struct loaded *l, struct device_limits *out, struct error *err) {
    const struct table *t = l->device->table;
    struct device_limits one;
    TRY(t->of->probes->measure(l->of[0], &one, err));
    *out = one;
    snprintf(out->name, sizeof out->name, "%d of %.80s", t->n, one.name);
    out->flops_per_s *= t->n, out->wide_flops_per_s *= t->n;
    return OK;
}

static const struct backend_probes ranks_probes = {.measure = ranks_measure, .weight_bytes = ranks_weight_bytes};

// ---- the tables -------------------------------------------------------------------------------------------------

#define OPEN_OF(i)                                                                                        \
    static enum status open_##i(const struct device_options *o, struct device **out, struct error *err) { \
        return ranks_open(&tables[i], o, out, err);                                                       \
    }
OPEN_OF(0)
OPEN_OF(1)
OPEN_OF(2)
OPEN_OF(3)
static enum status (*const opens[MAX_TABLES])(const struct device_options *, struct device **,
                                              struct error *) = {open_0, open_1, open_2, open_3};

static void fill(struct table *t, const struct backend_ops *of, int n, bool by_expert) {
    *t = (struct table){.ops = *of, .of = of, .n = n, .by_expert = by_expert};
    struct backend_ops *ops = &t->ops;
    ops->open = opens[t - tables];
    ops->memory = of->memory ? ranks_memory : NULL;
    ops->close = ranks_close;
    ops->load = ranks_load;
    ops->unload = ranks_unload;
    ops->join = NULL;
    ops->alloc_cache = ranks_alloc_cache;
    ops->commit_cache = of->commit_cache ? ranks_commit_cache : NULL;
    ops->cache_block_bytes = ranks_cache_block_bytes;
    ops->handed_bytes = of->handed_bytes ? ranks_handed_bytes : NULL;
    ops->get_cache = of->get_cache ? ranks_get_cache : NULL;
    ops->put_cache = of->put_cache ? ranks_put_cache : NULL;
    ops->cache_room = of->cache_room ? ranks_cache_room : NULL;
    ops->compile = ranks_compile;
    ops->free_executable = ranks_free_executable;
    ops->warning = of->warning ? ranks_warning : NULL;
    ops->report = ranks_report;
    ops->run = ranks_run;
    ops->draw = ranks_draw;
    ops->collect = ranks_collect;
    ops->logits = ranks_logits;
    ops->expert_loads = of->expert_loads ? ranks_expert_loads : NULL;
    ops->hidden = of->hidden ? ranks_hidden : NULL;
    ops->states_from = of->states_from ? ranks_states_from : NULL;
    ops->probes = !of->in_place && of->probes && of->probes->measure ? &ranks_probes : NULL;
}

enum status backend_ranks(const struct backend_ops *of, int n, bool by_expert, const struct backend_ops **out,
                          struct error *err) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    *out = NULL;
    if (n < 1 || n > MAX_RANKS_OF_A_MODEL)
        return fail(err, ERR_ARG, "%d devices cannot share a model; 1 to %d can", n, MAX_RANKS_OF_A_MODEL);
    if (!of->join)
        return fail(err, ERR_UNSUPPORTED, "device %s cannot share a model with others of its kind yet", of->name);
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_TABLES && !*out; i++) {
        struct table *t = &tables[i];
        if (!t->of)
            fill(t, of, n, by_expert);
        if (t->of == of && t->n == n && t->by_expert == by_expert)
            *out = &t->ops;
    }
    pthread_mutex_unlock(&mutex);
    return *out ? OK : fail(err, ERR_LIMIT, "there are %d kinds of ranks in this process already", MAX_TABLES);
}
