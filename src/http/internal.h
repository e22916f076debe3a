/* internal.h - what the files of the http room share: the server, its I/O threads, connections and exchanges.
 *
 *     server.c     opens and stops                                  struct http_server
 *     loop.c       one I/O thread: epoll, deadlines, stages         struct io
 *     listen.c     sockets that listen, and accepts                 struct listener
 *     exchange.c   a request: head, body, dispatch                  struct exchange
 *     lend.c       while another thread works on it
 *     body.c       its body                                         inflate.c: one that was compressed
 *     answer.c     its answer, whole or streamed
 *     lifetime.c   its holds and its end                            request.c: what handlers ask of it
 *     connection.c connections come and go; who left while waiting  struct conn
 *     wake.c       what other threads do to an I/O thread           error_body.c: errors of this room
 *     head.c       the grammar, pure functions
 *
 * A file calls those below it only, but for head.c, which any may. */
#pragma once

#include "base/clock.h"
#include "base/guard.h"
#include "http/exchange.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- what an I/O thread's epoll set can report ------------------------------------------------------------------- */

enum source_kind { SOURCE_WAKE, SOURCE_DAEMON, SOURCE_LISTENER, SOURCE_CONN };
struct source {
    enum source_kind kind;
};

struct listener {
    struct source source;
    int fd;
};

/* ---- deadlines: a list a kind, oldest first, as all of a kind wait equally long ---------------------------------- */

enum deadline {
    DEADLINE_HEAD,
    DEADLINE_BODY,
    DEADLINE_FIN,
    DEADLINE_PING,
    DEADLINE_DEAD,
    N_DEADLINES,
    DEADLINE_NONE = N_DEADLINES
};
struct deadline_list {
    struct conn *first, *last;
    int64_t span_us;
};

struct newcomer {
    struct newcomer *next;
    int fd;
    socklen_t n_address;
    struct sockaddr_storage address;
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
    int n_closed;       // connections, since memory was given back
    int64_t trimmed_us; // when that was
    int n_exchanges;    // that handlers know, the left and held ones too
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
        atomic_ullong accepted, exchanges, gone_client, gone_slow, refused_full, timed_out, wakes, stream_writes,
            stream_bytes;
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

/* ---- wake.c ------------------------------------------------------------------------------------------------------ */

/* Hands an accepted socket to the thread. False: there is no memory. */
bool io_adopt(struct io *io, int fd, const struct sockaddr_storage *address, socklen_t n_address);
void io_wake(struct io *io);
struct newcomer *io_take_newcomers(struct io *io);

/* ---- listen.c ---------------------------------------------------------------------------------------------------- */

enum status listen_tcp(struct http_server *s, struct error *err);
enum status listen_unix(struct http_server *s, struct error *err);
void listen_accept(struct http_server *s, struct listener *l);
void listen_close(struct http_server *s);

/* ---- error_body.c ------------------------------------------------------------------------------------------------ */

/* Appends an error's body as the options say. */
void error_body_append(const struct http_server *s, struct str path, int status, const char *message, struct buf *out);

/* Writes an error answer past MHD to a socket that has nothing else to say, and never waits. Plain sockets only. */
void raw_refuse(const struct http_server *s, int fd, int status, const char *message);

/* ---- connection.c ------------------------------------------------------------------------------------------------ */

void conn_notify(void *io, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code);
struct conn *conn_of(struct MHD_Connection *mhd);
void conn_event(struct conn *c, unsigned epoll_events);
void conn_expire(struct conn *c); // its deadline has come

void conn_deadline(struct conn *c, enum deadline kind); // replaces the one it has; a dead one has its own
void conn_reading(struct conn *c, enum deadline kind);  // the same for one that waits for bytes of its client
void conn_wait(struct conn *c);   // MHD leaves it alone until conn_resume; the client may leave meanwhile
void conn_resume(struct conn *c); // no-op unless suspended
void conn_kill(struct conn *c);   // closes it as soon as MHD is asked again; nothing more is sent
