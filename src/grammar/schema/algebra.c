/* algebra.c - and, or, not of what nodes allow. Scalars are exact sets; arrays and objects are unions of forms, so
 * `and` is the product of two unions, and `not` the product of what breaks each form (arrays.c, objects.c). */
#include "grammar/schema/reader.h"

static const struct forms none = {0};

const struct forms *forms_none(void) { return &none; }

static struct forms *fresh(struct reader *r) { return arena_alloc(&r->arena, sizeof(struct forms)); }

const struct forms *forms_all(struct reader *r) {
    if (!r->all) {
        struct forms *f = fresh(r);
        f->null = true;
        f->bools = 3;
        f->number = r->any_number;
        f->string = r->any_text;
        f->arrays = array_any(r);
        f->objects = object_any(r);
        f->n_arrays = f->n_objects = 1;
        r->all = f;
    }
    return r->all;
}

static bool too_many(struct reader *r, size_t n) {
    if (n > MAX_FORMS)
        reader_refuse(r, ERR_LIMIT,
                      "the schema has more than %d alternatives at one place (anyOf, oneOf, not, dependencies)",
                      MAX_FORMS);
    return refused(r);
}

struct forms_list { // of arrays or of objects, while they are gathered
    struct array_form *arrays;
    struct object_form *objects;
    int n;
};

static void arrays_product(struct reader *r, struct forms *out, const struct forms *a, const struct forms *b) {
    size_t n = (size_t)a->n_arrays * (size_t)b->n_arrays;
    if (too_many(r, n))
        return;
    struct array_form *list = arena_calloc(&r->arena, n, sizeof *list);
    for (int i = 0; i < a->n_arrays; i++)
        for (int k = 0; k < b->n_arrays && !refused(r); k++)
            out->n_arrays += array_and(r, &a->arrays[i], &b->arrays[k], &list[out->n_arrays]);
    out->arrays = list;
}

static void objects_product(struct reader *r, struct forms *out, const struct forms *a, const struct forms *b) {
    size_t n = (size_t)a->n_objects * (size_t)b->n_objects;
    if (too_many(r, n))
        return;
    struct object_form *list = arena_calloc(&r->arena, n, sizeof *list);
    for (int i = 0; i < a->n_objects; i++)
        for (int k = 0; k < b->n_objects && !refused(r); k++)
            out->n_objects += object_and(r, &a->objects[i], &b->objects[k], &list[out->n_objects]);
    out->objects = list;
}

const struct forms *forms_and(struct reader *r, const struct forms *a, const struct forms *b) {
    if (a == b || b == r->all || refused(r))
        return a;
    if (a == r->all)
        return b;
    struct forms *f = fresh(r);
    reader_work(r, 8);
    f->null = a->null && b->null;
    f->bools = a->bools & b->bools;
    f->number = numbers_and(r, a->number, b->number);
    f->string = text_and(r, a->string, b->string);
    f->inexact = a->inexact || b->inexact;
    arrays_product(r, f, a, b);
    objects_product(r, f, a, b);
    return f;
}

/* Whether forms may be left out beside one that allows everything: not where it matters which of them was taken. */
static bool may_swallow(const struct reader *r) { return !r->has_unevaluated; }

static void arrays_join(struct reader *r, struct forms *out, const struct forms *a, const struct forms *b) {
    size_t n = (size_t)a->n_arrays + (size_t)b->n_arrays;
    if (too_many(r, n))
        return;
    struct array_form *list = arena_calloc(&r->arena, n, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        const struct array_form *f = i < (size_t)a->n_arrays ? &a->arrays[i] : &b->arrays[i - (size_t)a->n_arrays];
        if (may_swallow(r) && array_is_any(f))
            list[0] = *f, out->n_arrays = 1, i = n;
        else
            list[out->n_arrays++] = *f;
    }
    out->arrays = list;
}

static void objects_join(struct reader *r, struct forms *out, const struct forms *a, const struct forms *b) {
    size_t n = (size_t)a->n_objects + (size_t)b->n_objects;
    if (too_many(r, n))
        return;
    struct object_form *list = arena_calloc(&r->arena, n, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        const struct object_form *f = i < (size_t)a->n_objects ? &a->objects[i] : &b->objects[i - (size_t)a->n_objects];
        if (may_swallow(r) && object_is_any(f))
            list[0] = *f, out->n_objects = 1, i = n;
        else
            list[out->n_objects++] = *f;
    }
    out->objects = list;
}

const struct forms *forms_or(struct reader *r, const struct forms *a, const struct forms *b) {
    if (a == b || b == &none || refused(r))
        return a;
    if (a == &none)
        return b;
    if (may_swallow(r) && (a == r->all || b == r->all))
        return r->all;
    struct forms *f = fresh(r);
    reader_work(r, (size_t)(a->n_arrays + b->n_arrays + a->n_objects + b->n_objects));
    f->null = a->null || b->null;
    f->bools = a->bools | b->bools;
    f->number = numbers_or(r, a->number, b->number);
    f->string = rx_alt(ir_rx(r->ir), a->string, b->string);
    f->inexact = a->inexact || b->inexact;
    arrays_join(r, f, a, b);
    objects_join(r, f, a, b);
    return f;
}

/* All types but arrays and objects of a, turned round; of those, anything. */
const struct forms *forms_not(struct reader *r, const struct forms *a) {
    if (a->inexact)
        reader_refuse(r, ERR_UNSUPPORTED,
                      "not: of an anyOf with many branches beside unevaluatedProperties or unevaluatedItems");
    const struct forms *all = forms_all(r);
    struct forms *f = fresh(r);
    *f = *all;
    f->null = !a->null;
    f->bools = 3 & ~a->bools;
    f->number = numbers_not(r, a->number);
    f->string = text_not(r, a->string);
    const struct forms *left = f;
    for (int i = 0; i < a->n_arrays && !refused(r); i++) {
        struct forms *breaks = fresh(r);
        *breaks = *all;
        array_not(r, &a->arrays[i], breaks);
        left = forms_and(r, left, breaks);
    }
    for (int i = 0; i < a->n_objects && !refused(r); i++) {
        struct forms *breaks = fresh(r);
        *breaks = *all;
        object_not(r, &a->objects[i], breaks);
        left = forms_and(r, left, breaks);
    }
    return left;
}

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

/* The numbers and strings among n values as one trie each; the others are left to the caller. */
static void add_scalars(struct reader *r, struct forms *f, const json_t *const *values, size_t n) {
    struct str *strings = xcalloc(n + 1, sizeof *strings);
    const json_t **numbers = xcalloc(n + 1, sizeof *numbers);
    size_t n_strings = 0, n_numbers = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = values[i];
        f->null |= json_is_null(v);
        f->bools |= json_is_false(v) ? 1 : json_is_true(v) ? 2 : 0;
        if (json_is_number(v))
            numbers[n_numbers++] = v;
        if (json_is_string(v))
            strings[n_strings++] = string_of(v);
    }
    if (n_strings > 0)
        f->string = rx_choice(ir_rx(r->ir), strings, n_strings);
    if (n_numbers > 0)
        f->number = numbers_of_values(r, numbers, n_numbers);
    free(strings);
    free(numbers);
}

static const struct forms *forms_of(struct reader *r, const json_t *const *values, size_t n) {
    struct forms *f = fresh(r);
    reader_work(r, n / 4);
    add_scalars(r, f, values, n);
    size_t n_arrays = 0, n_objects = 0;
    for (size_t i = 0; i < n; i++) {
        n_arrays += json_is_array(values[i]);
        n_objects += json_is_object(values[i]);
    }
    if (too_many(r, n_arrays) || too_many(r, n_objects))
        return f;
    struct array_form *arrays = arena_calloc(&r->arena, n_arrays, sizeof *arrays);
    struct object_form *objects = arena_calloc(&r->arena, n_objects, sizeof *objects);
    for (size_t i = 0; i < n; i++) {
        if (json_is_array(values[i]))
            array_of_value(r, values[i], &arrays[f->n_arrays++]);
        if (json_is_object(values[i]))
            object_of_value(r, values[i], &objects[f->n_objects++]);
    }
    f->arrays = arrays;
    f->objects = objects;
    return f;
}

const struct forms *forms_of_value(struct reader *r, const json_t *value) { return forms_of(r, &value, 1); }

const struct forms *forms_of_values(struct reader *r, const json_t *array) {
    size_t n = json_array_size(array);
    const json_t **values = xcalloc(n + 1, sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = json_array_get(array, i);
    const struct forms *f = forms_of(r, values, n);
    free(values);
    return f;
}
