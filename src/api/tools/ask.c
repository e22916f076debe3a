/* ask.c - see ask.h. */
#include "api/tools/ask.h"

#include "api/tools/custom.h"

#include <string.h>

// ---- tools ------------------------------------------------------------------------------------------------------

static bool is_name(const json_t *name) {
    size_t n = json_string_length(name);
    return json_is_string(name) && n > 0 && n <= 256 && strlen(json_string_value(name)) == n;
}

static enum status check_tool(const json_t *tool, size_t i, struct error *err) {
    const json_t *type = json_object_get(tool, "type"), *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters"), *strict = json_object_get(function, "strict");
    if (!json_is_object(tool))
        return fail(err, ERR_ARG, "tools[%zu]: it must be an object", i);
    if (json_is_string(type) && strcmp(json_string_value(type), "function") != 0 &&
        strcmp(json_string_value(type), "custom") != 0)
        return fail(err, ERR_UNSUPPORTED, "tools[%zu].type: \"%.40s\" is not supported, only function and custom are",
                    i, json_string_value(type));
    if (!json_is_object(function))
        return fail(err, ERR_ARG, "tools[%zu].function: it must be an object", i);
    if (!is_name(json_object_get(function, "name")))
        return fail(err, ERR_ARG, "tools[%zu].function.name: it must be a string of 1 to 256 bytes", i);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return fail(err, ERR_ARG, "tools[%zu].function.parameters: it must be an object, a JSON schema", i);
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return fail(err, ERR_ARG, "tools[%zu].function.strict: it must be true or false", i);
    return OK;
}

static const char *name_of(const json_t *tool) {
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* Their places by name, in *out, the caller's: a request may bring very many. */
static enum status check_tools(const json_t *tools, json_t **out, struct error *err) {
    json_t *places = *out = json_object();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *first;
        TRY(check_tool(tool, i, err));
        if ((first = json_object_get(places, name_of(tool))))
            return fail(err, ERR_ARG, "tools[%zu].function.name: \"%.80s\" is the name of tools[%d] too", i,
                        name_of(tool), (int)json_integer_value(first));
        json_object_set_new(places, name_of(tool), json_integer((json_int_t)i));
    }
    return OK;
}

// ---- choices ----------------------------------------------------------------------------------------------------

enum status tool_ask_set(struct tool_ask *out, json_t *take_tools, const char *choice, const char *name, bool parallel,
                         struct error *err) {
    json_t *places;
    *out = (struct tool_ask){.tools = take_tools, .parallel = parallel};
    enum status st = check_tools(take_tools, &places, err);
    bool any = json_array_size(take_tools) > 0, is_there = name && json_object_get(places, name);
    json_decref(places);
    TRY(st);
    if (strcmp(choice, "none") == 0 || !any) {
        json_decref(out->tools);
        out->tools = NULL;
    }
    if (strcmp(choice, "none") == 0 || strcmp(choice, "auto") == 0)
        return OK;
    if (!any)
        return fail(err, ERR_ARG, "tool_choice: there are no tools to choose from");
    out->choice = strcmp(choice, "required") == 0 ? TOOL_CHOICE_REQUIRED : TOOL_CHOICE_NAMED;
    out->name = name;
    if (out->choice == TOOL_CHOICE_NAMED && !is_there)
        return fail(err, ERR_ARG, "tool_choice: there is no tool named \"%.80s\"", name);
    return OK;
}

void tool_ask_release(struct tool_ask *ask) {
    json_decref(ask->tools);
    ask->tools = NULL;
}

/* Without a copy of the schemas, whose numbers may be in a table by their place. */
json_t *tools_shown(const json_t *tools) {
    json_t *without_formats = custom_tools_shown(tools), *shown = json_array(), *tool;
    size_t i;
    json_array_foreach(without_formats, i, tool) {
        json_t *bare = json_copy(tool), *function = json_copy(json_object_get(tool, "function"));
        json_object_del(function, "strict");
        if (function)
            json_object_set_new(bare, "function", function);
        json_array_append_new(shown, bare);
    }
    json_decref(without_formats);
    return shown;
}

/* A tool's name in {"type": "function", "function": {"name"}}, or beside the type, as Responses have it. */
static const char *name_in(const json_t *choice) {
    const json_t *function = json_object_get(choice, "function"), *custom = json_object_get(choice, "custom");
    function = function ? function : custom;
    return json_string_value(json_object_get(function ? function : choice, "name"));
}

/* NULL after *err was filled. */
static json_t *those_allowed(const json_t *tools, const json_t *allowed, struct error *err) {
    json_t *out = json_array(), *places;
    enum status st = check_tools(tools, &places, err);
    for (size_t i = 0; st == OK && i < json_array_size(allowed); i++) {
        const char *name = name_in(json_array_get(allowed, i));
        const json_t *place = name ? json_object_get(places, name) : NULL;
        if (place)
            json_array_append(out, json_array_get(tools, (size_t)json_integer_value(place)));
        else
            st = fail(err, ERR_ARG, "tool_choice.tools[%zu]: there is no tool named \"%.80s\"", i, name ? name : "");
    }
    json_decref(places);
    if (st == OK)
        return out;
    json_decref(out);
    return NULL;
}

/* {"mode", "tools"}: as if these were all, but that the template shows the others too. */
static enum status read_allowed(const json_t *choice, json_t *tools, bool parallel, struct tool_ask *out,
                                struct error *err) {
    const json_t *inner = json_object_get(choice, "allowed_tools");
    const char *mode;
    json_t *list;
    inner = inner ? inner : choice;
    TRY(jv_string_or(inner, "tool_choice", "mode", "auto", &mode, err));
    TRY(jv_array_or_null(inner, "tool_choice", "tools", &list, err));
    if (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0)
        return fail(err, ERR_ARG, "tool_choice.mode: \"%.40s\" is neither auto nor required", mode);
    json_t *allowed = those_allowed(tools, list, err);
    if (!allowed)
        return err->status;
    enum status st = tool_ask_set(out, allowed, mode, NULL, parallel, err);
    out->is_limited = true;
    return st;
}

enum status tool_ask_choose(const json_t *body, json_t *tools, struct tool_ask *out, struct error *err) {
    bool parallel;
    *out = (struct tool_ask){0};
    const json_t *choice = json_object_get(body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type"));
    TRY(jv_bool_or(body, "request", "parallel_tool_calls", true, &parallel, err));
    if (!choice || json_is_null(choice))
        word = "auto";
    if (word && strcmp(word, "none") != 0 && strcmp(word, "auto") != 0 && strcmp(word, "required") != 0)
        return fail(err, ERR_ARG, "tool_choice: \"%.40s\" is none of none, auto and required", word);
    if (word)
        return tool_ask_set(out, json_incref(tools), word, NULL, parallel, err);
    if (type && strcmp(type, "allowed_tools") == 0)
        return read_allowed(choice, tools, parallel, out, err);
    if (!type || (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0))
        return fail(err, ERR_UNSUPPORTED,
                    "tool_choice: it must be none, auto, required, a function, a custom tool or allowed_tools");
    const char *name = name_in(choice);
    if (!name)
        return fail(err, ERR_ARG, "tool_choice.%s.name: it must be a string", type);
    return tool_ask_set(out, json_incref(tools), "named", name, parallel, err);
}

enum status tool_ask_read(const json_t *body, struct tool_ask *out, struct error *err) {
    json_t *given, *tools;
    *out = (struct tool_ask){0};
    TRY(jv_array_or_null(body, "request", "tools", &given, err));
    TRY(custom_tools_as_functions(given, &tools, err));
    enum status st = tool_ask_choose(body, tools, out, err);
    json_decref(tools);
    return st;
}

// ---- the model's side -------------------------------------------------------------------------------------------

enum status tool_ask_check(struct tool_ask *ask, const struct tool_format *f, const json_t *messages,
                           struct error *err) {
    ask->n_before = 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        ask->n_before += (int)json_array_size(json_object_get(json_array_get(messages, i), "tool_calls"));
    if (ask->tools && f->style == TOOL_STYLE_NONE)
        return fail(err, ERR_UNSUPPORTED, "tools: this model's calls are not understood: %s", f->refusal);
    return OK;
}

/* The schema that an answer in JSON must have; NULL: the request asks for something else. */
static json_t *schema_asked(const struct structured *s) {
    if (s->source.kind == GRAMMAR_JSON_SCHEMA)
        return json_incref((json_t *)s->source.value);
    return s->source.kind == GRAMMAR_JSON_OBJECT ? json_pack("{s:s}", "type", "object") : NULL;
}

/* An answer in the form that was asked for, or calls. */
static enum status bind_either(const struct tool_ask *ask, const struct tool_format *f,
                               const struct tool_choice *choice, struct structured *s, struct error *err) {
    struct tool_choice must = *choice;
    json_t *calls, *schema = schema_asked(s);
    must.kind = TOOL_CHOICE_REQUIRED;
    if (!schema) // the request spells the text out itself
        return OK;
    enum status st = tool_format_tag(f, ask->tools, &must, &calls, err);
    if (st != OK) {
        json_decref(schema);
        return st;
    }
    json_t *answer = tool_format_answer(f, json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", schema));
    json_t *either = json_pack("{s:s, s:{s:s, s:[o, O]}}", "type", "structural_tag", "format", "type", "or", "elements",
                               answer, json_object_get(calls, "format"));
    s->is_whole = f->style == TOOL_STYLE_CHANNELS;
    json_decref(calls);
    json_decref(s->own);
    s->own = either;
    s->source.kind = GRAMMAR_STRUCTURAL_TAG;
    s->source.value = either;
    return OK;
}

enum status tool_ask_bind(const struct tool_ask *ask, const struct tool_format *f, struct str opened,
                          struct structured *s, struct error *err) {
    const struct tool_choice choice = {.kind = ask->choice,
                                       .name = ask->name,
                                       .parallel = ask->parallel,
                                       .limited = ask->is_limited,
                                       .opened = opened};
    json_t *tag;
    if (!ask->tools)
        return OK;
    if (s->field && ask->choice == TOOL_CHOICE_AUTO)
        return bind_either(ask, f, &choice, s, err);
    TRY(tool_format_tag(f, ask->tools, &choice, &tag, err));
    const struct grammar_source source = {.kind = GRAMMAR_STRUCTURAL_TAG, .value = tag};
    s->is_whole = tag && f->style == TOOL_STYLE_CHANNELS;
    return tag ? structured_ask(s, ask->choice == TOOL_CHOICE_AUTO ? "tools" : "tool_choice", &source, tag, err) : OK;
}
