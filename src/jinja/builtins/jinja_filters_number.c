/* jinja_filters_number.c - filters about numbers, and tojson. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

#include <math.h>

static jval f_abs(struct jinja *j, const struct jcall *c) {
    jval v = c->self;
    if (!jval_is_number(v))
        jinja_type_error(j, "bad operand type for abs(): '%s'", jval_type(v));
    if (v.kind == J_FLOAT)
        return jval_float(fabs(v.f));
    return jval_binary(j, OP_MUL, v, jval_int(jval_number(v) < 0 ? -1 : 1));
}

static void refuse_undefined(struct jinja *j, jval v) {
    if (v.kind == J_UNDEFINED)
        jinja_undefined_error(j, v);
}

/* arg: default, base. "42.23" counts as 42, and anything that is no number as the default. */
static jval f_int(struct jinja *j, const struct jcall *c) {
    jval v = c->self;
    int64_t i;
    double f;
    refuse_undefined(j, v);
    if (v.kind == J_FLOAT)
        return jval_to_int(j, v.f);
    if (jval_is_number(v))
        return jval_int(v.kind == J_INT ? v.i : v.b);
    if (v.kind == J_STR && str_to_int(j, jval_text(v), arg_int(j, c, 1, 10), &i))
        return jval_int(i);
    if (v.kind == J_STR && str_to_float(j, jval_text(v), &f) && isfinite(f))
        return jval_to_int(j, f);
    return c->arg[0].kind == J_MISSING ? jval_int(0) : c->arg[0];
}

static jval f_float(struct jinja *j, const struct jcall *c) {
    double f;
    refuse_undefined(j, c->self);
    if (jval_is_number(c->self))
        return jval_float(jval_number(c->self));
    if (c->self.kind == J_STR && str_to_float(j, jval_text(c->self), &f))
        return jval_float(f);
    return c->arg[0].kind == J_MISSING ? jval_float(0) : c->arg[0];
}

/* arg: precision, method */
static jval f_round(struct jinja *j, const struct jcall *c) {
    struct str method = c->arg[1].kind == J_MISSING ? STR("common") : arg_str(j, c, 1);
    jval precision = c->arg[0].kind == J_MISSING ? jval_int(0) : c->arg[0];
    bool up = str_eq(method, STR("ceil"));
    if (!up && !str_eq(method, STR("floor")) && !str_eq(method, STR("common")))
        jinja_type_error(j, "method must be common, ceil or floor");
    refuse_undefined(j, c->self);
    if (str_eq(method, STR("common")))
        return jval_round(j, c->self, precision);
    jval unit = jval_binary(j, OP_POW, jval_int(10), precision), scaled = jval_binary(j, OP_MUL, c->self, unit);
    if (!jval_is_number(scaled))
        jinja_type_error(j, "must be real number, not %s", jval_type(scaled));
    if (scaled.kind == J_FLOAT && fabs(scaled.f) < 0x1p63)
        scaled = jval_to_int(j, up ? ceil(scaled.f) : floor(scaled.f)); // beyond, every double is whole
    else if (scaled.kind == J_FLOAT && !isfinite(scaled.f))
        jval_to_int(j, scaled.f); // leaves
    return jval_binary(j, OP_DIV, scaled, unit);
}

static jval f_filesizeformat(struct jinja *j, const struct jcall *c) {
    static const char letters[] = "kMGTPEZY";
    bool binary = arg_true(j, c, 0, false);
    double bytes = 0, base = binary ? 1024 : 1000, unit = base;
    refuse_undefined(j, c->self);
    if (jval_is_number(c->self))
        bytes = jval_number(c->self);
    else if (c->self.kind != J_STR || !str_to_float(j, jval_text(c->self), &bytes))
        jinja_type_error(j, "filesizeformat: '%s' is not a number", jval_type(c->self));
    sink_open(j);
    if (bytes == 1) {
        jinja_emit(j, STR("1 Byte"));
    } else if (bytes < base) {
        jinja_emitf(j, "%lld Bytes", (long long)jval_to_int(j, bytes).i);
    } else {
        size_t i = 0;
        while (i + 1 < sizeof letters - 1 && bytes >= unit * base) {
            unit *= base;
            i++;
        }
        jinja_emitf(j, "%.1f %c%sB", base * bytes / (unit * base), binary && !i ? 'K' : letters[i], binary ? "i" : "");
    }
    return jval_of_sink(j);
}

static struct str separator(struct jinja *j, jval pair, size_t i) {
    if (!jval_is_seq(pair) || pair.seq->n != 2 || pair.seq->items[i].kind != J_STR)
        jinja_type_error(j, "tojson: separators must be two strings");
    return jval_text(pair.seq->items[i]);
}

/* As transformers defines it. arg: ensure_ascii, indent, separators, sort_keys */
static jval f_tojson(struct jinja *j, const struct jcall *c) {
    struct json_style style = {
        .ascii = arg_true(j, c, 0, false), .pretty = given(c, 1), .sort_keys = arg_true(j, c, 3, false)};
    if (style.pretty) {
        jval indent = c->arg[1];
        if (indent.kind != J_STR)
            indent = jstr_repeat(j, jval_borrow(j, STR(" ")), jval_index(j, indent, "indent"));
        style.indent = jval_text(indent);
    }
    style.item_separator = given(c, 2) ? separator(j, c->arg[2], 0) : style.pretty ? STR(",") : STR(", ");
    style.key_separator = given(c, 2) ? separator(j, c->arg[2], 1) : STR(": ");
    sink_open(j);
    jinja_emit_json(j, c->self, &style, 0);
    return jval_of_sink(j);
}

const struct builtin number_filters[] = {
    BUILTIN0("abs", f_abs),
    BUILTIN("filesizeformat", f_filesizeformat, 0, 0, "binary"),
    BUILTIN("float", f_float, 0, 0, "default"),
    BUILTIN("int", f_int, 0, 0, "default", "base"),
    BUILTIN("round", f_round, 0, 0, "precision", "method"),
    BUILTIN("tojson", f_tojson, 0, 0, "ensure_ascii", "indent", "separators", "sort_keys"),
};
const size_t n_number_filters = ARRAY_LEN(number_filters);
