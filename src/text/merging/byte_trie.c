/* byte_trie.c - see byte_trie.h. */
#include "text/merging/byte_trie.h"

#include "base/status.h"

#include <stdlib.h>

/* While building: the sorted keys that pass through a node, of which `depth` bytes are used up. */
struct key_range {
    uint32_t begin, end, depth;
};

static int compare_keys(const void *a, const void *b) {
    const struct trie_key *x = a, *y = b;
    int order = memcmp(x->text.ptr, y->text.ptr, MIN(x->text.len, y->text.len));
    if (order)
        return order;
    if (x->text.len != y->text.len)
        return x->text.len < y->text.len ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static size_t count_nodes(const struct trie_key *keys, size_t n) {
    size_t n_nodes = 1;
    for (size_t i = 0; i < n; i++) {
        size_t common = 0;
        if (i > 0)
            while (common < keys[i - 1].text.len && common < keys[i].text.len &&
                   keys[i - 1].text.ptr[common] == keys[i].text.ptr[common])
                common++;
        n_nodes += keys[i].text.len - common;
    }
    return n_nodes;
}

/* Gives node its value and its children, which are appended; ranges[] runs along with the nodes. */
static void expand(struct byte_trie *t, struct key_range *ranges, uint32_t node, const struct trie_key *keys) {
    struct key_range r = ranges[node];
    t->nodes[node] = (struct trie_node){.first = t->n_nodes, .value = -1};
    for (; r.begin < r.end && keys[r.begin].text.len == r.depth; r.begin++)
        t->nodes[node].value = keys[r.begin].value;
    while (r.begin < r.end) {
        char label = keys[r.begin].text.ptr[r.depth];
        uint32_t end = r.begin + 1;
        while (end < r.end && keys[end].text.ptr[r.depth] == label)
            end++;
        t->labels[t->n_nodes] = (uint8_t)label;
        ranges[t->n_nodes++] = (struct key_range){r.begin, end, r.depth + 1};
        t->nodes[node].n++;
        r.begin = end;
    }
}

void byte_trie_build(struct byte_trie *t, struct trie_key *keys, size_t n) {
    if (n > 0)
        qsort(keys, n, sizeof *keys, compare_keys);
    size_t n_nodes = count_nodes(keys, n);
    struct key_range *ranges = xcalloc(n_nodes, sizeof *ranges);
    *t = (struct byte_trie){.nodes = xcalloc(n_nodes, sizeof *t->nodes), .labels = xcalloc(n_nodes, 1), .n_nodes = 1};
    uint32_t begin = 0;
    while (begin < n && keys[begin].text.len == 0)
        begin++;
    ranges[0] = (struct key_range){begin, (uint32_t)n, 0};
    for (uint32_t node = 0; node < t->n_nodes; node++)
        expand(t, ranges, node, keys);
    for (uint32_t i = 0; i < t->nodes[0].n; i++)
        t->root[t->labels[t->nodes[0].first + i]] = t->nodes[0].first + i;
    free(ranges);
}

void byte_trie_release(struct byte_trie *t) {
    free(t->nodes);
    free(t->labels);
    *t = (struct byte_trie){0};
}

int32_t byte_trie_longest(const struct byte_trie *t, uint32_t node, struct str text, size_t *len) {
    int32_t value = -1;
    for (size_t i = 0; i < text.len; i++) {
        node = byte_trie_step(t, node, text.ptr[i]);
        if (node == 0)
            break;
        if (t->nodes[node].value >= 0) {
            value = t->nodes[node].value;
            *len = i + 1;
        }
    }
    return value;
}
