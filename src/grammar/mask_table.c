/* mask_table.c - see mask_table.h. */
#include "grammar/mask_table.h"

#include "grammar/mask_states.h"

#include <stdlib.h>

struct pending {
    uint32_t node, end; // an exit whose subtree is being walked
    uint32_t n_dead;    // when it was entered
    uint32_t exit;      // its place in the list
};

struct building {
    struct token_trie *trie;
    struct rx_pool *pool;
    uint32_t *states, *others, *ends, *other_ends; // by depth: states by their numbers
    struct pending *pending;
    uint32_t n_pending;
    uint32_t *exits;
    uint32_t n_exits, cap_exits, n_dead;
    uint32_t *stay;
    uint32_t n_stay;
    struct mask_states all;
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

/* Whether every token below a node stays. */
static bool stays_below(struct building *b, uint32_t node, uint32_t state) {
    const struct token_node *n = &b->trie->nodes[node];
    if (n->skip == 1)
        return false;
    const struct mask_state *x = mask_state_safe(&b->all, state);
    if (kinds_are_within(b->trie->below[node], x->safe))
        return true;
    return x->free != state && x->slack >= n->height &&
           kinds_are_within(b->trie->below[node], mask_state_safe(&b->all, x->free)->safe);
}

/* Walks nodes [first, end), siblings and what is below them. */
static void walk(struct building *b, uint32_t state, uint32_t first, uint32_t end) {
    const struct token_trie *t = b->trie;
    uint32_t depth = 0;
    b->states[0] = state;
    b->ends[0] = end;
    for (uint32_t i = first; i < end && b->pool->failed == OK;) {
        while (i >= b->ends[depth])
            depth--;
        close_pending(b, i);
        const struct token_node *node = &t->nodes[i];
        uint32_t next = mask_state_step(&b->all, b->states[depth], node->byte);
        if (next == 0) {
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
            if (b->all.at.at[next].accepts)
                put_exit(b, i, i + node->skip);
        }
        i++;
    }
}

static void clear_tokens(struct building *b, uint32_t first, uint32_t end) {
    const struct token_trie *t = b->trie;
    for (uint32_t i = t->first_token[first]; i < t->first_token[end]; i++)
        b->stay[t->order[i] / 32] &= ~(1u << (t->order[i] % 32));
}

/* ---- from a state with many safe kinds: tokens of these alone are not looked at ---- */

/* The way to bytes that are neither safe nor fatal; NULL: it is too long. */
static const struct way *find_way(struct building *b, uint32_t state) {
    enum { SAFE = 24, PRINTABLE = 8 };
    const struct mask_state *x = mask_state_safe(&b->all, state);
    struct kinds others = {{~(x->safe.w[0] | x->fatal.w[0]), ~(x->safe.w[1] | x->fatal.w[1])}};
    struct kinds printable = {{others.w[0] >> 32 << 32, others.w[1]}};
    if (kinds_count(x->safe) < SAFE || kinds_count(printable) > PRINTABLE)
        return NULL;
    return trie_way(b->trie, others, x->fatal);
}

/* The same as walk, from the root. Nodes behind safe bytes are on the way or below none that is; what they say of
 * tokens holds already. like: the state that the way is of; most: how many safe characters there may be; -1 and
 * MAX_COUNTED: any number. */
static void walk_way(struct building *b, uint32_t state, const struct way *way, uint32_t like, int most) {
    const struct token_trie *t = b->trie;
    const struct mask_state x = *mask_state_safe(&b->all, like);
    uint32_t depth = 0, *states = b->others, *ends = b->other_ends;
    memcpy(b->stay, way->tokens, (size_t)t->n_words * sizeof *b->stay);
    b->n_stay = (uint32_t)t->n_words + 1; // kept as bits
    for (int32_t w = 0; most >= 0 && most < MAX_COUNTED && w < t->n_words; w++)
        b->stay[w] &= t->at_most[(size_t)most * (size_t)t->n_words + (size_t)w];
    states[0] = state;
    ends[0] = t->n_nodes;
    for (uint32_t n = 0; n < way->n && b->pool->failed == OK;) {
        uint32_t i = way->nodes[n], end = i + t->nodes[i].skip;
        while (i >= ends[depth])
            depth--;
        close_pending(b, i);
        uint32_t next = mask_state_step(&b->all, states[depth], t->nodes[i].byte);
        bool safe = kinds_have(x.safe, t->kind[i]);
        if (safe || kinds_have(x.fatal, t->kind[i]))
            b->n_dead += !safe;
        else {
            clear_tokens(b, i, end);
            b->n_dead += next == 0;
            if (next)
                put_tokens(b, i, i + 1);
        }
        if (next && end > i + 1 && b->all.at.at[next].accepts)
            put_exit(b, i, end);
        if (safe && next) { // else the characters were too many
            states[++depth] = next;
            ends[depth] = end;
            n++;
            continue;
        }
        b->n_dead += safe;
        if (next)
            walk(b, next, i + 1, end);
        while (n < way->n && way->nodes[n] < end)
            n++;
    }
}

// ---- beside a state whose table is known ------------------------------------------------------------------------

/* Appends the base's exits in [first, end), from place *at of its list on. */
static void copy_exits(struct building *b, const struct mask_table *base, uint32_t *at, uint32_t first, uint32_t end) {
    while (*at < base->n_exits && base->exits[*at] < first)
        ++*at;
    for (; *at < base->n_exits && base->exits[*at] < end; ++*at) {
        RX_GROW(b->exits, b->n_exits, b->cap_exits);
        b->exits[b->n_exits++] = base->exits[*at];
    }
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

static bool may_count(const struct building *b, uint32_t state) {
    return b->pool->nodes[b->all.at.at[state].id].flags & RX_COUNTS;
}

/* The same as walk, but beside a state whose table is known: below a node where the two behave alike the table's answer
 * holds, and nothing is looked at. */
static void walk_beside(struct building *b, uint32_t state, uint32_t beside, const struct mask_table *base) {
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
        uint32_t next = mask_state_step(&b->all, b->states[depth], node->byte);
        uint32_t other = mask_state_step(&b->all, b->others[depth], node->byte);
        if (next == 0 || alike(b->pool, b->all.at.at[next].id, b->all.at.at[other].id, node->height)) {
            if (next == 0 && other != 0)
                clear_tokens(b, i, i + node->skip);
            else
                copy_exits(b, base, &copied, i, i + node->skip);
            b->n_dead++; // or not: what stands above is kept as an exit
            i += node->skip;
            continue;
        }
        if (may_count(b, next) && stays_below(b, i, next)) {
            put_tokens(b, i, i + node->skip);
            i += node->skip;
            continue;
        }
        put_tokens(b, i, i + 1);
        if (node->skip > 1) {
            b->states[++depth] = next;
            b->others[depth] = other;
            b->ends[depth] = i + node->skip;
            if (b->all.at.at[next].accepts)
                put_exit(b, i, i + node->skip);
        }
        i++;
    }
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

static void table_free(struct mask_table *table) {
    free(table->stay);
    free(table->few);
    free(table->exits);
    free(table);
}

static struct mask_table *get(struct token_trie *t, struct rx_pool *pool, rx_id state, int depth);

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

/* The state without its counters, where a text of some length does not meet them. RX_NEVER: there is none. */
static rx_id find_uncounted(struct rx_pool *pool, rx_id state) {
    enum { FEW_ROUNDS = 6, MANY_ROUNDS = 24 };
    rx_id free;
    rx_id counter = state;
    if (pool->nodes[state].flags & RX_BOOLEAN) // rounds for ever have no end, which it would be searched for
        return RX_NEVER;
    while (pool->nodes[counter].kind == RX_K_SEQ)
        counter = pool->nodes[counter].a;
    bool must_be = pool->nodes[counter].kind == RX_K_REPEAT && pool->nodes[counter].min > 1; // then few share its table
    bool far = rx_slack(pool, state, &free) >= (must_be ? MANY_ROUNDS : FEW_ROUNDS);
    return far && free != state ? free : RX_NEVER;
}

/* The state that most bytes lead to, if it is one that most bytes leave as it is: the inside of a string, as seen from
 * where a key may still become one of some names. RX_NEVER: there is none. */
static rx_id find_beside(struct rx_pool *pool, rx_id state) {
    for (unsigned byte = 'a'; byte <= 'z'; byte += 5) {
        rx_id next = rx_step(pool, state, (uint8_t)byte);
        if (next != state && next != RX_NEVER && rx_step(pool, next, 'e') == next && rx_step(pool, next, 'T') == next)
            return next;
    }
    return RX_NEVER;
}

/* depth: of tables that this one is a base of; two states may each be beside the other. */
static struct mask_table *build(struct token_trie *t, struct rx_pool *pool, rx_id state, int depth) {
    enum { MAX_DEPTH = 2 };
    size_t n = (size_t)t->max_depth + 2;
    struct building b = {.trie = t, .pool = pool};
    mask_states_init(&b.all, pool);
    b.states = xmalloc(4 * n * sizeof *b.states);
    b.others = b.states + n;
    b.ends = b.others + n;
    b.other_ends = b.ends + n;
    b.pending = xmalloc(n * sizeof *b.pending);
    b.stay = xcalloc((size_t)t->n_words, sizeof *b.stay);
    uint32_t first = mask_state_number(&b.all, state);
    uint32_t like = first;
    int most = mask_state_counted(&b.all, first, &like);
    const struct way *way = find_way(&b, most < 0 ? first : like);
    rx_id beside = way || depth == MAX_DEPTH ? RX_NEVER : find_uncounted(pool, state);
    if (beside == RX_NEVER && !way && depth < MAX_DEPTH)
        beside = find_beside(pool, state);
    beside = rx_clamp(pool, beside, (int)t->max_depth);
    struct mask_table *base = beside == RX_NEVER || beside == state ? NULL : get(t, pool, beside, depth + 1);
    if (way)
        walk_way(&b, first, way, most < 0 ? first : like, most);
    else if (base && base->stay)
        walk_beside(&b, first, mask_state_number(&b.all, beside), base);
    else
        walk(&b, first, 0, t->n_nodes);
    close_pending(&b, t->n_nodes);
    if (base)
        mask_table_put(t, base);
    struct mask_table *table = pool->failed == OK ? table_of(&b) : NULL;
    mask_states_release(&b.all);
    free(b.states);
    free(b.pending);
    free(b.stay);
    free(b.exits);
    return table;
}

static struct mask_table *get(struct token_trie *t, struct rx_pool *pool, rx_id state, int depth) {
    state = rx_clamp(pool, state, (int)t->max_depth);
    struct rx_hash key = pool->nodes[state].id;
    pthread_mutex_lock(&t->lock);
    struct mask_table *table = find(t, key);
    if (table)
        table->references++;
    pthread_mutex_unlock(&t->lock);
    if (table)
        return table;
    struct mask_table *made = build(t, pool, state, depth);
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
