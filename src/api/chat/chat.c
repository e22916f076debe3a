/* chat.c - POST /v1/chat/completions. */
#include "api/answer/logprobs.h"
#include "api/chat/chat_prompt.h"
#include "api/chat/openai_answer.h"
#include "api/endpoints.h"
#include "api/fields/extensions.h"

static const struct field fields[] = {
    {"messages", FIELD_READ, NULL},
    {"max_completion_tokens", FIELD_READ, NULL},
    {"chat_template_kwargs", FIELD_READ, NULL},
    {"add_generation_prompt", FIELD_READ, NULL},
    {"continue_final_message", FIELD_READ, NULL},
    {"documents", FIELD_READ, NULL},
    {"reasoning_effort", FIELD_READ, NULL},
    {"parallel_tool_calls", FIELD_READ, NULL},
    {"verbosity", FIELD_SET_ASIDE, NULL},
    {"tools", FIELD_READ, NULL},
    {"tool_choice", FIELD_READ, NULL},
    {"functions", FIELD_UNSUPPORTED, NULL},
    {"function_call", FIELD_UNSUPPORTED, "\"none\""},
    {"response_format", FIELD_READ, NULL},
    {"modalities", FIELD_UNSUPPORTED, "[\"text\"]"},
    {"audio", FIELD_UNSUPPORTED, NULL},
    {"moderation", FIELD_UNSUPPORTED, NULL},
    {"prompt_cache_options", FIELD_SET_ASIDE, NULL},
    {"web_search_options", FIELD_UNSUPPORTED, NULL},
    EXTENSION_FIELDS,
    {"chat_template", FIELD_READ, NULL},
    {NULL, FIELD_READ, NULL},
};

static const char CHUNK[] = "chat.completion.chunk";

// ---- writing ----------------------------------------------------------------------------------------------------

static void write_text_field(const char *name, struct str text, bool *first, struct buf *out) {
    buf_str(out, *first ? STR("\"") : STR(",\""));
    buf_str(out, str_of(name));
    buf_str(out, STR("\":"));
    buf_json_string(out, text);
    *first = false;
}

static void write_logprobs(const struct choice *c, struct buf *out) {
    buf_str(out, STR(",\"logprobs\":"));
    if (c->generation->logprobs && c->n_seen > c->n_written)
        logprobs_write_chat(c, out);
    else
        buf_str(out, STR("null"));
}

static void write_end(const struct choice *c, struct buf *out) {
    openai_finish(c, STR(",\"finish_reason\":null"), out);
}

static void write_ids(const struct choice *c, struct buf *out) {
    if (c->generation->return_ids)
        openai_token_ids(c, out);
    else if (!c->generation->stream)
        buf_str(out, STR(",\"token_ids\":null"));
}

/* The prompt is the same for all choices, so it stands beside them. */
static void write_prompt_ids(const struct generation *g, struct buf *out) {
    if (g->return_ids) {
        buf_str(out, STR(",\"prompt_token_ids\":"));
        logprobs_write_ids(g->choices[0].prompt, g->choices[0].n_prompt, out);
    } else if (!g->stream) {
        buf_str(out, STR(",\"prompt_token_ids\":null"));
    }
}

/* The text of the answer; with echo the message that it continues comes first. */
static void write_content(const struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    if (!g->echo || c->started) {
        buf_json_string(out, buf_view(&c->content));
        return;
    }
    struct buf text = {0};
    buf_str(&text, str_of(g->own));
    buf_str(&text, buf_view(&c->content));
    buf_json_string(out, buf_view(&text));
    buf_release(&text);
}

/* The role comes alone, with empty content, as clients expect of the first chunk. */
static void write_role(struct choice *c, struct buf *out) {
    openai_chunk_head(c->generation, CHUNK, out);
    buf_printf(
        out,
        "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]",
        c->index);
    write_prompt_ids(c->generation, out);
    openai_warnings(c->generation, out);
    if (c->generation->continuous_usage) {
        buf_push(out, ',');
        generation_usage_before(c, out);
    }
    buf_str(out, STR("}\n\n"));
}

static void begin_delta(struct choice *c, struct buf *out) {
    openai_chunk_head(c->generation, CHUNK, out);
    buf_str(out, STR("{\"index\":"));
    buf_int(out, c->index);
    buf_str(out, STR(",\"delta\":{"));
}

static void end_chunk(struct generation *g, struct buf *out) {
    buf_str(out, STR("}]"));
    openai_chunk_end(g, out);
}

/* A chunk in which nothing ends. */
static void end_open_delta(struct choice *c, struct buf *out) {
    buf_str(out, STR("},\"logprobs\":null,\"finish_reason\":null"));
    end_chunk(c->generation, out);
}

/* Its type, and what is called so: {"name", "arguments"}, of a custom tool {"name", "input"}. */
static void write_called(const struct tool_call *call, struct str text, struct buf *out) {
    const char *type = call->is_custom ? "custom" : "function";
    buf_printf(out, ",\"type\":\"%s\",\"%s\":{\"name\":", type, type);
    buf_json_string(out, str_of(call->name));
    buf_str(out, call->is_custom ? STR(",\"input\":") : STR(",\"arguments\":"));
    buf_json_string(out, text);
    buf_push(out, '}');
}

/* Its beginning, without arguments, comes alone. */
static void write_call_begin(struct choice *c, int i, struct buf *out) {
    const struct tool_call *call = &c->calls.all[i];
    begin_delta(c, out);
    buf_printf(out, "\"tool_calls\":[{\"index\":%d,\"id\":", i);
    buf_json_string(out, str_of(call->id));
    write_called(call, STR(""), out);
    buf_str(out, STR("}]"));
    end_open_delta(c, out);
}

static void write_call_arguments(struct choice *c, int i, struct buf *out) {
    begin_delta(c, out);
    buf_printf(out, "\"tool_calls\":[{\"index\":%d,%s", i,
               c->calls.all[i].is_custom ? "\"custom\":{\"input\":" : "\"function\":{\"arguments\":");
    buf_json_string(out, tool_call_news(&c->calls.all[i]));
    buf_str(out, STR("}}]"));
    end_open_delta(c, out);
}

static void write_call_deltas(struct choice *c, struct buf *out) {
    for (int i = c->calls.n_over; i < c->calls.n; i++) {
        if (!c->calls.all[i].begun)
            write_call_begin(c, i, out);
        if (tool_call_news(&c->calls.all[i]).len)
            write_call_arguments(c, i, out);
    }
}

static void write_text(struct choice *c, struct buf *out) {
    struct generation *g = c->generation;
    bool first = true;
    if (c->reasoning.len > 0)
        write_text_field("reasoning_content", buf_view(&c->reasoning), &first, out);
    if (c->content.len > 0 || (g->echo && !c->started)) {
        buf_str(out, first ? STR("\"content\":") : STR(",\"content\":"));
        write_content(c, out);
    }
}

static bool has_text(const struct choice *c) {
    return c->content.len > 0 || c->reasoning.len > 0 || (c->generation->echo && !c->started);
}

/* What is new, with the end, if it is there. Calls stand in chunks of their own between the two. */
static void write_delta(struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    bool calls = tool_calls_have_news(&c->calls), text = has_text(c);
    if (calls && text) {
        begin_delta(c, out);
        write_text(c, out);
        end_open_delta(c, out);
    }
    write_call_deltas(c, out);
    bool more = c->ended || ((g->logprobs || g->return_ids) && c->n_seen > c->n_written);
    if (calls && !more)
        return;
    begin_delta(c, out);
    if (!calls)
        write_text(c, out);
    buf_push(out, '}');
    write_logprobs(c, out);
    write_end(c, out);
    write_ids(c, out);
    end_chunk(c->generation, out);
}

static void write_chunk(struct choice *c, struct buf *out) {
    if (!c->started)
        write_role(c, out);
    write_delta(c, out);
}

static void write_last(struct generation *g, struct buf *out) { openai_last_chunk(g, CHUNK, out); }

static void write_calls(const struct choice *c, struct buf *out) {
    for (int i = 0; i < c->calls.n; i++) {
        const struct tool_call *call = &c->calls.all[i];
        buf_str(out, i ? STR(",{\"id\":") : STR(",\"tool_calls\":[{\"id\":"));
        buf_json_string(out, str_of(call->id));
        write_called(call, buf_view(&call->arguments), out);
        buf_push(out, '}');
    }
    if (c->calls.n > 0)
        buf_push(out, ']');
}

static void write_message(const struct choice *c, struct buf *out) {
    bool first = false;
    buf_printf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (c->calls.n > 0 && c->content.len == 0)
        buf_str(out, STR("null"));
    else
        write_content(c, out);
    write_calls(c, out);
    if (c->reasoning.len > 0)
        write_text_field("reasoning_content", buf_view(&c->reasoning), &first, out);
    else
        buf_str(out, STR(",\"reasoning_content\":null"));
    buf_str(out, STR(",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null}"));
    write_logprobs(c, out);
    write_end(c, out);
    write_ids(c, out);
    buf_push(out, '}');
}

static void write_body(struct generation *g, struct buf *out) {
    openai_head(g, "chat.completion", out);
    buf_str(out, STR(",\"choices\":["));
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            buf_push(out, ',');
        write_message(&g->choices[i], out);
    }
    buf_str(out, STR("],"));
    generation_usage(g, out);
    write_prompt_ids(g, out);
    buf_str(out, STR(",\"prompt_logprobs\":"));
    logprobs_write_prompt(&g->choices[0], out);
    buf_str(out, STR(",\"service_tier\":null,\"kv_transfer_params\":null"));
    openai_warnings(g, out);
    buf_push(out, '}');
}

static const struct dialect dialect = {"chatcmpl-", write_chunk, write_last, write_body};

// ---- the prompt -------------------------------------------------------------------------------------------------

/* Tools are shown to the model that is told not to call any, as vLLM does unless a flag says otherwise. */
static enum status read_ask(struct generation *g, const json_t *body, struct chat_ask *ask, struct error *err) {
    TRY(tool_ask_read(body, &g->tools, err));
    TRY(chat_ask_read(body, ask, err));
    chat_put_tools(g, json_incref(json_object_get(ask->context, "tools")), ask->context);
    return OK;
}

static enum status make_prompt(struct generation *g, const json_t *body, struct prompt_ids *out, struct error *err) {
    struct chat_ask ask = {0};
    enum status st = read_ask(g, body, &ask, err);
    if (st == OK)
        st = chat_prompt(g, &ask, out, err);
    chat_ask_release(&ask);
    return st;
}

// ---- the handler ------------------------------------------------------------------------------------------------

static enum status read_max_tokens(const json_t *body, struct gyre_request *r, struct error *err) {
    int64_t n;
    TRY(jv_int_or(body, "request", "max_completion_tokens", 0, INT64_MAX, -1, &n, err));
    const json_t *old = json_object_get(body, "max_tokens");
    if (n >= 0)
        r->max_tokens = n;
    else if (!old || json_is_null(old))
        r->max_tokens = -1; // to the end of the context
    return OK;
}

/* Here logprobs is true or false, and how many stands in top_logprobs. */
static enum status check_logprobs(const struct generation *g, const json_t *body, struct error *err) {
    const json_t *logprobs = json_object_get(body, "logprobs"), *top = json_object_get(body, "top_logprobs");
    if (logprobs && !json_is_null(logprobs) && !json_is_boolean(logprobs))
        return fail(err, ERR_ARG, "logprobs: chat completions want true or false, and a number in \"top_logprobs\"");
    if (json_number_value(top) != 0 && !g->logprobs) // 0 asks for nothing
        return fail(err, ERR_ARG, "top_logprobs: only with \"logprobs\": true");
    return OK;
}

/* With echo: what the last message says, if it is the assistant's; kept in g->own. */
static void keep_echo(struct generation *g, const json_t *body) {
    const json_t *messages = json_object_get(body, "messages"),
                 *last = json_array_get(messages, json_array_size(messages) - 1);
    struct buf text = {0};
    g->echo = g->echo && strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0;
    if (g->echo)
        chat_content_text(last, &text);
    g->own = g->echo ? arena_strdup(&g->x->arena, buf_view(&text)) : NULL;
    buf_release(&text);
}

static enum status read_prompt(struct generation *g, json_t *body, struct params *p, struct prompt_ids *out,
                               struct error *err) {
    struct extensions e;
    TRY(check_logprobs(g, body, err));
    TRY(read_max_tokens(body, &p->fields.request, err));
    TRY(extensions_read(g, body, false, p, &e, err));
    g->add_special = e.add_special;
    TRY(make_prompt(g, body, out, err));
    TRY(tool_ask_bind(&g->tools, g->format, g->opened, &p->structured, err));
    *out = prompt_cut(*out, e.cut);
    keep_echo(g, body);
    return OK;
}

static void start(struct generation *g, json_t *body, struct params *p) {
    struct error err;
    struct prompt_ids prompt;
    if (read_prompt(g, body, p, &prompt, &err) != OK) {
        generation_drop(g);
        api_reply_fault(g->x, &err);
    } else
        extensions_start(g, body, p, &prompt, 1);
}

void endpoint_chat(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    struct generation *g = arena_alloc(&x->arena, sizeof *g);
    *g = (struct generation){
        .api = api_of(x), .x = x, .dialect = &dialect, .model = api_of(x)->options.names[0], .warnings = ""};
    struct params p = {0};
    if (api_check_model(x, body) && params_read(g, body, fields, &p))
        start(g, body, &p);
    params_release(&p);
    json_decref(body);
}
