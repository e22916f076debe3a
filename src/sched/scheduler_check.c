/* scheduler_check.c - the integrity of the scheduler's lists, for tests; see scheduler.h. */
#include "sched/scheduler.h"

#include <stdlib.h>

static int n_expected(const struct sequence *seq) {
    int n = 0;
    for (int32_t i = seq->n_known; i < seq->n_tokens; i++)
        n += sequence_expects(seq, i);
    return n;
}

/* Between steps: each is in a step that was started. */
static bool has_idle_guesses(const struct sequence *seq) {
    for (int32_t i = MAX(seq->n_known, seq->n_computed); i < seq->n_tokens; i++)
        if (!sequence_expects(seq, i))
            return true;
    return false;
}

static const char *check_sequence(const struct scheduler *s, const struct sequence *seq, enum sequence_place place) {
    if (seq->place != place)
        return "a sequence stands in a list that it does not know of";
    if (place == SEQ_LEAVING)
        return seq->n_in_flight > 0 ? NULL : "a sequence is leaving and no step has it";
    if (seq->n_computed < 0 || seq->n_computed + seq->n_scheduled > seq->n_tokens || seq->n_tokens > seq->capacity)
        return "a sequence has computed more than it has";
    if (seq->n_known > seq->n_tokens || n_expected(seq) > seq->n_in_flight)
        return "a sequence expects tokens that nobody computes";
    if (seq->n_scheduled == 0 && has_idle_guesses(seq))
        return "a sequence has guesses that no step took";
    for (int g = 0; g < s->pool->n_groups; g++)
        if (s->pool->groups[g].paged && (int64_t)seq->tables[g].end * s->pool->block_size < seq->n_computed)
            return "a sequence has computed tokens without cache";
    return NULL;
}

static const char *check_list(const struct scheduler *s, const struct sequence_list *list, enum sequence_place place,
                              struct sequence **seqs, size_t *n) {
    for (struct sequence *seq = list->head; seq; seq = seq->next) {
        const char *wrong = check_sequence(s, seq, place);
        if (wrong)
            return wrong;
        if (place == SEQ_WAITING && seq->next && !sequence_before(seq, seq->next))
            return "the waiting ones are not in order";
        seqs[(*n)++] = seq;
    }
    return NULL;
}

const char *scheduler_check(const struct scheduler *s) {
    size_t n = 0;
    struct sequence **seqs = xcalloc((size_t)(s->n_running + s->waiting.n + s->leaving.n + 1), sizeof *seqs);
    const char *wrong = check_list(s, &s->waiting, SEQ_WAITING, seqs, &n);
    if (!wrong)
        wrong = check_list(s, &s->leaving, SEQ_LEAVING, seqs, &n);
    for (int i = 0; i < s->n_running && !wrong; i++) {
        wrong = check_sequence(s, s->running[i], SEQ_RUNNING);
        if (!wrong && i > 0 && !sequence_before(s->running[i - 1], s->running[i]))
            wrong = "the running ones are not in order";
        seqs[n++] = s->running[i];
    }
    int n_paused = 0, n_with_cache = 0;
    for (const struct sequence *seq = s->waiting.head; seq; seq = seq->next)
        n_paused += seq->paused, n_with_cache += sequence_holds_cache(seq);
    if (!wrong && (n_paused != s->n_paused || n_with_cache != s->n_waiting_with_cache))
        wrong = "those that are paused, or wait with cache, are not counted right";
    if (!wrong)
        wrong = kv_pool_check(s->pool, seqs, n);
    free(seqs);
    return wrong;
}
