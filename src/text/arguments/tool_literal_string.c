/* tool_literal_string.c - see tool_literal.h: strings, of JSON, of Python and of a quote of the model's own. */
#include "text/arguments/tool_literal.h"

#include "base/status.h"
#include "text/tools/tool_marks.h"

#include <ctype.h>

// ---- characters -------------------------------------------------------------------------------------------------

static void put_char(struct buf *out, char c) {
    if ((unsigned char)c < 0x20 && c != '\n' && c != '\t')
        buf_printf(out, "\\u%04x", c);
    else if (c == '\n')
        buf_str(out, STR("\\n"));
    else if (c == '\t')
        buf_str(out, STR("\\t"));
    else {
        if (c == '"' || c == '\\')
            buf_push(out, '\\');
        buf_push(out, c);
    }
}

static size_t hex_digits(struct str s, size_t at, size_t most) {
    size_t n = 0;
    while (n < most && at + n < s.len && isxdigit((unsigned char)s.ptr[at + n]))
        n++;
    return n;
}

/* \x41, \u0041, \U0001F600. Returns the escape's length; 0: more is needed; 1: it is none. */
static size_t put_hex(struct str s, size_t want, struct buf *out) {
    size_t have = hex_digits(s, 2, want);
    if (have < want)
        return s.len == 2 + have ? 0 : 1;
    uint32_t cp = 0;
    for (size_t i = 0; i < want; i++)
        cp = cp << 4 | (uint32_t)(isdigit((unsigned char)s.ptr[2 + i]) ? s.ptr[2 + i] - '0' : (s.ptr[2 + i] | 32) - 87);
    if (cp > 0x10FFFF)
        return 1;
    if (want == 4)
        buf_append(out, s.ptr, 2 + want); // as it is
    else if (cp > 0xFFFF)
        buf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + (cp & 0x3FF));
    else
        buf_printf(out, "\\u%04x", cp);
    return 2 + want;
}

/* \7, \101: three digits at most. */
static size_t put_octal(struct str s, bool ended, struct buf *out) {
    unsigned n = 1, value = 0;
    for (; n < 4 && n < s.len && s.ptr[n] >= '0' && s.ptr[n] <= '7'; n++)
        value = value * 8 + (unsigned)(s.ptr[n] - '0');
    if (n < 4 && n == s.len && !ended)
        return 0;
    buf_printf(out, "\\u%04x", value);
    return n;
}

/* A line end that is no part of the string. */
static size_t skip_line_end(struct str s, bool ended) {
    if (s.ptr[1] == '\r' && s.len == 2 && !ended)
        return 0;
    return s.ptr[1] == '\r' && s.len > 2 && s.ptr[2] == '\n' ? 3 : 2;
}

/* The escape at s, of which JSON's are kept and Python's are made JSON's. Returns its length; 0: more is needed. */
static size_t put_escape(const struct literal *l, struct str s, struct buf *out) {
    if (s.len < 2)
        return 0;
    char c = s.ptr[1];
    bool python = !l->strict && l->quote.len == 0;
    size_t want = c == 'u' ? 4 : c == 'x' ? 2 : c == 'U' && !l->strict ? 8 : 0, n = 1;
    if (want)
        n = put_hex(s, want, out);
    else if (!l->strict && c >= '0' && c <= '7')
        n = put_octal(s, l->ended, out);
    else if (!l->strict && (c == '\n' || c == '\r'))
        n = skip_line_end(s, l->ended);
    if (n != 1)
        return n;
    if (c && strchr("\"\\/bfnrt", c) && !(python && c == '/')) {
        buf_append(out, s.ptr, 2);
        return 2;
    }
    bool bell = c == 'a' && !l->strict, tab = c == 'v' && !l->strict;
    if (c == '\'' || bell || tab) {
        buf_str(out, bell ? STR("\\u0007") : tab ? STR("\\u000b") : STR("'"));
        return 2;
    }
    buf_str(out, STR("\\\\")); // none of either: a backslash
    return 1;
}

/* A backslash of r'...': it stays, and so does what it keeps from ending the string. */
static size_t put_raw(struct str s, bool ended, struct buf *out) {
    if (s.len < 2 && !ended)
        return 0;
    bool both = s.len > 1 && strchr("\\'\"", s.ptr[1]) && s.ptr[1];
    put_char(out, '\\');
    if (both)
        put_char(out, s.ptr[1]);
    return both ? 2 : 1;
}

/* To Python a source's line ends are all the same. */
static size_t put_line_end(struct str s, bool ended, struct buf *out) {
    if (s.len == 1 && !ended)
        return 0;
    buf_str(out, STR("\\n"));
    return s.len > 1 && s.ptr[1] == '\n' ? 2 : 1;
}

/* The character at s, whatever it takes. Returns its length; 0: more is needed. */
static size_t put_next(const struct literal *l, struct str s, struct buf *out) {
    if (s.ptr[0] == '\\' && l->quoted_by)
        return l->raw ? put_raw(s, l->ended, out) : put_escape(l, s, out);
    if (s.ptr[0] == '\r' && l->triple)
        return put_line_end(s, l->ended, out);
    put_char(out, s.ptr[0]);
    return 1;
}

// ---- ends -------------------------------------------------------------------------------------------------------

size_t literal_quotes(const struct literal *l, struct str s) {
    size_t n = 1;
    while (n < 3 && n < s.len && s.ptr[n] == s.ptr[0])
        n++;
    if (n < 3 && n == s.len && !l->ended && !l->strict)
        return 0;
    return n == 3 && !l->strict ? 3 : 1;
}

/* Reads on within a string, by Python's rules. MARK_NO: it cannot be one; MARK_MORE: the text ends here. */
static enum mark_match look_inside(struct literal_look *k, struct str s) {
    size_t n_quotes = k->triple ? 3 : 1, n = 0;
    struct str rest = str_from(s, k->at);
    if (rest.ptr[0] == '\\') {
        k->at += rest.len > 1 ? 2 : 0;
        return rest.len > 1 ? MARK_YES : MARK_MORE;
    }
    if ((rest.ptr[0] == '\n' || rest.ptr[0] == '\r') && !k->triple)
        return MARK_NO;
    while (n < n_quotes && n < rest.len && rest.ptr[n] == k->quote)
        n++;
    if (n == n_quotes) {
        k->quote = '\0';
        k->n++;
    } else if (n && n == rest.len)
        return MARK_MORE;
    k->at += n == n_quotes ? n : 1;
    return MARK_YES;
}

static bool is_quote(char c) { return c == '"' || c == '\''; }

/* Whether a string begins at s, perhaps behind a prefix. */
static enum mark_match begins_string(struct str s) {
    if (is_quote(s.ptr[0]))
        return MARK_YES;
    if (!literal_is_prefix(s.ptr[0]))
        return MARK_NO;
    return s.len < 2 ? MARK_MORE : is_quote(s.ptr[1]) ? MARK_YES : MARK_NO;
}

/* Whether brackets may close from byte `at` on: those that are open, with what may stand behind the last of them. */
static enum mark_match may_close(const struct literal *l, struct str text, size_t at) {
    size_t most = at + LITERAL_DEPTH + LITERAL_BLANKS;
    for (int depth = l->depth; at < MIN(text.len, most); at++) {
        char c = text.ptr[at];
        if (depth == 0) // a call is over
            return l->is_value || isalnum((unsigned char)c) || (c && strchr("'\")}\\.:=+-*/%", c)) ? MARK_NO : MARK_YES;
        if (is_blank(c))
            continue;
        if (c != literal_closer(l->open[depth - 1]))
            return c && strchr(",<[", c) ? MARK_YES : MARK_NO;
        depth--;
    }
    return l->ended || at == most ? MARK_YES : MARK_MORE;
}

/* Whether the mark of the structure at text's byte `at` may follow the running string. */
static enum mark_match may_follow(const struct literal *l, struct str text, size_t at) {
    char c = text.ptr[at], in = l->depth ? l->open[l->depth - 1] : '\0';
    if (c == ':' || c == '=')
        return l->is_key && (c == '=' ? in == '(' : in == '{' || in == LITERAL_BRACE) ? MARK_YES : MARK_NO;
    return strchr(",<[", c) ? MARK_YES : may_close(l, text, at);
}

static enum mark_match open_part(const struct literal *l, struct literal_look *k, struct str s) {
    enum mark_match m = begins_string(str_from(s, k->at));
    if (m != MARK_YES)
        return m;
    size_t at = k->at + !is_quote(s.ptr[k->at]), n = literal_quotes(l, str_from(s, at));
    if (n == 0)
        return MARK_MORE;
    k->quote = s.ptr[at];
    k->triple = n == 3;
    k->at = at + n;
    return MARK_YES;
}

/* Whether strings alone follow, up to a mark of the structure: then the running one and they are one text. */
static enum mark_match look_for_parts(const struct literal *l, struct literal_look *k, struct str s) {
    while (k->at < s.len && k->at < LITERAL_WORD_BYTES) {
        char c = s.ptr[k->at];
        enum mark_match m = MARK_YES;
        if (k->quote)
            m = look_inside(k, s);
        else if (is_blank(c))
            k->at++;
        else if (c && strchr(",:)]}", c))
            return may_follow(l, s, k->at);
        else
            m = open_part(l, k, s);
        if (m != MARK_YES)
            return m == MARK_MORE && l->ended ? MARK_NO : m;
    }
    return l->ended || k->at < s.len ? MARK_NO : MARK_MORE;
}

/* The same, of a string that begins at text's byte `next`, behind a quote at byte `at`. */
static enum mark_match parts_follow(struct literal *l, struct str text, size_t at, size_t next) {
    enum mark_match m = begins_string(str_from(text, next));
    if (m == MARK_MORE && !l->ended)
        return MARK_MORE;
    if (m != MARK_YES || l->taken + at < l->looked_till)
        return MARK_NO;
    if (l->look.at == 0)
        l->look = (struct literal_look){.at = next - at};
    m = look_for_parts(l, &l->look, str_from(text, at));
    if (m == MARK_MORE)
        return MARK_MORE;
    if (m == MARK_YES)
        l->n_parts = l->look.n + 1;
    else // what of this looked like ends of parts is none: no byte is looked at twice
        l->looked_till = l->taken + at + l->look.at;
    l->look.at = 0;
    return m;
}

/* Whether Python's quote at text's byte `at` ends a string: models forget to escape those within ('don't'), and behind
 * one that ends a string follows what may stand there, or a mark. MARK_MORE: text is too short to say. */
static enum mark_match ends_string(struct literal *l, struct str text, size_t at) {
    if (l->strict || !l->quoted_by || l->n_parts)
        return MARK_YES;
    size_t behind = at + (l->triple ? 3 : 1), next = behind + leading_blanks(str_from(text, behind));
    if (next - behind >= LITERAL_BLANKS)
        return MARK_YES;
    if (next == text.len)
        return l->ended ? MARK_YES : MARK_MORE;
    if (text.ptr[next] && strchr(",:=)]}<[", text.ptr[next]))
        return may_follow(l, text, next);
    return parts_follow(l, text, at, next);
}

/* The string is over, but for parts that follow: the first of them begins, which is whole in text. */
static void next_part(struct literal *l, struct str text, size_t *used) {
    *used += leading_blanks(str_from(text, *used));
    l->raw = (text.ptr[*used] | 32) == 'r';
    *used += !is_quote(text.ptr[*used]);
    l->quoted_by = text.ptr[*used];
    l->triple = literal_quotes(l, str_from(text, *used)) == 3;
    *used += l->triple ? 3 : 1;
}

static struct str closing_quote(const struct literal *l) {
    static const struct str quotes[] = {{"\"\"\"", 3}, {"'''", 3}};
    return l->quoted_by ? str_to(quotes[l->quoted_by == '\''], l->triple ? 3 : 1) : l->quote;
}

enum literal_result literal_string(struct literal *l, struct str text, size_t *used, struct buf *out) {
    while (*used < text.len) {
        struct str rest = str_from(text, *used), close = closing_quote(l);
        enum mark_match ends = str_starts(rest, close) ? ends_string(l, text, *used) : MARK_NO;
        if (ends == MARK_MORE)
            return LITERAL_MORE;
        if (ends == MARK_YES) {
            *used += close.len;
            l->n_parts -= l->n_parts > 0;
            if (l->n_parts) {
                next_part(l, text, used);
                continue;
            }
            buf_push(out, '"');
            l->state = l->is_key ? LITERAL_COLON : LITERAL_COMMA_OR_END;
            return LITERAL_DONE;
        }
        if (rest.len < close.len && str_starts(close, rest))
            return LITERAL_MORE;
        size_t n = put_next(l, rest, out);
        if (n == 0)
            return LITERAL_MORE;
        *used += n;
    }
    return LITERAL_MORE;
}
