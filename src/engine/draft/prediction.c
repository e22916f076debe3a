/* prediction.c - see prediction.h. */
#include "engine/draft/prediction.h"

#include "base/status.h"

#include <string.h>

/* How many tokens before place i of the prediction are the answer's last ones. */
static int32_t agreement(const struct prediction *p, int32_t i, const int32_t *answer, int32_t n) {
    int32_t same = 0, most = MIN(MIN(i, n), 32);
    while (same < most && p->tokens[i - 1 - same] == answer[n - 1 - same])
        same++;
    return same;
}

/* The place that agrees most with the end of the answer, of equals the first behind `from`; -1: none does. */
static int32_t find_again(const struct prediction *p, int32_t from, const int32_t *answer, int32_t n) {
    int32_t best = -1, most = LEAST_AGREEMENT - 1;
    for (int32_t k = 0; k < p->n; k++) {
        int32_t i = (from + k) % p->n + 1, same = agreement(p, i, answer, n);
        if (same > most)
            most = same, best = i;
    }
    return best;
}

static void follow(struct prediction *p, const struct sequence *seq, int32_t n_prompt) {
    int32_t last = MAX(p->at, 0);
    for (; p->n_seen < seq->n_known; p->n_seen++) {
        bool is_as_said = p->at >= 0 && p->at < p->n && p->tokens[p->at] == seq->tokens[p->n_seen];
        last = MAX(p->at, last);
        p->at = is_as_said ? p->at + 1 : -1;
    }
    if (p->at < 0)
        p->at = find_again(p, MIN(last, p->n - 1), seq->tokens + n_prompt, seq->n_known - n_prompt);
}

int prediction_guess(struct prediction *p, const struct sequence *seq, int32_t n_prompt, int32_t *out, int max) {
    if (p->n == 0)
        return 0;
    follow(p, seq, n_prompt);
    int32_t at = p->at + (seq->n_tokens - seq->n_known);
    int n = p->at < 0 ? 0 : MAX(MIN(max, p->n - at), 0);
    memcpy(out, p->tokens + MIN(MAX(at, 0), p->n), (size_t)n * sizeof *out);
    return n;
}
