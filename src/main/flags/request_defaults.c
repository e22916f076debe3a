/* request_defaults.c - see request_defaults.h. */
#include "main/flags/request_defaults.h"

#include "base/json/json.h"

#include <math.h>

static const char FLAG[] = "--override-generation-config";

static const struct default_field {
    const char *name;
    size_t at; // in struct request_defaults
    double neutral, min, max;
} fields[] = {
    {"temperature", offsetof(struct request_defaults, temperature), 1, 0, 100},
    {"top_p", offsetof(struct request_defaults, top_p), 1, 0, 1},
    {"min_p", offsetof(struct request_defaults, min_p), 0, 0, 1},
    {"repetition_penalty", offsetof(struct request_defaults, repetition_penalty), 1, 1e-6, 100},
    {"top_k", offsetof(struct request_defaults, top_k), 0, -1, INT32_MAX},
};

static enum status read_field(const json_t *object, const struct default_field *f, struct request_defaults *d,
                              struct error *err) {
    double *value = (double *)((char *)d + f->at);
    const json_t *given = json_object_get(object, f->name);
    if (!given || json_is_null(given))
        return OK;
    TRY(jv_real(object, FLAG, f->name, value, err));
    if (!(*value >= f->min && *value <= f->max))
        return fail(err, ERR_ARG, "%s: %s is %g, it must be between %g and %g", FLAG, f->name, *value, f->min, f->max);
    return OK;
}

/* A field that would be dropped is a mistake, or a wish that is not met. */
static enum status check_names(const json_t *object, struct error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        bool known = strcmp(name, "max_new_tokens") == 0;
        for (size_t i = 0; i < ARRAY_LEN(fields); i++)
            known |= strcmp(name, fields[i].name) == 0;
        if (!known)
            return fail(err, ERR_ARG,
                        "%s: \"%.60s\" is none of temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens",
                        FLAG, name);
    }
    return OK;
}

static enum status read_object(const json_t *object, struct request_defaults *out, struct error *err) {
    if (!json_is_object(object))
        return fail(err, ERR_ARG, "%s: it must be a JSON object", FLAG);
    TRY(check_names(object, err));
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        TRY(read_field(object, &fields[i], out, err));
    return jv_int_or(object, FLAG, "max_new_tokens", 1, INT32_MAX, 0, &out->max_new_tokens, err);
}

enum status request_defaults_read(const char *json, bool own, struct request_defaults *out, struct error *err) {
    json_t *object;
    *out = (struct request_defaults){0};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        *(double *)((char *)out + fields[i].at) = own ? NAN : fields[i].neutral;
    if (!json)
        return OK;
    TRY(jv_parse(str_of(json), FLAG, 0, &object, err));
    enum status st = read_object(object, out, err);
    json_decref(object);
    return st;
}
