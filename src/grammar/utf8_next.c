/* utf8_next.c - well-formed UTF-8, byte by byte. See trie.h. */
#include "grammar/trie.h"

/* States: 1 to 3, that many continuation bytes; the first one is bounded behind E0, ED, F0, F4, and is told apart
 * behind E2. */
uint8_t utf8_next(uint8_t state, uint8_t b) {
    enum { BEHIND_E0 = 4, BEHIND_ED, BEHIND_F0, BEHIND_F4, BEHIND_E2 };
    bool continues = b >= 0x80 && b <= 0xBF;
    switch (state) {
    case UTF8_BETWEEN:
        if (b < 0x80)
            return UTF8_BETWEEN;
        if (b < 0xC2 || b > 0xF4)
            return UTF8_ILL;
        if (b < 0xE0)
            return 1;
        if (b < 0xF0)
            return b == 0xE0 ? BEHIND_E0 : b == 0xED ? BEHIND_ED : b == 0xE2 ? BEHIND_E2 : 2;
        return b == 0xF0 ? BEHIND_F0 : b == 0xF4 ? BEHIND_F4 : 3;
    case 1:
    case 2:
    case 3: return continues ? (uint8_t)(state - 1) : UTF8_ILL;
    case UTF8_PUNCTUATION: return continues ? UTF8_BETWEEN : UTF8_ILL;
    case BEHIND_E2: return b == 0x80 ? UTF8_PUNCTUATION : continues ? 1 : UTF8_ILL;
    case BEHIND_E0: return continues && b >= 0xA0 ? 1 : UTF8_ILL;
    case BEHIND_ED: return continues && b < 0xA0 ? 1 : UTF8_ILL;
    case BEHIND_F0: return continues && b >= 0x90 ? 2 : UTF8_ILL;
    case BEHIND_F4: return continues && b < 0x90 ? 2 : UTF8_ILL;
    default: return UTF8_ILL;
    }
}
