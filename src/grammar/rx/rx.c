/* rx.c - see rx.h: the pool of expressions, and constructors that simplify. */
#include "grammar/rx_pool.h"

#include <time.h>
#include <xxhash.h>

enum { MAX_DEPTH = 400 };

// ---- the pool ---------------------------------------------------------------------------------------------------

rx_id rx_fail(struct rx_pool *pool, enum status status, const char *why) {
    if (pool->failed == OK)
        pool->failed = status, pool->why = why;
    return RX_NEVER;
}

/* Processor time of this thread: what else runs on the machine decides nothing. */
static int64_t thread_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void rx_allow_time(struct rx_pool *pool, int64_t us) {
    pool->allowed_us = us;
    pool->deadline_us = 0;
}

void rx_check_time(struct rx_pool *pool) {
    if (!pool->allowed_us)
        return;
    int64_t now = thread_us();
    if (!pool->deadline_us)
        pool->deadline_us = now + pool->allowed_us;
    else if (now > pool->deadline_us)
        rx_fail(pool, ERR_LIMIT, "the grammar takes too much time");
}

enum status rx_check(const struct rx_pool *pool, struct error *err) {
    return pool->failed == OK ? OK : fail(err, pool->failed, "%s", pool->why);
}

static bool same_node(const struct rx_pool *p, const struct rx_node *x, const struct rx_node *y,
                      const uint32_t *y_list) {
    if (x->id.lo != y->id.lo || x->id.hi != y->id.hi || x->kind != y->kind || x->b != y->b)
        return false;
    if (x->kind == RX_K_ALT || x->kind == RX_K_AND)
        return memcmp(p->lists + x->a, y_list, x->b * sizeof *y_list) == 0;
    return x->a == y->a && x->min == y->min && x->max == y->max;
}

static void grow_nodes(struct rx_pool *p) {
    p->cap_nodes = p->cap_nodes ? p->cap_nodes * 2 : 256;
    p->nodes = xrealloc(p->nodes, p->cap_nodes, sizeof *p->nodes);
    p->memo = xrealloc(p->memo, p->cap_nodes, sizeof *p->memo);
    p->memo_epoch = xrealloc(p->memo_epoch, p->cap_nodes, sizeof *p->memo_epoch);
    memset(p->memo_epoch + p->n_nodes, 0, (p->cap_nodes - p->n_nodes) * sizeof *p->memo_epoch);
    uint32_t size = p->cap_nodes * 2;
    free(p->table);
    p->table = xcalloc(size, sizeof *p->table);
    p->table_mask = size - 1;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        uint32_t at = (uint32_t)p->nodes[i].id.lo & p->table_mask;
        while (p->table[at])
            at = (at + 1) & p->table_mask;
        p->table[at] = i + 1;
    }
}

/* The number of this node, whose list (of ALT and AND) is copied if it is new. */
rx_id rx_intern(struct rx_pool *p, struct rx_node n, const uint32_t *list, const void *key, size_t key_bytes) {
    XXH128_hash_t h = XXH3_128bits_withSeed(key, key_bytes, n.kind);
    n.id = (struct rx_hash){h.low64, h.high64};
    if (p->n_nodes >= p->cap_nodes)
        grow_nodes(p);
    uint32_t at = (uint32_t)n.id.lo & p->table_mask;
    for (; p->table[at]; at = (at + 1) & p->table_mask)
        if (same_node(p, &p->nodes[p->table[at] - 1], &n, list))
            return p->table[at] - 1;
    if ((p->n_nodes & 1023) == 0)
        rx_check_time(p);
    if (p->failed != OK)
        return RX_NEVER; // whoever builds goes on for a while
    if (n.depth > MAX_DEPTH)
        return rx_fail(p, ERR_LIMIT, "a regular expression is nested too deep");
    if (p->n_nodes >= p->max_nodes)
        return rx_fail(p, ERR_LIMIT, "regular expressions are too large together");
    rx_take_facts(p, &n, list);
    if (list) {
        while (p->n_lists + n.b > p->cap_lists) {
            p->cap_lists = p->cap_lists ? p->cap_lists * 2 : 256;
            p->lists = xrealloc(p->lists, p->cap_lists, sizeof *p->lists);
        }
        n.a = (uint32_t)p->n_lists;
        memcpy(p->lists + n.a, list, n.b * sizeof *list);
        p->n_lists += n.b;
    }
    p->nodes[p->n_nodes] = n;
    p->table[at] = p->n_nodes + 1;
    return p->n_nodes++;
}

struct rx_pool *rx_pool_open(uint32_t max_nodes) {
    struct rx_pool *p = xcalloc(1, sizeof *p);
    p->max_nodes = max_nodes;
    p->max_states = 20000;
    // Row 0 leads nowhere: it stands for rows that a limit forbids.
    p->n_rows = p->n_maps = 1;
    p->n_targets = 1;
    p->cap_rows = p->cap_maps = 64;
    p->cap_targets = 256;
    p->rows = xcalloc(p->cap_rows, sizeof *p->rows);
    p->maps = xcalloc(p->cap_maps, sizeof *p->maps);
    p->targets = xcalloc(p->cap_targets, sizeof *p->targets);
    rx_intern(p, (struct rx_node){.kind = RX_K_NEVER, .flags = RX_DEAD}, NULL, "never", 5);
    rx_intern(p, (struct rx_node){.kind = RX_K_EMPTY, .flags = RX_NULLABLE}, NULL, "empty", 5);
    rx_intern(p, (struct rx_node){.kind = RX_K_NOT, .flags = RX_NULLABLE | RX_ALIVE}, NULL, "all", 3);
    return p;
}

void rx_pool_free(struct rx_pool *p) {
    if (!p)
        return;
    void *owned[] = {p->nodes, p->table,     p->lists,   p->sets,       p->set_table, p->rows,
                     p->maps,  p->map_table, p->targets, p->memo_epoch, p->memo,      p->scratch};
    for (size_t i = 0; i < ARRAY_LEN(owned); i++)
        free(owned[i]);
    free(p);
}

static void *copy_of(const void *bytes, size_t n, size_t size) {
    void *out = xmalloc(n * size + 1);
    if (n)
        memcpy(out, bytes, n * size);
    return out;
}

struct rx_pool *rx_pool_copy(const struct rx_pool *from) {
    struct rx_pool *p = xmalloc(sizeof *p);
    *p = *from;
    p->nodes = copy_of(from->nodes, from->cap_nodes, sizeof *p->nodes);
    p->table = copy_of(from->table, (size_t)from->table_mask + 1, sizeof *p->table);
    p->lists = copy_of(from->lists, from->cap_lists, sizeof *p->lists);
    p->sets = copy_of(from->sets, from->cap_sets, sizeof *p->sets);
    p->set_table = from->set_table ? copy_of(from->set_table, (size_t)from->set_table_mask + 1, 4) : NULL;
    p->rows = copy_of(from->rows, from->cap_rows, sizeof *p->rows);
    p->maps = copy_of(from->maps, from->cap_maps, sizeof *p->maps);
    p->map_table = from->map_table ? copy_of(from->map_table, (size_t)from->map_table_mask + 1, 4) : NULL;
    p->targets = copy_of(from->targets, from->cap_targets, sizeof *p->targets);
    p->memo = copy_of(from->memo, from->cap_nodes, sizeof *p->memo);
    p->memo_epoch = copy_of(from->memo_epoch, from->cap_nodes, sizeof *p->memo_epoch);
    p->scratch = NULL;
    p->n_scratch = p->cap_scratch = 0;
    return p;
}

size_t rx_pool_bytes(const struct rx_pool *p) {
    return p->cap_nodes * (sizeof *p->nodes + 8) + ((size_t)p->table_mask + 1) * 4 + p->cap_lists * 4 +
           p->cap_sets * sizeof *p->sets + p->cap_rows * sizeof *p->rows + (size_t)p->cap_maps * 256 +
           p->cap_targets * sizeof *p->targets;
}

// ---- sets of bytes ----------------------------------------------------------------------------------------------

static void grow_set_table(struct rx_pool *p) {
    uint32_t size = p->set_table ? (p->set_table_mask + 1) * 2 : 256;
    free(p->set_table);
    p->set_table = xcalloc(size, sizeof *p->set_table);
    p->set_table_mask = size - 1;
    for (uint32_t i = 0; i < p->n_sets; i++) {
        uint32_t at = (uint32_t)XXH3_64bits(&p->sets[i], sizeof p->sets[i]) & p->set_table_mask;
        while (p->set_table[at])
            at = (at + 1) & p->set_table_mask;
        p->set_table[at] = i + 1;
    }
}

static uint32_t set_intern(struct rx_pool *p, const struct rx_set *set) {
    if (!p->set_table || p->n_sets * 2 > p->set_table_mask)
        grow_set_table(p);
    uint32_t at = (uint32_t)XXH3_64bits(set, sizeof *set) & p->set_table_mask;
    for (; p->set_table[at]; at = (at + 1) & p->set_table_mask)
        if (memcmp(&p->sets[p->set_table[at] - 1], set, sizeof *set) == 0)
            return p->set_table[at] - 1;
    RX_GROW(p->sets, p->n_sets, p->cap_sets);
    p->sets[p->n_sets] = *set;
    p->set_table[at] = p->n_sets + 1;
    return p->n_sets++;
}

rx_id rx_of_set(struct rx_pool *p, const struct rx_set *set) {
    if (rx_set_is_empty(set))
        return RX_NEVER;
    return rx_intern(p, (struct rx_node){.kind = RX_K_BYTES, .a = set_intern(p, set)}, NULL, set, sizeof *set);
}

rx_id rx_byte_range(struct rx_pool *p, uint8_t first, uint8_t last) {
    struct rx_set set = {0};
    for (unsigned b = first; b <= last; b++)
        rx_set_add(&set, b);
    return rx_of_set(p, &set);
}

// ---- constructors -----------------------------------------------------------------------------------------------

uint32_t rx_length(const struct rx_pool *p, rx_id a) {
    uint32_t n = 1;
    for (; p->nodes[a].kind == RX_K_SEQ && n < RX_LONG; a = p->nodes[a].b)
        n++;
    return n;
}

static uint8_t inherited(const struct rx_node *n) { return n->flags & (RX_BOOLEAN | RX_COUNTS); }

rx_id rx_seq_as_is(struct rx_pool *p, rx_id a, rx_id b) {
    if (a == RX_NEVER || b == RX_NEVER)
        return RX_NEVER;
    if (a == RX_EMPTY || b == RX_EMPTY)
        return a == RX_EMPTY ? b : a;
    const struct rx_node *x = &p->nodes[a], *y = &p->nodes[b];
    struct rx_node n = {.kind = RX_K_SEQ, .a = a, .b = b};
    n.flags = (uint8_t)((x->flags & y->flags & RX_NULLABLE) | inherited(x) | inherited(y));
    n.depth = (uint16_t)MAX(x->depth + 1, y->depth);
    struct rx_hash key[2] = {x->id, y->id};
    return rx_intern(p, n, NULL, key, sizeof key);
}

rx_id rx_seq(struct rx_pool *p, rx_id a, rx_id b) {
    size_t mark = p->n_scratch;
    for (; p->nodes[a].kind == RX_K_SEQ; a = p->nodes[a].b) {
        RX_GROW(p->scratch, p->n_scratch, p->cap_scratch);
        p->scratch[p->n_scratch++] = p->nodes[a].a;
    }
    rx_id out = rx_seq_as_is(p, a, b);
    while (p->n_scratch > mark)
        out = rx_seq_as_is(p, p->scratch[--p->n_scratch], out);
    return out;
}

rx_id rx_seq_of(struct rx_pool *p, const rx_id *parts, size_t n) {
    rx_id out = RX_EMPTY;
    while (n-- > 0)
        out = rx_seq(p, parts[n], out);
    return out;
}

rx_id rx_bytes(struct rx_pool *p, struct str literal) {
    rx_id out = RX_EMPTY;
    for (size_t i = literal.len; i-- > 0;)
        out = rx_seq_as_is(p, rx_byte_range(p, (uint8_t)literal.ptr[i], (uint8_t)literal.ptr[i]), out);
    return out;
}

static int by_id(const void *a, const void *b) {
    rx_id x = *(const rx_id *)a, y = *(const rx_id *)b;
    return x < y ? -1 : x > y;
}

/* Most lists are short, and nearly sorted. */
static void sort_ids(rx_id *ids, size_t n) {
    enum { SHORT = 48 };
    if (n > SHORT) {
        qsort(ids, n, sizeof *ids, by_id);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        rx_id id = ids[i];
        size_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

/* Takes the sets of bytes among parts together to one. */
static size_t join_sets(struct rx_pool *p, enum rx_kind kind, rx_id *parts, size_t n) {
    struct rx_set set = {0};
    size_t out = 0, n_sets = 0;
    rx_id only = 0;
    for (size_t i = 0; i < n; i++) {
        const struct rx_node *x = &p->nodes[parts[i]];
        if (x->kind != RX_K_BYTES) {
            parts[out++] = parts[i];
            continue;
        }
        const struct rx_set *s = &p->sets[x->a];
        for (int w = 0; w < 4; w++)
            set.w[w] = n_sets == 0 ? s->w[w] : kind == RX_K_ALT ? set.w[w] | s->w[w] : set.w[w] & s->w[w];
        only = parts[i];
        n_sets++;
    }
    if (n_sets)
        parts[out++] = n_sets == 1 ? only : rx_of_set(p, &set);
    return out;
}

static rx_id list_node(struct rx_pool *p, enum rx_kind kind, const rx_id *parts, size_t n) {
    struct rx_node node = {.kind = kind, .b = (uint32_t)n, .flags = kind == RX_K_AND ? RX_NULLABLE | RX_BOOLEAN : 0};
    struct rx_hash key = {n, kind}; // commutative: numbers, and so the order of parts, differ from pool to pool
    for (size_t i = 0; i < n; i++) {
        const struct rx_node *x = &p->nodes[parts[i]];
        if (kind == RX_K_ALT)
            node.flags |= x->flags & RX_NULLABLE;
        else
            node.flags &= (uint8_t)(x->flags | ~RX_NULLABLE);
        node.flags |= inherited(x);
        node.depth = MAX(node.depth, (uint16_t)(x->depth + 1));
        XXH128_hash_t h = XXH3_128bits(&x->id, sizeof x->id);
        key.lo += h.low64;
        key.hi += h.high64;
    }
    return rx_intern(p, node, parts, &key, sizeof key);
}

/* Sorted, flat, each once; what decides the whole does so. */
rx_id rx_list(struct rx_pool *p, enum rx_kind kind, rx_id *parts, size_t n) {
    rx_id zero = kind == RX_K_ALT ? RX_ALL : RX_NEVER, one = kind == RX_K_ALT ? RX_NEVER : RX_ALL;
    size_t mark = p->n_scratch;
    for (size_t i = 0; i < n; i++) {
        const struct rx_node x = p->nodes[parts[i]];
        const uint32_t *from = x.kind == kind ? p->lists + x.a : &parts[i];
        for (size_t k = 0; k < (x.kind == kind ? x.b : 1); k++)
            if (from[k] != one) {
                RX_GROW(p->scratch, p->n_scratch, p->cap_scratch);
                p->scratch[p->n_scratch++] = from[k];
            }
    }
    size_t m = p->n_scratch - mark;
    p->n_scratch = mark;
    if (m == 0)
        return one;
    // The constructors below this line use the scratch too: what is listed moves out of it.
    rx_id small[64], *list = m <= ARRAY_LEN(small) ? small : xmalloc(m * sizeof *list);
    memcpy(list, p->scratch + mark, m * sizeof *list);
    m = join_sets(p, kind, list, m);
    sort_ids(list, m);
    size_t out = 0;
    bool zeroed = false, empty_is_within = false;
    for (size_t i = 0; i < m && kind == RX_K_ALT; i++)
        empty_is_within |= list[i] != RX_EMPTY && rx_nullable(p, list[i]);
    for (size_t i = 0; i < m; i++) {
        zeroed |= list[i] == zero;
        if ((out == 0 || list[out - 1] != list[i]) && !(list[i] == RX_EMPTY && empty_is_within))
            list[out++] = list[i];
    }
    bool nothing_more = false; // (the empty text) and (x): decided by whether x takes it
    if (kind == RX_K_AND)
        for (size_t i = 0; i < out; i++)
            nothing_more |= list[i] == RX_EMPTY;
    rx_id result;
    if (zeroed)
        result = zero;
    else if (nothing_more) {
        result = RX_EMPTY;
        for (size_t i = 0; i < out; i++)
            if (!rx_nullable(p, list[i]))
                result = RX_NEVER;
    } else
        result = out == 1 ? list[0] : list_node(p, kind, list, out);
    if (list != small)
        free(list);
    return result;
}

rx_id rx_alt_of(struct rx_pool *p, const rx_id *parts, size_t n) {
    rx_id *copy = xmalloc((n + 1) * sizeof *copy);
    if (n)
        memcpy(copy, parts, n * sizeof *copy);
    rx_id out = rx_list(p, RX_K_ALT, copy, n);
    free(copy);
    return out;
}
rx_id rx_alt(struct rx_pool *p, rx_id a, rx_id b) { return rx_list(p, RX_K_ALT, (rx_id[]){a, b}, 2); }
rx_id rx_and(struct rx_pool *p, rx_id a, rx_id b) { return rx_list(p, RX_K_AND, (rx_id[]){a, b}, 2); }

void rx_set_bound(struct rx_pool *p, rx_id a, rx_id bound) {
    struct rx_node *x = &p->nodes[a];
    if (x->kind == RX_K_AND && x->b == 2 && (p->lists[x->a] == bound || p->lists[x->a + 1] == bound))
        x->max = (int32_t)bound;
}

rx_id rx_at_most(struct rx_pool *p, rx_id a, rx_id bound) {
    rx_id out = rx_and(p, a, bound);
    rx_set_bound(p, out, bound);
    return out;
}

rx_id rx_not(struct rx_pool *p, rx_id a) {
    if (a == RX_NEVER || a == RX_ALL)
        return a == RX_NEVER ? RX_ALL : RX_NEVER;
    const struct rx_node *x = &p->nodes[a];
    if (x->kind == RX_K_NOT)
        return x->a;
    struct rx_node n = {.kind = RX_K_NOT, .a = a, .depth = (uint16_t)(x->depth + 1)};
    n.flags = (uint8_t)((~x->flags & RX_NULLABLE) | inherited(x) | RX_BOOLEAN);
    return rx_intern(p, n, NULL, &x->id, sizeof x->id);
}

/* Alternatives but for the empty text, where that is one. */
static rx_id without_empty(struct rx_pool *p, rx_id a) {
    const struct rx_node x = p->nodes[a];
    if (x.kind != RX_K_ALT)
        return a;
    rx_id *parts = xmalloc(x.b * sizeof *parts);
    size_t n = 0;
    for (uint32_t i = 0; i < x.b; i++)
        if (p->lists[x.a + i] != RX_EMPTY)
            parts[n++] = p->lists[x.a + i];
    rx_id out = n == x.b ? a : rx_list(p, RX_K_ALT, parts, n);
    free(parts);
    return out;
}

rx_id rx_repeat(struct rx_pool *p, rx_id a, int32_t min, int32_t max) {
    const struct rx_node *x = &p->nodes[a];
    min = MAX(min, 0);
    if (max != RX_NO_MAX && max < min)
        return RX_NEVER;
    if (max == 0 || a == RX_EMPTY)
        return RX_EMPTY;
    if (a == RX_NEVER)
        return min == 0 ? RX_EMPTY : RX_NEVER;
    if (min == 1 && max == 1)
        return a;
    if (x->flags & RX_NULLABLE) {
        rx_id body = without_empty(p, a);
        if (body != a)
            return rx_repeat(p, body, 0, max);
        min = 0;
    }
    int32_t product;
    if (min == 0 && max != RX_NO_MAX && x->kind == RX_K_REPEAT && x->min == 0 && x->max != RX_NO_MAX &&
        !__builtin_mul_overflow(max, x->max, &product))
        return rx_repeat(p, x->a, 0, product); // (x{0,n}){0,m}: else a count has many ways to be reached
    if (x->kind == RX_K_REPEAT && x->min == 0 && x->max == RX_NO_MAX)
        return a; // (x*){m,n}: m is 0 here
    if (a == RX_ALL)
        return RX_ALL;
    struct rx_node n = {.kind = RX_K_REPEAT, .a = a, .min = min, .max = max, .depth = (uint16_t)(x->depth + 1)};
    n.flags = (uint8_t)((min == 0 ? RX_NULLABLE : 0) | inherited(x));
    if (min > 1 || max != RX_NO_MAX)
        n.flags |= RX_COUNTS;
    struct {
        struct rx_hash a;
        int64_t min, max;
    } key = {x->id, min, max};
    return rx_intern(p, n, NULL, &key, sizeof key);
}

rx_id rx_optional(struct rx_pool *p, rx_id a) { return rx_alt(p, RX_EMPTY, a); }

bool rx_nullable(const struct rx_pool *p, rx_id a) { return p->nodes[a].flags & RX_NULLABLE; }
