/* internal.h - what the files of the http room share: the server, its I/O threads, connections and exchanges.
 *
 *     server.c     opens, accepts, stops                     owns struct http_server
 *     loop.c       one I/O thread: epoll, wakes, deadlines          struct io
 *     connection.c connections come and go; who left while waiting  struct conn
 *     exchange.c   a request: head, body, dispatch                  struct exchange
 *     answer.c     its answer, whole or streamed
 *     head.c       the grammar, pure functions
 *     body.c       its body                                         inflate.c: one that was compressed
 *     lend.c       while another thread works on it */
#pragma once

#include "base/clock.h"
#include "base/guard.h"
#include "http/head.h"
#include "http/inflate.h"
#include "http/lend.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- what an I/O thread's epoll set can report ------------------------------------------------------------------ */

enum source_kind { SOURCE_WAKE, SOURCE_DAEMON, SOURCE_LISTENER, SOURCE_CONN };
struct source {
    enum source_kind kind;
};

struct listener {
    struct source source;
    int fd;
};

/* ---- deadlines: a list a kind, oldest first, as all of a kind wait equally long --------------------------------- */

enum deadline { DEADLINE_HEAD, DEADLINE_BODY, DEADLINE_FIN, DEADLINE_PING, DEADLINE_DEAD, N_DEADLINES, DEADLINE_NONE = N_DEADLINES };
struct deadline_list {
    struct conn *first, *last;
    int64_t span_us;
};

struct io {
    struct http_server *server;
    pthread_t thread;
    int epoll_fd, wake_fd;
    struct source wake_source, daemon_source;
    struct MHD_Daemon *daemon;
    bool daemon_has_work; // run it before sleeping
    int stage;            // of the stop that this thread has carried out
    atomic_int idle_at;   // the stage at which it has nothing left; -1: something is

    struct conn *conns; // all
    atomic_int n_conns;
    int n_exchanges; // that handlers know, the left and held ones too
    struct deadline_list deadlines[N_DEADLINES];

    atomic_bool woken;                // http_wake was called; cleared when the thread looks
    _Atomic(struct exchange *) given; // lent exchanges that are back: a stack

    pthread_mutex_t newcomers_mutex;
    struct newcomer *newcomers; // accepted sockets that this thread has not taken over yet
};

/* A TCP or Unix connection; lives from MHD's STARTED to its CLOSED. */
struct conn {
    struct source source;
    int fd;
    struct io *io;
    struct MHD_Connection *mhd;
    struct conn *prev, *next;  // in io->conns
    struct exchange *exchange; // being read or answered; NULL between two
    char client[64];

    enum deadline deadline;
    struct conn *deadline_prev, *deadline_next;
    int64_t deadline_us;

    bool suspended;   // MHD does not look at it
    bool half_closed; // the client sent FIN
    bool dead;        // to be closed at the next chance
};

enum answer_kind { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM };

struct exchange {
    struct http_exchange pub; // first: the two are cast into each other
    struct io *io;
    struct conn *conn;    // NULL once MHD is done with the request
    struct str target;    // as it was sent
    struct str authority; // of a target in absolute form, in target
    int minor;            // of HTTP/1.minor
    struct head_field *fields;
    size_t n_fields;
    int64_t started_us;
    int n_holds;

    bool head_read; // checked; routed or refused
    bool handled;   // handle was called
    bool told_gone;
    bool closes; // the connection ends with this exchange

    bool lent;                   // another thread has it: of what follows here, and of pub, this one touches nothing
    atomic_bool left;            // while it was lent its client left; or is to be cut off
    bool broken;                 // http_fail: there is no answer to be had
    bool ended;                  // exchange_end was called meanwhile
    struct exchange *next_given; // on io->given

    struct buf body;
    bool compressed;           // as it is sent
    struct buf packed;         // that body, once it is unpacked elsewhere
    struct inflater *inflater; // of one that is compressed, from its first byte on
    uint64_t body_seen;        // bytes as they were sent, kept or not
    size_t body_limit, body_reserved;
    bool is_small; // its length was said, and is little

    struct http_header added[HTTP_MAX_ADDED];
    size_t n_added;
    enum answer_kind answer;
    int status;
    struct MHD_Response *response; // until MHD has it
    struct buf out;                // the whole body, or what of the stream was made but not sent: out[out_sent ... len)
    size_t out_sent;
    uint64_t sent_bytes;
    bool stream_ended; // fill has said so
    const char *ping;
    enum http_gone gone_why;
};

struct http_server {
    struct http_options options; // defaults filled in
    struct io *io;
    int n_io;
    struct listener listeners[8];
    int n_listeners;
    int port;
    int spare_fd; // given up for a moment when the process runs out of descriptors
    bool tls, unix_bound, started;
    bool is_local; // all addresses that it listens on are loopback ones
    char *tls_cert, *tls_key;
    uint64_t id_key;
    atomic_ullong next_id;
    atomic_size_t body_bytes;

    atomic_int stage; // enum stop_stage
    int stop_fd;      // written by I/O threads that have nothing left, and by http_hurry
    atomic_int hurry; // calls of http_hurry

    struct {
        atomic_ullong accepted, exchanges, gone_client, gone_slow, refused_full, timed_out, wakes, stream_writes, stream_bytes;
        atomic_int in_flight;
    } stats;
};

enum stop_stage {
    STAGE_RUN,
    STAGE_DRAIN, // idle connections are closed, what is there may finish; who comes is heard, and told that it is so
    STAGE_TELL,  // nobody is heard any more, and the rest has been told
    STAGE_CLOSE, // and is closed
    STAGE_LEAVE, // threads return, whatever is left
};

#define COUNT(server, what, n) atomic_fetch_add_explicit(&(server)->stats.what, (n), memory_order_relaxed)

/* ---- loop.c ------------------------------------------------------------------------------------------------------ */

enum status io_open(struct io *io, struct http_server *server, struct error *err);
void io_close(struct io *io);

/* Deals with what happens within wait_ms (-1: whenever something does). */
void io_turn(struct io *io, int wait_ms);
void *io_thread(void *io); // turns until told to leave

/* Hands an accepted socket to the thread. */
bool io_adopt(struct io *io, int fd, const struct sockaddr_storage *address, socklen_t n_address); // false: there is no memory
void io_wake(struct io *io);

/* ---- server.c ---------------------------------------------------------------------------------------------------- */

void server_accept(struct http_server *s, struct listener *l);
void server_close_listeners(struct http_server *s);

/* Appends an error's body as the options say. */
void server_error_body(const struct http_server *s, struct str path, int status, const char *message, struct buf *out);

/* ---- connection.c ------------------------------------------------------------------------------------------------ */

void conn_notify(void *io, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code);
struct conn *conn_of(struct MHD_Connection *mhd);
void conn_event(struct conn *c, unsigned epoll_events);
void conn_expire(struct conn *c); // its deadline has come

void conn_deadline(struct conn *c, enum deadline kind); // replaces the one it has; a dead one has its own
void conn_reading(struct conn *c, enum deadline kind);  // the same for one that waits for bytes of its client
void conn_wait(struct conn *c);                         // MHD leaves it alone until conn_resume; the client may leave meanwhile
void conn_resume(struct conn *c);                       // no-op unless suspended
void conn_kill(struct conn *c);                         // closes it as soon as MHD is asked again; nothing more is sent

/* Writes an error answer past MHD to a socket that has nothing else to say, and never waits. Plain sockets only. */
void raw_refuse(const struct http_server *s, int fd, int status, const char *message);

/* ---- exchange.c -------------------------------------------------------------------------------------------------- */

void *exchange_begin(void *io, const char *target, struct MHD_Connection *mhd);
enum MHD_Result exchange_go_on(void *io, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                               const char *upload, size_t *n_upload, void **context);
void exchange_end(void *io, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode how);
void exchange_tell(struct exchange *x, enum http_gone why);
bool exchange_answered(const struct exchange *x); // nothing more comes from the handler
bool exchange_streams(const struct exchange *x);  // has begun to
bool exchange_waits(const struct exchange *x);    // for its handler to answer
void exchange_leave(struct exchange *x);          // its client is going: whoever works on it may stop
void exchange_take_back(struct io *io);           // what was lent and is given back
void exchange_free_given(struct io *io);          // what was given back after the thread had ended

void exchange_free(struct exchange *x);
void exchange_over(struct exchange *x, bool complete); // its connection has done with it

/* ---- body.c ------------------------------------------------------------------------------------------------------ */

void body_check(struct exchange *x, const struct head *h); // before it is read; refuses what it must not be
enum MHD_Result body_take(struct exchange *x, const char *bytes, size_t n);
bool body_is_whole(struct exchange *x); // at its end; if not, that is said
void body_drop(struct exchange *x);     // frees it

/* A body that will not be used is read and dropped up to this size; past it the connection closes at once. */
size_t body_drop_limit(const struct exchange *x);

/* ---- answer.c ---------------------------------------------------------------------------------------------------- */

enum MHD_Result answer_queue(struct exchange *x);
void answer_commit(struct exchange *x); // what was answered, now that the exchange is its thread's again
void answer_ping(struct exchange *x);   // if it is a stream that has nothing else to say

void answer_error(struct exchange *x, int status, const char *message, const struct http_header *headers, size_t n_headers);
