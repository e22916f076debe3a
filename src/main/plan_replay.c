/* plan_replay.c - see plan_replay.h. */
#include "main/plan_replay.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>

static const struct layout *best_of(const struct sizing *s, const struct layout *all, int n) {
    const struct layout *best = &all[0];
    for (int i = 0; i < n; i++) {
        const struct layout_speed *v = &all[i].at[s->n_batches - 1], *b = &best->at[s->n_batches - 1];
        if ((v->fits && !b->fits) || (v->fits == b->fits && v->card_with_prompts > b->card_with_prompts))
            best = &all[i];
    }
    return best;
}

/* Requests/s of the trace as it was, of its first n. */
static double rate_of(const struct trace *t, int n) {
    return n > 1 && t->requests[n - 1].at_s > 0 ? (n - 1) / t->requests[n - 1].at_s : 1;
}

static void print_head(const struct plan_replay *p, const struct trace *t, int n, const struct layout *l, double rate) {
    double n_input = 0, n_output = 0;
    for (int i = 0; i < n; i++)
        n_input += t->requests[i].n_input, n_output += t->requests[i].n_output;
    printf("\nReplay of %s: %d requests for each engine of TP %d, PP %d, of %.0f tokens in and %.0f out in the mean, "
           "%.2f a second and card.\n"
           "The scheduler, the prefix cache and the choice of engines are those of serve; time is computed.\n\n",
           p->trace, n, l->tp, l->pp, n_input / n, n_output / n, rate);
    printf(
        " cards fronts  requests   tokens/s   tokens/s   busy, and   prompts    first token, ms            ms a token"
        "\n                          of answers   a card     idlest %%  cached %%     p50     p90     p99     p50     "
        "p90     p99\n");
}

static void print_result(int cards, const struct replay_result *r) {
    printf("%6d %6d %9lld %10.0f %10.1f  %5.1f %5.1f %9.1f %7.0f %7.0f %7.0f %7.1f %7.1f %7.1f", cards, r->n_fronts,
           (long long)r->n_done, r->tokens_per_s, r->tokens_per_s / cards, 100 * r->busy, 100 * r->least_busy,
           100 * (double)r->n_reused / fmax((double)r->n_input, 1), r->ttft_ms.p50, r->ttft_ms.p90, r->ttft_ms.p99,
           r->tpot_ms.p50, r->tpot_ms.p90, r->tpot_ms.p99);
    if (r->n_refused)
        printf("  (%lld too long)", (long long)r->n_refused);
    if (r->n_preempted)
        printf("  (%lld gave way)", (long long)r->n_preempted);
    printf("\n");
    fflush(stdout);
}

static json_t *percentiles_json(const struct percentiles *p) {
    return json_pack("{s:f, s:f, s:f}", "p50", p->p50, "p90", p->p90, "p99", p->p99);
}

static json_t *result_json(int cards, const struct layout *l, double rate, const struct replay_result *r) {
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:o}", "cards",
                     cards, "fronts", r->n_fronts, "tensor_parallel_size", l->tp, "pipeline_parallel_size", l->pp,
                     "requests_per_s_a_card", rate, "requests", (json_int_t)r->n_done, "refused",
                     (json_int_t)r->n_refused, "input_tokens", (json_int_t)r->n_input, "output_tokens",
                     (json_int_t)r->n_output, "reused_tokens", (json_int_t)r->n_reused, "preempted",
                     (json_int_t)r->n_preempted, "seconds", r->seconds, "tokens_per_s", r->tokens_per_s, "busy",
                     r->busy, "least_busy", r->least_busy, "first_token_ms", percentiles_json(&r->ttft_ms),
                     "ms_a_token", percentiles_json(&r->tpot_ms));
}

static enum status check_cards(const struct plan_replay *p, const struct layout *l, struct error *err) {
    for (size_t i = 0; i < p->n_cards; i++)
        if (p->cards[i] < l->tp * l->pp || p->cards[i] % (l->tp * l->pp) || p->cards[i] > MOST_CARDS)
            return fail(err, ERR_ARG, "--replay-cards: %d cards are not a number of engines of %d cards each",
                        p->cards[i], l->tp * l->pp);
    return OK;
}

enum status plan_replay(const struct plan_replay *p, const struct sizing *s, const struct layout *all, int n,
                        json_t *into, struct error *err) {
    struct trace t;
    const struct layout *l = best_of(s, all, n);
    TRY(check_cards(p, l, err));
    TRY(trace_open(&t, p->trace, err));
    int n_requests = (int)MIN(p->n_requests, (int64_t)t.n), engine = l->tp * l->pp;
    double most = replay_capacity(&t, n_requests, s, l, s->batches[s->n_batches - 1]) / engine;
    double rate = p->rate > 0 ? p->rate : 0.8 * most;
    if (!into)
        print_head(p, &t, n_requests, l, rate);
    for (size_t i = 0; i < p->n_cards; i++) {
        struct replay_result r;
        struct replay_options o = {.sizing = s,
                                   .layout = l,
                                   .n_engines = p->cards[i] / engine,
                                   .n_copies = p->cards[i] / engine,
                                   .n_requests = n_requests,
                                   .speed = rate * engine / rate_of(&t, n_requests),
                                   .max_tokens = (int)p->max_tokens,
                                   .max_seqs = (int)p->max_seqs,
                                   .max_len = p->max_len,
                                   .itl_target_us = p->itl_target_ms * 1e3};
        replay_run(&t, &o, &r);
        if (into)
            json_array_append_new(into, result_json(p->cards[i], l, rate, &r));
        else
            print_result(p->cards[i], &r);
    }
    trace_release(&t);
    return OK;
}
