/* page.c - GET /: the chat page (page.h). For everybody: it holds nothing, and asks for the key that its requests need.
 */
#include "api/page.h"

#include "api/endpoints.h"

/* Whether a comma-separated field names a value, and does not refuse it with ";q=0". */
static bool lists(struct str field, const char *value) {
    size_t n = strlen(value);
    for (size_t i = 0; i + n <= field.len; i++) {
        if (strncasecmp(field.ptr + i, value, n) != 0)
            continue;
        struct str rest = {field.ptr + i + n, field.len - i - n};
        return !(rest.len >= 4 && strncasecmp(rest.ptr, ";q=0", 4) == 0 && (rest.len == 4 || rest.ptr[4] != '.'));
    }
    return false;
}

void endpoint_page(struct http_exchange *x) {
    bool pack = lists(http_field(x, "Accept-Encoding"), "gzip"),
         known = lists(http_field(x, "If-None-Match"), page.etag);
    const struct http_header headers[] = {
        {"Content-Security-Policy", page.policy},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"},
        {"Vary", "Accept-Encoding"},
        {"ETag", page.etag},
        {"Content-Encoding", "gzip"}, // last: left out when it is not
    };
    struct http_answer a = {.status = known ? 304 : 200,
                            .content_type = "text/html; charset=utf-8",
                            .headers = headers,
                            .n_headers = ARRAY_LEN(headers) - !pack};
    struct str body = pack ? (struct str){(const char *)page.packed, page.packed_bytes}
                           : (struct str){(const char *)page.html, page.html_bytes};
    http_reply(x, &a, known ? (struct str){0} : body);
}
