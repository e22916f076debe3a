/* jinja_markup.c - escaping for HTML, and joining of texts, which escapes what is no Markup yet. */
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_value.h"

enum { ROOM_FROM_BYTES = 128 };

void jinja_emit_escaped(struct jinja *j, struct str s) {
    for (size_t i = 0; i < s.len; i++)
        switch (s.ptr[i]) {
        case '&': jinja_emit(j, STR("&amp;")); break;
        case '<': jinja_emit(j, STR("&lt;")); break;
        case '>': jinja_emit(j, STR("&gt;")); break;
        case '\'': jinja_emit(j, STR("&#39;")); break;
        case '"': jinja_emit(j, STR("&#34;")); break;
        default: jinja_put(j, s.ptr[i]);
        }
}

jval jstr_escape(struct jinja *j, jval v) {
    if (v.kind == J_STR && v.s->markup)
        return v;
    sink_open(j);
    jinja_emit_escaped(j, jval_text(jval_to_plain(j, v)));
    return jval_markup(j, jval_of_sink(j), true);
}

/* Room for twice the text, so that the next pieces can follow without a copy. */
static char *make_room(struct jinja *j, struct jstr *s, size_t len) {
    if (len < ROOM_FROM_BYTES)
        return jinja_alloc(j, len);
    s->room = jinja_alloc(j, sizeof *s->room);
    char *bytes = jinja_calloc(j, len, 2);
    s->room->end = bytes + len;
    s->room->limit = bytes + 2 * len;
    return bytes;
}

jval jstr_concat(struct jinja *j, jval a, jval b) {
    bool markup = a.s->markup || b.s->markup;
    if (markup) {
        a = jstr_escape(j, a);
        b = jstr_escape(j, b);
    }
    if (!b.s->len)
        return a;
    if (!a.s->len)
        return b;
    size_t len;
    if (!size_add(a.s->len, b.s->len, &len))
        jinja_fail(j, ERR_LIMIT, "a text grows without bound");
    struct jstr *s = jinja_alloc(j, sizeof *s);
    *s = (struct jstr){.len = len, .markup = markup};
    s->n_chars = a.s->n_chars == SIZE_MAX || b.s->n_chars == SIZE_MAX ? SIZE_MAX : a.s->n_chars + b.s->n_chars;
    struct jstr_room *room = a.s->room;
    if (room && room->end == a.s->ptr + a.s->len && (size_t)(room->limit - room->end) >= b.s->len) {
        memcpy(room->end, b.s->ptr, b.s->len);
        room->end += b.s->len;
        s->ptr = a.s->ptr;
        s->room = room;
    } else {
        char *bytes = make_room(j, s, len);
        memcpy(bytes, a.s->ptr, a.s->len);
        memcpy(bytes + a.s->len, b.s->ptr, b.s->len);
        s->ptr = bytes;
    }
    return (jval){.kind = J_STR, .s = s};
}
