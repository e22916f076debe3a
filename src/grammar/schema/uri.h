/* uri.h - the little of RFC 3986 that $id and $ref need. Bytes in, bytes out: nothing is fetched. */
#pragma once

#include "base/buf.h"

/* Appends the target of `reference`, read where `base` (absolute, or empty) holds, without a fragment. */
void uri_join(struct buf *out, struct str base, struct str reference);

/* What is behind '#' (ptr is NULL where there is none); *without is what is before it. Both are views. */
struct str uri_fragment(struct str reference, struct str *without);

/* Appends s with %XX as bytes. */
void uri_unescape(struct buf *out, struct str s);
