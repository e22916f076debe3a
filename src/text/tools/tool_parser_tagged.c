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

/* The schema of an argument; NULL where there is none. */
static const json_t *schema_of_key(const struct tool_parser *p, struct str key) {
    return key.len > MAX_KEY ? NULL : json_object_getn(json_object_get(p->parameters, "properties"), key.ptr, key.len);
}

static int types_of_key(const struct tool_parser *p, struct str key) {
    const json_t *schema = schema_of_key(p, key);
    return schema ? types_of(schema, p->parameters, 0) : TYPE_ALL;
}

/* A key of that name that the schema does not know may hold all of the arguments. */
static struct str wrapping_key(const struct tool_parser *p, struct str key) {
    static const struct str names[] = {{"arguments", 9}, {"parameters", 10}, {"input", 5}, {"properties", 10}};
    bool free = p->n_keys == 0 && json_object_size(json_object_get(p->parameters, "properties"));
    for (size_t i = 0; free && i < ARRAY_LEN(names); i++)
        if (str_eq(key, names[i]) && !schema_of_key(p, key))
            return names[i];
    return STR("");
}

// ---- values that are no strings ---------------------------------------------------------------------------------

/* A dictionary, a list, a set or a tuple as Python writes it. */
static bool put_literal(struct str text, struct buf *out) {
    struct literal l;
    struct buf json = {0};
    size_t used;
    literal_init(&l, false, STR(""));
    l.is_value = l.ended = true;
    bool whole = literal_feed(&l, text, &used, &json) == LITERAL_DONE && used == text.len;
    if (whole)
        buf_str(out, buf_view(&json));
    literal_release(&l);
    buf_release(&json);
    return whole;
}

/* A word of Python. Where a text may be, 07 and +49 are texts: a number would lose what they begin with. */
static bool put_word(struct str text, int types, struct buf *out) {
    struct buf word = {0};
    bool is = literal_word(text, types == TYPE_ALL, &word);
    char c = is ? word.ptr[0] : '\0';
    int type = c == 'n' ? TYPE_NULL : c == 't' || c == 'f' ? TYPE_BOOL : TYPE_NUMBER;
    is = is && (!(types & TYPE_STRING) || (type != TYPE_NUMBER && (types & type)));
    if (is)
        buf_str(out, buf_view(&word));
    buf_release(&word);
    return is;
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
    if ((types & (TYPE_BOOL | TYPE_NULL | TYPE_NUMBER)) && put_word(text, types, out))
        return true;
    char c = text.len ? text.ptr[0] : '\0';
    bool brackets = c == '{' || c == '[' || (c == '(' && !(types & TYPE_STRING));
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
        return by_schema == TYPE_STRING ? TYPE_STRING : TYPE_ALL & ~TYPE_STRING;
    return by_schema & TYPE_STRING ? TYPE_STRING : by_schema;
}

/* What begins like a key and is none: the call is over, and the rest is content with the mark before it. */
static bool close_before_key(struct tool_parser *p) {
    close_arguments(p, 0, PARSER_TEXT);
    p->blank_so_far = p->after_call = false;
    parser_tell(p, TOOL_EVENT_CONTENT, str_core(p->f->key_open));
    return true;
}

static void put_key(struct tool_parser *p, struct str key, struct buf *out) {
    buf_str(out, p->n_keys++ ? STR(", ") : STR("{"));
    buf_json_string(out, key);
    buf_str(out, STR(": "));
}

static void begin_value(struct tool_parser *p, struct str key, bool other) {
    struct buf out = {0};
    p->types = types_said(p->f, types_of_key(p, key), other);
    p->wrapped = wrapping_key(p, key);
    if (p->wrapped.len == 0)
        put_key(p, key, &out);
    p->value = p->types == TYPE_STRING && !p->is_cdata && p->wrapped.len == 0 ? VALUE_STRING : VALUE_OTHER;
    if (p->value == VALUE_STRING)
        buf_push(&out, '"');
    p->looked = 0;
    tell(p, &out);
}

static const struct str cdata_open = {"<![CDATA[", 9}, cdata_close = {"]]>", 3};

static enum mark_match begins_cdata(struct str s) {
    s = str_from(s, leading_blanks(s));
    if (s.len < cdata_open.len)
        return str_starts(cdata_open, s) ? MARK_MORE : MARK_NO;
    return str_starts(s, cdata_open) ? MARK_YES : MARK_NO;
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
    enum mark_match cdata = begins_cdata(str_from(rest, end));
    if (cdata == MARK_MORE && !p->ended)
        return false;
    p->is_cdata = cdata == MARK_YES;
    begin_value(p, str_core(str_to(rest, begin)), other);
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

/* A key of the schema in a value: its own mark was forgotten. *at is where its tag begins; MARK_MORE: where one may. */
static enum mark_match find_known_key(const struct tool_parser *p, struct str s, size_t *at) {
    struct str open = str_core(p->f->key_open);
    for (*at = open.len > 1 ? 0 : s.len; *at < s.len; ++*at) {
        size_t n = text_find(str_from(s, *at), open), begin, end;
        *at = n == NOT_FOUND ? s.len : *at + n;
        if (n == NOT_FOUND)
            break;
        struct str key = str_from(s, *at + open.len);
        enum mark_match m = find_mark(str_to(key, MIN(key.len, MAX_NAME)), p->f->key_close, &begin, &end);
        if (m == MARK_YES && schema_of_key(p, str_core(str_to(key, begin))))
            return MARK_YES;
        if (m == MARK_MORE && key.len < MAX_NAME)
            return MARK_MORE;
    }
    *at -= beginning_at_end(s, open);
    return MARK_MORE;
}

static bool read_string(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    struct str rest = parser_rest(p), core = str_core(f->value_close);
    size_t close = text_find(rest, core), key, certain, taken;
    struct buf out = {0};
    if (find_known_key(p, close == NOT_FOUND ? rest : str_to(rest, close), &key) == MARK_YES) {
        certain = without_mark_blanks(f, str_to(rest, key)).len;
        taken = close = key;
    } else if (close == NOT_FOUND) {
        struct str with_blanks = str_to(f->value_close, leading_blanks(f->value_close) + core.len);
        struct str before = str_to(rest, key);
        certain = taken = key - MAX(beginning_at_end(before, core), beginning_at_end(before, with_blanks));
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

/* Arguments of the tool in an object of their own: its members, without the last bracket. */
static bool put_unwrapped(struct tool_parser *p, struct str text, struct buf *out) {
    struct buf value = {0};
    json_error_t e;
    const char *key;
    json_t *member, *object = NULL;
    if (put_value(text, TYPE_OBJECT, &value))
        object = json_loadb(value.ptr, value.len, 0, &e);
    bool known = json_object_size(object) > 0;
    json_object_foreach(object, key, member) known = known && schema_of_key(p, str_of(key));
    if (known) {
        struct str inside = str_core(buf_view(&value));
        buf_append(out, inside.ptr, inside.len - 1);
        p->n_keys++;
    }
    json_decref(object);
    buf_release(&value);
    return known;
}

static void put_held(struct tool_parser *p, struct str text, struct buf *out) {
    struct str core = str_core(text);
    if (p->wrapped.len) {
        if (put_unwrapped(p, core, out))
            return;
        put_key(p, p->wrapped, out);
    }
    if (p->is_cdata && str_ends(core, cdata_close))
        buf_json_string(out, str_from(str_to(core, core.len - cdata_close.len), cdata_open.len));
    else if (!put_value(core, p->types, out))
        buf_json_string(out, without_mark_blanks(p->f, text));
}

static void tell_value(struct tool_parser *p, struct str text) {
    struct buf out = {0};
    put_held(p, text, &out);
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
    } else if (p->value == VALUE_OTHER && close)
        put_held(p, rest, &out);
    if (close)
        buf_str(&out, p->n_keys ? STR("}") : STR("{}"));
    tell(p, &out);
}
