/* vocabulary.c - see vocabulary.h, and trie.h for what walks it. */
#include "grammar/mask_table.h"

#include <stdlib.h>

enum { MAX_TOKEN_BYTES = 64 << 10, MAX_TOKENS = 4 << 20 };

struct entry {
    struct str text;
    int32_t id;
};

static int by_text(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    int order = memcmp(x->text.ptr, y->text.ptr, MIN(x->text.len, y->text.len));
    if (order)
        return order;
    if (x->text.len != y->text.len)
        return x->text.len < y->text.len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Nodes in depth-first order, from sorted texts, in whose order their tokens stand. open[d]: the node of depth d + 1 on
 * the way to the last text. */
static void build(struct token_trie *t, const struct entry *e, size_t n, size_t n_bytes) {
    t->nodes = xmalloc((n_bytes + 1) * sizeof *t->nodes);
    t->first_token = xmalloc((n_bytes + 1) * sizeof *t->first_token);
    t->order = xcalloc(n + 1, sizeof *t->order);
    uint32_t *open = xmalloc((MAX_TOKEN_BYTES + 1) * sizeof *open);
    size_t depth = 0;
    struct str last = {"", 0};
    for (size_t i = 0; i < n; i++) {
        size_t shared = 0;
        while (shared < last.len && shared < e[i].text.len && last.ptr[shared] == e[i].text.ptr[shared])
            shared++;
        for (; depth > shared; depth--)
            t->nodes[open[depth - 1]].skip = t->n_nodes - open[depth - 1];
        for (; depth < e[i].text.len; depth++) {
            open[depth] = t->n_nodes;
            t->first_token[t->n_nodes] = (uint32_t)i;
            t->nodes[t->n_nodes++] = (struct token_node){.byte = (uint8_t)e[i].text.ptr[depth]};
        }
        t->order[i] = e[i].id;
        last = e[i].text;
        t->max_depth = MAX(t->max_depth, (uint32_t)last.len);
    }
    for (; depth > 0; depth--)
        t->nodes[open[depth - 1]].skip = t->n_nodes - open[depth - 1];
    free(open);
    t->first_token[t->n_nodes] = (uint32_t)n;
    t->nodes = xrealloc(t->nodes, t->n_nodes + 1, sizeof *t->nodes);
    t->first_token = xrealloc(t->first_token, t->n_nodes + 1, sizeof *t->first_token);
}

/* height: bytes of the longest way below a node, from the last node to the first. */
static void find_heights(struct token_trie *t) {
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        unsigned height = 0;
        for (uint32_t child = i + 1; child < i + t->nodes[i].skip; child += t->nodes[child].skip)
            height = MAX(height, t->nodes[child].height + 1u);
        t->nodes[i].height = (uint16_t)MIN(height, UINT16_MAX);
    }
}

static enum status take_texts(struct token_trie *t, const struct token_text *tokens, struct error *err) {
    struct entry *e = xmalloc(((size_t)t->n_vocab + 1) * sizeof *e);
    size_t n = 0, n_bytes = 0, special_bytes = 0;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        if (tokens[id].kind == TOKEN_SPECIAL)
            special_bytes += tokens[id].bytes.len;
        if (tokens[id].kind != TOKEN_TEXT || tokens[id].bytes.len == 0 || tokens[id].bytes.len > MAX_TOKEN_BYTES)
            continue;
        e[n++] = (struct entry){tokens[id].bytes, id};
        n_bytes += tokens[id].bytes.len;
        t->is_text[id / 32] |= 1u << (id % 32);
    }
    if (n_bytes + special_bytes > (size_t)1 << 30) {
        free(e);
        return fail(err, ERR_LIMIT, "the tokens of the vocabulary are longer than 1 GiB together");
    }
    qsort(e, n, sizeof *e, by_text);
    build(t, e, n, n_bytes);
    find_heights(t);
    t->texts = xmalloc(n_bytes + 1);
    t->text_of = xcalloc((size_t)t->n_vocab + 1, sizeof *t->text_of);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(t->texts + at, e[i].text.ptr, e[i].text.len);
        t->text_of[e[i].id] = (struct str){t->texts + at, e[i].text.len};
        at += e[i].text.len;
    }
    trie_find_kinds(t);
    free(e);
    return OK;
}

static void take_specials(struct token_trie *t, const struct token_text *tokens) {
    for (int32_t id = 0; id < t->n_vocab; id++)
        t->n_specials += tokens[id].kind == TOKEN_SPECIAL;
    t->specials = xcalloc((size_t)t->n_specials + 1, sizeof *t->specials);
    int32_t n = 0;
    for (int32_t id = 0; id < t->n_vocab; id++)
        if (tokens[id].kind == TOKEN_SPECIAL)
            t->specials[n++] = (struct special){id, arena_strdup(&t->memory, tokens[id].bytes), tokens[id].bytes.len};
}

enum status token_trie_open(const struct token_text *tokens, int32_t n_vocab, const int32_t *ends, int32_t n_ends,
                            struct token_trie **out, struct error *err) {
    if (n_vocab < 1 || n_vocab > MAX_TOKENS)
        return fail(err, n_vocab < 1 ? ERR_ARG : ERR_LIMIT, "a vocabulary has 1 to %d tokens, not %d", MAX_TOKENS,
                    n_vocab);
    for (int32_t i = 0; i < n_ends; i++)
        if (ends[i] < 0 || ends[i] >= n_vocab)
            return fail(err, ERR_ARG, "end token %d is not in the vocabulary of %d", ends[i], n_vocab);
    struct token_trie *t = xcalloc(1, sizeof *t);
    t->n_vocab = n_vocab;
    t->n_words = (n_vocab + 31) / 32;
    atomic_init(&t->references, 1);
    pthread_mutex_init(&t->lock, NULL);
    t->is_text = xcalloc((size_t)t->n_words, sizeof *t->is_text);
    t->ends = xcalloc((size_t)n_ends + 1, sizeof *t->ends);
    if (n_ends)
        memcpy(t->ends, ends, (size_t)n_ends * sizeof *ends);
    t->n_ends = n_ends;
    enum status st = take_texts(t, tokens, err);
    if (st == OK)
        take_specials(t, tokens);
    if (st != OK) {
        token_trie_free(t);
        return st;
    }
    *out = t;
    return OK;
}

struct token_trie *token_trie_hold(struct token_trie *t) {
    atomic_fetch_add(&t->references, 1);
    return t;
}

void token_trie_free(struct token_trie *t) {
    if (!t || atomic_fetch_sub(&t->references, 1) != 1)
        return;
    mask_tables_free(t);
    pthread_mutex_destroy(&t->lock);
    arena_release(&t->memory);
    free(t->nodes);
    trie_kinds_free(t);
    free(t->first_token);
    free(t->order);
    free(t->is_text);
    free(t->ends);
    free(t->texts);
    free(t->text_of);
    free(t->specials);
    free(t);
}

int32_t token_trie_n_vocab(const struct token_trie *t) { return t->n_vocab; }
int32_t token_trie_n_words(const struct token_trie *t) { return t->n_words; }

int32_t token_trie_special(const struct token_trie *t, struct str name) {
    for (int32_t i = 0; i < t->n_specials; i++)
        if (str_eq(name, (struct str){t->specials[i].name, t->specials[i].len}))
            return t->specials[i].id;
    return -1;
}

size_t token_trie_bytes(struct token_trie *t) {
    pthread_mutex_lock(&t->lock);
    size_t made = t->table_bytes + trie_kinds_bytes(t);
    pthread_mutex_unlock(&t->lock);
    return sizeof *t + t->n_nodes * (sizeof *t->nodes + 4) + (size_t)t->n_vocab * (sizeof *t->text_of + 8) +
           t->memory.used + made;
}
