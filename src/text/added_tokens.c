/* added_tokens.c - see added_tokens.h. */
#include "text/added_tokens.h"

#include "text/regex/unicode.h"

void added_tokens_release(struct added_tokens *a) {
    free(a->tokens);
    byte_trie_release(&a->raw);
    byte_trie_release(&a->normalized);
    *a = (struct added_tokens){0};
}

void added_tokens_append(struct added_tokens *a, struct added_token token) {
    if (a->n == a->cap) {
        a->cap = a->cap * 2 + 16;
        a->tokens = xrealloc(a->tokens, a->cap, sizeof *a->tokens);
    }
    a->tokens[a->n++] = token;
}

enum { KEYS_BASE = 4 << 20, KEYS_GROWTH = 128 }; // bytes that the texts of all tokens may take, as in encoder.c

static struct str token_text(const struct added_tokens *a, size_t i, const struct vocab *vocab,
                             const struct vocab *extra) {
    int32_t id = a->tokens[i].id;
    return vocab_has(vocab, id) ? vocab_text(vocab, id) : vocab_text(extra, id);
}

/* The texts of normalized tokens, normalised, one after another in texts; keys[i] gets token i's. */
static enum status normalise_keys(const struct added_tokens *a, const struct vocab *vocab, const struct vocab *extra,
                                  const struct normalizer *normalizer, struct buf *texts, size_t *ends,
                                  struct error *err) {
    struct normalizer_memory m = {.budget = texts->budget};
    struct regex_memory *rm = regex_memory_open();
    enum status st = OK;
    for (size_t i = 0; i < a->n && st == OK; i++) {
        struct str text = token_text(a, i, vocab, extra);
        regex_memory_begin(rm, text.len);
        if (a->tokens[i].normalized)
            st = normalizer_run(normalizer, &m, rm, text, &text, err);
        if (st == OK)
            buf_str(texts, text);
        if (st == OK)
            st = budget_check(texts->budget, "normalising the added tokens", err);
        ends[i] = texts->len;
    }
    regex_memory_free(rm);
    normalizer_memory_release(&m);
    return st;
}

static void build_trie(const struct added_tokens *a, bool normalized, const struct buf *texts, const size_t *ends,
                       struct byte_trie *out) {
    struct trie_key *keys = xcalloc(a->n + 1, sizeof *keys);
    size_t n = 0;
    for (size_t i = a->n; i-- > 0;) // of equal texts the first token counts, and the trie takes the greater value
        if (a->tokens[i].normalized == normalized) {
            size_t begin = i ? ends[i - 1] : 0;
            keys[n++] = (struct trie_key){{texts->ptr + begin, ends[i] - begin}, (int32_t)(a->n - 1 - i)};
        }
    byte_trie_build(out, keys, n);
    free(keys);
}

/* Special tokens first, otherwise in the order of the file. */
static void put_special_first(struct added_tokens *a) {
    struct added_token *sorted = xcalloc(a->n + 1, sizeof *sorted);
    size_t n = 0;
    for (int special = 1; special >= 0; special--)
        for (size_t i = 0; i < a->n; i++)
            if (a->tokens[i].special == special)
                sorted[n++] = a->tokens[i];
    free(a->tokens);
    a->tokens = sorted;
    a->cap = a->n + 1;
}

enum status added_tokens_build(struct added_tokens *a, const struct vocab *vocab, const struct vocab *extra,
                               const struct normalizer *normalizer, struct error *err) {
    struct budget budget = {.limit = KEYS_BASE};
    for (size_t i = 0; i < a->n; i++)
        budget.limit += KEYS_GROWTH * token_text(a, i, vocab, extra).len;
    struct buf texts = {.budget = &budget};
    buf_reserve(&texts, 1);
    put_special_first(a);
    size_t *ends = xcalloc(a->n + 1, sizeof *ends);
    enum status st = normalise_keys(a, vocab, extra, normalizer, &texts, ends, err);
    if (st == OK) {
        build_trie(a, false, &texts, ends, &a->raw);
        build_trie(a, true, &texts, ends, &a->normalized);
    }
    free(ends);
    buf_release(&texts);
    return st;
}

static bool word_before(struct str text, size_t at) {
    uint32_t cp;
    if (at == 0)
        return false;
    utf8_step(utf8_back(text.ptr + at), &cp);
    return char_is_word(cp);
}

static bool word_after(struct str text, size_t at) {
    uint32_t cp;
    if (at == text.len)
        return false;
    utf8_step(text.ptr + at, &cp);
    return char_is_word(cp);
}

static size_t before_spaces(struct str text, size_t at) {
    while (at > 0) {
        uint32_t cp;
        const char *last = utf8_back(text.ptr + at);
        utf8_step(last, &cp);
        if (!char_is_space(cp))
            break;
        at = (size_t)(last - text.ptr);
    }
    return at;
}

static size_t after_spaces(struct str text, size_t at) {
    uint32_t cp;
    for (size_t n; at < text.len; at += n) {
        n = (size_t)utf8_step(text.ptr + at, &cp);
        if (!char_is_space(cp))
            break;
    }
    return at;
}

/* The leftmost longest key at or behind `at`; NULL when there is none. */
static const struct added_token *find(const struct added_tokens *a, const struct byte_trie *trie, struct str text,
                                      size_t at, size_t *begin, size_t *end) {
    for (; at < text.len; at++) {
        if (!trie->root[(unsigned char)text.ptr[at]])
            continue;
        size_t len;
        int32_t value = byte_trie_longest(trie, 0, (struct str){text.ptr + at, text.len - at}, &len);
        if (value < 0)
            continue;
        *begin = at;
        *end = at + len;
        return &a->tokens[a->n - 1 - (size_t)value];
    }
    return NULL;
}

bool added_tokens_next(const struct added_tokens *a, const struct byte_trie *trie, bool parse_special,
                       struct added_walk *w, size_t *begin, size_t *end, const struct added_token **token) {
    size_t first, last;
    while (w->at < w->text.len && (*token = find(a, trie, w->text, w->at, &first, &last))) {
        const struct added_token *t = *token;
        w->at = last; // also when it is passed over: what overlaps it is not found
        if (t->special && !parse_special)
            continue;
        if (t->single_word && (word_before(w->text, first) || word_after(w->text, last)))
            continue;
        if (t->lstrip)
            first = MAX(before_spaces(w->text, first), w->covered);
        if (t->rstrip)
            last = after_spaces(w->text, last);
        *begin = w->covered;
        *end = first;
        w->covered = last;
        if (first < last) // else the token before took all its spaces
            return true;
    }
    *token = NULL;
    *begin = w->covered;
    *end = w->text.len;
    bool rest = w->at != SIZE_MAX;
    w->at = SIZE_MAX;
    return rest;
}
