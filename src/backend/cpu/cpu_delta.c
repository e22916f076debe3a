/* cpu_delta.c - SHORT_CONV, DELTA_RULE: recurrent layers, a token after the other; the reference.
 *
 * A sequence's state is read where the step finds it and left where the next step needs it. A sequence whose
 * first row of the step has position 0 starts from zeros, whatever its slot holds. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

static bool starts_afresh(const struct call *c, int seq) { return c->plan->position[c->plan->query_start[seq]] == 0; }

/* Channels [begin, end) of one sequence. scratch: the last K-1 inputs of a channel, oldest first. */
static void convolve(const struct call *c, int seq, int64_t begin, int64_t end) {
    int kernel = c->op->args.short_conv.kernel, past = kernel - 1;
    struct mat u = c->in[0], y = c->out[0];
    float *state = conv_state(c, c->op->args.short_conv.cache, seq), *window = c->scratch;
    for (int64_t ch = begin; ch < end; ch++) {
        const float *w = call_floats(c, 0) + ch * kernel;
        for (int j = 0; j < past; j++)
            window[j] = starts_afresh(c, seq) ? 0.0f : state[j * u.width + ch];
        for (int64_t t = c->plan->query_start[seq]; t < c->plan->query_start[seq + 1]; t++) {
            float sum = 0;
            window[past] = mat_row(u, t)[ch];
            for (int j = 0; j < kernel; j++)
                sum += w[j] * window[j];
            memmove(window, window + 1, (size_t)past * sizeof *window);
            mat_row(y, t)[ch] = silu_f32(sum);
        }
        for (int j = 0; j < past; j++)
            state[j * u.width + ch] = window[j];
    }
}

void cpu_short_conv(const struct call *c) {
    int64_t begin, end;
    call_share(c, c->in[0].width, 16, &begin, &end);
    for (int seq = 0; seq < c->plan->n_seqs; seq++)
        convolve(c, seq, begin, end);
}

static void normalise(const float *x, int n, float factor, float *y) {
    float scale = factor / sqrtf(dot_f32(x, x, n) + 1e-6f);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * scale;
}

/* One token of one value head. scratch: q^ [key_dim], k^ [key_dim], e [value_dim]. */
static void delta_step(const struct call *c, int64_t t, int head, float *state) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int key_head = head / (a->n_value_heads / a->n_key_heads), n_keys = a->n_key_heads * a->key_dim;
    const float *row = mat_row(c->in[0], t), *v = row + 2 * n_keys + head * a->value_dim;
    float *q = c->scratch, *k = q + a->key_dim, *error = k + a->key_dim,
          *out = mat_row(c->out[0], t) + head * a->value_dim;
    normalise(row + key_head * a->key_dim, a->key_dim, 1.0f / sqrtf((float)a->key_dim), q);
    normalise(row + n_keys + key_head * a->key_dim, a->key_dim, 1.0f, k);
    float beta = sigmoid_f32(mat_row(c->in[1], t)[head]);
    float decay =
        expf(-expf(call_floats(c, 0)[head]) * softplus_f32(mat_row(c->in[2], t)[head] + call_floats(c, 1)[head]));
    memset(error, 0, (size_t)a->value_dim * sizeof *error);
    for (int i = 0; i < a->key_dim; i++)
        for (int j = 0; j < a->value_dim; j++)
            error[j] += k[i] * (state[i * a->value_dim + j] *= decay);
    for (int j = 0; j < a->value_dim; j++)
        error[j] = beta * (v[j] - error[j]);
    memset(out, 0, (size_t)a->value_dim * sizeof *out);
    for (int i = 0; i < a->key_dim; i++)
        for (int j = 0; j < a->value_dim; j++)
            out[j] += q[i] * (state[i * a->value_dim + j] += k[i] * error[j]);
}

void cpu_delta_rule(const struct call *c) {
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t floats = (int64_t)a->key_dim * a->value_dim, begin, end;
    call_share(c, (int64_t)c->plan->n_seqs * a->n_value_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int seq = (int)(i / a->n_value_heads), head = (int)(i % a->n_value_heads);
        float *state = delta_state(c, a->cache, seq) + head * floats;
        if (starts_afresh(c, seq))
            memset(state, 0, (size_t)floats * sizeof *state);
        for (int64_t t = c->plan->query_start[seq]; t < c->plan->query_start[seq + 1]; t++)
            delta_step(c, t, head, state);
    }
}
