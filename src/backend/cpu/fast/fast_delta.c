/* fast_delta.c - SHORT_CONV by rows of channels, and DELTA_RULE token after token.
 *
 * With S the state of a head before the token, d = e^g:
 *
 *     r = beta (v - d K S)      S = d S + k^T r      o = q S
 *
 * which reads the state three times and writes it once; with 64 KB a head it stays in the second-level cache, so a
 * decode step moves each state once each way. Chunks of tokens can be turned into products (Yang et al., "Gated delta
 * networks", arXiv 2412.06464), with a quarter of the traffic. They round differently with every cut of a prompt, so a
 * sequence that was preempted, resumed from a checkpoint or served in a batch would not get the tokens that it gets
 * alone; the recurrence does not know where a step begins. It costs a prompt some 5 per cent (a head-token of 128 x
 * 128: 6,500 cycles of 250,000 multiply-adds in the projections beside it, Qwen3.5's shapes, estimated from the bytes).
 */
#include "backend/cpu/fast/fast.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64 }; // tokens whose rows are loaded at a time

/* ---- SHORT_CONV ---- */

/* The worker's channels: the taps turned to [kernel][channels], and a row of ones as the activation's factor. */
static struct need conv_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    (void)l, (void)bucket;
    return (struct need){.worker = (int64_t)(op->args.short_conv.kernel + 1) * op->in[0].width};
}

struct channels {
    int64_t begin, n;
    const float *taps, *ones;
};

static struct channels own_channels(const struct call *c) {
    int kernel = c->op->args.short_conv.kernel;
    int64_t begin, end;
    call_share(c, c->in[0].width, 16, &begin, &end);
    int64_t n = end - begin;
    float *taps = c->scratch, *ones = taps + kernel * n;
    for (int64_t i = 0; i < n; i++) {
        ones[i] = 1;
        for (int j = 0; j < kernel; j++)
            taps[j * n + i] = call_floats(c, 0)[(begin + i) * kernel + j];
    }
    return (struct channels){begin, n, taps, ones};
}

/* What is read at a position, which may lie before the state's beginning. */
static const float *input_row(const struct call *c, const struct replay *r, const float *state, int32_t position) {
    int past = c->op->args.short_conv.kernel - 1;
    return position >= r->base ? replay_row(r, c->in[0], position) : state + (position - r->base + past) * r->width;
}

static void convolve(const struct call *c, int seq, const struct channels *ch) {
    int past = c->op->args.short_conv.kernel - 1, cache = c->op->args.short_conv.cache;
    struct replay r = replay_of(c, cache, seq, c->in[0].width, true);
    float *state = conv_state(c, cache, seq);
    for (int j = 0; j < past && r.first == 0; j++)
        memset(state + j * r.width + ch->begin, 0, (size_t)ch->n * sizeof *state);
    for (int32_t p = r.first; p < r.end; p++) {
        float *y = mat_row(c->out[0], r.row + p - r.first) + ch->begin;
        memset(y, 0, (size_t)ch->n * sizeof *y);
        for (int j = 0; j <= past; j++)
            c->loaded->device->kernels->multiply_add(y, ch->taps + j * ch->n,
                                                     input_row(c, &r, state, p - past + j) + ch->begin, ch->n);
        c->loaded->device->kernels->activate((struct act_args){.act = ACT_SILU}, y, ch->ones, ch->n, y);
    }
    for (int j = 0; j < past; j++) // rows only move towards older places, so none is overwritten before it is read
        memmove(state + j * r.width + ch->begin, input_row(c, &r, state, r.kept - past + j) + ch->begin,
                (size_t)ch->n * sizeof *state);
    replay_keep(&r, c->in[0], ch->begin, ch->begin + ch->n);
}

static void fast_short_conv(const struct call *c) {
    struct channels ch = own_channels(c);
    for (int seq = 0; seq < c->plan->n_seqs; seq++)
        convolve(c, seq, &ch);
    replay_end(c, c->op->args.short_conv.cache, c->in[0].width, true);
}

/* ---- DELTA_RULE ---- */

/* One head's tokens of a chunk. */
struct chunk {
    int64_t n;
    float *q, *k;        // [n][key_dim], normalised
    float *r;            // [CHUNK][value_dim]
    float *beta, *decay; // [n]; decay: g
    float *state;        // [key_dim][value_dim]
    float *trial;        // likewise: of tokens that the slot's state may not have yet
    float *unread;       // [value_dim]: what they give that were in a step before
};

static struct need delta_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    int64_t dk = op->args.delta_rule.key_dim, dv = op->args.delta_rule.value_dim;
    (void)l, (void)bucket;
    return (struct need){.worker = CHUNK * (2 * dk + dv + 2) + dk * dv + dv};
}

static void lay_out(const struct call *c, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    h->q = c->scratch;
    h->k = h->q + CHUNK * (int64_t)a->key_dim;
    h->r = h->k + CHUNK * (int64_t)a->key_dim;
    h->beta = h->r + CHUNK * (int64_t)a->value_dim;
    h->decay = h->beta + CHUNK;
    h->trial = h->decay + CHUNK;
    h->unread = h->trial + (int64_t)a->key_dim * a->value_dim;
}

static void unit_row(const struct kernels *k, const float *x, int64_t n, float factor, float *y) {
    memcpy(y, x, (size_t)n * sizeof *y);
    k->scale(y, factor / sqrtf(k->dot(x, x, n) + 1e-6f), n);
}

/* q^, k^, beta and g of the chunk's tokens, and v as the first form of r. */
static void load_chunk(const struct call *c, const struct replay *r, int32_t first, int head, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct kernels *k = c->loaded->device->kernels;
    int64_t key_head = head / (a->n_value_heads / a->n_key_heads), n_keys = (int64_t)a->n_key_heads * a->key_dim;
    float rate = -expf(call_floats(c, 0)[head]), bias = call_floats(c, 1)[head];
    for (int64_t i = 0; i < h->n; i++) {
        struct delta_inputs in = delta_inputs_of(c, r, first + (int32_t)i);
        const float *row = in.qkv;
        unit_row(k, row + key_head * a->key_dim, a->key_dim, 1.0f / sqrtf((float)a->key_dim), h->q + i * a->key_dim);
        unit_row(k, row + n_keys + key_head * a->key_dim, a->key_dim, 1, h->k + i * a->key_dim);
        memcpy(h->r + i * a->value_dim, row + 2 * n_keys + (int64_t)head * a->value_dim,
               (size_t)a->value_dim * sizeof(float));
        h->beta[i] = sigmoid_f32(in.b[head]);
        h->decay[i] = rate * softplus_f32(in.a[head] + bias);
    }
}

static float *out_row(const struct call *c, const struct replay *r, int32_t position, int head, const struct chunk *h) {
    if (position < r->first)
        return h->unread;
    return mat_row(c->out[0], r->row + position - r->first) + (int64_t)head * c->op->args.delta_rule.value_dim;
}

static void recurrent_steps(const struct call *c, const struct replay *r, int32_t first, int head, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct kernels *k = c->loaded->device->kernels;
    int64_t dk = a->key_dim, dv = a->value_dim;
    for (int64_t i = 0; i < h->n; i++) {
        float decay = expf(h->decay[i]), *error = h->r + i * dv, *out = out_row(c, r, first + (int32_t)i, head, h);
        k->multiply(1, dv, dk, h->k + i * dk, dk, h->state, dv, out, dv,
                    false); // what the key reads, until the result is known
        k->add_scaled(error, -decay, out, dv);
        k->scale(error, h->beta[i], dv);
        for (int64_t j = 0; j < dk; j++)
            k->blend(h->state + j * dv, decay, h->k[i * dk + j], error, dv);
        k->multiply(1, dv, dk, h->q + i * dk, dk, h->state, dv, out, dv, false);
    }
}

static void run_head(const struct call *c, int seq, int head) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t floats = (int64_t)a->key_dim * a->value_dim;
    struct replay r = replay_of(c, a->cache, seq, delta_width(c), false);
    struct chunk h = {.state = delta_state(c, a->cache, seq) + head * floats};
    lay_out(c, &h);
    if (r.first == 0)
        memset(h.state, 0, (size_t)floats * sizeof(float));
    for (int32_t p = r.base; p < r.end; p += (int32_t)h.n) {
        if (p == r.kept) // from here on it is not the slot's
            h.state = memcpy(h.trial, h.state, (size_t)floats * sizeof(float));
        h.n = MIN(CHUNK, (p < r.kept ? r.kept : r.end) - p);
        load_chunk(c, &r, p, head, &h);
        recurrent_steps(c, &r, p, head, &h);
    }
}

static void fast_delta_rule(const struct call *c) {
    int n_heads = c->op->args.delta_rule.n_value_heads;
    int64_t begin, end;
    call_share(c, (int64_t)c->plan->n_seqs * n_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        run_head(c, (int)(i / n_heads), (int)(i % n_heads));
    delta_keep(c);
}

const struct fast_op fast_op_short_conv = {fast_short_conv, conv_need},
                     fast_op_delta_rule = {fast_delta_rule, delta_need};
