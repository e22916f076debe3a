/* letters.h - a small vocabulary for tests of grammars in the engine: tokens 0 and 2 stand for nothing, 1 ends an
 * answer, then come the letters a to z, then pairs of letters: ab, bc, cd ... */
#pragma once

#include "check.h"
#include "engine/constraint.h"

enum { LETTERS_EOS = 1, FIRST_LETTER = 3, FIRST_PAIR = FIRST_LETTER + 26 };

static inline struct str letter_token(int32_t token, char room[2]) {
    if (token < FIRST_LETTER)
        return token == LETTERS_EOS ? STR("<end>") : STR("");
    room[0] = (char)('a' + (token < FIRST_PAIR ? token - FIRST_LETTER : (token - FIRST_PAIR) % 25));
    room[1] = (char)(room[0] + 1);
    return (struct str){room, token < FIRST_PAIR ? 1 : 2};
}

static inline struct token_trie *letters_open(int n_vocab, bool has_end) {
    static const int32_t ends[] = {LETTERS_EOS};
    struct token_text *tokens = calloc((size_t)n_vocab, sizeof *tokens);
    char(*rooms)[2] = calloc((size_t)n_vocab, sizeof *rooms);
    struct token_trie *trie;
    struct error err;
    for (int t = 0; t < n_vocab; t++)
        tokens[t] = (struct token_text){letter_token(t, rooms[t]), t == LETTERS_EOS   ? TOKEN_SPECIAL
                                                                   : t < FIRST_LETTER ? TOKEN_UNUSED
                                                                                      : TOKEN_TEXT};
    EXPECT_OK(token_trie_open(tokens, n_vocab, ends, has_end, &trie, &err), err);
    free(tokens);
    free(rooms);
    return trie;
}

/* Of a regular expression, or of choices as JSON. */
static inline struct gyre_grammar letters_grammar(struct token_trie *letters, const char *regex, const char *choices) {
    json_t *value = choices ? json_loads(choices, 0, NULL) : NULL;
    struct grammar_source source = {.kind = choices ? GRAMMAR_CHOICE : GRAMMAR_REGEX,
                                    .text = regex ? str_of(regex) : (struct str){0},
                                    .value = value};
    struct gyre_grammar g = {.tokens = letters};
    struct error err;
    EXPECT_OK(grammar_compile(&source, &(struct grammar_limits){0}, &g.grammar, &err), err);
    json_decref(value);
    return g;
}

static inline void letters_text(const int32_t *tokens, int n, struct buf *out) {
    char room[2];
    for (int i = 0; i < n; i++)
        if (tokens[i] != LETTERS_EOS)
            buf_str(out, letter_token(tokens[i], room));
}

/* Pairs where there are any, from left to right, but for the last two letters. */
static inline int letters_split(void *context, const int32_t *before, int n_before, struct str text, int32_t *out,
                                int max) {
    int n = 0;
    (void)context, (void)before, (void)n_before;
    for (size_t i = 0; i + 2 < text.len && n < max; n++) {
        bool is_pair = text.ptr[i + 1] == text.ptr[i] + 1;
        out[n] = (is_pair ? FIRST_PAIR : FIRST_LETTER) + text.ptr[i] - 'a';
        i += is_pair ? 2 : 1;
    }
    return n;
}
