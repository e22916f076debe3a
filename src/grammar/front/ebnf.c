/* ebnf.c - see ebnf.h. */
#include "grammar/front/ebnf.h"
#include "grammar/front/stretches.h"
#include "grammar/numbers.h"
#include "grammar/rx_pool.h"

#include <xxhash.h>

enum kind { EBNF_NOTHING, EBNF_RX, EBNF_IR, EBNF_SEQ, EBNF_ALT, EBNF_REPEAT, EBNF_REF };
enum { MAX_DEPTH = 400, MAX_REGULAR = 4096 };

struct ebnf_node {
    uint8_t kind;
    uint16_t depth;
    uint32_t a, b; // RX: rx; IR: node; SEQ, ALT: [a, a + b) of parts; REPEAT: body; REF: rule
    int32_t min, max;
    uint8_t known; // see as_rx: 1: rx is its expression, 2: it has none
    rx_id rx;
};

struct ebnf_rule {
    struct str name;
    ebnf_id body;
    bool defined, used;
    bool regular; // rx is its language
    rx_id rx;
    uint32_t waiting; // for that many references to become regular
    ir_id ir;
};

struct ebnf {
    struct ir *ir;
    struct ebnf_node *nodes;
    uint32_t n_nodes, cap_nodes;
    ebnf_id *parts;
    size_t n_parts, cap_parts;
    struct ebnf_rule *rules;
    uint32_t n_rules, cap_rules;
    struct number_index names;
    struct arena memory;
};

static ebnf_id add(struct ebnf *e, struct ebnf_node n) {
    if (n.depth > MAX_DEPTH) {
        ir_fail(e->ir, ERR_LIMIT, "the grammar is nested deeper than %d", MAX_DEPTH);
        return EBNF_EMPTY;
    }
    RX_GROW(e->nodes, e->n_nodes, e->cap_nodes);
    e->nodes[e->n_nodes] = n;
    return e->n_nodes++;
}

struct ebnf *ebnf_open(struct ir *ir) {
    struct ebnf *e = xcalloc(1, sizeof *e);
    e->ir = ir;
    add(e, (struct ebnf_node){.kind = EBNF_NOTHING});
    return e;
}

void ebnf_free(struct ebnf *e) {
    if (!e)
        return;
    free(e->nodes);
    free(e->parts);
    free(e->rules);
    free(e->names.slots);
    arena_release(&e->memory);
    free(e);
}

ebnf_id ebnf_rx(struct ebnf *e, rx_id rx) { return add(e, (struct ebnf_node){.kind = EBNF_RX, .a = rx}); }
ebnf_id ebnf_ir(struct ebnf *e, ir_id node) { return add(e, (struct ebnf_node){.kind = EBNF_IR, .a = node}); }

static ebnf_id add_list(struct ebnf *e, enum kind kind, const ebnf_id *parts, size_t n) {
    if (n == 1)
        return parts[0];
    unsigned depth = 0;
    uint32_t first = (uint32_t)e->n_parts;
    for (size_t i = 0; i < n; i++) {
        RX_GROW(e->parts, e->n_parts, e->cap_parts);
        e->parts[e->n_parts++] = parts[i];
        depth = MAX(depth, e->nodes[parts[i]].depth + 1u);
    }
    return add(e, (struct ebnf_node){.kind = kind, .a = first, .b = (uint32_t)n, .depth = (uint16_t)depth});
}

ebnf_id ebnf_seq(struct ebnf *e, const ebnf_id *parts, size_t n) {
    return n ? add_list(e, EBNF_SEQ, parts, n) : EBNF_EMPTY;
}
ebnf_id ebnf_alt(struct ebnf *e, const ebnf_id *parts, size_t n) { return add_list(e, EBNF_ALT, parts, n); }
ebnf_id ebnf_repeat(struct ebnf *e, ebnf_id a, int32_t min, int32_t max) {
    uint16_t depth = (uint16_t)(e->nodes[a].depth + 1);
    return add(e, (struct ebnf_node){.kind = EBNF_REPEAT, .a = a, .min = min, .max = max, .depth = depth});
}

static uint32_t rule_of(struct ebnf *e, struct str name) {
    uint64_t hash = XXH3_64bits(name.ptr, name.len), at = number_index_begin(&e->names, hash);
    for (uint32_t found; (found = number_index_next(&e->names, hash, &at));)
        if (str_eq(e->rules[found - 1].name, name))
            return found - 1;
    RX_GROW(e->rules, e->n_rules, e->cap_rules);
    struct str copy = {arena_strdup(&e->memory, name), name.len};
    e->rules[e->n_rules] = (struct ebnf_rule){.name = copy, .ir = IR_NEVER};
    number_index_put(&e->names, hash, e->n_rules + 1);
    return e->n_rules++;
}

ebnf_id ebnf_ref(struct ebnf *e, struct str rule) {
    return add(e, (struct ebnf_node){.kind = EBNF_REF, .a = rule_of(e, rule)});
}

bool ebnf_define(struct ebnf *e, struct str rule, ebnf_id body) {
    uint32_t at = rule_of(e, rule);
    struct ebnf_rule *r = &e->rules[at];
    if (r->defined)
        return false;
    r->defined = true;
    r->body = body;
    return true;
}
bool ebnf_defined(struct ebnf *e, struct str rule) {
    uint32_t at = rule_of(e, rule);
    return e->rules[at].defined;
}

// ---- what is regular --------------------------------------------------------------------------------------------

static bool as_rx(struct ebnf *e, ebnf_id id, rx_id *out);

static bool find_rx(struct ebnf *e, struct ebnf_node n, rx_id *out) {
    struct rx_pool *rx = ir_rx(e->ir);
    switch ((enum kind)n.kind) {
    case EBNF_NOTHING: *out = RX_EMPTY; return true;
    case EBNF_RX: *out = n.a; return true;
    case EBNF_IR: return false;
    case EBNF_REF: *out = e->rules[n.a].rx; return e->rules[n.a].regular;
    case EBNF_REPEAT:
        if (!as_rx(e, n.a, out))
            return false;
        *out = rx_repeat(rx, *out, n.min, n.max);
        return true;
    default: break;
    }
    rx_id *parts = xmalloc((n.b + 1) * sizeof *parts);
    bool all = true;
    for (uint32_t i = 0; i < n.b && all; i++)
        all = as_rx(e, e->parts[n.a + i], &parts[i]);
    if (all)
        *out = n.kind == EBNF_SEQ ? rx_seq_of(rx, parts, n.b) : rx_alt_of(rx, parts, n.b);
    free(parts);
    return all;
}

/* The expression of a node all of whose rules are known to be regular or not; false if it has none, or a large one. */
static bool as_rx(struct ebnf *e, ebnf_id id, rx_id *out) {
    struct ebnf_node *n = &e->nodes[id];
    if (!n->known) {
        n->known = find_rx(e, *n, &n->rx) && rx_length(ir_rx(e->ir), n->rx) <= MAX_REGULAR ? 1 : 2;
        rx_check_time(ir_rx(e->ir));
    }
    *out = n->rx;
    return n->known == 1;
}

/* Counts the references of a node; `put` NULL counts only. */
static uint32_t references(struct ebnf *e, ebnf_id id, uint32_t *put) {
    struct ebnf_node n = e->nodes[id];
    uint32_t count = 0;
    if (n.kind == EBNF_REF) {
        if (put)
            *put = n.a;
        return 1;
    }
    if (n.kind == EBNF_REPEAT)
        return references(e, n.a, put);
    if (n.kind == EBNF_SEQ || n.kind == EBNF_ALT)
        for (uint32_t i = 0; i < n.b; i++)
            count += references(e, e->parts[n.a + i], put ? put + count : NULL);
    return count;
}

/* Finds the regular rules, those without references first (Kahn's order); rules in a circle are never reached. Only
 * such as make good terminals count. */
static void find_regular(struct ebnf *e) {
    uint32_t n = e->n_rules, n_queue = 0, total = 0;
    uint32_t *first = xcalloc(n + 2, sizeof *first), *queue = xmalloc((n + 1) * sizeof *queue);
    for (uint32_t r = 0; r < n; r++) {
        e->rules[r].waiting = e->rules[r].defined ? references(e, e->rules[r].body, NULL) : 1;
        total += e->rules[r].waiting;
        e->rules[r].regular = false;
    }
    uint32_t *to = xmalloc((total + 1) * sizeof *to), *users = xmalloc((total + 1) * sizeof *users), at = 0;
    for (uint32_t r = 0; r < n; r++)
        if (e->rules[r].defined)
            for (uint32_t i = 0, k = references(e, e->rules[r].body, to); i < k; i++)
                first[to[i] + 2]++;
    for (uint32_t r = 2; r < n + 2; r++)
        first[r] += first[r - 1];
    for (uint32_t r = 0; r < n; r++)
        if (e->rules[r].defined)
            for (uint32_t i = 0, k = references(e, e->rules[r].body, to); i < k; i++)
                users[first[to[i] + 1]++] = r;
    for (uint32_t r = 0; r < n; r++)
        if (e->rules[r].waiting == 0)
            queue[n_queue++] = r;
    for (; at < n_queue; at++) {
        struct ebnf_rule *r = &e->rules[queue[at]];
        r->regular = as_rx(e, r->body, &r->rx) && stretches_good_terminal(ir_rx(e->ir), r->rx);
        if (r->regular)
            for (uint32_t i = first[queue[at]]; i < first[queue[at] + 1]; i++)
                if (--e->rules[users[i]].waiting == 0)
                    queue[n_queue++] = users[i];
    }
    free(first);
    free(queue);
    free(to);
    free(users);
}

// ---- the intermediate form --------------------------------------------------------------------------------------

static ir_id emit(struct ebnf *e, ebnf_id id);

/* Parts of a list; what is regular and has no free text is taken together with its neighbours. */
static ir_id emit_list(struct ebnf *e, struct ebnf_node n) {
    struct rx_pool *rx = ir_rx(e->ir);
    ir_id *out = xmalloc((n.b + 1) * sizeof *out);
    size_t count = 0;
    rx_id joined = n.kind == EBNF_SEQ ? RX_EMPTY : RX_NEVER, unit = joined;
    for (uint32_t i = 0; i < n.b; i++) {
        rx_id one;
        bool plain = as_rx(e, e->parts[n.a + i], &one) && stretches_count(rx, one) == 0;
        if (plain)
            joined = n.kind == EBNF_SEQ ? rx_seq(rx, joined, one) : rx_alt(rx, joined, one);
        if (joined != unit && (i + 1 == n.b || (!plain && n.kind == EBNF_SEQ))) {
            out[count++] = ir_terminal(e->ir, joined);
            joined = unit;
        }
        if (!plain)
            out[count++] = emit(e, e->parts[n.a + i]);
    }
    ir_id list = n.kind == EBNF_SEQ ? ir_seq_of(e->ir, out, count) : ir_alt_of(e->ir, out, count);
    free(out);
    return list;
}

static ir_id emit(struct ebnf *e, ebnf_id id) {
    struct ebnf_node n = e->nodes[id];
    rx_id rx;
    if (as_rx(e, id, &rx) && stretches_good_terminal(ir_rx(e->ir), rx))
        return ir_terminal(e->ir, rx);
    switch ((enum kind)n.kind) {
    case EBNF_NOTHING: return IR_EMPTY;
    case EBNF_RX: return ir_of_rx(e->ir, n.a);
    case EBNF_IR: return n.a;
    case EBNF_REPEAT: return ir_repeat(e->ir, emit(e, n.a), n.min, n.max);
    case EBNF_REF: return e->rules[n.a].ir;
    default: return emit_list(e, n);
    }
}

enum status ebnf_finish(struct ebnf *e, struct str root, ir_id *out, struct error *err) {
    uint32_t start = rule_of(e, root);
    for (uint32_t r = 0; r < e->n_rules; r++)
        if (!e->rules[r].defined)
            return fail(err, ERR_FORMAT, "the grammar has no rule %.*s", (int)MIN(e->rules[r].name.len, 100),
                        e->rules[r].name.ptr);
    TRY(ir_check(e->ir, err));
    find_regular(e);
    for (uint32_t r = 0; r < e->n_rules; r++)
        e->rules[r].ir = ir_rule(e->ir, e->rules[r].name.ptr);
    for (uint32_t r = 0; r < e->n_rules; r++)
        ir_define(e->ir, e->rules[r].ir, emit(e, e->rules[r].body));
    *out = e->rules[start].ir;
    return ir_check(e->ir, err);
}
