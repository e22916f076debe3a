/* stages.c - see stages.h. Each function of the table is the inner backend's, once a stage; a step's are once a stage
 * and part. */
#include "backend/ranks/stages.h"

#include "backend/ranks/over.h"
#include "backend/ranks/parts.h"
#include "core/pass/pass.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)MAX_STAGES <= (int)MOST_DEVICES_OVER, "a device a stage");

struct executable {
    struct loaded *loaded;
    struct executable *of[MAX_STAGES][MAX_STAGES]; // stage, and of the last one part
    float *states[MAX_STAGES][MAX_STAGES];         // stage, part: what it comes with; NULL: the first
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

static const struct over *table_of(const struct executable *exe) { return exe->loaded->device->table; }

/* What is asked of a step's rows, once it is collected, the last stage has: the others are done with a part when it
 * has gone on. */
static int n_executables(const struct over *t, int stage) { return stage == t->n - 1 ? t->n : 1; }
static struct executable *executable_of(const struct executable *exe, int stage, int part) {
    return exe->of[stage][n_executables(table_of(exe), stage) > 1 ? part : 0];
}

// ---- what is loaded -------------------------------------------------------------------------------------------------

static enum status load_stages(struct loaded *l, const struct program *p, const struct load_options *options,
                               struct error *err) {
    const struct over *t = l->device->table;
    if (options->caches_of)
        return fail(err, ERR_UNSUPPORTED, "%s: a draft that reads another program's cache runs on one device only",
                    p->name);
    for (int i = 0; i < t->n; i++)
        TRY(pass_stage(p, i, t->n, &l->programs[i], err));
    return over_load(l, options, err);
}

static enum status stages_load(struct device *d, const struct program *p, const struct load_options *options,
                               struct loaded **out, struct error *err) {
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = d;
    enum status st = load_stages(l, p, options, err);
    *out = st == OK ? l : NULL;
    if (st != OK)
        over_unload(l);
    return st;
}

// ---- executables ------------------------------------------------------------------------------------------------

static void stages_free_executable(struct executable *exe) {
    if (!exe)
        return;
    const struct over *t = table_of(exe);
    for (int i = 0; i < t->n; i++)
        for (int m = 0; m < t->n; m++) {
            if (exe->of[i][m])
                over_ops(t, i)->free_executable(exe->of[i][m]);
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

static enum status compile_all(struct executable *exe, struct bucket bucket, struct error *err) {
    const struct over *t = table_of(exe);
    for (int i = 0; i < t->n; i++)
        for (int m = 0; m < t->n; m++) {
            int64_t width = over_states_width(exe->loaded->programs[i]);
            if (m < n_executables(t, i))
                TRY(over_ops(t, i)->compile(exe->loaded->of[i], bucket, &exe->of[i][m], err));
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
    const struct over *t = table_of(exe);
    int last = t->n - 1, n = t->of->report(exe->of[last][0], out);
    for (int i = t->far ? last : 0; i < t->n; i++)
        for (int m = 0; m < n_executables(t, i); m++) {
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
    int64_t width = over_states_width(exe->loaded->programs[stage + 1]);
    for (int t = 0; t < exe->parts[m].plan.n_tokens; t++) {
        float *to = exe->states[stage + 1][m] + t * width;
        for (int k = 0; k < p->n_taps; k++) {
            const float *row;
            TRY(over_ops(table_of(exe), stage)->hidden(executable_of(exe, stage, m), k + 1, t, &row, err));
            memcpy(to, row, (size_t)p->taps[k].width * sizeof *to);
            to += p->taps[k].width;
        }
    }
    return OK;
}

static enum status run_part(struct executable *exe, int stage, int m, struct error *err) {
    const struct over *t = table_of(exe);
    const struct part *part = &exe->parts[m];
    struct batch_plan plan = part->plan;
    bool is_last = stage == t->n - 1, is_late = is_last && !exe->sample;
    plan.states = exe->states[stage][m];
    plan.n_rows = is_last ? part->n_rows : 0;
    const struct sample_params *sample = is_late ? NULL : is_last ? exe->sample + part->first_row : exe->unread;
    TRY(over_ops(t, stage)->run(executable_of(exe, stage, m), &plan, sample, err));
    if (!is_late)
        TRY(over_ops(t, stage)->collect(executable_of(exe, stage, m), exe->results + (is_last ? part->first_row : 0),
                                        err));
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

static enum status stages_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                              struct error *err) {
    TRY(over_check(exe->loaded->device, err));
    exe->n_parts = plan_cut(plan, table_of(exe)->n, exe->parts);
    exe->sample = sample;
    exe->n_rows = plan->n_rows;
    exe->status = OK;
    memset(exe->progress, 0, sizeof exe->progress);
    pool_run(exe->loaded->device->pool, run_stage, exe);
    if (exe->status != OK)
        *err = exe->err;
    return over_stays_failed(exe->loaded->device, exe->status, err);
}

static enum status draw_parts(struct executable *exe, const struct sample_params *sample, struct error *err) {
    const struct over *t = table_of(exe);
    for (int m = 0; m < exe->n_parts; m++) {
        const struct part *p = &exe->parts[m];
        TRY(t->of->draw(exe->of[t->n - 1][m], sample + p->first_row, err));
        TRY(t->of->collect(exe->of[t->n - 1][m], exe->results + p->first_row, err));
    }
    return OK;
}

static enum status stages_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    TRY(over_check(exe->loaded->device, err));
    return over_stays_failed(exe->loaded->device, draw_parts(exe, sample, err), err);
}

static enum status stages_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    TRY(over_check(exe->loaded->device, err));
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

// ---- the table --------------------------------------------------------------------------------------------------

/* A part is collected before it goes on, so of a device that has steps in flight one at a time is. */
static void fill(struct over *t) {
    const struct backend_ops *of = t->of;
    struct backend_ops *ops = &t->ops;
    ops->max_in_flight = 1;
    ops->branches = false; // a step is cut between sequences, and plans go to other hosts without `also`
    ops->load = stages_load;
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
}

enum status backend_stages_far(const struct backend_ops *of, const struct backend_ops *far, int n,
                               const struct backend_ops **out, struct error *err) {
    *out = NULL;
    if (n < 1 || n > MAX_STAGES)
        return fail(err, ERR_ARG, "a pipeline has 1 to %d stages, not %d", MAX_STAGES, n);
    if (!of->hidden)
        return fail(err, ERR_UNSUPPORTED, "device %s cannot be a stage of a pipeline%s yet", of->name,
                    far ? " over hosts" : "");
    return over_table(&(struct over){.of = of, .far = far, .n = n, .by_stage = true, .n_last = n}, fill, out, err);
}

enum status backend_stages(const struct backend_ops *of, int n, const struct backend_ops **out, struct error *err) {
    return backend_stages_far(of, NULL, n, out, err);
}
