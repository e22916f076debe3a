/* tokenizer_json_model.c - the "model" of a tokenizer.json. Its tables are by far the most of the file, so they are
 * read in place, without a value for each token; the settings around them are small and become jansson values. */
#include "text/formats/tokenizer_json.h"

enum { AFFIX_MAX_BYTES = 64 };

struct model_parts {
    const char *path;
    struct str vocab, merges; // as text; ptr NULL where missing
    json_t *settings;         // owned
};

static enum status read_setting(struct json_reader *r, struct str key, json_t *settings, struct error *err) {
    char name[64];
    struct str span;
    if (key.len >= sizeof name)
        return json_skip(r, NULL, err);
    memcpy(name, key.ptr, key.len);
    name[key.len] = '\0';
    TRY(json_skip(r, &span, err));
    json_t *value;
    TRY(jv_parse(span, r->where, 0, &value, err));
    json_object_set_new(settings, name, value);
    return OK;
}

static enum status read_parts(struct json_reader *r, struct model_parts *m, struct error *err) {
    TRY(json_enter_object(r, err));
    for (;;) {
        struct str key;
        bool more;
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            return OK;
        if (str_eq(key, STR("vocab")))
            TRY(json_take_section(r, &m->vocab, "vocab", err));
        else if (str_eq(key, STR("merges")))
            TRY(json_take_section(r, &m->merges, "merges", err));
        else
            TRY(read_setting(r, key, m->settings, err));
    }
}

/* {"token": id, ...} */
static enum status read_vocab_object(struct json_reader *r, struct vocab *vocab, struct error *err) {
    TRY(json_enter_object(r, err));
    for (;;) {
        struct str token;
        bool more;
        int64_t id;
        int32_t old;
        TRY(json_next_key(r, &token, &more, err));
        if (!more)
            return OK;
        TRY(json_take_int(r, &id, err));
        TRY(vocab_add(vocab, token, id, r->where, &old, err));
        if (old >= 0)
            return fail(err, ERR_FORMAT, "%s: the token \"%.*s\" is in \"vocab\" twice", r->where,
                        (int)MIN(token.len, 60), token.ptr);
    }
}

/* [["piece", score], ...]; ids are positions. */
static enum status read_vocab_list(struct json_reader *r, struct vocab *vocab, double **scores, struct error *err) {
    static const char wanted[] = "an item of \"vocab\" must be a piece and its score";
    size_t cap = 0;
    TRY(json_enter_array(r, err));
    for (int32_t id = 0;; id++) {
        bool more;
        TRY(json_next_item(r, &more, err));
        if (!more)
            return OK;
        struct str piece;
        TRY(json_enter_array(r, err));
        TRY(json_take_item(r, wanted, err));
        TRY(json_take_string(r, &piece, err));
        TRY(vocab_add(vocab, piece, id, r->where, NULL, err));
        if ((size_t)id == cap) {
            cap = cap * 2 + 1024;
            *scores = xrealloc(*scores, cap, sizeof **scores);
        }
        TRY(json_take_item(r, wanted, err));
        TRY(json_take_real(r, &(*scores)[id], err));
        TRY(json_take_list_end(r, wanted, err));
    }
}

static enum status read_vocab(struct tokenizer *t, const struct model_parts *m, struct error *err) {
    struct json_reader r;
    if (!m->vocab.ptr)
        return fail(err, ERR_FORMAT, "%s: \"vocab\" of the model is missing", m->path);
    json_reader_init(&r, m->vocab, m->path);
    vocab_reserve(&t->vocab, m->vocab.len / 24);
    enum status st = t->kind == MODEL_UNIGRAM ? read_vocab_list(&r, &t->vocab, &t->unigram.scores, err)
                                              : read_vocab_object(&r, &t->vocab, err);
    json_reader_release(&r);
    if (st == OK && t->vocab.n_tokens == 0)
        return fail(err, ERR_FORMAT, "%s: \"vocab\" of the model is empty", m->path);
    return st;
}

static enum status read_merges(struct tokenizer *t, const struct model_parts *parts, struct error *err) {
    if (!parts->merges.ptr)
        return fail(err, ERR_FORMAT, "%s: \"merges\" of the model is missing", parts->path);
    return tokenizer_read_json_merges(&t->bpe, parts->merges, parts->path, err);
}

/* A short text that marks symbols, kept in the tokenizer. */
static enum status read_affix(struct tokenizer *t, const struct model_parts *m, const char *key, struct str *out,
                              struct error *err) {
    const char *text;
    TRY(jv_string_or(m->settings, m->path, key, "", &text, err));
    if (strlen(text) > AFFIX_MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: \"%s\" has more than %d bytes", m->path, key, AFFIX_MAX_BYTES);
    *out = (struct str){arena_strdup(&t->memory, str_of(text)), strlen(text)};
    return OK;
}

/* The id of "unk_token"; -1 when the vocabulary lacks it. *named: the file has one. */
static enum status read_unk(const struct tokenizer *t, const struct model_parts *m, const char *fallback, bool *named,
                            int32_t *id, struct error *err) {
    const char *text;
    TRY(jv_string_or(m->settings, m->path, "unk_token", fallback, &text, err));
    *named = text;
    *id = text ? vocab_find(&t->vocab, str_of(text)) : -1;
    return OK;
}

static enum status read_bpe(struct tokenizer *t, const struct model_parts *m, struct error *err) {
    struct bpe *b = &t->bpe;
    double dropout;
    bool has_unk;
    b->vocab = &t->vocab;
    TRY(jv_real_or(m->settings, m->path, "dropout", 0, &dropout, err));
    if (dropout != 0)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: \"dropout\" of the model is %g, which makes tokens random; it must be null", m->path, dropout);
    TRY(read_affix(t, m, "continuing_subword_prefix", &b->prefix, err));
    TRY(read_affix(t, m, "end_of_word_suffix", &b->suffix, err));
    TRY(jv_bool_or(m->settings, m->path, "fuse_unk", false, &b->fuse_unk, err));
    TRY(jv_bool_or(m->settings, m->path, "byte_fallback", false, &b->byte_fallback, err));
    TRY(jv_bool_or(m->settings, m->path, "ignore_merges", false, &b->whole_word_first, err));
    TRY(read_unk(t, m, NULL, &has_unk, &b->unk_id, err));
    if (b->unk_id < 0)
        b->unk_id = has_unk ? BPE_LOST_UNK : BPE_NO_UNK;
    vocab_find_bytes(&t->vocab, b->byte_id);
    return read_merges(t, m, err);
}

/* Keys for a trie of all tokens, freed by the caller. */
static struct trie_key *all_keys(const struct vocab *v, size_t *n) {
    struct trie_key *keys = xcalloc((size_t)v->n + 1, sizeof *keys);
    *n = 0;
    for (int32_t id = 0; id < v->n; id++)
        if (vocab_has(v, id))
            keys[(*n)++] = (struct trie_key){vocab_text(v, id), id};
    return keys;
}

void tokenizer_build_trie(struct byte_trie *trie, const struct vocab *v) {
    size_t n;
    struct trie_key *keys = all_keys(v, &n);
    byte_trie_build(trie, keys, n);
    free(keys);
}

static enum status read_unigram(struct tokenizer *t, const struct model_parts *m, struct error *err) {
    enum { UNK_PENALTY = 10 }; // an unknown character is this much less likely than the least likely piece
    struct unigram *u = &t->unigram;
    int64_t unk_id;
    TRY(jv_int_or(m->settings, m->path, "unk_id", 0, t->vocab.n - 1, -1, &unk_id, err));
    TRY(jv_bool_or(m->settings, m->path, "byte_fallback", false, &u->byte_fallback, err));
    u->vocab = &t->vocab;
    u->unk_id = (int32_t)unk_id;
    u->fuse_unk = true;
    vocab_find_bytes(&t->vocab, u->byte_id);
    u->unk_score = u->scores[0];
    for (int32_t id = 1; id < t->vocab.n; id++)
        u->unk_score = MIN(u->unk_score, u->scores[id]);
    u->unk_score -= UNK_PENALTY;
    tokenizer_build_trie(&u->pieces, &t->vocab);
    return OK;
}

static enum status read_wordpiece(struct tokenizer *t, const struct model_parts *m, struct error *err) {
    struct wordpiece *w = &t->wordpiece;
    const char *prefix;
    bool named;
    TRY(read_unk(t, m, "[UNK]", &named, &w->unk_id, err));
    TRY(jv_int_or(m->settings, m->path, "max_input_chars_per_word", 0, INT32_MAX, 100, &w->max_characters, err));
    TRY(jv_string_or(m->settings, m->path, "continuing_subword_prefix", "##", &prefix, err));
    w->prefix = (struct str){arena_strdup(&t->memory, str_of(prefix)), strlen(prefix)};
    tokenizer_build_trie(&w->pieces, &t->vocab);
    return OK;
}

/* Older files do not say the type: the fields tell. */
static enum status find_kind(const struct model_parts *m, enum model_kind *kind, struct error *err) {
    static const char *const names[] = {[MODEL_BPE] = "BPE",
                                        [MODEL_UNIGRAM] = "Unigram",
                                        [MODEL_WORDPIECE] = "WordPiece",
                                        [MODEL_WORDLEVEL] = "WordLevel"};
    const char *type;
    TRY(jv_string_or(m->settings, m->path, "type", NULL, &type, err));
    if (!type) {
        bool pieces = json_object_get(m->settings, "max_input_chars_per_word") ||
                      json_object_get(m->settings, "continuing_subword_prefix");
        *kind = m->merges.ptr                            ? MODEL_BPE
                : m->vocab.ptr && m->vocab.ptr[0] == '[' ? MODEL_UNIGRAM
                : pieces                                 ? MODEL_WORDPIECE
                                                         : MODEL_WORDLEVEL;
        return OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(type, names[i]) == 0) {
            *kind = (enum model_kind)i;
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "%s: the model type \"%s\" is not supported", m->path, type);
}

static enum status read_model(struct tokenizer *t, const struct model_parts *m, struct error *err) {
    bool named;
    TRY(find_kind(m, &t->kind, err));
    TRY(read_vocab(t, m, err));
    switch (t->kind) {
    case MODEL_BPE: return read_bpe(t, m, err);
    case MODEL_UNIGRAM: return read_unigram(t, m, err);
    case MODEL_WORDPIECE: return read_wordpiece(t, m, err);
    case MODEL_WORDLEVEL: break;
    }
    return read_unk(t, m, "<unk>", &named, &t->unk_id, err);
}

enum status tokenizer_read_json_model(struct tokenizer *t, struct str section, const char *path, struct error *err) {
    struct model_parts m = {.path = path, .settings = json_object()};
    struct json_reader r;
    json_reader_init(&r, section, path);
    enum status st = read_parts(&r, &m, err);
    if (st == OK)
        st = read_model(t, &m, err);
    json_reader_release(&r);
    json_decref(m.settings);
    return st;
}
