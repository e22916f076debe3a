/* buf.h - a growing byte buffer. `(struct buf){0}` is empty and valid; buf_release frees it.
 *
 * After any call ptr[len] == '\0' once something was appended, so a text buffer can be used as a C
 * string; len does not count that byte.
 *
 * A buffer without a budget ends the process where there is no memory. One with a budget drops what it has no room for,
 * and the budget says so. */
#pragma once

#include "base/budget.h"
#include "base/str.h"

struct buf {
    char *ptr;
    size_t len, cap;
    struct budget *budget; // NULL: none; borrowed, and kept by buf_release
};

void buf_release(struct buf *b);
static inline void buf_clear(struct buf *b) {
    b->len = 0;
    if (b->ptr)
        b->ptr[0] = '\0';
}
bool buf_reserve(struct buf *b,
                 size_t extra); // room for `extra` more bytes and the NUL; false where the budget has none
void buf_append(struct buf *b, const void *bytes, size_t n);
void buf_push(struct buf *b, char c);
void buf_int(struct buf *b,
             int64_t n); // in decimal; a stream's text is made of so many that printf would cost as much as sending
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void buf_str(struct buf *b, struct str s) { buf_append(b, s.ptr, s.len); }
static inline struct str buf_view(const struct buf *b) { return (struct str){b->ptr ? b->ptr : "", b->len}; }

/* Appends s as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD each. What some readers of JSON
 * lines take for a line end (U+0085, U+2028, U+2029) is written as an escape, as control characters are. */
void buf_json_string(struct buf *b, struct str s);
