/* examples.h - rows that a draft is trained on: of each the target's hidden states, the token behind it, and what the
 * target found most probable after that; and batches of them.
 *
 * Of a text t_0 .. t_m row p, 0 <= p < m, has the states at p, token t_p+1, and the target's choices at p + 1. A text
 * is cut into pieces of up to `window` rows, whose states know of all that was before. States are kept in bf16. */
#pragma once

#include "train/math/head.h"
#include "train/teacher.h"
#include "train/texts.h"

struct examples {
    int64_t tap_size, window;
    int64_t n_pieces, n_rows, piece_cap, row_cap;
    int64_t *start;   // [n_pieces + 1]: first row of each
    uint16_t *taps;   // [n_rows, tap_size]
    int32_t *next;    // [n_rows]
    int32_t *choice;  // [n_rows, TEACHER_CHOICES], best first
    float *log_share; // [n_rows, TEACHER_CHOICES]: logarithms of probabilities
};

void examples_init(struct examples *e, int64_t tap_size, int64_t window);
void examples_release(struct examples *e); // zeroed is fine

/* Rows of a text of n tokens, as the teacher sees it; a text of one token has none. ERR_MEMORY where the machine has no
 * room for them. */
enum status examples_add(struct examples *e, struct teacher *t, const int32_t *ids, int64_t n, struct error *err);

/* ERR_MEMORY, with how much it would be, if so many rows are more than the machine has left. */
enum status examples_check_memory(int64_t n_rows, int64_t tap_size, struct error *err);

// ---- the draft's vocabulary -------------------------------------------------------------------------------------

/* The tokens that a draft can say: [n] of the target's, ascending, and where each of those is, -1: nowhere. */
struct draft_vocab {
    int32_t n, n_target;
    int32_t *target_id, *place; // [n], [n_target]
};

/* The n most frequent ones behind the rows; of equally frequent ones the smaller. */
void draft_vocab_choose(struct draft_vocab *v, const struct examples *e, int32_t n, int32_t n_target);
void draft_vocab_of(struct draft_vocab *v, const int32_t *target_id, int32_t n, int32_t n_target); // copied
void draft_vocab_all(struct draft_vocab *v, int32_t n_target);
void draft_vocab_release(struct draft_vocab *v);

/* The share of the rows whose token is in it. */
double draft_vocab_coverage(const struct draft_vocab *v, const struct examples *e);

// ---- batches ----------------------------------------------------------------------------------------------------

/* Memory of a batch of up to max_rows rows in up to max_texts pieces. */
struct batch_room {
    const struct examples *examples;
    const struct draft_vocab *vocab;
    const struct weight *embed; // [target's vocabulary, hidden]
    float best_share;           // of a label's weight that the best choice has by itself; the rest is by probability
    int64_t max_rows;
    const int64_t *pieces; // [batch.n_texts], of the batch that is made
    int64_t *start;
    float *taps, *embedded, *share;
    int32_t *token;
    bool *counts;
    struct batch_f32 batch;
};

void batch_room_init(struct batch_room *b, int64_t max_texts, int64_t max_rows, int64_t tap_size, int64_t hidden);
void batch_room_release(struct batch_room *b);

/* The batch of these n pieces: what one caller does first, and then all workers their shares. */
void batch_room_begin(struct batch_room *b, const int64_t *pieces, int n);
void batch_room_fill(struct batch_room *b, const struct worker *w);
