/* fast_prep.c - ADD_NORM and QKV_PREP over vectors: what stands between the products of a layer.
 *
 * Bytes: rows of a few thousand floats that another worker has just written; with few rows the time is that of fetching
 * them from its cache. So in a step of one token a sequence a KV head is prepared by the worker that attends to it,
 * which finds the queries, and the lines of the cache that the key was written to, in its own. */
#include "backend/cpu/fast/fast.h"

#include <math.h>
#include <string.h>

static void norm_row(const struct kernels *k, const float *x, const float *weight, int64_t n, float eps, bool plus_one,
                     float *y) {
    k->weigh(x, 1.0f / sqrtf(k->dot(x, x, n) / (float)n + eps), weight, plus_one, n, y);
}

static void fast_add_norm(const struct call *c) {
    const struct norm_args *a = &c->op->args.norm;
    const struct kernels *k = c->loaded->device->kernels;
    float r_scale = call_floats(c, 1) ? call_floats(c, 1)[0] : 1.0f;
    struct mat x = c->in[0], d = c->in[1], r = c->out[0], y = c->out[1];
    int64_t begin, end;
    call_share(c, x.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        k->add(mat_row(x, t), d.at ? mat_row(d, t) : NULL, r_scale, x.width, mat_row(r, t));
        norm_row(k, mat_row(r, t), call_floats(c, 0), x.width, a->eps, a->plus_one, mat_row(y, t));
    }
}

/* y = the head at x, normed if there is a weight, and rotated. */
static void prepare_head(const struct call *c, int64_t t, const float *x, const float *weight, float *y) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    const struct kernels *k = c->loaded->device->kernels;
    if (weight)
        norm_row(k, x, weight, a->head_dim, a->eps, a->plus_one, y);
    else
        memcpy(y, x, (size_t)a->head_dim * sizeof *y);
    if (a->rope < 0)
        return;
    const struct rope *rope = c->program->ropes[a->rope];
    if (rope->pairing == ROPE_HALF)
        k->rotate_halves(call_cos_sin(c, a->rope, t), rope->dim / 2, y);
    else
        rotate_head(rope, call_cos_sin(c, a->rope, t), y);
}

/* Of a key, the channels that are stored and where the i-th of them is in the head. */
static int stored_channels(const struct qkv_args *a) { return a->rotary_dim > 0 ? a->rotary_dim : a->head_dim; }
static int stored_channel(const struct qkv_args *a, int i) {
    int turned = a->rotary_dim / 2; // of each half
    return a->rotary_dim > 0 && i >= turned ? i - turned + a->head_dim / 2 : i;
}

/* The norm's weight of the keys' channels that are their values': ops.def, rotary_dim. */
static void weigh_unturned(const struct call *c, float *q) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int half = a->head_dim / 2, turned = a->rotary_dim / 2;
    for (int i = turned; i < a->head_dim; i += half)
        c->loaded->device->kernels->weigh(q + i, 1, call_floats(c, 1) + i, a->plus_one, half - turned, q + i);
}

/* The key's column of the cache is strided, so the key is finished in scratch before it is stored. */
static void store_float_key(const struct call *c, struct kv_block block, int64_t slot) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    for (int i = 0; i < stored_channels(a); i++)
        block.k[i * (int64_t)c->loaded->block_size + slot] = c->scratch[stored_channel(a, i)];
}

/* Key and value in scratch; the channels that are stored move to the front. */
static void store_int4(const struct call *c, struct kv_int4_block block, float *v) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    for (int i = 0; i < stored_channels(a); i++)
        c->scratch[i] = c->scratch[stored_channel(a, i)];
    kv_int4_keep(c->scratch, block.k_dim, block.k);
    kv_int4_keep(v, block.v_dim, block.v);
}

static void store_key_value(const struct call *c, int64_t t, int head, int seq) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int64_t position = c->plan->position[t], slot = position & (c->loaded->block_size - 1);
    bool int4 = c->loaded->has_int4_cache;
    struct kv_block block = int4 ? (struct kv_block){0} : kv_block(c, a->cache, seq, position, head);
    const float *keys = mat_row(c->in[0], t) + (int64_t)a->n_heads * a->head_dim,
                *x = keys + (int64_t)head * a->head_dim;
    prepare_head(c, t, x, call_floats(c, 1), c->scratch);
    if (!int4)
        store_float_key(c, block, slot);
    const float *values = a->v_from_k ? keys : keys + (int64_t)a->n_kv_heads * a->head_dim;
    float *v = int4 ? c->scratch + a->head_dim : block.v + slot * a->v_head_dim;
    x = values + (int64_t)head * a->v_head_dim;
    if (a->v_norm)
        norm_row(c->loaded->device->kernels, x, NULL, a->v_head_dim, a->eps, false, v);
    else
        memcpy(v, x, (size_t)a->v_head_dim * sizeof *v);
    if (int4)
        store_int4(c, kv_int4_block(c, a->cache, seq, position, head), v);
}

/* Of a token, a KV head and the query heads that read it. */
static void prepare_group(const struct call *c, int64_t t, int kv_head) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    int group = a->n_heads / a->n_kv_heads;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        float *q = mat_row(c->out[0], t) + (int64_t)head * a->head_dim;
        prepare_head(c, t, mat_row(c->in[0], t) + (int64_t)head * a->head_dim, call_floats(c, 0), q);
        if (a->rotary_dim > 0)
            weigh_unturned(c, q);
    }
    for (int at = 0, seq; !a->k_absent && next_keeper(c, t, &at, &seq);)
        store_key_value(c, t, kv_head, seq);
}

static void fast_qkv_prep(const struct call *c) {
    int64_t n_heads = c->op->args.qkv_prep.n_kv_heads, n = c->in[0].rows * n_heads, begin = c->worker, end = n,
            step = c->n_workers;
    if (c->plan->n_tokens > c->plan->n_seqs) { // tokens of one block share lines of its keys: neighbours stay together
        call_share(c, n, 1, &begin, &end);
        step = 1;
    }
    for (int64_t i = begin; i < end; i += step)
        prepare_group(c, i / n_heads, (int)(i % n_heads));
}

static struct need qkv_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    const struct qkv_args *a = &op->args.qkv_prep;
    (void)l, (void)bucket;
    return (struct need){.worker = (int64_t)a->head_dim + a->v_head_dim};
}

const struct fast_op fast_op_add_norm = {fast_add_norm, NULL}, fast_op_qkv_prep = {fast_qkv_prep, qkv_need};
