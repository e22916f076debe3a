/* jinja_unicode.c - see jinja_unicode.h. */
#include "jinja/values/jinja_unicode.h"

#include <stddef.h>
#include <utf8proc.h>

struct cp_range {
    int32_t first, last;
};

struct cp_case {
    int32_t from, to[3]; // zeros at the end
};

#include "jinja/values/jinja_unicode.inc"

static bool in_ranges(const struct cp_range *ranges, size_t n, int32_t cp) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && cp >= ranges[low].first;
}
#define IN(ranges, cp) in_ranges(ranges, sizeof ranges / sizeof ranges[0], cp)

static const struct cp_case *find_case(const struct cp_case *cases, size_t n, int32_t cp) {
    for (size_t i = 0; i < n; i++)
        if (cases[i].from == cp)
            return &cases[i];
    return NULL;
}

bool cp_is_space(int32_t cp) {
    if (cp < 0x80)
        return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool cp_is_line_end(int32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

bool cp_is_alpha(int32_t cp) {
    utf8proc_category_t c = utf8proc_category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool cp_is_decimal(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND; }

int cp_decimal_value(int32_t cp) {
    for (size_t i = 0; i < sizeof decimal_zeros / sizeof decimal_zeros[0]; i++)
        if (cp >= decimal_zeros[i] && cp <= decimal_zeros[i] + 9)
            return cp - decimal_zeros[i];
    return -1;
}

bool cp_is_digit(int32_t cp) { return cp_is_decimal(cp) || IN(digit_not_decimal, cp); }

bool cp_is_numeric(int32_t cp) {
    utf8proc_category_t c = utf8proc_category(cp);
    return (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) || IN(numeric_letter, cp);
}

bool cp_is_alnum(int32_t cp) { return cp_is_alpha(cp) || cp_is_numeric(cp) || cp_is_digit(cp); }

bool cp_is_upper(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_LU || IN(upper_not_lu, cp); }
bool cp_is_lower(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_LL || IN(lower_not_ll, cp); }
bool cp_is_title(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_LT; }
bool cp_is_cased(int32_t cp) { return cp_is_upper(cp) || cp_is_lower(cp) || cp_is_title(cp); }

bool cp_is_case_ignorable(int32_t cp) {
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
    }
    // Word_Break MidLetter, MidNumLet and Single_Quote.
    switch (cp) {
    case '\'':
    case '.':
    case ':':
    case 0xB7:
    case 0x387:
    case 0x55F:
    case 0x5F4:
    case 0x2018:
    case 0x2019:
    case 0x2024:
    case 0x2027:
    case 0xFE13:
    case 0xFE52:
    case 0xFE55:
    case 0xFF07:
    case 0xFF0E:
    case 0xFF1A: return true;
    default: return false;
    }
}

bool cp_is_printable(int32_t cp) {
    if (cp < 0x7F)
        return cp >= 0x20;
    utf8proc_category_t c = utf8proc_category(cp);
    return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

bool cp_is_name_start(int32_t cp) {
    if (cp < 0x80)
        return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || cp == '_';
    return cp_is_alpha(cp) || utf8proc_category(cp) == UTF8PROC_CATEGORY_NL;
}

bool cp_is_name_continue(int32_t cp) {
    if (cp < 0x80)
        return cp_is_name_start(cp) || (cp >= '0' && cp <= '9');
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return cp_is_name_start(cp) || cp == 0xB7;
    }
}

static struct cp_run one(int32_t cp) { return (struct cp_run){{cp}, 1}; }

static struct cp_run special(const struct cp_case *c) {
    struct cp_run run = {{c->to[0], c->to[1], c->to[2]}, c->to[2] ? 3 : 2};
    return run;
}

struct cp_run cp_upper(int32_t cp) {
    if (cp < 0x80)
        return one(cp >= 'a' && cp <= 'z' ? cp - 32 : cp);
    const struct cp_case *c = find_case(special_upper, sizeof special_upper / sizeof special_upper[0], cp);
    return c ? special(c) : one(utf8proc_toupper(cp));
}

struct cp_run cp_lower(int32_t cp) {
    if (cp < 0x80)
        return one(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp);
    if (cp == 0x130) // the only one whose lower case is two code points
        return (struct cp_run){{'i', 0x307}, 2};
    return one(utf8proc_tolower(cp));
}

struct cp_run cp_title(int32_t cp) {
    if (cp < 0x80)
        return cp_upper(cp);
    const struct cp_case *c = find_case(special_title, sizeof special_title / sizeof special_title[0], cp);
    return c ? special(c) : one(utf8proc_totitle(cp));
}

struct cp_run cp_fold(int32_t cp) {
    if (cp < 0x80)
        return cp_lower(cp);
    utf8proc_int32_t to[4];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(cp, to, 4, UTF8PROC_CASEFOLD, &boundary);
    if (n < 1 || n > 4)
        return one(cp);
    struct cp_run run = {.n = (int)n};
    for (int i = 0; i < run.n; i++)
        run.cp[i] = to[i];
    return run;
}
