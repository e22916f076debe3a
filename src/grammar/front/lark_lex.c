/* lark_lex.c - names, literals and special tokens of Lark's grammars. See lark_reader.h. */
#include "grammar/front/lark_reader.h"

#include <stdlib.h>

enum status lark_bad(const struct lark *l, enum status st, const char *what, struct str name) {
    size_t line = 1;
    for (size_t i = 0; i < l->at && i < l->text.len; i++)
        line += l->text.ptr[i] == '\n';
    return fail(l->err, st, "the Lark grammar, line %zu: %s%.*s", line, what, (int)MIN(name.len, 100), name.ptr);
}

char lark_peek(const struct lark *l) { return l->at < l->text.len ? l->text.ptr[l->at] : '\0'; }
struct str lark_rest(const struct lark *l) {
    return (struct str){l->text.ptr + l->at, l->text.len - l->at};
}

bool lark_take_if(struct lark *l, struct str text) {
    if (!str_starts(lark_rest(l), text))
        return false;
    l->at += text.len;
    return true;
}

void lark_skip(struct lark *l, bool lines) {
    while (l->at < l->text.len) {
        char c = lark_peek(l);
        if (c == '#' || str_starts(lark_rest(l), STR("//")))
            while (l->at < l->text.len && lark_peek(l) != '\n')
                l->at++;
        else if (c == ' ' || c == '\t' || c == '\f' || c == '\r' || (lines && c == '\n'))
            l->at++;
        else if (c == '\\' && (str_starts(lark_rest(l), STR("\\\n")) || str_starts(lark_rest(l), STR("\\\r\n"))))
            l->at += lark_rest(l).ptr[1] == '\r' ? 3 : 2;
        else
            return;
    }
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool in_name(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-'; }

struct str lark_take_name(struct lark *l) {
    size_t mark = l->at;
    while (lark_peek(l) == '!' || lark_peek(l) == '?')
        l->at++;
    size_t from = l->at;
    while (lark_peek(l) == '_')
        l->at++;
    if (!is_letter(lark_peek(l))) {
        l->at = mark;
        return (struct str){l->text.ptr + mark, 0};
    }
    // A hyphen is llguidance's; before > it is an alias' arrow.
    while (in_name(lark_peek(l)) && !str_starts(lark_rest(l), STR("->")))
        l->at++;
    return (struct str){l->text.ptr + from, l->at - from};
}

bool lark_is_terminal(struct str name) {
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] != '_')
            return name.ptr[i] >= 'A' && name.ptr[i] <= 'Z';
    return false;
}

enum status lark_take_int(struct lark *l, int32_t *out) {
    int64_t n = 0;
    if (lark_peek(l) < '0' || lark_peek(l) > '9')
        return lark_bad(l, ERR_FORMAT, "a number must stand here", lark_no_name);
    for (; lark_peek(l) >= '0' && lark_peek(l) <= '9'; l->at++)
        n = MIN(n * 10 + (lark_peek(l) - '0'), INT32_MAX);
    *out = (int32_t)n;
    return OK;
}

// ---- strings ----------------------------------------------------------------------------------------------------

static enum status take_hex(struct lark *l, int n, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++, l->at++) {
        char c = lark_peek(l);
        int v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (v < 0)
            return lark_bad(l, ERR_FORMAT, "an escape has too few hexadecimal digits", lark_no_name);
        *out = *out * 16 + (uint32_t)v;
    }
    if (*out > 0x10FFFF || (*out >= 0xD800 && *out <= 0xDFFF))
        return lark_bad(l, ERR_FORMAT, "an escape is no character", lark_no_name);
    return OK;
}

static enum status take_char(struct lark *l, uint32_t *out) {
    if (l->at >= l->text.len || lark_peek(l) == '\n')
        return lark_bad(l, ERR_FORMAT, "a string without its end", lark_no_name);
    int32_t c;
    if (lark_peek(l) != '\\') {
        l->at += (size_t)utf8_decode(l->text.ptr + l->at, l->text.len - l->at, &c);
        *out = (uint32_t)c;
        return OK;
    }
    static const char escapes[] = "n\nt\tr\rf\fv\va\ab\b\\\\\"\"''//";
    l->at++;
    char e = lark_peek(l);
    struct str name = {l->text.ptr + l->at, l->at < l->text.len};
    l->at++;
    if (e == 'x' || e == 'u' || e == 'U')
        return take_hex(l, e == 'x' ? 2 : e == 'u' ? 4 : 8, out);
    for (size_t i = 0; e && i + 1 < sizeof escapes; i += 2)
        if (e == escapes[i]) {
            *out = (unsigned char)escapes[i + 1];
            return OK;
        }
    return lark_bad(l, ERR_FORMAT, "an escape that is not known: \\", name);
}

/* The literal as a regular expression that ignores case, for the regex reader: each character by its number. */
static enum status caseless(struct lark *l, struct str text, rx_id *out) {
    struct buf pattern = {0};
    for (size_t i = 0; i < text.len;) {
        int32_t c;
        i += (size_t)utf8_decode(text.ptr + i, text.len - i, &c);
        buf_printf(&pattern, "\\u{%x}", (unsigned)c);
    }
    enum status st = regex_read_rx(ir_rx(l->ir), buf_view(&pattern), REGEX_IGNORE_CASE, out, l->err);
    buf_release(&pattern);
    return st;
}

enum status lark_read_string(struct lark *l, rx_id *out, uint32_t *only) {
    struct buf text = {0};
    enum status st = OK;
    size_t n = 0;
    l->at++;
    while (st == OK && lark_peek(l) != '"') {
        char bytes[4];
        st = take_char(l, only);
        if (st == OK)
            buf_append(&text, bytes, (size_t)utf8_encode(*only, bytes));
        n++;
    }
    if (n != 1)
        *only = UINT32_MAX;
    l->at++;
    bool ignore_case =
        st == OK && lark_peek(l) == 'i' && !in_name(l->at + 1 < l->text.len ? l->text.ptr[l->at + 1] : 0);
    l->at += ignore_case;
    if (st == OK && ignore_case)
        st = caseless(l, buf_view(&text), out);
    else if (st == OK)
        *out = rx_bytes(ir_rx(l->ir), buf_view(&text));
    buf_release(&text);
    return st;
}

enum status lark_read_regex(struct lark *l, rx_id *out) {
    struct buf pattern = {0};
    unsigned flags = 0;
    enum status st = OK;
    for (l->at++; st == OK && lark_peek(l) != '/'; l->at++) {
        if (l->at >= l->text.len || lark_peek(l) == '\n')
            st = lark_bad(l, ERR_FORMAT, "a regular expression without its /", lark_no_name);
        else if (str_starts(lark_rest(l), STR("\\/")))
            l->at++; // a slash needs no escape elsewhere
        else if (lark_peek(l) == '\\' && l->at + 1 < l->text.len)
            buf_push(&pattern, l->text.ptr[l->at++]);
        if (st == OK)
            buf_push(&pattern, lark_peek(l));
    }
    for (l->at++; st == OK && lark_peek(l) && strchr("imslux", lark_peek(l)); l->at++) {
        char f = lark_peek(l);
        if (f == 'm' || f == 'l' || f == 'x')
            st = lark_bad(l, ERR_UNSUPPORTED,
                          "this flag of a regular expression is not enforced: ", (struct str){l->text.ptr + l->at, 1});
        flags |= f == 'i' ? REGEX_IGNORE_CASE : f == 's' ? REGEX_DOT_ALL : 0;
    }
    struct error inner;
    if (st == OK && regex_read_rx(ir_rx(l->ir), buf_view(&pattern), flags, out, &inner) != OK)
        st = lark_bad(l, inner.status, inner.text, lark_no_name);
    buf_release(&pattern);
    return st;
}

// ---- special tokens, and JSON -----------------------------------------------------------------------------------

enum { MAX_TOKENS_NAMED = 4096 };

/* [1-3,5] behind its bracket. */
static enum status read_token_ids(struct lark *l, ebnf_id *out) {
    ebnf_id *parts = xcalloc(MAX_TOKENS_NAMED, sizeof *parts);
    size_t n = 0;
    enum status st = OK;
    do {
        int32_t first = 0, last;
        lark_skip(l, false);
        st = lark_take_int(l, &first);
        last = first;
        lark_skip(l, false);
        if (st == OK && lark_take_if(l, STR("-")))
            st = lark_take_int(l, &last);
        if (st == OK && (last < first || (size_t)(last - first) >= MAX_TOKENS_NAMED - n))
            st = lark_bad(l, ERR_LIMIT, "a list of too many tokens, or of none", lark_no_name);
        for (int32_t i = 0; st == OK && i <= last - first; i++) { // last may be the largest number
            ir_id token = ir_token(l->ir, (struct ir_token){.id = first + i});
            if (token == IR_NEVER)
                st = ir_check(l->ir, l->err); // a limit
            parts[n++] = ebnf_ir(l->ebnf, token);
        }
        lark_skip(l, false);
    } while (st == OK && lark_take_if(l, STR(",")));
    if (st == OK && !lark_take_if(l, STR("]>")))
        st = lark_bad(l, ERR_FORMAT, "a list of tokens without ]>", lark_no_name);
    if (st == OK)
        *out = ebnf_alt(l->ebnf, parts, n);
    free(parts);
    return st;
}

enum status lark_read_token(struct lark *l, ebnf_id *out) {
    if (lark_take_if(l, STR("<[")))
        return read_token_ids(l, out);
    struct str rest = lark_rest(l);
    const char *end = memchr(rest.ptr, '>', rest.len), *line = memchr(rest.ptr, '\n', rest.len);
    if (!end || (line && line < end))
        return lark_bad(l, ERR_FORMAT, "a special token without >", lark_no_name);
    struct ir_token token = {.name = {rest.ptr, (size_t)(end - rest.ptr) + 1}};
    l->at += token.name.len;
    *out = ebnf_ir(l->ebnf, ir_token(l->ir, token));
    return OK;
}

/* The length of the JSON object that a text begins with; 0 if there is none. */
static size_t object_length(struct str s) {
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && (c == '}' || c == ']') && (depth == 0 || --depth == 0))
            return i + 1;
        if (depth == 0 && !quoted)
            return 0;
    }
    return 0;
}

enum status lark_read_json(struct lark *l, ebnf_id *out) {
    lark_skip(l, true);
    struct str text = {lark_rest(l).ptr, object_length(lark_rest(l))};
    struct error inner;
    json_t *schema;
    if (text.len == 0)
        return lark_bad(l, ERR_FORMAT, "%json must be followed by an object", lark_no_name);
    if (jv_parse(text, "%json", 0, &schema, &inner) != OK)
        return lark_bad(l, inner.status, inner.text, lark_no_name);
    l->at += text.len;
    ir_id node = IR_NEVER;
    enum status st = schema_read(l->ir, schema, l->style, &node, l->err);
    json_decref(schema);
    if (st == OK)
        *out = ebnf_ir(l->ebnf, node);
    return st;
}
