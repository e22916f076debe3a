/* jinja_filters_seq.c - filters about sequences and mappings that answer at once. Those that answer item by
 * item are in jinja_filters_lazy.c. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

// ---- attributes by path ----

static bool is_number_text(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
    return s.len > 0;
}

struct attr_path attr_path_of(struct jinja *j, jval attribute, jval fallback) {
    struct jlist parts = {0};
    struct attr_path path = {.fallback = jval_is_given(fallback) ? fallback : jval_missing()};
    if (!jval_is_given(attribute))
        return path;
    if (attribute.kind != J_STR) {
        jlist_push(j, &parts, attribute);
    } else {
        struct str rest = jval_text(attribute);
        for (bool more = true; more;) {
            size_t dot = str_find(rest, STR("."), 0);
            struct str part = {rest.ptr, MIN(dot, rest.len)};
            int64_t i;
            jlist_push(j, &parts,
                       is_number_text(part) && str_to_int(j, part, 10, &i) ? jval_int(i) : jval_borrow(j, part));
            more = dot != SIZE_MAX;
            if (more)
                rest = (struct str){rest.ptr + dot + 1, rest.len - dot - 1};
        }
    }
    path.parts = parts.items;
    path.n = parts.n;
    return path;
}

jval attr_path_get(struct jinja *j, const struct attr_path *path, jval item) {
    for (size_t i = 0; i < path->n; i++) {
        item = jval_getitem(j, item, path->parts[i]);
        if (item.kind == J_UNDEFINED && path->fallback.kind != J_MISSING)
            item = path->fallback;
    }
    return item;
}

static jval ignore_case(struct jinja *j, jval v, bool case_sensitive) {
    return v.kind == J_STR && !case_sensitive ? jstr_map(j, v, CASE_LOWER) : v;
}

// ---- sorting ----

struct sorter {
    struct jinja *j;
    jval *items, *keys, *spare_items, *spare_keys;
    bool reverse;
};

static bool goes_first(struct sorter *s, size_t right, size_t left) {
    return s->reverse ? jval_order(s->j, ORDER_LT, s->keys[left], s->keys[right])
                      : jval_order(s->j, ORDER_LT, s->keys[right], s->keys[left]);
}

static void merge_halves(struct sorter *s, size_t begin, size_t mid, size_t end) {
    size_t left = begin, right = mid;
    for (size_t out = begin; out < end; out++) {
        bool take_right = left == mid || (right < end && goes_first(s, right, left));
        size_t from = take_right ? right++ : left++;
        s->spare_items[out] = s->items[from];
        s->spare_keys[out] = s->keys[from];
    }
    memcpy(s->items + begin, s->spare_items + begin, (end - begin) * sizeof *s->items);
    memcpy(s->keys + begin, s->spare_keys + begin, (end - begin) * sizeof *s->keys);
}

void sort_by_keys(struct jinja *j, jval *items, jval *keys, size_t n, bool reverse) {
    struct sorter s = {j, items, keys, jinja_calloc(j, n, sizeof *items), jinja_calloc(j, n, sizeof *keys), reverse};
    for (size_t width = 1; width < n; width *= 2)
        for (size_t begin = 0; begin + width < n; begin += 2 * width)
            merge_halves(&s, begin, begin + width, MIN(begin + 2 * width, n));
}

static jval *copy_items(struct jinja *j, const struct jseq *seq) {
    jval *items = jinja_calloc(j, seq->n, sizeof *items);
    if (seq->n)
        memcpy(items, seq->items, seq->n * sizeof *items);
    return items;
}

/* "name,age": sorted by the list of both. */
static jval multi_key(struct jinja *j, const struct jlist *attributes, jval item, bool case_sensitive) {
    jval *keys = jinja_calloc(j, attributes->n, sizeof *keys);
    for (size_t i = 0; i < attributes->n; i++) {
        struct attr_path path = attr_path_of(j, attributes->items[i], jval_missing());
        keys[i] = ignore_case(j, attr_path_get(j, &path, item), case_sensitive);
    }
    return jval_seq(j, J_LIST, keys, attributes->n);
}

static struct jlist split_attributes(struct jinja *j, jval attribute) {
    struct jlist list = {0};
    if (attribute.kind != J_STR) {
        jlist_push(j, &list, attribute);
        return list;
    }
    struct str rest = jval_text(attribute);
    for (size_t comma; (comma = str_find(rest, STR(","), 0)) != SIZE_MAX;
         rest = (struct str){rest.ptr + comma + 1, rest.len - comma - 1})
        jlist_push(j, &list, jval_borrow(j, (struct str){rest.ptr, comma}));
    jlist_push(j, &list, jval_borrow(j, rest));
    return list;
}

/* arg: reverse, case_sensitive, attribute */
static jval f_sort(struct jinja *j, const struct jcall *c) {
    struct jseq *seq = jval_to_list(j, c->self).seq;
    struct jlist attributes = split_attributes(j, c->arg[2]);
    jval *items = copy_items(j, seq), *keys = jinja_calloc(j, seq->n, sizeof *keys);
    for (size_t i = 0; i < seq->n; i++)
        keys[i] = multi_key(j, &attributes, items[i], arg_true(j, c, 1, false));
    sort_by_keys(j, items, keys, seq->n, arg_true(j, c, 0, false));
    return jval_seq(j, J_LIST, items, seq->n);
}

/* arg: case_sensitive, by, reverse */
static jval f_dictsort(struct jinja *j, const struct jcall *c) {
    struct str by = c->arg[1].kind == J_MISSING ? STR("key") : arg_str(j, c, 1);
    bool by_value = str_eq(by, STR("value"));
    if (!by_value && !str_eq(by, STR("key")))
        jinja_type_error(j, "You can only sort by either \"key\" or \"value\"");
    if (c->self.kind == J_UNDEFINED)
        jinja_undefined_error(j, c->self);
    if (c->self.kind != J_DICT)
        jinja_type_error(j, "'%s' object has no attribute 'items'", jval_type(c->self));
    const struct jdict *d = c->self.d;
    jval *items = jinja_calloc(j, d->n, sizeof *items), *keys = jinja_calloc(j, d->n, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        items[i] = jval_pair(j, d->entries[i].key, d->entries[i].value);
        keys[i] = ignore_case(j, by_value ? d->entries[i].value : d->entries[i].key, arg_true(j, c, 0, false));
    }
    sort_by_keys(j, items, keys, d->n, arg_true(j, c, 2, false));
    return jval_seq(j, J_LIST, items, d->n);
}

static jval group(struct jinja *j, jval key, jval *items, size_t n) {
    jval pair = jval_pair(j, key, jval_seq(j, J_LIST, items, n));
    pair.seq->group = true;
    return pair;
}

/* arg: attribute, default, case_sensitive */
static jval f_groupby(struct jinja *j, const struct jcall *c) {
    bool case_sensitive = arg_true(j, c, 2, false);
    struct attr_path path = attr_path_of(j, c->arg[0], c->arg[1]);
    struct jseq *seq = jval_to_list(j, c->self).seq;
    jval *items = copy_items(j, seq), *keys = jinja_calloc(j, seq->n, sizeof *keys);
    struct jlist groups = {0};
    for (size_t i = 0; i < seq->n; i++)
        keys[i] = ignore_case(j, attr_path_get(j, &path, items[i]), case_sensitive);
    sort_by_keys(j, items, keys, seq->n, false);
    for (size_t begin = 0, end; begin < seq->n; begin = end) {
        for (end = begin + 1; end < seq->n && jval_eq(j, keys[begin], keys[end]);)
            end++;
        jlist_push(j, &groups, group(j, attr_path_get(j, &path, items[begin]), items + begin, end - begin));
    }
    return jlist_take(j, &groups);
}

// ---- one of many ----

static jval f_first(struct jinja *j, const struct jcall *c) {
    struct jiter it;
    jval v;
    jiter_of(j, c->self, &it);
    return jiter_next(j, &it, &v) ? v : jval_undefined_hint(j, "No first item, sequence was empty.");
}

static jval f_last(struct jinja *j, const struct jcall *c) {
    jval back = jval_reversed(j, c->self), v;
    if (back.kind == J_MISSING)
        jinja_type_error(j, "'%s' object is not reversible", jval_type(c->self));
    return jiter_next(j, back.iter, &v) ? v : jval_undefined_hint(j, "No last item, sequence was empty.");
}

/* arg: case_sensitive, attribute */
static jval extreme(struct jinja *j, const struct jcall *c, enum jorder better) {
    bool case_sensitive = arg_true(j, c, 0, false);
    struct attr_path path = attr_path_of(j, c->arg[1], jval_missing());
    struct jiter it;
    jval best, best_key, v;
    jiter_of(j, c->self, &it);
    if (!jiter_next(j, &it, &best))
        return jval_undefined_hint(j, "No aggregated item, sequence was empty.");
    best_key = ignore_case(j, attr_path_get(j, &path, best), case_sensitive);
    while (jiter_next(j, &it, &v)) {
        jval key = ignore_case(j, attr_path_get(j, &path, v), case_sensitive);
        if (jval_order(j, better, key, best_key)) {
            best = v;
            best_key = key;
        }
    }
    return best;
}

static jval f_min(struct jinja *j, const struct jcall *c) { return extreme(j, c, ORDER_LT); }
static jval f_max(struct jinja *j, const struct jcall *c) { return extreme(j, c, ORDER_GT); }

/* arg: attribute, start */
static jval f_sum(struct jinja *j, const struct jcall *c) {
    struct attr_path path = attr_path_of(j, c->arg[0], jval_missing());
    jval total = c->arg[1].kind == J_MISSING ? jval_int(0) : c->arg[1];
    if (total.kind == J_STR)
        jinja_type_error(j, "sum() can't sum strings [use ''.join(seq) instead]");
    struct jiter it;
    jiter_of(j, c->self, &it);
    for (jval v; jiter_next(j, &it, &v);)
        total = jval_binary(j, OP_ADD, total, attr_path_get(j, &path, v));
    return total;
}

/* arg: d, attribute */
static jval f_join(struct jinja *j, const struct jcall *c) {
    struct attr_path path = attr_path_of(j, c->arg[1], jval_missing());
    jval separator = c->arg[0].kind == J_MISSING ? jval_borrow(j, STR("")) : jval_to_plain(j, c->arg[0]);
    struct jiter it;
    bool first = true;
    jiter_of(j, c->self, &it);
    sink_open(j);
    for (jval v; jiter_next(j, &it, &v); first = false) {
        if (!first)
            jinja_emit(j, jval_text(separator));
        jinja_emit_str(j, attr_path_get(j, &path, v));
    }
    return jval_of_sink(j);
}

static jval f_length(struct jinja *j, const struct jcall *c) { return jval_int(jval_len(j, c->self)); }
static jval f_list(struct jinja *j, const struct jcall *c) { return jval_to_list(j, c->self); }

/* arg: default_value, boolean */
static jval f_default(struct jinja *j, const struct jcall *c) {
    if (c->self.kind != J_UNDEFINED && !(arg_true(j, c, 1, false) && !jval_true(j, c->self)))
        return c->self;
    return c->arg[0].kind == J_MISSING ? jval_borrow(j, STR("")) : c->arg[0];
}

static jval f_reverse(struct jinja *j, const struct jcall *c) {
    if (c->self.kind == J_STR)
        return jval_slice(j, c->self, jval_none(), jval_none(), jval_int(-1));
    jval back = jval_reversed(j, c->self);
    if (back.kind != J_MISSING)
        return back;
    if (!jval_is_iterable(c->self))
        jinja_type_error(j, "argument must be iterable");
    back = jval_reversed(j, jval_to_list(j, c->self));
    return jval_to_list(j, back);
}

static jval f_attr(struct jinja *j, const struct jcall *c) {
    arg_str(j, c, 0);
    if (c->self.kind == J_DICT && !builtin_method(c->self, jval_text(c->arg[0])))
        return jval_undefined_item(j, c->self, c->arg[0]); // attributes only, no items
    return jval_getattr(j, c->self, c->arg[0]);
}

const struct builtin sequence_filters[] = {
    BUILTIN("attr", f_attr, 0, 1, "name"),
    BUILTIN0("count", f_length),
    BUILTIN("d", f_default, 0, 0, "default_value", "boolean"),
    BUILTIN("default", f_default, 0, 0, "default_value", "boolean"),
    BUILTIN("dictsort", f_dictsort, 0, 0, "case_sensitive", "by", "reverse"),
    BUILTIN0("first", f_first),
    BUILTIN("groupby", f_groupby, 0, 1, "attribute", "default", "case_sensitive"),
    BUILTIN("join", f_join, 0, 0, "d", "attribute"),
    BUILTIN0("last", f_last),
    BUILTIN0("length", f_length),
    BUILTIN0("list", f_list),
    BUILTIN("max", f_max, 0, 0, "case_sensitive", "attribute"),
    BUILTIN("min", f_min, 0, 0, "case_sensitive", "attribute"),
    BUILTIN0("reverse", f_reverse),
    BUILTIN("sort", f_sort, 0, 0, "reverse", "case_sensitive", "attribute"),
    BUILTIN("sum", f_sum, 0, 0, "attribute", "start"),
};
const size_t n_sequence_filters = ARRAY_LEN(sequence_filters);
