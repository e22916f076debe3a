/* cpu_moe.c - MOE_ROUTE, MOE_FFN: which experts a token goes to, and what they make of it; the reference. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* The index of the largest of n; ties go to the lower index. */
static int argmax(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static void softmax(const float *x, int n, float *y) {
    float max = x[argmax(x, n)], sum = 0;
    for (int i = 0; i < n; i++)
        sum += y[i] = expf(x[i] - max);
    for (int i = 0; i < n; i++)
        y[i] /= sum;
}

/* A group's worth: its best choice, or the sum of its two best. */
static float group_score(const float *choice, int n, bool two_best) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return two_best && n > 1 ? first + second : first;
}

/* Gives every choice outside the top_groups best groups the value `masked`. scores: n_groups floats. */
static void keep_best_groups(const struct route_args *a, float *choice, float *scores, bool two_best, float masked) {
    int size = a->n_experts / a->n_groups;
    for (int g = 0; g < a->n_groups; g++)
        scores[g] = group_score(choice + g * size, size, two_best);
    for (int kept = 0; kept < a->n_groups; kept++) {
        int g = argmax(scores, a->n_groups);
        scores[g] = -INFINITY;
        for (int i = 0; kept >= a->top_groups && i < size; i++)
            choice[g * size + i] = masked;
    }
}

/* The top_k of choice, best first; choice is spoilt. */
static void take_best(const struct route_args *a, float *choice, int32_t *ids) {
    for (int k = 0; k < a->top_k; k++) {
        ids[k] = argmax(choice, a->n_experts);
        choice[ids[k]] = -INFINITY;
    }
}

/* The score that an expert is weighted by, and the choice that it is picked by, from the logits. */
static void scores_and_choices(const struct route_args *a, const float *logits, const float *bias, float *score,
                               float *choice, float *group_scores) {
    int n = a->n_experts;
    switch (a->how) {
    case ROUTE_SOFTMAX_TOPK: memcpy(score, logits, (size_t)n * sizeof *score); break;
    case ROUTE_SOFTMAX:
    case ROUTE_SOFTMAX_GROUP: softmax(logits, n, score); break;
    case ROUTE_SIGMOID:
        for (int i = 0; i < n; i++)
            score[i] = sigmoid_f32(logits[i]);
        break;
    }
    for (int i = 0; i < n; i++)
        choice[i] = score[i] + (a->how == ROUTE_SIGMOID && bias ? bias[i] : 0.0f);
    if (a->n_groups > 1 && a->how == ROUTE_SIGMOID)
        keep_best_groups(a, choice, group_scores, true, -INFINITY);
    if (a->n_groups > 1 && a->how == ROUTE_SOFTMAX_GROUP)
        keep_best_groups(a, choice, group_scores, false, 0.0f);
}

/* The slots of experts that every token is sent to. */
static void route_shared(const struct call *c, int64_t t) {
    const struct route_args *a = &c->op->args.moe_route;
    float weight = val_given(c->op->in[1]) ? sigmoid_f32(mat_row(c->in[1], t)[0]) : 1.0f;
    for (int k = 0; k < a->n_shared; k++) {
        mat_ids(c->out[0], t)[a->top_k + k] = a->n_experts + k;
        mat_row(c->out[1], t)[a->top_k + k] = weight;
    }
}

static void route(const struct call *c, int64_t t) {
    const struct route_args *a = &c->op->args.moe_route;
    int n = a->n_experts;
    float *score = c->scratch, *choice = score + n, *group_scores = choice + n;
    int32_t *ids = mat_ids(c->out[0], t);
    float *weights = mat_row(c->out[1], t), sum = 0;
    scores_and_choices(a, mat_row(c->in[0], t), call_floats(c, 0), score, choice, group_scores);
    take_best(a, choice, ids);
    for (int k = 0; k < a->top_k; k++)
        sum += weights[k] = score[ids[k]];
    if (a->how == ROUTE_SOFTMAX_TOPK)
        softmax(weights, a->top_k, weights);
    else if (a->renormalise)
        for (int k = 0; k < a->top_k; k++)
            weights[k] /= sum + (a->how == ROUTE_SIGMOID ? 1e-20f : 0.0f);
    const float *expert_scale = call_floats(c, 1);
    for (int k = 0; k < a->top_k; k++)
        weights[k] *= a->scale * (expert_scale ? expert_scale[ids[k]] : 1.0f);
}

void expert_loads_init(struct loaded *l) {
    for (int i = 0; i < l->program->n_ops; i++)
        if (l->program->ops[i].code == OP_MOE_ROUTE)
            l->n_experts = MAX(l->n_experts, l->program->ops[i].args.moe_route.n_experts);
    l->expert_loads = xcalloc((size_t)l->n_experts + 1, sizeof *l->expert_loads);
}

int expert_loads(const struct loaded *l, int64_t *out, int most) {
    for (int e = 0; e < MIN(l->n_experts, most); e++)
        out[e] = atomic_load_explicit(&l->expert_loads[e], memory_order_relaxed);
    return l->n_experts;
}

/* Each token where it is sent to; workers count those that they routed. */
static void count_loads(const struct call *c, int64_t t) {
    const int32_t *ids = mat_ids(c->out[0], t);
    for (int k = 0; k < c->op->args.moe_route.top_k; k++)
        atomic_fetch_add_explicit(&c->loaded->expert_loads[ids[k]], 1, memory_order_relaxed);
}

struct need cpu_moe_route_need(const struct op *op) {
    const struct route_args *a = &op->args.moe_route;
    return (struct need){.worker = 2 * (int64_t)a->n_experts + a->n_groups};
}

void cpu_moe_route(const struct call *c) {
    int64_t begin, end;
    call_share(c, c->in[0].rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        route(c, t);
        route_shared(c, t);
        count_loads(c, t);
    }
}

/* y += weight * expert(x). scratch: a row of weights [max(D, F)], the hidden row [F], gate and up [2F]. */
static void add_expert(const struct call *c, int expert, float weight, const float *x, float *y) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    int64_t width = c->in[0].width, ffn = a->ffn_size;
    const float *b13 = call_floats(c, 2), *b2 = call_floats(c, 3);
    float *row = c->scratch, *hidden = row + MAX(width, ffn), *gate_up = hidden + ffn;
    for (int64_t i = 0; i < 2 * ffn; i++) {
        weight_rows_f32(c->weight[0]->weight, expert * 2 * ffn + i, 1, row);
        gate_up[i] = dot_f32(row, x, width) + (b13 ? b13[expert * 2 * ffn + i] : 0.0f);
    }
    for (int64_t i = 0; i < ffn; i++)
        hidden[i] = activate(a->act, gate_up[i], gate_up[ffn + i]);
    for (int64_t i = 0; i < width; i++) {
        weight_rows_f32(c->weight[1]->weight, expert * width + i, 1, row);
        y[i] += weight * (dot_f32(row, hidden, ffn) + (b2 ? b2[expert * width + i] : 0.0f));
    }
}

struct need cpu_moe_ffn_need(const struct op *op) {
    int64_t ffn = op->args.moe_ffn.ffn_size;
    return (struct need){.worker = MAX(op->in[0].width, ffn) + 3 * ffn};
}

void cpu_moe_ffn(const struct call *c) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    struct mat x = c->in[0], y = c->out[0];
    int64_t begin, end;
    call_share(c, x.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        memset(mat_row(y, t), 0, (size_t)y.width * sizeof(float));
        for (int k = 0; k < a->top_k; k++) {
            int expert = mat_ids(c->in[1], t)[k] - a->first_expert;
            if (expert >= 0 && expert < a->n_experts)
                add_expert(c, expert, mat_row(c->in[2], t)[k], mat_row(x, t), mat_row(y, t));
        }
    }
}
