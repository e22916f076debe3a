/* properties.c - the keywords of objects as one form. */
#include "grammar/schema/reader.h"

static const json_t *map_at(struct reader *r, const json_t *schema, const char *key) {
    const json_t *v = json_object_get(schema, key);
    if (v && !json_is_object(v))
        reader_refuse(r, ERR_FORMAT, "%s: must be an object, not %s", key, jv_type_name(v));
    return json_is_object(v) ? v : NULL;
}

/* Parts the languages of f by patternProperties; what fits no pattern is `rest`. */
static void read_others(struct reader *r, const json_t *patterns, node_id rest, bool rest_seen, struct place place,
                        struct object_form *f) {
    struct rx_pool *rx = ir_rx(r->ir);
    const char *pattern;
    size_t n;
    json_t *schema;
    rx_id any_pattern = RX_NEVER;
    struct object_form parted = *object_any(r), with = parted, next;
    json_object_keylen_foreach((json_t *)patterns, pattern, n, schema) {
        rx_id keys = read_pattern(r, (struct str){pattern, n});
        struct others two[2] = {{keys, node_schema(r, schema, place), true}, {text_not(r, keys), NODE_TRUE, false}};
        if (refused(r))
            return;
        with.others = two;
        with.n_others = 2;
        object_and(r, &parted, &with, &next);
        parted = next;
        any_pattern = rx_alt(rx, any_pattern, keys);
    }
    struct others two[2] = {{any_pattern, NODE_TRUE, false}, {text_not(r, any_pattern), rest, rest_seen}};
    with.others = any_pattern == RX_NEVER ? two + 1 : two;
    with.n_others = any_pattern == RX_NEVER ? 1 : 2;
    object_and(r, &parted, &with, &next);
    f->others = next.others;
    f->n_others = next.n_others;
}

static void add_named(struct reader *r, struct object_form *f, struct named *list, struct str key, node_id value,
                      bool seen) {
    struct named n = object_key(r, f, key); // of the patterns, or of additionalProperties
    list[f->n_named++] = (struct named){key, node_and(r, n.value, value), false, n.seen || seen};
}

static void need_named(struct reader *r, struct object_form *f, struct named *list, struct str key) {
    if (!object_named(f, key))
        add_named(r, f, list, key, NODE_TRUE, false);
    reader_work(r, (size_t)f->n_named / 16);
}

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

static void read_required(struct reader *r, const json_t *schema, struct object_form *f, struct named *list) {
    const json_t *required = json_object_get(schema, "required");
    if (required && !json_is_array(required))
        reader_refuse(r, ERR_FORMAT, "required: must be an array of strings, not %s", jv_type_name(required));
    for (size_t i = 0; i < json_array_size(required) && !refused(r); i++) {
        const json_t *key = json_array_get(required, i);
        if (!json_is_string(key)) {
            reader_refuse(r, ERR_FORMAT, "required: must be an array of strings");
            return;
        }
        need_named(r, f, list, string_of(key));
        for (int k = 0; k < f->n_named; k++)
            list[k].required |= str_eq(list[k].key, string_of(key));
    }
}

static const char *const needs_keywords[] = {"dependentRequired", "dependencies"};

static void read_needs(struct reader *r, const json_t *schema, struct object_form *f, struct named *list,
                       struct need *needs) {
    for (size_t i = 0; i < ARRAY_LEN(needs_keywords); i++) {
        const char *key;
        size_t n;
        json_t *keys;
        json_object_keylen_foreach((json_t *)map_at(r, schema, needs_keywords[i]), key, n, keys) {
            for (size_t k = 0; k < json_array_size(keys) && !refused(r); k++) {
                const json_t *needed = json_array_get(keys, k);
                if (!json_is_string(needed)) {
                    reader_refuse(r, ERR_FORMAT, "%s: must hold arrays of strings", needs_keywords[i]);
                    return;
                }
                need_named(r, f, list, (struct str){key, n});
                need_named(r, f, list, string_of(needed));
                needs[f->n_needs++] = (struct need){{key, n}, string_of(needed)};
            }
        }
    }
}

/* How many keys dependencies name, at most; *n_needs: how many pairs. */
static size_t count_needs(const json_t *schema, size_t *n_needs) {
    size_t n = 0;
    *n_needs = 0;
    for (size_t i = 0; i < ARRAY_LEN(needs_keywords); i++) {
        const char *key;
        json_t *keys;
        json_object_foreach(json_object_get(schema, needs_keywords[i]), key, keys) {
            n += 1 + json_array_size(keys);
            *n_needs += json_array_size(keys);
        }
    }
    return n;
}

const struct object_form *read_objects(struct reader *r, const json_t *schema, struct place place) {
    const json_t *properties = map_at(r, schema, "properties"), *patterns = map_at(r, schema, "patternProperties"),
                 *rest = json_object_get(schema, "additionalProperties"),
                 *required = json_object_get(schema, "required");
    size_t n_needs, most = count_needs(schema, &n_needs) + json_object_size(properties) + json_array_size(required);
    struct object_form *f = arena_alloc(&r->arena, sizeof *f);
    struct named *list = arena_calloc(&r->arena, most, sizeof *list);
    struct need *needs = arena_calloc(&r->arena, n_needs, sizeof *needs);
    f->min = reader_count(r, schema, "minProperties", 0);
    f->max = reader_count(r, schema, "maxProperties", UNBOUNDED);
    f->named = list;
    f->needs = needs;
    // properties take keys away from additionalProperties, not from patternProperties
    struct object_form by_pattern = {0};
    read_others(r, patterns, NODE_TRUE, false, place, &by_pattern);
    read_others(r, patterns, rest ? node_schema(r, rest, place) : NODE_TRUE, rest != NULL, place, f);
    const char *key;
    size_t n;
    json_t *value;
    json_object_keylen_foreach((json_t *)properties, key, n, value) {
        if (refused(r))
            break;
        struct named by = object_key(r, &by_pattern, (struct str){key, n});
        list[f->n_named++] = (struct named){{key, n}, node_and(r, by.value, node_schema(r, value, place)), false, true};
    }
    read_required(r, schema, f, list);
    read_needs(r, schema, f, list, needs);
    return object_possible(f) && !refused(r) ? f : NULL;
}
