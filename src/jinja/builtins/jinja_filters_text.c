/* jinja_filters_text.c - filters that make text of text. A value that is no string counts as str() of it,
 * unless Jinja refuses it. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_unicode.h"

static jval f_capitalize(struct jinja *j, const struct jcall *c) {
    return jstr_map(j, jval_to_str(j, c->self), CASE_CAPITAL);
}
static jval f_upper(struct jinja *j, const struct jcall *c) { return jstr_map(j, jval_to_str(j, c->self), CASE_UPPER); }
static jval f_lower(struct jinja *j, const struct jcall *c) { return jstr_map(j, jval_to_str(j, c->self), CASE_LOWER); }
static jval f_string(struct jinja *j, const struct jcall *c) { return jval_to_str(j, c->self); }
static jval f_escape(struct jinja *j, const struct jcall *c) { return jstr_escape(j, c->self); }
static jval f_forceescape(struct jinja *j, const struct jcall *c) { return jstr_escape(j, jval_to_plain(j, c->self)); }
static jval f_safe(struct jinja *j, const struct jcall *c) { return jval_markup(j, jval_to_plain(j, c->self), true); }
static jval f_trim(struct jinja *j, const struct jcall *c) {
    return str_strip(j, jval_to_str(j, c->self), c, true, true);
}
static jval f_center(struct jinja *j, const struct jcall *c) {
    return str_center(j, jval_to_str(j, c->self), arg_int(j, c, 0, 80), STR(" "));
}

static jval f_replace(struct jinja *j, const struct jcall *c) {
    jval s = jval_to_plain(j, c->self), old = jval_to_plain(j, c->arg[0]), new = jval_to_plain(j, c->arg[1]);
    return jstr_replace(j, s, jval_text(old), jval_text(new), arg_int(j, c, 2, -1));
}

static bool parts_words(int32_t cp) { return cp_is_space(cp) || (cp > 0 && cp < 0x80 && strchr("-({[<", cp)); }

/* The end of the run of word characters, or of separators, that begins at `at`. */
static size_t run_end(struct str s, size_t at, bool separators) {
    while (at < s.len) {
        int32_t cp;
        int n = utf8_decode(s.ptr + at, s.len - at, &cp);
        if (parts_words(cp) != separators)
            break;
        at += (size_t)n;
    }
    return at;
}

/* Words begin after white space and after - ( { [ <, unlike those of str.title. */
static jval f_title(struct jinja *j, const struct jcall *c) {
    jval text = jval_to_str(j, c->self);
    struct str s = jval_text(text);
    sink_open(j);
    for (size_t at = 0, word, end; at < s.len; at = end) {
        word = run_end(s, at, true);
        jinja_emit(j, (struct str){s.ptr + at, word - at});
        end = run_end(s, word, false);
        if (end == word)
            break;
        int32_t cp;
        size_t rest = word + (size_t)utf8_decode(s.ptr + word, end - word, &cp);
        jinja_emit(j, jval_text(jstr_map(j, jstr_part(j, text.s, word, rest), CASE_UPPER)));
        jinja_emit(j, jval_text(jstr_map(j, jstr_part(j, text.s, rest, end), CASE_LOWER)));
    }
    return jval_of_sink(j);
}

static jval f_format(struct jinja *j, const struct jcall *c) {
    if (c->rest.n && c->rest.n_keyword)
        jinja_type_error(j, "can't handle positional and keyword arguments at the same time");
    jval args = jval_seq(j, J_TUPLE, c->rest.positional, c->rest.n);
    if (c->rest.n_keyword) {
        args = jval_dict(j);
        for (size_t i = 0; i < c->rest.n_keyword; i++)
            jdict_set(j, args.d, c->rest.keyword[i].name, c->rest.keyword[i].value);
    }
    return jinja_percent(j, jval_to_str(j, c->self), args);
}

static jval require_str(struct jinja *j, jval v, const char *filter) {
    if (v.kind == J_UNDEFINED)
        jinja_undefined_error(j, v);
    if (v.kind != J_STR)
        jinja_type_error(j, "%s: '%s' object is not a string", filter, jval_type(v));
    return v;
}

/* arg: width, first, blank */
static jval f_indent(struct jinja *j, const struct jcall *c) {
    jval s = require_str(j, c->self, "indent"), indent = c->arg[0];
    bool first = arg_true(j, c, 1, false), blank = arg_true(j, c, 2, false);
    if (indent.kind != J_STR)
        indent = jstr_repeat(j, jval_borrow(j, STR(" ")), arg_int(j, c, 0, 4));
    struct str by = jval_text(s.s->markup ? jstr_escape(j, indent) : indent);
    struct jseq *lines = str_lines(j, jstr_concat(j, jval_markup(j, s, false), jval_borrow(j, STR("\n"))), false).seq;
    sink_open(j);
    for (size_t i = 0; i < lines->n; i++) {
        struct str line = jval_text(lines->items[i]);
        if (i)
            jinja_put(j, '\n');
        if (i ? blank || line.len : first)
            jinja_emit(j, by);
        jinja_emit(j, line);
    }
    return jval_markup(j, jval_of_sink(j), s.s->markup);
}

/* arg: length, killwords, end, leeway */
static jval f_truncate(struct jinja *j, const struct jcall *c) {
    jval end = c->arg[2].kind == J_MISSING ? jval_borrow(j, STR("...")) : require_str(j, c->arg[2], "truncate");
    int64_t length = arg_int(j, c, 0, 255), leeway = arg_int(j, c, 3, 5), n_end = (int64_t)jstr_chars(j, end.s), limit;
    if (length < n_end)
        jinja_type_error(j, "expected length >= %lld, got %lld", (long long)n_end, (long long)length);
    if (leeway < 0)
        jinja_type_error(j, "expected leeway >= 0, got %lld", (long long)leeway);
    if (__builtin_add_overflow(length, leeway, &limit))
        limit = INT64_MAX;
    if (jval_len(j, c->self) <= limit)
        return c->self;
    jval s = require_str(j, c->self, "truncate");
    size_t stop = jstr_offset(j, s.s, (size_t)(length - n_end));
    if (!arg_true(j, c, 1, false)) {
        size_t space = str_rfind(j, (struct str){s.s->ptr, stop}, STR(" "));
        stop = space == SIZE_MAX ? stop : space;
    }
    return jstr_concat(j, jstr_part(j, s.s, 0, stop), end);
}

static jval f_wordcount(struct jinja *j, const struct jcall *c) {
    struct str s = jval_text(jval_to_str(j, c->self));
    int64_t n = 0;
    bool inside = false;
    jinja_step_bytes(j, s.len);
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        bool word = cp == '_' || cp_is_alnum(cp);
        n += word && !inside;
        inside = word;
    }
    return jval_int(n);
}

static void emit_quoted(struct jinja *j, jval v, bool query) {
    struct str s = jval_text(jval_to_plain(j, v));
    for (size_t i = 0; i < s.len; i++) {
        char byte = s.ptr[i];
        bool plain = (byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'z') ||
                     (byte && strchr("_.-~", byte));
        if (plain || (byte == '/' && !query))
            jinja_put(j, byte);
        else if (byte == ' ' && query)
            jinja_put(j, '+');
        else
            jinja_emitf(j, "%%%02X", (unsigned char)byte);
    }
}

static void emit_pair(struct jinja *j, jval pair, bool first) {
    jval two = jval_to_list(j, pair);
    if (two.seq->n != 2)
        jinja_type_error(j, "urlencode wants pairs");
    if (!first)
        jinja_put(j, '&');
    emit_quoted(j, two.seq->items[0], true);
    jinja_put(j, '=');
    emit_quoted(j, two.seq->items[1], true);
}

static jval f_urlencode(struct jinja *j, const struct jcall *c) {
    jval v = c->self;
    sink_open(j);
    if (v.kind == J_STR || !jval_is_iterable(v)) {
        emit_quoted(j, v, false);
        return jval_of_sink(j);
    }
    struct jview items = {v.d, VIEW_ITEMS};
    if (v.kind == J_DICT)
        v = (jval){.kind = J_VIEW, .view = &items};
    struct jiter it;
    jiter_of(j, v, &it);
    bool first = true;
    for (jval pair; jiter_next(j, &it, &pair); first = false)
        emit_pair(j, pair, first);
    return jval_of_sink(j);
}

static void check_attribute_name(struct jinja *j, struct str name) {
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] && strchr(" \t\n\r\f\v/>=", name.ptr[i]))
            jinja_type_error(j, "Invalid character in attribute name: '%.*s'", STR_ARG(str_excerpt(name)));
}

static jval f_xmlattr(struct jinja *j, const struct jcall *c) {
    if (c->self.kind != J_DICT)
        jinja_type_error(j, "xmlattr wants a mapping, not %s", jval_type(c->self));
    bool space = arg_true(j, c, 0, true), any = false;
    sink_open(j);
    for (size_t i = 0; i < c->self.d->n; i++) {
        const struct jentry *e = &c->self.d->entries[i];
        if (e->value.kind == J_NONE || e->value.kind == J_UNDEFINED)
            continue;
        if (e->key.kind != J_STR)
            jinja_type_error(j, "expected string or bytes-like object, got '%s'", jval_type(e->key));
        check_attribute_name(j, jval_text(e->key));
        if (any || space)
            jinja_put(j, ' ');
        any = true;
        jinja_emit(j, jval_text(jstr_escape(j, e->key)));
        jinja_emit(j, STR("=\""));
        jinja_emit(j, jval_text(jstr_escape(j, e->value)));
        jinja_put(j, '"');
    }
    return jval_of_sink(j);
}

static jval refused(struct jinja *j, const struct jcall *c) {
    (void)c;
    jinja_fail(j, ERR_UNSUPPORTED, "the filters pprint, random, striptags, urlize and wordwrap are not supported");
}

const struct builtin text_filters[] = {
    BUILTIN0("capitalize", f_capitalize),
    BUILTIN("center", f_center, 0, 0, "width"),
    BUILTIN0("e", f_escape),
    BUILTIN0("escape", f_escape),
    BUILTIN0("forceescape", f_forceescape),
    BUILTIN("format", f_format, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("indent", f_indent, 0, 0, "width", "first", "blank"),
    BUILTIN0("lower", f_lower),
    BUILTIN("pprint", refused, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("random", refused, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("replace", f_replace, 0, 2, "old", "new", "count"),
    BUILTIN0("safe", f_safe),
    BUILTIN0("string", f_string),
    BUILTIN("striptags", refused, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN0("title", f_title),
    BUILTIN("trim", f_trim, 0, 0, "chars"),
    BUILTIN("truncate", f_truncate, 0, 0, "length", "killwords", "end", "leeway"),
    BUILTIN0("upper", f_upper),
    BUILTIN0("urlencode", f_urlencode),
    BUILTIN("urlize", refused, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN0("wordcount", f_wordcount),
    BUILTIN("wordwrap", refused, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("xmlattr", f_xmlattr, 0, 0, "autospace"),
};
const size_t n_text_filters = ARRAY_LEN(text_filters);
