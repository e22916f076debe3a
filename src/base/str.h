/* str.h - a borrowed run of bytes (usually UTF-8), and the few things done with one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Not owned, not NUL-terminated, may hold NUL bytes. Print with "%.*s", STR_ARG(s). */
struct str {
    const char *ptr;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
#define STR_ARG(s) (int)(s).len, (s).ptr

static inline struct str str_of(const char *c_string) { return (struct str){c_string, strlen(c_string)}; }
static inline bool str_eq(struct str a, struct str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}
static inline bool str_starts(struct str s, struct str prefix) {
    return s.len >= prefix.len && memcmp(s.ptr, prefix.ptr, prefix.len) == 0;
}
static inline bool str_ends(struct str s, struct str suffix) {
    return s.len >= suffix.len && memcmp(s.ptr + s.len - suffix.len, suffix.ptr, suffix.len) == 0;
}

/* Decodes the code point at s[0..n). Returns its length in bytes (1 to 4) and sets *out; for a byte that
 * does not start a valid sequence (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF) returns
 * 1 and sets *out to -1. n must be at least 1. */
int utf8_decode(const char *s, size_t n, int32_t *out);

/* Whether a terminal, or the order in which a line is read, is steered by cp: C0, DEL and C1 controls, what parts lines
 * and paragraphs, what turns the direction of text, and invisible tags. What is no character (-1) counts too. */
bool code_point_steers(int32_t cp);

/* Writes code point cp (0 to 0x10FFFF) to out, which holds at least 4 bytes; returns the length. */
int utf8_encode(uint32_t cp, char *out);

bool utf8_valid(struct str s);

/* The number of bytes at the end of s that are the start of a code point which more bytes could
 * complete (0 to 3). What comes before them may be shown to a reader. */
size_t utf8_incomplete_tail(struct str s);

/* The smallest number of single-byte edits (insert, delete, change, swap of neighbours) between a and b;
 * for "did you mean". Strings longer than 64 bytes count as different (returns 64). */
int str_distance(struct str a, struct str b);
