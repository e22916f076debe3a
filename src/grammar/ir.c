/* ir.c - see ir.h. */
#include "grammar/ir_arena.h"
#include "grammar/rx_pool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_DEPTH = 500 };

static ir_id add(struct ir *ir, struct ir_node node, unsigned depth) {
    if ((ir->n_nodes & 1023) == 0)
        rx_check_time(ir->rx);
    if (ir->n_nodes >= ir->max_nodes)
        return ir_fail(ir, ERR_LIMIT, "the grammar has more than %u parts", ir->max_nodes);
    if (depth > MAX_DEPTH)
        return ir_fail(ir, ERR_LIMIT, "the grammar is nested deeper than %d", MAX_DEPTH);
    if (ir->n_nodes >= ir->cap_nodes) {
        ir->cap_nodes = ir->cap_nodes ? ir->cap_nodes * 2 : 64;
        ir->nodes = xrealloc(ir->nodes, ir->cap_nodes, sizeof *ir->nodes);
        ir->depth = xrealloc(ir->depth, ir->cap_nodes, sizeof *ir->depth);
    }
    ir->nodes[ir->n_nodes] = node;
    ir->depth[ir->n_nodes] = (uint16_t)depth;
    return ir->n_nodes++;
}

struct ir *ir_open(uint32_t max_nodes) {
    struct ir *ir = xcalloc(1, sizeof *ir);
    ir->rx = rx_pool_open(max_nodes);
    ir->max_nodes = MAX(max_nodes, 2);
    add(ir, (struct ir_node){.kind = IR_KIND_NEVER}, 0);
    add(ir, (struct ir_node){.kind = IR_KIND_EMPTY}, 0);
    return ir;
}

void ir_free(struct ir *ir) {
    if (!ir)
        return;
    rx_pool_free(ir->rx);
    free(ir->nodes);
    free(ir->depth);
    free(ir->parts);
    free(ir->tokens);
    free(ir->members);
    free(ir->rule_names);
    arena_release(&ir->memory);
    free(ir);
}

struct rx_pool *ir_rx(struct ir *ir) {
    return ir->rx;
}
void ir_allow_time(struct ir *ir, int64_t us) {
    rx_allow_time(ir->rx, us);
    rx_check_time(ir->rx);
}

ir_id ir_fail(struct ir *ir, enum status status, const char *format, ...) {
    if (ir->err.status == OK) {
        char text[sizeof ir->err.text];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        fail(&ir->err, status, "%s", text);
    }
    return IR_NEVER;
}

enum status ir_check(const struct ir *ir, struct error *err) {
    if (ir->err.status != OK)
        return fail(err, ir->err.status, "%s", ir->err.text);
    TRY(rx_check(ir->rx, err));
    for (uint32_t i = 0; i < ir->n_nodes; i++)
        if (ir->nodes[i].kind == IR_KIND_RULE && ir->nodes[i].min == 0)
            return fail(err, ERR_FORMAT, "rule %s is used and not defined", ir->rule_names[ir->nodes[i].b]);
    return OK;
}

ir_id ir_terminal(struct ir *ir, rx_id rx) {
    if (rx == RX_NEVER || rx == RX_EMPTY)
        return rx == RX_NEVER ? IR_NEVER : IR_EMPTY;
    return add(ir, (struct ir_node){.kind = IR_KIND_TERMINAL, .a = rx}, 0);
}

ir_id ir_bytes(struct ir *ir, struct str literal) { return ir_terminal(ir, rx_bytes(ir->rx, literal)); }
ir_id ir_class(struct ir *ir, const struct code_range *ranges, size_t n) {
    return ir_terminal(ir, rx_class(ir->rx, ranges, n));
}

/* A sequence or alternatives, flat, without those that change nothing. */
static ir_id add_list(struct ir *ir, enum ir_kind kind, const ir_id *parts, size_t n) {
    ir_id unit = kind == IR_KIND_SEQ ? IR_EMPTY : IR_NEVER;
    unsigned depth = 0;
    size_t first = ir->n_parts;
    for (size_t i = 0; i < n; i++) {
        if (kind == IR_KIND_SEQ && parts[i] == IR_NEVER) {
            ir->n_parts = first;
            return IR_NEVER;
        }
        if (parts[i] == unit)
            continue;
        RX_GROW(ir->parts, ir->n_parts, ir->cap_parts);
        ir->parts[ir->n_parts++] = parts[i];
        depth = MAX(depth, ir->depth[parts[i]] + 1u);
    }
    size_t m = ir->n_parts - first;
    if (m <= 1) {
        ir->n_parts = first;
        return m == 0 ? unit : ir->parts[first];
    }
    if (ir->n_parts > 4 * (size_t)ir->max_nodes)
        return ir_fail(ir, ERR_LIMIT, "the grammar has more than %zu parts", 4 * (size_t)ir->max_nodes);
    return add(ir, (struct ir_node){.kind = kind, .a = (uint32_t)first, .b = (uint32_t)m}, depth);
}

ir_id ir_seq_of(struct ir *ir, const ir_id *parts, size_t n) { return add_list(ir, IR_KIND_SEQ, parts, n); }
ir_id ir_seq(struct ir *ir, ir_id a, ir_id b) { return ir_seq_of(ir, (ir_id[]){a, b}, 2); }
ir_id ir_alt_of(struct ir *ir, const ir_id *parts, size_t n) { return add_list(ir, IR_KIND_ALT, parts, n); }
ir_id ir_alt(struct ir *ir, ir_id a, ir_id b) { return ir_alt_of(ir, (ir_id[]){a, b}, 2); }

ir_id ir_repeat(struct ir *ir, ir_id a, int32_t min, int32_t max) {
    min = MAX(min, 0);
    if (max != IR_NO_MAX && max < min)
        return IR_NEVER;
    if (max == 0 || a == IR_EMPTY)
        return IR_EMPTY;
    if (a == IR_NEVER)
        return min == 0 ? IR_EMPTY : IR_NEVER;
    if (min == 1 && max == 1)
        return a;
    return add(ir, (struct ir_node){.kind = IR_KIND_REPEAT, .a = a, .min = min, .max = max}, ir->depth[a] + 1u);
}

ir_id ir_optional(struct ir *ir, ir_id a) { return ir_repeat(ir, a, 0, 1); }

ir_id ir_rule(struct ir *ir, const char *name) {
    RX_GROW(ir->rule_names, ir->n_rules, ir->cap_rules);
    ir->rule_names[ir->n_rules] = arena_strdup(&ir->memory, str_of(name));
    return add(ir, (struct ir_node){.kind = IR_KIND_RULE, .a = IR_NEVER, .b = ir->n_rules++}, 0);
}

void ir_define(struct ir *ir, ir_id rule, ir_id body) {
    if (ir->nodes[rule].kind != IR_KIND_RULE)
        return; // a limit was met where the rule was made
    if (ir->nodes[rule].min)
        ir_fail(ir, ERR_FORMAT, "rule %s is defined twice", ir->rule_names[ir->nodes[rule].b]);
    ir->nodes[rule].a = body;
    ir->nodes[rule].min = 1;
}

static ir_id add_tokens(struct ir *ir, const struct ir_token *tokens, size_t n, bool none_of) {
    RX_GROW(ir->tokens, ir->n_tokens, ir->cap_tokens);
    struct ir_token *copy = arena_calloc(&ir->memory, n + 1, sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        copy[i].id = tokens[i].id;
        copy[i].may_lack = tokens[i].may_lack;
        if (tokens[i].name.ptr)
            copy[i].name = (struct str){arena_strdup(&ir->memory, tokens[i].name), tokens[i].name.len};
    }
    ir->tokens[ir->n_tokens] = (struct ir_token_list){copy, (uint32_t)n, none_of};
    return add(ir, (struct ir_node){.kind = IR_KIND_TOKENS, .a = ir->n_tokens++}, 0);
}

ir_id ir_token(struct ir *ir, struct ir_token token) { return add_tokens(ir, &token, 1, false); }
ir_id ir_not_tokens(struct ir *ir, const struct ir_token *tokens, size_t n) { return add_tokens(ir, tokens, n, true); }

ir_id ir_text_without(struct ir *ir, const struct str *triggers, size_t n) {
    struct rx_pool *rx = ir->rx;
    struct str *copy = xmalloc((n + 1) * sizeof *copy);
    if (n)
        memcpy(copy, triggers, n * sizeof *copy);
    rx_id any = rx_any_text(rx);
    rx_id with = n ? rx_seq(rx, RX_ALL, rx_seq(rx, rx_choice(rx, copy, n), RX_ALL)) : RX_NEVER;
    free(copy);
    return ir_terminal(ir, rx_and(rx, any, rx_not(rx, with)));
}

static void *copy_array(struct ir *ir, const void *from, size_t n, size_t size) {
    void *to = arena_calloc(&ir->memory, n + 1, size);
    if (n)
        memcpy(to, from, n * size);
    return to;
}

ir_id ir_members(struct ir *ir, const struct ir_members *m) {
    if (m->ordered && (m->n_needs || m->n_excludes))
        return ir_fail(ir, ERR_UNSUPPORTED, "members in a fixed order that depend on one another are not enforced");
    size_t required = 0;
    for (size_t i = 0; i < m->n_known; i++)
        required += m->known[i].required;
    if (m->n_needs && m->n_others == 0 && m->max != IR_NO_MAX && m->min > (int64_t)required)
        return ir_fail(ir, ERR_UNSUPPORTED,
                       "least and most members, where some need others and no key is free, are not enforced together");
    if (m->n_excludes && m->min > 1 && m->n_others == 0)
        return ir_fail(ir, ERR_UNSUPPORTED, "a least number of members that exclude one another is not enforced");
    RX_GROW(ir->members, ir->n_members, ir->cap_members);
    struct ir_members copy = *m;
    copy.known = copy_array(ir, m->known, m->n_known, sizeof *m->known);
    copy.others = copy_array(ir, m->others, m->n_others, sizeof *m->others);
    copy.needs = copy_array(ir, m->needs, m->n_needs, sizeof *m->needs);
    copy.excludes = copy_array(ir, m->excludes, m->n_excludes, sizeof *m->excludes);
    copy.min = MAX(m->min, 0);
    unsigned depth = 0;
    for (size_t i = 0; i < m->n_known + m->n_others; i++) {
        ir_id value = i < m->n_known ? m->known[i].value : m->others[i - m->n_known].value;
        depth = MAX(depth, ir->depth[value] + 1u);
    }
    ir->members[ir->n_members] = copy;
    return add(ir, (struct ir_node){.kind = IR_KIND_MEMBERS, .a = ir->n_members++}, depth);
}
