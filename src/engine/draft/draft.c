/* draft.c - guesses of what comes next, which the step computes and checks in one go (sched/sequence.h).
 *
 * A guess is right if it is the token that is drawn at its place. Draws depend on seed and position alone, so an answer
 * is the same with guesses as without. */
#include "engine/draft/branches.h"
#include "engine/draft/guess_tree.h"
#include "engine/draft/text_drafter.h"
#include "engine/engine.h"

#include "base/clock.h"
#include "base/random.h"

#include <string.h>
#include <xxhash.h>

/* Of one sequence. Those of two steps may be in flight when it goes back, and then no window may have given away what
 * is seen from there, and a recurrent state must reach it. A key that is turned by the length of the text would be
 * turned by that of the guesses too. */
static int most_guesses(const struct gyre *g) {
    int n = MIN(MOST_GUESSES, g->pool.max_chunk / 2 - 1);
    if (g->pool.has_state)
        n = MIN(n, (g->n_back + 1 - g->ops->max_in_flight) / g->ops->max_in_flight);
    return program_rope_depends_on_length(g->program) ? 0 : MAX(n, 0);
}

const char *const draft_off_name[N_DRAFT_OFF] = {"batch_size", "price", "no_guess"};

/* From what the client expects, else from whom there is. */
static int guess_for(struct gyre *g, struct request *r, int32_t *out, int max) {
    int n = prediction_guess(&r->prediction, &r->sequence, r->n_prompt, out, max);
    r->is_predicted = n > 0;
    return n > 0 || !g->drafter.guess ? n : g->drafter.guess(g->drafter.context, &r->sequence, out, max);
}

static void draft_for(struct gyre *g, struct request *r, struct guess_price price, int max) {
    int32_t guesses[MOST_GUESSES];
    struct sequence *seq = &r->sequence;
    bool is_priced = !g->drafter.is_fixed && !g->drafter.follow; // who follows steps asks for the price itself
    max = is_priced ? guess_most(&r->record, price, max) : max;
    int n = max > 0 ? guess_for(g, r, guesses, max) : 0;
    BUG_IF(n < 0 || n > max);
    g->drafter.n_off[max > 0 ? DRAFT_OFF_NONE : DRAFT_OFF_PRICE] += n == 0;
    r->first_guess = seq->n_tokens;
    r->is_rejected = g->drafter.rejects;
    sequence_guess(seq, guesses, n);
    if (n > 0 && g->drafter.branch && !r->is_predicted && engine_may_branch(r))
        g->drafter.branch(g->drafter.context, seq, seq->branches);
    engine_constrain_guesses(g, r, n);
}

double engine_count_guesses(struct gyre *g, struct request *r) {
    const struct sequence *seq = &r->sequence;
    int n = 0;
    for (int32_t at = MAX(seq->n_computed, seq->n_known); at < seq->n_computed + seq->n_scheduled; at++)
        n += !sequence_expects(seq, at);
    for (int i = 0; i < branches_n(seq); i++)
        n += seq->branches->at[i].n;
    g->drafter.n_guessed += n;
    g->drafter.n_drafts += n > 0;
    r->prediction.n_guessed += r->is_predicted ? n : 0;
    return guess_risk(&r->record, n);
}

void engine_draft(struct gyre *g) {
    bool too_many = g->drafter.most_seqs > 0 && g->scheduler.n_running > g->drafter.most_seqs;
    int most = most_guesses(g);
    if ((!g->drafter.guess && g->n_predictions == 0) || g->drafter.is_off)
        return;
    struct guess_price price = {0};
    // Of steps with prompts none is timed.
    bool is_plain = !g->drafter.is_fixed && g->drafter.free_us > 0 && guess_wants_plain(&g->drafter.times);
    if (!too_many)
        price = guess_price(&g->scheduler, &g->drafter.times, 0);
    for (int i = 0; i < g->scheduler.n_running && most > 0; i++) {
        struct sequence *seq = g->scheduler.running[i];
        int max = MIN(most, seq->capacity - 1 - seq->n_tokens);
        struct request *r = seq->owner;
        if (max <= 0 || !engine_may_guess(r) || (r->constraint && !engine_may_constrain_guesses(g, r)))
            continue;
        if (too_many || is_plain)
            g->drafter.n_off[too_many ? DRAFT_OFF_BATCH : DRAFT_OFF_PRICE]++;
        else
            draft_for(g, r, price, max);
    }
}

/* Of a draft that a program drew; what stands in a text could be no other. */
struct sample_guess engine_guess_at(const struct request *r, int32_t position) {
    const struct sequence *seq = &r->sequence;
    bool is_guess =
        r->is_rejected && position < seq->n_tokens && position >= r->first_guess && !sequence_expects(seq, position);
    if (!is_guess)
        return (struct sample_guess){0};
    int i = position - r->draft.at;
    bool has_q = !r->is_predicted && r->draft.q && r->draft.at == r->first_guess && i < r->draft.n;
    return (struct sample_guess){true, seq->tokens[position],
                                 has_q ? r->draft.q + (size_t)i * (size_t)r->n_vocab : NULL};
}

void engine_judge(struct gyre *g, struct request *r, const struct gyre_event *e) {
    const struct sequence *seq = &r->sequence;
    bool in_branch = branches_with(seq, e->token) > 0;
    if (!in_branch && (e->position >= seq->n_tokens || sequence_expects(seq, e->position)))
        return;
    bool is_right = in_branch || seq->tokens[e->position] == e->token;
    int64_t place = e->position - r->first_guess;
    g->drafter.n_accepted += is_right;
    if (place >= 0 && place < MOST_GUESSES)
        g->drafter.n_right_at[place] += is_right;
    r->prediction.n_right += is_right && r->is_predicted;
    guess_judged(&r->record, is_right);
    if (g->drafter.judged)
        g->drafter.judged(g->drafter.context, r, is_right);
}

/* Which guesses are taken for right depends on the request and the position alone. */
int32_t engine_synthetic(const struct gyre *g, const struct request *r, int32_t position, int32_t token) {
    const struct sequence *seq = &r->sequence;
    if (g->drafter.told)
        return g->drafter.told[(position - r->n_prompt) % g->drafter.n_told];
    if (g->drafter.synthetic == 0 || position >= seq->n_tokens || sequence_expects(seq, position))
        return token;
    double u = philox_uniform(r->sample.seed ^ r->id, (uint64_t)position, 0x53796e);
    int32_t guess = seq->tokens[position];
    return u < g->drafter.synthetic ? guess : token != guess ? token : (guess + 1) % g->info.vocab_size;
}

/* What a step that only decodes took, with what the host did before it, from when it had nothing else to do. */
static void time_step(struct gyre *g, const struct step *step) {
    const struct batch_plan *p = &step->plan;
    int n_seqs = p->n_seqs - step->n_branches;
    if (p->n_rows == p->n_tokens && g->drafter.free_us > 0)
        guess_timed(&g->drafter.times, n_seqs, p->n_tokens - n_seqs, (double)(g->collected_us - g->drafter.free_us));
}

enum status engine_draft_follow(struct gyre *g, const struct step *step) {
    bool follows = g->drafter.follow && !g->drafter.is_off;
    time_step(g, step);
    TRY(follows ? g->drafter.follow(g->drafter.context, step, &g->failed) : OK);
    g->drafter.free_us = step->plan.n_rows == step->plan.n_tokens ? clock_us() : 0;
    return OK;
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

// ---- recent answers ---------------------------------------------------------------------------------------------

/* Answers of one tenant, adapter and salt are of one owner. The salt's words are digests under a key that nobody sees,
 * so nobody can aim at another's 64 bits. */
static uint64_t owner_of(const struct request *r) {
    const struct prefix_salt *salt = &r->sequence.salt;
    _Static_assert(sizeof *salt == 2 * sizeof(int32_t) + 2 * sizeof(uint64_t), "no byte of it is without a meaning");
    return XXH3_64bits(salt, sizeof *salt);
}

/* Of others' answers, else of the text itself. */
static int guess_by_suffix(void *context, const struct sequence *seq, int32_t *out, int max) {
    struct gyre *g = context;
    struct request *r = seq->owner;
    int n = suffix_guess(g->suffix, &r->suffix, owner_of(r), seq, out, max);
    return n > 0 ? n : ngram_guess(&g->ngram, &r->luck, seq, out, max);
}

static void judge_suffix(void *context, struct request *r, bool is_right) {
    judge_ngram(&((struct gyre *)context)->ngram, r, is_right);
}

void engine_draft_end(struct gyre *g, const struct request *r) {
    int32_t first = MAX(r->n_prompt - SUFFIX_CONTEXT, 0);
    if (g->suffix && r->sequence.n_known > r->n_prompt)
        suffix_add(g->suffix, owner_of(r), r->sequence.tokens + first, r->sequence.n_known - first);
}

static void close_suffix(void *context) { suffix_free(((struct gyre *)context)->suffix); }

static void open_suffix(struct gyre *g, const struct gyre_options *o) {
    enum { ANSWERS = 1 << 16 }; // tokens, of each generation
    open_ngram(g, o);
    g->suffix = suffix_open(ANSWERS);
    g->drafter.guess = guess_by_suffix;
    g->drafter.judged = judge_suffix;
    g->drafter.close = close_suffix;
    g->drafter.context = g;
}

// ---- opening ----------------------------------------------------------------------------------------------------

static enum status check_tree(const struct gyre_options *o, struct error *err) {
    bool is_program = o->draft_model || (o->draft_method && strcmp(o->draft_method, "suffix") != 0);
    if (o->draft_topk < 0 || o->draft_topk > MOST_TOPK)
        return fail(err, ERR_ARG, "draft_topk (eagle_topk) is %d, it must be 0 to %d", o->draft_topk, MOST_TOPK);
    if (o->draft_rows != 0 && (o->draft_topk < 2 || o->draft_rows < 2 || o->draft_rows > MOST_TREE_GUESSES + 1))
        return fail(err, ERR_ARG,
                    "draft_rows (num_draft_tokens) is %d: it must be 2 to %d, with a draft_topk of at least 2",
                    o->draft_rows, MOST_TREE_GUESSES + 1);
    if (o->draft_topk < 2)
        return OK;
    if (o->n_guesses == 0 || !is_program)
        return fail(err, ERR_ARG,
                    "draft_topk (eagle_topk) is %d, and there is no draft model or head that would guess a tree",
                    o->draft_topk);
    if (o->draft_rejection || o->synthetic_acceptance != 0)
        return fail(err, ERR_UNSUPPORTED,
                    "a tree of guesses (eagle_topk) goes with acceptance by the draw, not by rejection or made up");
    if (!o->backend->branches)
        return fail(err, ERR_UNSUPPORTED,
                    "a tree of guesses (eagle_topk): device %s computes chains alone, as pipelines do",
                    o->backend->name);
    return OK;
}

enum status engine_draft_check(const struct gyre_options *o, struct error *err) {
    int longest = o->ngram_max ? o->ngram_max : 4, shortest = o->ngram_min ? o->ngram_min : MIN(2, longest);
    if (o->n_guesses < 0 || o->n_guesses > MOST_GUESSES)
        return fail(err, ERR_ARG, "n_guesses is %d, it must be 0 to %d", o->n_guesses, MOST_GUESSES);
    if (o->n_guesses == 0 && (o->draft_model || o->draft_method))
        return fail(err, ERR_ARG, "n_guesses is 0, and there is a draft that would guess");
    if (shortest < 1 || longest < shortest || longest > NGRAM_LONGEST)
        return fail(err, ERR_ARG, "ngram_min is %d and ngram_max %d: 1 <= min <= max <= %d", shortest, longest,
                    NGRAM_LONGEST);
    if (o->synthetic_acceptance != 0 && !(o->synthetic_acceptance >= 1 && o->synthetic_acceptance <= o->n_guesses + 1))
        return fail(err, ERR_ARG,
                    "synthetic_acceptance is %g, it must be 1 to %d: the token that comes anyway, and guesses",
                    o->synthetic_acceptance, o->n_guesses + 1);
    if (o->draft_rejection && !o->backend->rejects)
        return fail(err, ERR_UNSUPPORTED, "draft acceptance by rejection: this device does not do so");
    TRY(o->draft_topk != 0 || o->draft_rows != 0 ? check_tree(o, err) : OK);
    if (o->guess_seqs < 0)
        return fail(err, ERR_ARG, "guess_seqs is %d, it must be at least 0", o->guess_seqs);
    return OK;
}

/* With which each guess has to be right so that a step gives synthetic_acceptance tokens: 1 + p + p^2 + ... */
static double synthetic_share(const struct gyre_options *o) {
    double low = 0, high = 1;
    for (int i = 0; i < 50 && o->synthetic_acceptance > 0; i++) {
        double p = (low + high) / 2, sum = 1, term = 1;
        for (int k = 0; k < o->n_guesses; k++)
            sum += term *= p;
        *(sum < o->synthetic_acceptance ? &low : &high) = p;
    }
    return o->synthetic_acceptance > 0 ? high : 0;
}

enum status engine_draft_open(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                              struct error *err) {
    g->drafter.most_seqs = o->guess_seqs ? o->guess_seqs : MOST_SEQS_THAT_GUESS;
    if (o->n_guesses == 0) // but what clients predict
        return OK;
    g->drafter.synthetic = synthetic_share(o);
    g->drafter.is_fixed = o->always_guess;
    g->drafter.rejects = o->draft_rejection;
    if (most_guesses(g) == 0)
        return fail(err, ERR_UNSUPPORTED, "speculation: a sequence of this model cannot go back on this device");
    if (draft)
        return (draft->through_text ? text_drafter_open : program_drafter_open)(g, o, err);
    bool is_suffix = o->draft_method && strcmp(o->draft_method, "suffix") == 0;
    (is_suffix ? open_suffix : open_ngram)(g, o);
    return OK;
}
