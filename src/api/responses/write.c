/* write.c - the response object and its events; see responses.h.
 *
 *     created, in_progress
 *       output_item.added, content_part.added                       reasoning, then message, where there is any
 *         reasoning_text.delta ... | output_text.delta ...
 *       output_item.added                                             a call, without parts
 *         function_call_arguments.delta ... done, or custom_tool_call_input.delta ... done
 *       ... .done, content_part.done, output_item.done
 *     completed, incomplete (max_output_tokens) or failed */
#include "api/responses/responses.h"

#include "api/answer/logprobs.h"

#include <time.h>

// ---- items ------------------------------------------------------------------------------------------------------

static const struct response *response_of(const struct choice *c) { return c->generation->own; }

static struct str text_of(const struct choice *c) {
    return buf_view(c->generation->stream ? &response_of(c)->text : &c->content);
}

static struct str reasoning_of(const struct choice *c) {
    return buf_view(c->generation->stream ? &response_of(c)->reasoning : &c->reasoning);
}

static bool is_incomplete(const struct choice *c) { return c->ended && strcmp(c->finish_reason, "length") == 0; }

static bool ended_by_itself(const struct choice *c) {
    return c->ended && (strcmp(c->finish_reason, "stop") == 0 || strcmp(c->finish_reason, "tool_calls") == 0);
}

/* An item is over where another one follows it. */
static const char *item_status(const struct choice *c, enum response_item kind) {
    bool last = c->calls.n == 0 && (kind == ITEM_MESSAGE || text_of(c).len == 0);
    return last && !ended_by_itself(c) ? "incomplete" : "completed";
}

static const char *call_status(const struct choice *c, int i) {
    return i + 1 == c->calls.n && !ended_by_itself(c) ? "incomplete" : "completed";
}

/* The item's id, of the call's own, which the model may have written. */
static void write_call_item_id(const struct tool_call *call, struct buf *out) {
    struct buf id = {0};
    buf_str(&id, call->is_custom ? STR("ctc_") : STR("fc_"));
    buf_str(&id, str_of(call->id));
    buf_json_string(out, buf_view(&id));
    buf_release(&id);
}

static void write_call_text(const struct tool_call *call, struct str text, struct buf *out) {
    buf_str(out, call->is_custom ? STR(",\"input\":") : STR(",\"arguments\":"));
    buf_json_string(out, text);
}

static void write_call(const struct tool_call *call, const char *status, struct str arguments, struct buf *out) {
    buf_str(out, STR("{\"id\":"));
    write_call_item_id(call, out);
    buf_printf(out, ",\"type\":\"%s\",\"status\":\"%s\",\"call_id\":",
               call->is_custom ? "custom_tool_call" : "function_call", status);
    buf_json_string(out, str_of(call->id));
    buf_str(out, STR(",\"name\":"));
    buf_json_string(out, str_of(call->name));
    write_call_text(call, arguments, out);
    buf_push(out, '}');
}

/* Log-probabilities of the text's tokens among [from, to): those before were reasoning. */
static void write_logprobs(const struct choice *c, int32_t from, int32_t to, struct buf *out) {
    buf_str(out, STR("\"logprobs\":"));
    from = MAX(from, c->n_before_text);
    if (c->generation->logprobs && from < to)
        logprobs_write_tokens(c, from, to, out);
    else
        buf_str(out, STR("[]"));
}

static void write_part(const struct choice *c, enum response_item kind, struct str text, struct buf *out) {
    buf_printf(out, "{\"type\":\"%s\",\"text\":", kind == ITEM_MESSAGE ? "output_text" : "reasoning_text");
    buf_json_string(out, text);
    if (kind == ITEM_MESSAGE) {
        buf_str(out, STR(",\"annotations\":[],"));
        write_logprobs(c, 0, text.len > 0 ? c->n_seen : 0, out);
    }
    buf_push(out, '}');
}

static void write_item_head(const struct choice *c, enum response_item kind, const char *status, struct buf *out) {
    const struct response *r = response_of(c);
    if (kind == ITEM_MESSAGE)
        buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"%s\",\"content\":[",
                   r->message_id, status);
    else
        buf_printf(out, "{\"id\":\"%s\",\"type\":\"reasoning\",\"summary\":[],\"status\":\"%s\",\"content\":[",
                   r->reasoning_id, status);
}

static void write_item(const struct choice *c, enum response_item kind, struct buf *out) {
    write_item_head(c, kind, item_status(c, kind), out);
    write_part(c, kind, kind == ITEM_MESSAGE ? text_of(c) : reasoning_of(c), out);
    buf_str(out, STR("]}"));
}

// ---- the response -----------------------------------------------------------------------------------------------

static void write_items(const struct choice *c, struct buf *out) {
    bool has_reasoning = reasoning_of(c).len > 0, has_text = text_of(c).len > 0;
    buf_push(out, '[');
    if (has_reasoning)
        write_item(c, ITEM_REASONING, out);
    if (has_reasoning && has_text)
        buf_push(out, ',');
    if (has_text)
        write_item(c, ITEM_MESSAGE, out);
    for (int i = 0; i < c->calls.n; i++) {
        if (i > 0 || has_reasoning || has_text)
            buf_push(out, ',');
        write_call(&c->calls.all[i], call_status(c, i), buf_view(&c->calls.all[i].arguments), out);
    }
    buf_push(out, ']');
}

static void write_output(const struct choice *c, struct buf *out) {
    buf_str(out, STR(",\"output\":"));
    write_items(c, out);
}

static void write_usage(const struct choice *c, struct buf *out) {
    long long n_prompt = c->n_prompt, n = c->n_seen, cached = MIN(c->n_cached, (int64_t)c->n_prompt);
    buf_printf(
        out,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":0},"
        "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%lld}",
        n_prompt, cached, n, c->n_reasoning, n_prompt + n);
}

static void write_head(const struct generation *g, const char *status, struct buf *out) {
    const struct response *r = g->own;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", g->id,
               (long long)g->created, status);
    buf_json_string(out, str_of(g->model));
    buf_printf(out, ",%s", r->echo);
    if (*g->warnings)
        buf_printf(out, ",\"warnings\":[%s]", g->warnings);
}

void responses_write_started(const struct generation *g, const char *status, struct buf *out) {
    write_head(g, status, out);
    buf_str(out, STR(",\"completed_at\":null,\"error\":null,\"incomplete_details\":null,\"output\":[]}"));
}

static void write_started(const struct generation *g, struct buf *out) {
    responses_write_started(g, "in_progress", out);
}

static void write_ended(const struct generation *g, struct buf *out) {
    const struct choice *c = &g->choices[0];
    if (is_incomplete(c)) {
        write_head(g, "incomplete", out);
        buf_str(out,
                STR(",\"completed_at\":null,\"error\":null,\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"));
    } else {
        write_head(g, "completed", out);
        buf_printf(out, ",\"completed_at\":%lld,\"error\":null,\"incomplete_details\":null", (long long)time(NULL));
    }
    write_output(c, out);
    write_usage(c, out);
    buf_push(out, '}');
}

/* With the output that there is, however it ended. */
static void write_other_end(const struct generation *g, const char *status, struct buf *out) {
    const struct choice *c = &g->choices[0];
    write_head(g, status, out);
    buf_str(out, STR(",\"completed_at\":null,\"incomplete_details\":null,\"error\":"));
    if (strcmp(status, "cancelled") == 0) { // by its owner: no fault
        buf_str(out, STR("null"));
    } else {
        buf_printf(out, "{\"code\":\"%s\",\"message\":",
                   generation_failed_status(g) == 400 ? "invalid_prompt" : "server_error");
        buf_json_string(out, str_of(g->failed.text));
        buf_push(out, '}');
    }
    write_output(c, out);
    write_usage(c, out);
    buf_push(out, '}');
}

// ---- storing ----------------------------------------------------------------------------------------------------

static struct stored_response to_store(const struct generation *g, struct str body, struct str output, bool goes_on) {
    const struct response *r = g->own;
    return (struct stored_response){.id = g->id,
                                    .tenant = responses_tenant(g->x),
                                    .before = r->before,
                                    .body = body,
                                    .input = r->input,
                                    .output = output,
                                    .goes_on = goes_on,
                                    .replaces = g->detached && !goes_on};
}

bool responses_store_started(const struct generation *g) {
    struct buf body = {0};
    write_started(g, &body);
    struct stored_response s = to_store(g, buf_view(&body), STR("[]"), true);
    bool stored = response_store_put(g->api->responses, &s);
    buf_release(&body);
    return stored;
}

static void store(const struct generation *g, struct str body) {
    if (!((const struct response *)g->own)->stored)
        return;
    struct buf output = {0};
    write_items(&g->choices[0], &output);
    struct stored_response s = to_store(g, body, buf_view(&output), false);
    response_store_put(g->api->responses, &s);
    buf_release(&output);
}

static void write_body(struct generation *g, struct buf *out) {
    size_t start = out->len;
    write_ended(g, out);
    store(g, (struct str){out->ptr + start, out->len - start});
}

/* Of one in the background, which nobody waits for. */
static void settle(struct generation *g) {
    struct buf body = {0};
    if (g->failed.status == OK)
        write_ended(g, &body);
    else
        write_other_end(g, g->aborted ? "cancelled" : "failed", &body);
    store(g, buf_view(&body));
    buf_release(&body);
}

/* In place of settle where there is no memory for that. */
static void give_up(struct generation *g) { response_store_fail(g->api->responses, responses_tenant(g->x), g->id); }

// ---- events -----------------------------------------------------------------------------------------------------

static void begin_event(struct response *r, const char *type, struct buf *out) {
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type, type, (long long)r->n_events++);
}

static void end_event(struct buf *out) { buf_str(out, STR("}\n\n")); }

/* An event about the content part that is open. */
static void begin_part_event(struct response *r, const char *type, struct buf *out) {
    begin_event(r, type, out);
    buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":%d,\"content_index\":0",
               r->open == ITEM_MESSAGE ? r->message_id : r->reasoning_id, r->n_items - 1);
}

static void write_response_event(struct generation *g, const char *type,
                                 void (*write)(const struct generation *, struct buf *), struct buf *out) {
    begin_event(g->own, type, out);
    buf_str(out, STR(",\"response\":"));
    write(g, out);
    end_event(out);
}

static void write_begin(struct generation *g, struct buf *out) {
    write_response_event(g, "response.created", write_started, out);
    write_response_event(g, "response.in_progress", write_started, out);
}

static void begin_call_event(struct response *r, const char *type, const struct tool_call *call, struct buf *out) {
    begin_event(r, type, out);
    buf_str(out, STR(",\"item_id\":"));
    write_call_item_id(call, out);
    buf_printf(out, ",\"output_index\":%d", r->n_items - 1);
}

static void close_call(const struct choice *c, struct buf *out) {
    struct response *r = c->generation->own;
    const struct tool_call *call = &c->calls.all[r->open_call];
    begin_call_event(r,
                     call->is_custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done",
                     call, out);
    if (!call->is_custom) {
        buf_str(out, STR(",\"name\":"));
        buf_json_string(out, str_of(call->name));
    }
    write_call_text(call, buf_view(&call->arguments), out);
    end_event(out);
    begin_event(r, "response.output_item.done", out);
    buf_printf(out, ",\"output_index\":%d,\"item\":", r->n_items - 1);
    write_call(call, call_status(c, r->open_call), buf_view(&call->arguments), out);
    end_event(out);
    r->open = ITEM_NONE;
}

static void close_item(const struct choice *c, struct buf *out) {
    struct response *r = c->generation->own;
    if (r->open == ITEM_NONE)
        return;
    if (r->open == ITEM_CALL) {
        close_call(c, out);
        return;
    }
    bool is_message = r->open == ITEM_MESSAGE;
    begin_part_event(r, is_message ? "response.output_text.done" : "response.reasoning_text.done", out);
    buf_str(out, STR(",\"text\":"));
    buf_json_string(out, is_message ? text_of(c) : reasoning_of(c));
    if (is_message) {
        buf_push(out, ',');
        write_logprobs(c, 0, c->n_seen, out);
    }
    end_event(out);
    begin_part_event(r, "response.content_part.done", out);
    buf_str(out, STR(",\"part\":"));
    write_part(c, r->open, is_message ? text_of(c) : reasoning_of(c), out);
    end_event(out);
    begin_event(r, "response.output_item.done", out);
    buf_printf(out, ",\"output_index\":%d,\"item\":", r->n_items - 1);
    write_item(c, r->open, out);
    end_event(out);
    r->open = ITEM_NONE;
}

static void open_item(const struct choice *c, enum response_item kind, struct buf *out) {
    struct response *r = c->generation->own;
    if (r->open == kind)
        return;
    close_item(c, out);
    r->open = kind;
    begin_event(r, "response.output_item.added", out);
    buf_printf(out, ",\"output_index\":%d,\"item\":", r->n_items++);
    write_item_head(c, kind, "in_progress", out);
    buf_str(out, STR("]}"));
    end_event(out);
    begin_part_event(r, "response.content_part.added", out);
    buf_str(out, STR(",\"part\":"));
    write_part(c, kind, STR(""), out);
    end_event(out);
}

static void open_call(const struct choice *c, int i, struct buf *out) {
    struct response *r = c->generation->own;
    close_item(c, out);
    r->open = ITEM_CALL;
    r->open_call = i;
    begin_event(r, "response.output_item.added", out);
    buf_printf(out, ",\"output_index\":%d,\"item\":", r->n_items++);
    write_call(&c->calls.all[i], "in_progress", STR(""), out);
    end_event(out);
}

static void write_calls(struct choice *c, struct buf *out) {
    for (int i = c->calls.n_over; i < c->calls.n; i++) {
        const struct tool_call *call = &c->calls.all[i];
        if (!call->begun)
            open_call(c, i, out);
        if (tool_call_news(call).len == 0)
            continue;
        begin_call_event(c->generation->own,
                         call->is_custom ? "response.custom_tool_call_input.delta"
                                         : "response.function_call_arguments.delta",
                         call, out);
        buf_str(out, STR(",\"delta\":"));
        buf_json_string(out, tool_call_news(call));
        end_event(out);
    }
}

static void write_delta(struct response *r, const char *type, struct str text, struct buf *out) {
    begin_part_event(r, type, out);
    buf_str(out, STR(",\"delta\":"));
    buf_json_string(out, text);
}

static void write_chunk(struct choice *c, struct buf *out) {
    struct response *r = c->generation->own;
    if (c->reasoning.len > 0) {
        open_item(c, ITEM_REASONING, out);
        buf_str(&r->reasoning, buf_view(&c->reasoning));
        write_delta(r, "response.reasoning_text.delta", buf_view(&c->reasoning), out);
        end_event(out);
    }
    if (c->content.len > 0) {
        // The first text ends the reasoning, whose item must know that when it is closed.
        buf_str(&r->text, buf_view(&c->content));
        open_item(c, ITEM_MESSAGE, out);
        write_delta(r, "response.output_text.delta", buf_view(&c->content), out);
        buf_push(out, ',');
        write_logprobs(c, r->n_logprobs, c->n_seen, out);
        r->n_logprobs = c->n_seen;
        end_event(out);
    }
    write_calls(c, out);
    if (c->ended)
        close_item(c, out);
}

static void write_last(struct generation *g, struct buf *out) {
    struct buf body = {0};
    write_ended(g, &body);
    store(g, buf_view(&body));
    begin_event(g->own, is_incomplete(&g->choices[0]) ? "response.incomplete" : "response.completed", out);
    buf_str(out, STR(",\"response\":"));
    buf_str(out, buf_view(&body));
    end_event(out);
    buf_release(&body);
}

static void write_failed(const struct generation *g, struct buf *out) { write_other_end(g, "failed", out); }

static void write_failure(struct generation *g, struct buf *out) {
    write_response_event(g, "response.failed", write_failed, out);
}

static void release(struct generation *g) {
    struct response *r = g->own;
    buf_release(&r->text);
    buf_release(&r->reasoning);
    response_store_release(g->api->responses, r->before);
    r->before = NULL;
}

const struct dialect responses_dialect = {.id_prefix = "resp_",
                                          .begin = write_begin,
                                          .chunk = write_chunk,
                                          .last = write_last,
                                          .body = write_body,
                                          .fail = write_failure,
                                          .settle = settle,
                                          .give_up = give_up,
                                          .release = release,
                                          .done = "",
                                          .abort_fails = true};
