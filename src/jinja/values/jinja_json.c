/* jinja_json.c - tojson, as json.dumps writes it, and values from a request. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_number.h"

#include <math.h>

/* As Python reads it: integers have no end, and a number past a double is infinite. */
static jval from_real(struct jinja *j, const json_t *json) {
    struct str text;
    double f = json_real_value(json);
    if (!jv_numbers_find(j->numbers, json, &text))
        return jval_float(f);
    bool integral = strcspn(text.ptr, ".eE") == text.len;
    return integral ? jval_large(j, text) : jval_float(copysign(INFINITY, f));
}

jval jinja_from_json(struct jinja *j, const json_t *json) {
    jinja_step(j, 1);
    switch (json_typeof(json)) {
    case JSON_NULL: return jval_none();
    case JSON_TRUE: return jval_bool(true);
    case JSON_FALSE: return jval_bool(false);
    case JSON_INTEGER: return jval_int(json_integer_value(json));
    case JSON_REAL: return from_real(j, json);
    case JSON_STRING: return jval_borrow(j, (struct str){json_string_value(json), json_string_length(json)});
    default: break;
    }
    jinja_enter(j);
    jval v;
    if (json_is_array(json)) {
        size_t n = json_array_size(json);
        jval *items = jinja_calloc(j, n, sizeof *items);
        for (size_t i = 0; i < n; i++)
            items[i] = jinja_from_json(j, json_array_get(json, i));
        v = jval_seq(j, J_LIST, items, n);
    } else {
        v = jval_dict(j);
        json_t *object = (json_t *)json; // jansson's iterators are not const; nothing is changed
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
            jval key = jval_borrow(j, (struct str){json_object_iter_key(it), json_object_iter_key_len(it)});
            jdict_set(j, v.d, key, jinja_from_json(j, json_object_iter_value(it)));
        }
    }
    jinja_leave(j);
    return v;
}

static void emit_u(struct jinja *j, uint32_t unit) { jinja_emitf(j, "\\u%04x", unit); }

static void emit_char(struct jinja *j, struct str bytes, int32_t cp, bool ascii) {
    switch (cp) {
    case '"': jinja_emit(j, STR("\\\"")); return;
    case '\\': jinja_emit(j, STR("\\\\")); return;
    case '\n': jinja_emit(j, STR("\\n")); return;
    case '\r': jinja_emit(j, STR("\\r")); return;
    case '\t': jinja_emit(j, STR("\\t")); return;
    case '\b': jinja_emit(j, STR("\\b")); return;
    case '\f': jinja_emit(j, STR("\\f")); return;
    default: break;
    }
    if (cp >= 0x10000 && ascii) {
        emit_u(j, 0xD800 + ((uint32_t)(cp - 0x10000) >> 10));
        emit_u(j, 0xDC00 + ((uint32_t)(cp - 0x10000) & 0x3FF));
    } else if (cp < 0x20 || (ascii && cp > 0x7E)) {
        emit_u(j, (uint32_t)cp);
    } else {
        jinja_emit(j, bytes);
    }
}

/* Runs of characters that stand for themselves are written in one piece. */
static void emit_string(struct jinja *j, struct str s, bool ascii) {
    size_t from = 0;
    jinja_put(j, '"');
    for (size_t i = 0; i < s.len;) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ascii)) {
            i++;
            continue;
        }
        jinja_emit(j, (struct str){s.ptr + from, i - from});
        int32_t cp;
        int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        emit_char(j, (struct str){s.ptr + i, (size_t)n}, cp, ascii);
        i += (size_t)n;
        from = i;
    }
    jinja_emit(j, (struct str){s.ptr + from, s.len - from});
    jinja_put(j, '"');
}

static void emit_float(struct jinja *j, double f) {
    if (isfinite(f))
        jinja_emit_float(j, f);
    else
        jinja_emitf(j, "%s", isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
}

static void new_line(struct jinja *j, const struct json_style *style, int depth) {
    if (!style->pretty)
        return;
    jinja_put(j, '\n');
    for (int i = 0; i < depth; i++)
        jinja_emit(j, style->indent);
}

static void emit_key(struct jinja *j, jval key, const struct json_style *style) {
    switch (key.kind) {
    case J_STR: emit_string(j, jval_text(key), style->ascii); return;
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        jinja_put(j, '"');
        jinja_emit_json(j, key, style, 0);
        jinja_put(j, '"');
        return;
    default: jinja_type_error(j, "keys must be str, int, float, bool or None, not %s", jval_type(key));
    }
}

/* The dict in the order of its keys. */
static const struct jdict *sorted(struct jinja *j, const struct jdict *d) {
    jval *items = jinja_calloc(j, d->n, sizeof *items), *keys = jinja_calloc(j, d->n, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
        items[i] = d->entries[i].value;
    }
    sort_by_keys(j, items, keys, d->n, false);
    struct jdict *copy = jinja_alloc(j, sizeof *copy);
    copy->entries = jinja_calloc(j, d->n, sizeof *copy->entries);
    for (copy->n = 0; copy->n < d->n; copy->n++)
        copy->entries[copy->n] = (struct jentry){.key = keys[copy->n], .value = items[copy->n]};
    return copy;
}

static void emit_object(struct jinja *j, const struct jdict *d, const struct json_style *style, int depth) {
    if (style->sort_keys)
        d = sorted(j, d);
    jinja_put(j, '{');
    for (size_t i = 0; i < d->n; i++) {
        const struct jentry *e = &d->entries[i];
        if (i)
            jinja_emit(j, style->item_separator);
        new_line(j, style, depth + 1);
        emit_key(j, e->key, style);
        jinja_emit(j, style->key_separator);
        jinja_emit_json(j, e->value, style, depth + 1);
    }
    if (d->n)
        new_line(j, style, depth);
    jinja_put(j, '}');
}

static void emit_array(struct jinja *j, const struct jseq *seq, const struct json_style *style, int depth) {
    jinja_put(j, '[');
    for (size_t i = 0; i < seq->n; i++) {
        if (i)
            jinja_emit(j, style->item_separator);
        new_line(j, style, depth + 1);
        jinja_emit_json(j, seq->items[i], style, depth + 1);
    }
    if (seq->n)
        new_line(j, style, depth);
    jinja_put(j, ']');
}

void jinja_emit_json(struct jinja *j, jval v, const struct json_style *style, int depth) {
    jinja_step(j, 1);
    jinja_enter(j);
    switch (v.kind) {
    case J_NONE: jinja_emit(j, STR("null")); break;
    case J_BOOL: jinja_emit(j, v.b ? STR("true") : STR("false")); break;
    case J_INT: jinja_emitf(j, "%lld", (long long)v.i); break;
    case J_FLOAT:
        if (v.digits)
            jinja_emit(j, jval_digits(j, v));
        else
            emit_float(j, v.f);
        break;
    case J_STR: emit_string(j, jval_text(v), style->ascii); break;
    case J_LIST:
    case J_TUPLE: emit_array(j, v.seq, style, depth); break;
    case J_DICT: emit_object(j, v.d, style, depth); break;
    default: jinja_type_error(j, "Object of type %s is not JSON serializable", jval_type(v));
    }
    jinja_leave(j);
}
