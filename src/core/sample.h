/* sample.h - from a row of logits to a token: what is asked for, what comes back, and the reference.
 *
 * Order, as vLLM and transformers have it: logit_bias; what may not come (banned, allowed, mask, bad sequences);
 * repetition, presence and frequency penalties; temperature; min_p; top_k; top_p; draw. temperature 0 is argmax of the
 * penalised logits (ties to the lower id). Log-probabilities are of the raw logits, before any of this.
 *
 * The draw uses Philox with key = seed and counter = (sequence, position), so a seed gives the same tokens in
 * any batch, chunking or order. The uniform u picks the first token, in descending probability (ties: lower id
 * first), at which the cumulated probability of what is left exceeds u. Probabilities are integers (sample_weight.h),
 * so that every backend draws the same token from the same logits; what has less than 2^-44 of the best token's is
 * never drawn. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { MAX_TOP_LOGPROBS = 20 };

struct logit_bias {
    int32_t token;
    float bias;
};

/* Tokens that may not come about one after the other: where the generated tokens end with all but the last, the last
 * may not come. n >= 1. */
struct bad_sequence {
    const int32_t *tokens;
    int32_t n;
};

/* A guess of the token, which is to be kept as often as the two distributions allow (rejection sampling, Leviathan et
 * al. 2023): with probability min(1, p / q), and otherwise the token is drawn from max(p - q, 0). p is what
 * temperature, top_k ... leave of the row. The result has the distribution p, but is not the token of a plain draw. */
struct sample_guess {
    bool is_given; // else a plain draw
    int32_t token;
    const float *q; // [n_vocab]: the distribution that the guess was drawn from; NULL: it could be no other
};

/* All pointers are borrowed until the step is collected. */
struct sample_params {
    float temperature, top_p, min_p;           // top_p 1 and min_p 0: off
    int32_t top_k;                             // 0: off
    float repetition_penalty;                  // 1: off; divides positive and multiplies negative logits of tokens seen
    float presence_penalty, frequency_penalty; // of generated tokens, subtracted once / for each occurrence
    const int32_t *history;                    // prompt, then what was generated so far
    int32_t n_prompt, n_history;
    bool has_newest;            // one more generated token stands behind the history:
    int32_t newest_row, newest; // that of this output row of the step before, which the backend writes to newest
    const struct logit_bias *bias;
    int32_t n_bias;
    const int32_t *banned; // tokens that may not come (stop tokens before min_tokens)
    int32_t n_banned;
    const int32_t *allowed; // only these may come; n_allowed 0: all
    int32_t n_allowed;
    const uint32_t *mask; // [sample_mask_words]: token t may come if bit t % 32 of word t / 32 is 1; NULL: all
    const struct bad_sequence *bad;
    int32_t n_bad;
    uint64_t seed, sequence, position;
    struct sample_guess guess; // where temperature is above 0
    int32_t target;            // a token whose log-probability is wanted; -1: none
    int32_t n_top_logprobs;    // 0 .. MAX_TOP_LOGPROBS
    bool want_logprob;         // of the token drawn
    bool want_logits;          // the row is to be kept readable until the next run
    bool want_argmax;          // that of the result is read, where sample_is_best
};

struct sample_result {
    int32_t token;
    int32_t argmax; // of the raw logits; where sample_is_best it may be the token
    float logprob, target_logprob;
    int32_t target_rank; // 1 and as many as are more probable than the target
    int32_t top_token[MAX_TOP_LOGPROBS];
    float top_logprob[MAX_TOP_LOGPROBS];
    bool not_finite;   // a NaN or +infinity among the logits, or nothing above -infinity: the rest is meaningless
    bool nothing_left; // the logits are fine, but nothing is left that may come: token is meaningless
};

static inline int64_t sample_mask_words(int64_t n_vocab) { return (n_vocab + 31) / 32; }

/* Greedy, nothing else asked. */
struct sample_params sample_params_default(void);

/* Whether only the most probable token is wanted, and the row as it is decides: a backend may then do without the rest.
 */
bool sample_is_plain(const struct sample_params *p);

/* Whether that is wanted of the tokens that a mask and `allowed` let through, the row else as it is: so of plain rows
 * too. A backend may then look at these alone. */
bool sample_is_best(const struct sample_params *p);

/* The n most probable of a row with their log-probabilities, most probable first; of equal ones the smaller id. n_vocab
 * >= n >= 1. */
void sample_most_probable(const float *logits, int32_t n_vocab, int32_t n, int32_t *tokens, float *logprobs);

/* The distribution that a row is drawn from, [n_vocab]: q of a guess. */
struct sample_scratch;
void sample_distribution(const float *logits, int64_t n_vocab, const struct sample_params *params,
                         struct sample_scratch *scratch, float *q);

/* Memory for one row of n_vocab logits. */
struct sample_scratch {
    float *logits;                // [n_vocab], after bias and penalties
    struct candidate *candidates; // [n_vocab], what may still be drawn
    int32_t *counts;              // [n_vocab], zero between calls
    int32_t *members;             // [n_vocab], candidates that a cut may fall on
};
void sample_scratch_init(struct sample_scratch *s, int64_t n_vocab);
void sample_scratch_release(struct sample_scratch *s);
int64_t sample_scratch_bytes(int64_t n_vocab);

/* The reference; logits [n_vocab] are not changed. Ids in history, newest, bias, banned, allowed and target lie in
 * [0, n_vocab); newest_row is not looked at.
 *
 * Greedy reads the row once. A draw costs two or three passes more and never sorts the vocabulary. No allocation. */
void sample_row(const float *logits, int64_t n_vocab, const struct sample_params *params,
                struct sample_scratch *scratch, struct sample_result *result);
