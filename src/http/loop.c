/* loop.c - one I/O thread: what woke it, deadlines, and then libmicrohttpd's turn.
 *
 * MHD_run is called only when its own epoll set has events, when a connection was resumed, or when a timeout of its
 * own is due. It does in a turn what it can, and a resumed connection needs two: one to ask for bytes, one to write
 * them. */
#include "http/internal.h"

#include "base/clock.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_EVENTS = 256, MAX_RUNS = 16 };

/* GnuTLS alone would take 1.0 and 1.1 too (RFC 8996). */
static char TLS_VERSIONS[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

/* ---- what other threads have brought ----------------------------------------------------------------------------- */

static void welcome(struct io *io, const struct newcomer *n) {
    io->daemon_has_work = true;
    if (io->stage >= STAGE_TELL) {
        close(n->fd);
        atomic_fetch_sub(&io->n_conns, 1);
    } else if (MHD_add_connection(io->daemon, n->fd, (const struct sockaddr *)&n->address, n->n_address) != MHD_YES) {
        atomic_fetch_sub(&io->n_conns, 1); // MHD has closed it
    }
}

static void look(struct io *io) {
    if (!atomic_exchange(&io->woken, false))
        return;
    for (struct newcomer *n = io_take_newcomers(io), *next; n; n = next) {
        next = n->next;
        welcome(io, n);
        free(n);
    }
    exchange_take_back(io);
    if (io->server->options.woken)
        io->server->options.woken(io->server->options.context, (int)(io - io->server->io));
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

static void expire(struct io *io) {
    int64_t now = clock_us();
    for (int k = 0; k < N_DEADLINES; k++)
        while (io->deadlines[k].first && io->deadlines[k].first->deadline_us <= now)
            conn_expire(io->deadlines[k].first);
}

/* Milliseconds until something is due; -1: nothing is. */
static int next_due(struct io *io) {
    int64_t due = -1;
    MHD_UNSIGNED_LONG_LONG library;
    if (io->daemon_has_work)
        return 0;
    if (MHD_get_timeout(io->daemon, &library) == MHD_YES)
        due = (int64_t)MIN(library, 3600000ull);
    int64_t now = clock_us();
    for (int k = 0; k < N_DEADLINES; k++) {
        if (!io->deadlines[k].first)
            continue;
        int64_t left = io->deadlines[k].first->deadline_us - now;
        left = left <= 0 ? 0 : (left + 999) / 1000;
        if (due < 0 || left < due)
            due = left;
    }
    return (int)due;
}

/* ---- stopping ---------------------------------------------------------------------------------------------------- */

static void carry_out(struct io *io, int stage) {
    io->stage = stage;
    if (stage >= STAGE_TELL && io == io->server->io)
        listen_close(io->server);
    for (struct conn *c = io->conns, *next; c; c = next) {
        next = c->next;
        bool in_flight = c->exchange && c->exchange->head_read;
        if (stage == STAGE_CLOSE || !in_flight)
            conn_kill(c);
        else if (stage == STAGE_TELL)
            exchange_tell(c->exchange, HTTP_GONE_STOPPING);
    }
}

/* Says whether anything is left here. While it drains, connections without a request are not: those that only look
 * how it is would keep the server from ending. */
static void report_idle(struct io *io) {
    uint64_t one = 1;
    bool busy = io->n_exchanges || (io->stage > STAGE_DRAIN && atomic_load(&io->n_conns));
    int at = busy ? -1 : io->stage;
    if (atomic_exchange(&io->idle_at, at) != at && !busy)
        BUG_IF(write(io->server->stop_fd, &one, sizeof one) != sizeof one);
}

/* ---- the turn ---------------------------------------------------------------------------------------------------- */

static void take_event(struct io *io, const struct epoll_event *e) {
    struct source *source = e->data.ptr;
    uint64_t n;
    switch (source->kind) {
    case SOURCE_WAKE: (void)!read(io->wake_fd, &n, sizeof n); break;
    case SOURCE_DAEMON: io->daemon_has_work = true; break;
    case SOURCE_LISTENER: listen_accept(io->server, (struct listener *)source); break;
    case SOURCE_CONN: conn_event((struct conn *)source, e->events); break;
    }
}

static void run_daemon(struct io *io) {
    MHD_UNSIGNED_LONG_LONG left;
    bool due = MHD_get_timeout(io->daemon, &left) == MHD_YES && left == 0;
    for (int i = 0; i < MAX_RUNS && (due || io->daemon_has_work); i++) {
        io->daemon_has_work = false;
        MHD_run(io->daemon);
        due = MHD_get_timeout(io->daemon, &left) == MHD_YES && left == 0;
    }
}

/* Of connections that have gone, most of what there were: the C library keeps it otherwise, 20 KiB each. Seldom, as it
 * takes milliseconds. */
static void give_memory_back(struct io *io) {
    enum { WORTH_IT = 256, SELDOM_US = 10000000 };
    if (io->n_closed < WORTH_IT || atomic_load(&io->n_conns) > io->n_closed / 4)
        return;
    int64_t now = clock_us();
    if (now - io->trimmed_us < SELDOM_US)
        return;
    io->trimmed_us = now;
    io->n_closed = 0;
    malloc_trim(0);
}

void io_turn(struct io *io, int wait_ms) {
    struct epoll_event events[MAX_EVENTS];
    int due = next_due(io);
    if (wait_ms >= 0 && (due < 0 || due > wait_ms))
        due = wait_ms;
    int n = epoll_wait(io->epoll_fd, events, MAX_EVENTS, due);
    BUG_IF(n < 0 && errno != EINTR);
    // Connections are freed by the daemon alone, which runs last: no event here is of one that is gone.
    for (int i = 0; i < n; i++)
        take_event(io, &events[i]);
    look(io);
    int stage = atomic_load(&io->server->stage);
    if (stage != io->stage)
        carry_out(io, stage);
    expire(io);
    run_daemon(io);
    give_memory_back(io);
    if (io->stage >= STAGE_DRAIN)
        report_idle(io);
}

void *io_thread(void *arg) {
    struct io *io = arg;
    while (io->stage != STAGE_LEAVE || io->conns)
        io_turn(io, -1);
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void ignore_log(void *arg, const char *format, va_list args) { (void)arg, (void)format, (void)args; }

_Noreturn static void library_panic(void *arg, const char *file, unsigned line, const char *reason) {
    (void)arg;
    bug(file, (int)line, reason);
}

static struct MHD_Daemon *start_daemon(struct io *io) {
    struct http_server *s = io->server;
    // A connection's memory holds the head, a record a field and the head of the answer: the price of an idle one.
    size_t pool_bytes = s->options.header_bytes + (12u << 10);
    struct MHD_OptionItem tls[] = {{s->tls ? MHD_OPTION_HTTPS_MEM_KEY : MHD_OPTION_END, 0, s->tls_key},
                                   {MHD_OPTION_HTTPS_MEM_CERT, 0, s->tls_cert},
                                   {MHD_OPTION_HTTPS_PRIORITIES, 0, TLS_VERSIONS},
                                   {MHD_OPTION_END, 0, NULL}};
    MHD_set_panic_func(library_panic, NULL);
    return MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                                (s->tls ? MHD_USE_TLS : 0),
                            0, NULL, NULL, exchange_go_on, io,                                                    //
                            MHD_OPTION_EXTERNAL_LOGGER, ignore_log, NULL,                                         //
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->options.max_connections + 1,                //
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool_bytes,                                       //
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)((s->options.idle_timeout_ms + 999) / 1000), //
                            MHD_OPTION_URI_LOG_CALLBACK, exchange_begin, io,                                      //
                            MHD_OPTION_NOTIFY_COMPLETED, exchange_end, io,                                        //
                            MHD_OPTION_NOTIFY_CONNECTION, conn_notify, io,                                        //
#if MHD_VERSION >= 0x01000000
                            MHD_OPTION_CLIENT_DISCIPLINE_LVL, 2, //
#endif
                            MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
}

static bool watch(struct io *io, int fd, struct source *source, enum source_kind kind) {
    source->kind = kind;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = source};
    return fd >= 0 && epoll_ctl(io->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0;
}

enum status io_open(struct io *io, struct http_server *server, struct error *err) {
    const struct http_options *o = &server->options;
    io->server = server;
    io->idle_at = -1;
    pthread_mutex_init(&io->newcomers_mutex, NULL);
    io->deadlines[DEADLINE_HEAD].span_us = (int64_t)o->header_timeout_ms * 1000;
    io->deadlines[DEADLINE_BODY].span_us = (int64_t)o->body_timeout_ms * 1000;
    io->deadlines[DEADLINE_FIN].span_us = 10000; // MHD reads in this very turn; this is for a turn that was cut short
    io->deadlines[DEADLINE_DEAD].span_us = 1000000; // MHD mostly closes it in this turn
    io->deadlines[DEADLINE_PING].span_us = (int64_t)o->ping_ms * 1000;
    io->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    io->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (io->epoll_fd < 0 || !watch(io, io->wake_fd, &io->wake_source, SOURCE_WAKE))
        return fail(err, ERR_IO, "an I/O thread of the server cannot be set up: %s", strerror(errno));
    io->daemon = start_daemon(io);
    if (!io->daemon)
        return fail(err, ERR_ARG,
                    server->tls ? "%s or %s: libmicrohttpd does not take this certificate and key"
                                : "libmicrohttpd does not start",
                    o->tls_cert, o->tls_key);
    if (!watch(io, MHD_get_daemon_info(io->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, &io->daemon_source,
               SOURCE_DAEMON))
        return fail(err, ERR_IO, "an I/O thread of the server cannot be set up: %s", strerror(errno));
    return OK;
}

void io_close(struct io *io) {
    if (io->daemon)
        MHD_stop_daemon(io->daemon);
    exchange_free_given(io);
    if (io->wake_fd >= 0)
        close(io->wake_fd);
    if (io->epoll_fd >= 0)
        close(io->epoll_fd);
    for (struct newcomer *n = io->newcomers, *next; n; n = next) {
        next = n->next;
        close(n->fd);
        free(n);
    }
    pthread_mutex_destroy(&io->newcomers_mutex);
}
