/* inspect.c - see inspect.h. */
#include "engine/inspect.h"

#include "engine/engine.h"

#include "base/random.h"

struct engine_parts engine_parts(const struct gyre *g) {
    return (struct engine_parts){
        .ops = g->ops, .loaded = g->loaded, .exe = g->exe, .program = g->program, .model = g->model};
}

struct engine_steps engine_steps(const struct gyre *g) {
    return (struct engine_steps){.n_started = g->n_steps,
                                 .n_collected = g->n_collected,
                                 .n_seqs = g->n_collected_seqs,
                                 .n_last_tokens = g->scheduler.n_step_tokens,
                                 .n_preempted = g->scheduler.n_preempted,
                                 .n_late = g->n_late_steps,
                                 .mask_wait_us = g->mask_wait_us,
                                 .n_forced = g->n_forced_tokens};
}

struct engine_guesses engine_guesses(const struct gyre *g) {
    return (struct engine_guesses){g->drafter.n_drafts, g->drafter.n_guessed, g->drafter.n_accepted,
                                   g->draft && g->draft->through_text};
}

void engine_let_guess(struct gyre *g, bool may) { g->drafter.is_off = !may; }

static int guess_anything(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct gyre *g = context;
    int n = MIN(max, g->ngram.most);
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)(philox4x32(seq->rank.order, (uint64_t)(seq->n_tokens + i), 0x616e79).v[0] %
                           (uint32_t)g->info.vocab_size);
    return n;
}

void engine_guess_anything(struct gyre *g) {
    g->drafter.guess = guess_anything;
    g->drafter.judged = NULL;
    g->drafter.context = g;
}

void engine_tell(struct gyre *g, const int32_t *tokens, int32_t n) {
    g->drafter.told = tokens;
    g->drafter.n_told = n;
}

struct open_times engine_open_times(const struct gyre *g) {
    return g->open_us;
}

void engine_settle(struct gyre *g) { model_settle_wait(g->settling); }

int64_t engine_weight_bytes(const struct gyre *g) { return g->weight_bytes; }
