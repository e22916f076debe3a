/* bpe_merge.c - see bpe_merge.h.
 *
 * Words of natural text are short: scanning all neighbours for the best one beats a heap up to about a hundred
 * symbols. Longer ones (a megabyte without a space) use a heap, so that they cost n log n. Both take the lowest
 * rank, and the leftmost of equal ones. */
#include "text/bpe_merge.h"

enum { SHORT_WORD = 96, NEVER = INT32_MAX };

struct bpe_candidate {
    int32_t rank, at;
};

void bpe_memory_reserve(struct bpe_memory *m, size_t n) {
    if (n <= m->cap)
        return;
    m->cap = MAX(n, m->cap * 2);
    m->symbols = xrealloc(m->symbols, m->cap, sizeof *m->symbols);
}

static inline uint64_t slot_of(uint64_t key, uint64_t mask) { return (key * 0x9E3779B97F4A7C15u >> 32) & mask; }

static struct bpe_pair *find_pair(struct bpe_pair *pairs, uint64_t mask, uint64_t key) {
    uint64_t at = slot_of(key, mask);
    while (pairs[at].key && pairs[at].key != key)
        at = (at + 1) & mask;
    return &pairs[at];
}

static uint64_t key_of(int32_t left, int32_t right) { return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1; }

void bpe_reserve_pairs(struct bpe *b, size_t n) {
    uint64_t n_slots = 1024;
    while (n_slots < n * 2)
        n_slots *= 2;
    if (b->pairs && n_slots <= b->mask + 1)
        return;
    struct bpe_pair *pairs = xcalloc(n_slots, sizeof *pairs);
    for (uint64_t i = 0; b->pairs && i <= b->mask; i++)
        if (b->pairs[i].key)
            *find_pair(pairs, n_slots - 1, b->pairs[i].key) = b->pairs[i];
    free(b->pairs);
    b->pairs = pairs;
    b->mask = n_slots - 1;
}

void bpe_prefetch_pair(const struct bpe *b, int32_t left, int32_t right) {
    if (b->pairs)
        __builtin_prefetch(&b->pairs[slot_of(key_of(left, right), b->mask)]);
}

void bpe_add_pair(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id) {
    bpe_reserve_pairs(b, b->n_pairs + 1);
    struct bpe_pair *pair = find_pair(b->pairs, b->mask, key_of(left, right));
    b->n_pairs += !pair->key;
    *pair = (struct bpe_pair){key_of(left, right), rank, id};
}

/* Sets how a symbol joins with its right neighbour. */
static inline void rate(const struct bpe *b, const char *word, struct bpe_symbol *left, const struct bpe_symbol *right) {
    left->rank = NEVER;
    if (b->by_text) {
        if (left->id >= 0 || right->id >= 0) // fixed pieces
            return;
        int32_t id = vocab_find(b->vocab, (struct str){word + left->begin, right->end - left->begin});
        if (id >= 0) {
            left->rank = b->rank_of ? b->rank_of[id] : id;
            left->joined = id;
        }
        return;
    }
    const struct bpe_pair *pair = find_pair(b->pairs, b->mask, key_of(left->id, right->id));
    if (pair->key) {
        left->rank = pair->rank;
        left->joined = pair->id;
    }
}

static size_t join_short(const struct bpe *b, struct bpe_symbol *s, const char *word, size_t n) {
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank)
                best = i;
        if (s[best].rank == NEVER)
            return n;
        s[best].id = b->by_text ? -1 : s[best].joined;
        s[best].end = s[best + 1].end;
        memmove(&s[best + 1], &s[best + 2], (n - best - 2) * sizeof *s);
        n--;
        if (best > 0)
            rate(b, word, &s[best - 1], &s[best]);
        if (best + 1 < n)
            rate(b, word, &s[best], &s[best + 1]);
        else
            s[best].rank = NEVER;
        if (n == 1)
            return 1;
    }
}

static inline bool before(struct bpe_candidate a, struct bpe_candidate b) { return a.rank != b.rank ? a.rank < b.rank : a.at < b.at; }

static void heap_push(struct bpe_memory *m, size_t *n, struct bpe_candidate c) {
    if (*n == m->heap_cap) {
        m->heap_cap = m->heap_cap * 2 + 256;
        m->heap = xrealloc(m->heap, m->heap_cap, sizeof *m->heap);
    }
    size_t i = (*n)++;
    for (; i > 0 && before(c, m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = c;
}

static struct bpe_candidate heap_pop(struct bpe_memory *m, size_t *n) {
    struct bpe_candidate top = m->heap[0], last = m->heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        child += child + 1 < *n && before(m->heap[child + 1], m->heap[child]);
        if (!before(m->heap[child], last))
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

/* Rates the symbol at `at` against its right neighbour and, when they join, makes it a candidate. */
static void consider(const struct bpe *b, struct bpe_memory *m, const char *word, size_t *n_heap, int32_t at) {
    struct bpe_symbol *s = &m->symbols[at];
    s->rank = NEVER;
    if (s->next >= 0)
        rate(b, word, s, &m->symbols[s->next]);
    if (s->rank != NEVER)
        heap_push(m, n_heap, (struct bpe_candidate){s->rank, at});
}

static size_t join_long(const struct bpe *b, struct bpe_memory *m, const char *word, size_t n) {
    struct bpe_symbol *s = m->symbols;
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
        consider(b, m, word, &n_heap, (int32_t)i);
    }
    while (n_heap > 0) {
        struct bpe_candidate c = heap_pop(m, &n_heap);
        struct bpe_symbol *left = &s[c.at];
        if (left->rank != c.rank) // it, or its neighbour, has joined with another since; a symbol that is gone never joins
            continue;
        struct bpe_symbol *right = &s[left->next];
        left->id = b->by_text ? -1 : left->joined;
        left->end = right->end;
        left->next = right->next;
        right->rank = NEVER;
        right->begin = right->end;
        if (left->next >= 0)
            s[left->next].prev = c.at;
        consider(b, m, word, &n_heap, c.at);
        if (left->prev >= 0)
            consider(b, m, word, &n_heap, left->prev);
    }
    size_t n_left = 0;
    for (int32_t at = 0; at >= 0; at = s[at].next)
        s[n_left++] = s[at];
    return n_left;
}

size_t bpe_join(const struct bpe *b, struct bpe_memory *m, const char *word, size_t n) {
    if (n < 2 || (!b->by_text && b->n_pairs == 0))
        return n;
    if (n > SHORT_WORD)
        return join_long(b, m, word, n);
    for (size_t i = 0; i + 1 < n && !b->by_text; i++) // the table is larger than the caches: wait for all pairs at once
        bpe_prefetch_pair(b, m->symbols[i].id, m->symbols[i + 1].id);
    for (size_t i = 0; i + 1 < n; i++)
        rate(b, word, &m->symbols[i], &m->symbols[i + 1]);
    m->symbols[n - 1].rank = NEVER;
    return join_short(b, m->symbols, word, n);
}
