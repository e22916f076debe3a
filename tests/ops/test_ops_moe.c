/* test_ops_moe.c - MOE_ROUTE and MOE_FFN; how the tests are run is said in test_ops.c. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>

/* Experts of one token: ids by falling weight. */
struct routing_result {
    int ids[64];
    double weights[64];
};

/* By the words of ops.def, with full sorts where the engine selects. */
static struct routing_result route(const struct route_args *a, const double *logits, const double *bias,
                                   const double *expert_scale) {
    struct routing_result r = {0};
    double score[64], choice[64], sum = 0;
    bool taken[64] = {false};
    int n = a->n_experts, size = a->n_groups > 1 ? n / a->n_groups : n;
    double all = 0;
    for (int i = 0; i < n; i++)
        all += exp(logits[i]);
    for (int i = 0; i < n; i++) {
        score[i] = a->how == ROUTE_SIGMOID        ? rig_sigmoid(logits[i])
                   : a->how == ROUTE_SOFTMAX_TOPK ? exp(logits[i])
                                                  : exp(logits[i]) / all;
        choice[i] = score[i] + (a->how == ROUTE_SIGMOID && bias ? bias[i] : 0);
    }
    // A group is dropped when top_groups others are better; lower groups win ties.
    double worth[64];
    for (int g = 0; g < n / size; g++) {
        double *best = &choice[g * size], first = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; i++) {
            second = fmax(second, fmin(first, best[i]));
            first = fmax(first, best[i]);
        }
        worth[g] = a->how == ROUTE_SIGMOID && size > 1 ? first + second : first;
    }
    for (int g = 0; a->n_groups > 1 && g < a->n_groups; g++) {
        int better = 0;
        for (int o = 0; o < a->n_groups; o++)
            better += worth[o] > worth[g] || (worth[o] == worth[g] && o < g);
        for (int i = 0; better >= a->top_groups && i < size; i++)
            choice[g * size + i] = a->how == ROUTE_SIGMOID ? -INFINITY : 0;
    }
    for (int k = 0; k < a->top_k; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || choice[i] > choice[best]))
                best = i;
        taken[best] = true;
        r.ids[k] = best;
        sum += r.weights[k] = score[best];
    }
    for (int k = 0; k < a->top_k; k++) {
        if (a->how == ROUTE_SOFTMAX_TOPK || a->renormalise)
            r.weights[k] /= sum;
        r.weights[k] *= (double)a->scale * (expert_scale ? expert_scale[r.ids[k]] : 1);
    }
    return r;
}

static double activated(struct act_args act, double g, double u) {
    if (act.act == ACT_SILU)
        return g * rig_sigmoid(g) * u;
    g = fmin(g, (double)act.limit);
    return (fmax(fmin(u, (double)act.limit), -(double)act.limit) + 1) * g * rig_sigmoid(1.702 * g);
}

struct moe_case {
    const char *name;
    struct route_args route;
    struct act_args act;
    int width, ffn;
    enum rig_format format;
    bool biased, expert_scaled;
    int n_shared;
    enum { NO_GATE, GATE_GIVEN, GATE_MADE } gate; // of what is shared: the third input; a product of the first
    int first, n_here;                            // of a rank that has some experts; n_here 0: it has all
};

static const struct moe_case moe_cases[] = {
    {"mixtral", {ROUTE_SOFTMAX, 8, 2, 0, 0, true, 1}, {ACT_SILU, 0}, 64, 96, FORMAT_BF16, false, false},
    {"qwen2 moe", {ROUTE_SOFTMAX, 12, 3, 0, 0, false, 1}, {ACT_SILU, 0}, 40, 24, FORMAT_BF16_SPLIT, false, false},
    {"gpt-oss",
     {ROUTE_SOFTMAX_TOPK, 8, 4, 0, 0, false, 1},
     {ACT_SWIGLU_CLAMPED, 2},
     64,
     32,
     FORMAT_BF16_TURNED,
     true,
     false},
    {"gpt-oss packed",
     {ROUTE_SOFTMAX_TOPK, 8, 4, 0, 0, false, 1},
     {ACT_SWIGLU_CLAMPED, 2},
     64,
     32,
     FORMAT_MXFP4,
     true,
     false},
    {"gpt-oss packed, of several blocks",
     {ROUTE_SOFTMAX_TOPK, 8, 2, 0, 0, false, 1},
     {ACT_SWIGLU_CLAMPED, 7},
     352,
     288,
     FORMAT_MXFP4,
     true,
     false},
    {"deepseek v3", {ROUTE_SIGMOID, 16, 4, 4, 2, true, 2.5f}, {ACT_SILU, 0}, 48, 32, FORMAT_F8_CHANNEL, true, false},
    {"deepseek v2",
     {ROUTE_SOFTMAX_GROUP, 16, 3, 4, 2, false, 4},
     {ACT_SILU, 0},
     32,
     48,
     FORMAT_BF16_INTERLEAVED,
     false,
     false},
    {"gemma 4", {ROUTE_SOFTMAX, 8, 2, 0, 0, true, 1}, {ACT_SILU, 0}, 33, 17, FORMAT_F32, false, true},
    {"qwen3 moe in blocks",
     {ROUTE_SOFTMAX, 16, 2, 0, 0, true, 1},
     {ACT_SILU, 0},
     144,
     80,
     FORMAT_F8_BLOCK,
     false,
     false},
    {"wide, MXFP4", {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1}, {ACT_SILU, 0}, 128, 448, FORMAT_MXFP4, true, false},
    {"wide, FP8", {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1}, {ACT_SILU, 0}, 448, 192, FORMAT_F8_CHANNEL, false, false},
    {"wide, 16 bits", {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1}, {ACT_SILU, 0}, 192, 320, FORMAT_BF16, true, false},
    {"NVFP4", {ROUTE_SOFTMAX, 8, 3, 0, 0, true, 1}, {ACT_SILU, 0}, 192, 320, FORMAT_NVFP4, true, false},
    {"INT4", {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1}, {ACT_SILU, 0}, 320, 192, FORMAT_INT4, false, false},
    {"shared twice",
     {ROUTE_SOFTMAX, 8, 3, 0, 0, true, 1},
     {ACT_SILU, 0},
     64,
     96,
     FORMAT_F8_CHANNEL,
     false,
     false,
     2,
     NO_GATE},
    {"shared by a gate",
     {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1},
     {ACT_SILU, 0},
     128,
     64,
     FORMAT_BF16,
     false,
     false,
     1,
     GATE_MADE},
    {"shared, in groups",
     {ROUTE_SIGMOID, 16, 4, 4, 2, true, 2.5f},
     {ACT_SILU, 0},
     64,
     32,
     FORMAT_BF16,
     false,
     false,
     1,
     GATE_GIVEN},
    {"many pairs",
     {ROUTE_SOFTMAX, 16, 12, 0, 0, true, 1},
     {ACT_SILU, 0},
     32,
     32,
     FORMAT_BF16,
     false,
     false,
     1,
     NO_GATE},
    {.name = "a rank's, 16 bits",
     .route = {ROUTE_SOFTMAX, 8, 2, 0, 0, true, 1},
     .width = 64,
     .ffn = 96,
     .format = FORMAT_BF16,
     .first = 5,
     .n_here = 3},
    {.name = "a rank's, turned, biased",
     .route = {ROUTE_SOFTMAX_TOPK, 9, 4, 0, 0, false, 1},
     .act = {ACT_SWIGLU_CLAMPED, 2},
     .width = 64,
     .ffn = 32,
     .format = FORMAT_BF16_TURNED,
     .biased = true,
     .first = 4,
     .n_here = 5},
    {.name = "a rank's, MXFP4",
     .route = {ROUTE_SOFTMAX_TOPK, 9, 4, 0, 0, false, 1},
     .act = {ACT_SWIGLU_CLAMPED, 7},
     .width = 352,
     .ffn = 288,
     .format = FORMAT_MXFP4,
     .biased = true,
     .n_here = 4},
    {.name = "a rank's, wide, MXFP4, of many a token",
     .route = {ROUTE_SOFTMAX, 13, 10, 0, 0, true, 1},
     .width = 128,
     .ffn = 448,
     .format = FORMAT_MXFP4,
     .biased = true,
     .first = 6,
     .n_here = 7},
    {.name = "a rank's, FP8 in groups",
     .route = {ROUTE_SIGMOID, 16, 4, 4, 2, true, 2.5f},
     .width = 48,
     .ffn = 32,
     .format = FORMAT_F8_CHANNEL,
     .first = 8,
     .n_here = 8},
    {.name = "a rank's, FP8 in blocks, seldom met",
     .route = {ROUTE_SOFTMAX, 16, 2, 0, 0, true, 1},
     .width = 144,
     .ffn = 80,
     .format = FORMAT_F8_BLOCK,
     .first = 15,
     .n_here = 1},
    {.name = "a rank's, wide, FP8",
     .route = {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1},
     .width = 448,
     .ffn = 192,
     .format = FORMAT_F8_CHANNEL,
     .first = 2,
     .n_here = 3},
    {.name = "a rank's, NVFP4",
     .route = {ROUTE_SOFTMAX, 8, 3, 0, 0, true, 1},
     .width = 192,
     .ffn = 320,
     .format = FORMAT_NVFP4,
     .biased = true,
     .first = 3,
     .n_here = 5},
    {.name = "a rank's, INT4",
     .route = {ROUTE_SOFTMAX, 8, 4, 0, 0, true, 1},
     .width = 320,
     .ffn = 192,
     .format = FORMAT_INT4,
     .first = 4,
     .n_here = 4},
    {.name = "a rank's, by plain kernels",
     .route = {ROUTE_SOFTMAX, 9, 3, 0, 0, true, 1},
     .width = 33,
     .ffn = 17,
     .format = FORMAT_F32,
     .expert_scaled = true,
     .first = 3,
     .n_here = 3},
    {.name = "a rank's, of many a token",
     .route = {ROUTE_SOFTMAX_GROUP, 60, 12, 4, 3, true, 1},
     .width = 32,
     .ffn = 32,
     .format = FORMAT_BF16,
     .first = 30,
     .n_here = 30},
    {"one expert", {ROUTE_SOFTMAX, 1, 1, 0, 0, true, 1}, {ACT_SILU, 0}, 16, 16, FORMAT_F16, false, false},
};

/* To numbers that every format of 16 bits has, so that a backend that keeps tables in it chooses by the same logits. */
static void round_logits(struct rig *rig, int first, int n) {
    for (int r = 0; r < rig->n_rows; r++)
        for (int i = first; i < first + n; i++)
            rig->table[(int64_t)r * rig->width + i] = rintf(rig->table[(int64_t)r * rig->width + i] * 64) / 64;
}

/* How a device computes experts: in float32, or as a stream of weights, of 16 bits or e4m3, with what lies between the
 * products rounded to what they are made in. */
enum reading { IN_FLOAT32, BY_16_BITS, BY_E4M3 };

static enum reading reading_of(const struct moe_case *m, const char *quantization, const char *kernels) {
    bool narrow = m->format == FORMAT_F8_CHANNEL || m->format == FORMAT_F8_TENSOR || m->format == FORMAT_F8_BLOCK ||
                  (quantization && m->format < FORMAT_F8_CHANNEL);
    if (rig_backend() == &backend_cpu || getenv("GYRE_TEST_KERNELS") || strcmp(kernels, "float32") == 0)
        return IN_FLOAT32;
    if (narrow && m->width % 16 == 0 && m->ffn % 16 == 0)
        return BY_E4M3;
    return m->width % 8 == 0 && m->ffn % 8 == 0 ? BY_16_BITS : IN_FLOAT32;
}

/* What a device makes of the numbers stored. */
static void round_matrix(const struct moe_case *m, enum reading how, const char *kernels, double *w, int64_t out,
                         int in) {
    if (how != BY_E4M3)
        rig_round(kernels, w, out * in);
    else if (m->format != FORMAT_F8_CHANNEL && m->format != FORMAT_F8_TENSOR) // those have a scale a row
        for (int64_t r = 0; r < out; r++)
            rig_round_weight_row(w + r * in, in);
}

static struct rig *moe_rig(const struct moe_case *m, int len, const char *quantization, const char *kernels) {
    return rig_new((struct rig_options){.n_seqs = 3,
                                        .lens = {len, 1, 9},
                                        .widths = {m->width, m->route.n_experts, m->gate == GATE_GIVEN ? 1 : 0},
                                        .spread = 2,
                                        .kernels = kernels,
                                        .quantization = quantization});
}

/* The weight of what is shared. */
static double gate_of(const struct moe_case *m, struct rig *rig, const double *row, int s, int t) {
    double logit;
    if (m->gate == NO_GATE)
        return 1;
    if (m->gate == GATE_GIVEN)
        return rig_sigmoid(rig_wide_input(rig, 2, s, t)[0]);
    rig_multiply(row, 1, m->width, rig_wide_input(rig, 0, s, t), &logit);
    return rig_sigmoid(logit);
}

static void moe_case(const struct moe_case *m, int len, const char *quantization, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct route_args routing = m->route;
    routing.n_shared = m->n_shared;
    const struct route_args *a = &routing;
    int n_chosen = a->n_experts, e = m->n_here ? m->n_here : n_chosen + m->n_shared, d = m->width, f = m->ffn;
    enum reading how = reading_of(m, quantization, kernels);
    struct rig *rig = moe_rig(m, len, quantization, kernels);
    round_logits(rig, d, n_chosen + (m->gate == GATE_GIVEN));
    double *w13, *w2, *b13 = NULL, *b2 = NULL, *bias = NULL, *scale = NULL;
    const struct weight *gate_up = rig_weight(rig, m->format, (int64_t)e * 2 * f, d, &w13);
    const struct weight *down = rig_weight(rig, m->format, (int64_t)e * d, f, &w2);
    const struct weight *bias13 = m->biased ? rig_vector(rig, (int64_t)e * 2 * f, -1, 1, &b13) : NULL;
    const struct weight *bias2 = m->biased ? rig_vector(rig, (int64_t)e * d, -1, 1, &b2) : NULL;
    const struct weight *choice_bias = a->how == ROUTE_SIGMOID ? rig_vector(rig, n_chosen, -1, 1, &bias) : NULL;
    const struct weight *expert_scale = m->expert_scaled ? rig_vector(rig, n_chosen, 0.5, 2, &scale) : NULL;
    double *gate_row = NULL;
    val gate = m->gate == GATE_GIVEN ? rig->in[2] : NO_VAL;
    if (m->gate == GATE_MADE)
        gate = op_linear(rig->p, rig->in[0], rig_weight(rig, m->format, 1, d, &gate_row), NULL);
    struct routed routed = op_moe_route_gated(rig->p, rig->in[1], gate, choice_bias, expert_scale, *a);
    struct moe_args args = {
        .n_experts = e, .top_k = route_slots(a), .ffn_size = f, .act = m->act, .first_expert = m->first};
    rig_result(rig, op_moe_ffn(rig->p, rig->in[0], routed, gate_up, down, bias13, bias2, args));
    round_matrix(m, how, kernels, w13, (int64_t)e * 2 * f, d);
    round_matrix(m, how, kernels, w2, (int64_t)e * d, f);
    if (gate_row)
        rig_round(kernels, gate_row, d);
    double *want = rig_rows(rig), *gu = rig_doubles(rig, 2 * f), *y = rig_doubles(rig, d);
    RIG_EACH_ROW(rig, s, t) {
        struct routing_result r = route(a, rig_wide_input(rig, 1, s, t), bias, scale);
        for (int k = 0; k < m->n_shared; k++) {
            r.ids[a->top_k + k] = n_chosen + k;
            r.weights[a->top_k + k] = gate_of(m, rig, gate_row, s, t);
        }
        for (int k = 0; k < route_slots(a); k++) {
            int64_t id = r.ids[k] - m->first;
            if (id < 0 || id >= e)
                continue;
            rig_multiply(w13 + id * 2 * f * d, 2 * f, d, rig_wide_input(rig, 0, s, t), gu);
            for (int i = 0; i < 2 * f; i++)
                gu[i] += b13 ? b13[id * 2 * f + i] : 0;
            for (int i = 0; i < f; i++)
                gu[i] = activated(m->act, gu[i], gu[f + i]);
            if (how != IN_FLOAT32)
                rig_round(kernels, gu, f);
            double size = rig_multiply(w2 + id * d * f, d, f, gu, y);
            rig->floor = fmax(rig->floor, size * r.weights[k]);
            for (int i = 0; i < d; i++)
                rig_at(rig, want, s, t)[i] += r.weights[k] * (y[i] + (b2 ? b2[id * d + i] : 0));
        }
    }
    double exact = 8 * sqrt(d + f) * EPS;
    rig_expect_bounds(rig, want, how == IN_FLOAT32 ? (struct rig_bounds){.most = exact} : rig_bounds_of_16(rig, exact),
                      m->name);
    rig_free(rig);
}

static void experts_are_chosen_weighted_and_summed(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(moe_cases); i++) {
            moe_case(&moe_cases[i], rig_is_brief() && i % 2 ? 90 : 20, NULL, *kernels);
            if (strcmp(*kernels, "reference") != 0 && !rig_is_brief())
                moe_case(&moe_cases[i], 90, NULL, *kernels);
        }
}

static void experts_are_quantised_when_they_are_loaded(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(moe_cases); i++)
            if (reading_of(&moe_cases[i], "fp8", *kernels) == BY_E4M3)
                for (int len = rig_is_brief() ? 90 : 20; len <= 90; len += 70)
                    moe_case(&moe_cases[i], len, "fp8", *kernels);
}

/* To the bit: on a device sums are made in one order, whatever else a step computes. */
static void what_experts_make_of_a_row_does_not_depend_on_the_others(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(moe_cases); i++) {
            const struct moe_case *m = &moe_cases[i];
            if ((rig_is_brief() && (i % 3 || strcmp(*kernels, "bfloat16") == 0)) || !rig_takes_case() ||
                m->gate == GATE_MADE) // a LINEAR, whose kernel is chosen by the number of rows
                continue;
            int e = m->n_here ? m->n_here : m->route.n_experts + m->n_shared, d = m->width, f = m->ffn;
            struct route_args routing = m->route;
            routing.n_shared = m->n_shared;
            struct rig *rig = moe_rig(m, 90, "fp8", strcmp(*kernels, "float32") == 0 ? "float16" : *kernels);
            struct moe_args args = {
                .n_experts = e, .top_k = route_slots(&routing), .ffn_size = f, .act = m->act, .first_expert = m->first};
            val gate = m->gate == GATE_GIVEN ? rig->in[2]
                       : m->gate == GATE_MADE
                           ? op_linear(rig->p, rig->in[0], rig_weight(rig, m->format, 1, d, NULL), NULL)
                           : NO_VAL;
            struct routed routed = op_moe_route_gated(rig->p, rig->in[1], gate, NULL, NULL, routing);
            rig_result(rig,
                       op_moe_ffn(rig->p, rig->in[0], routed, rig_weight(rig, m->format, (int64_t)e * 2 * f, d, NULL),
                                  rig_weight(rig, m->format, (int64_t)e * d, f, NULL), NULL, NULL, args));
            rig->tells_all = true;
            const double *whole = rig_run(rig, SCHEDULE_WHOLE);
            for (enum rig_schedule s = SCHEDULE_WHOLE + 1; s < N_SCHEDULES; s++) {
                const double *got = rig_run(rig, s);
                for (int64_t k = 0; k < (int64_t)rig->n_rows * d; k++)
                    EXPECT(got[k] == whole[k]);
            }
            rig_free(rig);
        }
}

static int64_t reported(const struct rig *rig, const char *name) {
    struct device_report all[MAX_DEVICE_REPORTS];
    for (int i = 0, n = rig->ops->report(rig->at.exe, all); i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].value;
    fail_msg("the device does not tell %s", name);
    return 0;
}

/* Of tokens that are sent to 5 of 16 experts each, one rank reads those that are among its own. */
static void expect_counted(int n_tokens, int first, int n) {
    enum { WIDTH = 32, FFN = 8 };
    struct route_args a = {ROUTE_SOFTMAX, 16, 5, 0, 0, true, 1};
    struct rig *rig =
        rig_new((struct rig_options){.n_seqs = n_tokens, .lens = {1, 1}, .widths = {WIDTH, 16}, .kernels = "float16"});
    round_logits(rig, WIDTH, 16);
    struct routed routed = op_moe_route(rig->p, rig->in[1], NULL, NULL, a);
    const struct weight *w13 = rig_weight(rig, FORMAT_BF16, n * 2 * FFN, WIDTH, NULL),
                        *w2 = rig_weight(rig, FORMAT_BF16, n * WIDTH, FFN, NULL);
    struct moe_args args = {.n_experts = n, .top_k = 5, .ffn_size = FFN, .act = {ACT_SILU, 0}, .first_expert = first};
    rig_result(rig, op_moe_ffn(rig->p, rig->in[0], routed, w13, w2, NULL, NULL, args));
    unsigned read = 0; // a bit of each expert
    for (int t = 0; t < n_tokens; t++) {
        struct routing_result r = route(&a, rig_wide_input(rig, 1, t, 0), NULL, NULL);
        for (int k = 0; k < 5; k++)
            read |= 1u << r.ids[k];
    }
    int n_mine = __builtin_popcount(read >> first & ((1u << n) - 1));
    rig_run(rig, SCHEDULE_WHOLE); // what the rig computes before it is counted too
    int64_t layers = reported(rig, "expert_layers_total"), experts = reported(rig, "experts_read_total");
    rig_run(rig, SCHEDULE_WHOLE);
    layers = reported(rig, "expert_layers_total") - layers;
    EXPECT(layers >= 1 && reported(rig, "experts_read_total") - experts == n_mine * layers);
    rig_free(rig);
}

static void a_device_counts_the_experts_that_a_step_reads(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu || getenv("GYRE_TEST_KERNELS")) // plain ones count none
        skip();
    for (int n_tokens = 1; n_tokens <= 2; n_tokens++)
        for (int n = 4; n <= 16; n += 12)
            for (int first = 0; first < 16; first += n)
                expect_counted(n_tokens, first, n);
}

static void the_weights_of_a_token_come_in_falling_order_and_sum_as_asked(void **state) {
    (void)state;
    for (enum routing how = 0; how <= ROUTE_SOFTMAX_GROUP; how++) {
        struct route_args a = {how, 16, 5, how >= ROUTE_SIGMOID ? 4 : 0, 2, true, 1};
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {30, 7}, .widths = {16}, .spread = 4});
        rig_result(rig, op_moe_route(rig->p, rig->in[0], NULL, NULL, a).weights);
        rig->tells_all = true;
        double *w = rig_run(rig, SCHEDULE_RAGGED);
        for (int r = 0; r < rig->n_rows; r++) {
            double sum = 0;
            for (int k = 0; k < 5; k++) {
                sum += w[r * 5 + k];
                EXPECT(k == 0 || w[r * 5 + k] <= w[r * 5 + k - 1]);
            }
            EXPECT(fabs(sum - 1) < 8 * EPS);
        }
        rig_free(rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_chosen_weighted_and_summed),
        cmocka_unit_test(experts_are_quantised_when_they_are_loaded),
        cmocka_unit_test(what_experts_make_of_a_row_does_not_depend_on_the_others),
        cmocka_unit_test(a_device_counts_the_experts_that_a_step_reads),
        cmocka_unit_test(the_weights_of_a_token_come_in_falling_order_and_sum_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
