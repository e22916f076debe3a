/* bpe.c - see bpe.h. Here a word becomes symbols, and joined symbols become ids. */
#include "text/bpe.h"

#include "text/bpe_merge.h"
#include "text/byte_level.h"
#include "text/unicode.h"

void bpe_release(struct bpe *b) {
    free(b->pairs);
    free(b->rank_of);
}

void bpe_memory_release(struct bpe_memory *m) {
    free(m->symbols);
    free(m->heap);
    buf_release(&m->text);
}

/* Where symbols are put one after another. Symbols without a token wait in `unk`, because the next one may be
 * fused with them; as in Hugging Face's library, byte tokens pass them by. */
struct symbol_row {
    struct bpe_symbol *symbols;
    size_t n;
    struct bpe_symbol unk;
    bool unk_waits, unk_is_lost;
};

static void put(struct symbol_row *r, int32_t id, size_t begin, size_t end) {
    r->symbols[r->n++] = (struct bpe_symbol){.begin = (uint32_t)begin, .end = (uint32_t)end, .id = id};
}

static void put_waiting_unk(struct symbol_row *r) {
    if (r->unk_waits)
        r->symbols[r->n++] = r->unk;
    r->unk_waits = false;
}

static void put_known(struct symbol_row *r, int32_t id, size_t begin, size_t end) {
    put_waiting_unk(r);
    put(r, id, begin, end);
}

static void put_unknown(const struct bpe *b, struct symbol_row *r, size_t begin, size_t end) {
    r->unk_is_lost |= b->unk_id == BPE_LOST_UNK;
    if (b->unk_id < 0)
        return;
    if (r->unk_waits && b->fuse_unk) {
        r->unk.end = (uint32_t)end;
        return;
    }
    put_waiting_unk(r);
    r->unk = (struct bpe_symbol){.begin = (uint32_t)begin, .end = (uint32_t)end, .id = b->unk_id};
    r->unk_waits = true;
}

/* The tokens <0xNN> of all bytes of text, if all exist. */
static bool put_bytes(const struct bpe *b, struct symbol_row *r, struct str text, size_t begin, size_t end) {
    for (size_t i = 0; i < text.len; i++)
        if (b->byte_id[(unsigned char)text.ptr[i]] < 0)
            return false;
    for (size_t i = 0; i < text.len; i++)
        put(r, b->byte_id[(unsigned char)text.ptr[i]], begin, end);
    return true;
}

/* Fill m->symbols; false when a character has no token and unk is lost. */
static bool symbols_of_bytes(const struct bpe *b, struct bpe_memory *m, struct str word, size_t *n) {
    bpe_memory_reserve(m, word.len);
    struct symbol_row row = {.symbols = m->symbols};
    for (size_t i = 0; i < word.len; i++) {
        int32_t id = b->byte_id[(unsigned char)word.ptr[i]];
        if (id >= 0)
            put_known(&row, id, i, i + 1);
        else
            put_unknown(b, &row, i, i + 1);
    }
    put_waiting_unk(&row);
    *n = row.n;
    return !row.unk_is_lost;
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

static bool symbols_of_characters(const struct bpe *b, struct bpe_memory *m, struct str word, size_t *n_symbols) {
    bpe_memory_reserve(m, word.len + b->prefix.len * word.len + b->suffix.len);
    struct symbol_row row = {.symbols = m->symbols};
    for (size_t i = 0, n; i < word.len; i += n) {
        n = (size_t)utf8_length(word.ptr[i]);
        struct str text = marked(b, m, (struct str){word.ptr + i, n}, i == 0, i + n == word.len);
        int32_t id = vocab_find(b->vocab, text);
        if (id >= 0)
            put_known(&row, id, i, i + n);
        else if (!b->byte_fallback || !put_bytes(b, &row, text, i, i + n))
            put_unknown(b, &row, i, i + n);
    }
    put_waiting_unk(&row);
    *n_symbols = row.n;
    return !row.unk_is_lost;
}

/* by_text: every character is a symbol whether it is a token or not; a user-defined piece is one that stays. */
static size_t symbols_of_text(const struct bpe *b, struct bpe_memory *m, struct str word) {
    bpe_memory_reserve(m, word.len);
    size_t n = 0;
    for (size_t i = 0, len; i < word.len; i += len) {
        int32_t fixed = b->fixed ? byte_trie_longest(b->fixed, 0, (struct str){word.ptr + i, word.len - i}, &len) : -1;
        if (fixed < 0)
            len = b->by_bytes ? 1 : (size_t)utf8_length(word.ptr[i]);
        m->symbols[n++] = (struct bpe_symbol){.begin = (uint32_t)i, .end = (uint32_t)(i + len), .id = fixed};
    }
    return n;
}

/* by_text: what a symbol is after all joining; -1 for what is no token. */
static int32_t id_of_symbol(const struct bpe *b, const struct bpe_symbol *s, struct str text) {
    if (s->id >= 0)
        return s->id;
    int32_t id = vocab_find(b->vocab, text);
    return id >= 0 && b->rank_of && b->rank_of[id] == INT32_MAX ? -1 : id;
}

/* by_text: symbols to ids. A run of unknown ones is one unk. */
static bool emit_by_text(const struct bpe *b, const struct bpe_memory *m, struct str word, size_t n, struct token_ids *out) {
    size_t before = out->n;
    bool after_unk = false;
    for (size_t i = 0; i < n; i++) {
        struct str text = {word.ptr + m->symbols[i].begin, m->symbols[i].end - m->symbols[i].begin};
        int32_t id = id_of_symbol(b, &m->symbols[i], text);
        if (id >= 0) {
            token_ids_push(out, id);
        } else if (b->byte_fallback) {
            for (size_t k = 0; k < text.len; k++)
                token_ids_push(out, b->byte_id[(unsigned char)text.ptr[k]]);
        } else if (b->unk_id < 0) {
            out->n = before;
            return false;
        } else if (!after_unk) {
            token_ids_push(out, b->unk_id);
        }
        after_unk = id < 0 && !b->byte_fallback;
    }
    return true;
}

/* The token that is the whole word; -1 if there is none. */
static int32_t find_whole(const struct bpe *b, struct bpe_memory *m, struct str word) {
    if (!b->by_bytes || b->by_text)
        return vocab_find(b->vocab, word);
    buf_clear(&m->text);
    byte_level_append(&m->text, word);
    return vocab_find(b->vocab, buf_view(&m->text));
}

bool bpe_encode(const struct bpe *b, struct bpe_memory *m, struct str word, struct token_ids *out) {
    int32_t whole = b->whole_word_first ? find_whole(b, m, word) : -1;
    if (whole >= 0) {
        token_ids_push(out, whole);
        return true;
    }
    size_t n;
    if (b->by_text) {
        n = bpe_join(b, m, word.ptr, symbols_of_text(b, m, word));
        return emit_by_text(b, m, word, n, out);
    }
    if (!(b->by_bytes ? symbols_of_bytes(b, m, word, &n) : symbols_of_characters(b, m, word, &n)))
        return false;
    n = bpe_join(b, m, word.ptr, n);
    token_ids_reserve(out, n);
    for (size_t i = 0; i < n; i++)
        out->ids[out->n++] = m->symbols[i].id;
    return true;
}

/* Whether U+2581 follows another character somewhere in text. */
static bool mark_inside(struct str text) {
    size_t at = 0;
    while (str_starts((struct str){text.ptr + at, text.len - at}, STR("\xE2\x96\x81")))
        at += 3;
    return memmem(text.ptr + at, text.len - at, "\xE2\x96\x81", 3);
}

bool bpe_keeps_marks_apart(const struct bpe *b) {
    if (!b->vocab || b->by_bytes || b->whole_word_first || b->prefix.len || b->suffix.len || vocab_find(b->vocab, STR("\xE2\x96\x81")) < 0)
        return false;
    for (uint64_t i = 0; b->pairs && i <= b->mask; i++)
        if (b->pairs[i].key && mark_inside(vocab_text(b->vocab, b->pairs[i].id)))
            return false;
    for (int32_t id = 0; b->by_text && id < b->vocab->n; id++)
        if (b->rank_of[id] != INT32_MAX && mark_inside(vocab_text(b->vocab, id)))
            return false;
    return true;
}
