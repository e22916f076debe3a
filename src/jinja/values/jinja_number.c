/* jinja_number.c - arithmetic with Python's rules: // and % round towards minus infinity, ** and / may turn
 * integers into floats, bool counts as 0 and 1. What needs more than 64 bits is refused, never wrapped. */
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_unicode.h"
#include "jinja/values/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static _Noreturn void unsupported(struct jinja *j, enum jop op, jval a, jval b) {
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        jinja_undefined_error(j, a.kind == J_UNDEFINED ? a : b);
    if (op == OP_ADD && (a.kind == J_STR || jval_is_seq(a)))
        jinja_type_error(j, "can only concatenate %s (not \"%s\") to %s", jval_type(a), jval_type(b), jval_type(a));
    jinja_type_error(j, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op], jval_type(a), jval_type(b));
}

static _Noreturn void overflow(struct jinja *j) {
    jinja_fail(j, ERR_LIMIT, "the result of integer arithmetic does not fit into 64 bits");
}

static bool is_integer(jval v) { return v.kind == J_INT || v.kind == J_BOOL; }
static int64_t integer(jval v) { return v.kind == J_INT ? v.i : v.b; }

static int64_t floor_div(struct jinja *j, int64_t a, int64_t b) {
    if (b == 0)
        jinja_type_error(j, "integer division or modulo by zero");
    if (a == INT64_MIN && b == -1)
        overflow(j);
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static int64_t floor_mod(struct jinja *j, int64_t a, int64_t b) {
    if (b == 0)
        jinja_type_error(j, "integer modulo by zero");
    if (b == -1)
        return 0;
    int64_t m = a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

static int64_t int_pow(struct jinja *j, int64_t base, int64_t exponent) {
    int64_t result = 1;
    for (;;) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            overflow(j);
        exponent >>= 1;
        if (!exponent)
            return result;
        if (__builtin_mul_overflow(base, base, &base))
            overflow(j);
    }
}

static jval float_op(struct jinja *j, enum jop op, double a, double b);

static jval int_op(struct jinja *j, enum jop op, int64_t a, int64_t b) {
    int64_t r;
    switch (op) {
    case OP_ADD:
        if (__builtin_add_overflow(a, b, &r))
            overflow(j);
        return jval_int(r);
    case OP_SUB:
        if (__builtin_sub_overflow(a, b, &r))
            overflow(j);
        return jval_int(r);
    case OP_MUL:
        if (__builtin_mul_overflow(a, b, &r))
            overflow(j);
        return jval_int(r);
    case OP_DIV:
        if (b == 0)
            jinja_type_error(j, "division by zero");
        return jval_float((double)((long double)a / (long double)b)); // Python rounds the exact quotient
    case OP_FLOORDIV: return jval_int(floor_div(j, a, b));
    case OP_MOD: return jval_int(floor_mod(j, a, b));
    case OP_POW: return b < 0 ? float_op(j, op, (double)a, (double)b) : jval_int(int_pow(j, a, b));
    }
    return jval_none();
}

/* As CPython's float_divmod: the remainder has the sign of b, the quotient is snapped to an integer. */
static double float_mod(double a, double b) {
    double mod = fmod(a, b);
    if (mod)
        return (b < 0) != (mod < 0) ? mod + b : mod;
    return copysign(0.0, b);
}

static double float_floor_div(double a, double b) {
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod && (b < 0) != (mod < 0))
        div -= 1.0;
    if (!div)
        return copysign(0.0, a / b);
    double snapped = floor(div);
    return div - snapped > 0.5 ? snapped + 1.0 : snapped;
}

static double float_pow(struct jinja *j, double a, double b) {
    if (a == 0 && b < 0)
        jinja_type_error(j, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        jinja_type_error(j, "a negative number cannot be raised to a fractional power");
    double r = pow(a, b);
    if (isinf(r) && isfinite(a) && isfinite(b))
        jinja_type_error(j, "(34, 'Numerical result out of range')");
    return r;
}

static jval float_op(struct jinja *j, enum jop op, double a, double b) {
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        jinja_type_error(j, op == OP_DIV   ? "float division by zero"
                            : op == OP_MOD ? "float modulo"
                                           : "float floor division by zero");
    switch (op) {
    case OP_ADD: return jval_float(a + b);
    case OP_SUB: return jval_float(a - b);
    case OP_MUL: return jval_float(a * b);
    case OP_DIV: return jval_float(a / b);
    case OP_FLOORDIV: return jval_float(float_floor_div(a, b));
    case OP_MOD: return jval_float(float_mod(a, b));
    case OP_POW: return jval_float(float_pow(j, a, b));
    }
    return jval_none();
}

static jval add_seq(struct jinja *j, jval a, jval b) {
    size_t n = a.seq->n + b.seq->n; // both are in memory
    jval *items = jinja_calloc(j, n, sizeof *items);
    jinja_step(j, n);
    if (a.seq->n)
        memcpy(items, a.seq->items, a.seq->n * sizeof *items);
    if (b.seq->n)
        memcpy(items + a.seq->n, b.seq->items, b.seq->n * sizeof *items);
    return jval_seq(j, a.kind, items, n);
}

static jval repeat_seq(struct jinja *j, jval v, int64_t times) {
    size_t n;
    if (times < 0)
        times = 0;
    if (!size_mul(v.seq->n, (size_t)times, &n))
        n = SIZE_MAX;
    jval *items = jinja_calloc(j, n, sizeof *items);
    jinja_step(j, n);
    for (size_t i = 0; i < n; i++)
        items[i] = v.seq->items[i % v.seq->n];
    return jval_seq(j, v.kind, items, n);
}

static bool is_sequence(jval v) { return v.kind == J_STR || jval_is_seq(v); }

static jval repeat(struct jinja *j, jval sequence, int64_t times) {
    return sequence.kind == J_STR ? jstr_repeat(j, sequence, times) : repeat_seq(j, sequence, times);
}

jval jval_binary(struct jinja *j, enum jop op, jval a, jval b) {
    if (is_integer(a) && is_integer(b))
        return int_op(j, op, integer(a), integer(b));
    if (jval_is_number(a) && jval_is_number(b))
        return float_op(j, op, jval_number(a), jval_number(b));
    if (op == OP_MOD && a.kind == J_STR)
        return jinja_percent(j, a, b);
    if (op == OP_ADD && a.kind == J_STR && b.kind == J_STR)
        return jstr_concat(j, a, b);
    if (op == OP_ADD && jval_is_seq(a) && a.kind == b.kind)
        return add_seq(j, a, b);
    if (op == OP_MUL && is_sequence(a) && is_integer(b))
        return repeat(j, a, integer(b));
    if (op == OP_MUL && is_integer(a) && is_sequence(b))
        return repeat(j, b, integer(a));
    unsupported(j, op, a, b);
}

static jval unary(struct jinja *j, jval v, char sign) {
    if (v.kind == J_UNDEFINED)
        jinja_undefined_error(j, v);
    if (!jval_is_number(v))
        jinja_type_error(j, "bad operand type for unary %c: '%s'", sign, jval_type(v));
    return v.kind == J_BOOL ? jval_int(v.b) : v;
}

jval jval_plus(struct jinja *j, jval v) { return unary(j, v, '+'); }

jval jval_negate(struct jinja *j, jval v) {
    v = unary(j, v, '-');
    return v.kind == J_FLOAT ? jval_float(-v.f) : int_op(j, OP_SUB, 0, v.i);
}

int64_t jval_index(struct jinja *j, jval v, const char *what) {
    if (!is_integer(v))
        jinja_type_error(j, "%s: '%s' object cannot be interpreted as an integer", what, jval_type(v));
    return integer(v);
}

/* Without white space around it, and with the digits of all scripts as ASCII. */
static struct str plain_digits(struct jinja *j, struct str s) {
    s = str_trim(s, true, true);
    char *out = jinja_alloc(j, s.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        int bytes = utf8_decode(s.ptr + i, s.len - i, &cp), value = cp_decimal_value(cp);
        if (value >= 0) {
            out[n++] = (char)('0' + value);
        } else {
            memcpy(out + n, s.ptr + i, (size_t)bytes);
            n += (size_t)bytes;
        }
        i += (size_t)bytes;
    }
    return (struct str){out, n};
}

static int digit_value(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

static int prefix_base(struct str s) {
    if (s.len < 2 || s.ptr[0] != '0')
        return 0;
    char letter = (char)(s.ptr[1] | 32);
    return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

/* Takes 0x and the like away where the base allows them, and settles base 0. False: no number. */
static bool take_prefix(struct str *s, int64_t *base) {
    int found = prefix_base(*s);
    if (found && (*base == 0 || *base == found)) {
        *base = found;
        *s = (struct str){s->ptr + 2, s->len - 2};
        if (s->len && s->ptr[0] == '_')
            *s = (struct str){s->ptr + 1, s->len - 1};
    } else if (*base == 0) {
        // As in source text: 0 and 00 are numbers, 07 is not.
        if (s->len > 1 && s->ptr[0] == '0' && str_trim_set(*s, STR("0_"), true, false).len)
            return false;
        *base = 10;
    }
    return *base >= 2 && *base <= 36;
}

static bool all_digits(struct str s, int64_t base) {
    if (!s.len || s.ptr[0] == '_' || s.ptr[s.len - 1] == '_')
        return false;
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] == '_' ? s.ptr[i - 1] == '_' : digit_value(s.ptr[i]) >= base)
            return false;
    return true;
}

bool str_to_int(struct jinja *j, struct str s, int64_t base, int64_t *out) {
    s = plain_digits(j, s);
    bool negative = s.len && s.ptr[0] == '-';
    if (s.len && (s.ptr[0] == '-' || s.ptr[0] == '+'))
        s = (struct str){s.ptr + 1, s.len - 1};
    if (!take_prefix(&s, &base) || !all_digits(s, base))
        return false;
    int64_t value = 0; // negative, since that side reaches further
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] != '_' && (__builtin_mul_overflow(value, base, &value) ||
                                __builtin_sub_overflow(value, digit_value(s.ptr[i]), &value)))
            overflow(j);
    if (!negative && __builtin_sub_overflow((int64_t)0, value, &value))
        overflow(j);
    *out = value;
    return true;
}

/* The letters that strtod and Python agree on; strtod alone would also take 0x10 and nan(1). */
static bool is_float_text(struct str s) {
    if (s.len && (s.ptr[0] == '+' || s.ptr[0] == '-'))
        s = (struct str){s.ptr + 1, s.len - 1};
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (s.len == strlen(words[i]) && strncasecmp(s.ptr, words[i], s.len) == 0)
            return true;
    if (!s.len || s.ptr[0] == '_' || s.ptr[s.len - 1] == '_')
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '_' && (digit_value(s.ptr[i - 1]) > 9 || digit_value(s.ptr[i + 1]) > 9))
            return false;
        if (!strchr("0123456789.eE+-_", s.ptr[i]) || !s.ptr[i])
            return false;
    }
    return true;
}

bool str_to_float(struct jinja *j, struct str s, double *out) {
    s = plain_digits(j, s);
    if (!is_float_text(s))
        return false;
    char *digits = jinja_alloc(j, s.len + 1), *end;
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] != '_')
            digits[n++] = s.ptr[i];
    *out = strtod(digits, &end);
    return end == digits + n;
}

jval jval_to_int(struct jinja *j, double f) {
    if (isnan(f))
        jinja_type_error(j, "cannot convert float NaN to integer");
    if (isinf(f))
        jinja_type_error(j, "cannot convert float infinity to integer");
    if (f >= 0x1p63 || f < -0x1p63)
        overflow(j);
    return jval_int((int64_t)f);
}

static double round_half_even(double f) {
    double r = round(f);
    return fabs(f - trunc(f)) == 0.5 ? 2.0 * round(f / 2.0) : r;
}

/* 1234 to tens, hundreds ...: half to even, in integers. */
static int64_t round_int(struct jinja *j, int64_t i, int64_t n_digits) {
    if (n_digits >= 0)
        return i;
    if (n_digits < -18)
        return 0;
    int64_t unit = int_pow(j, 10, -n_digits), rest = floor_mod(j, i, unit), down = i - rest;
    bool up = rest > unit / 2 || (rest == unit / 2 && floor_mod(j, floor_div(j, down, unit), 2) != 0);
    return int_op(j, OP_ADD, down, up ? unit : 0).i;
}

jval jval_round(struct jinja *j, jval v, jval n_digits) {
    if (!jval_is_number(v))
        jinja_type_error(j, "type %s doesn't define __round__ method", jval_type(v));
    if (!jval_is_given(n_digits))
        return v.kind == J_FLOAT ? jval_to_int(j, round_half_even(v.f)) : jval_int(integer(v));
    int64_t n = jval_index(j, n_digits, "round()");
    if (v.kind != J_FLOAT)
        return jval_int(round_int(j, integer(v), n));
    if (!isfinite(v.f) || n > 22)
        return v;
    if (n < -308)
        return jval_float(copysign(0.0, v.f));
    if (n < 0) {
        double unit = pow(10.0, (double)-n);
        return jval_float(round_half_even(v.f / unit) * unit);
    }
    char text[400]; // printf rounds the exact binary value, as Python does
    snprintf(text, sizeof text, "%.*f", (int)n, v.f);
    return jval_float(strtod(text, NULL));
}

// ---- past 64 bits -----------------------------------------------------------------------------------------------

jval jval_large(struct jinja *j, struct str digits) {
    char text[512]; // more than a double may have
    if (j->n_large == j->large_cap) {
        j->large_cap = 2 * j->large_cap + 8;
        struct str *more = jinja_calloc(j, j->large_cap, sizeof *more);
        if (j->n_large)
            memcpy(more, j->large, j->n_large * sizeof *more);
        j->large = more;
    }
    j->large[j->n_large++] = digits;
    snprintf(text, sizeof text, "%.*s", STR_ARG(digits));
    return (jval){.kind = J_FLOAT, .digits = j->n_large, .f = strtod(text, NULL)};
}
