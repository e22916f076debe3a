/* regex_class.c - escapes and classes of regular expressions. See regex_tree.h. */
#include "grammar/front/regex_tree.h"

static int hex_value(int32_t c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static enum status take_hex(struct regex_reader *r, int n, int32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++) {
        int v = hex_value(regex_peek(r));
        if (v < 0)
            return regex_bad(r, ERR_FORMAT, "an escape wants %d hexadecimal digits", n);
        regex_take(r);
        *out = *out * 16 + v;
    }
    return OK;
}

/* \uXXXX, with the second half of a surrogate pair, or \u{X...}. */
static enum status take_u(struct regex_reader *r, int32_t *c) {
    if (!regex_take_if(r, '{')) {
        TRY(take_hex(r, 4, c));
        if (*c < 0xD800 || *c > 0xDBFF ||
            !str_starts((struct str){r->text.ptr + r->at, r->text.len - r->at}, STR("\\u")))
            return OK;
        size_t mark = r->at;
        int32_t low;
        r->at += 2;
        TRY(take_hex(r, 4, &low));
        if (low >= 0xDC00 && low <= 0xDFFF)
            *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
        else
            r->at = mark;
        return OK;
    }
    *c = 0;
    for (int v; (v = hex_value(regex_peek(r))) >= 0 && *c <= 0x10FFFF; regex_take(r))
        *c = *c * 16 + v;
    if (*c > 0x10FFFF || !regex_take_if(r, '}'))
        return regex_bad(r, ERR_FORMAT, "\\u{...} is no character");
    return OK;
}

static enum status take_property(struct regex_reader *r, struct char_ranges *set, bool negated) {
    struct str name = {r->text.ptr + r->at, 1};
    if (regex_take_if(r, '{')) {
        negated ^= regex_take_if(r, '^');
        name.ptr = r->text.ptr + r->at;
        const char *end = memchr(name.ptr, '}', r->text.len - r->at);
        if (!end)
            return regex_bad(r, ERR_FORMAT, "\\p{ without }");
        name.len = (size_t)(end - name.ptr);
        r->at += name.len + 1;
    } else if (regex_take(r) == REGEX_NO_CHAR)
        return regex_bad(r, ERR_FORMAT, "\\p wants a category");
    struct char_ranges these = {0};
    bool known = char_ranges_put_property(&these, name);
    if (known && negated)
        char_ranges_put_others(set, &these);
    else
        for (size_t i = 0; i < these.n; i++)
            char_ranges_put(set, these.at[i].first, these.at[i].last);
    char_ranges_release(&these);
    return known ? OK
                 : regex_bad(r, ERR_UNSUPPORTED, "\\p{%.*s} is not known: general categories of Unicode are",
                             STR_ARG(name));
}

static void put_escape(struct regex_reader *r, struct char_ranges *set, char which) {
    struct char_ranges these = {0};
    bool negated = which < 'a';
    char_ranges_put_escape(&these, negated ? (char)(which + 32) : which, r->flags & REGEX_ECMA);
    if (negated)
        char_ranges_put_others(set, &these);
    else
        for (size_t i = 0; i < these.n; i++)
            char_ranges_put(set, these.at[i].first, these.at[i].last);
    char_ranges_release(&these);
}

static enum status take_octal(struct regex_reader *r, int32_t *c) {
    *c = 0;
    for (int i = 0; i < 2 && regex_peek(r) >= '0' && regex_peek(r) <= '7'; i++)
        *c = *c * 8 + (regex_take(r) - '0');
    return OK;
}

enum status regex_escape(struct regex_reader *r, struct char_ranges *set, bool in_class, int32_t *c) {
    int32_t e = regex_take(r);
    static const char names[] = "n\nr\rt\tf\fv\v";
    *c = REGEX_NO_CHAR;
    for (size_t i = 0; i + 1 < sizeof names; i += 2)
        if (e == names[i])
            return *c = names[i + 1], OK;
    switch (e) {
    case REGEX_NO_CHAR: return regex_bad(r, ERR_FORMAT, "it ends with a backslash");
    case 'a':
    case 'e': return *c = e == 'a' ? 7 : 27, OK;
    case 'd':
    case 'D':
    case 'w':
    case 'W':
    case 's':
    case 'S': return put_escape(r, set, (char)e), OK;
    case 'p':
    case 'P': return take_property(r, set, e == 'P');
    case 'x': return take_hex(r, 2, c);
    case 'u': return take_u(r, c);
    case 'U': return take_hex(r, 8, c);
    case '0': return take_octal(r, c);
    case 'c':
        e = regex_take(r);
        if ((e | 32) < 'a' || (e | 32) > 'z')
            return regex_bad(r, ERR_FORMAT, "\\c wants a letter");
        return *c = e & 31, OK;
    case 'b':
        if (in_class)
            return *c = 8, OK;
        return regex_bad(r, ERR_UNSUPPORTED, "the word boundary \\b is not enforced");
    case 'B': return regex_bad(r, ERR_UNSUPPORTED, "the word boundary \\B is not enforced");
    case 'k': return regex_bad(r, ERR_UNSUPPORTED, "the backreference \\k is not enforced: it is no regular language");
    default: break;
    }
    if (e >= '1' && e <= '9')
        return regex_bad(r, ERR_UNSUPPORTED, "the backreference \\%c is not enforced: it is no regular language",
                         (int)e);
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z'))
        return regex_bad(r, ERR_UNSUPPORTED, "the escape \\%c is not known", (int)e);
    return *c = e, OK;
}

/* [: :] behind its [; false, with nothing taken, where there is none. */
static bool take_posix(struct regex_reader *r, struct char_ranges *set) {
    struct str rest = {r->text.ptr + r->at, r->text.len - r->at};
    if (rest.len < 4 || rest.ptr[0] != ':')
        return false;
    for (size_t i = 1; i + 1 < rest.len && i < 12; i++)
        if (rest.ptr[i] == ':' && rest.ptr[i + 1] == ']') {
            if (!char_ranges_put_posix(set, (struct str){rest.ptr + 1, i - 1}))
                return false;
            r->at += i + 2;
            return true;
        }
    return false;
}

/* One end of a range, or a class within the class (*c = REGEX_NO_CHAR). */
static enum status take_class_char(struct regex_reader *r, struct char_ranges *set, int32_t *c) {
    *c = regex_take(r);
    if (*c == REGEX_NO_CHAR)
        return regex_bad(r, ERR_FORMAT, "[ without ]");
    if (*c == '\\')
        return regex_escape(r, set, true, c);
    if (*c == '[' && take_posix(r, set)) {
        if (r->flags & REGEX_ECMA)
            return regex_bad(r, ERR_UNSUPPORTED, "[[:name:]] is no class here: other readers take it for characters");
        *c = REGEX_NO_CHAR;
    }
    return OK;
}

enum status regex_class(struct regex_reader *r, struct char_ranges *set) {
    struct char_ranges these = {0};
    bool negated = regex_take_if(r, '^'), first = true;
    enum status st = OK;
    size_t joined_at = 1 << 14; // as many \W are one
    for (; st == OK && (regex_peek(r) != ']' || (first && !(r->flags & REGEX_ECMA))); first = false) {
        int32_t low, high;
        if (these.n >= joined_at) {
            char_ranges_join(&these);
            joined_at = MAX(joined_at, 2 * these.n);
        }
        st = regex_check(r);
        if (st == OK)
            st = take_class_char(r, &these, &low);
        if (st != OK || low == REGEX_NO_CHAR)
            continue;
        high = low;
        size_t mark = r->at;
        if (regex_take_if(r, '-')) {
            if (regex_peek(r) == ']')
                r->at = mark;
            else
                st = take_class_char(r, &these, &high);
            if (st == OK && high == REGEX_NO_CHAR) { // [a-\d]: the hyphen is one
                char_ranges_put(&these, '-', '-');
                high = low;
            }
            if (st == OK && high < low)
                st = regex_bad(r, ERR_FORMAT, "a range of a class ends before it begins");
        }
        if (st == OK)
            char_ranges_put(&these, (uint32_t)low, (uint32_t)high);
    }
    regex_take(r);
    if (st == OK && r->flags & REGEX_IGNORE_CASE)
        char_ranges_fold(&these);
    if (st == OK && negated)
        char_ranges_put_others(set, &these);
    else
        for (size_t i = 0; i < these.n && st == OK; i++)
            char_ranges_put(set, these.at[i].first, these.at[i].last);
    char_ranges_release(&these);
    return st;
}

rx_id regex_rx_of(struct regex_reader *r, struct char_ranges *set) {
    rx_id out = rx_class(r->rx, set->at, set->n);
    char_ranges_release(set);
    return out;
}
