/* jinja_parse_expr.c - expressions: from inline if down to what stands behind a name or literal. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/syntax/jinja_parser.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

static struct node *binary(struct parser *p, enum node_kind kind, enum jop op, struct node *left, struct node *right,
                           int line) {
    struct node *n = parser_node(p, kind, line);
    n->binary.op = op;
    n->binary.left = left;
    n->binary.right = right;
    return parser_done(p, n);
}

static struct node *access(struct parser *p, enum node_kind kind, struct node *of, struct node *key, int line) {
    struct node *n = parser_node(p, kind, line);
    n->access.of = of;
    n->access.key = key;
    return parser_done(p, n);
}

static struct node *operand(struct parser *p, enum node_kind kind, struct node *of, int line) {
    struct node *n = parser_node(p, kind, line);
    n->operand = of;
    return parser_done(p, n);
}

static bool at_slice_end(const struct parser *p) { return parser_at(p, TOKEN_RBRACKET) || parser_at(p, TOKEN_COMMA); }

/* What stands in brackets behind a value: an expression or a slice. */
static struct node *parse_subscribed(struct parser *p) {
    int line = p->now.line;
    struct node *start = NULL;
    if (!parser_at(p, TOKEN_COLON)) {
        start = parse_expression(p);
        if (!parser_at(p, TOKEN_COLON))
            return start;
    }
    parser_next(p);
    struct node *n = parser_node(p, NODE_SLICE, line);
    n->slice.start = start;
    if (!parser_at(p, TOKEN_COLON) && !at_slice_end(p))
        n->slice.stop = parse_expression(p);
    if (parser_skip(p, TOKEN_COLON) && !at_slice_end(p))
        n->slice.step = parse_expression(p);
    return parser_done(p, n);
}

static struct node *parse_dot(struct parser *p, struct node *of) {
    int line = p->now.line;
    parser_next(p);
    if (parser_at(p, TOKEN_NUMBER) && p->now.value.kind == J_INT) {
        struct node *key = parser_constant(p, p->now.value, line);
        parser_next(p);
        return access(p, NODE_ITEM, of, key, line);
    }
    if (!parser_at(p, TOKEN_NAME))
        parser_fail(p, p->now.line, "expected name or number");
    return access(p, NODE_ATTR, of, parser_constant(p, parser_expect_name(p), line), line);
}

static struct node *parse_brackets(struct parser *p, struct node *of) {
    int line = p->now.line;
    struct node_list keys = {0};
    parser_next(p);
    while (!parser_at(p, TOKEN_RBRACKET)) {
        if (keys.n)
            parser_expect(p, TOKEN_COMMA);
        node_list_push(p, &keys, parse_subscribed(p));
    }
    parser_expect(p, TOKEN_RBRACKET);
    if (keys.n == 1)
        return access(p, NODE_ITEM, of, keys.item[0], line);
    for (size_t i = 0; i < keys.n; i++)
        if (keys.item[i]->kind == NODE_SLICE)
            parser_fail(p, line, "a slice cannot be part of a tuple");
    struct node *tuple = parser_node(p, NODE_TUPLE, line);
    tuple->items = node_list_take(&keys);
    return access(p, NODE_ITEM, of, parser_done(p, tuple), line);
}

struct argument_lists {
    struct node_list positional, keyword;
    struct jlist keys;
};

static void check_argument(struct parser *p, bool ok, int line) {
    if (!ok)
        parser_fail(p, line, "invalid syntax for function call expression");
}

static void parse_keyword(struct parser *p, struct argument_lists *l) {
    int line = p->now.line;
    jval key = parser_expect_name(p);
    parser_next(p); // =
    for (size_t i = 0; i < l->keys.n; i++)
        if (jval_same(l->keys.items[i], key))
            parser_fail(p, line, "keyword argument repeated: %.*s", STR_ARG(jval_text(key)));
    jlist_push(p->j, &l->keys, key);
    node_list_push(p, &l->keyword, parse_expression(p));
}

static struct arguments parse_arguments(struct parser *p) {
    int line = p->now.line;
    struct arguments a = {0};
    struct argument_lists l = {0};
    parser_expect(p, TOKEN_LPAREN);
    for (bool first = true; !parser_at(p, TOKEN_RPAREN); first = false) {
        if (!first)
            parser_expect(p, TOKEN_COMMA);
        if (parser_at(p, TOKEN_RPAREN))
            break;
        if (parser_skip(p, TOKEN_MUL)) {
            check_argument(p, !a.rest && !a.kw_rest, line);
            a.rest = parse_expression(p);
        } else if (parser_skip(p, TOKEN_POW)) {
            check_argument(p, !a.kw_rest, line);
            a.kw_rest = parse_expression(p);
        } else if (parser_at(p, TOKEN_NAME) && parser_look(p)->kind == TOKEN_ASSIGN) {
            check_argument(p, !a.kw_rest, line);
            parse_keyword(p, &l);
        } else {
            check_argument(p, !a.rest && !a.kw_rest && !l.keyword.n, line);
            node_list_push(p, &l.positional, parse_expression(p));
        }
    }
    parser_expect(p, TOKEN_RPAREN);
    a.positional = node_list_take(&l.positional);
    a.keyword = node_list_take(&l.keyword);
    a.keys = l.keys.items;
    return a;
}

static struct node *parse_call(struct parser *p, struct node *of) {
    struct node *n = parser_node(p, NODE_CALL, p->now.line);
    n->apply.of = of;
    n->apply.args = parse_arguments(p);
    return parser_done(p, n);
}

static struct node *parse_postfix(struct parser *p, struct node *n) {
    for (;;) {
        if (parser_at(p, TOKEN_DOT))
            n = parse_dot(p, n);
        else if (parser_at(p, TOKEN_LBRACKET))
            n = parse_brackets(p, n);
        else if (parser_at(p, TOKEN_LPAREN))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* name, or name.name: Jinja lets filters and tests be called so. */
static jval parse_dotted_name(struct parser *p) {
    jval name = parser_expect_name(p);
    while (parser_skip(p, TOKEN_DOT)) {
        jval part = parser_expect_name(p);
        sink_open(p->j);
        jinja_emit(p->j, jval_text(name));
        jinja_put(p->j, '.');
        jinja_emit(p->j, jval_text(part));
        name = jval_of_sink(p->j);
    }
    return name;
}

struct node *parse_filters(struct parser *p, struct node *of, bool first_without_pipe) {
    while (first_without_pipe || parser_skip(p, TOKEN_PIPE)) {
        first_without_pipe = false;
        struct node *n = parser_node(p, NODE_FILTER, p->now.line);
        n->apply.of = of;
        n->apply.name = parse_dotted_name(p);
        n->apply.fn = builtin_filter(jval_text(n->apply.name));
        if (parser_at(p, TOKEN_LPAREN))
            n->apply.args = parse_arguments(p);
        of = parser_done(p, n);
    }
    return of;
}

static bool at_test_argument(const struct parser *p) {
    switch (p->now.kind) {
    case TOKEN_NAME: return !parser_at_name(p, "else") && !parser_at_name(p, "or") && !parser_at_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_NUMBER:
    case TOKEN_LBRACKET:
    case TOKEN_LBRACE: return true;
    default: return false;
    }
}

static struct node *parse_test(struct parser *p, struct node *of) {
    int line = p->now.line;
    parser_next(p); // is
    bool negated = parser_skip_name(p, "not");
    struct node *n = parser_node(p, NODE_TEST, line);
    n->apply.of = of;
    n->apply.name = parse_dotted_name(p);
    n->apply.fn = builtin_test(jval_text(n->apply.name));
    if (parser_at(p, TOKEN_LPAREN)) {
        n->apply.args = parse_arguments(p);
    } else if (at_test_argument(p)) {
        if (parser_at_name(p, "is"))
            parser_fail(p, p->now.line, "You cannot chain multiple tests with is");
        struct node_list one = {0};
        node_list_push(p, &one, parse_postfix(p, parse_primary(p, false)));
        n->apply.args.positional = node_list_take(&one);
    }
    parser_done(p, n);
    return negated ? operand(p, NODE_NOT, n, line) : n;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *n) {
    for (;;) {
        if (parser_at(p, TOKEN_PIPE))
            n = parse_filters(p, n, false);
        else if (parser_at_name(p, "is"))
            n = parse_test(p, n);
        else if (parser_at(p, TOKEN_LPAREN))
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct node *parse_unary(struct parser *p, bool with_filter) {
    int line = p->now.line;
    struct node *n;
    jinja_enter(p->j);
    if (parser_skip(p, TOKEN_SUB))
        n = operand(p, NODE_NEGATE, parse_unary(p, false), line);
    else if (parser_skip(p, TOKEN_ADD))
        n = operand(p, NODE_PLUS, parse_unary(p, false), line);
    else
        n = parse_primary(p, false);
    jinja_leave(p->j);
    n = parse_postfix(p, n);
    return with_filter ? parse_filters_and_tests(p, n) : n;
}

static struct node *parse_pow(struct parser *p) {
    int line = p->now.line;
    struct node *left = parse_unary(p, true);
    while (parser_skip(p, TOKEN_POW))
        left = binary(p, NODE_BINARY, OP_POW, left, parse_unary(p, true), line);
    return left;
}

static struct node *parse_product(struct parser *p) {
    int line = p->now.line;
    struct node *left = parse_pow(p);
    for (;;) {
        enum jop op;
        if (parser_skip(p, TOKEN_MUL))
            op = OP_MUL;
        else if (parser_skip(p, TOKEN_DIV))
            op = OP_DIV;
        else if (parser_skip(p, TOKEN_FLOORDIV))
            op = OP_FLOORDIV;
        else if (parser_skip(p, TOKEN_MOD))
            op = OP_MOD;
        else
            return left;
        left = binary(p, NODE_BINARY, op, left, parse_pow(p), line);
    }
}

static struct node *parse_concat(struct parser *p) {
    struct node *n = parser_node(p, NODE_CONCAT, p->now.line);
    struct node_list items = {0};
    do
        node_list_push(p, &items, parse_product(p));
    while (parser_skip(p, TOKEN_TILDE));
    n->items = node_list_take(&items);
    return items.n == 1 ? items.item[0] : parser_done(p, n);
}

static struct node *parse_sum(struct parser *p) {
    int line = p->now.line;
    struct node *left = parse_concat(p);
    for (;;) {
        enum jop op;
        if (parser_skip(p, TOKEN_ADD))
            op = OP_ADD;
        else if (parser_skip(p, TOKEN_SUB))
            op = OP_SUB;
        else
            return left;
        left = binary(p, NODE_BINARY, op, left, parse_concat(p), line);
    }
}

/* The comparison that stands here, or -1. */
static int skip_comparison(struct parser *p) {
    static const struct {
        enum token_kind kind;
        enum compare_op op;
    } signs[] = {{TOKEN_EQ, CMP_EQ}, {TOKEN_NE, CMP_NE}, {TOKEN_LT, CMP_LT},
                 {TOKEN_LE, CMP_LE}, {TOKEN_GT, CMP_GT}, {TOKEN_GE, CMP_GE}};
    for (size_t i = 0; i < ARRAY_LEN(signs); i++)
        if (parser_skip(p, signs[i].kind))
            return (int)signs[i].op;
    if (parser_skip_name(p, "in"))
        return CMP_IN;
    if (parser_at_name(p, "not") && parser_look(p)->kind == TOKEN_NAME && str_eq(parser_look(p)->text, STR("in"))) {
        parser_next(p);
        parser_next(p);
        return CMP_NOT_IN;
    }
    return -1;
}

static struct node *parse_compare(struct parser *p) {
    int line = p->now.line, op = -1;
    struct node *first = parse_sum(p);
    struct node_list rest = {0};
    struct jlist ops = {0};
    while ((op = skip_comparison(p)) >= 0) {
        jlist_push(p->j, &ops, jval_int(op));
        node_list_push(p, &rest, parse_sum(p));
    }
    if (!rest.n)
        return first;
    struct node *n = parser_node(p, NODE_COMPARE, line);
    n->compare.first = first;
    n->compare.rest = node_list_take(&rest);
    n->compare.ops = jinja_alloc(p->j, ops.n);
    for (size_t i = 0; i < ops.n; i++)
        n->compare.ops[i] = (unsigned char)ops.items[i].i;
    return parser_done(p, n);
}

static struct node *parse_not(struct parser *p) {
    int line = p->now.line;
    if (!parser_skip_name(p, "not"))
        return parse_compare(p);
    jinja_enter(p->j);
    struct node *n = operand(p, NODE_NOT, parse_not(p), line);
    jinja_leave(p->j);
    return n;
}

static struct node *parse_and(struct parser *p) {
    int line = p->now.line;
    struct node *left = parse_not(p);
    while (parser_skip_name(p, "and"))
        left = binary(p, NODE_AND, OP_ADD, left, parse_not(p), line);
    return left;
}

struct node *parse_or(struct parser *p) {
    int line = p->now.line;
    struct node *left = parse_and(p);
    while (parser_skip_name(p, "or"))
        left = binary(p, NODE_OR, OP_ADD, left, parse_and(p), line);
    return left;
}

struct node *parse_cond(struct parser *p) {
    int line = p->now.line;
    struct node *yes = parse_or(p);
    while (parser_skip_name(p, "if")) {
        struct node *n = parser_node(p, NODE_COND, line);
        n->cond.yes = yes;
        n->cond.test = parse_or(p);
        if (parser_skip_name(p, "else")) {
            jinja_enter(p->j);
            n->cond.no = parse_cond(p);
            jinja_leave(p->j);
        }
        yes = parser_done(p, n);
    }
    return yes;
}

struct node *parse_expression(struct parser *p) {
    return parse_cond(p);
}
