/* test_ops_latent.c - MLA_PREP and MLA_ATTENTION against the expanded form in double precision; how the tests are run
 * is said in test_ops.c. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>

/* The expanded form: keys [Wuk_h c | kr] and values Wuv_h c made for every position, nothing absorbed. */
struct mla_oracle {
    struct rig *rig;
    const struct mla_args *a;
    const float *freq;
    double *norm, *w_uk, *w_uv;
    double *key, *value; // of each row and head
};

static void rotate_pairs(const struct mla_oracle *o, int position, double *x) {
    for (int i = 0; i < o->a->rope_dim; i += 2) {
        double angle = (double)((float)position * o->freq[i / 2]), p = x[i], q = x[i + 1];
        x[i] = p * cos(angle) - q * sin(angle);
        x[i + 1] = q * cos(angle) + p * sin(angle);
    }
}

static double *key_of(const struct mla_oracle *o, int seq, int t, int h) {
    const struct mla_args *a = o->a;
    return o->key + ((int64_t)rig_row(o->rig, seq, t) * a->n_heads + h) * (a->nope_dim + a->rope_dim);
}
static double *value_of(const struct mla_oracle *o, int seq, int t, int h) {
    return o->value + ((int64_t)rig_row(o->rig, seq, t) * o->a->n_heads + h) * o->a->v_dim;
}

static void expand_latent(const struct mla_oracle *o, int seq, int t) {
    const struct mla_args *a = o->a;
    double *kva = rig_wide_input(o->rig, 1, seq, t);
    rig_rms_norm(kva, o->norm, a->rank, (double)a->eps, false, kva);
    rotate_pairs(o, t, kva + a->rank);
    rig_round(o->rig->o.kernels, kva, a->rank + a->rope_dim); // as the cache keeps it
    for (int h = 0; h < a->n_heads; h++) {
        double *key = key_of(o, seq, t, h);
        rig_multiply(o->w_uk + (int64_t)h * a->nope_dim * a->rank, a->nope_dim, a->rank, kva, key);
        rig_multiply(o->w_uv + (int64_t)h * a->v_dim * a->rank, a->v_dim, a->rank, kva, value_of(o, seq, t, h));
        memcpy(key + a->nope_dim, kva + a->rank, (size_t)a->rope_dim * sizeof *key);
    }
}

static void mla_row(const struct mla_oracle *o, int seq, int t, int h, double *out) {
    const struct mla_args *a = o->a;
    int dim = a->nope_dim + a->rope_dim;
    double *q = rig_wide_input(o->rig, 0, seq, t) + h * dim, sum = 0;
    rotate_pairs(o, t, q + a->nope_dim);
    for (int j = 0; j <= t; j++) {
        double s = 0, *key = key_of(o, seq, j, h), *value = value_of(o, seq, j, h);
        for (int i = 0; i < dim; i++)
            s += q[i] * key[i];
        double p = exp(s * (double)a->scale); // scores are small enough here to go without their maximum
        sum += p;
        for (int i = 0; i < a->v_dim; i++)
            out[i] += p * value[i];
    }
    for (int i = 0; i < a->v_dim; i++)
        out[i] /= sum;
}

struct mla_case {
    struct mla_args args;
    enum rig_format format;
    int block_size, lens[3];
    int only;   // 1 + schedule, or 0: each of them
    int n_seqs; // whose lengths repeat; 0: 3
};

/* A rig of the case, whose result is MLA_ATTENTION's; what its weights hold and the frequencies go to o. */
static struct rig *mla_rig(const struct mla_case *c, const char *kernels, struct mla_args *a, float *freq,
                           struct mla_oracle *o) {
    struct rig_options options = {.n_seqs = c->n_seqs ? c->n_seqs : 3,
                                  .block_size = c->block_size,
                                  .kernels = kernels,
                                  .widths = {a->n_heads * (a->nope_dim + a->rope_dim), a->rank + a->rope_dim}};
    for (int s = 0; s < options.n_seqs; s++)
        options.lens[s] = c->lens[s % 3];
    struct rig *rig = rig_new(options);
    for (int i = 0; i < a->rope_dim / 2; i++)
        freq[i] = (float)rig_uniform(rig, 0, 1);
    struct rope *rope = arena_calloc(&rig->arena, 1, sizeof *rope);
    *rope = (struct rope){.pairing = ROPE_INTERLEAVED, .dim = a->rope_dim, .inv_freq = freq, .factor = 1};
    *o = (struct mla_oracle){.rig = rig, .a = a, .freq = freq};
    const struct weight *norm = rig_vector(rig, a->rank, -0.5, 0.5, &o->norm);
    const struct weight *w_uk = rig_weight(rig, c->format, (int64_t)a->n_heads * a->nope_dim, a->rank, &o->w_uk);
    const struct weight *w_uv = rig_weight(rig, c->format, (int64_t)a->n_heads * a->v_dim, a->rank, &o->w_uv);
    rig_round(kernels, o->w_uk, (int64_t)a->n_heads * a->nope_dim * a->rank);
    rig_round(kernels, o->w_uv, (int64_t)a->n_heads * a->v_dim * a->rank);
    a->cache = program_cache_latent(rig->p, a->rank + a->rope_dim);
    a->rope = program_rope(rig->p, rope);
    rig_result(rig, op_mla_attention(rig->p, op_mla_prep(rig->p, rig->in[0], rig->in[1], norm, w_uk, *a), w_uv, *a));
    return rig;
}

static void mla_case(const struct mla_case *c, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct mla_args a = c->args;
    struct mla_oracle o;
    float freq[32];
    struct rig *rig = mla_rig(c, kernels, &a, freq, &o);
    o.key = rig_doubles(rig, (int64_t)rig->n_rows * a.n_heads * (a.nope_dim + a.rope_dim));
    o.value = rig_doubles(rig, (int64_t)rig->n_rows * a.n_heads * a.v_dim);
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t)
    expand_latent(&o, s, t);
    RIG_EACH_ROW(rig, s, t)
    for (int h = 0; h < a.n_heads; h++)
        mla_row(&o, s, t, h, rig_at(rig, want, s, t) + h * a.v_dim);
    struct rig_bounds bounds = rig_bounds_of_16(rig, 20 * sqrt(a.rank + a.nope_dim) * EPS);
    for (enum rig_schedule i = 0; i < N_SCHEDULES; i++)
        if (c->only == 0 || c->only == 1 + (int)i)
            rig_judge(rig, rig_run(rig, i), want, bounds, i, "mla");
    rig_free(rig);
}

#define LATENT(heads, r, nope, rope_, v, s) \
    { .n_heads = heads, .rank = r, .nope_dim = nope, .rope_dim = rope_, .v_dim = v, .eps = 1e-6f, .scale = s }

static void absorbed_latent_attention_equals_the_expanded_form(void **state) {
    (void)state;
    static const struct mla_case cases[] = {
        {LATENT(3, 24, 12, 8, 10, 0.1f), FORMAT_F32, 16, {23, 1, 9}, 0},
        {LATENT(3, 24, 12, 8, 10, 0.1f), FORMAT_BF16_SPLIT, 4, {23, 1, 9}, 0},
        {LATENT(16, 64, 32, 16, 32, 0.05f), FORMAT_BF16_INTERLEAVED, 16, {23, 1, 9}, 0},
        {LATENT(16, 64, 32, 16, 32, 0.05f), FORMAT_F8_BLOCK, 32, {23, 1, 9}, 0},
    };
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            mla_case(&cases[i], *kernels);
}

/* DeepSeek's own sizes, which kernels are made for; chunks of keys end at 128. */
static void latent_attention_of_512_channels_is_the_expanded_form(void **state) {
    (void)state;
    static const struct mla_case cases[] = {
        {LATENT(16, 512, 128, 64, 128, 0.03f), FORMAT_BF16, 16, {70, 1, 33}, 0},
        {LATENT(32, 512, 128, 64, 96, 0.03f), FORMAT_BF16, 128, {300, 2, 129}, 1 + SCHEDULE_RAGGED},
        {LATENT(16, 512, 128, 64, 128, 0.03f), FORMAT_BF16, 32, {660, 5, 257}, 1 + SCHEDULE_CHUNK_1},
    };
    if (rig_backend() == &backend_cpu)
        skip(); // its kernels take every size alike
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            if (!rig_is_brief() || (i == 0 && strcmp(*kernels, "float16") == 0)) // others are the plain kernel's
                mla_case(&cases[i], *kernels);
}

static void expect_same_rows(struct rig *rig, const double *got, const double *want, int seq, int first, int end) {
    int64_t n = rig->out.width;
    for (int64_t i = rig_row(rig, seq, first) * n; i < rig_row(rig, seq, end - 1) * n + n; i++)
        if (got[i] != want[i])
            fail_msg("sequence %d, row %lld, column %lld: %.9g, not %.9g", seq,
                     (long long)(i / n - rig_row(rig, seq, 0)), (long long)(i % n), got[i], want[i]);
}

/* Rows of steps of 64 tokens a sequence, of which the last of a sequence may be of few, and of seven. */
static void rests_and_sevens(struct rig *rig, const double *sevens) {
    double *rests = rig_run(rig, SCHEDULE_CHUNK_64);
    for (int s = 0; s < rig->o.n_seqs; s++) {
        int len = rig->o.lens[s], rest = len % 64;
        if (rest > 0 && rest <= 8)
            expect_same_rows(rig, rests, sevens, s, len - rest, len);
    }
}

static void latent_steps_case(const struct mla_case *c) {
    if (!rig_takes_case())
        return;
    struct mla_args a = c->args;
    struct mla_oracle o;
    float freq[32];
    struct rig *rig = mla_rig(c, "float16", &a, freq, &o);
    rig->tells_all = true;
    double *sevens = rig_run(rig, SCHEDULE_CHUNK_7);
    rests_and_sevens(rig, sevens);
    if (c->n_seqs == 0) { // else they have more tokens than a step of the rig may
        double *together = rig_run(rig, SCHEDULE_WHOLE), *alone = rig_run(rig, SCHEDULE_ONE_BY_ONE),
               *ones = rig_run(rig, SCHEDULE_CHUNK_1);
        for (int s = 0; s < rig->o.n_seqs; s++) {
            int n = rig_is_brief() ? 3 : 40; // of long sequences not all come one by one
            int end = rig->ones_end[s], first = end > n ? end - n : 0;
            expect_same_rows(rig, alone, together, s, 0, rig->o.lens[s]);
            expect_same_rows(rig, ones, sevens, s, first, end);
        }
    }
    rig_free(rig);
}

/* To the bit: keys are cut at the same places whatever else a step has, and whoever joins them does it alike. */
static void latent_attention_of_a_token_does_not_depend_on_its_step(void **state) {
    (void)state;
    static const struct mla_case brief = {LATENT(16, 512, 128, 64, 128, 0.03f), FORMAT_BF16, 16, {197, 3, 40}, 0, 0},
                                 cases[] = {
                                     {LATENT(32, 512, 128, 64, 128, 0.03f), FORMAT_BF16, 16, {900, 129, 300}, 0, 0},
                                     // of so many a step has tasks of several chunks that stay whole
                                     {LATENT(16, 512, 128, 64, 128, 0.03f), FORMAT_BF16, 64, {200, 129, 260}, 0, 30},
                                 };
    if (rig_backend() == &backend_cpu)
        skip(); // which runs through keys one after the other
    if (rig_is_brief())
        latent_steps_case(&brief);
    for (size_t i = 0; !rig_is_brief() && i < ARRAY_LEN(cases); i++)
        latent_steps_case(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absorbed_latent_attention_equals_the_expanded_form),
        cmocka_unit_test(latent_attention_of_512_channels_is_the_expanded_form),
        cmocka_unit_test(latent_attention_of_a_token_does_not_depend_on_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
