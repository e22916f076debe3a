/* str.c - see str.h. */
#include "base/str.h"

int utf8_decode(const char *s, size_t n, int32_t *out) {
    const unsigned char *p = (const unsigned char *)s;
    unsigned char c = p[0];
    *out = -1;
    if (c < 0x80) {
        *out = c;
        return 1;
    }
    int len = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || (size_t)len > n)
        return 1;
    int32_t cp = c & (0x7F >> len);
    for (int i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 1;
        cp = cp << 6 | (p[i] & 0x3F);
    }
    if ((len == 3 && (cp < 0x800 || (cp >= 0xD800 && cp <= 0xDFFF))) || (len == 4 && (cp < 0x10000 || cp > 0x10FFFF)))
        return 1;
    *out = cp;
    return len;
}

bool code_point_steers(int32_t cp) {
    if (cp < 0x20 || (cp >= 0x7F && cp < 0xA0))
        return true;
    return cp == 0x61C || cp == 0x200E || cp == 0x200F || (cp >= 0x2028 && cp <= 0x202E) ||
           (cp >= 0x2066 && cp <= 0x2069) || (cp >= 0xE0000 && cp <= 0xE007F);
}

int utf8_encode(uint32_t cp, char *out) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_valid(struct str s) {
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        if (cp < 0)
            return false;
    }
    return true;
}

size_t utf8_incomplete_tail(struct str s) {
    for (size_t back = 1; back <= 3 && back <= s.len; back++) {
        const unsigned char *p = (const unsigned char *)s.ptr + s.len - back;
        if ((*p & 0xC0) == 0x80)
            continue;
        size_t want = *p >= 0xF5 ? 1 : *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : *p >= 0xC2 ? 2 : 1;
        if (want <= back)
            return 0;
        // The second byte already decides overlong forms and surrogates: those can never be completed.
        if (back >= 2) {
            unsigned char second = p[1];
            if ((*p == 0xE0 && second < 0xA0) || (*p == 0xED && second > 0x9F) || (*p == 0xF0 && second < 0x90) ||
                (*p == 0xF4 && second > 0x8F))
                return 0;
        }
        return back;
    }
    return 0;
}

int str_distance(struct str a, struct str b) {
    enum { N = 64 };
    if (a.len > N - 1 || b.len > N - 1)
        return N;
    int rows[3][N + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= b.len; j++)
        last[j] = (int)j;
    for (size_t i = 1; i <= a.len; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= b.len; j++) {
            int best = last[j - 1] + (a.ptr[i - 1] != b.ptr[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a.ptr[i - 1] == b.ptr[j - 2] && a.ptr[i - 2] == b.ptr[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[b.len];
}
