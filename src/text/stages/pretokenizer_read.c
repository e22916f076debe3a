/* pretokenizer_read.c - the "pre_tokenizer" of a tokenizer.json; see pretokenizer.h. */
#include "text/stages/pretokenizer.h"

#include "text/regex/unicode.h"

enum { NEST_MAX = 20 };

static enum status read_value(const json_t *v, const char *where, int depth, struct pretokenizer *out,
                              struct error *err);

static enum status read_sequence(const json_t *v, const char *where, int depth, struct pretokenizer *out,
                                 struct error *err) {
    json_t *list;
    TRY(jv_array_or_null(v, where, "pretokenizers", &list, err));
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) TRY(read_value(item, where, depth + 1, out, err));
    return OK;
}

static enum status read_behavior(const json_t *v, const char *where, const char *fallback, enum split_behavior *out,
                                 struct error *err) {
    static const char *const names[] = {
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    TRY(fallback ? jv_string_or(v, where, "behavior", fallback, &name, err)
                 : jv_string(v, where, "behavior", &name, err));
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum split_behavior)i;
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "%s: the split behavior \"%s\" is not supported", where, name);
}

static enum status read_split(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    struct pretokenizer_step step = {.kind = PRETOKEN_SPLIT};
    TRY(read_behavior(v, where, NULL, &step.behavior, err));
    TRY(jv_bool_or(v, where, "invert", false, &step.invert, err));
    TRY(pattern_read(json_object_get(v, "pattern"), where, &step.pattern, err));
    pretokenizer_take_step(out, step);
    return OK;
}

static enum status read_byte_level(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    struct pretokenizer_step step = {.kind = PRETOKEN_BYTE_LEVEL,
                                     .pattern = {.kind = PATTERN_WORDS, .words = word_rules_gpt2()}};
    TRY(jv_bool_or(v, where, "add_prefix_space", true, &step.add_prefix_space, err));
    TRY(jv_bool_or(v, where, "use_regex", true, &step.cuts, err));
    pretokenizer_take_step(out, step);
    return OK;
}

/* A field that holds one character. */
static enum status read_character(const json_t *v, const char *where, const char *key, struct str *out,
                                  struct error *err) {
    const char *text;
    TRY(jv_string(v, where, key, &text, err));
    *out = str_of(text);
    if (out->len == 0 || (size_t)utf8_length(text[0]) != out->len)
        return fail(err, ERR_FORMAT, "%s: \"%s\" is \"%.60s\", it must be one character", where, key, text);
    return OK;
}

/* Older files have add_prefix_space where newer ones have prepend_scheme. */
static enum status read_metaspace(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    struct pretokenizer_step step = {.kind = PRETOKEN_METASPACE};
    struct str mark;
    const char *scheme;
    bool add_prefix_space;
    TRY(read_character(v, where, "replacement", &mark, err));
    TRY(jv_bool_or(v, where, "split", true, &step.cuts, err));
    TRY(jv_bool_or(v, where, "add_prefix_space", true, &add_prefix_space, err));
    TRY(jv_string_or(v, where, "prepend_scheme", add_prefix_space ? "always" : "never", &scheme, err));
    if (strcmp(scheme, "always") == 0)
        step.prepend = PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        step.prepend = PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        step.prepend = PREPEND_NEVER;
    else
        return fail(err, ERR_UNSUPPORTED, "%s: the prepend_scheme \"%s\" is not supported", where, scheme);
    utf8_step(mark.ptr, &step.mark);
    pretokenizer_take_step(out, step);
    return OK;
}

static void take_split(struct pretokenizer *out, struct pattern pattern, enum split_behavior behavior, bool invert) {
    pretokenizer_take_step(
        out,
        (struct pretokenizer_step){.kind = PRETOKEN_SPLIT, .pattern = pattern, .behavior = behavior, .invert = invert});
}

static enum status read_punctuation(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    enum split_behavior behavior;
    TRY(read_behavior(v, where, "Isolated", &behavior, err));
    take_split(out, pattern_of_characters(char_is_punctuation), behavior, false);
    return OK;
}

static enum status read_digits(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    bool individual;
    TRY(jv_bool_or(v, where, "individual_digits", false, &individual, err));
    take_split(out, pattern_of_characters(char_is_number), individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false);
    return OK;
}

static enum status read_delimiter(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    struct str delimiter;
    struct pattern pattern;
    TRY(read_character(v, where, "delimiter", &delimiter, err));
    pattern_of_literal(delimiter, &pattern);
    take_split(out, pattern, SPLIT_REMOVED, false);
    return OK;
}

static enum status read_fixed_length(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    struct pretokenizer_step step = {.kind = PRETOKEN_FIXED_LENGTH};
    TRY(jv_int_or(v, where, "length", 1, INT32_MAX, 5, &step.length, err));
    pretokenizer_take_step(out, step);
    return OK;
}

static enum status read_whitespace(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    (void)v, (void)where, (void)err;
    take_split(out, (struct pattern){.kind = PATTERN_RUNS}, SPLIT_REMOVED, true);
    return OK;
}

static enum status read_whitespace_split(const json_t *v, const char *where, struct pretokenizer *out,
                                         struct error *err) {
    (void)v, (void)where, (void)err;
    take_split(out, pattern_of_characters(char_is_space), SPLIT_REMOVED, false);
    return OK;
}

static enum status read_bert(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    TRY(read_whitespace_split(v, where, out, err));
    take_split(out, pattern_of_characters(char_is_punctuation), SPLIT_ISOLATED, false);
    return OK;
}

static enum status read_scripts(const json_t *v, const char *where, struct pretokenizer *out, struct error *err) {
    (void)v, (void)where, (void)err;
    pretokenizer_take_step(out, (struct pretokenizer_step){.kind = PRETOKEN_SCRIPTS});
    return OK;
}

static const struct {
    const char *type;
    enum status (*read)(const json_t *v, const char *where, struct pretokenizer *out, struct error *err);
} readers[] = {
    {"Split", read_split},
    {"ByteLevel", read_byte_level},
    {"Metaspace", read_metaspace},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
    {"BertPreTokenizer", read_bert},
    {"Punctuation", read_punctuation},
    {"Digits", read_digits},
    {"CharDelimiterSplit", read_delimiter},
    {"FixedLength", read_fixed_length},
    {"UnicodeScripts", read_scripts},
};

static enum status read_value(const json_t *v, const char *where, int depth, struct pretokenizer *out,
                              struct error *err) {
    const char *type;
    if (depth > NEST_MAX)
        return fail(err, ERR_LIMIT, "%s: \"pre_tokenizer\" nests more than %d deep", where, NEST_MAX);
    if (!json_is_object(v))
        return fail(err, ERR_FORMAT, "%s: \"pre_tokenizer\" is %s, it must be an object", where, jv_type_name(v));
    TRY(jv_string(v, where, "type", &type, err));
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(v, where, depth, out, err);
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        if (strcmp(type, readers[i].type) == 0)
            return readers[i].read(v, where, out, err);
    return fail(err, ERR_UNSUPPORTED, "%s: the pre-tokenizer \"%s\" is not supported", where, type);
}

enum status pretokenizer_read(const json_t *value, const char *where, struct pretokenizer *out, struct error *err) {
    *out = (struct pretokenizer){0};
    if (!value || json_is_null(value))
        return OK;
    TRY(read_value(value, where, 0, out, err));
    enum { STEPS_MAX = 100 }; // each is a level of calls
    return out->n <= STEPS_MAX ? OK
                               : fail(err, ERR_LIMIT, "%s: \"pre_tokenizer\" has more than %d steps", where, STEPS_MAX);
}
