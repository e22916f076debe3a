/* batches.c - batches of examples: see examples.h. */
#include "train/examples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void batch_room_init(struct batch_room *b, int64_t max_texts, int64_t max_rows, int64_t tap_size, int64_t hidden) {
    size_t n = (size_t)max_rows;
    b->max_rows = max_rows;
    b->start = xcalloc((size_t)max_texts + 1, sizeof *b->start);
    b->taps = xcalloc(n, (size_t)tap_size * sizeof *b->taps);
    b->embedded = xcalloc(n, (size_t)hidden * sizeof *b->embedded);
    b->share = xcalloc(n, TEACHER_CHOICES * sizeof *b->share);
    b->token = xcalloc(n, TEACHER_CHOICES * sizeof *b->token);
    b->counts = xcalloc(n, sizeof *b->counts);
}

void batch_room_release(struct batch_room *b) {
    free(b->start);
    free(b->taps);
    free(b->embedded);
    free(b->share);
    free(b->token);
    free(b->counts);
}

void batch_room_begin(struct batch_room *b, const int64_t *pieces, int n) {
    const struct examples *e = b->examples;
    b->pieces = pieces;
    b->start[0] = 0;
    for (int i = 0; i < n; i++)
        b->start[i + 1] = b->start[i] + e->start[pieces[i] + 1] - e->start[pieces[i]];
    BUG_IF(b->start[n] > b->max_rows);
    b->batch = (struct batch_f32){n, b->start, b->taps, b->embedded, {TEACHER_CHOICES, b->token, b->share}, b->counts};
}

/* The target's distribution over what the draft can say, and its best choice once more; a row whose best choice the
 * draft cannot say does not count. */
static bool label(const struct batch_room *b, int64_t row, int32_t *token, float *share) {
    const int32_t *choice = b->examples->choice + row * TEACHER_CHOICES;
    const float *log_share = b->examples->log_share + row * TEACHER_CHOICES;
    float sum = 0;
    for (int i = 0; i < TEACHER_CHOICES; i++) {
        int32_t place = b->vocab->place[choice[i]];
        token[i] = place < 0 ? 0 : place;
        sum += share[i] = place < 0 ? 0 : expf(log_share[i] - log_share[0]);
    }
    if (b->vocab->place[choice[0]] < 0)
        return false;
    for (int i = 0; i < TEACHER_CHOICES; i++)
        share[i] *= (1 - b->best_share) / sum;
    share[0] += b->best_share;
    return true;
}

void batch_room_fill(struct batch_room *b, const struct worker *w) {
    const struct examples *e = b->examples;
    int64_t r, end, hidden = b->embed->in;
    int text = 0;
    for (worker_share(w, b->start[b->batch.n_texts], 1, &r, &end); r < end; r++) {
        while (r >= b->start[text + 1])
            text++;
        int64_t row = e->start[b->pieces[text]] + r - b->start[text];
        for (int64_t i = 0; i < e->tap_size; i++)
            b->taps[r * e->tap_size + i] = bf16_to_f32(e->taps[row * e->tap_size + i]);
        weight_rows_f32(b->embed, e->next[row], 1, b->embedded + r * hidden);
        b->counts[r] = label(b, row, b->token + r * TEACHER_CHOICES, b->share + r * TEACHER_CHOICES);
    }
}
