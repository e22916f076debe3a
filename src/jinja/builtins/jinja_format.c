/* jinja_format.c - str.format and the format specifications behind its colons. Fields are looked up as the
 * template's own attributes and items are, so the sandbox holds here too. */
#include "jinja/values/jinja_format.h"
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

#include <math.h>
#include <stdio.h>

// ---- [[fill]align][sign][#][0][width][grouping][.precision][type] ----

struct spec {
    struct str fill; // one code point
    char align;      // 0: not given
    char sign;
    bool alternate;
    int64_t width, precision; // -1: not given
    char grouping, type;      // 0: not given
};

static bool is_one_of(char c, const char *set) { return c && strchr(set, c); }

static bool take(struct str *s, const char *set, char *out) {
    if (!s->len || !is_one_of(s->ptr[0], set))
        return false;
    *out = s->ptr[0];
    *s = (struct str){s->ptr + 1, s->len - 1};
    return true;
}

static int64_t take_digits(struct str *s) {
    int64_t n = -1;
    char c;
    while (take(s, "0123456789", &c))
        n = MIN(MAX(n, 0) * 10 + (c - '0'), INT32_MAX);
    return n;
}

static struct spec read_spec(struct jinja *j, struct str s, jval v) {
    struct spec spec = {.fill = STR(" "), .precision = -1};
    int32_t cp;
    size_t first = s.len ? (size_t)utf8_decode(s.ptr, s.len, &cp) : 0;
    char ignored;
    if (s.len > first && is_one_of(s.ptr[first], "<>=^")) {
        spec.fill = (struct str){s.ptr, first};
        spec.align = s.ptr[first];
        s = (struct str){s.ptr + first + 1, s.len - first - 1};
    } else {
        take(&s, "<>=^", &spec.align);
    }
    take(&s, "+- ", &spec.sign);
    spec.alternate = take(&s, "#", &ignored);
    if (take(&s, "0", &ignored) && !spec.align) {
        spec.fill = STR("0");
        spec.align = '=';
    }
    if ((spec.width = take_digits(&s)) > 1000 * 1000)
        jinja_fail(j, ERR_LIMIT, "a format asks for a width of more than a million");
    take(&s, ",_", &spec.grouping);
    if (take(&s, ".", &ignored) && (spec.precision = take_digits(&s)) < 0)
        jinja_type_error(j, "Format specifier missing precision");
    take(&s, "bcdeEfFgGnosxX%", &spec.type);
    if (s.len)
        jinja_type_error(j, "Invalid format specifier for object of type '%s'", jval_type(v));
    return spec;
}

static void emit_aligned(struct jinja *j, const struct spec *spec, struct str prefix, jval text, char fallback) {
    int64_t room = MAX(spec->width - (int64_t)prefix.len - (int64_t)jstr_chars(j, text.s), 0);
    char align = spec->align ? spec->align : fallback;
    int64_t before = align == '>' ? room : align == '^' ? room / 2 : 0;
    jinja_emit_times(j, spec->fill, before);
    jinja_emit(j, prefix);
    if (align == '=')
        jinja_emit_times(j, spec->fill, room);
    jinja_emit(j, jval_text(text));
    if (align != '=')
        jinja_emit_times(j, spec->fill, room - before);
}

static void format_text(struct jinja *j, jval v, const struct spec *spec) {
    if (spec->type && spec->type != 's')
        jinja_type_error(j, "Unknown format code '%c' for object of type 'str'", spec->type);
    if (spec->sign || spec->align == '=')
        jinja_type_error(j, "%s not allowed in string format specifier", spec->sign ? "Sign" : "'=' alignment");
    if (spec->precision >= 0)
        v = jstr_part(j, v.s, 0, jstr_offset(j, v.s, (size_t)spec->precision));
    emit_aligned(j, spec, STR(""), v, '<');
}

/* digits, with a separator every three (four for other bases), and as many zeros before them as fill the
 * width: the separators count. */
static void emit_grouped(struct jinja *j, const struct spec *spec, struct str digits, size_t group, int64_t zeros_to) {
    size_t n = digits.len;
    while (spec->grouping && (int64_t)(n + (n - 1) / group) < zeros_to)
        n++;
    jinja_step(j, n);
    for (size_t i = n; i-- > 0;) {
        jinja_put(j, i >= digits.len ? '0' : digits.ptr[digits.len - 1 - i]);
        if (spec->grouping && i && i % group == 0)
            jinja_put(j, spec->grouping);
    }
}

static const char *sign_text(const struct spec *spec, bool negative) {
    return negative ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
}

/* whole and tail make the number: 1234 and .50, or ff and nothing. */
static void emit_number(struct jinja *j, const struct spec *spec, const char *prefix, struct str whole, struct str tail,
                        size_t group) {
    bool zero_filled = spec->align == '=' && str_eq(spec->fill, STR("0"));
    sink_open(j);
    emit_grouped(j, spec, whole, group, zero_filled ? spec->width - (int64_t)strlen(prefix) - (int64_t)tail.len : 0);
    jinja_emit(j, tail);
    emit_aligned(j, spec, str_of(prefix), jval_of_sink(j), '>');
}

static void format_int(struct jinja *j, int64_t i, const struct spec *spec) {
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[72], prefix[8];
    int n = 0;
    if (spec->precision >= 0)
        jinja_type_error(j, "Precision not allowed in integer format specifier");
    unsigned base = spec->type == 'b' ? 2 : spec->type == 'o' ? 8 : spec->type == 'x' || spec->type == 'X' ? 16 : 10;
    do
        n++, digits[sizeof digits - (size_t)n] =
                 (spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base];
    while (magnitude /= base);
    char type[] = {'0', spec->type, '\0'};
    snprintf(prefix, sizeof prefix, "%s%s", sign_text(spec, i < 0), spec->alternate && base != 10 ? type : "");
    emit_number(j, spec, prefix, (struct str){digits + sizeof digits - n, (size_t)n}, STR(""), base == 10 ? 3 : 4);
}

static void format_character(struct jinja *j, int64_t cp, const struct spec *spec) {
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        jinja_type_error(j, "%%c arg not in range(0x110000)");
    char bytes[4];
    emit_aligned(j, spec, STR(""), jval_str(j, (struct str){bytes, (size_t)utf8_encode((uint32_t)cp, bytes)}), '<');
}

/* What printf says of |f|: "1234.50", "1e+20". */
static void print_magnitude(struct jinja *j, char *out, size_t size, double f, const struct spec *spec) {
    char type = spec->type ? spec->type : 'g';
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    if (spec->precision > 300)
        jinja_type_error(j, "precision too big");
    if (!isfinite(f)) {
        snprintf(out, size, "%s",
                 isnan(f)                    ? (type < 'a' && type != '%' ? "NAN" : "nan")
                 : type < 'a' && type != '%' ? "INF"
                                             : "inf");
    } else if (!spec->type && spec->precision < 0) {
        sink_open(j);
        jinja_emit_float(j, f);
        struct str text = sink_close(j);
        snprintf(out, size, "%.*s", STR_ARG(text));
    } else {
        char format[] = {'%', '#', '.', '*', type == '%' ? 'f' : type == 'n' ? 'g' : type, '\0'};
        if (!spec->alternate)
            memmove(format + 1, format + 2, sizeof format - 2);
        snprintf(out, size, format, precision, f);
        // Without a type a float shows that it is one.
        if (!spec->type && !strpbrk(out, ".e"))
            snprintf(out + strlen(out), size - strlen(out), ".0");
    }
}

static void format_float(struct jinja *j, double f, const struct spec *spec) {
    char text[700], prefix[4];
    if (spec->type == '%')
        f *= 100;
    print_magnitude(j, text, sizeof text - 2, fabs(f), spec);
    if (spec->type == '%')
        strcat(text, "%");
    snprintf(prefix, sizeof prefix, "%s", sign_text(spec, signbit(f) && !isnan(f)));
    size_t whole = strspn(text, "0123456789");
    if (!whole)
        emit_aligned(j, spec, str_of(prefix), jval_str(j, str_of(text)), '>');
    else
        emit_number(j, spec, prefix, (struct str){text, whole}, str_of(text + whole), 3);
}

void jinja_emit_formatted(struct jinja *j, jval v, struct str text) {
    if (!text.len) {
        jinja_emit_str(j, v);
        return;
    }
    if (v.kind == J_STR) {
        struct spec spec = read_spec(j, text, v);
        format_text(j, v, &spec);
        return;
    }
    if (!jval_is_number(v))
        jinja_type_error(j, "unsupported format string passed to %s.__format__", jval_type(v));
    struct spec spec = read_spec(j, text, v);
    if (spec.type == 's')
        jinja_type_error(j, "Unknown format code 's' for object of type '%s'", jval_type(v));
    int64_t i = v.kind == J_INT ? v.i : v.kind == J_BOOL ? v.b : 0;
    if (v.kind == J_FLOAT || is_one_of(spec.type, "eEfFgG%")) {
        if (v.kind == J_FLOAT && is_one_of(spec.type, "bcdoxX"))
            jinja_type_error(j, "Unknown format code '%c' for object of type 'float'", spec.type);
        format_float(j, jval_number(v), &spec);
    } else if (spec.type == 'c') {
        format_character(j, i, &spec);
    } else {
        format_int(j, i, &spec);
    }
}

// ---- "{0.name[key]!r:spec}" ----

struct formatter {
    struct jinja *j;
    const struct jargs *args;
    size_t automatic; // the next argument of {}
    bool numbered;    // {0} was used
    bool markup;
};

static jval positional(struct formatter *f, size_t i) {
    if (i >= f->args->n)
        jinja_type_error(f->j, "Replacement index %zu out of range for positional args tuple", i);
    return f->args->positional[i];
}

static bool all_decimal(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
    return s.len > 0;
}

static jval argument(struct formatter *f, struct str name) {
    if (!name.len) {
        if (f->numbered)
            jinja_type_error(f->j, "cannot switch from manual field specification to automatic field numbering");
        return positional(f, f->automatic++);
    }
    int64_t i;
    if (all_decimal(name) && str_to_int(f->j, name, 10, &i)) {
        if (f->automatic)
            jinja_type_error(f->j, "cannot switch from automatic field numbering to manual field specification");
        f->numbered = true;
        return positional(f, (size_t)i);
    }
    for (size_t k = 0; k < f->args->n_keyword; k++)
        if (str_eq(jval_text(f->args->keyword[k].name), name))
            return f->args->keyword[k].value;
    jinja_type_error(f->j, "KeyError: '%.*s'", STR_ARG(str_excerpt(name)));
}

static size_t until(struct str s, size_t at, const char *stops) {
    while (at < s.len && !is_one_of(s.ptr[at], stops))
        at++;
    return at;
}

static jval field_value(struct formatter *f, struct str path) {
    size_t at = until(path, 0, ".[");
    jval v = argument(f, (struct str){path.ptr, at});
    while (at < path.len) {
        bool bracket = path.ptr[at] == '[';
        size_t end = bracket ? until(path, at + 1, "]") : until(path, at + 1, ".[");
        struct str part = {path.ptr + at + 1, end - at - 1};
        int64_t index;
        if (!part.len || (bracket && end == path.len))
            jinja_type_error(f->j, "%s",
                             part.len ? "Missing ']' in format string" : "Empty attribute in format string");
        if (!bracket)
            v = jval_getattr(f->j, v, jval_str(f->j, part));
        else if (all_decimal(part) && str_to_int(f->j, part, 10, &index))
            v = jval_getitem(f->j, v, jval_int(index));
        else
            v = jval_getitem(f->j, v, jval_str(f->j, part));
        at = end + bracket;
    }
    return v;
}

static jval converted(struct formatter *f, jval v, char conversion) {
    if (!conversion)
        return v;
    if (conversion == 's')
        return jval_to_plain(f->j, v);
    if (conversion != 'r' && conversion != 'a')
        jinja_type_error(f->j, "Unknown conversion specifier in a format string");
    sink_open(f->j);
    if (conversion == 'r')
        jinja_emit_repr(f->j, v);
    else
        jinja_emit_ascii(f->j, v);
    return jval_of_sink(f->j);
}

static void emit_template(struct formatter *f, struct str s, int nested);

static void emit_field(struct formatter *f, struct str field, int nested) {
    size_t name_end = until(field, 0, "!:[");
    while (name_end < field.len && field.ptr[name_end] == '[') // a key may hold any character
        name_end = until(field, MIN(until(field, name_end, "]") + 1, field.len), "!:[");
    jval v = field_value(f, (struct str){field.ptr, name_end});
    char conversion = 0;
    size_t at = name_end;
    if (at < field.len && field.ptr[at] == '!') {
        if (at + 1 >= field.len || (at + 2 < field.len && field.ptr[at + 2] != ':'))
            jinja_type_error(f->j, "expected ':' after conversion specifier");
        conversion = field.ptr[at + 1];
        at += 2;
    }
    v = converted(f, v, conversion);
    struct str spec = at < field.len ? (struct str){field.ptr + at + 1, field.len - at - 1} : STR("");
    sink_open(f->j);
    emit_template(f, spec, nested + 1);
    jval spec_text = jval_of_sink(f->j);
    sink_open(f->j);
    jinja_emit_formatted(f->j, v, jval_text(spec_text));
    jval text = jval_markup(f->j, jval_of_sink(f->j), v.kind == J_STR && v.s->markup);
    jinja_emit(f->j, jval_text(f->markup ? jstr_escape(f->j, text) : text));
}

/* The closing brace of the field that begins at `at`. */
static size_t field_end(struct formatter *f, struct str s, size_t at) {
    int open = 1;
    for (; at < s.len; at++) {
        open += s.ptr[at] == '{' ? 1 : s.ptr[at] == '}' ? -1 : 0;
        if (!open)
            return at;
    }
    jinja_type_error(f->j, "expected '}' before end of string");
}

static void emit_template(struct formatter *f, struct str s, int nested) {
    if (nested > 2)
        jinja_type_error(f->j, "Max string recursion exceeded");
    for (size_t at = 0; at < s.len;) {
        jinja_step(f->j, 1);
        size_t brace = until(s, at, "{}");
        jinja_emit(f->j, (struct str){s.ptr + at, brace - at});
        if (brace == s.len)
            return;
        if (brace + 1 < s.len && s.ptr[brace + 1] == s.ptr[brace] && !nested) {
            jinja_put(f->j, s.ptr[brace]);
            at = brace + 2;
            continue;
        }
        if (s.ptr[brace] == '}')
            jinja_type_error(f->j, "Single '}' encountered in format string");
        size_t end = field_end(f, s, brace + 1);
        emit_field(f, (struct str){s.ptr + brace + 1, end - brace - 1}, nested);
        at = end + 1;
    }
}

jval jinja_str_format(struct jinja *j, jval format, const struct jargs *args) {
    struct formatter f = {.j = j, .args = args, .markup = format.s->markup};
    sink_open(j);
    emit_template(&f, jval_text(format), 0);
    return jval_markup(j, jval_of_sink(j), f.markup);
}
