/* unicode.h - characters as the tokenizer's stations see them: stepping through UTF-8 that is known to be valid,
 * replacing what is not, and the sets of characters that rules speak of.
 *
 * Categories and normal forms are utf8proc's; a character newer than its Unicode counts as unassigned. */
#pragma once

#include "base/buf.h"

/* The code point at p, which begins a well-formed one; *cp is set, its length returned. */
static inline int utf8_step(const char *p, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80)
        return *cp = s[0], 1;
    if (s[0] < 0xE0)
        return *cp = (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu), 2;
    if (s[0] < 0xF0)
        return *cp = (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu), 3;
    return *cp = (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu), 4;
}

/* The length of the code point that begins with this byte. */
static inline int utf8_length(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* How many characters begin in s. */
static inline size_t utf8_count(struct str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

/* The start of the code point that ends at p; p is past the start of the text. */
static inline const char *utf8_back(const char *p) {
    do
        p--;
    while (((unsigned char)*p & 0xC0) == 0x80);
    return p;
}

/* Appends s with U+FFFD for every maximal ill-formed run (Unicode 3.9, "substitution of maximal subparts"). A
 * sequence that is only cut off at the end of s is left alone when `more` may follow; returns how many bytes of
 * s were used. */
size_t utf8_append_lossy(struct buf *out, struct str s, bool more);

/* What a character is to the splitting rules: a set of these bits. */
enum char_bits {
    CHAR_LETTER = 1,  // L
    CHAR_NUMBER = 2,  // N
    CHAR_SPACE = 4,   // White_Space
    CHAR_NEWLINE = 8, // CR, LF
    CHAR_UPPER = 16,  // Lu Lt Lm Lo M: may begin a word of the o200k rules
    CHAR_LOWER = 32,  // Ll Lm Lo M: may go on in it
    CHAR_MARK = 64,   // M
};
extern const uint8_t char_bits_ascii[128];
unsigned char_bits_wide(uint32_t cp); // for cp >= 128
static inline unsigned char_bits(uint32_t cp) { return cp < 128 ? char_bits_ascii[cp] : char_bits_wide(cp); }

bool char_is_space(uint32_t cp);         // White_Space
bool char_is_word(uint32_t cp);          // \w of Rust's regex crate: Alphabetic, M, Nd, Pc, Join_Control
bool char_is_number(uint32_t cp);        // N
bool char_is_punctuation(uint32_t cp);   // P, and the ASCII symbols, as BERT has it
bool char_is_mark(uint32_t cp);          // M
bool char_is_cjk_ideograph(uint32_t cp); // the blocks that BERT parts into single characters

/* Appends the lower case of cp, by itself (no final sigma). */
void char_append_lower(struct buf *out, uint32_t cp);
void buf_push_code_point(struct buf *out, uint32_t cp);
