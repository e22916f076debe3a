/* completions.c - POST /v1/completions. */
#include "api/endpoints.h"
#include "api/logprobs.h"
#include "api/params.h"

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

// ---- the prompt: a text, texts, ids, or lists of ids ------------------------------------------------------------

static enum status prompt_from_ids(const json_t *array, struct token_ids *out, struct error *err) {
    size_t i;
    json_t *item;
    json_array_foreach(array, i, item) {
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > INT32_MAX)
            return fail(err, ERR_ARG, "prompt: it holds something at %zu that is no token id", i);
        token_ids_push(out, (int32_t)id);
    }
    return OK;
}

static enum status prompt_from(struct api *api, const json_t *value, struct token_ids *out, struct error *err) {
    if (json_is_string(value))
        return api_tokenize(api, (struct str){json_string_value(value), json_string_length(value)},
                            ENCODE_ADD_SPECIAL | ENCODE_PARSE_SPECIAL, out, err);
    if (json_is_array(value))
        return prompt_from_ids(value, out, err);
    return fail(err, ERR_ARG, "prompt: it must be a string, an array of strings, an array of token ids or an array of those");
}

/* Whether the array is one prompt of ids, not several prompts. */
static bool is_ids(const json_t *array) { return json_array_size(array) > 0 && json_is_integer(json_array_get(array, 0)); }

static enum status read_prompts(struct generation *g, const json_t *body, int n, struct prompt_ids **out, int *n_out, struct error *err) {
    json_t *value = json_object_get(body, "prompt");
    bool many = json_is_array(value) && !is_ids(value);
    size_t n_prompts = many ? json_array_size(value) : 1;
    if (!value || json_is_null(value))
        return fail(err, ERR_ARG, "prompt: it is missing");
    if (n_prompts == 0)
        return fail(err, ERR_ARG, "prompt: the array is empty");
    if (n_prompts > (size_t)(g->api->options.limits.max_choices / n))
        return fail(err, ERR_ARG, "prompt: %zu prompts with n %d make more than the %lld answers that one request may ask for", n_prompts,
                    n, (long long)g->api->options.limits.max_choices);
    *out = arena_calloc(&g->x->arena, n_prompts, sizeof **out);
    *n_out = (int)n_prompts;
    for (size_t i = 0; i < n_prompts; i++) {
        struct token_ids ids = {0};
        enum status st = prompt_from(g->api, many ? json_array_get(value, i) : value, &ids, err);
        if (st == OK) {
            (*out)[i] = (struct prompt_ids){arena_calloc(&g->x->arena, ids.n, sizeof *ids.ids), ids.n};
            if (ids.n > 0)
                memcpy((*out)[i].ids, ids.ids, ids.n * sizeof *ids.ids);
        }
        token_ids_release(&ids);
        TRY(st);
    }
    return OK;
}

// ---- the handler ------------------------------------------------------------------------------------------------

static void start(struct generation *g, const json_t *body, struct params *p) {
    struct error err;
    struct prompt_ids *prompts = NULL;
    int n_prompts = 0;
    struct gyre_request *r = &p->fields.request;
    if (jv_bool_or(body, "request", "echo", false, &g->echo, &err) != OK || read_prompts(g, body, p->n, &prompts, &n_prompts, &err) != OK) {
        api_reply_fault(g->x, &err);
        return;
    }
    r->score_prompt = g->echo && g->logprobs;
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
