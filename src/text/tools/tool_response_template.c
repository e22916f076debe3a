/* tool_response_template.c - see tool_response_template.h. */
#include "text/tools/tool_response_template.h"

#include "text/tools/tool_marks.h"

#include <ctype.h>

static struct str keep(struct tool_format *f, struct str s) { return (struct str){arena_strdup(&f->arena, s), s.len}; }

// ---- patterns ---------------------------------------------------------------------------------------------------

/* A regular expression that is a text, with blanks that may be there or not. */
static bool literal_of(struct str pattern, struct buf *out) {
    for (size_t i = 0; i < pattern.len; i++) {
        char c = pattern.ptr[i];
        bool blank = is_blank(c);
        if (c == '\\' && ++i < pattern.len) {
            c = pattern.ptr[i];
            blank = c == 'n' || c == 's' || c == 't';
            if (!blank && isalnum((unsigned char)c))
                return false;
            c = blank ? '\n' : c;
        } else if (strchr(".[](){}|^$*+?\\", c)) {
            return false;
        }
        buf_push(out, c);
        bool repeated = i + 1 < pattern.len && strchr("*+?", pattern.ptr[i + 1]);
        if (repeated && !blank)
            return false;
        i += repeated;
    }
    return true;
}

/* The named group in a pattern; its place, with its brackets. */
static bool find_group(struct str pattern, const char *name, size_t *begin, size_t *end) {
    char open[32];
    snprintf(open, sizeof open, "(?P<%s>", name);
    *begin = text_find(pattern, str_of(open));
    if (*begin == NOT_FOUND)
        return false;
    int depth = 0;
    for (size_t i = *begin; i < pattern.len; i++) {
        if (pattern.ptr[i] == '\\')
            i++;
        else if (pattern.ptr[i] == '[') { // a class may hold brackets
            while (i + 1 < pattern.len && pattern.ptr[i + 1] != ']')
                i += pattern.ptr[i + 1] == '\\' ? 2 : 1;
        } else if (pattern.ptr[i] == '(')
            depth++;
        else if (pattern.ptr[i] == ')' && --depth == 0) {
            *end = i + 1;
            return true;
        }
    }
    return false;
}

static bool take_literal(struct tool_format *f, struct str pattern, struct str *out) {
    struct buf text = {0};
    bool is = literal_of(pattern, &text);
    if (is)
        *out = keep(f, buf_view(&text));
    buf_release(&text);
    return is;
}

// ---- fields -----------------------------------------------------------------------------------------------------

/* A text, or the first of several. */
static struct str text_in(const json_t *field, const char *key) {
    const json_t *value = json_object_get(field, key);
    value = json_is_array(value) ? json_array_get(value, 0) : value;
    return json_is_string(value) ? (struct str){json_string_value(value), json_string_length(value)} : STR("");
}

static void take_thinking(struct tool_format *f, const json_t *field) {
    struct str open = text_in(field, "open"), close = text_in(field, "close");
    if (open.len == 0 || close.len == 0)
        return;
    f->reasoning_open = keep(f, open);
    f->reasoning_close = keep(f, close);
    f->reasoning_is_exact = f->reasoning_is_guess = false;
}

/* xml-inline: a pattern with a key and a value in it. */
static bool take_tags(struct tool_format *f, const json_t *arguments) {
    struct str pattern = text_in(arguments, "tag_pattern");
    size_t key, key_end, value, value_end;
    if (!find_group(pattern, "key", &key, &key_end) || !find_group(pattern, "value", &value, &value_end) ||
        value < key_end)
        return false;
    f->arguments = TOOL_ARGUMENTS_TAGGED;
    return take_literal(f, str_to(pattern, key), &f->key_open) &&
           take_literal(f, str_to(str_from(pattern, key_end), value - key_end), &f->key_close) &&
           take_literal(f, str_from(pattern, value_end), &f->value_close) && str_core(f->key_close).len &&
           str_core(f->value_close).len;
}

static bool take_arguments(struct tool_format *f, const json_t *field) {
    const json_t *arguments = json_object_get(field, "content_args");
    struct str content = text_in(field, "content");
    if (str_eq(content, STR("xml-inline")))
        return take_tags(f, arguments);
    if (!str_eq(content, STR("json")))
        return false;
    const json_t *quotes = json_array_get(json_object_get(arguments, "string_delims"), 0);
    if (!quotes && !json_is_true(json_object_get(arguments, "unquoted_keys")))
        return true;
    f->arguments = TOOL_ARGUMENTS_LITERAL;
    f->arguments_open = STR("{");
    f->arguments_close = STR("}");
    if (json_is_string(json_array_get(quotes, 0)))
        f->quote = keep(f, str_of(json_string_value(json_array_get(quotes, 0))));
    return true;
}

/* A name in the mark that opens a call. */
static bool take_named(struct tool_format *f, const json_t *field, struct str pattern) {
    size_t name, name_end;
    struct str behind;
    if (!find_group(pattern, "name", &name, &name_end) || !take_literal(f, str_to(pattern, name), &f->call_open) ||
        !take_literal(f, str_from(pattern, name_end), &behind) || !take_arguments(f, field))
        return false;
    f->style = TOOL_STYLE_MARKED;
    f->heads[0] = (struct tool_head){f->call_open, TOOL_SLOT_NAME};
    f->heads[1] = (struct tool_head){behind, TOOL_SLOT_ARGUMENTS};
    f->n_heads = 2;
    return true;
}

/* "{content.tool_name}" of a transform's function: the key that stands for it. */
static struct str key_of(struct tool_format *f, const json_t *field, const char *member) {
    const json_t *function = json_object_get(json_object_get(field, "transform"), "function");
    struct str said = text_in(function, member);
    static const struct str prefix = {"{content.", 9};
    if (said.len > prefix.len + 1 && str_starts(said, prefix) && said.ptr[said.len - 1] == '}')
        return keep(f, (struct str){said.ptr + prefix.len, said.len - prefix.len - 1});
    return keep(f, str_of(member));
}

static bool take_object(struct tool_format *f, const json_t *field, struct str open) {
    if (open.len == 0 || !str_eq(text_in(field, "content"), STR("json")) || json_object_get(field, "content_args"))
        return false;
    f->style = TOOL_STYLE_JSON;
    f->call_open = keep(f, open);
    f->name_key = key_of(f, field, "name");
    f->arguments_key = key_of(f, field, "arguments");
    return true;
}

static bool take_calls(struct tool_format *f, const json_t *field) {
    struct str pattern = text_in(field, "open_pattern"), close = text_in(field, "close");
    bool taken = pattern.len ? take_named(f, field, pattern) : take_object(f, field, text_in(field, "open"));
    f->call_close = keep(f, close);
    f->one_call = !json_is_true(json_object_get(field, "repeats"));
    return taken;
}

bool tool_response_template_take(struct tool_format *f, const json_t *template) {
    const json_t *fields = json_object_get(template, "fields");
    struct tool_format said = {.arena = f->arena, // what is said of reasoning and content may be left out
                               .reasoning_open = f->reasoning_open,
                               .reasoning_close = f->reasoning_close,
                               .reasoning_is_exact = f->reasoning_is_exact,
                               .content_open = f->content_open,
                               .content_close = f->content_close,
                               .id = f->id};
    take_thinking(&said, json_object_get(fields, "thinking"));
    bool taken = take_calls(&said, json_object_get(fields, "tool_calls"));
    f->arena = said.arena;
    if (taken) {
        *f = said;
        f->found = "response_template";
    }
    return taken;
}
