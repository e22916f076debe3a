/* encoder.c - running a tokenizer over text; see tokenizer.h for the stations. */
#include "text/tokenizer_parts.h"

#include "text/merging/word_cache.h"
#include "text/regex/unicode.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    TEXT_MAX_BYTES = 1 << 30, // positions are 32 bits wide
    // What a text may take at most, whatever a file does with it: 14 bytes a byte for a long word, 40 for the worst of
    // honest texts (one word of spaces, each of which becomes three bytes), some hundred for what NFKC makes of
    // ligatures.
    GROWTH = 128,
    GROWTH_BASE = 4 << 20,
    KEPT_BYTES = 1 << 20, // of working memory, from one text to the next
};

struct encoder {
    const struct tokenizer *tok;
    struct budget budget;     // of all that follows but words
    size_t most_bytes;        // encoder_set_budget
    struct word_entry *words; // [WORD_CACHE_ENTRIES], in words_memory at the start of a cache line
    void *words_memory;
    struct bpe_memory bpe;
    struct unigram_memory unigram;
    struct normalizer_memory normalizer;
    struct pretokenizer_memory pretokenizer;
    struct regex_memory *rm;
    struct buf sound; // the text with its ill-formed bytes replaced
    struct token_ids body, spare;
};

struct encoder *encoder_open(const struct tokenizer *tok) {
    struct encoder *e = xcalloc(1, sizeof *e);
    e->tok = tok;
    e->most_bytes = SIZE_MAX;
    e->bpe = (struct bpe_memory){.budget = &e->budget, .text.budget = &e->budget};
    e->unigram.budget = e->normalizer.budget = e->pretokenizer.budget = &e->budget;
    e->sound.budget = e->body.budget = e->spare.budget = &e->budget;
    e->words_memory = xcalloc(WORD_CACHE_ENTRIES + 1, sizeof *e->words); // untouched pages cost nothing
    e->words = (struct word_entry *)(((uintptr_t)e->words_memory + 63) & ~(uintptr_t)63);
    e->rm = regex_memory_open();
    return e;
}

void encoder_set_budget(struct encoder *e, size_t n_bytes) { e->most_bytes = n_bytes; }

static void release_memory(struct encoder *e) {
    bpe_memory_release(&e->bpe);
    unigram_memory_release(&e->unigram);
    normalizer_memory_release(&e->normalizer);
    pretokenizer_memory_release(&e->pretokenizer);
    buf_release(&e->sound);
    token_ids_release(&e->body);
    token_ids_release(&e->spare);
    BUG_IF(e->budget.used != 0);
}

void encoder_free(struct encoder *e) {
    if (!e)
        return;
    release_memory(e);
    free(e->words_memory);
    regex_memory_free(e->rm);
    free(e);
}

struct word_entry *word_cache_place(struct word_entry *table, struct str word) {
    return &table[XXH3_64bits(word.ptr, word.len) % WORD_CACHE_ENTRIES];
}

static enum status check(const struct encoder *e, struct error *err) {
    return budget_check(&e->budget, "tokenizing this text", err);
}

static enum status encode_by_model(struct encoder *e, struct str word, struct token_ids *out, struct error *err) {
    const struct tokenizer *t = e->tok;
    switch (t->kind) {
    case MODEL_BPE: return bpe_encode(&t->bpe, &e->bpe, word, out, err);
    case MODEL_UNIGRAM: return unigram_encode(&t->unigram, &e->unigram, word, out, err);
    case MODEL_WORDPIECE: return wordpiece_encode(&t->wordpiece, word, out, err);
    case MODEL_WORDLEVEL: break;
    }
    int32_t id = vocab_find(&t->vocab, word);
    if (id < 0)
        id = t->unk_id;
    if (id < 0)
        return fail(err, ERR_FORMAT, "a word of the text is not in the vocabulary, and there is no unknown token");
    token_ids_push(out, id);
    return OK;
}

/* One word that may be kept, from its place in the cache or into it. */
static enum status encode_kept_word(struct encoder *e, struct word_entry *entry, struct str word, struct error *err) {
    struct token_ids *out = &e->body;
    if (word_entry_holds(entry, word)) {
        if (!token_ids_reserve(out, WORD_CACHE_IDS))
            return check(e, err);
        memcpy(out->ids + out->n, entry->ids, sizeof entry->ids);
        out->n += entry->n_ids;
        return OK;
    }
    size_t before = out->n;
    TRY(encode_by_model(e, word, out, err));
    TRY(check(e, err)); // nothing that lost its end may be kept
    size_t n = out->n - before;
    if (n > WORD_CACHE_IDS)
        return OK;
    entry->len = (uint8_t)word.len;
    entry->n_ids = (uint8_t)n;
    memcpy(entry->text, word.ptr, word.len);
    if (n > 0) // a word may give nothing, before the list has memory
        memcpy(entry->ids, out->ids + before, n * sizeof *out->ids);
    return OK;
}

static enum status encode_word(void *arg, struct str word, struct error *err) {
    struct encoder *e = arg;
    if (word.len > WORD_CACHE_TEXT)
        return encode_by_model(e, word, &e->body, err);
    return encode_kept_word(e, word_cache_place(e->words, word), word, err);
}

/* The common case of a known pattern: words are found some ahead, so that their places in the cache, which is larger
 * than the processor's, are there when they are needed. */
static enum status encode_known_words(struct encoder *e, const struct word_rules *rules, struct str text,
                                      struct error *err) {
    enum { AHEAD = 16 };
    struct str words[AHEAD];
    struct word_entry *places[AHEAD];
    for (const char *at = text.ptr, *end = at + text.len; at < end;) {
        size_t n = 0;
        for (const char *stop; n < AHEAD && at < end; at = stop) {
            stop = word_scan(rules, at, end);
            words[n] = (struct str){at, (size_t)(stop - at)};
            places[n] = words[n].len > WORD_CACHE_TEXT ? NULL : word_cache_place(e->words, words[n]);
            if (places[n])
                __builtin_prefetch(places[n]);
            n++;
        }
        for (size_t i = 0; i < n; i++)
            TRY(places[i] ? encode_kept_word(e, places[i], words[i], err)
                          : encode_by_model(e, words[i], &e->body, err));
    }
    return OK;
}

/* Text that no pre-tokenizer cut, in words that begin with U+2581. */
static enum status encode_marked_words(struct encoder *e, struct str text, struct error *err) {
    static const char mark[] = "\xE2\x96\x81";
    const char *at = text.ptr, *end = at + text.len;
    while (at < end) {
        const char *inside = at;
        while (end - inside >= 3 && memcmp(inside, mark, 3) == 0)
            inside += 3;
        const char *next = memmem(inside, (size_t)(end - inside), mark, 3);
        next = next ? next : end;
        TRY(encode_word(e, (struct str){at, (size_t)(next - at)}, err));
        at = next;
    }
    return OK;
}

/* Normalised text without tokens in it. */
static enum status encode_plain(struct encoder *e, struct str text, bool at_start, struct error *err) {
    const struct tokenizer *t = e->tok;
    if (text.len == 0)
        return OK;
    const struct word_rules *rules = pretokenizer_word_rules(&t->pretokenizer);
    if (rules)
        return encode_known_words(e, rules, text, err);
    if (t->pretokenizer.n > 0)
        return pretokenizer_run(&t->pretokenizer, &e->pretokenizer, e->rm, text, at_start, encode_word, e, err);
    return t->splits_at_marks ? encode_marked_words(e, text, err) : encode_word(e, text, err);
}

/* Text between tokens that are not normalised. */
static enum status encode_fragment(struct encoder *e, struct str text, bool at_start, bool parse_special,
                                   struct error *err) {
    const struct tokenizer *t = e->tok;
    struct str normalised;
    TRY(normalizer_run(&t->normalizer, &e->normalizer, e->rm, text, &normalised, err));
    at_start = at_start && !e->normalizer.lost_start;
    struct added_walk walk = {.text = normalised};
    size_t begin, end;
    const struct added_token *token;
    while (added_tokens_next(&t->added, &t->added.normalized, parse_special, &walk, &begin, &end, &token)) {
        if (begin < end)
            TRY(encode_plain(e, (struct str){normalised.ptr + begin, end - begin}, at_start && begin == 0, err));
        if (token)
            token_ids_push(&e->body, token->id);
    }
    return OK;
}

static enum status encode_text(struct encoder *e, struct str text, bool parse_special, struct error *err) {
    const struct tokenizer *t = e->tok;
    struct added_walk walk = {.text = text};
    size_t begin, end;
    const struct added_token *token;
    while (added_tokens_next(&t->added, &t->added.raw, parse_special, &walk, &begin, &end, &token)) {
        if (begin < end)
            TRY(encode_fragment(e, (struct str){text.ptr + begin, end - begin}, begin == 0, parse_special, err));
        if (token)
            token_ids_push(&e->body, token->id);
    }
    return OK;
}

/* Into e->body. */
static enum status encode_whole(struct encoder *e, struct str text, int flags, struct error *err) {
    if (!utf8_valid(text)) {
        buf_clear(&e->sound);
        utf8_append_lossy(&e->sound, text, false);
        text = buf_view(&e->sound);
        TRY(check(e, err));
    }
    e->body.n = 0;
    TRY(encode_text(e, text, flags & ENCODE_PARSE_SPECIAL, err));
    postprocessor_run(&e->tok->post, flags & ENCODE_ADD_SPECIAL, &e->body, &e->spare);
    return check(e, err);
}

static enum status append_body(const struct encoder *e, struct token_ids *out, struct error *err) {
    if (!token_ids_reserve(out, e->body.n))
        return budget_check(out->budget, "the list of tokens", err);
    if (e->body.n)
        memcpy(out->ids + out->n, e->body.ids, e->body.n * sizeof *out->ids);
    out->n += e->body.n;
    return OK;
}

enum status tokenizer_encode(struct encoder *e, struct str text, int flags, struct token_ids *out, struct error *err) {
    if (text.len > TEXT_MAX_BYTES)
        return fail(err, ERR_LIMIT, "a text of %zu bytes is longer than %d", text.len, TEXT_MAX_BYTES);
    e->budget.limit = MIN(e->most_bytes, GROWTH_BASE + GROWTH * text.len);
    e->budget.failed = OK;
    regex_memory_begin(e->rm, text.len);
    enum status st = encode_whole(e, text, flags, err);
    if (st == OK)
        st = append_body(e, out, err);
    if (e->budget.used > KEPT_BYTES)
        release_memory(e);
    return st;
}
