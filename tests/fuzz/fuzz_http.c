/* fuzz_http.c - any bytes on a connection are answered in HTTP or not at all, and nothing is left of them.
 *
 * The first byte chooses: the grammar's functions alone, or the whole server, over a socket pair whose sending side is
 * closed after the bytes, so that the server answers what is complete and then closes. */
#include "http/internal.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

static void echo(struct http_exchange *x) {
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"}, x->body);
}

static void name(struct http_exchange *x) {
    struct str a = http_parameter(x, "a");
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"}, a.ptr ? a : x->id);
}

static void count(struct http_exchange *x) {
    http_stream_begin(x, &(struct http_answer){.status = 200, .content_type = "text/event-stream"});
}

static bool fill(struct http_exchange *x, struct buf *out) {
    size_t n = (size_t)x->user;
    x->user = (void *)(n + 1);
    buf_printf(out, "data: %zu\n\n", n);
    return n == 2;
}

static struct http_server *open_server(void) {
    static const struct http_route routes[] = {
        {HTTP_POST, "/e", echo},      {HTTP_POST, "/j", echo, .flags = HTTP_JSON_BODY},
        {HTTP_GET, "/n/{id}", name},  {HTTP_GET, "/n/{id}/p", name},
        {HTTP_GET, "/f/{id*}", name}, {HTTP_GET, "/c", count, fill},
    };
    struct http_server *s;
    struct error err;
    struct http_options o = {.port = -1,
                             .n_threads = 1,
                             .max_body = 4096,
                             .header_bytes = 4096,
                             .target_bytes = 1024,
                             .routes = routes,
                             .n_routes = ARRAY_LEN(routes),
                             .cors_origin = "*"};
    BUG_IF(http_open(&o, &s, &err) != OK);
    s->io[0].deadlines[DEADLINE_FIN].span_us = 0; // half-closed connections are judged at once
    return s;
}

static void run_server(const uint8_t *bytes, size_t n) {
    static struct http_server *s;
    struct http_stats after;
    int pair[2];
    if (!s)
        s = open_server();
    BUG_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 5}, sizeof(struct timeval));
    struct sockaddr_storage address = {.ss_family = AF_UNIX};
    atomic_fetch_add(&s->io[0].n_conns, 1);
    io_adopt(&s->io[0], pair[1], &address, sizeof address.ss_family);
    (void)!send(pair[0], bytes, n, MSG_NOSIGNAL);
    shutdown(pair[0], SHUT_WR);
    char c[65536];
    ssize_t got, total = 0;
    while ((got = recv(pair[0], c, sizeof c, 0)) > 0) {
        BUG_IF(total == 0 && (got < 9 || memcmp(c, "HTTP/1.1 ", 9) != 0));
        total += got;
    }
    BUG_IF(got < 0 && errno == EAGAIN); // it hangs
    close(pair[0]);
    int64_t end = clock_us() + 5000000;
    do {
        http_stats(s, &after);
        BUG_IF(clock_us() > end); // something is left
    } while (after.connections || after.in_flight || after.body_bytes);
}

static void run_grammar(const uint8_t *bytes, size_t n) {
    struct arena a = {0};
    struct str all = {(const char *)bytes, n}, authority = {0}, path = {0}, query = {0}, id, out;
    const char *why = NULL;
    if (target_split(all, &authority, &path, &query, &why) == 0) {
        BUG_IF(authority.ptr && (authority.len == 0 || memchr(authority.ptr, '/', authority.len)));
        BUG_IF(path.len == 0 || (path.ptr[0] != '/' && path.ptr[0] != '*') || memchr(path.ptr, '?', path.len));
        if (path_matches("/n/{id}/p", path, &id))
            BUG_IF(id.len == 0 || memchr(id.ptr, '/', id.len) || id.len != path.len - 5);
        if (path_matches("/f/{id*}", path, &id))
            BUG_IF(id.len == 0 || id.len != path.len - 3);
        query_find(query, "a");
    } else {
        BUG_IF(!why);
    }
    if (percent_decode(&a, all, true, &out))
        BUG_IF(out.len > n || !utf8_valid(out) || (out.len && memchr(out.ptr, 0, out.len)));
    if (is_request_id(all))
        BUG_IF(n < 1 || n > 128 || memchr(bytes, '\n', n));
    is_media_type(all, STR("application/json"));
    struct head h = {.method = STR("POST"), .minor = 1};
    for (size_t at = 0; at < n && h.n_fields < HEAD_MAX_FIELDS;) { // name, value, name, value ... each after its length
        struct str s[2];
        for (int i = 0; i < 2; i++) {
            size_t len = at < n ? bytes[at++] : 0;
            s[i] = (struct str){all.ptr + at, MIN(len, n - at)};
            at += s[i].len;
        }
        h.fields[h.n_fields++] = (struct head_field){s[0], blank_trim(s[1])};
    }
    if (head_check(&h, &why) == 0)
        BUG_IF(h.chunked && h.has_length);
    arena_release(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    if (n_bytes == 0)
        return 0;
    if (bytes[0] & 1)
        run_server(bytes + 1, n_bytes - 1);
    else
        run_grammar(bytes + 1, n_bytes - 1);
    return 0;
}
