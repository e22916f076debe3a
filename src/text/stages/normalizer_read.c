/* normalizer_read.c - the "normalizer" of a tokenizer.json; see normalizer.h. */
#include "text/stages/normalizer.h"

#include "text/formats/base64.h"

enum { NEST_MAX = 20, STEPS_MAX = 100 };

static enum status read_value(const json_t *v, const char *where, int depth, struct normalizer *out, struct error *err);

static enum status read_sequence(const json_t *v, const char *where, int depth, struct normalizer *out,
                                 struct error *err) {
    json_t *list;
    TRY(jv_array_or_null(v, where, "normalizers", &list, err));
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) TRY(read_value(item, where, depth + 1, out, err));
    return OK;
}

static void take_copy(struct normalizer_step *step, const json_t *string) {
    step->content_len = json_string_length(string);
    step->content = xmalloc(step->content_len + 1);
    memcpy(step->content, json_string_value(string), step->content_len);
}

static enum status read_content(const json_t *v, const char *where, const char *key, struct normalizer_step *step,
                                struct error *err) {
    const json_t *content = json_object_get(v, key);
    if (!json_is_string(content))
        return fail(err, ERR_FORMAT, "%s: \"%s\" of a normalizer is %s, it must be a string", where, key,
                    jv_type_name(content));
    take_copy(step, content);
    return OK;
}

static enum status read_replace(const json_t *v, const char *where, struct normalizer *out, struct error *err) {
    struct normalizer_step step = {.kind = NORMALIZE_REPLACE};
    TRY(pattern_read(json_object_get(v, "pattern"), where, &step.pattern, err));
    enum status st = read_content(v, where, "content", &step, err);
    if (st == OK)
        normalizer_take_step(out, step);
    else
        pattern_release(&step.pattern);
    return st;
}

static enum status read_around(const json_t *v, const char *where, bool before, struct normalizer *out,
                               struct error *err) {
    struct normalizer_step step = {.kind = before ? NORMALIZE_PREPEND : NORMALIZE_APPEND};
    TRY(read_content(v, where, before ? "prepend" : "append", &step, err));
    normalizer_take_step(out, step);
    return OK;
}

static enum status read_strip(const json_t *v, const char *where, struct normalizer *out, struct error *err) {
    struct normalizer_step step = {.kind = NORMALIZE_STRIP};
    TRY(jv_bool_or(v, where, "strip_left", true, &step.left, err));
    TRY(jv_bool_or(v, where, "strip_right", true, &step.right, err));
    normalizer_take_step(out, step);
    return OK;
}

static enum status read_bert(const json_t *v, const char *where, struct normalizer *out, struct error *err) {
    bool clean, chinese, lowercase, accents;
    TRY(jv_bool_or(v, where, "clean_text", true, &clean, err));
    TRY(jv_bool_or(v, where, "handle_chinese_chars", true, &chinese, err));
    TRY(jv_bool_or(v, where, "lowercase", true, &lowercase, err));
    TRY(jv_bool_or(v, where, "strip_accents", lowercase, &accents, err)); // null: as lowercase
    if (clean)
        normalizer_take_step(out, (struct normalizer_step){.kind = NORMALIZE_BERT_CLEAN});
    if (chinese)
        normalizer_take_step(out, (struct normalizer_step){.kind = NORMALIZE_BERT_CHINESE});
    if (accents) {
        normalizer_take_step(out, (struct normalizer_step){.kind = NORMALIZE_FORM, .form = FORM_NFD});
        normalizer_take_step(out, (struct normalizer_step){.kind = NORMALIZE_BERT_ACCENTS});
    }
    if (lowercase)
        normalizer_take_step(out, (struct normalizer_step){.kind = NORMALIZE_LOWERCASE});
    return OK;
}

static enum status read_charsmap(const json_t *v, const char *where, struct normalizer *out, struct error *err) {
    const char *base64;
    TRY(jv_string(v, where, "precompiled_charsmap", &base64, err));
    struct buf blob = {0};
    struct normalizer_step step = {.kind = NORMALIZE_CHARSMAP};
    enum status st = OK;
    if (!base64_decode(str_of(base64), &blob))
        st = fail(err, ERR_FORMAT, "%s: precompiled_charsmap is not base64", where);
    else
        st = charsmap_read(buf_view(&blob), where, &step.charsmap, err);
    buf_release(&blob);
    if (st == OK)
        normalizer_take_step(out, step);
    return st;
}

/* Steps that have no fields. */
static const struct {
    const char *type;
    struct normalizer_step step;
} plain[] = {
    {"NFC", {.kind = NORMALIZE_FORM, .form = FORM_NFC}},
    {"NFD", {.kind = NORMALIZE_FORM, .form = FORM_NFD}},
    {"NFKC", {.kind = NORMALIZE_FORM, .form = FORM_NFKC}},
    {"NFKD", {.kind = NORMALIZE_FORM, .form = FORM_NFKD}},
    {"Lowercase", {.kind = NORMALIZE_LOWERCASE}},
    {"StripAccents", {.kind = NORMALIZE_STRIP_ACCENTS}},
    {"Nmt", {.kind = NORMALIZE_NMT}},
    {"ByteLevel", {.kind = NORMALIZE_BYTE_LEVEL}},
};

static enum status read_value(const json_t *v, const char *where, int depth, struct normalizer *out,
                              struct error *err) {
    const char *type;
    if (depth > NEST_MAX)
        return fail(err, ERR_LIMIT, "%s: \"normalizer\" nests more than %d deep", where, NEST_MAX);
    if (!json_is_object(v))
        return fail(err, ERR_FORMAT, "%s: \"normalizer\" is %s, it must be an object", where, jv_type_name(v));
    if (out->n >= STEPS_MAX)
        return fail(err, ERR_LIMIT, "%s: \"normalizer\" has more than %d steps", where, STEPS_MAX);
    TRY(jv_string(v, where, "type", &type, err));
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (strcmp(type, plain[i].type) == 0) {
            normalizer_take_step(out, plain[i].step);
            return OK;
        }
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(v, where, depth, out, err);
    if (strcmp(type, "Replace") == 0)
        return read_replace(v, where, out, err);
    if (strcmp(type, "Prepend") == 0 || strcmp(type, "Append") == 0)
        return read_around(v, where, type[0] == 'P', out, err);
    if (strcmp(type, "Strip") == 0)
        return read_strip(v, where, out, err);
    if (strcmp(type, "BertNormalizer") == 0)
        return read_bert(v, where, out, err);
    if (strcmp(type, "Precompiled") == 0)
        return read_charsmap(v, where, out, err);
    return fail(err, ERR_UNSUPPORTED, "%s: the normalizer \"%s\" is not supported", where, type);
}

enum status normalizer_read(const json_t *value, const char *where, struct normalizer *out, struct error *err) {
    *out = (struct normalizer){0};
    if (!value || json_is_null(value))
        return OK;
    return read_value(value, where, 0, out, err);
}
