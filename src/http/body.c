/* body.c - the body of a request: what it must be, how much of it is kept, and what it becomes when it was
 * compressed. */
#include "http/internal.h"

#include "http/inflate.h"

#include <stdio.h>

enum { SMALL_BODY = 64 << 10, MOST_INFLATION = 1032 }; // the latter by deflate's format: 258 bytes of two bits

/* A page of any origin can send a form, or a body without a type, and no browser would ask first; but browsers say
 * where it comes from. */
static bool is_wanted_type(const struct exchange *x) {
    struct str type = http_field(&x->pub, "Content-Type");
    if (type.ptr && is_media_type(type, STR("application/json")))
        return true;
    if (http_field(&x->pub, "Origin").ptr || http_field(&x->pub, "Sec-Fetch-Site").ptr)
        return false;
    return !type.ptr || is_media_type(type, STR("application/x-www-form-urlencoded")); // what curl -d says of anything
}

static bool is_compressed(struct str coding) {
    return name_equal(coding, STR("gzip")) || name_equal(coding, STR("x-gzip")) || name_equal(coding, STR("deflate"));
}

/* What a body must be before it is read. */
void body_check(struct exchange *x, const struct head *h) {
    struct str coding = http_field(&x->pub, "Content-Encoding");
    x->compressed = coding.ptr && is_compressed(coding);
    x->is_small = h->has_length && h->length <= SMALL_BODY && !x->compressed;
    if (h->has_length && h->length > x->body_limit) {
        char message[96];
        snprintf(message, sizeof message, "the body has %llu bytes, and at most %zu are read",
                 (unsigned long long)h->length, x->body_limit);
        answer_error(x, 413, message, NULL, 0);
    } else if (!(x->pub.route->flags & HTTP_JSON_BODY)) {
        return;
    } else if (!h->has_length && !h->chunked) {
        answer_error(x, 411, "a request with a body says how long it is", NULL, 0);
    } else if (!is_wanted_type(x)) {
        answer_error(x, 415, "the body must be of type application/json", NULL, 0);
    } else if (coding.ptr && !x->compressed && !name_equal(coding, STR("identity"))) {
        answer_error(x, 415, "the body may be compressed with gzip or deflate only",
                     &(struct http_header){"Accept-Encoding", "gzip, deflate"}, 1);
    }
}

/* A body that will not be used is read and dropped up to this size; past it the connection closes at once. */
size_t body_drop_limit(const struct exchange *x) { return 4 * x->io->server->options.max_body + (1u << 20); }

/* Counts a body of n bytes so far against what all may have together, in steps. An eighth is for those alone that
 * said at first that they are small: they pass when large ones have used up their share. */
static bool reserve(struct exchange *x, size_t n) {
    struct http_server *s = x->io->server;
    size_t all = s->options.all_bodies, limit = x->is_small ? all : all - all / 8;
    if (n <= x->body_reserved)
        return true;
    size_t more = MAX(n - x->body_reserved, (size_t)SMALL_BODY);
    if (atomic_fetch_add(&s->body_bytes, more) + more > limit) {
        atomic_fetch_sub(&s->body_bytes, more);
        return false;
    }
    x->body_reserved += more;
    return true;
}

static void keep_body(struct exchange *x, const char *bytes, size_t n) {
    if (n > x->body_limit - x->body.len)
        answer_error(x, 413, "the body is too large", NULL, 0);
    else if (!reserve(x, x->packed.len + x->body.len + n + (x->inflater ? INFLATER_BYTES : 0)))
        answer_error(x, 503, "too many large requests at once", &(struct http_header){"Retry-After", "1"}, 1);
    else
        buf_append(&x->body, bytes, n);
}

/* What it becomes is bounded as a body that is sent as it is. */
static void inflate_body(struct exchange *x, const char *bytes, size_t n) {
    char piece[16 << 10];
    size_t n_piece;
    if (!x->inflater)
        x->inflater = inflater_open();
    inflater_give(x->inflater, bytes, n);
    do {
        if (inflater_take(x->inflater, piece, sizeof piece, &n_piece))
            keep_body(x, piece, n_piece);
        else
            answer_error(x, 400, "the body is not compressed as its Content-Encoding says", NULL, 0);
    } while (!x->answer && n_piece > 0);
}

/* Few bytes may become many: what a thread of its own will read is unpacked there. */
static bool inflates_later(const struct exchange *x) {
    return x->compressed && (x->pub.route->flags & HTTP_LONG) && x->io->server->options.hand_over;
}

/* A GET may have a body (RFC 9110), which says nothing: it is read and dropped. */
static bool keeps_body(const struct exchange *x) { return x->pub.method == HTTP_POST || x->pub.method == HTTP_PUT; }

enum MHD_Result body_take(struct exchange *x, const char *bytes, size_t n) {
    x->body_seen += n;
    if (x->answer || !keeps_body(x))
        return x->body_seen > body_drop_limit(x) ? MHD_NO : MHD_YES;
    (x->compressed && !inflates_later(x) ? inflate_body : keep_body)(x, bytes, n);
    if (x->answer)
        exchange_drop_body(x);
    return MHD_YES;
}

static bool is_inflated_whole(struct exchange *x) {
    if (!x->answer && !(x->inflater && inflater_ended(x->inflater)))
        answer_error(x, 400, "the compressed body ends too early", NULL, 0);
    return !x->answer;
}

bool body_is_whole(struct exchange *x) {
    return !x->compressed || !keeps_body(x) || inflates_later(x) || is_inflated_whole(x);
}

bool http_body_ready(struct http_exchange *pub) {
    struct exchange *x = (struct exchange *)pub;
    if (!inflates_later(x))
        return true;
    x->packed = x->body; // until the exchange drops both: there may not be memory for what it becomes
    x->body = (struct buf){0};
    inflate_body(x, x->packed.ptr, x->packed.len);
    pub->body = buf_view(&x->body);
    return is_inflated_whole(x);
}

size_t http_body_most(const struct http_exchange *pub) {
    const struct exchange *x = (const struct exchange *)pub;
    size_t most;
    if (!inflates_later(x))
        return x->body.len;
    return size_mul(x->body.len, MOST_INFLATION, &most) ? MIN(most, x->body_limit) : x->body_limit;
}
