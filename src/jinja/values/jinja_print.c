/* jinja_print.c - str() and repr() of every value, and the sentence about an undefined one. */
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_unicode.h"
#include "jinja/values/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The shortest digits that read back as f, laid out as Python's float.__repr__ does. */
void jinja_emit_float(struct jinja *j, double f) {
    if (!isfinite(f)) {
        jinja_emitf(j, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char e[40];
    int precision = 0;
    do
        snprintf(e, sizeof e, "%.*e", precision, f);
    while (strtod(e, NULL) != f && ++precision <= 17);
    int exponent = atoi(strchr(e, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - exponent;
        jinja_emitf(j, "%.*f", decimals < 1 ? 1 : decimals, f);
        return;
    }
    *strchr(e, 'e') = '\0';
    jinja_emitf(j, "%se%c%02d", e, exponent < 0 ? '-' : '+', abs(exponent));
}

static void emit_escape(struct jinja *j, int32_t cp) {
    switch (cp) {
    case '\n': jinja_emit(j, STR("\\n")); return;
    case '\r': jinja_emit(j, STR("\\r")); return;
    case '\t': jinja_emit(j, STR("\\t")); return;
    default: break;
    }
    if (cp < 0x100)
        jinja_emitf(j, "\\x%02x", (unsigned)cp);
    else
        jinja_emitf(j, cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
}

static void emit_quoted(struct jinja *j, struct str s) {
    bool single = memchr(s.ptr, '\'', s.len) != NULL, both = single && memchr(s.ptr, '"', s.len) != NULL;
    char quote = single && !both ? '"' : '\'';
    jinja_put(j, quote);
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        if (cp == quote || cp == '\\') {
            jinja_put(j, '\\');
            jinja_put(j, (char)cp);
        } else if (!cp_is_printable(cp)) {
            emit_escape(j, cp);
        } else {
            jinja_emit(j, (struct str){s.ptr + i, (size_t)n});
        }
        i += (size_t)n;
    }
    jinja_put(j, quote);
}

static void emit_items(struct jinja *j, const jval *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (i)
            jinja_emit(j, STR(", "));
        jinja_emit_repr(j, items[i]);
    }
}

static void emit_dict(struct jinja *j, const struct jdict *d) {
    jinja_put(j, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jinja_emit(j, STR(", "));
        jinja_emit_repr(j, d->entries[i].key);
        jinja_emit(j, STR(": "));
        jinja_emit_repr(j, d->entries[i].value);
    }
    jinja_put(j, '}');
}

static void emit_view(struct jinja *j, const struct jview *v) {
    jinja_emitf(j, "%s([", jval_type((jval){.kind = J_VIEW, .view = (struct jview *)v}));
    for (size_t i = 0; i < v->d->n; i++) {
        const struct jentry *e = &v->d->entries[i];
        if (i)
            jinja_emit(j, STR(", "));
        if (v->of == VIEW_ITEMS) {
            jinja_put(j, '(');
            emit_items(j, (jval[]){e->key, e->value}, 2);
            jinja_put(j, ')');
        } else {
            jinja_emit_repr(j, v->of == VIEW_KEYS ? e->key : e->value);
        }
    }
    jinja_emit(j, STR("])"));
}

static void emit_range(struct jinja *j, const struct jrange *r) {
    jinja_emitf(j, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        jinja_emitf(j, ", %lld", (long long)r->step);
    jinja_put(j, ')');
}

static void emit_namespace(struct jinja *j, struct jnamespace *ns) {
    jinja_emit(j, STR("<Namespace "));
    if (ns->printing)
        jinja_emit(j, STR("{...}"));
    else {
        ns->printing = true;
        emit_dict(j, ns->d);
        ns->printing = false;
    }
    jinja_put(j, '>');
}

static void emit_macro(struct jinja *j, const struct jmacro *m) {
    jinja_emit(j, STR("<Macro "));
    if (m->name)
        emit_quoted(j, (struct str){m->name->ptr, m->name->len});
    else
        jinja_emit(j, STR("anonymous"));
    jinja_put(j, '>');
}

void jinja_emit_repr(struct jinja *j, jval v) {
    jinja_step(j, 1);
    jinja_enter(j);
    switch (v.kind) {
    case J_MISSING: jinja_emit(j, STR("missing")); break;
    case J_UNDEFINED: jinja_emit(j, STR("Undefined")); break;
    case J_NONE: jinja_emit(j, STR("None")); break;
    case J_BOOL: jinja_emit(j, v.b ? STR("True") : STR("False")); break;
    case J_INT: jinja_emitf(j, "%lld", (long long)v.i); break;
    case J_FLOAT:
        if (v.digits)
            jinja_emit(j, jval_digits(j, v));
        else
            jinja_emit_float(j, v.f);
        break;
    case J_STR:
        if (v.s->markup)
            jinja_emit(j, STR("Markup("));
        emit_quoted(j, jval_text(v));
        if (v.s->markup)
            jinja_put(j, ')');
        break;
    case J_LIST:
        jinja_put(j, '[');
        emit_items(j, v.seq->items, v.seq->n);
        jinja_put(j, ']');
        break;
    case J_TUPLE:
        jinja_put(j, '(');
        emit_items(j, v.seq->items, v.seq->n);
        jinja_emit(j, v.seq->n == 1 ? STR(",)") : STR(")"));
        break;
    case J_DICT: emit_dict(j, v.d); break;
    case J_RANGE: emit_range(j, v.range); break;
    case J_VIEW: emit_view(j, v.view); break;
    case J_NAMESPACE: emit_namespace(j, v.ns); break;
    case J_MACRO: emit_macro(j, v.macro); break;
    case J_LOOP:
        jinja_emitf(j, "<LoopContext %lld/%lld>", (long long)(v.loop->index0 + 1), (long long)jloop_length(j, v.loop));
        break;
    // Python adds an address here, which no prompt can want.
    case J_ITER:
    case J_CYCLER:
    case J_JOINER:
    case J_NATIVE: jinja_emitf(j, "<%s object>", jval_type(v)); break;
    }
    jinja_leave(j);
}

void jinja_emit_str(struct jinja *j, jval v) {
    if (v.kind == J_STR)
        jinja_emit(j, jval_text(v));
    else if (v.kind != J_UNDEFINED)
        jinja_emit_repr(j, v);
}

void jinja_emit_ascii(struct jinja *j, jval v) {
    sink_open(j);
    jinja_emit_repr(j, v);
    jval text = jval_of_sink(j);
    struct str s = jval_text(text);
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        if (cp < 0x80)
            jinja_put(j, (char)cp);
        else
            emit_escape(j, cp);
    }
}

jval jval_to_plain(struct jinja *j, jval v) {
    if (v.kind == J_STR)
        return jval_markup(j, v, false);
    sink_open(j);
    jinja_emit_str(j, v);
    return jval_of_sink(j);
}

jval jval_to_str(struct jinja *j, jval v) { return v.kind == J_STR ? v : jval_to_plain(j, v); }

/* "dict object", "None", "jinja2.utils.Namespace object" */
static void emit_object_type(struct jinja *j, jval v) {
    switch (v.kind) {
    case J_NONE: jinja_emit(j, STR("None")); return;
    case J_NAMESPACE:
    case J_CYCLER:
    case J_JOINER: jinja_emit(j, STR("jinja2.utils.")); break;
    case J_MACRO:
    case J_LOOP:
    case J_UNDEFINED: jinja_emit(j, STR("jinja2.runtime.")); break;
    default: break;
    }
    jinja_emitf(j, "%s object", jval_type(v));
}

void jinja_undefined_error(struct jinja *j, jval v) {
    const struct jundefined *u = v.undef;
    if (u->hint)
        jinja_fail(j, ERR_ARG, "%s", u->hint);
    sink_open(j);
    if (u->obj.kind == J_MISSING) {
        jinja_emit_repr(j, u->name);
        jinja_emit(j, STR(" is undefined"));
    } else if (u->name.kind == J_STR) {
        jinja_put(j, '\'');
        emit_object_type(j, u->obj);
        jinja_emit(j, STR("' has no attribute "));
        jinja_emit_repr(j, u->name);
    } else {
        emit_object_type(j, u->obj);
        jinja_emit(j, STR(" has no element "));
        jinja_emit_repr(j, u->name);
    }
    struct str sentence = sink_close(j);
    jinja_fail(j, ERR_ARG, "%.*s", (int)MIN(sentence.len, 700), sentence.ptr);
}
