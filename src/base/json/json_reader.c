/* json_reader.c - see json_reader.h. */
#include "base/json/json_reader.h"

#include <math.h>
#include <stdlib.h>

void json_reader_init(struct json_reader *r, struct str text, const char *where) {
    *r = (struct json_reader){
        .begin = text.ptr, .at = text.ptr, .end = text.ptr + text.len, .where = where, .first = true};
}

void json_reader_release(struct json_reader *r) { buf_release(&r->unescaped); }

enum status json_complain(const struct json_reader *r, const char *what, struct error *err) {
    size_t line = 1;
    const char *begin = r->begin; // of the line
    for (const char *p = r->begin; p < r->at; p++) {
        if (*p != '\n')
            continue;
        line++;
        begin = p + 1;
    }
    return fail(err, ERR_FORMAT, "%s: not valid JSON: %s (line %zu, column %zu)", r->where, what, line,
                (size_t)(r->at - begin) + 1);
}

void json_skip_space(struct json_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

enum status json_peek_kind(struct json_reader *r, enum json_kind *kind, struct error *err) {
    json_skip_space(r);
    if (r->at == r->end)
        return json_complain(r, "the text ends where a value must be", err);
    switch (*r->at) {
    case '{': *kind = JSON_KIND_OBJECT; return OK;
    case '[': *kind = JSON_KIND_ARRAY; return OK;
    case '"': *kind = JSON_KIND_STRING; return OK;
    case 't': *kind = JSON_KIND_TRUE; return OK;
    case 'f': *kind = JSON_KIND_FALSE; return OK;
    case 'n': *kind = JSON_KIND_NULL; return OK;
    case '-': *kind = JSON_KIND_NUMBER; return OK;
    default:
        if (*r->at < '0' || *r->at > '9')
            return json_complain(r, "a value must be here", err);
        *kind = JSON_KIND_NUMBER;
        return OK;
    }
}

static enum status enter(struct json_reader *r, char bracket, const char *wanted, struct error *err) {
    json_skip_space(r);
    if (r->at == r->end || *r->at != bracket)
        return json_complain(r, wanted, err);
    r->at++;
    r->first = true;
    return OK;
}

enum status json_enter_object(struct json_reader *r, struct error *err) {
    return enter(r, '{', "an object must be here", err);
}
enum status json_enter_array(struct json_reader *r, struct error *err) {
    return enter(r, '[', "an array must be here", err);
}

/* Moves to the next item of a container: past a comma, or past the closing bracket. */
static enum status next(struct json_reader *r, char closing, bool *more, struct error *err) {
    json_skip_space(r);
    *more = true;
    if (r->at < r->end && *r->at == closing) {
        r->at++;
        r->first = false;
        *more = false;
        return OK;
    }
    if (!r->first) {
        if (r->at == r->end || *r->at != ',')
            return json_complain(r, closing == '}' ? "a comma or } must be here" : "a comma or ] must be here", err);
        r->at++;
    }
    r->first = false;
    return OK;
}

enum status json_next_item(struct json_reader *r, bool *more, struct error *err) { return next(r, ']', more, err); }

enum status json_next_key(struct json_reader *r, struct str *key, bool *more, struct error *err) {
    TRY(next(r, '}', more, err));
    if (!*more)
        return OK;
    TRY(json_take_string(r, key, err));
    json_skip_space(r);
    if (r->at == r->end || *r->at != ':')
        return json_complain(r, "a colon must be here", err);
    r->at++;
    return OK;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of \uXXXX at r->at; -1 if they are not there. */
static int32_t take_hex4(struct json_reader *r) {
    if (r->end - r->at < 4)
        return -1;
    int32_t cp = 0;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(r->at[i]);
        if (d < 0)
            return -1;
        cp = cp * 16 + d;
    }
    r->at += 4;
    return cp;
}

static enum status take_unicode_escape(struct json_reader *r, struct error *err) {
    int32_t cp = take_hex4(r);
    if (cp < 0)
        return json_complain(r, "\\u needs four hexadecimal digits", err);
    if (cp >= 0xD800 && cp <= 0xDBFF) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
            return json_complain(r, "half of a surrogate pair", err);
        r->at += 2;
        int32_t low = take_hex4(r);
        if (low < 0xDC00 || low > 0xDFFF)
            return json_complain(r, "half of a surrogate pair", err);
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    } else if (cp >= 0xDC00 && cp <= 0xDFFF) {
        return json_complain(r, "half of a surrogate pair", err);
    }
    char utf8[4];
    buf_append(&r->unescaped, utf8, (size_t)utf8_encode((uint32_t)cp, utf8));
    return OK;
}

/* The character after a backslash. */
static enum status take_escape(struct json_reader *r, struct error *err) {
    if (r->at == r->end)
        return json_complain(r, "the text ends inside a string", err);
    char c = *r->at++;
    switch (c) {
    case '"':
    case '\\':
    case '/': buf_push(&r->unescaped, c); return OK;
    case 'b': buf_push(&r->unescaped, '\b'); return OK;
    case 'f': buf_push(&r->unescaped, '\f'); return OK;
    case 'n': buf_push(&r->unescaped, '\n'); return OK;
    case 'r': buf_push(&r->unescaped, '\r'); return OK;
    case 't': buf_push(&r->unescaped, '\t'); return OK;
    case 'u': return take_unicode_escape(r, err);
    default: return json_complain(r, "no such escape in a string", err);
    }
}

/* Moves over characters that stand for themselves, up to a quote or a backslash. */
static enum status skip_plain(struct json_reader *r, struct error *err) {
    while (r->at < r->end) {
        unsigned char c = (unsigned char)*r->at;
        if (c == '"' || c == '\\')
            return OK;
        if (c < 0x20)
            return json_complain(r, "a control character inside a string", err);
        if (c < 0x80) {
            r->at++;
            continue;
        }
        int32_t cp;
        int n = utf8_decode(r->at, (size_t)(r->end - r->at), &cp);
        if (cp < 0)
            return json_complain(r, "a string is not UTF-8", err);
        r->at += n;
    }
    return json_complain(r, "the text ends inside a string", err);
}

enum status json_take_string(struct json_reader *r, struct str *out, struct error *err) {
    TRY(enter(r, '"', "a string must be here", err));
    const char *begin = r->at;
    TRY(skip_plain(r, err));
    r->first = false;
    if (*r->at == '"') {
        *out = (struct str){begin, (size_t)(r->at - begin)};
        r->at++;
        return OK;
    }
    buf_clear(&r->unescaped);
    for (;;) {
        buf_append(&r->unescaped, begin, (size_t)(r->at - begin));
        if (*r->at++ == '"')
            break;
        TRY(take_escape(r, err));
        begin = r->at;
        TRY(skip_plain(r, err));
    }
    *out = buf_view(&r->unescaped);
    return OK;
}

static size_t count_digits(const struct json_reader *r, const char *p) {
    const char *begin = p;
    while (p < r->end && *p >= '0' && *p <= '9')
        p++;
    return (size_t)(p - begin);
}

/* Checks the grammar of a number and moves over it. */
static enum status take_digits(struct json_reader *r, struct str *span, bool *integral, struct error *err) {
    json_skip_space(r);
    const char *begin = r->at, *p = begin;
    p += p < r->end && *p == '-';
    size_t n = count_digits(r, p);
    if (n == 0 || (n > 1 && *p == '0'))
        return json_complain(r, "a number must be here", err);
    p += n;
    *integral = true;
    if (p < r->end && *p == '.') {
        *integral = false;
        n = count_digits(r, ++p);
        if (n == 0)
            return json_complain(r, "a number needs digits after its point", err);
        p += n;
    }
    if (p < r->end && (*p == 'e' || *p == 'E')) {
        *integral = false;
        p++;
        p += p < r->end && (*p == '+' || *p == '-');
        n = count_digits(r, p);
        if (n == 0)
            return json_complain(r, "a number needs digits in its exponent", err);
        p += n;
    }
    r->at = p;
    *span = (struct str){begin, (size_t)(p - begin)};
    return OK;
}

/* False when it does not fit. */
static bool int_of(struct str digits, int64_t *out) {
    bool negative = digits.ptr[0] == '-';
    int64_t value = 0;
    for (size_t i = negative; i < digits.len; i++) {
        int digit = digits.ptr[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return false;
    }
    *out = value;
    return true;
}

static enum status to_real(const struct json_reader *r, struct str span, double *out, struct error *err) {
    char digits[512];
    if (span.len >= sizeof digits)
        return json_complain(r, "a number has more than 500 digits", err);
    memcpy(digits, span.ptr, span.len);
    digits[span.len] = '\0';
    *out = strtod(digits, NULL);
    return OK;
}

enum status json_take_int(struct json_reader *r, int64_t *out, struct error *err) {
    struct str span;
    bool integral;
    TRY(take_digits(r, &span, &integral, err));
    if (!integral)
        return json_complain(r, "an integer must be here", err);
    return int_of(span, out) ? OK : json_complain(r, "an integer does not fit into 64 bits", err);
}

enum status json_take_real(struct json_reader *r, double *out, struct error *err) {
    struct str span;
    bool integral;
    TRY(take_digits(r, &span, &integral, err));
    TRY(to_real(r, span, out, err));
    return isfinite(*out) ? OK : json_complain(r, "a number is out of range", err);
}

enum status json_take_number(struct json_reader *r, struct json_number *out, struct error *err) {
    struct str span;
    bool integral;
    TRY(take_digits(r, &span, &integral, err));
    out->text = STR("");
    out->is_int = integral && int_of(span, &out->i);
    if (out->is_int)
        return OK;
    TRY(to_real(r, span, &out->f, err));
    if (integral && out->f == -0x1p63) // -2^63 - 1 is rounded to what fits
        out->f = nextafter(out->f, -INFINITY);
    if (integral || !isfinite(out->f))
        out->text = span;
    return OK;
}

static enum status take_word(struct json_reader *r, struct str word, struct error *err) {
    json_skip_space(r);
    if (!str_starts((struct str){r->at, (size_t)(r->end - r->at)}, word))
        return json_complain(r, "a value must be here", err);
    r->at += word.len;
    return OK;
}

enum status json_take_bool(struct json_reader *r, bool *out, struct error *err) {
    json_skip_space(r);
    *out = r->at < r->end && *r->at == 't';
    return take_word(r, *out ? STR("true") : STR("false"), err);
}

/* A string of which only the correctness matters. */
static enum status skip_string(struct json_reader *r, struct error *err) {
    struct str ignored;
    return json_take_string(r, &ignored, err);
}

static enum status skip_scalar(struct json_reader *r, enum json_kind kind, struct error *err) {
    struct str span;
    bool integral;
    switch (kind) {
    case JSON_KIND_STRING: return skip_string(r, err);
    case JSON_KIND_NUMBER: return take_digits(r, &span, &integral, err);
    case JSON_KIND_TRUE: return take_word(r, STR("true"), err);
    case JSON_KIND_FALSE: return take_word(r, STR("false"), err);
    default: return take_word(r, STR("null"), err);
    }
}

/* One value, or the opening bracket of one. */
static enum status skip_into(struct json_reader *r, bool in_object[], int *depth, struct error *err) {
    enum json_kind kind;
    TRY(json_peek_kind(r, &kind, err));
    if (kind != JSON_KIND_OBJECT && kind != JSON_KIND_ARRAY)
        return skip_scalar(r, kind, err);
    if (*depth == JSON_READER_DEPTH)
        return json_complain(r, "nested too deeply", err);
    in_object[(*depth)++] = kind == JSON_KIND_OBJECT;
    r->at++;
    r->first = true;
    return OK;
}

enum status json_skip(struct json_reader *r, struct str *span, struct error *err) {
    bool in_object[JSON_READER_DEPTH]; // the brackets that are open, outermost first
    int depth = 0;
    json_skip_space(r);
    const char *begin = r->at;
    TRY(skip_into(r, in_object, &depth, err));
    while (depth > 0) {
        bool more;
        struct str key;
        TRY(in_object[depth - 1] ? json_next_key(r, &key, &more, err) : json_next_item(r, &more, err));
        if (!more)
            depth--;
        else
            TRY(skip_into(r, in_object, &depth, err));
    }
    r->first = false;
    if (span)
        *span = (struct str){begin, (size_t)(r->at - begin)};
    return OK;
}

enum status json_expect_end(struct json_reader *r, struct error *err) {
    json_skip_space(r);
    return r->at == r->end ? OK : json_complain(r, "more after the end of the value", err);
}
