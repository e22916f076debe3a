/* fast_moe.c - MOE_FFN grouped by expert: an expert's weights are read once for all tokens that chose it.
 *
 * The (token, choice) pairs of up to MOE_TOKENS tokens are sorted by expert, and an expert's pairs become rows
 * of one product. Each worker computes the same share of columns of every expert, so that the load is even
 * however the router chooses, and the columns of the result are its own, which spares a barrier:
 *
 *     sort | gather x | gate and up columns [b, e) of all experts, activation | down columns, weighted sum
 *
 * Bytes: the weights of the experts that were chosen, once (a decode step of one token: top_k experts). */
#include "backend/cpu/fast/fast.h"

#include <string.h>

enum { MOE_TOKENS = 512 };

/* Memory of all workers. A pair p is (token order[p] / top_k, choice order[p] % top_k). */
struct groups {
    int32_t *first; // [n_experts + 2]: pairs of expert e are [first[e], first[e + 1]); behind them those of others
    int32_t *order; // [n_pairs]
    int32_t *place; // [n_pairs]: the inverse
    float *x, *hidden, *y;
};

static int64_t max_pairs(const struct moe_args *a, int64_t max_tokens) {
    return MIN(max_tokens, MOE_TOKENS) * a->top_k;
}

static int64_t shared_floats(const struct op *op, int64_t max_tokens) {
    const struct moe_args *a = &op->args.moe_ffn;
    int64_t width = op->in[0].width, ints = a->n_experts + 2 + 2 * max_pairs(a, max_tokens);
    return (ints + 15) / 16 * 16 + max_pairs(a, max_tokens) * (2 * width + 2 * (int64_t)a->ffn_size);
}

static struct need moe_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    return (struct need){.worker = product_scratch(l->products, MAX(op->in[0].width, op->args.moe_ffn.ffn_size)),
                         .shared = shared_floats(op, bucket.max_tokens)};
}

static struct groups groups_of(const struct call *c, int64_t n_pairs) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    struct groups g = {.first = (int32_t *)(void *)c->shared};
    g.order = g.first + a->n_experts + 2;
    g.place = g.order + n_pairs;
    g.x = c->shared + (a->n_experts + 2 + 2 * n_pairs + 15) / 16 * 16;
    g.hidden = g.x + n_pairs * c->in[0].width;
    g.y = g.hidden + n_pairs * 2 * a->ffn_size;
    return g;
}

/* The expert of a pair among those that are here; n_experts: it is not. */
static int expert_of(const struct call *c, int64_t first_token, int64_t pair) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    int e = mat_ids(c->in[1], first_token + pair / a->top_k)[pair % a->top_k] - a->first_expert;
    return e >= 0 && e < a->n_experts ? e : a->n_experts;
}

/* A counting sort; pairs of one expert stay in the order of their tokens. */
static void sort_pairs(const struct call *c, int64_t first_token, int64_t n_tokens, const struct groups *g) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    memset(g->first, 0, (size_t)(a->n_experts + 2) * sizeof *g->first);
    for (int64_t p = 0; p < n_tokens * a->top_k; p++)
        g->first[expert_of(c, first_token, p) + 1]++;
    for (int e = 0; e <= a->n_experts; e++)
        g->first[e + 1] += g->first[e];
    for (int64_t p = n_tokens * a->top_k - 1; p >= 0;
         p--) { // from the back, first[e + 1] counting down to first[e]'s old value
        int32_t at = --g->first[expert_of(c, first_token, p) + 1];
        g->order[at] = (int32_t)p;
        g->place[p] = at;
    }
    memmove(g->first, g->first + 1, (size_t)(a->n_experts + 1) * sizeof *g->first);
}

static void gather_inputs(const struct call *c, int64_t first_token, const struct groups *g) {
    int64_t width = c->in[0].width, begin, end;
    call_share(c, g->first[c->op->args.moe_ffn.n_experts], 1, &begin, &end);
    for (int64_t p = begin; p < end; p++)
        memcpy(g->x + p * width, mat_row(c->in[0], first_token + g->order[p] / c->op->args.moe_ffn.top_k),
               (size_t)width * sizeof(float));
}

/* hidden columns [begin, end) of an expert's pairs, made of the gate rows and up rows of those numbers. */
static void hidden_columns(const struct call *c, int expert, const struct groups *g, int64_t begin, int64_t end) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    const struct kernels *k = c->loaded->device->kernels;
    int64_t width = c->in[0].width, ffn = a->ffn_size, p = g->first[expert], n = g->first[expert + 1] - p;
    const float *b13 = call_floats(c, 2);
    struct mat x = {g->x + p * width, width, n, width};
    struct product product = {.kernels = c->loaded->products, .weight = c->weight[0], .x = x, .scratch = c->scratch};
    for (int half = 0; half < 2; half++) {
        int64_t row = ((int64_t)expert * 2 + half) * ffn + begin;
        struct mat y = {g->hidden + p * 2 * ffn + half * ffn + begin, 2 * ffn, n, end - begin};
        product_rows(&product, row, row + end - begin, y, b13 ? b13 + row : NULL);
    }
    for (int64_t r = p; r < p + n; r++) {
        float *gate = g->hidden + r * 2 * ffn + begin, *up = gate + ffn;
        if (a->act.act == ACT_GELU)
            for (int64_t i = 0; i < end - begin; i++)
                gate[i] = activate(a->act, gate[i], up[i]);
        else
            k->activate(a->act, gate, up, end - begin, gate);
    }
}

static void down_columns(const struct call *c, int expert, const struct groups *g, int64_t begin, int64_t end) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    int64_t width = c->in[0].width, p = g->first[expert], n = g->first[expert + 1] - p, row = expert * width + begin;
    const float *b2 = call_floats(c, 3);
    struct mat hidden = {g->hidden + p * 2 * a->ffn_size, 2 * (int64_t)a->ffn_size, n, a->ffn_size};
    struct mat y = {g->y + p * width + begin, width, n, end - begin};
    struct product product = {
        .kernels = c->loaded->products, .weight = c->weight[1], .x = hidden, .scratch = c->scratch};
    product_rows(&product, row, row + end - begin, y, b2 ? b2 + row : NULL);
}

static void sum_choices(const struct call *c, int64_t first_token, int64_t n_tokens, const struct groups *g,
                        int64_t begin, int64_t end) {
    int top_k = c->op->args.moe_ffn.top_k, n_pairs = g->first[c->op->args.moe_ffn.n_experts];
    for (int64_t t = 0; t < n_tokens; t++) {
        float *y = mat_row(c->out[0], first_token + t) + begin;
        memset(y, 0, (size_t)(end - begin) * sizeof *y);
        for (int k = 0; k < top_k; k++) {
            int32_t pair = g->place[t * top_k + k];
            if (pair < n_pairs)
                c->loaded->device->kernels->add_scaled(y, mat_row(c->in[2], first_token + t)[k],
                                                       g->y + pair * c->in[0].width + begin, end - begin);
        }
    }
}

static void run_tokens(const struct call *c, int64_t first_token, int64_t n_tokens) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    int64_t n_pairs = n_tokens * a->top_k, begin, end;
    struct groups g = groups_of(c, n_pairs);
    if (c->worker == 0)
        sort_pairs(c, first_token, n_tokens, &g);
    call_barrier(c); // order, before anyone gathers by it
    gather_inputs(c, first_token, &g);
    call_barrier(c); // all of x, before anyone multiplies it
    call_share(c, a->ffn_size, 16, &begin, &end);
    for (int e = 0; e < a->n_experts; e++)
        hidden_columns(c, e, &g, begin, end);
    call_barrier(c); // all columns of hidden, which the down projection sums over
    call_share(c, c->in[0].width, 16, &begin, &end);
    for (int e = 0; e < a->n_experts; e++)
        down_columns(c, e, &g, begin, end);
    sum_choices(c, first_token, n_tokens, &g, begin, end);
}

static void fast_moe_ffn(const struct call *c) {
    for (int64_t t = 0; t < c->in[0].rows; t += MOE_TOKENS) {
        if (t > 0)
            call_barrier(c); // the tokens before are summed, before their memory is used again
        run_tokens(c, t, MIN(MOE_TOKENS, c->in[0].rows - t));
    }
}

const struct fast_op fast_op_moe_ffn = {fast_moe_ffn, moe_need};
