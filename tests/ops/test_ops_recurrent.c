/* test_ops_recurrent.c - SHORT_CONV and DELTA_RULE: state from step to step; how the tests are run is said in
 * test_ops.c. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void short_conv_sees_the_last_inputs_of_its_own_sequence(void **state) {
    (void)state;
    for (int kernel = 1; kernel <= 5; kernel++)
        for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
            if (!rig_takes_case())
                continue;
            int width = 37;
            struct rig *rig =
                rig_new((struct rig_options){.n_seqs = 3, .lens = {30, 2, 11}, .widths = {width}, .kernels = *kernels});
            double *w;
            const struct weight *weight = rig_weight(rig, FORMAT_BF16, width, kernel, &w);
            int cache = program_cache_state(rig->p, (int64_t)width * (kernel - 1), 5);
            rig_result(rig, op_short_conv(rig->p, rig->in[0], weight, (struct conv_args){cache, kernel}));
            double *want = rig_rows(rig);
            RIG_EACH_ROW(rig, s, t)
            for (int c = 0; c < width; c++) {
                double sum = 0;
                for (int j = 0; j < kernel && j <= t; j++)
                    sum += w[c * kernel + kernel - 1 - j] * (double)rig_input(rig, 0, s, t - j)[c];
                rig_at(rig, want, s, t)[c] = sum * rig_sigmoid(sum);
            }
            rig_expect_in_every_schedule(rig, want, 16 * EPS, "short_conv");
            rig_free(rig);
        }
}

struct delta_oracle {
    struct rig *rig;
    const struct delta_args *a;
    double *a_log, *dt_bias;
};

static void unit(double *x, int n, double factor) {
    double squares = 1e-6;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] *= factor / sqrt(squares);
}

/* One token of one head, of x = [q | k | v], with the matrix form S' = (e^g S) + k (beta (v - k^T e^g S))^T. */
static void delta_token(const struct delta_oracle *o, double *x, int seq, int t, int h, double *S, double *out) {
    const struct delta_args *a = o->a;
    int kh = h / (a->n_value_heads / a->n_key_heads), n_keys = a->n_key_heads * a->key_dim, dk = a->key_dim,
        dv = a->value_dim;
    double *q = x + kh * dk, *k = x + n_keys + kh * dk, *v = x + 2 * n_keys + h * dv;
    double b = rig_wide_input(o->rig, 1, seq, t)[h], alpha = rig_wide_input(o->rig, 2, seq, t)[h] + o->dt_bias[h];
    double decay = exp(-exp(o->a_log[h]) * log1p(exp(alpha)));
    unit(q, dk, 1 / sqrt(dk));
    unit(k, dk, 1);
    for (int j = 0; j < dv; j++) {
        double read = 0;
        for (int i = 0; i < dk; i++)
            read += k[i] * decay * S[i * dv + j];
        double e = rig_sigmoid(b) * (v[j] - read);
        for (int i = 0; i < dk; i++) {
            S[i * dv + j] = decay * S[i * dv + j] + k[i] * e;
            out[j] += q[i] * S[i * dv + j];
        }
    }
}

static void delta_case(struct delta_args a, const int *lens, const char *kernels) {
    if (!rig_takes_case())
        return;
    int width = 2 * a.n_key_heads * a.key_dim + a.n_value_heads * a.value_dim;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 3,
                                                   .lens = {lens[0], lens[1], lens[2]},
                                                   .spread = 2,
                                                   .kernels = kernels,
                                                   .widths = {width, a.n_value_heads, a.n_value_heads}});
    struct delta_oracle o = {.rig = rig, .a = &a};
    const struct weight *a_log = rig_vector(rig, a.n_value_heads, -3, 1, &o.a_log);
    const struct weight *dt_bias = rig_vector(rig, a.n_value_heads, -2, 1, &o.dt_bias);
    a.cache = program_cache_state(rig->p, 7, (int64_t)a.n_value_heads * a.key_dim * a.value_dim);
    rig_result(rig, op_delta_rule(rig->p, rig->in[0], rig->in[1], rig->in[2], a_log, dt_bias, a));
    double *want = rig_rows(rig);
    for (int s = 0; s < rig->o.n_seqs; s++)
        for (int h = 0; h < a.n_value_heads; h++) {
            double *S = rig_doubles(rig, (int64_t)a.key_dim * a.value_dim);
            for (int t = 0; t < lens[s]; t++)
                delta_token(&o, rig_wide_input(rig, 0, s, t), s, t, h, S, rig_at(rig, want, s, t) + h * a.value_dim);
        }
    // The state remembers some 1 / (1 - decay) tokens' errors.
    rig_expect_in_every_schedule(rig, want, 60 * sqrt(a.key_dim) * EPS, "delta_rule");
    rig_free(rig);
}

static void the_delta_rule_is_the_same_in_steps_and_in_chunks(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
        struct delta_args plain = {.n_key_heads = 2, .n_value_heads = 2, .key_dim = 16, .value_dim = 24};
        struct delta_args grouped = {.n_key_heads = 2, .n_value_heads = 6, .key_dim = 32, .value_dim = 32};
        delta_case(plain, (int[]){40, 1, 9}, *kernels);
        delta_case(grouped, (int[]){150, 64, 65}, *kernels);
    }
}

/* Of a GPU, whose states each step then rounds. */
static bool keeps_bfloat16(void) { return rig_backend() != &backend_cpu && getenv("GYRE_TEST_STATE"); }

/* A layer between its projections: [q | k | v] is convolved, the rule's output normed a head and gated by z. */
struct layer_case {
    struct delta_args a;
    int kernel, lens[3];
    bool plus_one;
    int n_back; // tokens that the state can go back, and goes
};

/* Outputs are some 0.01 before their norm. Much smaller ones, of a q and a k that are nearly at right angles, have the
 * error of larger terms, which a smaller number would make large with them. */
static const double LAYER_EPS = 1e-4;

/* Row t of the sequence, as rig_wide_input has it, convolved. */
static void convolve(struct rig *rig, const double *w, int kernel, int width, int seq, int t, double *y) {
    for (int c = 0; c < width; c++) {
        double sum = 0;
        for (int j = 0; j < kernel && j <= t; j++)
            sum += w[c * kernel + kernel - 1 - j] * (double)rig_input(rig, 0, seq, t - j)[c];
        y[c] = sum * rig_sigmoid(sum);
    }
}

static void layer_want(const struct delta_oracle *o, const struct layer_case *l, const double *conv, const double *norm,
                       int seq, double *want) {
    const struct delta_args *a = o->a;
    int dv = a->value_dim, width = 2 * a->n_key_heads * a->key_dim + a->n_value_heads * dv;
    int64_t floats = (int64_t)a->key_dim * dv;
    double *S = rig_doubles(o->rig, a->n_value_heads * floats);
    for (int t = 0; t < l->lens[seq]; t++)
        for (int h = 0; h < a->n_value_heads; h++) {
            double *x = rig_doubles(o->rig, width), *out = rig_doubles(o->rig, dv),
                   *y = rig_at(o->rig, want, seq, t) + h * dv;
            const double *z = rig_wide_input(o->rig, 0, seq, t) + width + h * dv;
            convolve(o->rig, conv, l->kernel, width, seq, t, x);
            delta_token(o, x, seq, t, h, S + h * floats, out);
            rig_rms_norm(out, norm, dv, LAYER_EPS, l->plus_one, y);
            for (int i = 0; i < dv; i++)
                y[i] *= z[i] * rig_sigmoid(z[i]);
        }
}

static void layer_case(struct layer_case l, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct delta_args a = l.a;
    int values = a.n_value_heads * a.value_dim, width = 2 * a.n_key_heads * a.key_dim + values;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 3,
                                                   .lens = {l.lens[0], l.lens[1], l.lens[2]},
                                                   .spread = 2,
                                                   .kernels = kernels,
                                                   .n_back = l.n_back,
                                                   .widths = {width + values, a.n_value_heads, a.n_value_heads}});
    struct delta_oracle o = {.rig = rig, .a = &a};
    double *conv, *norm;
    const struct weight *w = rig_weight(rig, FORMAT_BF16, width, l.kernel, &conv);
    const struct weight *n = rig_vector(rig, a.value_dim, 0.5, 1.5, &norm);
    const struct weight *a_log = rig_vector(rig, a.n_value_heads, -3, 1, &o.a_log);
    const struct weight *dt_bias = rig_vector(rig, a.n_value_heads, -2, 1, &o.dt_bias);
    a.cache = program_cache_state(rig->p, (int64_t)width * (l.kernel - 1),
                                  (int64_t)a.n_value_heads * a.key_dim * a.value_dim);
    val u = op_short_conv(rig->p, val_cols(rig->in[0], 0, width), w, (struct conv_args){a.cache, l.kernel});
    val s = op_delta_rule(rig->p, u, rig->in[1], rig->in[2], a_log, dt_bias, a);
    struct norm_args norm_of = {.eps = (float)LAYER_EPS, .group = a.value_dim, .plus_one = l.plus_one, .scale = 1};
    rig->floor = 0.1; // rows are about 1; of one that q.k of opposite terms makes small no more is right
    rig_result(rig, op_norm(rig->p, s, val_cols(rig->in[0], width, values), n, norm_of));
    double *want = rig_rows(rig);
    for (int seq = 0; seq < rig->o.n_seqs; seq++)
        layer_want(&o, &l, conv, norm, seq, want);
    // As of DELTA_RULE alone. Beside products in 16 bits a GPU multiplies chunks as pairs of bfloat16, 2^-17 a number.
    bool by_pairs = rig_backend() != &backend_cpu && strcmp(kernels, "float32") != 0;
    double exact = 60 * sqrt(a.key_dim) * EPS + (by_pairs ? 8 * 0x1p-16 : 0);
    if (keeps_bfloat16())
        exact = 16 * 0x1p-9;
    if (l.n_back == 0)
        rig_expect_in_every_schedule(rig, want, exact, "a DeltaNet layer");
    for (int i = 0; i < (l.n_back == 0 ? 0 : rig_is_brief() ? 1 : 4); i++)
        rig_expect(rig, want, exact, SCHEDULE_BACK, "a DeltaNet layer that goes back");
    rig_free(rig);
}

/* Those that a GPU has fast kernels for, of each width and number of value heads to a key head, and one that it has
 * not. */
static void a_delta_layer_is_the_same_in_steps_and_in_chunks(void **state) {
    (void)state;
    static const struct layer_case cases[] = {
        {{.n_key_heads = 2, .n_value_heads = 6, .key_dim = 32, .value_dim = 32}, 4, {70, 1, 9}, true},
        {{.n_key_heads = 2, .n_value_heads = 4, .key_dim = 64, .value_dim = 64}, 3, {150, 64, 65}, false},
        {{.n_key_heads = 1, .n_value_heads = 3, .key_dim = 128, .value_dim = 128}, 4, {200, 17, 128}, false},
        {{.n_key_heads = 2, .n_value_heads = 2, .key_dim = 128, .value_dim = 128}, 1, {3, 90, 2}, false},
        {{.n_key_heads = 2, .n_value_heads = 4, .key_dim = 16, .value_dim = 24}, 4, {40, 1, 9}, false},
    };
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases) - keeps_bfloat16(); i++)
            layer_case(cases[i], *kernels);
}

/* Wrong tokens leave nothing behind: of layers that a GPU has fast kernels for, and of one that it has not. */
static void states_go_back_behind_wrong_tokens(void **state) {
    (void)state;
    static const struct layer_case cases[] = {
        {{.n_key_heads = 2, .n_value_heads = 6, .key_dim = 32, .value_dim = 32}, 4, {70, 20, 9}, true, 3},
        {{.n_key_heads = 1, .n_value_heads = 3, .key_dim = 128, .value_dim = 128}, 4, {100, 17, 60}, false, 11},
        {{.n_key_heads = 2, .n_value_heads = 2, .key_dim = 64, .value_dim = 64}, 2, {30, 90, 2}, false, 9},
        {{.n_key_heads = 2, .n_value_heads = 4, .key_dim = 16, .value_dim = 24}, 4, {60, 1, 30}, false, 7},
    };
    for (const char *const *kernels = rig_kernels(); *kernels && rig_backend()->max_back > 0; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases) - keeps_bfloat16(); i++)
            layer_case(cases[i], *kernels);
}

/* A layer of one projection with weights in e4m3, which a GPU may leave as unscaled products. */
static struct rig *projected_layer(struct rig_options o, const struct delta_args *of) {
    struct rig *rig = rig_new(o);
    struct delta_args a = *of;
    int values = a.n_value_heads * a.value_dim, width = 2 * a.n_key_heads * a.key_dim + values, n = a.n_value_heads;
    const struct weight *in = rig_weight(rig, FORMAT_F8_CHANNEL, width + values + 2 * n, o.widths[0], NULL);
    const struct weight *conv = rig_weight(rig, FORMAT_BF16, width, 4, NULL),
                        *norm = rig_vector(rig, a.value_dim, 0.5, 1.5, NULL), *a_log = rig_vector(rig, n, -3, 1, NULL),
                        *dt_bias = rig_vector(rig, n, -2, 1, NULL);
    a.cache = program_cache_state(rig->p, 3 * (int64_t)width, (int64_t)n * a.key_dim * a.value_dim);
    val all = op_linear(rig->p, rig->in[0], in, NULL);
    val u = op_short_conv(rig->p, val_cols(all, 0, width), conv, (struct conv_args){a.cache, 4});
    val s = op_delta_rule(rig->p, u, val_cols(all, width + values, n), val_cols(all, width + values + n, n), a_log,
                          dt_bias, a);
    // Of a head whose output is small a norm would make what rounding has done to it as large as it is.
    struct norm_args norm_of = {.eps = 0.01f, .group = a.value_dim, .scale = 1};
    rig_result(rig, op_norm(rig->p, s, val_cols(all, width, values), norm, norm_of));
    return rig;
}

/* Against the same layer on the CPU, whose inputs are not rounded to e4m3: scales that were left out would show in the
 * means over all rows. A row near zero is all rounding, and may be off by more than its size. */
static void a_delta_layer_reads_unscaled_products(void **state) {
    (void)state;
    static const struct delta_args shapes[] = {
        {.n_key_heads = 2, .n_value_heads = 8, .key_dim = 32, .value_dim = 32},
        {.n_key_heads = 2, .n_value_heads = 8, .key_dim = 128, .value_dim = 128}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        if (!rig_takes_case())
            continue;
        struct rig_options o = {.n_seqs = 3, .lens = {150, 3, 40}, .widths = {256}, .spread = 2, .kernels = "float16"};
        if (rig_backend() == &backend_cpu)
            o.kernels = "reference";
        struct rig *rig = projected_layer(o, &shapes[i]);
        struct rig_options like = o;
        like.like = rig;
        struct rig *oracle = projected_layer(like, &shapes[i]);
        const double *want = rig_run(oracle, SCHEDULE_WHOLE);
        rig->tells_all = true;
        rig_expect_bounds(rig, want, (struct rig_bounds){.most = 20, .rms = 0.2, .cosine = 0.98},
                          "a DeltaNet layer behind e4m3");
        rig_free(oracle);
        rig_free(rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_conv_sees_the_last_inputs_of_its_own_sequence),
        cmocka_unit_test(the_delta_rule_is_the_same_in_steps_and_in_chunks),
        cmocka_unit_test(a_delta_layer_is_the_same_in_steps_and_in_chunks),
        cmocka_unit_test(a_delta_layer_reads_unscaled_products),
        cmocka_unit_test(states_go_back_behind_wrong_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
