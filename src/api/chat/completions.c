/* completions.c - POST /v1/completions. */
#include "api/answer/echo.h"
#include "api/answer/logprobs.h"
#include "api/chat/openai_answer.h"
#include "api/endpoints.h"
#include "api/fields/extensions.h"

// clang-format off
static const struct field fields[] = {
    {"prompt", FIELD_READ, NULL},
    {"top_logprobs", FIELD_UNSUPPORTED, "0"}, // completions say it in logprobs
    {"best_of", FIELD_READ, NULL},
    EXTENSION_FIELDS,
    {"suffix", FIELD_UNSUPPORTED, "\"\""},
    {"prompt_embeds", FIELD_UNSUPPORTED, NULL},
    {"response_format", FIELD_READ, NULL},
    {NULL, FIELD_READ, NULL},
};
// clang-format on

static const char OBJECT[] = "text_completion"; // of chunks too

// ---- writing ----------------------------------------------------------------------------------------------------

static void write_ids(const struct choice *c, struct buf *out) {
    if (!c->generation->return_ids) {
        if (!c->generation->stream)
            buf_str(out, STR(",\"token_ids\":null,\"prompt_token_ids\":null"));
        return;
    }
    openai_token_ids(c, out);
    if (c->started)
        return;
    buf_str(out, STR(",\"prompt_token_ids\":"));
    logprobs_write_ids(c->prompt, c->n_prompt, out);
}

/* The text of prompt and answer. */
static void write_echo(const struct echo *echo, const struct choice *c, struct buf *out) {
    struct buf text = {0};
    buf_str(&text, buf_view(&echo->text));
    buf_str(&text, buf_view(&c->content));
    buf_json_string(out, buf_view(&text));
    buf_release(&text);
}

static void write_choice(struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    bool with_prompt = g->echo && !c->started;
    struct echo echo = {0};
    if (with_prompt)
        echo_make(c, &echo);
    buf_str(out, STR("{\"index\":"));
    buf_int(out, c->index);
    buf_str(out, STR(",\"text\":"));
    if (with_prompt)
        write_echo(&echo, c, out);
    else
        buf_json_string(out, buf_view(&c->content));
    buf_str(out, STR(",\"logprobs\":"));
    if (g->logprobs)
        logprobs_write_completion(c, with_prompt ? &echo : NULL, out);
    else
        buf_str(out, STR("null"));
    openai_finish(c, STR(",\"finish_reason\":null,\"stop_reason\":null"), out);
    write_ids(c, out);
    if (!g->stream) {
        buf_str(out, STR(",\"prompt_logprobs\":"));
        logprobs_write_prompt(c, out);
    }
    buf_push(out, '}');
    echo_release(&echo);
}

static void write_chunk(struct choice *c, struct buf *out) {
    struct generation *g = c->generation;
    openai_chunk_head(g, OBJECT, out);
    write_choice(c, out);
    buf_push(out, ']');
    if (!c->started)
        openai_warnings(g, out);
    openai_chunk_end(g, out);
}

static void write_last(struct generation *g, struct buf *out) { openai_last_chunk(g, OBJECT, out); }

static void write_body(struct generation *g, struct buf *out) {
    openai_head(g, OBJECT, out);
    buf_str(out, STR(",\"choices\":["));
    for (int i = 0; i < g->n_shown; i++) {
        if (i)
            buf_push(out, ',');
        write_choice(&g->choices[i], out);
    }
    buf_str(out, STR("],"));
    generation_usage(g, out);
    buf_str(out, STR(",\"service_tier\":null,\"kv_transfer_params\":null"));
    openai_warnings(g, out);
    buf_push(out, '}');
}

static const struct dialect dialect = {"cmpl-", write_chunk, write_last, write_body};

// ---- the handler ------------------------------------------------------------------------------------------------

enum { OPENAI_MAX_TOKENS = 16 }; // of a request that does not say

static bool says_max_tokens(const json_t *body) {
    const json_t *n = json_object_get(body, "max_tokens");
    return n && !json_is_null(n);
}

/* Nobody asked for the default, so it gives way to a prompt that leaves less; the service refuses one that leaves
 * nothing. */
static void fit_default(const struct generation *g, const struct prompt_ids *prompts, int n, struct gyre_request *r) {
    int64_t room = service_info(g->api->service)->max_model_len;
    for (int i = 0; i < n; i++)
        room = MIN(room, service_info(g->api->service)->max_model_len - (int64_t)prompts[i].n);
    r->max_tokens = room > 0 ? MIN(r->max_tokens, room) : -1;
}

/* Here logprobs is how many; true is chat's word. */
static enum status check_logprobs(const json_t *body, struct error *err) {
    const json_t *value = json_object_get(body, "logprobs");
    return json_is_true(value)
               ? fail(err, ERR_ARG, "logprobs: completions want a number of tokens, 0 to %d", GYRE_MAX_TOP_LOGPROBS)
               : OK;
}

/* n of best_of answers are shown, so that none can be before all are there. */
static enum status read_best_of(struct generation *g, const json_t *body, struct params *p, struct error *err) {
    int64_t best_of;
    TRY(jv_int_or(body, "request", "best_of", 1, g->api->options.limits.max_choices, p->n, &best_of, err));
    if (best_of < p->n)
        return fail(err, ERR_ARG, "best_of: %lld is less than n, %d", (long long)best_of, p->n);
    if (best_of == p->n)
        return OK;
    if (g->stream)
        return fail(err, ERR_ARG,
                    "best_of: which of %lld answers are the best is known at their end, so they cannot be streamed",
                    (long long)best_of);
    g->n_best = p->n;
    p->n = (int)best_of;
    p->fields.request.logprobs = true;
    return OK;
}

static enum status read_prompts(struct generation *g, const json_t *body, struct params *p, struct prompt_ids **out,
                                int *n, struct error *err) {
    struct extensions e;
    struct gyre_request *r = &p->fields.request;
    TRY(check_logprobs(body, err));
    TRY(read_best_of(g, body, p, err));
    TRY(extensions_read(g, body, true, p, &e, err));
    struct prompt_source source = {"prompt",
                                   ENCODE_PARSE_SPECIAL | (e.add_special ? ENCODE_ADD_SPECIAL : 0),
                                   g->api->options.limits.max_choices / p->n,
                                   "answers that one request may ask for (n or best_of of each)",
                                   e.cut,
                                   g->echo};
    TRY(prompts_read(g->x, body, &source, out, n, err));
    if (!says_max_tokens(body))
        fit_default(g, *out, *n, r);
    if (g->echo && g->logprobs) {
        r->score_prompt = true;
        r->n_prompt_top_logprobs = MAX(r->n_prompt_top_logprobs, r->n_top_logprobs);
    }
    return OK;
}

static void start(struct generation *g, const json_t *body, struct params *p) {
    struct error err;
    struct prompt_ids *prompts = NULL;
    int n_prompts = 0;
    if (read_prompts(g, body, p, &prompts, &n_prompts, &err) != OK)
        api_reply_fault(g->x, &err);
    else
        extensions_start(g, body, p, prompts, n_prompts);
}

void endpoint_completions(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    struct generation *g = arena_alloc(&x->arena, sizeof *g);
    *g = (struct generation){
        .api = api_of(x), .x = x, .dialect = &dialect, .model = api_of(x)->options.names[0], .warnings = ""};
    struct params p = {0};
    if (api_check_model(x, body) && params_read(g, body, fields, &p)) {
        if (!says_max_tokens(body))
            p.fields.request.max_tokens = OPENAI_MAX_TOKENS;
        start(g, body, &p);
    }
    params_release(&p);
    json_decref(body);
}
