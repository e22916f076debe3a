/* chat_exchange.c - see chat_exchange.h. */
#include "client/chat_exchange.h"

#include "base/clock.h"

#include <stdlib.h>

static enum status take_piece(struct api_stream *stream, struct error *err) {
    struct chat_exchange *x = stream->user;
    const struct answer_event *e = &stream->event;
    if (e->has_usage)
        x->n_tokens = e->completion_tokens;
    x->out_of_tokens |= str_eq(buf_view(&e->finish_reason), STR("length"));
    if (e->content.len + e->reasoning.len + e->tool_calls.len == 0)
        return OK;
    int64_t now_us = clock_us(); // without what take needs
    TRY(x->take(x->user, e, err));
    x->last_us = now_us;
    x->first_us = x->first_us ? x->first_us : x->last_us;
    x->n_pieces++;
    return OK;
}

static CURLcode perform(struct chat_exchange *x) {
    CURLcode code = CURLE_OK;
    int running = 1, left;
    libcurl.multi_add_handle(x->multi, x->stream.easy);
    while (running && !(x->was_stopped = x->stopped())) {
        libcurl.multi_perform(x->multi, &running);
        if (running)
            libcurl.multi_poll(x->multi, NULL, 0, 100, NULL);
    }
    for (CURLMsg *m; (m = libcurl.multi_info_read(x->multi, &left));)
        code = m->data.result;
    libcurl.multi_remove_handle(x->multi, x->stream.easy);
    return code;
}

enum status chat_exchange(struct chat_exchange *x, const json_t *body, struct error *err) {
    if (!x->multi)
        x->multi = libcurl.multi_init();
    x->start_us = clock_us(), x->first_us = x->last_us = 0;
    x->n_pieces = 0, x->n_tokens = -1, x->out_of_tokens = x->was_stopped = false;
    x->stream.take = take_piece;
    x->stream.user = x;
    char *text = json_dumps(body, JSON_COMPACT);
    enum status st = api_stream_begin(&x->stream, x->server, "/v1/chat/completions", str_of(text), err);
    free(text);
    TRY(st);
    if (x->patience_s > 0) {
        libcurl.easy_setopt(x->stream.easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
        libcurl.easy_setopt(x->stream.easy, CURLOPT_LOW_SPEED_TIME, (long)x->patience_s);
    }
    CURLcode code = perform(x);
    return x->was_stopped ? OK : api_stream_end(&x->stream, code, err);
}

void chat_exchange_release(struct chat_exchange *x) {
    api_stream_release(&x->stream);
    if (x->multi)
        libcurl.multi_cleanup(x->multi);
    x->multi = NULL;
}
