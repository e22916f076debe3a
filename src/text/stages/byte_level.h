/* byte_level.h - the alphabet of byte-level vocabularies: each of the 256 bytes written as a visible character.
 *
 * Printable Latin-1 stands for itself; the other 68 bytes are U+0100, U+0101 ... in order (GPT-2's encoder). */
#pragma once

#include "base/buf.h"

uint32_t byte_level_char(uint8_t byte);

/* -1 for a character outside the alphabet. */
int byte_level_byte(uint32_t cp);

/* Appends s with every byte written as its character. */
void byte_level_append(struct buf *out, struct str s);

/* Appends the bytes that the characters of text stand for; false, with nothing appended, when one of them is
 * outside the alphabet. text is valid UTF-8. */
bool byte_level_decode(struct buf *out, struct str text);
