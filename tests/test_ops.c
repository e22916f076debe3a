/* test_ops.c - every op of ops.def against its formula in double precision, on the CPU backend.
 *
 * Each row of a test is an op x shape x format; each is run under every schedule of op_rig.h (whole
 * sequences, chunks of 1, 7 and 64, ragged mixes) with block tables and state slots permuted, memory
 * poisoned with NaN, and by the reference functions as well as by the fast ones.
 *
 * Bounds are relative to the largest value of a row. A float32 sum of n terms of like size in any order errs
 * by about sqrt(n) * 2^-24 of it, rarely by more than n * 2^-24; each bound says its n. */
#include "op_rig.h"

#include <math.h>

#define EPS 0x1p-24

static void expect_close(struct rig *rig, const double *want, double bound, enum rig_schedule schedule, const char *what) {
    double error = rig_error(rig, rig_run(rig, schedule), want);
    if (!(error <= bound))
        fail_msg("%s, schedule %d, %s: error %.3g over %.3g", what, schedule, rig->o.reference ? "reference" : "fast", error, bound);
}

static void expect_close_in_every_schedule(struct rig *rig, const double *want, double bound, const char *what) {
    for (enum rig_schedule s = 0; s < N_SCHEDULES; s++)
        expect_close(rig, want, bound, s, what);
}

/* y [out] = W [out, in] x. Returns the largest root of a sum of squared terms: the size that a sum without
 * cancellation would have. */
static double multiply(const double *w, int64_t out, int64_t in, const double *x, double *y) {
    double largest = 0;
    for (int64_t o = 0; o < out; o++) {
        double squares = 0;
        y[o] = 0;
        for (int64_t i = 0; i < in; i++) {
            y[o] += w[o * in + i] * x[i];
            squares += pow(w[o * in + i] * x[i], 2);
        }
        largest = fmax(largest, sqrt(squares));
    }
    return largest;
}

/* Input i of a row, in double. */
static double *wide_input(struct rig *rig, int i, int seq, int row) {
    double *x = rig_doubles(rig, rig->o.widths[i]);
    for (int k = 0; k < rig->o.widths[i]; k++)
        x[k] = (double)rig_input(rig, i, seq, row)[k];
    return x;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* y = x / rms(x) * w; w NULL: 1 */
static void rms_norm(const double *x, const double *w, int n, double eps, bool plus_one, double *y) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * scale * (w ? w[i] + plus_one : 1);
}

/* Both functions of the op: everything below is a loop over this. */
static const bool both[2] = {true, false};

/* ---- LINEAR ---- */

static void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, bool reference) {
    struct rig *rig =
        rig_new((struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .reference = reference});
    double *w, *b = NULL;
    const struct weight *weight = rig_weight(rig, format, out, in, &w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &b) : NULL;
    rig_result(rig, op_linear(rig->p, rig->in[0], weight, bias));
    double *want = rig_doubles(rig, (int64_t)rig->n_rows * out);
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < rig->o.lens[s]; t++) {
            double *y = want + (int64_t)rig_row(rig, s, t) * out;
            rig->floor = fmax(rig->floor, multiply(w, out, in, wide_input(rig, 0, s, t), y));
            for (int o = 0; b && o < out; o++)
                y[o] += b[o];
        }
    char what[100];
    snprintf(what, sizeof what, "linear %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    expect_close(rig, want, 4 * sqrt(in) * EPS, SCHEDULE_WHOLE, what);
    expect_close(rig, want, 4 * sqrt(in) * EPS, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

static void linear_is_x_times_w_transposed_in_every_format(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++)
        for (enum rig_format f = 0; f < N_FORMATS; f++) {
            linear_case(f, 96, 128, 1, false, both[k]);
            linear_case(f, 50, 192, 5, true, both[k]);
            linear_case(f, 34, 64, 21, true, both[k]);
            linear_case(f, 200, 896, 70, false, both[k]);
        }
}

static void linear_takes_odd_shapes(void **state) {
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {1, 2048, 3}, {3, 17, 2}, {33, 31, 9}, {6, 130, 13}, {257, 70, 33}, {64, 5, 100}};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            for (enum rig_format f = 0; f < FORMAT_F8_CHANNEL; f++)
                linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i & 1, both[k]);
}

/* ---- norms and elementwise ops ---- */

static void add_norm_adds_scales_and_normalises(void **state) {
    (void)state;
    for (int k = 0; k < 8; k++) {
        bool with_d = k & 1, scaled = k & 2, plus_one = k & 4;
        int width = 96 + 5 * k;
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {width, width}});
        double *w, *r_scale = NULL;
        const struct weight *weight = rig_vector(rig, width, -1, 1, &w);
        const struct weight *scale = scaled ? rig_vector(rig, 1, 0.5, 2, &r_scale) : NULL;
        struct norm_args args = {.eps = 1e-5f, .plus_one = plus_one};
        struct normed n = op_add_norm(rig->p, rig->in[0], with_d ? rig->in[1] : NO_VAL, weight, scale, args);
        bool want_r = k == 3;
        rig_result(rig, want_r ? n.r : n.y);
        double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < rig->o.lens[s]; t++) {
                double *x = wide_input(rig, 0, s, t), *d = wide_input(rig, 1, s, t), *y = want + (int64_t)rig_row(rig, s, t) * width;
                for (int i = 0; i < width; i++)
                    x[i] = (x[i] + (with_d ? d[i] : 0)) * (r_scale ? *r_scale : 1);
                if (want_r)
                    memcpy(y, x, (size_t)width * sizeof *y);
                else
                    rms_norm(x, w, width, (double)1e-5f, plus_one, y);
            }
        expect_close_in_every_schedule(rig, want, 4 * sqrt(width) * EPS, "add_norm");
        rig_free(rig);
    }
}

static void norm_works_on_groups_with_and_without_gate_and_weight(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        bool gated = k & 1, weighted = k & 2;
        int group = 24, width = 3 * group;
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {width, width}, .spread = 3});
        double *w = NULL;
        const struct weight *weight = weighted ? rig_vector(rig, group, -1, 1, &w) : NULL;
        struct norm_args args = {.eps = 1e-6f, .group = group, .scale = gated ? 0.25f : 0};
        rig_result(rig, op_norm(rig->p, rig->in[0], gated ? rig->in[1] : NO_VAL, weight, args));
        double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < rig->o.lens[s]; t++) {
                double *x = wide_input(rig, 0, s, t), *g = wide_input(rig, 1, s, t), *y = want + (int64_t)rig_row(rig, s, t) * width;
                for (int i = 0; i < width; i += group)
                    rms_norm(x + i, w, group, (double)1e-6f, false, y + i);
                for (int i = 0; gated && i < width; i++)
                    y[i] *= 0.25 * g[i] * sigmoid(g[i]);
            }
        expect_close_in_every_schedule(rig, want, 4 * sqrt(width) * EPS, "norm");
        rig_free(rig);
    }
}

static double gated(enum activation act, double limit, double g, double u) {
    switch (act) {
    case ACT_SILU: return g * sigmoid(g) * u;
    case ACT_GELU_TANH: return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * pow(g, 3)))) * u;
    case ACT_GELU: return g * 0.5 * erfc(-g / sqrt(2)) * u;
    case ACT_SIGMOID: return sigmoid(g) * u;
    case ACT_SWIGLU_CLAMPED: g = fmin(g, limit); return (fmax(fmin(u, limit), -limit) + 1) * g * sigmoid(1.702 * g);
    }
    return NAN;
}

static void gated_act_has_the_five_activations(void **state) {
    (void)state;
    for (enum activation act = 0; act <= ACT_SWIGLU_CLAMPED; act++)
        for (int k = 0; k < 2; k++) {
            int width = 77;
            struct rig *rig =
                rig_new((struct rig_options){.n_seqs = 2, .lens = {50, 3}, .widths = {2 * width}, .spread = 12, .reference = both[k]});
            rig_result(rig, op_glu(rig->p, rig->in[0], (struct act_args){act, 7}));
            double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
            for (int s = 0; s < 2; s++)
                for (int t = 0; t < rig->o.lens[s]; t++)
                    for (int i = 0; i < width; i++) {
                        const float *x = rig_input(rig, 0, s, t);
                        want[(int64_t)rig_row(rig, s, t) * width + i] = gated(act, 7, (double)x[i], (double)x[width + i]);
                    }
            expect_close(rig, want, 16 * EPS, SCHEDULE_WHOLE, "gated_act"); // a dozen roundings
            expect_close(rig, want, 16 * EPS, SCHEDULE_CHUNK_1, "gated_act");
            rig_free(rig);
        }
}

/* GATED_ADD of a softcapped input: both, and a value of one column. */
static void gated_add_and_softcap_follow_their_formulas(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        int width = 40;
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {width, width, 1}, .spread = 20});
        val capped = op_softcap(rig->p, rig->in[0], 5);
        rig_result(rig, op_gated_add(rig->p, capped, rig->in[1], k ? rig->in[2] : NO_VAL));
        double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < rig->o.lens[s]; t++)
                for (int i = 0; i < width; i++) {
                    double gate = k ? sigmoid((double)*rig_input(rig, 2, s, t)) : 1;
                    want[rig_row(rig, s, t) * width + i] =
                        5 * tanh((double)rig_input(rig, 0, s, t)[i] / 5) + gate * (double)rig_input(rig, 1, s, t)[i];
                }
        expect_close_in_every_schedule(rig, want, 8 * EPS, "gated_add");
        rig_free(rig);
    }
}

static void diff_heads_subtracts_the_second_half(void **state) {
    (void)state;
    int heads = 6, width = 20, dim = 10, half = heads * width / 2;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {heads * width}});
    const struct weight *w[4];
    double *v[4], dot[2] = {0, 0};
    for (int i = 0; i < 4; i++)
        w[i] = rig_vector(rig, dim, -0.5, 0.5, &v[i]);
    for (int i = 0; i < dim; i++) {
        dot[0] += v[0][i] * v[1][i];
        dot[1] += v[2][i] * v[3][i];
    }
    double lambda = exp(dot[0]) - exp(dot[1]) + (double)0.35f;
    rig_result(rig, op_diff_heads(rig->p, rig->in[0], w, (struct diff_args){heads, width, 0.35f}));
    double *want = rig_doubles(rig, (int64_t)rig->n_rows * half);
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < rig->o.lens[s]; t++)
            for (int h = 0; h < heads / 2; h++)
                for (int i = 0; i < width; i++) {
                    const float *x = rig_input(rig, 0, s, t);
                    want[rig_row(rig, s, t) * half + h * width + i] =
                        (double)x[h * width + i] - lambda * (double)x[(h + heads / 2) * width + i];
                }
    expect_close_in_every_schedule(rig, want, 8 * EPS, "diff_heads");
    rig_free(rig);
}

/* ---- attention ---- */

struct attention_case {
    const char *name;
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    bool q_norm, plus_one, v_norm, v_from_k, sinks, paired;
    int rope_dim;
    enum rope_pairing pairing;
    float softcap;
    int window, chunk, block_size;
};

static const struct attention_case attention_cases[] = {
    {.name = "gqa", .n_heads = 14, .n_kv_heads = 2, .head_dim = 64, .v_head_dim = 64, .rope_dim = 64},
    {.name = "mha odd dims", .n_heads = 3, .n_kv_heads = 3, .head_dim = 20, .v_head_dim = 12, .rope_dim = 8},
    {.name = "qk norm", .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .v_head_dim = 32, .q_norm = true, .rope_dim = 32},
    {.name = "gemma",
     .n_heads = 4,
     .n_kv_heads = 1,
     .head_dim = 32,
     .v_head_dim = 32,
     .q_norm = true,
     .plus_one = true,
     .rope_dim = 32,
     .softcap = 3,
     .window = 5},
    {.name = "k is v",
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 48,
     .v_head_dim = 48,
     .q_norm = true,
     .v_norm = true,
     .v_from_k = true,
     .rope_dim = 48},
    {.name = "sinks", .n_heads = 8, .n_kv_heads = 1, .head_dim = 16, .v_head_dim = 16, .sinks = true, .rope_dim = 16, .window = 17},
    {.name = "paired", .n_heads = 8, .n_kv_heads = 4, .head_dim = 16, .v_head_dim = 16, .paired = true, .rope_dim = 16},
    {.name = "chunk", .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .v_head_dim = 16, .chunk = 8},
    {.name = "interleaved", .n_heads = 2, .n_kv_heads = 1, .head_dim = 24, .v_head_dim = 24, .rope_dim = 16, .pairing = ROPE_INTERLEAVED},
    {.name = "blocks of 4", .n_heads = 6, .n_kv_heads = 2, .head_dim = 16, .v_head_dim = 40, .rope_dim = 16, .block_size = 4},
    {.name = "blocks of 1", .n_heads = 2, .n_kv_heads = 2, .head_dim = 8, .v_head_dim = 8, .block_size = 1, .window = 3},
    {.name = "blocks of 64", .n_heads = 16, .n_kv_heads = 2, .head_dim = 128, .v_head_dim = 128, .rope_dim = 32, .block_size = 64},
};

static void rotate(const struct attention_case *a, const float *freq, int position, double *x) {
    for (int i = 0; i < a->rope_dim / 2; i++) {
        int one = a->pairing == ROPE_HALF ? i : 2 * i, two = a->pairing == ROPE_HALF ? i + a->rope_dim / 2 : 2 * i + 1;
        double angle = (double)((float)position * freq[i]), p = x[one], q = x[two];
        x[one] = p * cos(angle) - q * sin(angle);
        x[two] = q * cos(angle) + p * sin(angle);
    }
}

/* What is needed to compute a case's q, k and v of any row. */
struct attention_oracle {
    const struct attention_case *a;
    struct rig *rig;
    const float *freq;
    double *q_norm, *k_norm, *sinks;
};

/* part 0: query head h; 1: key of KV head h; 2: its value. */
static double *projected(const struct attention_oracle *o, int part, int h, int seq, int t) {
    const struct attention_case *a = o->a;
    int first[3] = {0, a->n_heads * a->head_dim, (a->n_heads + (a->v_from_k ? 0 : a->n_kv_heads)) * a->head_dim};
    int dim = part == 2 ? a->v_head_dim : a->head_dim;
    double *x = wide_input(o->rig, 0, seq, t) + first[part] + h * dim;
    if (part < 2 && a->q_norm)
        rms_norm(x, part == 0 ? o->q_norm : o->k_norm, dim, (double)1e-6f, a->plus_one, x);
    if (part == 2 && a->v_norm)
        rms_norm(x, NULL, dim, (double)1e-6f, false, x);
    if (part < 2)
        rotate(a, o->freq, t, x);
    return x;
}

/* Softmax over all keys with minus infinity where the rule hides them, in two passes. */
static void attend(const struct attention_oracle *o, int seq, int t, int h, double *out) {
    const struct attention_case *a = o->a;
    int group = a->n_heads / a->n_kv_heads, half = a->n_heads / 2;
    double *q = projected(o, 0, h, seq, t), *s = rig_doubles(o->rig, t + 2), max = -INFINITY, sum = 0;
    for (int j = 0; j <= t; j++) {
        double *k = projected(o, 1, h / group, seq, j);
        for (int i = 0; i < a->head_dim; i++)
            s[j] += q[i] * k[i];
        s[j] *= (double)0.3f;
        if (a->softcap > 0)
            s[j] = (double)a->softcap * tanh(s[j] / (double)a->softcap);
        bool visible = (a->window == 0 || j > t - a->window) && (a->chunk == 0 || j / a->chunk == t / a->chunk);
        if (!visible)
            s[j] = -INFINITY;
    }
    s[t + 1] = a->sinks ? o->sinks[h] : -INFINITY;
    for (int j = 0; j <= t + 1; j++)
        max = fmax(max, s[j]);
    for (int j = 0; j <= t + 1; j++)
        sum += s[j] = exp(s[j] - max);
    for (int part = 0; part < (a->paired ? 2 : 1); part++) {
        int value_head = !a->paired ? h / group : (h % half + part * half) / group;
        for (int j = 0; j <= t; j++) {
            double *v = projected(o, 2, value_head, seq, j);
            for (int i = 0; i < a->v_head_dim; i++)
                out[part * a->v_head_dim + i] += s[j] / sum * v[i];
        }
    }
}

static void attention_case(const struct attention_case *a, const int *lens, bool reference) {
    int kv = a->n_kv_heads * (a->head_dim + (a->v_from_k ? 0 : a->v_head_dim));
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 3,
                                                   .lens = {lens[0], lens[1], lens[2]},
                                                   .spread = 2,
                                                   .widths = {a->n_heads * a->head_dim + kv},
                                                   .block_size = a->block_size,
                                                   .reference = reference});
    float freq[64];
    for (int i = 0; i < a->rope_dim / 2; i++)
        freq[i] = (float)rig_uniform(rig, 0, 1);
    struct rope rope = {.pairing = a->pairing, .dim = a->rope_dim, .inv_freq = freq, .factor = 1};
    struct attention_oracle o = {.a = a, .rig = rig, .freq = freq};
    const struct weight *q_norm = a->q_norm ? rig_vector(rig, a->head_dim, -1, 1, &o.q_norm) : NULL;
    const struct weight *k_norm = a->q_norm ? rig_vector(rig, a->head_dim, -1, 1, &o.k_norm) : NULL;
    const struct weight *sinks = a->sinks ? rig_vector(rig, a->n_heads, -2, 2, &o.sinks) : NULL;
    struct qkv_args prep = {.cache = program_cache_kv(rig->p, a->n_kv_heads, a->head_dim, a->v_head_dim, a->window),
                            .rope = a->rope_dim ? program_rope(rig->p, &rope) : -1,
                            .n_heads = a->n_heads,
                            .n_kv_heads = a->n_kv_heads,
                            .head_dim = a->head_dim,
                            .v_head_dim = a->v_head_dim,
                            .eps = 1e-6f,
                            .plus_one = a->plus_one,
                            .v_norm = a->v_norm,
                            .v_from_k = a->v_from_k};
    struct attention_args args = {.cache = prep.cache,
                                  .n_heads = a->n_heads,
                                  .n_kv_heads = a->n_kv_heads,
                                  .head_dim = a->head_dim,
                                  .v_head_dim = a->v_head_dim,
                                  .scale = 0.3f,
                                  .softcap = a->softcap,
                                  .window = a->window,
                                  .chunk = a->chunk,
                                  .paired_values = a->paired};
    rig_result(rig, op_attention(rig->p, op_qkv_prep(rig->p, rig->in[0], q_norm, k_norm, prep), sinks, args));
    double *want = rig_doubles(rig, (int64_t)rig->n_rows * rig->out.width);
    for (int s = 0; s < 3; s++)
        for (int t = 0; t < lens[s]; t++)
            for (int h = 0; h < a->n_heads; h++)
                attend(&o, s, t, h, want + (int64_t)rig_row(rig, s, t) * rig->out.width + h * (rig->out.width / a->n_heads));
    // A score's error, sqrt(head_dim) roundings of values up to some 40, goes into the exponent.
    expect_close_in_every_schedule(rig, want, 40 * sqrt(a->head_dim) * EPS, a->name);
    rig_free(rig);
}

static void attention_is_a_softmax_over_what_is_visible(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < ARRAY_LEN(attention_cases); i++) {
            attention_case(&attention_cases[i], (int[]){21, 1, 6}, both[k]);
            attention_case(&attention_cases[i], (int[]){3, 40, 17}, both[k]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_x_times_w_transposed_in_every_format),
        cmocka_unit_test(linear_takes_odd_shapes),
        cmocka_unit_test(add_norm_adds_scales_and_normalises),
        cmocka_unit_test(norm_works_on_groups_with_and_without_gate_and_weight),
        cmocka_unit_test(gated_act_has_the_five_activations),
        cmocka_unit_test(gated_add_and_softcap_follow_their_formulas),
        cmocka_unit_test(diff_heads_subtracts_the_second_half),
        cmocka_unit_test(attention_is_a_softmax_over_what_is_visible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
