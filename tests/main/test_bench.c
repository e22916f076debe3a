/* test_bench.c - the arithmetic of gyre bench serve and decode, away from clocks: arrivals have the distribution that
 * was asked for, percentiles are numpy's, terms of the command line are read or refused, answers copy their share. */
#include "check.h"

#include "bench/bench_report.h"
#include "bench/decode_run.h"

#include <math.h>

enum { N = 100000 };

static double due[N], again[N];

/* Mean and standard deviation over mean, of the gaps. */
static void gaps(double *mean, double *spread) {
    double sum = 0, square = 0, last = 0;
    for (int i = 0; i < N; i++) {
        EXPECT(due[i] >= last);
        sum += due[i] - last;
        square += (due[i] - last) * (due[i] - last);
        last = due[i];
    }
    *mean = sum / N;
    *spread = sqrt(square / N - *mean * *mean) / *mean;
}

/* The gaps of a gamma distribution of shape k spread by 1/sqrt(k); of 100,000 gaps the figure varies by less than 1 %.
 */
static void gaps_have_the_rate_and_the_spread_of_the_burstiness(void **state) {
    static const double shapes[] = {0.25, 0.5, 1, 2, 10, 1000};
    (void)state;
    uint64_t seed = test_seed();
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
        double mean, spread;
        bench_arrivals(40, shapes[s], seed + s, N, due);
        gaps(&mean, &spread);
        EXPECT(fabs(mean - 1.0 / 40) < 1e-9); // the last is due at n/rate
        EXPECT(fabs(due[N - 1] - N / 40.0) < 1e-6);
        EXPECT(fabs(spread * sqrt(shapes[s]) - 1) < 0.05);
    }
}

/* A Poisson process has no memory: a share of exp(-x) of its gaps is longer than x means; the bound is 6 standard
 * deviations. */
static void shape_one_is_a_poisson_process(void **state) {
    (void)state;
    bench_arrivals(1, 1, test_seed(), N, due);
    for (double x = 0.25; x < 4; x *= 2) {
        int longer = 0;
        for (int i = 1; i < N; i++)
            longer += due[i] - due[i - 1] > x;
        double p = exp(-x);
        EXPECT(fabs((double)longer / N - p) < 6 * sqrt(p * (1 - p) / N) + 0.01 * p);
    }
}

static void a_seed_repeats_and_an_infinite_rate_is_now(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    bench_arrivals(3, 0.7, seed, N, due);
    bench_arrivals(3, 0.7, seed, N, again);
    EXPECT(memcmp(due, again, sizeof due) == 0);
    bench_arrivals(3, 0.7, seed + 1, N, again);
    EXPECT(memcmp(due, again, sizeof due) != 0);
    bench_arrivals(INFINITY, 1, seed, N, due);
    for (int i = 0; i < N; i++)
        EXPECT(due[i] == 0);
}

/* numpy's default, linear interpolation between the two nearest; by hand. */
static void percentiles_are_numpys(void **state) {
    static const double x[] = {1, 2, 4, 8, 16, 32}, p[] = {0, 10, 50, 90, 99, 99.9, 100},
                        wanted[] = {1, 1.5, 6, 24, 31.2, 31.92, 32};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(p); i++)
        EXPECT(fabs(sorted_percentile(x, 6, p[i]) - wanted[i]) < 1e-9);
    EXPECT(sorted_percentile(x, 0, 50) == 0);
    EXPECT(sorted_percentile(x, 1, 99) == 1);
}

static void terms_are_read_or_refused(void **state) {
    static const char *const bad_goodput[] = {"",      "ttft",  "ttft:",   "ttft:x",  "ttft:-1",
                                              "itl:5", "e2e:5", "ttft:5x", "ttft:nan"};
    static const char *const bad_percentiles[] = {"x", "101", "-1", "50;99", "nan"};
    struct bench_report_options o = {0};
    struct error err;
    (void)state;
    EXPECT(bench_report_metrics(&o, "ttft,e2el", &err) == OK);
    EXPECT(o.shown[METRIC_TTFT] && o.shown[METRIC_E2EL] && !o.shown[METRIC_ITL]);
    EXPECT(bench_report_metrics(&o, "ttft,,itl", &err) == ERR_ARG);
    EXPECT(bench_report_percentiles(&o, "25,50,99.9", &err) == OK);
    EXPECT(o.n_percentiles == 3 && o.percentiles[2] == 99.9);
    EXPECT(bench_report_goodput(&o, "tpot:12.5", &err) == OK);
    EXPECT(o.goodput_ms[METRIC_TPOT] == 12.5 && o.goodput_ms[METRIC_TTFT] < 0);
    for (size_t i = 0; i < ARRAY_LEN(bad_goodput); i++)
        EXPECT(bench_report_goodput(&o, bad_goodput[i], &err) == ERR_ARG);
    for (size_t i = 0; i < ARRAY_LEN(bad_percentiles); i++)
        EXPECT(bench_report_percentiles(&o, bad_percentiles[i], &err) == ERR_ARG);
}

/* Fresh tokens of so large a vocabulary seldom stand twice. */
static double share_copied(const int32_t *tokens, int n) {
    int n_copied = 0;
    for (int i = 0; i < n; i++) {
        int at = 0;
        while (at < i && tokens[at] != tokens[i])
            at++;
        n_copied += at < i;
    }
    return (double)n_copied / n;
}

/* Within the run that is the last and the first one, which is never copied. */
static void an_answer_copies_the_share_that_is_asked_for(void **state) {
    (void)state;
    enum { N_ANSWER = 1024, MOST_RUN = 48 };
    for (int64_t seed = 0; seed < 20; seed++)
        for (int quarters = 0; quarters < 4; quarters++) {
            int32_t *tokens = decode_answer(N_ANSWER, 0.25 * quarters, 1 << 30, seed);
            double copied = share_copied(tokens, N_ANSWER);
            if (!(fabs(copied - 0.25 * quarters) <= (double)MOST_RUN / N_ANSWER))
                fail_msg("seed %d: %g is copied, of %g", (int)seed, copied, 0.25 * quarters);
            free(tokens);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_have_the_rate_and_the_spread_of_the_burstiness),
        cmocka_unit_test(shape_one_is_a_poisson_process),
        cmocka_unit_test(a_seed_repeats_and_an_infinite_rate_is_now),
        cmocka_unit_test(percentiles_are_numpys),
        cmocka_unit_test(terms_are_read_or_refused),
        cmocka_unit_test(an_answer_copies_the_share_that_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
