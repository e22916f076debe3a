/* jinja_symbols.h - what one scope of a template does with names: the first of the two walks that settle variables
 * (jinja_scope.c is the second).
 *
 * `symbols_analyze` goes through the part of the tree that belongs to one scope and notes for each name whether it is
 * read or written first there; from that follows what the scope does on entry (its loads). The rules are those of
 * Jinja's idtracking.py; a name is one variable for each pair of function and level of nesting, so that two loops side
 * by side share theirs, as they do in Jinja's Python. */
#pragma once

#include "jinja/syntax/jinja_ast.h"

struct frame_function {
    struct frame_function *parent;
    int depth;
    struct frame_slot {
        struct str id;
        int level;
    } * slots; // [n]
    int n, cap;
};

struct ref {
    struct str id;
    struct frame_function *fn;
    int index;
};

struct pending_load {
    enum load_kind kind;
    struct ref self, from;
};

/* The names of one scope. While one branch of an {% if %} is walked, `base` has what was known before it. */
struct symbols {
    struct jinja *j;
    struct symbols *parent, *base;
    struct frame_function *fn;
    int level;
    struct ref *refs;
    struct pending_load *loads;
    struct str *stores;
    size_t n_refs, cap_refs, n_loads, cap_loads, n_stores, cap_stores;
};

/* What a name means here or in a scope around this one; in this one alone. NULL: nothing is known of it. */
const struct ref *symbols_find(const struct symbols *s, struct str id);
const struct ref *symbols_find_own(const struct symbols *s, struct str id);

/* A parameter of the scope; the names of a loop's target. */
void symbols_declare(struct symbols *s, struct str id);
void symbols_declare_target(struct symbols *s, struct node *n);

/* The parts of n that belong to the scope which n stands in. */
void symbols_analyze(struct symbols *s, struct node *n);
void symbols_analyze_list(struct symbols *s, const struct nodes *list);
