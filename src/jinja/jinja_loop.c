/* jinja_loop.c - the loop variable. Items are fetched as late as Jinja fetches them: asking for loop.last
 * takes the next one, asking for loop.length of a generator takes the rest. */
#include "jinja/values/jinja_value.h"

static bool fetch(struct jinja *j, struct jloop *l, jval *out) { return jiter_next(j, &l->source, out); }

static jval peek(struct jinja *j, struct jloop *l) {
    jval v;
    if (l->after.kind == J_MISSING && fetch(j, l, &v))
        l->after = v;
    return l->after;
}

bool jloop_next(struct jinja *j, struct jloop *l, jval *out) {
    jval v = l->after;
    l->after = jval_missing();
    if (v.kind == J_MISSING && !fetch(j, l, &v))
        return false;
    l->index0++;
    l->before = l->current;
    l->current = v;
    *out = v;
    return true;
}

int64_t jloop_length(struct jinja *j, struct jloop *l) {
    if (l->length < 0 && !jval_len_if(l->iterable, j, &l->length)) {
        struct jlist rest = {0};
        for (jval v; fetch(j, l, &v);)
            jlist_push(j, &rest, v);
        jiter_of(j, jlist_take(j, &rest), &l->source);
        l->length = (int64_t)rest.n + l->index0 + 1 + (l->after.kind != J_MISSING);
    }
    return l->length;
}

static jval or_undefined(struct jinja *j, jval v, const char *hint) {
    return v.kind == J_MISSING ? jval_undefined_hint(j, hint) : v;
}

jval jloop_getattr(struct jinja *j, struct jloop *l, struct str name) {
    enum { INDEX, INDEX0, REVINDEX, REVINDEX0, FIRST, LAST, LENGTH, DEPTH, DEPTH0, PREVITEM, NEXTITEM, N_NAMES };
    static const char *const names[N_NAMES] = {"index",  "index0", "revindex", "revindex0", "first",   "last",
                                               "length", "depth",  "depth0",   "previtem",  "nextitem"};
    int which = 0;
    while (which < N_NAMES && !str_eq(name, str_of(names[which])))
        which++;
    switch (which) {
    case INDEX: return jval_int(l->index0 + 1);
    case INDEX0: return jval_int(l->index0);
    case REVINDEX: return jval_int(jloop_length(j, l) - l->index0);
    case REVINDEX0: return jval_int(jloop_length(j, l) - l->index0 - 1);
    case FIRST: return jval_bool(l->index0 == 0);
    case LAST: return jval_bool(peek(j, l).kind == J_MISSING);
    case LENGTH: return jval_int(jloop_length(j, l));
    case DEPTH: return jval_int(l->depth0 + 1);
    case DEPTH0: return jval_int(l->depth0);
    case PREVITEM: return or_undefined(j, l->before, "there is no previous item");
    case NEXTITEM: return or_undefined(j, peek(j, l), "there is no next item");
    default: return jval_missing();
    }
}
