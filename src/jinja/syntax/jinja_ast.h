/* jinja_ast.h - a parsed template: a tree in one arena, never changed after template_parse.
 *
 * Variables are numbered when the template is parsed, by the rules with which Jinja compiles to Python, for
 * those can be seen: a loop's variables end with the loop, a macro sees the variables around it as they are
 * when it is called, a block set at the top level hides the caller's variable of the same name.
 *
 *   function   what has variables of its own at run time: the template, a macro, a call block, a generation
 *              block, a block, a recursive loop, the filter of a loop. Its slots live in an activation,
 *              which points to that of the function around it.
 *   scope      a part of a function: a loop's body, {% with %} ... On entry each of its loads is done:
 *              take the name from the context, copy it from an outer scope's slot, or leave it unset.
 *   slot       (hops, index): go out `hops` functions, take the slot. */
#pragma once

#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_value.h"

enum node_kind {
    // expressions
    NODE_CONST,
    NODE_NAME,
    NODE_NSREF, // target only: namespace.attribute
    NODE_TUPLE,
    NODE_LIST,
    NODE_DICT,
    NODE_CONCAT,
    NODE_BINARY,
    NODE_AND,
    NODE_OR,
    NODE_NOT,
    NODE_NEGATE,
    NODE_PLUS,
    NODE_COMPARE,
    NODE_COND,
    NODE_ATTR,
    NODE_ITEM,
    NODE_SLICE,
    NODE_CALL,
    NODE_FILTER,
    NODE_TEST,
    // statements
    NODE_TEXT,
    NODE_OUTPUT,
    NODE_IF,
    NODE_FOR,
    NODE_SET,
    NODE_SET_BLOCK,
    NODE_MACRO,
    NODE_CALL_BLOCK,
    NODE_GENERATION,
    NODE_FILTER_BLOCK,
    NODE_WITH,
    NODE_BLOCK,
    NODE_BREAK,
    NODE_CONTINUE,
};

enum { MAX_TREE_HEIGHT = 500 };

struct nodes {
    struct node **item; // [n]
    size_t n;
};

struct slot {
    int hops, index;
};

struct load {
    enum load_kind { LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNSET } kind;
    int index; // in the running function
    struct str name;
    struct slot from; // ALIAS
};

struct scope {
    struct load *loads; // [n]
    size_t n;
};

struct function {
    int n_slots;
    struct scope scope; // its outermost
};

enum compare_op {
    CMP_LT = ORDER_LT,
    CMP_LE = ORDER_LE,
    CMP_GT = ORDER_GT,
    CMP_GE = ORDER_GE,
    CMP_EQ,
    CMP_NE,
    CMP_IN,
    CMP_NOT_IN
};

struct arguments {
    struct nodes positional;
    struct nodes keyword; // values
    jval *keys;           // [keyword.n] their names
    struct node *rest;    // *rest, or NULL
    struct node *kw_rest; // **kw_rest, or NULL
};

struct node {
    enum node_kind kind;
    int line;
    int height; // of the tree below it, at most MAX_TREE_HEIGHT: walks may recurse
    union {
        jval constant; // CONST
        struct {
            jval id;
            struct slot slot;
            bool store;  // a target
            bool param;  // a parameter, or the target of {% with %}
            bool export; // a target at the top level, which blocks see
            jval attr;   // NSREF
        } name;
        struct nodes items; // TUPLE LIST CONCAT OUTPUT; DICT: key and value by turns
        struct {
            enum jop op;
            struct node *left, *right;
        } binary;             // BINARY AND OR
        struct node *operand; // NOT NEGATE PLUS
        struct {
            struct node *first;
            struct nodes rest;
            unsigned char *ops; // [rest.n] of enum compare_op
        } compare;
        struct {
            struct node *test, *yes, *no; // no may be NULL
        } cond;
        struct {
            struct node *of, *key; // ATTR: key is a CONST
        } access;
        struct {
            struct node *start, *stop, *step; // each may be NULL
        } slice;
        struct {
            struct node *of; // NULL: the text of a filter block
            jval name;
            const struct builtin *fn; // FILTER TEST; NULL when there is none of that name
            struct arguments args;
        } apply;         // CALL FILTER TEST
        struct str text; // TEXT
        struct {
            struct node **tests;  // [n]
            struct nodes *bodies; // [n]
            size_t n;
            struct nodes otherwise;
        } branch; // IF
        struct {
            struct node *target, *iter;
            struct nodes body, otherwise;
            struct slot loop;
            struct scope scope, otherwise_scope;
            bool recursive;
            struct function *fn;      // recursive: the body's own
            struct node *test;        // NULL, or a condition with
            struct node *test_target; // the target once more, and
            struct function *test_fn; // a function of its own
        } loop;                       // FOR
        struct {
            struct node *target, *value, *filter; // SET: value; SET_BLOCK: filter or NULL, body
            struct nodes body;
            struct scope scope;
        } set;
        struct {
            struct node *target;           // MACRO: the name it is stored under
            struct node *call;             // CALL_BLOCK
            struct nodes params, defaults; // defaults are those of the last params
            struct nodes body;
            struct function *fn;
            int caller_slot, kwargs_slot, varargs_slot; // -1 when the body does not mention them
        } macro;                                        // MACRO CALL_BLOCK GENERATION
        struct {
            struct node *filter;
            struct nodes body;
            struct scope scope;
        } filtered; // FILTER_BLOCK
        struct {
            struct nodes targets, values, body;
            struct scope scope;
        } with;
        struct {
            jval name;
            struct nodes body;
            struct function *fn;
        } block;
    };
};

struct template {
    struct arena arena;
    const char *name;
    struct nodes body;
    struct function fn;
    bool has_blocks;
};

/* Text to tree, variables not numbered yet. (jinja_parser.c, jinja_parse_expr.c, jinja_lexer.c) */
void jinja_parse(struct jinja *j, struct str source, struct template *t);

/* Numbers the variables; refuses unknown filters and tests, break outside a loop, assignments to loop. */
void jinja_number_variables(struct jinja *j, struct template *t);

/* Calls visit(arg, child) for the direct children of an expression or statement, in the order of Jinja's
 * fields. (jinja_ast.c) */
void node_children(const struct node *n, void (*visit)(void *arg, struct node *child), void *arg);
