/* token_trie.c - see token_trie.h. */
#include "text/token_trie.h"

#include <stdlib.h>

/* The bytes of all tokens of text, one after the other. */
struct listed {
    struct buf bytes;
    size_t *ends; // [n_vocab]: where each one's end
};

static void list_bytes(const struct tokenizer *tok, int32_t n, struct listed *out) {
    *out = (struct listed){.ends = xcalloc((size_t)n, sizeof *out->ends)};
    for (int32_t id = 0; id < n; id++) {
        if (!tokenizer_is_special(tok, id))
            tokenizer_token_bytes(tok, id, &out->bytes);
        out->ends[id] = out->bytes.len;
    }
}

static struct token_text text_of(const struct tokenizer *tok, const struct listed *all, int32_t id) {
    size_t begin = id > 0 ? all->ends[id - 1] : 0;
    struct str name = tokenizer_token_text(tok, id);
    if (tokenizer_is_special(tok, id))
        return (struct token_text){name, name.len > 0 ? TOKEN_SPECIAL : TOKEN_UNUSED};
    if (name.len == 0 || begin == all->ends[id])
        return (struct token_text){.kind = TOKEN_UNUSED};
    return (struct token_text){{all->bytes.ptr + begin, all->ends[id] - begin}, TOKEN_TEXT};
}

enum status tokenizer_trie(const struct tokenizer *tok, const int32_t *ends, int n_ends, struct token_trie **out,
                           struct error *err) {
    int32_t n = tokenizer_n_vocab(tok), n_known = 0;
    struct listed all;
    struct token_text *tokens = xcalloc((size_t)n, sizeof *tokens);
    int32_t *known = xcalloc((size_t)n_ends, sizeof *known);
    list_bytes(tok, n, &all);
    for (int32_t id = 0; id < n; id++)
        tokens[id] = text_of(tok, &all, id);
    for (int i = 0; i < n_ends; i++)
        if (ends[i] >= 0 && ends[i] < n)
            known[n_known++] = ends[i];
    enum status st = token_trie_open(tokens, n, known, n_known, out, err);
    free(known);
    free(tokens);
    free(all.ends);
    buf_release(&all.bytes);
    return st;
}
