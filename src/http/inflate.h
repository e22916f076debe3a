/* inflate.h - a body that was sent compressed (gzip, or zlib, which HTTP calls deflate), piece by piece over zlib.
 *
 *     struct inflater *f = inflater_open();
 *     inflater_give(f, bytes, n);                               // borrowed until they are used up
 *     while (inflater_take(f, piece, sizeof piece, &n_piece) && n_piece > 0) ...
 *     if (!inflater_ended(f)) ...                               // after the last piece: it was cut short
 *
 * What comes out is the caller's to bound: a byte may become a thousand. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { INFLATER_BYTES = 64 << 10 }; // that one holds, about

struct inflater;

struct inflater *inflater_open(void);
void inflater_free(struct inflater *f); // NULL is fine

void inflater_give(struct inflater *f, const char *bytes, size_t n);

/* Up to `size` bytes of what comes out; none: all that was given is used up. False: it is not compressed so. */
bool inflater_take(struct inflater *f, char *out, size_t size, size_t *n);

/* Whether what was given ends where compressed data does. */
bool inflater_ended(const struct inflater *f);
