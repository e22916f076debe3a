/* server.c - opens the server with its I/O threads, and stops it. */
#include "http/internal.h"

#include "base/file.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_PEM_BYTES = 1 << 20 };

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
    return s->spare_fd >= 0 && s->stop_fd >= 0 ? OK
                                               : fail(err, ERR_IO, "the server cannot be set up: %s", strerror(errno));
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

/* Goes to a stage and waits until no thread has anything left, or time is up, or http_hurry was called so often (0:
 * does not count). */
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
    listen_close(s);
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
