/* ranks.c - see ranks.h. Each function of the table is the inner backend's, once a rank. */
#include "backend/ranks/ranks.h"

#include "backend/ranks/over.h"
#include "core/pass/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)MAX_RANKS_OF_A_MODEL <= (int)MOST_DEVICES_OVER, "a device a rank");

struct executable {
    struct loaded *loaded;
    struct executable *of[MAX_RANKS_OF_A_MODEL];
    struct sample_result *results; // of the other ranks, [max_rows]
    int n_rows[2];                 // of steps in flight, by turns
    int64_t n_run, n_collected;
};

static const struct over *table_of(const struct executable *exe) { return exe->loaded->device->table; }

// ---- what is loaded -------------------------------------------------------------------------------------------------

static enum status load_ranks(struct loaded *l, const struct program *p, const struct load_options *options,
                              struct error *err) {
    const struct over *t = l->device->table;
    if (options->caches_of)
        return fail(err, ERR_UNSUPPORTED, "%s: a draft that reads another program's cache runs on one device only",
                    p->name);
    for (int i = 0; i < t->n; i++)
        TRY(pass_shard(p, &(struct shard_options){i, t->n, t->by_expert}, &l->programs[i], err));
    TRY(over_load(l, options, err));
    return t->of->join(l->of, t->n, err);
}

static enum status ranks_load(struct device *d, const struct program *p, const struct load_options *options,
                              struct loaded **out, struct error *err) {
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = d;
    l->whole = p;
    enum status st = load_ranks(l, p, options, err);
    if (st != OK) {
        over_unload(l);
        l = NULL;
    }
    *out = l;
    return st;
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
    const struct over *t = l->device->table;
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
    const struct over *t = table_of(exe);
    int n = t->of->report(exe->of[0], out);
    for (int i = 1; i < t->n; i++) {
        struct device_report more[MAX_DEVICE_REPORTS];
        t->of->report(exe->of[i], more);
        for (int k = 0; k < n; k++)
            if (strcmp(out[k].unit, "bytes") == 0 || (t->by_expert && strcmp(out[k].unit, "experts") == 0))
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

static enum status do_all(struct together *w, struct error *err) {
    struct device *d = w->exe->loaded->device;
    TRY(over_check(d, err));
    pool_run(d->pool, do_rank, w);
    return over_stays_failed(d, first_fault(&w->outcomes, err), err);
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
    const struct over *t = table_of(exe);
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
    TRY(over_check(d, err));
    return over_stays_failed(d, collect_all(exe, exe->n_rows[exe->n_collected++ & 1], results, err), err);
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
    const struct over *t = table_of(exe);
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
    const struct over *t = l->device->table;
    struct device_limits one;
    TRY(t->of->probes->measure(l->of[0], &one, err));
    *out = one;
    snprintf(out->name, sizeof out->name, "%d of %.80s", t->n, one.name);
    out->flops_per_s *= t->n, out->wide_flops_per_s *= t->n;
    return OK;
}

static const struct backend_probes ranks_probes = {.measure = ranks_measure, .weight_bytes = ranks_weight_bytes};

// ---- the table --------------------------------------------------------------------------------------------------

static void fill(struct over *t) {
    const struct backend_ops *of = t->of;
    struct backend_ops *ops = &t->ops;
    ops->load = ranks_load;
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
    *out = NULL;
    if (n < 1 || n > MAX_RANKS_OF_A_MODEL)
        return fail(err, ERR_ARG, "%d devices cannot share a model; 1 to %d can", n, MAX_RANKS_OF_A_MODEL);
    if (!of->join)
        return fail(err, ERR_UNSUPPORTED, "device %s cannot share a model with others of its kind yet", of->name);
    return over_table(&(struct over){.of = of, .n = n, .by_expert = by_expert}, fill, out, err);
}
