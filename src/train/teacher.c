/* teacher.c - see teacher.h. */
#include "train/teacher.h"

#include "core/pass/pass.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_TOKENS = 256, BLOCK = 64 };

struct teacher {
    const struct backend_ops *ops;
    const struct model *model;
    int64_t longest;
    int first_tap, n_taps; // as `hidden` of backend_ops counts them
    struct device *device;
    struct program *program; // with taps, if layers are read
    struct loaded *loaded;
    struct executable *exe;
    struct batch_plan plan;
    struct sample_params sample[STEP_TOKENS];
    struct sample_result results[STEP_TOKENS];
};

// ---- opening ----------------------------------------------------------------------------------------------------

static enum status alloc_caches(struct teacher *t, int width, struct error *err) {
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    int widths[MAX_CACHE_GROUPS] = {0};
    for (int g = 0; g < t->program->n_groups; g++)
        if (t->program->groups[g].kind != CACHE_STATE)
            widths[g] = config.n_blocks[g] = config.table_width[g] = width;
    TRY(t->ops->alloc_cache(t->loaded, &config, err));
    struct bucket bucket = {.max_tokens = STEP_TOKENS, .max_seqs = 1, .max_rows = STEP_TOKENS};
    TRY(t->ops->compile(t->loaded, bucket, &t->exe, err));
    batch_plan_init(&t->plan, bucket, t->program->n_groups, widths);
    for (int g = 0; g < t->program->n_groups; g++)
        for (int i = 0; i < widths[g]; i++)
            t->plan.block_table[g][i] = i;
    return OK;
}

static enum status open_all(struct teacher *t, const struct teacher_options *o, struct error *err) {
    const struct model_spec *spec = t->model->spec;
    if (!t->ops->hidden)
        return fail(err, ERR_UNSUPPORTED, "training: the device \"%s\" keeps no hidden states", t->ops->name);
    if (spec->vocab_size < TEACHER_CHOICES)
        return fail(err, ERR_UNSUPPORTED, "training: %s has %d tokens, %d are the least", spec->path, spec->vocab_size,
                    TEACHER_CHOICES);
    t->program =
        o->reads_last ? program_copy(t->model->program) : pass_taps(t->model->program, o->layers, TEACHER_TAPS);
    if (!t->program)
        return fail(err, ERR_ARG, "training: of layers %d, %d and %d one is not among the %d of %s", o->layers[0],
                    o->layers[1], o->layers[2], spec->n_layers, spec->path);
    TRY(t->ops->open(&o->device, &t->device, err));
    TRY(t->ops->load(t->device, t->program, &(struct load_options){.dtype = "float32"}, &t->loaded, err));
    return alloc_caches(t, (int)((o->longest + BLOCK - 1) / BLOCK), err);
}

enum status teacher_open(const struct teacher_options *o, const struct model *model, struct teacher **out,
                         struct error *err) {
    struct teacher *t = xcalloc(1, sizeof *t);
    t->ops = o->ops;
    t->model = model;
    t->longest = o->longest;
    t->first_tap = o->reads_last ? 0 : 1;
    t->n_taps = o->reads_last ? 1 : TEACHER_TAPS;
    for (int i = 0; i < STEP_TOKENS; i++) {
        t->sample[i] = sample_params_default();
        t->sample[i].temperature = 0;
        t->sample[i].want_logits = true;
    }
    enum status st = open_all(t, o, err);
    if (st == OK)
        *out = t;
    else
        teacher_free(t);
    return st;
}

void teacher_free(struct teacher *t) {
    if (!t)
        return;
    if (t->exe)
        t->ops->free_executable(t->exe);
    if (t->loaded)
        t->ops->unload(t->loaded);
    if (t->device)
        t->ops->close(t->device);
    batch_plan_release(&t->plan);
    program_free(t->program);
    free(t);
}

// ---- reading ----------------------------------------------------------------------------------------------------

/* The first n of the text from `first` on. */
static void fill(struct teacher *t, const int32_t *ids, int64_t first, int n) {
    struct batch_plan *p = &t->plan;
    p->n_tokens = p->n_rows = n;
    p->n_seqs = 1;
    p->query_start[0] = 0, p->query_start[1] = n;
    p->seq_len[0] = p->n_known[0] = (int32_t)(first + n);
    p->n_sure[0] = (int32_t)first;
    for (int i = 0; i < n; i++) {
        p->token_id[i] = ids[first + i];
        p->position[i] = (int32_t)(first + i);
        p->from_row[i] = -1;
        p->out_row[i] = i;
    }
}

static enum status see(struct teacher *t, int row, struct sight *out, struct error *err) {
    const float *logits;
    *out = (struct sight){.n_taps = t->n_taps};
    for (int i = 0; i < t->n_taps; i++)
        TRY(t->ops->hidden(t->exe, t->first_tap + i, row, &out->taps[i], err));
    if (t->results[row].not_finite)
        return fail(err, ERR_FORMAT, "training: logits of the target are not finite");
    TRY(t->ops->logits(t->exe, row, &logits, err));
    sample_most_probable(logits, t->model->spec->vocab_size, TEACHER_CHOICES, out->token, out->logprob);
    return OK;
}

enum status teacher_read(struct teacher *t, const int32_t *ids, int64_t n,
                         void (*told)(void *context, int64_t position, const struct sight *sight), void *context,
                         struct error *err) {
    struct sight sight;
    BUG_IF(n > t->longest);
    for (int64_t first = 0; first < n; first += STEP_TOKENS) {
        int here = (int)MIN(STEP_TOKENS, n - first);
        fill(t, ids, first, here);
        TRY(t->ops->run(t->exe, &t->plan, t->sample, err));
        TRY(t->ops->collect(t->exe, t->results, err));
        for (int row = 0; row < here; row++) {
            TRY(see(t, row, &sight, err));
            told(context, first + row, &sight);
        }
    }
    return model_check(t->model, err);
}
