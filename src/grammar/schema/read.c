/* read.c - one schema of the document as forms: its own keywords by type, then those that combine schemas.
 *
 * Keywords that are not named in this folder are annotations and say nothing, as the specification has it. */
#include "grammar/schema/reader.h"

#include <stdlib.h>

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

enum {
    T_NULL = 1,
    T_BOOLEAN = 2,
    T_INTEGER = 4,
    T_NUMBER = 8,
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127
};

static unsigned type_bit(struct reader *r, const json_t *name) {
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {{"null", T_NULL},     {"boolean", T_BOOLEAN}, {"integer", T_INTEGER}, {"number", T_NUMBER},
                 {"string", T_STRING}, {"array", T_ARRAY},     {"object", T_OBJECT}};
    for (size_t i = 0; json_is_string(name) && i < ARRAY_LEN(types); i++)
        if (strcmp(json_string_value(name), types[i].name) == 0)
            return types[i].bit;
    if (json_is_string(name))
        reader_refuse(r, ERR_FORMAT, "type: \"%.60s\" is none of JSON's types", json_string_value(name));
    else
        reader_refuse(r, ERR_FORMAT, "type: must be a string or an array of strings");
    return 0;
}

static unsigned types_of(struct reader *r, const json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    unsigned bits = 0;
    if (!type)
        return T_ALL;
    if (!json_is_array(type))
        return type_bit(r, type);
    for (size_t i = 0; i < json_array_size(type); i++)
        bits |= type_bit(r, json_array_get(type, i));
    return bits;
}

/* What the keywords of single types allow. */
static const struct forms *read_types(struct reader *r, const json_t *schema, struct place place) {
    unsigned types = types_of(r, schema);
    struct forms *f = arena_alloc(&r->arena, sizeof *f);
    f->null = types & T_NULL;
    f->bools = types & T_BOOLEAN ? 3 : 0;
    if (types & (T_INTEGER | T_NUMBER))
        f->number = read_numbers(r, schema, !(types & T_NUMBER));
    if (types & T_STRING)
        f->string = read_strings(r, schema);
    if (types & T_ARRAY) {
        f->arrays = read_arrays(r, schema, place);
        f->n_arrays = f->arrays != NULL;
    }
    if (types & T_OBJECT) {
        f->objects = read_objects(r, schema, place);
        f->n_objects = f->objects != NULL;
    }
    return f;
}

static const struct forms *read_ref(struct reader *r, const json_t *schema, struct place place, const struct forms *f) {
    static const char *const keywords[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    int draft = r->resources[place.base].draft;
    for (int i = 0; i < 3 && !refused(r); i++) {
        const json_t *ref = json_object_get(schema, keywords[i]), *target;
        struct place there = place;
        if (!ref || (i == 1 && draft < 2020) || (i == 2 && draft != 2019))
            continue;
        if (!json_is_string(ref)) {
            reader_refuse(r, ERR_FORMAT, "%s: must be a string", keywords[i]);
            return f;
        }
        target = i == 0   ? refs_find(r, keywords[i], string_of(ref), place, &there)
                 : i == 1 ? refs_find_dynamic(r, string_of(ref), place, &there)
                          : refs_find_recursive(r, place, &there);
        if (target)
            f = forms_and(r, f, node_forms(r, node_schema(r, target, there)));
    }
    return f;
}

/* The array of schemas under `key`; NULL where there is none. */
static const json_t *branches(struct reader *r, const json_t *schema, const char *key) {
    const json_t *list = json_object_get(schema, key);
    if (list && (!json_is_array(list) || json_array_size(list) == 0))
        reader_refuse(r, ERR_FORMAT, "%s: must be an array of schemas, one at least", key);
    return refused(r) ? NULL : list;
}

static node_id branch(struct reader *r, const json_t *list, size_t i, struct place place) {
    return node_schema(r, json_array_get(list, i), place);
}

static const struct forms *read_all_of(struct reader *r, const json_t *schema, struct place place,
                                       const struct forms *f) {
    const json_t *list = branches(r, schema, "allOf");
    for (size_t i = 0; i < json_array_size(list) && !refused(r); i++)
        f = prune(r, forms_and(r, f, node_forms(r, branch(r, list, i, place))));
    return f;
}

enum { MAX_SUBSETS_OF = 5 };

/* Where it matters which branches a value fits, all sets of branches are alternatives, not each branch alone. */
static const struct forms *any_of_subsets(struct reader *r, const json_t *list, struct place place) {
    const struct forms *any = forms_none();
    size_t n = json_array_size(list);
    for (unsigned set = 1; set < 1u << n && !refused(r); set++) {
        node_id all = NODE_TRUE;
        const struct forms *f = forms_all(r);
        for (size_t i = 0; i < n; i++)
            if (set >> i & 1) {
                all = node_and(r, all, branch(r, list, i, place));
                f = forms_and(r, f, node_forms(r, branch(r, list, i, place)));
            }
        any = forms_or(r, any, f);
    }
    return any;
}

static const struct forms *read_any_of(struct reader *r, const json_t *schema, struct place place,
                                       const struct forms *f) {
    const json_t *list = branches(r, schema, "anyOf");
    if (!list)
        return f;
    size_t n = json_array_size(list);
    if (r->has_unevaluated && n <= MAX_SUBSETS_OF)
        return forms_and(r, f, any_of_subsets(r, list, place));
    const struct forms *any = forms_none();
    for (size_t i = 0; i < n && !refused(r); i++)
        any = forms_or(r, any, node_forms(r, branch(r, list, i, place)));
    if (r->has_unevaluated) { // what several branches evaluate together is missing: fewer values than there are
        struct forms *fewer = arena_alloc(&r->arena, sizeof *fewer);
        *fewer = *any;
        fewer->inexact = true;
        any = fewer;
    }
    return forms_and(r, f, any);
}

/* Whether branches i and k certainly share nothing, [n * n]. */
static bool *disjoint_pairs(struct reader *r, const json_t *list, struct place place) {
    size_t n = json_array_size(list);
    bool *apart = xcalloc(n * n + 1, sizeof *apart);
    for (size_t i = 0; i < n && !refused(r); i++)
        for (size_t k = 0; k < i && !refused(r); k++)
            apart[i * n + k] = apart[k * n + i] = disjoint(r, branch(r, list, i, place), branch(r, list, k, place));
    return apart;
}

/* One branch and none of the others; those that share nothing with it need not be taken out of it. */
static const struct forms *read_one_of(struct reader *r, const json_t *schema, struct place place,
                                       const struct forms *f) {
    const json_t *list = branches(r, schema, "oneOf");
    size_t n = json_array_size(list);
    if (n > MAX_FORMS)
        reader_refuse(r, ERR_LIMIT, "oneOf: has more than %d branches", MAX_FORMS);
    if (!list || refused(r))
        return f;
    const struct forms *one = forms_none();
    bool *apart = disjoint_pairs(r, list, place);
    for (size_t i = 0; i < n && !refused(r); i++) {
        node_id a = branch(r, list, i, place);
        const struct forms *alone = node_forms(r, a);
        for (size_t k = 0; k < n && !refused(r); k++) {
            node_id b = branch(r, list, k, place);
            if (i != k && !apart[i * n + k])
                alone = a == b ? forms_none() : prune(r, forms_and(r, alone, node_forms(r, node_not(r, b))));
        }
        one = forms_or(r, one, alone);
    }
    free(apart);
    return forms_and(r, f, one);
}

static const struct forms *read_not(struct reader *r, const json_t *schema, struct place place, const struct forms *f) {
    const json_t *n = json_object_get(schema, "not");
    return n ? prune(r, forms_and(r, f, node_forms(r, node_not(r, node_schema(r, n, place))))) : f;
}

static const struct forms *read_if(struct reader *r, const json_t *schema, struct place place, const struct forms *f) {
    const json_t *condition = json_object_get(schema, "if"), *then = json_object_get(schema, "then"),
                 *other = json_object_get(schema, "else");
    if (!condition || (!then && !other && !r->has_unevaluated) || r->resources[place.base].draft < 7)
        return f;
    node_id holds = node_schema(r, condition, place);
    const struct forms *yes = node_forms(r, holds), *no = node_forms(r, node_not(r, holds));
    if (then)
        yes = forms_and(r, yes, node_forms(r, node_schema(r, then, place)));
    if (other)
        no = forms_and(r, no, node_forms(r, node_schema(r, other, place)));
    return prune(r, forms_and(r, f, forms_or(r, yes, no)));
}

/* Every value but objects with the key, and objects that have it and fit the schema. */
static const struct forms *dependent_schema(struct reader *r, struct str key, node_id schema) {
    struct forms *without = arena_alloc(&r->arena, sizeof *without), *with = arena_alloc(&r->arena, sizeof *with);
    struct object_form *forms = arena_calloc(&r->arena, 2, sizeof *forms);
    forms[0] = object_without(r, key);
    forms[1] = object_with(r, key, NODE_TRUE);
    *without = *forms_all(r);
    without->objects = &forms[0];
    with->objects = &forms[1];
    with->n_objects = 1;
    return forms_or(r, without, forms_and(r, with, node_forms(r, schema)));
}

static const struct forms *read_dependent(struct reader *r, const json_t *schema, struct place place,
                                          const struct forms *f) {
    static const char *const keywords[] = {"dependentSchemas", "dependencies"};
    for (int i = 0; i < 2; i++) {
        const char *key;
        size_t n;
        json_t *value;
        json_object_keylen_foreach(json_object_get(schema, keywords[i]), key, n, value) {
            if (!json_is_array(value) && !refused(r)) // arrays are needs of an object form
                f = forms_and(r, f, dependent_schema(r, (struct str){key, n}, node_schema(r, value, place)));
        }
    }
    return f;
}

/* Objects whose keys are strings of the node, and every other value. */
static const struct forms *read_names(struct reader *r, const json_t *schema, struct place place,
                                      const struct forms *f) {
    const json_t *names = json_object_get(schema, "propertyNames");
    if (!names || r->resources[place.base].draft < 6)
        return f;
    rx_id keys = node_forms(r, node_schema(r, names, place))->string;
    struct forms *within = arena_alloc(&r->arena, sizeof *within);
    struct object_form *form = arena_alloc(&r->arena, sizeof *form);
    struct others *two = arena_calloc(&r->arena, 2, sizeof *two);
    two[0] = (struct others){keys, NODE_TRUE, false};
    two[1] = (struct others){text_not(r, keys), NODE_FALSE, false};
    *form = *object_any(r);
    form->others = two;
    form->n_others = 2;
    *within = *forms_all(r);
    within->objects = form;
    return forms_and(r, f, within);
}

static const struct forms *read_unevaluated(struct reader *r, const json_t *schema, struct place place,
                                            const struct forms *f) {
    const json_t *items = json_object_get(schema, "unevaluatedItems"),
                 *properties = json_object_get(schema, "unevaluatedProperties");
    if ((!items && !properties) || r->resources[place.base].draft < 2019)
        return f;
    struct forms *left = arena_alloc(&r->arena, sizeof *left);
    *left = *f;
    struct array_form *arrays = arena_calloc(&r->arena, (size_t)f->n_arrays, sizeof *arrays);
    struct object_form *objects = arena_calloc(&r->arena, (size_t)f->n_objects, sizeof *objects);
    for (int i = left->n_arrays = 0; items && i < f->n_arrays; i++) {
        const struct array_form *a = array_unevaluated(r, &f->arrays[i], node_schema(r, items, place));
        if (a)
            arrays[left->n_arrays++] = *a;
    }
    for (int i = left->n_objects = 0; properties && i < f->n_objects; i++) {
        const struct object_form *o = object_unevaluated(r, &f->objects[i], node_schema(r, properties, place));
        if (o)
            objects[left->n_objects++] = *o;
    }
    left->arrays = items ? arrays : f->arrays;
    left->n_arrays = items ? left->n_arrays : f->n_arrays;
    left->objects = properties ? objects : f->objects;
    left->n_objects = properties ? left->n_objects : f->n_objects;
    return left;
}

static const struct forms *read_values(struct reader *r, const json_t *schema, const struct forms *f) {
    const json_t *one = json_object_get(schema, "const"), *many = json_object_get(schema, "enum");
    if (many && !json_is_array(many))
        reader_refuse(r, ERR_FORMAT, "enum: must be an array, not %s", jv_type_name(many));
    else if (many)
        f = forms_and(r, forms_of_values(r, many), f);
    return one ? forms_and(r, forms_of_value(r, one), f) : f;
}

const struct forms *read_schema(struct reader *r, const json_t *schema, struct place place) {
    reader_work(r, 4);
    const struct forms *all = forms_all(r);
    if (r->resources[place.base].draft <= 7 && json_is_string(json_object_get(schema, "$ref")))
        return read_ref(r, schema, place, all); // hides what stands beside it
    const struct forms *f = read_values(r, schema, read_types(r, schema, place));
    f = read_names(r, schema, place, f);
    f = read_ref(r, schema, place, f);
    f = read_all_of(r, schema, place, f);
    f = read_any_of(r, schema, place, f);
    f = read_one_of(r, schema, place, f);
    f = read_not(r, schema, place, f);
    f = read_if(r, schema, place, f);
    f = read_dependent(r, schema, place, f);
    return read_unevaluated(r, schema, place, f);
}
