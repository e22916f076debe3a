/* arrays.c - what a schema says of arrays: items by position, how many, and how many of them fit a schema. */
#include "grammar/schema/reader.h"

static const struct array_form any = {.rest = NODE_TRUE, .max = UNBOUNDED};

const struct array_form *array_any(struct reader *r) {
    (void)r;
    return &any;
}

bool array_is_any(const struct array_form *f) {
    return f->n_prefix == 0 && f->rest == NODE_TRUE && f->min == 0 && f->max == UNBOUNDED && f->n_contains == 0 &&
           !f->unique;
}

node_id array_item(const struct array_form *f, int64_t i) { return i < f->n_prefix ? f->prefix[i] : f->rest; }

static bool item_seen(const struct array_form *f, int64_t i) { return i < f->n_prefix ? f->seen[i] : f->rest_seen; }

int64_t max_of_two(int64_t a, int64_t b) { return a == UNBOUNDED ? b : b == UNBOUNDED ? a : MIN(a, b); }

/* Whether no array fits for a reason that needs no look at what items are: false is then left out of unions. */
static bool possible(struct array_form *f) {
    for (int64_t i = 0; i < f->n_prefix; i++)
        if (f->prefix[i] == NODE_FALSE) {
            f->max = max_of_two(f->max, i);
            break;
        }
    if (f->rest == NODE_FALSE)
        f->max = max_of_two(f->max, f->n_prefix);
    if (f->max != UNBOUNDED && f->n_prefix > f->max) {
        f->n_prefix = f->max;
        f->rest = NODE_FALSE;
    }
    return f->max == UNBOUNDED || f->min <= f->max;
}

static void set_prefix(struct reader *r, struct array_form *f, int64_t n, node_id **items, bool **seen) {
    reader_work(r, (size_t)n);
    *items = arena_calloc(&r->arena, (size_t)n, sizeof **items);
    *seen = arena_calloc(&r->arena, (size_t)n, sizeof **seen);
    f->prefix = *items;
    f->seen = *seen;
    f->n_prefix = n;
}

bool array_and(struct reader *r, const struct array_form *a, const struct array_form *b, struct array_form *out) {
    node_id *items;
    bool *seen;
    *out = (struct array_form){0};
    set_prefix(r, out, MAX(a->n_prefix, b->n_prefix), &items, &seen);
    if (refused(r))
        return false;
    for (int64_t i = 0; i < out->n_prefix; i++) {
        items[i] = node_and(r, array_item(a, i), array_item(b, i));
        seen[i] = item_seen(a, i) || item_seen(b, i);
    }
    out->rest = node_and(r, a->rest, b->rest);
    out->rest_seen = a->rest_seen || b->rest_seen;
    out->unique = a->unique || b->unique;
    out->min = MAX(a->min, b->min);
    out->max = max_of_two(a->max, b->max);
    out->n_contains = a->n_contains + b->n_contains;
    struct contains *contains = arena_calloc(&r->arena, (size_t)out->n_contains, sizeof *contains);
    copy_bytes(contains, a->contains, (size_t)a->n_contains * sizeof *contains);
    copy_bytes(contains + a->n_contains, b->contains, (size_t)b->n_contains * sizeof *contains);
    out->contains = contains;
    return possible(out);
}

static void breaks_add(struct forms *breaks, struct array_form *list, struct array_form f) {
    if (possible(&f))
        list[breaks->n_arrays++] = f;
}

static struct array_form one_contains(struct reader *r, struct contains c) {
    struct contains *kept = arena_alloc(&r->arena, sizeof *kept);
    *kept = c;
    struct array_form f = any;
    f.contains = kept;
    f.n_contains = 1;
    return f;
}

/* An array whose item i is `item`. */
static struct array_form one_item(struct reader *r, int64_t i, node_id item) {
    struct array_form f = any;
    node_id *items;
    bool *seen;
    set_prefix(r, &f, i + 1, &items, &seen);
    for (int64_t k = 0; k <= i; k++)
        items[k] = k < i ? NODE_TRUE : item;
    f.min = i + 1;
    return f;
}

void array_not(struct reader *r, const struct array_form *a, struct forms *breaks) {
    if (a->unique)
        reader_refuse(r, ERR_UNSUPPORTED, "not (or oneOf, if): of uniqueItems is not enforced");
    size_t most = (size_t)a->n_prefix + 2 * (size_t)a->n_contains + 3;
    reader_work(r, (size_t)a->n_prefix * (size_t)a->n_prefix);
    if (refused(r))
        return;
    struct array_form *list = arena_calloc(&r->arena, most, sizeof *list), f = any;
    breaks->arrays = list;
    breaks->n_arrays = 0;
    f.max = a->min - 1;
    if (a->min > 0)
        breaks_add(breaks, list, f);
    f = any;
    f.min = a->max + 1;
    if (a->max != UNBOUNDED)
        breaks_add(breaks, list, f);
    for (int64_t i = 0; i < a->n_prefix; i++)
        breaks_add(breaks, list, one_item(r, i, node_not(r, a->prefix[i])));
    if (a->rest != NODE_TRUE && (a->max == UNBOUNDED || a->max > a->n_prefix))
        breaks_add(breaks, list,
                   one_contains(r, (struct contains){node_not(r, a->rest), a->n_prefix, 1, UNBOUNDED, false}));
    for (int i = 0; i < a->n_contains; i++) {
        struct contains c = a->contains[i], fewer = c, more = c;
        fewer.seen = more.seen = false;
        fewer.min = 0;
        fewer.max = c.min - 1;
        more.min = c.max + 1;
        more.max = UNBOUNDED;
        if (c.min > 0)
            breaks_add(breaks, list, one_contains(r, fewer));
        if (c.max != UNBOUNDED)
            breaks_add(breaks, list, one_contains(r, more));
    }
}

void array_of_value(struct reader *r, const json_t *value, struct array_form *out) {
    node_id *items;
    bool *seen;
    set_prefix(r, out, (int64_t)json_array_size(value), &items, &seen);
    for (int64_t i = 0; i < out->n_prefix && !refused(r); i++)
        items[i] = node_value(r, json_array_get(value, (size_t)i));
    out->rest = NODE_FALSE;
    out->min = out->max = out->n_prefix;
}

static void read_items(struct reader *r, const json_t *schema, struct place place, struct array_form *f) {
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    prefix = r->resources[place.base].draft >= 2020 ? prefix : NULL;
    const json_t *rest = items;
    if (json_is_array(items)) { // before 2020-12
        prefix = items;
        rest = json_object_get(schema, "additionalItems");
    }
    if (prefix && !json_is_array(prefix))
        reader_refuse(r, ERR_FORMAT, "prefixItems: must be an array, not %s", jv_type_name(prefix));
    if (refused(r))
        return;
    node_id *nodes;
    bool *seen;
    set_prefix(r, f, (int64_t)json_array_size(prefix), &nodes, &seen);
    for (int64_t i = 0; i < f->n_prefix && !refused(r); i++) {
        nodes[i] = node_schema(r, json_array_get(prefix, (size_t)i), place);
        seen[i] = true;
    }
    if (rest) {
        f->rest = node_schema(r, rest, place);
        f->rest_seen = true;
    }
}

static void read_contains(struct reader *r, const json_t *schema, struct place place, struct array_form *f) {
    const json_t *c = json_object_get(schema, "contains");
    int draft = r->resources[place.base].draft;
    if (!c || draft < 6)
        return;
    struct contains *kept = arena_alloc(&r->arena, sizeof *kept);
    *kept = (struct contains){node_schema(r, c, place), 0, 1, UNBOUNDED, draft >= 2020};
    if (draft >= 2019) {
        kept->min = reader_count(r, schema, "minContains", 1);
        kept->max = reader_count(r, schema, "maxContains", UNBOUNDED);
    }
    f->contains = kept;
    f->n_contains = 1;
}

const struct array_form *read_arrays(struct reader *r, const json_t *schema, struct place place) {
    struct array_form *f = arena_alloc(&r->arena, sizeof *f);
    *f = any;
    read_items(r, schema, place, f);
    read_contains(r, schema, place, f);
    f->min = reader_count(r, schema, "minItems", 0);
    f->max = reader_count(r, schema, "maxItems", UNBOUNDED);
    f->unique = json_is_true(json_object_get(schema, "uniqueItems"));
    if (f->unique && f->max != UNBOUNDED && f->max <= 1)
        f->unique = false;
    return possible(f) && !refused(r) ? f : NULL;
}

const struct array_form *array_unevaluated(struct reader *r, const struct array_form *a, node_id schema) {
    struct array_form *f = arena_alloc(&r->arena, sizeof *f);
    *f = *a;
    for (int i = 0; i < a->n_contains; i++)
        if (a->contains[i].seen)
            schema = node_or(r, schema, a->contains[i].node);
    node_id *items;
    bool *seen;
    set_prefix(r, f, a->n_prefix, &items, &seen);
    for (int64_t i = 0; i < a->n_prefix && !refused(r); i++) {
        items[i] = a->seen[i] ? a->prefix[i] : node_and(r, a->prefix[i], schema);
        seen[i] = true;
    }
    f->rest = a->rest_seen ? a->rest : node_and(r, a->rest, schema);
    f->rest_seen = true;
    return possible(f) ? f : NULL;
}
