/* jinja_tests.c - what can stand behind `is`. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_number.h"

static jval remainder_is(struct jinja *j, const struct jcall *c, jval by, int64_t wanted) {
    return jval_bool(jval_eq(j, jval_binary(j, OP_MOD, c->self, by), jval_int(wanted)));
}

static jval t_odd(struct jinja *j, const struct jcall *c) { return remainder_is(j, c, jval_int(2), 1); }
static jval t_even(struct jinja *j, const struct jcall *c) { return remainder_is(j, c, jval_int(2), 0); }
static jval t_divisibleby(struct jinja *j, const struct jcall *c) { return remainder_is(j, c, c->arg[0], 0); }

static bool is_sequence(struct jinja *j, jval v) {
    int64_t n;
    return v.kind != J_VIEW && v.kind != J_LOOP && jval_len_if(v, j, &n);
}

static bool is_callable(jval v) {
    return v.kind == J_MACRO || v.kind == J_NATIVE || v.kind == J_LOOP || v.kind == J_JOINER || v.kind == J_UNDEFINED;
}

/* Python looks names up in a dict. */
static bool is_named(struct jinja *j, jval v, const struct builtin *(*find)(struct str name)) {
    jval_hash(j, v); // leaves when it has none
    return v.kind == J_STR && find(jval_text(v));
}

#define IS(name, claim)                                            \
    static jval t_##name(struct jinja *j, const struct jcall *c) { \
        jval v = c->self;                                          \
        (void)j, (void)v;                                          \
        return jval_bool(claim);                                   \
    }
IS(defined, v.kind != J_UNDEFINED)
IS(undefined, v.kind == J_UNDEFINED)
IS(none, v.kind == J_NONE)
IS(boolean, v.kind == J_BOOL)
IS(false, (v.kind == J_BOOL && !v.b))
IS(true, (v.kind == J_BOOL && v.b))
IS(integer, (v.kind == J_INT || v.digits))
IS(float, (v.kind == J_FLOAT && !v.digits))
IS(number, jval_is_number(v))
IS(string, v.kind == J_STR)
IS(mapping, v.kind == J_DICT)
IS(sequence, is_sequence(j, v))
IS(iterable, jval_is_iterable(v))
IS(callable, is_callable(v))
IS(escaped, (v.kind == J_STR && v.s->markup))
IS(lower, str_is_lower(j, jval_text(jval_to_plain(j, v))))
IS(upper, str_is_upper(j, jval_text(jval_to_plain(j, v))))
IS(sameas, jval_same(v, c->arg[0]))
IS(in, jval_in(j, v, c->arg[0]))
IS(eq, jval_eq(j, v, c->arg[0]))
IS(ne, !jval_eq(j, v, c->arg[0]))
IS(lt, jval_order(j, ORDER_LT, v, c->arg[0]))
IS(le, jval_order(j, ORDER_LE, v, c->arg[0]))
IS(gt, jval_order(j, ORDER_GT, v, c->arg[0]))
IS(ge, jval_order(j, ORDER_GE, v, c->arg[0]))
IS(filter, is_named(j, v, builtin_filter))
IS(test, is_named(j, v, builtin_test))
#undef IS

static const struct builtin tests[] = {
    BUILTIN("!=", t_ne, 0, 1, "other"),
    BUILTIN("<", t_lt, 0, 1, "other"),
    BUILTIN("<=", t_le, 0, 1, "other"),
    BUILTIN("==", t_eq, 0, 1, "other"),
    BUILTIN(">", t_gt, 0, 1, "other"),
    BUILTIN(">=", t_ge, 0, 1, "other"),
    BUILTIN0("boolean", t_boolean),
    BUILTIN0("callable", t_callable),
    BUILTIN0("defined", t_defined),
    BUILTIN("divisibleby", t_divisibleby, 0, 1, "num"),
    BUILTIN("eq", t_eq, 0, 1, "other"),
    BUILTIN("equalto", t_eq, 0, 1, "other"),
    BUILTIN0("escaped", t_escaped),
    BUILTIN0("even", t_even),
    BUILTIN0("false", t_false),
    BUILTIN0("filter", t_filter),
    BUILTIN0("float", t_float),
    BUILTIN("ge", t_ge, 0, 1, "other"),
    BUILTIN("greaterthan", t_gt, 0, 1, "other"),
    BUILTIN("gt", t_gt, 0, 1, "other"),
    BUILTIN("in", t_in, 0, 1, "seq"),
    BUILTIN0("integer", t_integer),
    BUILTIN0("iterable", t_iterable),
    BUILTIN("le", t_le, 0, 1, "other"),
    BUILTIN("lessthan", t_lt, 0, 1, "other"),
    BUILTIN0("lower", t_lower),
    BUILTIN("lt", t_lt, 0, 1, "other"),
    BUILTIN0("mapping", t_mapping),
    BUILTIN("ne", t_ne, 0, 1, "other"),
    BUILTIN0("none", t_none),
    BUILTIN0("number", t_number),
    BUILTIN0("odd", t_odd),
    BUILTIN("sameas", t_sameas, 0, 1, "other"),
    BUILTIN0("sequence", t_sequence),
    BUILTIN0("string", t_string),
    BUILTIN0("test", t_test),
    BUILTIN0("true", t_true),
    BUILTIN0("undefined", t_undefined),
    BUILTIN0("upper", t_upper),
};

const struct builtin *builtin_test(struct str name) { return find_builtin(tests, ARRAY_LEN(tests), name); }
