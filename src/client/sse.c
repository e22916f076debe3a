/* sse.c - see sse.h. */
#include "client/sse.h"

static enum status take_line(struct sse *s, struct str line, sse_take *take, void *context, struct error *err) {
    if (line.len > 0 && line.ptr[line.len - 1] == '\r')
        line.len--;
    if (line.len == 0) {
        if (!s->has_data)
            return OK;
        s->has_data = false;
        enum status st = take(context, buf_view(&s->data), err);
        buf_clear(&s->data);
        return st;
    }
    if (!str_starts(line, STR("data:")))
        return OK;
    size_t skip = line.len > 5 && line.ptr[5] == ' ' ? 6 : 5;
    if (s->has_data)
        buf_push(&s->data, '\n');
    s->has_data = true;
    buf_append(&s->data, line.ptr + skip, line.len - skip);
    return OK;
}

/* A line that lies whole in the bytes is not copied. */
enum status sse_feed(struct sse *s, const char *bytes, size_t n, sse_take *take, void *context, struct error *err) {
    const char *end = bytes + n;
    while (bytes < end) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        size_t part = (size_t)((newline ? newline : end) - bytes);
        if (s->line.len + s->data.len + part > SSE_MAX_EVENT)
            return fail(err, ERR_LIMIT, "the server sent an event of more than %d MiB", SSE_MAX_EVENT >> 20);
        if (!newline || s->line.len > 0)
            buf_append(&s->line, bytes, part);
        if (!newline)
            return OK;
        struct str line = s->line.len > 0 ? buf_view(&s->line) : (struct str){bytes, part};
        enum status st = take_line(s, line, take, context, err);
        buf_clear(&s->line);
        TRY(st);
        bytes = newline + 1;
    }
    return OK;
}

void sse_release(struct sse *s) {
    buf_release(&s->line);
    buf_release(&s->data);
    *s = (struct sse){0};
}
