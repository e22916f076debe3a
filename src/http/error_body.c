/* error_body.c - the body of an error that this room answers, and answers written past libmicrohttpd. */
#include "http/internal.h"

#include <sys/socket.h>

void error_body_append(const struct http_server *s, struct str path, int status, const char *message, struct buf *out) {
    if (s->options.error_body) {
        s->options.error_body(s->options.context, path, status, message, out);
        return;
    }
    buf_printf(out, "{\"error\":{\"message\":");
    buf_json_string(out, str_of(message));
    buf_printf(out, ",\"code\":%d}}\n", status);
}

static void write_refusal(const struct http_server *s, int fd, int status, const char *message) {
    struct buf body = {0}, all = {0};
    error_body_append(s, (struct str){0}, status, message, &body);
    buf_printf(
        &all, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n",
        status, MHD_get_reason_phrase_for((unsigned)status), body.len, status == 503 ? "Retry-After: 1\r\n" : "");
    buf_append(&all, body.ptr, body.len);
    (void)!send(fd, all.ptr, all.len, MSG_DONTWAIT | MSG_NOSIGNAL); // a socket with no room for it has other troubles
    buf_release(&body);
    buf_release(&all);
}

void raw_refuse(const struct http_server *s, int fd, int status, const char *message) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0)
        return; // it is closed without a word
    write_refusal(s, fd, status, message);
    alloc_scope_end(&scope);
}
