/* trie_kinds.c - which kinds of bytes tokens have, and the nodes below which there are some. See trie.h. */
#include "grammar/trie.h"

/* before, utf8: the states around the byte. */
static uint8_t kind_of(uint8_t byte, uint8_t before, uint8_t utf8) {
    if (utf8 == UTF8_ILL)
        return KIND_ILL_FORMED;
    if (before == UTF8_PUNCTUATION || utf8 == UTF8_PUNCTUATION)
        return KIND_PUNCTUATION;
    return byte >= 0x80 ? KIND_CHARACTER : byte < 4 ? KIND_CONTROL : byte;
}

/* The kind of each node's byte, and those below it. */
static void find_below(struct token_trie *t) {
    uint8_t *utf8 = xcalloc((size_t)t->n_nodes + 1, 1);
    for (uint32_t i = 0; i < t->n_nodes; i += t->nodes[i].skip) { // the root's children
        utf8[i] = utf8_next(UTF8_BETWEEN, t->nodes[i].byte);
        t->kind[i] = kind_of(t->nodes[i].byte, UTF8_BETWEEN, utf8[i]);
    }
    for (uint32_t i = 0; i < t->n_nodes; i++)
        for (uint32_t c = i + 1; c < i + t->nodes[i].skip; c += t->nodes[c].skip) {
            utf8[c] = utf8_next(utf8[i], t->nodes[c].byte);
            t->kind[c] = kind_of(t->nodes[c].byte, utf8[i], utf8[c]);
        }
    for (uint32_t i = t->n_nodes; i-- > 0;)
        for (uint32_t c = i + 1; c < i + t->nodes[i].skip; c += t->nodes[c].skip) {
            for (int w = 0; w < 2; w++)
                t->below[i].w[w] |= t->below[c].w[w];
            kinds_add(&t->below[i], t->kind[c]);
        }
    free(utf8);
}

static void put_having(struct token_trie *t, uint32_t node, struct kinds kinds) {
    uint32_t first = t->first_token[node], end = t->first_token[node + 1];
    for (unsigned w = 0; first < end && w < 2; w++)
        for (uint64_t bits = kinds.w[w]; bits; bits &= bits - 1) {
            uint32_t **having = &t->having[64 * w + (unsigned)__builtin_ctzll(bits)];
            if (!*having)
                *having = xcalloc((size_t)t->n_words, sizeof **having);
            for (uint32_t i = first; i < end; i++)
                (*having)[t->order[i] / 32] |= 1u << (t->order[i] % 32);
        }
}

static void find_having(struct token_trie *t) {
    struct {
        struct kinds kinds;
        uint32_t end;
    } *path = xcalloc((size_t)t->max_depth + 2, sizeof *path);
    uint32_t depth = 0;
    path[0].end = t->n_nodes;
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        while (i >= path[depth].end)
            depth--;
        struct kinds kinds = path[depth].kinds;
        kinds_add(&kinds, t->kind[i]);
        put_having(t, i, kinds);
        path[++depth].kinds = kinds;
        path[depth].end = i + t->nodes[i].skip;
    }
    free(path);
}

static void find_at_most(struct token_trie *t) {
    size_t words = (size_t)t->n_words;
    t->at_most = xcalloc(MAX_COUNTED * words + 1, sizeof *t->at_most);
    for (uint32_t i = 0; i < t->first_token[t->n_nodes]; i++) {
        struct str text = t->text_of[t->order[i]];
        size_t n = 0;
        for (size_t k = 0; k < text.len; k++)
            n += ((unsigned char)text.ptr[k] & 0xC0) != 0x80;
        if (n < MAX_COUNTED)
            t->at_most[n * words + (size_t)t->order[i] / 32] |= 1u << (t->order[i] % 32);
    }
    for (size_t w = words; w < MAX_COUNTED * words; w++)
        t->at_most[w] |= t->at_most[w - words];
}

void trie_find_kinds(struct token_trie *t) {
    t->below = xcalloc((size_t)t->n_nodes + 1, sizeof *t->below);
    t->kind = xcalloc((size_t)t->n_nodes + 1, 1);
    find_below(t);
    find_having(t);
    find_at_most(t);
}

void trie_kinds_free(struct token_trie *t) {
    free(t->below);
    free(t->kind);
    free(t->at_most);
    for (unsigned kind = 0; kind < N_KINDS; kind++)
        free(t->having[kind]);
    for (int i = 0; i < t->n_ways; i++) {
        free(t->ways[i].nodes);
        free(t->ways[i].tokens);
    }
}

size_t trie_kinds_bytes(const struct token_trie *t) {
    size_t bytes = (size_t)t->n_nodes * (sizeof *t->below + 1) + (size_t)t->n_words * MAX_COUNTED * 4;
    for (unsigned kind = 0; kind < N_KINDS; kind++)
        bytes += t->having[kind] ? (size_t)t->n_words * 4 : 0;
    for (int i = 0; i < t->n_ways; i++)
        bytes += ((size_t)t->ways[i].n + (size_t)t->n_words) * 4;
    return bytes;
}

static struct way way_of(const struct token_trie *t, struct kinds kinds, struct kinds without) {
    struct way way = {.kinds = kinds, .without = without};
    uint32_t cap = 0;
    for (uint32_t i = 0; i < t->n_nodes;) {
        bool meets = kinds_meet(t->below[i], kinds);
        if (meets || kinds_have(kinds, t->kind[i])) {
            if (way.n == cap) {
                cap = cap ? 2 * cap : 1024;
                way.nodes = xrealloc(way.nodes, cap, sizeof *way.nodes);
            }
            way.nodes[way.n++] = i;
        }
        i += meets ? 1 : t->nodes[i].skip;
    }
    way.tokens = xmalloc((size_t)t->n_words * sizeof *way.tokens);
    memcpy(way.tokens, t->is_text, (size_t)t->n_words * sizeof *way.tokens);
    for (unsigned kind = 0; kind < N_KINDS; kind++)
        for (int32_t w = 0; kinds_have(without, kind) && t->having[kind] && w < t->n_words; w++)
            way.tokens[w] &= ~t->having[kind][w];
    return way;
}

static bool same_kinds(struct kinds a, struct kinds b) { return a.w[0] == b.w[0] && a.w[1] == b.w[1]; }

const struct way *trie_way(struct token_trie *t, struct kinds kinds, struct kinds without) {
    const struct way *found = NULL;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_ways && !found; i++)
        if (same_kinds(t->ways[i].kinds, kinds) && same_kinds(t->ways[i].without, without))
            found = &t->ways[i];
    if (!found && t->n_ways < MAX_WAYS) {
        t->ways[t->n_ways] = way_of(t, kinds, without);
        found = &t->ways[t->n_ways++];
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}
