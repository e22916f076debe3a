/* beams.c - see beams.h. */
#include "engine/beams.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A running beam and what may follow it. */
struct continuation {
    int beam, rank; // rank: among that beam's
    int32_t token;
    float logprob;
    double score;
};

static void make_room(struct beams *b, struct beam *beams) {
    for (int i = 0; i < b->options.width; i++) {
        struct beam old = beams[i];
        beams[i].tokens = arena_calloc(b->arena, (size_t)b->capacity, sizeof *old.tokens);
        beams[i].logprobs = arena_calloc(b->arena, (size_t)b->capacity, sizeof *old.logprobs);
        if (old.n > 0) {
            memcpy(beams[i].tokens, old.tokens, (size_t)old.n * sizeof *old.tokens);
            memcpy(beams[i].logprobs, old.logprobs, (size_t)old.n * sizeof *old.logprobs);
        }
    }
}

/* For one token more. Most searches end long before max_tokens. */
static void grow(struct beams *b) {
    if (b->n_tokens < b->capacity)
        return;
    b->capacity =
        b->capacity ? (int32_t)MIN(2 * (int64_t)b->capacity, b->options.max_tokens) : MIN(64, b->options.max_tokens);
    make_room(b, b->running);
    make_room(b, b->next);
    make_room(b, b->answers);
}

void beams_init(struct beams *b, const struct beams_options *options, struct arena *arena) {
    size_t width = (size_t)options->width;
    BUG_IF(options->width < 1 || options->max_tokens < 1);
    *b = (struct beams){
        .options = *options, .arena = arena, .n_running = 1, .n_choices = options->width + options->n_stops};
    b->running = arena_calloc(arena, width, sizeof *b->running);
    b->next = arena_calloc(arena, width, sizeof *b->next);
    b->answers = arena_calloc(arena, width, sizeof *b->answers);
    b->continuations = arena_calloc(arena, width * (size_t)b->n_choices, sizeof *b->continuations);
    grow(b);
}

static int by_score(const void *a, const void *b) {
    const struct continuation *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->beam != y->beam ? x->beam - y->beam : x->rank - y->rank;
}

static int rank_continuations(struct beams *b, const int32_t *tokens, const float *logprobs) {
    int n = 0;
    for (int beam = 0; beam < b->n_running; beam++)
        for (int rank = 0; rank < b->n_choices; rank++, n++) {
            float logprob = logprobs[beam * b->n_choices + rank];
            b->continuations[n] = (struct continuation){beam, rank, tokens[beam * b->n_choices + rank], logprob,
                                                        b->running[beam].score + (double)logprob};
        }
    qsort(b->continuations, (size_t)n, sizeof *b->continuations, by_score);
    return n;
}

static bool ends(const struct beams *b, int32_t token) {
    for (int i = 0; i < b->options.n_stops; i++)
        if (b->options.stops[i] == token)
            return true;
    return b->n_tokens + 1 == b->options.max_tokens;
}

/* `to` becomes the continuation, with a score of its own. */
static void write_beam(const struct beams *b, const struct continuation *c, double score, struct beam *to) {
    const struct beam *from = &b->running[c->beam];
    memcpy(to->tokens, from->tokens, (size_t)from->n * sizeof *to->tokens);
    memcpy(to->logprobs, from->logprobs, (size_t)from->n * sizeof *to->logprobs);
    to->tokens[from->n] = c->token;
    to->logprobs[from->n] = c->logprob;
    to->n = from->n + 1;
    to->score = score;
    to->from = c->beam;
    to->rank = c->rank;
}

/* Among the answers by its score, if it is among the best; of equal ones the older stands first. */
static void add_answer(struct beams *b, const struct continuation *c) {
    double score = c->score / pow(b->n_tokens + 1, b->options.length_penalty);
    int at = b->n_answers < b->options.width ? b->n_answers++ : b->options.width - 1;
    if (b->n_answers == b->options.width && b->answers[at].n > 0 && score <= b->answers[at].score)
        return;
    struct beam place = b->answers[at];
    for (; at > 0 && score > b->answers[at - 1].score; at--)
        b->answers[at] = b->answers[at - 1];
    b->answers[at] = place;
    write_beam(b, c, score, &b->answers[at]);
}

/* Whether a running beam can still become better than the worst answer. */
static bool can_improve(const struct beams *b) {
    const struct beams_options *o = &b->options;
    if (b->n_answers < o->width)
        return true;
    int32_t length = o->stopping == BEAMS_SURE && o->length_penalty > 0 ? o->max_tokens : b->n_tokens;
    return b->running[0].score / pow(length, o->length_penalty) > b->answers[o->width - 1].score;
}

static void swap_running(struct beams *b, int n) {
    struct beam *old = b->running;
    b->running = b->next;
    b->next = old;
    b->n_running = n;
}

void beams_advance(struct beams *b, const int32_t *tokens, const float *logprobs) {
    BUG_IF(b->done);
    int n = rank_continuations(b, tokens, logprobs), n_next = 0, width = b->options.width;
    for (int i = 0; i < n; i++) {
        const struct continuation *c = &b->continuations[i];
        if (!ends(b, c->token)) {
            if (n_next < width)
                write_beam(b, c, c->score, &b->next[n_next++]);
        } else if (i < width) {
            add_answer(b, c);
        }
    }
    swap_running(b, n_next);
    b->n_tokens++;
    b->done = n_next == 0 || !can_improve(b) || (b->options.stopping == BEAMS_FIRST && b->n_answers == width);
    if (!b->done)
        grow(b);
}
