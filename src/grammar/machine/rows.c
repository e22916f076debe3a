/* rows.c - sets of items: closing them over calls and returns, and interning them. See machine.h.
 *
 * Two phases. First the items behind a terminal are closed over returns: an item at the end of its rule becomes what
 * its frame says. What is left, sorted, is the row's name. Only for a new row the second phase predicts: the rules that
 * its items call, callers before callees, so that all callers of a rule are known when its frame is made. Rules that
 * may be empty are stepped over where they are called, and so a predicted rule that ends at once does nothing. */
#include "grammar/machine/closing.h"

#include <xxhash.h>

static struct closing *scratch(struct machine *m) {
    if (!m->closing)
        m->closing = xcalloc(1, sizeof *m->closing);
    return m->closing;
}

void closing_free(struct closing *c) {
    if (!c)
        return;
    free(c->todo.at);
    free(c->kept.at);
    free(c->back.at);
    free(c->waits.at);
    free(c->calls.at);
    free(c->circle.at);
    free(c->inner.at);
    free(c->reached.at);
    free(c->heads.at);
    free(c->seen);
    free(c);
}

static int by_item(const void *a, const void *b) {
    return order_items(*(const struct item *)a, *(const struct item *)b);
}
// ---- items that have been met -----------------------------------------------------------------------------------

void closing_forget(struct closing *c) {
    c->n_seen = 0;
    if (++c->epoch == 0 || !c->seen) {
        c->seen_mask = c->seen ? c->seen_mask : 255;
        free(c->seen);
        c->seen = xcalloc((size_t)c->seen_mask + 1, sizeof *c->seen);
        c->epoch = 1;
    }
}

static uint64_t hash_item(struct item i) {
    return number_mix(((uint64_t)i.state << 32 | i.extra) ^ (uint64_t)i.frame * 0x9E3779B97F4A7C15u);
}

static void grow_seen(struct closing *c) {
    struct closing old = *c;
    c->seen_mask = c->seen_mask * 2 + 1;
    c->seen = xcalloc((size_t)c->seen_mask + 1, sizeof *c->seen);
    for (uint32_t i = 0; i <= old.seen_mask; i++) {
        if (old.seen[i].epoch != c->epoch)
            continue;
        uint64_t at = hash_item(old.seen[i].item) & c->seen_mask;
        while (c->seen[at].epoch == c->epoch)
            at = (at + 1) & c->seen_mask;
        c->seen[at] = old.seen[i];
    }
    free(old.seen);
}

void closing_push(struct closing *c, struct item item) {
    uint64_t at = hash_item(item) & c->seen_mask;
    for (; c->seen[at].epoch == c->epoch; at = (at + 1) & c->seen_mask)
        if (same_item(c->seen[at].item, item))
            return;
    c->seen[at].item = item;
    c->seen[at].epoch = c->epoch;
    VEC_PUSH(c->todo, item);
    if (++c->n_seen * 2 > c->seen_mask)
        grow_seen(c);
}

// ---- what an item may do without a byte -------------------------------------------------------------------------

uint32_t member_state_of(struct machine *m, uint32_t members, uint32_t extra) {
    return extra ? extra - 1 : member_state_begin(m, members);
}

static bool round_is_over(const struct repeat *r, uint32_t rounds) { return rounds >= (uint32_t)r->min; }

void closing_step_over(struct machine *m, struct closing *c, struct item i) {
    const struct net *p = m->net;
    const struct state *s = &p->states[i.state];
    bool over = false;
    switch ((enum state_kind)s->kind) {
    case STATE_FORK:
        for (uint32_t k = 0; k < s->b; k++)
            closing_push(c, (struct item){p->forks[s->a + k], i.extra, i.frame});
        break;
    case STATE_CALL:
    case STATE_VALUE: {
        if (s->kind == STATE_VALUE) {
            if (!p->rules[p->members[s->a].all[s->b].value].nullable)
                break;
            uint32_t after = member_state_after(m, member_state_of(m, s->a, i.extra), s->b);
            closing_push(c, (struct item){s->next, after + 1, i.frame});
        } else
            over = p->rules[s->a].nullable;
        break;
    }
    case STATE_REPEAT: over = round_is_over(&p->repeats[s->a], i.extra); break;
    case STATE_MEMBERS: over = member_state_may_end(m, member_state_of(m, s->a, i.extra)); break;
    default: break;
    }
    if (over)
        closing_push(c, (struct item){s->next, 0, i.frame});
}

// ---- the first phase, and interning -----------------------------------------------------------------------------

/* The row of the items in `kept`, sorted, each once. */
static uint32_t row_intern(struct machine *m, struct closing *c) {
    uint64_t hash = XXH3_64bits_withSeed(c->kept.at, c->kept.n * sizeof *c->kept.at, c->may_end);
    uint64_t at = number_index_begin(&m->row_index, hash);
    for (uint32_t found; (found = number_index_next(&m->row_index, hash, &at));) {
        const struct row *r = &m->rows.at[found - 1];
        if (r->may_end == c->may_end && r->n_items == c->kept.n &&
            same_bytes(m->row_items.at + r->items, c->kept.at, r->n_items * sizeof *c->kept.at))
            return found - 1;
    }
    struct row row = {.items = (uint32_t)m->row_items.n, .n_items = (uint32_t)c->kept.n, .may_end = c->may_end};
    for (size_t i = 0; i < c->kept.n; i++)
        VEC_PUSH(m->row_items, c->kept.at[i]);
    row_predict(m, c, &row);
    if (m->failed != OK)
        return 0;
    VEC_PUSH(m->rows, row);
    number_index_put(&m->row_index, hash, (uint32_t)m->rows.n);
    return (uint32_t)m->rows.n - 1;
}

/* Closes the items on the list over returns. */
static uint32_t close_items(struct machine *m, struct closing *c) {
    c->kept.n = 0;
    while (c->todo.n && machine_spend(m, 1)) {
        struct item i = c->todo.at[--c->todo.n];
        enum state_kind kind = m->net->states[i.state].kind;
        if (kind == STATE_END) {
            c->may_end |= i.frame == ROOT_FRAME;
            const struct frame f = m->frames.at[i.frame];
            for (uint32_t k = 0; k < f.n; k++)
                closing_push(c, m->links.at[f.first + k]);
            machine_spend(m, f.n);
            continue;
        }
        closing_step_over(m, c, i);
        if (kind != STATE_FORK)
            VEC_PUSH(c->kept, i);
    }
    c->todo.n = 0;
    if (m->failed != OK)
        return 0;
    sort_items(c->kept.at, c->kept.n, sizeof *c->kept.at, by_item);
    return row_intern(m, c);
}

uint32_t row_start(struct machine *m) {
    struct closing *c = scratch(m);
    closing_forget(c);
    c->may_end = false;
    c->todo.n = 0;
    closing_push(c, (struct item){m->net->rules[0].start, 0, ROOT_FRAME});
    return close_items(m, c);
}

/* Puts the items of `row` that wait for terminal t on the list. text: what it has read, if it is a distinct one. */
static void push_waits(struct machine *m, struct closing *c, uint32_t row, uint32_t t, uint32_t text) {
    const struct row r = m->rows.at[row];
    uint32_t low = r.waits, high = r.waits + r.n_waits;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (m->waits.at[middle].terminal < t)
            low = middle + 1;
        else
            high = middle;
    }
    closing_forget(c);
    c->may_end = false;
    c->todo.n = 0;
    for (; low < r.waits + r.n_waits && m->waits.at[low].terminal == t; low++) {
        struct item i = m->waits.at[low].item;
        if (text)
            i.extra = member_state_except(m, i.extra - 1, text) + 1;
        closing_push(c, i);
    }
}

uint32_t row_advance(struct machine *m, uint32_t row, uint32_t t) {
    uint32_t *known = number_map_find(&m->advances, (uint64_t)row << 32 | t);
    if (known)
        return *known;
    struct closing *c = scratch(m);
    push_waits(m, c, row, t, 0);
    uint32_t out = close_items(m, c);
    if (out)
        number_map_put(&m->advances, (uint64_t)row << 32 | t, out);
    return out;
}

uint32_t row_advance_behind(struct machine *m, struct thread thread) {
    if (!thread.text)
        return row_advance(m, thread.row, thread.terminal);
    struct closing *c = scratch(m);
    push_waits(m, c, thread.row, thread.terminal, thread.text);
    return close_items(m, c);
}

uint32_t row_union(struct machine *m, uint32_t a, uint32_t b) {
    if (a == b || !a || !b)
        return a && b ? a : 0;
    uint64_t key = (uint64_t)MIN(a, b) << 32 | MAX(a, b);
    uint32_t *known = number_map_find(&m->unions, key);
    if (known)
        return *known;
    struct closing *c = scratch(m);
    const struct row x = m->rows.at[a], y = m->rows.at[b];
    const struct item *p = m->row_items.at + x.items, *p_end = p + x.n_items;
    const struct item *q = m->row_items.at + y.items, *q_end = q + y.n_items;
    c->kept.n = 0;
    while (p < p_end || q < q_end) {
        int order = p == p_end ? 1 : q == q_end ? -1 : order_items(*p, *q);
        VEC_PUSH(c->kept, order <= 0 ? *p : *q);
        p += order <= 0;
        q += order >= 0;
    }
    machine_spend(m, (int64_t)c->kept.n);
    c->may_end = x.may_end || y.may_end;
    closing_forget(c);
    uint32_t out = row_intern(m, c);
    if (out)
        number_map_put(&m->unions, key, out);
    return out;
}
