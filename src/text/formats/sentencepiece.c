/* sentencepiece.c - reading a SentencePiece .model: a protocol-buffers message (sentencepiece_model.proto).
 *
 * Pieces of the types CONTROL and UNKNOWN become special tokens: found in text only on request, as SentencePiece
 * itself never finds them. User-defined pieces are always found. Each stretch of plain text between special tokens
 * is rewritten and encoded by itself. Pieces of type UNUSED are never made. Of the trainer's settings only those
 * count that say how to encode.
 *
 * Without a tokenizer_config.json beside it, a BPE model puts its BOS piece in front, as all language models with
 * such files want; a Unigram model adds nothing. */
#include "text/formats/protobuf.h"
#include "text/formats/sentencepiece_model.h"
#include "text/formats/sentencepiece_rules.h"

#include "base/file.h"

#include <math.h>

enum { FILE_MAX_BYTES = 256 << 20 };
enum status sentencepiece_add(struct tokenizer *t, struct sentencepiece_model *f, struct str text, struct piece piece,
                              struct error *err) {
    if (text.len == 0 || !utf8_valid(text) || !isfinite(piece.score) || piece.type == 0)
        return fail(err, ERR_FORMAT,
                    "%s: piece %zu has a text that is empty or not UTF-8, no finite score, or an unknown type", f->path,
                    f->n);
    int32_t old;
    TRY(vocab_add(&t->vocab, text, (int64_t)f->n, f->path, &old, err));
    if (old >= 0)
        return fail(err, ERR_FORMAT, "%s: pieces %d and %zu have the same text", f->path, old, f->n);
    if (piece.type == PIECE_UNKNOWN && f->unk_id >= 0)
        return fail(err, ERR_FORMAT, "%s: pieces %d and %zu are both the unknown piece", f->path, f->unk_id, f->n);
    if (piece.type == PIECE_UNKNOWN)
        f->unk_id = (int32_t)f->n;
    if (f->n == f->cap) {
        f->cap = f->cap * 2 + 1024;
        f->pieces = xrealloc(f->pieces, f->cap, sizeof *f->pieces);
    }
    f->pieces[f->n++] = piece;
    return OK;
}

static enum status read_piece(struct tokenizer *t, struct sentencepiece_model *f, struct str message,
                              struct error *err) {
    struct piece piece = {0, PIECE_NORMAL};
    struct str text = STR("");
    struct protobuf_field field;
    for (bool more;;) {
        TRY(protobuf_next(&message, &field, &more, f->path, err));
        if (!more)
            break;
        if (field.number == 1 && field.wire == PROTOBUF_BYTES)
            text = field.bytes;
        else if (field.number == 2 && field.wire == PROTOBUF_FIXED32)
            piece.score = protobuf_float(&field);
        else if (field.number == 3 && field.wire == PROTOBUF_VARINT)
            piece.type = field.value >= PIECE_NORMAL && field.value <= PIECE_BYTE ? (enum piece_type)field.value : 0;
    }
    return sentencepiece_add(t, f, text, piece, err);
}

static enum status read_trainer(struct sentencepiece_model *f, struct str message, struct error *err) {
    struct protobuf_field field;
    for (bool more;;) {
        TRY(protobuf_next(&message, &field, &more, f->path, err));
        if (!more)
            return OK;
        switch (field.number) {
        case 3: f->model_type = field.value; break;
        case 24: f->suffix_spaces = field.value; break;
        case 35: f->byte_fallback = field.value; break;
        case 45: f->names[SPECIAL_UNK] = field.bytes; break;
        case 46: f->names[SPECIAL_BOS] = field.bytes; break;
        case 47: f->names[SPECIAL_EOS] = field.bytes; break;
        case 48: f->names[SPECIAL_PAD] = field.bytes; break;
        default: break;
        }
    }
}

static enum status read_normalizer(struct sentencepiece_model *f, struct str message, struct error *err) {
    struct protobuf_field field;
    for (bool more;;) {
        TRY(protobuf_next(&message, &field, &more, f->path, err));
        if (!more)
            return OK;
        switch (field.number) {
        case 2: f->charsmap = field.bytes; break;
        case 3: f->add_dummy_prefix = field.value; break;
        case 4: f->remove_extra_whitespaces = field.value; break;
        case 5: f->escape_whitespaces = field.value; break;
        default: break;
        }
    }
}

static enum status read_message(struct tokenizer *t, struct sentencepiece_model *f, struct str message,
                                struct error *err) {
    struct protobuf_field field;
    for (bool more;;) {
        TRY(protobuf_next(&message, &field, &more, f->path, err));
        if (!more)
            break;
        if (field.wire != PROTOBUF_BYTES)
            continue;
        if (field.number == 1)
            TRY(read_piece(t, f, field.bytes, err));
        else if (field.number == 2)
            TRY(read_trainer(f, field.bytes, err));
        else if (field.number == 3)
            TRY(read_normalizer(f, field.bytes, err));
    }
    return OK;
}

static bool may_be_made(const struct piece *p) { return p->type == PIECE_NORMAL || p->type == PIECE_USER_DEFINED; }

static void build_fixed(struct tokenizer *t, const struct sentencepiece_model *f) {
    struct trie_key *keys = xcalloc(f->n, sizeof *keys);
    size_t n = 0;
    for (size_t id = 0; id < f->n; id++)
        if (f->pieces[id].type == PIECE_USER_DEFINED)
            keys[n++] = (struct trie_key){vocab_text(&t->vocab, (int32_t)id), (int32_t)id};
    byte_trie_build(&t->fixed, keys, n);
    free(keys);
}

static enum status take_bytes(struct tokenizer *t, const struct sentencepiece_model *f, int32_t byte_id[static 256],
                              struct error *err) {
    vocab_find_bytes(&t->vocab, byte_id);
    for (int b = 0; f->byte_fallback && b < 256; b++)
        if (byte_id[b] < 0)
            return fail(err, ERR_FORMAT, "%s: byte_fallback is on, and the piece <0x%02X> is missing", f->path, b);
    return OK;
}

/* Scores, best first. */
static int compare_scores(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Pieces of equal score have equal rank: then the place in the text decides. */
static void rank_pieces(struct tokenizer *t, const struct sentencepiece_model *f) {
    float *scores = xcalloc(f->n, sizeof *scores);
    size_t n = 0;
    for (size_t id = 0; id < f->n; id++)
        if (may_be_made(&f->pieces[id]))
            scores[n++] = f->pieces[id].score;
    qsort(scores, n, sizeof *scores, compare_scores);
    t->bpe.rank_of = xcalloc(f->n, sizeof *t->bpe.rank_of);
    for (size_t id = 0; id < f->n; id++) {
        const float *at = may_be_made(&f->pieces[id])
                              ? bsearch(&f->pieces[id].score, scores, n, sizeof *scores, compare_scores)
                              : NULL;
        while (at > scores && at[-1] == *at)
            at--;
        t->bpe.rank_of[id] = at ? (int32_t)(at - scores) : INT32_MAX;
    }
    free(scores);
}

static enum status build_bpe(struct tokenizer *t, const struct sentencepiece_model *f, struct error *err) {
    t->kind = MODEL_BPE;
    t->bpe = (struct bpe){.vocab = &t->vocab,
                          .by_text = true,
                          .fixed = &t->fixed,
                          .byte_fallback = f->byte_fallback,
                          .unk_id = f->unk_id};
    TRY(take_bytes(t, f, t->bpe.byte_id, err));
    rank_pieces(t, f);
    t->splits_at_marks = bpe_keeps_marks_apart(&t->bpe);
    return OK;
}

static enum status build_unigram(struct tokenizer *t, const struct sentencepiece_model *f, struct error *err) {
    struct unigram *u = &t->unigram;
    t->kind = MODEL_UNIGRAM;
    *u = (struct unigram){.vocab = &t->vocab,
                          .unk_id = f->unk_id,
                          .fuse_unk = true,
                          .byte_fallback = f->byte_fallback,
                          .single_floats = true};
    TRY(take_bytes(t, f, u->byte_id, err));
    float lowest = INFINITY;
    for (size_t id = 0; id < f->n; id++)
        if (f->pieces[id].type == PIECE_NORMAL)
            lowest = MIN(lowest, f->pieces[id].score);
    if (isinf(lowest))
        return fail(err, ERR_FORMAT, "%s: the model has no piece of type NORMAL", f->path);
    u->unk_score = lowest - 10.0f;
    u->scores = xcalloc(f->n, sizeof *u->scores);
    struct trie_key *keys = xcalloc(f->n, sizeof *keys);
    size_t n = 0;
    for (size_t id = 0; id < f->n; id++) {
        struct str text = vocab_text(&t->vocab, (int32_t)id);
        bool fixed = f->pieces[id].type ==
                     PIECE_USER_DEFINED; // scored by its length, above its parts (measured: sentencepiece 0.2.3)
        u->scores[id] = fixed ? 0.1 * (double)(text.len - 1) : f->pieces[id].score;
        if (may_be_made(&f->pieces[id]))
            keys[n++] = (struct trie_key){text, (int32_t)id};
    }
    byte_trie_build(&u->pieces, keys, n);
    free(keys);
    return OK;
}

static enum status build_rules(struct tokenizer *t, const struct sentencepiece_model *f, struct error *err) {
    struct sentencepiece_rules *rules = xcalloc(1, sizeof *rules);
    *rules = (struct sentencepiece_rules){.fixed = &t->fixed,
                                          .add_dummy_prefix = f->add_dummy_prefix,
                                          .remove_extra_whitespaces = f->remove_extra_whitespaces,
                                          .escape_whitespaces = f->escape_whitespaces,
                                          .treat_whitespace_as_suffix = f->suffix_spaces};
    normalizer_take_step(&t->normalizer, (struct normalizer_step){.kind = NORMALIZE_SENTENCEPIECE, .rules = rules});
    return f->charsmap.len ? charsmap_read(f->charsmap, f->path, &rules->charsmap, err) : OK;
}

/* U+2581 to spaces, bytes to characters, then one space in front goes where encoding puts one there, or leaves none. */
static void build_decoder(struct tokenizer *t, const struct sentencepiece_model *f) {
    struct decoder_stage spaces = {.kind = DECODE_REPLACE, .text = xstrdup(" "), .text_len = 1};
    pattern_of_literal(STR("\xE2\x96\x81"), &spaces.pattern);
    decoder_take_stage(&t->decoder, spaces);
    decoder_take_stage(&t->decoder, (struct decoder_stage){.kind = DECODE_BYTE_FALLBACK});
    decoder_take_stage(&t->decoder, (struct decoder_stage){.kind = DECODE_FUSE});
    if (f->add_dummy_prefix || f->remove_extra_whitespaces)
        decoder_take_stage(&t->decoder, (struct decoder_stage){.kind = DECODE_STRIP, .mark = ' ', .start = 1});
}

static enum status add_special(struct tokenizer *t, const struct sentencepiece_model *f, struct error *err) {
    for (size_t id = 0; id < f->n; id++)
        if (f->pieces[id].type == PIECE_CONTROL || f->pieces[id].type == PIECE_UNKNOWN)
            TRY(tokenizer_add_token(t, vocab_text(&t->vocab, (int32_t)id), (int64_t)id,
                                    (struct added_token){.special = true}, f->path, err));
    for (int i = 0; i < N_SPECIAL_NAMES; i++)
        if (vocab_find(&t->vocab, f->names[i]) >= 0) {
            t->special_text[i] = xcalloc(f->names[i].len + 1, 1);
            memcpy(t->special_text[i], f->names[i].ptr, f->names[i].len);
        }
    int32_t bos = vocab_find(&t->vocab, f->names[SPECIAL_BOS]);
    if (f->model_type != TRAINER_BPE || bos < 0 || f->pieces[bos].type != PIECE_CONTROL)
        return OK;
    struct token_ids items = {0};
    token_ids_push(&items, bos);
    token_ids_push(&items, TEMPLATE_BODY);
    postprocessor_take_template(&t->post, items);
    return OK;
}

enum status sentencepiece_build(struct tokenizer *t, const struct sentencepiece_model *f, struct error *err) {
    if (f->n == 0)
        return fail(err, ERR_FORMAT, "%s: the model has no pieces", f->path);
    if (f->unk_id < 0)
        return fail(err, ERR_FORMAT, "%s: the model has no piece of type UNKNOWN", f->path);
    build_fixed(t, f);
    if (f->model_type == TRAINER_BPE)
        TRY(build_bpe(t, f, err));
    else if (f->model_type == TRAINER_UNIGRAM)
        TRY(build_unigram(t, f, err));
    else
        return fail(err, ERR_UNSUPPORTED, "%s: the model type %llu is not supported, only Unigram (1) and BPE (2) are",
                    f->path, (unsigned long long)f->model_type);
    TRY(build_rules(t, f, err));
    build_decoder(t, f);
    return add_special(t, f, err);
}

enum status tokenizer_read_sentencepiece(struct tokenizer *t, const char *path, struct error *err) {
    struct file_map map;
    TRY(file_map_open(&map, path, FILE_MAX_BYTES, err));
    struct sentencepiece_model f = {.path = path,
                                    .unk_id = -1,
                                    .model_type = TRAINER_UNIGRAM,
                                    .names = {STR("<s>"), STR("</s>"), STR("<unk>"), STR("<pad>")},
                                    .add_dummy_prefix = true,
                                    .remove_extra_whitespaces = true,
                                    .escape_whitespaces = true};
    enum status st = read_message(t, &f, (struct str){map.bytes, map.n_bytes}, err);
    if (st == OK)
        st = sentencepiece_build(t, &f, err);
    if (st == OK && file_map_damaged(&map))
        st = fail(err, ERR_IO, "%s: the file became shorter while it was read", path);
    free(f.pieces);
    file_map_close(&map);
    return st;
}
