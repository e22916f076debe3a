/* jinja_dict.c - dicts in the order of insertion, and hashes under which equal keys meet: 1, 1.0 and True. */
#include "jinja/values/jinja_value.h"

#include <math.h>
#include <xxhash.h>

enum { INDEX_FROM = 8 };

bool jval_is_hashable(jval v) {
    switch (v.kind) {
    case J_LIST:
    case J_DICT: return false;
    case J_VIEW: return v.view->of == VIEW_VALUES;
    default: return true;
    }
}

static uint64_t hash_int(int64_t i) { return XXH3_64bits(&i, sizeof i); }

static uint64_t hash_float(double f) {
    if (f == floor(f) && fabs(f) < 9.2e18)
        return hash_int((int64_t)f);
    return XXH3_64bits(&f, sizeof f);
}

static uint64_t hash_seq(struct jinja *j, const struct jseq *seq) {
    uint64_t h = 0x2545F4914F6CDD1D;
    jinja_enter(j);
    for (size_t i = 0; i < seq->n; i++) {
        jinja_step(j, 1);
        uint64_t pair[2] = {h, jval_hash(j, seq->items[i])};
        h = XXH3_64bits(pair, sizeof pair);
    }
    jinja_leave(j);
    return h;
}

uint64_t jval_hash(struct jinja *j, jval v) {
    if (!jval_is_hashable(v))
        jinja_type_error(j, "unhashable type: '%s'", jval_type(v));
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return (uint64_t)v.kind;
    case J_BOOL: return hash_int(v.b);
    case J_INT: return hash_int(v.i);
    case J_FLOAT: return hash_float(v.f);
    case J_STR: return XXH3_64bits(v.s->ptr, v.s->len);
    case J_TUPLE: return hash_seq(j, v.seq);
    case J_RANGE: return hash_int(v.range->n);
    default: return hash_int((int64_t)(intptr_t)v.seq); // by identity
    }
}

static void index_entry(struct jdict *d, size_t entry) {
    size_t at = d->entries[entry].hash & (d->n_index - 1);
    while (d->index[at])
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)entry + 1;
}

static void grow(struct jinja *j, struct jdict *d) {
    size_t cap = d->cap ? d->cap * 2 : 4;
    if (cap > UINT32_MAX / 4)
        jinja_fail(j, ERR_LIMIT, "a dict grows without bound");
    struct jentry *entries = jinja_calloc(j, cap, sizeof *entries);
    if (d->n)
        memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->cap = cap;
    if (cap > INDEX_FROM) {
        d->n_index = cap * 2;
        d->index = jinja_calloc(j, d->n_index, sizeof *d->index);
        for (size_t i = 0; i < d->n; i++)
            index_entry(d, i);
    }
}

static bool is_key(struct jinja *j, const struct jentry *e, uint64_t hash, jval key) {
    return e->hash == hash && (jval_same(e->key, key) || jval_eq(j, e->key, key));
}

static struct jentry *find(struct jinja *j, const struct jdict *d, uint64_t hash, jval key) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (is_key(j, &d->entries[i], hash, key))
                return &d->entries[i];
        return NULL;
    }
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        jinja_step(j, 1); // keys from a request may collide
        struct jentry *e = &d->entries[d->index[at] - 1];
        if (is_key(j, e, hash, key))
            return e;
    }
    return NULL;
}

void jdict_set(struct jinja *j, struct jdict *d, jval key, jval value) {
    uint64_t hash = jval_hash(j, key);
    struct jentry *e = find(j, d, hash, key);
    if (e) {
        e->value = value; // the key that was there first stays
        return;
    }
    if (d->n == d->cap)
        grow(j, d);
    d->entries[d->n] = (struct jentry){key, value, hash};
    if (d->index)
        index_entry(d, d->n);
    d->n++;
}

jval *jdict_find(struct jinja *j, const struct jdict *d, jval key) {
    struct jentry *e = find(j, d, jval_hash(j, key), key);
    return e ? &e->value : NULL;
}

jval *jdict_find_str(const struct jdict *d, struct str key) {
    uint64_t hash = XXH3_64bits(key.ptr, key.len);
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->entries[i].hash == hash && d->entries[i].key.kind == J_STR &&
                str_eq(jval_text(d->entries[i].key), key))
                return &d->entries[i].value;
        return NULL;
    }
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        struct jentry *e = &d->entries[d->index[at] - 1];
        if (e->hash == hash && e->key.kind == J_STR && str_eq(jval_text(e->key), key))
            return &e->value;
    }
    return NULL;
}

jval jdict_copy(struct jinja *j, const struct jdict *d) {
    jval copy = jval_dict(j);
    for (size_t i = 0; i < d->n; i++)
        jdict_set(j, copy.d, d->entries[i].key, d->entries[i].value);
    return copy;
}
