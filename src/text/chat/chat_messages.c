/* chat_messages.c - see chat_messages.h. */
#include "text/chat/chat_messages.h"

#include <stdio.h>
#include <stdlib.h>

/* A message being made fit: where it is, in words. */
struct fitting {
    const char *name; // of the array
    size_t at;
    const struct chat_form *form;
    struct jv_numbers *numbers;
    size_t budget; // for the values of arguments
    struct error *err;
};

static json_t *string_of(const struct buf *b) { return json_stringn_nocheck(b->ptr ? b->ptr : "", b->len); }

// ---- parts ------------------------------------------------------------------------------------------------------

/* *text: NULL of a part that says nothing. */
static enum status part_text(const json_t *part, const char *where, size_t at, const json_t **text, struct error *err) {
    static const char *const types[] = {"text", "input_text", "output_text", "refusal", "thinking"};
    const char *type = json_string_value(json_object_get(part, "type"));
    *text = part;
    if (json_is_string(part))
        return OK;
    for (size_t i = 0; type && i < ARRAY_LEN(types); i++) {
        if (strcmp(type, types[i]) != 0)
            continue;
        const char *member = i < 3 ? "text" : type;
        const json_t *said = json_object_get(part, member);
        *text = json_is_null(said) ? NULL : said;
        return json_is_null(said) || json_is_string(said)
                   ? OK
                   : fail(err, ERR_ARG, "%s[%zu].%s: it must be a string", where, at, member);
    }
    return fail(err, ERR_UNSUPPORTED, "%s[%zu].type: \"%.40s\" is not supported, only text is", where, at,
                type ? type : "?");
}

enum status chat_join_parts(const json_t *parts, const char *where, struct buf *out, struct error *err) {
    size_t i;
    const json_t *text;
    json_t *part;
    bool more = false;
    json_array_foreach(parts, i, part) {
        TRY(part_text(part, where, i, &text, err));
        if (!text)
            continue;
        if (more)
            buf_push(out, '\n');
        buf_append(out, json_string_value(text), json_string_length(text));
        more = true;
    }
    return OK;
}

static json_t *text_part(const json_t *text) { return json_pack("{s:s, s:O}", "type", "text", "text", (json_t *)text); }

/* Parts with nothing but their text. */
static enum status plain_parts(const json_t *parts, const char *where, json_t *out, struct error *err) {
    size_t i;
    const json_t *text;
    json_t *part;
    json_array_foreach(parts, i, part) {
        TRY(part_text(part, where, i, &text, err));
        if (text)
            json_array_append_new(out, text_part(text));
    }
    return OK;
}

static enum status fit_parts(const struct fitting *f, json_t *message, enum chat_content how) {
    char where[96];
    struct buf text = {0};
    json_t *parts = json_array(), *content = json_object_get(message, "content");
    snprintf(where, sizeof where, "%s[%zu].content", f->name, f->at);
    bool join = how == CHAT_CONTENT_TEXT;
    enum status st = join ? chat_join_parts(content, where, &text, f->err) : plain_parts(content, where, parts, f->err);
    if (st == OK)
        json_object_set_new(message, "content", join ? string_of(&text) : json_incref(parts));
    json_decref(parts);
    buf_release(&text);
    return st;
}

/* What stands for a content of null. */
static json_t *instead_of_null(const struct chat_form *form, json_t *message, const char *role) {
    json_t *refusal = json_object_get(message, "refusal");
    if (refusal)
        return json_incref(refusal);
    if (json_object_get(message, "tool_calls") && form->takes_null_at_calls)
        return json_null();
    return form->content[chat_role_of(role)] == CHAT_CONTENT_PARTS ? json_array() : json_string("");
}

static enum status fit_content(const struct fitting *f, json_t *message, const char *role) {
    enum chat_content how = f->form->content[chat_role_of(role)];
    json_t *content = json_object_get(message, "content");
    if (!content || json_is_null(content)) {
        content = instead_of_null(f->form, message, role);
        json_object_set_new(message, "content", content);
    }
    if (json_is_null(content))
        return OK;
    if (json_is_array(content))
        return fit_parts(f, message, how);
    if (!json_is_string(content))
        return fail(f->err, ERR_ARG, "%s[%zu].content: it must be a string or an array of parts", f->name, f->at);
    if (how == CHAT_CONTENT_PARTS)
        json_object_set_new(message, "content", json_pack("[o]", text_part(content)));
    return OK;
}

// ---- tool calls -------------------------------------------------------------------------------------------------

static bool is_blank(const json_t *text) {
    const char *s = json_string_value(text);
    return strspn(s, " \t\r\n") == json_string_length(text);
}

static bool is_object_text(const json_t *text) {
    const char *s = json_string_value(text);
    return s[strspn(s, " \t\r\n")] == '{';
}

static enum status parse_arguments(const json_t *text, const char *where, size_t *budget, struct jv_numbers *numbers,
                                   json_t **out, struct error *err) {
    json_t *value = json_incref((json_t *)text);
    for (bool within = false; json_is_string(value) && !is_blank(value); within = true) {
        struct str s = {json_string_value(value), json_string_length(value)};
        json_t *inner = NULL;
        enum status st = jv_parse_numbers(s, where, JV_ALLOW_DUPLICATES, budget, numbers, &inner, err);
        json_decref(value);
        if (st != OK && !(within && st == ERR_FORMAT))
            return st;
        value = inner;
    }
    if (!json_is_object(value)) {
        json_decref(value);
        value = json_object();
    }
    *out = value;
    return OK;
}

enum status chat_arguments_parse(const json_t *text, const char *where, size_t *budget, json_t **out,
                                 struct error *err) {
    struct jv_numbers ignored = {0};
    enum status st = parse_arguments(text, where, budget, &ignored, out, err);
    jv_numbers_release(&ignored);
    return st;
}

/* As Python's json.dumps writes it, which templates were trained on. */
static json_t *arguments_text(const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    json_t *out = text ? json_string_nocheck(text) : NULL;
    free(text);
    return out;
}

static enum status fit_arguments(struct fitting *f, json_t *function, const char *where) {
    json_t *given = json_object_get(function, "arguments"), *value;
    bool text_given = json_is_string(given);
    if (text_given)
        TRY(parse_arguments(given, where, &f->budget, f->numbers, &value, f->err));
    else
        value = json_is_object(given) ? json_incref(given) : json_object();
    if (f->form->arguments_are_text) {
        json_t *text = text_given && is_object_text(given) ? json_incref(given) : arguments_text(value);
        json_decref(value);
        value = text;
    }
    if (!value)
        return fail(f->err, ERR_MEMORY, "%s: there is no memory for it", where);
    json_object_set_new(function, "arguments", value);
    return OK;
}

static enum status fit_call(struct fitting *f, json_t *call, size_t at) {
    char where[128];
    json_t *function = json_object_get(call, "function");
    snprintf(where, sizeof where, "%s[%zu].tool_calls[%zu]", f->name, f->at, at);
    if (!json_is_object(call))
        return fail(f->err, ERR_ARG, "%s: it must be an object", where);
    if (!json_is_object(function))
        return fail(f->err, ERR_ARG, "%s.function: it must be an object", where);
    if (!json_is_string(json_object_get(function, "name")))
        return fail(f->err, ERR_ARG, "%s.function.name: it must be a string", where);
    const json_t *type = json_object_get(call, "type");
    if (!type || json_is_null(type)) // OpenAI's first API had no other
        json_object_set_new(call, "type", json_string("function"));
    snprintf(where, sizeof where, "%s[%zu].tool_calls[%zu].function.arguments", f->name, f->at, at);
    return fit_arguments(f, function, where);
}

static enum status fit_calls(struct fitting *f, json_t *message) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!calls)
        return OK;
    if (!json_is_array(calls))
        return fail(f->err, ERR_ARG, "%s[%zu].tool_calls: it must be an array", f->name, f->at);
    json_array_foreach(calls, i, call) TRY(fit_call(f, call, i));
    return OK;
}

// ---- messages ---------------------------------------------------------------------------------------------------

static bool is_empty(const json_t *v) {
    return (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

/* What says nothing is as if it were not there. */
static void drop_empty(json_t *message) {
    static const char *const may_be_empty[] = {"tool_calls", "function_call", "refusal", "audio", "annotations"};
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value) {
        if (json_is_null(value) && strcmp(key, "content") != 0)
            json_object_del(message, key);
    }
    for (size_t i = 0; i < ARRAY_LEN(may_be_empty); i++)
        if (is_empty(json_object_get(message, may_be_empty[i])))
            json_object_del(message, may_be_empty[i]);
}

/* OpenAI's names of 2023. */
static void rename_function(json_t *message, const char *role) {
    json_t *call = json_object_get(message, "function_call");
    if (strcmp(role, "function") == 0)
        json_object_set_new(message, "role", json_string("tool"));
    if (!json_is_object(call) || json_object_get(message, "tool_calls"))
        return;
    json_object_set_new(message, "tool_calls", json_pack("[{s:s, s:O}]", "type", "function", "function", call));
    json_object_del(message, "function_call");
}

static enum status check_strings(const struct fitting *f, const json_t *message) {
    static const char *const names[] = {"name", "tool_call_id", "refusal"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const json_t *value = json_object_get(message, names[i]);
        if (value && !json_is_string(value))
            return fail(f->err, ERR_ARG, "%s[%zu].%s: it must be a string", f->name, f->at, names[i]);
    }
    return OK;
}

static enum status fit_message(struct fitting *f, json_t *message) {
    if (!json_is_object(message))
        return fail(f->err, ERR_ARG, "%s[%zu]: it must be an object", f->name, f->at);
    const json_t *role = json_object_get(message, "role");
    if (!json_is_string(role))
        return fail(f->err, ERR_ARG, "%s[%zu].role: it must be a string", f->name, f->at);
    drop_empty(message);
    TRY(check_strings(f, message));
    if (strcmp(json_string_value(role), "developer") == 0 && !f->form->knows_developer)
        json_object_set_new(message, "role", json_string("system"));
    rename_function(message, json_string_value(json_object_get(message, "role")));
    json_t *reasoning = json_object_get(message, "reasoning");
    // vLLM's name for what templates call reasoning_content.
    if (json_is_string(reasoning) && !json_object_get(message, "reasoning_content"))
        json_object_set(message, "reasoning_content", reasoning);
    TRY(fit_calls(f, message));
    return fit_content(f, message, json_string_value(json_object_get(message, "role")));
}

enum status chat_messages_fit(json_t *messages, const char *name, const struct chat_form *form,
                              struct jv_numbers *numbers, struct error *err) {
    struct error ignored;
    struct fitting f = {
        .name = name, .form = form, .numbers = numbers, .budget = CHAT_ARGUMENTS_BYTES, .err = err ? err : &ignored};
    json_t *message;
    if (!json_is_array(messages))
        return fail(err, ERR_ARG, "%s: it must be an array of messages", name);
    if (json_array_size(messages) == 0)
        return fail(err, ERR_ARG, "%s: the array is empty", name);
    json_array_foreach(messages, f.at, message) TRY(fit_message(&f, message));
    return OK;
}

/* Members that are null, as SDKs dump what was not given. */
static void drop_nulls(json_t *object) {
    const char *key;
    void *next;
    json_t *value;
    json_object_foreach_safe(object, next, key, value) {
        if (json_is_null(value))
            json_object_del(object, key);
    }
}

static json_t *fitted_function(const json_t *function, const struct chat_form *form) {
    json_t *fitted = json_copy((json_t *)function), *given = json_object_get(function, "parameters");
    if (form->needs_description && !json_is_string(json_object_get(function, "description")))
        json_object_set_new(fitted, "description", json_string(""));
    if (!form->needs_parameters) {
        drop_nulls(fitted);
        return fitted;
    }
    json_t *parameters = json_is_object(given) ? json_copy(given) : json_object();
    if (!json_object_get(parameters, "type"))
        json_object_set_new(parameters, "type", json_string("object"));
    if (!json_is_object(json_object_get(parameters, "properties")))
        json_object_set_new(parameters, "properties", json_object());
    json_object_set_new(fitted, "parameters", parameters);
    drop_nulls(fitted);
    return fitted;
}

static bool has_nulls(const json_t *tools) {
    size_t i;
    const char *key;
    json_t *tool, *value;
    json_array_foreach(tools, i, tool) {
        json_object_foreach(tool, key, value) if (json_is_null(value)) return true;
        json_object_foreach(json_object_get(tool, "function"), key, value) if (json_is_null(value)) return true;
    }
    return false;
}

void chat_tools_fit(json_t *request, const struct chat_form *form) {
    size_t i;
    json_t *tool, *tools = json_object_get(request, "tools");
    if (!json_is_array(tools) || !(form->needs_description || form->needs_parameters || has_nulls(tools)))
        return;
    json_t *all = json_array();
    json_array_foreach(tools, i, tool) {
        json_t *fitted = json_copy(tool), *function = json_object_get(tool, "function");
        if (json_is_object(function))
            json_object_set_new(fitted, "function", fitted_function(function, form));
        drop_nulls(fitted);
        json_array_append_new(all, fitted);
    }
    json_object_set_new(request, "tools", all);
}
