/* cpu_attention.c - QKV_PREP, ATTENTION: the reference for softmax attention over a paged cache.
 *
 * The softmax runs in one pass over the keys: with m the largest score so far, l = sum e^(s-m) and
 * acc = sum e^(s-m) v are scaled by e^(m_old - m_new) whenever m grows. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

static void rotate_if(const struct call *c, int rope, int64_t t, float *head) {
    if (rope >= 0)
        rotate_head(c->program->ropes[rope], call_cos_sin(c, rope, t), head);
}

/* The norm's weight of the keys' channels that are their values': ops.def, rotary_dim. */
static void weigh_unturned(const struct call *c, float *q) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    const float *w = call_floats(c, 1);
    for (int i = 0; i < a->head_dim; i++)
        if (turned_channel(i, a->head_dim, a->rotary_dim) < 0)
            q[i] *= w[i] + (a->plus_one ? 1.0f : 0.0f);
}

static void prepare_query(const struct call *c, int64_t t, int head) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    const float *x = mat_row(c->in[0], t) + (int64_t)head * a->head_dim;
    float *q = mat_row(c->out[0], t) + (int64_t)head * a->head_dim;
    if (call_floats(c, 0))
        rms_norm_row(x, call_floats(c, 0), a->head_dim, a->eps, a->plus_one, q);
    else
        memcpy(q, x, (size_t)a->head_dim * sizeof *q);
    rotate_if(c, a->rope, t, q);
    if (a->rotary_dim > 0)
        weigh_unturned(c, q);
}

/* scratch holds a head: the key's column of the cache is strided, so it is finished before it is stored. */
static void store_key(const struct call *c, int64_t t, int head, struct kv_block block, int64_t slot) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    const float *x = mat_row(c->in[0], t) + (int64_t)(a->n_heads + head) * a->head_dim;
    float *k = c->scratch;
    if (call_floats(c, 1))
        rms_norm_row(x, call_floats(c, 1), a->head_dim, a->eps, a->plus_one, k);
    else
        memcpy(k, x, (size_t)a->head_dim * sizeof *k);
    rotate_if(c, a->rope, t, k);
    for (int i = 0; i < a->head_dim; i++) {
        int at = a->rotary_dim > 0 ? turned_channel(i, a->head_dim, a->rotary_dim) : i;
        if (at >= 0)
            block.k[at * (int64_t)c->loaded->block_size + slot] = k[i];
    }
}

static void store_value(const struct call *c, int64_t t, int head, struct kv_block block, int64_t slot) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int64_t keys = (int64_t)a->n_heads * a->head_dim, values = keys + (int64_t)a->n_kv_heads * a->head_dim;
    const float *x = mat_row(c->in[0], t) + (a->v_from_k ? keys : values) + (int64_t)head * a->v_head_dim;
    float *v = block.v + slot * a->v_head_dim;
    if (a->v_norm)
        rms_norm_row(x, NULL, a->v_head_dim, a->eps, false, v);
    else
        memcpy(v, x, (size_t)a->v_head_dim * sizeof *v);
}

struct need cpu_qkv_prep_need(const struct op *op) {
    return (struct need){.worker = op->args.qkv_prep.head_dim}; // a key
}

void cpu_qkv_prep(const struct call *c) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int64_t n_heads = a->n_heads + (a->k_absent ? 0 : a->n_kv_heads), begin, end;
    call_share(c, c->in[0].rows * n_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / n_heads;
        int head = (int)(i % n_heads), kv_head = head - a->n_heads;
        if (kv_head < 0) {
            prepare_query(c, t, head);
            continue;
        }
        int64_t position = c->plan->position[t], slot = position & (c->loaded->block_size - 1);
        struct kv_block block = kv_block(c, a->cache, c->seq_of_row[t], position, kv_head);
        store_key(c, t, kv_head, block, slot);
        store_value(c, t, kv_head, block, slot);
    }
}

static float score(const struct call *c, const float *q, struct kv_block block, int64_t slot) {
    const struct attention_args *a = &c->op->args.attention;
    float s = 0;
    for (int i = 0; i < a->head_dim; i++) {
        int at = a->rotary_dim > 0 ? turned_channel(i, a->head_dim, a->rotary_dim) : i;
        s += q[i] * (at >= 0 ? block.k[at * (int64_t)c->loaded->block_size + slot] : block.v[slot * a->v_head_dim + i]);
    }
    s *= a->scale;
    return a->softcap > 0 ? a->softcap * tanhf(s / a->softcap) : s;
}

/* acc += factor * v */
static void add_scaled(float *acc, float factor, const float *v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        acc[i] += factor * v[i];
}

static void scale_row(float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void attend(const struct call *c, int64_t t, int head) {
    const struct attention_args *a = &c->op->args.attention;
    int group = a->n_heads / a->n_kv_heads, half = a->n_heads / 2, seq = c->seq_of_row[t];
    int n_values = a->paired_values ? 2 : 1;
    // The KV heads whose values this head gathers: its own, or those of its two partners.
    int value_head[2] = {head / group, 0};
    if (a->paired_values) {
        value_head[0] = head % half / group;
        value_head[1] = (head % half + half) / group;
    }
    const float *q = mat_row(c->in[0], t) + (int64_t)head * a->head_dim;
    float *out = mat_row(c->out[0], t) + (int64_t)head * n_values * a->v_head_dim;
    int64_t position = c->plan->position[t], mask = c->loaded->block_size - 1,
            width = (int64_t)n_values * a->v_head_dim;
    float max = -INFINITY, sum = 0;
    if (call_floats(c, 0)) { // the sink: a score without a value
        max = call_floats(c, 0)[head];
        sum = 1;
    }
    memset(out, 0, (size_t)width * sizeof *out);
    for (int64_t j = first_visible(position, a->window, a->chunk); j < visible_end(c, t); j++) {
        float s = score(c, q, kv_block(c, a->cache, seq, j, head / group), j & mask);
        if (s > max) {
            float shrink = expf(max - s);
            scale_row(out, shrink, width);
            sum *= shrink;
            max = s;
        }
        float p = expf(s - max);
        sum += p;
        for (int i = 0; i < n_values; i++) {
            const float *v = kv_block(c, a->cache, seq, j, value_head[i]).v + (j & mask) * a->v_head_dim;
            add_scaled(out + i * a->v_head_dim, p, v, a->v_head_dim);
        }
    }
    scale_row(out, 1.0f / sum, width);
}

void cpu_attention(const struct call *c) {
    int n_heads = c->op->args.attention.n_heads;
    int64_t begin, end;
    call_share(c, c->in[0].rows * n_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        attend(c, i / n_heads, (int)(i % n_heads));
}
