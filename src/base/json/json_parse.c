/* json_parse.c - a JSON text as jansson's values, in one pass over json_reader; see json.h.
 *
 * jansson's own parser is not used: it bounds no memory, and reads integers past 64 bits only as reals of the whole
 * text. The bytes that are counted are those of jansson 2.14 and glibc, rounded up; the bytes of strings are not
 * among them, since a text cannot hold more of those than it has. */
#include "base/json/json.h"

#include "base/guard.h"
#include "base/json/json_reader.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = JSON_READER_DEPTH };

enum {
    SCALAR_BYTES = 32,
    STRING_BYTES = 80,
    ARRAY_BYTES = 128,
    OBJECT_BYTES = 256,
    ITEM_BYTES = 16,
    MEMBER_BYTES = 112
};

struct parser {
    struct json_reader reader;
    struct error *err;
    bool allow_duplicates, python;
    struct jv_numbers *numbers; // NULL: nobody wants them
    size_t bytes, max_bytes;
    struct buf key;      // of the member at hand
    int depth;           // how many containers are open ...
    json_t *open[DEPTH]; // ... outermost first, borrowed from the root
};

static enum status no_memory(const struct parser *p) {
    return fail(p->err, ERR_MEMORY, "%s: there is no memory for the values of its JSON", p->reader.where);
}

static enum status count(struct parser *p, size_t bytes) {
    p->bytes += bytes;
    if (p->bytes <= p->max_bytes)
        return OK;
    return fail(p->err, ERR_LIMIT, "%s: its JSON holds so many values that they would take more than %zu MiB of memory",
                p->reader.where, (p->max_bytes + (1 << 20) - 1) >> 20);
}

static enum status take_string(struct parser *p, json_t **out) {
    struct str s;
    TRY(json_take_string(&p->reader, &s, p->err));
    TRY(count(p, STRING_BYTES));
    *out = json_stringn_nocheck(s.ptr, s.len);
    return OK;
}

/* A new entry of the table, whose value is still to come. */
static struct jv_number *keep_text(struct jv_numbers *all, struct str text) {
    if (all->n == all->capacity) {
        all->at = xrealloc(all->at, 2 * all->capacity + 8, sizeof *all->at);
        all->capacity = 2 * all->capacity + 8;
    }
    char *copy = xmalloc(text.len + 1);
    memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    all->sorted = false;
    all->at[all->n] = (struct jv_number){.text = copy};
    return &all->at[all->n++];
}

static enum status take_number(struct parser *p, json_t **out) {
    struct json_number n;
    TRY(json_take_number(&p->reader, &n, p->err));
    bool kept = p->numbers && n.text.len > 0;
    if (!n.is_int && !isfinite(n.f)) {
        if (!kept)
            return json_complain(&p->reader, "a number is out of range", p->err);
        n.f = copysign(DBL_MAX, n.f);
    }
    TRY(count(p, SCALAR_BYTES + (kept ? STRING_BYTES : 0)));
    struct jv_number *entry = kept ? keep_text(p->numbers, n.text) : NULL;
    *out = n.is_int ? json_integer(n.i) : json_real(n.f);
    if (entry)
        entry->value = json_incref(*out);
    return OK;
}

static int by_place(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const struct jv_number *)a)->value, y = (uintptr_t)((const struct jv_number *)b)->value;
    return (x > y) - (x < y);
}

bool jv_numbers_find(struct jv_numbers *all, const json_t *value, struct str *text) {
    if (!all || all->n == 0 || !json_is_real(value) || fabs(json_real_value(value)) < 0x1p63)
        return false;
    if (!all->sorted)
        qsort(all->at, all->n, sizeof *all->at, by_place);
    all->sorted = true;
    struct jv_number wanted = {.value = (json_t *)value}; // of which only the place is read
    const struct jv_number *found = bsearch(&wanted, all->at, all->n, sizeof *all->at, by_place);
    if (found)
        *text = str_of(found->text);
    return found;
}

void jv_numbers_release(struct jv_numbers *all) {
    for (size_t i = 0; i < all->n; i++) {
        json_decref(all->at[i].value);
        free(all->at[i].text);
    }
    free(all->at);
    *all = (struct jv_numbers){0};
}

static enum status take_scalar(struct parser *p, enum json_kind kind, json_t **out) {
    bool truth;
    switch (kind) {
    case JSON_KIND_STRING: return take_string(p, out);
    case JSON_KIND_NUMBER: return take_number(p, out);
    case JSON_KIND_TRUE:
    case JSON_KIND_FALSE:
        TRY(json_take_bool(&p->reader, &truth, p->err));
        *out = json_boolean(truth);
        return OK;
    default: *out = json_null(); return json_skip(&p->reader, NULL, p->err);
    }
}

static enum status enter(struct parser *p, enum json_kind kind, json_t **out) {
    bool object = kind == JSON_KIND_OBJECT;
    if (p->depth == DEPTH)
        return json_complain(&p->reader, "nested too deeply", p->err);
    TRY(count(p, object ? OBJECT_BYTES : ARRAY_BYTES));
    TRY(object ? json_enter_object(&p->reader, p->err) : json_enter_array(&p->reader, p->err));
    *out = object ? json_object() : json_array();
    return OK;
}

/* Puts the value, which may be NULL, into the innermost container, or makes it the root. */
static enum status put(struct parser *p, json_t *take_value, json_t **root) {
    json_t *in = p->depth > 0 ? p->open[p->depth - 1] : NULL;
    if (!take_value)
        return no_memory(p);
    if (!in) {
        *root = take_value;
        return OK;
    }
    enum status st = count(p, json_is_object(in) ? MEMBER_BYTES : ITEM_BYTES);
    if (st != OK) {
        json_decref(take_value);
        return st;
    }
    int rc = json_is_object(in) ? json_object_setn_new_nocheck(in, p->key.ptr, p->key.len, take_value)
                                : json_array_append_new(in, take_value);
    return rc == 0 ? OK : no_memory(p);
}

/* What Python writes for a number that is none. */
static bool take_no_number(struct parser *p, json_t **out) {
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    struct json_reader *r = &p->reader;
    json_skip_space(r);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!str_starts((struct str){r->at, (size_t)(r->end - r->at)}, str_of(names[i])))
            continue;
        r->at += strlen(names[i]);
        *out = json_string(names[i]);
        return true;
    }
    return false;
}

/* One scalar, or the opening bracket of a container, which is then open. */
static enum status take_value(struct parser *p, json_t **root) {
    enum json_kind kind;
    json_t *value = NULL;
    if (p->python && take_no_number(p, &value)) {
        TRY(count(p, STRING_BYTES));
        return put(p, value, root);
    }
    TRY(json_peek_kind(&p->reader, &kind, p->err));
    bool container = kind == JSON_KIND_OBJECT || kind == JSON_KIND_ARRAY;
    TRY(container ? enter(p, kind, &value) : take_scalar(p, kind, &value));
    TRY(put(p, value, root));
    if (container)
        p->open[p->depth++] = value;
    return OK;
}

static enum status duplicate(struct parser *p, struct str key) {
    char what[128];
    snprintf(what, sizeof what, "duplicate key \"%.*s\"", (int)MIN(key.len, 80), key.ptr);
    return json_complain(&p->reader, what, p->err);
}

static enum status next_member(struct parser *p, bool *more) {
    struct str key;
    TRY(json_next_key(&p->reader, &key, more, p->err));
    if (!*more)
        return OK;
    if (key.len > 0 && memchr(key.ptr, '\0', key.len))
        return json_complain(&p->reader, "a key holds a NUL character", p->err);
    if (!p->allow_duplicates && json_object_getn(p->open[p->depth - 1], key.ptr, key.len))
        return duplicate(p, key);
    buf_clear(&p->key);
    buf_str(&p->key, key);
    buf_reserve(&p->key, 0);
    return OK;
}

static enum status take_all(struct parser *p, json_t **root) {
    TRY(take_value(p, root));
    while (p->depth > 0) {
        bool more;
        TRY(json_is_object(p->open[p->depth - 1]) ? next_member(p, &more) : json_next_item(&p->reader, &more, p->err));
        if (more)
            TRY(take_value(p, root));
        else
            p->depth--;
    }
    return json_expect_end(&p->reader, p->err);
}

/* jansson is told that there is no memory in its own way while it is ready for that: in take_all. */
static _Thread_local bool takes_null;

static void *json_malloc(size_t n) {
    void *p = malloc(n);
    if (!p && alloc_scope && !takes_null)
        alloc_failed(n);
    return p;
}

void jv_use_scopes(void) { json_set_alloc_funcs(json_malloc, free); }

static enum status take_within_scope(struct parser *p, json_t **root) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0)
        return no_memory(p);
    enum status st = take_all(p, root);
    alloc_scope_end(&scope);
    return st;
}

enum status jv_parse_numbers(struct str text, const char *where, int flags, size_t *budget, struct jv_numbers *numbers,
                             json_t **out, struct error *err) {
    struct parser *p = xmalloc(sizeof *p);
    *p = (struct parser){
        .err = err, .allow_duplicates = flags & JV_ALLOW_DUPLICATES, .python = flags & JV_PYTHON, .numbers = numbers,
        .max_bytes = *budget};
    json_reader_init(&p->reader, text, where);
    *out = NULL;
    takes_null = true;
    enum status st = take_within_scope(p, out);
    takes_null = false;
    if (st != OK) {
        json_decref(*out);
        *out = NULL;
    }
    *budget -= MIN(*budget, p->bytes);
    buf_release(&p->key);
    json_reader_release(&p->reader);
    free(p);
    return st;
}

enum status jv_parse_within(struct str text, const char *where, int flags, size_t *budget, json_t **out,
                            struct error *err) {
    return jv_parse_numbers(text, where, flags, budget, NULL, out, err);
}

json_t *jv_look(struct str text) {
    struct error ignored;
    size_t budget = JV_LOOK_BYTES;
    json_t *value;
    return jv_parse_within(text, "", JV_ALLOW_DUPLICATES, &budget, &value, &ignored) == OK ? value : NULL;
}
