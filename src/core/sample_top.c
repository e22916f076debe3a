/* sample_top.c - the most probable tokens of a row, as many as are asked for. */
#include "core/sample_internal.h"

#include <string.h>

// A heap of tokens whose root is the least probable of them.
struct token_heap {
    const float *logits;
    int32_t *tokens;
    int32_t n;
};

static bool is_less_probable(const float *logits, int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] < logits[b] : a > b;
}

static void sift_down(struct token_heap *h, int32_t at) {
    for (int32_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && is_less_probable(h->logits, h->tokens[child + 1], h->tokens[child]))
            child++;
        if (!is_less_probable(h->logits, h->tokens[child], h->tokens[at]))
            return;
        int32_t token = h->tokens[at];
        h->tokens[at] = h->tokens[child];
        h->tokens[child] = token;
    }
}

typedef int32_t __attribute__((may_alias)) any_int32; // in the memory of floats, too

/* The bits of a logit in an order in which larger ones come first. */
static uint32_t descending_key(float logit) {
    uint32_t bits;
    logit += 0.0f; // -0 is as 0
    memcpy(&bits, &logit, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

/* Sorts n tokens, which ascend, by their logits, largest first; tokens of one logit go on ascending. Four passes over
 * eight bits each, between `tokens` and `other`. */
static void sort_by_logit(const float *logits, int32_t n, any_int32 *tokens, any_int32 *other) {
    for (int shift = 0; shift < 32; shift += 8) {
        int32_t place[257] = {0};
        for (int32_t i = 0; i < n; i++)
            place[1 + (descending_key(logits[tokens[i]]) >> shift & 255)]++;
        for (int k = 0; k < 256; k++)
            place[k + 1] += place[k];
        for (int32_t i = 0; i < n; i++)
            other[place[descending_key(logits[tokens[i]]) >> shift & 255]++] = tokens[i];
        any_int32 *swap = tokens;
        tokens = other;
        other = swap;
    }
}

/* The n most probable tokens, in no order. */
static void choose_most_probable(const float *logits, int32_t n_vocab, int32_t n, int32_t *tokens) {
    struct token_heap h = {logits, tokens, n};
    for (int32_t i = 0; i < n; i++)
        tokens[i] = i;
    if (n == n_vocab)
        return;
    for (int32_t at = n / 2 - 1; at >= 0; at--)
        sift_down(&h, at);
    for (int32_t i = n; i < n_vocab; i++)
        if (is_less_probable(logits, tokens[0], i)) {
            tokens[0] = i;
            sift_down(&h, 0);
        }
    int32_t least = tokens[0], k = 0;
    for (int32_t i = 0; i < n_vocab && k < n; i++) // the same, ascending
        if (i == least || is_less_probable(logits, least, i))
            tokens[k++] = i;
}

void sample_most_probable(const float *logits, int32_t n_vocab, int32_t n, int32_t *tokens, float *logprobs) {
    choose_most_probable(logits, n_vocab, n, tokens);
    sort_by_logit(logits, n, tokens, (any_int32 *)logprobs); // free until the end
    double log_sum = sample_log_sum_exp(logits, n_vocab, logits[tokens[0]]);
    for (int32_t i = 0; i < n; i++)
        logprobs[i] = (float)((double)logits[tokens[i]] - log_sum);
}
