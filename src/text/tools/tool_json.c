/* tool_json.c - see tool_parser_parts.h: the object of a call, read while it is still coming. */
#include "text/tools/tool_parser_parts.h"

#include "base/status.h"

struct str str_first_part(struct str mark) {
    mark = str_core(mark);
    size_t n = tag_length(mark);
    if (n)
        return str_to(mark, n);
    while (n < mark.len && !is_blank(mark.ptr[n]))
        n++;
    return str_to(mark, n);
}

// ---- values -----------------------------------------------------------------------------------------------------

static enum mark_match string_length(struct str s, size_t *length) {
    for (size_t i = 1; i < s.len; i++) {
        if (s.ptr[i] == '"') {
            *length = i + 1;
            return MARK_YES;
        }
        i += s.ptr[i] == '\\';
    }
    return MARK_MORE;
}

static enum mark_match container_length(struct str s, size_t *length) {
    size_t depth = 0, n;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c == '"') {
            if (string_length(str_from(s, i), &n) != MARK_YES)
                return MARK_MORE;
            i += n - 1;
        } else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0) {
            *length = i + 1;
            return MARK_YES;
        }
    }
    return MARK_MORE;
}

enum mark_match json_length(struct str s, size_t *length) {
    if (s.len == 0)
        return MARK_MORE;
    if (s.ptr[0] == '"')
        return string_length(s, length);
    if (s.ptr[0] == '{' || s.ptr[0] == '[')
        return container_length(s, length);
    size_t n = 0;
    while (n < s.len && !is_blank(s.ptr[n]) && !strchr(",:{}[]\"", s.ptr[n]))
        n++;
    *length = n;
    return n == 0 ? MARK_NO : n == s.len ? MARK_MORE : MARK_YES;
}

// ---- members ----------------------------------------------------------------------------------------------------

struct member {
    struct str key;
    size_t value; // where it begins
};

static size_t skip_blanks(struct str s, size_t at) { return at + leading_blanks(str_from(s, at)); }

static enum mark_match read_key(struct str s, size_t *at, struct member *m) {
    size_t n;
    if (s.ptr[*at] != '"')
        return MARK_NO;
    enum mark_match found = string_length(str_from(s, *at), &n);
    if (found != MARK_YES)
        return found;
    m->key = (struct str){s.ptr + *at + 1, n - 2};
    *at = skip_blanks(s, *at + n);
    if (*at == s.len)
        return MARK_MORE;
    if (s.ptr[*at] != ':')
        return MARK_NO;
    m->value = *at = skip_blanks(s, *at + 1);
    return *at == s.len ? MARK_MORE : MARK_YES;
}

static struct str unquoted(struct str value) {
    return value.len >= 2 && value.ptr[0] == '"' ? (struct str){value.ptr + 1, value.len - 2} : value;
}

/* An id is a plain string: what else the model writes for one is none, and one is made. */
static struct str id_in(struct str value) {
    struct str id = unquoted(value);
    bool plain = value.len >= 2 && value.ptr[0] == '"' && id.len <= MAX_NAME;
    for (size_t i = 0; plain && i < id.len; i++)
        plain = (unsigned char)id.ptr[i] >= ' ' && id.ptr[i] != '\\' && id.ptr[i] != 0x7F;
    return plain ? id : STR("");
}

static bool is_key(struct str key, struct str ours, const char *usual) {
    return (ours.len && str_eq(key, ours)) || str_eq(key, str_of(usual));
}

static bool is_arguments(const struct tool_format *f, struct str key) {
    return is_key(key, f->arguments_key, "arguments") || str_eq(key, STR("parameters"));
}

static bool is_wrapper(const struct tool_format *f, struct str key) { return is_key(key, f->wrapper_key, "function"); }

static bool belongs_to_a_call(const struct tool_format *f, struct str key) {
    return is_key(key, f->name_key, "name") || is_key(key, f->id_key, "id") || is_arguments(f, key) ||
           is_wrapper(f, key) || str_eq(key, STR("type"));
}

static void take_member(const struct tool_format *f, struct str key, struct str value, struct head *h) {
    if (is_key(key, f->name_key, "name") && value.ptr[0] == '"' && !memchr(value.ptr, '\\', value.len))
        h->name = unquoted(value);
    else if (is_key(key, f->id_key, "id"))
        h->id = id_in(value);
    else if (is_arguments(f, key))
        h->early = value;
}

enum mark_match json_head(const struct tool_format *f, struct str s, size_t at, bool bare, struct head *h) {
    h->depth = 1;
    for (;;) {
        struct member m;
        size_t n;
        at = skip_blanks(s, at);
        if (at == s.len)
            return MARK_MORE;
        if (s.ptr[at] == ',') {
            at++;
            continue;
        }
        if (s.ptr[at] == '}') {
            h->end = ++at;
            if (--h->depth > 0)
                continue;
            h->no_arguments = h->early.len == 0;
            return h->name.len ? MARK_YES : MARK_NO;
        }
        enum mark_match found = read_key(s, &at, &m);
        if (found != MARK_YES)
            return found;
        if (bare && !belongs_to_a_call(f, m.key) && f->name_key.len)
            return MARK_NO;
        bool names_itself = f->name_key.len == 0;
        if (names_itself)
            h->name = m.key;
        if (names_itself || (h->name.len && is_arguments(f, m.key))) {
            h->end = m.value;
            return MARK_YES;
        }
        if (is_wrapper(f, m.key) && s.ptr[m.value] == '{') {
            h->depth++;
            at = m.value + 1;
            continue;
        }
        found = json_length(str_from(s, m.value), &n);
        if (found != MARK_YES)
            return found;
        take_member(f, m.key, (struct str){s.ptr + m.value, n}, h);
        at = m.value + n;
    }
}

enum mark_match json_rest(const struct tool_format *f, struct str s, int depth, size_t *at, struct str *id) {
    while (depth > 0) {
        struct member m;
        size_t n;
        size_t next = skip_blanks(s, *at);
        if (next == s.len)
            return MARK_MORE;
        if (s.ptr[next] == '}') {
            depth--;
            *at = next + 1;
            continue;
        }
        if (s.ptr[next] != ',')
            return MARK_NO;
        next = skip_blanks(s, next + 1);
        if (next == s.len)
            return MARK_MORE;
        enum mark_match found = read_key(s, &next, &m);
        if (found == MARK_YES)
            found = json_length(str_from(s, m.value), &n);
        if (found != MARK_YES)
            return found;
        if (is_key(m.key, f->id_key, "id"))
            *id = id_in((struct str){s.ptr + m.value, n});
        *at = m.value + n;
    }
    return MARK_YES;
}
