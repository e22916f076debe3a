/* tool_parser_tagged.c - see tool_parser_parts.h: arguments with a tag a key, which become JSON by the tool's schema.
 */
#include "text/tools/tool_parser_parts.h"

#include "base/status.h"

/* The schema of an argument; NULL where there is none. */
static const json_t *schema_of_key(const struct tool_parser *p, struct str key) {
    return key.len > MAX_KEY ? NULL : json_object_getn(json_object_get(p->parameters, "properties"), key.ptr, key.len);
}

static int types_of_key(const struct tool_parser *p, struct str key) {
    return value_types(schema_of_key(p, key), p->parameters);
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
    // Of nested elements the call's end begins like a key.
    enum mark_match end = f->nested ? mark_at(rest, &at, f->call_close) : MARK_NO;
    if (end == MARK_MORE && !p->ended)
        return false;
    enum mark_match key = end == MARK_YES ? MARK_NO : mark_at(rest, &at, f->key_open);
    bool is_key = key == MARK_YES && !(f->nested && at < rest.len && rest.ptr[at] == '/');
    if (key == MARK_YES && !is_key)
        return close_arguments(p, 0, PARSER_TEXT);
    if (is_key) {
        parser_take(p, at);
        p->value = VALUE_KEY;
        return true;
    }
    enum mark_match close = end == MARK_YES ? end : mark_at(rest, &at, f->call_close);
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

/* Nested: what is around a value has its key. */
static void name_value_marks(struct tool_parser *p, struct str key) {
    const struct str begins[] = {p->f->key_open, p->f->value_close}, ends[] = {p->f->key_close, p->f->key_close};
    struct buf *marks[] = {&p->value_open, &p->value_close};
    for (size_t i = 0; p->f->nested && i < ARRAY_LEN(marks); i++) {
        buf_clear(marks[i]);
        buf_str(marks[i], begins[i]);
        buf_str(marks[i], key);
        buf_str(marks[i], ends[i]);
    }
    p->value_schema = schema_of_key(p, key);
}

static struct str value_close(const struct tool_parser *p) {
    return p->f->nested ? buf_view(&p->value_close) : p->f->value_close;
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
    p->value_end = (struct value_end){0};
    name_value_marks(p, key);
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
    if (whole ? begin > MAX_KEY || end > MAX_KEY + MAX_NAME : rest.len > MAX_KEY + MAX_NAME)
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
    struct str rest = parser_rest(p), mark = value_close(p), core = str_core(mark);
    size_t close = text_find(rest, core), key, certain, taken;
    struct buf out = {0};
    if (find_known_key(p, close == NOT_FOUND ? rest : str_to(rest, close), &key) == MARK_YES) {
        certain = without_mark_blanks(f, str_to(rest, key)).len;
        taken = close = key;
    } else if (close == NOT_FOUND) {
        struct str with_blanks = str_to(mark, leading_blanks(mark) + core.len);
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
    const char *key;
    json_t *member, *object = NULL;
    if (value_put(text, TYPE_OBJECT, &value))
        object = jv_look(buf_view(&value));
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
    else if (!(p->f->nested && value_put_elements(core, p->f->key_open, p->value_schema, p->parameters, out)) &&
             !value_put(core, p->types, out))
        buf_json_string(out, without_mark_blanks(p->f, text));
}

static void tell_value(struct tool_parser *p, struct str text) {
    struct buf out = {0};
    put_held(p, text, &out);
    tell(p, &out);
}

static bool read_other(struct tool_parser *p) {
    struct str rest = parser_rest(p), core = str_core(value_close(p));
    size_t close = value_find_end(rest, buf_view(&p->value_open), core, &p->value_end);
    if (close == NOT_FOUND) {
        if (rest.len > MAX_HELD)
            return close_arguments(p, 0, PARSER_TEXT);
        return false;
    }
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
