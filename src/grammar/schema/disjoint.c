/* disjoint.c - whether two nodes certainly share no value, or one has none: by type, by language, by a key or item that
 * both must have.
 *
 * oneOf is a plain union of branches of which this is known. It looks a few levels down and gives up where it would
 * take long: not to know costs `not` of a branch, which is exact too. */
#include "grammar/schema/reader.h"

enum { LEVELS = 4, MAX_PAIRS = 64 };

static bool nodes_disjoint(struct reader *r, node_id a, node_id b, int levels);

static bool arrays_disjoint(struct reader *r, const struct array_form *a, const struct array_form *b, int levels) {
    int64_t min = MAX(a->min, b->min), max = max_of_two(a->max, b->max);
    if (max != UNBOUNDED && min > max)
        return true;
    for (int64_t i = 0; i < MIN(min, 16); i++)
        if (nodes_disjoint(r, array_item(a, i), array_item(b, i), levels - 1))
            return true;
    return false;
}

/* Whether a key that a requires is one with which no value fits both. */
static bool by_required(struct reader *r, const struct object_form *a, const struct object_form *b, int levels) {
    for (int i = 0; i < a->n_named && !refused(r); i++)
        if (a->named[i].required &&
            nodes_disjoint(r, a->named[i].value, object_key(r, b, a->named[i].key).value, levels - 1))
            return true;
    return false;
}

static bool objects_disjoint(struct reader *r, const struct object_form *a, const struct object_form *b, int levels) {
    int64_t min = MAX(a->min, b->min), max = max_of_two(a->max, b->max);
    return (max != UNBOUNDED && min > max) || by_required(r, a, b, levels) || by_required(r, b, a, levels);
}

static bool all_arrays_disjoint(struct reader *r, const struct forms *a, const struct forms *b, int levels) {
    if (a->n_arrays * b->n_arrays > MAX_PAIRS)
        return false;
    for (int i = 0; i < a->n_arrays; i++)
        for (int k = 0; k < b->n_arrays; k++)
            if (!arrays_disjoint(r, &a->arrays[i], &b->arrays[k], levels))
                return false;
    return true;
}

static bool all_objects_disjoint(struct reader *r, const struct forms *a, const struct forms *b, int levels) {
    if (a->n_objects * b->n_objects > MAX_PAIRS)
        return false;
    for (int i = 0; i < a->n_objects; i++)
        for (int k = 0; k < b->n_objects; k++)
            if (!objects_disjoint(r, &a->objects[i], &b->objects[k], levels))
                return false;
    return true;
}

static bool rx_disjoint(struct reader *r, rx_id a, rx_id b) {
    if (a == RX_NEVER || b == RX_NEVER)
        return true;
    if (a == b || a == r->any_text || b == r->any_text)
        return false;
    return language_is_empty(r, rx_and(ir_rx(r->ir), a, b));
}

/* The value that a node is by its const, or by an enum of one; NULL where it has none. */
static const json_t *constant(const struct reader *r, node_id id) {
    const struct node *n = &r->nodes[id];
    if (n->kind != KIND_SCHEMA)
        return n->kind == KIND_VALUE ? n->json : NULL;
    const json_t *one = json_object_get(n->json, "const"), *list = json_object_get(n->json, "enum");
    return one ? one : json_array_size(list) == 1 ? json_array_get(list, 0) : NULL;
}

/* Whether two nodes are a string each, and not the same one: what tells most branches apart, without an automaton. */
static bool other_string(const struct reader *r, node_id a, node_id b) {
    const json_t *x = constant(r, a), *y = constant(r, b);
    return json_is_string(x) && json_is_string(y) && !json_equal(x, y);
}

static bool nodes_disjoint(struct reader *r, node_id a, node_id b, int levels) {
    if (a == NODE_FALSE || b == NODE_FALSE)
        return true;
    reader_work(r, 1);
    if (other_string(r, a, b))
        return true;
    if (levels == 0 || a == b || refused(r))
        return false;
    const struct forms *x = node_try(r, a), *y = x ? node_try(r, b) : NULL;
    return y && !(x->null && y->null) && !(x->bools & y->bools) && rx_disjoint(r, x->number.value, y->number.value) &&
           rx_disjoint(r, x->string, y->string) && all_arrays_disjoint(r, x, y, levels) &&
           all_objects_disjoint(r, x, y, levels);
}

bool disjoint(struct reader *r, node_id a, node_id b) { return nodes_disjoint(r, a, b, LEVELS); }

/* Whether certainly no value fits a node that joins others. */
static bool is_nothing(struct reader *r, node_id id) {
    if (r->nodes[id].kind != KIND_AND)
        return id == NODE_FALSE;
    const struct forms *f = node_try(r, id);
    return f && !f->null && !f->bools && f->n_arrays + f->n_objects == 0 &&
           (f->number.value == RX_NEVER || language_is_empty(r, f->number.value)) &&
           (f->string == RX_NEVER || language_is_empty(r, f->string));
}

static bool array_is_nothing(struct reader *r, const struct array_form *f) {
    for (int64_t i = 0; i < MIN(f->min, 16); i++)
        if (is_nothing(r, array_item(f, i)))
            return true;
    return false;
}

static bool object_is_nothing(struct reader *r, const struct object_form *f) {
    for (int i = 0; i < f->n_named && !refused(r); i++)
        if (f->named[i].required && is_nothing(r, f->named[i].value))
            return true;
    return false;
}

const struct forms *prune(struct reader *r, const struct forms *f) {
    if (f->n_arrays + f->n_objects == 0 || refused(r))
        return f;
    struct forms *left = arena_alloc(&r->arena, sizeof *left);
    struct array_form *arrays = arena_calloc(&r->arena, (size_t)f->n_arrays, sizeof *arrays);
    struct object_form *objects = arena_calloc(&r->arena, (size_t)f->n_objects, sizeof *objects);
    *left = *f;
    left->arrays = arrays;
    left->objects = objects;
    left->n_arrays = left->n_objects = 0;
    for (int i = 0; i < f->n_arrays; i++)
        if (!array_is_nothing(r, &f->arrays[i]))
            arrays[left->n_arrays++] = f->arrays[i];
    for (int i = 0; i < f->n_objects; i++)
        if (!object_is_nothing(r, &f->objects[i]))
            objects[left->n_objects++] = f->objects[i];
    return left->n_arrays == f->n_arrays && left->n_objects == f->n_objects ? f : left;
}
