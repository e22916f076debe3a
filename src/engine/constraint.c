/* constraint.c - see constraint.h. */
#include "engine/constraint.h"

#include "base/guard.h"
#include "core/sample.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- one sequence -----------------------------------------------------------------------------------------------

static void set_bits(uint32_t *mask, const int32_t *tokens, int n, bool value) {
    for (int i = 0; i < n; i++) {
        uint32_t bit = 1u << tokens[i] % 32, *word = &mask[tokens[i] / 32];
        *word = value ? *word | bit : *word & ~bit;
    }
}

static bool is_empty(const uint32_t *mask, size_t n_words) {
    uint32_t all = 0;
    for (size_t i = 0; i < n_words; i++)
        all |= mask[i];
    return all == 0;
}

/* Ends are no text of the grammar's: they come where the text may end. Who ignores the model's end goes on as long as
 * anything else can come. */
static void make_mask(struct constraint *c, uint32_t *mask, bool *must_end) {
    matcher_mask(c->matcher, mask);
    if (matcher_is_dead(c->matcher, &c->failed))
        return;
    set_bits(mask, c->eos, c->n_eos, false);
    bool may_end = matcher_may_end(c->matcher);
    *must_end = may_end && is_empty(mask, c->n_words);
    if (may_end && (*must_end || !c->ignores_eos))
        set_bits(mask, c->eos, c->n_eos, true);
    if (may_end)
        set_bits(mask, c->stops, c->n_stops, true);
}

/* The matcher stays where it was. */
static void try_guesses(struct constraint *c) {
    int n = 0;
    for (; n < c->n_guesses && c->failed.status == OK && matcher_accept(c->matcher, c->guesses[n]); n++)
        make_mask(c, c->guess_masks + (size_t)n * c->n_words, &c->guess_must_end[n]);
    if (c->failed.status == OK)
        matcher_back(c->matcher, (size_t)n);
    c->n_guesses = 0;
}

/* A jump takes one step for as many tokens as it has. Few bytes are hardly two tokens, and splitting takes its time.
 * Tokens that the tokenizer has and the model does not end it. */
static void jump(struct constraint *c) {
    enum { LEAST_FORCED = 2, LEAST_BYTES = 4, MOST_BYTES = 256 };
    struct buf text = {0};
    if (matcher_forced(c->matcher, MOST_BYTES, &text) >= LEAST_BYTES) {
        int n = c->split(c->split_context, c->tokens, c->n_told, buf_view(&text), c->forced, MAX_FORCED), k = 0;
        while (k < n && c->forced[k] < c->vocab_size && matcher_accept(c->matcher, c->forced[k]))
            k++;
        if (k < LEAST_FORCED)
            matcher_back(c->matcher, (size_t)k);
        else
            c->n_forced = k, c->n_told += k;
    }
    buf_release(&text);
}

static void tell_tokens(struct constraint *c) {
    for (; c->n_told < c->n_known; c->n_told++)
        if (!matcher_accept(c->matcher, c->tokens[c->n_told])) {
            if (!matcher_is_dead(c->matcher, &c->failed))
                fail(&c->failed, ERR_DEVICE, "the grammar does not allow token %d at position %d, which its mask did",
                     c->tokens[c->n_told], c->n_told);
            return;
        }
    if (c->split)
        jump(c);
    make_mask(c, c->mask, &c->must_end);
}

/* Matchers allocate under locks that they share, which nobody would give back for them: no scope ends them. */
static enum status open_matcher(struct constraint *c, const struct gyre_grammar *grammar, struct error *err) {
    struct alloc_scope *scope = alloc_scope;
    alloc_scope = NULL;
    enum status st = matcher_open(grammar->grammar, grammar->tokens, &c->matcher, err);
    if (st == OK && c->split)
        jump(c);
    if (st == OK)
        make_mask(c, c->mask, &c->must_end);
    alloc_scope = scope;
    if (st == OK && c->failed.status != OK)
        *err = c->failed;
    return st == OK ? c->failed.status : st;
}

enum status constraint_open(struct constraint *c, const struct constraint_ask *ask, struct arena *arena,
                            struct error *err) {
    size_t n_words = (size_t)sample_mask_words(MAX(ask->vocab_size, token_trie_n_vocab(ask->grammar->tokens)));
    *c = (struct constraint){.n_words = n_words,
                             .vocab_size = ask->vocab_size,
                             .tokens = ask->tokens,
                             .n_told = ask->n_prompt,
                             .n_known = ask->n_prompt,
                             .eos = ask->eos,
                             .n_eos = ask->n_eos,
                             .stops = ask->stops,
                             .n_stops = ask->n_stops,
                             .ignores_eos = ask->ignores_eos,
                             .split = ask->jumps ? ask->grammar->split : NULL,
                             .split_context = ask->grammar->split_context};
    c->mask = arena_calloc(arena, n_words, sizeof *c->mask);
    c->most_guesses = ask->most_guesses;
    if (ask->most_guesses > 0) {
        c->guess_masks = arena_calloc(arena, (size_t)ask->most_guesses * n_words, sizeof *c->guess_masks);
        c->guess_must_end = arena_calloc(arena, (size_t)ask->most_guesses, sizeof *c->guess_must_end);
    }
    return open_matcher(c, ask->grammar, err);
}

void constraint_close(struct constraint *c) {
    matcher_free(c->matcher);
    c->matcher = NULL;
}

// ---- the helpers ------------------------------------------------------------------------------------------------

struct mask_crew {
    pthread_mutex_t lock; // of all below, and of is_given
    pthread_cond_t work, done;
    struct constraint *first, **end, *awaited;
    bool stops;
    int n_threads;
    pthread_t threads[];
};

static void *helper(void *arg) {
    struct mask_crew *crew = arg;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (!crew->first && !crew->stops)
            pthread_cond_wait(&crew->work, &crew->lock);
        struct constraint *c = crew->first;
        if (!c)
            break;
        crew->first = c->next;
        if (!crew->first)
            crew->end = &crew->first;
        pthread_mutex_unlock(&crew->lock);
        if (c->failed.status == OK)
            (c->n_guesses > 0 ? try_guesses : tell_tokens)(c);
        pthread_mutex_lock(&crew->lock);
        c->is_given = false;
        if (crew->awaited == c) // by the engine's thread, which alone waits
            pthread_cond_signal(&crew->done);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

struct mask_crew *mask_crew_open(int n_threads) {
    struct mask_crew *crew = xcalloc(1, sizeof *crew + (size_t)n_threads * sizeof *crew->threads);
    crew->end = &crew->first;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->work, NULL);
    pthread_condattr_t clock; // that of clock_us
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&crew->done, &clock);
    pthread_condattr_destroy(&clock);
    while (crew->n_threads < n_threads && pthread_create(&crew->threads[crew->n_threads], NULL, helper, crew) == 0)
        crew->n_threads++;
    if (crew->n_threads > 0)
        return crew;
    mask_crew_free(crew);
    return NULL;
}

void mask_crew_free(struct mask_crew *crew) {
    if (!crew)
        return;
    pthread_mutex_lock(&crew->lock);
    crew->stops = true;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
    for (int i = 0; i < crew->n_threads; i++)
        pthread_join(crew->threads[i], NULL);
    pthread_cond_destroy(&crew->done);
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}

/* Under the lock. */
static void queue_up(struct mask_crew *crew, struct constraint *c) {
    BUG_IF(c->is_given);
    c->is_given = true;
    c->next = NULL;
    *crew->end = c;
    crew->end = &c->next;
}

void mask_crew_give(struct mask_crew *crew, struct constraint *c, int32_t n_known) {
    pthread_mutex_lock(&crew->lock);
    queue_up(crew, c);
    c->n_known = n_known;
    pthread_mutex_unlock(&crew->lock);
}

void mask_crew_give_guesses(struct mask_crew *crew, struct constraint *c, const int32_t *guesses, int n) {
    BUG_IF(n > c->most_guesses);
    pthread_mutex_lock(&crew->lock);
    queue_up(crew, c);
    c->guesses = guesses;
    c->n_guesses = n;
    pthread_mutex_unlock(&crew->lock);
}

void mask_crew_go(struct mask_crew *crew) {
    pthread_mutex_lock(&crew->lock);
    if (crew->first && crew->first->next)
        pthread_cond_broadcast(&crew->work);
    else if (crew->first)
        pthread_cond_signal(&crew->work);
    pthread_mutex_unlock(&crew->lock);
}

bool mask_crew_await_until(struct mask_crew *crew, struct constraint *c, int64_t until_us) {
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    int rc = 0;
    pthread_mutex_lock(&crew->lock);
    crew->awaited = c;
    while (c->is_given && rc == 0)
        rc = pthread_cond_timedwait(&crew->done, &crew->lock, &until);
    crew->awaited = NULL;
    bool is_there = !c->is_given;
    pthread_mutex_unlock(&crew->lock);
    return is_there;
}

void mask_crew_await(struct mask_crew *crew, struct constraint *c) {
    pthread_mutex_lock(&crew->lock);
    crew->awaited = c;
    while (c->is_given)
        pthread_cond_wait(&crew->done, &crew->lock);
    crew->awaited = NULL;
    pthread_mutex_unlock(&crew->lock);
}
