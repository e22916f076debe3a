/* tokenizer_json.c - reading a tokenizer.json: its sections. The model's section is read in tokenizer_json_model.c. */
#include "text/formats/tokenizer_json.h"

#include "base/file.h"
#include "text/stages/byte_level.h"

enum { FILE_MAX_BYTES = 1 << 30 };

/* The parts of the file, as text; ptr NULL where one is missing. */
struct sections {
    struct str normalizer, pre_tokenizer, model, post_processor, decoder, added_tokens;
};

static enum status read_sections(struct json_reader *r, struct sections *s, struct error *err) {
    const struct {
        const char *name;
        struct str *section;
    } known[] = {{"normalizer", &s->normalizer}, {"pre_tokenizer", &s->pre_tokenizer},
                 {"model", &s->model},           {"post_processor", &s->post_processor},
                 {"decoder", &s->decoder},       {"added_tokens", &s->added_tokens}};
    TRY(json_enter_object(r, err));
    for (;;) {
        struct str key;
        bool more;
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            return json_expect_end(r, err);
        size_t i = 0;
        while (i < ARRAY_LEN(known) && !str_eq(key, str_of(known[i].name)))
            i++;
        TRY(i < ARRAY_LEN(known) ? json_take_section(r, known[i].section, known[i].name, err)
                                 : json_skip(r, NULL, err));
    }
}

/* A section as a value; NULL where it is missing. */
static enum status parse_section(struct str section, const char *path, json_t **out, struct error *err) {
    *out = NULL;
    return section.ptr ? jv_parse(section, path, 0, out, err) : OK;
}

enum status added_token_read(const json_t *v, const char *where, struct added_token *out, struct error *err) {
    *out = (struct added_token){0};
    TRY(jv_bool_or(v, where, "special", false, &out->special, err));
    TRY(jv_bool_or(v, where, "single_word", false, &out->single_word, err));
    TRY(jv_bool_or(v, where, "lstrip", false, &out->lstrip, err));
    TRY(jv_bool_or(v, where, "rstrip", false, &out->rstrip, err));
    return jv_bool_or(v, where, "normalized", !out->special, &out->normalized, err);
}

static enum status read_added_token(struct tokenizer *t, const json_t *v, const char *path, struct error *err) {
    if (!json_is_object(v))
        return fail(err, ERR_FORMAT, "%s: an item of \"added_tokens\" is %s, it must be an object", path,
                    jv_type_name(v));
    int64_t id;
    const char *content;
    struct added_token flags;
    TRY(jv_string(v, path, "content", &content, err));
    TRY(jv_int(v, path, "id", 0, TOKENIZER_MAX_TOKENS - 1, &id, err));
    TRY(added_token_read(v, path, &flags, err));
    return tokenizer_add_token(t, str_of(content), id, flags, path, err);
}

static enum status read_added_tokens(struct tokenizer *t, struct str section, const char *path, struct error *err) {
    json_t *list;
    TRY(parse_section(section, path, &list, err));
    enum status st = OK;
    if (list && !json_is_array(list) && !json_is_null(list))
        st = fail(err, ERR_FORMAT, "%s: \"added_tokens\" is %s, it must be an array", path, jv_type_name(list));
    for (size_t i = 0; st == OK && i < json_array_size(list); i++)
        st = read_added_token(t, json_array_get(list, i), path, err);
    json_decref(list);
    return st;
}

static enum status read_steps(struct tokenizer *t, const struct sections *s, const char *path, struct error *err) {
    json_t *normalizer = NULL, *pre_tokenizer = NULL, *post_processor = NULL, *decoder = NULL;
    enum status st = parse_section(s->normalizer, path, &normalizer, err);
    if (st == OK)
        st = parse_section(s->pre_tokenizer, path, &pre_tokenizer, err);
    if (st == OK)
        st = parse_section(s->post_processor, path, &post_processor, err);
    if (st == OK)
        st = parse_section(s->decoder, path, &decoder, err);
    if (st == OK)
        st = normalizer_read(normalizer, path, &t->normalizer, err);
    if (st == OK)
        st = pretokenizer_read(pre_tokenizer, path, &t->pretokenizer, err);
    if (st == OK)
        st = postprocessor_read(post_processor, path, &t->post, err);
    t->has_postprocessor = post_processor && !json_is_null(post_processor);
    if (st == OK)
        st = decoder_read(decoder, path, &t->decoder, err);
    json_decref(normalizer);
    json_decref(pre_tokenizer);
    json_decref(post_processor);
    json_decref(decoder);
    return st;
}

/* BPE behind a ByteLevel pre-tokenizer reads bytes, not the characters that stand for them. With byte fallback the
 * characters that the vocabulary lacks matter, so then only if it has all. */
void tokenizer_choose_bytes(struct tokenizer *t) {
    const struct pretokenizer *p = &t->pretokenizer;
    struct bpe *b = &t->bpe;
    if (t->kind != MODEL_BPE || p->n == 0 || p->steps[p->n - 1].kind != PRETOKEN_BYTE_LEVEL || b->prefix.len ||
        b->suffix.len)
        return;
    int32_t ids[256];
    bool complete = true;
    for (int byte = 0; byte < 256; byte++) {
        char text[4];
        size_t n = (size_t)utf8_encode(byte_level_char((uint8_t)byte), text);
        ids[byte] = vocab_find(&t->vocab, (struct str){text, n});
        complete &= ids[byte] >= 0;
    }
    if (b->byte_fallback && !complete)
        return;
    memcpy(b->byte_id, ids, sizeof ids);
    b->by_bytes = t->pretokenizer.raw_bytes = true;
}

static enum status read_text(struct tokenizer *t, struct str text, const char *path, struct error *err) {
    struct sections s = {{0}};
    struct json_reader r;
    json_reader_init(&r, text, path);
    enum status st = read_sections(&r, &s, err);
    json_reader_release(&r);
    TRY(st);
    if (!s.model.ptr)
        return fail(err, ERR_FORMAT, "%s: \"model\" is missing, it must be an object", path);
    TRY(tokenizer_read_json_model(t, s.model, path, err));
    TRY(read_steps(t, &s, path, err));
    tokenizer_choose_bytes(t);
    if (t->pretokenizer.n == 0)
        t->splits_at_marks = bpe_keeps_marks_apart(&t->bpe);
    return read_added_tokens(t, s.added_tokens, path, err);
}

enum status tokenizer_read_json(struct tokenizer *t, const char *path, struct error *err) {
    struct file_map map;
    TRY(file_map_open(&map, path, FILE_MAX_BYTES, err));
    enum status st = read_text(t, (struct str){map.bytes, map.n_bytes}, path, err);
    if (st == OK && file_map_damaged(&map))
        st = fail(err, ERR_IO, "%s: the file became shorter while it was read", path);
    file_map_close(&map);
    return st;
}
