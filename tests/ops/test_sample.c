/* test_sample.c - the reference sampler against a slow one that sorts, its edges, and its statistics. */
#include "check.h"

#include "base/random.h"
#include "core/sample.h"
#include "core/sample_weight.h"

#include <math.h>

static uint64_t counter;
static double uniform(void) { return philox_uniform(test_seed(), counter++, 77); }
static int below(int n) { return (int)(uniform() * n); }

struct ranked {
    double logit, p;
    int32_t id;
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

/* The text of sample.h, with sorting, in double. *boundary is the distance of u from the nearest step of the cumulated
 * probability, relative to the total: near 0 the two may differ by rounding. */
static int32_t slow_sample(const float *logits, int n, const struct sample_params *p, double *boundary) {
    struct ranked *r = calloc((size_t)n, sizeof *r);
    for (int i = 0; i < n; i++)
        r[i] = (struct ranked){!p->mask || p->mask[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY, 0, i};
    for (int i = 0; i < p->n_bias; i++)
        r[p->bias[i].token].logit += (double)p->bias[i].bias;
    for (int i = 0; i < p->n_banned; i++)
        r[p->banned[i]].logit = -INFINITY;
    for (int t = 0; t < n && p->n_allowed > 0; t++) {
        bool is_allowed = false;
        for (int i = 0; i < p->n_allowed; i++)
            is_allowed |= p->allowed[i] == t;
        if (!is_allowed)
            r[t].logit = -INFINITY;
    }
    for (int i = 0; i < p->n_bad; i++) {
        int last = p->bad[i].n - 1, first = p->n_history - last;
        bool completes = first >= p->n_prompt;
        for (int j = 0; completes && j < last; j++)
            completes = p->history[first + j] == p->bad[i].tokens[j];
        if (completes)
            r[p->bad[i].tokens[last]].logit = -INFINITY;
    }
    for (int t = 0; t < n; t++) {
        int seen = 0, made = 0;
        for (int i = 0; i < p->n_history; i++) {
            seen += p->history[i] == t;
            made += i >= p->n_prompt && p->history[i] == t;
        }
        if (seen)
            r[t].logit = r[t].logit > 0 ? r[t].logit / (double)p->repetition_penalty
                                        : r[t].logit * (double)p->repetition_penalty;
        if (made)
            r[t].logit -= (double)p->presence_penalty + (double)p->frequency_penalty * made;
    }
    for (int i = 0; i < n; i++)
        r[i].logit = (float)r[i].logit; // ties are ties of floats
    qsort(r, (size_t)n, sizeof *r, by_rank);
    int32_t best = r[0].id, token = best;
    *boundary = 1;
    if (p->temperature > 0) {
        for (int i = 0; i < n; i++)
            r[i].p = exp((r[i].logit - r[0].logit) / (double)p->temperature);
        int m = n;
        while (m > 1 && r[m - 1].p < (double)p->min_p)
            m--;
        if (p->min_p > 0) // a candidate at the very threshold
            for (int i = 0; i < n; i++)
                *boundary = fmin(*boundary, fabs(r[i].p - (double)p->min_p) < 1e-6 ? 0 : 1);
        if (p->top_k > 0 && p->top_k < m)
            m = p->top_k;
        double total = 0, sum = 0;
        for (int i = 0; i < m; i++)
            total += r[i].p;
        if (p->top_p < 1) {
            int keep = 0;
            while (keep < m && sum < (double)p->top_p * total) {
                sum += r[keep++].p;
                *boundary = fmin(*boundary, fabs(sum / total - (double)p->top_p));
            }
            m = keep;
            total = sum;
        }
        double u = philox_uniform(p->seed, p->sequence, p->position), cum = 0;
        bool found = false;
        for (int i = 0; i < m; i++) {
            cum += r[i].p;
            *boundary = fmin(*boundary, fabs(cum / total - u));
            if (!found && cum > u * total) {
                token = r[i].id;
                found = true;
            }
        }
    }
    free(r);
    return token;
}

static int32_t sample_once(const float *logits, int n, const struct sample_params *p, struct sample_result *r) {
    struct sample_scratch scratch;
    sample_scratch_init(&scratch, n);
    sample_row(logits, n, p, &scratch, r);
    for (int i = 0; i < n; i++)
        EXPECT_EQ(scratch.counts[i], 0);
    sample_scratch_release(&scratch);
    return r->token;
}

static void agrees_with_a_sampler_that_sorts(void **state) {
    (void)state;
    int checked = 0;
    for (int trial = 0; trial < 4000; trial++) {
        float logits[300];
        int32_t history[40], banned[3], allowed[60], bad_tokens[4][3];
        uint32_t mask[10];
        struct logit_bias bias[3];
        struct bad_sequence bad[4];
        int n = 1 + below(300), coarse = below(2);
        for (int i = 0; i < n; i++) {
            double x = 12 * uniform() - 6;
            logits[i] = (float)(coarse ? round(x) : x); // coarse: many ties
            if (below(40) == 0 && i)
                logits[i] = -INFINITY;
        }
        struct sample_params p = sample_params_default();
        p.temperature = below(4) ? (float)(0.1 + 2 * uniform()) : 0;
        p.top_k = below(2) ? below(n + 20) : 0;
        p.top_p = below(2) ? (float)uniform() : 1;
        p.min_p = below(3) ? 0 : (float)(0.3 * uniform());
        p.n_history = below(40);
        p.n_prompt = p.n_history ? below(p.n_history) : 0;
        for (int i = 0; i < p.n_history; i++)
            history[i] = below(n);
        p.history = history;
        if (below(2))
            p.repetition_penalty = below(2) ? 1.25f : 0.5f; // powers of two and their like: float and double agree
        if (below(2))
            p.presence_penalty = 0.5f;
        if (below(2))
            p.frequency_penalty = 0.25f;
        for (int i = 0; i < 3; i++) {
            bias[i] = (struct logit_bias){below(n), (float)(below(17) - 8)};
            banned[i] = below(n);
        }
        p.bias = bias;
        p.n_bias = below(4);
        p.banned = banned;
        p.n_banned = n > 3 ? below(4) : 0;
        for (int i = 0; i < 60; i++)
            allowed[i] = below(n);
        p.allowed = allowed;
        p.n_allowed = below(3) ? 0 : 1 + below(60);
        for (int i = 0; i < 10; i++)
            mask[i] = (uint32_t)below(1 << 16) << 16 | (uint32_t)below(1 << 16);
        p.mask = below(2) ? mask : NULL;
        for (int i = 0; i < 4;
             i++) { // half of them continue what was generated, or the prompt, where it is long enough
            bad[i] = (struct bad_sequence){bad_tokens[i], 1 + below(3)};
            bool from_history = below(2) && p.n_history >= 2;
            for (int j = 0; j < bad[i].n; j++)
                bad_tokens[i][j] =
                    from_history && j < bad[i].n - 1 ? history[p.n_history - (bad[i].n - 1) + j] : below(n);
        }
        p.bad = bad;
        p.n_bad = below(3) ? 0 : below(5);
        p.seed = (uint64_t)trial;
        p.position = (uint64_t)below(1000);
        double boundary;
        struct sample_result r;
        int32_t expected = slow_sample(logits, n, &p, &boundary);
        sample_once(logits, n, &p, &r);
        if (boundary < 1e-6 || r.not_finite || r.nothing_left)
            continue;
        checked++;
        if (r.token != expected)
            fail_msg("trial %d: n %d T %g top_k %d top_p %g min_p %g: drew %d, the sorting one %d", trial, n,
                     (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, r.token, expected);
    }
    EXPECT(checked > 3000);
}

/* Bound: the polynomial's and the float's, 2^-22 together, and what is cut off below 1. */
static void weights_are_exponentials(void **state) {
    (void)state;
    EXPECT(sample_weight(0) == 1ull << SAMPLE_WEIGHT_BITS);
    EXPECT(sample_weight(NAN) == 0 && sample_weight(-INFINITY) == 0 && sample_weight(-31) == 0);
    for (int i = 0; i < 200000; i++) {
        float e = (float)(-30.49 * uniform());
        double want = ldexp(exp((double)e), SAMPLE_WEIGHT_BITS), got = (double)sample_weight(e);
        if (fabs(got - want) > want * 0x1p-22 + 1)
            fail_msg("exp(%.9g) is %.9g, not %.9g", (double)e, ldexp(got, -SAMPLE_WEIGHT_BITS), exp((double)e));
    }
}

static void keys_order_as_floats_do(void **state) {
    (void)state;
    float x[] = {-INFINITY, -3e38f, -1, -1e-30f, 0, 1e-45f, 2, INFINITY};
    for (size_t i = 0; i + 1 < sizeof x / sizeof x[0]; i++) {
        EXPECT(sample_key(x[i]) < sample_key(x[i + 1]));
        EXPECT(sample_key_logit(sample_key(x[i])) == x[i]);
    }
    EXPECT(sample_key(-0.0f) == sample_key(0.0f));
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    enum { N = 24, DRAWS = 200000 };
    float logits[N];
    double p[N], total = 0, chi2 = 0;
    int seen[N] = {0};
    for (int i = 0; i < N; i++) {
        logits[i] = (float)(3 * uniform());
        total += p[i] = exp((double)logits[i] / (double)0.8f);
    }
    struct sample_params params = sample_params_default();
    params.temperature = 0.8f;
    params.seed = test_seed();
    struct sample_scratch scratch;
    sample_scratch_init(&scratch, N);
    for (int i = 0; i < DRAWS; i++) {
        struct sample_result r;
        params.sequence = (uint64_t)(i % 7);
        params.position = (uint64_t)(i / 7);
        sample_row(logits, N, &params, &scratch, &r);
        seen[r.token]++;
    }
    sample_scratch_release(&scratch);
    for (int i = 0; i < N; i++) {
        double expected = DRAWS * p[i] / total;
        chi2 += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    if (chi2 > 71.2) // 23 degrees of freedom, one in a million
        fail_msg("chi-square %.1f", chi2);
}

static void a_draw_depends_on_seed_sequence_and_position_alone(void **state) {
    (void)state;
    float logits[500];
    for (int i = 0; i < 500; i++)
        logits[i] = (float)uniform();
    struct sample_params p = sample_params_default();
    p.temperature = 1;
    struct sample_result a, b;
    int differ[3] = {0};
    for (uint64_t i = 0; i < 50; i++) {
        p.seed = i, p.sequence = 3, p.position = 4;
        sample_once(logits, 500, &p, &a);
        EXPECT_EQ(sample_once(logits, 500, &p, &b), a.token);
        p.seed = i + 1000;
        differ[0] += sample_once(logits, 500, &p, &b) != a.token;
        p.seed = i, p.sequence = 5;
        differ[1] += sample_once(logits, 500, &p, &b) != a.token;
        p.sequence = 3, p.position = 5;
        differ[2] += sample_once(logits, 500, &p, &b) != a.token;
    }
    EXPECT(differ[0] > 40 && differ[1] > 40 && differ[2] > 40);
}

static void logprobs_are_of_the_raw_row(void **state) {
    (void)state;
    float logits[100];
    double sum = 0;
    for (int i = 0; i < 100; i++)
        logits[i] = (float)(20 * uniform());
    logits[90] = logits[10];
    for (int i = 0; i < 100; i++)
        sum += exp((double)logits[i]);
    struct logit_bias bias = {42, 50};
    struct sample_params p = sample_params_default();
    p.bias = &bias, p.n_bias = 1, p.want_logprob = true, p.target = 17, p.n_top_logprobs = MAX_TOP_LOGPROBS;
    struct sample_result r;
    EXPECT_EQ(sample_once(logits, 100, &p, &r), 42);
    EXPECT(fabs((double)r.logprob - ((double)logits[42] - log(sum))) < 1e-5);
    EXPECT(fabs((double)r.target_logprob - ((double)logits[17] - log(sum))) < 1e-5);
    int better = 0;
    for (int i = 0; i < 100; i++)
        better += logits[i] > logits[17];
    EXPECT_EQ(r.target_rank, 1 + better);
    EXPECT_EQ(r.top_token[0], r.argmax);
    for (int k = 1; k < MAX_TOP_LOGPROBS; k++) {
        float x = logits[r.top_token[k - 1]], y = logits[r.top_token[k]];
        EXPECT(x > y || (x == y && r.top_token[k - 1] < r.top_token[k]));
        EXPECT(fabs((double)r.top_logprob[k] - ((double)y - log(sum))) < 1e-5);
    }
    int above = 0;
    for (int i = 0; i < 100; i++)
        above += logits[i] > logits[r.top_token[MAX_TOP_LOGPROBS - 1]];
    EXPECT(above <= MAX_TOP_LOGPROBS - 1);
}

static void the_most_probable_are_those_of_a_sorted_row(void **state) {
    (void)state;
    enum { N = 300 };
    float logits[N], logprobs[N];
    int32_t tokens[N];
    double sum = 0;
    for (int i = 0; i < N; i++)
        logits[i] = below(9) ? (float)(below(40) - 20) / 4 : below(2) ? -0.0f : -INFINITY; // many are equal
    for (int i = 0; i < N; i++)
        sum += exp((double)logits[i]);
    for (int n = 1; n <= N; n += n < 40 ? 1 : 65) {
        sample_most_probable(logits, N, n, tokens, logprobs);
        for (int k = 0; k < n; k++) {
            int before = 0;
            for (int i = 0; i < N; i++)
                before += logits[i] > logits[tokens[k]] || (logits[i] == logits[tokens[k]] && i < tokens[k]);
            EXPECT_EQ(before, k);
            EXPECT(logprobs[k] == -INFINITY ||
                   fabs((double)logprobs[k] - ((double)logits[tokens[k]] - log(sum))) < 1e-5);
        }
    }
}

static void ties_go_to_the_lower_id(void **state) {
    (void)state;
    float logits[8] = {0, 2, 1, 2, 2, -1, 2, 2};
    struct sample_params p = sample_params_default();
    struct sample_result r;
    EXPECT_EQ(sample_once(logits, 8, &p, &r), 1);
    p.temperature = 1, p.top_k = 2;
    for (p.position = 0; p.position < 200; p.position++)
        EXPECT(sample_once(logits, 8, &p, &r) == 1 || r.token == 3);
    float zeros[2] = {-0.0f, 0.0f};
    p.top_k = 1;
    EXPECT_EQ(sample_once(zeros, 2, &p, &r), 0);
}

static void the_only_finite_logit_is_drawn(void **state) {
    (void)state;
    float logits[50];
    for (int i = 0; i < 50; i++)
        logits[i] = -INFINITY;
    logits[31] = -1e30f;
    struct sample_params p = sample_params_default();
    struct sample_result r;
    for (int i = 0; i < 20; i++) {
        p.temperature = (float)i, p.top_k = i * 7, p.top_p = i % 2 ? 1 : 0.3f, p.position = (uint64_t)i,
        p.want_logprob = true;
        EXPECT_EQ(sample_once(logits, 50, &p, &r), 31);
        EXPECT(!r.not_finite && r.logprob == 0);
    }
}

static void what_is_not_finite_is_said(void **state) {
    (void)state;
    struct sample_params p = sample_params_default();
    struct sample_result r;
    for (int at = 0; at < 70; at++) {
        float logits[70] = {0};
        logits[at] = NAN;
        sample_once(logits, 70, &p, &r);
        EXPECT(r.not_finite && r.token >= 0 && r.token < 70);
        logits[at] = INFINITY;
        sample_once(logits, 70, &p, &r);
        EXPECT(r.not_finite);
        logits[at] = -INFINITY;
        sample_once(logits, 70, &p, &r);
        EXPECT(!r.not_finite);
    }
    float none[3] = {-INFINITY, -INFINITY, -INFINITY}, two[2] = {1, 2};
    sample_once(none, 3, &p, &r);
    EXPECT(r.not_finite && !r.nothing_left);
    int32_t banned[2] = {0, 1};
    p.banned = banned, p.n_banned = 2;
    sample_once(two, 2, &p, &r);
    EXPECT(!r.not_finite && r.nothing_left);
    p.n_banned = 1;
    sample_once(two, 2, &p, &r);
    EXPECT(!r.not_finite && !r.nothing_left && r.token == 1);
    p.allowed = banned, p.n_allowed = 1; // 0 alone, which is banned
    sample_once(two, 2, &p, &r);
    EXPECT(r.nothing_left);
}

static void a_bad_sequence_counts_in_what_is_generated_alone(void **state) {
    (void)state;
    float logits[6] = {0, 1, 2, 3, 4, 5};
    int32_t history[5] = {1, 2, 3, 1, 2}, tokens[3] = {1, 2, 5};
    struct bad_sequence bad = {tokens, 3};
    struct sample_params p = sample_params_default();
    struct sample_result r;
    p.bad = &bad, p.n_bad = 1, p.history = history, p.n_history = 5, p.n_prompt = 3;
    EXPECT_EQ(sample_once(logits, 6, &p, &r), 4);
    p.n_prompt = 4; // its first token stands in the prompt
    EXPECT_EQ(sample_once(logits, 6, &p, &r), 5);
    p.n_prompt = 3, p.n_history = 4;
    EXPECT_EQ(sample_once(logits, 6, &p, &r), 5);
    bad = (struct bad_sequence){tokens + 2, 1};
    for (p.temperature = 0; p.temperature < 3; p.temperature += 0.1f, p.position++)
        EXPECT(sample_once(logits, 6, &p, &r) != 5);
}

static void only_allowed_tokens_come_however_improbable(void **state) {
    (void)state;
    float logits[200];
    int32_t allowed[3] = {7, 150, 7};
    int seen[200] = {0};
    for (int i = 0; i < 200; i++)
        logits[i] = i == 7 || i == 150 ? -300 : 300;
    struct sample_params p = sample_params_default();
    struct sample_result r;
    p.allowed = allowed, p.n_allowed = 3, p.temperature = 1, p.want_logprob = true;
    for (p.position = 0; p.position < 300; p.position++)
        seen[sample_once(logits, 200, &p, &r)]++;
    EXPECT(seen[7] > 100 && seen[150] > 100 && seen[7] + seen[150] == 300);
    EXPECT(r.logprob < -599); // of the raw row all the same
}

/* In words that the row's end cuts off too; and one that allows all changes nothing. */
static void a_mask_leaves_what_it_allows(void **state) {
    (void)state;
    float logits[300];
    uint32_t mask[10] = {1u << 7, [9] = 1u << 298 % 32 | 1u << 31}, all[10]; // 319 is no token
    int seen[300] = {0};
    memset(all, 0xff, sizeof all);
    for (int i = 0; i < 300; i++)
        logits[i] = i == 7 || i == 298 ? -300 : (float)(i % 50) / 50;
    struct sample_params p = sample_params_default();
    struct sample_result r, other;
    p.temperature = 1, p.want_logprob = true;
    for (p.position = 0; p.position < 300; p.position++) {
        p.mask = mask;
        seen[sample_once(logits, 300, &p, &r)]++;
        EXPECT(r.logprob < -299); // of the raw row
        p.mask = NULL, sample_once(logits, 300, &p, &r);
        p.mask = all, sample_once(logits, 300, &p, &other);
        EXPECT(memcmp(&r, &other, sizeof r) == 0);
    }
    EXPECT(seen[7] > 100 && seen[298] > 100 && seen[7] + seen[298] == 300);
}

static void an_infinite_bias_decides(void **state) {
    (void)state;
    float logits[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct logit_bias bias[2] = {{3, INFINITY}, {9, -INFINITY}};
    struct sample_params p = sample_params_default();
    p.bias = bias, p.n_bias = 2;
    struct sample_result r;
    for (int i = 0; i < 30; i++) {
        p.temperature = (float)i / 3, p.position = (uint64_t)i;
        EXPECT_EQ(sample_once(logits, 10, &p, &r), 3);
    }
    p.bias = bias + 1, p.n_bias = 1;
    for (p.position = 0; p.position < 300; p.position++)
        EXPECT(sample_once(logits, 10, &p, &r) != 9);
}

static void extreme_settings_keep_the_best_token(void **state) {
    (void)state;
    float logits[100];
    for (int i = 0; i < 100; i++)
        logits[i] = (float)((i * 37) % 100) * 0.01f;
    struct sample_params settings[] = {
        {.temperature = 1, .top_p = 1e-30f},        {.temperature = 1, .top_p = 0},
        {.temperature = 1, .top_p = 1, .top_k = 1}, {.temperature = 1, .top_p = 1, .min_p = 1},
        {.temperature = 1e-30f, .top_p = 1},        {.temperature = 0, .top_p = 1},
    };
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++)
        for (uint64_t position = 0; position < 40; position++) {
            struct sample_params p = settings[s];
            p.repetition_penalty = 1, p.target = -1, p.position = position;
            struct sample_result r;
            EXPECT_EQ(sample_once(logits, 100, &p, &r), r.argmax);
        }
    struct sample_params p = sample_params_default();
    p.temperature = 1, p.top_k = 1 << 30;
    struct sample_result wide, off;
    for (p.position = 0; p.position < 40; p.position++) {
        int32_t a = sample_once(logits, 100, &p, &wide);
        p.top_k = 0;
        EXPECT_EQ(sample_once(logits, 100, &p, &off), a);
        p.top_k = 1 << 30;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_sampler_that_sorts),
        cmocka_unit_test(weights_are_exponentials),
        cmocka_unit_test(keys_order_as_floats_do),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_draw_depends_on_seed_sequence_and_position_alone),
        cmocka_unit_test(logprobs_are_of_the_raw_row),
        cmocka_unit_test(the_most_probable_are_those_of_a_sorted_row),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(the_only_finite_logit_is_drawn),
        cmocka_unit_test(what_is_not_finite_is_said),
        cmocka_unit_test(a_bad_sequence_counts_in_what_is_generated_alone),
        cmocka_unit_test(only_allowed_tokens_come_however_improbable),
        cmocka_unit_test(a_mask_leaves_what_it_allows),
        cmocka_unit_test(an_infinite_bias_decides),
        cmocka_unit_test(extreme_settings_keep_the_best_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
