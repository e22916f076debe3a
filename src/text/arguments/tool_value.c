/* tool_value.c - see tool_value.h. */
#include "text/arguments/tool_value.h"

#include "base/status.h"
#include "text/arguments/tool_literal.h"
#include "text/tools/tool_marks.h"

enum { MAX_SCHEMA_DEPTH = 8, MAX_REFERENCES = 8, MAX_REFERENCE = 1024 };

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

/* A name of a JSON pointer as it is meant: ~1 is '/', ~0 '~'. */
static void unescape(struct str name, struct buf *out) {
    buf_clear(out);
    for (size_t i = 0; i < name.len; i++) {
        bool escape = name.ptr[i] == '~' && i + 1 < name.len && (name.ptr[i + 1] == '0' || name.ptr[i + 1] == '1');
        buf_push(out, !escape ? name.ptr[i] : name.ptr[i + 1] == '1' ? '/' : '~');
        i += escape;
    }
}

static const json_t *member_named(const json_t *value, struct str name) {
    if (name.len == 0 || !json_is_array(value))
        return json_object_getn(value, name.len ? name.ptr : "", name.len);
    char *end;
    size_t i = strtoul(name.ptr, &end, 10);
    return end == name.ptr + name.len ? json_array_get(value, i) : NULL;
}

const json_t *value_referred(const json_t *ref, const json_t *root) {
    struct str rest = json_is_string(ref) ? (struct str){json_string_value(ref), json_string_length(ref)} : STR("");
    struct buf name = {0};
    if (!str_starts(rest, STR("#")) || rest.len > MAX_REFERENCE)
        return NULL;
    rest = str_from(rest, 1);
    while (root && rest.len) {
        size_t n = text_find(str_from(rest, 1), STR("/"));
        n = n == NOT_FOUND ? rest.len : n + 1;
        unescape(str_from(str_to(rest, n), 1), &name);
        root = rest.ptr[0] == '/' ? member_named(root, buf_view(&name)) : NULL;
        rest = str_from(rest, n);
    }
    buf_release(&name);
    return root;
}

const json_t *value_schema(const json_t *schema, const json_t *root) {
    const json_t *ref = json_object_get(schema, "$ref");
    for (int n = 0; ref && n < MAX_REFERENCES; n++, ref = json_object_get(schema, "$ref"))
        schema = value_referred(ref, root);
    return ref ? NULL : schema;
}

/* A long list of names or values counts too: references may lead to it many times. */
static int types_within(const json_t *schema, const json_t *root, int depth, int64_t *n_left) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    schema = value_schema(schema, root);
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    *n_left -= 1 + (int64_t)(json_array_size(type) + json_array_size(values)) / 64;
    if (*n_left < 0)
        return TYPE_ALL;
    int types = type_named(type);
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_named(json_array_get(type, i));
    for (size_t i = 0; !types && i < json_array_size(values); i++)
        types |= type_of(json_array_get(values, i));
    if (!types && constant)
        types = type_of(constant);
    for (size_t c = 0; !types && depth < MAX_SCHEMA_DEPTH && c < ARRAY_LEN(choices); c++) {
        const json_t *of = json_object_get(schema, choices[c]);
        for (size_t i = 0; types != TYPE_ALL && i < json_array_size(of); i++)
            types |= types_within(json_array_get(of, i), root, depth + 1, n_left);
    }
    return types ? types : TYPE_ALL;
}

int value_types_of(const json_t *schema, const json_t *root, int64_t *n_left) {
    return schema ? types_within(schema, root, 0, n_left) : TYPE_ALL;
}

int value_types(const json_t *schema, const json_t *root) {
    int64_t n_left = MAX_SCHEMA_VISITS;
    return value_types_of(schema, root, &n_left);
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

bool value_put(struct str text, int types, struct buf *out) {
    json_t *value = jv_look(text);
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
