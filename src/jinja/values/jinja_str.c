/* jinja_str.c - text as a sequence of code points: counting, cutting, repeating, searching, changing case. */
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_unicode.h"
#include "jinja/values/jinja_value.h"

size_t jstr_chars(struct jinja *j, struct jstr *s) {
    if (s->n_chars == SIZE_MAX) {
        jinja_step_bytes(j, s->len);
        size_t n = 0;
        for (size_t i = 0; i < s->len; i++)
            n += ((unsigned char)s->ptr[i] & 0xC0) != 0x80;
        s->n_chars = n;
    }
    return s->n_chars;
}

size_t jstr_offset(struct jinja *j, struct jstr *s, size_t n_chars) {
    size_t total = jstr_chars(j, s);
    if (n_chars >= total)
        return s->len;
    if (total == s->len)
        return n_chars;
    jinja_step_bytes(j, s->len);
    size_t at = 0;
    for (size_t n = 0; n < n_chars; n++)
        do
            at++;
        while (((unsigned char)s->ptr[at] & 0xC0) == 0x80);
    return at;
}

jval jstr_part(struct jinja *j, struct jstr *s, size_t begin, size_t end) {
    jval v = jval_borrow(j, (struct str){s->ptr + begin, end - begin});
    v.s->markup = s->markup;
    if (s->n_chars == s->len)
        v.s->n_chars = v.s->len;
    return v;
}

jval jstr_repeat(struct jinja *j, jval v, int64_t n) {
    struct jstr *s = v.s;
    if (n <= 0 || !s->len)
        return jstr_part(j, s, 0, 0);
    size_t len;
    if (!size_mul(s->len, (size_t)n, &len))
        len = SIZE_MAX;
    char *bytes = jinja_alloc(j, len);
    for (size_t at = 0; at < len; at += s->len)
        memcpy(bytes + at, s->ptr, s->len);
    jval out = jval_borrow(j, (struct str){bytes, len});
    out.s->markup = s->markup;
    return out;
}

static int last_cp(struct str s, int32_t *cp) {
    size_t n = 1;
    while (n < 4 && n < s.len && ((unsigned char)s.ptr[s.len - n] & 0xC0) == 0x80)
        n++;
    return utf8_decode(s.ptr + s.len - n, n, cp);
}

static bool in_set(int32_t cp, struct str set) {
    for (size_t i = 0; i < set.len;) {
        int32_t member;
        i += (size_t)utf8_decode(set.ptr + i, set.len - i, &member);
        if (member == cp)
            return true;
    }
    return false;
}

/* set.ptr NULL: white space */
static struct str trim(struct str s, struct str set, bool left, bool right) {
    int32_t cp;
    while (left && s.len) {
        int n = utf8_decode(s.ptr, s.len, &cp);
        if (set.ptr ? !in_set(cp, set) : !cp_is_space(cp))
            break;
        s.ptr += n;
        s.len -= (size_t)n;
    }
    while (right && s.len) {
        int n = last_cp(s, &cp);
        if (set.ptr ? !in_set(cp, set) : !cp_is_space(cp))
            break;
        s.len -= (size_t)n;
    }
    return s;
}

struct str str_trim(struct str s, bool left, bool right) {
    return trim(s, (struct str){0}, left, right);
}
struct str str_trim_set(struct str s, struct str set, bool left, bool right) {
    return trim(s, set, left, right);
}

size_t str_find(struct str s, struct str needle, size_t from) {
    if (from > s.len)
        return SIZE_MAX;
    if (!needle.len)
        return from;
    const char *at = memmem(s.ptr + from, s.len - from, needle.ptr, needle.len);
    return at ? (size_t)(at - s.ptr) : SIZE_MAX;
}

size_t str_rfind(struct jinja *j, struct str s, struct str needle) {
    if (needle.len > s.len)
        return SIZE_MAX;
    for (size_t at = s.len - needle.len + 1; at-- > 0;) {
        if (needle.len && s.ptr[at] != needle.ptr[0])
            continue;
        jinja_step_bytes(j, needle.len); // a long needle in a text that resembles it is quadratic
        if (!needle.len || memcmp(s.ptr + at, needle.ptr, needle.len) == 0)
            return at;
    }
    return SIZE_MAX;
}

static void emit_run(struct jinja *j, struct cp_run run) {
    for (int i = 0; i < run.n; i++)
        jinja_emit_cp(j, run.cp[i]);
}

/* Whether the capital sigma at byte `at` ends a word, which gives it another lower case. */
static bool is_final_sigma(struct str s, size_t at) {
    int32_t cp = -1;
    struct str before = {s.ptr, at};
    while (before.len) {
        before.len -= (size_t)last_cp(before, &cp);
        if (!cp_is_case_ignorable(cp))
            break;
    }
    if (cp < 0 || cp_is_case_ignorable(cp) || !cp_is_cased(cp))
        return false;
    for (size_t i = at + 2; i < s.len;) {
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        if (!cp_is_case_ignorable(cp))
            return !cp_is_cased(cp);
    }
    return true;
}

static void emit_lower(struct jinja *j, struct str s, size_t at, int32_t cp) {
    if (cp == 0x3A3)
        jinja_emit_cp(j, is_final_sigma(s, at) ? 0x3C2 : 0x3C3);
    else
        emit_run(j, cp_lower(cp));
}

jval jstr_map(struct jinja *j, jval v, enum jstr_case how) {
    struct str s = jval_text(v);
    jinja_step_bytes(j, s.len);
    sink_open(j);
    bool inside = false; // after a cased character: of a word for title, of the text for capitalize
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        if (how == CASE_UPPER || (how == CASE_SWAP && cp_is_lower(cp)))
            emit_run(j, cp_upper(cp));
        else if (how == CASE_FOLD)
            emit_run(j, cp_fold(cp));
        else if (how == CASE_SWAP && !cp_is_upper(cp))
            jinja_emit_cp(j, cp);
        else if (!inside && (how == CASE_TITLE || how == CASE_CAPITAL))
            emit_run(j, cp_title(cp));
        else
            emit_lower(j, s, i, cp);
        inside = how == CASE_TITLE ? cp_is_cased(cp) : true;
        i += (size_t)n;
    }
    return jval_markup(j, jval_of_sink(j), v.s->markup);
}

/* An empty `old` stands before each code point and at the end. */
static void replace_nothing(struct jinja *j, struct str s, struct str new, int64_t count) {
    for (size_t i = 0; i < s.len;) {
        if (count-- > 0)
            jinja_emit(j, new);
        int32_t cp;
        int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        jinja_emit(j, (struct str){s.ptr + i, (size_t)n});
        i += (size_t)n;
    }
    if (count > 0)
        jinja_emit(j, new);
}

jval jstr_replace(struct jinja *j, jval v, struct str old, struct str new, int64_t count) {
    struct str s = jval_text(v);
    if (count < 0)
        count = INT64_MAX;
    sink_open(j);
    if (!old.len) {
        replace_nothing(j, s, new, count);
    } else {
        size_t from = 0, at;
        for (; count > 0 && (at = str_find(s, old, from)) != SIZE_MAX; count--) {
            jinja_step(j, 1);
            jinja_emit(j, (struct str){s.ptr + from, at - from});
            jinja_emit(j, new);
            from = at + old.len;
        }
        jinja_emit(j, (struct str){s.ptr + from, s.len - from});
    }
    return jval_markup(j, jval_of_sink(j), v.s->markup);
}
