/* http_rig.h - a server with routes that tests poke at, and a plain socket client that waits PATIENCE_US at most.
 *
 *     GET  /hello                     "hello\n"
 *     POST /echo                      the body; /json the same with HTTP_JSON_BODY; /small reads at most 64 bytes
 *     GET  /things/{id}, /things/{id}/parts, /files/{id*}     "thing ID", "parts of ID", "file ID"
 *     GET  /query?a=..                the value of a, or "none"
 *     GET  /later?ms=N                "later\n" after N ms, from another thread; no ms: never
 *     GET  /stream?n=N&batch=B&gap=US&size=S     N events "data: I xxx...\n\n" of S bytes, told B at a time by another
 *                                   thread; with &asks=1 batch K waits until rig_seen.batches is K
 *
 * A handler that waits is served by a thread of its own, which stops when the client is gone. */
#pragma once

#include "base/clock.h"
#include "http/http.h"

struct rig {
    struct http_server *server;
    struct http_options options;
    int port;
};

/* What the handlers and hooks of the last rig_open saw. */
struct rig_seen {
    _Atomic int handled, finished, complete, gone, gone_slow, gone_stopping, running; // running: threads
    _Atomic long batches;         // how many the test lets streams make that ask
    _Atomic long gone_us, n_made; // when gone was called last; events made by the last stream that made one
};
extern struct rig_seen rig_seen;

/* How long a test waits for what must come: not a measure of anything, as neighbours may have the processor. */
#define PATIENCE_US 300000000

extern const struct http_route rig_routes[];
extern const size_t rig_n_routes;

/* Port and routes are filled in; the rest of the options is the caller's. */
struct rig rig_open(struct http_options options);
void rig_close(struct rig *r); // stops at once; every thread and exchange must end

int dial(int port);
void say(int fd, const void *bytes, size_t n);
static inline void say_text(int fd, const char *text) { say(fd, text, strlen(text)); }

struct heard {
    int status; // 0: the connection closed before an answer
    int n_interim;
    struct buf head, body; // the body without chunk framing
    bool chunked, whole;   // whole: it ended as its framing says
};
/* Reads one answer, with the 1xx before it. bodiless: to HEAD. Bytes of the next answer stay in the socket's rest. */
struct heard hear(int fd, bool bodiless);
void heard_release(struct heard *a);
bool heard_has(const struct heard *a, const char *header_line_start);
bool is_closed(int fd); // FIN or RST arrives, and nothing before it

/* One request on a connection of its own. */
struct heard ask(int port, const char *text);
int ask_status(int port, const void *bytes, size_t n);

/* Waits until the counter has the value; false: it has not within PATIENCE_US. */
bool comes_to(_Atomic int *counter, int value);

#define GET(path) "GET " path " HTTP/1.1\r\nHost: test\r\n\r\n"

/* Asks, and fails the test unless the answer is whole and has this status and, but for NULL, this body. */
void expect_answer(int port, const char *request, int status, const char *body);

/* Fails the test unless the body is the events 0 .. n-1 of /stream, `size` bytes each. */
void expect_events(const struct buf *body, long n, long size);
