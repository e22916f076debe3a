/* jinja_parse_primary.c - names, literals and what stands in brackets. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/syntax/jinja_parser.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

struct node *parser_constant(struct parser *p, jval v, int line) {
    struct node *n = parser_node(p, NODE_CONST, line);
    n->constant = v;
    return n;
}

static bool at_tuple_end(const struct parser *p) {
    return parser_at(p, TOKEN_VARIABLE_END) || parser_at(p, TOKEN_BLOCK_END) || parser_at(p, TOKEN_RPAREN);
}

struct node *parse_tuple(struct parser *p, int flags) {
    int line = p->now.line;
    struct node_list items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.n)
            parser_expect(p, TOKEN_COMMA);
        if (at_tuple_end(p))
            break;
        node_list_push(p, &items,
                       flags & TUPLE_SIMPLE    ? parse_primary(p, flags & TUPLE_NSREF)
                       : flags & TUPLE_NO_COND ? parse_or(p)
                                               : parse_cond(p));
        if (!parser_at(p, TOKEN_COMMA))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.n)
        return items.item[0];
    if (!is_tuple && !(flags & TUPLE_MAY_BE_EMPTY)) {
        struct str found = token_describe(&p->now);
        parser_fail(p, line, "Expected an expression, got '%.*s'", STR_ARG(found));
    }
    struct node *n = parser_node(p, NODE_TUPLE, line);
    n->items = node_list_take(&items);
    return parser_done(p, n);
}

static struct node *parse_list(struct parser *p) {
    struct node *n = parser_node(p, NODE_LIST, p->now.line);
    struct node_list items = {0};
    parser_expect(p, TOKEN_LBRACKET);
    while (!parser_at(p, TOKEN_RBRACKET)) {
        if (items.n)
            parser_expect(p, TOKEN_COMMA);
        if (parser_at(p, TOKEN_RBRACKET))
            break;
        node_list_push(p, &items, parse_expression(p));
    }
    parser_expect(p, TOKEN_RBRACKET);
    n->items = node_list_take(&items);
    return parser_done(p, n);
}

static struct node *parse_dict(struct parser *p) {
    struct node *n = parser_node(p, NODE_DICT, p->now.line);
    struct node_list items = {0};
    parser_expect(p, TOKEN_LBRACE);
    while (!parser_at(p, TOKEN_RBRACE)) {
        if (items.n)
            parser_expect(p, TOKEN_COMMA);
        if (parser_at(p, TOKEN_RBRACE))
            break;
        node_list_push(p, &items, parse_expression(p));
        parser_expect(p, TOKEN_COLON);
        node_list_push(p, &items, parse_expression(p));
    }
    parser_expect(p, TOKEN_RBRACE);
    n->items = node_list_take(&items);
    return parser_done(p, n);
}

static bool is_word(struct str s, const char *lower, const char *upper) {
    return str_eq(s, str_of(lower)) || str_eq(s, str_of(upper));
}

static struct node *parse_name(struct parser *p, bool with_nsref) {
    int line = p->now.line;
    jval id = parser_expect_name(p);
    if (is_word(jval_text(id), "true", "True"))
        return parser_constant(p, jval_bool(true), line);
    if (is_word(jval_text(id), "false", "False"))
        return parser_constant(p, jval_bool(false), line);
    if (is_word(jval_text(id), "none", "None"))
        return parser_constant(p, jval_none(), line);
    bool nsref = with_nsref && parser_skip(p, TOKEN_DOT);
    struct node *n = parser_node(p, nsref ? NODE_NSREF : NODE_NAME, line);
    n->name.id = id;
    if (nsref)
        n->name.attr = parser_expect_name(p);
    return n;
}

/* One literal, or several in a row, which are one. */
static struct node *parse_string(struct parser *p) {
    struct node *n = parser_constant(p, p->now.value, p->now.line);
    parser_next(p);
    while (parser_at(p, TOKEN_STRING)) {
        sink_open(p->j);
        jinja_emit(p->j, jval_text(n->constant));
        jinja_emit(p->j, jval_text(p->now.value));
        n->constant = jval_of_sink(p->j);
        jstr_chars(p->j, n->constant.s);
        parser_next(p);
    }
    return n;
}

struct node *parse_primary(struct parser *p, bool with_nsref) {
    struct node *n;
    jinja_enter(p->j);
    switch (p->now.kind) {
    case TOKEN_NAME: n = parse_name(p, with_nsref); break;
    case TOKEN_STRING: n = parse_string(p); break;
    case TOKEN_NUMBER:
        n = parser_constant(p, p->now.value, p->now.line);
        parser_next(p);
        break;
    case TOKEN_LPAREN:
        parser_next(p);
        n = parse_tuple(p, TUPLE_MAY_BE_EMPTY);
        parser_expect(p, TOKEN_RPAREN);
        break;
    case TOKEN_LBRACKET: n = parse_list(p); break;
    case TOKEN_LBRACE: n = parse_dict(p); break;
    default: {
        struct str found = token_describe(&p->now);
        parser_fail(p, p->now.line, "unexpected '%.*s'", STR_ARG(found));
    }
    }
    jinja_leave(p->j);
    return n;
}
