/* call_collector.c - see call_collector.h. */
#include "client/call_collector.h"

#include <stdlib.h>

enum { MAX_CALLS = 128, MAX_BYTES = 16 << 20 };
static const char *const WHERE = "the server's answer: tool_calls";

static enum status append_text(struct call_collector *c, struct buf *out, const json_t *text, struct error *err) {
    if (!json_is_string(text))
        return OK;
    c->n_bytes += json_string_length(text);
    if (c->n_bytes > MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: longer than %d MiB", WHERE, MAX_BYTES >> 20);
    buf_append(out, json_string_value(text), json_string_length(text));
    return OK;
}

/* The call at a place; those before it that have not come are empty. */
static struct collected_call *call_at(struct call_collector *c, size_t at) {
    if (at >= c->n) {
        c->calls = xrealloc(c->calls, at + 1, sizeof *c->calls);
        memset(c->calls + c->n, 0, (at + 1 - c->n) * sizeof *c->calls);
        c->n = at + 1;
    }
    return &c->calls[at];
}

static enum status take_call(struct call_collector *c, const json_t *piece, size_t place, struct error *err) {
    json_t *function;
    int64_t at;
    if (!json_is_object(piece))
        return fail(err, ERR_FORMAT, "%s: %s is no call", WHERE, jv_type_name(piece));
    TRY(jv_int_or(piece, WHERE, "index", 0, MAX_CALLS - 1, (int64_t)place, &at, err));
    TRY(jv_object_or_null(piece, WHERE, "function", &function, err));
    if (at >= MAX_CALLS)
        return fail(err, ERR_LIMIT, "%s: more than %d", WHERE, MAX_CALLS);
    struct collected_call *call = call_at(c, (size_t)at);
    TRY(append_text(c, &call->id, json_object_get(piece, "id"), err));
    TRY(append_text(c, &call->name, json_object_get(function, "name"), err));
    return append_text(c, &call->arguments, json_object_get(function, "arguments"), err);
}

static enum status take_calls(struct call_collector *c, const json_t *pieces, struct error *err) {
    size_t i;
    const json_t *piece;
    if (json_is_null(pieces))
        return OK;
    if (!json_is_array(pieces))
        return fail(err, ERR_FORMAT, "%s: %s is no array", WHERE, jv_type_name(pieces));
    json_array_foreach(pieces, i, piece) { TRY(take_call(c, piece, i, err)); }
    return OK;
}

enum status call_collector_take(struct call_collector *c, struct str json, struct error *err) {
    json_t *pieces;
    TRY(jv_parse(json, WHERE, 0, &pieces, err));
    enum status st = take_calls(c, pieces, err);
    json_decref(pieces);
    return st;
}

json_t *call_collector_json(const struct call_collector *c) {
    if (c->n == 0)
        return NULL;
    json_t *out = json_array();
    for (size_t i = 0; i < c->n; i++) {
        const struct collected_call *call = &c->calls[i];
        json_array_append_new(out, json_pack("{s:s%, s:s, s:{s:s%, s:s%}}", "id", buf_view(&call->id).ptr, call->id.len,
                                             "type", "function", "function", "name", buf_view(&call->name).ptr,
                                             call->name.len, "arguments", buf_view(&call->arguments).ptr,
                                             call->arguments.len));
    }
    return out;
}

void call_collector_release(struct call_collector *c) {
    for (size_t i = 0; i < c->n; i++) {
        buf_release(&c->calls[i].id);
        buf_release(&c->calls[i].name);
        buf_release(&c->calls[i].arguments);
    }
    free(c->calls);
    *c = (struct call_collector){0};
}
