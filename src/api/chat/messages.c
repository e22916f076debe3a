/* messages.c - POST /v1/messages and /v1/messages/count_tokens, as Anthropic's API has them.
 *
 * Reasoning becomes a thinking block before the text block. Its signature is empty: nothing here verifies one. A last
 * message of the assistant is continued. Where max_tokens is more than the context has left, the answer may end with
 * "model_context_window_exceeded". */
#include "api/chat/chat_prompt.h"
#include "api/chat/messages_input.h"
#include "api/endpoints.h"
#include "api/fields/params.h"

static const struct field fields[] = {
    {"messages", FIELD_READ, NULL},
    {"system", FIELD_READ, NULL},
    {"stop_sequences", FIELD_READ, NULL},
    {"thinking", FIELD_READ, NULL},
    {"output_config", FIELD_READ, NULL},
    {"chat_template_kwargs", FIELD_READ, NULL},
    {"cache_control", FIELD_SET_ASIDE, NULL},
    {"inference_geo", FIELD_SET_ASIDE, NULL},
    {"speed", FIELD_SET_ASIDE, NULL},
    {"user_profile_id", FIELD_SET_ASIDE, NULL},
    {"tools", FIELD_READ, NULL},
    {"tool_choice", FIELD_READ, NULL},
    {"mcp_servers", FIELD_UNSUPPORTED, NULL},
    {"container", FIELD_UNSUPPORTED, NULL},
    {"context_management", FIELD_READ, NULL},
    {"diagnostics", FIELD_UNSUPPORTED, NULL},
    {"output_format", FIELD_READ, NULL}, // the older name of output_config.format
    {"response_format", FIELD_UNSUPPORTED, NULL},
    // OpenAI's, for which an answer here has no place.
    {"n", FIELD_UNSUPPORTED, "1"},
    {"logprobs", FIELD_UNSUPPORTED, NULL},
    {"top_logprobs", FIELD_UNSUPPORTED, "0"},
    {"stream_options", FIELD_UNSUPPORTED, NULL},
    {NULL, FIELD_READ, NULL},
};

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

/* What a messages answer keeps beside its generation. */
struct message {
    int64_t asked_tokens; // max_tokens, before the context limited it
    bool hide_thinking;   // "display": "omitted"
    enum block open;      // streams: the content block that is open ...
    int n_blocks;         // ... and how many were opened
};

// ---- writing ----------------------------------------------------------------------------------------------------

static void write_usage(const struct generation *g, bool ended, struct buf *out) {
    const struct choice *c = &g->choices[0];
    long long cached = MIN(c->n_cached, (int64_t)c->n_prompt);
    buf_printf(out,
               "\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
               "\"output_tokens\":%lld",
               (long long)c->n_prompt - cached, cached, ended ? (long long)c->n_seen : 0ll);
    if (ended)
        buf_printf(out, ",\"output_tokens_details\":{\"thinking_tokens\":%d}", c->n_reasoning);
    buf_push(out, '}');
}

static const char *stop_reason(const struct choice *c) {
    const struct message *m = c->generation->own;
    if (c->stop_string)
        return "stop_sequence";
    if (strcmp(c->finish_reason, "tool_calls") == 0)
        return "tool_use";
    if (strcmp(c->finish_reason, "length") != 0)
        return "end_turn";
    return c->n_seen < m->asked_tokens ? "model_context_window_exceeded" : "max_tokens";
}

static void write_stop(const struct choice *c, struct buf *out) {
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c));
    if (c->stop_string)
        buf_json_string(out, str_of(c->stop_string));
    else
        buf_str(out, STR("null"));
}

static void write_head(const struct generation *g, struct buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    buf_json_string(out, str_of(g->model));
    if (*g->warnings)
        buf_printf(out, ",\"warnings\":[%s]", g->warnings);
}

// ---- whole answers ----------------------------------------------------------------------------------------------

/* The input is an object here: arguments that were cut are no JSON, and stand as a string in one. */
static void write_tool_use(const struct tool_call *call, struct buf *out) {
    struct str text = buf_view(&call->arguments);
    json_t *whole = jv_look(text);
    buf_str(out, STR("{\"type\":\"tool_use\",\"id\":"));
    buf_json_string(out, str_of(call->id));
    buf_str(out, STR(",\"name\":"));
    buf_json_string(out, str_of(call->name));
    buf_str(out, STR(",\"input\":"));
    if (json_is_object(whole)) {
        buf_str(out, text);
    } else {
        buf_str(out, STR("{\"_invalid_json\":"));
        buf_json_string(out, text);
        buf_push(out, '}');
    }
    buf_push(out, '}');
    json_decref(whole);
}

static void write_body(struct generation *g, struct buf *out) {
    const struct choice *c = &g->choices[0];
    const struct message *m = g->own;
    write_head(g, out);
    buf_str(out, STR(",\"content\":["));
    if (c->reasoning.len > 0) {
        buf_str(out, STR("{\"type\":\"thinking\",\"thinking\":"));
        buf_json_string(out, m->hide_thinking ? STR("") : buf_view(&c->reasoning));
        buf_str(out, STR(",\"signature\":\"\"}"));
    }
    if (c->content.len > 0) {
        buf_printf(out, "%s{\"type\":\"text\",\"text\":", c->reasoning.len > 0 ? "," : "");
        buf_json_string(out, buf_view(&c->content));
        buf_str(out, STR(",\"citations\":null}"));
    }
    for (int i = 0; i < c->calls.n; i++) {
        if (i > 0 || c->reasoning.len > 0 || c->content.len > 0)
            buf_push(out, ',');
        write_tool_use(&c->calls.all[i], out);
    }
    buf_str(out, STR("],"));
    write_stop(c, out);
    buf_push(out, ',');
    write_usage(g, true, out);
    buf_push(out, '}');
}

// ---- streams ----------------------------------------------------------------------------------------------------

static const char ping[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

/* The name of an event is its type. */
static void begin_event(const char *type, struct buf *out) {
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(struct buf *out) { buf_str(out, STR("}\n\n")); }

static void write_begin(struct generation *g, struct buf *out) {
    begin_event("message_start", out);
    buf_str(out, STR(",\"message\":"));
    write_head(g, out);
    buf_str(out, STR(",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"));
    write_usage(g, false, out);
    buf_push(out, '}');
    end_event(out);
}

static void write_block_delta(const struct message *m, const char *type, const char *field, struct str text,
                              struct buf *out) {
    begin_event("content_block_delta", out);
    buf_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", m->n_blocks - 1, type, field);
    buf_json_string(out, text);
    buf_push(out, '}');
    end_event(out);
}

static void close_block(struct message *m, struct buf *out) {
    if (m->open == BLOCK_NONE)
        return;
    if (m->open == BLOCK_THINKING)
        write_block_delta(m, "signature_delta", "signature", STR(""), out);
    begin_event("content_block_stop", out);
    buf_printf(out, ",\"index\":%d", m->n_blocks - 1);
    end_event(out);
    m->open = BLOCK_NONE;
}

/* call: of BLOCK_TOOL. */
static void write_empty_block(enum block kind, const struct tool_call *call, struct buf *out) {
    if (kind == BLOCK_THINKING) {
        buf_str(out, STR("{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"));
    } else if (kind == BLOCK_TEXT) {
        buf_str(out, STR("{\"type\":\"text\",\"text\":\"\",\"citations\":null}"));
    } else {
        buf_str(out, STR("{\"type\":\"tool_use\",\"id\":"));
        buf_json_string(out, str_of(call->id));
        buf_str(out, STR(",\"name\":"));
        buf_json_string(out, str_of(call->name));
        buf_str(out, STR(",\"input\":{}}"));
    }
}

static void open_block(struct message *m, enum block kind, const struct tool_call *call, struct buf *out) {
    if (m->open == kind && kind != BLOCK_TOOL)
        return;
    close_block(m, out);
    begin_event("content_block_start", out);
    buf_printf(out, ",\"index\":%d,\"content_block\":", m->n_blocks);
    write_empty_block(kind, call, out);
    end_event(out);
    if (m->n_blocks == 0)
        buf_str(out, str_of(ping));
    m->open = kind;
    m->n_blocks++;
}

static void write_chunk(struct choice *c, struct buf *out) {
    struct message *m = c->generation->own;
    if (c->reasoning.len > 0) {
        open_block(m, BLOCK_THINKING, NULL, out);
        if (!m->hide_thinking)
            write_block_delta(m, "thinking_delta", "thinking", buf_view(&c->reasoning), out);
    }
    if (c->content.len > 0) {
        open_block(m, BLOCK_TEXT, NULL, out);
        write_block_delta(m, "text_delta", "text", buf_view(&c->content), out);
    }
    for (int i = c->calls.n_over; i < c->calls.n; i++) {
        const struct tool_call *call = &c->calls.all[i];
        if (!call->begun)
            open_block(m, BLOCK_TOOL, call, out);
        if (tool_call_news(call).len)
            write_block_delta(m, "input_json_delta", "partial_json", tool_call_news(call), out);
    }
    if (c->ended)
        close_block(m, out);
}

static void write_last(struct generation *g, struct buf *out) {
    begin_event("message_delta", out);
    buf_str(out, STR(",\"delta\":{"));
    write_stop(&g->choices[0], out);
    buf_str(out, STR("},"));
    write_usage(g, true, out);
    end_event(out);
    begin_event("message_stop", out);
    end_event(out);
}

static void write_failure(struct generation *g, struct buf *out) {
    buf_str(out, STR("event: error\ndata: "));
    api_append_error(out, g->x->path, generation_failed_status(g), NULL, g->failed.text);
    buf_str(out, STR("\n\n"));
}

static const struct dialect dialect = {.id_prefix = "msg_",
                                       .begin = write_begin,
                                       .chunk = write_chunk,
                                       .last = write_last,
                                       .body = write_body,
                                       .fail = write_failure,
                                       .done = "",
                                       .ping = ping,
                                       .abort_fails = true};

// ---- thinking and effort ----------------------------------------------------------------------------------------

/* Templates of models that can do both know the name enable_thinking. */
static enum status read_thinking(struct generation *g, const json_t *body, json_t *context, struct error *err) {
    struct message *m = g->own;
    json_t *thinking;
    const char *type, *display;
    TRY(jv_object_or_null(body, "request", "thinking", &thinking, err));
    if (!thinking)
        return OK;
    TRY(jv_string(thinking, "thinking", "type", &type, err));
    TRY(jv_string_or(thinking, "thinking", "display", "summarized", &display, err));
    if (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 && strcmp(type, "adaptive") != 0)
        return fail(err, ERR_UNSUPPORTED,
                    "thinking.type: \"%.40s\" is not supported, only enabled, disabled and adaptive are", type);
    if (strcmp(display, "summarized") != 0 && strcmp(display, "omitted") != 0)
        return fail(err, ERR_ARG, "thinking.display: it must be \"summarized\" or \"omitted\"");
    m->hide_thinking = strcmp(display, "omitted") == 0;
    if (strcmp(type, "adaptive") != 0)
        json_object_set_new(context, "enable_thinking", json_boolean(strcmp(type, "enabled") == 0));
    if (json_object_get(thinking, "budget_tokens"))
        params_warn(g, "thinking.budget_tokens was ignored: only max_tokens ends the thinking");
    return OK;
}

static enum status read_output_config(const json_t *body, json_t *context, struct error *err) {
    json_t *config;
    const char *effort;
    TRY(jv_object_or_null(body, "request", "output_config", &config, err));
    if (!config)
        return OK;
    TRY(jv_string_or(config, "output_config", "effort", NULL, &effort, err));
    if (effort)
        json_object_set_new(context, "reasoning_effort", json_string(effort));
    return OK;
}

/* Agents ask for their earlier thinking and results to be left out of long conversations. */
static enum status read_context_management(struct generation *g, const json_t *body, struct error *err) {
    json_t *management, *edits = NULL;
    TRY(jv_object_or_null(body, "request", "context_management", &management, err));
    TRY(management ? jv_array_or_null(management, "context_management", "edits", &edits, err) : OK);
    if (json_array_size(edits) > 0)
        params_warn(g, "context_management was ignored: nothing is left out of the conversation");
    return OK;
}

/* output_config.format, or output_format of older clients: {"type": "json_schema", "schema"}. */
static enum status read_format(const json_t *body, struct structured *s, struct error *err) {
    json_t *config, *format, *older;
    TRY(jv_object_or_null(body, "request", "output_config", &config, err));
    TRY(config ? jv_object_or_null(config, "output_config", "format", &format, err) : OK);
    if (config && format)
        TRY(structured_read_format(format, "output_config.format", s, err));
    TRY(jv_object_or_null(body, "request", "output_format", &older, err));
    return older ? structured_read_format(older, "output_format", s, err) : OK;
}

/* {"type": "auto", "any", "tool" with a name, or "none"}. */
static enum status read_tools(struct generation *g, const json_t *body, json_t *context, struct error *err) {
    json_t *tools, *choice;
    const char *type = "auto", *name = NULL;
    int left;
    bool single = false;
    TRY(jv_object_or_null(body, "request", "tool_choice", &choice, err));
    if (choice) {
        TRY(jv_string(choice, "tool_choice", "type", &type, err));
        TRY(jv_bool_or(choice, "tool_choice", "disable_parallel_tool_use", false, &single, err));
    }
    if (strcmp(type, "tool") == 0)
        TRY(jv_string(choice, "tool_choice", "name", &name, err));
    else if (strcmp(type, "any") != 0 && strcmp(type, "auto") != 0 && strcmp(type, "none") != 0)
        return fail(err, ERR_ARG, "tool_choice.type: \"%.40s\" is none of auto, any, tool and none", type);
    enum status st = messages_read_tools(body, &tools, &left, err);
    if (st == OK)
        st = chat_leave_tools(g, body, left, json_object_get(choice, "type"), tools, err);
    if (st == OK)
        st = tool_ask_set(&g->tools, json_incref(tools),
                          name                       ? "named"
                          : strcmp(type, "any") == 0 ? "required"
                                                     : type,
                          name, !single, err);
    chat_put_tools(g, tools_shown(tools), context);
    json_decref(tools);
    return st;
}

/* What the template sees. */
static enum status read_context(struct generation *g, const json_t *body, json_t **out, struct error *err) {
    json_t *kwargs, *messages = json_array();
    enum status st = jv_object_or_null(body, "request", "chat_template_kwargs", &kwargs, err);
    *out = st == OK && kwargs ? json_copy(kwargs) : json_object();
    json_object_set_new(*out, "messages", messages);
    if (st == OK)
        st = messages_read_input(body, messages, err);
    if (st == OK)
        st = read_tools(g, body, *out, err);
    if (st == OK)
        st = read_thinking(g, body, *out, err);
    if (st == OK)
        st = read_context_management(g, body, err);
    return st == OK ? read_output_config(body, *out, err) : st;
}

static enum status make_prompt(struct generation *g, const json_t *body, struct prompt_ids *out, struct error *err) {
    json_t *context;
    enum status st = read_context(g, body, &context, err);
    if (st == OK) {
        const json_t *messages = json_object_get(context, "messages");
        const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
        bool prefilled = strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0;
        st = chat_prompt(g, &(struct chat_ask){context, prefilled ? CHAT_CONTINUES : CHAT_ASKS, NULL}, out, err);
    }
    json_decref(context);
    return st;
}

// ---- the handlers -----------------------------------------------------------------------------------------------

/* stop_sequences are what the common fields call stop. */
static enum status rename_stops(const struct generation *g, json_t *body, struct error *err) {
    json_t *stops, *stop;
    size_t i, most = g->api->options.limits.max_stops;
    TRY(jv_array_or_null(body, "request", "stop_sequences", &stops, err));
    json_array_foreach(stops, i, stop) {
        if (!json_is_string(stop) || json_string_length(stop) == 0)
            return fail(err, ERR_ARG, "stop_sequences[%zu]: it must be a string that is not empty", i);
    }
    if (json_array_size(stops) > most)
        return fail(err, ERR_ARG, "stop_sequences: %zu strings, at most %zu are allowed", json_array_size(stops), most);
    if (stops)
        json_object_set(body, "stop", stops);
    return OK;
}

static enum status read_max_tokens(struct generation *g, const json_t *body, int64_t n_prompt, struct gyre_request *r,
                                   struct error *err) {
    struct message *m = g->own;
    TRY(jv_int(body, "request", "max_tokens", 0, INT64_MAX, &m->asked_tokens, err));
    int64_t room = service_info(g->api->service)->max_model_len - n_prompt;
    r->max_tokens = room > 0 ? MIN(m->asked_tokens, room) : m->asked_tokens; // no room at all: the engine says so
    return OK;
}

static void start(struct generation *g, json_t *body, struct params *p) {
    struct error err;
    struct prompt_ids prompt;
    if (rename_stops(g, body, &err) != OK) {
        api_reply_fault(g->x, &err);
        return;
    }
    if (!params_read(g, body, fields, p))
        return;
    g->include_usage = true;
    if (read_format(body, &p->structured, &err) != OK || make_prompt(g, body, &prompt, &err) != OK ||
        read_max_tokens(g, body, (int64_t)prompt.n, &p->fields.request, &err) != OK ||
        tool_ask_bind(&g->tools, g->format, g->opened, &p->structured, &err) != OK ||
        params_compile_structured(g, p, NULL, &err) != OK) {
        generation_drop(g);
        api_reply_fault(g->x, &err);
    } else
        generation_start(g, &p->fields.request, &prompt, 1, 1);
}

static struct generation *new_generation(struct http_exchange *x) {
    struct generation *g = arena_alloc(&x->arena, sizeof *g);
    *g = (struct generation){
        .api = api_of(x), .x = x, .dialect = &dialect, .model = api_of(x)->options.names[0], .warnings = ""};
    g->own = arena_alloc(&x->arena, sizeof(struct message));
    return g;
}

void endpoint_messages(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    struct params p = {0};
    if (api_check_model(x, body))
        start(new_generation(x), body, &p);
    params_release(&p);
    json_decref(body);
}

/* The same prompt, counted. */
static void count_tokens(struct generation *g, const json_t *body) {
    struct error err;
    struct prompt_ids prompt;
    if (params_check_fields(g, body, fields, true, &err) != OK || make_prompt(g, body, &prompt, &err) != OK) {
        generation_drop(g);
        api_reply_fault(g->x, &err);
        return;
    }
    generation_drop(g);
    struct buf out = {0};
    buf_printf(&out, "{\"input_tokens\":%zu}", prompt.n);
    api_reply_json(g->x, 200, buf_view(&out));
    buf_release(&out);
}

void endpoint_count_tokens(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    if (api_check_model(x, body))
        count_tokens(new_generation(x), body);
    json_decref(body);
}
