/* reader.c - refusals, bounds, and counts among keywords. */
#include "grammar/schema/reader.h"

#include <stdarg.h>

void reader_refuse(struct reader *r, enum status status, const char *format, ...) {
    if (refused(r))
        return;
    if (r->trying > 0) {
        r->gave_up = true;
        return;
    }
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = fail(r->err, status, "%s", text);
}

void reader_work(struct reader *r, size_t n) {
    r->work += n + 1;
    if (r->work > MAX_WORK || r->arena.used > MAX_ARENA_BYTES)
        reader_refuse(r, ERR_LIMIT, "the schema asks for too many combinations (allOf, anyOf, oneOf, not, enum)");
}

int64_t reader_count(struct reader *r, const json_t *schema, const char *key, int64_t fallback) {
    int64_t n = fallback;
    struct error err;
    const json_t *v = json_object_get(schema, key);
    if (v && jv_int(schema, "schema", key, 0, INT64_MAX, &n, &err) != OK)
        reader_refuse(r, ERR_FORMAT, "%s: must be a whole number, 0 or more", key);
    if (v && n > INT32_MAX && key[1] == 'i') // min...: texts are never that long
        reader_refuse(r, ERR_LIMIT, "%s: is larger than %d", key, INT32_MAX);
    return MIN(n, INT32_MAX);
}
