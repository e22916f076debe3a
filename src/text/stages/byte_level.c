/* byte_level.c - see byte_level.h. */
#include "text/stages/byte_level.h"

#include "text/regex/unicode.h"

static bool stands_for_itself(uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* The bytes that do not stand for themselves: 0x00..0x20, 0x7F..0xA0, 0xAD. */
uint32_t byte_level_char(uint8_t byte) {
    if (stands_for_itself(byte))
        return byte;
    return 0x100u + (byte <= 0x20 ? byte : byte <= 0xA0 ? 0x21u + byte - 0x7Fu : 0x43u);
}

int byte_level_byte(uint32_t cp) {
    if (cp < 0x100)
        return stands_for_itself(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)cp - 0x100;
    if (cp <= 0x142)
        return (int)cp - 0x121 + 0x7F;
    return cp == 0x143 ? 0xAD : -1;
}

void byte_level_append(struct buf *out, struct str s) {
    buf_reserve(out, s.len * 2);
    for (size_t i = 0; i < s.len; i++)
        buf_push_code_point(out, byte_level_char((uint8_t)s.ptr[i]));
}

bool byte_level_decode(struct buf *out, struct str text) {
    size_t mark = out->len;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        i += (size_t)utf8_step(text.ptr + i, &cp);
        int byte = byte_level_byte(cp);
        if (byte < 0) {
            out->len = mark;
            return false;
        }
        buf_push(out, (char)byte);
    }
    return true;
}
