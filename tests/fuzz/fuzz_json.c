/* fuzz_json.c - any bytes as JSON: parsed or refused with a sentence; getters on what was parsed never crash, and a
 * string that came out can be written and read again. */
#include "base/buf.h"
#include "base/json/json.h"

static void read_fields(const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        struct error err;
        int64_t i;
        double r;
        bool b;
        const char *s;
        json_t *v;
        (void)jv_int(object, "x", key, INT64_MIN, INT64_MAX, &i, &err);
        (void)jv_real_or(object, "x", key, 1, &r, &err);
        (void)jv_bool_or(object, "x", key, true, &b, &err);
        (void)jv_object_or_null(object, "x", key, &v, &err);
        (void)jv_array_or_null(object, "x", key, &v, &err);
        if (jv_string(object, "x", key, &s, &err) == OK) {
            struct buf out = {0};
            buf_json_string(&out, str_of(s));
            BUG_IF(jv_parse(buf_view(&out), "x", 0, &v, &err) != OK || strcmp(json_string_value(v), s) != 0);
            json_decref(v);
            buf_release(&out);
        }
        if (json_is_object(value))
            read_fields(value); // as deep as is parsed: 2048
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct error err;
    json_t *value;
    struct str text = {(const char *)data, n_bytes};
    enum status st = jv_parse(text, "x", n_bytes % 2 ? JV_ALLOW_DUPLICATES : 0, &value, &err);
    BUG_IF(st != OK && !utf8_valid(str_of(err.text)));
    if (st != OK)
        return 0;
    if (json_is_object(value))
        read_fields(value);
    json_decref(value);
    return 0;
}
