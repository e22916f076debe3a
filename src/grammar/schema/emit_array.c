/* emit_array.c - array forms as grammars. Without `contains`: the prefix one by one, the rest as a repeat. With
 * it: rules of a machine whose state is how many items there were and how many fitted. uniqueItems: a choice among
 * listed values. */
#include "grammar/schema/emit.h"

#include "base/buf.h"

enum { MAX_STATES = 4096, MAX_CONTAINS = 4, MAX_UNIQUE = 256, LEVELS = 64 };

static int32_t count(int64_t n) { return n == UNBOUNDED ? IR_NO_MAX : (int32_t)MIN(n, INT32_MAX); }

static ir_id comma(struct reader *r) { return ir_terminal(r->ir, r->comma); }

static ir_id items_in_order(struct reader *r, const struct array_form *f) {
    struct ir *ir = r->ir;
    int64_t n = f->max == UNBOUNDED ? f->n_prefix : MIN(f->n_prefix, f->max);
    bool rest = f->rest != NODE_FALSE && (f->max == UNBOUNDED || f->max > n);
    ir_id out = IR_EMPTY;
    if (rest) {
        int64_t first = n == 0, most = f->max == UNBOUNDED ? UNBOUNDED : f->max - n - first;
        ir_id item = emit_value(r, f->rest);
        out = ir_repeat(ir, ir_seq(ir, comma(r), item), count(MAX(f->min - n - first, 0)), count(most));
        out = first ? ir_seq(ir, item, out) : out;
        if (first && f->min == 0)
            out = ir_optional(ir, out);
    }
    for (int64_t i = n - 1; i >= 0 && !refused(r); i--) {
        out = ir_seq(ir, emit_value(r, f->prefix[i]), out);
        out = i > 0 ? ir_seq(ir, comma(r), out) : out;
        out = i >= f->min ? ir_optional(ir, out) : out;
        if (i % LEVELS == LEVELS - 1) { // an expression is not deeper than that; rules may be
            ir_id rule = ir_rule(ir, "items");
            ir_define(ir, rule, out);
            out = rule;
        }
    }
    return out;
}

// ---- contains ------------------------------------------------------------------------------------------------------

struct machine {
    const struct array_form *f;
    int64_t cap;                // items are counted up to it
    int64_t most[MAX_CONTAINS]; // items that fit contains i are counted up to it
    int64_t n_states;
    ir_id *rules;
};

struct at {
    int64_t items, fitted[MAX_CONTAINS];
};

static int64_t state_of(const struct machine *m, const struct at *at) {
    int64_t s = at->items;
    for (int i = 0; i < m->f->n_contains; i++)
        s = s * (m->most[i] + 1) + at->fitted[i];
    return s;
}

static struct at at_of(const struct machine *m, int64_t state) {
    struct at at = {0};
    for (int i = m->f->n_contains; i-- > 0; state /= m->most[i] + 1)
        at.fitted[i] = state % (m->most[i] + 1);
    at.items = state;
    return at;
}

static bool machine_init(struct reader *r, struct machine *m, const struct array_form *f) {
    *m = (struct machine){.f = f};
    m->cap = MAX(f->min, f->n_prefix);
    m->cap = f->max == UNBOUNDED ? m->cap : MAX(m->cap, f->max);
    for (int i = 0; i < f->n_contains && i < MAX_CONTAINS; i++)
        m->cap = MAX(m->cap, f->contains[i].from);
    m->n_states = m->cap + 1;
    for (int i = 0; i < f->n_contains && i < MAX_CONTAINS; i++) {
        const struct contains *c = &f->contains[i];
        m->most[i] = c->max == UNBOUNDED ? c->min : c->max;
        m->n_states = m->n_states > MAX_STATES || m->most[i] > MAX_STATES ? INT32_MAX : m->n_states * (m->most[i] + 1);
    }
    if (f->n_contains > MAX_CONTAINS || m->n_states > MAX_STATES)
        reader_refuse(r, ERR_UNSUPPORTED, "contains: with these counts of items there are more than %d states",
                      MAX_STATES);
    return !refused(r);
}

static bool may_stop(const struct machine *m, const struct at *at) {
    bool stop = at->items >= m->f->min;
    for (int i = 0; i < m->f->n_contains; i++)
        stop = stop && at->fitted[i] >= m->f->contains[i].min;
    return stop;
}

/* The item that comes next if it fits just the contains of the set (bits); false where that is not to be told
 * apart, or not allowed. *next becomes the state behind it. */
static bool next_item(struct reader *r, const struct machine *m, const struct at *at, unsigned set, node_id *item,
                      struct at *next) {
    *next = *at;
    *item = array_item(m->f, at->items);
    next->items = MIN(at->items + 1, m->cap);
    for (int i = 0; i < m->f->n_contains; i++) {
        const struct contains *c = &m->f->contains[i];
        bool fits = set >> i & 1, counted = at->items >= c->from;
        bool told = counted && (c->max != UNBOUNDED || at->fitted[i] < c->min);
        if (fits && (!told || at->fitted[i] == m->most[i]))
            return false;
        if (fits) {
            *item = node_and(r, *item, c->node);
            next->fitted[i]++;
        } else if (told && c->max != UNBOUNDED) { // where there is no maximum, an item that fits need not be counted
            *item = node_and(r, *item, node_not(r, c->node));
        }
    }
    return *item != NODE_FALSE;
}

static ir_id machine_body(struct reader *r, const struct machine *m, int64_t state) {
    struct ir *ir = r->ir;
    struct at at = at_of(m, state), next;
    ir_id out = may_stop(m, &at) ? IR_EMPTY : IR_NEVER;
    if (m->f->max != UNBOUNDED && at.items >= m->f->max)
        return out;
    for (unsigned set = 0; set < 1u << m->f->n_contains && !refused(r); set++) {
        node_id item;
        if (!next_item(r, m, &at, set, &item, &next))
            continue;
        ir_id one = ir_seq(ir, emit_value(r, item), m->rules[state_of(m, &next)]);
        out = ir_alt(ir, out, at.items > 0 ? ir_seq(ir, comma(r), one) : one);
    }
    return out;
}

static ir_id items_counted(struct reader *r, const struct array_form *f) {
    struct machine m;
    if (!machine_init(r, &m, f))
        return IR_NEVER;
    if (m.cap == 0) { // the first item has no comma before it
        m.cap = 1;
        m.n_states *= 2;
    }
    m.rules = xcalloc((size_t)m.n_states, sizeof *m.rules);
    for (int64_t s = 0; s < m.n_states; s++)
        m.rules[s] = ir_rule(r->ir, "items");
    for (int64_t s = 0; s < m.n_states && !refused(r); s++)
        ir_define(r->ir, m.rules[s], machine_body(r, &m, s));
    ir_id out = m.rules[0];
    free(m.rules);
    return out;
}

// ---- uniqueItems ---------------------------------------------------------------------------------------------------

/* Appends to list what values of the node can be, if enum, const, null and booleans say that they are few. */
static bool candidates(struct reader *r, node_id id, json_t *list, int depth) {
    struct node n = r->nodes[id];
    bool found = n.kind == KIND_VALUE;
    if (depth > 8 || json_array_size(list) > MAX_UNIQUE)
        return false;
    if (n.kind == KIND_VALUE)
        json_array_append(list, (json_t *)n.json);
    if (n.kind == KIND_SCHEMA && json_object_get(n.json, "const")) {
        json_array_append(list, json_object_get(n.json, "const"));
        found = true;
    } else if (n.kind == KIND_SCHEMA && json_is_array(json_object_get(n.json, "enum"))) {
        json_array_extend(list, json_object_get(n.json, "enum"));
        found = true;
    }
    for (int i = 0; n.kind == KIND_AND && i < n.n_args && !found; i++)
        found = candidates(r, n.args[i], list, depth + 1);
    return found;
}

static bool fits(struct reader *r, const struct forms *f, const json_t *v) {
    struct rx_pool *rx = ir_rx(r->ir);
    if (json_is_string(v))
        return rx_match(rx, f->string, (struct str){json_string_value(v), json_string_length(v)});
    if (json_is_number(v))
        return rx_meet(rx, f->number.value, numbers_of_values(r, &v, 1).value, 1000);
    return json_is_null(v) ? f->null : json_is_false(v) ? f->bools & 1 : json_is_true(v) ? f->bools & 2 : false;
}

static bool listed_before(const json_t *list, size_t n, const json_t *v) {
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        bool numbers = json_is_number(x) && json_is_number(v);
        if (numbers ? json_number_value(x) == json_number_value(v) : json_equal(x, v))
            return true;
    }
    return false;
}

static rx_id text_of(struct reader *r, const json_t *v) {
    struct rx_pool *rx = ir_rx(r->ir);
    if (json_is_string(v))
        return emit_quoted_rx(r, rx_bytes(rx, (struct str){json_string_value(v), json_string_length(v)}));
    if (json_is_number(v))
        return numbers_of_values(r, &v, 1).text;
    return rx_bytes(rx, json_is_null(v) ? STR("null") : json_is_false(v) ? STR("false") : STR("true"));
}

/* Those of the list that fit, each once, as members without values. */
static size_t listed_items(struct reader *r, const struct forms *item, const json_t *list, struct ir_member *known) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (fits(r, item, json_array_get(list, i)) && !listed_before(list, i, json_array_get(list, i)))
            known[n++] = (struct ir_member){text_of(r, json_array_get(list, i)), IR_EMPTY, false};
    return n;
}

/* Every scalar that fits, spelled so that equal ones are equal bytes. */
static rx_id scalars_one_way(struct reader *r, const struct forms *item) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id numbers = item->number.value == RX_NEVER ? RX_NEVER : rx_and(rx, item->number.value, item->number.text);
    rx_id strings = item->string == RX_NEVER ? RX_NEVER : emit_quoted_one_way(r, item->string);
    return rx_alt_of(rx, (rx_id[]){emit_words(r, item), numbers, strings}, 3);
}

/* Scalars in any order: those of a list as members, others by what has been read (distinct). */
static ir_id items_unique(struct reader *r, const struct array_form *f) {
    const struct forms *item = node_forms(r, f->rest);
    if (f->n_prefix > 0 || f->n_contains > 0 || item->n_arrays + item->n_objects > 0) {
        reader_refuse(r, ERR_UNSUPPORTED,
                      "uniqueItems: is not enforced of arrays, of objects, nor beside prefixItems or contains");
        return IR_NEVER;
    }
    json_t *list = json_array();
    bool few = candidates(r, f->rest, list, 0) && json_array_size(list) <= MAX_UNIQUE;
    struct ir_member *known = xcalloc(json_array_size(list) + 1, sizeof *known), other = {RX_NEVER, IR_EMPTY, false};
    struct ir_members members = {.known = known, .separator = r->comma, .min = count(f->min), .max = count(f->max)};
    if (few) {
        members.n_known = listed_items(r, item, list, known);
    } else {
        other.key = scalars_one_way(r, item);
        members.others = &other;
        members.distinct = true;
        enum enough enough = f->min > 1 ? has_texts(ir_rx(r->ir), other.key, f->min) : ENOUGH;
        members.n_others = enough != TOO_FEW;
        if (enough == NOT_KNOWN)
            reader_refuse(r, ERR_UNSUPPORTED,
                          "uniqueItems: with minItems %lld is not enforced: too few items are known",
                          (long long)f->min);
    }
    ir_id out = refused(r) ? IR_NEVER : ir_members(r->ir, &members);
    free(known);
    json_decref(list);
    return out;
}

ir_id emit_array(struct reader *r, const struct array_form *f) {
    bool unique = f->unique && (f->max == UNBOUNDED || f->max > 1);
    ir_id items = unique ? items_unique(r, f) : f->n_contains ? items_counted(r, f) : items_in_order(r, f);
    return emit_between(r, "[", items, "]");
}
