/* jinja_parser.h - what the two halves of the parser share: statements (jinja_parser.c) and expressions
 * (jinja_parse_expr.c). A recursive descent that follows Jinja's own grammar, function by function, because
 * where that is odd (filters bind tighter than arithmetic, ** joins to the left) templates depend on it. */
#pragma once

#include "jinja/syntax/jinja_ast.h"
#include "jinja/syntax/jinja_lexer.h"

struct parser {
    struct jinja *j;
    struct template *t;
    struct lexer lexer;
    struct token now, ahead;
    bool looked;               // ahead is valid
    const char *const *wanted; // the end tags of the innermost open statement, NULL at the end; or NULL
    const char *opened;        // its name
};

void parser_next(struct parser *p);
const struct token *parser_look(struct parser *p);
static inline bool parser_at(const struct parser *p, enum token_kind kind) { return p->now.kind == kind; }
bool parser_at_name(const struct parser *p, const char *name);
bool parser_skip(struct parser *p, enum token_kind kind); // true when it was there
bool parser_skip_name(struct parser *p, const char *name);
void parser_expect(struct parser *p, enum token_kind kind);
jval parser_expect_name(struct parser *p); // a name, as a string
_Noreturn void parser_fail(struct parser *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

struct node *parser_node(struct parser *p, enum node_kind kind, int line);

/* To be called when n has all its children: refuses a tree that has grown too high. Returns n. */
struct node *parser_done(struct parser *p, struct node *n);

struct node_list {
    struct node **item;
    size_t n, cap;
};
void node_list_push(struct parser *p, struct node_list *l, struct node *n);
static inline struct nodes node_list_take(const struct node_list *l) { return (struct nodes){l->item, l->n}; }

struct node *parse_expression(struct parser *p);
struct node *parse_cond(struct parser *p); // with an inline if
struct node *parse_or(struct parser *p);   // without
struct node *parse_primary(struct parser *p, bool with_nsref);
struct node *parser_constant(struct parser *p, jval v, int line);
struct node *parse_filters(struct parser *p, struct node *of, bool first_without_pipe);

enum tuple_flags {
    TUPLE_SIMPLE = 1,  // names and literals only: targets
    TUPLE_NO_COND = 2, // no inline if
    TUPLE_MAY_BE_EMPTY = 4,
    TUPLE_NSREF = 8, // namespace.attribute may be assigned to
};
struct node *parse_tuple(struct parser *p, int flags);
