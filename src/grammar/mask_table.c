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
    uint32_t *states, *ends; // by depth
    struct pending *pending;
    uint32_t n_pending;
    uint32_t *exits;
    uint32_t n_exits, cap_exits, n_dead;
    uint32_t *stay;
    uint32_t n_stay;
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

static void put_tokens(struct building *b, int32_t token) {
    for (; token >= 0; token = b->trie->next_same[token]) {
        b->stay[token / 32] |= 1u << (token % 32);
        b->n_stay++;
    }
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
        put_tokens(b, node->token);
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

static struct mask_table *build(const struct token_trie *t, struct rx_pool *pool, rx_id state) {
    size_t depth = (size_t)t->max_depth + 2;
    struct building b = {.trie = t, .pool = pool};
    b.states = xmalloc(2 * depth * sizeof *b.states);
    b.ends = b.states + depth;
    b.pending = xmalloc(depth * sizeof *b.pending);
    b.stay = xcalloc((size_t)t->n_words, sizeof *b.stay);
    walk(&b, state);
    struct mask_table *table = pool->failed == OK ? table_of(&b) : NULL;
    free(b.states);
    free(b.pending);
    free(b.stay);
    free(b.exits);
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

struct mask_table *mask_table_get(struct token_trie *t, struct rx_pool *pool, rx_id state) {
    state = rx_clamp(pool, state, (int)t->max_depth);
    struct rx_hash key = pool->nodes[state].id;
    pthread_mutex_lock(&t->lock);
    struct mask_table *table = find(t, key);
    if (table)
        table->references++;
    pthread_mutex_unlock(&t->lock);
    if (table)
        return table;
    struct mask_table *made = build(t, pool, state);
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
