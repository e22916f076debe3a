/* bench_batch.c - see bench_batch.h. */
#include "main/bench/bench_batch.h"

#include "base/clock.h"
#include "main/run/answer.h"

#include <stdlib.h>

static enum status submit_all(struct gyre *g, const struct bench_batch *b, struct answer *answers, struct error *err) {
    struct gyre_request q = gyre_request_default(g);
    q.temperature = 1, q.top_p = 1, q.top_k = 0, q.min_p = 0;
    q.repetition_penalty = 1;
    q.ignore_eos = true;
    for (size_t i = 0; i < b->n * (size_t)b->copies; i++) {
        const struct bench_job *job = &b->jobs[i / (size_t)b->copies];
        answer_init(&answers[i], b->tokenizer, NULL, 0);
        q.prompt = job->ids, q.n_prompt = job->n_ids, q.max_tokens = job->n_output;
        q.seed = b->seed + i;
        q.user = &answers[i];
        TRY(answer_submit(&answers[i], g, &q, err));
    }
    return OK;
}

static enum status collect(struct gyre *g, const struct bench_batch *b, int64_t *n_output, struct error *err) {
    int64_t n_done = 0;
    while (gyre_busy(g)) {
        struct gyre_event events[256];
        int n = gyre_poll(g, events, 256);
        for (int i = 0; i < n; i++) {
            struct answer *a = events[i].user;
            TRY(answer_take(a, g, &events[i], err));
            if (!a->done)
                continue;
            *n_output += (int64_t)a->ids.n;
            n_done++;
        }
        if (b->progress)
            progress_step(b->progress, n_done);
    }
    return OK;
}

enum status bench_batch_run(struct gyre *g, const struct bench_batch *b, double *seconds, int64_t *n_output,
                            struct error *err) {
    size_t n = b->n * (size_t)b->copies;
    struct answer *answers = xcalloc(n, sizeof *answers);
    *n_output = 0;
    int64_t start = clock_us();
    enum status st = submit_all(g, b, answers, err);
    if (st == OK)
        st = collect(g, b, n_output, err);
    *seconds = clock_seconds_since(start);
    for (size_t i = 0; i < n; i++)
        answer_release(&answers[i]);
    free(answers);
    return st;
}
