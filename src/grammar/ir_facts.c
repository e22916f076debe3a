/* ir_facts.c - which nodes may be empty, and which some text satisfies: least fixed points, in time linear in the
 * grammar. See net.h. */
#include "grammar/net.h"
#include "grammar/rx_pool.h"

#include <stdlib.h>

struct solver {
    struct ir *ir;
    bool productive; // which of the two is solved
    bool *is;        // the solution so far
    uint32_t *left;  // children that must come true yet
    uint32_t *first; // [n_nodes + 1] into parents
    ir_id *parents;
    ir_id *queue;
    size_t n_queue;
};

static bool all_met(const struct ir_pair *needs, size_t n_needs, const bool *set) {
    for (size_t i = 0; i < n_needs; i++)
        if (set[needs[i].seen] && !set[needs[i].other])
            return false;
    return true;
}

/* Puts what members of the set need, and what that needs, into it: each need is looked at once. */
static void close_needs(const struct ir_pair *needs, size_t n_needs, size_t n_known, bool *set) {
    size_t *first = xcalloc(n_known + 2, sizeof *first); // of the needs of each member, in `others`
    uint32_t *others = xmalloc((n_needs + n_known + 1) * sizeof *others), *queue = others + n_needs;
    for (size_t i = 0; i < n_needs; i++)
        first[needs[i].seen + 2]++;
    for (size_t i = 2; i < n_known + 2; i++)
        first[i] += first[i - 1];
    for (size_t i = 0; i < n_needs; i++)
        others[first[needs[i].seen + 1]++] = needs[i].other;
    size_t n = 0;
    for (size_t i = 0; i < n_known; i++)
        if (set[i])
            queue[n++] = (uint32_t)i;
    for (size_t at = 0; at < n; at++)
        for (size_t i = first[queue[at]]; i < first[queue[at] + 1]; i++)
            if (!set[others[i]]) {
                set[others[i]] = true;
                queue[n++] = others[i];
            }
    free(first);
    free(others);
}

bool members_fit(const struct ir_pair *needs, size_t n_needs, const struct ir_pair *excludes, size_t n_excludes,
                 const bool *usable, size_t n_known, bool *set, uint32_t *size) {
    if (!all_met(needs, n_needs, set))
        close_needs(needs, n_needs, n_known, set);
    for (size_t i = 0; i < n_excludes; i++)
        if (set[excludes[i].seen] && set[excludes[i].other])
            return false;
    *size = 0;
    for (size_t i = 0; i < n_known; i++) {
        if (set[i] && !usable[i])
            return false;
        *size += set[i];
    }
    return true;
}

/* Can these members be written at all, with the values that are known to be possible? */
static bool members_possible(struct solver *s, const struct ir_members *m) {
    struct ir *ir = s->ir;
    bool *usable = xcalloc(m->n_known * 2 + 1, sizeof *usable), *set = usable + m->n_known;
    uint32_t n_usable = 0, size = 0;
    for (size_t i = 0; i < m->n_known; i++) {
        usable[i] = s->is[m->known[i].value] && !rx_is_never(ir->rx, m->known[i].key, ir->rx->max_states);
        set[i] = m->known[i].required;
        n_usable += usable[i];
    }
    bool others = false;
    for (size_t i = 0; i < m->n_others; i++)
        others |= s->is[m->others[i].value] && !rx_is_never(ir->rx, m->others[i].key, ir->rx->max_states);
    bool fits = members_fit(m->needs, m->n_needs, m->excludes, m->n_excludes, usable, m->n_known, set, &size);
    free(usable);
    if (!fits || (m->max != IR_NO_MAX && (size > (uint32_t)m->max || m->min > m->max)))
        return false;
    return (uint32_t)m->min <= size || others || n_usable >= (uint32_t)m->min;
}

/* How many children must be true before the node is; 0: it is so by itself, UINT32_MAX: by a look at all of them. */
static uint32_t wanted(struct solver *s, const struct ir_node *n) {
    switch ((enum ir_kind)n->kind) {
    case IR_KIND_NEVER: return 1;
    case IR_KIND_EMPTY: return 0;
    case IR_KIND_TERMINAL:
        return s->productive ? rx_is_never(s->ir->rx, n->a, s->ir->rx->max_states) : !rx_nullable(s->ir->rx, n->a);
    case IR_KIND_TOKENS: return !s->productive;
    case IR_KIND_SEQ: return n->b;
    case IR_KIND_ALT: return 1;
    case IR_KIND_REPEAT: return n->min == 0 ? 0 : 1;
    case IR_KIND_RULE: return 1;
    case IR_KIND_MEMBERS: break;
    }
    if (s->productive)
        return UINT32_MAX;
    const struct ir_members *m = &s->ir->members[n->a];
    for (size_t i = 0; i < m->n_known; i++)
        if (m->known[i].required)
            return 1;
    return m->min != 0;
}

static uint32_t n_children(const struct ir *ir, const struct ir_node *n) {
    switch ((enum ir_kind)n->kind) {
    case IR_KIND_SEQ:
    case IR_KIND_ALT: return n->b;
    case IR_KIND_REPEAT:
    case IR_KIND_RULE: return 1;
    case IR_KIND_MEMBERS: return (uint32_t)(ir->members[n->a].n_known + ir->members[n->a].n_others);
    default: return 0;
    }
}

static ir_id child(const struct ir *ir, const struct ir_node *n, uint32_t i) {
    if (n->kind == IR_KIND_SEQ || n->kind == IR_KIND_ALT)
        return ir->parts[n->a + i];
    if (n->kind != IR_KIND_MEMBERS)
        return n->a;
    const struct ir_members *m = &ir->members[n->a];
    return i < m->n_known ? m->known[i].value : m->others[i - m->n_known].value;
}

static void find_parents(struct solver *s) {
    struct ir *ir = s->ir;
    s->first = xcalloc(ir->n_nodes + 2, sizeof *s->first);
    for (uint32_t i = 0; i < ir->n_nodes; i++)
        for (uint32_t c = 0; c < n_children(ir, &ir->nodes[i]); c++)
            s->first[child(ir, &ir->nodes[i], c) + 2]++;
    for (uint32_t i = 2; i < ir->n_nodes + 2; i++)
        s->first[i] += s->first[i - 1];
    s->parents = xmalloc((s->first[ir->n_nodes + 1] + 1) * sizeof *s->parents);
    for (uint32_t i = 0; i < ir->n_nodes; i++)
        for (uint32_t c = 0; c < n_children(ir, &ir->nodes[i]); c++)
            s->parents[s->first[child(ir, &ir->nodes[i], c) + 1]++] = i;
}

static void come_true(struct solver *s, ir_id node) {
    if (s->is[node])
        return;
    s->is[node] = true;
    s->queue[s->n_queue++] = node;
}

static void solve(struct solver *s) {
    struct ir *ir = s->ir;
    for (uint32_t i = 0; i < ir->n_nodes; i++) {
        s->left[i] = wanted(s, &ir->nodes[i]);
        if (s->left[i] == 0 || (s->left[i] == UINT32_MAX && members_possible(s, &ir->members[ir->nodes[i].a])))
            come_true(s, i);
    }
    for (size_t at = 0; at < s->n_queue; at++)
        for (uint32_t i = s->first[s->queue[at]]; i < s->first[s->queue[at] + 1]; i++) {
            ir_id parent = s->parents[i];
            const struct ir_node *n = &ir->nodes[parent];
            if (s->is[parent] || (n->kind < IR_KIND_SEQ))
                continue;
            if (n->kind == IR_KIND_MEMBERS) {
                if (s->productive && members_possible(s, &ir->members[n->a]))
                    come_true(s, parent);
            } else if (--s->left[parent] == 0)
                come_true(s, parent);
        }
}

enum status ir_facts_find(struct ir *ir, struct ir_facts *out, struct error *err) {
    bool *solutions[2];
    struct solver s = {.ir = ir};
    find_parents(&s);
    s.queue = xmalloc((ir->n_nodes + 1) * sizeof *s.queue);
    s.left = xmalloc((ir->n_nodes + 1) * sizeof *s.left);
    for (int which = 0; which < 2; which++) {
        s.is = solutions[which] = xcalloc(ir->n_nodes + 1, sizeof *s.is);
        s.productive = which == 1;
        s.n_queue = 0;
        solve(&s);
    }
    free(s.first);
    free(s.parents);
    free(s.queue);
    free(s.left);
    *out = (struct ir_facts){solutions[0], solutions[1]};
    enum status st = rx_check(ir->rx, err);
    if (st != OK)
        ir_facts_release(out);
    return st;
}

void ir_facts_release(struct ir_facts *facts) {
    free(facts->nullable);
    free(facts->productive);
    *facts = (struct ir_facts){0};
}
