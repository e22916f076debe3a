/* request_fields.c - see request_fields.h. */
#include "api/fields/request_fields.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char WHERE[] = "request";

enum number_kind { FIELD_FLOAT, FIELD_INT32, FIELD_INT64, FIELD_BITS, FIELD_BOOL };

/* Fields that are one number of struct gyre_request. */
static const struct number_field {
    const char *name;
    enum number_kind kind;
    size_t at;
} number_fields[] = {
    {"max_tokens", FIELD_INT64, offsetof(struct gyre_request, max_tokens)},
    {"min_tokens", FIELD_INT64, offsetof(struct gyre_request, min_tokens)},
    {"temperature", FIELD_FLOAT, offsetof(struct gyre_request, temperature)},
    {"top_p", FIELD_FLOAT, offsetof(struct gyre_request, top_p)},
    {"min_p", FIELD_FLOAT, offsetof(struct gyre_request, min_p)},
    {"top_k", FIELD_INT32, offsetof(struct gyre_request, top_k)},
    {"repetition_penalty", FIELD_FLOAT, offsetof(struct gyre_request, repetition_penalty)},
    {"presence_penalty", FIELD_FLOAT, offsetof(struct gyre_request, presence_penalty)},
    {"frequency_penalty", FIELD_FLOAT, offsetof(struct gyre_request, frequency_penalty)},
    {"seed", FIELD_BITS, offsetof(struct gyre_request, seed)},
    {"ignore_eos", FIELD_BOOL, offsetof(struct gyre_request, ignore_eos)},
};

static const char *const prompt_names[] = {"prompt", "prompt_ids"};
static const char *const other_names[] = {"stop",       "stop_token_ids", "allowed_token_ids",
                                          "logit_bias", "logprobs",       "top_logprobs"};

// ---- names ------------------------------------------------------------------------------------------------------

static bool is_among(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool is_number_field(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(number_fields); i++)
        if (strcmp(number_fields[i].name, name) == 0)
            return true;
    return false;
}

bool request_is_sampling_field(const char *name) {
    return is_number_field(name) || is_among(name, other_names, ARRAY_LEN(other_names));
}

static enum status check_names(const json_t *object, bool sampling, struct error *err) {
    const char *name;
    json_t *value;
    if (!json_is_object(object))
        return fail(err, ERR_FORMAT, "%s: must be an object, not %s", WHERE, jv_type_name(object));
    json_object_foreach((json_t *)object, name, value) {
        bool known =
            is_among(name, prompt_names, ARRAY_LEN(prompt_names)) || (sampling && request_is_sampling_field(name));
        if (!known)
            return fail_field(err, ERR_ARG, name, "%s: there is no field \"%s\" here", WHERE, name);
    }
    return OK;
}

// ---- values -----------------------------------------------------------------------------------------------------

static enum status read_number(const json_t *object, const struct number_field *f, struct gyre_request *r,
                               struct error *err) {
    void *at = (char *)r + f->at;
    int64_t i;
    double x;
    switch (f->kind) {
    case FIELD_FLOAT:
        TRY(jv_real_or(object, WHERE, f->name, (double)*(float *)at, &x, err));
        *(float *)at = (float)x;
        return OK;
    case FIELD_INT32:
        TRY(jv_int_or(object, WHERE, f->name, INT32_MIN, INT32_MAX, *(int32_t *)at, &i, err));
        *(int32_t *)at = (int32_t)i;
        return OK;
    case FIELD_INT64: return jv_int_or(object, WHERE, f->name, 0, INT64_MAX, *(int64_t *)at, at, err);
    case FIELD_BITS:
        TRY(jv_int_or(object, WHERE, f->name, INT64_MIN, INT64_MAX, (int64_t) * (uint64_t *)at, &i, err));
        *(uint64_t *)at = (uint64_t)i;
        return OK;
    case FIELD_BOOL: return jv_bool_or(object, WHERE, f->name, *(bool *)at, at, err);
    }
    BUG_IF(true);
}

/* An array of token ids; *ids stays as it is when the field is not given. */
static enum status read_ids(const json_t *object, const char *name, struct arena *arena, const int32_t **ids, size_t *n,
                            struct error *err) {
    json_t *array, *item;
    size_t i;
    TRY(jv_array_or_null(object, WHERE, name, &array, err));
    if (!array)
        return OK;
    int32_t *out = arena_calloc(arena, json_array_size(array) + 1, sizeof *out);
    json_array_foreach(array, i, item) {
        int64_t id;
        if (!jv_whole(item, &id) || id < INT32_MIN || id > INT32_MAX)
            return fail_field(err, ERR_FORMAT, name, "%s: \"%s\" holds something at %zu that is no token id", WHERE,
                              name, i);
        out[i] = (int32_t)id;
    }
    *ids = out;
    *n = json_array_size(array);
    return OK;
}

static enum status read_stop_string(const json_t *value, struct request_fields *f, struct error *err) {
    if (!json_is_string(value))
        return fail_field(err, ERR_FORMAT, "stop", "%s: \"stop\" must be a string or an array of strings, not %s",
                          WHERE, jv_type_name(value));
    if (json_string_length(value) == 0)
        return fail_field(err, ERR_ARG, "stop", "%s: \"stop\" holds an empty string", WHERE);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return fail_field(err, ERR_FORMAT, "stop", "%s: \"stop\" holds a NUL character", WHERE);
    f->stop[f->n_stop++] = arena_strdup(&f->arena, str_of(json_string_value(value)));
    return OK;
}

static enum status read_stop(const json_t *object, struct request_fields *f, struct error *err) {
    json_t *value = json_object_get(object, "stop"), *item;
    size_t i;
    if (!value || json_is_null(value))
        return OK;
    f->stop = arena_calloc(&f->arena, json_array_size(value) + 1, sizeof *f->stop);
    if (!json_is_array(value))
        return read_stop_string(value, f, err);
    json_array_foreach(value, i, item) TRY(read_stop_string(item, f, err));
    return OK;
}

/* An empty list would allow nothing. */
static enum status read_allowed(const json_t *object, struct request_fields *f, struct error *err) {
    const json_t *value = json_object_get(object, "allowed_token_ids");
    TRY(read_ids(object, "allowed_token_ids", &f->arena, &f->request.allowed_ids, &f->request.n_allowed_ids, err));
    if (json_is_array(value) && json_array_size(value) == 0)
        return fail(err, ERR_ARG, "allowed_token_ids: the list is empty, so that no token may come");
    return OK;
}

/* {"1234": -5, "17": 2.5}: token ids as keys. */
static enum status read_logit_bias(const json_t *object, struct request_fields *f, struct error *err) {
    json_t *map, *value;
    const char *key;
    TRY(jv_object_or_null(object, WHERE, "logit_bias", &map, err));
    if (!map)
        return OK;
    struct gyre_logit_bias *out = arena_calloc(&f->arena, json_object_size(map) + 1, sizeof *out);
    size_t n = 0;
    json_object_foreach(map, key, value) {
        char *end;
        errno = 0;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || errno || id > INT32_MAX)
            return fail_field(err, ERR_FORMAT, "logit_bias",
                              "%s: \"logit_bias\" has the key \"%s\", which is no token id", WHERE, key);
        if (!json_is_number(value))
            return fail_field(err, ERR_FORMAT, "logit_bias",
                              "%s: \"logit_bias\" of token %ld is %s, it must be a number", WHERE, id,
                              jv_type_name(value));
        out[n++] = (struct gyre_logit_bias){(int32_t)id, (float)json_number_value(value)};
    }
    f->request.logit_bias = out;
    f->request.n_logit_bias = n;
    return OK;
}

enum status request_logprobs_read(const json_t *object, const char *name, const struct request_fields *f, int *out,
                                  struct error *err) {
    int most = f->max_logprobs > 0 ? f->max_logprobs : GYRE_MAX_TOP_LOGPROBS;
    int64_t n;
    TRY(jv_int_or(object, WHERE, name, INT32_MIN, INT32_MAX, *out, &n, err));
    if (n == -1 && f->n_vocab > most)
        return fail(err, ERR_ARG,
                    "%s: -1 asks for all %d of the vocabulary, and this server gives at most %d (--max-logprobs)", name,
                    f->n_vocab, most);
    if (n == -1 && f->n_vocab > 0)
        n = f->n_vocab;
    if (n < 0 || n > most)
        return fail_field(err, ERR_ARG, name, "%s: \"%s\" is %lld, it must be between 0 and %d", WHERE, name,
                          (long long)n, most);
    *out = (int)n;
    return OK;
}

/* true or false as in chat completions, with top_logprobs beside it; or how many, as in completions. */
static enum status read_logprobs(const json_t *object, struct request_fields *f, struct error *err) {
    struct gyre_request *r = &f->request;
    TRY(request_logprobs_read(object, "top_logprobs", f, &r->n_top_logprobs, err));
    if (!json_is_number(json_object_get(object, "logprobs")))
        return jv_bool_or(object, WHERE, "logprobs", r->logprobs, &r->logprobs, err);
    int n = 0;
    TRY(request_logprobs_read(object, "logprobs", f, &n, err));
    r->logprobs = true;
    r->n_top_logprobs = MAX(r->n_top_logprobs, n);
    return OK;
}

// ---- requests ---------------------------------------------------------------------------------------------------

static enum status read_prompt(const json_t *object, struct request_fields *f, struct error *err) {
    size_t n = 0;
    TRY(jv_string_or(object, WHERE, "prompt", NULL, &f->prompt, err));
    TRY(read_ids(object, "prompt_ids", &f->arena, &f->request.prompt, &n, err));
    f->request.n_prompt = (int64_t)n;
    if (!f->prompt == !f->request.prompt)
        return fail_field(err, ERR_ARG, "prompt", "%s: it needs either \"prompt\" or \"prompt_ids\"", WHERE);
    if (f->prompt)
        f->prompt = arena_strdup(&f->arena, str_of(f->prompt));
    return OK;
}

enum status request_sampling_read(const json_t *object, struct request_fields *f, struct error *err) {
    struct gyre_request *r = &f->request;
    for (size_t i = 0; i < ARRAY_LEN(number_fields); i++)
        TRY(read_number(object, &number_fields[i], r, err));
    if (r->top_k == -1) // as vLLM writes "off"
        r->top_k = 0;
    TRY(read_ids(object, "stop_token_ids", &f->arena, &r->stop_ids, &r->n_stop_ids, err));
    TRY(read_allowed(object, f, err));
    TRY(read_logit_bias(object, f, err));
    TRY(read_logprobs(object, f, err));
    return read_stop(object, f, err);
}

static enum status read_all(const json_t *object, bool sampling, const struct gyre_request *base,
                            struct request_fields *out, struct error *err) {
    *out = (struct request_fields){.request = *base};
    out->request.prompt = NULL;
    enum status st = check_names(object, sampling, err);
    if (st == OK)
        st = read_prompt(object, out, err);
    if (st == OK && sampling)
        st = request_sampling_read(object, out, err);
    if (st != OK)
        request_fields_release(out);
    return st;
}

enum status request_fields_read(const json_t *object, const struct gyre_request *base, struct request_fields *out,
                                struct error *err) {
    return read_all(object, true, base, out, err);
}

enum status request_prompt_read(const json_t *object, const struct gyre_request *base, struct request_fields *out,
                                struct error *err) {
    return read_all(object, false, base, out, err);
}

void request_fields_release(struct request_fields *f) {
    arena_release(&f->arena);
    *f = (struct request_fields){0};
}
