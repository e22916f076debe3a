/* tool_parser_tagged.c - see tool_parser_parts.h: arguments with a tag a key, which become JSON by the tool's schema.
 */
#include "text/tools/tool_parser_parts.h"

#include "base/status.h"

enum {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_BOOL = 4,
    TYPE_NULL = 8,
    TYPE_ARRAY = 16,
    TYPE_OBJECT = 32,
    TYPE_ALL = 63
};
enum { MAX_SCHEMA_DEPTH = 8 };

// ---- what a schema lets a value be ------------------------------------------------------------------------------

static int type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER:
    case JSON_REAL: return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return TYPE_BOOL;
    case JSON_NULL: return TYPE_NULL;
    case JSON_ARRAY: return TYPE_ARRAY;
    default: return TYPE_OBJECT;
    }
}

static int type_named(const json_t *name) {
    static const struct {
        const char *name;
        int type;
    } names[] = {{"string", TYPE_STRING}, {"integer", TYPE_NUMBER}, {"number", TYPE_NUMBER}, {"boolean", TYPE_BOOL},
                 {"null", TYPE_NULL},     {"array", TYPE_ARRAY},    {"object", TYPE_OBJECT}};
    for (size_t i = 0; json_is_string(name) && i < ARRAY_LEN(names); i++)
        if (strcmp(json_string_value(name), names[i].name) == 0)
            return names[i].type;
    return 0;
}

static const json_t *resolved(const json_t *schema, const json_t *root) {
    const json_t *ref = json_object_get(schema, "$ref");
    const char *path = json_is_string(ref) ? json_string_value(ref) : "";
    static const char *const places[] = {"$defs", "definitions"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        size_t n = strlen(places[i]);
        if (strncmp(path, "#/", 2) == 0 && strncmp(path + 2, places[i], n) == 0 && path[2 + n] == '/')
            return json_object_get(json_object_get(root, places[i]), path + 3 + n);
    }
    return schema;
}

static int types_of(const json_t *schema, const json_t *root, int depth) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    schema = resolved(schema, root);
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    int types = type_named(type);
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_named(json_array_get(type, i));
    for (size_t i = 0; !types && i < json_array_size(values); i++)
        types |= type_of(json_array_get(values, i));
    if (!types && constant)
        types = type_of(constant);
    for (size_t c = 0; !types && depth < MAX_SCHEMA_DEPTH && c < ARRAY_LEN(choices); c++) {
        const json_t *of = json_object_get(schema, choices[c]);
        for (size_t i = 0; i < json_array_size(of); i++)
            types |= types_of(json_array_get(of, i), root, depth + 1);
    }
    return types ? types : TYPE_ALL;
}

static int types_of_key(const struct tool_parser *p, struct str key) {
    char name[MAX_KEY + 1];
    if (key.len > MAX_KEY)
        return TYPE_ALL;
    memcpy(name, key.ptr, key.len);
    name[key.len] = '\0';
    const json_t *schema = json_object_get(json_object_get(p->parameters, "properties"), name);
    return schema ? types_of(schema, p->parameters, 0) : TYPE_ALL;
}

// ---- values that are no strings ---------------------------------------------------------------------------------

/* A dictionary or a list as Python writes it. */
static bool put_literal(struct str text, struct buf *out) {
    struct literal l;
    struct buf json = {0};
    size_t used;
    literal_init(&l, false, STR(""));
    bool whole = literal_feed(&l, text, &used, &json) == LITERAL_DONE && used == text.len;
    if (whole)
        buf_str(out, buf_view(&json));
    literal_release(&l);
    buf_release(&json);
    return whole;
}

static bool put_value(struct str text, int types, struct buf *out) {
    json_error_t e;
    json_t *value = json_loadb(text.ptr, text.len, JSON_DECODE_ANY, &e);
    bool fits = value && ((type_of(value) & types) || !(types & TYPE_STRING));
    json_decref(value);
    if (fits)
        buf_str(out, text);
    if (fits || value)
        return fits;
    if ((types & (TYPE_BOOL | TYPE_NULL | TYPE_NUMBER)) && literal_word(text, types == TYPE_ALL, out))
        return true;
    bool brackets = text.len && (text.ptr[0] == '{' || text.ptr[0] == '[');
    return brackets && (types & (TYPE_ARRAY | TYPE_OBJECT)) && put_literal(text, out);
}

// ---- the marks around them --------------------------------------------------------------------------------------

static void tell(struct tool_parser *p, struct buf *take_text) {
    parser_tell(p, TOOL_EVENT_ARGUMENTS, buf_view(take_text));
    buf_release(take_text);
}

static bool close_arguments(struct tool_parser *p, size_t taken, enum parser_state next) {
    parser_tell(p, TOOL_EVENT_ARGUMENTS, p->n_keys ? STR("}") : STR("{}"));
    parser_take(p, taken);
    parser_end_call(p);
    p->state = next;
    return true;
}

/* One more key, or the call's end. Where the model forgets a part of the end, its first tag is enough; and what is
 * neither ends the call too. */
static bool read_next(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    struct str rest = parser_rest(p);
    size_t at = 0;
    enum mark_match key = mark_at(rest, &at, f->key_open);
    if (key == MARK_YES) {
        parser_take(p, at);
        p->value = VALUE_KEY;
        return true;
    }
    enum mark_match close = mark_at(rest, &at, f->call_close);
    if (close == MARK_YES)
        return close_arguments(p, at, PARSER_BETWEEN);
    if (p->ended) // tool_parser_finish
        return false;
    if (key == MARK_MORE || close == MARK_MORE)
        return false;
    if (mark_at(rest, &at, str_first_part(f->call_close)) == MARK_YES)
        return close_arguments(p, at, PARSER_BETWEEN);
    return close_arguments(p, 0, PARSER_TEXT);
}

/* Where the mark is in s, blanks within it as they come; *end is behind it. SIZE_MAX: not even its first tag is. */
static enum mark_match find_mark(struct str s, struct str mark, size_t *begin, size_t *end) {
    struct str first = str_first_part(mark);
    *begin = *end = SIZE_MAX;
    for (size_t at = 0; at < s.len; at = *begin + 1) {
        size_t n = text_find(str_from(s, at), first);
        if (n == NOT_FOUND)
            return MARK_MORE;
        *begin = *end = at + n;
        enum mark_match m = mark_at(s, end, mark);
        if (m == MARK_MORE) // the text ends in it
            *end = s.len;
        if (m != MARK_NO)
            return m;
    }
    return MARK_MORE;
}

/* The blanks that a mark ends in are no part of the value behind it, if they are all there. */
static enum mark_match take_blanks(struct str s, size_t *at, struct str mark) {
    struct str blanks = str_from(mark, leading_blanks(mark) + str_core(mark).len), rest = str_from(s, *at);
    if (rest.len < blanks.len && str_starts(blanks, rest))
        return MARK_MORE;
    if (str_starts(rest, blanks))
        *at += blanks.len;
    return MARK_YES;
}

/* Where the tag says whether it is a string, the schema may still know that it is none. */
static int types_said(const struct tool_format *f, int by_schema, bool other) {
    if (f->key_close_other.len == 0)
        return by_schema;
    if (other)
        return TYPE_ALL & ~TYPE_STRING;
    return by_schema & TYPE_STRING ? TYPE_STRING : by_schema;
}

/* What begins like a key and is none: the call is over, and the rest is content with the mark before it. */
static bool close_before_key(struct tool_parser *p) {
    close_arguments(p, 0, PARSER_TEXT);
    p->blank_so_far = p->after_call = false;
    parser_tell(p, TOOL_EVENT_CONTENT, str_core(p->f->key_open));
    return true;
}

static bool read_key(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    struct str rest = parser_rest(p);
    size_t begin, end, begin_other, end_other;
    enum mark_match m = find_mark(rest, f->key_close, &begin, &end);
    bool other = f->key_close_other.len && find_mark(rest, f->key_close_other, &begin_other, &end_other) == MARK_YES &&
                 (m != MARK_YES || begin_other < begin);
    if (other) {
        m = MARK_YES;
        begin = begin_other;
        end = end_other;
    }
    if (m == MARK_YES)
        m = take_blanks(rest, &end, other ? f->key_close_other : f->key_close);
    bool whole = m == MARK_YES || (p->ended && begin < rest.len && end <= rest.len);
    if (whole ? begin > MAX_KEY : rest.len > MAX_KEY + MAX_NAME)
        return close_before_key(p);
    if (!whole)
        return false;
    struct str key = str_core(str_to(rest, begin));
    struct buf out = {0};
    buf_str(&out, p->n_keys++ ? STR(", ") : STR("{"));
    buf_json_string(&out, key);
    buf_str(&out, STR(": "));
    p->types = types_said(f, types_of_key(p, key), other);
    p->value = p->types == TYPE_STRING ? VALUE_STRING : VALUE_OTHER;
    if (p->value == VALUE_STRING)
        buf_push(&out, '"');
    p->looked = 0;
    tell(p, &out);
    parser_take(p, end);
    return true;
}

/* The value's text without the blanks that its mark begins with. */
static struct str without_mark_blanks(const struct tool_format *f, struct str text) {
    struct str blanks = str_to(f->value_close, leading_blanks(f->value_close));
    return str_ends(text, blanks) ? str_to(text, text.len - blanks.len) : text;
}

static void put_escaped(struct buf *out, struct str text) {
    struct buf quoted = {0};
    buf_json_string(&quoted, text);
    buf_append(out, quoted.ptr + 1, quoted.len - 2);
    buf_release(&quoted);
}

static bool read_string(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    struct str rest = parser_rest(p), core = str_core(f->value_close);
    size_t close = text_find(rest, core), certain, taken;
    struct buf out = {0};
    if (close == NOT_FOUND) {
        struct str with_blanks = str_to(f->value_close, leading_blanks(f->value_close) + core.len);
        certain = taken = rest.len - MAX(beginning_at_end(rest, core), beginning_at_end(rest, with_blanks));
    } else {
        certain = without_mark_blanks(f, str_to(rest, close)).len;
        taken = close + core.len;
    }
    put_escaped(&out, str_to(rest, certain));
    if (close != NOT_FOUND) {
        buf_push(&out, '"');
        p->value = VALUE_NEXT;
    }
    tell(p, &out);
    parser_take(p, taken);
    return close != NOT_FOUND;
}

static void tell_value(struct tool_parser *p, struct str text) {
    struct buf out = {0};
    if (!put_value(str_core(text), p->types, &out))
        buf_json_string(&out, without_mark_blanks(p->f, text));
    tell(p, &out);
}

static bool read_other(struct tool_parser *p) {
    struct str rest = parser_rest(p), core = str_core(p->f->value_close);
    size_t close = text_find(str_from(rest, p->looked), core);
    if (close == NOT_FOUND) {
        p->looked = rest.len - MIN(rest.len, core.len);
        if (rest.len > MAX_HELD)
            return close_arguments(p, 0, PARSER_TEXT);
        return false;
    }
    close += p->looked;
    tell_value(p, str_to(rest, close));
    parser_take(p, close + core.len);
    p->value = VALUE_NEXT;
    return true;
}

bool parser_tagged(struct tool_parser *p) {
    switch (p->value) {
    case VALUE_NEXT: return read_next(p);
    case VALUE_KEY: return read_key(p);
    case VALUE_STRING: return read_string(p);
    case VALUE_OTHER: return read_other(p);
    }
    return false;
}

/* Inside of a key. One that the model left is no argument; one that is cut is told as far as it came. */
static void finish_key(struct tool_parser *p, bool close) {
    struct str rest = parser_rest(p), key = str_to(rest, rest.len - beginning_at_end(rest, str_core(p->f->key_close)));
    struct buf out = {0};
    if (close) {
        close_before_key(p);
        parser_tell(p, TOOL_EVENT_CONTENT, rest);
        return;
    }
    key = str_core(key);
    if (key.len) {
        buf_str(&out, p->n_keys ? STR(", \"") : STR("{\""));
        put_escaped(&out, key);
    }
    tell(p, &out);
}

void parser_finish_tagged(struct tool_parser *p, bool close) {
    struct str rest = parser_rest(p);
    struct buf out = {0};
    if (p->value == VALUE_KEY) {
        finish_key(p, close);
        return;
    }
    if (p->value == VALUE_STRING) {
        put_escaped(&out, rest);
        if (close)
            buf_push(&out, '"');
    } else if (p->value == VALUE_OTHER && close && !put_value(str_core(rest), p->types, &out))
        buf_json_string(&out, rest);
    if (close)
        buf_str(&out, p->n_keys ? STR("}") : STR("{}"));
    tell(p, &out);
}
