/* ngram.c - see ngram.h. */
#include "engine/draft/ngram.h"

enum { MOST_AHEAD = 64 };

/* The last token of the place that agrees best with the end of tokens[0 .. n); -1: there is none. */
static int32_t find(const struct ngram *g, const int32_t *tokens, int32_t n) {
    int32_t best = -1, first = MAX(n - NGRAM_WINDOW, 0);
    int longest = g->shortest - 1;
    for (int32_t at = n - 2; at >= first && longest < g->longest; at--) {
        int same = 0;
        while (same < g->longest && same <= at && tokens[at - same] == tokens[n - 1 - same])
            same++;
        if (same > longest)
            longest = same, best = at;
    }
    return best;
}

/* More after a right guess, fewer after one that was not, none for a while after one that was all wrong. */
static void judge(const struct ngram *g, struct guess_luck *luck) {
    int64_t guessed = luck->n_guessed - luck->judged_guessed, accepted = luck->n_accepted - luck->judged_accepted;
    if (luck->n_next == 0)
        luck->n_next = g->most;
    if (guessed == 0)
        return;
    luck->judged_guessed = luck->n_guessed;
    luck->judged_accepted = luck->n_accepted;
    if (accepted >= guessed) {
        luck->n_next = MIN(2 * luck->n_next, g->most);
        luck->n_rests = 0;
    } else if (accepted > 0) {
        luck->n_next = MAX((int)MIN(accepted + 1, g->most), 1);
        luck->n_rests = 0;
    } else {
        luck->n_next = MAX(luck->n_next / 2, 1);
        luck->n_rests = MIN(2 * luck->n_rests + 1, NGRAM_MOST_REST);
        luck->rest = luck->n_rests;
    }
}

int ngram_guess(const struct ngram *ngram, struct guess_luck *luck, const struct sequence *seq, int32_t *out, int max) {
    int32_t n = seq->n_known, n_expected = seq->n_tokens - n, ahead[MOST_AHEAD];
    judge(ngram, luck);
    if (luck->rest > 0) {
        luck->rest--;
        return 0;
    }
    max = MIN(MIN(max, luck->n_next), MOST_AHEAD - n_expected);
    if (max <= 0 || n < ngram->shortest + 1)
        return 0;
    int32_t at = find(ngram, seq->tokens, n);
    if (at < 0)
        return 0;
    for (int32_t i = 0; i < n_expected + max; i++) {
        int32_t from = at + 1 + i;
        ahead[i] = from < n ? seq->tokens[from] : ahead[from - n];
    }
    memcpy(out, ahead + n_expected, (size_t)max * sizeof *out);
    return max;
}
