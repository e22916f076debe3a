/* grammar_fuzz.h - what the fuzz targets of grammars share: a text in one of the languages, refused with a sentence or
 * followed. */
#pragma once

#include "grammar/matcher.h"

/* A small vocabulary: every byte, and tokens that cross borders. */
static struct token_trie *fuzz_trie(void) {
    static struct token_trie *trie;
    static char bytes[256];
    static const char *const more[] = {"ab", "a)",   "\",",      "\": \"",   "}}", "12",
                                       ".5", "\n\t", "\xC3\xA9", "\xE2\x82", "<a>"};
    struct token_text tokens[256 + ARRAY_LEN(more) + 1];
    struct error err;
    if (trie)
        return trie;
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[b] = (struct token_text){{&bytes[b], 1}, TOKEN_TEXT};
    }
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        tokens[256 + i] = (struct token_text){str_of(more[i]), TOKEN_TEXT};
    tokens[256 + ARRAY_LEN(more)] = (struct token_text){STR("<a>"), TOKEN_SPECIAL};
    int32_t end = 256 + ARRAY_LEN(more);
    BUG_IF(token_trie_open(tokens, end + 1, &end, 1, &trie, &err) != OK);
    return trie;
}

/* Takes what the grammar allows of the bytes; the mask must say of each what accepting says. */
static void fuzz_follow(struct matcher *m, const uint8_t *data, size_t n_bytes) {
    uint32_t mask[16];
    for (size_t i = 0; i < n_bytes && i < 200; i++) {
        matcher_mask(m, mask);
        bool allowed = mask[data[i] / 32] >> (data[i] % 32) & 1, some = false;
        for (size_t w = 0; w < ARRAY_LEN(mask); w++)
            some |= w < (size_t)token_trie_n_words(fuzz_trie()) && mask[w];
        if (matcher_is_dead(m, NULL))
            return;
        BUG_IF(!some); // there is always a way on, or the end
        bool takes = matcher_accept(m, data[i]);
        if (matcher_is_dead(m, NULL))
            return;
        BUG_IF(takes != allowed);
        if (takes && data[i] % 5 == 0)
            matcher_back(m, 1);
    }
}

/* Compiles a source, and follows it with the bytes that it was made of. */
static void fuzz_source(const struct grammar_source *source, const uint8_t *data, size_t n_bytes) {
    struct error err = {0};
    struct grammar_limits limits = {.nodes = 100000, .memory_bytes = 64 << 20, .compile_us = 300000};
    struct grammar *grammar;
    struct matcher *matcher;
    if (grammar_compile(source, &limits, &grammar, &err) != OK) {
        BUG_IF(err.text[0] == '\0' || !utf8_valid(str_of(err.text)));
        return;
    }
    if (matcher_open(grammar, fuzz_trie(), &matcher, &err) == OK) {
        fuzz_follow(matcher, data, n_bytes);
        matcher_free(matcher);
    }
    grammar_release(grammar);
}

static inline int fuzz_grammar(enum grammar_kind kind, const uint8_t *data, size_t n_bytes) {
    fuzz_source(&(struct grammar_source){.kind = kind, .text = {(const char *)data, n_bytes}}, data, n_bytes);
    return 0;
}
