/* sample.c - see sample.h. One row of logits to one token; the reference for every backend.
 *
 * Nothing is sorted. top_k, top_p and the draw all ask the same thing of the candidates: taken in descending
 * order, which is the one at which their mass first exceeds a bound? A radix walk over the bits of the logits
 * answers it: four rounds of 256 bins of mass, each round on the candidates of one bin of the round before.
 * Candidates stay in the order of their ids, so equal logits are told apart by position. */
#include "core/sample.h"

#include "base/random.h"
#include "base/status.h"
#include "core/sample_internal.h"
#include "core/sample_weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    uint64_t weight; // exp((logit - max) / temperature), see sample_weight.h
    uint32_t key;    // orders as the logit does
    int32_t token;
};

/* Keys of draws that must not depend on one another. */
static const uint64_t SAMPLE_OF_GUESS = 0x6775657373;

struct sample_params sample_params_default(void) {
    return (struct sample_params){.top_p = 1, .repetition_penalty = 1, .target = -1};
}

void sample_scratch_init(struct sample_scratch *s, int64_t n_vocab) {
    s->logits = xcalloc((size_t)n_vocab, sizeof *s->logits);
    s->candidates = xcalloc((size_t)n_vocab, sizeof *s->candidates);
    s->counts = xcalloc((size_t)n_vocab, sizeof *s->counts);
    s->members = xcalloc((size_t)n_vocab, sizeof *s->members);
}

int64_t sample_scratch_bytes(int64_t n_vocab) {
    const struct sample_scratch *s = NULL;
    return n_vocab * (int64_t)(sizeof *s->logits + sizeof *s->candidates + sizeof *s->counts + sizeof *s->members);
}

void sample_scratch_release(struct sample_scratch *s) {
    free(s->logits);
    free(s->candidates);
    free(s->counts);
    free(s->members);
    *s = (struct sample_scratch){0};
}

enum { BLOCK = 32 };

/* Whether a block holds more than `best`, and whether it holds a NaN or +infinity: compares and ors, no branch. */
static bool block_exceeds(const float x[BLOCK], float best, int *bad) {
    int above = 0;
    for (int j = 0; j < BLOCK; j++) {
        above |= x[j] > best;
        *bad |= !(x[j] < INFINITY);
    }
    return above;
}

/* The largest logit's token, ties to the lower id. *finite is false when a NaN or +infinity is among them or
 * all are -infinity. Nearly all blocks of a row hold no new maximum, so few logits are looked at one by one. */
static int32_t argmax_row(const float *logits, int64_t n, bool *finite) {
    float best = -INFINITY;
    int64_t at = 0;
    int bad = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        if (n - i >= BLOCK && !block_exceeds(logits + i, best, &bad))
            continue;
        for (int64_t j = i; j < MIN(i + BLOCK, n); j++) {
            bad |= !(logits[j] < INFINITY);
            if (logits[j] > best) {
                best = logits[j];
                at = j;
            }
        }
    }
    *finite = !bad && best > -INFINITY;
    return (int32_t)at;
}

double sample_log_sum_exp(const float *logits, int64_t n, float max) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    return (double)max + log(sum);
}

/* The k best tokens of the raw row in descending order, ties to the lower id. */
static void top_logprobs(const float *logits, int64_t n, int k, double log_sum, struct sample_result *result) {
    int have = 0;
    for (int64_t i = 0; i < n; i++) {
        if (have == k && !(logits[i] > logits[result->top_token[k - 1]]))
            continue;
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && logits[i] > logits[result->top_token[at - 1]]; at--)
            result->top_token[at] = result->top_token[at - 1];
        result->top_token[at] = (int32_t)i;
    }
    for (int j = 0; j < have; j++)
        result->top_logprob[j] = (float)((double)logits[result->top_token[j]] - log_sum);
}

static int32_t rank_of(const float *logits, int64_t n, int32_t token) {
    int32_t above = 0;
    for (int64_t i = 0; i < n; i++)
        above += logits[i] > logits[token];
    return above + 1;
}

/* But for a mask and what is allowed. */
static bool logits_are_changed(const struct sample_params *p) {
    return p->n_bias > 0 || p->n_banned > 0 || p->n_bad > 0 || p->repetition_penalty != 1 || p->presence_penalty != 0 ||
           p->frequency_penalty != 0;
}

static bool row_is_changed(const struct sample_params *p) {
    return p->n_allowed > 0 || p->mask || logits_are_changed(p);
}

static bool wants_token_alone(const struct sample_params *p) {
    return p->temperature == 0 && !p->want_logprob && !p->want_logits && p->target < 0 && p->n_top_logprobs == 0;
}

bool sample_is_plain(const struct sample_params *p) { return wants_token_alone(p) && !row_is_changed(p); }

bool sample_is_best(const struct sample_params *p) {
    return wants_token_alone(p) && !logits_are_changed(p) && !(p->want_argmax && row_is_changed(p));
}

static int32_t n_seen(const struct sample_params *p) { return p->n_history + p->has_newest; }
static int32_t seen_token(const struct sample_params *p, int32_t i) {
    return i < p->n_history ? p->history[i] : p->newest;
}

/* Each token of the history once, however often it occurs. */
static void penalise_repetition(const struct sample_params *p, float *logits, int32_t *seen) {
    for (int32_t i = 0; i < n_seen(p); i++) {
        int32_t t = seen_token(p, i);
        if (!seen[t])
            logits[t] = logits[t] > 0 ? logits[t] / p->repetition_penalty : logits[t] * p->repetition_penalty;
        seen[t] = 1;
    }
    for (int32_t i = 0; i < n_seen(p); i++)
        seen[seen_token(p, i)] = 0;
}

static void penalise_generated(const struct sample_params *p, float *logits, int32_t *counts) {
    for (int32_t i = p->n_prompt; i < n_seen(p); i++)
        counts[seen_token(p, i)]++;
    for (int32_t i = p->n_prompt; i < n_seen(p); i++) {
        int32_t t = seen_token(p, i);
        if (counts[t])
            logits[t] -= p->presence_penalty + p->frequency_penalty * (float)counts[t];
        counts[t] = 0;
    }
}

static void keep_allowed(const struct sample_params *p, float *logits, int64_t n_vocab, int32_t *marks) {
    for (int32_t i = 0; i < p->n_allowed; i++)
        marks[p->allowed[i]] = 1;
    for (int64_t t = 0; t < n_vocab; t++)
        if (!marks[t])
            logits[t] = -INFINITY;
    for (int32_t i = 0; i < p->n_allowed; i++)
        marks[p->allowed[i]] = 0;
}

/* Words of ones, which are many where a text is free, and of zeros go 32 tokens at a time. */
static void keep_masked(const uint32_t *mask, float *logits, int64_t n_vocab) {
    for (int64_t first = 0; first < n_vocab; first += 32) {
        uint32_t word = mask[first / 32];
        int n = word == UINT32_MAX ? 0 : (int)MIN(n_vocab - first, 32);
        for (int j = 0; j < n; j++)
            logits[first + j] = word >> j & 1 ? logits[first + j] : -INFINITY;
    }
}

/* Whether the generated tokens end with all of the sequence but its last token. */
static bool would_complete(const struct sample_params *p, const struct bad_sequence *bad) {
    int32_t n = bad->n - 1, first = n_seen(p) - n, i = 0;
    while (first >= p->n_prompt && i < n && seen_token(p, first + i) == bad->tokens[i])
        i++;
    return first >= p->n_prompt && i == n;
}

static void change_row(const struct sample_params *p, float *logits, int64_t n_vocab, int32_t *counts) {
    for (int32_t i = 0; i < p->n_bias; i++)
        logits[p->bias[i].token] += p->bias[i].bias;
    for (int32_t i = 0; i < p->n_banned; i++)
        logits[p->banned[i]] = -INFINITY;
    if (p->n_allowed > 0)
        keep_allowed(p, logits, n_vocab, counts);
    if (p->mask)
        keep_masked(p->mask, logits, n_vocab);
    for (int32_t i = 0; i < p->n_bad; i++)
        if (would_complete(p, &p->bad[i]))
            logits[p->bad[i].tokens[p->bad[i].n - 1]] = -INFINITY;
    if (p->repetition_penalty != 1)
        penalise_repetition(p, logits, counts);
    if (p->presence_penalty != 0 || p->frequency_penalty != 0)
        penalise_generated(p, logits, counts);
}

/* sample_exponent of a block, but no less than what is certainly too little, and its exponential as mantissa[j] *
 * 2^k[j]: loops without a branch, which the compiler makes vectors of. */
static void exp_block(const float *restrict logits, float max, float temperature, float *restrict e,
                      float *restrict mantissa, int32_t *restrict k) {
    const float too_little = SAMPLE_LEAST_EXPONENT - 1;
    for (int j = 0; j < BLOCK; j++) {
        float below = (logits[j] - max) / temperature;
        below = below > too_little ? below : too_little;
        e[j] = logits[j] == max ? 0 : below;
    }
    for (int j = 0; j < BLOCK; j++)
        mantissa[j] = sample_mantissa(e[j], &k[j]);
}

/* What temperature and min_p leave, in the order of ids, and its mass. A weight that rounds to zero cannot be drawn. */
static int64_t gather_candidates(const float *logits, int64_t n, float max, const struct sample_params *p,
                                 struct candidate *out, uint64_t *total) {
    float least = p->min_p > 0 ? MAX(logf(p->min_p), SAMPLE_LEAST_EXPONENT) : SAMPLE_LEAST_EXPONENT;
    int64_t m = 0;
    *total = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        float last[BLOCK], e[BLOCK], mantissa[BLOCK];
        int32_t k[BLOCK], n_here = (int32_t)MIN(n - i, BLOCK);
        const float *block = logits + i;
        if (n_here < BLOCK) {
            for (int j = 0; j < BLOCK; j++)
                last[j] = j < n_here ? block[j] : -INFINITY; // no more than the largest, as all are
            block = last;
        }
        exp_block(block, max, p->temperature, e, mantissa, k);
        for (int32_t j = 0; j < n_here; j++) {
            uint64_t w =
                sample_scaled(mantissa[j], k[j]) & -(uint64_t)(e[j] >= least); // no branch: nobody could foretell it
            out[m] = (struct candidate){w, sample_key(block[j]), (int32_t)i + j};
            m += w > 0;
            *total += w;
        }
    }
    return m;
}

/* Where a descending walk stops: after every candidate above `key`, and n_equal of those that equal it, of which the
 * last is candidate `at`. */
struct cut {
    uint32_t key;
    int64_t n_equal;
    int32_t at;
};

static uint64_t mass_of(const struct candidate *c, bool by_count) { return by_count ? 1 : c->weight; }

/* The highest of 256 bins at which *before plus the mass from the top exceeds `bound`, or else the lowest bin
 * that holds anything; adds to *before the mass of the bins above it. */
static unsigned bin_of_cut(const uint64_t mass[256], uint64_t bound, uint64_t *before) {
    unsigned lowest = 255;
    uint64_t above = *before;
    for (int b = 255; b >= 0; b--) {
        if (mass[b] == 0)
            continue;
        lowest = (unsigned)b;
        *before = above;
        if (above + mass[b] > bound)
            break;
        above += mass[b];
    }
    return lowest;
}

/* The bin of the first round: of the highest byte of all keys. Neighbours are often of one bin, so they add to
 * different sums. */
static unsigned first_bin(const struct candidate *c, int64_t n, bool by_count, uint64_t bound, uint64_t *before) {
    uint64_t mass[256], part[4][256] = {{0}};
    for (int64_t i = 0; i < n; i++)
        part[i & 3][c[i].key >> 24] += mass_of(&c[i], by_count);
    for (int b = 0; b < 256; b++)
        mass[b] = part[0][b] + part[1][b] + part[2][b] + part[3][b];
    return bin_of_cut(mass, bound, before);
}

/* The shortest run of candidates in descending order (ties: in the order they stand) whose mass exceeds
 * `bound`; all of them when none does. n >= 1. members [n] is memory to work in. */
static struct cut find_cut(const struct candidate *c, int64_t n, bool by_count, uint64_t bound, int32_t *members) {
    uint64_t before = 0;
    uint32_t key = first_bin(c, n, by_count, bound, &before) << 24, mask = 255u << 24;
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        members[m] = (int32_t)i;
        m += (c[i].key & mask) == key;
    }
    for (int shift = 16; shift >= 0; shift -= 8) {
        uint64_t mass[256] = {0};
        int64_t n_members = m;
        for (int64_t i = 0; i < n_members; i++)
            mass[c[members[i]].key >> shift & 255] += mass_of(&c[members[i]], by_count);
        key |= bin_of_cut(mass, bound, &before) << shift;
        mask |= 255u << shift;
        m = 0;
        for (int64_t i = 0; i < n_members; i++)
            if ((c[members[i]].key & mask) == key)
                members[m++] = members[i];
    }
    struct cut cut = {.key = key};
    for (int64_t i = 0; i < m && before <= bound; i++) {
        before += mass_of(&c[members[i]], by_count);
        cut.at = members[i];
        cut.n_equal++;
    }
    return cut;
}

/* Drops the candidates past the cut; returns how many stay, and their mass. */
static int64_t keep_to_cut(struct candidate *c, int64_t n, struct cut cut, uint64_t *total) {
    int64_t m = 0, n_equal = 0;
    *total = 0;
    for (int64_t i = 0; i < n; i++)
        if (c[i].key > cut.key || (c[i].key == cut.key && n_equal++ < cut.n_equal)) {
            c[m++] = c[i];
            *total += c[i].weight;
        }
    return m;
}

/* What may be drawn, and its mass. */
static int64_t candidates_of(const float *logits, int64_t n_vocab, float max, const struct sample_params *p,
                             struct sample_scratch *scratch, uint64_t *total) {
    struct candidate *c = scratch->candidates;
    int64_t n = gather_candidates(logits, n_vocab, max, p, c, total);
    if (p->top_k > 0 && p->top_k < n)
        n = keep_to_cut(c, n, find_cut(c, n, true, (uint64_t)p->top_k - 1, scratch->members), total);
    if (p->top_p < 1)
        n = keep_to_cut(c, n, find_cut(c, n, false, sample_reach(p->top_p, *total), scratch->members), total);
    return n;
}

/* Of a token that may be drawn; of another 0. Candidates are in the order of ids. */
static uint64_t weight_of(const struct candidate *c, int64_t n, int32_t token) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        *(c[mid].token < token ? &low : &high) = c[mid].token < token ? mid + 1 : mid;
    }
    return low < n && c[low].token == token ? c[low].weight : 0;
}

static bool keeps_guess(const struct candidate *c, int64_t n, uint64_t total, const struct sample_params *p) {
    double u = (double)philox_bits53(p->seed ^ SAMPLE_OF_GUESS, p->sequence, p->position) * 0x1p-53;
    double q = p->guess.q ? (double)p->guess.q[p->guess.token] : 1;
    return u * q < (double)weight_of(c, n, p->guess.token) / (double)total;
}

/* Leaves of each candidate what its mass is above the guess's distribution; all as it is if that is nothing. */
static int64_t without_guess(struct candidate *c, int64_t n, uint64_t *total, const struct sample_guess *guess) {
    uint64_t left = 0, all = *total;
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        double q = guess->q ? (double)guess->q[c[i].token] : c[i].token == guess->token;
        double above = (double)c[i].weight - q * (double)all;
        left += above > 0 ? (uint64_t)above : 0;
    }
    if (left == 0)
        return n;
    for (int64_t i = 0; i < n; i++) {
        double q = guess->q ? (double)guess->q[c[i].token] : c[i].token == guess->token;
        double above = (double)c[i].weight - q * (double)all;
        c[m] = c[i];
        c[m].weight = above > 0 ? (uint64_t)above : 0;
        m += c[m].weight > 0;
    }
    *total = left;
    return m;
}

static int32_t draw(const float *logits, int64_t n_vocab, float max, const struct sample_params *p,
                    struct sample_scratch *scratch) {
    struct candidate *c = scratch->candidates;
    uint64_t total;
    int64_t n = candidates_of(logits, n_vocab, max, p, scratch, &total);
    if (p->guess.is_given && keeps_guess(c, n, total, p))
        return p->guess.token;
    if (p->guess.is_given)
        n = without_guess(c, n, &total, &p->guess);
    uint64_t bits = philox_bits53(p->seed, p->sequence, p->position);
    return c[find_cut(c, n, false, sample_point(bits, total), scratch->members).at].token;
}

void sample_distribution(const float *logits, int64_t n_vocab, const struct sample_params *p,
                         struct sample_scratch *scratch, float *q) {
    bool finite;
    uint64_t total;
    int32_t best = argmax_row(logits, n_vocab, &finite);
    memset(q, 0, (size_t)n_vocab * sizeof *q);
    if (!finite)
        return;
    int64_t n = candidates_of(logits, n_vocab, logits[best], p, scratch, &total);
    for (int64_t i = 0; i < n; i++)
        q[scratch->candidates[i].token] = (float)((double)scratch->candidates[i].weight / (double)total);
}

static int32_t choose_token(const float *logits, int64_t n_vocab, const struct sample_params *p,
                            struct sample_scratch *scratch, struct sample_result *result) {
    int32_t best = result->argmax;
    if (row_is_changed(p)) {
        memcpy(scratch->logits, logits, (size_t)n_vocab * sizeof *logits);
        change_row(p, scratch->logits, n_vocab, scratch->counts);
        logits = scratch->logits;
        bool finite; // a bias of +infinity is a wish, not a fault
        best = argmax_row(logits, n_vocab, &finite);
        if (!(logits[best] > -INFINITY))
            result->nothing_left = true;
    }
    if (p->temperature == 0 || result->nothing_left)
        return best;
    return draw(logits, n_vocab, logits[best], p, scratch);
}

void sample_row(const float *logits, int64_t n_vocab, const struct sample_params *p, struct sample_scratch *scratch,
                struct sample_result *result) {
    bool finite;
    *result = (struct sample_result){0};
    result->token = result->argmax = argmax_row(logits, n_vocab, &finite);
    result->not_finite = !finite;
    if (!finite)
        return;
    result->token = choose_token(logits, n_vocab, p, scratch, result);
    if (!p->want_logprob && p->target < 0 && p->n_top_logprobs == 0)
        return;
    double log_sum = sample_log_sum_exp(logits, n_vocab, logits[result->argmax]);
    result->logprob = (float)((double)logits[result->token] - log_sum);
    if (p->target >= 0) {
        result->target_logprob = (float)((double)logits[p->target] - log_sum);
        result->target_rank = rank_of(logits, n_vocab, p->target);
    }
    if (p->n_top_logprobs > 0)
        top_logprobs(logits, n_vocab, (int)MIN((int64_t)p->n_top_logprobs, n_vocab), log_sum, result);
}
