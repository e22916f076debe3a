/* jinja_iter.c - iter(), list(), reversed() and len(). The generators of filters bring a next function of their own. */
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_value.h"

static bool next_item(struct jinja *j, struct jiter *it, jval *out) {
    (void)j;
    if (it->at >= it->n)
        return false;
    *out = it->source.seq->items[it->at++];
    return true;
}

static bool next_item_back(struct jinja *j, struct jiter *it, jval *out) {
    (void)j;
    if (!it->n)
        return false;
    *out = it->source.seq->items[--it->n];
    return true;
}

static bool next_char(struct jinja *j, struct jiter *it, jval *out) {
    struct jstr *s = it->source.s;
    if (it->at >= s->len)
        return false;
    int32_t cp;
    size_t begin = it->at;
    it->at += (size_t)utf8_decode(s->ptr + begin, s->len - begin, &cp);
    *out = jval_borrow(j, (struct str){s->ptr + begin, it->at - begin}); // plain, also of Markup
    return true;
}

static bool next_number(struct jinja *j, struct jiter *it, jval *out) {
    (void)j;
    const struct jrange *r = it->source.range;
    if (it->at >= it->n)
        return false;
    *out = jval_int(jrange_at(r, (int64_t)it->at++));
    return true;
}

static jval view_item(struct jinja *j, const struct jentry *e, enum jview_of of) {
    return of == VIEW_KEYS ? e->key : of == VIEW_VALUES ? e->value : jval_pair(j, e->key, e->value);
}

static bool next_entry(struct jinja *j, struct jiter *it, jval *out) {
    const struct jview *v = it->source.view;
    if (it->at >= it->n)
        return false;
    *out = view_item(j, &v->d->entries[it->at++], v->of);
    return true;
}

static bool next_entry_back(struct jinja *j, struct jiter *it, jval *out) {
    const struct jview *v = it->source.view;
    if (!it->n)
        return false;
    *out = view_item(j, &v->d->entries[--it->n], v->of);
    return true;
}

static bool next_key(struct jinja *j, struct jiter *it, jval *out) {
    (void)j;
    if (it->at >= it->n)
        return false;
    *out = it->source.d->entries[it->at++].key;
    return true;
}

static bool next_key_back(struct jinja *j, struct jiter *it, jval *out) {
    (void)j;
    if (!it->n)
        return false;
    *out = it->source.d->entries[--it->n].key;
    return true;
}

static bool next_of_inner(struct jinja *j, struct jiter *it, jval *out) { return it->inner->next(j, it->inner, out); }

static bool next_nothing(struct jinja *j, struct jiter *it, jval *out) {
    (void)j, (void)it, (void)out;
    return false;
}

bool jval_is_iterable(jval v) {
    switch (v.kind) {
    case J_UNDEFINED:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_ITER: return true;
    default: return false;
    }
}

void jiter_of(struct jinja *j, jval v, struct jiter *it) {
    *it = (struct jiter){.source = v, .type = "iterator"};
    switch (v.kind) {
    case J_UNDEFINED: it->next = next_nothing; return;
    case J_STR: it->next = next_char; return;
    case J_LIST:
    case J_TUPLE:
        it->next = next_item;
        it->n = v.seq->n;
        return;
    case J_DICT:
        it->next = next_key;
        it->n = v.d->n;
        return;
    case J_RANGE:
        it->next = next_number;
        it->n = (size_t)v.range->n;
        return;
    case J_VIEW:
        it->next = next_entry;
        it->n = v.view->d->n;
        return;
    case J_ITER:
        it->next = next_of_inner;
        it->inner = v.iter;
        return;
    default: jinja_type_error(j, "'%s' object is not iterable", jval_type(v));
    }
}

jval jval_to_list(struct jinja *j, jval v) {
    if (jval_is_seq(v))
        return jval_seq(j, J_LIST, v.seq->items, v.seq->n);
    struct jlist list = {0};
    struct jiter it;
    jiter_of(j, v, &it);
    for (jval item; jiter_next(j, &it, &item);)
        jlist_push(j, &list, item);
    return jlist_take(j, &list);
}

static jval chars_back(struct jinja *j, jval s) {
    jval list = jval_to_list(j, s);
    return jval_reversed(j, list);
}

static jval range_back(struct jinja *j, const struct jrange *r) {
    struct jrange *back = jinja_alloc(j, sizeof *back);
    *back = (struct jrange){.start = jrange_at(r, r->n - 1), .step = (int64_t) - (uint64_t)r->step, .n = r->n};
    struct jiter it = {
        .next = next_number, .type = "range_iterator", .source = {.kind = J_RANGE, .range = back}, .n = (size_t)r->n};
    return jval_iter(j, &it);
}

jval jval_reversed(struct jinja *j, jval v) {
    struct jiter it = {.source = v};
    switch (v.kind) {
    case J_UNDEFINED:
        it.next = next_nothing;
        it.type = "reversed";
        break;
    case J_LIST:
    case J_TUPLE:
        it.next = next_item_back;
        it.type = v.kind == J_LIST ? "list_reverseiterator" : "reversed";
        it.n = v.seq->n;
        break;
    case J_DICT:
        it.next = next_key_back;
        it.type = "dict_reversekeyiterator";
        it.n = v.d->n;
        break;
    case J_VIEW:
        it.next = next_entry_back;
        it.type = "dict_reverseiterator";
        it.n = v.view->d->n;
        break;
    case J_STR: return chars_back(j, v);
    case J_RANGE: return range_back(j, v.range);
    default: return jval_missing();
    }
    return jval_iter(j, &it);
}

bool jval_len_if(jval v, struct jinja *j, int64_t *n) {
    switch (v.kind) {
    case J_UNDEFINED: *n = 0; return true;
    case J_STR: *n = (int64_t)jstr_chars(j, v.s); return true;
    case J_LIST:
    case J_TUPLE: *n = (int64_t)v.seq->n; return true;
    case J_DICT: *n = (int64_t)v.d->n; return true;
    case J_VIEW: *n = (int64_t)v.view->d->n; return true;
    case J_RANGE: *n = v.range->n; return true;
    case J_LOOP: *n = jloop_length(j, v.loop); return true;
    default: return false;
    }
}

int64_t jval_len(struct jinja *j, jval v) {
    int64_t n;
    if (!jval_len_if(v, j, &n))
        jinja_type_error(j, "object of type '%s' has no len()", jval_type(v));
    return n;
}
