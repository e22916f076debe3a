/* input.c - input items and instructions of a response as messages; see responses.h. */
#include "api/responses/responses.h"

#include "api/tools/custom.h"
#include "text/chat/chat_messages.h"

#include <stdio.h>

/* Items being read. The calls of one turn, one after another, are one message, with what was said and reasoned before
 * them. */
struct items {
    json_t *messages;
    json_t *turn;  // the assistant's message that calls may still join; borrowed, or NULL
    json_t *names; // of the functions that were called, by the id of the call
    struct buf reasoning;
    size_t budget; // for the values of arguments
    size_t at;
    struct error *err;
};

// ---- messages and reasoning -------------------------------------------------------------------------------------

/* The text of a reasoning item, which belongs to the assistant's message after it. */
static enum status read_reasoning_item(struct items *in, const json_t *item) {
    json_t *content, *part;
    size_t i;
    struct error inner;
    if (jv_array_or_null(item, "input", "content", &content, &inner) != OK)
        return fail(in->err, ERR_ARG, "input[%zu].content: it must be an array of parts", in->at);
    json_array_foreach(content, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text))
            return fail(in->err, ERR_ARG, "input[%zu].content[%zu].text: it must be a string", in->at, i);
        buf_append(&in->reasoning, json_string_value(text), json_string_length(text));
    }
    in->turn = NULL;
    return OK;
}

static void take_reasoning(struct items *in, json_t *message) {
    if (in->reasoning.len > 0)
        json_object_set_new(message, "reasoning_content", json_stringn_nocheck(in->reasoning.ptr, in->reasoning.len));
    buf_clear(&in->reasoning);
}

static enum status check_parts(const struct items *in, json_t *content, const char *field) {
    char where[64];
    struct buf text = {0};
    if (json_is_string(content))
        return OK;
    if (!json_is_array(content))
        return fail(in->err, ERR_ARG, "input[%zu].%s: it must be a string or an array of parts", in->at, field);
    snprintf(where, sizeof where, "input[%zu].%s", in->at, field);
    enum status st = chat_join_parts(content, where, &text, in->err);
    buf_release(&text);
    return st;
}

static enum status read_message_item(struct items *in, const json_t *item) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content");
    bool known = false;
    for (size_t i = 0; role && i < ARRAY_LEN(roles); i++)
        known |= strcmp(role, roles[i]) == 0;
    if (!known)
        return fail(in->err, ERR_ARG,
                    "input[%zu].role: it must be \"user\", \"assistant\", \"system\" or \"developer\"", in->at);
    TRY(check_parts(in, content, "content"));
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
    json_array_append_new(in->messages, message);
    bool assistant = strcmp(role, "assistant") == 0;
    if (assistant)
        take_reasoning(in, message);
    buf_clear(&in->reasoning);
    in->turn = assistant ? message : NULL;
    return OK;
}

// ---- calls ------------------------------------------------------------------------------------------------------

static enum status get_string(const struct items *in, const json_t *item, const char *name, json_t **out) {
    *out = json_object_get(item, name);
    return json_is_string(*out) ? OK : fail(in->err, ERR_ARG, "input[%zu].%s: it must be a string", in->at, name);
}

/* The message of the turn that is going on, or a new one. */
static json_t *calls_of_turn(struct items *in) {
    if (!in->turn) {
        in->turn = json_pack("{s:s, s:n}", "role", "assistant", "content");
        take_reasoning(in, in->turn);
        json_array_append_new(in->messages, in->turn);
    }
    json_t *calls = json_object_get(in->turn, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(in->turn, "tool_calls", calls);
    }
    return calls;
}

static enum status read_call_item(struct items *in, const json_t *item) {
    json_t *id, *name, *text, *arguments;
    char where[64];
    TRY(get_string(in, item, "call_id", &id));
    TRY(get_string(in, item, "name", &name));
    TRY(get_string(in, item, "arguments", &text));
    snprintf(where, sizeof where, "input[%zu].arguments", in->at);
    TRY(chat_arguments_parse(text, where, &in->budget, &arguments, in->err));
    json_decref(arguments); // chat_messages_fit parses it again, and knows in which form the template wants it
    json_object_set(in->names, json_string_value(id), name);
    json_array_append_new(calls_of_turn(in), json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                                       "function", "name", name, "arguments", text));
    return OK;
}

static enum status read_custom_call_item(struct items *in, const json_t *item) {
    json_t *id, *name, *input;
    TRY(get_string(in, item, "call_id", &id));
    TRY(get_string(in, item, "name", &name));
    TRY(get_string(in, item, "input", &input));
    json_object_set(in->names, json_string_value(id), name);
    json_array_append_new(calls_of_turn(in), custom_call_as_function(id, name, input));
    return OK;
}

static enum status read_output_item(struct items *in, const json_t *item) {
    json_t *id, *output = json_object_get(item, "output");
    TRY(get_string(in, item, "call_id", &id));
    TRY(check_parts(in, output, "output"));
    json_t *message = json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id", id, "content", output);
    json_t *name = json_object_get(in->names, json_string_value(id));
    if (name)
        json_object_set(message, "name", name);
    json_array_append_new(in->messages, message);
    in->turn = NULL;
    return OK;
}

// ---- items ------------------------------------------------------------------------------------------------------

static enum status read_item(struct items *in, const json_t *item) {
    static const struct kind {
        const char *type;
        enum status (*read)(struct items *, const json_t *);
    } kinds[] = {{"message", read_message_item},
                 {"reasoning", read_reasoning_item},
                 {"function_call", read_call_item},
                 {"function_call_output", read_output_item},
                 {"custom_tool_call", read_custom_call_item},
                 {"custom_tool_call_output", read_output_item}};
    const json_t *type = json_object_get(item, "type");
    const char *name = type ? json_string_value(type) : "message";
    if (!json_is_object(item))
        return fail(in->err, ERR_ARG, "input[%zu]: it must be an object", in->at);
    for (size_t i = 0; name && i < ARRAY_LEN(kinds); i++)
        if (strcmp(name, kinds[i].type) == 0)
            return kinds[i].read(in, item);
    return fail(in->err, ERR_UNSUPPORTED,
                "input[%zu].type: \"%.40s\" is not supported, only message, reasoning, function_call, custom_tool_call "
                "and their outputs are",
                in->at, name ? name : "?");
}

static enum status read_items(struct items *in, const json_t *items) {
    json_t *item;
    json_array_foreach(items, in->at, item) TRY(read_item(in, item));
    return OK;
}

static enum status read_instructions(const json_t *body, json_t *messages, struct error *err) {
    json_t *text = json_object_get(body, "instructions");
    if (!text || json_is_null(text))
        return OK;
    if (!json_is_string(text))
        return fail(err, ERR_ARG, "instructions: it must be a string");
    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", text));
    return OK;
}

static enum status read_input(struct items *in, const json_t *body, const json_t *before) {
    json_t *input = json_object_get(body, "input");
    TRY(read_items(in, before));
    size_t n_before = json_array_size(in->messages);
    if (json_is_string(input)) {
        json_array_append_new(in->messages, json_pack("{s:s, s:O}", "role", "user", "content", input));
        return OK;
    }
    if (!json_is_array(input) || json_array_size(input) == 0)
        return fail(in->err, ERR_ARG, "input: it must be a string or an array of at least one item");
    TRY(read_items(in, input));
    if (json_array_size(in->messages) == n_before && !in->turn)
        return fail(in->err, ERR_ARG, "input: it holds no message");
    return OK;
}

enum status responses_read_input(const json_t *body, const json_t *before, json_t *messages, struct error *err) {
    TRY(read_instructions(body, messages, err));
    struct items in = {.messages = messages, .names = json_object(), .budget = CHAT_ARGUMENTS_BYTES, .err = err};
    enum status st = read_input(&in, body, before);
    json_decref(in.names);
    buf_release(&in.reasoning);
    return st;
}

// ---- tools ------------------------------------------------------------------------------------------------------

static enum status read_tool(const json_t *tool, size_t at, json_t *out, int *left, struct error *err) {
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type)
        return fail(err, ERR_ARG, "tools[%zu].type: it must be a string", at);
    if (strcmp(type, "custom") == 0) {
        char where[32];
        json_t *custom;
        snprintf(where, sizeof where, "tools[%zu]", at);
        TRY(custom_as_function(tool, where, &custom, err));
        json_array_append_new(out, custom);
        return OK;
    }
    if (strcmp(type, "function") != 0) {
        *left = *left < 0 ? (int)at : *left;
        return OK;
    }
    if (!json_is_string(json_object_get(tool, "name")))
        return fail(err, ERR_ARG, "tools[%zu].name: it must be a string", at);
    json_t *function = json_object();
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        json_t *value = json_object_get(tool, members[i]);
        if (value && !json_is_null(value))
            json_object_set(function, members[i], value);
    }
    json_array_append_new(out, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return OK;
}

enum status responses_read_tools(const json_t *body, json_t **out, int *left, struct error *err) {
    json_t *tools, *tool;
    size_t i;
    *out = json_array();
    *left = -1;
    enum status st = jv_array_or_null(body, "request", "tools", &tools, err);
    json_array_foreach(st == OK ? tools : NULL, i, tool) {
        if (st == OK)
            st = read_tool(tool, i, *out, left, err);
    }
    if (st != OK)
        json_decref(*out);
    return st;
}

// ---- as they are shown later ------------------------------------------------------------------------------------

static void set_missing(json_t *item, const char *name, json_t *take_value) {
    if (json_object_get(item, name))
        json_decref(take_value);
    else
        json_object_set_new(item, name, take_value);
}

static json_t *text_parts(const char *role, json_t *text) {
    return json_pack("[{s:s, s:O}]", "type", role && strcmp(role, "assistant") == 0 ? "output_text" : "input_text",
                     "text", text);
}

/* An item as OpenAI lists it: with an id, its type and a content of parts. */
static json_t *listed_item(const json_t *item) {
    char id[64];
    json_t *listed = json_copy((json_t *)item), *content = json_object_get(item, "content");
    set_missing(listed, "type", json_string("message"));
    bool is_message = strcmp(json_string_value(json_object_get(listed, "type")), "message") == 0;
    api_new_id(is_message ? "msg_" : "item_", id);
    set_missing(listed, "id", json_string(id));
    set_missing(listed, "status", json_string("completed"));
    if (is_message && json_is_string(content))
        json_object_set_new(listed, "content", text_parts(json_string_value(json_object_get(item, "role")), content));
    return listed;
}

json_t *responses_input_items(const json_t *body) {
    json_t *input = json_object_get(body, "input"), *items = json_array(), *item;
    size_t i;
    if (json_is_string(input)) {
        json_t *said = json_pack("{s:s, s:O}", "role", "user", "content", input);
        json_array_append_new(items, listed_item(said));
        json_decref(said);
    }
    json_array_foreach(input, i, item) json_array_append_new(items, listed_item(item));
    return items;
}
