/* jinja_value.c - making values; what their types are called; lists that grow. */
#include "jinja/values/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>

static jval new_str(struct jinja *j, struct str s) {
    struct jstr *o = jinja_alloc(j, sizeof *o);
    *o = (struct jstr){.ptr = s.ptr, .len = s.len, .n_chars = SIZE_MAX};
    return (jval){.kind = J_STR, .s = o};
}

jval jval_borrow(struct jinja *j, struct str s) { return new_str(j, s); }

jval jval_str(struct jinja *j, struct str s) {
    char *copy = jinja_alloc(j, s.len + 1);
    if (s.len)
        memcpy(copy, s.ptr, s.len);
    return new_str(j, (struct str){copy, s.len});
}

jval jval_markup(struct jinja *j, jval s, bool markup) {
    if (s.s->markup == markup)
        return s;
    struct jstr *o = jinja_alloc(j, sizeof *o);
    *o = *s.s;
    o->markup = markup;
    return (jval){.kind = J_STR, .s = o};
}

jval jval_of_sink(struct jinja *j) { return jval_str(j, sink_close(j)); }

jval jval_seq(struct jinja *j, enum jkind list_or_tuple, jval *items, size_t n) {
    struct jseq *seq = jinja_alloc(j, sizeof *seq);
    seq->items = items;
    seq->n = n;
    return (jval){.kind = list_or_tuple, .seq = seq};
}

jval jval_pair(struct jinja *j, jval a, jval b) {
    jval *items = jinja_calloc(j, 2, sizeof *items);
    items[0] = a;
    items[1] = b;
    return jval_seq(j, J_TUPLE, items, 2);
}

jval jval_dict(struct jinja *j) { return (jval){.kind = J_DICT, .d = jinja_alloc(j, sizeof(struct jdict))}; }

jval jval_iter(struct jinja *j, const struct jiter *it) {
    struct jiter *copy = jinja_alloc(j, sizeof *copy);
    *copy = *it;
    return (jval){.kind = J_ITER, .iter = copy};
}

static jval undefined(struct jinja *j, struct jundefined u) {
    struct jundefined *copy = jinja_alloc(j, sizeof *copy);
    *copy = u;
    return (jval){.kind = J_UNDEFINED, .undef = copy};
}

jval jval_undefined(struct jinja *j, struct str name) {
    return undefined(j, (struct jundefined){.name = jval_borrow(j, name)});
}

jval jval_undefined_hint(struct jinja *j, const char *hint) { return undefined(j, (struct jundefined){.hint = hint}); }

jval jval_undefined_item(struct jinja *j, jval obj, jval name) {
    return undefined(j, (struct jundefined){.obj = obj, .name = name});
}

void jinja_type_error(struct jinja *j, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    jinja_fail(j, ERR_ARG, "%s", sentence);
}

const char *jval_type(jval v) {
    static const char *const names[] = {
        [J_MISSING] = "missing", [J_UNDEFINED] = "Undefined", [J_NONE] = "NoneType",    [J_BOOL] = "bool",
        [J_INT] = "int",         [J_FLOAT] = "float",         [J_STR] = "str",          [J_LIST] = "list",
        [J_TUPLE] = "tuple",     [J_DICT] = "dict",           [J_RANGE] = "range",      [J_VIEW] = "dict_view",
        [J_ITER] = "generator",  [J_NAMESPACE] = "Namespace", [J_LOOP] = "LoopContext", [J_CYCLER] = "Cycler",
        [J_JOINER] = "Joiner",   [J_MACRO] = "Macro",         [J_NATIVE] = "function",
    };
    if (v.kind == J_VIEW)
        return v.view->of == VIEW_KEYS ? "dict_keys" : v.view->of == VIEW_VALUES ? "dict_values" : "dict_items";
    if (v.kind == J_STR && v.s->markup)
        return "Markup";
    if (v.kind == J_ITER)
        return v.iter->type;
    return names[v.kind];
}

void jlist_push(struct jinja *j, struct jlist *l, jval v) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        jval *items = jinja_calloc(j, cap, sizeof *items);
        if (l->n)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = v;
}
