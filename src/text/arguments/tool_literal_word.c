/* tool_literal_word.c - see tool_literal.h: numbers and names of constants. */
#include "base/status.h"
#include "text/arguments/tool_literal.h"
#include "text/tools/tool_marks.h"

#include <ctype.h>

static size_t digits(struct str s, size_t at) {
    size_t n = at;
    while (n < s.len && isdigit((unsigned char)s.ptr[n]))
        n++;
    return n - at;
}

static bool is_number(struct str s) {
    size_t at = s.len && s.ptr[0] == '-', n = digits(s, at);
    if (n == 0 || (n > 1 && s.ptr[at] == '0'))
        return false;
    at += n;
    if (at < s.len && s.ptr[at] == '.') {
        n = digits(s, at + 1);
        if (n == 0)
            return false;
        at += 1 + n;
    }
    if (at < s.len && (s.ptr[at] | 32) == 'e') {
        at++;
        if (at < s.len && (s.ptr[at] == '+' || s.ptr[at] == '-'))
            at++;
        n = digits(s, at);
        if (n == 0)
            return false;
        at += n;
    }
    return at == s.len;
}

static bool digit_at(struct str s, size_t i) { return i < s.len && isdigit((unsigned char)s.ptr[i]); }

/* 1_000, .5 and 5. are numbers to Python; 07 is none, but models write months so. No sign. */
static bool put_decimal(struct str s, struct buf *out) {
    struct buf number = {0};
    bool first = true, good = s.len && (digit_at(s, 0) || s.ptr[0] == '.');
    for (size_t i = 0; i < s.len && good; i++) {
        char c = s.ptr[i];
        bool between = c == '_' && i && digit_at(s, i - 1) && digit_at(s, i + 1);
        bool leading = first && c == '0' && i + 1 < s.len && (digit_at(s, i + 1) || s.ptr[i + 1] == '_');
        good = c != '_' || between;
        if (c == '_' || leading)
            continue;
        if (c == '.' && (i == 0 || !digit_at(s, i - 1)))
            buf_push(&number, '0');
        buf_push(&number, c);
        if (c == '.' && !digit_at(s, i + 1))
            buf_push(&number, '0');
        first = false;
    }
    good = good && is_number(buf_view(&number));
    if (good)
        buf_str(out, buf_view(&number));
    buf_release(&number);
    return good;
}

enum { BASED_DIGITS = 3500, LIMBS = 480, LIMB = 1000000000 }; // 16^3500 < LIMB^480; Python prints about as much

static int digit_value(char c) {
    return isdigit((unsigned char)c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
}

/* limbs = limbs * base + digit */
static size_t add_digit(uint32_t *limbs, size_t n, uint64_t base, uint64_t digit) {
    for (size_t i = 0; i < n; i++) {
        uint64_t x = limbs[i] * base + digit;
        limbs[i] = (uint32_t)(x % LIMB);
        digit = x / LIMB;
    }
    if (digit)
        limbs[n++] = (uint32_t)digit;
    return n;
}

/* 0x1F, 0o17, 0b101. No sign. */
static bool put_based(struct str s, struct buf *out) {
    char c = s.len > 2 && s.ptr[0] == '0' ? (char)(s.ptr[1] | 32) : '\0';
    int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    uint32_t limbs[LIMBS];
    size_t n = 0;
    if (base == 0 || s.len > BASED_DIGITS)
        return false;
    for (size_t i = 2; i < s.len; i++) {
        if (s.ptr[i] == '_' && s.ptr[i - 1] != '_' && i + 1 < s.len)
            continue;
        int value = digit_value(s.ptr[i]);
        if (value >= base)
            return false;
        n = add_digit(limbs, n, (uint64_t)base, (uint64_t)value);
    }
    buf_printf(out, "%u", n ? limbs[n - 1] : 0);
    for (size_t i = n; i-- > 1;)
        buf_printf(out, "%09u", limbs[i - 1]);
    return true;
}

static bool python_number(struct str s, struct buf *out) {
    struct buf number = {0};
    bool sign = s.len && (s.ptr[0] == '+' || s.ptr[0] == '-');
    struct str size = sign ? str_from(s, 1 + leading_blanks(str_from(s, 1))) : s;
    bool is = put_based(size, &number) || put_decimal(size, &number);
    if (is && s.ptr[0] == '-')
        buf_push(out, '-');
    if (is)
        buf_str(out, buf_view(&number));
    buf_release(&number);
    return is;
}

bool literal_word(struct str word, bool strict, struct buf *out) {
    static const struct {
        struct str word, json;
        bool python;
    } names[] = {{{"true", 4}, {"true", 4}, false},  {{"false", 5}, {"false", 5}, false},
                 {{"null", 4}, {"null", 4}, false},  {{"True", 4}, {"true", 4}, true},
                 {{"False", 5}, {"false", 5}, true}, {{"None", 4}, {"null", 4}, true}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (str_eq(word, names[i].word) && !(strict && names[i].python)) {
            buf_str(out, names[i].json);
            return true;
        }
    if (is_number(word)) {
        buf_str(out, word);
        return true;
    }
    return !strict && python_number(word, out);
}
