/* node.c - nodes of a schema, each once: a hash table, and the identities of and, or, not that need no look inside. */
#include "grammar/schema/reader.h"

#include <stdlib.h>

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_of(const struct node *n) {
    uint64_t h = mix(n->kind, (uintptr_t)n->json);
    h = mix(mix(h, (uint64_t)n->place.base), (uint64_t)n->place.scope);
    for (int i = 0; i < n->n_args; i++)
        h = mix(h, (uint64_t)n->args[i]);
    return h;
}

static bool same(const struct node *a, const struct node *b) {
    return a->kind == b->kind && a->json == b->json && a->place.base == b->place.base &&
           a->place.scope == b->place.scope && a->n_args == b->n_args &&
           (a->n_args == 0 || memcmp(a->args, b->args, (size_t)a->n_args * sizeof *a->args) == 0);
}

static void rehash(struct reader *r) {
    r->n_slots = r->n_slots ? 2 * r->n_slots : 256;
    free(r->slots);
    r->slots = xcalloc((size_t)r->n_slots, sizeof *r->slots); // 0: free; NODE_FALSE is never looked up
    for (node_id id = 1; id < r->n_nodes; id++) {
        uint64_t at = hash_of(&r->nodes[id]);
        while (r->slots[at & (uint64_t)(r->n_slots - 1)])
            at++;
        r->slots[at & (uint64_t)(r->n_slots - 1)] = id;
    }
}

/* The node like `n`, whose args are copied if it is new. */
static node_id intern(struct reader *r, struct node n) {
    reader_work(r, (size_t)n.n_args / 8);
    if (r->n_nodes * 2 >= r->n_slots)
        rehash(r);
    uint64_t at = hash_of(&n);
    for (node_id id; (id = r->slots[at & (uint64_t)(r->n_slots - 1)]) != 0; at++)
        if (same(&r->nodes[id], &n))
            return id;
    if (r->n_nodes == r->cap_nodes) {
        r->cap_nodes = r->cap_nodes ? 2 * r->cap_nodes : 256;
        r->nodes = xrealloc(r->nodes, (size_t)r->cap_nodes, sizeof *r->nodes);
    }
    if (n.n_args > 0) {
        node_id *args = arena_calloc(&r->arena, (size_t)n.n_args, sizeof *args);
        memcpy(args, n.args, (size_t)n.n_args * sizeof *args);
        n.args = args;
    }
    r->nodes[r->n_nodes] = n;
    r->slots[at & (uint64_t)(r->n_slots - 1)] = r->n_nodes;
    return r->n_nodes++;
}

void nodes_init(struct reader *r) {
    r->cap_nodes = 256;
    r->nodes = xcalloc((size_t)r->cap_nodes, sizeof *r->nodes);
    r->nodes[NODE_FALSE] = (struct node){.kind = KIND_FALSE};
    r->nodes[NODE_TRUE] = (struct node){.kind = KIND_TRUE};
    r->n_nodes = 2;
}

/* Everything that says something of a value; the rest are annotations, and places where schemas are kept. */
static const char *const keywords[] = {"$ref",
                                       "$dynamicRef",
                                       "$recursiveRef",
                                       "type",
                                       "enum",
                                       "const",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "items",
                                       "prefixItems",
                                       "additionalItems",
                                       "contains",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "properties",
                                       "patternProperties",
                                       "additionalProperties",
                                       "propertyNames",
                                       "required",
                                       "minProperties",
                                       "maxProperties",
                                       "dependencies",
                                       "dependentRequired",
                                       "dependentSchemas",
                                       "allOf",
                                       "anyOf",
                                       "oneOf",
                                       "not",
                                       "if",
                                       "unevaluatedItems",
                                       "unevaluatedProperties"};

/* The number of keywords of a schema that say something. */
static size_t count_keywords(const json_t *schema) {
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(keywords); i++)
        n += json_object_get(schema, keywords[i]) != NULL;
    return n;
}

/* A schema that is nothing but not, allOf or anyOf, as a node of that kind: so not of not is nothing. *found: it is. */
static node_id node_join(struct reader *r, const json_t *json, struct place place, bool *found) {
    const json_t *n = json_object_get(json, "not"), *all = json_object_get(json, "allOf"),
                 *some = r->has_unevaluated ? NULL : json_object_get(json, "anyOf"), *list = all ? all : some;
    *found = (n || json_array_size(list) > 0) && r->joins < MAX_DEPTH && count_keywords(json) == 1;
    if (!*found)
        return NODE_FALSE;
    r->joins++;
    node_id out = n ? node_not(r, node_schema(r, n, place)) : all ? NODE_TRUE : NODE_FALSE;
    for (size_t i = 0; i < json_array_size(list) && !refused(r); i++) {
        node_id one = node_schema(r, json_array_get(list, i), place);
        out = all ? node_and(r, out, one) : node_or(r, out, one);
    }
    r->joins--;
    return out;
}

node_id node_schema(struct reader *r, const json_t *json, struct place outer) {
    if (json_is_true(json) || (json_is_object(json) && json_object_size(json) == 0))
        return NODE_TRUE;
    if (json_is_object(json)) {
        struct place place = refs_place(r, json, outer);
        bool joined;
        node_id join = node_join(r, json, place, &joined);
        return joined ? join : intern(r, (struct node){.kind = KIND_SCHEMA, .json = json, .place = place});
    }
    if (!json_is_false(json))
        reader_refuse(r, ERR_FORMAT, "a schema is an object or a boolean, not %s", jv_type_name(json));
    return NODE_FALSE;
}

node_id node_value(struct reader *r, const json_t *value) {
    return intern(r, (struct node){.kind = KIND_VALUE, .json = value});
}

node_id node_not(struct reader *r, node_id a) {
    if (a <= NODE_TRUE)
        return NODE_TRUE - a;
    if (r->nodes[a].kind == KIND_NOT)
        return r->nodes[a].args[0];
    return intern(r, (struct node){.kind = KIND_NOT, .args = &a, .n_args = 1});
}

static int by_number(const void *a, const void *b) {
    node_id x = *(const node_id *)a, y = *(const node_id *)b;
    return (x > y) - (x < y);
}

static bool holds(const node_id *args, int n, node_id a) { return bsearch(&a, args, (size_t)n, sizeof a, by_number); }

/* The join of a and b under `kind`, flat and sorted. `whole` is what swallows all others. */
static node_id join(struct reader *r, enum node_kind kind, node_id whole, node_id a, node_id b) {
    const struct node *x = &r->nodes[a], *y = &r->nodes[b];
    const node_id *xs = x->kind == kind ? x->args : &a, *ys = y->kind == kind ? y->args : &b;
    int nx = x->kind == kind ? x->n_args : 1, ny = y->kind == kind ? y->n_args : 1, n = 0;
    if (nx + ny > MAX_FORMS) {
        reader_refuse(r, ERR_LIMIT, "more than %d schemas apply to one value", MAX_FORMS);
        return NODE_FALSE;
    }
    node_id *all = xcalloc((size_t)(nx + ny), sizeof *all);
    memcpy(all, xs, (size_t)nx * sizeof *all);
    memcpy(all + nx, ys, (size_t)ny * sizeof *all);
    qsort(all, (size_t)(nx + ny), sizeof *all, by_number);
    for (int i = 0; i < nx + ny; i++)
        if (n == 0 || all[n - 1] != all[i])
            all[n++] = all[i];
    node_id joined = n == 1 ? all[0] : NODE_FALSE;
    bool swallowed = false;
    for (int i = 0; i < n && !swallowed; i++)
        swallowed = r->nodes[all[i]].kind == KIND_NOT && holds(all, n, r->nodes[all[i]].args[0]);
    if (swallowed)
        joined = whole;
    else if (n > 1)
        joined = intern(r, (struct node){.kind = kind, .args = all, .n_args = n});
    free(all);
    return joined;
}

node_id node_and(struct reader *r, node_id a, node_id b) {
    if (a == NODE_FALSE || b == NODE_FALSE || refused(r))
        return NODE_FALSE;
    if (a == NODE_TRUE || b == NODE_TRUE)
        return a == NODE_TRUE ? b : a;
    return join(r, KIND_AND, NODE_FALSE, a, b);
}

node_id node_or(struct reader *r, node_id a, node_id b) {
    if (a == NODE_TRUE || b == NODE_TRUE || refused(r))
        return NODE_TRUE;
    if (a == NODE_FALSE || b == NODE_FALSE)
        return a == NODE_FALSE ? b : a;
    return join(r, KIND_OR, NODE_TRUE, a, b);
}
