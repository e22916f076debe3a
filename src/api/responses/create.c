/* create.c - POST /v1/responses and /v1/responses/input_tokens. What was said before comes with the input, or is found
 * by previous_response_id; see store.h. */
#include "api/responses/responses.h"

#include "api/endpoints.h"
#include "api/fields/params.h"

#include <stdlib.h>

static const struct field fields[] = {
    {"input", FIELD_READ, NULL},
    {"instructions", FIELD_READ, NULL},
    {"max_output_tokens", FIELD_READ, NULL},
    {"include", FIELD_READ, NULL},
    {"reasoning", FIELD_READ, NULL},
    {"text", FIELD_READ, NULL},
    {"tool_choice", FIELD_READ, NULL},
    {"chat_template_kwargs", FIELD_READ, NULL},
    {"parallel_tool_calls", FIELD_READ, NULL},
    {"max_tool_calls", FIELD_SET_ASIDE, NULL},
    {"prompt_cache_options", FIELD_SET_ASIDE, NULL},
    {"store", FIELD_READ, NULL},
    {"previous_response_id", FIELD_READ, NULL},
    {"background", FIELD_READ, NULL},
    {"truncation", FIELD_READ, NULL},
    {"conversation", FIELD_UNSUPPORTED, NULL},
    {"tools", FIELD_READ, NULL},
    {"prompt", FIELD_UNSUPPORTED, NULL},
    {"context_management", FIELD_UNSUPPORTED, NULL},
    {"moderation", FIELD_UNSUPPORTED, NULL},
    // Those of the other endpoints, for which a response has no place.
    {"n", FIELD_UNSUPPORTED, "1"},
    {"max_tokens", FIELD_UNSUPPORTED, NULL},
    {"logprobs", FIELD_UNSUPPORTED, NULL},
    {"response_format", FIELD_UNSUPPORTED, NULL},
    {NULL, FIELD_READ, NULL},
};

// ---- the other fields -------------------------------------------------------------------------------------------

static enum status read_reasoning(struct generation *g, const json_t *body, json_t *context, struct error *err) {
    json_t *reasoning, *value;
    const char *effort, *name;
    TRY(jv_object_or_null(body, "request", "reasoning", &reasoning, err));
    if (!reasoning)
        return OK;
    TRY(jv_string_or(reasoning, "reasoning", "effort", NULL, &effort, err));
    if (effort)
        json_object_set_new(context, "reasoning_effort", json_string(effort));
    json_object_foreach(reasoning, name, value) {
        if (json_is_null(value) || strcmp(name, "effort") == 0)
            continue;
        if (strcmp(name, "summary") == 0 || strcmp(name, "generate_summary") == 0)
            params_warn(g, "reasoning.summary was ignored: the reasoning is shown whole");
        else if (strcmp(name, "context") == 0)
            params_warn(g, "reasoning.context was ignored: the template keeps or drops earlier reasoning");
        else
            return fail(err, ERR_UNSUPPORTED, "reasoning.%.40s: this server does not support it", name);
    }
    return OK;
}

static enum status read_text(const json_t *body, struct structured *s, struct error *err) {
    json_t *text, *format;
    TRY(jv_object_or_null(body, "request", "text", &text, err));
    if (!text)
        return OK;
    TRY(jv_object_or_null(text, "text", "format", &format, err));
    return format ? structured_read_format(format, "text.format", s, err) : OK;
}

/* As chat completions have them. */
static enum status read_tools(struct generation *g, const json_t *body, json_t *context, struct error *err) {
    json_t *tools;
    int left;
    TRY(responses_read_tools(body, &tools, &left, err));
    enum status st = chat_leave_tools(g, body, left, json_object_get(body, "tool_choice"), tools, err);
    if (st == OK)
        st = tool_ask_choose(body, tools, &g->tools, err);
    chat_put_tools(g, tools_shown(tools), context);
    json_decref(tools);
    return st;
}

/* What is not there to be included (results of tools, encrypted reasoning) is left out. */
static enum status read_include(struct generation *g, const json_t *body, struct gyre_request *r, struct error *err) {
    json_t *include, *item;
    size_t i;
    TRY(jv_array_or_null(body, "request", "include", &include, err));
    g->logprobs = false;
    json_array_foreach(include, i, item) {
        if (!json_is_string(item))
            return fail(err, ERR_ARG, "include[%zu]: it must be a string", i);
        g->logprobs |= strcmp(json_string_value(item), "message.output_text.logprobs") == 0;
    }
    r->logprobs = g->logprobs;
    if (!g->logprobs)
        g->n_top = r->n_top_logprobs = 0;
    return OK;
}

static enum status read_max_tokens(const json_t *body, struct gyre_request *r, struct error *err) {
    int64_t n;
    TRY(jv_int_or(body, "request", "max_output_tokens", 1, INT64_MAX, -1, &n, err));
    r->max_tokens = n; // -1: to the end of the context
    return OK;
}

// ---- the echo ---------------------------------------------------------------------------------------------------

static enum status check_metadata(const json_t *body, struct error *err) {
    enum { PAIRS = 16, KEY = 64, VALUE = 512 }; // OpenAI's
    json_t *metadata, *value;
    const char *key;
    TRY(jv_object_or_null(body, "request", "metadata", &metadata, err));
    if (json_object_size(metadata) > PAIRS)
        return fail(err, ERR_ARG, "metadata: it has %zu pairs, at most %d are allowed", json_object_size(metadata),
                    PAIRS);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value) || json_string_length(value) > VALUE || strlen(key) > KEY)
            return fail(err, ERR_ARG, "metadata: keys are at most %d bytes, values strings of at most %d", KEY, VALUE);
    }
    return OK;
}

/* What means nothing here is given back, several times in a stream; so it must be what it should be, and short. */
static enum status check_echoed(const json_t *body, struct error *err) {
    enum { LONGEST = 512 };
    static const char *const texts[] = {"user", "safety_identifier", "prompt_cache_key", "service_tier"};
    const char *text;
    int64_t n;
    bool b;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        TRY(jv_string_or(body, "request", texts[i], "", &text, err));
        if (strlen(text) > LONGEST)
            return fail(err, ERR_ARG, "%s: it has %zu bytes, at most %d are allowed", texts[i], strlen(text), LONGEST);
    }
    TRY(jv_int_or(body, "request", "max_tool_calls", 0, INT64_MAX, 0, &n, err));
    TRY(jv_bool_or(body, "request", "parallel_tool_calls", true, &b, err));
    return check_metadata(body, err);
}

static json_t *given_or(const json_t *body, const char *name, json_t *take_fallback) {
    json_t *value = json_object_get(body, name);
    if (!value || json_is_null(value))
        return take_fallback;
    json_decref(take_fallback);
    return json_incref(value);
}

/* The format that was asked for, as it was. */
static json_t *echo_text(const json_t *body) {
    json_t *format = json_object_get(json_object_get(body, "text"), "format");
    return json_is_object(format) ? json_pack("{s:O}", "format", format)
                                  : json_pack("{s:{s:s}}", "format", "type", "text");
}

static char *make_echo(struct arena *arena, const json_t *body, const struct gyre_request *r,
                       const struct response *response) {
    json_t *reasoning = json_object_get(body, "reasoning"), *echo = json_object();
    static const char *const or_null[] = {"instructions",      "max_output_tokens", "max_tool_calls",
                                          "safety_identifier", "prompt_cache_key",  "service_tier"};
    for (size_t i = 0; i < ARRAY_LEN(or_null); i++)
        json_object_set_new(echo, or_null[i], given_or(body, or_null[i], json_null()));
    if (json_is_string(json_object_get(body, "user"))) // null is not in OpenAI's schema
        json_object_set(echo, "user", json_object_get(body, "user"));
    json_object_set_new(echo, "metadata", given_or(body, "metadata", json_object()));
    json_object_set_new(echo, "temperature", given_or(body, "temperature", json_real((double)r->temperature)));
    json_object_set_new(echo, "top_p", given_or(body, "top_p", json_real((double)r->top_p)));
    json_object_set_new(echo, "top_logprobs", given_or(body, "top_logprobs", json_integer(0)));
    json_object_set_new(echo, "parallel_tool_calls", given_or(body, "parallel_tool_calls", json_true()));
    json_object_set_new(echo, "tool_choice", given_or(body, "tool_choice", json_string("auto")));
    json_object_set_new(echo, "tools", given_or(body, "tools", json_array()));
    json_object_set_new(echo, "text", echo_text(body));
    json_object_set_new(echo, "reasoning",
                        json_pack("{s:o, s:n}", "effort", given_or(reasoning, "effort", json_null()), "summary"));
    json_object_set_new(echo, "truncation", given_or(body, "truncation", json_string("disabled")));
    json_object_set_new(echo, "store", json_boolean(response->stored));
    json_object_set_new(echo, "background", json_boolean(response->in_background));
    json_object_set_new(echo, "previous_response_id", given_or(body, "previous_response_id", json_null()));
    char *text = json_dumps(echo, JSON_COMPACT | JSON_REAL_PRECISION(15));
    BUG_IF(!text);
    size_t n = strlen(text);
    char *members = arena_strdup(arena, (struct str){text + 1, n - 2});
    free(text);
    json_decref(echo);
    return members;
}

// ---- the prompt -------------------------------------------------------------------------------------------------

enum { MOST_BEFORE = 64 << 20 }; // bytes, of the values of what a conversation had before

/* The turn that the response goes on from, which is held from here on. */
static enum status find_before(struct generation *g, const json_t *body, struct error *err) {
    struct response *r = g->own;
    const char *id;
    TRY(jv_string_or(body, "request", "previous_response_id", NULL, &id, err));
    return id ? response_store_find(g->api->responses, responses_tenant(g->x), id, &r->before, err) : OK;
}

static enum status read_truncation(const json_t *body, bool *is_auto, struct error *err) {
    const char *word;
    TRY(jv_string_or(body, "request", "truncation", "disabled", &word, err));
    *is_auto = strcmp(word, "auto") == 0;
    if (!*is_auto && strcmp(word, "disabled") != 0)
        return fail(err, ERR_ARG, "truncation: \"%.40s\" is neither \"auto\" nor \"disabled\"", word);
    return OK;
}

static enum status read_conversation(struct generation *g, const json_t *body, json_t *context, struct error *err) {
    const struct response *r = g->own;
    json_t *before = json_array(), *messages = json_array();
    size_t budget = MOST_BEFORE;
    json_object_set_new(context, "messages", messages);
    enum status st = r->before ? turn_items(r->before, &budget, before, err) : OK;
    if (st == OK)
        st = responses_read_input(body, before, messages, err);
    if (st == OK)
        st = read_tools(g, body, context, err);
    if (st == OK)
        st = read_reasoning(g, body, context, err);
    json_decref(before);
    return st;
}

static enum status make_prompt(struct generation *g, const json_t *body, int64_t max_tokens, struct prompt_ids *out,
                               struct error *err) {
    json_t *kwargs;
    bool truncates;
    TRY(read_truncation(body, &truncates, err));
    TRY(jv_object_or_null(body, "request", "chat_template_kwargs", &kwargs, err));
    TRY(find_before(g, body, err));
    json_t *context = kwargs ? json_copy(kwargs) : json_object();
    struct chat_ask ask = {context, CHAT_ASKS, NULL};
    enum status st = read_conversation(g, body, context, err);
    if (st == OK)
        st = truncates ? responses_truncated_prompt(g, context, max_tokens, out, err) : chat_prompt(g, &ask, out, err);
    json_decref(context);
    return st;
}

// ---- the handler ------------------------------------------------------------------------------------------------

/* Stored unless told otherwise, as OpenAI has it. In the background nobody waits for it, so it must be found later. */
static enum status read_storing(const struct generation *g, const json_t *body, struct response *r, struct error *err) {
    TRY(jv_bool_or(body, "request", "store", true, &r->stored, err));
    TRY(jv_bool_or(body, "request", "background", false, &r->in_background, err));
    if (r->in_background && !r->stored)
        return fail(err, ERR_ARG, "background: only what is stored, so not with \"store\": false");
    size_t most = response_store_max(g->api->responses);
    r->stored &= most > 0;
    if (r->in_background && most == 0)
        return fail(err, ERR_UNSUPPORTED,
                    "background: this server stores no responses, so it could not be found later");
    if (r->in_background && g->stream)
        return fail(err, ERR_UNSUPPORTED,
                    "background: a response in the background is not streamed here; ask for it with GET");
    return OK;
}

static void keep_input(struct generation *g, const json_t *body, struct response *r) {
    if (!r->stored)
        return;
    json_t *items = responses_input_items(body);
    char *text = json_dumps(items, JSON_COMPACT);
    BUG_IF(!text);
    r->input = str_of(arena_strdup(&g->x->arena, str_of(text)));
    free(text);
    json_decref(items);
}

static enum status read_request(struct generation *g, const json_t *body, struct params *p, struct prompt_ids *prompt,
                                struct error *err) {
    struct response *response = g->own;
    struct gyre_request *r = &p->fields.request;
    TRY(read_text(body, &p->structured, err));
    TRY(read_include(g, body, r, err));
    TRY(read_max_tokens(body, r, err));
    TRY(check_echoed(body, err));
    TRY(read_storing(g, body, response, err));
    TRY(make_prompt(g, body, r->max_tokens, prompt, err));
    TRY(tool_ask_bind(&g->tools, g->format, g->opened, &p->structured, err));
    TRY(params_compile_structured(g, p, NULL, err));
    api_new_id("rs_", response->reasoning_id);
    api_new_id("msg_", response->message_id);
    response->echo = make_echo(&g->x->arena, body, r, response);
    keep_input(g, body, response);
    return OK;
}

static void refuse(struct generation *g, const struct error *err) {
    generation_drop(g);
    response_store_release(g->api->responses, ((struct response *)g->own)->before);
    api_reply_fault(g->x, err);
}

static void refuse_background(struct http_exchange *x, size_t most) {
    struct error err;
    fail(&err, ERR_LIMIT, "background: at most %zu bytes are stored, so this response could not be found later", most);
    api_reply_fault(x, &err);
}

/* Nobody waits any more: the exchange is answered, and held until the answer is stored. */
static void go_on_in_background(struct generation *g) {
    struct buf body = {0};
    bool is_stored = responses_store_started(g);
    g->goes_on = true; // not before: where memory ran out so far, it has no texts, or nobody could find it
    if (!is_stored) {
        generation_abort(g);
        refuse_background(g->x, response_store_max(g->api->responses));
        return;
    }
    responses_write_started(g, "queued", &body);
    api_reply_json(g->x, 200, buf_view(&body));
    buf_release(&body);
}

static void start(struct generation *g, const json_t *body, struct params *p) {
    struct error err;
    struct prompt_ids prompt;
    g->include_usage = true;
    if (read_request(g, body, p, &prompt, &err) != OK) {
        refuse(g, &err);
        return;
    }
    g->detached = ((const struct response *)g->own)->in_background; // before others see it
    generation_start(g, &p->fields.request, &prompt, 1, 1);
    if (g->x->user == g && g->detached)
        go_on_in_background(g);
}

static struct generation *new_generation(struct http_exchange *x) {
    struct generation *g = arena_alloc(&x->arena, sizeof *g);
    *g = (struct generation){
        .api = api_of(x), .x = x, .dialect = &responses_dialect, .model = api_of(x)->options.names[0], .warnings = ""};
    g->own = arena_calloc(&x->arena, 1, sizeof(struct response));
    return g;
}

void endpoint_responses(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    struct generation *g = new_generation(x);
    struct params p = {0};
    if (api_check_model(x, body) && params_read(g, body, fields, &p))
        start(g, body, &p);
    params_release(&p);
    json_decref(body);
}

/* The same prompt, counted. */
static void count_tokens(struct generation *g, const json_t *body) {
    struct error err;
    struct prompt_ids prompt;
    if (params_check_fields(g, body, fields, true, &err) != OK || make_prompt(g, body, -1, &prompt, &err) != OK) {
        refuse(g, &err);
        return;
    }
    generation_drop(g);
    response_store_release(g->api->responses, ((struct response *)g->own)->before);
    struct buf out = {0};
    buf_printf(&out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", prompt.n);
    api_reply_json(g->x, 200, buf_view(&out));
    buf_release(&out);
}

void endpoint_input_tokens(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    if (api_check_model(x, body))
        count_tokens(new_generation(x), body);
    json_decref(body);
}
