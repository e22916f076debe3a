/* draft.c - guesses of what comes next, which the step computes and checks in one go (sched/sequence.h).
 *
 * A guess is right if it is the token that is drawn at its place. Draws depend on seed and position alone, so an answer
 * is the same with guesses as without. */
#include "engine/draft/program_drafter.h"
#include "engine/engine.h"

enum { MOST_SEQS_THAT_GUESS = 8 };

/* Of one sequence. Those of two steps may be in flight when it goes back, and then no window may have given away what
 * is seen from there, and a recurrent state must reach it. A key that is turned by the length of the text would be
 * turned by that of the guesses too. */
static int most_guesses(const struct gyre *g) {
    int n = MIN(MOST_GUESSES, g->pool.max_chunk / 2 - 1);
    if (g->pool.has_state)
        n = MIN(n, (g->n_back + 1 - g->ops->max_in_flight) / g->ops->max_in_flight);
    return program_rope_depends_on_length(g->program) ? 0 : MAX(n, 0);
}

static bool reads_history(const struct sample_params *p) {
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0 || p->n_bad > 0;
}

/* What a token depends on that comes behind guesses must be there but for the guesses themselves. A grammar has one
 * mask, for the token behind what is known. */
bool engine_may_guess(const struct request *r) {
    const struct sequence *seq = &r->sequence;
    bool one_to_go = sequence_decodes(seq) && seq->n_tokens - seq->n_computed == 1;
    bool is_expected = sequence_expects(seq, seq->n_tokens - 1);
    return one_to_go && !r->constraint && r->asked.max_tokens > 0 && r->asked.pooling == GYRE_POOL_NONE &&
           !(is_expected && reads_history(&r->sample));
}

void engine_draft(struct gyre *g) {
    int32_t guesses[MOST_GUESSES];
    bool too_many = g->drafter.most_seqs > 0 && g->scheduler.n_running > g->drafter.most_seqs;
    int most = g->drafter.guess && !too_many ? most_guesses(g) : 0;
    for (int i = 0; i < g->scheduler.n_running && most > 0; i++) {
        struct sequence *seq = g->scheduler.running[i];
        int max = MIN(most, seq->capacity - 1 - seq->n_tokens), n;
        if (max <= 0 || !engine_may_guess(seq->owner))
            continue;
        n = g->drafter.guess(g->drafter.context, seq, guesses, max);
        BUG_IF(n < 0 || n > max);
        sequence_guess(seq, guesses, n);
        g->drafter.n_guessed += n;
    }
}

void engine_judge(struct gyre *g, struct request *r, const struct gyre_event *e) {
    const struct sequence *seq = &r->sequence;
    if (e->position >= seq->n_tokens || sequence_expects(seq, e->position))
        return;
    bool is_right = seq->tokens[e->position] == e->token;
    g->drafter.n_accepted += is_right;
    if (g->drafter.judged)
        g->drafter.judged(g->drafter.context, r, is_right);
}

enum status engine_draft_follow(struct gyre *g, const struct step *step) {
    return g->drafter.follow ? g->drafter.follow(g->drafter.context, step, &g->failed) : OK;
}

// ---- n-grams ----------------------------------------------------------------------------------------------------

static int guess_by_ngram(void *context, const struct sequence *seq, int32_t *out, int max) {
    struct request *r = seq->owner;
    return ngram_guess(context, &r->luck, seq, out, max);
}

static void judge_ngram(void *context, struct request *r, bool is_right) {
    (is_right ? ngram_was_right : ngram_was_wrong)(context, &r->luck);
}

static void open_ngram(struct gyre *g, const struct gyre_options *o) {
    int longest = o->ngram_max ? o->ngram_max : 4, shortest = o->ngram_min ? o->ngram_min : MIN(2, longest);
    g->ngram = (struct ngram){o->n_guesses, longest, shortest};
    g->drafter.guess = guess_by_ngram;
    g->drafter.judged = judge_ngram;
    g->drafter.context = &g->ngram;
}

// ---- opening ----------------------------------------------------------------------------------------------------

enum status engine_draft_check(const struct gyre_options *o, struct error *err) {
    int longest = o->ngram_max ? o->ngram_max : 4, shortest = o->ngram_min ? o->ngram_min : MIN(2, longest);
    if (o->n_guesses < 0 || o->n_guesses > MOST_GUESSES)
        return fail(err, ERR_ARG, "n_guesses is %d, it must be 0 to %d", o->n_guesses, MOST_GUESSES);
    if (o->n_guesses == 0 && (o->draft_model || o->draft_method))
        return fail(err, ERR_ARG, "n_guesses is 0, and there is a draft that would guess");
    if (shortest < 1 || longest < shortest || longest > NGRAM_LONGEST)
        return fail(err, ERR_ARG, "ngram_min is %d and ngram_max %d: 1 <= min <= max <= %d", shortest, longest,
                    NGRAM_LONGEST);
    if (o->guess_seqs < 0)
        return fail(err, ERR_ARG, "guess_seqs is %d, it must be at least 0", o->guess_seqs);
    return OK;
}

enum status engine_draft_open(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                              struct error *err) {
    if (o->n_guesses == 0)
        return OK;
    if (most_guesses(g) == 0)
        return fail(err, ERR_UNSUPPORTED, "speculation: a sequence of this model cannot go back on this device");
    g->drafter.most_seqs = o->guess_seqs ? o->guess_seqs : MOST_SEQS_THAT_GUESS;
    if (draft)
        return program_drafter_open(g, o, err);
    open_ngram(g, o);
    return OK;
}
