/* generation_sum.c - what a generation amounts to: what ended it, its usage, and the best of its answers. */
#include "api/answer/generation.h"

#include <math.h>
#include <stdlib.h>

static bool is_among(int32_t id, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

void generation_stop_reason(const struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    const struct answer *a = c->answer;
    bool by_token = c->ended && !c->stopped && a->n_text < a->n_tokens;
    int32_t last = by_token ? a->tokens[a->n_text] : -1;
    if (c->stop_string)
        buf_json_string(out, str_of(c->stop_string));
    else if (by_token && is_among(last, g->stop_ids, g->n_stop_ids))
        buf_printf(out, "%d", last);
    else
        buf_str(out, STR("null"));
}

int generation_failed_status(const struct generation *g) {
    if (g->aborted)
        return 499;
    return g->failed.status == ERR_ARG ? 400 : 503;
}

int64_t generation_n_tokens(const struct generation *g) {
    int64_t n = 0;
    for (int i = 0; i < g->n_choices; i++)
        n += g->choices[i].n_seen;
    return n;
}

/* Of each prompt, what none of its choices computed: later ones find what the first one did. */
static int64_t n_cached_tokens(const struct generation *g) {
    int64_t n = 0;
    for (int i = 0; i < g->n_choices;) {
        const struct choice *first = &g->choices[i];
        int64_t least = first->n_cached;
        for (; i < g->n_choices && g->choices[i].prompt == first->prompt; i++)
            least = MIN(least, g->choices[i].n_cached);
        n += least;
    }
    return n;
}

static void write_usage(const struct generation *g, int64_t n, struct buf *out) {
    int64_t n_reasoning = 0, n_right = 0, n_wrong = 0, n_cached = g->is_picked ? g->n_cached : n_cached_tokens(g);
    for (int i = 0; i < g->n_choices; i++) {
        n_reasoning += g->choices[i].n_reasoning;
        n_right += g->choices[i].n_predicted_right;
        n_wrong += g->choices[i].n_predicted_wrong;
    }
    buf_printf(
        out,
        "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%lld},\"completion_tokens_details\":{\"reasoning_tokens\":%lld,"
        "\"accepted_prediction_tokens\":%lld,\"rejected_prediction_tokens\":%lld}}",
        (long long)g->n_prompt_tokens, (long long)n, (long long)(g->n_prompt_tokens + n),
        (long long)MIN(n_cached, g->n_prompt_tokens), (long long)n_reasoning, (long long)n_right, (long long)n_wrong);
}

void generation_usage(const struct generation *g, struct buf *out) { write_usage(g, generation_n_tokens(g), out); }

void generation_usage_before(const struct choice *c, struct buf *out) {
    write_usage(c->generation, generation_n_tokens(c->generation) - (c->n_seen - c->n_written), out);
}

static double mean_logprob(const struct choice *c) {
    double sum = 0;
    for (int32_t i = 0; i < c->n_seen; i++)
        sum += (double)c->answer->logprobs[i];
    return c->n_seen > 0 ? sum / c->n_seen : -INFINITY;
}

static int by_mean_logprob(const void *a, const void *b) {
    const struct choice *x = a, *y = b;
    double mx = mean_logprob(x), my = mean_logprob(y);
    return mx != my ? (mx < my ? 1 : -1) : x->index - y->index;
}

/* The best of each prompt come first in the array, with the numbers that they are shown under. All answers are done, so
 * that nobody holds a pointer to a choice any more. */
static void pick_best(struct generation *g) {
    int n_each = g->n_choices / (g->n_shown / g->n_best);
    pthread_mutex_lock(&g->api->records.lock); // /debug/requests looks at them from another thread
    for (int first = 0, shown = 0; first < g->n_choices; first += n_each) {
        qsort(g->choices + first, (size_t)n_each, sizeof *g->choices, by_mean_logprob);
        for (int i = 0; i < g->n_best; i++, shown++) {
            struct choice best = g->choices[first + i];
            g->choices[first + i] = g->choices[shown];
            g->choices[shown] = best;
            g->choices[shown].index = shown;
        }
    }
    pthread_mutex_unlock(&g->api->records.lock);
}

void generation_pick_best(struct generation *g) {
    g->n_cached = n_cached_tokens(g); // while a prompt's choices lie side by side
    g->is_picked = true;
    pick_best(g);
}
