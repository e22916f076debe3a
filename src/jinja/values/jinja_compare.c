/* jinja_compare.c - truth, identity, equality, order and membership, as Python's protocols give them. */
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_value.h"

#include <math.h>

bool jval_true(struct jinja *j, jval v) {
    int64_t n;
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_FLOAT: return v.f != 0;
    case J_STR: return v.s->len != 0;
    default: return !jval_len_if(v, j, &n) || n != 0;
    }
}

bool jval_same(jval a, jval b) {
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_MISSING:
    case J_NONE: return true;
    case J_BOOL: return a.b == b.b;
    case J_INT: return a.i == b.i;
    case J_FLOAT: return a.f == b.f && signbit(a.f) == signbit(b.f);
    case J_STR: return a.s == b.s || str_eq(jval_text(a), jval_text(b)); // short strings are mostly interned
    default: return a.seq == b.seq;
    }
}

bool jval_is_number(jval v) { return v.kind == J_INT || v.kind == J_FLOAT || v.kind == J_BOOL; }
double jval_number(jval v) { return v.kind == J_FLOAT ? v.f : v.kind == J_INT ? (double)v.i : (double)v.b; }

static int64_t integer(jval v) { return v.kind == J_INT ? v.i : v.b; }

/* -1, 0 or 1; 2 when one is not a number. Exact also where a double cannot hold the integer. */
static int compare_numbers(jval a, jval b) {
    if (a.kind != J_FLOAT && b.kind != J_FLOAT)
        return integer(a) < integer(b) ? -1 : integer(a) > integer(b);
    if (a.kind == J_FLOAT && b.kind == J_FLOAT)
        return isnan(a.f) || isnan(b.f) ? 2 : a.f < b.f ? -1 : a.f > b.f;
    double f = a.kind == J_FLOAT ? a.f : b.f;
    int64_t i = integer(a.kind == J_FLOAT ? b : a);
    int float_to_int;
    if (isnan(f))
        return 2;
    if (f >= 0x1p63 || f < -0x1p63)
        float_to_int = f > 0 ? 1 : -1;
    else if ((int64_t)f != i)
        float_to_int = (int64_t)f < i ? -1 : 1;
    else
        float_to_int = f > trunc(f) ? 1 : f < trunc(f) ? -1 : 0;
    return a.kind == J_FLOAT ? float_to_int : -float_to_int;
}

static bool eq_items(struct jinja *j, jval a, jval b) { return jval_same(a, b) || jval_eq(j, a, b); }

static bool eq_seq(struct jinja *j, const struct jseq *a, const struct jseq *b) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!eq_items(j, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool eq_dict(struct jinja *j, const struct jdict *a, const struct jdict *b) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const jval *other = jdict_find(j, b, a->entries[i].key);
        if (!other || !eq_items(j, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool eq_range(const struct jrange *a, const struct jrange *b) {
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* Key and item views compare as sets. */
static bool eq_view(struct jinja *j, const struct jview *a, const struct jview *b) {
    if (a->of != b->of || a->of == VIEW_VALUES)
        return a == b;
    if (a->of == VIEW_ITEMS)
        return eq_dict(j, a->d, b->d);
    if (a->d->n != b->d->n)
        return false;
    for (size_t i = 0; i < a->d->n; i++)
        if (!jdict_find(j, b->d, a->d->entries[i].key))
            return false;
    return true;
}

bool jval_eq(struct jinja *j, jval a, jval b) {
    jinja_step(j, 1);
    if (jval_is_number(a) && jval_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    bool equal;
    jinja_enter(j);
    switch (a.kind) {
    case J_UNDEFINED: equal = true; break;
    case J_STR:
        jinja_step_bytes(j, a.s->len);
        equal = str_eq(jval_text(a), jval_text(b));
        break;
    case J_LIST:
    case J_TUPLE: equal = a.seq == b.seq || eq_seq(j, a.seq, b.seq); break;
    case J_DICT: equal = a.d == b.d || eq_dict(j, a.d, b.d); break;
    case J_RANGE: equal = eq_range(a.range, b.range); break;
    case J_VIEW: equal = eq_view(j, a.view, b.view); break;
    default: equal = jval_same(a, b);
    }
    jinja_leave(j);
    return equal;
}

static bool holds(enum jorder op, int order) {
    if (order == 2)
        return false;
    switch (op) {
    case ORDER_LT: return order < 0;
    case ORDER_LE: return order <= 0;
    case ORDER_GT: return order > 0;
    case ORDER_GE: return order >= 0;
    }
    return false;
}

static int compare_bytes(struct str a, struct str b) {
    // UTF-8 sorts as its code points do.
    size_t n = MIN(a.len, b.len);
    int order = n ? memcmp(a.ptr, b.ptr, n) : 0;
    return order ? (order < 0 ? -1 : 1) : a.len < b.len ? -1 : a.len > b.len;
}

/* The first items that differ decide, else the lengths. */
static bool order_seq(struct jinja *j, enum jorder op, const struct jseq *a, const struct jseq *b) {
    for (size_t i = 0; i < MIN(a->n, b->n); i++)
        if (!eq_items(j, a->items[i], b->items[i]))
            return jval_order(j, op, a->items[i], b->items[i]);
    return holds(op, a->n < b->n ? -1 : a->n > b->n);
}

bool jval_order(struct jinja *j, enum jorder op, jval a, jval b) {
    static const char *const signs[] = {"<", "<=", ">", ">="};
    jinja_step(j, 1);
    if (jval_is_number(a) && jval_is_number(b))
        return holds(op, compare_numbers(a, b));
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        jinja_undefined_error(j, a.kind == J_UNDEFINED ? a : b);
    if (a.kind == J_STR && b.kind == J_STR)
        return holds(op, compare_bytes(jval_text(a), jval_text(b)));
    if (!jval_is_seq(a) || a.kind != b.kind)
        jinja_type_error(j, "'%s' not supported between instances of '%s' and '%s'", signs[op], jval_type(a),
                         jval_type(b));
    jinja_enter(j);
    bool result = order_seq(j, op, a.seq, b.seq);
    jinja_leave(j);
    return result;
}

static bool in_range(jval item, const struct jrange *r) {
    if (!jval_is_number(item) || r->n == 0)
        return false;
    if (item.kind == J_FLOAT && (item.f != floor(item.f) || fabs(item.f) > 9e15))
        return false;
    int64_t i = item.kind == J_FLOAT ? (int64_t)item.f : integer(item);
    int64_t last = jrange_at(r, r->n - 1);
    if (i < MIN(r->start, last) || i > MAX(r->start, last))
        return false;
    uint64_t distance = (uint64_t)i - (uint64_t)r->start, step = (uint64_t)r->step;
    return r->step > 0 ? distance % step == 0 : (0 - distance) % (0 - step) == 0;
}

bool jval_in(struct jinja *j, jval item, jval container) {
    switch (container.kind) {
    case J_STR:
        if (item.kind != J_STR)
            jinja_type_error(j, "'in <string>' requires string as left operand, not %s", jval_type(item));
        jinja_step_bytes(j, container.s->len);
        return str_find(jval_text(container), jval_text(item), 0) != SIZE_MAX;
    case J_DICT: return jdict_find(j, container.d, item) != NULL;
    case J_RANGE: return in_range(item, container.range);
    case J_VIEW:
        if (container.view->of == VIEW_KEYS)
            return jdict_find(j, container.view->d, item) != NULL;
        break;
    default: break;
    }
    if (!jval_is_iterable(container))
        jinja_type_error(j, "argument of type '%s' is not iterable", jval_type(container));
    struct jiter it;
    jiter_of(j, container, &it);
    for (jval v; jiter_next(j, &it, &v);)
        if (eq_items(j, v, item))
            return true;
    return false;
}
