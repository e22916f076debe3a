/* constraint.h - what a request's grammar lets come next: a mask over the vocabulary, worked out beside the step.
 *
 *     engine thread   run step N+1 (late) ── collect N ── give ──────────── await ── draw N+1 ── run N+2 (late) ...
 *     a helper                                             accept N's token, mask
 *
 * Matchers build parts of their automata when these are first met, so they allocate, and a step must not. Therefore the
 * engine's thread never works on one: a helper thread does, between give and await. The first mask is made where the
 * request is made. A grammar's memory is bounded (grammar.h); where the machine has none for it the process ends.
 *
 * A mask is a function of the grammar and of the tokens of the answer alone. A sequence that lost its cache and is
 * computed again keeps its own. */
#pragma once

#include "base/arena.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

#include <stdbool.h>
#include <stdint.h>

typedef int token_splitter(void *context, const int32_t *before, int n_before, struct str text, int32_t *out, int max);

/* What gyre_request.grammar points to. Both are kept by who made it until the request is submitted. */
struct gyre_grammar {
    struct grammar *grammar;
    struct token_trie *tokens;
    /* The tokens that the tokenizer would have made of `text` behind those before, as far as that does not depend on
     * what follows; returns how many. Any thread, until the engine is closed. NULL: the model writes what must come,
     * too. */
    token_splitter *split;
    void *split_context;
};

/* Jump-forward: what must come is put into the sequence at once, so many tokens at most; beside other sequences a step
 * computes FEW_TOKENS of one (plan.h). */
enum { MAX_FORCED = 32 };

/* Of one sequence. From give to await it is the helper's. */
struct constraint {
    struct matcher *matcher;
    uint32_t *mask;          // what may follow the tokens that it was told
    size_t n_words;          // of it
    int32_t vocab_size;      // the model's; the tokenizer may have more tokens
    const int32_t *tokens;   // the sequence's
    int32_t n_told, n_known; // it was told those before n_told, and is to be told those before n_known
    const int32_t *eos;      // [n_eos]
    const int32_t *stops;    // [n_stops], which may come besides where the text may end
    int n_eos, n_stops;
    bool ignores_eos;       // the text ends where nothing else can come
    bool must_end;          // nothing but an end may come next
    struct error failed;    // of the helper
    uint32_t *guess_masks;  // [most_guesses][n_words]: what may follow each guess; NULL: nobody guesses
    bool *guess_must_end;   // [most_guesses]
    const int32_t *guesses; // [n_guesses], to be tried behind what is known
    int n_guesses, most_guesses;
    int32_t forced[MAX_FORCED]; // that come next, all of which it was told: the mask is of what follows them
    int n_forced, n_put;        // the first n_put of them came already
    token_splitter *split;      // NULL: it does not jump
    void *split_context;
    bool is_given;           // guarded by the crew's lock
    struct constraint *next; // in the crew's queue
};

/* The mask of the first token of the answer, behind `n_prompt` of the tokens. Everything but the matcher is the
 * arena's; constraint_close in either case. */
struct constraint_ask {
    const struct gyre_grammar *grammar;
    const int32_t *tokens;
    int32_t n_prompt, vocab_size;
    const int32_t *eos, *stops;
    int n_eos, n_stops;
    bool ignores_eos;
    bool jumps; // what must come may be put in at once
    int most_guesses;
};
enum status constraint_open(struct constraint *c, const struct constraint_ask *ask, struct arena *arena,
                            struct error *err);
void constraint_close(struct constraint *c);

/* The helpers. */
struct mask_crew;
struct mask_crew *mask_crew_open(int n_threads); // NULL: no thread could be started
void mask_crew_free(struct mask_crew *crew);     // after what was given is done. NULL is fine

/* The sequence has n_known tokens now; the helpers are told by mask_crew_go of all that was given. Neither allocates
 * nor waits. */
void mask_crew_give(struct mask_crew *crew, struct constraint *c, int32_t n_known);
void mask_crew_go(struct mask_crew *crew);

/* Its mask is there, and guesses were put behind the known tokens: masks of what follows each are wanted besides.
 * Behind one that the grammar does not allow there is none: the row before it draws another token. */
void mask_crew_give_guesses(struct mask_crew *crew, struct constraint *c, const int32_t *guesses, int n);

/* The mask is that of all tokens that were given, or `failed` says why there is none. */
void mask_crew_await(struct mask_crew *crew, struct constraint *c);

/* The same until clock_us() is at until_us; false: it is not there yet. */
bool mask_crew_await_until(struct mask_crew *crew, struct constraint *c, int64_t until_us);
