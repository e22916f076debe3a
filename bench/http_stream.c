/* http_stream.c - how many streamed tokens a second the HTTP front carries, what a token costs, and an idle connection.
 *
 *     build/release/bench/http_stream                                               the table of docs/lab/server.md
 *     build/release/bench/http_stream STREAMS TOKENS_A_SECOND [SECONDS [THREADS]]
 *     build/release/bench/http_stream idle CONNECTIONS
 *
 * One thread plays the engine: a step gives each stream a token, then wakes the I/O threads, which make JSON of it
 * as the API does. TOKENS_A_SECOND paces the steps; 0 goes as fast as the client, a process of its own on the same
 * machine, reads (at most 64 steps ahead). Latency is from the step to the client's read, of the last token of each
 * read.
 *
 * idle: every connection makes one request and stays; prints what the process then holds. */
#include "base/buf.h"
#include "base/clock.h"
#include "http/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_STREAMS = 16384, MAX_SAMPLES = 1 << 20, STEPS_AHEAD = 64, MAX_STEPS_KEPT = 4096 };

struct stream {
    struct http_exchange *exchange;
    int thread;
    long n_sent;
};

static struct stream streams[MAX_STREAMS];
static atomic_int n_streams;
static atomic_long n_steps, n_last = -1; // every stream has a token a step, and ends after n_last
static _Atomic int64_t made_us[MAX_STEPS_KEPT];
static atomic_long n_made; // events

static void begin(struct http_exchange *x) {
    static atomic_int n_begun;
    http_hold(x);
    struct stream *s = x->user = &streams[atomic_fetch_add(&n_begun, 1)];
    *s = (struct stream){.exchange = x, .thread = http_thread(x)};
    http_stream_begin(x,
                      &(struct http_answer){.status = 200, .content_type = "text/event-stream", .ping = ": ping\n\n"});
    atomic_fetch_add(&n_streams, 1); // the engine starts when all are here
}

static void make_event(struct buf *b, long i) {
    static const char *const words[] = {" the", " fox", " \"said\"", " and", "\n", " forest", " it", "."};
    static const char head[] =
        "data: "
        "{\"id\":\"cmpl-7d0f2a61c5d94e0b\",\"object\":\"text_completion\",\"created\":1763686000,\"model\":\"story\","
        "\"choices\":[{\"index\":0,\"logprobs\":null,\"finish_reason\":null,\"text\":";
    buf_append(b, head, sizeof head - 1);
    buf_json_string(b, str_of(words[i & 7]));
    buf_printf(b, "}],\"t\":%015lld}\n\n", (long long)made_us[i % MAX_STEPS_KEPT]);
}

static bool fill(struct http_exchange *x, struct buf *out) {
    struct stream *s = x->user;
    long last = atomic_load(&n_last), n = atomic_load(&n_steps), sent = s->n_sent;
    for (; s->n_sent < n && out->len < 32768; s->n_sent++)
        make_event(out, s->n_sent);
    atomic_fetch_add_explicit(&n_made, s->n_sent - sent, memory_order_relaxed);
    if (s->n_sent != last)
        return false;
    http_release(x);
    return true;
}

static void woken(void *context, int thread) {
    (void)context;
    long n = atomic_load(&n_steps);
    for (int i = 0; n && i < atomic_load(&n_streams); i++)
        if (streams[i].thread == thread && streams[i].n_sent < n)
            http_stream_more(streams[i].exchange);
}

static void hello(struct http_exchange *x) {
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"}, STR("hello\n"));
}

static double cpu_seconds(int who) {
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int dial(int port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static void ask(int fd, const char *path) {
    char request[128];
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: bench\r\n\r\n", path);
    if (write(fd, request, (size_t)n) != n)
        exit(1);
}

static int by_value(const void *a, const void *b) {
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* ---- the client, a process of its own ---------------------------------------------------------------------------- */

/* The time in the last whole event of what was read; -1: none. */
static int64_t last_time(const char *bytes, ssize_t n) {
    for (ssize_t i = n - 5; i >= 0; i--)
        if (n - i >= 20 && memcmp(bytes + i, "\"t\":", 4) == 0)
            return strtoll(bytes + i + 4, NULL, 10);
    return -1;
}

static int client(int port, int n) {
    static char buffer[1 << 18];
    static int samples[MAX_SAMPLES];
    size_t n_samples = 0, n_reads = 0;
    int epoll_fd = epoll_create1(0), n_open = n;
    for (int i = 0; i < n; i++) {
        int fd = dial(port);
        ask(fd, "/stream");
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
    }
    while (n_open) {
        struct epoll_event events[256];
        int n_events = epoll_wait(epoll_fd, events, 256, -1);
        for (int i = 0; i < n_events; i++) {
            ssize_t got = recv(events[i].data.fd, buffer, sizeof buffer, MSG_DONTWAIT);
            n_reads++;
            int64_t made = last_time(buffer, got);
            if (made >= 0 && n_samples < MAX_SAMPLES)
                samples[n_samples++] = (int)(clock_us() - made);
            if (got <= 0 || (got >= 5 && memcmp(buffer + got - 5, "0\r\n\r\n", 5) == 0)) {
                close(events[i].data.fd);
                n_open--;
            }
        }
    }
    qsort(samples, n_samples, sizeof *samples, by_value);
    if (n_samples)
        printf("latency p50 %.2f ms, p99 %.2f ms, max %.2f ms; client cpu %.2f s, %zu reads\n",
               samples[n_samples / 2] * 1e-3, samples[n_samples * 99 / 100] * 1e-3, samples[n_samples - 1] * 1e-3,
               cpu_seconds(RUSAGE_SELF), n_reads);
    fflush(stdout);
    _exit(0);
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

static void run_engine(struct http_server *s, int n, int n_threads, double rate, double seconds) {
    int64_t start = clock_us(), end = start + (int64_t)(seconds * 1e6);
    for (bool last = false; !last;) {
        last = clock_us() >= end;
        long step = atomic_load(&n_steps);
        made_us[step % MAX_STEPS_KEPT] = clock_us();
        if (last)
            atomic_store(&n_last, step + 1);
        atomic_store(&n_steps, step + 1);
        for (int i = 0; i < n_threads; i++)
            http_wake(s, i);
        while (rate > 0 && !last && (double)(clock_us() - start) * 1e-6 < (double)step * n / rate)
            usleep(50);
        while (rate == 0 && !last && step * n - atomic_load(&n_made) > (long)n * STEPS_AHEAD)
            usleep(20);
    }
}

static void bench_streams(struct http_server *s, int n, int n_threads, double rate, double seconds) {
    int port = http_port(s);
    pid_t pid = fork();
    if (pid == 0)
        client(port, n);
    while (atomic_load(&n_streams) < n)
        usleep(1000);
    usleep(100000);
    struct http_stats before, after;
    http_stats(s, &before);
    double cpu = cpu_seconds(RUSAGE_SELF);
    int64_t start = clock_us();
    run_engine(s, n, n_threads, rate, seconds);
    double tokens = (double)n_steps * n;
    waitpid(pid, NULL, 0);
    double took = clock_seconds_since(start);
    cpu = cpu_seconds(RUSAGE_SELF) - cpu;
    http_stats(s, &after);
    printf("%d streams: %.0f tokens/s, server cpu %.2f us a token, %.1f tokens a write, %.0f bytes a token, %llu "
           "wakes/s, %llu cut off\n",
           n, tokens / took, cpu * 1e6 / tokens, tokens / (double)(after.stream_writes - before.stream_writes),
           (double)(after.stream_bytes - before.stream_bytes) / tokens,
           (unsigned long long)((double)(after.wakes - before.wakes) / took), (unsigned long long)after.gone_slow);
}

static long resident_kib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        return 0;
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void bench_idle(struct http_server *s, int n) {
    long before = resident_kib();
    int port = http_port(s), ready[2], done[2];
    if (pipe(ready) || pipe(done))
        exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        char c[256];
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)n + 64, (rlim_t)n + 64});
        for (int i = 0; i < n; i++) {
            int fd = dial(port);
            ask(fd, "/hello");
            if (read(fd, c, sizeof c) <= 0)
                exit(1);
        }
        (void)!write(ready[1], c, 1);
        (void)!read(done[0], c, 1);
        _exit(0);
    }
    char c = 0;
    (void)!read(ready[0], &c, 1);
    struct http_stats stats;
    http_stats(s, &stats);
    double cpu = cpu_seconds(RUSAGE_SELF);
    sleep(2);
    printf("%d idle connections: resident %.1f MB, %.1f KiB each, cpu %.2f %%\n", stats.connections,
           (double)resident_kib() / 1024, (double)(resident_kib() - before) / stats.connections,
           (cpu_seconds(RUSAGE_SELF) - cpu) / 2 * 100);
    (void)!write(done[1], &c, 1);
    waitpid(pid, NULL, 0);
}

/* Each row is a process of its own, so that memory and counters are its alone. */
static int table(const char *self) {
    static const char *const rows[][4] = {
        {"256", "0", "5"}, {"256", "400000", "5"}, {"1", "0", "2"}, {"idle", "10000"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            execl(self, self, rows[i][0], rows[i][1], rows[i][2], NULL);
            _exit(127);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    static const struct http_route routes[] = {{HTTP_GET, "/stream", begin, fill}, {HTTP_GET, "/hello", hello}};
    if (argc < 3)
        return table("/proc/self/exe");
    bool idle = strcmp(argv[1], "idle") == 0;
    int n = atoi(argv[1 + idle]);
    struct http_options o = {.host = "127.0.0.1",
                             .routes = routes,
                             .n_routes = 2,
                             .woken = woken,
                             .n_threads = argc > 4 ? atoi(argv[4]) : 2};
    struct http_server *s;
    struct error err;
    if (n < 1 || n > MAX_STREAMS || http_open(&o, &s, &err) != OK) {
        fprintf(stderr, "http_stream: %s\n", n < 1 || n > MAX_STREAMS ? "1 to 16384 connections" : err.text);
        return 1;
    }
    if (idle)
        bench_idle(s, n);
    else
        bench_streams(s, n, o.n_threads, atof(argv[2]), argc > 3 ? atof(argv[3]) : 5);
    http_stop(s, 1000);
    http_free(s);
    return 0;
}
