/* head_config.c - shapes of heads, and their weights from programs: see head_files.h. */
#include "train/head_files.h"

#include "base/random.h"
#include "model/draft/draft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- shapes -----------------------------------------------------------------------------------------------------

/* The base of a plain rotation of whole heads; 0: it is another. */
static double theta_of(const struct model_spec *s) {
    const struct rope *r = s->n_ropes ? &s->ropes[s->n_ropes - 1] : NULL;
    bool fits = r && r->pairing == ROPE_HALF && r->by_length == ROPE_FIXED && r->dim == s->head_dim && r->dim > 2;
    if (!fits || r->factor != 1 || !(r->inv_freq[1] > 0))
        return 0;
    double theta = pow((double)r->inv_freq[1], -r->dim / 2.0);
    for (int i = 0; i < r->dim / 2; i++)
        if (fabs((double)r->inv_freq[i] * pow(theta, 2.0 * i / r->dim) - 1) > 1e-4)
            return 0;
    return nearbyint(theta) > 0 && fabs(theta / nearbyint(theta) - 1) < 1e-5 ? nearbyint(theta) : theta;
}

/* Those of any model; of one with so few layers that they coincide, the first, the middle and the last. */
static void choose_layers(int n_layers, int out[TEACHER_TAPS]) {
    draft_default_taps(n_layers, out);
    if (out[0] < out[1] && out[1] < out[2])
        return;
    out[0] = 0, out[1] = (n_layers - 1) / 2, out[2] = n_layers - 1;
}

struct head_config head_config_for(const struct model_spec *s, int64_t vocab) {
    struct head_config c = {.shape = {.hidden = s->hidden_size,
                                      .taps = (int64_t)TEACHER_TAPS * s->hidden_size,
                                      .n_heads = s->n_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .head_dim = s->head_dim,
                                      .ffn = s->hidden_size,
                                      .vocab = vocab,
                                      .eps = s->norm_eps,
                                      .rope_theta = theta_of(s)}};
    struct head_shape *h = &c.shape;
    if (h->n_kv_heads < 1 || h->head_dim < 2 || h->head_dim % 2 ||
        h->n_heads % MAX(h->n_kv_heads, 1)) { // latent, or none
        h->head_dim = 64;
        h->n_heads = h->n_kv_heads = (int)MAX(h->hidden / 64, 1);
    }
    h->rope_theta = h->rope_theta > 0 ? h->rope_theta : 10000;
    choose_layers(s->n_layers, c.layers);
    return c;
}

// ---- weights of programs ----------------------------------------------------------------------------------------

/* What a layer of a program multiplies by, and what stands behind the last; NULL: it has no such thing. */
struct layer_weights {
    const struct weight *norm, *second_norm, *qkv, *out, *ffn_norm, *gate_up, *down, *last_norm, *lm_head;
    bool norms_hold_one; // a norm multiplies by 1 + weight
};

static void look_at(const struct op *op, const struct op *before, struct layer_weights *out) {
    if (op->code == OP_NORM && op->args.norm.group == op->in[0].width)
        *(out->norm ? &out->second_norm : &out->norm) = op->weights[0];
    if (op->code == OP_ADD_NORM) {
        *(out->qkv ? &out->ffn_norm : &out->norm) = op->weights[0];
        out->norms_hold_one = op->args.norm.plus_one;
    }
    if (op->code == OP_QKV_PREP && before->code == OP_LINEAR)
        out->qkv = before->weights[0];
    if (op->code == OP_LINEAR && before->code == OP_ATTENTION)
        out->out = op->weights[0];
    if (op->code == OP_GATED_ACT && before->code == OP_LINEAR)
        out->gate_up = before->weights[0];
    if (op->code == OP_LINEAR && before->code == OP_GATED_ACT)
        out->down = op->weights[0];
}

static struct layer_weights weights_of(const struct program *p, int layer) {
    struct layer_weights out = {0};
    for (int i = 1; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        const struct section *s = &p->sections[op->section];
        if (s->layer == layer)
            look_at(op, &p->ops[i - 1], &out);
        else if (s->layer < 0 && op->code == OP_ADD_NORM)
            out.last_norm = op->weights[0];
        else if (op->code == OP_LINEAR && p->values[op->out[0].id].rows == ROWS_OUT)
            out.lm_head = op->weights[0];
    }
    return out;
}

/* Rows of `from`, of its columns all or the last, to rows of a matrix as wide as it. */
static void copy_rows(const struct weight *from, int64_t row, int64_t n, int64_t cols, float *to, int64_t stride) {
    float *whole = xcalloc((size_t)from->in, sizeof *whole);
    for (int64_t r = 0; r < n; r++) {
        weight_rows_f32(from, row + r, 1, whole);
        memcpy(to + r * stride, whole, (size_t)cols * sizeof *to);
    }
    free(whole);
}

// ---- where training begins --------------------------------------------------------------------------------------

static float *tensor_at(const struct head_config *c, float *weight, enum head_tensor t) {
    return weight + head_at(&c->shape, t);
}

static void start_norm(const struct head_config *c, enum head_tensor t, const struct weight *from, bool holds_one,
                       float *weight) {
    float *to = tensor_at(c, weight, t);
    bool fits = from && from->out == c->shape.hidden;
    if (fits)
        weight_vector_f32(from, to);
    for (int64_t i = 0; i < c->shape.hidden; i++)
        to[i] = fits ? to[i] + (float)holds_one : 1;
}

static double normal(uint64_t seed, uint64_t i) {
    double u = philox_uniform(seed, i, 0), v = philox_uniform(seed, i, 1);
    return sqrt(-2 * log(1 - u)) * cos(2 * 3.14159265358979323846 * v);
}

/* N(0, (0.5^2 / width)): half of what keeps a vector's length. */
static void start_random(const struct head_config *c, uint64_t seed, float *weight) {
    for (int t = 0; t < N_HEAD_TENSORS; t++) {
        int64_t at = head_at(&c->shape, (enum head_tensor)t), end = head_at(&c->shape, (enum head_tensor)(t + 1));
        double size = 0.5 / sqrt((double)head_cols(&c->shape, (enum head_tensor)t)) * (t == HEAD_FC ? 0.2 : 1);
        for (int64_t i = at; i < end; i++)
            weight[i] = (float)(size * normal(seed, (uint64_t)i));
    }
}

static void start_layer(const struct head_config *c, const struct layer_weights *l, float *weight) {
    const struct head_shape *s = &c->shape;
    int64_t qkv = head_rows(s, HEAD_QKV), q = (int64_t)s->n_heads * s->head_dim, H = s->hidden;
    if (l->qkv && l->qkv->in == H && l->qkv->out == qkv)
        copy_rows(l->qkv, 0, qkv, H, tensor_at(c, weight, HEAD_QKV) + H, 2 * H);
    if (l->out && l->out->in == q && l->out->out == H)
        copy_rows(l->out, 0, H, q, tensor_at(c, weight, HEAD_OUT), q);
    int64_t ffn = l->gate_up ? l->gate_up->out / 2 : 0;
    if (ffn < s->ffn || l->gate_up->in != H || !l->down || l->down->in != ffn || l->down->out != H)
        return;
    copy_rows(l->gate_up, 0, s->ffn, H, tensor_at(c, weight, HEAD_GATE_UP), H);
    copy_rows(l->gate_up, ffn, s->ffn, H, tensor_at(c, weight, HEAD_GATE_UP) + s->ffn * H, H);
    copy_rows(l->down, 0, H, s->ffn, tensor_at(c, weight, HEAD_DOWN), s->ffn);
}

void head_start(const struct head_config *c, const struct draft_vocab *vocab, const struct model *target, uint64_t seed,
                float *weight) {
    const struct head_shape *s = &c->shape;
    struct layer_weights l = weights_of(target->program, target->spec->n_layers - 1);
    start_random(c, seed, weight);
    start_norm(c, HEAD_EMBED_NORM, NULL, false, weight);
    start_norm(c, HEAD_HIDDEN_NORM, l.norm, l.norms_hold_one, weight);
    start_norm(c, HEAD_FFN_NORM, l.ffn_norm, l.norms_hold_one, weight);
    start_norm(c, HEAD_NORM, l.last_norm, l.norms_hold_one, weight);
    for (int64_t i = 0; i < s->hidden; i++)
        tensor_at(c, weight, HEAD_FC)[i * s->taps + s->taps - s->hidden + i] += 1;
    start_layer(c, &l, weight);
    for (int32_t i = 0; l.lm_head && l.lm_head->in == s->hidden && i < vocab->n; i++)
        copy_rows(l.lm_head, vocab->target_id[i], 1, s->hidden, tensor_at(c, weight, HEAD_LM_HEAD) + i * s->hidden,
                  s->hidden);
}

// ---- a head that is there ---------------------------------------------------------------------------------------

struct head_file {
    struct draft *draft;
    struct head_config config;
    struct draft_vocab vocab;
};

static enum status check_kind(const struct draft *d, const struct model *target, struct error *err) {
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
    if (s->activation != ACT_SILU || theta_of(s) == 0)
        return fail(err, ERR_UNSUPPORTED, "%s: only heads with SiLU and a plain rotation can be trained", s->path);
    return OK;
}

enum status head_open(const char *folder, const struct model *target, struct head_file **out, struct error *err) {
    struct head_file *f = xcalloc(1, sizeof *f);
    struct draft_source source = {"eagle3", folder, target->spec->path};
    enum status st = draft_open(&source, target, &f->draft, err);
    if (st == OK)
        st = check_kind(f->draft, target, err);
    if (st != OK) {
        head_close(f);
        return st;
    }
    const struct model_spec *s = f->draft->model->spec;
    f->config = head_config_for(s, s->draft.vocab);
    f->config.shape.ffn = s->ffn_size;
    f->config.shape.taps = (int64_t)TEACHER_TAPS * target->spec->hidden_size;
    memcpy(f->config.layers, s->draft.layers, sizeof f->config.layers);
    if (s->draft.layers[0] == DEFAULT_TAPS)
        draft_default_taps(target->spec->n_layers, f->config.layers);
    int32_t *ids = xcalloc((size_t)s->draft.vocab, sizeof *ids);
    for (int32_t i = 0; i < s->draft.vocab; i++)
        ids[i] = f->draft->target_id ? f->draft->target_id[i] : i;
    draft_vocab_of(&f->vocab, ids, s->draft.vocab, target->spec->vocab_size);
    free(ids);
    *out = f;
    return OK;
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

static bool is_norm(enum head_tensor t) {
    return t == HEAD_EMBED_NORM || t == HEAD_HIDDEN_NORM || t == HEAD_FFN_NORM || t == HEAD_NORM;
}

enum status head_read(const struct head_file *f, float *weight, struct error *err) {
    const struct draft *d = f->draft;
    const struct head_config *c = &f->config;
    struct layer_weights l = weights_of(d->step, 0);
    const struct weight *fc = NULL;
    for (int i = 0; i < d->target->n_ops; i++)
        if (d->target->ops[i].code == OP_LINEAR && d->target->ops[i].out[0].id == d->target->taps[0].id)
            fc = d->target->ops[i].weights[0];
    const struct weight *of[N_HEAD_TENSORS] = {fc,         l.second_norm, l.norm, l.qkv,       l.out,
                                               l.ffn_norm, l.gate_up,     l.down, l.last_norm, l.lm_head};
    for (int i = 0; i < N_HEAD_TENSORS; i++) {
        enum head_tensor t = (enum head_tensor)i;
        int64_t rows = head_rows(&c->shape, t), cols = head_cols(&c->shape, t);
        if (!of[i] || of[i]->out != (is_norm(t) ? cols : rows) || (!is_norm(t) && of[i]->in != cols))
            return fail(err, ERR_UNSUPPORTED, "%s: %s is not as a head to be trained has it", d->model->spec->path,
                        of[i] ? of[i]->name : "a weight");
        if (is_norm(t))
            weight_vector_f32(of[i], tensor_at(c, weight, t));
        else
            weight_rows_f32(of[i], 0, rows, tensor_at(c, weight, t));
    }
    return model_check(d->model, err);
}
