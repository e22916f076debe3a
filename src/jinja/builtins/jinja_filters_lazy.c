/* jinja_filters_lazy.c - filters that give a generator: map, select and reject with their attr forms, unique,
 * batch, slice, items. Nothing happens, and nothing fails, before somebody asks for an item; the generator
 * is true even when it would give none, and it can be gone through once. Templates depend on all of this. */
#include "jinja/jinja_eval.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

static jval lazy(struct jinja *j, bool (*next)(struct jinja *j, struct jiter *it, jval *out), jval source,
                 void *state) {
    return jval_iter(j, &(struct jiter){.next = next, .type = "generator", .source = source, .state = state});
}

/* Begins to iterate the source, unless that is false in the sense of Python (None, 0): then there is nothing. */
static bool begin(struct jinja *j, struct jiter *it) {
    if (it->inner)
        return true;
    if (!jval_true(j, it->source))
        return false;
    it->inner = jinja_alloc(j, sizeof *it->inner);
    jiter_of(j, it->source, it->inner);
    return true;
}

static struct jargs copy_args(struct jinja *j, const struct jargs *a, size_t skip) {
    struct jargs copy = {.n = a->n - skip, .n_keyword = a->n_keyword};
    copy.positional = jinja_calloc(j, copy.n, sizeof *copy.positional);
    copy.keyword = jinja_calloc(j, copy.n_keyword, sizeof *copy.keyword);
    if (copy.n)
        memcpy(copy.positional, a->positional + skip, copy.n * sizeof *copy.positional);
    if (copy.n_keyword)
        memcpy(copy.keyword, a->keyword, copy.n_keyword * sizeof *copy.keyword);
    return copy;
}

static _Noreturn void unknown(struct jinja *j, const char *what, jval name) {
    sink_open(j);
    jinja_emit_repr(j, name);
    struct str text = sink_close(j);
    jinja_type_error(j, "No %s named %.*s.%s", what, STR_ARG(str_excerpt(text)),
                     name.kind == J_UNDEFINED ? " (did you forget to quote the callable name?)" : "");
}

// ---- map ----

struct mapping {
    struct jargs given; // as written
    const struct builtin *filter;
    struct jargs args; // for the filter
    struct attr_path path;
    bool ready;
};

static jval keyword_or_missing(const struct jargs *a, struct str name) {
    for (size_t i = 0; i < a->n_keyword; i++)
        if (str_eq(jval_text(a->keyword[i].name), name))
            return a->keyword[i].value;
    return jval_missing();
}

static void prepare_path(struct jinja *j, struct mapping *m) {
    for (size_t i = 0; i < m->given.n_keyword; i++) {
        struct str name = jval_text(m->given.keyword[i].name);
        if (!str_eq(name, STR("attribute")) && !str_eq(name, STR("default")))
            jinja_type_error(j, "Unexpected keyword argument '%.*s'", STR_ARG(str_excerpt(name)));
    }
    m->path =
        attr_path_of(j, keyword_or_missing(&m->given, STR("attribute")), keyword_or_missing(&m->given, STR("default")));
}

static void prepare_mapping(struct jinja *j, struct mapping *m) {
    m->ready = true;
    if (!m->given.n && keyword_or_missing(&m->given, STR("attribute")).kind != J_MISSING) {
        prepare_path(j, m);
        return;
    }
    if (!m->given.n)
        jinja_type_error(j, "map requires a filter argument");
    jval name = m->given.positional[0];
    m->filter = name.kind == J_STR ? builtin_filter(jval_text(name)) : NULL;
    if (!m->filter)
        unknown(j, "filter", name);
    m->args = copy_args(j, &m->given, 1);
}

static bool next_mapped(struct jinja *j, struct jiter *it, jval *out) {
    struct mapping *m = it->state;
    jval v;
    if (!begin(j, it))
        return false;
    if (!m->ready)
        prepare_mapping(j, m);
    jinja_enter(j);
    bool more = jiter_next(j, it->inner, &v);
    if (more)
        *out = m->filter ? builtin_call(j, m->filter, v, &m->args) : attr_path_get(j, &m->path, v);
    jinja_leave(j);
    return more;
}

static jval f_map(struct jinja *j, const struct jcall *c) {
    struct mapping *m = jinja_alloc(j, sizeof *m);
    m->given = copy_args(j, &c->rest, 0);
    return lazy(j, next_mapped, c->self, m);
}

// ---- select, reject, selectattr, rejectattr ----

struct selection {
    struct jargs given;
    bool wanted, by_attr, ready;
    struct attr_path path;
    const struct builtin *test; // NULL: truth
    struct jargs args;
};

static void prepare_selection(struct jinja *j, struct selection *s) {
    size_t at = s->by_attr;
    s->ready = true;
    if (s->given.n < at)
        jinja_type_error(j, "Missing parameter for attribute name");
    if (s->by_attr)
        s->path = attr_path_of(j, s->given.positional[0], jval_missing());
    if (s->given.n == at)
        return;
    jval name = s->given.positional[at];
    s->test = name.kind == J_STR ? builtin_test(jval_text(name)) : NULL;
    if (!s->test)
        unknown(j, "test", name);
    s->args = copy_args(j, &s->given, at + 1);
}

static bool next_selected(struct jinja *j, struct jiter *it, jval *out) {
    struct selection *s = it->state;
    if (!begin(j, it))
        return false;
    if (!s->ready)
        prepare_selection(j, s);
    bool found = false;
    jinja_enter(j);
    while (!found && jiter_next(j, it->inner, out)) {
        jval v = attr_path_get(j, &s->path, *out);
        found = jval_true(j, s->test ? builtin_call(j, s->test, v, &s->args) : v) == s->wanted;
    }
    jinja_leave(j);
    return found;
}

static jval select_items(struct jinja *j, const struct jcall *c, bool wanted, bool by_attr) {
    struct selection *s = jinja_alloc(j, sizeof *s);
    s->given = copy_args(j, &c->rest, 0);
    s->wanted = wanted;
    s->by_attr = by_attr;
    return lazy(j, next_selected, c->self, s);
}

static jval f_select(struct jinja *j, const struct jcall *c) { return select_items(j, c, true, false); }
static jval f_reject(struct jinja *j, const struct jcall *c) { return select_items(j, c, false, false); }
static jval f_selectattr(struct jinja *j, const struct jcall *c) { return select_items(j, c, true, true); }
static jval f_rejectattr(struct jinja *j, const struct jcall *c) { return select_items(j, c, false, true); }

// ---- unique ----

struct uniqueness {
    struct attr_path path;
    bool case_sensitive;
    struct jdict *seen;
};

static bool next_unique(struct jinja *j, struct jiter *it, jval *out) {
    struct uniqueness *u = it->state;
    if (!it->inner) {
        it->inner = jinja_alloc(j, sizeof *it->inner);
        jiter_of(j, it->source, it->inner);
    }
    bool found = false;
    jinja_enter(j);
    while (!found && jiter_next(j, it->inner, out)) {
        jval key = attr_path_get(j, &u->path, *out);
        if (key.kind == J_STR && !u->case_sensitive)
            key = jstr_map(j, key, CASE_LOWER);
        found = !jdict_find(j, u->seen, key);
        if (found)
            jdict_set(j, u->seen, key, jval_none());
    }
    jinja_leave(j);
    return found;
}

/* arg: case_sensitive, attribute */
static jval f_unique(struct jinja *j, const struct jcall *c) {
    struct uniqueness *u = jinja_alloc(j, sizeof *u);
    *u = (struct uniqueness){attr_path_of(j, c->arg[1], jval_missing()), arg_true(j, c, 0, false), jval_dict(j).d};
    return lazy(j, next_unique, c->self, u);
}

// ---- batch, slice, items: the whole list is made when the first item is asked for ----

struct deferred {
    jval (*make)(struct jinja *j, const struct jcall *c);
    struct jcall call;
};

static bool next_deferred(struct jinja *j, struct jiter *it, jval *out) {
    const struct deferred *d = it->state;
    jinja_enter(j);
    if (!it->inner) {
        jval list = d->make(j, &d->call);
        it->inner = jinja_alloc(j, sizeof *it->inner);
        jiter_of(j, list, it->inner);
    }
    bool more = jiter_next(j, it->inner, out);
    jinja_leave(j);
    return more;
}

static jval deferred(struct jinja *j, jval (*make)(struct jinja *j, const struct jcall *c), const struct jcall *c) {
    struct deferred *d = jinja_alloc(j, sizeof *d);
    *d = (struct deferred){make, *c};
    return lazy(j, next_deferred, c->self, d);
}

/* arg: linecount, fill_with */
static jval make_batches(struct jinja *j, const struct jcall *c) {
    struct jlist batches = {0}, batch = {0};
    struct jiter it;
    jiter_of(j, c->self, &it);
    for (jval v; jiter_next(j, &it, &v);) {
        if (jval_eq(j, jval_int((int64_t)batch.n), c->arg[0])) {
            jlist_push(j, &batches, jlist_take(j, &batch));
            batch = (struct jlist){0};
        }
        jlist_push(j, &batch, v);
    }
    if (batch.n && given(c, 1))
        for (int64_t n = jval_index(j, c->arg[0], "batch"); (int64_t)batch.n < n;) {
            jinja_step(j, 1);
            jlist_push(j, &batch, c->arg[1]);
        }
    if (batch.n)
        jlist_push(j, &batches, jlist_take(j, &batch));
    return jlist_take(j, &batches);
}

/* arg: slices, fill_with */
static jval make_slices(struct jinja *j, const struct jcall *c) {
    struct jseq *seq = jval_to_list(j, c->self).seq;
    int64_t n = jval_index(j, c->arg[0], "slice"), length = (int64_t)seq->n;
    if (n == 0)
        jinja_type_error(j, "integer division or modulo by zero");
    struct jlist slices = {0};
    for (int64_t i = 0, at = 0; i < n; i++) {
        int64_t take = length / n + (i < length % n);
        struct jlist slice = {0};
        jinja_step(j, 1);
        for (int64_t k = 0; k < take; k++)
            jlist_push(j, &slice, seq->items[at + k]);
        if (given(c, 1) && i >= length % n)
            jlist_push(j, &slice, c->arg[1]);
        at += take;
        jlist_push(j, &slices, jlist_take(j, &slice));
    }
    return jlist_take(j, &slices);
}

static jval make_items(struct jinja *j, const struct jcall *c) {
    if (c->self.kind == J_UNDEFINED)
        return jval_seq(j, J_LIST, NULL, 0);
    if (c->self.kind != J_DICT)
        jinja_type_error(j, "Can only get item pairs from a mapping.");
    struct jview *v = jinja_alloc(j, sizeof *v);
    *v = (struct jview){c->self.d, VIEW_ITEMS};
    return (jval){.kind = J_VIEW, .view = v};
}

static jval f_batch(struct jinja *j, const struct jcall *c) { return deferred(j, make_batches, c); }
static jval f_slice(struct jinja *j, const struct jcall *c) { return deferred(j, make_slices, c); }
static jval f_items(struct jinja *j, const struct jcall *c) { return deferred(j, make_items, c); }

const struct builtin lazy_filters[] = {
    BUILTIN("batch", f_batch, 0, 1, "linecount", "fill_with"),
    BUILTIN0("items", f_items),
    BUILTIN("map", f_map, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("reject", f_reject, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("rejectattr", f_rejectattr, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("select", f_select, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("selectattr", f_selectattr, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("slice", f_slice, 0, 1, "slices", "fill_with"),
    BUILTIN("unique", f_unique, 0, 0, "case_sensitive", "attribute"),
};
const size_t n_lazy_filters = ARRAY_LEN(lazy_filters);

const struct builtin *builtin_filter(struct str name) {
    const struct builtin *found = find_builtin(text_filters, n_text_filters, name);
    if (!found)
        found = find_builtin(sequence_filters, n_sequence_filters, name);
    if (!found)
        found = find_builtin(number_filters, n_number_filters, name);
    return found ? found : find_builtin(lazy_filters, n_lazy_filters, name);
}
