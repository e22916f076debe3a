/* custom.c - see custom.h. */
#include "api/tools/custom.h"

#include "base/status.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- tools ------------------------------------------------------------------------------------------------------

/* The format as tool_format_tag reads it. */
static enum status read_format(const json_t *custom, const char *where, json_t **out, struct error *err) {
    const json_t *format = json_object_get(custom, "format"), *grammar = json_object_get(format, "grammar");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format || json_is_null(format) || (type && strcmp(type, "text") == 0)) {
        *out = json_object();
        return OK;
    }
    if (!type || strcmp(type, "grammar") != 0)
        return fail(err, ERR_ARG, "%s.format.type: it must be text or grammar", where);
    grammar = grammar ? grammar : format;
    json_t *syntax = json_object_get(grammar, "syntax"), *definition = json_object_get(grammar, "definition");
    const char *word = json_string_value(syntax);
    if (!word || (strcmp(word, "lark") != 0 && strcmp(word, "regex") != 0))
        return fail(err, ERR_ARG, "%s.format: the syntax of a grammar must be lark or regex", where);
    if (!json_is_string(definition))
        return fail(err, ERR_ARG, "%s.format: the definition of a grammar must be a string", where);
    *out = json_pack("{s:O, s:O}", "syntax", syntax, "definition", definition);
    return OK;
}

enum status custom_as_function(const json_t *custom, const char *where, json_t **out, struct error *err) {
    json_t *name = json_object_get(custom, "name"), *description = json_object_get(custom, "description"),
           *format = NULL;
    if (!json_is_string(name))
        return fail(err, ERR_ARG, "%s.name: it must be a string", where);
    if (description && !json_is_null(description) && !json_is_string(description))
        return fail(err, ERR_ARG, "%s.description: it must be a string", where);
    TRY(read_format(custom, where, &format, err));
    json_t *function = json_pack("{s:O}", "name", name); // templates show members in their order
    if (json_is_string(description))
        json_object_set(function, "description", description);
    json_object_set_new(function, "parameters",
                        json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type", "object", "properties", "input", "type",
                                  "string", "required", "input"));
    if (json_object_size(format) > 0)
        json_object_set_new(function, "strict", json_true());
    *out = json_pack("{s:s, s:o, s:o}", "type", "custom", "function", function, "format", format);
    return OK;
}

static bool is_custom(const json_t *value) {
    const char *type = json_string_value(json_object_get(value, "type"));
    return type && strcmp(type, "custom") == 0;
}

enum status custom_tools_as_functions(const json_t *tools, json_t **out, struct error *err) {
    size_t i;
    json_t *tool, *all = json_array();
    json_array_foreach((json_t *)tools, i, tool) {
        char where[48];
        json_t *function = json_incref(tool);
        snprintf(where, sizeof where, "tools[%zu].custom", i);
        if (is_custom(tool)) {
            json_decref(function);
            enum status st = custom_as_function(json_object_get(tool, "custom"), where, &function, err);
            if (st != OK) {
                json_decref(all);
                return st;
            }
        }
        json_array_append_new(all, function);
    }
    *out = all;
    return OK;
}

json_t *custom_tools_shown(const json_t *tools) {
    size_t i;
    json_t *tool, *shown = json_array();
    json_array_foreach((json_t *)tools, i, tool) {
        if (!is_custom(tool)) {
            json_array_append(shown, tool);
            continue;
        }
        json_t *function = json_copy(json_object_get(tool, "function"));
        json_object_del(function, "strict");
        json_array_append_new(shown, json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    return shown;
}

bool custom_is(const json_t *tools, struct str name) {
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *its = json_object_get(json_object_get(tool, "function"), "name");
        if (is_custom(tool) && str_eq(name, (struct str){json_string_value(its), json_string_length(its)}))
            return true;
    }
    return false;
}

// ---- calls in histories -----------------------------------------------------------------------------------------

json_t *custom_call_as_function(const json_t *id, const json_t *name, const json_t *input) {
    json_t *arguments = json_pack("{s:O}", "input", input);
    char *text = json_dumps(arguments, JSON_COMPACT);
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:s}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", text ? text : "{}");
    free(text);
    json_decref(arguments);
    return call;
}

/* NULL: there is no custom call among them. */
static json_t *calls_as_functions(const json_t *calls) {
    size_t i;
    json_t *call, *out = NULL;
    json_array_foreach((json_t *)calls, i, call) {
        const json_t *custom = json_object_get(call, "custom"), *id = json_object_get(call, "id");
        const json_t *name = json_object_get(custom, "name"), *input = json_object_get(custom, "input");
        if (!is_custom(call) || !json_is_string(id) || !json_is_string(name) || !json_is_string(input))
            continue; // what is neither is refused by those who read messages
        out = out ? out : json_copy((json_t *)calls);
        json_array_set_new(out, i, custom_call_as_function(id, name, input));
    }
    return out;
}

json_t *custom_calls_as_functions(const json_t *messages) {
    size_t i;
    json_t *message, *out = NULL;
    json_array_foreach((json_t *)messages, i, message) {
        json_t *calls = calls_as_functions(json_object_get(message, "tool_calls"));
        if (!calls)
            continue;
        out = out ? out : json_copy((json_t *)messages);
        json_t *copy = json_copy(message);
        json_object_set_new(copy, "tool_calls", calls);
        json_array_set_new(out, i, copy);
    }
    return out ? out : json_incref((json_t *)messages);
}

// ---- the input of a call ----------------------------------------------------------------------------------------

enum { LONGEST_BEGIN = 4096 }; // with blanks; each piece reads it anew

/* Whether the arguments begin with the member `input`, a string: 1, and *n is behind its quote; 0: no; -1: more is
 * needed. */
static int begins_input(struct str s, size_t *n) {
    static const char *const parts[] = {"{", "\"input\"", ":", "\""};
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        while (at < s.len && at <= LONGEST_BEGIN && s.ptr[at] && strchr(" \t\r\n", s.ptr[at]))
            at++;
        if (at > LONGEST_BEGIN)
            return 0;
        for (size_t k = 0; parts[i][k]; k++, at++) {
            if (at == s.len)
                return -1;
            if (s.ptr[at] != parts[i][k])
                return 0;
        }
    }
    *n = at;
    return 1;
}

/* The code unit of the \uXXXX at s; -1: it is none. */
static int32_t unit_at(struct str s) {
    char digits[5] = {0};
    if (s.len < 6 || s.ptr[0] != '\\' || s.ptr[1] != 'u')
        return -1;
    memcpy(digits, s.ptr + 2, 4);
    for (int i = 0; i < 4; i++)
        if (!isxdigit((unsigned char)digits[i])) // strtol takes blanks and signs too
            return -1;
    return (int32_t)strtol(digits, NULL, 16);
}

/* What an escape says; its length, 0: more is needed. Of a \u without its digits, those two characters: what follows
 * may be the closing quote. */
static size_t put_escape(struct str s, bool ended, struct buf *out) {
    static const char shorts[] = "b\bf\fn\nr\rt\t";
    if (s.len < 2)
        return ended ? (buf_str(out, s), s.len) : 0;
    for (size_t i = 0; i + 1 < sizeof shorts - 1; i += 2)
        if (s.ptr[1] == shorts[i]) {
            buf_push(out, shorts[i + 1]);
            return 2;
        }
    if (s.ptr[1] != 'u') {
        buf_push(out, s.ptr[1]);
        return 2;
    }
    int32_t high = unit_at(s);
    bool is_high = high >= 0xD800 && high < 0xDC00;
    if ((s.len < 6 || (is_high && s.len < 12)) && !ended)
        return 0;
    int32_t low = is_high ? unit_at((struct str){s.ptr + 6, s.len - MIN(s.len, (size_t)6)}) : -1;
    bool is_pair = low >= 0xDC00 && low < 0xE000;
    if (high < 0)
        return buf_str(out, STR("\\u")), 2;
    int32_t cp = is_pair ? 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00) : high;
    char text[4];
    buf_append(out, text, (size_t)utf8_encode(cp >= 0xD800 && cp < 0xE000 ? 0xFFFD : (uint32_t)cp, text));
    return is_pair ? 12 : 6;
}

static void put_text(struct custom_input *c, bool ended, struct buf *out) {
    struct str s = buf_view(&c->held);
    size_t at = 0;
    while (at < s.len && !c->ended) {
        if (s.ptr[at] == '"') {
            c->ended = true;
            break;
        }
        size_t n = 1;
        if (s.ptr[at] == '\\')
            n = put_escape((struct str){s.ptr + at, s.len - at}, ended, out);
        else
            buf_push(out, s.ptr[at]);
        if (n == 0)
            break;
        at += n;
    }
    size_t left = c->ended ? 0 : s.len - at;
    if (left)
        memmove(c->held.ptr, c->held.ptr + at, left);
    c->held.len = left;
}

void custom_input_feed(struct custom_input *c, struct str arguments, struct buf *out) {
    if (c->ended)
        return;
    buf_str(&c->held, arguments);
    if (!c->is_text && !c->is_raw) {
        size_t n = 0;
        int begins = begins_input(buf_view(&c->held), &n);
        if (begins < 0)
            return;
        c->is_text = begins == 1;
        c->is_raw = !c->is_text;
        memmove(c->held.ptr, c->held.ptr + n, c->held.len - n);
        c->held.len -= n;
    }
    if (c->is_text) {
        put_text(c, false, out);
        return;
    }
    buf_str(out, buf_view(&c->held));
    buf_clear(&c->held);
}

/* Arguments that were cut before they said what they are have no input; empty ones neither. */
void custom_input_finish(struct custom_input *c, struct buf *out) {
    if (c->is_text && !c->ended)
        put_text(c, true, out);
    c->ended = true;
}

void custom_input_release(struct custom_input *c) { buf_release(&c->held); }
