/* may_guess.c - which sequences may have guesses: see engine.h. */
#include "engine/draft/branches.h"
#include "engine/engine.h"

static bool reads_history(const struct sample_params *p) {
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0 || p->n_bad > 0;
}

/* Rows of branches are drawn without the text before them, and have no masks. */
bool engine_may_branch(const struct request *r) {
    return r->sequence.branches && !r->constraint && !r->is_rejected && !reads_history(&r->sample);
}

/* What a token depends on that comes behind guesses must be there but for the guesses themselves. */
bool engine_may_guess(const struct request *r) {
    const struct sequence *seq = &r->sequence;
    bool one_to_go = sequence_decodes(seq) && seq->n_tokens - seq->n_computed == 1;
    bool is_expected = sequence_expects(seq, seq->n_tokens - 1);
    return one_to_go && r->asked.max_tokens > 0 && r->asked.pooling == GYRE_POOL_NONE &&
           !(is_expected && reads_history(&r->sample));
}
