/* regex_class.c - characters and sets of characters in the pattern translation; see regex_parse.h.
 *
 * PCRE2's classes neither nest nor intersect, so a class that does becomes an alternation with lookaheads. The
 * common flat ones stay classes, which PCRE2 compiles to something fast. */
#include "text/regex/regex_parse.h"

#include <ctype.h>
#include <stdio.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Unicode's White_Space. PCRE2's own \s has U+180E besides. */
#define SPACE_ITEMS \
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define HEX_ITEMS "0-9A-Fa-f"
#define GRAPH_ITEMS "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"

void regex_put_code_point(struct buf *out, uint32_t cp) {
    if (cp < 0x80 && isalnum((int)cp))
        buf_push(out, (char)cp);
    else
        buf_printf(out, "\\x{%X}", cp);
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

/* Up to max_digits digits of the base at p->at; the number of them. */
static int take_number(struct regex_parser *p, int base, int max_digits, uint32_t *out) {
    int n = 0;
    *out = 0;
    for (; n < max_digits && digit_value(regex_peek(p)) < base; n++, p->at++)
        *out = *out * (uint32_t)base + (uint32_t)digit_value(regex_peek(p));
    return n;
}

static enum status take_hex_escape(struct regex_parser *p, uint32_t *cp, struct error *err) {
    if (!regex_accept(p, "{")) {
        if (take_number(p, 16, 2, cp) == 0)
            *cp = 'x';
        return OK;
    }
    if (take_number(p, 16, 8, cp) == 0 || !regex_accept(p, "}"))
        return fail(err, ERR_UNSUPPORTED, "\\x{ needs one hexadecimal number and }");
    return OK;
}

/* The character that an escape stands for; the letter after the backslash was consumed. */
static enum status take_escaped(struct regex_parser *p, char c, uint32_t *cp, struct error *err) {
    switch (c) {
    case 't': *cp = '\t'; return OK;
    case 'n': *cp = '\n'; return OK;
    case 'r': *cp = '\r'; return OK;
    case 'f': *cp = '\f'; return OK;
    case 'v': *cp = '\v'; return OK;
    case 'a': *cp = '\a'; return OK;
    case 'e': *cp = 0x1B; return OK;
    case 'b': *cp = '\b'; return OK; // in a class only
    case 'x': return take_hex_escape(p, cp, err);
    case 'u': return take_number(p, 16, 4, cp) == 4 ? OK : fail(err, ERR_FORMAT, "\\u needs four hexadecimal digits");
    case 'c':
        if (regex_at_end(p))
            return fail(err, ERR_FORMAT, "\\c needs a letter");
        *cp = p->pattern.ptr[p->at++] & 0x1F;
        return OK;
    case '0': take_number(p, 8, 2, cp); return OK;
    default: *cp = (unsigned char)c; return OK;
    }
}

enum status regex_parse_character(struct regex_parser *p, bool in_class, uint32_t *cp, bool *is_one,
                                  struct error *err) {
    *is_one = false;
    char c = regex_peek(p);
    if (!in_class && c && strchr("()[.^$?*+|", c))
        return OK;
    if (c != '\\' || p->at + 1 == p->pattern.len) {
        int32_t decoded;
        int n = utf8_decode(p->pattern.ptr + p->at, p->pattern.len - p->at, &decoded);
        if (decoded < 0)
            return fail(err, ERR_FORMAT, "the pattern is not UTF-8");
        *cp = (uint32_t)decoded;
        *is_one = c != '\\';
        p->at += *is_one ? (size_t)n : 0;
        return OK;
    }
    char e = p->pattern.ptr[p->at + 1];
    if (strchr("wWdDsShH", e) && e)
        return OK;
    if ((e == 'p' || e == 'P') && p->at + 2 < p->pattern.len && p->pattern.ptr[p->at + 2] == '{')
        return OK;
    if (!in_class && e && strchr("AZzGXKbBNORkgyYMC123456789", e))
        return OK;
    if (in_class && e && strchr("MC123456789", e))
        return fail(err, ERR_UNSUPPORTED, "\\%c in a class is not supported", e);
    if ((unsigned char)e >= 0x80) { // an escaped character outside ASCII is that character
        p->at++;
        return regex_parse_character(p, true, cp, is_one, err);
    }
    *is_one = true;
    p->at += 2;
    TRY(take_escaped(p, e, cp, err));
    return *cp <= 0x10FFFF && (*cp < 0xD800 || *cp > 0xDFFF) ? OK
                                                             : fail(err, ERR_FORMAT, "there is no character U+%X", *cp);
}

static bool pcre2_knows(const char *pattern) {
    int code;
    size_t offset;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    pcre2_code_free(re);
    return re;
}

/* Names that are not PCRE2's, or mean something else there. Spaces, _ and - are left out. */
static const struct {
    const char *name, *items;
    bool negated;
} property_names[] = {
    {"any", "\\p{Any}", false},
    {"assigned", "\\p{Cn}", true},
    {"ascii", "\\x{0}-\\x{7F}", false},
    {"alnum", "\\p{Alphabetic}\\p{Nd}", false},
    {"alpha", "\\p{Alphabetic}", false},
    {"blank", "\\t\\p{Zs}", false},
    {"cntrl", "\\p{Cc}", false},
    {"digit", "\\p{Nd}", false},
    {"graph", GRAPH_ITEMS, false},
    {"lower", "\\p{Lowercase}\\x{295}", false},
    {"print", GRAPH_ITEMS "\\p{Zs}", false},
    {"space", SPACE_ITEMS, false},
    {"upper", "\\p{Uppercase}", false},
    {"xdigit", HEX_ITEMS, false},
    {"other", "\\p{C}", false},
    {"control", "\\p{Cc}", false},
    {"format", "\\p{Cf}", false},
    {"unassigned", "\\p{Cn}", false},
    {"privateuse", "\\p{Co}", false},
    {"surrogate", "\\p{Cs}", false},
    {"letter", "\\p{L}", false},
    {"casedletter", "\\p{L&}", false},
    {"lc", "\\p{L&}", false},
    {"lowercaseletter", "\\p{Ll}", false},
    {"modifierletter", "\\p{Lm}", false},
    {"otherletter", "\\p{Lo}", false},
    {"titlecaseletter", "\\p{Lt}", false},
    {"uppercaseletter", "\\p{Lu}", false},
    {"mark", "\\p{M}", false},
    {"combiningmark", "\\p{M}", false},
    {"spacingmark", "\\p{Mc}", false},
    {"enclosingmark", "\\p{Me}", false},
    {"nonspacingmark", "\\p{Mn}", false},
    {"number", "\\p{N}", false},
    {"decimalnumber", "\\p{Nd}", false},
    {"letternumber", "\\p{Nl}", false},
    {"othernumber", "\\p{No}", false},
    {"punctuation", "\\p{P}", false},
    {"connectorpunctuation", "\\p{Pc}", false},
    {"dashpunctuation", "\\p{Pd}", false},
    {"closepunctuation", "\\p{Pe}", false},
    {"finalpunctuation", "\\p{Pf}", false},
    {"initialpunctuation", "\\p{Pi}", false},
    {"otherpunctuation", "\\p{Po}", false},
    {"openpunctuation", "\\p{Ps}", false},
    {"symbol", "\\p{S}", false},
    {"currencysymbol", "\\p{Sc}", false},
    {"modifiersymbol", "\\p{Sk}", false},
    {"mathsymbol", "\\p{Sm}", false},
    {"othersymbol", "\\p{So}", false},
    {"separator", "\\p{Z}", false},
    {"lineseparator", "\\p{Zl}", false},
    {"paragraphseparator", "\\p{Zp}", false},
    {"spaceseparator", "\\p{Zs}", false},
};

/* Appends the items of the named property. A name that is a script is one in the plain sense, not by script
 * extensions as PCRE2 would take it. */
static bool put_property(const char *name, bool in_bracket, struct buf *items, bool *negated) {
    if (strcmp(name, "punct") == 0) { // \p{Punct} is P; [:punct:] is P and S
        buf_str(items, in_bracket ? STR("\\p{P}\\p{S}") : STR("\\p{P}"));
        return true;
    }
    if (strcmp(name, "word") == 0) {
        buf_str(items, in_bracket ? STR(REGEX_WORD_IN_CLASS) : STR(REGEX_WORD));
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(property_names); i++)
        if (strcmp(name, property_names[i].name) == 0) {
            buf_str(items, str_of(property_names[i].items));
            *negated ^= property_names[i].negated;
            return true;
        }
    char category[80], script[80];
    snprintf(category, sizeof category, "\\p{%s}", name);
    snprintf(script, sizeof script, "\\p{sc:%s}", name);
    const char *known = pcre2_knows(script) ? script : pcre2_knows(category) ? category : NULL;
    if (known)
        buf_str(items, str_of(known));
    return known;
}

/* The name up to `closing`, small letters and digits only, the rest left out. */
static enum status take_property_name(struct regex_parser *p, const char *closing, char name[static 64],
                                      struct error *err) {
    size_t n = 0, begin = p->at;
    while (!regex_at_end(p) && !regex_accept(p, closing)) {
        char c = p->pattern.ptr[p->at++];
        if (isalnum((unsigned char)c) && n < 63)
            name[n++] = (char)tolower((unsigned char)c);
        else if (!strchr(" _-", c))
            n = 63;
    }
    name[n] = '\0';
    if (n == 0 || n == 63)
        return fail(err, ERR_UNSUPPORTED, "the character property %.*s is not known",
                    (int)MIN(p->at - begin, (size_t)64), p->pattern.ptr + begin);
    return OK;
}

static enum status take_property(struct regex_parser *p, struct buf *items, bool *negated, struct error *err) {
    char name[64];
    *negated ^= regex_accept(p, "^");
    TRY(take_property_name(p, "}", name, err));
    return put_property(name, false, items, negated)
               ? OK
               : fail(err, ERR_UNSUPPORTED, "the character property \\p{%s} is not known", name);
}

enum status regex_parse_shorthand(struct regex_parser *p, bool in_class, struct buf *items, bool *negated, bool *is_set,
                                  struct error *err) {
    *is_set = true;
    *negated = false;
    char c = p->at + 1 < p->pattern.len ? p->pattern.ptr[p->at + 1] : '\0';
    p->at += 2;
    switch (c) {
    case 'W':
    case 'D':
    case 'S':
    case 'H':
    case 'P': *negated = true; break;
    default: break;
    }
    switch (c) {
    case 'w': buf_str(items, in_class ? STR(REGEX_WORD_IN_CLASS) : STR(REGEX_WORD)); return OK;
    case 'W': buf_str(items, in_class ? STR(REGEX_WORD_IN_CLASS) : STR(REGEX_WORD)); return OK;
    case 'd':
    case 'D': buf_str(items, STR("\\p{Nd}")); return OK;
    case 's':
    case 'S': buf_str(items, STR(SPACE_ITEMS)); return OK;
    case 'h':
    case 'H': buf_str(items, STR(HEX_ITEMS)); return OK;
    case 'p':
    case 'P':
        if (regex_accept(p, "{"))
            return take_property(p, items, negated, err);
        break;
    default: break;
    }
    p->at -= 2;
    *is_set = false;
    return OK;
}

/* A set while it is read: flat class items, and patterns of one character each for what has no flat form. */
struct char_set {
    struct buf items, patterns; // patterns: "|a|b"
};

static void char_set_release(struct char_set *s) {
    buf_release(&s->items);
    buf_release(&s->patterns);
}

/* An alternation for one character must be atomic: two alternatives may match the same one, and trying the second
 * when what follows fails would take exponential time. */
static void put_union(struct buf *out, const struct char_set *s) {
    struct str patterns = buf_view(&s->patterns), items = buf_view(&s->items);
    if (patterns.len == 0 && items.len > 0)
        buf_printf(out, "[%.*s]", STR_ARG(items));
    else if (items.len > 0)
        buf_printf(out, "(?>[%.*s]%.*s)", STR_ARG(items), STR_ARG(patterns));
    else if (patterns.len > 0)
        buf_printf(out, "(?>%.*s)", (int)patterns.len - 1, patterns.ptr + 1);
    else
        buf_str(out, STR("(?!)")); // the empty set
}

static void add_negated(struct char_set *s, struct str items) { buf_printf(&s->patterns, "|[^%.*s]", STR_ARG(items)); }

/* [:alpha:] or [:^alpha:], when it is one. */
static enum status parse_bracket(struct regex_parser *p, struct char_set *s, bool *is_bracket, struct error *err) {
    size_t begin = p->at;
    *is_bracket = false;
    if (!regex_accept(p, "[:"))
        return OK;
    size_t at = p->at;
    while (at < p->pattern.len && (isalpha((unsigned char)p->pattern.ptr[at]) || p->pattern.ptr[at] == '^'))
        at++;
    if (!str_starts((struct str){p->pattern.ptr + at, p->pattern.len - at}, STR(":]"))) {
        p->at = begin;
        return OK;
    }
    *is_bracket = true;
    bool negated = regex_accept(p, "^");
    char name[64];
    TRY(take_property_name(p, ":]", name, err));
    struct buf items = {0};
    bool known = put_property(name, true, &items, &negated);
    if (known && negated)
        add_negated(s, buf_view(&items));
    else if (known)
        buf_str(&s->items, buf_view(&items));
    buf_release(&items);
    return known ? OK : fail(err, ERR_UNSUPPORTED, "the character class [:%s:] is not known", name);
}

static enum status parse_class_set(struct regex_parser *p, struct char_set *s, bool *is_set, struct error *err) {
    struct buf items = {0};
    bool negated;
    enum status st = regex_parse_shorthand(p, true, &items, &negated, is_set, err);
    if (st == OK && *is_set && negated)
        add_negated(s, buf_view(&items));
    else if (st == OK && *is_set)
        buf_str(&s->items, buf_view(&items));
    buf_release(&items);
    return st;
}

/* a, a-z, or a- at the end. */
static enum status parse_range(struct regex_parser *p, struct char_set *s, struct error *err) {
    uint32_t low, high;
    bool is_one;
    TRY(regex_parse_character(p, true, &low, &is_one, err));
    if (!is_one)
        return fail(err, ERR_FORMAT, "a class is not closed");
    high = low;
    bool dash = regex_peek(p) == '-' && p->at + 1 < p->pattern.len && p->pattern.ptr[p->at + 1] != ']' &&
                p->pattern.ptr[p->at + 1] != '[';
    if (dash) {
        p->at++;
        TRY(regex_parse_character(p, true, &high, &is_one, err));
        if (!is_one || high < low)
            return fail(err, ERR_FORMAT, "a range in a class has no proper end");
    }
    regex_put_code_point(&s->items, low);
    if (high != low) {
        buf_push(&s->items, '-');
        regex_put_code_point(&s->items, high);
    }
    return OK;
}

static enum status parse_item(struct regex_parser *p, struct char_set *s, struct error *err) {
    bool done = false;
    if (regex_peek(p) == '[') {
        TRY(parse_bracket(p, s, &done, err));
        if (done)
            return OK;
        buf_push(&s->patterns, '|');
        return regex_parse_class(p, &s->patterns, err);
    }
    if (regex_peek(p) == '\\')
        TRY(parse_class_set(p, s, &done, err));
    return done ? OK : parse_range(p, s, err);
}

/* Items up to "]" or "&&", which is left; the union goes to out. */
static enum status parse_operand(struct regex_parser *p, struct buf *out, bool *flat, struct error *err) {
    struct char_set s = {0};
    enum status st = OK;
    bool may_close = false; // a ] in the first place is a literal
    while (st == OK && !regex_at_end(p) && !(regex_peek(p) == ']' && may_close) &&
           !str_starts((struct str){p->pattern.ptr + p->at, p->pattern.len - p->at}, STR("&&"))) {
        st = parse_item(p, &s, err);
        may_close = true;
    }
    *flat = s.patterns.len == 0 && s.items.len > 0;
    if (st == OK)
        put_union(out, &s);
    char_set_release(&s);
    return st;
}

/* The operands of && : lookaheads for all, then one character. */
static enum status parse_operands(struct regex_parser *p, struct buf *out, bool *flat, struct error *err) {
    TRY(parse_operand(p, out, flat, err));
    while (regex_accept(p, "&&")) {
        struct buf left = {0};
        buf_str(&left, buf_view(out));
        buf_clear(out);
        buf_printf(out, "(?:(?=%s)", left.ptr);
        buf_release(&left);
        TRY(regex_peek(p) == ']' ? fail(err, ERR_UNSUPPORTED, "a class ends with &&")
                                 : parse_operand(p, out, flat, err));
        buf_push(out, ')');
        *flat = false;
    }
    return OK;
}

enum status regex_parse_class(struct regex_parser *p, struct buf *out, struct error *err) {
    p->at++;
    bool negated = regex_accept(p, "^"), flat;
    if (++p->depth > REGEX_NEST_MAX)
        return fail(err, ERR_LIMIT, "classes nest more than %d deep", REGEX_NEST_MAX);
    struct buf inner = {0};
    enum status st = parse_operands(p, &inner, &flat, err);
    p->depth--;
    if (st == OK && !regex_accept(p, "]"))
        st = fail(err, ERR_FORMAT, "a class is not closed");
    if (st == OK && !negated)
        buf_str(out, buf_view(&inner));
    else if (st == OK && flat)
        buf_printf(out, "[^%s", inner.ptr + 1);
    else if (st == OK)
        buf_printf(out, "(?:(?!%s)\\p{Any})", inner.ptr);
    buf_release(&inner);
    return st;
}
