/* jinja_methods_str.c - the methods of str. Positions are in code points, as everywhere a template can see;
 * inside, ranges are bytes. Of Markup, the results are Markup. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_unicode.h"

static jval part(struct jinja *j, jval s, size_t begin, size_t end) { return jstr_part(j, s.s, begin, end); }

static jval same_markup(struct jinja *j, jval s, jval result) { return jval_markup(j, result, s.s->markup); }

// ---- searching in s[start:end], where start and end are arguments i and i + 1 ----

struct window {
    struct str text;
    size_t begin; // byte in the whole text
    bool valid;   // start is not past the end, which matters for empty needles
};

static int64_t bound(struct jinja *j, const struct jcall *c, int i, int64_t fallback, int64_t n) {
    int64_t at = arg_int(j, c, i, fallback);
    if (at < 0)
        at = MAX(at + n, 0);
    return at;
}

static struct window window(struct jinja *j, const struct jcall *c, int i) {
    int64_t n = (int64_t)jstr_chars(j, c->self.s);
    int64_t start = bound(j, c, i, 0, n), end = bound(j, c, i + 1, n, n);
    end = MIN(end, n);
    if (start > end)
        return (struct window){.text = STR("")};
    size_t begin = jstr_offset(j, c->self.s, (size_t)start), stop = jstr_offset(j, c->self.s, (size_t)end);
    return (struct window){{c->self.s->ptr + begin, stop - begin}, begin, true};
}

static jval found_at(struct jinja *j, const struct jcall *c, const struct window *w, size_t at) {
    if (!w->valid || at == SIZE_MAX)
        return jval_int(-1);
    struct jstr before = {.ptr = c->self.s->ptr, .len = w->begin + at, .n_chars = SIZE_MAX};
    return jval_int((int64_t)jstr_chars(j, &before));
}

static jval m_find(struct jinja *j, const struct jcall *c) {
    struct window w = window(j, c, 1);
    jinja_step_bytes(j, w.text.len);
    return found_at(j, c, &w, str_find(w.text, arg_str(j, c, 0), 0));
}

static jval m_rfind(struct jinja *j, const struct jcall *c) {
    struct window w = window(j, c, 1);
    jinja_step_bytes(j, w.text.len);
    return found_at(j, c, &w, str_rfind(j, w.text, arg_str(j, c, 0)));
}

static jval or_value_error(struct jinja *j, jval found) {
    if (found.i < 0)
        jinja_type_error(j, "substring not found");
    return found;
}

static jval m_index(struct jinja *j, const struct jcall *c) { return or_value_error(j, m_find(j, c)); }
static jval m_rindex(struct jinja *j, const struct jcall *c) { return or_value_error(j, m_rfind(j, c)); }

static jval m_count(struct jinja *j, const struct jcall *c) {
    struct window w = window(j, c, 1);
    struct str needle = arg_str(j, c, 0);
    if (!w.valid)
        return jval_int(0);
    if (!needle.len) {
        struct jstr text = {.ptr = w.text.ptr, .len = w.text.len, .n_chars = SIZE_MAX};
        return jval_int((int64_t)jstr_chars(j, &text) + 1);
    }
    int64_t n = 0;
    jinja_step_bytes(j, w.text.len);
    for (size_t at = 0; (at = str_find(w.text, needle, at)) != SIZE_MAX; at += needle.len, n++)
        jinja_step(j, 1);
    return jval_int(n);
}

static bool affix(const struct window *w, jval v, bool at_end) {
    return w->valid && (at_end ? str_ends(w->text, jval_text(v)) : str_starts(w->text, jval_text(v)));
}

static jval has_affix(struct jinja *j, const struct jcall *c, bool at_end) {
    const char *name = at_end ? "endswith" : "startswith";
    struct window w = window(j, c, 1);
    jval v = c->arg[0];
    if (v.kind == J_STR)
        return jval_bool(affix(&w, v, at_end));
    if (v.kind != J_TUPLE)
        jinja_type_error(j, "%s first arg must be str or a tuple of str, not %s", name, jval_type(v));
    for (size_t i = 0; i < v.seq->n; i++) {
        if (v.seq->items[i].kind != J_STR)
            jinja_type_error(j, "tuple for %s must only contain str, not %s", name, jval_type(v.seq->items[i]));
        if (affix(&w, v.seq->items[i], at_end))
            return jval_bool(true);
    }
    return jval_bool(false);
}

static jval m_startswith(struct jinja *j, const struct jcall *c) { return has_affix(j, c, false); }
static jval m_endswith(struct jinja *j, const struct jcall *c) { return has_affix(j, c, true); }

static jval m_removeprefix(struct jinja *j, const struct jcall *c) {
    struct str prefix = arg_str(j, c, 0);
    return str_starts(jval_text(c->self), prefix) ? part(j, c->self, prefix.len, c->self.s->len) : c->self;
}

static jval m_removesuffix(struct jinja *j, const struct jcall *c) {
    struct str suffix = arg_str(j, c, 0);
    return str_ends(jval_text(c->self), suffix) ? part(j, c->self, 0, c->self.s->len - suffix.len) : c->self;
}

// ---- stripping and case ----

jval str_strip(struct jinja *j, jval s, const struct jcall *c, bool left, bool right) {
    struct str text = jval_text(s), rest;
    jinja_step_bytes(j, text.len);
    if (given(c, 0))
        rest = str_trim_set(text, arg_str(j, c, 0), left, right);
    else
        rest = str_trim(text, left, right);
    size_t begin = (size_t)(rest.ptr - text.ptr);
    return rest.len == text.len ? s : part(j, s, begin, begin + rest.len);
}

static jval m_strip(struct jinja *j, const struct jcall *c) { return str_strip(j, c->self, c, true, true); }
static jval m_lstrip(struct jinja *j, const struct jcall *c) { return str_strip(j, c->self, c, true, false); }
static jval m_rstrip(struct jinja *j, const struct jcall *c) { return str_strip(j, c->self, c, false, true); }
static jval m_upper(struct jinja *j, const struct jcall *c) { return jstr_map(j, c->self, CASE_UPPER); }
static jval m_lower(struct jinja *j, const struct jcall *c) { return jstr_map(j, c->self, CASE_LOWER); }
static jval m_title(struct jinja *j, const struct jcall *c) { return jstr_map(j, c->self, CASE_TITLE); }
static jval m_capitalize(struct jinja *j, const struct jcall *c) { return jstr_map(j, c->self, CASE_CAPITAL); }
static jval m_swapcase(struct jinja *j, const struct jcall *c) { return jstr_map(j, c->self, CASE_SWAP); }
static jval m_casefold(struct jinja *j, const struct jcall *c) { return jstr_map(j, c->self, CASE_FOLD); }

// ---- taking apart ----

static void push_part(struct jinja *j, struct jlist *l, jval s, size_t begin, size_t end) {
    jinja_step(j, 1);
    jlist_push(j, l, part(j, s, begin, end));
}

static size_t skip_spaces(struct str s, size_t at) {
    return s.len - str_trim((struct str){s.ptr + at, s.len - at}, true, false).len;
}

static size_t word_end(struct str s, size_t at) {
    while (at < s.len) {
        int32_t cp;
        int n = utf8_decode(s.ptr + at, s.len - at, &cp);
        if (cp_is_space(cp))
            break;
        at += (size_t)n;
    }
    return at;
}

static jval split_words(struct jinja *j, jval v, int64_t max) {
    struct str s = jval_text(v);
    struct jlist parts = {0};
    for (size_t at = skip_spaces(s, 0); at < s.len; at = skip_spaces(s, at)) {
        size_t end = max == 0 ? s.len : word_end(s, at);
        push_part(j, &parts, v, at, end);
        max -= max > 0;
        at = end;
    }
    return jlist_take(j, &parts);
}

static jval reversed_list(struct jinja *j, struct jlist *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        jval swap = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = swap;
    }
    return jlist_take(j, l);
}

static size_t word_begin(struct str s, size_t end) {
    while (end) {
        size_t n = 1;
        int32_t cp;
        while (n < 4 && ((unsigned char)s.ptr[end - n] & 0xC0) == 0x80)
            n++;
        utf8_decode(s.ptr + end - n, n, &cp);
        if (cp_is_space(cp))
            break;
        end -= n;
    }
    return end;
}

static jval rsplit_words(struct jinja *j, jval v, int64_t max) {
    struct str s = jval_text(v);
    struct jlist parts = {0};
    for (size_t end = str_trim(s, false, true).len; end; end = str_trim((struct str){s.ptr, end}, false, true).len) {
        size_t begin = max == 0 ? 0 : word_begin(s, end);
        push_part(j, &parts, v, begin, end);
        max -= max > 0;
        end = begin;
    }
    return reversed_list(j, &parts);
}

static jval split_at(struct jinja *j, jval v, struct str sep, int64_t max) {
    struct jlist parts = {0};
    size_t from = 0, at;
    while (max != 0 && (at = str_find(jval_text(v), sep, from)) != SIZE_MAX) {
        push_part(j, &parts, v, from, at);
        from = at + sep.len;
        max -= max > 0;
    }
    push_part(j, &parts, v, from, v.s->len);
    return jlist_take(j, &parts);
}

static jval rsplit_at(struct jinja *j, jval v, struct str sep, int64_t max) {
    struct jlist parts = {0};
    size_t end = v.s->len, at;
    while (max != 0 && (at = str_rfind(j, (struct str){v.s->ptr, end}, sep)) != SIZE_MAX) {
        push_part(j, &parts, v, at + sep.len, end);
        end = at;
        max -= max > 0;
    }
    push_part(j, &parts, v, 0, end);
    return reversed_list(j, &parts);
}

static struct str separator(struct jinja *j, const struct jcall *c) {
    struct str sep = arg_str(j, c, 0);
    if (!sep.len)
        jinja_type_error(j, "empty separator");
    return sep;
}

static jval m_split(struct jinja *j, const struct jcall *c) {
    int64_t max = arg_int(j, c, 1, -1);
    return given(c, 0) ? split_at(j, c->self, separator(j, c), max) : split_words(j, c->self, max);
}

static jval m_rsplit(struct jinja *j, const struct jcall *c) {
    int64_t max = arg_int(j, c, 1, -1);
    jinja_step_bytes(j, c->self.s->len);
    return given(c, 0) ? rsplit_at(j, c->self, separator(j, c), max) : rsplit_words(j, c->self, max);
}

jval str_lines(struct jinja *j, jval v, bool keep_ends) {
    struct str s = jval_text(v);
    struct jlist lines = {0};
    for (size_t begin = 0, at = 0; begin < s.len; begin = at) {
        size_t end;
        int32_t cp = -1;
        do {
            end = at;
            at += (size_t)utf8_decode(s.ptr + at, s.len - at, &cp);
        } while (at < s.len && !cp_is_line_end(cp));
        if (!cp_is_line_end(cp))
            end = at;
        else if (cp == '\r' && at < s.len && s.ptr[at] == '\n')
            at++;
        push_part(j, &lines, v, begin, keep_ends ? at : end);
    }
    return jlist_take(j, &lines);
}

static jval m_splitlines(struct jinja *j, const struct jcall *c) {
    return str_lines(j, c->self, arg_true(j, c, 0, false));
}

static jval three(struct jinja *j, jval v, size_t a, size_t b, size_t c, size_t d) {
    // v[0:a] and so on, in the places where they fall
    jval *items = jinja_calloc(j, 3, sizeof *items);
    items[0] = part(j, v, 0, a);
    items[1] = part(j, v, b, c);
    items[2] = part(j, v, d, v.s->len);
    return jval_seq(j, J_TUPLE, items, 3);
}

static jval m_partition(struct jinja *j, const struct jcall *c) {
    struct str sep = separator(j, c);
    size_t at = str_find(jval_text(c->self), sep, 0), n = c->self.s->len;
    return at == SIZE_MAX ? three(j, c->self, n, n, n, n) : three(j, c->self, at, at, at + sep.len, at + sep.len);
}

static jval m_rpartition(struct jinja *j, const struct jcall *c) {
    struct str sep = separator(j, c);
    size_t at = str_rfind(j, jval_text(c->self), sep);
    return at == SIZE_MAX ? three(j, c->self, 0, 0, 0, 0) : three(j, c->self, at, at, at + sep.len, at + sep.len);
}

// ---- putting together ----

static jval m_join(struct jinja *j, const struct jcall *c) {
    struct jiter it;
    int64_t i = 0;
    jiter_of(j, c->arg[0], &it);
    sink_open(j);
    for (jval v; jiter_next(j, &it, &v); i++) {
        if (c->self.s->markup)
            v = jstr_escape(j, v);
        else if (v.kind != J_STR)
            jinja_type_error(j, "sequence item %lld: expected str instance, %s found", (long long)i, jval_type(v));
        if (i)
            jinja_emit(j, jval_text(c->self));
        jinja_emit(j, jval_text(v));
    }
    return same_markup(j, c->self, jval_of_sink(j));
}

static jval m_replace(struct jinja *j, const struct jcall *c) {
    struct str old = arg_str(j, c, 0);
    arg_str(j, c, 1); // its type
    jval new = c->self.s->markup ? jstr_escape(j, c->arg[1]) : c->arg[1];
    return jstr_replace(j, c->self, old, jval_text(new), arg_int(j, c, 2, -1));
}

static jval padded(struct jinja *j, jval s, int64_t before, int64_t after, struct str fill) {
    if (before <= 0 && after <= 0)
        return s;
    sink_open(j);
    jinja_emit_times(j, fill, before);
    jinja_emit(j, jval_text(s));
    jinja_emit_times(j, fill, after);
    return same_markup(j, s, jval_of_sink(j));
}

static int64_t missing_to(struct jinja *j, jval s, int64_t width) {
    int64_t n = (int64_t)jstr_chars(j, s.s);
    return width > n ? width - n : 0;
}

jval str_center(struct jinja *j, jval s, int64_t width, struct str fill) {
    int64_t room = missing_to(j, s, width), left = room / 2 + (room & width & 1);
    return padded(j, s, left, room - left, fill);
}

static struct str fill_arg(struct jinja *j, const struct jcall *c) {
    if (!given(c, 1))
        return STR(" ");
    struct str fill = arg_str(j, c, 1);
    if (jstr_chars(j, c->arg[1].s) != 1)
        jinja_type_error(j, "The fill character must be exactly one character long");
    return fill;
}

static jval m_center(struct jinja *j, const struct jcall *c) {
    return str_center(j, c->self, arg_int(j, c, 0, 0), fill_arg(j, c));
}

static jval m_ljust(struct jinja *j, const struct jcall *c) {
    return padded(j, c->self, 0, missing_to(j, c->self, arg_int(j, c, 0, 0)), fill_arg(j, c));
}

static jval m_rjust(struct jinja *j, const struct jcall *c) {
    return padded(j, c->self, missing_to(j, c->self, arg_int(j, c, 0, 0)), 0, fill_arg(j, c));
}

static jval m_zfill(struct jinja *j, const struct jcall *c) {
    int64_t room = missing_to(j, c->self, arg_int(j, c, 0, 0));
    struct str s = jval_text(c->self);
    bool sign = s.len && (s.ptr[0] == '+' || s.ptr[0] == '-');
    jval zeros = padded(j, part(j, c->self, sign, s.len), room, 0, STR("0"));
    return sign ? jstr_concat(j, part(j, c->self, 0, 1), zeros) : zeros;
}

static jval m_expandtabs(struct jinja *j, const struct jcall *c) {
    struct str s = jval_text(c->self);
    int64_t size = arg_int(j, c, 0, 8), column = 0;
    sink_open(j);
    for (size_t i = 0; i < s.len; i++) {
        char byte = s.ptr[i];
        if (byte == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            jinja_emit_times(j, STR(" "), n);
            column += n;
            continue;
        }
        column = byte == '\n' || byte == '\r' ? 0 : column + (((unsigned char)byte & 0xC0) != 0x80);
        jinja_put(j, byte);
    }
    return same_markup(j, c->self, jval_of_sink(j));
}

static jval m_format(struct jinja *j, const struct jcall *c) { return jinja_str_format(j, c->self, &c->rest); }

static jval m_format_map(struct jinja *j, const struct jcall *c) {
    if (c->arg[0].kind != J_DICT)
        jinja_type_error(j, "format_map() argument must be a mapping");
    const struct jdict *d = c->arg[0].d;
    struct jargs args = {.keyword = jinja_calloc(j, d->n, sizeof *args.keyword)};
    for (size_t i = 0; i < d->n; i++)
        if (d->entries[i].key.kind == J_STR)
            args.keyword[args.n_keyword++] = (struct keyword){d->entries[i].key, d->entries[i].value};
    return jinja_str_format(j, c->self, &args);
}

// ---- what kind of text it is ----

#define IS(name, claim)                                            \
    static jval m_##name(struct jinja *j, const struct jcall *c) { \
        struct str s = jval_text(c->self);                         \
        return jval_bool(claim);                                   \
    }
IS(isalnum, (s.len && str_all(j, s, cp_is_alnum)))
IS(isalpha, (s.len && str_all(j, s, cp_is_alpha)))
IS(isascii, str_is_ascii(j, s))
IS(isdecimal, (s.len && str_all(j, s, cp_is_decimal)))
IS(isdigit, (s.len && str_all(j, s, cp_is_digit)))
IS(isidentifier, str_is_identifier(j, s))
IS(islower, str_is_lower(j, s))
IS(isnumeric, (s.len && str_all(j, s, cp_is_numeric)))
IS(isprintable, str_all(j, s, cp_is_printable))
IS(isspace, (s.len && str_all(j, s, cp_is_space)))
IS(istitle, str_is_title(j, s))
IS(isupper, str_is_upper(j, s))
#undef IS

const struct builtin str_methods[] = {
    BUILTIN0("capitalize", m_capitalize),
    BUILTIN0("casefold", m_casefold),
    BUILTIN("center", m_center, POSITIONAL, 1, "width", "fillchar"),
    BUILTIN("count", m_count, POSITIONAL, 1, "sub", "start", "end"),
    BUILTIN("endswith", m_endswith, POSITIONAL, 1, "suffix", "start", "end"),
    BUILTIN("expandtabs", m_expandtabs, 0, 0, "tabsize"),
    BUILTIN("find", m_find, POSITIONAL, 1, "sub", "start", "end"),
    BUILTIN("format", m_format, TAKES_REST | TAKES_KEYWORDS, 0, NULL),
    BUILTIN("format_map", m_format_map, POSITIONAL, 1, "mapping"),
    BUILTIN("index", m_index, POSITIONAL, 1, "sub", "start", "end"),
    BUILTIN0("isalnum", m_isalnum),
    BUILTIN0("isalpha", m_isalpha),
    BUILTIN0("isascii", m_isascii),
    BUILTIN0("isdecimal", m_isdecimal),
    BUILTIN0("isdigit", m_isdigit),
    BUILTIN0("isidentifier", m_isidentifier),
    BUILTIN0("islower", m_islower),
    BUILTIN0("isnumeric", m_isnumeric),
    BUILTIN0("isprintable", m_isprintable),
    BUILTIN0("isspace", m_isspace),
    BUILTIN0("istitle", m_istitle),
    BUILTIN0("isupper", m_isupper),
    BUILTIN("join", m_join, POSITIONAL, 1, "iterable"),
    BUILTIN("ljust", m_ljust, POSITIONAL, 1, "width", "fillchar"),
    BUILTIN0("lower", m_lower),
    BUILTIN("lstrip", m_lstrip, POSITIONAL, 0, "chars"),
    BUILTIN("partition", m_partition, POSITIONAL, 1, "sep"),
    BUILTIN("removeprefix", m_removeprefix, POSITIONAL, 1, "prefix"),
    BUILTIN("removesuffix", m_removesuffix, POSITIONAL, 1, "suffix"),
    BUILTIN("replace", m_replace, POSITIONAL, 2, "old", "new", "count"),
    BUILTIN("rfind", m_rfind, POSITIONAL, 1, "sub", "start", "end"),
    BUILTIN("rindex", m_rindex, POSITIONAL, 1, "sub", "start", "end"),
    BUILTIN("rjust", m_rjust, POSITIONAL, 1, "width", "fillchar"),
    BUILTIN("rpartition", m_rpartition, POSITIONAL, 1, "sep"),
    BUILTIN("rsplit", m_rsplit, 0, 0, "sep", "maxsplit"),
    BUILTIN("rstrip", m_rstrip, POSITIONAL, 0, "chars"),
    BUILTIN("split", m_split, 0, 0, "sep", "maxsplit"),
    BUILTIN("splitlines", m_splitlines, 0, 0, "keepends"),
    BUILTIN("startswith", m_startswith, POSITIONAL, 1, "prefix", "start", "end"),
    BUILTIN("strip", m_strip, POSITIONAL, 0, "chars"),
    BUILTIN0("swapcase", m_swapcase),
    BUILTIN0("title", m_title),
    BUILTIN0("upper", m_upper),
    BUILTIN("zfill", m_zfill, POSITIONAL, 1, "width"),
};
const size_t n_str_methods = ARRAY_LEN(str_methods);
