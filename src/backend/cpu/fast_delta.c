/* fast_delta.c - SHORT_CONV by rows of channels, and DELTA_RULE in chunks.
 *
 * Chunks of n <= CHUNK tokens turn the recurrence into products (Yang et al., "Gated delta networks", arXiv
 * 2412.06464). With G_i the sum of g over the chunk's tokens up to i, D_ij = e^(G_i - G_j) for j <= i (never
 * above 1), S the state before the chunk:
 *
 *     (I + A) R = diag(beta) (V - diag(e^G) K S)      A_ij = beta_i (k_i . k_j) D_ij for j < i
 *     O = diag(e^G) Q S + P R                         P_ij = (q_i . k_j) D_ij for j <= i
 *     S = e^(G_n) S + K^T diag(e^(G_n - G)) R
 *
 * The triangular system is solved by rows, SOLVE_ROWS of them at a time against what is solved already.
 * A few tokens take the recurrent steps instead, which read the state three times and write it once: with
 * 64 KB a head it stays in the second-level cache, so a decode step moves each state once each way. */
#include "backend/cpu/fast.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64, SOLVE_ROWS = 8, MIN_CHUNK = 8 };

/* ---- SHORT_CONV ---- */

/* The worker's channels: the taps turned to [kernel][channels], and a row of ones as the activation's factor. */
int64_t fast_conv_scratch(const struct op *op) { return (int64_t)(op->args.short_conv.kernel + 1) * op->in[0].width; }

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

/* Input row t of the step, or, before the sequence's first row of the step, what the state kept of it. */
static const float *input_row(const struct call *c, int seq, int64_t t, const float *state) {
    int64_t first = c->plan->query_start[seq], past = c->op->args.short_conv.kernel - 1;
    return t >= first ? mat_row(c->in[0], t) : state + (past + t - first) * c->in[0].width;
}

static void convolve(const struct call *c, int seq, const struct channels *ch) {
    int past = c->op->args.short_conv.kernel - 1;
    int64_t width = c->in[0].width, first = c->plan->query_start[seq], end = c->plan->query_start[seq + 1];
    float *state = conv_state(c, c->op->args.short_conv.cache, seq);
    for (int j = 0; j < past && c->plan->position[first] == 0; j++)
        memset(state + j * width + ch->begin, 0, (size_t)ch->n * sizeof *state);
    for (int64_t t = first; t < end; t++) {
        float *y = mat_row(c->out[0], t) + ch->begin;
        memset(y, 0, (size_t)ch->n * sizeof *y);
        for (int j = 0; j <= past; j++)
            c->backend->kernels->multiply_add(y, ch->taps + j * ch->n, input_row(c, seq, t - past + j, state) + ch->begin, ch->n);
        c->backend->kernels->activate((struct act_args){.act = ACT_SILU}, y, ch->ones, ch->n, y);
    }
    for (int j = 0; j < past; j++) // rows only move towards older places, so none is overwritten before it is read
        memmove(state + j * width + ch->begin, input_row(c, seq, end - past + j, state) + ch->begin, (size_t)ch->n * sizeof *state);
}

void fast_short_conv(const struct call *c) {
    struct channels ch = own_channels(c);
    for (int seq = 0; seq < c->plan->n_seqs; seq++)
        convolve(c, seq, &ch);
}

/* ---- DELTA_RULE ---- */

/* One head's tokens of a chunk. */
struct chunk {
    int64_t n;
    float *q, *k;        // [n][key_dim], normalised
    float *k_turned;     // [2][key_dim][PANEL_ROWS]
    float *a, *p;        // [CHUNK][CHUNK]
    float *r;            // [CHUNK][value_dim]
    float *beta, *decay; // [n]; decay: G
    float *state;        // [key_dim][value_dim]
};

int64_t fast_delta_scratch(const struct delta_args *a) {
    return CHUNK * (2 * (int64_t)a->key_dim + a->value_dim + 2 * CHUNK + 2) + 2 * (int64_t)a->key_dim * PANEL_ROWS;
}

static void lay_out(const struct call *c, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    h->q = c->scratch;
    h->k = h->q + CHUNK * (int64_t)a->key_dim;
    h->r = h->k + CHUNK * (int64_t)a->key_dim;
    h->a = h->r + CHUNK * (int64_t)a->value_dim;
    h->p = h->a + CHUNK * CHUNK;
    h->beta = h->p + CHUNK * CHUNK;
    h->decay = h->beta + CHUNK;
    h->k_turned = h->decay + CHUNK;
}

static void unit_row(const struct kernels *k, const float *x, int64_t n, float factor, float *y) {
    memcpy(y, x, (size_t)n * sizeof *y);
    k->scale(y, factor / sqrtf(k->dot(x, x, n) + 1e-6f), n);
}

/* q^, k^, beta and g of the chunk's tokens, and v as the first form of r. */
static void load_chunk(const struct call *c, int64_t first, int head, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct kernels *k = c->backend->kernels;
    int64_t key_head = head / (a->n_value_heads / a->n_key_heads), n_keys = (int64_t)a->n_key_heads * a->key_dim;
    float rate = -expf(call_floats(c, 0)[head]), bias = call_floats(c, 1)[head];
    for (int64_t i = 0; i < h->n; i++) {
        const float *row = mat_row(c->in[0], first + i);
        unit_row(k, row + key_head * a->key_dim, a->key_dim, 1.0f / sqrtf((float)a->key_dim), h->q + i * a->key_dim);
        unit_row(k, row + n_keys + key_head * a->key_dim, a->key_dim, 1, h->k + i * a->key_dim);
        memcpy(h->r + i * a->value_dim, row + 2 * n_keys + (int64_t)head * a->value_dim, (size_t)a->value_dim * sizeof(float));
        h->beta[i] = sigmoid_f32(mat_row(c->in[1], first + i)[head]);
        h->decay[i] = rate * softplus_f32(mat_row(c->in[2], first + i)[head] + bias);
    }
}

static float *out_row(const struct call *c, int64_t first, int64_t i, int head) {
    return mat_row(c->out[0], first + i) + (int64_t)head * c->op->args.delta_rule.value_dim;
}

static void recurrent_steps(const struct call *c, int64_t first, int head, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct kernels *k = c->backend->kernels;
    int64_t dk = a->key_dim, dv = a->value_dim;
    for (int64_t i = 0; i < h->n; i++) {
        float decay = expf(h->decay[i]), *error = h->r + i * dv, *out = out_row(c, first, i, head);
        k->multiply(1, dv, dk, h->k + i * dk, dk, h->state, dv, out, dv, false); // what the key reads, until the result is known
        k->add_scaled(error, -decay, out, dv);
        k->scale(error, h->beta[i], dv);
        for (int64_t j = 0; j < dk; j++)
            k->blend(h->state + j * dv, decay, h->k[i * dk + j], error, dv);
        k->multiply(1, dv, dk, h->q + i * dk, dk, h->state, dv, out, dv, false);
    }
}

/* a and p of the head of the file, and G in place of g. */
static void chunk_matrices(const struct kernels *k, int64_t dk, struct chunk *h) {
    for (int64_t i = 1; i < h->n; i++)
        h->decay[i] += h->decay[i - 1];
    for (int64_t j = 0; j < h->n; j += PANEL_ROWS) {
        int64_t n = MIN(PANEL_ROWS, h->n - j);
        float *turned = h->k_turned + j * dk;
        k->pack(h->k + j * dk, dk, n, dk, turned);
        k->multiply(h->n, n, dk, h->k, dk, turned, PANEL_ROWS, h->a + j, CHUNK, false);
        k->multiply(h->n, n, dk, h->q, dk, turned, PANEL_ROWS, h->p + j, CHUNK, false);
    }
    for (int64_t i = 0; i < h->n; i++)
        for (int64_t j = 0; j < h->n; j++) {
            float d = j <= i ? expf(h->decay[i] - h->decay[j]) : 0.0f;
            h->p[i * CHUNK + j] *= d;
            h->a[i * CHUNK + j] *= j < i ? -h->beta[i] * d : 0.0f; // negated: solving adds
        }
}

/* r = (I + A)^-1 r, by rows; a holds -A. */
static void solve(const struct kernels *k, int64_t dv, const struct chunk *h) {
    for (int64_t i = 0; i < h->n; i += SOLVE_ROWS) {
        int64_t rows = MIN(SOLVE_ROWS, h->n - i);
        k->multiply(rows, dv, i, h->a + i * CHUNK, CHUNK, h->r, dv, h->r + i * dv, dv, true);
        for (int64_t row = i + 1; row < i + rows; row++)
            for (int64_t j = i; j < row; j++)
                k->add_scaled(h->r + row * dv, h->a[row * CHUNK + j], h->r + j * dv, dv);
    }
}

static void run_chunk(const struct call *c, int64_t first, int head, struct chunk *h) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct kernels *k = c->backend->kernels;
    int64_t dk = a->key_dim, dv = a->value_dim, stride = c->out[0].stride;
    float *out = out_row(c, first, 0, head);
    chunk_matrices(k, dk, h);
    k->multiply(h->n, dv, dk, h->k, dk, h->state, dv, out, stride, false);
    for (int64_t i = 0; i < h->n; i++) {
        k->add_scaled(h->r + i * dv, -expf(h->decay[i]), out + i * stride, dv);
        k->scale(h->r + i * dv, h->beta[i], dv);
    }
    solve(k, dv, h);
    k->multiply(h->n, dv, dk, h->q, dk, h->state, dv, out, stride, false);
    for (int64_t i = 0; i < h->n; i++)
        k->scale(out + i * stride, expf(h->decay[i]), dv);
    k->multiply(h->n, dv, h->n, h->p, CHUNK, h->r, dv, out, stride, true);
    float last = h->decay[h->n - 1];
    k->scale(h->state, expf(last), dk * dv);
    for (int64_t i = 0; i < h->n; i++)
        k->scale(h->r + i * dv, expf(last - h->decay[i]), dv);
    for (int64_t j = 0; j < h->n; j += PANEL_ROWS)
        k->multiply(dk, dv, MIN(PANEL_ROWS, h->n - j), h->k_turned + j * dk, PANEL_ROWS, h->r + j * dv, dv, h->state, dv, true);
}

static void run_head(const struct call *c, int seq, int head) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t floats = (int64_t)a->key_dim * a->value_dim, begin = c->plan->query_start[seq], end = c->plan->query_start[seq + 1];
    struct chunk h = {.state = delta_state(c, a->cache, seq) + head * floats};
    lay_out(c, &h);
    if (c->plan->position[begin] == 0)
        memset(h.state, 0, (size_t)floats * sizeof(float));
    for (int64_t t = begin; t < end; t += h.n) {
        h.n = MIN(CHUNK, end - t);
        load_chunk(c, t, head, &h);
        if (h.n < MIN_CHUNK)
            recurrent_steps(c, t, head, &h);
        else
            run_chunk(c, t, head, &h);
    }
}

void fast_delta_rule(const struct call *c) {
    int n_heads = c->op->args.delta_rule.n_value_heads;
    int64_t begin, end;
    call_share(c, (int64_t)c->plan->n_seqs * n_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        run_head(c, (int)(i / n_heads), (int)(i % n_heads));
}
