/* jinja_globals.c - the functions that every template can call by name. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

#include <locale.h>
#include <stdio.h>

enum { MAX_RANGE = 100000 }; // as the sandbox of Jinja2

static uint64_t range_length(int64_t start, int64_t stop, int64_t step) {
    if (step > 0 ? start >= stop : start <= stop)
        return 0;
    uint64_t distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    return (distance - 1) / stride + 1;
}

static int64_t range_arg(struct jinja *j, jval v) {
    if (v.kind == J_UNDEFINED)
        jinja_type_error(j, "'Undefined' object cannot be interpreted as an integer");
    return jval_index(j, v, "range()");
}

static jval g_range(struct jinja *j, const struct jcall *c) {
    bool one = c->arg[1].kind == J_MISSING;
    int64_t start = one ? 0 : range_arg(j, c->arg[0]), stop = range_arg(j, c->arg[!one]);
    int64_t step = c->arg[2].kind == J_MISSING ? 1 : range_arg(j, c->arg[2]);
    if (step == 0)
        jinja_type_error(j, "range() arg 3 must not be zero");
    uint64_t n = range_length(start, stop, step);
    if (n > MAX_RANGE)
        jinja_fail(j, ERR_LIMIT, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    struct jrange *range = jinja_alloc(j, sizeof *range);
    *range = (struct jrange){start, stop, step, (int64_t)n};
    return (jval){.kind = J_RANGE, .range = range};
}

static void add_pairs(struct jinja *j, struct jdict *d, jval pairs) {
    struct jiter it;
    jiter_of(j, pairs, &it);
    for (jval v; jiter_next(j, &it, &v);) {
        jval pair = jval_to_list(j, v);
        if (pair.seq->n != 2)
            jinja_type_error(j, "dictionary update sequence element has length %zu; 2 is required", pair.seq->n);
        jdict_set(j, d, pair.seq->items[0], pair.seq->items[1]);
    }
}

/* dict(mapping or pairs, **more) */
static jval g_dict(struct jinja *j, const struct jcall *c) {
    jval from = c->rest.n ? c->rest.positional[0] : jval_dict(j);
    if (c->rest.n > 1)
        jinja_type_error(j, "dict expected at most 1 argument, got %zu", c->rest.n);
    jval d = from.kind == J_DICT ? jdict_copy(j, from.d) : jval_dict(j);
    if (from.kind != J_DICT)
        add_pairs(j, d.d, from);
    for (size_t i = 0; i < c->rest.n_keyword; i++)
        jdict_set(j, d.d, c->rest.keyword[i].name, c->rest.keyword[i].value);
    return d;
}

static jval g_namespace(struct jinja *j, const struct jcall *c) {
    struct jnamespace *ns = jinja_alloc(j, sizeof *ns);
    ns->d = g_dict(j, c).d;
    return (jval){.kind = J_NAMESPACE, .ns = ns};
}

static jval g_cycler(struct jinja *j, const struct jcall *c) {
    if (!c->rest.n)
        jinja_type_error(j, "at least one item has to be provided");
    struct jcycler *cycler = jinja_alloc(j, sizeof *cycler);
    jval *items = jinja_calloc(j, c->rest.n, sizeof *items);
    memcpy(items, c->rest.positional, c->rest.n * sizeof *items);
    cycler->items = jval_seq(j, J_TUPLE, items, c->rest.n).seq;
    return (jval){.kind = J_CYCLER, .cycler = cycler};
}

static jval g_joiner(struct jinja *j, const struct jcall *c) {
    struct jjoiner *joiner = jinja_alloc(j, sizeof *joiner);
    joiner->separator = c->arg[0].kind == J_MISSING ? jval_borrow(j, STR(", ")) : c->arg[0];
    return (jval){.kind = J_JOINER, .joiner = joiner};
}

static jval g_raise_exception(struct jinja *j, const struct jcall *c) {
    struct str message = jval_text(jval_to_plain(j, c->arg[0]));
    if (j->raised) {
        buf_printf(j->raised, "%s:%d: ", j->name, j->line);
        buf_str(j->raised, message);
    }
    jinja_fail(j, ERR_ARG, "%.*s", (int)MIN(message.len, sizeof j->err->text), message.ptr);
}

// ---- strftime_now ----

/* Python itself handles these: microseconds, and time zones, which the time of day has none of. */
static bool format_for_python(struct jinja *j, char directive) {
    if (directive == 'f')
        jinja_emit(j, STR("000000"));
    return directive == 'f' || directive == 'z' || directive == 'Z';
}

static void emit_directive(struct jinja *j, struct str directive, const struct tm *now) {
    char format[8], text[256];
    snprintf(format, sizeof format, "%.*s", STR_ARG(directive));
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); // whatever the process has set
    size_t n = strftime_l(text, sizeof text, format, now, plain);
    freelocale(plain);
    jinja_emit(j, (struct str){text, n});
}

/* The length of %x, %-d, %10Y ... at the start of s; 1 when it is cut short. */
static size_t directive_length(struct str s) {
    size_t n = 1;
    while (n < s.len && n < 5 && s.ptr[n] && strchr("_-0^#EO123456789", s.ptr[n]))
        n++;
    return n < s.len && ((s.ptr[n] | 32) >= 'a' && (s.ptr[n] | 32) <= 'z') ? n + 1
           : n < s.len && s.ptr[n] == '%'                                  ? n + 1
                                                                           : 1;
}

static jval g_strftime_now(struct jinja *j, const struct jcall *c) {
    struct str format = arg_str(j, c, 0);
    sink_open(j);
    for (size_t at = 0; at < format.len;) {
        size_t percent = MIN(str_find(format, STR("%"), at), format.len);
        jinja_emit(j, (struct str){format.ptr + at, percent - at});
        struct str directive = {format.ptr + percent, format.len - percent};
        if (!directive.len)
            break;
        directive.len = directive_length(directive);
        if (directive.len == 1)
            jinja_put(j, '%');
        else if (!format_for_python(j, directive.ptr[directive.len - 1]))
            emit_directive(j, directive, j->now);
        at = percent + directive.len;
    }
    return jval_of_sink(j);
}

static const struct builtin globals[] = {
    BUILTIN("cycler", g_cycler, TAKES_REST, 0, NULL),
    BUILTIN("dict", g_dict, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("joiner", g_joiner, 0, 0, "sep"),
    BUILTIN("namespace", g_namespace, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("raise_exception", g_raise_exception, 0, 1, "message"),
    BUILTIN("range", g_range, POSITIONAL, 1, "start", "stop", "step"),
    BUILTIN("strftime_now", g_strftime_now, 0, 1, "format"),
};

const struct builtin *builtin_global(struct str name) { return find_builtin(globals, ARRAY_LEN(globals), name); }
