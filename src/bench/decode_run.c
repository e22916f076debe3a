/* decode_run.c - see decode_run.h. */
#include "bench/decode_run.h"

#include "base/clock.h"
#include "base/random.h"
#include "engine/inspect.h"

#include <stdlib.h>

/* Prompts of tokens that no round before had. The requests' ids go to `requests`, unless that is NULL. */
static enum status submit(struct gyre *g, const struct decode_load *l, int64_t round, uint64_t *requests,
                          struct error *err) {
    int32_t *ids = xcalloc((size_t)l->n_prompt, sizeof *ids);
    struct gyre_request q = gyre_request_default(g);
    uint32_t n_vocab = (uint32_t)gyre_info(g)->vocab_size;
    struct gyre_error e;
    uint64_t id;
    int rc = 0;
    q.prompt = ids, q.n_prompt = l->n_prompt, q.max_tokens = l->n_output;
    q.temperature = l->temperature, q.top_p = 1, q.top_k = 0, q.min_p = 0, q.repetition_penalty = 1;
    q.presence_penalty = q.frequency_penalty = 0;
    q.ignore_eos = true;
    q.grammar = l->grammar;
    for (int64_t i = 0; i < l->n && rc == 0; i++) {
        for (int64_t k = 0; k < l->n_prompt; k++)
            ids[k] = (int32_t)(philox4x32((uint64_t)(l->seed + round), (uint64_t)i, (uint64_t)k).v[0] % n_vocab);
        q.seed = (uint64_t)(l->seed + i);
        rc = gyre_submit(g, &q, &id, &e);
        if (requests)
            requests[i] = id;
    }
    free(ids);
    return rc == 0 ? OK : fail(err, (enum status)e.status, "%s", e.text);
}

/* Hands out events once; n_first counts the sequences that have their first token. */
static enum status take_events(struct gyre *g, const struct decode_load *l, struct decode_run *r, struct error *err) {
    enum { EVENTS = 2048 };
    static struct gyre_event events[EVENTS];
    int64_t n_steps = engine_steps(g).n_started;
    int n_events = gyre_poll(g, events, EVENTS);
    int64_t now = clock_us();
    if (engine_steps(g).n_started > n_steps) {
        r->n_last_step = engine_steps(g).n_last_tokens;
        progress_step(&r->progress, r->progress.done + r->n_last_step);
    }
    for (int i = 0; i < n_events; i++) {
        if (events[i].kind == GYRE_DONE && events[i].finish == GYRE_FAILED)
            return fail(err, ERR_DEVICE, "%s", events[i].error);
        if (events[i].kind != GYRE_TOKEN)
            continue;
        r->n_tokens++;
        r->n_first += events[i].position == l->n_prompt;
        r->ended_us = now;
    }
    if (r->n_first == l->n && r->all_first_us == 0) {
        r->all_first_us = now;
        r->n_steps_at_first = engine_steps(g).n_collected;
        r->n_seqs_after = -engine_steps(g).n_seqs;
        r->n_tokens_at_first = r->n_tokens;
    }
    return OK;
}

enum status decode_whole(struct gyre *g, const struct decode_load *l, int64_t round, struct decode_run *r,
                         struct error *err) {
    struct engine_steps before = engine_steps(g);
    struct engine_guesses guessed = engine_guesses(g);
    *r = (struct decode_run){0};
    TRY(submit(g, l, round, NULL, err));
    progress_begin(&r->progress, l->n_output == 1 ? "prompt" : "decoding", "tokens",
                   l->n * (l->n_prompt + l->n_output - 1));
    r->started_us = clock_us();
    enum status st = OK;
    while (st == OK && gyre_busy(g))
        st = take_events(g, l, r, err);
    progress_end(&r->progress);
    struct engine_steps after = engine_steps(g);
    r->n_preempted = after.n_preempted - before.n_preempted;
    r->n_steps = after.n_started - before.n_started;
    r->mask_wait_us = after.mask_wait_us - before.mask_wait_us;
    r->n_forced = after.n_forced - before.n_forced;
    r->n_steps_at_first -= before.n_collected;
    r->n_seqs_after += after.n_seqs;
    r->n_guessed = engine_guesses(g).n_guessed - guessed.n_guessed;
    r->n_accepted = engine_guesses(g).n_accepted - guessed.n_accepted;
    return st;
}

enum status decode_partly(struct gyre *g, const struct decode_load *l, int64_t round, int64_t n_together,
                          int64_t until_us, struct error *err) {
    uint64_t *requests = xcalloc((size_t)l->n, sizeof *requests);
    struct decode_run r = {0};
    int64_t n_steps = 0;
    enum status st = submit(g, l, round, requests, err);
    while (st == OK && gyre_busy(g) &&
           (r.n_first < l->n || engine_steps(g).n_started < n_steps + n_together || clock_us() < until_us)) {
        n_steps = r.n_first < l->n ? engine_steps(g).n_started : n_steps;
        st = take_events(g, l, &r, err);
    }
    for (int64_t i = 0; i < l->n && st == OK; i++)
        gyre_cancel(g, requests[i]);
    while (st == OK && gyre_busy(g))
        st = take_events(g, l, &r, err);
    free(requests);
    return st;
}

int32_t *decode_answer(int64_t n, double share, int n_vocab, int64_t seed) {
    enum { LEAST_RUN = 16, MOST_RUN = 48, STREAM = 0x74657874 };
    int32_t *tokens = xcalloc((size_t)n, sizeof *tokens);
    double wanted = 0; // of the tokens so far, so many more should be copied
    for (int64_t i = 0, at = 0; i < n; at++) {
        struct philox r = philox4x32((uint64_t)seed, (uint64_t)at, STREAM);
        int64_t run = MIN(LEAST_RUN + r.v[0] % (MOST_RUN - LEAST_RUN + 1), n - i);
        wanted += share * (double)run;
        bool is_copied = i > run && (double)r.v[1] * 0x1p-32 * (double)run < wanted;
        int64_t from = is_copied ? (int64_t)(r.v[2] % (uint64_t)(i - run)) : -1;
        wanted -= is_copied ? (double)run : 0;
        for (int64_t k = 0; k < run; k++, i++) {
            uint32_t fresh = philox4x32((uint64_t)seed, (uint64_t)i, STREAM + 1).v[0] % (uint32_t)n_vocab;
            tokens[i] = from >= 0 ? tokens[from + k] : (int32_t)fresh;
        }
    }
    return tokens;
}
