/* stages.c - see stages.h. Each function of the table is the inner backend's, once a stage; a step's are once a stage
 * and part. */
#include "backend/ranks/stages.h"

#include "backend/ranks/parts.h"
#include "base/pool.h"
#include "core/pass/pass.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TABLES = 4 }; // kinds of pipelines in one process

struct table {
    struct backend_ops ops;
    const struct backend_ops *of, *far; // far: of all stages but the last; NULL: all are alike
    int n;
};

static struct table tables[MAX_TABLES];

struct device {
    const struct table *table;
    struct device *of[MAX_STAGES];
    struct pool *pool;  // a thread a stage
    struct error fault; // of a step, sticky
};

struct loaded {
    struct device *device;
    struct program *programs[MAX_STAGES];
    struct loaded *of[MAX_STAGES];
};

struct executable {
    struct loaded *loaded;
    struct executable *of[MAX_STAGES][MAX_STAGES]; // stage, part
    float *states[MAX_STAGES][MAX_STAGES];         // what a stage's part comes with; NULL: the first
    struct part parts[MAX_STAGES];
    int n_parts;
    const struct sample_params *sample; // of the step; NULL: it is late
    struct sample_params *unread;       // [max_rows], for stages that draw nothing
    struct sample_result *results;      // [max_rows]
    int n_rows;                         // of the step
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int progress[MAX_STAGES]; // parts that a stage is done with
    enum status status;       // of the first stage that failed ...
    struct error err;         // ... and why
};

static const struct table *table_of(const struct executable *exe) { return exe->loaded->device->table; }

static const struct backend_ops *ops_of(const struct table *t, int stage) {
    return t->far && stage < t->n - 1 ? t->far : t->of;
}

// ---- devices and what is loaded ---------------------------------------------------------------------------------

static void stages_close(struct device *d) {
    for (int i = 0; i < d->table->n; i++)
        if (d->of[i])
            ops_of(d->table, i)->close(d->of[i]);
    pool_free(d->pool);
    free(d);
}

static enum status stages_open(const struct table *t, const struct device_options *options, struct device **out,
                               struct error *err) {
    struct device *d = xcalloc(1, sizeof *d);
    enum status st = OK;
    d->table = t;
    d->pool = pool_open(t->n);
    if (pool_size(d->pool) != t->n)
        st = fail(err, ERR_MEMORY, "no thread could be started for each stage");
    for (int i = 0; i < t->n && st == OK; i++) {
        struct device_options one = *options;
        if (!t->far)
            one.n_threads = MAX((one.n_threads ? one.n_threads : (int)sysconf(_SC_NPROCESSORS_ONLN)) / t->n, 1);
        else if (i < t->n - 1)
            one.index = i + 1; // the node
        st = ops_of(t, i)->open(&one, &d->of[i], err);
    }
    *out = d;
    if (st == OK)
        return OK;
    stages_close(d);
    *out = NULL;
    return st;
}

static void stages_memory(const struct device *d, struct device_memory *out) {
    d->table->of->memory(d->of[d->table->n - 1], out);
}

static void stages_unload(struct loaded *l) {
    if (!l)
        return;
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        if (l->of[i])
            ops_of(t, i)->unload(l->of[i]);
        program_free(l->programs[i]);
    }
    free(l);
}

static enum status load_stages(struct loaded *l, const struct program *p, const struct load_options *options,
                               struct error *err) {
    const struct table *t = l->device->table;
    if (options->caches_of)
        return fail(err, ERR_UNSUPPORTED, "%s: a draft that reads another program's cache runs on one device only",
                    p->name);
    for (int i = 0; i < t->n; i++) {
        struct load_options one = *options;
        if (i > 0)
            one.progress = (struct load_progress){0};
        TRY(pass_stage(p, i, t->n, &l->programs[i], err));
        TRY(ops_of(t, i)->load(l->device->of[i], l->programs[i], &one, &l->of[i], err));
    }
    return OK;
}

static enum status stages_load(struct device *d, const struct program *p, const struct load_options *options,
                               struct loaded **out, struct error *err) {
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = d;
    enum status st = load_stages(l, p, options, err);
    *out = st == OK ? l : NULL;
    if (st != OK)
        stages_unload(l);
    return st;
}

// ---- caches: a block is all stages' blocks, one behind the other ------------------------------------------------

static enum status stages_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err) {
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++)
        TRY(ops_of(t, i)->alloc_cache(l->of[i], config, err));
    return OK;
}

static int64_t stages_cache_block_bytes(const struct loaded *l, int group, int block_size) {
    int64_t bytes = 0;
    for (int i = 0; i < l->device->table->n; i++)
        bytes += ops_of(l->device->table, i)->cache_block_bytes(l->of[i], group, block_size);
    return bytes;
}

static int64_t stages_handed_bytes(const struct loaded *l, int group) {
    const struct table *t = l->device->table;
    int64_t bytes = 0;
    for (int i = 0; i < t->n; i++)
        bytes += t->of->handed_bytes(l->of[i], group);
    return bytes;
}

static enum status stages_get_cache(struct loaded *l, int group, int block, void *out, struct error *err) {
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        TRY(t->of->get_cache(l->of[i], group, block, out, err));
        out = (char *)out + t->of->handed_bytes(l->of[i], group);
    }
    return OK;
}

static enum status stages_put_cache(struct loaded *l, int group, int block, const void *in, struct error *err) {
    const struct table *t = l->device->table;
    for (int i = 0; i < t->n; i++) {
        TRY(t->of->put_cache(l->of[i], group, block, in, err));
        in = (const char *)in + t->of->handed_bytes(l->of[i], group);
    }
    return OK;
}

// ---- executables ------------------------------------------------------------------------------------------------

static void stages_free_executable(struct executable *exe) {
    if (!exe)
        return;
    const struct table *t = table_of(exe);
    for (int i = 0; i < t->n; i++)
        for (int m = 0; m < t->n; m++) {
            if (exe->of[i][m])
                ops_of(t, i)->free_executable(exe->of[i][m]);
            free(exe->states[i][m]);
        }
    for (int m = 0; m < t->n; m++) {
        free(exe->parts[m].query_start);
        free(exe->parts[m].out_row);
    }
    free(exe->unread);
    free(exe->results);
    pthread_cond_destroy(&exe->moved);
    pthread_mutex_destroy(&exe->lock);
    free(exe);
}

/* Columns that the stage's STATES has. */
static int64_t states_width(const struct program *p) {
    return p->ops[0].code == OP_STATES ? p->ops[0].out[0].width : 0;
}

static enum status compile_all(struct executable *exe, struct bucket bucket, struct error *err) {
    const struct table *t = table_of(exe);
    for (int i = 0; i < t->n; i++)
        for (int m = 0; m < t->n; m++) {
            int64_t width = states_width(exe->loaded->programs[i]);
            TRY(ops_of(t, i)->compile(exe->loaded->of[i], bucket, &exe->of[i][m], err));
            if (width == 0)
                continue;
            exe->states[i][m] = calloc((size_t)bucket.max_tokens * (size_t)width, sizeof(float));
            if (!exe->states[i][m])
                return fail(err, ERR_MEMORY, "no memory for what %d tokens hand on between stages", bucket.max_tokens);
        }
    return OK;
}

static enum status stages_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    struct executable *exe = xcalloc(1, sizeof *exe);
    exe->loaded = l;
    pthread_mutex_init(&exe->lock, NULL);
    pthread_cond_init(&exe->moved, NULL);
    exe->unread = xcalloc((size_t)bucket.max_rows + 1, sizeof *exe->unread);
    exe->results = xcalloc((size_t)bucket.max_rows + 1, sizeof *exe->results);
    for (int m = 0; m < l->device->table->n; m++) {
        exe->parts[m].query_start = xcalloc((size_t)bucket.max_seqs + 1, sizeof(int32_t));
        exe->parts[m].out_row = xcalloc((size_t)bucket.max_rows + 1, sizeof(int32_t));
    }
    enum status st = compile_all(exe, bucket, err);
    *out = st == OK ? exe : NULL;
    if (st != OK)
        stages_free_executable(exe);
    return st;
}

static bool stages_warning(struct executable *exe, int i, char *out, size_t n) {
    return table_of(exe)->of->warning(exe->of[table_of(exe)->n - 1][0], i, out, n);
}

/* Weights are counted once a stage, a step's memory once a part. */
static int stages_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    const struct table *t = table_of(exe);
    int last = t->n - 1, n = t->of->report(exe->of[last][0], out);
    for (int i = t->far ? last : 0; i < t->n; i++)
        for (int m = 0; m < t->n; m++) {
            struct device_report more[MAX_DEVICE_REPORTS];
            t->of->report(exe->of[i][m], more);
            for (int k = 0; k < n; k++) {
                bool of_step = strstr(out[k].name, "step") != NULL;
                bool counts = strcmp(out[k].unit, "bytes") == 0 && (m == 0 || of_step) && (i < last || m > 0);
                out[k].value += counts ? more[k].value : 0;
            }
        }
    return n;
}

// ---- a step -----------------------------------------------------------------------------------------------------

static void move_on(struct executable *exe, int stage, enum status st, const struct error *err) {
    pthread_mutex_lock(&exe->lock);
    exe->progress[stage]++;
    if (st != OK && exe->status == OK) {
        exe->status = st;
        exe->err = *err;
    }
    pthread_cond_broadcast(&exe->moved);
    pthread_mutex_unlock(&exe->lock);
}

/* Until the stage before is done with the part; false: some stage has failed. */
static bool await_part(struct executable *exe, int stage, int m) {
    pthread_mutex_lock(&exe->lock);
    while (stage > 0 && exe->progress[stage - 1] <= m && exe->status == OK)
        pthread_cond_wait(&exe->moved, &exe->lock);
    bool goes_on = exe->status == OK;
    pthread_mutex_unlock(&exe->lock);
    return goes_on;
}

static enum status hand_on(struct executable *exe, int stage, int m, struct error *err) {
    const struct program *p = exe->loaded->programs[stage];
    int64_t width = states_width(exe->loaded->programs[stage + 1]);
    for (int t = 0; t < exe->parts[m].plan.n_tokens; t++) {
        float *to = exe->states[stage + 1][m] + t * width;
        for (int k = 0; k < p->n_taps; k++) {
            const float *row;
            TRY(ops_of(table_of(exe), stage)->hidden(exe->of[stage][m], k + 1, t, &row, err));
            memcpy(to, row, (size_t)p->taps[k].width * sizeof *to);
            to += p->taps[k].width;
        }
    }
    return OK;
}

static enum status run_part(struct executable *exe, int stage, int m, struct error *err) {
    const struct table *t = table_of(exe);
    const struct part *part = &exe->parts[m];
    struct batch_plan plan = part->plan;
    bool is_last = stage == t->n - 1, is_late = is_last && !exe->sample;
    plan.states = exe->states[stage][m];
    plan.n_rows = is_last ? part->n_rows : 0;
    const struct sample_params *sample = is_late ? NULL : is_last ? exe->sample + part->first_row : exe->unread;
    TRY(ops_of(t, stage)->run(exe->of[stage][m], &plan, sample, err));
    if (!is_late)
        TRY(ops_of(t, stage)->collect(exe->of[stage][m], exe->results + (is_last ? part->first_row : 0), err));
    return is_last ? OK : hand_on(exe, stage, m, err);
}

static void run_stage(void *arg, int stage, int n_stages) {
    struct executable *exe = arg;
    (void)n_stages;
    for (int m = 0; m < exe->n_parts && await_part(exe, stage, m); m++) {
        struct error err;
        enum status st = run_part(exe, stage, m, &err);
        move_on(exe, stage, st, &err);
    }
}

/* A pipeline of which one stage has failed does not go on. */
static enum status outcome(struct executable *exe, enum status st, struct error *err) {
    struct device *d = exe->loaded->device;
    if (st == OK)
        return OK;
    if (d->fault.status == OK)
        fail(&d->fault, ERR_DEVICE, "%s", err->text);
    *err = d->fault;
    return ERR_DEVICE;
}

static enum status check_fault(const struct executable *exe, struct error *err) {
    const struct device *d = exe->loaded->device;
    if (d->fault.status != OK)
        *err = d->fault;
    return d->fault.status;
}

static enum status stages_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                              struct error *err) {
    TRY(check_fault(exe, err));
    exe->n_parts = plan_cut(plan, table_of(exe)->n, exe->parts);
    exe->sample = sample;
    exe->n_rows = plan->n_rows;
    exe->status = OK;
    memset(exe->progress, 0, sizeof exe->progress);
    pool_run(exe->loaded->device->pool, run_stage, exe);
    if (exe->status != OK)
        *err = exe->err;
    return outcome(exe, exe->status, err);
}

static enum status draw_parts(struct executable *exe, const struct sample_params *sample, struct error *err) {
    const struct table *t = table_of(exe);
    for (int m = 0; m < exe->n_parts; m++) {
        const struct part *p = &exe->parts[m];
        TRY(t->of->draw(exe->of[t->n - 1][m], sample + p->first_row, err));
        TRY(t->of->collect(exe->of[t->n - 1][m], exe->results + p->first_row, err));
    }
    return OK;
}

static enum status stages_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    TRY(check_fault(exe, err));
    return outcome(exe, draw_parts(exe, sample, err), err);
}

static enum status stages_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    TRY(check_fault(exe, err));
    memcpy(results, exe->results, (size_t)exe->n_rows * sizeof *results);
    return OK;
}

/* Layers of all stages. */
static int stages_expert_loads(const struct executable *exe, int64_t *out, int most) {
    int n = 0;
    int64_t *one = xcalloc((size_t)most + 1, sizeof *one);
    memset(out, 0, (size_t)most * sizeof *out);
    for (int i = table_of(exe)->far ? table_of(exe)->n - 1 : 0; i < table_of(exe)->n; i++) { // what is here
        int mine = table_of(exe)->of->expert_loads(exe->of[i][0], one, most);
        for (int e = 0; e < MIN(mine, most); e++)
            out[e] += one[e];
        n = MAX(n, mine);
    }
    free(one);
    return n;
}

static enum status stages_logits(struct executable *exe, int row, const float **out, struct error *err) {
    int m = exe->n_parts - 1;
    while (m > 0 && exe->parts[m].first_row > row)
        m--;
    return table_of(exe)->of->logits(exe->of[table_of(exe)->n - 1][m], row - exe->parts[m].first_row, out, err);
}

static enum status stages_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err) {
    int m = exe->n_parts - 1;
    while (m > 0 && exe->parts[m].first_token > t)
        m--;
    return table_of(exe)->of->hidden(exe->of[table_of(exe)->n - 1][m], tap, t - exe->parts[m].first_token, out, err);
}

// ---- the tables -------------------------------------------------------------------------------------------------

#define OPEN_OF(i)                                                                                        \
    static enum status open_##i(const struct device_options *o, struct device **out, struct error *err) { \
        return stages_open(&tables[i], o, out, err);                                                      \
    }
OPEN_OF(0)
OPEN_OF(1)
OPEN_OF(2)
OPEN_OF(3)
static enum status (*const opens[MAX_TABLES])(const struct device_options *, struct device **,
                                              struct error *) = {open_0, open_1, open_2, open_3};

static void fill(struct table *t, const struct backend_ops *of, const struct backend_ops *far, int n) {
    *t = (struct table){.ops = *of, .of = of, .far = far, .n = n};
    struct backend_ops *ops = &t->ops;
    ops->open = opens[t - tables];
    ops->memory = of->memory ? stages_memory : NULL;
    ops->close = stages_close;
    ops->load = stages_load;
    ops->unload = stages_unload;
    ops->join = NULL;
    ops->alloc_cache = stages_alloc_cache;
    ops->commit_cache = NULL;
    ops->cache_block_bytes = stages_cache_block_bytes;
    ops->handed_bytes = of->handed_bytes && !far ? stages_handed_bytes : NULL;
    ops->get_cache = of->get_cache && !far ? stages_get_cache : NULL;
    ops->put_cache = of->put_cache && !far ? stages_put_cache : NULL;
    ops->cache_room = NULL;
    ops->compile = stages_compile;
    ops->free_executable = stages_free_executable;
    ops->warning = of->warning ? stages_warning : NULL;
    ops->report = stages_report;
    ops->run = stages_run;
    ops->draw = stages_draw;
    ops->collect = stages_collect;
    ops->logits = stages_logits;
    ops->expert_loads = of->expert_loads ? stages_expert_loads : NULL;
    ops->hidden = stages_hidden;
    ops->probes = NULL;
}

enum status backend_stages_far(const struct backend_ops *of, const struct backend_ops *far, int n,
                               const struct backend_ops **out, struct error *err) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    *out = NULL;
    if (n < 1 || n > MAX_STAGES)
        return fail(err, ERR_ARG, "a pipeline has 1 to %d stages, not %d", MAX_STAGES, n);
    if (!of->hidden || of->max_in_flight > 1 || !of->in_place)
        return fail(err, ERR_UNSUPPORTED, "device %s cannot be a stage of a pipeline yet", of->name);
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_TABLES && !*out; i++) {
        struct table *t = &tables[i];
        if (!t->of)
            fill(t, of, far, n);
        if (t->of == of && t->far == far && t->n == n)
            *out = &t->ops;
    }
    pthread_mutex_unlock(&mutex);
    return *out ? OK : fail(err, ERR_LIMIT, "there are %d kinds of pipelines in this process already", MAX_TABLES);
}

enum status backend_stages(const struct backend_ops *of, int n, const struct backend_ops **out, struct error *err) {
    return backend_stages_far(of, NULL, n, out, err);
}
