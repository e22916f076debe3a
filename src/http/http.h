/* http.h - requests in, answers and streams out. Never knows what is served.
 *
 *     static void hello(struct http_exchange *x) {
 *         http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"}, STR("hello\n"));
 *     }
 *     const struct http_route routes[] = {{HTTP_GET, "/hello", hello}};
 *     struct http_options o = {.port = 8000, .routes = routes, .n_routes = 1};
 *     TRY(http_open(&o, &server, err));
 *     ...
 *     http_stop(server, 30000);
 *     http_free(server);
 *
 * A few I/O threads share the connections. Each runs a libmicrohttpd daemon in its external epoll mode, which reads
 * and writes sockets, speaks TLS and parses HTTP/1.x; the loop around it is ours and adds what the library has not:
 * wakes from other threads, clients that leave while they wait, deadlines, a graceful stop.
 *
 * Life of an exchange (one request and its answer), all of it on one I/O thread:
 *
 *     head read ─► admit ─► body read ─► handle ─► http_reply ───────────────────────────────► finished
 *                                           │       http_stream_begin, then fill, fill ... ──►
 *                                           └─ or http_hold, and one of these later, in woken
 *
 * - Everything here that takes an exchange is called on its thread only: in admit, handle, fill, gone, finished, and in
 *   woken. So nothing of an exchange is locked. Other threads have http_wake: the I/O thread then calls
 *   woken, where whoever is served looks up which exchanges there is news for.
 * - A handler that takes long would keep all other connections of its thread waiting. Its exchange is lent to another
 *   thread, which runs the handler and gives it back: see lend.h.
 * - Streams are pulled. fill is asked for bytes when those before are written and the socket has room, so that what has
 *   come together meanwhile leaves in one write, a slow client costs one buffer, and no producer waits for anybody.
 * - http_wake is one system call for all that happened since the thread last looked. Nothing is allocated an event.
 * - An exchange lives until its answer was taken by the network or its client is gone, and every hold is released.
 * - When the client leaves first, gone() tells whoever holds, once, streaming or not. A client that only closed its
 *   sending side (half-close) still gets its answer: see "Clients that leave".
 *
 * What is refused before a handler sees it, with the body that error_body makes:
 *
 *     400  a target or field that is not HTTP; two Content-Lengths, or one beside Transfer-Encoding; no or two Hosts
 *     404  no such path; paths are compared as they were sent, but for one slash at the end and the implied_prefix: no
 *          "..", "//" or %2F means anything
 *     405  another method, with Allow                        408  a head or body that does not arrive in time
 *     411  HTTP_JSON_BODY without Content-Length or chunks   413  a body past max_body
 *     414  a target past target_bytes                        415  HTTP_JSON_BODY of another type or coding
 *     421  a Host, or a host in the target, that is none of this server's: see guards_host
 *     431  fields past header_bytes, or more than 100        501  a transfer coding other than chunked
 *     503  past max_connections, or no room for another body
 *
 * Heads that libmicrohttpd itself cannot read or hold get its own 400, 414, 431 or 505 and a closed connection.
 * Framing that two parsers might read differently cannot be used to smuggle a request: everything odd in a head is
 * refused, and a request with a chunked body is the last of its connection.
 *
 * Clients that leave. A client that closes and one that only closes its sending side look alike (FIN) until
 * something is sent. So the waiting client of a half-closed connection is sent an interim "100 Continue", which
 * every client skips and which a closed socket answers with RST; a stream is sent its ping. With TLS or HTTP/1.0 a
 * FIN counts as leaving. A client that stays but does not read is cut off after idle_timeout_ms without progress. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"

struct http_server;
struct http_exchange;

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER };

enum http_gone {
    HTTP_GONE_CLIENT,   // the connection is closed or broken
    HTTP_GONE_SLOW,     // the client did not read and was cut off
    HTTP_GONE_STOPPING, // http_stop ran out of patience; an answer that is finished within two seconds is still sent
};

enum http_route_flags {
    /* Has a body of type application/json, which a missing Content-Type and that of forms are taken for unless a
     * browser sent it; gzip and deflate are undone. */
    HTTP_JSON_BODY = 1,
    HTTP_LONG = 2, // its handler takes long: http_options.hand_over is called instead, if there is one
};

/* HEAD is answered by the GET route of the same path, and OPTIONS by http itself unless a route takes it.
 *
 * At most one segment of the path is "{id}", which stands for one or more characters other than '/'; at the end,
 * "{id*}" may hold slashes too. What it stands for is percent-decoded. */
struct http_route {
    enum http_method method;
    const char *path;
    void (*handle)(struct http_exchange *x); // the request is complete
    /* Appends what the stream has ready, a few dozen KiB at a time if there is more; nothing: wait for
     * http_stream_more. True: that was the end. */
    bool (*fill)(struct http_exchange *x, struct buf *out);
    void (*gone)(struct http_exchange *x, enum http_gone why); // NULL: nobody cares
    unsigned flags;
    size_t max_body; // 0: that of the options
};

struct http_exchange {
    struct arena arena; // everything that lives as long
    const struct http_route *route;
    enum http_method method;
    struct str path;       // as it was sent, without the query; then as implied_prefix has it
    struct str query;      // what follows '?', as it was sent
    struct str id;         // what stood for {id}
    struct str body;       // complete, from handle on; of one that was lent, until it is given back
    struct str request_id; // of x-request-id if it was sane, else made up; goes back with the answer
    const char *client;    // "127.0.0.1:50412", "[::1]:50412" or "unix"
    void *user;            // the handler's own
    void *record;          // of admit and finished, for what they keep of it
};

struct http_outcome {
    int status;                      // 0: nothing was answered
    uint64_t body_bytes, sent_bytes; // of the request, of the answer; without heads and framing
    int64_t duration_us;             // from the request line on
    bool complete;                   // the answer was handed to the network whole
    enum http_gone gone;             // why not, if it was not
};

enum { HTTP_ALL_BODIES = 1 << 30 };

/* Zero means the default everywhere. */
struct http_options {
    const char *host;      // name or address; NULL: all
    int port;              // 0: the system chooses (see http_port); -1: no TCP
    const char *unix_path; // a socket there, too; one that is left over and answers nobody is replaced
    /* Who a request may say that it asks (Host): otherwise a page whose own name now resolves to 127.0.0.1 is, for
     * its browser, of one origin with this server. With guards_host a server that listens on loopback addresses only
     * takes localhost, names below it or without a dot, 127.0.0.0/8, [::1], `host` and allowed_hosts ("*": any); one
     * with allowed_hosts does so wherever it listens. */
    bool guards_host;
    const char *const *allowed_hosts;
    size_t n_allowed_hosts;
    const char *tls_cert, *tls_key; // PEM files; with both, all sockets speak TLS, 1.2 or 1.3
    int n_threads;                  // 2

    const struct http_route *routes; // live as long as the server
    size_t n_routes;
    void *context;              // see http_context
    const char *implied_prefix; // "/v1": what is below it is found without it, too; the exchange's path then has it

    int max_connections;     // 16,384; one more is told 503 and closed
    size_t header_bytes;     // 16 KiB: request line and fields
    size_t target_bytes;     // 8 KiB
    size_t max_body;         // 32 MiB
    size_t all_bodies;       // 1 GiB: of all requests together
    int header_timeout_ms;   // 15,000: from the first byte of a request to the end of its head
    int body_timeout_ms;     // 60,000: from there to the end of its body
    int idle_timeout_ms;     // 75,000, rounded up to seconds: no byte came or went, though one could have
    int ping_ms;             // 15,000: see http_answer.ping
    const char *cors_origin; // "*", or the one origin whose pages may call; NULL: no page of another origin

    /* Appends the body of an error that http itself answers; its type is application/json. The path is empty when
     * none was read. NULL: {"error":{"message":...}}. */
    void (*error_body)(void *context, struct str path, int status, const char *message, struct buf *out);
    /* Called when the head is read and its route known. False: it has replied; the body is then not kept. */
    bool (*admit)(struct http_exchange *x);
    /* Called on I/O thread `thread` (0 .. n_threads-1) after http_wake. */
    void (*woken)(void *context, int thread);
    /* In place of the handler of a route that is HTTP_LONG: lends the exchange to a thread that calls it, or
     * answers. */
    void (*hand_over)(struct http_exchange *x);
    /* Called when a lent exchange is back, before anything else is done with it. */
    void (*returned)(struct http_exchange *x);
    /* Called once for each exchange whose head was read; for logs and counters. */
    void (*finished)(struct http_exchange *x, const struct http_outcome *outcome);
};

/* Opens the sockets and starts the threads; *out is set before the first handler runs. Raises the process's limit of
 * open files if that is needed and allowed. */
enum status http_open(const struct http_options *options, struct http_server **out, struct error *err);

int http_port(const struct http_server *s); // that is listened on; 0: none

/* Closes idle connections and lets what is in flight finish (answers say "Connection: close"). Who comes meanwhile
 * is still heard: handlers say that the server ends. After `patience_ms`, or when nothing is in flight, closes the
 * listening sockets, tells the rest HTTP_GONE_STOPPING, gives it two seconds, and closes. Returns when all is closed
 * and every hold released, or three seconds later. One call a server; from outside its threads. */
void http_stop(struct http_server *s, int patience_ms);

/* Makes http_stop's patience end now, whether it was called already or is called later; the second time, the two
 * seconds behind it too. Safe in a signal handler. */
void http_hurry(struct http_server *s);

/* After http_stop. Nobody may post any more. */
void http_free(struct http_server *s);

struct http_stats {
    int connections, in_flight;       // now
    size_t body_bytes;                // now, of requests
    uint64_t accepted, exchanges;     // so far ...
    uint64_t gone_client, gone_slow;  // ... exchanges that ended so
    uint64_t refused_full, timed_out; // connections
    uint64_t wakes, stream_writes, stream_bytes;
};
void http_stats(const struct http_server *s, struct http_stats *out);

/* ---- the request ------------------------------------------------------------------------------------------------ */

void *http_context(const struct http_exchange *x);

/* The value of a field, without the blanks around it; ptr is NULL when the request has none. The first of several. */
struct str http_field(const struct http_exchange *x, const char *name);

/* A parameter of the query, decoded into the exchange's arena ('+' is a blank); ptr is NULL when there is none. */
struct str http_parameter(struct http_exchange *x, const char *name);

/* ---- the answer ------------------------------------------------------------------------------------------------- */

struct http_header {
    const char *name, *value;
};

struct http_answer {
    int status;
    const char *content_type;
    const struct http_header *headers; // besides Content-Type, Content-Length, Date, X-Request-Id and those of CORS
    size_t n_headers;
    /* Of a stream: sent when nothing else was for ping_ms; NULL: nothing is. ": ping" and a blank line for SSE. */
    const char *ping;
};

/* Answers at once with a whole body, which is copied. After it the exchange may be gone unless it is held. */
void http_reply(struct http_exchange *x, const struct http_answer *answer, struct str body);

/* Is sent with the answer, whichever it will be, unless that is there already. Both are copied; at most
 * HTTP_MAX_ADDED. */
enum { HTTP_MAX_ADDED = 8 };
void http_add_header(struct http_exchange *x, const char *name, const char *value);

/* Sends the head; the route's fill makes the body (chunks, or until the connection closes for HTTP/1.0). */
void http_stream_begin(struct http_exchange *x, const struct http_answer *answer);

/* fill has something again. */
void http_stream_more(struct http_exchange *x);

/* True from gone() on, and when the connection is about to close: no use in making more. */
bool http_is_gone(const struct http_exchange *x);

/* Keeps the exchange alive while somebody else knows it. A handler that returns without an answer must hold. The last
 * release before the answer closes the connection without one. */
void http_hold(struct http_exchange *x);
void http_release(struct http_exchange *x);

/* ---- threads ----------------------------------------------------------------------------------------------------- */

int http_thread(const struct http_exchange *x); // that the exchange belongs to

/* Lets that thread call woken, once for all wakes since it last did. Any thread, until http_free; never waits. */
void http_wake(struct http_server *s, int thread);
