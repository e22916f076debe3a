/* spec_read.c - the keys of a text model by type: see spec_read.h. */
#include "model/spec/spec_read.h"

static enum status int_in(const struct spec_reader *r, const char *key, int64_t min, int64_t max, int64_t fallback,
                          int *out) {
    int64_t value;
    TRY(jv_int_or(r->text, r->path, key, min, max, fallback, &value, r->err));
    *out = (int)value;
    return OK;
}

enum status read_dim(const struct spec_reader *r, const char *key, int fallback, int *out) {
    return int_in(r, key, 1, SPEC_MAX_DIM, fallback, out);
}

enum status read_count(const struct spec_reader *r, const char *key, int fallback, int *out) {
    return int_in(r, key, 0, SPEC_MAX_DIM, fallback, out);
}

enum status read_optional(const struct spec_reader *r, const char *key, int fallback, int *out) {
    return int_in(r, key, 0, SPEC_MAX_DIM, json_is_null(json_object_get(r->text, key)) ? 0 : fallback, out);
}

enum status read_flag(const struct spec_reader *r, const char *key, bool fallback, bool *out) {
    return jv_bool_or(r->text, r->path, key, fallback, out, r->err);
}

enum status read_real(const struct spec_reader *r, const char *key, double fallback, double *out) {
    return jv_real_or(r->text, r->path, key, fallback, out, r->err);
}
