/* objects.c - what a schema says of objects: named keys, all other keys by language, how many, and which need
 * which.
 *
 * The languages of `others` part all texts among them, so that every key that is not named is in one: `and` of
 * two forms is then a product of languages, and a key named in one form alone finds its language in the other. */
#include "grammar/schema/reader.h"

const struct object_form *object_any(struct reader *r) {
    struct object_form *f = arena_alloc(&r->arena, sizeof *f);
    struct others *others = arena_alloc(&r->arena, sizeof *others);
    *others = (struct others){r->any_text, NODE_TRUE, false};
    f->others = others;
    f->n_others = 1;
    f->max = UNBOUNDED;
    return f;
}

bool object_is_any(const struct object_form *f) {
    return f->n_named == 0 && f->n_others == 1 && f->others[0].value == NODE_TRUE && f->n_some == 0 &&
           f->n_needs == 0 && f->min == 0 && f->max == UNBOUNDED;
}

const struct named *object_named(const struct object_form *f, struct str key) {
    for (int i = 0; i < f->n_named; i++)
        if (str_eq(f->named[i].key, key))
            return &f->named[i];
    return NULL;
}

/* What f says of a key: its member, or that of the language it is in. */
struct named object_key(struct reader *r, const struct object_form *f, struct str key) {
    const struct named *named = object_named(f, key);
    reader_work(r, (size_t)f->n_named / 16);
    if (named)
        return *named;
    for (int i = 0; i < f->n_others; i++)
        if (f->n_others == 1 || rx_match(ir_rx(r->ir), f->others[i].keys, key))
            return (struct named){key, f->others[i].value, false, f->others[i].seen};
    return (struct named){key, NODE_FALSE, false, false};
}

static void and_named(struct reader *r, const struct object_form *a, const struct object_form *b,
                      struct object_form *out) {
    struct named *named = arena_calloc(&r->arena, (size_t)a->n_named + (size_t)b->n_named, sizeof *named);
    out->named = named;
    for (int side = 0; side < 2; side++) {
        const struct object_form *f = side ? b : a, *other = side ? a : b;
        for (int i = 0; i < f->n_named && !refused(r); i++) {
            if (side && object_named(other, f->named[i].key))
                continue;
            struct named x = f->named[i], y = object_key(r, other, x.key);
            named[out->n_named++] =
                (struct named){x.key, node_and(r, x.value, y.value), x.required || y.required, x.seen || y.seen};
        }
    }
}

static void and_others(struct reader *r, const struct object_form *a, const struct object_form *b,
                       struct object_form *out) {
    rx_id every = r->any_text;
    size_t most = (size_t)a->n_others * (size_t)b->n_others;
    if (most > MAX_FORMS)
        reader_refuse(r, ERR_LIMIT, "patternProperties: more than %d languages of keys", MAX_FORMS);
    if (refused(r))
        return;
    struct others *others = arena_calloc(&r->arena, most, sizeof *others);
    out->others = others;
    for (int i = 0; i < a->n_others; i++)
        for (int k = 0; k < b->n_others && !refused(r); k++) {
            const struct others *x = &a->others[i], *y = &b->others[k];
            rx_id keys = text_and(r, x->keys, y->keys);
            reader_work(r, 1);
            if (x->keys == y->keys || x->keys == every || y->keys == every || !language_is_empty(r, keys))
                others[out->n_others++] = (struct others){keys, node_and(r, x->value, y->value), x->seen || y->seen};
        }
}

static void and_lists(struct reader *r, const struct object_form *a, const struct object_form *b,
                      struct object_form *out) {
    struct some *some = arena_calloc(&r->arena, (size_t)a->n_some + (size_t)b->n_some, sizeof *some);
    struct need *needs = arena_calloc(&r->arena, (size_t)a->n_needs + (size_t)b->n_needs, sizeof *needs);
    copy_bytes(some, a->some, (size_t)a->n_some * sizeof *some);
    copy_bytes(some + a->n_some, b->some, (size_t)b->n_some * sizeof *some);
    copy_bytes(needs, a->needs, (size_t)a->n_needs * sizeof *needs);
    copy_bytes(needs + a->n_needs, b->needs, (size_t)b->n_needs * sizeof *needs);
    out->some = some;
    out->n_some = a->n_some + b->n_some;
    out->needs = needs;
    out->n_needs = a->n_needs + b->n_needs;
}

/* Whether no object fits for a reason that needs no look at what values are. */
bool object_possible(const struct object_form *f) {
    int64_t required = 0;
    for (int i = 0; i < f->n_named; i++) {
        if (f->named[i].required && f->named[i].value == NODE_FALSE)
            return false;
        required += f->named[i].required;
    }
    for (int i = 0; i < f->n_some; i++)
        if (f->some[i].value == NODE_FALSE || f->some[i].keys == RX_NEVER)
            return false;
    return f->max == UNBOUNDED || (f->min <= f->max && required <= f->max);
}

bool object_and(struct reader *r, const struct object_form *a, const struct object_form *b, struct object_form *out) {
    *out = (struct object_form){0};
    and_named(r, a, b, out);
    and_others(r, a, b, out);
    and_lists(r, a, b, out);
    out->min = MAX(a->min, b->min);
    out->max = max_of_two(a->max, b->max);
    reader_work(r, (size_t)out->n_named / 4);
    return object_possible(out) && !refused(r);
}

/* Any object, with what is said of one key. */
static struct object_form one_key(struct reader *r, struct named named) {
    struct object_form f = *object_any(r);
    struct named *kept = arena_alloc(&r->arena, sizeof *kept);
    *kept = named;
    f.named = kept;
    f.n_named = 1;
    return f;
}

struct object_form object_without(struct reader *r, struct str key) {
    return one_key(r, (struct named){key, NODE_FALSE, false, false});
}

struct object_form object_with(struct reader *r, struct str key, node_id value) {
    return one_key(r, (struct named){key, value, true, false});
}

static void breaks_add(struct forms *breaks, struct object_form *list, struct object_form f) {
    if (object_possible(&f))
        list[breaks->n_objects++] = f;
}

/* keys, but for those that the form names. */
rx_id object_unnamed(struct reader *r, const struct object_form *f, rx_id keys) {
    struct rx_pool *rx = ir_rx(r->ir);
    if (f->n_named == 0)
        return keys;
    struct str *names = xcalloc((size_t)f->n_named, sizeof *names);
    for (int i = 0; i < f->n_named; i++)
        names[i] = f->named[i].key;
    rx_id out = rx_and(rx, keys, rx_not(rx, rx_choice(rx, names, (size_t)f->n_named)));
    free(names);
    return out;
}

static struct object_form some_key(struct reader *r, rx_id keys, node_id value) {
    struct object_form f = *object_any(r);
    struct some *some = arena_alloc(&r->arena, sizeof *some);
    *some = (struct some){keys, value};
    f.some = some;
    f.n_some = 1;
    return f;
}

/* An object none of whose keys of the language has a value that fits. */
static struct object_form no_key(struct reader *r, const struct some *some) {
    struct object_form f = *object_any(r);
    struct others *others = arena_calloc(&r->arena, 2, sizeof *others);
    others[0] = (struct others){some->keys, node_not(r, some->value), false};
    others[1] = (struct others){text_not(r, some->keys), NODE_TRUE, false};
    f.others = others;
    f.n_others = 2;
    return f;
}

static struct object_form count_form(struct reader *r, int64_t min, int64_t max) {
    struct object_form f = *object_any(r);
    f.min = min;
    f.max = max;
    return f;
}

void object_not(struct reader *r, const struct object_form *a, struct forms *breaks) {
    size_t most = 2 * (size_t)a->n_named + (size_t)(a->n_others + a->n_some + a->n_needs) + 2;
    reader_work(r, most);
    if (refused(r))
        return;
    struct object_form *list = arena_calloc(&r->arena, most, sizeof *list), with, without;
    breaks->objects = list;
    breaks->n_objects = 0;
    for (int i = 0; i < a->n_named && !refused(r); i++) {
        const struct named *n = &a->named[i];
        if (n->required)
            breaks_add(breaks, list, object_without(r, n->key));
        if (n->value != NODE_TRUE)
            breaks_add(breaks, list, object_with(r, n->key, node_not(r, n->value)));
    }
    for (int i = 0; i < a->n_others && !refused(r); i++)
        if (a->others[i].value != NODE_TRUE)
            breaks_add(breaks, list,
                       some_key(r, object_unnamed(r, a, a->others[i].keys), node_not(r, a->others[i].value)));
    for (int i = 0; i < a->n_some && !refused(r); i++)
        breaks_add(breaks, list, no_key(r, &a->some[i]));
    for (int i = 0; i < a->n_needs && !refused(r); i++) {
        with = object_with(r, a->needs[i].seen, NODE_TRUE);
        without = object_without(r, a->needs[i].needed);
        if (object_and(r, &with, &without, &list[breaks->n_objects]))
            breaks->n_objects++;
    }
    if (a->min > 0)
        breaks_add(breaks, list, count_form(r, 0, a->min - 1));
    if (a->max != UNBOUNDED)
        breaks_add(breaks, list, count_form(r, a->max + 1, UNBOUNDED));
}

void object_of_value(struct reader *r, const json_t *value, struct object_form *out) {
    struct named *named = arena_calloc(&r->arena, json_object_size(value), sizeof *named);
    struct others *others = arena_alloc(&r->arena, sizeof *others);
    const char *key;
    size_t n;
    json_t *member;
    reader_work(r, json_object_size(value));
    json_object_keylen_foreach((json_t *)value, key, n, member) {
        named[out->n_named++] = (struct named){{key, n}, node_value(r, member), true, false};
    }
    *others = (struct others){r->any_text, NODE_FALSE, false};
    out->named = named;
    out->others = others;
    out->n_others = 1;
    out->max = UNBOUNDED;
}

const struct object_form *object_unevaluated(struct reader *r, const struct object_form *a, node_id schema) {
    struct object_form *f = arena_alloc(&r->arena, sizeof *f);
    struct named *named = arena_calloc(&r->arena, (size_t)a->n_named, sizeof *named);
    struct others *others = arena_calloc(&r->arena, (size_t)a->n_others, sizeof *others);
    *f = *a;
    reader_work(r, (size_t)a->n_named);
    for (int i = 0; i < a->n_named; i++) {
        named[i] = a->named[i];
        named[i].value = named[i].seen ? named[i].value : node_and(r, named[i].value, schema);
        named[i].seen = true;
    }
    for (int i = 0; i < a->n_others; i++) {
        others[i] = a->others[i];
        others[i].value = others[i].seen ? others[i].value : node_and(r, others[i].value, schema);
        others[i].seen = true;
    }
    f->named = named;
    f->others = others;
    return object_possible(f) ? f : NULL;
}
