/* cpu_delta.c - SHORT_CONV, DELTA_RULE: recurrent layers, a token after the other; the reference.
 *
 * A sequence's state is read where the step finds it and left where the next step needs it. A sequence whose
 * first row of the step has position 0 starts from zeros, whatever its slot holds. One that goes back: cpu_replay.c. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

static bool starts_afresh(const struct call *c, int seq) { return c->plan->position[c->plan->query_start[seq]] == 0; }

/* Channel ch of the input at a position, which may lie before the state's beginning. */
static float conv_input(const struct call *c, const struct replay *r, const float *state, int32_t position,
                        int64_t ch) {
    int past = c->op->args.short_conv.kernel - 1;
    if (position >= r->base)
        return replay_row(r, c->in[0], position)[ch];
    return r->first == 0 ? 0.0f : state[(position - r->base + past) * r->width + ch];
}

/* Channels [begin, end) of one sequence. */
static void convolve(const struct call *c, int seq, int64_t begin, int64_t end) {
    int kernel = c->op->args.short_conv.kernel, past = kernel - 1, cache = c->op->args.short_conv.cache;
    struct replay r = replay_of(c, cache, seq, c->in[0].width, true);
    float *state = conv_state(c, cache, seq);
    for (int64_t ch = begin; ch < end; ch++) {
        for (int32_t p = r.first; p < r.end; p++) {
            float sum = 0;
            for (int j = 0; j < kernel; j++)
                sum += call_floats(c, 0)[ch * kernel + j] * conv_input(c, &r, state, p - past + j, ch);
            mat_row(c->out[0], r.row + p - r.first)[ch] = silu_f32(sum);
        }
        for (int j = 0; j < past; j++)
            state[j * r.width + ch] = conv_input(c, &r, state, r.kept - past + j, ch);
    }
    replay_keep(&r, c->in[0], begin, end);
}

void cpu_short_conv(const struct call *c) {
    int64_t begin, end;
    call_share(c, c->in[0].width, 16, &begin, &end);
    for (int seq = 0; seq < c->plan->n_seqs; seq++)
        convolve(c, seq, begin, end);
    replay_end(c, c->op->args.short_conv.cache, c->in[0].width, true);
}

static void normalise(const float *x, int n, float factor, float *y) {
    float scale = factor / sqrtf(dot_f32(x, x, n) + 1e-6f);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * scale;
}

/* One token of one value head. out NULL: only the state is wanted. scratch: q^ and k^ [key_dim], e [value_dim]. */
static void delta_step(const struct call *c, struct delta_inputs t, int head, float *state, float *out) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int key_head = head / (a->n_value_heads / a->n_key_heads), n_keys = a->n_key_heads * a->key_dim;
    const float *v = t.qkv + 2 * n_keys + head * a->value_dim;
    float *q = c->scratch, *k = q + a->key_dim, *error = k + a->key_dim;
    normalise(t.qkv + key_head * a->key_dim, a->key_dim, 1.0f / sqrtf((float)a->key_dim), q);
    normalise(t.qkv + n_keys + key_head * a->key_dim, a->key_dim, 1.0f, k);
    float beta = sigmoid_f32(t.b[head]);
    float decay = expf(-expf(call_floats(c, 0)[head]) * softplus_f32(t.a[head] + call_floats(c, 1)[head]));
    memset(error, 0, (size_t)a->value_dim * sizeof *error);
    for (int i = 0; i < a->key_dim; i++)
        for (int j = 0; j < a->value_dim; j++)
            error[j] += k[i] * (state[i * a->value_dim + j] *= decay);
    for (int j = 0; j < a->value_dim; j++)
        error[j] = beta * (v[j] - error[j]);
    if (out)
        memset(out, 0, (size_t)a->value_dim * sizeof *out);
    for (int i = 0; i < a->key_dim; i++)
        for (int j = 0; j < a->value_dim; j++) {
            state[i * a->value_dim + j] += k[i] * error[j];
            if (out)
                out[j] += q[i] * state[i * a->value_dim + j];
        }
}

static void run_head(const struct call *c, int seq, int head) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t floats = (int64_t)a->key_dim * a->value_dim;
    struct replay r = replay_of(c, a->cache, seq, delta_width(c), false);
    float *state = delta_state(c, a->cache, seq) + head * floats;
    if (starts_afresh(c, seq))
        memset(state, 0, (size_t)floats * sizeof *state);
    for (int32_t p = r.base; p < r.end; p++) {
        if (p == r.kept) // from here on it is not the slot's
            state = memcpy(c->scratch + 2 * a->key_dim + a->value_dim, state, (size_t)floats * sizeof *state);
        float *out = p < r.first ? NULL : mat_row(c->out[0], r.row + p - r.first) + head * a->value_dim;
        delta_step(c, delta_inputs_of(c, &r, p), head, state, out);
    }
}

struct need cpu_delta_rule_need(const struct op *op) {
    int64_t dk = op->args.delta_rule.key_dim, dv = op->args.delta_rule.value_dim;
    return (struct need){.worker = 2 * dk + dv + dk * dv}; // q, k, the error; a state that is thrown away
}

void cpu_delta_rule(const struct call *c) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t begin, end;
    call_share(c, (int64_t)c->plan->n_seqs * a->n_value_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        run_head(c, (int)(i / a->n_value_heads), (int)(i % a->n_value_heads));
    delta_keep(c);
}
