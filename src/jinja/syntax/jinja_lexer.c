/* jinja_lexer.c - see jinja_lexer.h. */
#include "jinja/syntax/jinja_lexer.h"

#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_unicode.h"

#include <stdlib.h>

static const struct {
    const char *sign;
    enum token_kind kind;
} operators[] = {
    // Longer ones first.
    {"//", TOKEN_FLOORDIV}, {"**", TOKEN_POW},   {"==", TOKEN_EQ},      {"!=", TOKEN_NE},      {">=", TOKEN_GE},
    {"<=", TOKEN_LE},       {"+", TOKEN_ADD},    {"-", TOKEN_SUB},      {"/", TOKEN_DIV},      {"*", TOKEN_MUL},
    {"%", TOKEN_MOD},       {"~", TOKEN_TILDE},  {"[", TOKEN_LBRACKET}, {"]", TOKEN_RBRACKET}, {"(", TOKEN_LPAREN},
    {")", TOKEN_RPAREN},    {"{", TOKEN_LBRACE}, {"}", TOKEN_RBRACE},   {">", TOKEN_GT},       {"<", TOKEN_LT},
    {"=", TOKEN_ASSIGN},    {".", TOKEN_DOT},    {":", TOKEN_COLON},    {"|", TOKEN_PIPE},     {",", TOKEN_COMMA},
    {";", TOKEN_SEMICOLON},
};

struct str token_kind_describe(enum token_kind kind) {
    switch (kind) {
    case TOKEN_EOF: return STR("end of template");
    case TOKEN_DATA: return STR("template data / text");
    case TOKEN_BLOCK_BEGIN: return STR("begin of statement block");
    case TOKEN_BLOCK_END: return STR("end of statement block");
    case TOKEN_VARIABLE_BEGIN: return STR("begin of print statement");
    case TOKEN_VARIABLE_END: return STR("end of print statement");
    case TOKEN_NAME: return STR("name");
    case TOKEN_STRING: return STR("string");
    case TOKEN_NUMBER: return STR("number");
    default: break;
    }
    for (size_t i = 0; i < ARRAY_LEN(operators); i++)
        if (operators[i].kind == kind)
            return str_of(operators[i].sign);
    return STR("token");
}

struct str token_describe(const struct token *t) {
    return t->kind == TOKEN_NAME ? t->text : token_kind_describe(t->kind);
}

static _Noreturn void syntax_error(struct lexer *l, const char *sentence, struct str about) {
    l->j->line = l->line;
    jinja_fail(l->j, ERR_FORMAT, "%s%.*s", sentence, STR_ARG(str_excerpt(about)));
}

/* \r\n and \r become \n; one newline at the end is dropped. */
static struct str normalize(struct jinja *j, struct str source) {
    char *out = jinja_alloc(j, source.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < source.len; i++) {
        if (source.ptr[i] == '\r' && i + 1 < source.len && source.ptr[i + 1] == '\n')
            continue;
        out[n++] = source.ptr[i] == '\r' ? '\n' : source.ptr[i];
    }
    if (n && out[n - 1] == '\n')
        n--;
    return (struct str){out, n};
}

void lexer_init(struct lexer *l, struct jinja *j, struct str source) {
    *l = (struct lexer){.j = j, .line = 1, .line_starting = true};
    if (!utf8_valid(source))
        jinja_fail(j, ERR_FORMAT, "the template is not valid UTF-8");
    l->src = normalize(j, source);
}

static struct str rest(const struct lexer *l) { return (struct str){l->src.ptr + l->at, l->src.len - l->at}; }
static bool looking_at(const struct lexer *l, const char *s) { return str_starts(rest(l), str_of(s)); }

/* Goes n bytes on. */
static void advance(struct lexer *l, size_t n) {
    for (size_t i = 0; i < n; i++)
        l->line += l->src.ptr[l->at + i] == '\n';
    l->at += n;
    if (n)
        l->line_starting = l->src.ptr[l->at - 1] == '\n';
}

static void skip_space(struct lexer *l) {
    struct str s = rest(l);
    advance(l, s.len - str_trim(s, true, false).len);
}

/* After the sign and the two characters that end a tag or comment. */
static void end_tag(struct lexer *l, char sign, bool trim_newline) {
    if (sign == '-')
        skip_space(l);
    else if (sign != '+' && trim_newline && looking_at(l, "\n"))
        advance(l, 1);
}

/* Matches `[-+]?\s*word\s*` behind the start of a tag at `at`, then `[-+]?%}`; false leaves all as it was. */
static bool match_raw_tag(const struct lexer *l, size_t at, const char *word, bool plus_may_end, char *begin_sign,
                          char *end_sign, size_t *end) {
    struct str s = {l->src.ptr + at + 2, l->src.len - at - 2};
    *begin_sign = s.len && (s.ptr[0] == '-' || s.ptr[0] == '+') ? s.ptr[0] : 0;
    if (*begin_sign)
        s = (struct str){s.ptr + 1, s.len - 1};
    s = str_trim(s, true, false);
    if (!str_starts(s, str_of(word)))
        return false;
    s = (struct str){s.ptr + strlen(word), s.len - strlen(word)};
    s = str_trim(s, true, false);
    *end_sign = s.len && (s.ptr[0] == '-' || (plus_may_end && s.ptr[0] == '+')) ? s.ptr[0] : 0;
    if (*end_sign)
        s = (struct str){s.ptr + 1, s.len - 1};
    if (!str_starts(s, STR("%}")))
        return false;
    *end = (size_t)(s.ptr + 2 - l->src.ptr);
    return true;
}

/* What remains of the text before a tag. */
static struct str strip_before_tag(const struct lexer *l, struct str text, char sign, bool is_variable) {
    if (sign == '-')
        return str_trim(text, false, true);
    if (sign == '+' || is_variable)
        return text;
    size_t line_at = text.len;
    while (line_at && text.ptr[line_at - 1] != '\n')
        line_at--;
    struct str line = {text.ptr + line_at, text.len - line_at};
    if ((line_at > 0 || l->line_starting) && !str_trim(line, true, false).len)
        text.len = line_at;
    return text;
}

static size_t find_tag(const struct lexer *l) {
    for (size_t i = l->at; i + 1 < l->src.len; i++)
        if (l->src.ptr[i] == '{' && (l->src.ptr[i + 1] == '{' || l->src.ptr[i + 1] == '%' || l->src.ptr[i + 1] == '#'))
            return i;
    return l->src.len;
}

static void skip_comment(struct lexer *l) {
    size_t end = str_find(l->src, STR("#}"), l->at);
    if (end == SIZE_MAX)
        syntax_error(l, "Missing end of comment tag", STR(""));
    char sign = end > l->at ? l->src.ptr[end - 1] : 0;
    advance(l, end + 2 - l->at);
    end_tag(l, sign, true);
}

/* The text up to {% endraw %}. */
static struct token raw_block(struct lexer *l) {
    struct token t = {.kind = TOKEN_DATA, .line = l->line};
    char begin_sign, end_sign;
    size_t end;
    for (size_t at = l->at; (at = str_find(l->src, STR("{%"), at)) != SIZE_MAX; at++) {
        if (!match_raw_tag(l, at, "endraw", true, &begin_sign, &end_sign, &end))
            continue;
        t.text = strip_before_tag(l, (struct str){l->src.ptr + l->at, at - l->at}, begin_sign, false);
        advance(l, end - l->at);
        end_tag(l, end_sign, true);
        return t;
    }
    syntax_error(l, "Missing end of raw directive", STR(""));
}

/* Text, and the tag behind it: kept in l->begin, skipped if a comment. */
static struct token data(struct lexer *l) {
    size_t tag = find_tag(l);
    struct token t = {.kind = TOKEN_DATA, .line = l->line, .text = {l->src.ptr + l->at, tag - l->at}};
    if (tag == l->src.len) {
        advance(l, tag - l->at);
        return t;
    }
    char sign = tag + 2 < l->src.len ? l->src.ptr[tag + 2] : 0, end_sign;
    sign = sign == '-' || sign == '+' ? sign : 0;
    char opener = l->src.ptr[tag + 1];
    t.text = strip_before_tag(l, t.text, sign, opener == '{');
    size_t end;
    if (opener == '%' && match_raw_tag(l, tag, "raw", false, &sign, &end_sign, &end)) {
        advance(l, end - l->at);
        end_tag(l, end_sign, false);
        if (!t.text.len)
            return raw_block(l);
        l->begin = raw_block(l); // two runs of text, one behind the other
        return t;
    }
    advance(l, tag - l->at);
    int line = l->line;
    advance(l, sign ? 3 : 2);
    if (opener == '#') {
        skip_comment(l);
        return t;
    }
    l->begin = (struct token){.kind = opener == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, .line = line};
    return t;
}

static struct token outside(struct lexer *l) {
    while (l->begin.kind == TOKEN_EOF && l->at < l->src.len) {
        struct token t = data(l);
        if (t.text.len)
            return t;
    }
    struct token t = l->begin;
    l->begin = (struct token){.kind = TOKEN_EOF, .line = l->line};
    t.line = t.kind == TOKEN_EOF ? l->line : t.line;
    l->in_variable = t.kind == TOKEN_VARIABLE_BEGIN;
    l->in_tag = l->in_variable || t.kind == TOKEN_BLOCK_BEGIN;
    return t;
}

/* The end of the tag, if it is here and no bracket is open. */
static bool end_of_tag(struct lexer *l, struct token *t) {
    if (l->n_open)
        return false;
    struct str s = rest(l);
    char sign = s.len && (s.ptr[0] == '-' || (s.ptr[0] == '+' && !l->in_variable)) ? s.ptr[0] : 0;
    if (sign)
        s = (struct str){s.ptr + 1, s.len - 1};
    if (!str_starts(s, l->in_variable ? STR("}}") : STR("%}")))
        return false;
    *t = (struct token){.kind = l->in_variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END, .line = l->line};
    advance(l, sign ? 3 : 2);
    end_tag(l, sign, !l->in_variable);
    l->in_tag = false;
    return true;
}

static size_t digits(struct str s, size_t at, const char *allowed) {
    // digits with single underscores between them
    size_t n = at;
    while (n < s.len && s.ptr[n] &&
           (strchr(allowed, s.ptr[n]) ||
            (n > at && s.ptr[n] == '_' && n + 1 < s.len && s.ptr[n + 1] && strchr(allowed, s.ptr[n + 1]))))
        n++;
    return n - at;
}

#define DECIMAL "0123456789"

/* The length of a float at the start of s, or 0. */
static size_t float_length(struct str s) {
    size_t whole = digits(s, 0, DECIMAL), n = whole, fraction = 0;
    if (!whole)
        return 0;
    if (n < s.len && s.ptr[n] == '.' && (fraction = digits(s, n + 1, DECIMAL)))
        n += 1 + fraction;
    if (n < s.len && (s.ptr[n] == 'e' || s.ptr[n] == 'E')) {
        size_t sign = n + 1 < s.len && (s.ptr[n + 1] == '+' || s.ptr[n + 1] == '-');
        size_t exponent = digits(s, n + 1 + sign, DECIMAL);
        if (exponent)
            return n + 1 + sign + exponent;
    }
    return fraction ? n : 0;
}

static size_t integer_length(struct str s) {
    if (s.len > 2 && s.ptr[0] == '0') {
        char letter = (char)(s.ptr[1] | 32);
        const char *allowed = letter == 'x'   ? "0123456789abcdefABCDEF"
                              : letter == 'o' ? "01234567"
                              : letter == 'b' ? "01"
                                              : "";
        size_t underscore = s.ptr[2] == '_', n = digits(s, 2 + underscore, allowed);
        if (n)
            return 2 + underscore + n;
    }
    return digits(s, 0, s.len && s.ptr[0] == '0' ? "0" : DECIMAL);
}

static struct token number(struct lexer *l) {
    struct token t = {.kind = TOKEN_NUMBER, .line = l->line};
    struct str s = rest(l);
    bool after_dot = l->at && l->src.ptr[l->at - 1] == '.';
    size_t n = after_dot ? 0 : float_length(s);
    double f;
    int64_t i;
    l->j->line = l->line;
    if (n && str_to_float(l->j, (struct str){s.ptr, n}, &f)) {
        t.value = jval_float(f);
    } else {
        n = integer_length(s);
        if (!str_to_int(l->j, (struct str){s.ptr, n}, 0, &i))
            syntax_error(l, "invalid number ", (struct str){s.ptr, n});
        t.value = jval_int(i);
    }
    advance(l, n);
    return t;
}

static struct token name(struct lexer *l) {
    struct token t = {.kind = TOKEN_NAME, .line = l->line};
    struct str s = rest(l);
    size_t n = 0;
    while (n < s.len) {
        int32_t cp;
        int bytes = utf8_decode(s.ptr + n, s.len - n, &cp);
        if (!cp_is_name_continue(cp))
            break;
        n += (size_t)bytes;
    }
    t.text = (struct str){s.ptr, n};
    advance(l, n);
    return t;
}

static uint32_t escape_digits(struct lexer *l, struct str s, size_t *at, size_t n, int base) {
    uint32_t value = 0;
    size_t used = 0;
    for (; used < n && *at < s.len; used++, (*at)++) {
        char c = s.ptr[*at];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 16;
        if (d >= base)
            break;
        value = value * (uint32_t)base + (uint32_t)d;
    }
    if (base == 16 && used < n)
        syntax_error(l, "truncated escape in a string", STR(""));
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        syntax_error(l, "illegal Unicode character in a string", STR(""));
    return value;
}

/* What follows a backslash at s[*at]. */
static void unescape(struct lexer *l, struct str s, size_t *at) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s.ptr[*at];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        jinja_put(l->j, to[simple - from]);
        ++*at;
    } else if (c == '\n') {
        ++*at;
    } else if (c >= '0' && c <= '7') {
        jinja_emit_cp(l->j, (int32_t)escape_digits(l, s, at, 3, 8));
    } else if (c == 'x' || c == 'u' || c == 'U') {
        ++*at;
        jinja_emit_cp(l->j, (int32_t)escape_digits(l, s, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16));
    } else if (c == 'N') {
        syntax_error(l, "character names (\\N) are not supported in a string", STR(""));
    } else if ((unsigned char)c >= 0x80) {
        // Jinja escapes what is not ASCII before it unescapes, so this backslash meets another one.
        int32_t cp;
        *at += (size_t)utf8_decode(s.ptr + *at, s.len - *at, &cp);
        jinja_emitf(l->j, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    } else {
        jinja_put(l->j, '\\');
    }
}

static struct token string(struct lexer *l) {
    struct token t = {.kind = TOKEN_STRING, .line = l->line};
    struct str s = rest(l);
    size_t end = 1;
    while (end < s.len && s.ptr[end] != s.ptr[0])
        end += s.ptr[end] == '\\' ? 2 : 1;
    if (end >= s.len)
        syntax_error(l, "unexpected char ", (struct str){s.ptr, 1});
    struct str inside = {s.ptr + 1, end - 1};
    sink_open(l->j);
    for (size_t at = 0; at < inside.len;) {
        const char *slash = memchr(inside.ptr + at, '\\', inside.len - at);
        size_t stop = slash ? (size_t)(slash - inside.ptr) : inside.len;
        jinja_emit(l->j, (struct str){inside.ptr + at, stop - at});
        at = stop;
        if (slash) {
            at++;
            unescape(l, inside, &at);
        }
    }
    t.value = jval_of_sink(l->j);
    jstr_chars(l->j, t.value.s); // shared by threads later: nothing may be left to fill in
    advance(l, end + 1);
    return t;
}

static void open_bracket(struct lexer *l, char closer) {
    if (l->n_open == l->cap_open) {
        size_t cap = l->cap_open ? l->cap_open * 2 : 16;
        char *open = jinja_alloc(l->j, cap);
        if (l->n_open)
            memcpy(open, l->open, l->n_open);
        l->open = open;
        l->cap_open = cap;
    }
    l->open[l->n_open++] = closer;
}

static void close_bracket(struct lexer *l, char closer) {
    if (!l->n_open)
        syntax_error(l, "unexpected bracket ", (struct str){&closer, 1});
    if (l->open[--l->n_open] != closer) {
        char text[] = {closer, ',', ' ', 'e', 'x', 'p', 'e', 'c', 't', 'e', 'd', ' ', l->open[l->n_open]};
        syntax_error(l, "unexpected bracket ", (struct str){text, sizeof text});
    }
}

static struct token operator_sign(struct lexer *l) {
    for (size_t i = 0; i < ARRAY_LEN(operators); i++) {
        if (!looking_at(l, operators[i].sign))
            continue;
        struct token t = {.kind = operators[i].kind, .line = l->line};
        char c = operators[i].sign[0];
        if (t.kind == TOKEN_LPAREN || t.kind == TOKEN_LBRACKET || t.kind == TOKEN_LBRACE)
            open_bracket(l, c == '(' ? ')' : c == '[' ? ']' : '}');
        else if (t.kind == TOKEN_RPAREN || t.kind == TOKEN_RBRACKET || t.kind == TOKEN_RBRACE)
            close_bracket(l, c);
        advance(l, strlen(operators[i].sign));
        return t;
    }
    int32_t cp;
    struct str s = rest(l);
    s.len = (size_t)utf8_decode(s.ptr, s.len, &cp);
    syntax_error(l, "unexpected char ", s);
}

struct token lexer_next(struct lexer *l) {
    jinja_step(l->j, 1);
    struct token t;
    if (!l->in_tag)
        return outside(l);
    skip_space(l);
    if (end_of_tag(l, &t))
        return t;
    struct str s = rest(l);
    if (!s.len)
        return (struct token){.kind = TOKEN_EOF, .line = l->line};
    int32_t cp;
    utf8_decode(s.ptr, s.len, &cp);
    if (cp >= '0' && cp <= '9')
        return number(l);
    if (cp_is_name_start(cp))
        return name(l);
    if (cp == '\'' || cp == '"')
        return string(l);
    return operator_sign(l);
}
