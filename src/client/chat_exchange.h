/* chat_exchange.h - one answer of /v1/chat/completions, streamed: its pieces as they come, and how it went.
 *
 *     struct chat_exchange x = {.server = &server, .take = take, .stopped = interrupt_taken, .user = me};
 *     chat_exchange(&x, body, &err);      again for each answer, over one connection; libcurl must be open
 *     chat_exchange_release(&x); */
#pragma once

#include "client/api_client.h"

struct chat_exchange {
    const struct api_server *server;
    int64_t patience_s; // the server may send nothing for so long; 0: for ever
    /* Called for each piece that has content, reasoning or calls of tools; a fault ends the answer. */
    enum status (*take)(void *user, const struct answer_event *piece, struct error *err);
    bool (*stopped)(void); // asked ten times a second and more: whether to leave off
    void *user;

    /* Of the last answer. */
    int64_t start_us, first_us, last_us; // sent; its first and its last piece, 0: there was none
    int64_t n_pieces, n_tokens;          // tokens: of the server's usage; -1: it did not say
    bool out_of_tokens, was_stopped;

    struct api_stream stream;
    CURLM *multi; // keeps the connection
};

/* Posts body and waits until the answer has ended. OK, too, for an answer that was stopped. */
enum status chat_exchange(struct chat_exchange *x, const json_t *body, struct error *err);
void chat_exchange_release(struct chat_exchange *x);
