/* kl_stats.h - what is told of two models' distributions, row by row, under llama.cpp's names. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct kl_sums { // of the negative log-probabilities of the text's tokens, and of what is between the models
    double q, qq, base, base_base, q_base, kl, kl_kl, p, pp, pppp;
};

struct kl_stats {
    struct kl_sums s;
    size_t n, n_same_top, cap;
    float *kl, *p; // [n]: divergence, and difference of the token's probability
};

/* base: a row of the file (kl_divergence.h); log_p [n_vocab] of the model; next: the token that is there. */
void kl_stats_add(struct kl_stats *k, const char *base, const float *log_p, int n_vocab, int32_t next);
void kl_stats_release(struct kl_stats *k);

void kl_stats_print_head(void);
void kl_stats_print_line(const struct kl_stats *k, int64_t window); // of all windows so far
void kl_stats_print(struct kl_stats *k);
