/* kl_stats.c - see kl_stats.h. An uncertainty is that of a mean: the root of the variance over n - 1. */
#include "main/run/kl_stats.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of tokens that the base gives less than e^-16 nothing is counted, since its codes end there. */
static double divergence(const uint16_t *codes, float scale, float least, const float *log_p, int n_vocab) {
    double sum = 0;
    for (int i = 0; i < n_vocab; i++) {
        float base = scale * (float)codes[i] + least;
        if (base > -16)
            sum += (double)(expf(base) * (base - log_p[i]));
    }
    return sum;
}

static int top(const uint16_t *codes, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (codes[i] > codes[best])
            best = i;
    return best;
}

static int top_of(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

void kl_stats_add(struct kl_stats *k, const char *base, const float *log_p, int n_vocab, int32_t next) {
    float head[2];
    const uint16_t *codes = (const uint16_t *)(const void *)(base + sizeof head);
    memcpy(head, base, sizeof head);
    if (k->n == k->cap) {
        k->cap = k->cap ? k->cap * 2 : 1024;
        k->kl = xrealloc(k->kl, k->cap, sizeof *k->kl);
        k->p = xrealloc(k->p, k->cap, sizeof *k->p);
    }
    double q = -(double)log_p[next], b = -(double)(head[0] * (float)codes[next] + head[1]), p = exp(-q) - exp(-b);
    double kl = divergence(codes, head[0], head[1], log_p, n_vocab);
    struct kl_sums *s = &k->s;
    s->q += q, s->qq += q * q, s->base += b, s->base_base += b * b, s->q_base += q * b;
    s->kl += kl, s->kl_kl += kl * kl, s->p += p, s->pp += p * p, s->pppp += p * p * p * p;
    k->kl[k->n] = (float)kl, k->p[k->n] = (float)p;
    k->n++;
    k->n_same_top += top(codes, n_vocab) == top_of(log_p, n_vocab);
}

void kl_stats_release(struct kl_stats *k) {
    free(k->kl), free(k->p);
    *k = (struct kl_stats){0};
}

struct measured {
    double value, uncertainty;
};

static struct measured mean_of(double sum, double squares, size_t n) {
    double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return (struct measured){mean, n > 1 && variance > 0 ? sqrt(variance / ((double)n - 1)) : 0};
}

static double covariance(const struct kl_stats *k) {
    double n = (double)k->n, c = k->s.q_base / n - k->s.q / n * (k->s.base / n);
    return n > 1 ? c / (n - 1) : 0;
}

static struct measured log_ratio(const struct kl_stats *k) {
    struct measured q = mean_of(k->s.q, k->s.qq, k->n), b = mean_of(k->s.base, k->s.base_base, k->n);
    double variance = q.uncertainty * q.uncertainty + b.uncertainty * b.uncertainty - 2 * covariance(k);
    return (struct measured){q.value - b.value, variance > 0 ? sqrt(variance) : 0};
}

static struct measured root_of_squares(const struct kl_stats *k) {
    struct measured m = mean_of(k->s.pp, k->s.pppp, k->n);
    double root = sqrt(m.value);
    return (struct measured){root, root > 0 ? m.uncertainty / (2 * root) : 0};
}

static struct measured same_top(const struct kl_stats *k) {
    double share = (double)k->n_same_top / (double)k->n;
    return (struct measured){share, k->n > 1 ? sqrt(share * (1 - share) / ((double)k->n - 1)) : 0};
}

void kl_stats_print_head(void) {
    printf("chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS        "
           "    Same top p\n");
}

void kl_stats_print_line(const struct kl_stats *k, int64_t window) {
    struct measured q = mean_of(k->s.q, k->s.qq, k->n), ratio = log_ratio(k), kl = mean_of(k->s.kl, k->s.kl_kl, k->n);
    struct measured p = root_of_squares(k), same = same_top(k);
    double ppl = exp(q.value);
    printf("%4lld    %9.4f ± %9.4f    %10.5f ± %10.5f    %10.5f ± %10.5f    %6.3f ± %6.3f %%    %6.3f ± %6.3f %%\n",
           (long long)window, ppl, ppl * q.uncertainty, ratio.value, ratio.uncertainty, kl.value, kl.uncertainty,
           100 * p.value, 100 * p.uncertainty, 100 * same.value, 100 * same.uncertainty);
    fflush(stdout);
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile(const float *sorted, size_t n, double share) {
    double at = share * (double)(n - 1);
    size_t low = (size_t)at;
    double rest = at - (double)low;
    return low + 1 < n ? (1 - rest) * (double)sorted[low] + rest * (double)sorted[low + 1] : (double)sorted[n - 1];
}

static void print_perplexities(const struct kl_stats *k) {
    struct measured q = mean_of(k->s.q, k->s.qq, k->n), b = mean_of(k->s.base, k->s.base_base, k->n);
    struct measured ratio = log_ratio(k);
    double ppl = exp(q.value), ppl_base = exp(b.value), of_ratio = exp(ratio.value);
    double both = q.uncertainty * b.uncertainty, cov = covariance(k);
    double difference = ppl * ppl * q.uncertainty * q.uncertainty +
                        ppl_base * ppl_base * b.uncertainty * b.uncertainty - 2 * ppl * ppl_base * cov;
    printf("\n====== Perplexity statistics ======\n");
    printf("Mean PPL(Q)                   : %10.6f ± %10.6f\n", ppl, ppl * q.uncertainty);
    printf("Mean PPL(base)                : %10.6f ± %10.6f\n", ppl_base, ppl_base * b.uncertainty);
    printf("Cor(ln(PPL(Q)), ln(PPL(base))): %6.2f%%\n", both > 0 ? 100 * cov / both : 100);
    printf("Mean ln(PPL(Q)/PPL(base))     : %10.6f ± %10.6f\n", ratio.value, ratio.uncertainty);
    printf("Mean PPL(Q)/PPL(base)         : %10.6f ± %10.6f\n", of_ratio, of_ratio * ratio.uncertainty);
    printf("Mean PPL(Q)-PPL(base)         : %10.6f ± %10.6f\n", ppl - ppl_base, sqrt(fmax(difference, 0)));
}

static void print_shares(const float *sorted, size_t n, const char *what, double times, const char *unit) {
    static const struct {
        const char *name;
        double share;
    } shares[] = {{"Maximum", 1},    {"99.9%  ", 0.999}, {"99.0%  ", 0.99}, {"95.0%  ", 0.95}, {"90.0%  ", 0.9},
                  {"75.0%  ", 0.75}, {"Median ", 0.5},   {"25.0%  ", 0.25}, {"10.0%  ", 0.1},  {" 5.0%  ", 0.05},
                  {" 1.0%  ", 0.01}, {" 0.1%  ", 0.001}, {"Minimum", 0}};
    for (size_t i = 0; i < ARRAY_LEN(shares); i++)
        printf("%s %s: %10.6f%s\n", shares[i].name, what, times * percentile(sorted, n, shares[i].share), unit);
}

void kl_stats_print(struct kl_stats *k) {
    struct measured kl = mean_of(k->s.kl, k->s.kl_kl, k->n), p = mean_of(k->s.p, k->s.pp, k->n);
    struct measured root = root_of_squares(k), same = same_top(k);
    print_perplexities(k);
    qsort(k->kl, k->n, sizeof *k->kl, by_value);
    qsort(k->p, k->n, sizeof *k->p, by_value);
    printf("\n====== KL divergence statistics ======\nMean    KLD: %10.6f ± %10.6f\n", kl.value, kl.uncertainty);
    print_shares(k->kl, k->n, "KLD", 1, "");
    printf("\n====== Token probability statistics ======\nMean    Δp: %6.3f ± %5.3f %%\n", 100 * p.value,
           100 * p.uncertainty);
    print_shares(k->p, k->n, "Δp", 100, "%");
    printf("RMS Δp    : %6.3f ± %5.3f %%\nSame top p: %6.3f ± %5.3f %%\n", 100 * root.value, 100 * root.uncertainty,
           100 * same.value, 100 * same.uncertainty);
}
