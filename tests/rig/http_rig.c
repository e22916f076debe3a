/* http_rig.c - see http_rig.h. */
#include "http_rig.h"

#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

struct rig_seen rig_seen;

/* ---- handlers ---------------------------------------------------------------------------------------------------- */

static void reply_text(struct http_exchange *x, struct str text) {
    rig_seen.handled++;
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"}, text);
}

static void hello(struct http_exchange *x) { reply_text(x, STR("hello\n")); }
static void echo(struct http_exchange *x) { reply_text(x, x->body); }
static void thing(struct http_exchange *x) {
    reply_text(x, str_of(arena_printf(&x->arena, "thing %.*s", STR_ARG(x->id))));
}
static void parts(struct http_exchange *x) {
    reply_text(x, str_of(arena_printf(&x->arena, "parts of %.*s", STR_ARG(x->id))));
}
static void file(struct http_exchange *x) {
    reply_text(x, str_of(arena_printf(&x->arena, "file %.*s", STR_ARG(x->id))));
}

static void query(struct http_exchange *x) {
    struct str a = http_parameter(x, "a");
    reply_text(x, a.ptr ? a : STR("none"));
}

/* ---- handlers with a thread -------------------------------------------------------------------------------------- */

/* One word: were the two apart, a look between them could take the news of the end without seeing the end. */
enum job_state {
    JOB_NEWS = 1, // nobody looked since
    JOB_DONE = 2, // the job's thread never touches it again
};

struct job {
    struct job *next;
    struct http_exchange *exchange;
    struct http_server *server;
    int thread;
    bool streams;
    long n, batch, gap_us, size, wait_ms; // wait_ms -1: for ever
    bool asks;                            // for rig_seen.batches before each batch
    atomic_bool cancelled;
    atomic_uint state; // of enum job_state
    atomic_long n_made;
    long n_sent;
};

static struct http_server *current;
static struct job *jobs; // that hold an exchange
static pthread_mutex_t jobs_mutex = PTHREAD_MUTEX_INITIALIZER;

static long number(struct http_exchange *x, const char *name, long fallback) {
    struct str s = http_parameter(x, name);
    return s.ptr ? strtol(arena_strdup(&x->arena, s), NULL, 10) : fallback;
}

static void tell_news(struct job *j) {
    atomic_fetch_or(&j->state, JOB_NEWS);
    http_wake(j->server, j->thread);
}

static void nap(struct job *j, int64_t us) {
    for (int64_t end = clock_us() + us, left; !j->cancelled && (left = end - clock_us()) > 0;)
        usleep((useconds_t)MIN(left, 1000));
}

/* Makes a batch of events at once, so that nobody sees a part of it. */
static void make_batch(struct job *j, long n) {
    rig_seen.n_made = atomic_fetch_add(&j->n_made, n) + n - 1;
    tell_news(j);
}

static void make_events(struct job *j) {
    long n_batches = 0;
    for (long i = 0; i < j->n && !j->cancelled; i += j->batch) {
        for (n_batches++; j->asks && rig_seen.batches < n_batches && !j->cancelled;)
            usleep(1000);
        make_batch(j, MIN(j->batch, j->n - i));
        nap(j, j->gap_us);
    }
}

static void *run_job(void *arg) {
    struct job *j = arg;
    struct http_server *server = j->server;
    int thread = j->thread;
    if (j->streams)
        make_events(j);
    if (!j->streams)
        nap(j, j->wait_ms < 0 ? INT64_MAX / 2 : j->wait_ms * 1000);
    atomic_fetch_or(&j->state, JOB_NEWS | JOB_DONE);
    http_wake(server, thread);
    rig_seen.running--;
    return NULL;
}

static void start_job(struct http_exchange *x, bool streams) {
    struct job *j = xcalloc(1, sizeof *j);
    j->exchange = x;
    j->server = current;
    j->thread = http_thread(x);
    j->streams = streams;
    j->n = number(x, "n", 10);
    j->batch = number(x, "batch", 1);
    j->gap_us = number(x, "gap", 0);
    j->size = number(x, "size", 32);
    j->wait_ms = number(x, "ms", -1);
    j->asks = number(x, "asks", 0);
    x->user = j;
    rig_seen.handled++;
    rig_seen.running++;
    http_hold(x);
    pthread_mutex_lock(&jobs_mutex);
    j->next = jobs;
    jobs = j;
    pthread_mutex_unlock(&jobs_mutex);
    pthread_t t;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    EXPECT(pthread_create(&t, &detached, run_job, j) == 0);
    pthread_attr_destroy(&detached);
}

static void end_job(struct job *j) {
    pthread_mutex_lock(&jobs_mutex);
    struct job **p = &jobs;
    while (*p != j)
        p = &(*p)->next;
    *p = j->next;
    pthread_mutex_unlock(&jobs_mutex);
    http_release(j->exchange);
    free(j);
}

static void later(struct http_exchange *x) { start_job(x, false); }

static void stream(struct http_exchange *x) {
    http_stream_begin(x,
                      &(struct http_answer){.status = 200, .content_type = "text/event-stream", .ping = ": ping\n\n"});
    start_job(x, true);
}

static bool fill_stream(struct http_exchange *x, struct buf *out) {
    struct job *j = x->user;
    bool done = atomic_load(&j->state) & JOB_DONE; // before the count, so that the last events are not missed
    long n_made = atomic_load(&j->n_made);
    for (; j->n_sent < n_made && out->len < 65536; j->n_sent++) {
        size_t end = out->len + (size_t)j->size - 2;
        buf_printf(out, "data: %ld ", j->n_sent);
        while (out->len < end)
            buf_push(out, 'x');
        buf_append(out, "\n\n", 2);
    }
    if (!done || j->n_sent < n_made)
        return false;
    end_job(j);
    return true;
}

/* The next job of the thread with news. */
static struct job *take_job(int thread) {
    struct job *j;
    pthread_mutex_lock(&jobs_mutex);
    for (j = jobs; j; j = j->next)
        if (j->thread == thread && (atomic_fetch_and(&j->state, ~(unsigned)JOB_NEWS) & JOB_NEWS))
            break;
    pthread_mutex_unlock(&jobs_mutex);
    return j;
}

static void woken(void *context, int thread) {
    (void)context;
    for (struct job *j; (j = take_job(thread));) {
        bool over = !j->streams || http_is_gone(j->exchange);
        if (!over)
            http_stream_more(j->exchange);
        else if (atomic_load(&j->state) & JOB_DONE) {
            if (!j->streams && !http_is_gone(j->exchange))
                http_reply(j->exchange, &(struct http_answer){.status = 200, .content_type = "text/plain"},
                           STR("later\n"));
            end_job(j);
        }
    }
}

static void gone(struct http_exchange *x, enum http_gone why) {
    struct job *j = x->user;
    rig_seen.gone_us = (long)clock_us();
    rig_seen.gone++;
    rig_seen.gone_slow += why == HTTP_GONE_SLOW;
    rig_seen.gone_stopping += why == HTTP_GONE_STOPPING;
    j->cancelled = true;
    atomic_fetch_or(&j->state, JOB_NEWS); // it may have been done already
    http_wake(j->server, j->thread);
}

const struct http_route rig_routes[] = {
    {HTTP_GET, "/hello", hello},
    {HTTP_POST, "/echo", echo},
    {HTTP_POST, "/json", echo, .flags = HTTP_JSON_BODY},
    {HTTP_POST, "/small", echo, .max_body = 64},
    {HTTP_GET, "/things/{id}", thing},
    {HTTP_DELETE, "/things/{id}", thing},
    {HTTP_GET, "/things/{id}/parts", parts},
    {HTTP_GET, "/files/{id*}", file},
    {HTTP_GET, "/query", query},
    {HTTP_GET, "/later", later, NULL, gone},
    {HTTP_GET, "/stream", stream, fill_stream, gone},
};
const size_t rig_n_routes = ARRAY_LEN(rig_routes);

static void count_finished(struct http_exchange *x, const struct http_outcome *o) {
    (void)x;
    rig_seen.finished++;
    rig_seen.complete += o->complete;
}

struct rig rig_open(struct http_options o) {
    struct rig r = {.options = o};
    struct error err;
    memset(&rig_seen, 0, sizeof rig_seen);
    r.options.host = o.host ? o.host : "127.0.0.1";
    r.options.routes = rig_routes;
    r.options.n_routes = rig_n_routes;
    r.options.finished = count_finished;
    r.options.woken = woken;
    EXPECT_OK(http_open(&r.options, &current, &err), err);
    r.server = current;
    r.port = http_port(r.server);
    return r;
}

void rig_close(struct rig *r) {
    struct http_stats s;
    http_hurry(r->server);
    http_stop(r->server, 0);
    http_stats(r->server, &s);
    EXPECT_EQ(s.connections, 0);
    EXPECT_EQ(s.in_flight, 0);
    EXPECT_EQ(s.exchanges, rig_seen.finished);
    EXPECT(comes_to(&rig_seen.running, 0));
    usleep(1000); // a thread that has counted itself out may still be on its way out of http_wake
    http_free(r->server);
}

/* ---- the client -------------------------------------------------------------------------------------------------- */

int dial(int port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = PATIENCE_US / 1000000}, sizeof(struct timeval));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = PATIENCE_US / 1000000}, sizeof(struct timeval));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        fail_msg("connect: %s", strerror(errno));
    return fd;
}

void say(int fd, const void *bytes, size_t n) {
    for (const char *p = bytes; n;) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; // the server has closed: what it said is what counts
        p += sent;
        n -= (size_t)sent;
    }
}

/* One byte, or -1 at the end. Slow, and leaves what follows an answer where it is. */
static int next_byte(int fd) {
    unsigned char c;
    ssize_t n = recv(fd, &c, 1, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        fail_msg("nothing came for %d s", PATIENCE_US / 1000000);
    return n == 1 ? c : -1;
}

static bool read_line(int fd, struct buf *line) {
    buf_clear(line);
    for (int c; (c = next_byte(fd)) >= 0;) {
        buf_push(line, (char)c);
        if (c == '\n')
            return true;
    }
    return false;
}

static bool read_exactly(int fd, struct buf *to, size_t n) {
    while (n) {
        char c[4096];
        ssize_t got = recv(fd, c, MIN(n, sizeof c), 0);
        if (got <= 0)
            return false;
        buf_append(to, c, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

static bool read_chunks(int fd, struct buf *to) {
    struct buf line = {0};
    bool ok = true, last = false;
    while (ok && !last) {
        ok = read_line(fd, &line);
        size_t n = ok ? strtoul(line.ptr, NULL, 16) : 0;
        last = n == 0;
        ok = ok && read_exactly(fd, to, n) && read_line(fd, &line) && strcmp(line.ptr, "\r\n") == 0;
    }
    buf_release(&line);
    return ok;
}

bool heard_has(const struct heard *a, const char *start) {
    for (const char *line = a->head.ptr; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncasecmp(line, start, strlen(start)) == 0)
            return true;
    return false;
}

static long length_of(const struct heard *a) {
    const char *p = strcasestr(a->head.ptr, "\nContent-Length:");
    return p ? strtol(p + 16, NULL, 10) : -1;
}

static bool read_head(int fd, struct heard *a) {
    struct buf line = {0};
    buf_clear(&a->head);
    bool more;
    while ((more = read_line(fd, &line)) && strcmp(line.ptr, "\r\n") != 0)
        buf_append(&a->head, line.ptr, line.len);
    buf_release(&line);
    a->status = more && a->head.len > 12 ? atoi(a->head.ptr + 9) : 0;
    return more;
}

struct heard hear(int fd, bool bodiless) {
    struct heard a = {0};
    while (read_head(fd, &a) && a.status >= 100 && a.status < 200)
        a.n_interim++;
    if (!a.status)
        return a;
    a.chunked = heard_has(&a, "Transfer-Encoding: chunked");
    long n = length_of(&a);
    buf_append(&a.body, "", 0);
    if (bodiless || a.status == 204)
        a.whole = true;
    else if (a.chunked)
        a.whole = read_chunks(fd, &a.body);
    else if (n >= 0)
        a.whole = read_exactly(fd, &a.body, (size_t)n);
    else
        a.whole = !read_exactly(fd, &a.body, SIZE_MAX); // to the end of the connection
    return a;
}

void heard_release(struct heard *a) {
    buf_release(&a->head);
    buf_release(&a->body);
}

bool is_closed(int fd) {
    char c;
    ssize_t n = recv(fd, &c, 1, 0);
    return n == 0 || (n < 0 && errno == ECONNRESET);
}

struct heard ask(int port, const char *text) {
    int fd = dial(port);
    say_text(fd, text);
    struct heard a = hear(fd, strncmp(text, "HEAD", 4) == 0);
    close(fd);
    return a;
}

int ask_status(int port, const void *bytes, size_t n) {
    int fd = dial(port);
    say(fd, bytes, n);
    struct heard a = hear(fd, false);
    int status = a.status;
    heard_release(&a);
    close(fd);
    return status;
}

bool comes_to(_Atomic int *counter, int value) {
    for (int64_t end = clock_us() + PATIENCE_US; clock_us() < end; usleep(500))
        if (*counter == value)
            return true;
    return false;
}

void expect_answer(int port, const char *request, int status, const char *body) {
    struct heard a = ask(port, request);
    if (a.status != status || !a.whole || (body && strcmp(a.body.ptr, body) != 0))
        fail_msg("%.60s\n... got %d %s", request, a.status, a.status ? a.body.ptr : "");
    heard_release(&a);
}

void expect_events(const struct buf *body, long n, long size) {
    EXPECT_EQ(body->len, n * size);
    for (long i = 0; i < n; i++) {
        char start[32];
        int k = snprintf(start, sizeof start, "data: %ld x", i);
        if (memcmp(body->ptr + i * size, start, (size_t)k) != 0)
            fail_msg("event %ld is %.20s", i, body->ptr + i * size);
    }
}
