/* predict.c - what may follow the items of a new row: the rules that they call, and the terminals that they wait for.
 *
 * Rules are predicted callers before callees, so that all callers of a rule are known when its frame is made; rules of
 * a left-recursive circle together, with frames named by all calls from outside. See machine.h. */
#include "grammar/machine/closing.h"

#include <xxhash.h>

static int by_item(const void *a, const void *b) {
    return order_items(*(const struct item *)a, *(const struct item *)b);
}
static int by_call(const void *a, const void *b) {
    const struct call *x = a, *y = b;
    return x->rule != y->rule ? (x->rule < y->rule ? -1 : 1) : order_items(x->back, y->back);
}
static int by_terminal(const void *a, const void *b) {
    const struct wait *x = a, *y = b;
    return x->terminal != y->terminal ? (x->terminal < y->terminal ? -1 : 1) : order_items(x->item, y->item);
}

// ---- calls, in order --------------------------------------------------------------------------------------------

static bool call_before(const struct machine *m, const struct call *a, const struct call *b) {
    return m->net->rules[a->rule].order < m->net->rules[b->rule].order;
}

static void heap_push(struct machine *m, struct closing *c, struct call call) {
    VEC_PUSH(c->calls, call);
    struct call *h = c->calls.at;
    for (size_t i = c->calls.n - 1; i && call_before(m, &h[i], &h[(i - 1) / 2]); i = (i - 1) / 2) {
        struct call t = h[i];
        h[i] = h[(i - 1) / 2];
        h[(i - 1) / 2] = t;
    }
}

static struct call heap_pop(struct machine *m, struct closing *c) {
    struct call *h = c->calls.at, top = h[0];
    h[0] = h[--c->calls.n];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t k = 2 * i + 1; k <= 2 * i + 2 && k < c->calls.n; k++)
            if (call_before(m, &h[k], &h[least]))
                least = k;
        if (least == i)
            return top;
        struct call t = h[i];
        h[i] = h[least];
        h[least] = t;
        i = least;
    }
}

static void announce_members(struct machine *m, struct closing *c, struct item i, const struct state *s) {
    const struct members *spec = &m->net->members[s->a];
    uint32_t state = member_state_of(m, s->a, i.extra);
    if (m->member_states.at[state].phase == MEMBERS_AFTER_MEMBER) {
        if (spec->separator != UINT32_MAX && member_state_allows_any(m, state)) {
            struct item next = {i.state, member_state_separated(m, state) + 1, i.frame};
            VEC_PUSH(c->waits, (struct wait){spec->separator, next});
        }
        return;
    }
    for (uint32_t k = 0; k < spec->n_known + spec->n_others; k++)
        if (member_state_allows(m, state, k))
            VEC_PUSH(c->waits, (struct wait){member_key(m, state, k), {i.state + 1 + k, state + 1, i.frame}});
    machine_spend(m, spec->n_known + spec->n_others);
}

/* Notes what an item waits for: a terminal, or the end of a rule that it calls. order: of the circle of rules that is
 * being closed (its calls go to `inner`), UINT32_MAX outside. */
static void announce(struct machine *m, struct closing *c, struct item i, uint32_t order) {
    const struct net *p = m->net;
    const struct state *s = &p->states[i.state];
    struct call call;
    switch ((enum state_kind)s->kind) {
    case STATE_TERMINAL: VEC_PUSH(c->waits, (struct wait){s->a, {s->next, 0, i.frame}}); return;
    case STATE_MEMBERS: announce_members(m, c, i, s); return;
    case STATE_CALL: call = (struct call){s->a, {s->next, 0, i.frame}}; break;
    case STATE_REPEAT: {
        const struct repeat *r = &p->repeats[s->a];
        if (r->max != IR_NO_MAX && i.extra >= (uint32_t)r->max)
            return;
        uint32_t rounds = r->max == IR_NO_MAX ? MIN(i.extra + 1, (uint32_t)r->min) : i.extra + 1;
        call = (struct call){r->rule, {i.state, rounds, i.frame}};
        break;
    }
    case STATE_VALUE: {
        uint32_t after = member_state_after(m, member_state_of(m, s->a, i.extra), s->b);
        call = (struct call){p->members[s->a].all[s->b].value, {s->next, after + 1, i.frame}};
        break;
    }
    default: return;
    }
    if (p->rules[call.rule].order == order)
        VEC_PUSH(c->inner, call);
    else
        heap_push(m, c, call);
}

// ---- frames -----------------------------------------------------------------------------------------------------

/* Appends a place to go on with to `back`; one at the end of its rule is replaced by where that rule goes on. */
static void put_back(struct machine *m, struct closing *c, struct item i) {
    if (m->net->states[i.state].kind != STATE_END || i.frame == ROOT_FRAME) {
        VEC_PUSH(c->back, i);
        return;
    }
    const struct frame f = m->frames.at[i.frame];
    for (uint32_t k = 0; k < f.n; k++)
        VEC_PUSH(c->back, m->links.at[f.first + k]);
    machine_spend(m, f.n);
}

static void sort_back(struct closing *c) {
    size_t n = 0;
    sort_items(c->back.at, c->back.n, sizeof *c->back.at, by_item);
    for (size_t i = 0; i < c->back.n; i++)
        if (n == 0 || !same_item(c->back.at[n - 1], c->back.at[i]))
            c->back.at[n++] = c->back.at[i];
    c->back.n = n;
}

static void append_links(struct machine *m, struct closing *c, struct frame *f) {
    f->first = (uint32_t)m->links.n;
    f->n = (uint32_t)c->back.n;
    for (size_t i = 0; i < c->back.n; i++)
        VEC_PUSH(m->links, c->back.at[i]);
}

/* The frame of a rule whose callers want `back`. */
static uint32_t frame_intern(struct machine *m, struct closing *c, uint32_t rule) {
    sort_back(c);
    uint64_t hash = XXH3_64bits_withSeed(c->back.at, c->back.n * sizeof *c->back.at, rule);
    uint64_t at = number_index_begin(&m->frame_index, hash);
    for (uint32_t found; (found = number_index_next(&m->frame_index, hash, &at));) {
        const struct frame *f = &m->frames.at[found - 1];
        if (f->rule == rule && !f->callers && f->n == c->back.n &&
            same_bytes(m->links.at + f->first, c->back.at, f->n * sizeof *c->back.at))
            return found - 1;
    }
    struct frame f = {.rule = rule};
    append_links(m, c, &f);
    VEC_PUSH(m->frames, f);
    number_index_put(&m->frame_index, hash, (uint32_t)m->frames.n);
    return (uint32_t)m->frames.n - 1;
}

/* Sorts the calls of a circle and numbers the set, from 1. */
static uint32_t call_set_intern(struct machine *m, struct closing *c) {
    size_t n = 0;
    sort_items(c->circle.at, c->circle.n, sizeof *c->circle.at, by_call);
    for (size_t i = 0; i < c->circle.n; i++)
        if (n == 0 || by_call(&c->circle.at[n - 1], &c->circle.at[i]))
            c->circle.at[n++] = c->circle.at[i];
    c->circle.n = n;
    uint64_t hash = XXH3_64bits(c->circle.at, n * sizeof *c->circle.at);
    uint64_t at = number_index_begin(&m->call_set_index, hash);
    for (uint32_t found; (found = number_index_next(&m->call_set_index, hash, &at));) {
        const struct call_set *s = &m->call_sets.at[found - 1];
        if (s->n == n && same_bytes(m->calls.at + s->first, c->circle.at, n * sizeof *c->circle.at))
            return found;
    }
    struct call_set set = {(uint32_t)m->calls.n, (uint32_t)n};
    for (size_t i = 0; i < n; i++)
        VEC_PUSH(m->calls, c->circle.at[i]);
    VEC_PUSH(m->call_sets, set);
    number_index_put(&m->call_set_index, hash, (uint32_t)m->call_sets.n);
    return (uint32_t)m->call_sets.n;
}

/* The frame of a rule of a circle that is called by that set; *is_new: its links are to be filled in. */
static uint32_t circle_frame(struct machine *m, uint32_t rule, uint32_t callers, bool *is_new) {
    uint64_t hash = number_mix((uint64_t)rule << 32 | callers);
    uint64_t at = number_index_begin(&m->frame_index, hash);
    for (uint32_t found; (found = number_index_next(&m->frame_index, hash, &at));)
        if (m->frames.at[found - 1].rule == rule && m->frames.at[found - 1].callers == callers) {
            *is_new = !m->frames.at[found - 1].filled; // a limit was met before they were
            return found - 1;
        }
    *is_new = true;
    VEC_PUSH(m->frames, (struct frame){.rule = rule, .callers = callers});
    number_index_put(&m->frame_index, hash, (uint32_t)m->frames.n);
    return (uint32_t)m->frames.n - 1;
}

// ---- the second phase: prediction -------------------------------------------------------------------------------

static void predict_start(struct machine *m, struct closing *c, uint32_t rule, uint32_t frame, uint32_t order) {
    closing_push(c, (struct item){m->net->rules[rule].start, 0, frame});
    while (c->todo.n && machine_spend(m, 1)) {
        struct item i = c->todo.at[--c->todo.n];
        closing_step_over(m, c, i);
        announce(m, c, i, order);
    }
}

static void reach(struct closing *c, uint32_t rule) {
    for (size_t i = 0; i < c->reached.n; i++)
        if (c->reached.at[i] == rule)
            return;
    VEC_PUSH(c->reached, rule);
}

/* Predicts all rules of a left-recursive circle that are called from outside it by `circle`, or from within. */
static void predict_circle(struct machine *m, struct closing *c) {
    uint32_t order = m->net->rules[c->circle.at[0].rule].order;
    uint32_t callers = call_set_intern(m, c);
    c->reached.n = c->inner.n = 0;
    size_t looked = 0;
    for (size_t i = 0; i < c->circle.n; i++)
        reach(c, c->circle.at[i].rule);
    bool is_new = false;
    size_t n_new = 0;
    for (size_t r = 0; r < c->reached.n && m->failed == OK; r++) {
        uint32_t rule = c->reached.at[r], frame = circle_frame(m, rule, callers, &is_new);
        n_new += is_new;
        predict_start(m, c, rule, frame, order);
        for (; looked < c->inner.n; looked++)
            reach(c, c->inner.at[looked].rule);
    }
    if (!n_new || m->failed != OK)
        return;
    for (size_t r = 0; r < c->reached.n; r++) {
        uint32_t rule = c->reached.at[r], frame = circle_frame(m, rule, callers, &is_new);
        c->back.n = 0;
        for (size_t i = 0; i < c->circle.n; i++)
            if (c->circle.at[i].rule == rule)
                VEC_PUSH(c->back, c->circle.at[i].back);
        for (size_t i = 0; i < c->inner.n; i++)
            if (c->inner.at[i].rule == rule)
                VEC_PUSH(c->back, c->inner.at[i].back);
        sort_back(c);
        struct frame f = m->frames.at[frame];
        append_links(m, c, &f);
        f.filled = true;
        m->frames.at[frame] = f;
    }
}

/* Predicts the rules of the heap's least order. */
static void predict_next(struct machine *m, struct closing *c) {
    struct call first = heap_pop(m, c);
    const struct rule *rule = &m->net->rules[first.rule];
    c->circle.n = 0;
    VEC_PUSH(c->circle, first);
    while (c->calls.n && m->net->rules[c->calls.at[0].rule].order == rule->order)
        VEC_PUSH(c->circle, heap_pop(m, c));
    // A call at the end of its rule goes on where its caller does.
    size_t n = c->circle.n;
    for (size_t i = 0; i < n && m->failed == OK; i++) {
        struct call call = c->circle.at[i];
        c->back.n = 0;
        put_back(m, c, call.back);
        for (size_t k = 0; k < c->back.n; k++)
            if (k == 0)
                c->circle.at[i].back = c->back.at[0];
            else
                VEC_PUSH(c->circle, (struct call){call.rule, c->back.at[k]});
    }
    if (rule->left_recursive) {
        predict_circle(m, c);
        return;
    }
    c->back.n = 0;
    for (size_t i = 0; i < c->circle.n; i++)
        VEC_PUSH(c->back, c->circle.at[i].back);
    predict_start(m, c, first.rule, frame_intern(m, c, first.rule), UINT32_MAX);
}

static void put_waits(struct machine *m, struct closing *c, struct row *row) {
    sort_items(c->waits.at, c->waits.n, sizeof *c->waits.at, by_terminal);
    row->waits = (uint32_t)m->waits.n;
    row->heads = (uint32_t)m->heads.n;
    for (size_t i = 0; i < c->waits.n; i++) {
        if (i && by_terminal(&c->waits.at[i - 1], &c->waits.at[i]) == 0)
            continue;
        if (i == 0 || c->waits.at[i - 1].terminal != c->waits.at[i].terminal)
            VEC_PUSH(m->heads, c->waits.at[i].terminal);
        VEC_PUSH(m->waits, c->waits.at[i]);
    }
    row->n_waits = (uint32_t)m->waits.n - row->waits;
    row->n_heads = (uint32_t)m->heads.n - row->heads;
}

void row_predict(struct machine *m, struct closing *c, struct row *row) {
    closing_forget(c);
    c->todo.n = c->waits.n = c->calls.n = 0;
    for (size_t i = 0; i < c->kept.n; i++)
        announce(m, c, c->kept.at[i], UINT32_MAX);
    while (c->calls.n && m->failed == OK)
        predict_next(m, c);
    if (m->failed == OK)
        put_waits(m, c, row);
}
