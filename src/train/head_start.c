/* head_start.c - where training begins: see head_files.h. */
#include "train/head_parts.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

static void start_norm(const struct head_config *c, enum head_tensor t, const struct weight *from, bool holds_one,
                       float *weight) {
    float *to = head_tensor_at(c, weight, t);
    int64_t width = head_cols(&c->shape, t);
    bool fits = from && from->out == width;
    if (fits)
        weight_vector_f32(from, to);
    for (int64_t i = 0; i < width; i++)
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

/* What follows attention. */
static void start_layer(const struct head_config *c, const struct layer_weights *l, float *weight) {
    const struct head_shape *s = &c->shape;
    int64_t q = (int64_t)s->n_heads * s->head_dim, H = s->hidden;
    if (l->out && l->out->in == q && l->out->out == H)
        copy_rows(l->out, 0, H, q, head_tensor_at(c, weight, HEAD_OUT), q);
    int64_t ffn = l->gate_up ? l->gate_up->out / 2 : 0;
    if (ffn < s->ffn || l->gate_up->in != H || !l->down || l->down->in != ffn || l->down->out != H)
        return;
    copy_rows(l->gate_up, 0, s->ffn, H, head_tensor_at(c, weight, HEAD_GATE_UP), H);
    copy_rows(l->gate_up, ffn, s->ffn, H, head_tensor_at(c, weight, HEAD_GATE_UP) + s->ffn * H, H);
    copy_rows(l->down, 0, H, s->ffn, head_tensor_at(c, weight, HEAD_DOWN), s->ffn);
}

static void start_eagle3(const struct head_config *c, const struct draft_vocab *vocab, const struct layer_weights *l,
                         float *weight) {
    const struct head_shape *s = &c->shape;
    int64_t H = s->hidden, qkv = head_rows(s, HEAD_QKV);
    start_norm(c, HEAD_HIDDEN_NORM, l->norm, l->norms_hold_one, weight);
    if (l->qkv && l->qkv->in == H && l->qkv->out == qkv)
        copy_rows(l->qkv, 0, qkv, H, head_tensor_at(c, weight, HEAD_QKV) + H, 2 * H);
    for (int32_t i = 0; l->lm_head && l->lm_head->in == H && i < vocab->n; i++)
        copy_rows(l->lm_head, vocab->target_id[i], 1, H, head_tensor_at(c, weight, HEAD_LM_HEAD) + i * H, H);
}

/* The layer that it is like has the same shapes: gates stand behind q, k and v. */
static void start_mtp(const struct head_config *c, const struct layer_weights *l, float *weight) {
    const struct head_shape *s = &c->shape;
    int64_t H = s->hidden, qkv = head_rows(s, HEAD_QKV), gate = head_rows(s, HEAD_GATE);
    start_norm(c, HEAD_HIDDEN_NORM, NULL, false, weight);
    start_norm(c, HEAD_INPUT_NORM, l->norm, l->norms_hold_one, weight);
    start_norm(c, HEAD_Q_NORM, l->q_norm, l->norms_hold_one, weight);
    start_norm(c, HEAD_K_NORM, l->k_norm, l->norms_hold_one, weight);
    copy_rows(l->qkv, 0, qkv, H, head_tensor_at(c, weight, HEAD_QKV), H);
    copy_rows(l->qkv, qkv, gate, H, head_tensor_at(c, weight, HEAD_GATE), H);
}

void head_start(const struct head_config *c, const struct draft_vocab *vocab, const struct model *target, uint64_t seed,
                float *weight) {
    const struct head_shape *s = &c->shape;
    const struct model_spec *spec = target->spec;
    int64_t cols = head_cols(s, HEAD_FC);
    int layer = s->kind == HEAD_MTP ? layer_of_predictor(spec) : spec->n_layers - 1;
    struct layer_weights l = weights_of(target->program, layer);
    start_random(c, seed, weight);
    start_norm(c, HEAD_EMBED_NORM, NULL, false, weight);
    start_norm(c, HEAD_FFN_NORM, l.ffn_norm, l.norms_hold_one, weight);
    start_norm(c, HEAD_NORM, l.last_norm, l.norms_hold_one, weight);
    for (int64_t i = 0; i < s->hidden; i++)
        head_tensor_at(c, weight, HEAD_FC)[i * cols + cols - s->hidden + i] += 1;
    start_layer(c, &l, weight);
    if (s->kind == HEAD_MTP)
        start_mtp(c, &l, weight);
    else
        start_eagle3(c, vocab, &l, weight);
}
