/* base64.c - see base64.h. */
#include "text/formats/base64.h"

static int digit(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_decode(struct str text, struct buf *out) {
    size_t mark = out->len;
    for (int padding = 0; padding < 2 && text.len > 0 && text.ptr[text.len - 1] == '='; padding++)
        text.len--;
    bool good = text.len % 4 != 1;
    uint32_t bits = 0;
    int n_bits = 0;
    for (size_t i = 0; good && i < text.len; i++) {
        int d = digit(text.ptr[i]);
        good = d >= 0;
        bits = bits << 6 | (uint32_t)(d & 63);
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            buf_push(out, (char)(bits >> n_bits & 0xFF));
        }
    }
    if (!good)
        out->len = mark;
    return good;
}

void base64_encode(const void *bytes, size_t n, struct buf *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t bits = (uint32_t)at[i] << 16 | (left > 1 ? (uint32_t)at[i + 1] << 8 : 0) | (left > 2 ? at[i + 2] : 0);
        buf_push(out, digits[bits >> 18]);
        buf_push(out, digits[bits >> 12 & 63]);
        buf_push(out, left > 1 ? digits[bits >> 6 & 63] : '=');
        buf_push(out, left > 2 ? digits[bits & 63] : '=');
    }
}
