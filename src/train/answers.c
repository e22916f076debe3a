/* answers.c - see answers.h. */
#include "train/answers.h"

#include <stdlib.h>
#include <string.h>

struct answer {
    int32_t *ids;
    int64_t n;
    bool ended;
};

struct writing {
    struct gyre *g;
    const struct texts *prompts;
    const struct answer_options *o;
    struct answer *answers; // [o->n]
    int64_t n_begun, n_ended, n_taken;
};

static enum status begin(struct writing *w, struct error *err) {
    const struct answer_options *o = w->o;
    int64_t i = w->n_begun++, prompt = i % w->prompts->n;
    struct answer *a = &w->answers[i];
    struct gyre_request q = gyre_request_default(w->g);
    struct gyre_error e;
    uint64_t id;
    a->n = MIN(texts_length(w->prompts, prompt), o->longest - 1);
    a->ids = xcalloc((size_t)(a->n + o->max_tokens), sizeof *a->ids);
    memcpy(a->ids, texts_ids(w->prompts, prompt), (size_t)a->n * sizeof *a->ids);
    q.prompt = a->ids, q.n_prompt = a->n;
    q.max_tokens = MIN(o->max_tokens, o->longest - a->n);
    q.temperature = o->temperatures[i % o->n_temperatures];
    q.top_k = 0, q.top_p = 1, q.min_p = 0;
    q.repetition_penalty = 1, q.presence_penalty = q.frequency_penalty = 0;
    q.seed = o->seed + (uint64_t)i;
    q.user = a;
    return gyre_submit(w->g, &q, &id, &e) == 0 ? OK : fail(err, (enum status)e.status, "%s", e.text);
}

static enum status take(struct writing *w, const struct gyre_event *e, struct error *err) {
    struct answer *a = e->user;
    if (e->kind == GYRE_TOKEN)
        a->ids[a->n++] = e->token;
    if (e->kind != GYRE_DONE)
        return OK;
    w->n_ended++;
    a->ended = true;
    return e->finish == GYRE_FAILED ? fail(err, ERR_DEVICE, "%s", e->error) : OK;
}

static enum status write_all(struct writing *w, struct texts *out, struct error *err) {
    enum { EVENTS = 256 };
    struct gyre_event events[EVENTS];
    int64_t most = 2 * gyre_info(w->g)->max_seqs;
    while (w->n_taken < w->o->n) {
        while (w->n_begun < w->o->n && w->n_begun - w->n_ended < most)
            TRY(begin(w, err));
        int n = gyre_poll(w->g, events, EVENTS);
        for (int i = 0; i < n; i++)
            TRY(take(w, &events[i], err));
        for (; w->n_taken < w->n_begun && w->answers[w->n_taken].ended; w->n_taken++) {
            struct answer *a = &w->answers[w->n_taken];
            texts_add(out, a->ids, a->n);
            free(a->ids);
            a->ids = NULL;
        }
        if (w->o->told)
            w->o->told(w->o->context, w->n_ended);
    }
    return OK;
}

enum status answers_write(struct gyre *g, const struct texts *prompts, const struct answer_options *o,
                          struct texts *out, struct error *err) {
    struct writing w = {.g = g, .prompts = prompts, .o = o};
    BUG_IF(prompts->n == 0 || o->n < 1 || o->longest < 2);
    w.answers = xcalloc((size_t)o->n, sizeof *w.answers);
    enum status st = write_all(&w, out, err);
    for (int64_t i = 0; i < o->n; i++)
        free(w.answers[i].ids);
    free(w.answers);
    return st;
}
