/* messages_input.c - see messages_input.h. */
#include "api/chat/messages_input.h"

#include "base/buf.h"

#include <stdio.h>

/* One message being read, and what its blocks come to. */
struct reading {
    json_t *out;      // all messages so far
    json_t *names;    // of the tools that were called, by the id of the call
    json_t *texts;    // parts
    json_t *calls;    // tool_calls
    struct buf think; // of the assistant
    const char *role;
    char where[96]; // the block at hand
    struct error *err;
};

// ---- blocks -----------------------------------------------------------------------------------------------------

/* One part as its text, more as they are. */
static json_t *content_of(json_t *parts) {
    if (json_array_size(parts) == 0)
        return json_string("");
    return json_array_size(parts) == 1 ? json_incref(json_object_get(json_array_get(parts, 0), "text"))
                                       : json_incref(parts);
}

static enum status get_string(const struct reading *r, const json_t *block, const char *name, json_t **out) {
    *out = json_object_get(block, name);
    return json_is_string(*out) ? OK : fail(r->err, ERR_ARG, "%s.%s: it must be a string", r->where, name);
}

static enum status add_text(const json_t *block, const char *where, json_t *parts, struct error *err) {
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *text = json_object_get(block, "text");
    if (!type || strcmp(type, "text") != 0)
        return fail(err, ERR_UNSUPPORTED, "%s.type: \"%.40s\" is not supported here, only text is", where,
                    type ? type : "?");
    if (!json_is_string(text))
        return fail(err, ERR_ARG, "%s.text: it must be a string", where);
    json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
    return OK;
}

/* A text, or blocks of text, as a content in *out, the caller's. */
static enum status read_texts(const json_t *given, const char *where, json_t **out, struct error *err) {
    json_t *parts = json_array(), *block;
    enum status st = OK;
    size_t i;
    if (json_is_array(given)) {
        char inner[128];
        json_array_foreach(given, i, block) {
            snprintf(inner, sizeof inner, "%s[%zu]", where, i);
            st = add_text(block, inner, parts, err);
            if (st != OK)
                break;
        }
    }
    *out = st != OK ? NULL : json_is_string(given) ? json_incref((json_t *)given) : content_of(parts);
    json_decref(parts);
    return st;
}

static enum status add_thinking(struct reading *r, const json_t *block) {
    json_t *text;
    TRY(get_string(r, block, "thinking", &text));
    if (r->think.len > 0)
        buf_push(&r->think, '\n');
    buf_append(&r->think, json_string_value(text), json_string_length(text));
    return OK;
}

static enum status add_call(struct reading *r, const json_t *block) {
    json_t *id, *name, *input = json_object_get(block, "input");
    TRY(get_string(r, block, "id", &id));
    TRY(get_string(r, block, "name", &name));
    if (!json_is_object(input))
        return fail(r->err, ERR_ARG, "%s.input: it must be an object", r->where);
    json_object_set(r->names, json_string_value(id), name);
    json_array_append_new(r->calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function",
                                              "name", name, "arguments", input));
    return OK;
}

static enum status add_result(struct reading *r, const json_t *block) {
    json_t *id, *content, *given = json_object_get(block, "content");
    char where[128];
    TRY(get_string(r, block, "tool_use_id", &id));
    snprintf(where, sizeof where, "%s.content", r->where);
    if (given && !json_is_null(given) && !json_is_string(given) && !json_is_array(given))
        return fail(r->err, ERR_ARG, "%s: it must be a string or an array of text blocks", where);
    TRY(read_texts(given, where, &content, r->err));
    json_t *message = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content);
    json_t *name = json_object_get(r->names, json_string_value(id));
    if (name)
        json_object_set(message, "name", name);
    json_array_append_new(r->out, message);
    return OK;
}

static enum status read_block(struct reading *r, const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    bool assistant = strcmp(r->role, "assistant") == 0, user = strcmp(r->role, "user") == 0;
    if (type && assistant && strcmp(type, "thinking") == 0)
        return add_thinking(r, block);
    if (type && assistant && strcmp(type, "redacted_thinking") == 0)
        return OK; // of another model, which alone can read it
    if (type && assistant && strcmp(type, "tool_use") == 0)
        return add_call(r, block);
    if (type && user && strcmp(type, "tool_result") == 0)
        return add_result(r, block);
    if (type && strcmp(type, "text") == 0)
        return add_text(block, r->where, r->texts, r->err);
    return fail(r->err, ERR_UNSUPPORTED, "%s.type: \"%.40s\" is not supported, only %s are", r->where,
                type ? type : "?",
                assistant ? "text, thinking and tool_use"
                : user    ? "text and tool_result"
                          : "texts");
}

// ---- messages ---------------------------------------------------------------------------------------------------

/* What the blocks came to. Results of tools alone are no message of the user's. */
static void add_message(struct reading *r, size_t n_before) {
    bool calls = json_array_size(r->calls) > 0, texts = json_array_size(r->texts) > 0;
    if (!texts && !calls && json_array_size(r->out) > n_before)
        return;
    json_t *content = calls && !texts ? json_null() : content_of(r->texts);
    json_t *message = json_pack("{s:s, s:o}", "role", r->role, "content", content);
    if (r->think.len > 0)
        json_object_set_new(message, "reasoning_content", json_stringn_nocheck(r->think.ptr, r->think.len));
    if (calls)
        json_object_set(message, "tool_calls", r->calls);
    json_array_append_new(r->out, message);
}

static enum status read_blocks(struct reading *all, const char *role, const json_t *blocks, size_t at) {
    struct reading r = {.out = all->out,
                        .names = all->names,
                        .texts = json_array(),
                        .calls = json_array(),
                        .role = role,
                        .err = all->err};
    size_t n_before = json_array_size(r.out), b;
    enum status st = OK;
    json_t *block;
    json_array_foreach(blocks, b, block) {
        snprintf(r.where, sizeof r.where, "messages[%zu].content[%zu]", at, b);
        st = read_block(&r, block);
        if (st != OK)
            break;
    }
    if (st == OK)
        add_message(&r, n_before);
    json_decref(r.texts);
    json_decref(r.calls);
    buf_release(&r.think);
    return st;
}

static enum status read_message(struct reading *all, const json_t *message, size_t at) {
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content");
    if (!json_is_object(message))
        return fail(all->err, ERR_ARG, "messages[%zu]: it must be an object", at);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
        return fail(all->err, ERR_ARG, "messages[%zu].role: it must be \"user\", \"assistant\" or \"system\"", at);
    if (json_is_array(content))
        return read_blocks(all, role, content, at);
    if (!json_is_string(content))
        return fail(all->err, ERR_ARG, "messages[%zu].content: it must be a string or an array of blocks", at);
    json_array_append_new(all->out, json_pack("{s:s, s:O}", "role", role, "content", content));
    return OK;
}

static enum status read_each(struct reading *all, const json_t *messages) {
    json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) TRY(read_message(all, message, i));
    return OK;
}

static enum status read_system(const json_t *body, json_t *out, struct error *err) {
    json_t *system = json_object_get(body, "system"), *content;
    if (!system || json_is_null(system))
        return OK;
    if (!json_is_string(system) && !json_is_array(system))
        return fail(err, ERR_ARG, "system: it must be a string or an array of text blocks");
    TRY(read_texts(system, "system", &content, err));
    if (json_is_string(content) && json_string_length(content) == 0)
        json_decref(content);
    else
        json_array_append_new(out, json_pack("{s:s, s:o}", "role", "system", "content", content));
    return OK;
}

enum status messages_read_input(const json_t *body, json_t *out, struct error *err) {
    json_t *messages = json_object_get(body, "messages");
    TRY(read_system(body, out, err));
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return fail(err, ERR_ARG, "messages: it must be an array of at least one message");
    struct reading all = {.out = out, .names = json_object(), .err = err};
    enum status st = read_each(&all, messages);
    json_decref(all.names);
    return st;
}

// ---- tools ------------------------------------------------------------------------------------------------------

static enum status read_tool(const json_t *tool, size_t at, json_t *out, int *left, struct error *err) {
    json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (type && strcmp(type, "custom") != 0 && !json_is_object(schema)) {
        *left = *left < 0 ? (int)at : *left;
        return OK;
    }
    if (!json_is_string(name))
        return fail(err, ERR_ARG, "tools[%zu].name: it must be a string", at);
    json_t *function = json_pack("{s:O}", "name", name);
    if (json_is_string(json_object_get(tool, "description")))
        json_object_set(function, "description", json_object_get(tool, "description"));
    if (json_is_boolean(json_object_get(tool, "strict")))
        json_object_set(function, "strict", json_object_get(tool, "strict"));
    json_object_set_new(function, "parameters", json_is_object(schema) ? json_incref(schema) : json_object());
    json_array_append_new(out, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return OK;
}

enum status messages_read_tools(const json_t *body, json_t **out, int *left, struct error *err) {
    json_t *tools, *tool;
    size_t i;
    *out = json_array();
    *left = -1;
    TRY(jv_array_or_null(body, "request", "tools", &tools, err));
    json_array_foreach(tools, i, tool) TRY(read_tool(tool, i, *out, left, err));
    return OK;
}
