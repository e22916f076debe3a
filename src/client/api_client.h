/* api_client.h - asking an OpenAI-compatible server over HTTP, with libcurl, which must be open.
 *
 * Redirects are not followed: they would carry the key to somebody else. Answers that are not streamed are bounded, and
 * whatever a server sends instead of an answer becomes a sentence. */
#pragma once

#include "base/json/json.h"
#include "client/answer_event.h"
#include "client/libcurl.h"
#include "client/sse.h"

struct api_server {
    const char *base;           // "http://host:8000", with or without /v1; without a scheme it is http
    const char *key;            // NULL: none is sent
    const char *const *headers; // "Name: value" each, besides
    size_t n_headers;
    const char *ca_file; // PEM certificates to trust in place of the system's; NULL: those
};

/* The key of a flag or of GYRE_API_KEY (by the flag); else, for a base of https, OPENAI_API_KEY; NULL when there is
 * none. That variable holds the key of another service: over plain http anybody on the way, or whoever listens
 * there, would have it. */
const char *api_key_or_environment(const char *flag, const char *base);

/* One request that streams its answer. The struct is the caller's and may be used again for another. */
struct api_stream {
    CURL *easy;
    struct curl_slist *headers;
    struct sse sse;
    struct answer_event event;
    struct buf body; // of an answer that is no stream
    /* Called for each chunk, with stream->event as it was read; a fault ends the request. */
    enum status (*take)(struct api_stream *stream, struct error *err);
    void *user;
    bool is_stream, ended; // text/event-stream; [DONE] came
    enum status st;        // what ended it from our side
    struct error err;
    char curl_error[CURL_ERROR_SIZE];
};

/* Prepares stream->easy to post a JSON body to a path ("/v1/chat/completions"), which is copied; it is then for the
 * caller to perform, alone or in a multi handle. */
enum status api_stream_begin(struct api_stream *s, const struct api_server *server, const char *path, struct str body,
                             struct error *err);

/* How it went, after curl is done with it: OK when the answer is whole. code is what curl said. */
enum status api_stream_end(struct api_stream *s, CURLcode code, struct error *err);
void api_stream_release(struct api_stream *s);

/* GETs a JSON document within timeout_s. */
enum status api_get(const struct api_server *server, const char *path, int timeout_s, json_t **out, struct error *err);

/* The name of the first model that the server lists; the caller frees it. */
enum status api_first_model(const struct api_server *server, char **out, struct error *err);
