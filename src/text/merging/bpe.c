/* bpe.c - see bpe.h. Here a word becomes symbols, and joined symbols become ids. */
#include "text/merging/bpe.h"

#include "text/merging/bpe_merge.h"
#include "text/regex/unicode.h"
#include "text/stages/byte_level.h"

void bpe_release(struct bpe *b) {
    free(b->pairs);
    free(b->rank_of);
}

void bpe_memory_release(struct bpe_memory *m) {
    budget_free(m->budget, m->cells, m->cap * sizeof *m->cells);
    budget_free(m->budget, m->heap, m->heap_cap * sizeof *m->heap);
    buf_release(&m->text);
    *m = (struct bpe_memory){.budget = m->budget, .text = m->text};
}

/* Where symbols are put one after another. Symbols without a token wait, because the next one may be fused with them;
 * as in Hugging Face's library, byte tokens pass them by. */
struct symbol_row {
    struct bpe_memory *m;
    size_t n;
    bool unk_waits, unk_is_lost, is_full;
};

static void put(struct symbol_row *r, int32_t id) {
    if (r->n == r->m->cap && !bpe_cells_reserve(r->m, r->n + 1))
        r->is_full = true;
    else
        r->m->cells[r->n++] = id;
}

static void put_waiting_unk(const struct bpe *b, struct symbol_row *r) {
    if (r->unk_waits)
        put(r, b->unk_id);
    r->unk_waits = false;
}

static void put_known(const struct bpe *b, struct symbol_row *r, int32_t id) {
    put_waiting_unk(b, r);
    put(r, id);
}

static void put_unknown(const struct bpe *b, struct symbol_row *r) {
    r->unk_is_lost |= b->unk_id == BPE_LOST_UNK;
    if (b->unk_id < 0 || (r->unk_waits && b->fuse_unk))
        return;
    put_waiting_unk(b, r);
    r->unk_waits = true;
}

/* The tokens <0xNN> of all bytes of text, if all exist. */
static bool put_bytes(const struct bpe *b, struct symbol_row *r, struct str text) {
    for (size_t i = 0; i < text.len; i++)
        if (b->byte_id[(unsigned char)text.ptr[i]] < 0)
            return false;
    for (size_t i = 0; i < text.len; i++)
        put(r, b->byte_id[(unsigned char)text.ptr[i]]);
    return true;
}

static enum status no_room(const struct bpe_memory *m, struct error *err) {
    return fail(err, m->budget->failed, "a word of the text takes more memory than there is");
}

static enum status end_row(const struct bpe *b, struct symbol_row *r, size_t *n, struct error *err) {
    put_waiting_unk(b, r);
    *n = r->n;
    if (r->is_full)
        return no_room(r->m, err);
    return r->unk_is_lost
               ? fail(err, ERR_FORMAT, "a character of the text is not in the vocabulary, nor is the unknown token")
               : OK;
}

static enum status symbols_of_bytes(const struct bpe *b, struct bpe_memory *m, struct str word, size_t *n,
                                    struct error *err) {
    if (!bpe_cells_reserve(m, word.len))
        return no_room(m, err);
    struct symbol_row row = {.m = m};
    for (size_t i = 0; i < word.len; i++) {
        int32_t id = b->byte_id[(unsigned char)word.ptr[i]];
        if (id >= 0)
            put_known(b, &row, id);
        else
            put_unknown(b, &row);
    }
    return end_row(b, &row, n, err);
}

/* A character with the marks that the vocabulary writes at the inside and the end of words. */
static struct str marked(const struct bpe *b, struct bpe_memory *m, struct str c, bool first, bool last) {
    if ((first || b->prefix.len == 0) && (!last || b->suffix.len == 0))
        return c;
    buf_clear(&m->text);
    if (!first)
        buf_str(&m->text, b->prefix);
    buf_str(&m->text, c);
    if (last)
        buf_str(&m->text, b->suffix);
    return buf_view(&m->text);
}

static enum status symbols_of_characters(const struct bpe *b, struct bpe_memory *m, struct str word, size_t *n_symbols,
                                         struct error *err) {
    struct symbol_row row = {.m = m};
    for (size_t i = 0, n; i < word.len && !row.is_full; i += n) {
        n = (size_t)utf8_length(word.ptr[i]);
        struct str text = marked(b, m, (struct str){word.ptr + i, n}, i == 0, i + n == word.len);
        int32_t id = vocab_find(b->vocab, text);
        if (id >= 0)
            put_known(b, &row, id);
        else if (!b->byte_fallback || !put_bytes(b, &row, text))
            put_unknown(b, &row);
    }
    return end_row(b, &row, n_symbols, err);
}

/* by_text: every character is a symbol whether it is a token or not; a user-defined piece is one that stays. */
static bool symbols_of_text(const struct bpe *b, struct bpe_memory *m, struct str word) {
    if (!bpe_cells_reserve(m, word.len))
        return false;
    for (size_t i = 0, len; i < word.len; i += len) {
        int32_t fixed = b->fixed ? byte_trie_longest(b->fixed, 0, (struct str){word.ptr + i, word.len - i}, &len) : -1;
        if (fixed < 0)
            len = b->by_bytes ? 1 : (size_t)utf8_length(word.ptr[i]);
        m->cells[i] = fixed + 1;
        bpe_cells_span(m->cells, i, i + len);
    }
    return true;
}

/* by_text: what a symbol is after all joining; -1 for what is no token. */
static int32_t id_of_symbol(const struct bpe *b, int32_t cell, struct str text) {
    if (cell > 0)
        return cell - 1;
    int32_t id = vocab_find(b->vocab, text);
    return id >= 0 && b->rank_of && b->rank_of[id] == INT32_MAX ? -1 : id;
}

/* by_text: symbols to ids. A run of unknown ones is one unk. */
static enum status emit_by_text(const struct bpe *b, const struct bpe_memory *m, struct str word, struct token_ids *out,
                                struct error *err) {
    size_t before = out->n;
    bool after_unk = false;
    for (size_t at = 0, end; at < word.len; at = end) {
        end = bpe_cells_end(m->cells, word.len, at);
        struct str text = {word.ptr + at, end - at};
        int32_t id = id_of_symbol(b, m->cells[at], text);
        if (id >= 0) {
            token_ids_push(out, id);
        } else if (b->byte_fallback) {
            for (size_t k = 0; k < text.len; k++)
                token_ids_push(out, b->byte_id[(unsigned char)text.ptr[k]]);
        } else if (b->unk_id < 0) {
            out->n = before;
            return fail(err, ERR_FORMAT, "a character of the text is not in the vocabulary, nor is the unknown token");
        } else if (!after_unk) {
            token_ids_push(out, b->unk_id);
        }
        after_unk = id < 0 && !b->byte_fallback;
    }
    return OK;
}

static enum status encode_by_text(const struct bpe *b, struct bpe_memory *m, struct str word, struct token_ids *out,
                                  struct error *err) {
    if (!symbols_of_text(b, m, word) || !bpe_join(b, m, word.ptr, word.len))
        return no_room(m, err);
    return emit_by_text(b, m, word, out, err);
}

static enum status encode_by_pairs(const struct bpe *b, struct bpe_memory *m, struct str word, struct token_ids *out,
                                   struct error *err) {
    size_t n = 0;
    TRY(b->by_bytes ? symbols_of_bytes(b, m, word, &n, err) : symbols_of_characters(b, m, word, &n, err));
    if (!bpe_join(b, m, word.ptr, n))
        return no_room(m, err);
    for (size_t at = 0; at < n; at = bpe_cells_end(m->cells, n, at))
        token_ids_push(out, m->cells[at]);
    return OK;
}

/* The token that is the whole word; -1 if there is none. */
static int32_t find_whole(const struct bpe *b, struct bpe_memory *m, struct str word) {
    if (!b->by_bytes || b->by_text)
        return vocab_find(b->vocab, word);
    buf_clear(&m->text);
    byte_level_append(&m->text, word);
    return vocab_find(b->vocab, buf_view(&m->text));
}

enum status bpe_encode(const struct bpe *b, struct bpe_memory *m, struct str word, struct token_ids *out,
                       struct error *err) {
    int32_t whole = b->whole_word_first ? find_whole(b, m, word) : -1;
    if (whole < 0)
        return b->by_text ? encode_by_text(b, m, word, out, err) : encode_by_pairs(b, m, word, out, err);
    token_ids_push(out, whole);
    return OK;
}

/* Whether U+2581 follows another character somewhere in text. */
static bool mark_inside(struct str text) {
    size_t at = 0;
    while (str_starts((struct str){text.ptr + at, text.len - at}, STR("\xE2\x96\x81")))
        at += 3;
    return memmem(text.ptr + at, text.len - at, "\xE2\x96\x81", 3);
}

bool bpe_keeps_marks_apart(const struct bpe *b) {
    if (!b->vocab || b->by_bytes || b->whole_word_first || b->prefix.len || b->suffix.len ||
        vocab_find(b->vocab, STR("\xE2\x96\x81")) < 0)
        return false;
    for (uint64_t i = 0; b->pairs && i <= b->mask; i++)
        if (b->pairs[i].key && mark_inside(vocab_text(b->vocab, b->pairs[i].id)))
            return false;
    for (int32_t id = 0; b->by_text && id < b->vocab->n; id++)
        if (b->rank_of[id] != INT32_MAX && mark_inside(vocab_text(b->vocab, id)))
            return false;
    return true;
}
