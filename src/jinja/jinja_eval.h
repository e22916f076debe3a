/* jinja_eval.h - running a parsed template: expressions (jinja_eval.c), statements (jinja_exec.c), calls
 * (jinja_call.c). Recursive over the tree, bounded by MAX_TREE_HEIGHT and limits.max_depth. */
#pragma once

#include "jinja/builtins/jinja_builtin.h"
#include "jinja/syntax/jinja_ast.h"

/* The variables of one run of a function. */
struct activation {
    struct activation *outer; // of the function around it
    jval slots[];             // [n_slots], J_MISSING where nothing was set
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct activation *activation_new(struct jinja *j, const struct function *fn, struct activation *outer);
void scope_enter(struct jinja *j, const struct scope *s);
void scope_leave(struct jinja *j, const struct scope *s);
static inline jval *slot_at(struct jinja *j, struct slot s) {
    struct activation *a = j->act;
    for (int i = 0; i < s.hops; i++)
        a = a->outer;
    return &a->slots[s.index];
}

jval jinja_eval(struct jinja *j, const struct node *n);
jval jinja_eval_call(struct jinja *j, const struct node *n,
                     const jval *caller); // caller: NULL, or what {% call %} passes
void jinja_assign(struct jinja *j, const struct node *target, jval v);
enum flow jinja_exec(struct jinja *j, const struct nodes *list);

jval jinja_call(struct jinja *j, jval callee, const struct jargs *args);
jval builtin_call(struct jinja *j, const struct builtin *fn, jval self, const struct jargs *args);
jval macro_call(struct jinja *j, const struct jmacro *m, const struct jargs *args);
/* The text of a recursive loop over an iterable. */
jval loop_call(struct jinja *j, const struct node *n, jval iterable, int64_t depth0, struct activation *outer);
