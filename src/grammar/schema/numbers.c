/* numbers.c - bounds and multiples of numbers as regular languages of their decimals.
 *
 * A bound becomes a regular expression by digits: x >= 456 is "more digits, or 4.. with a larger digit at some
 * place". Readers take numbers as doubles, and 4.99999999999999999999 is 5 to them: so an exclusive bound is the
 * inclusive one at the next double. And fractions that are no whole number, or a multiple of one, have 15 digits at
 * most, which a double keeps. Beside bounds an exponent is written where it cannot matter: of all numbers of a
 * sign, and of those so small or large that writers of JSON use one. */
#include "grammar/schema/reader.h"

#include "base/buf.h"

#include <math.h>
#include <stdlib.h>

#define WHOLE "(0|[1-9][0-9]*)"
#define FRACTION "(\\.[0-9]+)?"
#define EXPONENT "[eE][+-]?([0-9]{1,2}|[12][0-9][0-9]|30[0-7])"
#define TINY "[1-9]" FRACTION "[eE]-(0?[5-9]|[1-9][0-9])"                           // below 1e-4
#define HUGE_ "[1-9]" FRACTION "[eE]\\+?(1[6-9]|[2-9][0-9]|[12][0-9][0-9]|30[0-7])" // 1e16 at least

enum { MAX_REMAINDERS = 4096 };

struct decimal {
    bool negative;
    struct str whole, fraction; // digits; without zeros before, or behind; whole is "0" at least
};

static rx_id regex(struct reader *r, const char *pattern) {
    rx_id out = RX_NEVER;
    struct error err;
    if (regex_read_rx(ir_rx(r->ir), str_of(pattern), REGEX_ECMA, &out, &err) != OK)
        reader_refuse(r, err.status, "a bound of numbers: %s", err.text);
    return out;
}

void numbers_init(struct reader *r) {
    r->any_number.value = regex(r, "0|-?([1-9][0-9]*(\\.[0-9]*[1-9])?|0\\.[0-9]*[1-9])");
    r->any_number.text = regex(r, "-?" WHOLE FRACTION "(" EXPONENT ")?");
    rx_id whole = regex(r, "0|-?[1-9][0-9]*");
    r->any_number = numbers_of(r->any_number.value, r->any_number.text);
    r->integers = numbers_of(whole, whole);
    r->wholes = numbers_of(whole, regex(r, "-?" WHOLE "(\\.0+)?"));
    r->integers.step.digits = r->wholes.step.digits = 1;
    r->plain_numbers = regex(r, "-?" WHOLE FRACTION);
    r->short_numbers = regex(r, "-?([0-9]+|[0-9.]{1,16})");
}

static bool all_zero(const char *s) { return s[strspn(s, "0")] == '\0'; }

/* The decimals of a finite double, the fewest that give it back. */
static struct decimal decimal_of_real(struct reader *r, double x) {
    char text[40];
    for (int n = 1; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, x);
        if (strtod(text, NULL) == x)
            break;
    }
    struct decimal d = {.negative = text[0] == '-'};
    char digits[32];
    int n = 0, point = 1 + atoi(strchr(text, 'e') + 1); // digits before the point
    for (const char *c = text; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    size_t n_whole = (size_t)MAX(point, 1), n_fraction = (size_t)MAX(n - point, 0);
    char *whole = arena_alloc(&r->arena, n_whole + 1), *fraction = arena_alloc(&r->arena, n_fraction + 1);
    for (int i = 0; i < (int)n_whole; i++)
        whole[i] = i < n && point > 0 ? digits[i] : '0';
    for (int i = 0; i < (int)n_fraction; i++)
        fraction[i] = point + i >= 0 ? digits[point + i] : '0';
    d.whole = (struct str){whole, n_whole};
    d.fraction = (struct str){fraction, all_zero(fraction) ? 0 : n_fraction};
    d.negative &= !(d.fraction.len == 0 && all_zero(whole));
    return d;
}

static struct decimal decimal_of(struct reader *r, const json_t *number) {
    if (json_is_real(number))
        return decimal_of_real(r, json_real_value(number));
    char *text = arena_printf(&r->arena, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
    bool negative = text[0] == '-';
    return (struct decimal){negative, str_of(text + negative), {"", 0}};
}

static bool is_zero(const struct decimal *d) { return str_eq(d->whole, STR("0")) && d->fraction.len == 0; }

/* Appends the unsigned decimals that are at least (up) or at most c. */
static void beyond(struct buf *out, const struct decimal *c, bool up) {
    size_t n = c->whole.len;
    bool zero = str_eq(c->whole, STR("0"));
    buf_printf(out, "(");
    if (up)
        buf_printf(out, zero ? "[1-9][0-9]*" FRACTION "|" : "[1-9][0-9]{%zu,}" FRACTION "|", n);
    else if (n > 1)
        buf_printf(out, "(0|[1-9][0-9]{0,%zu})" FRACTION "|", n - 2);
    for (size_t i = 0; i < n && !zero; i++) { // as many digits, the same up to i
        char d = c->whole.ptr[i], low = i == 0 && n > 1 ? '1' : '0';
        if (up ? d < '9' : d > low)
            buf_printf(out, "%.*s[%c-%c][0-9]{%zu}" FRACTION "|", (int)i, c->whole.ptr, up ? d + 1 : low,
                       up ? '9' : d - 1, n - i - 1);
    }
    buf_str(out, c->whole);
    if (c->fraction.len == 0) {
        buf_printf(out, up ? FRACTION ")" : "(\\.0+)?)");
        return;
    }
    buf_printf(out, up ? "\\.(" : "(\\.(");
    for (size_t i = 0; i < c->fraction.len; i++) {
        char d = c->fraction.ptr[i];
        if (up ? d < '9' : d > '0')
            buf_printf(out, "%.*s[%c-%c][0-9]*|", (int)i, c->fraction.ptr, up ? d + 1 : '0', up ? '9' : d - 1);
        if (!up && i > 0)
            buf_printf(out, "%.*s|", (int)i, c->fraction.ptr);
    }
    buf_printf(out, "%.*s%s", (int)c->fraction.len, c->fraction.ptr, up ? "[0-9]*))" : "0*))?)");
}

/* Numbers with exponents that are certainly within a bound. inner: all of the sign that the bound leads to are. */
static rx_id with_exponents(struct reader *r, const struct decimal *c, bool up, bool inner) {
    const char *ours = up ? "" : "-", *other = up ? "-" : "";
    double size = fabs(strtod(arena_printf(&r->arena, "%.*s.%.*s", STR_ARG(c->whole), STR_ARG(c->fraction)), NULL));
    struct buf out = {0};
    if (inner)
        buf_printf(&out, "%s[1-9]" FRACTION EXPONENT, ours);
    else if (size <= 1e16)
        buf_printf(&out, "%s" HUGE_, ours);
    if (inner && size >= 1e-4)
        buf_printf(&out, "|%s" TINY, other);
    rx_id exponents = out.len ? regex(r, buf_view(&out).ptr) : RX_NEVER;
    buf_release(&out);
    return exponents;
}

/* The numbers x with x >= c (up), or x <= c; `strict`: and x != c, for c = 0 alone. */
static struct numbers bounded(struct reader *r, const struct decimal *c, bool up, bool strict) {
    struct buf out = {0};
    bool zero = is_zero(c), inner = zero || c->negative == up; // all numbers of one sign are in
    const char *ours = up ? "" : "-", *other = up ? "-" : "";
    struct decimal least = {false, STR("0"), STR("")};
    if (strict && zero) { // what is not zero to a reader of doubles either
        buf_printf(&out, "%s([1-9][0-9]*" FRACTION "|0\\.0{0,300}[1-9][0-9]*)", ours);
    } else if (inner) {
        buf_printf(&out, "%s", ours);
        beyond(&out, &least, true);
        if (zero && !up)
            buf_printf(&out, "|0(\\.0+)?");
        if (!zero) {
            buf_printf(&out, "|%s", other);
            beyond(&out, c, false);
        }
    } else {
        buf_printf(&out, "%s", ours);
        beyond(&out, c, true);
    }
    struct rx_pool *rx = ir_rx(r->ir);
    struct numbers numbers;
    numbers.text = regex(r, buf_view(&out).ptr);
    numbers.value = rx_and(rx, r->any_number.value, numbers.text);
    numbers.text = rx_alt(rx, numbers.text, with_exponents(r, c, up, inner));
    buf_release(&out);
    return numbers_of(numbers.value, numbers.text);
}

static struct numbers bounded_by(struct reader *r, const json_t *bound, bool up, bool strict) {
    double x = json_number_value(bound), beyond_x = nextafter(x, up ? INFINITY : -INFINITY);
    struct decimal c = decimal_of(r, bound);
    if (!strict || is_zero(&c))
        return bounded(r, &c, up, strict);
    if (fabs(x) < 9007199254740992.0) {
        c = decimal_of_real(r, beyond_x);
    } else if (json_is_integer(bound)) { // larger integers are compared as integers
        json_int_t next = json_integer_value(bound);
        if (up ? next == INT64_MAX : next == INT64_MIN)
            reader_refuse(r, ERR_UNSUPPORTED, "exclusive bound %" JSON_INTEGER_FORMAT ": is too large", next);
        else
            next += up ? 1 : -1;
        char *text = arena_printf(&r->arena, "%" JSON_INTEGER_FORMAT, next);
        c = (struct decimal){text[0] == '-', str_of(text + (text[0] == '-')), {"", 0}};
    } else if (isinf(beyond_x)) {
        reader_refuse(r, ERR_UNSUPPORTED, "exclusive bound %.17g: no number is beyond it", x);
    } else {
        c = decimal_of_real(r, beyond_x);
    }
    return bounded(r, &c, up, false);
}

static bool step_is_enforced(uint64_t digits, int decimals) {
    uint64_t odd = digits; // remainders that zeros do not lead to 0: their number is that of states to be searched
    while (odd % 2 == 0 || odd % 5 == 0)
        odd /= odd % 2 == 0 ? 2 : 5;
    return digits <= RX_MAX_STEP && decimals <= 18 && odd <= MAX_REMAINDERS;
}

static bool is_one(struct step step) { return step.digits == 1 && step.decimals == 0; }

/* Numbers of the two languages that are multiples of a step; those with the step 1 are whole already. */
static struct numbers with_step(struct reader *r, rx_id value, rx_id text, struct step step) {
    struct rx_pool *rx = ir_rx(r->ir);
    struct numbers n = {value, text, step, value, text};
    if (step.digits == 0 || is_one(step))
        return n;
    rx_id multiple = rx_multiple(rx, step.digits, step.decimals);
    multiple = rx_seq(rx, rx_optional(rx, rx_bytes(rx, STR("-"))), multiple);
    rx_id plain = step.decimals > 0 ? rx_and(rx, r->plain_numbers, r->short_numbers) : r->plain_numbers;
    n.value = rx_and(rx, value, multiple);
    n.text = rx_and(rx, text, rx_and(rx, plain, multiple));
    return n;
}

static struct step step_of(struct reader *r, const json_t *number) {
    struct decimal d = decimal_of(r, number);
    uint64_t digits = 0;
    for (size_t i = 0; i < d.whole.len + d.fraction.len && digits < UINT32_MAX; i++)
        digits = digits * 10 + (uint64_t)((i < d.whole.len ? d.whole.ptr[i] : d.fraction.ptr[i - d.whole.len]) - '0');
    if (digits == 0 || d.negative)
        reader_refuse(r, ERR_FORMAT, "multipleOf: must be greater than 0");
    else if (!step_is_enforced(digits, (int)d.fraction.len))
        reader_refuse(r, ERR_UNSUPPORTED, "multipleOf: %.17g has too many digits to be enforced",
                      json_number_value(number));
    return refused(r) ? (struct step){0} : (struct step){(uint32_t)digits, (int)d.fraction.len};
}

/* The least common multiple. */
static struct step join_steps(struct reader *r, struct step a, struct step b) {
    int decimals = MAX(a.decimals, b.decimals);
    unsigned __int128 x = a.digits, y = b.digits, u, v, rest;
    for (int i = a.decimals; i < decimals; i++)
        x *= 10;
    for (int i = b.decimals; i < decimals; i++)
        y *= 10;
    for (u = x, v = y; v != 0; u = v, v = rest)
        rest = u % v;
    x = x / u > RX_MAX_STEP ? 0 : y <= (unsigned __int128)-1 / (x / u) ? x / u * y : 0;
    for (; x != 0 && x % 10 == 0 && decimals > 0; decimals--)
        x /= 10;
    if (x == 0 || x > RX_MAX_STEP || !step_is_enforced((uint64_t)x, decimals))
        reader_refuse(r, ERR_UNSUPPORTED,
                      "multipleOf: numbers that are multiples of several steps have too many digits");
    return refused(r) ? (struct step){0} : (struct step){(uint32_t)x, decimals};
}

struct numbers numbers_and(struct reader *r, struct numbers a, struct numbers b) {
    struct rx_pool *rx = ir_rx(r->ir);
    if (a.value == b.value && a.text == b.text)
        return a;
    if (a.text == r->any_number.text)
        return b;
    if (b.text == r->any_number.text)
        return a;
    if (a.value == RX_NEVER || b.value == RX_NEVER)
        return (struct numbers){.step = {0}};
    struct step step = !a.step.digits ? b.step : !b.step.digits ? a.step : join_steps(r, a.step, b.step);
    if (is_one(step) && !is_one(a.step) && !is_one(b.step)) // 0.5 and 0.2
        return numbers_and(r, numbers_and(r, a, r->wholes), b);
    return with_step(r, rx_and(rx, a.base_value, b.base_value), rx_and(rx, a.base_text, b.base_text), step);
}

static const json_t *number_at(struct reader *r, const json_t *schema, const char *key) {
    const json_t *v = json_object_get(schema, key);
    if (v && !json_is_number(v) && !json_is_boolean(v))
        reader_refuse(r, ERR_FORMAT, "%s: must be a number, not %s", key, jv_type_name(v));
    return json_is_number(v) ? v : NULL;
}

struct numbers read_numbers(struct reader *r, const json_t *schema, bool integer) {
    struct numbers n = integer ? r->integers : r->any_number;
    static const struct {
        const char *key, *strictly;
        bool up;
    } sides[] = {{"minimum", "exclusiveMinimum", true}, {"maximum", "exclusiveMaximum", false}};
    for (size_t i = 0; i < ARRAY_LEN(sides); i++) {
        const json_t *bound = number_at(r, schema, sides[i].key), *strict = number_at(r, schema, sides[i].strictly);
        bool draft4 = json_is_true(json_object_get(schema, sides[i].strictly));
        if (bound)
            n = numbers_and(r, n, bounded_by(r, bound, sides[i].up, draft4));
        if (strict)
            n = numbers_and(r, n, bounded_by(r, strict, sides[i].up, true));
    }
    const json_t *step = number_at(r, schema, "multipleOf");
    struct step of = step ? step_of(r, step) : (struct step){0};
    if (!step || refused(r))
        return n;
    return numbers_and(r, n, is_one(of) ? r->wholes : with_step(r, r->any_number.value, r->any_number.text, of));
}

static struct str text_of(struct reader *r, const json_t *number, const char *tail) {
    struct decimal d = decimal_of(r, number);
    return str_of(arena_printf(&r->arena, "%s%.*s%s%.*s%s", d.negative ? "-" : "", STR_ARG(d.whole),
                               d.fraction.len ? "." : "", STR_ARG(d.fraction), tail));
}

/* Whole numbers may be written as 1.0 too, where the type does not say integer. */
struct numbers numbers_of_values(struct reader *r, const json_t *const *values, size_t n) {
    struct rx_pool *rx = ir_rx(r->ir);
    struct str *texts = xcalloc(2 * n + 1, sizeof *texts);
    size_t n_texts = 0;
    for (size_t i = 0; i < n; i++)
        texts[n_texts++] = text_of(r, values[i], "");
    rx_id value = rx_choice(rx, texts, n_texts);
    for (size_t i = 0; i < n; i++)
        if (decimal_of(r, values[i]).fraction.len == 0)
            texts[n_texts++] = text_of(r, values[i], ".0");
    struct numbers out = numbers_of(value, rx_choice(rx, texts, n_texts));
    free(texts);
    return out;
}
