/* unicode.c - see unicode.h. */
#include "text/regex/unicode.h"

#include <utf8proc.h>

/* How many bytes at s form the longest start of a well-formed code point, when s begins none. At least 1. */
static size_t ill_formed_length(struct str s) {
    unsigned char a = (unsigned char)s.ptr[0];
    size_t wanted = a >= 0xC2 && a <= 0xDF ? 2 : a >= 0xE0 && a <= 0xEF ? 3 : a >= 0xF0 && a <= 0xF4 ? 4 : 1;
    size_t n = 1;
    for (; n < wanted && n < s.len; n++) {
        unsigned char c = (unsigned char)s.ptr[n];
        unsigned char low = 0x80, high = 0xBF;
        if (n == 1) { // the second byte is what keeps out overlong forms, surrogates and what is past U+10FFFF
            low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
            high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
        }
        if (c < low || c > high)
            break;
    }
    return n;
}

size_t utf8_append_lossy(struct buf *out, struct str s, bool more) {
    size_t tail = more ? utf8_incomplete_tail(s) : 0;
    size_t at = 0, end = s.len - tail, plain = 0;
    while (at < end) {
        int32_t cp;
        int n = utf8_decode(s.ptr + at, end - at, &cp);
        if (cp >= 0) {
            at += (size_t)n;
            continue;
        }
        buf_append(out, s.ptr + plain, at - plain);
        buf_str(out, STR("\xEF\xBF\xBD"));
        at += ill_formed_length((struct str){s.ptr + at, end - at});
        plain = at;
    }
    buf_append(out, s.ptr + plain, at - plain);
    return end;
}

#define O 0
#define S CHAR_SPACE
#define R (CHAR_SPACE | CHAR_NEWLINE)
#define N CHAR_NUMBER
#define U (CHAR_LETTER | CHAR_UPPER)
#define L (CHAR_LETTER | CHAR_LOWER)
const uint8_t char_bits_ascii[128] = {
    O, O, O, O, O, O, O, O, O, S, R, S, S, R, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, //
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O, //
    O, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, O, O, O, O, O, //
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, //
};
#undef O
#undef S
#undef R
#undef N
#undef U
#undef L

static const uint8_t bits_of_category[] = {
    [UTF8PROC_CATEGORY_LU] = CHAR_LETTER | CHAR_UPPER,
    [UTF8PROC_CATEGORY_LT] = CHAR_LETTER | CHAR_UPPER,
    [UTF8PROC_CATEGORY_LL] = CHAR_LETTER | CHAR_LOWER,
    [UTF8PROC_CATEGORY_LM] = CHAR_LETTER | CHAR_UPPER | CHAR_LOWER,
    [UTF8PROC_CATEGORY_LO] = CHAR_LETTER | CHAR_UPPER | CHAR_LOWER,
    [UTF8PROC_CATEGORY_MN] = CHAR_MARK | CHAR_UPPER | CHAR_LOWER,
    [UTF8PROC_CATEGORY_MC] = CHAR_MARK | CHAR_UPPER | CHAR_LOWER,
    [UTF8PROC_CATEGORY_ME] = CHAR_MARK | CHAR_UPPER | CHAR_LOWER,
    [UTF8PROC_CATEGORY_ND] = CHAR_NUMBER,
    [UTF8PROC_CATEGORY_NL] = CHAR_NUMBER,
    [UTF8PROC_CATEGORY_NO] = CHAR_NUMBER,
    [UTF8PROC_CATEGORY_ZS] = CHAR_SPACE,
    [UTF8PROC_CATEGORY_ZL] = CHAR_SPACE,
    [UTF8PROC_CATEGORY_ZP] = CHAR_SPACE,
    [UTF8PROC_CATEGORY_CO] = 0,
};

unsigned char_bits_wide(uint32_t cp) {
    return cp == 0x85 ? CHAR_SPACE : bits_of_category[utf8proc_category((utf8proc_int32_t)cp)];
}

bool char_is_space(uint32_t cp) { return char_bits(cp) & CHAR_SPACE; }
bool char_is_number(uint32_t cp) { return char_bits(cp) & CHAR_NUMBER; }
bool char_is_mark(uint32_t cp) { return char_bits(cp) & CHAR_MARK; }

bool char_is_word(uint32_t cp) {
    if (char_bits(cp) & (CHAR_LETTER | CHAR_MARK))
        return true;
    // Alphabetic, though symbols: circled and squared letters
    if ((cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
        (cp >= 0x1F170 && cp <= 0x1F189))
        return true;
    if (cp == 0x200C || cp == 0x200D)
        return true;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC;
}

bool char_is_punctuation(uint32_t cp) {
    if (cp < 128)
        return cp > ' ' && cp < 127 && !(char_bits_ascii[cp] & (CHAR_LETTER | CHAR_NUMBER));
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool char_is_cjk_ideograph(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) || (cp >= 0x20000 && cp <= 0x2A6DF) ||
           (cp >= 0x2A700 && cp <= 0x2CEAF) || (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

void buf_push_code_point(struct buf *out, uint32_t cp) {
    char utf8[4];
    buf_append(out, utf8, (size_t)utf8_encode(cp, utf8));
}

void char_append_lower(struct buf *out, uint32_t cp) {
    if (cp == 0x130) // the one letter whose lower case is two code points
        buf_str(out, STR("i\xCC\x87"));
    else
        buf_push_code_point(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}
