/* jinja_access.c - attributes, items and slices. a.b looks for an attribute first, a['b'] for an item; what
 * is neither is undefined. The sandbox: nothing that begins with an underscore, nothing that changes a value. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

static jval unsafe(struct jinja *j, jval obj, struct str name) {
    sink_open(j);
    jinja_emit(j, STR("access to attribute '"));
    jinja_emit(j, name);
    jinja_emitf(j, "' of '%s' object is unsafe.", jval_type(obj));
    jval hint = jval_of_sink(j); // ends in a NUL
    return jval_undefined_hint(j, hint.s->ptr);
}

static bool is_dunder(struct str name) {
    return name.len > 4 && str_starts(name, STR("__")) && str_ends(name, STR("__"));
}

static jval field(struct jinja *j, jval obj, struct str name) {
    const jval *found;
    switch (obj.kind) {
    case J_NAMESPACE: return (found = jdict_find_str(obj.ns->d, name)) ? *found : jval_missing();
    case J_LOOP: return jloop_getattr(j, obj.loop, name);
    case J_TUPLE:
        if (obj.seq->group && (str_eq(name, STR("grouper")) || str_eq(name, STR("list"))))
            return obj.seq->items[str_eq(name, STR("list"))];
        break;
    case J_RANGE:
        if (str_eq(name, STR("start")))
            return jval_int(obj.range->start);
        if (str_eq(name, STR("stop")))
            return jval_int(obj.range->stop);
        if (str_eq(name, STR("step")))
            return jval_int(obj.range->step);
        break;
    case J_CYCLER:
        if (str_eq(name, STR("current")))
            return obj.cycler->items->items[obj.cycler->at];
        break;
    case J_MACRO:
        if (str_eq(name, STR("name")))
            return obj.macro->name ? (jval){.kind = J_STR, .s = obj.macro->name} : jval_none();
        break;
    default: break;
    }
    return jval_missing();
}

/* J_MISSING when obj has no such attribute. */
static jval attribute(struct jinja *j, jval obj, struct str name) {
    jval v = field(j, obj, name);
    const struct builtin *method = v.kind == J_MISSING ? builtin_method(obj, name) : NULL;
    if (v.kind == J_MISSING && !method && !is_dunder(name))
        return v;
    if (str_starts(name, STR("_")) || (method && !method->run))
        return unsafe(j, obj, name);
    if (!method)
        return v;
    struct jnative *bound = jinja_alloc(j, sizeof *bound);
    *bound = (struct jnative){method, obj};
    return (jval){.kind = J_NATIVE, .native = bound};
}

/* The position in a sequence of n items, or -1. */
static int64_t position(jval key, int64_t n) {
    if (key.kind != J_INT && key.kind != J_BOOL)
        return -1;
    int64_t i = key.kind == J_INT ? key.i : key.b;
    if (i < 0)
        i += n;
    return i >= 0 && i < n ? i : -1;
}

static jval char_at(struct jinja *j, struct jstr *s, int64_t i) {
    size_t begin = jstr_offset(j, s, (size_t)i);
    int32_t cp;
    return jstr_part(j, s, begin, begin + (size_t)utf8_decode(s->ptr + begin, s->len - begin, &cp));
}

static jval item(struct jinja *j, jval obj, jval key) {
    int64_t i;
    const jval *found;
    switch (obj.kind) {
    case J_DICT: return jval_is_hashable(key) && (found = jdict_find(j, obj.d, key)) ? *found : jval_missing();
    case J_LIST:
    case J_TUPLE: return (i = position(key, (int64_t)obj.seq->n)) >= 0 ? obj.seq->items[i] : jval_missing();
    case J_STR: return (i = position(key, (int64_t)jstr_chars(j, obj.s))) >= 0 ? char_at(j, obj.s, i) : jval_missing();
    case J_RANGE: return (i = position(key, obj.range->n)) >= 0 ? jval_int(jrange_at(obj.range, i)) : jval_missing();
    default: return jval_missing();
    }
}

jval jval_getattr(struct jinja *j, jval obj, jval name) {
    if (obj.kind == J_UNDEFINED)
        jinja_undefined_error(j, obj);
    jval v = attribute(j, obj, jval_text(name));
    if (v.kind == J_MISSING && obj.kind == J_DICT)
        v = item(j, obj, name);
    return v.kind == J_MISSING ? jval_undefined_item(j, obj, name) : v;
}

jval jval_getitem(struct jinja *j, jval obj, jval key) {
    if (obj.kind == J_UNDEFINED)
        jinja_undefined_error(j, obj);
    jval v = item(j, obj, key);
    if (v.kind == J_MISSING && key.kind == J_STR)
        v = attribute(j, obj, jval_text(key));
    return v.kind == J_MISSING ? jval_undefined_item(j, obj, key) : v;
}

// ---- slices ----

struct slice {
    int64_t start, end, step, n;
};

static int64_t clamp(int64_t i, int64_t n, bool backwards) {
    if (i < 0)
        i += n;
    int64_t low = backwards ? -1 : 0, high = backwards ? n - 1 : n;
    return i < low ? low : i > high ? high : i;
}

static int64_t bound(struct jinja *j, jval v, int64_t fallback, int64_t n, bool backwards) {
    if (v.kind == J_NONE)
        return fallback;
    if (v.kind != J_INT && v.kind != J_BOOL)
        jinja_type_error(j, "slice indices must be integers or None or have an __index__ method");
    return clamp(v.kind == J_INT ? v.i : v.b, n, backwards);
}

static struct slice slice_of(struct jinja *j, int64_t n, jval start, jval stop, jval step) {
    struct slice s = {.step = step.kind == J_NONE ? 1 : jval_index(j, step, "slice step")};
    if (s.step == 0)
        jinja_type_error(j, "slice step cannot be zero");
    s.step = MAX(s.step, -INT64_MAX);
    bool backwards = s.step < 0;
    s.start = bound(j, start, backwards ? n - 1 : 0, n, backwards);
    s.end = bound(j, stop, backwards ? -1 : n, n, backwards);
    if (backwards ? s.end < s.start : s.start < s.end)
        s.n = backwards ? (s.start - s.end - 1) / -s.step + 1 : (s.end - s.start - 1) / s.step + 1;
    return s;
}

static jval slice_str(struct jinja *j, struct jstr *str, struct slice s) {
    if (s.step == 1) {
        size_t begin = jstr_offset(j, str, (size_t)s.start);
        return jstr_part(j, str, begin, jstr_offset(j, str, (size_t)(s.start + s.n)));
    }
    // Where each code point begins, so that any step costs the same.
    size_t n = jstr_chars(j, str), *at = jinja_calloc(j, n + 1, sizeof *at);
    for (size_t i = 0, byte = 0; i < n; i++) {
        int32_t cp;
        at[i] = byte;
        byte += (size_t)utf8_decode(str->ptr + byte, str->len - byte, &cp);
    }
    at[n] = str->len;
    jinja_step(j, n / 16);
    sink_open(j);
    for (int64_t i = 0; i < s.n; i++) {
        int64_t c = s.start + i * s.step;
        jinja_emit(j, (struct str){str->ptr + at[c], at[c + 1] - at[c]});
    }
    return jval_markup(j, jval_of_sink(j), str->markup);
}

static jval slice_seq(struct jinja *j, jval v, struct slice s) {
    if (s.n == 0)
        return jval_seq(j, v.kind, NULL, 0);
    if (s.step == 1)
        return jval_seq(j, v.kind, v.seq->items + s.start, (size_t)s.n);
    jval *items = jinja_calloc(j, (size_t)s.n, sizeof *items);
    jinja_step(j, (uint64_t)s.n);
    for (int64_t i = 0; i < s.n; i++)
        items[i] = v.seq->items[s.start + i * s.step];
    return jval_seq(j, v.kind, items, (size_t)s.n);
}

static jval slice_range(struct jinja *j, const struct jrange *r, struct slice s) {
    struct jrange *part = jinja_alloc(j, sizeof *part);
    *part = (struct jrange){.start = jrange_at(r, s.start), .stop = jrange_at(r, s.end), .n = s.n};
    part->step = (int64_t)((uint64_t)r->step * (uint64_t)s.step);
    return (jval){.kind = J_RANGE, .range = part};
}

jval jval_slice(struct jinja *j, jval obj, jval start, jval stop, jval step) {
    switch (obj.kind) {
    case J_UNDEFINED: jinja_undefined_error(j, obj);
    case J_STR: return slice_str(j, obj.s, slice_of(j, (int64_t)jstr_chars(j, obj.s), start, stop, step));
    case J_LIST:
    case J_TUPLE: return slice_seq(j, obj, slice_of(j, (int64_t)obj.seq->n, start, stop, step));
    case J_RANGE: return slice_range(j, obj.range, slice_of(j, obj.range->n, start, stop, step));
    case J_DICT: jinja_type_error(j, "unhashable type: 'slice'");
    default: jinja_type_error(j, "'%s' object is not subscriptable", jval_type(obj));
    }
}
