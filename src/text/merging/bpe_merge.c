/* bpe_merge.c - see bpe_merge.h.
 *
 * Words of natural text are short: scanning all neighbours for the best one beats a heap up to about a hundred
 * symbols. Longer ones (a megabyte without a space) use a heap, so that they cost n log n. Both take the lowest
 * rank, and the leftmost of equal ones.
 *
 * Memory counts for long ones, because whoever sends a text chooses the length of its words. So a symbol keeps no rank
 * of its own: a candidate is looked up again when its turn comes, and one whose rank has changed since is passed over.
 */
#include "text/merging/bpe_merge.h"

enum { SHORT_WORD = 96, NEVER = INT32_MAX };

bool bpe_cells_reserve(struct bpe_memory *m, size_t n) {
    if (n <= m->cap)
        return true;
    size_t cap = MAX(n + 64, m->cap + m->cap / 2);
    void *cells = m->cells;
    if (!budget_resize(m->budget, &cells, m->cap * sizeof *m->cells, cap * sizeof *m->cells))
        return false;
    m->cells = cells;
    m->cap = cap;
    return true;
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

/* A symbol of a short word, with what it and its right neighbour make. */
struct symbol {
    uint32_t begin, end; // cells
    int32_t id;          // its first cell
    int32_t rank, joined;
};

/* The rank at which two neighbours join, and what they make; NEVER. */
static inline int32_t rank_of(const struct bpe *b, const char *word, const struct symbol *left,
                              const struct symbol *right, int32_t *joined) {
    if (!b->by_text) {
        const struct bpe_pair *pair = find_pair(b->pairs, b->mask, key_of(left->id, right->id));
        *joined = pair->id;
        return pair->key ? pair->rank : NEVER;
    }
    if (left->id > 0 || right->id > 0) // fixed pieces
        return NEVER;
    int32_t id = vocab_find(b->vocab, (struct str){word + left->begin, right->end - left->begin});
    *joined = 0;
    if (id < 0)
        return NEVER;
    return b->rank_of ? b->rank_of[id] : id;
}

// ---- short words ------------------------------------------------------------------------------------------------

static inline void rate(const struct bpe *b, const char *word, struct symbol *left, const struct symbol *right) {
    left->rank = rank_of(b, word, left, right, &left->joined);
}

static size_t join_symbols(const struct bpe *b, struct symbol *s, const char *word, size_t n) {
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank)
                best = i;
        if (s[best].rank == NEVER)
            break;
        s[best].id = s[best].joined;
        s[best].end = s[best + 1].end;
        memmove(&s[best + 1], &s[best + 2], (n - best - 2) * sizeof *s);
        n--;
        if (best > 0)
            rate(b, word, &s[best - 1], &s[best]);
        if (best + 1 < n)
            rate(b, word, &s[best], &s[best + 1]);
        else
            s[best].rank = NEVER;
    }
    return n;
}

/* The symbols in the cells, if they are few; else SIZE_MAX. */
static size_t read_symbols(const int32_t *cells, size_t n_cells, struct symbol s[static SHORT_WORD]) {
    size_t n = 0;
    for (size_t at = 0, end; at < n_cells; at = end) {
        end = bpe_cells_end(cells, n_cells, at);
        if (n == SHORT_WORD)
            return SIZE_MAX;
        s[n++] = (struct symbol){.begin = (uint32_t)at, .end = (uint32_t)end, .id = cells[at], .rank = NEVER};
    }
    return n;
}

static void write_symbols(int32_t *cells, const struct symbol *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        cells[s[i].begin] = s[i].id;
        bpe_cells_span(cells, s[i].begin, s[i].end);
    }
}

static void join_short(const struct bpe *b, int32_t *cells, const char *word, struct symbol *s, size_t n) {
    for (size_t i = 0; i + 1 < n && !b->by_text; i++) // the table is larger than the caches: wait for all pairs at once
        bpe_prefetch_pair(b, s[i].id, s[i + 1].id);
    for (size_t i = 0; i + 1 < n; i++)
        rate(b, word, &s[i], &s[i + 1]);
    write_symbols(cells, s, join_symbols(b, s, word, n));
}

// ---- long words -------------------------------------------------------------------------------------------------

struct long_word {
    const struct bpe *b;
    struct bpe_memory *m;
    const char *text;
    size_t n; // cells
    size_t n_heap;
};

static inline bool before(struct bpe_candidate a, struct bpe_candidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void sift_down(struct bpe_candidate *heap, size_t n, size_t i, struct bpe_candidate c) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(heap[child + 1], heap[child]);
        if (!before(heap[child], c))
            break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

static void heap_push(struct long_word *w, struct bpe_candidate c) {
    struct bpe_candidate *heap = w->m->heap;
    size_t i = w->n_heap++;
    for (; i > 0 && before(c, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static struct bpe_candidate heap_pop(struct long_word *w) {
    struct bpe_candidate *heap = w->m->heap, top = heap[0];
    w->n_heap--;
    sift_down(heap, w->n_heap, 0, heap[w->n_heap]);
    return top;
}

/* The rank of the symbol at `at` with its right neighbour, which begins at *right. */
static int32_t rank_at(const struct long_word *w, size_t at, size_t *right, int32_t *joined) {
    const int32_t *cells = w->m->cells;
    *right = bpe_cells_end(cells, w->n, at);
    if (*right == w->n)
        return NEVER;
    struct symbol a = {.begin = (uint32_t)at, .end = (uint32_t)*right, .id = cells[at]};
    struct symbol b = {
        .begin = (uint32_t)*right, .end = (uint32_t)bpe_cells_end(cells, w->n, *right), .id = cells[*right]};
    return rank_of(w->b, w->text, &a, &b, joined);
}

/* All candidates anew: those whose turn is over are gone then. With room for a quarter as many again. */
static bool heap_build(struct long_word *w) {
    struct bpe_memory *m = w->m;
    size_t n = 0, most = 0, right;
    int32_t joined;
    for (size_t at = 0; at < w->n; at = bpe_cells_end(m->cells, w->n, at))
        most += rank_at(w, at, &right, &joined) != NEVER;
    most += most / 4 + 256;
    if (m->heap_cap < most) {
        void *heap = m->heap;
        if (!budget_resize(m->budget, &heap, m->heap_cap * sizeof *m->heap, most * sizeof *m->heap))
            return false;
        m->heap = heap;
        m->heap_cap = most;
    }
    for (size_t at = 0; at < w->n; at = right) {
        int32_t rank = rank_at(w, at, &right, &joined);
        if (rank != NEVER)
            m->heap[n++] = (struct bpe_candidate){rank, (uint32_t)at};
    }
    for (size_t i = n / 2; i-- > 0;)
        sift_down(m->heap, n, i, m->heap[i]);
    w->n_heap = n;
    return true;
}

/* Makes the symbol at `at` a candidate if it joins with its right neighbour. */
static void consider(struct long_word *w, size_t at) {
    size_t right;
    int32_t joined, rank = rank_at(w, at, &right, &joined);
    if (rank != NEVER)
        heap_push(w, (struct bpe_candidate){rank, (uint32_t)at});
}

/* Two neighbours become one symbol. Where the right one began there is no symbol any more, whatever candidates say. */
static void join_at(struct long_word *w, size_t at, size_t right, int32_t joined) {
    int32_t *cells = w->m->cells;
    size_t end = bpe_cells_end(cells, w->n, right);
    cells[at] = joined;
    cells[right] = -1;
    bpe_cells_span(cells, at, end);
}

static bool join_long(struct long_word *w) {
    if (!heap_build(w))
        return false;
    while (w->n_heap > 0) {
        struct bpe_candidate c = heap_pop(w);
        size_t right;
        int32_t joined;
        if (w->m->cells[c.at] < 0 || rank_at(w, c.at, &right, &joined) != c.rank)
            continue;
        join_at(w, c.at, right, joined);
        if (w->n_heap + 2 > w->m->heap_cap) { // old candidates fill it
            if (!heap_build(w))
                return false;
            continue;
        }
        consider(w, c.at);
        if (c.at > 0)
            consider(w, bpe_cells_before(w->m->cells, c.at));
    }
    return true;
}

bool bpe_join(const struct bpe *b, struct bpe_memory *m, const char *word, size_t n) {
    struct symbol symbols[SHORT_WORD];
    if (n < 2 || (!b->by_text && b->n_pairs == 0))
        return true;
    size_t n_symbols = read_symbols(m->cells, n, symbols);
    if (n_symbols != SIZE_MAX)
        join_short(b, m->cells, word, symbols, n_symbols);
    return n_symbols != SIZE_MAX || join_long(&(struct long_word){.b = b, .m = m, .text = word, .n = n});
}
