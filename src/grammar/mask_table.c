/* mask_table.c - see mask_table.h. */
#include "grammar/mask_table.h"

#include <stdlib.h>

struct pending {
    uint32_t node, end; // an exit whose subtree is being walked
    uint32_t n_dead;    // when it was entered
    uint32_t exit;      // its place in the list
};

struct building {
    const struct token_trie *trie;
    struct rx_pool *pool;
    uint32_t *states, *others, *ends; // by depth
    struct pending *pending;
    uint32_t n_pending;
    uint32_t *exits;
    uint32_t n_exits, cap_exits, n_dead;
    uint32_t *stay;
    uint32_t n_stay;
    struct number_map leaving_of; // state -> place in leaving
    VEC(struct kinds) leaving;
};

static void put_exit(struct building *b, uint32_t node, uint32_t end) {
    RX_GROW(b->exits, b->n_exits, b->cap_exits);
    b->pending[b->n_pending++] = (struct pending){node, end, b->n_dead, b->n_exits};
    b->exits[b->n_exits++] = node;
}

/* Takes exits out below which every token stays anyway. */
static void close_pending(struct building *b, uint32_t at) {
    while (b->n_pending && at >= b->pending[b->n_pending - 1].end) {
        const struct pending *p = &b->pending[--b->n_pending];
        if (p->n_dead == b->n_dead)
            b->exits[p->exit] = UINT32_MAX;
    }
}

/* Tokens of nodes [first_node, end_node) stay. */
static void put_tokens(struct building *b, uint32_t first_node, uint32_t end_node) {
    const struct token_trie *t = b->trie;
    for (uint32_t i = t->first_token[first_node]; i < t->first_token[end_node]; i++)
        b->stay[t->order[i] / 32] |= 1u << (t->order[i] % 32);
    b->n_stay += t->first_token[end_node] - t->first_token[first_node];
}

/* Whether every character beyond ASCII leads from a state back to it. */
static bool loops_on_characters(struct rx_pool *p, rx_id state) {
    struct {
        rx_id at;
        uint8_t utf8;
    } todo[32];
    size_t n = 1;
    todo[0].at = state;
    todo[0].utf8 = UTF8_BETWEEN;
    for (size_t i = 0; i < n; i++)
        for (unsigned byte = 0x80; byte < 0x100; byte++) {
            uint8_t utf8 = utf8_next(todo[i].utf8, (uint8_t)byte);
            if (utf8 == UTF8_ILL)
                continue;
            rx_id next = rx_step(p, todo[i].at, (uint8_t)byte);
            if (utf8 == UTF8_BETWEEN && next != state)
                return false;
            size_t known = 0;
            while (known < n && (todo[known].at != next || todo[known].utf8 != utf8))
                known++;
            if (known == ARRAY_LEN(todo))
                return false;
            if (known == n && utf8 != UTF8_BETWEEN) {
                todo[n].at = next;
                todo[n++].utf8 = utf8;
            }
        }
    return true;
}

/* The kinds of bytes on which a state does not stay what it is. */
static const struct kinds *leaving(struct building *b, rx_id state) {
    struct rx_pool *p = b->pool;
    uint32_t *known = number_map_find(&b->leaving_of, state);
    if (known)
        return &b->leaving.at[*known];
    struct kinds kinds = {0};
    bool stays = false;
    kinds_add(&kinds, KIND_ILL_FORMED);
    for (unsigned c = 0; c < 0x80; c++)
        if (rx_step(p, state, (uint8_t)c) != state)
            kinds_add_ascii(&kinds, (uint8_t)c);
        else
            stays = true;
    if (!stays || !loops_on_characters(p, state))
        kinds_add(&kinds, KIND_CHARACTER);
    VEC_PUSH(b->leaving, kinds);
    number_map_put(&b->leaving_of, state, (uint32_t)b->leaving.n - 1);
    return &b->leaving.at[b->leaving.n - 1];
}

/* Whether a state stays what it is on everything below a node. */
static bool stays_below(struct building *b, uint32_t node, rx_id state) {
    return b->trie->nodes[node].skip > 1 && !kinds_meet(b->trie->below[node], *leaving(b, state));
}

static void walk(struct building *b, rx_id state) {
    const struct token_trie *t = b->trie;
    uint32_t depth = 0;
    b->states[0] = state;
    b->ends[0] = t->n_nodes;
    for (uint32_t i = 0; i < t->n_nodes && b->pool->failed == OK;) {
        while (i >= b->ends[depth])
            depth--;
        close_pending(b, i);
        const struct token_node *node = &t->nodes[i];
        rx_id next = rx_step(b->pool, b->states[depth], node->byte);
        if (next == RX_NEVER) {
            b->n_dead++;
            i += node->skip;
            continue;
        }
        if (stays_below(b, i, next)) { // what may end within stays too
            put_tokens(b, i, i + node->skip);
            i += node->skip;
            continue;
        }
        put_tokens(b, i, i + 1);
        if (node->skip > 1) {
            b->states[++depth] = next;
            b->ends[depth] = i + node->skip;
            if (rx_accepts(b->pool, next))
                put_exit(b, i, i + node->skip);
        }
        i++;
    }
    close_pending(b, t->n_nodes);
}

/* Appends the base's exits in [first, end), from place *at of its list on. */
static void copy_exits(struct building *b, const struct mask_table *base, uint32_t *at, uint32_t first, uint32_t end) {
    while (*at < base->n_exits && base->exits[*at] < first)
        ++*at;
    for (; *at < base->n_exits && base->exits[*at] < end; ++*at) {
        RX_GROW(b->exits, b->n_exits, b->cap_exits);
        b->exits[b->n_exits++] = base->exits[*at];
    }
}

static void clear_tokens(struct building *b, uint32_t first, uint32_t end) {
    const struct token_trie *t = b->trie;
    for (uint32_t i = t->first_token[first]; i < t->first_token[end]; i++)
        b->stay[t->order[i] / 32] &= ~(1u << (t->order[i] % 32));
}

/* Whether two states behave alike for the next `height` bytes, as far as it is easily seen. */
static bool alike(struct rx_pool *pool, rx_id x, rx_id y, int height) {
    if (x == y)
        return true;
    if (!((pool->nodes[x].flags | pool->nodes[y].flags) & RX_COUNTS) || x == RX_NEVER || y == RX_NEVER)
        return false;
    rx_id free_x, free_y;
    return rx_slack(pool, x, &free_x) >= height && rx_slack(pool, y, &free_y) >= height && free_x == free_y;
}

/* The same as walk, but beside a state whose table is known: below a node where the two behave alike the table's answer
 * holds, and nothing is looked at. */
static void walk_beside(struct building *b, rx_id state, rx_id beside, const struct mask_table *base) {
    const struct token_trie *t = b->trie;
    uint32_t depth = 0, copied = 0;
    memcpy(b->stay, base->stay, (size_t)t->n_words * sizeof *b->stay);
    b->n_stay = (uint32_t)t->n_words + 1; // kept as bits
    b->states[0] = state;
    b->others[0] = beside;
    b->ends[0] = t->n_nodes;
    for (uint32_t i = 0; i < t->n_nodes && b->pool->failed == OK;) {
        while (i >= b->ends[depth])
            depth--;
        close_pending(b, i);
        const struct token_node *node = &t->nodes[i];
        rx_id next = rx_step(b->pool, b->states[depth], node->byte);
        rx_id other = b->others[depth] == RX_NEVER ? RX_NEVER : rx_step(b->pool, b->others[depth], node->byte);
        if (alike(b->pool, next, other, node->height) || next == RX_NEVER) {
            if (next == RX_NEVER && other != RX_NEVER)
                clear_tokens(b, i, i + node->skip);
            else
                copy_exits(b, base, &copied, i, i + node->skip);
            b->n_dead++; // or not: what stands above is kept as an exit
            i += node->skip;
            continue;
        }
        if (stays_below(b, i, next)) {
            put_tokens(b, i, i + node->skip);
            i += node->skip;
            continue;
        }
        put_tokens(b, i, i + 1);
        if (node->skip > 1) {
            b->states[++depth] = next;
            b->others[depth] = other;
            b->ends[depth] = i + node->skip;
            if (rx_accepts(b->pool, next))
                put_exit(b, i, i + node->skip);
        }
        i++;
    }
    close_pending(b, t->n_nodes);
}

static void *kept(const void *from, size_t n, size_t size, size_t *bytes) {
    void *out = xmalloc(n * size + 1);
    memcpy(out, from, n * size);
    *bytes += n * size;
    return out;
}

/* The result in as little memory as it takes. */
static struct mask_table *table_of(struct building *b) {
    const struct token_trie *t = b->trie;
    struct mask_table *table = xcalloc(1, sizeof *table);
    table->bytes = sizeof *table;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_exits; i++)
        if (b->exits[i] != UINT32_MAX) {
            table->n_below += t->nodes[b->exits[i]].skip - 1;
            b->exits[n++] = b->exits[i];
        }
    table->exits = kept(b->exits ? b->exits : &n, b->exits ? n : 0, sizeof *b->exits, &table->bytes);
    table->n_exits = n;
    if (b->n_stay > (uint32_t)t->n_words) {
        table->stay = kept(b->stay, (size_t)t->n_words, sizeof *b->stay, &table->bytes);
        return table;
    }
    table->few = xmalloc((b->n_stay + 1) * sizeof *table->few);
    table->bytes += b->n_stay * sizeof *table->few;
    for (int32_t w = 0; w < t->n_words; w++)
        for (uint32_t bits = b->stay[w]; bits; bits &= bits - 1)
            table->few[table->n_few++] = 32 * w + __builtin_ctz(bits);
    return table;
}

/* base NULL: by itself; else the table of `beside`. */
static struct mask_table *build(const struct token_trie *t, struct rx_pool *pool, rx_id state, rx_id beside,
                                const struct mask_table *base) {
    size_t depth = (size_t)t->max_depth + 2;
    struct building b = {.trie = t, .pool = pool};
    b.states = xmalloc(3 * depth * sizeof *b.states);
    b.others = b.states + depth;
    b.ends = b.others + depth;
    b.pending = xmalloc(depth * sizeof *b.pending);
    b.stay = xcalloc((size_t)t->n_words, sizeof *b.stay);
    if (base)
        walk_beside(&b, state, beside, base);
    else
        walk(&b, state);
    struct mask_table *table = pool->failed == OK ? table_of(&b) : NULL;
    free(b.states);
    free(b.pending);
    free(b.stay);
    free(b.exits);
    free(b.leaving_of.slots);
    free(b.leaving.at);
    return table;
}

static void table_free(struct mask_table *table) {
    free(table->stay);
    free(table->few);
    free(table->exits);
    free(table);
}

static struct mask_table *find(struct token_trie *t, struct rx_hash key) {
    uint64_t at = number_index_begin(&t->table_index, key.lo);
    for (uint32_t n; (n = number_index_next(&t->table_index, key.lo, &at));) {
        struct mask_table *table = t->tables[n - 1];
        if (table->key.hi == key.hi)
            return table;
    }
    return NULL;
}

/* Drops tables that only the trie holds, and indexes the others anew. */
static void drop_unused(struct token_trie *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_tables; i++) {
        if (t->tables[i]->references > 1) {
            t->tables[n++] = t->tables[i];
            continue;
        }
        t->table_bytes -= t->tables[i]->bytes;
        table_free(t->tables[i]);
    }
    t->n_tables = n;
    free(t->table_index.slots);
    t->table_index = (struct number_index){0};
    for (uint32_t i = 0; i < n; i++)
        number_index_put(&t->table_index, t->tables[i]->key.lo, i + 1);
}

static void put_into(struct token_trie *t, struct mask_table *table) {
    if (t->table_bytes + table->bytes > TABLES_MAX_BYTES)
        drop_unused(t);
    RX_GROW(t->tables, t->n_tables, t->cap_tables);
    t->tables[t->n_tables++] = table;
    t->table_bytes += table->bytes;
    number_index_put(&t->table_index, table->key.lo, t->n_tables);
}

/* The state that most bytes lead to, if it is one that most bytes leave as it is: the inside of a string, as seen from
 * where a key may still become one of some names. Or the state without its counters. RX_NEVER: there is none. */
static rx_id find_beside(struct rx_pool *pool, rx_id state) {
    enum { FEW_ROUNDS = 6, MANY_ROUNDS = 24 };
    rx_id free;
    rx_id counter = state;
    while (pool->nodes[counter].kind == RX_K_SEQ)
        counter = pool->nodes[counter].a;
    bool must_be = pool->nodes[counter].kind == RX_K_REPEAT && pool->nodes[counter].min > 1; // then few share its table
    if (rx_slack(pool, state, &free) >= (must_be ? MANY_ROUNDS : FEW_ROUNDS) && free != state)
        return free;
    for (unsigned byte = 'a'; byte <= 'z'; byte += 5) {
        rx_id next = rx_step(pool, state, (uint8_t)byte);
        if (next != state && next != RX_NEVER && rx_step(pool, next, 'e') == next && rx_step(pool, next, 'T') == next)
            return next;
    }
    return RX_NEVER;
}

/* depth: of tables that this one is a base of; two states may each be beside the other. */
static struct mask_table *get(struct token_trie *t, struct rx_pool *pool, rx_id state, int depth) {
    enum { MAX_DEPTH = 2 };
    state = rx_clamp(pool, state, (int)t->max_depth);
    struct rx_hash key = pool->nodes[state].id;
    pthread_mutex_lock(&t->lock);
    struct mask_table *table = find(t, key);
    if (table)
        table->references++;
    pthread_mutex_unlock(&t->lock);
    if (table)
        return table;
    rx_id beside = depth == MAX_DEPTH ? RX_NEVER : rx_clamp(pool, find_beside(pool, state), (int)t->max_depth);
    struct mask_table *base = beside == RX_NEVER || beside == state ? NULL : get(t, pool, beside, depth + 1);
    struct mask_table *made = build(t, pool, state, beside, base && base->stay ? base : NULL);
    if (base)
        mask_table_put(t, base);
    if (!made)
        return NULL;
    made->key = key;
    pthread_mutex_lock(&t->lock);
    table = find(t, key); // another thread may have been faster
    if (!table) {
        made->references = 1;
        put_into(t, made);
        table = made;
    } else
        table_free(made);
    table->references++;
    pthread_mutex_unlock(&t->lock);
    return table;
}

struct mask_table *mask_table_get(struct token_trie *t, struct rx_pool *pool, rx_id state) {
    return get(t, pool, state, 0);
}

void mask_table_put(struct token_trie *t, struct mask_table *table) {
    pthread_mutex_lock(&t->lock);
    table->references--;
    pthread_mutex_unlock(&t->lock);
}

void mask_tables_free(struct token_trie *t) {
    for (uint32_t i = 0; i < t->n_tables; i++)
        table_free(t->tables[i]);
    free(t->tables);
    free(t->table_index.slots);
}
