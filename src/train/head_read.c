/* head_read.c - a head that is there: see head_files.h. */
#include "train/head_parts.h"

#include <stdlib.h>
#include <string.h>

struct head_file {
    struct draft *draft;
    struct head_config config;
    struct draft_vocab vocab;
};

static enum status check_eagle3(const struct draft *d, const struct model *target, struct error *err) {
    const struct model_spec *s = d->model->spec;
    const struct draft_spec *f = &s->draft;
    const struct op *embed = &d->step->ops[0];
    struct draft_target t;
    TRY(draft_target_of(target, &t, err));
    bool has_norms = f->norm_before_residual || f->norm_before_fc || f->fc_norm || f->norm_output;
    if (has_norms || s->qkv_bias || s->o_bias || embed->code != OP_EMBED || embed->weights[0] != t.embed)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: heads with more norms, biases or an embed_tokens of their own can be used, but not trained",
                    s->path);
    if (s->activation != ACT_SILU || theta_of(s) == 0 || s->ropes[s->n_ropes - 1].dim != s->head_dim)
        return fail(err, ERR_UNSUPPORTED, "%s: only heads with SiLU and a plain rotation can be trained", s->path);
    return OK;
}

/* Of an EAGLE-3 head. */
static enum status read_config(struct head_file *f, const struct model *target, struct error *err) {
    TRY(check_eagle3(f->draft, target, err));
    const struct model_spec *s = f->draft->model->spec;
    TRY(head_config_for(HEAD_EAGLE3, f->draft->model, s->draft.vocab, &f->config, err));
    f->config.shape.ffn = s->ffn_size;
    f->config.shape.taps = (int64_t)TEACHER_TAPS * target->spec->hidden_size;
    memcpy(f->config.layers, s->draft.layers, sizeof f->config.layers);
    if (s->draft.layers[0] == DEFAULT_TAPS)
        draft_default_taps(target->spec->n_layers, f->config.layers);
    return OK;
}

static enum status open_all(struct head_file *f, enum head_kind kind, const char *folder, const struct model *target,
                            struct error *err) {
    struct draft_source source = {kind == HEAD_MTP ? "mtp" : "eagle3", folder, target->spec->path};
    if (kind == HEAD_MTP) // says what is wrong with the target first
        TRY(head_config_for(kind, target, 0, &f->config, err));
    TRY(draft_open(&source, target, &f->draft, err));
    TRY(kind == HEAD_MTP ? head_config_for(kind, f->draft->model, 0, &f->config, err) : read_config(f, target, err));
    if (f->draft->target_id)
        draft_vocab_of(&f->vocab, f->draft->target_id, (int32_t)f->config.shape.vocab, target->spec->vocab_size);
    else
        draft_vocab_all(&f->vocab, target->spec->vocab_size);
    return OK;
}

enum status head_open(enum head_kind kind, const char *folder, const struct model *target, struct head_file **out,
                      struct error *err) {
    struct head_file *f = xcalloc(1, sizeof *f);
    enum status st = open_all(f, kind, folder, target, err);
    if (st == OK)
        *out = f;
    else
        head_close(f);
    return st;
}

void head_close(struct head_file *f) {
    if (!f)
        return;
    draft_free(f->draft);
    draft_vocab_release(&f->vocab);
    free(f);
}

const struct head_config *head_file_config(const struct head_file *f) { return &f->config; }
const struct draft_vocab *head_file_vocab(const struct head_file *f) { return &f->vocab; }

bool head_is_stored(const struct model *target) {
    for (size_t i = 0; target->checkpoint && i < checkpoint_count(target->checkpoint); i++)
        if (strncmp(checkpoint_at(target->checkpoint, i)->name, "mtp.", 4) == 0)
            return true;
    return false;
}

/* Rows [row, row + n) of a weight, n 0: all; of a norm, which is one row. */
struct source {
    const struct weight *weight;
    int64_t row, n;
};

static void find_sources(const struct head_file *f, struct source of[N_HEAD_TENSORS]) {
    const struct draft *d = f->draft;
    const struct head_shape *s = &f->config.shape;
    struct layer_weights l = weights_of(d->step, 0);
    int64_t qkv = head_rows(s, HEAD_QKV);
    for (int i = 0; d->target && i < d->target->n_ops; i++)
        if (d->target->ops[i].code == OP_LINEAR && d->target->ops[i].out[0].id == d->target->taps[0].id)
            l.fc = d->target->ops[i].weights[0];
    bool is_mtp = s->kind == HEAD_MTP;
    const struct source all[N_HEAD_TENSORS] = {
        [HEAD_FC] = {l.fc},
        [HEAD_EMBED_NORM] = {is_mtp ? l.embed_norm : l.second_norm},
        [HEAD_HIDDEN_NORM] = {is_mtp ? l.hidden_norm : l.norm},
        [HEAD_INPUT_NORM] = {l.norm},
        [HEAD_QKV] = {l.qkv, 0, is_mtp ? qkv : 0},
        [HEAD_GATE] = {l.qkv, qkv, head_rows(s, HEAD_GATE)},
        [HEAD_Q_NORM] = {l.q_norm},
        [HEAD_K_NORM] = {l.k_norm},
        [HEAD_OUT] = {l.out},
        [HEAD_FFN_NORM] = {l.ffn_norm},
        [HEAD_GATE_UP] = {l.gate_up},
        [HEAD_DOWN] = {l.down},
        [HEAD_NORM] = {l.last_norm},
        [HEAD_LM_HEAD] = {l.lm_head},
    };
    memcpy(of, all, sizeof all);
}

/* One tensor; a predictor's norms are stored less one. */
static bool read_tensor(const struct head_config *c, enum head_tensor t, struct source from, float *to) {
    int64_t rows = head_rows(&c->shape, t), cols = head_cols(&c->shape, t);
    const struct weight *w = from.weight;
    if (head_is_norm(t)) {
        if (!w || w->out != cols)
            return false;
        weight_vector_f32(w, to);
        for (int64_t i = 0; i < cols && c->shape.kind == HEAD_MTP; i++)
            to[i] += 1;
        return true;
    }
    if (!w || w->in != cols || (from.n ? from.row + from.n > w->out : w->out != rows))
        return false;
    weight_rows_f32(w, from.row, rows, to);
    return true;
}

enum status head_read(const struct head_file *f, float *weight, struct error *err) {
    const struct model *m = f->draft->model;
    struct source of[N_HEAD_TENSORS];
    find_sources(f, of);
    for (int i = 0; i < N_HEAD_TENSORS; i++) {
        enum head_tensor t = (enum head_tensor)i;
        if (head_rows(&f->config.shape, t) && !read_tensor(&f->config, t, of[i], head_tensor_at(&f->config, weight, t)))
            return fail(err, ERR_UNSUPPORTED, "%s: %s is not as a head to be trained has it", m->spec->path,
                        of[i].weight ? of[i].weight->name : "a weight");
    }
    return model_check(m, err);
}
