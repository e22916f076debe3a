/* json.c - see json.h. */
#include "base/json/json.h"

#include "base/file.h"

#include <math.h>

enum status jv_parse(struct str text, const char *where, int flags, json_t **out, struct error *err) {
    size_t budget = JV_MAX_BYTES;
    return jv_parse_within(text, where, flags, &budget, out, err);
}

enum status jv_load(const char *path, size_t max_bytes, int flags, json_t **out, struct error *err) {
    struct file_map map;
    TRY(file_map_open(&map, path, max_bytes, err));
    enum status st = jv_parse((struct str){map.bytes, map.n_bytes}, path, flags, out, err);
    file_map_close(&map);
    return st;
}

const char *jv_type_name(const json_t *value) {
    if (!value)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

static const json_t *find(const json_t *obj, const char *key) {
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

/* Where the text is a request: its field, or what is within one. */
static enum status about(const char *where, const char *key, enum status st, struct error *err) {
    bool whole = strcmp(where, "request") == 0;
    if (err && snprintf(err->field, sizeof err->field, "%s%s%s", whole ? "" : where, whole ? "" : ".", key) >=
                   (int)sizeof err->field)
        err->field[0] = '\0';
    return st;
}

static enum status wrong_type(const char *where, const char *key, const json_t *v, const char *wanted,
                              struct error *err) {
    enum status st = v ? fail(err, ERR_FORMAT, "%s: \"%s\" is %s, it must be %s", where, key, jv_type_name(v), wanted)
                       : fail(err, ERR_FORMAT, "%s: \"%s\" is missing, it must be %s", where, key, wanted);
    return about(where, key, st, err);
}

bool jv_whole(const json_t *value, int64_t *out) {
    double f = json_real_value(value); // 0 of other types
    if (json_is_integer(value))
        *out = json_integer_value(value);
    else if (json_is_real(value) && f == floor(f) && f >= -0x1p63 && f < 0x1p63)
        *out = (int64_t)f;
    else
        return false;
    return true;
}

enum status jv_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max, int64_t *out,
                   struct error *err) {
    const json_t *v = find(obj, key);
    int64_t n;
    if (!jv_whole(v, &n)) {
        double f = json_real_value(v);
        if (f != floor(f) || !json_is_real(v))
            return wrong_type(where, key, v, "an integer", err);
        return about(where, key,
                     fail(err, ERR_FORMAT, "%s: \"%s\" is too %s, it must be between %lld and %lld", where, key,
                          f < 0 ? "small" : "large", (long long)min, (long long)max),
                     err);
    }
    if (n < min || n > max)
        return about(where, key,
                     fail(err, ERR_FORMAT, "%s: \"%s\" is %lld, it must be between %lld and %lld", where, key,
                          (long long)n, (long long)min, (long long)max),
                     err);
    *out = n;
    return OK;
}

enum status jv_int_or(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max, int64_t fallback,
                      int64_t *out, struct error *err) {
    if (!find(obj, key)) {
        *out = fallback;
        return OK;
    }
    return jv_int(obj, where, key, min, max, out, err);
}

enum status jv_real(const json_t *obj, const char *where, const char *key, double *out, struct error *err) {
    const json_t *v = find(obj, key);
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return wrong_type(where, key, v, "a finite number", err);
    *out = json_number_value(v);
    return OK;
}

enum status jv_real_or(const json_t *obj, const char *where, const char *key, double fallback, double *out,
                       struct error *err) {
    if (!find(obj, key)) {
        *out = fallback;
        return OK;
    }
    return jv_real(obj, where, key, out, err);
}

enum status jv_bool_or(const json_t *obj, const char *where, const char *key, bool fallback, bool *out,
                       struct error *err) {
    const json_t *v = find(obj, key);
    if (v && !json_is_boolean(v))
        return wrong_type(where, key, v, "true or false", err);
    *out = v ? json_is_true(v) : fallback;
    return OK;
}

enum status jv_string(const json_t *obj, const char *where, const char *key, const char **out, struct error *err) {
    const json_t *v = find(obj, key);
    if (!json_is_string(v))
        return wrong_type(where, key, v, "a string", err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return about(where, key, fail(err, ERR_FORMAT, "%s: \"%s\" contains a NUL character", where, key), err);
    *out = json_string_value(v);
    return OK;
}

enum status jv_string_or(const json_t *obj, const char *where, const char *key, const char *fallback, const char **out,
                         struct error *err) {
    if (!find(obj, key)) {
        *out = fallback;
        return OK;
    }
    return jv_string(obj, where, key, out, err);
}

enum status jv_object_or_null(const json_t *obj, const char *where, const char *key, json_t **out, struct error *err) {
    const json_t *v = find(obj, key);
    if (v && !json_is_object(v))
        return wrong_type(where, key, v, "an object", err);
    *out = v ? json_object_get(obj, key) : NULL;
    return OK;
}

enum status jv_array_or_null(const json_t *obj, const char *where, const char *key, json_t **out, struct error *err) {
    const json_t *v = find(obj, key);
    if (v && !json_is_array(v))
        return wrong_type(where, key, v, "an array", err);
    *out = v ? json_object_get(obj, key) : NULL;
    return OK;
}
