/* uri.c - a reference joined to its base (RFC 3986, 5.2), for $id and $ref. */
#include "grammar/schema/uri.h"

struct uri {
    struct str scheme, authority, path, query; // with ':', '//', '?'; no fragment
};

static struct str cut(struct str *s, size_t n) {
    struct str head = {s->ptr, n};
    *s = (struct str){s->ptr + n, s->len - n};
    return head;
}

static size_t run_until(struct str s, const char *stops) {
    size_t n = 0;
    while (n < s.len && !strchr(stops, s.ptr[n] ? s.ptr[n] : 1))
        n++;
    return n;
}

static struct uri uri_split(struct str s) {
    struct uri u = {0};
    size_t n = run_until(s, ":/?#");
    if (n > 0 && n < s.len && s.ptr[n] == ':')
        u.scheme = cut(&s, n + 1);
    if (str_starts(s, STR("//"))) {
        struct str behind = {s.ptr + 2, s.len - 2};
        u.authority = cut(&s, 2 + run_until(behind, "/?#"));
    }
    u.path = cut(&s, run_until(s, "?#"));
    u.query = cut(&s, run_until(s, "#"));
    return u;
}

/* Appends path to out without its dot segments; out->len never falls below `floor`. */
static void append_without_dots(struct buf *out, struct str path, size_t floor) {
    while (path.len > 0) {
        size_t n = 1 + run_until((struct str){path.ptr + 1, path.len - 1}, "/");
        struct str segment = cut(&path, n);
        bool up = str_eq(segment, STR("/..")) || str_eq(segment, STR(".."));
        if (up)
            while (out->len > floor && out->ptr[--out->len] != '/')
                ;
        if (!up && !str_eq(segment, STR("/.")) && !str_eq(segment, STR(".")))
            buf_str(out, segment);
        else if (path.len == 0)
            buf_push(out, '/');
    }
}

void uri_join(struct buf *out, struct str base, struct str reference) {
    struct uri b = uri_split(base), r = uri_split(reference), u = r;
    struct str dir = {NULL, 0};
    if (r.scheme.len == 0) {
        u.scheme = b.scheme;
        if (r.authority.len == 0) {
            u.authority = b.authority;
            if (r.path.len == 0) {
                u.path = b.path;
                u.query = r.query.len ? r.query : b.query;
            } else if (r.path.ptr[0] != '/') {
                dir = b.path;
                while (dir.len > 0 && dir.ptr[dir.len - 1] != '/')
                    dir.len--;
                if (dir.len == 0 && b.authority.len > 0)
                    dir = STR("/");
            }
        }
    }
    buf_str(out, u.scheme);
    buf_str(out, u.authority);
    struct buf path = {0};
    buf_str(&path, dir);
    buf_str(&path, u.path);
    bool opaque = u.scheme.len > 0 && u.authority.len == 0 && (path.len == 0 || path.ptr[0] != '/'); // urn:...
    if (opaque)
        buf_str(out, buf_view(&path));
    else
        append_without_dots(out, buf_view(&path), out->len);
    buf_str(out, u.query);
    buf_release(&path);
}

struct str uri_fragment(struct str reference, struct str *without) {
    size_t n = run_until(reference, "#");
    *without = (struct str){reference.ptr, n};
    return n < reference.len ? (struct str){reference.ptr + n + 1, reference.len - n - 1} : (struct str){NULL, 0};
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void uri_unescape(struct buf *out, struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        int high = i + 2 < s.len && s.ptr[i] == '%' ? hex_digit(s.ptr[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(s.ptr[i + 2]) : -1;
        buf_push(out, low >= 0 ? (char)(high * 16 + low) : s.ptr[i]);
        i += low >= 0 ? 2 : 0;
    }
}
