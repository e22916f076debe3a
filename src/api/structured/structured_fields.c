/* structured_fields.c - the fields of a request that ask for structured output; see structured.h. */
#include "api/structured/structured.h"

#include <string.h>

// ---- one question -----------------------------------------------------------------------------------------------

enum status structured_ask(struct structured *s, const char *field, const struct grammar_source *source,
                           json_t *take_own, struct error *err) {
    if (s->field) {
        json_decref(take_own);
        return fail(err, ERR_ARG, "%s: %s asks for a form of the answer already", field, s->field);
    }
    s->field = field;
    s->source = *source;
    s->own = take_own;
    return OK;
}

void structured_release(struct structured *s) {
    json_decref(s->own);
    grammar_release(s->compiled.grammar);
    *s = (struct structured){0};
}

static bool is_there(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return value && !json_is_null(value);
}

/* A schema may come as a text of JSON. */
static enum status ask_json(struct structured *s, const char *field, json_t *schema, struct grammar_style style,
                            struct error *err) {
    json_t *own = NULL;
    if (json_is_string(schema)) {
        struct str text = {json_string_value(schema), json_string_length(schema)};
        TRY(jv_parse(text, field, JV_ALLOW_DUPLICATES, &own, err));
        schema = own;
    }
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        fail(err, ERR_ARG, "%s: a JSON schema is an object, and not %s", field, jv_type_name(schema));
        json_decref(own);
        return err->status;
    }
    struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .value = schema, .style = style};
    return structured_ask(s, field, &source, own, err);
}

static enum status ask_text(struct structured *s, const char *field, enum grammar_kind kind, const json_t *value,
                            struct error *err) {
    if (!json_is_string(value))
        return fail(err, ERR_ARG, "%s: it must be a string, and not %s", field, jv_type_name(value));
    struct grammar_source source = {.kind = kind, .text = {json_string_value(value), json_string_length(value)}};
    return structured_ask(s, field, &source, NULL, err);
}

static enum status ask_choice(struct structured *s, const char *field, const json_t *choices, struct error *err) {
    const json_t *choice;
    size_t i;
    if (!json_is_array(choices) || json_array_size(choices) == 0)
        return fail(err, ERR_ARG, "%s: it must be an array of texts, one at least", field);
    json_array_foreach(choices, i, choice) {
        if (!json_is_string(choice))
            return fail(err, ERR_ARG, "%s[%zu]: it must be a string, and not %s", field, i, jv_type_name(choice));
    }
    struct grammar_source source = {.kind = GRAMMAR_CHOICE, .value = choices};
    return structured_ask(s, field, &source, NULL, err);
}

static enum status ask_grammar(struct structured *s, const char *field, const json_t *value, struct error *err) {
    struct str text = {json_string_value(value), json_string_length(value)};
    return ask_text(s, field, grammar_kind_of(text), value, err);
}

static enum status ask_object(struct structured *s, const char *field, struct grammar_style style, struct error *err) {
    struct grammar_source source = {.kind = GRAMMAR_JSON_OBJECT, .style = style};
    return structured_ask(s, field, &source, NULL, err);
}

/* An object, or a text of one. */
static enum status ask_tags(struct structured *s, const char *field, json_t *tags, struct grammar_style style,
                            struct error *err) {
    json_t *own = NULL;
    if (json_is_string(tags)) {
        struct str text = {json_string_value(tags), json_string_length(tags)};
        TRY(jv_parse(text, field, JV_ALLOW_DUPLICATES, &own, err));
        tags = own;
    }
    if (!json_is_object(tags)) {
        fail(err, ERR_ARG, "%s: it must be an object, and not %s", field, jv_type_name(tags));
        json_decref(own);
        return err->status;
    }
    struct grammar_source source = {.kind = GRAMMAR_STRUCTURAL_TAG, .value = tags, .style = style};
    return structured_ask(s, field, &source, own, err);
}

// ---- structured_outputs, and its older names --------------------------------------------------------------------

enum ask_kind { ASK_JSON, ASK_REGEX, ASK_CHOICE, ASK_GRAMMAR, ASK_TAGS, ASK_OBJECT };

static const struct ask_field {
    const char *member, *older; // of structured_outputs; of the request
    const char *field;          // the member in sentences
    enum ask_kind kind;
} ask_fields[] = {
    {"json", "guided_json", "structured_outputs.json", ASK_JSON},
    {"regex", "guided_regex", "structured_outputs.regex", ASK_REGEX},
    {"choice", "guided_choice", "structured_outputs.choice", ASK_CHOICE},
    {"grammar", "guided_grammar", "structured_outputs.grammar", ASK_GRAMMAR},
    {"structural_tag", "structural_tag", "structured_outputs.structural_tag", ASK_TAGS},
    {"json_object", "guided_json_object", "structured_outputs.json_object", ASK_OBJECT},
};

static enum status ask_for(struct structured *s, const struct ask_field *f, const json_t *from, const char *name,
                           const char *field, struct grammar_style style, struct error *err) {
    json_t *value = json_object_get(from, name);
    bool wanted;
    if (!value || json_is_null(value))
        return OK;
    switch (f->kind) {
    case ASK_JSON: return ask_json(s, field, value, style, err);
    case ASK_REGEX: return ask_text(s, field, GRAMMAR_REGEX, value, err);
    case ASK_CHOICE: return ask_choice(s, field, value, err);
    case ASK_GRAMMAR: return ask_grammar(s, field, value, err);
    case ASK_TAGS: return ask_tags(s, field, value, style, err);
    case ASK_OBJECT: break;
    }
    TRY(jv_bool_or(from, "request", name, false, &wanted, err));
    return wanted ? ask_object(s, field, style, err) : OK;
}

static enum status read_style(const json_t *from, const char *where, const char *pattern, struct grammar_style *out,
                              struct error *err) {
    const char *whitespace;
    *out = (struct grammar_style){0};
    TRY(jv_string_or(from, where, pattern, NULL, &whitespace, err));
    if (whitespace)
        out->whitespace = str_of(whitespace);
    return OK;
}

/* What vLLM has there besides. */
static enum status check_members(const json_t *outputs, struct error *err) {
    static const char *const others[] = {"whitespace_pattern", "disable_any_whitespace", "disable_fallback", "backend",
                                         "disable_additional_properties"};
    const char *name;
    json_t *value;
    bool closes;
    json_object_foreach((json_t *)outputs, name, value) {
        bool known = name[0] == '_'; // of vLLM's own programs: which backend it chose
        for (size_t i = 0; i < ARRAY_LEN(ask_fields); i++)
            known |= strcmp(name, ask_fields[i].member) == 0;
        for (size_t i = 0; i < ARRAY_LEN(others); i++)
            known |= strcmp(name, others[i]) == 0;
        if (!known)
            return fail(err, ERR_ARG, "structured_outputs: \"%.80s\" is not known there", name);
    }
    TRY(jv_bool_or(outputs, "structured_outputs", "disable_additional_properties", false, &closes, err));
    return closes ? fail(err, ERR_UNSUPPORTED,
                         "structured_outputs.disable_additional_properties: say additionalProperties in the schema")
                  : OK;
}

static bool is_json(const struct structured *s) {
    return s->source.kind == GRAMMAR_JSON_SCHEMA || s->source.kind == GRAMMAR_JSON_OBJECT ||
           s->source.kind == GRAMMAR_STRUCTURAL_TAG;
}

static enum status read_outputs(const json_t *body, struct structured *s, struct error *err) {
    struct grammar_style style;
    json_t *outputs;
    TRY(jv_object_or_null(body, "request", "structured_outputs", &outputs, err));
    if (!outputs)
        return OK;
    TRY(check_members(outputs, err));
    TRY(read_style(outputs, "structured_outputs", "whitespace_pattern", &style, err));
    TRY(jv_bool_or(outputs, "structured_outputs", "disable_any_whitespace", false, &style.compact, err));
    for (size_t i = 0; i < ARRAY_LEN(ask_fields); i++)
        TRY(ask_for(s, &ask_fields[i], outputs, ask_fields[i].member, ask_fields[i].field, style, err));
    if (!s->field)
        return fail(err, ERR_ARG,
                    "structured_outputs: it asks for nothing; it has one of json, regex, choice, grammar, "
                    "structural_tag and json_object");
    if (style.compact && !is_json(s))
        return fail(err, ERR_ARG, "structured_outputs.disable_any_whitespace: %s is not JSON", s->field);
    if (style.whitespace.ptr && !is_json(s))
        return fail(err, ERR_ARG, "structured_outputs.whitespace_pattern: %s is not JSON", s->field);
    return OK;
}

/* Of llama.cpp, whose grammar may be "", and of SGLang. */
static const struct ask_field other_fields[] = {
    {NULL, "grammar", NULL, ASK_GRAMMAR},
    {NULL, "json_schema", NULL, ASK_JSON},
    {NULL, "regex", NULL, ASK_REGEX},
    {NULL, "ebnf", NULL, ASK_GRAMMAR},
};

static enum status read_named(const json_t *body, const struct ask_field *fields, size_t n, struct grammar_style style,
                              struct structured *s, struct error *err) {
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(body, fields[i].older);
        if (!json_is_string(value) || json_string_length(value) > 0)
            TRY(ask_for(s, &fields[i], body, fields[i].older, fields[i].older, style, err));
    }
    return OK;
}

/* The white space is of JSON whatever field asks for it. */
static enum status read_older(const json_t *body, struct structured *s, struct error *err) {
    struct grammar_style style;
    TRY(read_named(body, ask_fields, ARRAY_LEN(ask_fields), (struct grammar_style){0}, s, err));
    TRY(read_named(body, other_fields, ARRAY_LEN(other_fields), (struct grammar_style){0}, s, err));
    TRY(read_style(body, "request", "guided_whitespace_pattern", &style, err));
    if (style.whitespace.ptr && s->field && !is_json(s))
        return fail(err, ERR_ARG, "guided_whitespace_pattern: %s is not JSON", s->field);
    if (style.whitespace.ptr)
        s->source.style.whitespace = style.whitespace;
    return OK;
}

// ---- response_format and its like -------------------------------------------------------------------------------

/* json_schema: {"name", "schema", "strict", "description"}. Every schema is enforced, strict or not. */
static enum status read_json_schema(const json_t *format, struct structured *s, struct error *err) {
    json_t *named;
    const char *name;
    TRY(jv_object_or_null(format, "response_format", "json_schema", &named, err));
    if (!named)
        return fail(err, ERR_ARG, "response_format.json_schema: it must be an object with a name and a schema");
    TRY(jv_string(named, "response_format.json_schema", "name", &name, err));
    if (!is_there(named, "schema")) // any, as OpenAI has it
        return ask_object(s, "response_format.json_schema", (struct grammar_style){0}, err);
    return ask_json(s, "response_format.json_schema.schema", json_object_get(named, "schema"),
                    (struct grammar_style){0}, err);
}

static enum status read_response_format(const json_t *body, struct structured *s, struct error *err) {
    json_t *format;
    const char *type;
    TRY(jv_object_or_null(body, "request", "response_format", &format, err));
    if (!format)
        return OK;
    TRY(jv_string(format, "response_format", "type", &type, err));
    if (strcmp(type, "text") == 0)
        return OK;
    if (strcmp(type, "json_schema") == 0)
        return read_json_schema(format, s, err);
    if (strcmp(type, "structural_tag") == 0)
        return ask_tags(s, "response_format", format, (struct grammar_style){0}, err);
    if (strcmp(type, "json_object") != 0)
        return fail(err, ERR_ARG,
                    "response_format: the type \"%.40s\" is not known; text, json_object, json_schema and "
                    "structural_tag are",
                    type);
    return is_there(format, "schema") // as llama.cpp has it
               ? ask_json(s, "response_format.schema", json_object_get(format, "schema"), (struct grammar_style){0},
                          err)
               : ask_object(s, "response_format", (struct grammar_style){0}, err);
}

enum status structured_read_format(const json_t *format, const char *field, struct structured *s, struct error *err) {
    const char *type;
    TRY(jv_string(format, field, "type", &type, err));
    if (strcmp(type, "text") == 0)
        return OK;
    if (strcmp(type, "json_object") == 0)
        return ask_object(s, field, (struct grammar_style){0}, err);
    if (strcmp(type, "json_schema") != 0)
        return fail(err, ERR_ARG, "%s: the type \"%.40s\" is not known; text, json_object and json_schema are", field,
                    type);
    if (!is_there(format, "schema"))
        return fail(err, ERR_ARG, "%s: it has no \"schema\"", field);
    return ask_json(s, field, json_object_get(format, "schema"), (struct grammar_style){0}, err);
}

enum status structured_read(const json_t *body, struct structured *out, struct error *err) {
    *out = (struct structured){0};
    TRY(read_response_format(body, out, err));
    TRY(read_outputs(body, out, err));
    return read_older(body, out, err);
}
