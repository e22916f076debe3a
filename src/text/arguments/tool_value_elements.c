/* tool_value_elements.c - see tool_value.h: values of elements within elements.
 *
 * What is read is as long as a value may be, and hostile: levels are bounded, each byte is looked at once a level, and
 * names are found by a table. */
#include "text/arguments/tool_value.h"

#include "base/status.h"
#include "text/tools/tool_marks.h"

enum { MAX_LEVELS = 32, MAX_ALTERNATIVES = 8, MAX_ELEMENT_NAME = 1024 };

size_t value_find_end(struct str text, struct str open, struct str close, struct value_end *end) {
    for (;;) {
        size_t at = text_find(str_from(text, end->looked), close), inner;
        size_t before = at == NOT_FOUND ? text.len : end->looked + at;
        while ((inner = text_find(str_from(str_to(text, before), end->looked), open)) != NOT_FOUND) {
            end->n_open++;
            end->looked += inner + open.len;
        }
        if (at == NOT_FOUND) {
            end->looked = MAX(end->looked, text.len - MIN(text.len, close.len));
            return NOT_FOUND;
        }
        if (end->n_open == 0)
            return before;
        end->n_open--;
        end->looked = before + close.len;
    }
}

// ---- elements ---------------------------------------------------------------------------------------------------

struct element {
    struct str name, text;
};

/* mark<name> text mark</name> at s's byte *at, which moves behind it. */
static bool read_element(struct str s, size_t *at, struct str open, struct element *e) {
    if (!str_starts(str_from(s, *at), open))
        return false;
    struct str rest = str_from(s, *at + open.len);
    const char *name_end = memchr(rest.ptr, '>', MIN(rest.len, MAX_ELEMENT_NAME));
    if (!name_end || rest.ptr[0] == '/' || name_end == rest.ptr)
        return false;
    e->name = str_to(rest, (size_t)(name_end - rest.ptr));
    struct buf inner = {0}, close = {0};
    struct value_end end = {0};
    buf_str(&inner, open);
    buf_append(&inner, e->name.ptr, e->name.len + 1);
    buf_str(&close, open);
    buf_push(&close, '/');
    buf_append(&close, e->name.ptr, e->name.len + 1);
    struct str text = str_from(rest, e->name.len + 1);
    size_t n = value_find_end(text, buf_view(&inner), buf_view(&close), &end);
    if (n != NOT_FOUND) {
        e->text = str_to(text, n);
        *at += inner.len + n + close.len;
    }
    buf_release(&inner);
    buf_release(&close);
    return n != NOT_FOUND;
}

/* All of s: elements and blanks. Returns how many; 0: there is something else, or nothing. */
static size_t read_elements(struct str s, struct str open, struct element **elements) {
    size_t n = 0, at = leading_blanks(s);
    *elements = NULL;
    while (at < s.len) {
        if ((n & (n + 1)) == 0)
            *elements = xrealloc(*elements, 2 * n + 1, sizeof **elements);
        if (!read_element(s, &at, open, &(*elements)[n]))
            return 0;
        n++;
        at += leading_blanks(str_from(s, at));
    }
    return n;
}

// ---- what the schema says ---------------------------------------------------------------------------------------

struct writer {
    struct str open;
    const json_t *root;
    int level;
    int64_t n_left; // schemas to visit: some for each element, so that a long value takes no more than its length
};

/* Of a schema and its alternatives the first that says `word`, with a member `name` where one is asked for: the schema
 * that stands there. Alternatives differ in what they have, so that only the name tells which one is meant. */
static const json_t *find_schema(struct writer *w, const json_t *schema, const char *word, const struct str *name,
                                 int depth) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    if (--w->n_left < 0)
        return NULL;
    schema = value_schema(schema, w->root);
    const json_t *found = json_object_get(schema, word);
    found = name ? json_object_getn(found, name->ptr, name->len) : found;
    if (json_is_object(found))
        return found;
    for (size_t c = 0; depth < MAX_ALTERNATIVES && c < ARRAY_LEN(choices); c++) {
        const json_t *of = json_object_get(schema, choices[c]);
        for (size_t i = 0; w->n_left > 0 && i < json_array_size(of); i++) {
            found = find_schema(w, json_array_get(of, i), word, name, depth + 1);
            if (found)
                return found;
        }
    }
    return NULL;
}

static const json_t *member_schema(struct writer *w, const json_t *schema, struct str name) {
    const json_t *member = find_schema(w, schema, "properties", &name, 0);
    return member ? member : find_schema(w, schema, "additionalProperties", NULL, 0);
}

// ---- writing ----------------------------------------------------------------------------------------------------

static bool put_parts(struct writer *w, struct str text, const json_t *schema, struct buf *out);

static void put_one(struct writer *w, struct str text, const json_t *schema, struct buf *out) {
    int types = value_types_of(schema, w->root, &w->n_left);
    struct str core = str_core(text);
    if (put_parts(w, core, schema, out))
        return;
    bool empty = core.len == 0 && !(types & TYPE_STRING) && (types & (TYPE_ARRAY | TYPE_OBJECT));
    if (empty)
        buf_str(out, types & TYPE_ARRAY ? STR("[]") : STR("{}"));
    else if (types == TYPE_STRING || !value_put(core, types, out))
        buf_json_string(out, text);
}

static void put_array(struct writer *w, const struct element *e, size_t n, const json_t *items, struct buf *out) {
    buf_push(out, '[');
    for (size_t i = 0; i < n; i++) {
        buf_str(out, i ? STR(", ") : STR(""));
        put_one(w, e[i].text, items, out);
    }
    buf_push(out, ']');
}

/* Of each element the next one with the same name, or n. Returns the first one of each name. */
static json_t *link_names(const struct element *e, size_t n, size_t *next) {
    json_t *seen = json_object();
    for (size_t i = n; i-- > 0;) {
        const json_t *later = json_object_getn(seen, e[i].name.ptr, e[i].name.len);
        next[i] = later ? (size_t)json_integer_value(later) : n;
        json_object_setn_new_nocheck(seen, e[i].name.ptr, e[i].name.len, json_integer((json_int_t)i));
    }
    return seen;
}

static void put_object(struct writer *w, const struct element *e, size_t n, const json_t *schema, struct buf *out) {
    size_t *next = xcalloc(n, sizeof *next);
    json_t *first = link_names(e, n, next);
    bool some = false;
    for (size_t i = 0; i < n; i++) {
        if (json_integer_value(json_object_getn(first, e[i].name.ptr, e[i].name.len)) != (json_int_t)i)
            continue;
        const json_t *member = member_schema(w, schema, e[i].name);
        buf_str(out, some ? STR(", ") : STR("{"));
        some = true;
        buf_json_string(out, e[i].name);
        buf_str(out, next[i] < n ? STR(": [") : STR(": "));
        for (size_t k = i; k < n; k = next[k]) {
            buf_str(out, k > i ? STR(", ") : STR(""));
            put_one(w, e[k].text, member, out);
        }
        buf_str(out, next[i] < n ? STR("]") : STR(""));
    }
    buf_push(out, '}');
    json_decref(first);
    free(next);
}

static bool is_array(const struct element *e, size_t n, int types) {
    bool items = true;
    for (size_t i = 0; i < n; i++)
        items &= str_eq(e[i].name, STR("item"));
    return types & TYPE_ARRAY ? items || !(types & TYPE_OBJECT) : false;
}

static bool put_parts(struct writer *w, struct str text, const json_t *schema, struct buf *out) {
    int types = value_types_of(schema, w->root, &w->n_left);
    if (!str_starts(text, w->open) || !(types & (TYPE_ARRAY | TYPE_OBJECT)) || w->level == MAX_LEVELS)
        return false;
    struct element *elements;
    size_t n = read_elements(text, w->open, &elements);
    w->level++;
    if (n && is_array(elements, n, types))
        put_array(w, elements, n, find_schema(w, schema, "items", NULL, 0), out);
    else if (n)
        put_object(w, elements, n, schema, out);
    w->level--;
    free(elements);
    return n > 0;
}

bool value_put_elements(struct str text, struct str open, const json_t *schema, const json_t *root, struct buf *out) {
    struct writer w = {.open = open, .root = root, .n_left = MAX_SCHEMA_VISITS + 4 * (int64_t)text.len};
    struct str core = str_core(text);
    int types = value_types_of(schema, root, &w.n_left);
    bool empty = core.len == 0 && schema && !(types & TYPE_STRING) && (types & (TYPE_ARRAY | TYPE_OBJECT));
    if (empty)
        put_one(&w, core, schema, out);
    return empty || put_parts(&w, core, schema, out);
}
