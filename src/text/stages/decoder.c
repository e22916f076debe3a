/* decoder.c - see decoder.h. The stages that rewrite one token, and reading them; detokenizer.c runs them all. */
#include "text/stages/decoder.h"

#include "text/regex/unicode.h"

enum { NEST_MAX = 20, STAGES_MAX = 64 };

void decoder_release(struct decoder *d) {
    for (size_t i = 0; i < d->n; i++) {
        pattern_release(&d->stages[i].pattern);
        free(d->stages[i].text);
        free(d->stages[i].delimiter);
    }
    free(d->stages);
    *d = (struct decoder){0};
}

bool decoder_has_regex(const struct decoder *d) {
    for (size_t i = 0; i < d->n; i++)
        if (d->stages[i].pattern.regex)
            return true;
    return false;
}

void decoder_take_stage(struct decoder *d, struct decoder_stage stage) {
    d->stages = xrealloc(d->stages, d->n + 1, sizeof *d->stages);
    d->stages[d->n++] = stage;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int decoder_fallback_byte(struct str token) {
    if (token.len != 6 || !str_starts(token, STR("<0x")) || token.ptr[5] != '>')
        return -1;
    int high = hex_value(token.ptr[3]), low = hex_value(token.ptr[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static void replace_literal(struct buf *out, struct str text, struct str from, struct str to) {
    const char *at = text.ptr, *end = at + text.len;
    for (const char *hit; from.len > 0 && (hit = memmem(at, (size_t)(end - at), from.ptr, from.len));
         at = hit + from.len) {
        buf_append(out, at, (size_t)(hit - at));
        buf_str(out, to);
    }
    buf_append(out, at, (size_t)(end - at));
}

/* Spaces that tokenizing put before punctuation and English contractions go again. */
static void clean_up(struct buf *text) {
    static const char *const rules[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        struct buf cleaned = {0};
        replace_literal(&cleaned, buf_view(text), str_of(rules[i][0]), str_of(rules[i][1]));
        buf_release(text);
        *text = cleaned;
    }
}

static enum status replace(const struct decoder_stage *s, struct regex_memory *rm, struct str token, struct buf *out,
                           struct error *err) {
    struct regex_walk walk = {.text = token};
    size_t copied = 0, begin, end;
    for (;;) {
        bool found;
        TRY(pattern_next(&s->pattern, rm, &walk, &begin, &end, &found, err));
        if (!found)
            break;
        buf_append(out, token.ptr + copied, begin - copied);
        buf_append(out, s->text, s->text_len);
        copied = end;
    }
    buf_append(out, token.ptr + copied, token.len - copied);
    return OK;
}

static void metaspace(const struct decoder_stage *s, struct str token, bool first, struct buf *out) {
    char mark[4];
    size_t mark_len = (size_t)utf8_encode(s->mark, mark);
    replace_literal(out, token, (struct str){mark, mark_len}, first && !s->keep_first ? STR("") : STR(" "));
}

static void wordpiece(const struct decoder_stage *s, struct str token, bool first, struct buf *out) {
    struct buf word = {0};
    struct str prefix = {s->text, s->text_len};
    bool inside = str_starts(token, prefix);
    if (!first && !inside)
        buf_push(&word, ' ');
    size_t skipped = !first && inside ? prefix.len : 0;
    buf_append(&word, token.ptr + skipped, token.len - skipped);
    if (s->cleanup)
        clean_up(&word);
    buf_str(out, buf_view(&word));
    buf_release(&word);
}

static void ctc(const struct decoder_stage *s, struct str token, struct buf *out) {
    struct buf word = {0};
    replace_literal(&word, token, (struct str){s->text, s->text_len}, STR(""));
    if (s->cleanup) {
        clean_up(&word);
        replace_literal(out, buf_view(&word), str_of(s->delimiter), STR(" "));
    } else {
        buf_str(out, buf_view(&word));
    }
    buf_release(&word);
}

enum status decoder_rewrite(const struct decoder_stage *s, struct regex_memory *rm, struct str token, bool first,
                            bool last, struct buf *out, struct error *err) {
    switch (s->kind) {
    case DECODE_REPLACE: return replace(s, rm, token, out, err);
    case DECODE_METASPACE: metaspace(s, token, first, out); break;
    case DECODE_WORDPIECE: wordpiece(s, token, first, out); break;
    case DECODE_BPE_SUFFIX:
        replace_literal(out, token, (struct str){s->text, s->text_len}, last ? STR("") : STR(" "));
        break;
    case DECODE_CTC: ctc(s, token, out); break;
    default: buf_str(out, token);
    }
    return OK;
}

/* Reading. */

static enum status take_string(const json_t *v, const char *where, const char *key, struct decoder_stage *s,
                               struct error *err) {
    const json_t *text = json_object_get(v, key);
    if (!json_is_string(text))
        return fail(err, ERR_FORMAT, "%s: \"%s\" of a decoder is %s, it must be a string", where, key,
                    jv_type_name(text));
    s->text_len = json_string_length(text);
    s->text = xmalloc(s->text_len + 1);
    memcpy(s->text, json_string_value(text), s->text_len);
    return OK;
}

static enum status take_mark(const json_t *v, const char *where, const char *key, struct decoder_stage *s,
                             struct error *err) {
    const char *text;
    TRY(jv_string(v, where, key, &text, err));
    if (!text[0] || (size_t)utf8_length(text[0]) != strlen(text))
        return fail(err, ERR_FORMAT, "%s: \"%s\" of a decoder is \"%.60s\", it must be one character", where, key,
                    text);
    utf8_step(text, &s->mark);
    return OK;
}

static enum status read_replace(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    s->kind = DECODE_REPLACE;
    TRY(take_string(v, where, "content", s, err));
    return pattern_read(json_object_get(v, "pattern"), where, &s->pattern, err);
}

static enum status read_strip(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    s->kind = DECODE_STRIP;
    TRY(jv_int_or(v, where, "start", 0, INT32_MAX, 0, &s->start, err));
    TRY(jv_int_or(v, where, "stop", 0, INT32_MAX, 0, &s->stop, err));
    return take_mark(v, where, "content", s, err);
}

static enum status read_metaspace(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    s->kind = DECODE_METASPACE;
    bool add_prefix_space;
    const char *scheme;
    TRY(jv_bool_or(v, where, "add_prefix_space", true, &add_prefix_space, err));
    TRY(jv_string_or(v, where, "prepend_scheme", add_prefix_space ? "always" : "never", &scheme, err));
    s->keep_first = strcmp(scheme, "never") == 0;
    return take_mark(v, where, "replacement", s, err);
}

static enum status read_wordpiece(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    s->kind = DECODE_WORDPIECE;
    TRY(jv_bool_or(v, where, "cleanup", true, &s->cleanup, err));
    return take_string(v, where, "prefix", s, err);
}

static enum status read_bpe(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    s->kind = DECODE_BPE_SUFFIX;
    return take_string(v, where, "suffix", s, err);
}

static enum status read_ctc(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    s->kind = DECODE_CTC;
    const char *delimiter;
    TRY(jv_bool_or(v, where, "cleanup", true, &s->cleanup, err));
    TRY(jv_string(v, where, "word_delimiter_token", &delimiter, err));
    TRY(take_string(v, where, "pad_token", s, err));
    s->delimiter = xstrdup(delimiter);
    return OK;
}

static enum status read_byte_level(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    (void)v, (void)where, (void)err;
    s->kind = DECODE_BYTE_LEVEL;
    return OK;
}

static enum status read_byte_fallback(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    (void)v, (void)where, (void)err;
    s->kind = DECODE_BYTE_FALLBACK;
    return OK;
}

static enum status read_fuse(const json_t *v, const char *where, struct decoder_stage *s, struct error *err) {
    (void)v, (void)where, (void)err;
    s->kind = DECODE_FUSE;
    return OK;
}

static const struct {
    const char *type;
    enum status (*read)(const json_t *v, const char *where, struct decoder_stage *s, struct error *err);
} readers[] = {
    {"ByteLevel", read_byte_level},
    {"ByteFallback", read_byte_fallback},
    {"Fuse", read_fuse},
    {"Strip", read_strip},
    {"Replace", read_replace},
    {"Metaspace", read_metaspace},
    {"WordPiece", read_wordpiece},
    {"BPEDecoder", read_bpe},
    {"CTC", read_ctc},
};

static enum status read_value(const json_t *v, const char *where, int depth, struct decoder *out, struct error *err);

static enum status read_sequence(const json_t *v, const char *where, int depth, struct decoder *out,
                                 struct error *err) {
    json_t *list;
    TRY(jv_array_or_null(v, where, "decoders", &list, err));
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) TRY(read_value(item, where, depth + 1, out, err));
    return OK;
}

static enum status read_value(const json_t *v, const char *where, int depth, struct decoder *out, struct error *err) {
    const char *type;
    if (depth > NEST_MAX || out->n >= STAGES_MAX)
        return fail(err, ERR_LIMIT, "%s: \"decoder\" has more than %d stages or nests more than %d deep", where,
                    STAGES_MAX, NEST_MAX);
    if (!json_is_object(v))
        return fail(err, ERR_FORMAT, "%s: \"decoder\" is %s, it must be an object", where, jv_type_name(v));
    TRY(jv_string(v, where, "type", &type, err));
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(v, where, depth, out, err);
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        if (strcmp(type, readers[i].type) == 0) {
            decoder_take_stage(out, (struct decoder_stage){0}); // first, so that what a failed read took is released
            return readers[i].read(v, where, &out->stages[out->n - 1], err);
        }
    return fail(err, ERR_UNSUPPORTED, "%s: the decoder \"%s\" is not supported", where, type);
}

enum status decoder_read(const json_t *value, const char *where, struct decoder *out, struct error *err) {
    *out = (struct decoder){0};
    if (value && !json_is_null(value))
        return read_value(value, where, 0, out, err);
    decoder_take_stage(out, (struct decoder_stage){.kind = DECODE_JOIN});
    return OK;
}
