/* head.c - see head.h. The grammar is RFC 9110 (fields), RFC 9112 (framing, targets) and RFC 3986 (escapes). */
#include "http/head.h"

#include <arpa/inet.h>

static const char *const METHODS[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};

enum http_method method_of(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(METHODS); i++)
        if (str_eq(name, str_of(METHODS[i])))
            return (enum http_method)i;
    return HTTP_OTHER;
}

const char *method_name(enum http_method method) { return method < HTTP_OTHER ? METHODS[method] : "another"; }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alnum(char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'z'); }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c | 32) : c; }

bool name_equal(struct str a, struct str b) {
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (lower(a.ptr[i]) != lower(b.ptr[i]))
            return false;
    return true;
}

struct str blank_trim(struct str s) {
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t'))
        s.ptr++, s.len--;
    while (s.len && (s.ptr[s.len - 1] == ' ' || s.ptr[s.len - 1] == '\t'))
        s.len--;
    return s;
}

struct str head_find(const struct head_field *fields, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (name_equal(fields[i].name, str_of(name)))
            return fields[i].value;
    return (struct str){0};
}

struct str host_of(struct str authority) {
    const char *colon = authority.len ? memrchr(authority.ptr, ':', authority.len) : NULL;
    bool in_brackets = colon && memchr(colon, ']', (size_t)(authority.ptr + authority.len - colon));
    return colon && !in_brackets ? (struct str){authority.ptr, (size_t)(colon - authority.ptr)} : authority;
}

static bool is_loopback_v4(struct str host) {
    char text[INET_ADDRSTRLEN];
    struct in_addr a;
    if (host.len >= sizeof text)
        return false;
    memcpy(text, host.ptr, host.len);
    text[host.len] = '\0';
    return inet_pton(AF_INET, text, &a) == 1 && ntohl(a.s_addr) >> 24 == 127;
}

/* [::1] in any of its spellings, or [::ffff:127.0.0.1]. */
static bool is_loopback_v6(struct str host) {
    char text[INET6_ADDRSTRLEN];
    struct in6_addr a;
    if (host.len < 2 || host.len - 2 >= sizeof text || host.ptr[0] != '[' || host.ptr[host.len - 1] != ']')
        return false;
    memcpy(text, host.ptr + 1, host.len - 2);
    text[host.len - 2] = '\0';
    return inet_pton(AF_INET6, text, &a) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127));
}

/* Of one label: letters, digits, '-' and '_'. */
static bool is_name(struct str host) {
    for (size_t i = 0; i < host.len; i++)
        if (!is_alnum(host.ptr[i]) && host.ptr[i] != '-' && host.ptr[i] != '_')
            return false;
    return true;
}

bool host_is_localhost(struct str host) {
    struct str name = STR("localhost"), tail = {host.ptr + host.len - MIN(host.len, name.len), MIN(host.len, name.len)};
    return name_equal(tail, name) && (host.len == name.len || host.ptr[host.len - name.len - 1] == '.');
}

bool host_is_local(struct str host) {
    bool dotless = host.len > 0 && is_name(host);
    return dotless || host_is_localhost(host) || is_loopback_v4(host) || is_loopback_v6(host);
}

static bool is_token(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!is_alnum(s.ptr[i]) && (!s.ptr[i] || !strchr("!#$%&'*+-.^_`|~", s.ptr[i])))
            return false;
    return s.len > 0;
}

static bool has_control(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (((unsigned char)s.ptr[i] < 0x20 && s.ptr[i] != '\t') || s.ptr[i] == 0x7F)
            return true;
    return false;
}

static bool parse_length(struct str s, uint64_t *out) {
    *out = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (!is_digit(s.ptr[i]))
            return false;
        *out = *out * 10 + (uint64_t)(s.ptr[i] - '0');
    }
    return s.len >= 1 && s.len <= 18;
}

static int refuse(int status, const char *sentence, const char **why) {
    *why = sentence;
    return status;
}

/* Takes note of the fields that say where the body ends. */
static int check_framing(struct head *head, struct head_field f, const char **why) {
    if (name_equal(f.name, STR("Content-Length"))) {
        if (head->has_length)
            return refuse(400, "Content-Length is given twice", why);
        if (!parse_length(f.value, &head->length))
            return refuse(400, "Content-Length is not a number of bytes", why);
        head->has_length = true;
    } else if (name_equal(f.name, STR("Transfer-Encoding"))) {
        if (head->chunked)
            return refuse(400, "Transfer-Encoding is given twice", why);
        if (!name_equal(f.value, STR("chunked")))
            return refuse(501, "Transfer-Encoding other than chunked is not supported", why);
        head->chunked = true;
    } else if (name_equal(f.name, STR("Expect"))) {
        head->wants_continue = name_equal(f.value, STR("100-continue"));
    }
    if (head->chunked && head->has_length)
        return refuse(400, "Content-Length and Transfer-Encoding exclude each other", why);
    if (head->chunked && head->minor == 0)
        return refuse(400, "HTTP/1.0 has no Transfer-Encoding", why);
    return 0;
}

int head_check(struct head *head, const char **why) {
    int n_hosts = 0;
    head->chunked = head->has_length = head->wants_continue = false;
    for (size_t i = 0; i < head->n_fields; i++) {
        struct head_field f = head->fields[i];
        if (!is_token(f.name))
            return refuse(400, "a header field has a name that is none", why);
        if (has_control(f.value))
            return refuse(400, "a header field holds a control character", why);
        n_hosts += name_equal(f.name, STR("Host"));
        int status = check_framing(head, f, why);
        if (status)
            return status;
    }
    if (n_hosts > 1 || (n_hosts == 0 && head->minor > 0))
        return refuse(400, n_hosts ? "Host is given twice" : "Host is missing", why);
    if (!is_token(head->method))
        return refuse(400, "the method is none", why);
    return 0;
}

/* The bytes of "http://" or "https://" in front, or 0. */
static size_t scheme_length(struct str target) {
    static const struct str schemes[] = {STR("http://"), STR("https://")};
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (target.len > schemes[i].len && name_equal((struct str){target.ptr, schemes[i].len}, schemes[i]))
            return schemes[i].len;
    return 0;
}

/* Takes scheme and authority off a target in absolute form. */
static struct str take_authority(struct str target, struct str *authority) {
    *authority = (struct str){0};
    size_t begin = scheme_length(target), end = begin;
    if (begin == 0)
        return target;
    while (end < target.len && !strchr("/?", target.ptr[end]))
        end++;
    *authority = (struct str){target.ptr + begin, end - begin};
    return end < target.len ? (struct str){target.ptr + end, target.len - end} : STR("/");
}

int target_split(struct str target, struct str *authority, struct str *path, struct str *query, const char **why) {
    for (size_t i = 0; i < target.len; i++)
        if ((unsigned char)target.ptr[i] <= 0x20 || (unsigned char)target.ptr[i] >= 0x7F || target.ptr[i] == '#')
            return refuse(400, "the request target holds a character that must be escaped", why);
    target = take_authority(target, authority);
    if (authority->ptr && host_of(*authority).len == 0)
        return refuse(400, "the request target has a scheme and no host", why);
    if (authority->ptr && memchr(authority->ptr, '@', authority->len)) // RFC 9110, 4.2.4
        return refuse(400, "the request target names a user", why);
    if (target.len == 0 || (target.ptr[0] != '/' && !str_eq(target, STR("*"))))
        return refuse(400, "the request target is not a path", why);
    const char *mark = memchr(target.ptr, '?', target.len);
    size_t n = mark ? (size_t)(mark - target.ptr) : target.len;
    *path = (struct str){target.ptr, n};
    *query = mark ? (struct str){mark + 1, target.len - n - 1} : STR("");
    return 0;
}

bool is_media_type(struct str type, struct str wanted) {
    const char *semicolon = memchr(type.ptr, ';', type.len);
    if (semicolon)
        type.len = (size_t)(semicolon - type.ptr);
    return name_equal(blank_trim(type), wanted);
}

bool is_request_id(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!is_alnum(s.ptr[i]) && (!s.ptr[i] || !strchr("-_.:/+=", s.ptr[i])))
            return false;
    return s.len >= 1 && s.len <= 128;
}

bool path_matches(const char *pattern, struct str path, struct str *id) {
    *id = STR("");
    const char *hole = strstr(pattern, "{id");
    if (!hole)
        return str_eq(path, str_of(pattern));
    struct str before = {pattern, (size_t)(hole - pattern)};
    bool rest = hole[3] == '*';
    struct str after = str_of(hole + (rest ? 5 : 4));
    if (path.len <= before.len + after.len || !str_starts(path, before) || !str_ends(path, after))
        return false;
    *id = (struct str){path.ptr + before.len, path.len - before.len - after.len};
    return rest || !memchr(id->ptr, '/', id->len);
}

static int hex(char c) {
    if (is_digit(c))
        return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool percent_decode(struct arena *a, struct str s, bool plus, struct str *out) {
    char *to = arena_alloc(a, s.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c == '%') {
            if (s.len - i < 3 || hex(s.ptr[i + 1]) < 0 || hex(s.ptr[i + 2]) < 0)
                return false;
            c = (char)(hex(s.ptr[i + 1]) << 4 | hex(s.ptr[i + 2]));
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == '\0')
            return false;
        to[n++] = c;
    }
    *out = (struct str){to, n};
    return utf8_valid(*out);
}

struct str query_find(struct str query, const char *name) {
    while (query.len) {
        const char *amp = memchr(query.ptr, '&', query.len);
        struct str pair = {query.ptr, amp ? (size_t)(amp - query.ptr) : query.len};
        const char *eq = memchr(pair.ptr, '=', pair.len);
        struct str key = {pair.ptr, eq ? (size_t)(eq - pair.ptr) : pair.len};
        if (str_eq(key, str_of(name)))
            return (struct str){pair.ptr + key.len + (eq != NULL), pair.len - key.len - (eq != NULL)};
        size_t skip = pair.len + (amp != NULL);
        query = (struct str){query.ptr + skip, query.len - skip};
    }
    return (struct str){0};
}
