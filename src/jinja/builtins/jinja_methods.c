/* jinja_methods.c - the methods of everything but str, and the lookup of all. A row without a function is a
 * method that Python has but that changes its object: the sandbox calls it unsafe. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_number.h"

#include <math.h>

const struct builtin *find_builtin(const struct builtin *rows, size_t n, struct str name) {
    for (size_t i = 0; name.len && i < n; i++)
        if (rows[i].name[0] == name.ptr[0] && str_eq(str_of(rows[i].name), name))
            return &rows[i];
    return NULL;
}

struct str arg_str(struct jinja *j, const struct jcall *c, int i) {
    if (c->arg[i].kind == J_UNDEFINED)
        jinja_undefined_error(j, c->arg[i]);
    if (c->arg[i].kind != J_STR)
        jinja_type_error(j, "argument %d must be str, not %s", i + 1, jval_type(c->arg[i]));
    return jval_text(c->arg[i]);
}

int64_t arg_int(struct jinja *j, const struct jcall *c, int i, int64_t fallback) {
    return given(c, i) ? jval_index(j, c->arg[i], "argument") : fallback;
}

bool arg_true(struct jinja *j, const struct jcall *c, int i, bool fallback) {
    return c->arg[i].kind == J_MISSING ? fallback : jval_true(j, c->arg[i]);
}

// ---- dict ----

static jval view(struct jinja *j, const struct jcall *c, enum jview_of of) {
    struct jview *v = jinja_alloc(j, sizeof *v);
    *v = (struct jview){c->self.d, of};
    return (jval){.kind = J_VIEW, .view = v};
}

static jval dict_keys(struct jinja *j, const struct jcall *c) { return view(j, c, VIEW_KEYS); }
static jval dict_values(struct jinja *j, const struct jcall *c) { return view(j, c, VIEW_VALUES); }
static jval dict_items(struct jinja *j, const struct jcall *c) { return view(j, c, VIEW_ITEMS); }

static jval dict_get(struct jinja *j, const struct jcall *c) {
    const jval *found = jdict_find(j, c->self.d, c->arg[0]);
    return found ? *found : c->arg[1].kind == J_MISSING ? jval_none() : c->arg[1];
}

static jval dict_copy(struct jinja *j, const struct jcall *c) { return jdict_copy(j, c->self.d); }

// ---- list, tuple, range ----

static jval list_copy(struct jinja *j, const struct jcall *c) {
    return jval_seq(j, J_LIST, c->self.seq->items, c->self.seq->n);
}

static jval seq_count(struct jinja *j, const struct jcall *c) {
    struct jiter it;
    int64_t n = 0;
    jiter_of(j, c->self, &it);
    for (jval v; jiter_next(j, &it, &v);)
        n += jval_same(v, c->arg[0]) || jval_eq(j, v, c->arg[0]);
    return jval_int(n);
}

static int64_t wrapped(int64_t i, int64_t n) { return i < 0 ? MAX(i + n, 0) : i; }

static jval seq_index(struct jinja *j, const struct jcall *c) {
    struct jiter it;
    int64_t n = jval_len(j, c->self), start = wrapped(arg_int(j, c, 1, 0), n), end = wrapped(arg_int(j, c, 2, n), n),
            i = 0;
    jiter_of(j, c->self, &it);
    for (jval v; jiter_next(j, &it, &v); i++)
        if (i >= start && i < end && (jval_same(v, c->arg[0]) || jval_eq(j, v, c->arg[0])))
            return jval_int(i);
    jinja_type_error(j, "the value is not in the %s", jval_type(c->self));
}

// ---- numbers ----

static jval float_is_integer(struct jinja *j, const struct jcall *c) {
    (void)j;
    return jval_bool(isfinite(c->self.f) && c->self.f == floor(c->self.f));
}

static jval int_bit_length(struct jinja *j, const struct jcall *c) {
    (void)j;
    uint64_t magnitude = c->self.i < 0 ? 0 - (uint64_t)c->self.i : (uint64_t)c->self.i;
    return jval_int(magnitude ? 64 - __builtin_clzll(magnitude) : 0);
}

// ---- loop, cycler ----

static jval loop_cycle(struct jinja *j, const struct jcall *c) {
    if (!c->rest.n)
        jinja_type_error(j, "no items for cycling given");
    return c->rest.positional[(size_t)c->self.loop->index0 % c->rest.n];
}

static jval loop_changed(struct jinja *j, const struct jcall *c) {
    jval *items = jinja_calloc(j, c->rest.n, sizeof *items);
    if (c->rest.n)
        memcpy(items, c->rest.positional, c->rest.n * sizeof *items);
    jval now = jval_seq(j, J_TUPLE, items, c->rest.n);
    if (c->self.loop->changed.kind != J_MISSING && jval_eq(j, c->self.loop->changed, now))
        return jval_bool(false);
    c->self.loop->changed = now;
    return jval_bool(true);
}

static jval cycler_next(struct jinja *j, const struct jcall *c) {
    (void)j;
    struct jcycler *cycler = c->self.cycler;
    jval v = cycler->items->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items->n;
    return v;
}

static jval cycler_reset(struct jinja *j, const struct jcall *c) {
    (void)j;
    c->self.cycler->at = 0;
    return jval_none();
}

static const struct builtin dict_methods[] = {
    BUILTIN0("clear", NULL),
    BUILTIN0("copy", dict_copy),
    BUILTIN("get", dict_get, POSITIONAL, 1, "key", "default"),
    BUILTIN0("items", dict_items),
    BUILTIN0("keys", dict_keys),
    BUILTIN0("pop", NULL),
    BUILTIN0("popitem", NULL),
    BUILTIN0("setdefault", NULL),
    BUILTIN0("update", NULL),
    BUILTIN0("values", dict_values),
};

static const struct builtin list_methods[] = {
    BUILTIN0("append", NULL),    BUILTIN0("clear", NULL),
    BUILTIN0("copy", list_copy), BUILTIN("count", seq_count, POSITIONAL, 1, "value"),
    BUILTIN0("extend", NULL),    BUILTIN("index", seq_index, POSITIONAL, 1, "value", "start", "stop"),
    BUILTIN0("insert", NULL),    BUILTIN0("pop", NULL),
    BUILTIN0("remove", NULL),    BUILTIN0("reverse", NULL),
    BUILTIN0("sort", NULL),
};

static const struct builtin tuple_methods[] = {
    BUILTIN("count", seq_count, POSITIONAL, 1, "value"),
    BUILTIN("index", seq_index, POSITIONAL, 1, "value", "start", "stop"),
};

static const struct builtin float_methods[] = {BUILTIN0("is_integer", float_is_integer)};
static const struct builtin int_methods[] = {BUILTIN0("bit_length", int_bit_length)};

static const struct builtin loop_methods[] = {
    BUILTIN("changed", loop_changed, TAKES_REST, 0, NULL),
    BUILTIN("cycle", loop_cycle, TAKES_REST, 0, NULL),
};

static const struct builtin cycler_methods[] = {
    BUILTIN0("next", cycler_next),
    BUILTIN0("reset", cycler_reset),
};

const struct builtin *builtin_method(jval obj, struct str name) {
    switch (obj.kind) {
    case J_STR: return find_builtin(str_methods, n_str_methods, name);
    case J_DICT: return find_builtin(dict_methods, ARRAY_LEN(dict_methods), name);
    case J_LIST: return find_builtin(list_methods, ARRAY_LEN(list_methods), name);
    case J_TUPLE:
    case J_RANGE: return find_builtin(tuple_methods, ARRAY_LEN(tuple_methods), name);
    case J_FLOAT: return find_builtin(float_methods, ARRAY_LEN(float_methods), name);
    case J_INT: return find_builtin(int_methods, ARRAY_LEN(int_methods), name);
    case J_LOOP: return find_builtin(loop_methods, ARRAY_LEN(loop_methods), name);
    case J_CYCLER: return find_builtin(cycler_methods, ARRAY_LEN(cycler_methods), name);
    default: return NULL;
    }
}
