/* mask.c - the mask of a config: the tokens that may come next. See shared.h. */
#include "grammar/shared.h"

static void set_bit(uint32_t *bits, int32_t id) { bits[id / 32] |= 1u << (id % 32); }

/* Sets the bits of the tokens that end at a node. */
static void put_tokens(const struct token_trie *t, uint32_t node, uint32_t *bits) {
    for (uint32_t i = t->first_token[node]; i < t->first_token[node + 1]; i++)
        set_bit(bits, t->order[i]);
}

/* Tokens at and below a node, each by its bytes from a config. */
static void put_exactly(struct shared *s, uint32_t config, uint32_t node, uint32_t *bits) {
    const struct token_trie *t = s->trie;
    uint32_t first = t->first_token[node], end = t->first_token[node + t->nodes[node].skip];
    for (uint32_t i = first; i < end && s->machine->failed == OK; i++)
        if (config_steps(s->machine, config, t->text_of[t->order[i]]))
            set_bit(bits, t->order[i]);
}

/* Walks nodes [first, end), siblings and what is below them, from a config, and sets what is allowed. first_bytes:
 * those that lead on from the config. exact: 0, or a config at the root that is to be asked where distinct members make
 * this one doubtful. */
static void walk(struct shared *s, uint32_t config, const struct rx_set *first_bytes, uint32_t first, uint32_t end,
                 uint32_t exact, uint32_t *bits) {
    const struct token_trie *t = s->trie;
    uint32_t *stack = s->walk, *ends = s->walk + t->max_depth + 2;
    uint32_t depth = 0;
    stack[0] = config;
    ends[0] = end;
    for (uint32_t i = first; i < end;) {
        while (i >= ends[depth])
            depth--;
        const struct token_node *node = &t->nodes[i];
        if (depth == 0 && !rx_set_has(first_bytes, node->byte)) {
            i += node->skip;
            continue;
        }
        uint32_t next = config_step(s->machine, stack[depth], node->byte);
        if (!next) {
            i += node->skip;
            continue;
        }
        if (exact && step_is_doubtful(s->machine, stack[depth], node->byte)) {
            put_exactly(s, exact, i, bits);
            i += node->skip;
            continue;
        }
        put_tokens(t, i, bits);
        if (node->skip > 1) {
            stack[++depth] = next;
            ends[depth] = i + node->skip;
        }
        i++;
    }
}

static void put_specials(struct shared *s, const struct config *c, uint32_t *bits) {
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t terminal = s->machine->threads.at[c->first + i].terminal;
        if (terminal_is_distinct(s->machine, terminal))
            continue;
        const struct token_list *list = &s->token_lists[terminal];
        for (int32_t k = 0; k < list->n; k++)
            set_bit(bits, list->ids[k]);
    }
}

/* The table of a state; NULL where a limit is met. */
static const struct mask_table *table_for(struct shared *s, rx_id state) {
    uint32_t *known = number_map_find(&s->table_of, state);
    if (known)
        return s->tables.at[*known];
    struct mask_table *table = mask_table_get(s->trie, s->machine->rx, state);
    if (!table)
        return NULL;
    VEC_PUSH(s->tables, table);
    number_map_put(&s->table_of, state, (uint32_t)s->tables.n - 1);
    return table;
}

static void put_stay(const struct mask_table *table, uint32_t *bits, int32_t n_words) {
    if (table->stay)
        for (int32_t w = 0; w < n_words; w++)
            bits[w] |= table->stay[w];
    for (uint32_t i = 0; i < table->n_few; i++)
        set_bit(bits, table->few[i]);
}

/* The bytes from the root to a node. */
static struct str path_to(const struct token_trie *t, uint32_t node) {
    size_t depth = 1;
    for (uint32_t i = 0; i != node;)
        if (node < i + t->nodes[i].skip) { // below it
            depth++;
            i++;
        } else
            i += t->nodes[i].skip;
    return (struct str){t->text_of[t->order[t->first_token[node]]].ptr, depth};
}

/* Where few members are left, what may follow one depends on which it is, and so on where in the trie it ends. */
static void put_exits_apart(struct shared *s, struct thread thread, const struct mask_table *table, uint32_t *bits) {
    const struct token_trie *t = s->trie;
    uint32_t from = config_of_thread(s->machine, thread);
    for (uint32_t i = 0; i < table->n_exits && s->machine->failed == OK; i++) {
        uint32_t exit = table->exits[i], config = config_steps(s->machine, from, path_to(t, exit));
        if (!config)
            continue;
        struct rx_set first = config_first_bytes(s->machine, config);
        walk(s, config, &first, exit + 1, exit + t->nodes[exit].skip, 0, bits);
    }
}

/* What one thread allows. */
static void put_thread(struct shared *s, struct thread thread, uint32_t *bits) {
    const struct token_trie *t = s->trie;
    const struct mask_table *table = table_for(s, thread.at);
    if (!table)
        return;
    put_stay(table, bits, t->n_words);
    if (table->n_exits == 0)
        return;
    if (thread.text && !distinct_has_two(s->machine, terminal_rx(s->machine, thread.terminal))) {
        put_exits_apart(s, thread, table, bits);
        return;
    }
    // What follows a distinct member is nearly the same whatever the member was; where it is not, exact is asked.
    uint32_t exact = thread.text ? config_of_thread(s->machine, thread) : 0;
    uint32_t row = row_advance(s->machine, thread.row, thread.terminal);
    if (!row)
        return;
    uint32_t config = config_of_row(s->machine, row);
    struct rx_set first = config_first_bytes(s->machine, config);
    for (uint32_t i = 0; i < table->n_exits && s->machine->failed == OK; i++)
        walk(s, config, &first, table->exits[i] + 1, table->exits[i] + t->nodes[table->exits[i]].skip, exact, bits);
}

/* Whether thread i is of a terminal of text, not of special tokens. */
static bool is_text(const struct shared *s, const struct config *c, uint32_t i) {
    return terminal_rx(s->machine, s->machine->threads.at[c->first + i].terminal) != RX_NEVER;
}

/* Whether terminals may end at so many places of tokens that one walk of all threads together is shorter than those
 * below each place. */
static bool ends_everywhere(struct shared *s, const struct config *c) {
    uint64_t n_below = 0;
    for (uint32_t i = 0; i < c->n && s->machine->failed == OK; i++) {
        const struct mask_table *table =
            is_text(s, c, i) ? table_for(s, s->machine->threads.at[c->first + i].at) : NULL;
        n_below += table ? table->n_below : 0;
    }
    return n_below > s->trie->n_nodes;
}

static void find_mask(struct shared *s, uint32_t config, uint32_t *bits) {
    const struct token_trie *t = s->trie;
    memset(bits, 0, (size_t)t->n_words * sizeof *bits);
    const struct config c = s->machine->configs.at[config];
    if (ends_everywhere(s, &c)) {
        struct rx_set first = config_first_bytes(s->machine, config);
        walk(s, config, &first, 0, t->n_nodes, 0, bits);
    } else
        for (uint32_t i = 0; i < c.n && s->machine->failed == OK; i++)
            if (is_text(s, &c, i))
                put_thread(s, s->machine->threads.at[c.first + i], bits);
    machine_spend(s->machine, 0);           // a limit that a table met is the machine's
    for (int32_t i = 0; i < t->n_ends; i++) // an end that is text too is not taken as text
        bits[t->ends[i] / 32] &= ~(1u << (t->ends[i] % 32));
    put_specials(s, &c, bits);
    for (int32_t i = 0; i < t->n_ends && c.may_end; i++)
        set_bit(bits, t->ends[i]);
}

/* A free slot, or the first that has not been used for a round of the clock. */
static int32_t take_slot(struct shared *s) {
    if (s->n_slots < s->max_slots) {
        if ((s->n_slots & (s->n_slots - 1)) == 0) // grows by doubling
            s->slots = xrealloc(s->slots, s->n_slots ? 2 * (size_t)s->n_slots : 1, sizeof *s->slots);
        uint32_t *bits = xmalloc((size_t)s->trie->n_words * sizeof *bits);
        s->slots[s->n_slots] = (struct mask_slot){.bits = bits};
        return s->n_slots++;
    }
    for (;; s->hand = (s->hand + 1) % s->n_slots) {
        struct mask_slot *slot = &s->slots[s->hand];
        if (!slot->used)
            break;
        slot->used = false;
    }
    if (s->slots[s->hand].config)
        s->machine->configs.at[s->slots[s->hand].config].mask = -1;
    return s->hand;
}

bool shared_known_mask(struct shared *s, uint32_t config, uint32_t *bits) {
    int32_t slot = s->machine->configs.at[config].mask;
    if (slot < 0)
        return false;
    __atomic_store_n(&s->slots[slot].used, true, __ATOMIC_RELAXED);
    memcpy(bits, s->slots[slot].bits, (size_t)s->trie->n_words * sizeof *bits);
    return true;
}

void shared_mask(struct shared *s, uint32_t config, uint32_t *bits) {
    if (shared_known_mask(s, config, bits))
        return;
    int32_t slot = take_slot(s);
    s->slots[slot].config = 0;
    find_mask(s, config, s->slots[slot].bits);
    if (s->machine->failed == OK) {
        s->slots[slot].config = config;
        s->machine->configs.at[config].mask = slot;
    }
    s->slots[slot].used = true;
    memcpy(bits, s->slots[slot].bits, (size_t)s->trie->n_words * sizeof *bits);
}
