/* buf.c - see buf.h. */
#include "base/buf.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void buf_release(struct buf *b) {
    budget_free(b->budget, b->ptr, b->cap);
    *b = (struct buf){.budget = b->budget};
}

bool buf_reserve(struct buf *b, size_t extra) {
    size_t want;
    BUG_IF(!size_add(b->len, extra, &want) || want > SIZE_MAX / 4);
    if (want + 1 <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < want + 1)
        cap *= 2;
    void *grown = b->ptr;
    if (!budget_resize(b->budget, &grown, b->cap, cap))
        return false;
    b->ptr = grown;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *bytes, size_t n) {
    if (!buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->ptr + b->len, bytes, n);
    b->len += n;
    b->ptr[b->len] = '\0';
}

void buf_push(struct buf *b, char c) {
    if (b->len + 2 > b->cap && !buf_reserve(b, 1))
        return;
    b->ptr[b->len++] = c;
    b->ptr[b->len] = '\0';
}

void buf_int(struct buf *b, int64_t n) {
    char digits[24], *at = digits + sizeof digits;
    uint64_t left = n < 0 ? -(uint64_t)n : (uint64_t)n;
    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (n < 0)
        *--at = '-';
    buf_append(b, at, (size_t)(digits + sizeof digits - at));
}

/* Into the room there is; once more if that was too little. */
void buf_printf(struct buf *b, const char *format, ...) {
    va_list args, again;
    if (!buf_reserve(b, 0))
        return;
    size_t room = b->cap - b->len;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(b->ptr + b->len, room, format, args);
    va_end(args);
    BUG_IF(n < 0);
    bool fits = (size_t)n < room;
    if (!fits && (fits = buf_reserve(b, (size_t)n)))
        vsnprintf(b->ptr + b->len, (size_t)n + 1, format, again);
    va_end(again);
    if (fits)
        b->len += (size_t)n;
    else
        b->ptr[b->len] = '\0';
}

/* How many bytes stand for themselves in a JSON string. */
static size_t plain_run(struct str s) {
    size_t n = 0;
    while (n < s.len && s.ptr[n] >= 0x20 && s.ptr[n] != '"' && s.ptr[n] != '\\' && (unsigned char)s.ptr[n] < 0x80)
        n++;
    return n;
}

void buf_json_string(struct buf *b, struct str s) {
    buf_reserve(b, s.len + 2);
    buf_push(b, '"');
    for (size_t i = 0; i < s.len;) {
        size_t run = plain_run((struct str){s.ptr + i, s.len - i});
        buf_append(b, s.ptr + i, run);
        i += run;
        if (i == s.len)
            break;
        unsigned char c = (unsigned char)s.ptr[i];
        if (c >= 0x80) {
            int32_t cp;
            int n = utf8_decode(s.ptr + i, s.len - i, &cp);
            if (cp < 0)
                buf_append(b, "\xEF\xBF\xBD", 3);
            else if (cp == 0x85 || cp == 0x2028 || cp == 0x2029)
                buf_printf(b, "\\u%04x", (unsigned)cp);
            else
                buf_append(b, s.ptr + i, (size_t)n);
            i += (size_t)n;
            continue;
        }
        switch (c) {
        case '"': buf_append(b, "\\\"", 2); break;
        case '\\': buf_append(b, "\\\\", 2); break;
        case '\n': buf_append(b, "\\n", 2); break;
        case '\r': buf_append(b, "\\r", 2); break;
        case '\t': buf_append(b, "\\t", 2); break;
        case '\b': buf_append(b, "\\b", 2); break;
        case '\f': buf_append(b, "\\f", 2); break;
        default: buf_printf(b, "\\u%04x", c);
        }
        i++;
    }
    buf_push(b, '"');
}
