/* server.c - opens the sockets, accepts, spreads connections over the I/O threads, and stops. */
#include "http/internal.h"

#include "base/file.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ACCEPT_AT_ONCE = 64, BACKLOG = 4096, MAX_PEM_BYTES = 1 << 20 };

/* ---- listening --------------------------------------------------------------------------------------------------- */

static enum status add_listener(struct http_server *s, int fd, struct error *err) {
    struct listener *l = &s->listeners[s->n_listeners++];
    *l = (struct listener){{SOURCE_LISTENER}, fd};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = l};
    if (listen(fd, BACKLOG) != 0 || epoll_ctl(s->io[0].epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0)
        return fail(err, ERR_IO, "a socket cannot listen: %s", strerror(errno));
    return OK;
}

static int port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

static int bind_tcp(const struct addrinfo *a) {
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
}

static enum status listen_tcp(struct http_server *s, struct error *err) {
    const struct http_options *o = &s->options;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int why = getaddrinfo(o->host, port, &hints, &list);
    if (why)
        return fail(err, ERR_ARG, "host %s: %s", o->host ? o->host : "*", gai_strerror(why));
    enum status status = OK;
    int errors = 0;
    for (struct addrinfo *a = list; a && status == OK && s->n_listeners < (int)ARRAY_LEN(s->listeners) - 1; a = a->ai_next) {
        if (s->port && o->port == 0) // the second address gets the port that the system chose for the first
            *(a->ai_family == AF_INET6 ? &((struct sockaddr_in6 *)a->ai_addr)->sin6_port : &((struct sockaddr_in *)a->ai_addr)->sin_port) =
                htons((uint16_t)s->port);
        int fd = bind_tcp(a);
        if (fd < 0) {
            errors = errno;
            continue; // a machine without IPv6 has names that resolve to it
        }
        s->is_local = (s->is_local || s->n_listeners == 0) && is_loopback(a->ai_addr);
        status = add_listener(s, fd, err);
        s->port = port_of(fd);
    }
    freeaddrinfo(list);
    if (status == OK && !s->n_listeners)
        return fail(err, ERR_IO, "cannot listen on %s port %d: %s", o->host ? o->host : "any address,", o->port, strerror(errors));
    return status;
}

/* Removes a socket that nobody answers any more; leaves everything else alone. */
static void remove_stale(const struct sockaddr_un *a) {
    struct stat st;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && stat(a->sun_path, &st) == 0 && S_ISSOCK(st.st_mode) && connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 &&
        errno == ECONNREFUSED)
        unlink(a->sun_path);
    if (fd >= 0)
        close(fd);
}

static enum status listen_unix(struct http_server *s, struct error *err) {
    const char *path = s->options.unix_path;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return fail(err, ERR_ARG, "%s: the path of a Unix socket has at most %zu bytes", path, sizeof a.sun_path - 1);
    strcpy(a.sun_path, path);
    remove_stale(&a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof a) != 0) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        return fail(err, ERR_IO, "%s: cannot listen: %s", path, strerror(why));
    }
    s->unix_bound = true;
    return add_listener(s, fd, err);
}

void server_close_listeners(struct http_server *s) {
    for (int i = 0; i < s->n_listeners; i++)
        close(s->listeners[i].fd); // which takes it out of the epoll set
    s->n_listeners = 0;
    if (s->unix_bound)
        unlink(s->options.unix_path);
    s->unix_bound = false;
}

/* ---- accepting --------------------------------------------------------------------------------------------------- */

/* The first threads get a few connections each before the rest is spread: what a step brings to a few streams then wakes one
 * thread instead of all, which costs less than it takes to serve them one after the other. */
static struct io *thread_for_newcomer(struct http_server *s, int *n_all) {
    enum { FEW = 16 };
    struct io *best = &s->io[0];
    *n_all = 0;
    for (int i = 0; i < s->n_io; i++) {
        int n = atomic_load(&s->io[i].n_conns), least = atomic_load(&best->n_conns);
        *n_all += n;
        if (least >= FEW && n < least)
            best = &s->io[i];
    }
    return best;
}

/* Without a free descriptor the newcomer would stay in the queue and epoll report it for ever: it is taken with the
 * spare one and closed. */
static void turn_away(struct http_server *s, int listener) {
    close(s->spare_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    s->spare_fd = eventfd(0, EFD_CLOEXEC);
    COUNT(s, refused_full, 1);
}

void server_accept(struct http_server *s, struct listener *l) {
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        struct sockaddr_storage address = {0};
        socklen_t n_address = sizeof address;
        int n_all, fd = accept4(l->fd, (struct sockaddr *)&address, &n_address, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            turn_away(s, l->fd);
        if (fd < 0)
            break;
        struct io *io = thread_for_newcomer(s, &n_all);
        if (n_all >= s->options.max_connections) {
            COUNT(s, refused_full, 1);
            if (!s->tls)
                raw_refuse(s, fd, 503, "the server has all the connections that it may have");
            close(fd);
            continue;
        }
        COUNT(s, accepted, 1);
        atomic_fetch_add(&io->n_conns, 1);
        if (!io_adopt(io, fd, &address, n_address)) {
            atomic_fetch_sub(&io->n_conns, 1);
            COUNT(s, refused_full, 1);
            close(fd);
        }
    }
}

void server_error_body(const struct http_server *s, struct str path, int status, const char *message, struct buf *out) {
    if (s->options.error_body) {
        s->options.error_body(s->options.context, path, status, message, out);
        return;
    }
    buf_printf(out, "{\"error\":{\"message\":");
    buf_json_string(out, str_of(message));
    buf_printf(out, ",\"code\":%d}}\n", status);
}

/* ---- open and stop ----------------------------------------------------------------------------------------------- */

static void set_defaults(struct http_options *o) {
#define DEFAULT(field, value) o->field = o->field ? o->field : (value)
    DEFAULT(n_threads, 2);
    DEFAULT(max_connections, 16384);
    DEFAULT(header_bytes, (size_t)16 << 10);
    DEFAULT(target_bytes, (size_t)8 << 10);
    DEFAULT(max_body, (size_t)32 << 20);
    DEFAULT(all_bodies, (size_t)HTTP_ALL_BODIES);
    DEFAULT(header_timeout_ms, 15000);
    DEFAULT(body_timeout_ms, 60000);
    DEFAULT(idle_timeout_ms, 75000);
    DEFAULT(ping_ms, 15000);
#undef DEFAULT
}

/* Two descriptors a connection would be the worst case of one that is being passed on. */
static void raise_file_limit(int n_connections) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)n_connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = MIN(wanted, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
}

static enum status read_pem(const char *path, char **out, struct error *err) {
    struct buf b = {0};
    enum status status = file_read(path, MAX_PEM_BYTES, &b, err);
    buf_push(&b, '\n');
    *out = b.ptr; // with a NUL behind it
    return status;
}

static enum status read_tls(struct http_server *s, struct error *err) {
    const struct http_options *o = &s->options;
    if (!o->tls_cert && !o->tls_key)
        return OK;
    if (!o->tls_cert || !o->tls_key)
        return fail(err, ERR_ARG, "TLS needs both a certificate and a key");
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return fail(err, ERR_UNSUPPORTED, "this libmicrohttpd was built without TLS");
    s->tls = true;
    TRY(read_pem(o->tls_cert, &s->tls_cert, err));
    return read_pem(o->tls_key, &s->tls_key, err);
}

static void go_to(struct http_server *s, int stage) {
    atomic_store(&s->stage, stage);
    for (int i = 0; i < s->n_io; i++)
        io_wake(&s->io[i]);
}

static enum status start_threads(struct http_server *s, struct error *err) {
    sigset_t all, before;
    int n = 0, why = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the thread that called us
    while (n < s->n_io && (why = pthread_create(&s->io[n].thread, NULL, io_thread, &s->io[n])) == 0)
        n++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->started = why == 0;
    if (s->started)
        return OK;
    go_to(s, STAGE_LEAVE);
    for (int i = 0; i < n; i++)
        pthread_join(s->io[i].thread, NULL);
    return fail(err, ERR_IO, "an I/O thread of the server cannot be started: %s", strerror(why));
}

static enum status open_events(struct http_server *s, struct error *err) {
    s->spare_fd = eventfd(0, EFD_CLOEXEC);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->spare_fd >= 0 && s->stop_fd >= 0 ? OK : fail(err, ERR_IO, "the server cannot be set up: %s", strerror(errno));
}

enum status http_open(const struct http_options *options, struct http_server **out, struct error *err) {
    struct http_server *s = xcalloc(1, sizeof *s);
    s->options = *options;
    set_defaults(&s->options);
    s->n_io = s->options.n_threads;
    s->io = xcalloc((size_t)s->n_io, sizeof *s->io);
    for (int i = 0; i < s->n_io; i++)
        s->io[i].epoll_fd = s->io[i].wake_fd = -1;
    BUG_IF(getrandom(&s->id_key, sizeof s->id_key, 0) != sizeof s->id_key);
    raise_file_limit(s->options.max_connections);

    enum status status = open_events(s, err);
    if (status == OK)
        status = read_tls(s, err);
    for (int i = 0; i < s->n_io && status == OK; i++)
        status = io_open(&s->io[i], s, err);
    if (status == OK && s->options.port >= 0)
        status = listen_tcp(s, err);
    if (status == OK && s->options.unix_path)
        status = listen_unix(s, err);
    *out = s; // before the first handler may run
    if (status == OK)
        status = start_threads(s, err);
    if (status != OK) {
        *out = NULL;
        http_free(s);
    }
    return status;
}

int http_port(const struct http_server *s) { return s->port; }

static bool all_idle(struct http_server *s, int stage) {
    for (int i = 0; i < s->n_io; i++)
        if (atomic_load(&s->io[i].idle_at) != stage)
            return false;
    return true;
}

/* Goes to a stage and waits until no thread has anything left, or time is up, or http_hurry was called so often (0: does not count). */
static void pass(struct http_server *s, int stage, int ms, int hurries) {
    int64_t end = clock_us() + (int64_t)ms * 1000;
    go_to(s, stage);
    while (!all_idle(s, stage) && !(hurries && atomic_load(&s->hurry) >= hurries) && clock_us() < end) {
        uint64_t n;
        poll(&(struct pollfd){.fd = s->stop_fd, .events = POLLIN}, 1, (int)MIN((end - clock_us()) / 1000 + 1, 1000));
        (void)!read(s->stop_fd, &n, sizeof n);
    }
}

void http_hurry(struct http_server *s) {
    uint64_t one = 1;
    atomic_fetch_add(&s->hurry, 1);
    (void)!write(s->stop_fd, &one, sizeof one);
}

void http_stop(struct http_server *s, int patience_ms) {
    pass(s, STAGE_DRAIN, patience_ms, 1);
    pass(s, STAGE_TELL, 2000, 2);
    pass(s, STAGE_CLOSE, atomic_load(&s->hurry) ? 100 : 3000, 0);
    go_to(s, STAGE_LEAVE);
    for (int i = 0; i < s->n_io; i++)
        pthread_join(s->io[i].thread, NULL);
    s->started = false;
}

void http_free(struct http_server *s) {
    if (!s)
        return;
    BUG_IF(s->started);
    server_close_listeners(s);
    for (int i = 0; i < s->n_io; i++)
        io_close(&s->io[i]);
    if (s->spare_fd >= 0)
        close(s->spare_fd);
    if (s->stop_fd >= 0)
        close(s->stop_fd);
    free(s->tls_cert);
    free(s->tls_key);
    free(s->io);
    free(s);
}

void http_stats(const struct http_server *s, struct http_stats *out) {
    *out = (struct http_stats){.in_flight = s->stats.in_flight,
                               .body_bytes = s->body_bytes,
                               .accepted = s->stats.accepted,
                               .exchanges = s->stats.exchanges,
                               .gone_client = s->stats.gone_client,
                               .gone_slow = s->stats.gone_slow,
                               .refused_full = s->stats.refused_full,
                               .timed_out = s->stats.timed_out,
                               .wakes = s->stats.wakes,
                               .stream_writes = s->stats.stream_writes,
                               .stream_bytes = s->stats.stream_bytes};
    for (int i = 0; i < s->n_io; i++)
        out->connections += s->io[i].n_conns;
}
