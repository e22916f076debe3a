/* emit.c - nodes as the grammar of their JSON texts: a rule for each node that holds arrays or objects, made when it is
 * first needed, so recursion of schemas is recursion of rules, and depth is no matter. */
#include "grammar/schema/emit.h"

#include <stdlib.h>

static ir_id literal(struct reader *r, const char *text) { return ir_bytes(r->ir, str_of(text)); }

ir_id emit_quoted(struct reader *r, rx_id text) { return ir_terminal(r->ir, emit_quoted_rx(r, text)); }

static rx_id in_quotes(struct rx_pool *rx, rx_id spelled) {
    rx_id quote = rx_bytes(rx, STR("\""));
    return rx_seq_of(rx, (rx_id[]){quote, spelled, quote}, 3);
}

rx_id emit_quoted_rx(struct reader *r, rx_id text) { return in_quotes(ir_rx(r->ir), spell(r, text)); }
rx_id emit_quoted_one_way(struct reader *r, rx_id text) { return in_quotes(ir_rx(r->ir), spell_one_way(r, text)); }

rx_id emit_words(struct reader *r, const struct forms *f) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id words = f->null ? rx_bytes(rx, STR("null")) : RX_NEVER;
    words = f->bools & 1 ? rx_alt(rx, words, rx_bytes(rx, STR("false"))) : words;
    return f->bools & 2 ? rx_alt(rx, words, rx_bytes(rx, STR("true"))) : words;
}

static ir_id scalars(struct reader *r, const struct forms *f) {
    struct ir *ir = r->ir;
    rx_id words = emit_words(r, f);
    ir_id out = words == RX_NEVER ? IR_NEVER : ir_terminal(ir, words);
    if (f->number.text != RX_NEVER)
        out = ir_alt(ir, out, ir_terminal(ir, f->number.text));
    if (f->string != RX_NEVER)
        out = ir_alt(ir, out, emit_quoted(r, f->string));
    return out;
}

/* Room for a node; the table of nodes grows while forms are worked out. */
static struct emitted *emitted_at(struct reader *r, node_id id) {
    if (id >= r->cap_emitted) {
        int cap = MAX(2 * r->cap_emitted, id + 256);
        r->emitted = xrealloc(r->emitted, (size_t)cap, sizeof *r->emitted);
        memset(r->emitted + r->cap_emitted, 0, (size_t)(cap - r->cap_emitted) * sizeof *r->emitted);
        r->cap_emitted = cap;
    }
    return &r->emitted[id];
}

ir_id emit_value(struct reader *r, node_id id) {
    if (id == NODE_FALSE || refused(r))
        return IR_NEVER;
    struct emitted *emitted = emitted_at(r, id);
    if (emitted->done)
        return emitted->ir;
    const struct forms *f = node_forms(r, id);
    bool composite = f->n_arrays + f->n_objects > 0;
    *emitted = (struct emitted){composite ? ir_rule(r->ir, "value") : scalars(r, f), true};
    if (composite) {
        if (r->n_todo == r->cap_todo) {
            r->cap_todo = r->cap_todo ? 2 * r->cap_todo : 64;
            r->todo = xrealloc(r->todo, (size_t)r->cap_todo, sizeof *r->todo);
        }
        r->todo[r->n_todo++] = id;
    }
    return emitted->ir;
}

static ir_id space(struct reader *r) { return r->space == RX_EMPTY ? IR_EMPTY : ir_terminal(r->ir, r->space); }

/* open, then `body` (which may be empty), then close. */
ir_id emit_between(struct reader *r, const char *open, ir_id body, const char *close) {
    return ir_seq_of(r->ir, (ir_id[]){literal(r, open), space(r), body, space(r), literal(r, close)}, 5);
}

/* A schema that a node is made of, for refusals. */
static const json_t *schema_of(const struct reader *r, node_id id) {
    const struct node *n = &r->nodes[id];
    for (int i = 0; n->kind >= KIND_AND && n->n_args > 0 && i < 8; i++)
        n = &r->nodes[n->args[0]];
    return n->kind == KIND_SCHEMA ? n->json : NULL;
}

static void define(struct reader *r, node_id id) {
    const struct forms *f = node_forms(r, id);
    r->current = schema_of(r, id);
    ir_id rule = r->emitted[id].ir, *parts = xcalloc((size_t)(f->n_arrays + f->n_objects) + 1, sizeof *parts);
    size_t n = 0;
    parts[n++] = scalars(r, f);
    for (int i = 0; i < f->n_arrays && !refused(r); i++)
        parts[n++] = emit_array(r, &f->arrays[i]);
    for (int i = 0; i < f->n_objects && !refused(r); i++)
        parts[n++] = emit_object(r, &f->objects[i]);
    ir_define(r->ir, rule, ir_alt_of(r->ir, parts, n));
    free(parts);
}

static rx_id space_of(struct reader *r, struct str pattern) {
    rx_id out = RX_EMPTY;
    struct error err;
    if (!r->style.compact && regex_read_rx(ir_rx(r->ir), pattern, 0, &out, &err) != OK)
        reader_refuse(r, err.status, "whitespace pattern: %s", err.text);
    return out;
}

static void space_init(struct reader *r) {
    struct rx_pool *rx = ir_rx(r->ir);
    bool given = r->style.whitespace.ptr != NULL;
    r->space = space_of(r, given ? r->style.whitespace : STR(JSON_WHITESPACE));
    rx_id before = given ? r->space : RX_EMPTY;
    rx_id behind_colon = given ? r->space : space_of(r, STR(" ?"));
    r->comma = rx_seq_of(rx, (rx_id[]){before, rx_bytes(rx, STR(",")), r->space}, 3);
    r->colon = rx_seq_of(rx, (rx_id[]){before, rx_bytes(rx, STR(":")), behind_colon}, 3);
}

ir_id emit_schema(struct reader *r, node_id root) {
    space_init(r);
    ir_id out = emit_value(r, root);
    while (r->n_todo > 0 && !refused(r))
        define(r, r->todo[--r->n_todo]);
    return out;
}
