/* prompts.c - see prompts.h. */
#include "api/prompts.h"

static enum status from_ids(const json_t *array, const char *field, struct token_ids *out, struct error *err) {
    size_t i;
    json_t *item;
    json_array_foreach(array, i, item) {
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > INT32_MAX)
            return fail(err, ERR_ARG, "%s: it holds something at %zu that is no token id", field, i);
        token_ids_push(out, (int32_t)id);
    }
    return OK;
}

static enum status from_value(struct api *api, const json_t *value, const struct prompt_source *source, struct token_ids *out,
                              struct error *err) {
    if (json_is_string(value))
        return api_tokenize(api, (struct str){json_string_value(value), json_string_length(value)}, source->encode_flags, out, err);
    if (json_is_array(value))
        return from_ids(value, source->field, out, err);
    return fail(err, ERR_ARG, "%s: it must be a string, an array of strings, an array of token ids or an array of those", source->field);
}

/* Whether the array is one prompt of ids, not several prompts. */
static bool is_ids(const json_t *array) { return json_array_size(array) > 0 && json_is_integer(json_array_get(array, 0)); }

static enum status count(const json_t *value, const struct prompt_source *source, size_t *n, struct error *err) {
    *n = json_is_array(value) && !is_ids(value) ? json_array_size(value) : 1;
    if (!value || json_is_null(value))
        return fail(err, ERR_ARG, "%s: it is missing", source->field);
    if (*n == 0)
        return fail(err, ERR_ARG, "%s: the array is empty", source->field);
    if (*n > (size_t)source->max)
        return fail(err, ERR_ARG, "%s: %zu of them are more than the %lld %s", source->field, *n, (long long)source->max, source->or_max);
    return OK;
}

enum status prompts_read(struct http_exchange *x, const json_t *body, const struct prompt_source *source, struct prompt_ids **out, int *n,
                         struct error *err) {
    const json_t *value = json_object_get(body, source->field);
    bool many = json_is_array(value) && !is_ids(value);
    size_t n_prompts;
    TRY(count(value, source, &n_prompts, err));
    *out = arena_calloc(&x->arena, n_prompts, sizeof **out);
    *n = (int)n_prompts;
    for (size_t i = 0; i < n_prompts; i++) {
        struct token_ids ids = {0};
        enum status st = from_value(api_of(x), many ? json_array_get(value, i) : value, source, &ids, err);
        if (st == OK) {
            (*out)[i] = (struct prompt_ids){arena_calloc(&x->arena, ids.n, sizeof *ids.ids), ids.n};
            if (ids.n > 0)
                memcpy((*out)[i].ids, ids.ids, ids.n * sizeof *ids.ids);
        }
        token_ids_release(&ids);
        TRY(st);
    }
    return OK;
}
