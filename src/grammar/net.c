/* net.c - from the intermediate form to states. See net.h. */
#include "grammar/net.h"
#include "grammar/rx_pool.h"

#include <stdlib.h>

enum { NONE = UINT32_MAX, MAX_STATES = 8 << 20 };

struct compiler {
    struct net *p;
    struct ir *ir;
    struct ir_facts facts;
    uint32_t *rule_of;     // [n_nodes] of a body; NONE
    uint32_t *terminal_of; // [nodes of rx]; NONE
    uint32_t n_rx;
    ir_id *todo; // bodies of rules, by rule
    bool too_large;
};

static uint32_t add_state(struct compiler *c, struct state s) {
    struct net *p = c->p;
    if (p->n_states >= MAX_STATES) {
        c->too_large = true;
        return 0;
    }
    RX_GROW(p->states, p->n_states, p->cap_states);
    p->states[p->n_states] = s;
    return p->n_states++;
}

/* The rule whose body is this node: made when it is first asked for, compiled later. */
static uint32_t rule_for(struct compiler *c, ir_id node) {
    for (int hops = 0; c->ir->nodes[node].kind == IR_KIND_RULE && hops < 64; hops++)
        node = c->ir->nodes[node].a;
    if (c->rule_of[node] != NONE)
        return c->rule_of[node];
    struct net *p = c->p;
    if (p->n_rules >= p->cap_rules) {
        p->cap_rules = p->cap_rules ? p->cap_rules * 2 : 64;
        p->rules = xrealloc(p->rules, p->cap_rules, sizeof *p->rules);
        c->todo = xrealloc(c->todo, p->cap_rules, sizeof *c->todo);
    }
    c->todo[p->n_rules] = node;
    p->rules[p->n_rules] = (struct rule){.nullable = c->facts.nullable[node]};
    return c->rule_of[node] = p->n_rules++;
}

/* The terminal of an expression without the empty text; NONE if nothing else is in it. */
static uint32_t terminal_for(struct compiler *c, rx_id rx) {
    struct rx_pool *pool = c->ir->rx;
    if (rx_set_is_empty(&rx_row_get(pool, rx)->first))
        return NONE;
    if (c->terminal_of[rx] != NONE) // expressions that rows have made since are no terminals
        return c->terminal_of[rx];
    struct net *p = c->p;
    RX_GROW(p->terminals, p->n_terminals, p->cap_terminals);
    p->terminals[p->n_terminals] = (struct terminal){.rx = rx};
    return c->terminal_of[rx] = p->n_terminals++;
}

static uint32_t fork_to(struct compiler *c, const uint32_t *to, uint32_t n) {
    struct net *p = c->p;
    uint32_t at = p->n_forks;
    for (uint32_t i = 0; i < n; i++) {
        RX_GROW(p->forks, p->n_forks, p->cap_forks);
        p->forks[p->n_forks++] = to[i];
    }
    return add_state(c, (struct state){.kind = STATE_FORK, .a = at, .b = n});
}

static uint32_t compile(struct compiler *c, ir_id node, uint32_t next);

static uint32_t compile_alt(struct compiler *c, const struct ir_node *n, uint32_t next) {
    uint32_t *to = xmalloc(n->b * sizeof *to), count = 0;
    for (uint32_t i = 0; i < n->b; i++)
        if (c->facts.productive[c->ir->parts[n->a + i]])
            to[count++] = compile(c, c->ir->parts[n->a + i], next);
    uint32_t state = count == 1 ? to[0] : fork_to(c, to, count);
    free(to);
    return state;
}

static uint32_t compile_repeat(struct compiler *c, ir_id node, uint32_t next) {
    struct ir_node n = c->ir->nodes[node];
    struct net *p = c->p;
    int32_t min = c->facts.nullable[n.a] ? 0 : n.min;
    if (!c->facts.productive[n.a])
        return next;
    if (min == 0 && n.max == 1)
        return fork_to(c, (uint32_t[]){compile(c, n.a, next), next}, 2);
    if (min <= 1 && n.max == IR_NO_MAX) {
        uint32_t again = fork_to(c, (uint32_t[]){next, next}, 2);
        uint32_t body = compile(c, n.a, again);
        p->forks[p->states[again].a] = body;
        return min == 0 ? again : body;
    }
    RX_GROW(p->repeats, p->n_repeats, p->cap_repeats);
    uint32_t at = p->n_repeats++;
    p->repeats[at] = (struct repeat){min, n.max, 0};
    uint32_t rule = rule_for(c, n.a);
    p->repeats[at].rule = rule;
    return add_state(c, (struct state){.kind = STATE_REPEAT, .a = at, .next = next});
}

/* Marks the members that can stand: their key and value are possible, and so is all that must stand beside them. */
static void find_usable(struct rx_pool *rx, const struct ir_members *from, struct members *m) {
    size_t n = m->n_known;
    bool *possible = xcalloc(2 * n + 1, sizeof *possible), *set = possible + n;
    for (size_t i = 0; i < n; i++)
        possible[i] = m->all[i].usable;
    for (size_t i = 0; i < n && rx->failed == OK; i++) {
        if (!possible[i] || (!m->n_needs && !m->n_excludes))
            continue;
        rx_check_time(rx); // a round looks at all members and what they need
        for (size_t k = 0; k < n; k++)
            set[k] = k == i || from->known[k].required;
        uint32_t size;
        m->all[i].usable = members_fit(m->needs, m->n_needs, m->excludes, m->n_excludes, possible, n, set, &size) &&
                           (m->max == IR_NO_MAX || size <= (uint32_t)m->max);
    }
    free(possible);
}

static uint32_t compile_members(struct compiler *c, const struct ir_node *n, uint32_t next) {
    const struct ir_members *from = &c->ir->members[n->a];
    struct net *p = c->p;
    struct members m = {.needs = from->needs,
                        .excludes = from->excludes,
                        .n_known = (uint32_t)from->n_known,
                        .n_others = (uint32_t)from->n_others,
                        .n_needs = (uint32_t)from->n_needs,
                        .n_excludes = (uint32_t)from->n_excludes,
                        .min = from->min,
                        .max = from->max,
                        .ordered = from->ordered,
                        .distinct = from->distinct,
                        .separator_may_be_empty = rx_nullable(c->ir->rx, from->separator)};
    m.separator =
        rx_is_never(c->ir->rx, from->separator, c->ir->rx->max_states) ? NONE : terminal_for(c, from->separator);
    uint32_t count = m.n_known + m.n_others;
    m.all = xcalloc(count + 1, sizeof *m.all);
    RX_GROW(p->members, p->n_members, p->cap_members);
    uint32_t at = p->n_members++;
    p->members[at] = m; // so that it is freed
    uint32_t self = add_state(c, (struct state){.kind = STATE_MEMBERS, .a = at, .next = next});
    for (uint32_t i = 0; i < count; i++) {
        const struct ir_member *one = i < m.n_known ? &from->known[i] : &from->others[i - m.n_known];
        struct member *to = &m.all[i];
        to->required = i < m.n_known && one->required;
        to->usable = c->facts.productive[one->value] && !rx_is_never(c->ir->rx, one->key, c->ir->rx->max_states);
        if (!to->usable)
            continue;
        to->key = terminal_for(c, one->key);
        to->value = rule_for(c, one->value);
        to->usable = to->key != NONE;
    }
    find_usable(c->ir->rx, from, &m);
    for (uint32_t i = 0; i < count; i++) // states self + 1 + i: behind a key
        add_state(c, (struct state){.kind = STATE_VALUE, .a = at, .b = i, .next = self});
    return self;
}

/* The state from which `node` leads to `next`. Nodes that nothing satisfies are not asked for. */
static uint32_t compile(struct compiler *c, ir_id node, uint32_t next) {
    struct ir_node n = c->ir->nodes[node];
    if (c->too_large)
        return next;
    switch ((enum ir_kind)n.kind) {
    case IR_KIND_NEVER:
    case IR_KIND_EMPTY: return next;
    case IR_KIND_TERMINAL: {
        uint32_t t = terminal_for(c, n.a);
        if (t == NONE)
            return next;
        uint32_t state = add_state(c, (struct state){.kind = STATE_TERMINAL, .a = t, .next = next});
        return rx_nullable(c->ir->rx, n.a) ? fork_to(c, (uint32_t[]){state, next}, 2) : state;
    }
    case IR_KIND_TOKENS: {
        struct net *p = c->p;
        RX_GROW(p->terminals, p->n_terminals, p->cap_terminals);
        p->terminals[p->n_terminals] = (struct terminal){.rx = RX_NEVER, .tokens = n.a};
        return add_state(c, (struct state){.kind = STATE_TERMINAL, .a = p->n_terminals++, .next = next});
    }
    case IR_KIND_SEQ:
        for (uint32_t i = n.b; i-- > 0;)
            next = compile(c, c->ir->parts[n.a + i], next);
        return next;
    case IR_KIND_ALT: return compile_alt(c, &n, next);
    case IR_KIND_REPEAT: return compile_repeat(c, node, next);
    case IR_KIND_RULE: return add_state(c, (struct state){.kind = STATE_CALL, .a = rule_for(c, node), .next = next});
    case IR_KIND_MEMBERS: return compile_members(c, &n, next);
    }
    return next;
}

static uint32_t *nones(size_t n) {
    uint32_t *out = xmalloc((n + 1) * sizeof *out);
    memset(out, 0xFF, n * sizeof *out);
    return out;
}

static enum status compile_all(struct compiler *c, ir_id root, struct error *err) {
    struct net *p = c->p;
    TRY(ir_check(c->ir, err));
    TRY(ir_facts_find(c->ir, &c->facts, err));
    if (!c->facts.productive[root])
        return fail(err, ERR_FORMAT, "no text can satisfy the grammar");
    c->rule_of = nones(c->ir->n_nodes);
    c->terminal_of = nones(c->ir->rx->n_nodes);
    c->n_rx = c->ir->rx->n_nodes;
    uint32_t end = add_state(c, (struct state){.kind = STATE_END});
    rule_for(c, root);
    for (uint32_t r = 0; r < p->n_rules && !c->too_large; r++) {
        uint32_t start = compile(c, c->todo[r], end);
        p->rules[r].start = start;
    }
    if (c->too_large)
        return fail(err, ERR_LIMIT, "the grammar has more than %d states", MAX_STATES);
    TRY(rx_check(c->ir->rx, err));
    net_order_rules(p);
    return OK;
}

enum status net_compile(struct ir *ir, ir_id root, struct net **out, struct error *err) {
    struct compiler c = {.p = xcalloc(1, sizeof *c.p), .ir = ir};
    c.p->ir = ir;
    enum status st = compile_all(&c, root, err);
    ir_facts_release(&c.facts);
    free(c.rule_of);
    free(c.terminal_of);
    free(c.todo);
    if (st == OK)
        *out = c.p;
    else
        net_free(c.p);
    return st;
}

void net_free(struct net *p) {
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_members; i++)
        free(p->members[i].all);
    free(p->states);
    free(p->forks);
    free(p->terminals);
    free(p->rules);
    free(p->repeats);
    free(p->members);
    ir_free(p->ir);
    free(p);
}

size_t net_bytes(const struct net *p) {
    return p->cap_states * sizeof *p->states + p->cap_forks * sizeof *p->forks + p->cap_rules * sizeof *p->rules +
           p->cap_terminals * sizeof *p->terminals + rx_pool_bytes(p->ir->rx) +
           p->ir->cap_nodes * sizeof *p->ir->nodes + p->ir->memory.used;
}
