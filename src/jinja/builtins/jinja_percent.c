/* jinja_percent.c - format % arguments, Python's printf. */
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_value.h"

#include <math.h>
#include <stdio.h>

struct conversion {
    bool left, plus, space, alternate, zero;
    int64_t width, precision; // precision -1: not given
    char type;
};

struct percent {
    struct jinja *j;
    struct str f;
    size_t at;
    jval args;
    size_t next; // positional argument
    bool markup;
};

static _Noreturn void incomplete(struct percent *p) { jinja_type_error(p->j, "incomplete format"); }

static char peek(struct percent *p) {
    if (p->at >= p->f.len)
        incomplete(p);
    return p->f.ptr[p->at];
}

static jval next_arg(struct percent *p) {
    bool tuple = p->args.kind == J_TUPLE;
    if (p->next >= (tuple ? p->args.seq->n : 1))
        jinja_type_error(p->j, "not enough arguments for format string");
    p->next++;
    return tuple ? p->args.seq->items[p->next - 1] : p->args;
}

/* %(name)s */
static jval mapped_arg(struct percent *p) {
    size_t begin = ++p->at, open = 1;
    while (open) {
        char c = peek(p);
        open += c == '(' ? 1 : c == ')' ? SIZE_MAX : 0;
        p->at++;
    }
    if (p->args.kind != J_DICT)
        jinja_type_error(p->j, "format requires a mapping");
    struct str key = {p->f.ptr + begin, p->at - 1 - begin};
    const jval *found = jdict_find_str(p->args.d, key);
    if (!found)
        jinja_type_error(p->j, "KeyError: '%.*s'", STR_ARG(str_excerpt(key)));
    return *found;
}

static int64_t read_size(struct percent *p) {
    int64_t n = 0;
    if (peek(p) == '*') {
        p->at++;
        return jval_index(p->j, next_arg(p), "* wants int");
    }
    while (peek(p) >= '0' && peek(p) <= '9') {
        n = MIN(n * 10 + (p->f.ptr[p->at] - '0'), INT32_MAX);
        p->at++;
    }
    return n;
}

static struct conversion read_conversion(struct percent *p) {
    struct conversion c = {.precision = -1};
    for (bool more = true; more;) {
        switch (peek(p)) {
        case '-': c.left = true; break;
        case '+': c.plus = true; break;
        case ' ': c.space = true; break;
        case '#': c.alternate = true; break;
        case '0': c.zero = true; break;
        default: more = false; continue;
        }
        p->at++;
    }
    c.width = read_size(p);
    if (c.width < 0) {
        c.left = true;
        c.width = -MAX(c.width, -INT32_MAX);
    }
    if (peek(p) == '.') {
        p->at++;
        c.precision = read_size(p);
        c.precision = MAX(c.precision, 0);
    }
    while (peek(p) == 'h' || peek(p) == 'l' || peek(p) == 'L')
        p->at++;
    c.type = peek(p);
    p->at++;
    return c;
}

static void pad(struct percent *p, char c, int64_t n) { jinja_emit_times(p->j, (struct str){&c, 1}, n); }

/* prefix is a sign and 0x and the like: zeros go behind it. */
static void emit_padded(struct percent *p, const struct conversion *c, struct str prefix, jval text) {
    int64_t fill = c->width - (int64_t)prefix.len - (int64_t)jstr_chars(p->j, text.s);
    bool zeros = c->zero && !c->left && strchr("diouxXeEfFgG", c->type);
    if (!c->left && !zeros)
        pad(p, ' ', fill);
    jinja_emit(p->j, prefix);
    if (zeros)
        pad(p, '0', fill);
    jinja_emit(p->j, jval_text(text));
    if (c->left)
        pad(p, ' ', fill);
}

static jval text_of(struct percent *p, jval v, char type) {
    if (type == 's')
        return jval_to_str(p->j, v);
    sink_open(p->j);
    if (type == 'r')
        jinja_emit_repr(p->j, v);
    else
        jinja_emit_ascii(p->j, v);
    return jval_of_sink(p->j);
}

static void emit_text(struct percent *p, const struct conversion *c, jval v) {
    jval text = text_of(p, v, c->type);
    if (p->markup)
        text = jstr_escape(p->j, text);
    if (c->precision >= 0)
        text = jstr_part(p->j, text.s, 0, jstr_offset(p->j, text.s, (size_t)c->precision));
    emit_padded(p, c, STR(""), text);
}

static void emit_character(struct percent *p, const struct conversion *c, jval v) {
    char bytes[4];
    if (v.kind == J_STR && jstr_chars(p->j, v.s) == 1) {
        emit_padded(p, c, STR(""), v);
        return;
    }
    int64_t cp = v.kind == J_INT ? v.i : -1;
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        jinja_type_error(p->j, "%%c requires int or char");
    emit_padded(p, c, STR(""), jval_str(p->j, (struct str){bytes, (size_t)utf8_encode((uint32_t)cp, bytes)}));
}

static const char *sign_of(const struct conversion *c, bool negative) {
    return negative ? "-" : c->plus ? "+" : c->space ? " " : "";
}

static void emit_integer(struct percent *p, const struct conversion *c, jval v) {
    if (v.kind == J_FLOAT && strchr("diu", c->type))
        v = jval_to_int(p->j, v.f);
    if (v.kind != J_INT && v.kind != J_BOOL)
        jinja_type_error(p->j, "%%%c format: a real number is required, not %s", c->type, jval_type(v));
    int64_t i = v.kind == J_INT ? v.i : v.b;
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[32], prefix[8];
    snprintf(digits, sizeof digits,
             c->type == 'x'   ? "%lx"
             : c->type == 'X' ? "%lX"
             : c->type == 'o' ? "%lo"
                              : "%lu",
             (unsigned long)magnitude);
    const char *base = !c->alternate ? "" : c->type == 'x' ? "0x" : c->type == 'X' ? "0X" : c->type == 'o' ? "0o" : "";
    snprintf(prefix, sizeof prefix, "%s%s", sign_of(c, i < 0), base);
    sink_open(p->j);
    pad(p, '0', c->precision - (int64_t)strlen(digits));
    jinja_emitf(p->j, "%s", digits);
    emit_padded(p, c, str_of(prefix), jval_of_sink(p->j));
}

static void emit_real(struct percent *p, const struct conversion *c, jval v) {
    if (!jval_is_number(v)) {
        if (v.kind == J_UNDEFINED)
            jinja_undefined_error(p->j, v);
        jinja_type_error(p->j, "must be real number, not %s", jval_type(v));
    }
    double f = jval_number(v);
    if (c->precision > 300)
        jinja_type_error(p->j, "precision too big");
    char format[] = {'%', '.', '*', c->type, '\0'}, alternate[] = {'%', '#', '.', '*', c->type, '\0'}, text[700];
    if (isfinite(f))
        snprintf(text, sizeof text, c->alternate ? alternate : format, c->precision < 0 ? 6 : (int)c->precision,
                 fabs(f));
    else
        snprintf(text, sizeof text, "%s", isnan(f) ? (c->type < 'a' ? "NAN" : "nan") : c->type < 'a' ? "INF" : "inf");
    emit_padded(p, c, str_of(sign_of(c, signbit(f) && !isnan(f))), jval_str(p->j, str_of(text)));
}

static void emit_conversion(struct percent *p) {
    jval mapped = jval_missing();
    if (peek(p) == '(')
        mapped = mapped_arg(p);
    struct conversion c = read_conversion(p);
    if (c.type == '%') {
        jinja_put(p->j, '%');
        return;
    }
    if (!c.type || !strchr("sracdiuxXoeEfFgG", c.type))
        jinja_type_error(p->j, "unsupported format character '%c' (0x%x)",
                         c.type < 0x20 || c.type > 0x7E ? '?' : c.type, (unsigned char)c.type);
    jval v = mapped.kind == J_MISSING ? next_arg(p) : mapped;
    if (strchr("sra", c.type))
        emit_text(p, &c, v);
    else if (c.type == 'c')
        emit_character(p, &c, v);
    else if (strchr("diuxXo", c.type))
        emit_integer(p, &c, v);
    else
        emit_real(p, &c, v);
}

/* Python minds arguments that nobody took, unless what it was given might be a mapping. */
static void check_all_used(struct percent *p) {
    if (p->args.kind == J_TUPLE ? p->next < p->args.seq->n
                                : !p->next && p->args.kind != J_DICT && p->args.kind != J_LIST &&
                                      p->args.kind != J_UNDEFINED && p->args.kind != J_RANGE)
        jinja_type_error(p->j, "not all arguments converted during string formatting");
}

jval jinja_percent(struct jinja *j, jval format, jval args) {
    struct percent p = {.j = j, .f = jval_text(format), .args = args, .markup = format.s->markup};
    jinja_enter(j);
    sink_open(j);
    while (p.at < p.f.len) {
        jinja_step(j, 1);
        size_t percent = str_find(p.f, STR("%"), p.at), stop = MIN(percent, p.f.len);
        jinja_emit(j, (struct str){p.f.ptr + p.at, stop - p.at});
        p.at = stop + 1;
        if (percent != SIZE_MAX)
            emit_conversion(&p);
    }
    jval text = jval_markup(j, jval_of_sink(j), p.markup);
    check_all_used(&p);
    jinja_leave(j);
    return text;
}
