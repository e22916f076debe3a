/* fuzz_handlers.c - any bytes as the body of any POST route, or any query of a GET route: an answer that is none of
 * ours to be ashamed of, and a server that has nothing left of it.
 *
 * The whole server over the toy backend and the bundled model, on a socket pair. The first byte chooses the route;
 * "{id}" in its path is "x". An answer of 500 or more is 503 or 501, what is no stream is JSON or a text, and it comes.
 */
#include "api/api.h"
#include "backend/toy/toy.h"
#include "base/json/json.h"
#include "base/json/json_reader.h"
#include "gyre.h"
#include "http/internal.h"

#include <errno.h>
#include <math.h>
#include <sys/socket.h>
#include <unistd.h>

static struct api *open_api(void) {
    static const char *const names[] = {"story"};
    static struct tokenizer *tok;
    static struct chat_template *chat;
    struct gyre *engine;
    struct gyre_error e;
    struct error err;
    struct api *api;
    struct gyre_options g = {.model = "models/story",
                             .backend = &backend_toy,
                             .n_threads = 1,
                             .max_model_len = 96,
                             .kv_cache_bytes = 1 << 20,
                             .max_seqs = 8};
    BUG_IF(tokenizer_open(g.model, &tok, &err) != OK || chat_template_open(g.model, &chat, &err) != OK ||
           gyre_open(&g, &engine, &e) != 0);
    struct api_options o = {
        .version = "0",
        .fingerprint = "fp",
        .names = names,
        .n_names = 1,
        .tokenizer = tok,
        .chat = chat,
        .trust_request_chat_template = true,
        .pooling = GYRE_POOL_MEAN,
        .http = {.port = -1, .n_threads = 1, .max_body = 1 << 21},
        .n_text_threads = 1,
        .defaults = {.temperature = NAN, .top_p = NAN, .min_p = NAN, .repetition_penalty = NAN, .top_k = NAN},
        .stored_bytes = 1 << 20,
        .max_queued = 100,
        .log_format = REQUEST_LOG_OFF,
        .limits = {.max_choices = 8}};
    BUG_IF(api_open(&engine, 1, &o, &api, &err) != OK);
    return api;
}

static void write_head(struct buf *out, const struct http_route *route, struct str body) {
    struct str path = str_of(route->path);
    const char *id = memchr(path.ptr, '{', path.len);
    buf_printf(out, "%s ", route->method == HTTP_GET ? "GET" : route->method == HTTP_DELETE ? "DELETE" : "POST");
    buf_append(out, path.ptr, id ? (size_t)(id - path.ptr) : path.len);
    if (id)
        buf_printf(out, "x%s", strchr(id, '}') + 1);
    if (route->method != HTTP_POST) {
        buf_push(out, '?');
        for (size_t i = 0; i < body.len && i < 1000; i++)
            buf_printf(out,
                       (unsigned char)body.ptr[i] > ' ' && (unsigned char)body.ptr[i] < 127 && body.ptr[i] != '#'
                           ? "%c"
                           : "%%%02x",
                       (unsigned char)body.ptr[i]);
        body.len = 0;
    }
    buf_printf(out, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    if (route->method == HTTP_POST)
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    buf_printf(out, "\r\n");
    buf_str(out, body);
}

/* Errors that are none: libFuzzer's alarm interrupts a recv that has a timeout, whatever SA_RESTART says. */
static bool goes_on(int error) { return error == EAGAIN || error == EINTR; }

/* Sends, and reads what comes, to the end of the connection. */
static void talk(int fd, struct str request, struct buf *answer) {
    char c[65536];
    for (bool sent = false;;) {
        ssize_t n = sent ? 0 : send(fd, request.ptr, request.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            request = (struct str){request.ptr + n, request.len - (size_t)n};
        sent = sent || request.len == 0 || (n < 0 && !goes_on(errno));
        n = recv(fd, c, sizeof c, sent ? 0 : MSG_DONTWAIT);
        BUG_IF(n < 0 && sent && errno == EAGAIN); // it hangs
        if (n > 0)
            buf_append(answer, c, (size_t)n);
        if (n == 0 || (n < 0 && !goes_on(errno)))
            return;
    }
}

/* Prints the answer that is not as it should be. */
static void expect(bool right, const struct buf *answer) {
    if (!right)
        fprintf(stderr, "an answer of %zu bytes: %.*s\n", answer->len, (int)answer->len,
                answer->len ? answer->ptr : "");
    BUG_IF(!right);
}

/* By its grammar: a token may be a NUL, and jansson's keys may not. */
static bool is_json(struct str text) {
    struct json_reader r;
    struct error err;
    json_reader_init(&r, text, "answer");
    bool is = json_skip(&r, NULL, &err) == OK && json_expect_end(&r, &err) == OK;
    json_reader_release(&r);
    return is;
}

static void check_answer(const struct buf *answer) {
    struct error err;
    json_t *value;
    int status = answer->len > 12 ? atoi(answer->ptr + 9) : 0;
    expect(status >= 200 && (status < 500 || status == 503 || status == 501), answer);
    const char *body = strstr(answer->ptr, "\r\n\r\n");
    BUG_IF(!body);
    struct str text = {body + 4, answer->len - (size_t)(body + 4 - answer->ptr)};
    size_t n_head = (size_t)(body - answer->ptr);
    if (!text.len || memmem(answer->ptr, n_head, "chunked", 7))
        return;
    if (status >= 400 || memmem(answer->ptr, n_head, "application/json", 16))
        expect(is_json(text), answer);
    if (status >= 400) {
        expect(jv_parse(text, "answer", 0, &value, &err) == OK && json_object_get(value, "error"), answer);
        json_decref(value);
    }
}

static void wait_until_nothing_is_left(struct api *api) {
    struct http_stats after;
    int64_t end = clock_us() + 60000000;
    do {
        http_stats(api->http, &after);
        BUG_IF(clock_us() > end);
    } while (after.connections || after.in_flight || after.body_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static struct api *api;
    int pair[2];
    if (n_bytes == 0)
        return 0;
    if (!api)
        api = open_api();
    struct io *io = &api->http->io[0];
    struct buf request = {0}, answer = {0};
    write_head(&request, &api_routes[bytes[0] % api_n_routes], (struct str){(const char *)bytes + 1, n_bytes - 1});
    BUG_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 60}, sizeof(struct timeval));
    struct sockaddr_storage address = {.ss_family = AF_UNIX};
    atomic_fetch_add(&io->n_conns, 1);
    BUG_IF(!io_adopt(io, pair[1], &address, sizeof address.ss_family));
    talk(pair[0], buf_view(&request), &answer);
    close(pair[0]);
    check_answer(&answer);
    wait_until_nothing_is_left(api);
    buf_release(&request);
    buf_release(&answer);
    return 0;
}
