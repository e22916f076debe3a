/* gguf_file.c - quantize_gguf; see quantize.h. */
#include "quantize/quantize.h"

#include "base/gguf/gguf_find.h"
#include "file/overwrite.h"
#include "quantize/calibrate/imatrix.h"
#include "quantize/gguf_plan.h"
#include "quantize/same_spec.h"

#include <stdio.h>
#include <stdlib.h>

/* What is written, and of what. */
struct source {
    struct model *model;           // of a folder, or
    struct checkpoint *checkpoint; // of a GGUF file
    struct bound_list taken;
    struct imatrix *imatrix; // NULL: none
};

static void source_release(struct source *s) {
    model_free(s->model);
    checkpoint_free(s->checkpoint);
    imatrix_free(s->imatrix);
    free(s->taken.items);
}

static enum status check_place(const struct quantize_job *job, struct error *err) {
    if (dir_exists(job->out))
        return fail(err, ERR_ARG, "%s: is a folder; give the name of the GGUF file to write", job->out);
    return overwrite_check(job->out, 2, (const char *const[]){job->model, job->imatrix}, err);
}

static enum status plan(const struct quantize_job *job, const struct mix *mix, struct source *s, struct gguf_plan *plan,
                        struct error *err) {
    char path[FOLDER_PATH_BYTES];
    bool is_gguf;
    TRY(check_place(job, err));
    if (job->imatrix)
        TRY(imatrix_open(job->imatrix, &s->imatrix, err));
    TRY(gguf_find_model(job->model, path, &is_gguf, err));
    if (is_gguf) {
        TRY(checkpoint_open(&s->checkpoint, path, err));
        return gguf_plan_file(path, s->checkpoint, mix, job->may_requantize, plan, err);
    }
    struct model_options options = {.taken = &s->taken};
    TRY(model_open(job->model, &options, &s->model, err));
    return gguf_plan_model(job->model, s->model, &s->taken, mix, plan, err);
}

/* ---- writing ---- */

static const char *storage_of_target(const struct target *t) {
    const struct weight_part *p = t->parts;
    if (!p)
        return "f32";
    return p->format->id == QFORMAT_PLAIN || p->format->id == QFORMAT_SCALED ? dtype_name(p->dtype) : p->format->name;
}

static enum status write_zeros(struct output *o, uint64_t n, struct error *err) {
    static const char zeros[GGUF_ALIGNMENT];
    BUG_IF(n > sizeof zeros);
    return output_write(o, zeros, (size_t)n, err);
}

/* What of a tensor's columns matters, where it is said; *n_without counts quantised ones of which nothing is. */
static enum status find_importance(const struct source *s, const struct target *t, const float **out, int *n_without,
                                   struct error *err) {
    *out = NULL;
    if (!s->imatrix || t->to.format == QFORMAT_PLAIN)
        return OK;
    TRY(imatrix_find(s->imatrix, t->name, t->cols, t->n_dims == 3 ? (int64_t)t->dims[2] : 1, out, err));
    *n_without += !*out;
    return OK;
}

static enum status write_tensors(const struct quantize_job *job, const struct source *s, struct gguf_plan *plan,
                                 struct pool *pool, struct output *o, struct error *err) {
    struct store_progress progress = job->progress;
    for (size_t i = 0; i < plan->n; i++)
        progress.total += target_bytes(&plan->targets[i]);
    uint64_t at = 0;
    const float *importance;
    int n_without = 0;
    for (size_t i = 0; i < plan->n; i++) {
        struct target *t = &plan->targets[i];
        struct tensor_report r = {t->name,
                                  storage_of_target(t),
                                  storage_name(storage_of(t->to.dtype, qformat_of_blocks(t->to.format))),
                                  {0},
                                  target_bytes(t)};
        TRY(write_zeros(o, t->offset - at, err));
        TRY(find_importance(s, t, &importance, &n_without, err));
        TRY(store_tensor(t, importance, pool, o, &r.loss, &progress, err));
        at = t->offset + r.n_bytes;
        if (job->report)
            job->report(job->context, &r);
    }
    if (n_without && job->note) {
        char text[160];
        snprintf(text, sizeof text, "the importance file says nothing of %d tensors, whose columns count the same",
                 n_without);
        job->note(job->context, text);
    }
    return write_zeros(o, plan->head.data_bytes - at, err);
}

/* The file is opened as a model, and must mean the one that was read. */
static enum status check_written(const struct source *s, const char *path, struct error *err) {
    struct model *again = NULL;
    struct model_options options = {.load = LOAD_CHECKPOINT};
    if (s->checkpoint)
        return checkpoint_check(s->checkpoint, err);
    TRY(model_check(s->model, err));
    enum status st = model_open(path, &options, &again, err);
    if (st != OK)
        return fail_within(err, st, "the file as written cannot be read");
    const char *difference = spec_difference(s->model->spec, again->spec);
    model_free(again);
    if (!difference)
        return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: %s cannot be said in a GGUF file of this architecture", s->model->spec->path,
                difference);
}

static enum status write_file(const struct quantize_job *job, const struct source *s, struct gguf_plan *plan,
                              struct error *err) {
    struct buf head = {0};
    struct output o = {0};
    gguf_write_head(&plan->head, &head);
    struct pool *pool = pool_open(job->n_threads);
    enum status st = output_check_room(job->out, head.len + plan->head.data_bytes, err);
    if (st == OK)
        st = output_begin(&o, job->out, err);
    if (st == OK)
        st = output_write(&o, head.ptr, head.len, err);
    if (st == OK)
        st = write_tensors(job, s, plan, pool, &o, err);
    if (st == OK)
        st = check_written(s, o.temporary, err);
    if (st == OK)
        st = output_commit(&o, err);
    output_abandon(&o);
    pool_free(pool);
    buf_release(&head);
    return st;
}

enum status quantize_gguf(const struct quantize_job *job, struct error *err) {
    const struct mix *mix = mix_find(job->type);
    struct source s = {0};
    struct gguf_plan p = {0};
    if (!mix)
        return fail(err, ERR_ARG, "--type %s: is none that a GGUF file is written in", job->type);
    enum status st = plan(job, mix, &s, &p, err);
    if (st == OK)
        st = write_file(job, &s, &p, err);
    gguf_plan_release(&p);
    source_release(&s);
    return st;
}
