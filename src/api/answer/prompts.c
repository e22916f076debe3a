/* prompts.c - see prompts.h. */
#include "api/answer/prompts.h"

static enum status from_ids(const json_t *array, const char *field, struct token_ids *out, struct error *err) {
    size_t i;
    json_t *item;
    json_array_foreach(array, i, item) {
        int64_t id;
        if (!jv_whole(item, &id) || id < 0 || id > INT32_MAX)
            return fail(err, ERR_ARG, "%s: it holds something at %zu that is no token id", field, i);
        token_ids_push(out, (int32_t)id);
    }
    return OK;
}

struct prompt_ids prompt_cut(struct prompt_ids prompt, struct prompt_cut cut) {
    size_t most = cut.most > 0 ? (size_t)cut.most : prompt.n;
    if (prompt.n <= most)
        return prompt;
    return (struct prompt_ids){.ids = cut.drops_end ? prompt.ids : prompt.ids + (prompt.n - most), .n = most};
}

/* What post-processing put around `inner` to make `whole` of it: so many tokens before, the others after. */
static size_t n_before(const struct token_ids *whole, const struct token_ids *inner) {
    for (size_t i = 0; i + inner->n <= whole->n; i++)
        if (memcmp(whole->ids + i, inner->ids, inner->n * sizeof *inner->ids) == 0)
            return i;
    return 0;
}

/* BOS and the like stay, the text between them is cut. */
static enum status cut_text(struct api *api, struct str text, const struct prompt_source *source,
                            struct token_ids *whole, struct error *err) {
    struct token_ids inner = {0};
    TRY(api_tokenize(api, text, source->encode_flags & ~ENCODE_ADD_SPECIAL, &inner, err));
    size_t special = whole->n >= inner.n ? whole->n - inner.n : 0, before = n_before(whole, &inner);
    enum status st = OK;
    if ((size_t)source->cut.most <= special) {
        st = fail(err, ERR_ARG,
                  "truncate_prompt_tokens: %lld leaves no text beside the %zu special tokens that are added",
                  (long long)source->cut.most, special);
    } else {
        struct prompt_cut cut = {source->cut.most - (int64_t)special, source->cut.drops_end};
        struct prompt_ids left = prompt_cut((struct prompt_ids){.ids = inner.ids, .n = inner.n}, cut);
        size_t after = special - before;
        memmove(whole->ids + before + left.n, whole->ids + whole->n - after, after * sizeof *whole->ids);
        memcpy(whole->ids + before, left.ids, left.n * sizeof *left.ids);
        whole->n = special + left.n;
    }
    token_ids_release(&inner);
    return st;
}

/* *whole: the text, if nothing of it was cut. */
static enum status from_text(struct http_exchange *x, struct str text, const struct prompt_source *source,
                             struct token_ids *out, struct str *whole, struct error *err) {
    struct api *api = api_of(x);
    bool is_cut = (source->cut.most > 0 && source->cut.most < INT64_MAX) || source->is_cut_later;
    if (!is_cut)
        TRY(api_check_prompt(api, text, err));
    TRY(api_tokenize(api, text, source->encode_flags, out, err));
    api_charge_text(x, out->n);
    if (source->cut.most > 0 && out->n > (size_t)source->cut.most)
        return cut_text(api, text, source, out, err);
    *whole = text;
    return OK;
}

static enum status from_value(struct http_exchange *x, const json_t *value, const struct prompt_source *source,
                              struct token_ids *out, struct str *whole, struct error *err) {
    if (json_is_string(value))
        return from_text(x, (struct str){json_string_value(value), json_string_length(value)}, source, out, whole, err);
    if (json_is_array(value))
        return from_ids(value, source->field, out, err);
    return fail(err, ERR_ARG,
                "%s: it must be a string, an array of strings, an array of token ids or an array of those",
                source->field);
}

/* Whether the array is one prompt of ids, not several prompts. */
static bool is_ids(const json_t *array) {
    return json_array_size(array) > 0 && json_is_number(json_array_get(array, 0));
}

static enum status count(const json_t *value, const struct prompt_source *source, size_t *n, struct error *err) {
    *n = json_is_array(value) && !is_ids(value) ? json_array_size(value) : 1;
    if (!value || json_is_null(value))
        return fail(err, ERR_ARG, "%s: it is missing", source->field);
    if (*n == 0)
        return fail(err, ERR_ARG, "%s: the array is empty", source->field);
    if (*n > (size_t)source->max)
        return fail(err, ERR_ARG, "%s: %zu of them are more than the %lld %s", source->field, *n,
                    (long long)source->max, source->or_max);
    return OK;
}

enum status prompts_read(struct http_exchange *x, const json_t *body, const struct prompt_source *source,
                         struct prompt_ids **out, int *n, struct error *err) {
    const json_t *value = json_object_get(body, source->field);
    bool many = json_is_array(value) && !is_ids(value);
    size_t n_prompts;
    TRY(count(value, source, &n_prompts, err));
    *out = arena_calloc(&x->arena, n_prompts, sizeof **out);
    *n = (int)n_prompts;
    for (size_t i = 0; i < n_prompts; i++) {
        struct token_ids ids = {0};
        struct str whole = {0};
        enum status st = from_value(x, many ? json_array_get(value, i) : value, source, &ids, &whole, err);
        if (st == OK) {
            (*out)[i] = (struct prompt_ids){.ids = arena_calloc(&x->arena, ids.n, sizeof *ids.ids), .n = ids.n};
            if (ids.n > 0)
                memcpy((*out)[i].ids, ids.ids, ids.n * sizeof *ids.ids);
            (*out)[i] = prompt_cut((*out)[i], source->cut);
            if (source->keeps_text && whole.ptr)
                (*out)[i].text = (struct str){arena_strdup(&x->arena, whole), whole.len};
        }
        token_ids_release(&ids);
        TRY(st);
    }
    return OK;
}
