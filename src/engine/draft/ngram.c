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

static int next_of(const struct ngram *g, const struct guess_luck *luck) {
    return luck->n_next > 0 ? luck->n_next : g->most;
}

void ngram_was_right(const struct ngram *g, struct guess_luck *luck) {
    luck->n_rests = luck->n_wrong = 0;
    if (++luck->n_right < next_of(g, luck))
        return;
    luck->n_next = MIN(2 * next_of(g, luck), g->most);
    luck->n_right = 0;
}

/* A copied run ends somewhere, perhaps just where a draft does: that says nothing of the next one. But where the first
 * guess is wrong twice there is none. */
void ngram_was_wrong(const struct ngram *g, struct guess_luck *luck) {
    if (luck->n_right == 0 && luck->n_wrong++ > 0) {
        luck->n_next = MAX(next_of(g, luck) / 2, 1);
        luck->n_rests = MIN(2 * luck->n_rests + 1, NGRAM_MOST_REST);
        luck->rest = luck->n_rests;
    }
    luck->n_right = 0;
}

int ngram_guess(const struct ngram *ngram, struct guess_luck *luck, const struct sequence *seq, int32_t *out, int max) {
    int32_t n = seq->n_known, n_expected = seq->n_tokens - n, ahead[MOST_AHEAD];
    if (luck->rest > 0) {
        luck->rest--;
        return 0;
    }
    max = MIN(MIN(max, next_of(ngram, luck)), MOST_AHEAD - n_expected);
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
