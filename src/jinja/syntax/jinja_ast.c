/* jinja_ast.c - the children of a node. */
#include "jinja/syntax/jinja_ast.h"

typedef void visitor(void *arg, struct node *child);

static void one(struct node *n, visitor *visit, void *arg) {
    if (n)
        visit(arg, n);
}

static void many(const struct nodes *list, visitor *visit, void *arg) {
    for (size_t i = 0; i < list->n; i++)
        visit(arg, list->item[i]);
}

static void branch_children(const struct node *n, visitor *visit, void *arg) {
    for (size_t i = 0; i < n->branch.n; i++) {
        visit(arg, n->branch.tests[i]);
        many(&n->branch.bodies[i], visit, arg);
    }
    many(&n->branch.otherwise, visit, arg);
}

static void loop_children(const struct node *n, visitor *visit, void *arg) {
    one(n->loop.target, visit, arg);
    one(n->loop.iter, visit, arg);
    many(&n->loop.body, visit, arg);
    many(&n->loop.otherwise, visit, arg);
    one(n->loop.test, visit, arg);
}

static void macro_children(const struct node *n, visitor *visit, void *arg) {
    one(n->macro.call, visit, arg);
    many(&n->macro.params, visit, arg);
    many(&n->macro.defaults, visit, arg);
    many(&n->macro.body, visit, arg);
}

void node_children(const struct node *n, visitor *visit, void *arg) {
    switch (n->kind) {
    case NODE_CONST:
    case NODE_NAME:
    case NODE_NSREF:
    case NODE_TEXT:
    case NODE_BREAK:
    case NODE_CONTINUE: return;
    case NODE_TUPLE:
    case NODE_LIST:
    case NODE_DICT:
    case NODE_CONCAT:
    case NODE_OUTPUT: many(&n->items, visit, arg); return;
    case NODE_BINARY:
    case NODE_AND:
    case NODE_OR:
        visit(arg, n->binary.left);
        visit(arg, n->binary.right);
        return;
    case NODE_NOT:
    case NODE_NEGATE:
    case NODE_PLUS: visit(arg, n->operand); return;
    case NODE_COMPARE:
        visit(arg, n->compare.first);
        many(&n->compare.rest, visit, arg);
        return;
    case NODE_COND:
        visit(arg, n->cond.test);
        visit(arg, n->cond.yes);
        one(n->cond.no, visit, arg);
        return;
    case NODE_ATTR:
    case NODE_ITEM:
        visit(arg, n->access.of);
        visit(arg, n->access.key);
        return;
    case NODE_SLICE:
        one(n->slice.start, visit, arg);
        one(n->slice.stop, visit, arg);
        one(n->slice.step, visit, arg);
        return;
    case NODE_CALL:
    case NODE_FILTER:
    case NODE_TEST:
        one(n->apply.of, visit, arg);
        many(&n->apply.args.positional, visit, arg);
        many(&n->apply.args.keyword, visit, arg);
        one(n->apply.args.rest, visit, arg);
        one(n->apply.args.kw_rest, visit, arg);
        return;
    case NODE_IF: branch_children(n, visit, arg); return;
    case NODE_FOR: loop_children(n, visit, arg); return;
    case NODE_SET:
    case NODE_SET_BLOCK:
        visit(arg, n->set.target);
        one(n->set.value, visit, arg);
        one(n->set.filter, visit, arg);
        many(&n->set.body, visit, arg);
        return;
    case NODE_MACRO:
    case NODE_CALL_BLOCK:
    case NODE_GENERATION: macro_children(n, visit, arg); return;
    case NODE_FILTER_BLOCK:
        many(&n->filtered.body, visit, arg);
        visit(arg, n->filtered.filter);
        return;
    case NODE_WITH:
        many(&n->with.targets, visit, arg);
        many(&n->with.values, visit, arg);
        many(&n->with.body, visit, arg);
        return;
    case NODE_BLOCK: many(&n->block.body, visit, arg); return;
    }
}
