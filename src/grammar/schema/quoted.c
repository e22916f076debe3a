/* quoted.c - see front.h, ir_quoted: a grammar's texts between the quotes of a JSON string. */
#include "grammar/front.h"
#include "grammar/ir_arena.h"
#include "grammar/rx_pool.h"
#include "grammar/schema/forms.h"
#include "grammar/schema/reader.h"

#include <stdlib.h>

struct quoting {
    struct reader spelling; // only what spell_one_way uses of it
    struct ir *ir;
    ir_id *made; // [n] by node, IR_NEVER: not yet
    uint32_t n;
    VEC(ir_id) todo; // rules whose copy is there and not defined
};

static ir_id quote(struct quoting *q, ir_id a);

static ir_id quote_parts(struct quoting *q, struct ir_node node) {
    ir_id *parts = xcalloc(node.b, sizeof *parts);
    for (uint32_t i = 0; i < node.b; i++)
        parts[i] = quote(q, q->ir->parts[node.a + i]);
    ir_id out = node.kind == IR_KIND_SEQ ? ir_seq_of(q->ir, parts, node.b) : ir_alt_of(q->ir, parts, node.b);
    free(parts);
    return out;
}

static ir_id quote_rule(struct quoting *q, ir_id a) {
    q->made[a] = ir_rule(q->ir, q->ir->rule_names[q->ir->nodes[a].b]);
    VEC_PUSH(q->todo, a);
    return q->made[a];
}

/* A copy of a node, of one that was there before quoting began. Rules are copied by the loop in ir_quoted. */
static ir_id quote(struct quoting *q, ir_id a) {
    const struct ir_node node = q->ir->nodes[a];
    if (a >= q->n || q->made[a] != IR_NEVER)
        return a >= q->n ? IR_NEVER : q->made[a];
    ir_id out = IR_NEVER;
    switch ((enum ir_kind)node.kind) {
    case IR_KIND_NEVER: return IR_NEVER;
    case IR_KIND_EMPTY: return IR_EMPTY;
    case IR_KIND_RULE: return quote_rule(q, a);
    case IR_KIND_TERMINAL: out = ir_terminal(q->ir, spell_one_way(&q->spelling, node.a)); break;
    case IR_KIND_SEQ:
    case IR_KIND_ALT: out = quote_parts(q, node); break;
    case IR_KIND_REPEAT: out = ir_repeat(q->ir, quote(q, node.a), node.min, node.max); break;
    case IR_KIND_TOKENS:
        return ir_fail(q->ir, ERR_UNSUPPORTED,
                       "special tokens cannot stand in a text that is written as a JSON string");
    case IR_KIND_MEMBERS:
        return ir_fail(q->ir, ERR_UNSUPPORTED,
                       "objects of a JSON schema are not enforced in a text that is written as a JSON string");
    }
    return q->made[a] = out;
}

ir_id ir_quoted(struct ir *ir, ir_id text) {
    struct error ignored;
    struct quoting q = {.spelling = {.ir = ir, .err = &ignored}, .ir = ir, .n = ir->n_nodes};
    q.made = xcalloc((size_t)q.n + 1, sizeof *q.made);
    ir_id inside = quote(&q, text);
    while (q.todo.n > 0) {
        ir_id rule = q.todo.at[--q.todo.n];
        ir_define(ir, q.made[rule], quote(&q, ir->nodes[rule].a));
    }
    free(q.made);
    free(q.todo.at);
    free(q.spelling.spelled[0]);
    free(q.spelling.spelled[1]);
    ir_id mark = ir_bytes(ir, STR("\""));
    return ir_seq_of(ir, (ir_id[]){mark, inside, mark}, 3);
}
