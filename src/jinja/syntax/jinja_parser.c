/* jinja_parser.c - statements, and the token stream under both halves of the parser. */
#include "jinja/syntax/jinja_parser.h"

#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_str.h"

#include <stdarg.h>
#include <stdio.h>

enum { PARSE_DEPTH = 200 }; // C frames: an expression in brackets takes a dozen

void parser_fail(struct parser *p, int line, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    p->j->line = line;
    jinja_fail(p->j, ERR_FORMAT, "%s", sentence);
}

void parser_next(struct parser *p) {
    p->now = p->looked ? p->ahead : lexer_next(&p->lexer);
    p->looked = false;
}

const struct token *parser_look(struct parser *p) {
    if (!p->looked)
        p->ahead = lexer_next(&p->lexer);
    p->looked = true;
    return &p->ahead;
}

bool parser_at_name(const struct parser *p, const char *name) {
    return p->now.kind == TOKEN_NAME && str_eq(p->now.text, str_of(name));
}

bool parser_skip(struct parser *p, enum token_kind kind) {
    if (!parser_at(p, kind))
        return false;
    parser_next(p);
    return true;
}

bool parser_skip_name(struct parser *p, const char *name) {
    if (!parser_at_name(p, name))
        return false;
    parser_next(p);
    return true;
}

static _Noreturn void expected(struct parser *p, struct str wanted) {
    struct str found = token_describe(&p->now);
    if (parser_at(p, TOKEN_EOF))
        parser_fail(p, p->now.line, "unexpected end of template, expected '%.*s'.", STR_ARG(wanted));
    parser_fail(p, p->now.line, "expected token '%.*s', got '%.*s'", STR_ARG(wanted), STR_ARG(str_excerpt(found)));
}

void parser_expect(struct parser *p, enum token_kind kind) {
    if (!parser_skip(p, kind))
        expected(p, token_kind_describe(kind));
}

static void expect_word(struct parser *p, const char *word) {
    if (!parser_skip_name(p, word))
        expected(p, str_of(word));
}

jval parser_expect_name(struct parser *p) {
    if (!parser_at(p, TOKEN_NAME))
        expected(p, STR("name"));
    jval name = jval_borrow(p->j, p->now.text);
    jstr_chars(p->j, name.s);
    parser_next(p);
    return name;
}

struct node *parser_node(struct parser *p, enum node_kind kind, int line) {
    struct node *n = jinja_alloc(p->j, sizeof *n);
    n->kind = kind;
    n->line = line;
    return n;
}

static void raise_height(void *arg, struct node *child) {
    struct node *parent = arg;
    parent->height = MAX(parent->height, child->height + 1);
}

struct node *parser_done(struct parser *p, struct node *n) {
    node_children(n, raise_height, n);
    p->j->line = n->line;
    if (n->height > MAX_TREE_HEIGHT)
        jinja_fail(p->j, ERR_LIMIT, "the template nests more than %d levels of statements and expressions",
                   MAX_TREE_HEIGHT);
    return n;
}

void node_list_push(struct parser *p, struct node_list *l, struct node *n) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct node **item = jinja_calloc(p->j, cap, sizeof *item);
        if (l->n)
            memcpy(item, l->item, l->n * sizeof *item);
        l->item = item;
        l->cap = cap;
    }
    l->item[l->n++] = n;
}

// ---- the tags ----

static _Noreturn void fail_unclosed(struct parser *p) {
    char tags[128] = "";
    for (size_t i = 0; p->wanted && p->wanted[i]; i++)
        snprintf(tags + strlen(tags), sizeof tags - strlen(tags), "%s'%s'", i ? " or " : "", p->wanted[i]);
    struct str found = p->now.text;
    if (parser_at(p, TOKEN_EOF))
        parser_fail(p, p->now.line,
                    "Unexpected end of template. Jinja was looking for the following tags: %s. The innermost block "
                    "that needs to be closed "
                    "is '%s'.",
                    tags, p->opened);
    if (!p->wanted)
        parser_fail(p, p->now.line, "Encountered unknown tag '%.*s'.", STR_ARG(str_excerpt(found)));
    parser_fail(p, p->now.line,
                "Encountered unknown tag '%.*s'. Jinja was looking for the following tags: %s. The innermost block "
                "that needs to be closed "
                "is '%s'.",
                STR_ARG(str_excerpt(found)), tags, p->opened);
}

static bool at_wanted(const struct parser *p) {
    for (size_t i = 0; p->wanted && p->wanted[i]; i++)
        if (parser_at_name(p, p->wanted[i]))
            return true;
    return false;
}

static struct node *parse_statement(struct parser *p);

/* Text, print tags and statements up to an end tag that is wanted (left as the current token) or the end. */
static struct nodes parse_until_wanted(struct parser *p) {
    struct node_list list = {0};
    while (!parser_at(p, TOKEN_EOF)) {
        int line = p->now.line;
        if (parser_at(p, TOKEN_DATA)) {
            struct node *text = parser_node(p, NODE_TEXT, line);
            text->text = p->now.text;
            node_list_push(p, &list, text);
            parser_next(p);
        } else if (parser_skip(p, TOKEN_VARIABLE_BEGIN)) {
            struct node *output = parser_node(p, NODE_OUTPUT, line);
            struct node_list one = {0};
            node_list_push(p, &one, parse_tuple(p, 0));
            output->items = node_list_take(&one);
            node_list_push(p, &list, parser_done(p, output));
            parser_expect(p, TOKEN_VARIABLE_END);
        } else {
            parser_expect(p, TOKEN_BLOCK_BEGIN);
            if (at_wanted(p))
                return node_list_take(&list);
            node_list_push(p, &list, parse_statement(p));
            parser_expect(p, TOKEN_BLOCK_END);
        }
    }
    if (p->wanted)
        fail_unclosed(p);
    return node_list_take(&list);
}

/* The body of a statement, from the end of its tag up to one of the end tags. */
static struct nodes parse_body(struct parser *p, const char *opened, const char *const *wanted) {
    const char *const *outer_wanted = p->wanted;
    const char *outer_opened = p->opened;
    p->wanted = wanted;
    p->opened = opened;
    parser_skip(p, TOKEN_COLON);
    parser_expect(p, TOKEN_BLOCK_END);
    struct nodes body = parse_until_wanted(p);
    p->wanted = outer_wanted;
    p->opened = outer_opened;
    return body;
}

#define WANTED(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct nodes parse_last_body(struct parser *p, const char *opened, const char *end) {
    struct nodes body = parse_body(p, opened, WANTED(end));
    parser_next(p); // the end tag
    return body;
}

// ---- targets ----

static void mark_target(struct parser *p, struct node *n, bool param) {
    if (n->kind == NODE_TUPLE) {
        jinja_enter(p->j);
        for (size_t i = 0; i < n->items.n; i++)
            mark_target(p, n->items.item[i], param);
        jinja_leave(p->j);
        return;
    }
    if (n->kind == NODE_CONST)
        parser_fail(p, n->line, "can't assign to 'const'");
    if (n->kind != NODE_NAME && n->kind != NODE_NSREF)
        parser_fail(p, n->line, "can't assign to this expression");
    n->name.store = true;
    n->name.param = param;
}

static struct node *parse_target(struct parser *p, int flags, bool param) {
    struct node *n = parse_tuple(p, TUPLE_SIMPLE | flags);
    mark_target(p, n, param);
    return n;
}

static struct node *parse_target_name(struct parser *p, bool param) {
    struct node *n = parser_node(p, NODE_NAME, p->now.line);
    n->name.id = parser_expect_name(p);
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
        if (str_eq(jval_text(n->name.id), str_of(reserved[i])))
            parser_fail(p, n->line, "can't assign to 'name'");
    n->name.store = true;
    n->name.param = param;
    return n;
}

/* The target of a loop once more, for the loop's filter, which has variables of its own. */
static struct node *copy_target(struct parser *p, const struct node *n) {
    struct node *copy = parser_node(p, n->kind, n->line);
    *copy = *n;
    if (n->kind == NODE_TUPLE) {
        copy->items.item = jinja_calloc(p->j, n->items.n, sizeof *copy->items.item);
        jinja_enter(p->j);
        for (size_t i = 0; i < n->items.n; i++)
            copy->items.item[i] = copy_target(p, n->items.item[i]);
        jinja_leave(p->j);
    }
    return copy;
}

// ---- statements; p->now is the name that opens each ----

static struct node *parse_if(struct parser *p) {
    struct node *n = parser_node(p, NODE_IF, p->now.line);
    struct node_list tests = {0};
    struct node_list bodies = {0}; // each an OUTPUT node that carries a body
    do {
        parser_next(p);
        node_list_push(p, &tests, parse_tuple(p, TUPLE_NO_COND));
        struct node *body = parser_node(p, NODE_OUTPUT, p->now.line);
        body->items = parse_body(p, "if", WANTED("elif", "else", "endif"));
        node_list_push(p, &bodies, body);
    } while (parser_at_name(p, "elif"));
    n->branch.tests = tests.item;
    n->branch.n = tests.n;
    n->branch.bodies = jinja_calloc(p->j, tests.n, sizeof *n->branch.bodies);
    for (size_t i = 0; i < tests.n; i++)
        n->branch.bodies[i] = bodies.item[i]->items;
    if (parser_at_name(p, "else")) {
        parser_next(p);
        n->branch.otherwise = parse_last_body(p, "if", "endif");
    } else {
        parser_next(p);
    }
    return n;
}

static struct node *parse_for(struct parser *p) {
    struct node *n = parser_node(p, NODE_FOR, p->now.line);
    parser_next(p);
    n->loop.target = parse_target(p, 0, false);
    expect_word(p, "in");
    n->loop.iter = parse_tuple(p, TUPLE_NO_COND);
    if (parser_skip_name(p, "if")) {
        n->loop.test = parse_expression(p);
        n->loop.test_target = copy_target(p, n->loop.target);
    }
    n->loop.recursive = parser_skip_name(p, "recursive");
    n->loop.body = parse_body(p, "for", WANTED("endfor", "else"));
    bool has_else = parser_at_name(p, "else");
    parser_next(p);
    if (has_else)
        n->loop.otherwise = parse_last_body(p, "for", "endfor");
    return n;
}

static struct node *parse_set(struct parser *p) {
    int line = p->now.line;
    parser_next(p);
    struct node *target = parse_target(p, TUPLE_NSREF, false);
    struct node *n = parser_node(p, parser_at(p, TOKEN_ASSIGN) ? NODE_SET : NODE_SET_BLOCK, line);
    n->set.target = target;
    if (parser_skip(p, TOKEN_ASSIGN)) {
        n->set.value = parse_tuple(p, 0);
    } else {
        n->set.filter = parse_filters(p, NULL, false);
        n->set.body = parse_last_body(p, "set", "endset");
    }
    return n;
}

static void parse_signature(struct parser *p, struct node *n) {
    struct node_list params = {0}, defaults = {0};
    parser_expect(p, TOKEN_LPAREN);
    while (!parser_at(p, TOKEN_RPAREN)) {
        if (params.n)
            parser_expect(p, TOKEN_COMMA);
        struct node *param = parse_target_name(p, true);
        for (size_t i = 0; i < params.n; i++)
            if (jval_same(params.item[i]->name.id, param->name.id))
                parser_fail(p, param->line, "duplicate argument '%.*s' in a macro", STR_ARG(jval_text(param->name.id)));
        if (parser_skip(p, TOKEN_ASSIGN))
            node_list_push(p, &defaults, parse_expression(p));
        else if (defaults.n)
            parser_fail(p, p->now.line, "non-default argument follows default argument");
        node_list_push(p, &params, param);
    }
    parser_expect(p, TOKEN_RPAREN);
    n->macro.params = node_list_take(&params);
    n->macro.defaults = node_list_take(&defaults);
}

static struct node *parse_macro(struct parser *p) {
    struct node *n = parser_node(p, NODE_MACRO, p->now.line);
    parser_next(p);
    n->macro.target = parse_target_name(p, false);
    parse_signature(p, n);
    n->macro.body = parse_last_body(p, "macro", "endmacro");
    return n;
}

static struct node *parse_call_block(struct parser *p) {
    struct node *n = parser_node(p, NODE_CALL_BLOCK, p->now.line);
    parser_next(p);
    if (parser_at(p, TOKEN_LPAREN))
        parse_signature(p, n);
    n->macro.call = parse_expression(p);
    if (n->macro.call->kind != NODE_CALL)
        parser_fail(p, n->line, "expected call");
    n->macro.body = parse_last_body(p, "call", "endcall");
    return n;
}

static struct node *parse_generation(struct parser *p) {
    struct node *n = parser_node(p, NODE_GENERATION, p->now.line);
    parser_next(p);
    n->macro.body = parse_last_body(p, "generation", "endgeneration");
    return n;
}

static struct node *parse_filter_block(struct parser *p) {
    struct node *n = parser_node(p, NODE_FILTER_BLOCK, p->now.line);
    parser_next(p);
    n->filtered.filter = parse_filters(p, NULL, true);
    n->filtered.body = parse_last_body(p, "filter", "endfilter");
    return n;
}

static struct node *parse_with(struct parser *p) {
    struct node *n = parser_node(p, NODE_WITH, p->now.line);
    struct node_list targets = {0}, values = {0};
    parser_next(p);
    while (!parser_at(p, TOKEN_BLOCK_END)) {
        if (targets.n)
            parser_expect(p, TOKEN_COMMA);
        node_list_push(p, &targets, parse_target(p, 0, true));
        parser_expect(p, TOKEN_ASSIGN);
        node_list_push(p, &values, parse_expression(p));
    }
    n->with.targets = node_list_take(&targets);
    n->with.values = node_list_take(&values);
    n->with.body = parse_last_body(p, "with", "endwith");
    return n;
}

static struct node *parse_block(struct parser *p) {
    struct node *n = parser_node(p, NODE_BLOCK, p->now.line);
    parser_next(p);
    n->block.name = parser_expect_name(p);
    if (parser_at_name(p, "scoped") || parser_at_name(p, "required"))
        jinja_fail(p->j, ERR_UNSUPPORTED, "blocks that are scoped or required are not supported");
    n->block.body = parse_last_body(p, "block", "endblock");
    if (parser_at(p, TOKEN_NAME) && str_eq(p->now.text, jval_text(n->block.name)))
        parser_next(p);
    p->t->has_blocks = true;
    return n;
}

static struct node *parse_print(struct parser *p) {
    struct node *n = parser_node(p, NODE_OUTPUT, p->now.line);
    struct node_list items = {0};
    parser_next(p);
    while (!parser_at(p, TOKEN_BLOCK_END)) {
        if (items.n)
            parser_expect(p, TOKEN_COMMA);
        node_list_push(p, &items, parse_expression(p));
    }
    n->items = node_list_take(&items);
    return n;
}

static struct node *parse_break(struct parser *p) {
    struct node *n = parser_node(p, parser_at_name(p, "break") ? NODE_BREAK : NODE_CONTINUE, p->now.line);
    parser_next(p);
    return n;
}

static struct node *refuse(struct parser *p) {
    p->j->line = p->now.line;
    jinja_fail(p->j, ERR_UNSUPPORTED,
               "the tag '%.*s' is not supported: a chat template stands alone and is not escaped",
               STR_ARG(p->now.text));
}

static struct node *parse_statement(struct parser *p) {
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p);
    } statements[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"generation", parse_generation},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"block", parse_block},
        {"print", parse_print},
        {"break", parse_break},
        {"continue", parse_break},
        {"extends", refuse},
        {"include", refuse},
        {"import", refuse},
        {"from", refuse},
        {"autoescape", refuse},
    };
    if (!parser_at(p, TOKEN_NAME))
        parser_fail(p, p->now.line, "tag name expected");
    for (size_t i = 0; i < ARRAY_LEN(statements); i++)
        if (parser_at_name(p, statements[i].name)) {
            jinja_enter(p->j);
            struct node *n = statements[i].parse(p);
            jinja_leave(p->j);
            return parser_done(p, n);
        }
    fail_unclosed(p);
}

void jinja_parse(struct jinja *j, struct str source, struct template *t) {
    struct parser p = {.j = j, .t = t};
    int max_depth = j->limits.max_depth;
    j->limits.max_depth = PARSE_DEPTH;
    lexer_init(&p.lexer, j, source);
    parser_next(&p);
    t->body = parse_until_wanted(&p);
    j->limits.max_depth = max_depth;
}
