/* answer.c - answers: whole ones, and streams that libmicrohttpd pulls.
 *
 * MHD asks for more of a stream when all before is written. What came together meanwhile leaves in one chunk and one
 * system call; when nothing is there the connection waits. */
#include "http/internal.h"

#include <stdlib.h>

static struct exchange *of(const struct http_exchange *x) { return (struct exchange *)x; }

static void add_header(struct MHD_Response *r, const char *name, const char *value) {
    BUG_IF(!*value || strpbrk(value, "\r\n")); // from our own code
    if (MHD_add_response_header(r, name, value) != MHD_YES)
        alloc_failed(strlen(value));
}

static void add_headers(struct exchange *x, const struct http_answer *a) {
    struct MHD_Response *r = x->response;
    const char *origin = x->io->server->options.cors_origin;
    if (a->content_type)
        add_header(r, "Content-Type", a->content_type);
    for (size_t i = 0; i < a->n_headers; i++)
        add_header(r, a->headers[i].name, a->headers[i].value);
    for (size_t i = 0; i < x->n_added; i++)
        add_header(r, x->added[i].name, x->added[i].value);
    add_header(r, "X-Request-Id", arena_strdup(&x->pub.arena, x->pub.request_id));
    if (origin) {
        add_header(r, "Access-Control-Allow-Origin", origin);
        add_header(r, "Access-Control-Expose-Headers", "*");
        if (!str_eq(str_of(origin), STR("*")))
            add_header(r, "Vary", "Origin");
    }
}

void answer_commit(struct exchange *x) {
    if (!x->conn)
        return;
    x->closes |= x->io->stage >= STAGE_DRAIN;
    if (x->closes)
        add_header(x->response, "Connection", "close");
    conn_resume(x->conn);
}

/* Gives the answer to MHD, which is either in a callback of ours or will be. */
enum MHD_Result answer_queue(struct exchange *x) {
    enum MHD_Result ok = MHD_queue_response(x->conn->mhd, (unsigned)x->status, x->response);
    MHD_destroy_response(x->response);
    x->response = NULL;
    if (x->answer == ANSWER_STREAM && x->ping)
        conn_deadline(x->conn, DEADLINE_PING);
    return ok;
}

/* Whether somebody may still want the answer; of an exchange that is lent its own thread will know. */
static bool is_wanted(const struct exchange *x) { return x->lent || x->conn; }

static void begin(struct exchange *x, enum answer_kind kind, const struct http_answer *a) {
    if (x->response)
        add_headers(x, a);
    x->answer = kind; // where there was no memory so far, another answer may take its place
    x->status = a->status;
    x->ping = a->ping;
    if (!x->lent)
        answer_commit(x);
}

void http_add_header(struct http_exchange *pub, const char *name, const char *value) {
    struct exchange *x = of(pub);
    BUG_IF(x->n_added == HTTP_MAX_ADDED);
    x->added[x->n_added++] =
        (struct http_header){arena_strdup(&pub->arena, str_of(name)), arena_strdup(&pub->arena, str_of(value))};
}

/* Nothing was answered; what was made of an answer for which there was no memory goes. */
static void start_answer(struct exchange *x) {
    BUG_IF(x->answer != ANSWER_NONE);
    if (x->response)
        MHD_destroy_response(x->response);
    x->response = NULL;
    buf_clear(&x->out);
}

void http_reply(struct http_exchange *pub, const struct http_answer *a, struct str body) {
    struct exchange *x = of(pub);
    start_answer(x);
    if (is_wanted(x)) {
        buf_append(&x->out, body.ptr, body.len);
        x->response = MHD_create_response_from_buffer(x->out.len, x->out.ptr, MHD_RESPMEM_PERSISTENT);
        if (!x->response)
            alloc_failed(x->out.len);
    }
    begin(x, ANSWER_WHOLE, a);
}

void answer_error(struct exchange *x, int status, const char *message, const struct http_header *headers,
                  size_t n_headers) {
    struct buf body = {0};
    error_body_append(x->io->server, x->pub.path, status, message, &body);
    http_reply(&x->pub,
               &(struct http_answer){
                   .status = status, .content_type = "application/json", .headers = headers, .n_headers = n_headers},
               buf_view(&body));
    buf_release(&body);
}

/* Asks the handler, which may release what it holds when this was the end. False: there was no memory. */
static bool fill(struct exchange *x) {
    struct alloc_scope scope;
    buf_clear(&x->out);
    x->out_sent = 0;
    if (x->stream_ended)
        return true;
    http_hold(&x->pub);
    alloc_scope_begin(&scope);
    bool done = setjmp(scope.env) == 0;
    if (done) {
        x->stream_ended = x->pub.route->fill(&x->pub, &x->out);
        alloc_scope_end(&scope);
    }
    http_release(&x->pub);
    return done;
}

/* MHD asks for at most `max` bytes of the stream. */
static ssize_t read_stream(void *arg, uint64_t position, char *to, size_t max) {
    (void)position;
    struct exchange *x = arg;
    if (x->conn->dead)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (x->out_sent == x->out.len && !fill(x))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = MIN(x->out.len - x->out_sent, max);
    if (n == 0 && x->stream_ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        conn_wait(x->conn);
        return 0;
    }
    memcpy(to, x->out.ptr + x->out_sent, n);
    x->out_sent += n;
    x->sent_bytes += n;
    if (x->ping)
        conn_deadline(x->conn, DEADLINE_PING);
    COUNT(x->io->server, stream_writes, 1);
    COUNT(x->io->server, stream_bytes, n);
    return (ssize_t)n;
}

void http_stream_begin(struct http_exchange *pub, const struct http_answer *a) {
    struct exchange *x = of(pub);
    BUG_IF(!pub->route->fill);
    start_answer(x);
    // The block is for HTTP/1.0 alone; chunks are made in the connection's own memory.
    if (is_wanted(x)) {
        x->response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, x, NULL);
        if (!x->response)
            alloc_failed(4096);
    }
    begin(x, ANSWER_STREAM, a);
}

void http_stream_more(struct http_exchange *pub) {
    struct exchange *x = of(pub);
    BUG_IF(x->answer != ANSWER_STREAM);
    if (!x->lent && x->conn)
        conn_resume(x->conn);
}
