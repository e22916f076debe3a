/* answer.c - see answer.h. */
#include "main/run/answer.h"

#include "console/terminal.h"
#include "main/flags/engine_flags.h"

#include <math.h>
#include <stdio.h>

void answer_init(struct answer *a, const struct tokenizer *tok, const char *const *stop, size_t n_stop) {
    *a = (struct answer){.detokenizer = tok ? detokenizer_open(tok, DETOKENIZE_SKIP_SPECIAL) : NULL};
    stop_filter_init(&a->stop, stop, n_stop);
}

void answer_release(struct answer *a) {
    detokenizer_free(a->detokenizer);
    stop_filter_release(&a->stop);
    token_ids_release(&a->prompt);
    token_ids_release(&a->ids);
    buf_release(&a->text);
    buf_release(&a->logprobs);
    *a = (struct answer){0};
}

enum status answer_submit(struct answer *a, struct gyre *g, const struct gyre_request *request, struct error *err) {
    struct gyre_error e;
    a->request = *request;
    for (int64_t i = 0; i < request->n_prompt; i++)
        token_ids_push(&a->prompt, request->prompt[i]);
    if (a->detokenizer)
        TRY(detokenizer_begin_after(a->detokenizer, a->prompt.ids, a->prompt.n, err));
    return gyre_submit(g, &a->request, &a->id, &e) == 0 ? OK : engine_fault(&e, err);
}

// ---- events -----------------------------------------------------------------------------------------------------

static void append_logprob(struct answer *a, const struct gyre_event *e) {
    struct buf *out = &a->logprobs;
    if (out->len > 0)
        buf_push(out, ',');
    buf_printf(out, "{\"id\":%d,\"logprob\":", e->token);
    json_float(e->logprob, out);
    if (e->n_top > 0)
        buf_str(out, STR(",\"top\":["));
    for (int i = 0; i < e->n_top; i++) {
        buf_printf(out, "%s{\"id\":%d,\"logprob\":", i ? "," : "", e->top_tokens[i]);
        json_float(e->top_logprobs[i], out);
        buf_push(out, '}');
    }
    buf_str(out, e->n_top > 0 ? STR("]}") : STR("}"));
}

/* Stop strings count only once min_tokens are there. */
static void append_text(struct answer *a, struct gyre *g, struct str piece) {
    if ((int64_t)a->ids.n <= a->request.min_tokens) {
        buf_str(&a->text, piece);
        return;
    }
    if (!a->stopped && stop_filter_feed(&a->stop, piece, &a->text)) {
        a->stopped = true;
        gyre_cancel(g, a->id);
    }
}

static enum status take_token(struct answer *a, struct gyre *g, const struct gyre_event *e, struct error *err) {
    token_ids_push(&a->ids, e->token);
    if (a->request.logprobs)
        append_logprob(a, e);
    if (!a->detokenizer || e->stops) // the token that ends an answer is no part of its text
        return OK;
    struct buf piece = {0};
    enum status st = detokenizer_feed(a->detokenizer, e->token, &piece, err);
    if (st == OK)
        append_text(a, g, buf_view(&piece));
    buf_release(&piece);
    return st;
}

static enum status take_done(struct answer *a, struct gyre *g, const struct gyre_event *e, struct error *err) {
    a->done = true;
    a->finish = e->finish;
    a->timing = e->timing;
    if (e->finish == GYRE_FAILED)
        return fail(err, ERR_DEVICE, "%s", e->error);
    if (!a->detokenizer || a->stopped)
        return OK;
    struct buf piece = {0};
    enum status st = detokenizer_finish(a->detokenizer, &piece, err);
    if (st == OK)
        append_text(a, g, buf_view(&piece));
    stop_filter_finish(&a->stop, &a->text);
    buf_release(&piece);
    return st;
}

enum status answer_take(struct answer *a, struct gyre *g, const struct gyre_event *e, struct error *err) {
    enum status st = OK;
    if (e->kind == GYRE_TOKEN)
        st = take_token(a, g, e, err);
    else if (e->kind == GYRE_DONE)
        st = take_done(a, g, e, err);
    if (st != OK && !a->done)
        gyre_cancel(g, a->id);
    return st;
}

void answer_print(const struct answer *a, size_t *printed) {
    if (a->text.len == *printed)
        return;
    terminal_print(stdout, (struct str){a->text.ptr + *printed, a->text.len - *printed});
    fflush(stdout);
    *printed = a->text.len;
}

// ---- results ----------------------------------------------------------------------------------------------------

const char *answer_finish_reason(const struct answer *a) {
    if (a->stopped || a->finish == GYRE_STOP)
        return "stop";
    return a->finish == GYRE_LENGTH ? "length" : "cancelled";
}

static double rate(int64_t n, int64_t us) { return n > 0 && us > 0 ? (double)n * 1e6 / (double)us : 0; }

double answer_prompt_rate(const struct answer *a) {
    return rate((int64_t)a->prompt.n - a->timing.n_reused, a->timing.prompt_us);
}

double answer_decode_rate(const struct answer *a) { return rate((int64_t)a->ids.n - 1, a->timing.decode_us); }

void json_ids(const int32_t *ids, size_t n, struct buf *out) {
    buf_push(out, '[');
    for (size_t i = 0; i < n; i++)
        buf_printf(out, i ? ",%d" : "%d", ids[i]);
    buf_push(out, ']');
}

void json_float(float x, struct buf *out) {
    if (isfinite(x))
        buf_printf(out, "%.9g", (double)x);
    else
        buf_str(out, STR("null"));
}

static void json_timings(const struct answer *a, struct buf *out) {
    const struct gyre_timing *t = &a->timing;
    buf_printf(out, "{\"queue_ms\":%.3f,\"prompt_ms\":%.3f,\"decode_ms\":%.3f,", (double)t->queue_us / 1e3,
               (double)t->prompt_us / 1e3, (double)t->decode_us / 1e3);
    buf_printf(out, "\"prompt_tokens\":%zu,\"reused_tokens\":%lld,\"decode_tokens\":%zu,", a->prompt.n,
               (long long)t->n_reused, a->ids.n);
    buf_printf(out, "\"prompt_tokens_per_s\":%.2f,\"decode_tokens_per_s\":%.2f}", answer_prompt_rate(a),
               answer_decode_rate(a));
}

void answer_json(const struct answer *a, struct buf *out) {
    buf_str(out, STR("{\"prompt_ids\":"));
    json_ids(a->prompt.ids, a->prompt.n, out);
    buf_str(out, STR(",\"ids\":"));
    json_ids(a->ids.ids, a->ids.n, out);
    buf_str(out, STR(",\"text\":"));
    if (a->detokenizer)
        buf_json_string(out, buf_view(&a->text));
    else
        buf_str(out, STR("null"));
    if (a->request.logprobs)
        buf_printf(out, ",\"logprobs\":[%.*s]", STR_ARG(buf_view(&a->logprobs)));
    buf_printf(out, ",\"finish_reason\":\"%s\",\"timings\":", answer_finish_reason(a));
    json_timings(a, out);
    buf_push(out, '}');
}
