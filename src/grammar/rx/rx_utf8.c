/* rx_utf8.c - classes of characters and lists of literals as expressions over bytes. See rx.h. */
#include "grammar/rx_pool.h"

static int by_first(const void *a, const void *b) {
    uint32_t x = ((const struct code_range *)a)->first, y = ((const struct code_range *)b)->first;
    return x < y ? -1 : x > y;
}

/* Appends what of [first, last] is in [low, high]. */
static void put_within(struct code_range *out, size_t *n, uint32_t first, uint32_t last, uint32_t low, uint32_t high) {
    first = MAX(first, low);
    last = MIN(last, high);
    if (first <= last)
        out[(*n)++] = (struct code_range){first, last};
}

/* Sorted, apart, without surrogates; out has room for 2n. */
static size_t normalised(const struct code_range *ranges, size_t n, struct code_range *out) {
    struct code_range *sorted = xmalloc((n + 1) * sizeof *sorted);
    if (n)
        memcpy(sorted, ranges, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_first);
    size_t m = 0, k = 0;
    for (size_t i = 0; i < n; i++)
        if (m && sorted[i].first <= sorted[m - 1].last + (sorted[m - 1].last < UINT32_MAX))
            sorted[m - 1].last = MAX(sorted[m - 1].last, sorted[i].last);
        else
            sorted[m++] = sorted[i];
    for (size_t i = 0; i < m; i++) {
        put_within(out, &k, sorted[i].first, sorted[i].last, 0, 0xD7FF);
        put_within(out, &k, sorted[i].first, sorted[i].last, 0xE000, 0x10FFFF);
    }
    free(sorted);
    return k;
}

struct utf8_build {
    struct rx_pool *pool;
    const struct code_range *ranges;
    size_t n;
};

static rx_id tail_of(struct utf8_build *u, size_t at, uint32_t base, int n_bytes);

/* Alternatives (a byte from `lead` + v) (the rest), v in [v0, v1], of code points base + v << shift; bytes with the
 * same rest are one set. */
static rx_id lead_of(struct utf8_build *u, size_t at, uint32_t base, int n_rest, unsigned lead, unsigned v0,
                     unsigned v1) {
    struct {
        rx_id rest;
        struct rx_set set;
    } groups[65];
    size_t n_groups = 0;
    for (unsigned v = v0; v <= v1; v++) {
        rx_id rest = tail_of(u, at, base + (v << (6 * n_rest)), n_rest);
        if (rest == RX_NEVER)
            continue;
        size_t g = 0;
        while (g < n_groups && groups[g].rest != rest)
            g++;
        if (g == n_groups) {
            groups[n_groups].rest = rest;
            groups[n_groups++].set = (struct rx_set){0};
        }
        rx_set_add(&groups[g].set, lead + v);
    }
    rx_id parts[65];
    for (size_t g = 0; g < n_groups; g++)
        parts[g] = rx_seq_as_is(u->pool, rx_of_set(u->pool, &groups[g].set), groups[g].rest);
    return rx_list(u->pool, RX_K_ALT, parts, n_groups);
}

/* The n_bytes continuation bytes of the code points of the ranges (from `at` on) in [base, base + 64^n_bytes). */
static rx_id tail_of(struct utf8_build *u, size_t at, uint32_t base, int n_bytes) {
    uint32_t end = base + (1u << (6 * n_bytes)) - 1;
    while (at < u->n && u->ranges[at].last < base)
        at++;
    if (at == u->n || u->ranges[at].first > end)
        return RX_NEVER;
    if (n_bytes == 0)
        return RX_EMPTY;
    if (u->ranges[at].first <= base && u->ranges[at].last >= end) {
        rx_id any = rx_byte_range(u->pool, 0x80, 0xBF), out = RX_EMPTY;
        for (int i = 0; i < n_bytes; i++)
            out = rx_seq_as_is(u->pool, any, out);
        return out;
    }
    return lead_of(u, at, base, n_bytes - 1, 0x80, 0, 63);
}

/* One character of sorted ranges that are apart. */
static rx_id class_of(struct rx_pool *pool, const struct code_range *ranges, size_t n) {
    struct code_range *clip = xmalloc((n + 1) * sizeof *clip);
    static const struct {
        uint32_t low, high;
        int n_rest;
        unsigned lead, v0, v1;
    } lengths[] = {
        {0x80, 0x7FF, 1, 0xC0, 2, 0x1F}, {0x800, 0xFFFF, 2, 0xE0, 0, 15}, {0x10000, 0x10FFFF, 3, 0xF0, 0, 4}};
    rx_id parts[4];
    struct rx_set ascii = {0};
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = ranges[i].first; c <= ranges[i].last && c < 0x80; c++)
            rx_set_add(&ascii, c);
    parts[0] = rx_of_set(pool, &ascii);
    for (size_t l = 0; l < ARRAY_LEN(lengths); l++) {
        size_t k = 0;
        for (size_t i = 0; i < n; i++)
            put_within(clip, &k, ranges[i].first, ranges[i].last, lengths[l].low, lengths[l].high);
        struct utf8_build u = {pool, clip, k};
        parts[l + 1] =
            k == 0 ? RX_NEVER : lead_of(&u, 0, 0, lengths[l].n_rest, lengths[l].lead, lengths[l].v0, lengths[l].v1);
    }
    free(clip);
    return rx_list(pool, RX_K_ALT, parts, 4);
}

rx_id rx_class(struct rx_pool *pool, const struct code_range *ranges, size_t n) {
    struct code_range *apart = xmalloc((2 * n + 1) * sizeof *apart);
    size_t m = normalised(ranges, n, apart);
    rx_id out = class_of(pool, apart, m);
    free(apart);
    return out;
}

rx_id rx_not_class(struct rx_pool *pool, const struct code_range *ranges, size_t n) {
    struct code_range *apart = xmalloc((2 * n + 1) * sizeof *apart), *rest = xmalloc((2 * n + 1) * sizeof *rest);
    size_t m = normalised(ranges, n, apart), k = 0;
    uint32_t from = 0;
    for (size_t i = 0; i < m; i++) {
        if (apart[i].first > from)
            rest[k++] = (struct code_range){from, apart[i].first - 1};
        from = apart[i].last + 1;
    }
    if (from <= 0x10FFFF)
        rest[k++] = (struct code_range){from, 0x10FFFF};
    rx_id out = rx_class(pool, rest, k);
    free(apart);
    free(rest);
    return out;
}

rx_id rx_any_char(struct rx_pool *pool) { return rx_class(pool, &(struct code_range){0, 0x10FFFF}, 1); }
rx_id rx_any_text(struct rx_pool *pool) { return rx_repeat(pool, rx_any_char(pool), 0, RX_NO_MAX); }

// ---- lists of literals ------------------------------------------------------------------------------------------

static int by_text(const void *a, const void *b) {
    const struct str *x = a, *y = b;
    int order = memcmp(x->ptr, y->ptr, MIN(x->len, y->len));
    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

static size_t common_prefix(struct str a, struct str b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n])
        n++;
    return n;
}

struct branch {
    size_t first, last, depth; // literals [first, last], which share their first `depth` bytes
    size_t parts;              // where its alternatives begin
};

/* Without a trie: where one literal begins another, and that a third ..., a trie is too deep for derivatives. */
static rx_id flat_choice(struct rx_pool *pool, const struct str *s, size_t n) {
    rx_id *parts = xmalloc((n + 1) * sizeof *parts);
    for (size_t i = 0; i < n; i++)
        parts[i] = rx_bytes(pool, s[i]);
    rx_id out = rx_list(pool, RX_K_ALT, parts, n);
    free(parts);
    return out;
}

enum { MAX_BRANCHES = 200 }; // on the way to a literal

/* The trie, without recursion: a branch is closed when all its alternatives are known. Literals are sorted, each once.
 */
static rx_id trie_of(struct rx_pool *pool, const struct str *s, size_t n) {
    struct branch *stack = NULL;
    rx_id *parts = NULL;
    size_t n_stack = 0, cap_stack = 0, n_parts = 0, cap_parts = 0;
    for (size_t i = 0; i <= n && n_stack <= MAX_BRANCHES; i++) {
        size_t shared = i == 0 || i == n ? 0 : common_prefix(s[i - 1], s[i]);
        bool first = i == 0;
        // Branches deeper than what s[i] shares with s[i - 1] are complete.
        while (!first && n_stack && stack[n_stack - 1].depth > shared) {
            struct branch b = stack[--n_stack];
            rx_id node = rx_list(pool, RX_K_ALT, parts + b.parts, n_parts - b.parts);
            n_parts = b.parts;
            size_t up = n_stack ? MAX(stack[n_stack - 1].depth, shared) : shared;
            node = rx_seq(pool, rx_bytes(pool, (struct str){s[i - 1].ptr + up, b.depth - up}), node);
            if (n_stack == 0 || stack[n_stack - 1].depth < up) {
                RX_GROW(stack, n_stack, cap_stack);
                stack[n_stack++] = (struct branch){.depth = up, .parts = n_parts};
            }
            RX_GROW(parts, n_parts, cap_parts);
            parts[n_parts++] = node;
        }
        if (i == n)
            break;
        size_t next = i + 1 < n ? common_prefix(s[i], s[i + 1]) : 0, at = MAX(shared, next);
        if (n_stack == 0 || stack[n_stack - 1].depth < at) {
            RX_GROW(stack, n_stack, cap_stack);
            stack[n_stack++] = (struct branch){.depth = at, .parts = n_parts};
        }
        RX_GROW(parts, n_parts, cap_parts);
        parts[n_parts++] = rx_bytes(pool, (struct str){s[i].ptr + at, s[i].len - at});
    }
    rx_id out = RX_NEVER;
    if (n_stack > MAX_BRANCHES)
        out = flat_choice(pool, s, n);
    else if (n_stack) // the branch of depth 0
        out = rx_list(pool, RX_K_ALT, parts, n_parts);
    free(stack);
    free(parts);
    return out;
}

rx_id rx_choice(struct rx_pool *pool, struct str *literals, size_t n) {
    qsort(literals, n, sizeof *literals, by_text);
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (m == 0 || !str_eq(literals[m - 1], literals[i]))
            literals[m++] = literals[i];
    return trie_of(pool, literals, m);
}
