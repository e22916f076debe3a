/* jinja_call.c - matching the arguments of a call to the parameters of a builtin or a macro. */
#include "jinja/jinja_eval.h"

static int param_index(const struct builtin *fn, struct str name) {
    for (int i = 0; i < MAX_PARAMS && fn->params[i]; i++)
        if (str_eq(name, str_of(fn->params[i])))
            return i;
    return -1;
}

static size_t count_params(const struct builtin *fn) {
    size_t n = 0;
    while (n < MAX_PARAMS && fn->params[n])
        n++;
    return n;
}

static void match_keyword(struct jinja *j, const struct builtin *fn, struct jcall *c, const struct keyword *k) {
    int i = fn->flags & POSITIONAL ? -1 : param_index(fn, jval_text(k->name));
    if (i >= 0 && c->arg[i].kind != J_MISSING)
        jinja_type_error(j, "%s() got multiple values for argument '%s'", fn->name, fn->params[i]);
    if (i >= 0)
        c->arg[i] = k->value;
    else if (fn->flags & TAKES_KEYWORDS)
        c->rest.keyword[c->rest.n_keyword++] = *k;
    else
        jinja_type_error(j, "%s() got an unexpected keyword argument '%.*s'", fn->name,
                         STR_ARG(str_excerpt(jval_text(k->name))));
}

jval builtin_call(struct jinja *j, const struct builtin *fn, jval self, const struct jargs *args) {
    struct jcall c = {.self = self};
    size_t n_params = count_params(fn), n = MIN(args->n, n_params);
    for (size_t i = 0; i < n; i++)
        c.arg[i] = args->positional[i];
    if (args->n > n_params && !(fn->flags & TAKES_REST))
        jinja_type_error(j, "%s() takes at most %zu arguments (%zu given)", fn->name, n_params, args->n);
    if (args->n > n)
        c.rest = (struct jargs){.positional = args->positional + n, .n = args->n - n};
    if (fn->flags & TAKES_KEYWORDS)
        c.rest.keyword = jinja_calloc(j, args->n_keyword, sizeof *c.rest.keyword);
    for (size_t i = 0; i < args->n_keyword; i++)
        match_keyword(j, fn, &c, &args->keyword[i]);
    for (size_t i = 0; i < fn->n_required; i++)
        if (c.arg[i].kind == J_MISSING)
            jinja_type_error(j, "%s() missing required argument '%s'", fn->name, fn->params[i]);
    jinja_enter(j);
    jval v = fn->run(j, &c);
    jinja_leave(j);
    return v;
}

// ---- macros ----

struct macro_args {
    const struct jmacro *m;
    const struct jargs *given;
    struct activation *act;
    bool *used; // [given->n_keyword]
};

/* Takes a keyword argument away from those that are left, or J_MISSING. */
static jval take_keyword(struct macro_args *a, struct str name) {
    for (size_t i = 0; i < a->given->n_keyword; i++)
        if (!a->used[i] && str_eq(jval_text(a->given->keyword[i].name), name)) {
            a->used[i] = true;
            return a->given->keyword[i].value;
        }
    return jval_missing();
}

static void bind_params(struct macro_args *a) {
    const struct nodes *params = &a->m->node->macro.params;
    for (size_t i = 0; i < params->n; i++) {
        const struct node *p = params->item[i];
        a->act->slots[p->name.slot.index] =
            i < a->given->n ? a->given->positional[i] : take_keyword(a, jval_text(p->name.id));
    }
}

static void bind_caller(struct jinja *j, struct macro_args *a) {
    int slot = a->m->node->macro.caller_slot;
    if (slot < 0)
        return;
    jval caller = take_keyword(a, STR("caller"));
    a->act->slots[slot] = jval_is_given(caller) ? caller : jval_undefined_hint(j, "No caller defined");
}

static void bind_keywords(struct jinja *j, struct macro_args *a) {
    int slot = a->m->node->macro.kwargs_slot;
    jval left = jval_dict(j);
    for (size_t i = 0; i < a->given->n_keyword; i++)
        if (!a->used[i])
            jdict_set(j, left.d, a->given->keyword[i].name, a->given->keyword[i].value);
    if (slot >= 0)
        a->act->slots[slot] = left;
    else if (left.d->n) {
        struct str name = a->m->name ? (struct str){a->m->name->ptr, a->m->name->len} : STR("None"),
                   key = jval_text(left.d->entries[0].key);
        if (jdict_find_str(left.d, STR("caller")))
            jinja_type_error(
                j,
                "macro '%.*s' was invoked with two values for the special caller argument. This is most likely a bug.",
                STR_ARG(name));
        jinja_type_error(j, "macro '%.*s' takes no keyword argument '%.*s'", STR_ARG(name), STR_ARG(str_excerpt(key)));
    }
}

static void bind_varargs(struct jinja *j, struct macro_args *a) {
    size_t n = a->m->node->macro.params.n;
    int slot = a->m->node->macro.varargs_slot;
    size_t surplus = a->given->n > n ? a->given->n - n : 0;
    if (slot >= 0) {
        jval *items = jinja_calloc(j, surplus, sizeof *items);
        if (surplus)
            memcpy(items, a->given->positional + n, surplus * sizeof *items);
        a->act->slots[slot] = jval_seq(j, J_TUPLE, items, surplus);
    } else if (surplus) {
        struct str name = a->m->name ? (struct str){a->m->name->ptr, a->m->name->len} : STR("None");
        jinja_type_error(j, "macro '%.*s' takes not more than %zu argument(s)", STR_ARG(name), n);
    }
}

/* In the macro's own scope, where earlier parameters can be seen. */
static void fill_defaults(struct jinja *j, const struct node *n) {
    size_t first = n->macro.params.n - n->macro.defaults.n;
    for (size_t i = 0; i < n->macro.params.n; i++) {
        const struct node *p = n->macro.params.item[i];
        jval *slot = &j->act->slots[p->name.slot.index];
        if (slot->kind != J_MISSING)
            continue;
        if (i >= first) {
            *slot = jinja_eval(j, n->macro.defaults.item[i - first]);
        } else {
            sink_open(j);
            jinja_emit(j, STR("parameter '"));
            jinja_emit(j, jval_text(p->name.id));
            jinja_emit(j, STR("' was not provided"));
            *slot = jval_undefined_hint(j, jval_of_sink(j).s->ptr);
        }
    }
}

jval macro_call(struct jinja *j, const struct jmacro *m, const struct jargs *args) {
    const struct node *n = m->node;
    struct activation *running = j->act;
    int line = j->line;
    jinja_enter(j);
    struct macro_args a = {m, args, activation_new(j, n->macro.fn, m->act),
                           jinja_calloc(j, args->n_keyword, sizeof(bool))};
    bind_params(&a);
    bind_caller(j, &a);
    bind_keywords(j, &a);
    bind_varargs(j, &a);
    j->act = a.act;
    scope_enter(j, &n->macro.fn->scope);
    fill_defaults(j, n);
    sink_open(j);
    jinja_exec(j, &n->macro.body);
    jval text = jval_of_sink(j);
    j->act = running;
    j->line = line;
    jinja_leave(j);
    return text;
}

jval jinja_call(struct jinja *j, jval callee, const struct jargs *args) {
    switch (callee.kind) {
    case J_UNDEFINED: jinja_undefined_error(j, callee);
    case J_MACRO: return macro_call(j, callee.macro, args);
    case J_NATIVE: return builtin_call(j, callee.native->fn, callee.native->self, args);
    case J_LOOP:
        if (!callee.loop->recursive)
            jinja_type_error(j, "The loop must have the 'recursive' marker to be called recursively.");
        if (args->n != 1 || args->n_keyword)
            jinja_type_error(j, "loop() takes one iterable");
        return loop_call(j, callee.loop->recursive, args->positional[0], callee.loop->depth0 + 1, callee.loop->act);
    case J_JOINER:
        if (!callee.joiner->used) {
            callee.joiner->used = true;
            return jval_borrow(j, STR(""));
        }
        return callee.joiner->separator;
    default: jinja_type_error(j, "'%s' object is not callable", jval_type(callee));
    }
}
