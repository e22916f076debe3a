/* tool_tag_arguments.c - see tool_tag.h. */
#include "base/status.h"
#include "text/arguments/tool_value.h"
#include "text/tools/tool_marks.h"
#include "text/tools/tool_tag.h"

#include <stdlib.h>

// A choice is ten small objects, and a tool's schema may be a list of 200,000.
enum { MAX_ALTERNATIVES_DEPTH = 8, VISITS_OF_A_PROPERTY = 16, MAX_CHOICES = 1 << 14 };

// ---- sequences --------------------------------------------------------------------------------------------------

static json_t *text_of(struct str s) { return json_stringn(s.ptr, s.len); }

static json_t *constant(struct str s) { return json_pack("{s:s, s:o}", "type", "const_string", "value", text_of(s)); }

void tag_text(struct tag_sequence *s, struct str text) { buf_str(&s->text, text); }

static void flush(struct tag_sequence *s) {
    if (!s->elements)
        s->elements = json_array();
    if (s->text.len)
        json_array_append_new(s->elements, constant(buf_view(&s->text)));
    buf_clear(&s->text);
}

void tag_add(struct tag_sequence *s, json_t *take_element) {
    flush(s);
    json_array_append_new(s->elements, take_element);
}

json_t *tag_finish(struct tag_sequence *s) {
    flush(s);
    if (json_array_size(s->elements) == 0)
        json_array_append_new(s->elements, constant(STR("")));
    json_t *all = json_array_size(s->elements) == 1
                      ? json_incref(json_array_get(s->elements, 0))
                      : json_pack("{s:s, s:O}", "type", "sequence", "elements", s->elements);
    json_decref(s->elements);
    buf_release(&s->text);
    *s = (struct tag_sequence){0};
    return all;
}

static json_t *or_nothing(json_t *take_element) {
    return json_pack("{s:s, s:[o, o]}", "type", "or", "elements", take_element, constant(STR("")));
}

// ---- values -----------------------------------------------------------------------------------------------------

static json_t *schema_element(json_t *take_schema) {
    return json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", take_schema);
}

/* A property's schema by itself, with what it may refer to. */
static json_t *property_schema(const json_t *schema, const json_t *parameters) {
    static const char *const places[] = {"$defs", "definitions"};
    json_t *alone = json_copy((json_t *)schema);
    for (size_t i = 0; json_is_object(alone) && i < ARRAY_LEN(places); i++)
        if (json_object_get(parameters, places[i]))
            json_object_set(alone, places[i], json_object_get(parameters, places[i]));
    return alone;
}

static bool names_string(const json_t *type) {
    return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
}

/* What binds a value, and which values. */
static const struct bound {
    const char *word;
    int types;
} bounds[] = {{"pattern", TYPE_STRING},
              {"minLength", TYPE_STRING},
              {"maxLength", TYPE_STRING},
              {"format", TYPE_STRING},
              {"$ref", TYPE_ALL},
              {"enum", TYPE_ALL},
              {"const", TYPE_ALL},
              {"not", TYPE_ALL},
              {"anyOf", TYPE_ALL},
              {"oneOf", TYPE_ALL},
              {"allOf", TYPE_ALL},
              {"if", TYPE_ALL},
              {"minimum", TYPE_NUMBER},
              {"maximum", TYPE_NUMBER},
              {"exclusiveMinimum", TYPE_NUMBER},
              {"exclusiveMaximum", TYPE_NUMBER},
              {"multipleOf", TYPE_NUMBER},
              {"items", TYPE_ARRAY},
              {"prefixItems", TYPE_ARRAY},
              {"contains", TYPE_ARRAY},
              {"minItems", TYPE_ARRAY},
              {"maxItems", TYPE_ARRAY},
              {"uniqueItems", TYPE_ARRAY},
              {"properties", TYPE_OBJECT},
              {"required", TYPE_OBJECT},
              {"additionalProperties", TYPE_OBJECT},
              {"patternProperties", TYPE_OBJECT},
              {"propertyNames", TYPE_OBJECT},
              {"minProperties", TYPE_OBJECT},
              {"maxProperties", TYPE_OBJECT}};

/* Whether the schema says nothing of values of those types but what is followed: one word, or NULL. */
static enum status check_bounds(const json_t *schema, const char *key, const char *followed, int types,
                                struct error *err) {
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
        if ((bounds[i].types & types) && !(followed && strcmp(bounds[i].word, followed) == 0) &&
            json_object_get(schema, bounds[i].word))
            return fail(err, ERR_UNSUPPORTED,
                        "tools: \"%.40s\" of the string \"%.60s\" is not enforced in this model's form of calls, where "
                        "strings have no quotes",
                        bounds[i].word, key);
    return OK;
}

static void put_value_close(const struct tool_format *f, const char *key, struct buf *out) {
    buf_str(out, f->value_close);
    if (f->nested) {
        buf_str(out, str_of(key));
        buf_str(out, f->key_close);
    }
}

/* A tagged value in the making: its alternatives, each with the marks around it. */
struct tagged_value {
    const struct tool_format *f;
    const json_t *parameters;
    bool strict;
    int64_t n_left, n_choices_left; // schemas to visit and choices to make, of all the tool's values

    const char *key; // of this one
    struct str close;
    bool free; // any text
    json_t *choices;
};

static void add_choice(struct tagged_value *v, bool is_string, json_t *take_content) {
    struct tag_sequence one = {0};
    v->n_choices_left--;
    tag_text(&one, !is_string && v->f->key_close_other.len ? v->f->key_close_other : v->f->key_close);
    tag_add(&one, take_content);
    tag_text(&one, v->close);
    json_array_append_new(v->choices, tag_finish(&one));
}

/* Any text ends where the mark behind it begins. */
static void add_text(struct tagged_value *v) {
    struct tag_sequence one = {0};
    tag_text(&one, v->f->key_close);
    tag_add(&one, json_pack("{s:s, s:s, s:{s:s}, s:o}", "type", "tag", "begin", "", "content", "type", "any_text",
                            "end", text_of(v->close)));
    json_array_append_new(v->choices, tag_finish(&one));
}

static void add_constant(struct tagged_value *v, const json_t *value) {
    char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
    add_choice(v, !text, constant(str_of(text ? text : json_string_value(value))));
    free(text);
}

static enum status check_left(const struct tagged_value *v, size_t n_choices, struct error *err) {
    if (v->n_left < 0 || v->n_choices_left < (int64_t)n_choices)
        return fail(err, ERR_UNSUPPORTED, "tools: the schema of \"%.60s\" has too many alternatives", v->key);
    return OK;
}

static enum status add_alternatives(struct tagged_value *v, const json_t *schema, int depth, struct error *err);

/* What a reference leads to. A type beside it says less or more than what is there. */
static enum status add_referred(struct tagged_value *v, const json_t *schema, int types, int depth, struct error *err) {
    const json_t *ref = json_object_get(schema, "$ref"), *referred = value_referred(ref, v->parameters);
    if (v->strict && !referred)
        return fail(err, ERR_UNSUPPORTED, "tools: the $ref \"%.80s\" of \"%.60s\" leads to no schema of the tool",
                    json_is_string(ref) ? json_string_value(ref) : "", v->key);
    if (v->strict && json_object_get(schema, "type"))
        return fail(err, ERR_UNSUPPORTED, "tools: \"type\" beside the $ref of \"%.60s\" is not enforced", v->key);
    if (v->strict)
        TRY(check_bounds(schema, v->key, "$ref", types, err));
    if (referred)
        return add_alternatives(v, referred, depth + 1, err);
    v->free = true;
    return OK;
}

/* Whether property_schema() has what a schema refers to, if it does. */
static bool is_whole(const json_t *schema) {
    const json_t *ref = json_object_get(schema, "$ref");
    struct str path = json_is_string(ref) ? str_of(json_string_value(ref)) : STR("");
    return !ref || str_starts(path, STR("#/$defs/")) || str_starts(path, STR("#/definitions/"));
}

/* The alternatives of a schema; its references are followed. One that is no text is JSON, of nested elements too: of
 * those it would bind less. */
static enum status add_alternatives(struct tagged_value *v, const json_t *schema, int depth, struct error *err) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    const json_t *values = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    int types = value_types_of(schema, v->parameters, &v->n_left);
    v->n_left--;
    TRY(check_left(v, 1, err));
    if (!(types & TYPE_STRING) && is_whole(schema)) {
        add_choice(v, false, schema_element(property_schema(schema, v->parameters)));
        return OK;
    }
    if (depth > MAX_ALTERNATIVES_DEPTH)
        return fail(err, ERR_UNSUPPORTED, "tools: the schema of \"%.60s\" is nested too deeply", v->key);
    if (json_object_get(schema, "$ref"))
        return add_referred(v, schema, types, depth, err);
    TRY(check_left(v, json_array_size(values), err));
    for (size_t i = 0; i < json_array_size(values); i++)
        add_constant(v, json_array_get(values, i));
    if (!values && only)
        add_constant(v, only);
    if (values || only)
        return v->strict ? check_bounds(schema, v->key, values ? "enum" : "const", types, err) : OK;
    for (size_t c = 0; !json_object_get(schema, "type") && c < ARRAY_LEN(choices); c++) {
        const json_t *of = json_object_get(schema, choices[c]);
        if (json_array_size(of) == 0 || (c == 2 && json_array_size(of) > 1))
            continue;
        if (v->strict)
            TRY(check_bounds(schema, v->key, choices[c], types, err));
        for (size_t i = 0; i < json_array_size(of); i++)
            TRY(add_alternatives(v, json_array_get(of, i), depth + 1, err));
        return OK;
    }
    v->free = true;
    return v->strict ? check_bounds(schema, v->key, NULL, TYPE_STRING, err) : OK;
}

/* A value and the mark behind it. */
static enum status add_tagged_value(struct tagged_value *v, const json_t *schema, const char *key,
                                    struct tag_sequence *out, struct error *err) {
    struct buf close = {0};
    put_value_close(v->f, key, &close);
    v->key = key;
    v->close = buf_view(&close);
    v->free = false;
    v->choices = json_array();
    enum status st = add_alternatives(v, schema, 0, err);
    if (v->free)
        add_text(v);
    if (st == OK)
        tag_add(out, json_pack("{s:s, s:O}", "type", "or", "elements", v->choices));
    json_decref(v->choices);
    buf_release(&close);
    return st;
}

static enum status add_literal_value(const struct tool_format *f, const json_t *schema, const json_t *parameters,
                                     const char *key, bool strict, struct tag_sequence *out, struct error *err) {
    bool quoted = f->quote.len && names_string(json_object_get(schema, "type")) && !json_object_get(schema, "enum") &&
                  !json_object_get(schema, "const");
    if (quoted) {
        if (strict)
            TRY(check_bounds(schema, key, NULL, TYPE_STRING, err));
        tag_add(out, json_pack("{s:s, s:o, s:{s:s}, s:o}", "type", "tag", "begin", text_of(f->quote), "content", "type",
                               "any_text", "end", text_of(f->quote)));
    } else {
        tag_add(out, schema_element(property_schema(schema, parameters)));
    }
    return OK;
}

// ---- keys -------------------------------------------------------------------------------------------------------

static bool is_required(const json_t *parameters, const char *key) {
    const json_t *required = json_object_get(parameters, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *name = json_array_get(required, i);
        if (json_is_string(name) && strcmp(json_string_value(name), key) == 0)
            return true;
    }
    return false;
}

/* Each key at most once, in the schema's order. */
static enum status add_tagged(const struct tool_format *f, const json_t *parameters, bool strict,
                              struct tag_sequence *out, struct error *err) {
    const char *key;
    json_t *schema, *properties = json_object_get(parameters, "properties");
    int64_t n_left = MAX_SCHEMA_VISITS + VISITS_OF_A_PROPERTY * (int64_t)json_object_size(properties);
    struct tagged_value v = {
        .f = f, .parameters = parameters, .strict = strict, .n_left = n_left, .n_choices_left = MAX_CHOICES};
    json_object_foreach(properties, key, schema) {
        struct tag_sequence one = {0};
        tag_text(&one, f->key_open);
        tag_text(&one, str_of(key));
        enum status st = add_tagged_value(&v, schema, key, &one, err);
        json_t *element = tag_finish(&one);
        if (st != OK) {
            json_decref(element);
            return st;
        }
        tag_add(out, is_required(parameters, key) ? element : or_nothing(element));
    }
    return OK;
}

/* key=value, with commas between: the required ones first, each of the others behind a comma of its own. Where none is
 * required the first of the others has none, whichever that is. */
static enum status add_one_literal(const struct tool_format *f, const json_t *parameters, const char *key, bool comma,
                                   bool strict, struct tag_sequence *out, struct error *err) {
    bool python = str_eq(f->arguments_open, STR("("));
    if (comma)
        tag_text(out, python ? STR(", ") : STR(","));
    tag_text(out, str_of(key));
    tag_text(out, python ? STR("=") : STR(":"));
    const json_t *schema = json_object_get(json_object_get(parameters, "properties"), key);
    return add_literal_value(f, schema, parameters, key, strict, out, err);
}

static enum status add_optional_literal(const struct tool_format *f, const json_t *parameters, const char *key,
                                        bool strict, struct tag_sequence *out, struct error *err) {
    struct tag_sequence one = {0};
    enum status st = add_one_literal(f, parameters, key, true, strict, &one, err);
    json_t *element = tag_finish(&one);
    if (st == OK)
        tag_add(out, or_nothing(element));
    else
        json_decref(element);
    return st;
}

/* Those from `first` on, behind others. */
static enum status add_rest(const struct tool_format *f, const json_t *parameters, const char *first, bool required,
                            bool strict, struct tag_sequence *out, struct error *err) {
    const char *key;
    json_t *schema;
    bool begun = !first;
    json_object_foreach(json_object_get(parameters, "properties"), key, schema) {
        if (begun && is_required(parameters, key) == required)
            TRY(required ? add_one_literal(f, parameters, key, out->elements || out->text.len, strict, out, err)
                         : add_optional_literal(f, parameters, key, strict, out, err));
        begun |= first && strcmp(key, first) == 0;
    }
    return OK;
}

static enum status add_literal(const struct tool_format *f, const json_t *parameters, bool strict,
                               struct tag_sequence *out, struct error *err) {
    struct tag_sequence inner = {0};
    enum status st = add_rest(f, parameters, NULL, true, strict, &inner, err);
    const char *key;
    json_t *schema;
    if (st == OK && (inner.elements || inner.text.len)) {
        st = add_rest(f, parameters, NULL, false, strict, &inner, err);
    } else if (st == OK) {
        json_t *choices = json_pack("[o]", constant(STR("")));
        json_object_foreach(json_object_get(parameters, "properties"), key, schema) {
            struct tag_sequence from = {0};
            if (st == OK)
                st = add_one_literal(f, parameters, key, false, strict, &from, err);
            if (st == OK)
                st = add_rest(f, parameters, key, false, strict, &from, err);
            json_array_append_new(choices, tag_finish(&from));
        }
        tag_add(&inner, json_pack("{s:s, s:o}", "type", "or", "elements", choices));
    }
    tag_text(out, f->arguments_open);
    tag_add(out, tag_finish(&inner));
    tag_text(out, f->arguments_close);
    return st;
}

/* A function has the parameters that it lists, where the schema does not say that there may be others. */
static json_t *closed(json_t *parameters) {
    static const char *const open[] = {
        "additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf"};
    json_t *copy = json_copy(parameters);
    bool lists = json_object_size(json_object_get(parameters, "properties")) > 0;
    for (size_t i = 0; i < ARRAY_LEN(open); i++)
        lists &= json_object_get(parameters, open[i]) == NULL;
    if (lists)
        json_object_set_new(copy, "additionalProperties", json_false());
    return copy;
}

static bool has_text(const json_t *value, const char *key, const char *text) {
    const char *its = json_string_value(json_object_get(value, key));
    return its && strcmp(its, text) == 0;
}

/* What binds the input of a custom tool; NULL: nothing, or it is no custom tool. */
static const json_t *custom_format(const json_t *tool) {
    const json_t *format = has_text(tool, "type", "custom") ? json_object_get(tool, "format") : NULL;
    bool known = has_text(format, "syntax", "lark") || has_text(format, "syntax", "regex");
    return known && json_is_string(json_object_get(format, "definition")) ? format : NULL;
}

/* The text of a custom tool's input, of a grammar. */
static json_t *custom_element(const json_t *format) {
    json_t *definition = json_object_get(format, "definition");
    return has_text(format, "syntax", "regex")
               ? json_pack("{s:s, s:O}", "type", "regex", "pattern", definition)
               : json_pack("{s:s, s:s, s:O}", "type", "grammar", "syntax", "lark", "grammar", definition);
}

/* The argument `input`, by itself, or as JSON or Python write a string. */
static void add_custom(const struct tool_format *f, const json_t *format, struct tag_sequence *out) {
    bool marked = f->style == TOOL_STYLE_MARKED, tagged = marked && f->arguments == TOOL_ARGUMENTS_TAGGED;
    bool literal = marked && f->arguments == TOOL_ARGUMENTS_LITERAL;
    json_t *input = custom_element(format);
    if (!tagged && (!literal || f->quote.len == 0))
        input = json_pack("{s:s, s:o}", "type", "json_string", "content", input);
    tag_text(out, tagged ? f->key_open : literal ? f->arguments_open : STR("{\"input\": "));
    if (tagged || literal)
        tag_text(out, STR("input"));
    if (tagged)
        tag_text(out, f->key_close);
    else if (literal)
        tag_text(out, str_eq(f->arguments_open, STR("(")) ? STR("=") : STR(":"));
    if (literal)
        tag_text(out, f->quote);
    tag_add(out, input);
    if (literal)
        tag_text(out, f->quote);
    struct buf close = {0};
    put_value_close(f, "input", &close);
    tag_text(out, tagged ? buf_view(&close) : literal ? f->arguments_close : STR("}"));
    buf_release(&close);
}

enum status tag_arguments(const struct tool_format *f, const json_t *tool, bool strict, struct tag_sequence *out,
                          struct error *err) {
    const json_t *format = custom_format(tool);
    if (format) {
        add_custom(f, format, out);
        return OK;
    }
    json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
    bool described = strict && json_is_object(parameters) && json_object_size(parameters);
    if (f->style != TOOL_STYLE_MARKED || f->arguments == TOOL_ARGUMENTS_JSON) {
        tag_add(out, schema_element(described ? closed(parameters) : json_pack("{s:s}", "type", "object")));
        return OK;
    }
    if (!strict && str_core(f->call_close).len) {
        tag_add(out, json_pack("{s:s}", "type", "any_text"));
        return OK;
    }
    return f->arguments == TOOL_ARGUMENTS_TAGGED ? add_tagged(f, parameters, strict, out, err)
                                                 : add_literal(f, parameters, strict, out, err);
}
