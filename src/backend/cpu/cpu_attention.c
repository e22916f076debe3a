/* cpu_attention.c - QKV_PREP, ATTENTION: the reference for softmax attention over a paged cache.
 *
 * The softmax runs in one pass over the keys: with m the largest score so far, l = sum e^(s-m) and
 * acc = sum e^(s-m) v are scaled by e^(m_old - m_new) whenever m grows. What a cache of int4 keeps rotated is rotated
 * back as it is read. */
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

/* Into scratch: the key's column of the cache is strided, so it is finished before it is stored. */
static void finish_key(const struct call *c, int64_t t, int head) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    const float *x = mat_row(c->in[0], t) + (int64_t)(a->n_heads + head) * a->head_dim;
    float *k = c->scratch;
    if (call_floats(c, 1))
        rms_norm_row(x, call_floats(c, 1), a->head_dim, a->eps, a->plus_one, k);
    else
        memcpy(k, x, (size_t)a->head_dim * sizeof *k);
    rotate_if(c, a->rope, t, k);
    for (int i = 0; a->rotary_dim > 0 && i < a->head_dim; i++) {
        int at = turned_channel(i, a->head_dim, a->rotary_dim); // at <= i
        if (at >= 0)
            k[at] = k[i];
    }
}

static void finish_value(const struct call *c, int64_t t, int head, float *v) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int64_t keys = (int64_t)a->n_heads * a->head_dim, values = keys + (int64_t)a->n_kv_heads * a->head_dim;
    const float *x = mat_row(c->in[0], t) + (a->v_from_k ? keys : values) + (int64_t)head * a->v_head_dim;
    if (a->v_norm)
        rms_norm_row(x, NULL, a->v_head_dim, a->eps, false, v);
    else
        memcpy(v, x, (size_t)a->v_head_dim * sizeof *v);
}

static void store(const struct call *c, int64_t t, int head, int seq) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int64_t position = c->plan->position[t], size = c->loaded->block_size, slot = position & (size - 1);
    float *k = c->scratch, *v = k + a->head_dim;
    finish_key(c, t, head);
    finish_value(c, t, head, v);
    if (c->loaded->has_int4_cache) {
        struct kv_int4_block to = kv_int4_block(c, a->cache, seq, position, head);
        kv_int4_keep(k, to.k_dim, to.k);
        kv_int4_keep(v, to.v_dim, to.v);
        return;
    }
    struct kv_block block = kv_block(c, a->cache, seq, position, head);
    for (int i = 0; i < (a->rotary_dim > 0 ? a->rotary_dim : a->head_dim); i++)
        block.k[i * size + slot] = k[i];
    memcpy(block.v + slot * a->v_head_dim, v, (size_t)a->v_head_dim * sizeof *v);
}

struct need cpu_qkv_prep_need(const struct op *op) {
    const struct qkv_args *a = &op->args.qkv_prep;
    return (struct need){.worker = (int64_t)a->head_dim + a->v_head_dim}; // a key and a value
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
        for (int at = 0, seq; next_keeper(c, t, &at, &seq);)
            store(c, t, kv_head, seq);
    }
}

static void read_value(const struct call *c, int seq, int64_t position, int head, float *v) {
    const struct attention_args *a = &c->op->args.attention;
    if (c->loaded->has_int4_cache) {
        struct kv_int4_block block = kv_int4_block(c, a->cache, seq, position, head);
        kv_int4_load(block.v, a->v_head_dim, v);
        kv_int4_rotate_back(v, a->v_head_dim);
        return;
    }
    int64_t slot = position & (c->loaded->block_size - 1);
    memcpy(v, kv_block(c, a->cache, seq, position, head).v + slot * a->v_head_dim, (size_t)a->v_head_dim * sizeof *v);
}

/* Behind the key, `stored` has room for the channels that are stored of it. */
static void read_key(const struct call *c, int seq, int64_t position, int head, float *key, float *stored) {
    const struct attention_args *a = &c->op->args.attention;
    int n = a->rotary_dim > 0 ? a->rotary_dim : a->head_dim;
    int64_t size = c->loaded->block_size, slot = position & (size - 1);
    if (c->loaded->has_int4_cache) {
        kv_int4_load(kv_int4_block(c, a->cache, seq, position, head).k, n, stored);
        kv_int4_rotate_back(stored, n);
    } else {
        struct kv_block block = kv_block(c, a->cache, seq, position, head);
        for (int i = 0; i < n; i++)
            stored[i] = block.k[i * size + slot];
    }
    if (a->rotary_dim > 0)
        read_value(c, seq, position, head, key);
    for (int i = 0; i < a->head_dim; i++) {
        int at = a->rotary_dim > 0 ? turned_channel(i, a->head_dim, a->rotary_dim) : i;
        if (at >= 0)
            key[i] = stored[at];
    }
}

static float score(const struct call *c, const float *q, const float *key) {
    const struct attention_args *a = &c->op->args.attention;
    float s = 0;
    for (int i = 0; i < a->head_dim; i++)
        s += q[i] * key[i];
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
    int64_t position = c->plan->position[t], width = (int64_t)n_values * a->v_head_dim;
    float *key = c->scratch, *stored = key + a->head_dim, *v = stored + a->head_dim;
    float max = -INFINITY, sum = 0;
    if (call_floats(c, 0)) { // the sink: a score without a value
        max = call_floats(c, 0)[head];
        sum = 1;
    }
    memset(out, 0, (size_t)width * sizeof *out);
    for (int64_t j = first_visible(position, a->window, a->chunk); j < visible_end(c, t); j++) {
        read_key(c, seq, j, head / group, key, stored);
        float s = score(c, q, key);
        if (s > max) {
            float shrink = expf(max - s);
            scale_row(out, shrink, width);
            sum *= shrink;
            max = s;
        }
        float p = expf(s - max);
        sum += p;
        for (int i = 0; i < n_values; i++) {
            read_value(c, seq, j, value_head[i], v);
            add_scaled(out + i * a->v_head_dim, p, v, a->v_head_dim);
        }
    }
    scale_row(out, 1.0f / sum, width);
}

struct need cpu_attention_need(const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    return (struct need){.worker = 2 * (int64_t)a->head_dim + a->v_head_dim}; // a key, what is stored of it, a value
}

void cpu_attention(const struct call *c) {
    int n_heads = c->op->args.attention.n_heads;
    int64_t begin, end;
    call_share(c, c->in[0].rows * n_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        attend(c, i / n_heads, (int)(i % n_heads));
}
