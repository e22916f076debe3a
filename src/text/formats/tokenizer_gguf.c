/* tokenizer_gguf.c - the tokenizer in a GGUF file's metadata.
 *
 *     tokenizer.ggml.model   llama   SentencePiece's BPE, by scores        tokens scores token_type
 *                            t5      SentencePiece's unigram (ugm)         the same, precompiled_charsmap
 *                            gpt2    byte-level BPE                        tokens merges token_type, pre (what cuts)
 *                            gemma4  BPE over characters and U+2581        tokens merges token_type; so is gpt2 by pre
 *                            bert    WordPiece                             tokens; U+2581 begins a word
 *
 * It becomes what a tokenizer.json or a .model file of the same model becomes. Tokens of the types control and unknown
 * are special; user-defined ones are always read as tokens. bos_token_id and the like name special tokens,
 * add_bos_token and add_eos_token say what stands around a text, with the defaults that writers rely on. */
#include "text/formats/gguf_pretokenizers.h"
#include "text/formats/sentencepiece_model.h"
#include "text/formats/tokenizer_json.h"

#include <stdio.h>

#define KEY "tokenizer.ggml."
static const char mark[] = "\xE2\x96\x81"; // U+2581

struct reader {
    struct tokenizer *t;
    const struct gguf *g;
    const struct gguf_value *tokens, *types, *scores; // types and scores: NULL, or as many as tokens
    struct error *err;
};

/* ---- lists ---- */

static enum status check_length(const struct reader *r, const char *key, const struct gguf_value *v) {
    if (!v || v->n == r->tokens->n)
        return OK;
    return fail(r->err, ERR_FORMAT, "%s: %s has %llu items, and " KEY "tokens %llu", r->g->path, key,
                (unsigned long long)v->n, (unsigned long long)r->tokens->n);
}

static enum status find_lists(struct reader *r) {
    TRY(gguf_strings(r->g, KEY "tokens", &r->tokens, r->err));
    if (!r->tokens || r->tokens->n == 0)
        return fail(r->err, ERR_FORMAT, "%s: there are no " KEY "tokens", r->g->path);
    if (r->tokens->n > TOKENIZER_MAX_TOKENS)
        return fail(r->err, ERR_LIMIT, "%s: " KEY "tokens has %llu items, the limit is %d", r->g->path,
                    (unsigned long long)r->tokens->n, TOKENIZER_MAX_TOKENS);
    TRY(gguf_ints(r->g, KEY "token_type", &r->types, r->err));
    TRY(gguf_reals(r->g, KEY "scores", &r->scores, r->err));
    TRY(check_length(r, KEY "token_type", r->types));
    return check_length(r, KEY "scores", r->scores);
}

static enum piece_type type_of(const struct reader *r, uint64_t id) {
    int64_t type = r->types ? gguf_item_int(r->types, id) : PIECE_NORMAL;
    return type >= PIECE_NORMAL && type <= PIECE_BYTE ? (enum piece_type)type : PIECE_NORMAL;
}

/* A text that comes again keeps its first id: nothing could tell the others apart. */
static enum status add_text(const struct reader *r, struct str text, uint64_t id) {
    if (text.len == 0 || vocab_find(&r->t->vocab, text) >= 0)
        return OK;
    return vocab_add(&r->t->vocab, text, (int64_t)id, r->g->path, NULL, r->err);
}

static enum status add_texts(const struct reader *r) {
    const char *at = r->tokens->at;
    vocab_reserve(&r->t->vocab, r->tokens->n);
    for (uint64_t id = 0; id < r->tokens->n; id++)
        TRY(add_text(r, gguf_next_string(&at, r->tokens->end), id));
    return OK;
}

/* Special and user-defined tokens. */
static enum status add_roles(const struct reader *r) {
    for (uint64_t id = 0; id < r->tokens->n; id++) {
        enum piece_type type = type_of(r, id);
        struct str text = vocab_text(&r->t->vocab, (int32_t)id);
        if (text.len && (type == PIECE_CONTROL || type == PIECE_UNKNOWN || type == PIECE_USER_DEFINED))
            TRY(tokenizer_add_token(r->t, text, (int64_t)id,
                                    (struct added_token){.special = type != PIECE_USER_DEFINED}, r->g->path, r->err));
    }
    return OK;
}

/* ---- special tokens and what stands around a text ---- */

static enum status special_id(const struct reader *r, const char *key, int64_t fallback, int32_t *out) {
    int64_t id;
    TRY(gguf_int_or(r->g, key, -1, UINT32_MAX, fallback, &id, r->err));
    *out = vocab_has(&r->t->vocab, (int32_t)MIN(id, INT32_MAX)) ? (int32_t)id : -1;
    return OK;
}

static enum status name_special(const struct reader *r, enum special_name name, const char *key, int64_t fallback) {
    int32_t id;
    TRY(special_id(r, key, fallback, &id));
    struct str text = vocab_text(&r->t->vocab, id);
    if (id < 0)
        return OK;
    free(r->t->special_text[name]);
    r->t->special_text[name] = xcalloc(text.len + 1, 1);
    memcpy(r->t->special_text[name], text.ptr, text.len);
    return OK;
}

static enum status name_specials(const struct reader *r) {
    static const char *const keys[N_SPECIAL_NAMES] = {[SPECIAL_BOS] = KEY "bos_token_id",
                                                      [SPECIAL_EOS] = KEY "eos_token_id",
                                                      [SPECIAL_UNK] = KEY "unknown_token_id",
                                                      [SPECIAL_PAD] = KEY "padding_token_id",
                                                      [SPECIAL_EOT] = KEY "eot_token_id"};
    for (enum special_name name = 0; name < N_SPECIAL_NAMES; name++)
        TRY(name_special(r, name, keys[name], -1));
    return OK;
}

static enum status add_around(const struct reader *r, bool bos, bool eos, bool sep) {
    struct token_ids items = {0};
    int32_t begin, end, between;
    TRY(gguf_bool_or(r->g, KEY "add_bos_token", bos, &bos, r->err));
    TRY(gguf_bool_or(r->g, KEY "add_eos_token", eos, &eos, r->err));
    TRY(special_id(r, KEY "bos_token_id", -1, &begin));
    TRY(special_id(r, KEY "eos_token_id", -1, &end));
    TRY(special_id(r, KEY "seperator_token_id", -1, &between)); // in the format's spelling
    if (begin < 0)
        TRY(special_id(r, KEY "cls_token_id", -1, &begin));
    if (bos && begin >= 0)
        token_ids_push(&items, begin);
    token_ids_push(&items, TEMPLATE_BODY);
    if (sep && between >= 0)
        token_ids_push(&items, between);
    else if (eos && end >= 0)
        token_ids_push(&items, end);
    postprocessor_release(&r->t->post);
    postprocessor_take_template(&r->t->post, items);
    return OK;
}

/* ---- SentencePiece ---- */

/* Writers give user-defined pieces their blanks back, which a text has as marks when its pieces are looked for. A text
 * that another piece has stays as it is. */
static struct str with_marks(const struct vocab *stored, struct str piece, struct buf *out) {
    buf_clear(out);
    for (size_t i = 0; i < piece.len; i++)
        buf_str(out, piece.ptr[i] == ' ' ? str_of(mark) : (struct str){piece.ptr + i, 1});
    return vocab_find(stored, buf_view(out)) < 0 ? buf_view(out) : piece;
}

static enum status fill_stored(const struct reader *r, struct vocab *stored) {
    const char *at = r->tokens->at;
    vocab_reserve(stored, r->tokens->n);
    for (uint64_t id = 0; id < r->tokens->n; id++)
        TRY(vocab_add(stored, gguf_next_string(&at, r->tokens->end), (int64_t)id, r->g->path, NULL, r->err));
    return OK;
}

static enum status add_pieces(const struct reader *r, struct sentencepiece_model *m, const struct vocab *stored,
                              struct buf *marked) {
    const char *at = r->tokens->at;
    vocab_reserve(&r->t->vocab, r->tokens->n);
    for (uint64_t id = 0; id < r->tokens->n; id++) {
        struct str text = gguf_next_string(&at, r->tokens->end);
        enum piece_type type = type_of(r, id);
        m->byte_fallback |= type == PIECE_BYTE;
        if (type == PIECE_UNKNOWN && m->unk_id >= 0) // what writers call tokens without a use
            type = PIECE_CONTROL;
        if (type == PIECE_USER_DEFINED && memchr(text.ptr, ' ', text.len))
            text = with_marks(stored, text, marked);
        TRY(sentencepiece_add(r->t, m, text, (struct piece){(float)gguf_item_real(r->scores, id), type}, r->err));
    }
    return OK;
}

static enum status fill_pieces(const struct reader *r, struct sentencepiece_model *m) {
    if (!r->scores)
        return fail(r->err, ERR_FORMAT, "%s: the key " KEY "scores is missing", r->g->path);
    struct vocab stored = {0};
    struct buf marked = {0};
    enum status st = fill_stored(r, &stored);
    st = st == OK ? add_pieces(r, m, &stored, &marked) : st;
    vocab_release(&stored);
    buf_release(&marked);
    if (st != OK || m->unk_id >= 0)
        return st;
    return special_id(r, KEY "unknown_token_id", m->model_type == TRAINER_BPE ? 0 : 2, &m->unk_id);
}

static enum status read_charsmap(const struct reader *r, struct sentencepiece_model *m) {
    const struct gguf_value *v;
    TRY(gguf_ints(r->g, KEY "precompiled_charsmap", &v, r->err));
    if (v && v->type != GGUF_U8 && v->type != GGUF_I8)
        return fail(r->err, ERR_FORMAT, "%s: " KEY "precompiled_charsmap must be an array of bytes", r->g->path);
    if (v)
        m->charsmap = (struct str){v->at, (size_t)v->n};
    return OK;
}

static enum status read_pieces(const struct reader *r, struct sentencepiece_model *m) {
    bool is_bpe = m->model_type == TRAINER_BPE;
    TRY(gguf_bool_or(r->g, KEY "add_space_prefix", true, &m->add_dummy_prefix, r->err));
    TRY(gguf_bool_or(r->g, KEY "remove_extra_whitespaces", false, &m->remove_extra_whitespaces, r->err));
    if (is_bpe) // whose writers leave the key of the model file as it was, and whose readers do not look at it
        m->remove_extra_whitespaces = false;
    TRY(read_charsmap(r, m));
    TRY(fill_pieces(r, m));
    TRY(sentencepiece_build(r->t, m, r->err));
    TRY(name_specials(r));
    return add_around(r, is_bpe, !is_bpe, false);
}

static enum status read_sentencepiece(const struct reader *r, uint64_t model_type) {
    struct sentencepiece_model m = {
        .path = r->g->path, .unk_id = -1, .model_type = model_type, .escape_whitespaces = true};
    enum status st = read_pieces(r, &m);
    free(m.pieces);
    return st;
}

static enum status read_llama(const struct reader *r) { return read_sentencepiece(r, TRAINER_BPE); }
static enum status read_t5(const struct reader *r) { return read_sentencepiece(r, TRAINER_UNIGRAM); }

/* ---- stations, as a tokenizer.json has them ---- */

static enum status take_normalizer(const struct reader *r, json_t *take) {
    enum status st = normalizer_read(take, r->g->path, &r->t->normalizer, r->err);
    json_decref(take);
    return st;
}

static enum status take_pretokenizer(const struct reader *r, json_t *take) {
    enum status st = pretokenizer_read(take, r->g->path, &r->t->pretokenizer, r->err);
    json_decref(take);
    return st;
}

static enum status take_decoder(const struct reader *r, json_t *take) {
    enum status st = decoder_read(take, r->g->path, &r->t->decoder, r->err);
    json_decref(take);
    return st;
}

/* ---- BPE ---- */

static enum status read_merges(const struct reader *r) {
    const struct gguf_value *merges;
    struct bpe *b = &r->t->bpe;
    TRY(gguf_strings(r->g, KEY "merges", &merges, r->err));
    if (!merges)
        return fail(r->err, ERR_FORMAT, "%s: the key " KEY "merges is missing", r->g->path);
    r->t->kind = MODEL_BPE;
    b->vocab = &r->t->vocab;
    b->unk_id = BPE_NO_UNK;
    vocab_find_bytes(&r->t->vocab, b->byte_id);
    return tokenizer_read_gguf_merges(b, merges, r->g->path, r->err);
}

static enum status cut_by(const struct reader *r, const struct gguf_pretokenizer *pre) {
    json_t *steps = json_array();
    for (size_t i = 0; pre->patterns[i]; i++)
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                               pre->patterns[i], "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps, json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                                           "trim_offsets", 0, "use_regex", 0));
    return take_pretokenizer(r, json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps));
}

/* The whole text is one word. */
static enum status read_characters(const struct reader *r, bool add_bos) {
    struct bpe *b = &r->t->bpe;
    TRY(add_texts(r));
    TRY(read_merges(r));
    b->byte_fallback = b->fuse_unk = true;
    TRY(special_id(r, KEY "unknown_token_id", -1, &b->unk_id));
    b->unk_id = b->unk_id < 0 ? BPE_NO_UNK : b->unk_id;
    TRY(take_normalizer(
        r, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", mark)));
    TRY(take_decoder(r, json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]}", "type", "Sequence", "decoders",
                                  "type", "Replace", "pattern", "String", mark, "content", " ", "type", "ByteFallback",
                                  "type", "Fuse")));
    r->t->splits_at_marks = bpe_keeps_marks_apart(b);
    TRY(add_roles(r));
    TRY(name_specials(r));
    return add_around(r, add_bos, false, false);
}

static enum status read_gemma4(const struct reader *r) { return read_characters(r, true); }

static enum status read_gpt2(const struct reader *r) {
    struct str name;
    TRY(gguf_string_or(r->g, KEY "pre", STR("default"), &name, r->err));
    static const char *const of_characters[] = {"sarvam-moe", "gemma4", "granite-embed-multi-311m"};
    for (size_t i = 0; i < ARRAY_LEN(of_characters); i++)
        if (str_eq(name, str_of(of_characters[i])))
            return read_characters(r, i != 0);
    const struct gguf_pretokenizer *pre = gguf_pretokenizer_find(name);
    if (!pre)
        return fail(r->err, ERR_UNSUPPORTED, "%s: " KEY "pre is \"%.*s\", a pre-tokenizer that is not known",
                    r->g->path, (int)MIN(name.len, 60), name.ptr);
    TRY(add_texts(r));
    TRY(read_merges(r));
    r->t->bpe.whole_word_first = pre->whole_word_first;
    if (pre->nfc)
        TRY(take_normalizer(r, json_pack("{s:s}", "type", "NFC")));
    TRY(cut_by(r, pre));
    TRY(take_decoder(r, json_pack("{s:s}", "type", "ByteLevel")));
    tokenizer_choose_bytes(r->t);
    TRY(add_roles(r));
    TRY(name_specials(r));
    return add_around(r, pre->add_bos, false, false);
}

/* ---- WordPiece ---- */

/* Converters turn "##ing" into "ing" and "the" into U+2581 "the"; both ways are met. */
static enum status add_wordpieces(const struct reader *r) {
    const char *at = r->tokens->at;
    struct buf text = {0};
    enum status st = OK;
    vocab_reserve(&r->t->vocab, r->tokens->n);
    for (uint64_t id = 0; id < r->tokens->n && st == OK; id++) {
        struct str s = gguf_next_string(&at, r->tokens->end);
        bool begins = str_starts(s, str_of(mark)), is_word = type_of(r, id) == PIECE_NORMAL;
        buf_clear(&text);
        if (is_word && !begins && !str_starts(s, STR("##")) && !(s.len && s.ptr[0] == '['))
            buf_str(&text, STR("##"));
        buf_append(&text, s.ptr + (begins ? sizeof mark - 1 : 0), s.len - (begins ? sizeof mark - 1 : 0));
        st = add_text(r, buf_view(&text), id);
    }
    buf_release(&text);
    return st;
}

static enum status read_bert(const struct reader *r) {
    struct wordpiece *w = &r->t->wordpiece;
    bool lower;
    r->t->kind = MODEL_WORDPIECE;
    TRY(add_wordpieces(r));
    TRY(gguf_bool_or(r->g, KEY "normalizer.lowercase", true, &lower, r->err));
    TRY(special_id(r, KEY "unknown_token_id", vocab_find(&r->t->vocab, STR("[UNK]")), &w->unk_id));
    w->prefix = STR("##");
    w->max_characters = 100;
    tokenizer_build_trie(&w->pieces, &r->t->vocab);
    TRY(take_normalizer(r, json_pack("{s:s, s:b, s:b, s:n, s:b}", "type", "BertNormalizer", "clean_text", 1,
                                     "handle_chinese_chars", 1, "strip_accents", "lowercase", lower)));
    TRY(take_pretokenizer(r, json_pack("{s:s}", "type", "BertPreTokenizer")));
    TRY(take_decoder(r, json_pack("{s:s, s:s, s:b}", "type", "WordPiece", "prefix", "##", "cleanup", 1)));
    TRY(add_roles(r));
    TRY(name_specials(r));
    return add_around(r, true, false, true);
}

/* ---- the file ---- */

static enum status read_metadata(const struct reader *r) {
    static const struct {
        const char *model;
        enum status (*read)(const struct reader *r);
    } readers[] = {
        {"llama", read_llama}, {"t5", read_t5}, {"gpt2", read_gpt2}, {"gemma4", read_gemma4}, {"bert", read_bert}};
    struct str model;
    TRY(gguf_string(r->g, KEY "model", &model, r->err));
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        if (str_eq(model, str_of(readers[i].model)))
            return readers[i].read(r);
    return fail(r->err, ERR_UNSUPPORTED, "%s: " KEY "model is \"%.*s\", which is not supported", r->g->path,
                (int)MIN(model.len, 60), model.ptr);
}

enum status tokenizer_read_gguf(struct tokenizer *t, const char *path, struct error *err) {
    struct gguf g;
    TRY(gguf_open(path, &g, err));
    struct reader r = {.t = t, .g = &g, .err = err};
    enum status st = find_lists(&r);
    if (st == OK)
        st = read_metadata(&r);
    if (st == OK && file_map_damaged(&g.map))
        st = fail(err, ERR_IO, "%s: the file became shorter while it was read", path);
    gguf_release(&g);
    return st;
}
