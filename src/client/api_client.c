/* api_client.c - see api_client.h. */
#include "client/api_client.h"

#include <stdlib.h>

enum { MAX_BODY = 16 << 20 }; // of an answer that is no stream

/* OPENAI_API_KEY, if there is one. */
static const char *openai_key(void) {
    const char *key = getenv("OPENAI_API_KEY");
    return key && *key ? key : NULL;
}

static bool is_https(const char *base) { return strncasecmp(base, "https://", 8) == 0; }

const char *api_key_or_environment(const char *flag, const char *base) {
    return flag ? flag : is_https(base) ? openai_key() : NULL;
}

// ---- requests ---------------------------------------------------------------------------------------------------

/* base + path, with one "/v1" between them. */
static enum status make_url(const char *base, const char *path, struct buf *out, struct error *err) {
    const char *scheme = strstr(base, "://");
    struct str b = str_of(base);
    if (scheme && strncasecmp(base, "http://", 7) != 0 && strncasecmp(base, "https://", 8) != 0)
        return fail(err, ERR_ARG, "%s: only http and https are spoken", base);
    if (b.len == 0)
        return fail(err, ERR_ARG, "the server's address is empty");
    while (b.len > 0 && b.ptr[b.len - 1] == '/')
        b.len--;
    if (str_ends(b, STR("/v1")) && strncmp(path, "/v1/", 4) == 0)
        b.len -= 3;
    buf_printf(out, "%s%.*s%s", scheme ? "" : "http://", STR_ARG(b), path);
    return OK;
}

static struct curl_slist *request_headers(const struct api_server *server, bool has_body) {
    struct curl_slist *list = NULL;
    struct buf line = {0};
    if (has_body) {
        list = libcurl.slist_append(list, "Content-Type: application/json");
        list = libcurl.slist_append(list, "Expect:"); // a body goes at once
    }
    if (server->key) {
        buf_printf(&line, "Authorization: Bearer %s", server->key);
        list = libcurl.slist_append(list, line.ptr);
    }
    for (size_t i = 0; i < server->n_headers; i++)
        list = libcurl.slist_append(list, server->headers[i]);
    buf_release(&line);
    return list;
}

/* An easy handle that was used keeps its connection. */
static enum status prepare(CURL **easy, const struct api_server *server, const char *path, struct error *err) {
    struct buf url = {0};
    enum status st = make_url(server->base, path, &url, err);
    if (st == OK) {
        if (*easy)
            libcurl.easy_reset(*easy);
        else
            *easy = libcurl.easy_init();
        BUG_IF(!*easy);
        libcurl.easy_setopt(*easy, CURLOPT_URL, url.ptr);
        libcurl.easy_setopt(*easy, CURLOPT_PROTOCOLS_STR, "http,https");
        libcurl.easy_setopt(*easy, CURLOPT_NOSIGNAL, 1L);
        libcurl.easy_setopt(*easy, CURLOPT_CONNECTTIMEOUT, 15L);
        libcurl.easy_setopt(*easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        libcurl.easy_setopt(*easy, CURLOPT_USERAGENT, "gyre");
        if (server->ca_file)
            libcurl.easy_setopt(*easy, CURLOPT_CAINFO, server->ca_file);
    }
    buf_release(&url);
    return st;
}

// ---- faults -----------------------------------------------------------------------------------------------------

/* What a body says went wrong: OpenAI's error, FastAPI's detail, or its first line. */
static void body_message(struct str body, struct buf *out) {
    struct answer_event e = {0};
    if (answer_event_read(&e, body, NULL) == OK && e.failed && e.error.len > 0) {
        buf_append(out, e.error.ptr, MIN(e.error.len, 400));
    } else {
        const char *newline = body.len ? memchr(body.ptr, '\n', body.len) : NULL;
        buf_append(out, body.ptr, MIN(newline ? (size_t)(newline - body.ptr) : body.len, 200));
    }
    answer_event_release(&e);
}

static enum status status_fault(CURL *easy, long status, struct str body, struct error *err) {
    char *url = NULL, *moved = NULL;
    struct buf message = {0};
    libcurl.easy_getinfo(easy, CURLINFO_EFFECTIVE_URL, &url);
    libcurl.easy_getinfo(easy, CURLINFO_REDIRECT_URL, &moved);
    body_message(body, &message);
    enum status st;
    if (status / 100 == 3)
        st = fail(err, ERR_IO, "%s answers %ld: it points to %s; redirects are not followed, as the key would go along",
                  url, status, moved ? moved : "nowhere");
    else
        st = fail(err, status == 429 || status == 503 ? ERR_FULL : ERR_IO, "the server answers %ld%s%.*s%s", status,
                  message.len ? ": " : "", STR_ARG(buf_view(&message)),
                  status == 401 && openai_key() && !is_https(url)
                      ? " (OPENAI_API_KEY is sent over https only; --api-key gives a key)"
                      : "");
    buf_release(&message);
    return st;
}

static enum status curl_fault(CURL *easy, CURLcode code, const char *text, struct error *err) {
    char *url = NULL;
    libcurl.easy_getinfo(easy, CURLINFO_EFFECTIVE_URL, &url);
    return fail(err, ERR_IO, "%s: %s", url ? url : "the server", *text ? text : libcurl.easy_strerror(code));
}

// ---- streams ----------------------------------------------------------------------------------------------------

static enum status take_event(void *context, struct str data, struct error *err) {
    struct api_stream *s = context;
    if (s->ended)
        return OK;
    if (str_eq(data, STR("[DONE]"))) {
        s->ended = true;
        return OK;
    }
    TRY(answer_event_read(&s->event, data, err));
    if (s->event.failed)
        return fail(err, ERR_IO, "the server: %s",
                    s->event.error.len ? s->event.error.ptr : "an error without a message");
    return s->take(s, err);
}

static size_t on_body(char *bytes, size_t one, size_t n, void *context) {
    struct api_stream *s = context;
    (void)one;
    if (s->is_stream)
        s->st = sse_feed(&s->sse, bytes, n, take_event, s, &s->err);
    else if (s->body.len + n > MAX_BODY)
        s->st = fail(&s->err, ERR_LIMIT, "the server's answer is longer than %d MiB", MAX_BODY >> 20);
    else
        buf_append(&s->body, bytes, n);
    return s->st == OK ? n : CURL_WRITEFUNC_ERROR;
}

static size_t on_header(char *bytes, size_t one, size_t n, void *context) {
    struct api_stream *s = context;
    static const char name[] = "content-type:";
    (void)one;
    if (n > sizeof name && strncasecmp(bytes, name, sizeof name - 1) == 0) {
        size_t at = sizeof name - 1;
        while (at < n && bytes[at] == ' ')
            at++;
        s->is_stream = n - at >= 17 && strncasecmp(bytes + at, "text/event-stream", 17) == 0;
    }
    return n;
}

enum status api_stream_begin(struct api_stream *s, const struct api_server *server, const char *path, struct str body,
                             struct error *err) {
    TRY(prepare(&s->easy, server, path, err));
    libcurl.slist_free_all(s->headers);
    s->headers = request_headers(server, true);
    sse_release(&s->sse);
    buf_clear(&s->body);
    s->is_stream = s->ended = false;
    s->st = OK;
    s->curl_error[0] = 0;
    libcurl.easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers);
    libcurl.easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.len);
    libcurl.easy_setopt(s->easy, CURLOPT_COPYPOSTFIELDS, body.ptr);
    libcurl.easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_body);
    libcurl.easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    libcurl.easy_setopt(s->easy, CURLOPT_HEADERFUNCTION, on_header);
    libcurl.easy_setopt(s->easy, CURLOPT_HEADERDATA, s);
    libcurl.easy_setopt(s->easy, CURLOPT_ERRORBUFFER, s->curl_error);
    libcurl.easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    return OK;
}

/* A server that was asked for a stream may still answer with the whole. */
static enum status take_whole(struct api_stream *s, struct error *err) {
    TRY(answer_event_read(&s->event, buf_view(&s->body), err));
    if (s->event.failed)
        return fail(err, ERR_IO, "the server: %s", s->event.error.ptr);
    if (!s->event.has_choice)
        return fail(err, ERR_FORMAT, "the server's answer has no choices");
    return s->take(s, err);
}

enum status api_stream_end(struct api_stream *s, CURLcode code, struct error *err) {
    long status = 0;
    libcurl.easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
    if (s->st != OK) {
        if (err)
            *err = s->err;
        return s->st;
    }
    if (status != 0 && status != 200)
        return status_fault(s->easy, status, buf_view(&s->body), err);
    if (code != CURLE_OK && !s->ended)
        return curl_fault(s->easy, code, s->curl_error, err);
    if (!s->is_stream)
        return take_whole(s, err);
    return s->ended ? OK : fail(err, ERR_IO, "the answer ended before the server said that it was complete");
}

void api_stream_release(struct api_stream *s) {
    if (s->easy) {
        libcurl.easy_cleanup(s->easy);
        libcurl.slist_free_all(s->headers);
    }
    sse_release(&s->sse);
    answer_event_release(&s->event);
    buf_release(&s->body);
    *s = (struct api_stream){0};
}

// ---- documents --------------------------------------------------------------------------------------------------

static size_t on_document(char *bytes, size_t one, size_t n, void *context) {
    struct buf *body = context;
    (void)one;
    if (body->len + n > MAX_BODY)
        return CURL_WRITEFUNC_ERROR;
    buf_append(body, bytes, n);
    return n;
}

enum status api_get(const struct api_server *server, const char *path, int timeout_s, json_t **out, struct error *err) {
    CURL *easy = NULL;
    TRY(prepare(&easy, server, path, err));
    struct curl_slist *headers = request_headers(server, false);
    struct buf body = {0};
    char text[CURL_ERROR_SIZE] = "";
    long status = 0;
    libcurl.easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    libcurl.easy_setopt(easy, CURLOPT_TIMEOUT, (long)timeout_s);
    libcurl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_document);
    libcurl.easy_setopt(easy, CURLOPT_WRITEDATA, &body);
    libcurl.easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
    CURLcode code = libcurl.easy_perform(easy);
    libcurl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    enum status st = OK;
    if (code != CURLE_OK)
        st = curl_fault(easy, code, text, err);
    else if (status != 200)
        st = status_fault(easy, status, buf_view(&body), err);
    else
        st = jv_parse(buf_view(&body), path, JV_ALLOW_DUPLICATES, out, err);
    libcurl.slist_free_all(headers);
    libcurl.easy_cleanup(easy);
    buf_release(&body);
    return st;
}

enum status api_first_model(const struct api_server *server, char **out, struct error *err) {
    json_t *models;
    TRY(api_get(server, "/v1/models", 30, &models, err));
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(models, "data"), 0), "id"));
    if (id)
        *out = xstrdup(id);
    json_decref(models);
    return id ? OK : fail(err, ERR_FORMAT, "%s: /v1/models lists no model", server->base);
}
