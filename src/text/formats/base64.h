/* base64.h - RFC 4648 base64, as tiktoken's ranks and compiled rules are written. */
#pragma once

#include "base/buf.h"

/* Appends the decoded bytes; false, with nothing appended, when text is not base64. Padding may be missing. */
bool base64_decode(struct str text, struct buf *out);

/* Appends the text of n bytes, with padding. */
void base64_encode(const void *bytes, size_t n, struct buf *out);
