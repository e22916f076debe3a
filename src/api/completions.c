/* completions.c - POST /v1/completions. */
#include "api/endpoints.h"
#include "api/logprobs.h"
#include "api/params.h"
#include "api/prompts.h"

static const struct field fields[] = {
    {"prompt", FIELD_READ, NULL},
    {"echo", FIELD_READ, NULL},
    {"suffix", FIELD_UNSUPPORTED, "\"\""},
    {"prompt_embeds", FIELD_UNSUPPORTED, NULL},
    {"response_format", FIELD_UNSUPPORTED, "{\"type\":\"text\"}"},
    {NULL, FIELD_READ, NULL},
};

// ---- writing ----------------------------------------------------------------------------------------------------

static void write_head(const struct generation *g, struct buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", g->id, (long long)g->created);
    buf_json_string(out, str_of(g->model));
}

static void write_end(const struct choice *c, struct buf *out) {
    if (!c->ended) {
        buf_str(out, STR(",\"finish_reason\":null,\"stop_reason\":null"));
        return;
    }
    buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", c->finish_reason);
    if (c->stop_string)
        buf_json_string(out, str_of(c->stop_string));
    else
        buf_str(out, STR("null"));
}

static void write_choice(struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    bool with_prompt = g->echo && !c->started;
    struct buf text = {0};
    if (with_prompt)
        for (int32_t i = 0; i < c->n_prompt; i++)
            tokenizer_token_bytes(g->api->options.tokenizer, c->prompt[i], &text);
    buf_str(&text, buf_view(&c->content));
    buf_printf(out, "{\"index\":%d,\"text\":", c->index);
    buf_json_string(out, buf_view(&text));
    buf_release(&text);
    buf_str(out, STR(",\"logprobs\":"));
    if (g->logprobs)
        logprobs_write_completion(c, with_prompt, out);
    else
        buf_str(out, STR("null"));
    write_end(c, out);
    buf_push(out, '}');
}

static void write_warnings(const struct generation *g, struct buf *out) {
    if (*g->warnings)
        buf_printf(out, ",\"warnings\":[%s]", g->warnings);
}

static void write_chunk(struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    buf_str(out, STR("data: "));
    write_head(g, out);
    buf_str(out, STR(",\"choices\":["));
    write_choice(c, out);
    buf_push(out, ']');
    if (!c->started)
        write_warnings(g, out);
    if (g->continuous_usage) {
        buf_push(out, ',');
        generation_usage(g, out);
    }
    buf_str(out, STR("}\n\n"));
}

static void write_last(struct generation *g, struct buf *out) {
    buf_str(out, STR("data: "));
    write_head(g, out);
    buf_str(out, STR(",\"choices\":[],"));
    generation_usage(g, out);
    buf_str(out, STR("}\n\n"));
}

static void write_body(struct generation *g, struct buf *out) {
    write_head(g, out);
    buf_str(out, STR(",\"choices\":["));
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            buf_push(out, ',');
        write_choice(&g->choices[i], out);
    }
    buf_str(out, STR("],"));
    generation_usage(g, out);
    write_warnings(g, out);
    buf_push(out, '}');
}

static const struct dialect dialect = {"cmpl-", write_chunk, write_last, write_body};

// ---- the handler ------------------------------------------------------------------------------------------------

static void start(struct generation *g, const json_t *body, struct params *p) {
    struct error err;
    struct prompt_ids *prompts = NULL;
    int n_prompts = 0;
    struct gyre_request *r = &p->fields.request;
    struct prompt_source source = {"prompt", ENCODE_ADD_SPECIAL | ENCODE_PARSE_SPECIAL, g->api->options.limits.max_choices / p->n,
                                   "answers that one request may ask for (n of each)"};
    if (jv_bool_or(body, "request", "echo", false, &g->echo, &err) != OK ||
        prompts_read(g->x, body, &source, &prompts, &n_prompts, &err) != OK) {
        api_reply_fault(g->x, &err);
        return;
    }
    r->score_prompt = g->echo && g->logprobs;
    r->n_prompt_top_logprobs = r->score_prompt ? r->n_top_logprobs : 0;
    generation_start(g, r, prompts, n_prompts, p->n);
}

void endpoint_completions(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    struct generation *g = arena_alloc(&x->arena, sizeof *g);
    *g = (struct generation){.api = api_of(x), .x = x, .dialect = &dialect, .model = api_of(x)->options.names[0], .warnings = ""};
    struct params p = {0};
    if (api_check_model(x, body) && params_read(g, body, fields, &p)) {
        const json_t *max_tokens = json_object_get(body, "max_tokens");
        if (!max_tokens || json_is_null(max_tokens))
            p.fields.request.max_tokens = 16; // OpenAI's default
        start(g, body, &p);
    }
    params_release(&p);
    json_decref(body);
}
