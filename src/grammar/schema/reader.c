/* reader.c - refusals, bounds, and counts among keywords. */
#include "grammar/schema/reader.h"

#include "base/buf.h"

#include <stdarg.h>

/* Puts the JSON pointer from `at` to `target` before what is in *path; false where it is not below. */
static bool find_path(const json_t *at, const json_t *target, struct buf *path) {
    if (at == target)
        return true;
    if (json_is_array(at)) {
        size_t i;
        json_t *item;
        json_array_foreach((json_t *)at, i, item) {
            size_t mark = path->len;
            buf_printf(path, "/%zu", i);
            if (find_path(item, target, path))
                return true;
            path->len = mark;
        }
    } else if (json_is_object(at)) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)at, key, value) {
            size_t mark = path->len;
            buf_push(path, '/');
            for (const char *c = key; *c; c++)
                buf_printf(path, *c == '~' ? "~0" : *c == '/' ? "~1" : "%c", *c);
            if (find_path(value, target, path))
                return true;
            path->len = mark;
        }
    }
    return false;
}

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
    struct buf path = {0};
    bool found = r->current && r->current != r->document && find_path(r->document, r->current, &path) && path.len < 200;
    r->status =
        found ? fail(r->err, status, "%s, at #%.*s", text, (int)path.len, path.ptr) : fail(r->err, status, "%s", text);
    buf_release(&path);
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
