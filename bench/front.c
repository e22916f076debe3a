/* front.c - the whole server on the toy device: what it streams a second, what a token costs, and an idle connection.
 *
 *     build/release/bench/front                                    the table of docs/lab/server.md
 *     build/release/bench/front ENDPOINT STREAMS [SECONDS [FLAG...]]
 *     build/release/bench/front idle CONNECTIONS
 *
 * Starts `gyre serve models/story --device toy`, with the flags given, and is its client: one thread, one epoll, reads
 * of up to 256 KiB. ENDPOINT is completions or chat. Each of STREAMS connections asks for a stream of 100 to 900 tokens
 * (greedy, ignore_eos, usage at the end), and for the next one as soon as that has ended. Tokens are those of the
 * usages of streams that ended in time, whenever they began. The gap is the time between two reads of a stream that
 * brought something: no token of it came later than that after the one before. CPU is of the server's process, all
 * threads, kernel included. GYRE_TOY_STEP_US paces the device (backend/toy/toy.h): without it the server makes tokens
 * as fast as it can, and what has come together while a stream was being written leaves as one event.
 *
 * idle: every connection makes one request and stays; prints what the server then holds. */
#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_STREAMS = 16384, TAIL = 512, BUFFER = 256 << 10, MAX_GAPS = 1 << 22 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* ---- the server ---- */

struct server {
    pid_t pid;
    int port;
    FILE *log;
};

/* build/release/gyre, of build/release/bench/front. */
static const char *binary(void) {
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
    if (n < 0)
        die("/proc/self/exe");
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    strcpy(strrchr(path, '/'), "/gyre");
    return path;
}

static void run_server(int log, char **flags) {
    const char *args[32] = {"gyre", "serve", "models/story", "--device", "toy", "--port", "0", "--max-num-seqs", "256"};
    int n = 9;
    for (; *flags && n < 31; flags++)
        args[n++] = *flags;
    dup2(log, STDERR_FILENO);
    execv(binary(), (char *const *)args);
    _exit(127);
}

static struct server start(char **flags) {
    int ends[2];
    struct server s = {0};
    if (pipe(ends) != 0 || (s.pid = fork()) < 0)
        die("the server");
    if (s.pid == 0)
        run_server(ends[1], flags);
    close(ends[1]);
    s.log = fdopen(ends[0], "r");
    char line[512];
    while (s.port == 0 && fgets(line, sizeof line, s.log)) {
        const char *at = strstr(line, "listening on http://127.0.0.1:");
        s.port = at ? atoi(at + strlen("listening on http://127.0.0.1:")) : 0;
    }
    if (s.port == 0) {
        fprintf(stderr, "front: the server did not start\n");
        exit(1);
    }
    return s;
}

static void stop(struct server *s) {
    int status;
    kill(s->pid, SIGTERM);
    waitpid(s->pid, &status, 0);
    fclose(s->log);
}

static double cpu_of(pid_t pid) {
    char path[64], line[1024];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f) ||
        sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
        die(path);
    fclose(f);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double resident_mb(pid_t pid) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        die(path);
    fclose(f);
    return (double)(pages * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/* ---- the client ---- */

struct stream {
    int fd;
    int64_t asked_us, read_us; // read_us 0: nothing has come yet
    char tail[TAIL];           // the end of what was read, where the usage and the end of the answer stand
    int n_tail;
};

struct client {
    struct stream *streams;
    int n, epoll_fd;
    bool chat;
    uint64_t n_asked;
    int64_t n_tokens, n_answers, n_reads, n_bytes, n_lines;
    int *gaps, n_gaps; // microseconds
    int *firsts, n_firsts;
};

static int dial(int port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

/* Lengths differ, so that the streams do not end all at once. */
static void ask(struct client *c, struct stream *s) {
    char request[1024], body[512];
    int n_tokens = 100 + (int)(c->n_asked++ * 2654435761u % 801);
    int n_body = snprintf(body, sizeof body,
                          "{%s,\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"stream_"
                          "options\":{\"include_usage\":true}}",
                          c->chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]"
                                  : "\"prompt\":\"Once upon a time\"",
                          n_tokens);
    int n = snprintf(
        request, sizeof request,
        "POST /v1/%s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
        c->chat ? "chat/completions" : "completions", n_body, body);
    if (write(s->fd, request, (size_t)n) != n)
        die("write");
    s->asked_us = clock_us();
    s->read_us = 0;
    s->n_tail = 0;
}

static void keep_tail(struct stream *s, const char *bytes, int n) {
    int keep = n >= TAIL ? 0 : s->n_tail < TAIL - n ? s->n_tail : TAIL - n, take = n < TAIL ? n : TAIL;
    memmove(s->tail, s->tail + s->n_tail - keep, (size_t)keep);
    memcpy(s->tail + keep, bytes + n - take, (size_t)take);
    s->n_tail = keep + take;
}

static bool ends_with(const struct stream *s, const char *end) {
    int n = (int)strlen(end);
    return s->n_tail >= n && memcmp(s->tail + s->n_tail - n, end, (size_t)n) == 0;
}

static int64_t tokens_in_usage(const struct stream *s) {
    static const char name[] = "\"completion_tokens\":";
    const char *at = memmem(s->tail, (size_t)s->n_tail, name, sizeof name - 1);
    if (!at) {
        fprintf(stderr, "front: an answer without usage: %.*s\n", s->n_tail, s->tail);
        exit(1);
    }
    return strtoll(at + sizeof name - 1, NULL, 10);
}

/* An event is a line and an empty one; the lines of HTTP's chunks end in CR LF. */
static int64_t count_lines(const char *bytes, ssize_t n) {
    int64_t lines = 0;
    const char *begin = bytes;
    for (const char *end = bytes + n; (bytes = memchr(bytes, '\n', (size_t)(end - bytes))); bytes++)
        lines += bytes == begin || bytes[-1] != '\r';
    return lines;
}

static void note_time(struct client *c, struct stream *s) {
    int64_t now = clock_us();
    if (s->read_us && c->n_gaps < MAX_GAPS)
        c->gaps[c->n_gaps++] = (int)(now - s->read_us);
    if (!s->read_us && c->n_firsts < MAX_GAPS)
        c->firsts[c->n_firsts++] = (int)(now - s->asked_us);
    s->read_us = now;
}

static void read_stream(struct client *c, struct stream *s) {
    static char buffer[BUFFER];
    ssize_t n = recv(s->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        die("the server closed a connection");
    c->n_reads++;
    c->n_bytes += n;
    c->n_lines += count_lines(buffer, n);
    note_time(c, s);
    keep_tail(s, buffer, (int)n);
    if (!ends_with(s, "\r\n0\r\n\r\n"))
        return;
    c->n_tokens += tokens_in_usage(s);
    c->n_answers++;
    ask(c, s);
}

static int by_value(const void *a, const void *b) {
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

static double milliseconds_at(int *values, int n, double share) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n ? values[(int)((n - 1) * share)] * 1e-3 : 0;
}

static void run_client(struct client *c, double seconds) {
    int64_t end = clock_us() + (int64_t)(seconds * 1e6);
    while (clock_us() < end) {
        struct epoll_event events[256];
        int n = epoll_wait(c->epoll_fd, events, 256, 100);
        for (int i = 0; i < n; i++)
            read_stream(c, &c->streams[events[i].data.u32]);
    }
}

static double own_cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void bench_streams(const char *endpoint, int n, double seconds, char **flags) {
    struct server s = start(flags);
    struct client c = {.n = n, .epoll_fd = epoll_create1(0), .chat = strcmp(endpoint, "chat") == 0};
    c.streams = xcalloc((size_t)n, sizeof *c.streams);
    c.gaps = xcalloc(MAX_GAPS, sizeof *c.gaps);
    c.firsts = xcalloc(MAX_GAPS, sizeof *c.firsts);
    for (int i = 0; i < n; i++) {
        c.streams[i].fd = dial(s.port);
        epoll_ctl(c.epoll_fd, EPOLL_CTL_ADD, c.streams[i].fd,
                  &(struct epoll_event){.events = EPOLLIN, .data.u32 = (uint32_t)i});
        ask(&c, &c.streams[i]);
    }
    run_client(&c, 1); // until all have begun, and their lengths have parted
    struct client begin = c;
    c.n_gaps = c.n_firsts = 0;
    double cpu = cpu_of(s.pid), client_cpu = own_cpu();
    int64_t start_us = clock_us();
    run_client(&c, seconds);
    double took = clock_seconds_since(start_us), tokens = (double)(c.n_tokens - begin.n_tokens);
    cpu = cpu_of(s.pid) - cpu;
    printf("%-11s %3d streams: %8.0f tokens/s, server cpu %.2f us a token, %.2f tokens an event, %.0f bytes a token, "
           "%.2f reads a token; "
           "client cpu %.2f us a token\n",
           endpoint, n, tokens / took, cpu * 1e6 / tokens, 2 * tokens / (double)(c.n_lines - begin.n_lines),
           (double)(c.n_bytes - begin.n_bytes) / tokens, (double)(c.n_reads - begin.n_reads) / tokens,
           (own_cpu() - client_cpu) * 1e6 / tokens);
    printf("            gap p50 %.2f ms, p99 %.2f ms, max %.2f ms; first token p50 %.1f ms, p99 %.1f ms; %lld answers, "
           "%.0f MB\n",
           milliseconds_at(c.gaps, c.n_gaps, 0.5), milliseconds_at(c.gaps, c.n_gaps, 0.99),
           milliseconds_at(c.gaps, c.n_gaps, 1), milliseconds_at(c.firsts, c.n_firsts, 0.5),
           milliseconds_at(c.firsts, c.n_firsts, 0.99), (long long)(c.n_answers - begin.n_answers), resident_mb(s.pid));
    for (int i = 0; i < n; i++)
        close(c.streams[i].fd);
    stop(&s);
    free(c.streams);
    free(c.gaps);
    free(c.firsts);
}

static void bench_idle(int n) {
    static const char request[] = "GET /health HTTP/1.1\r\nHost: bench\r\n\r\n";
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)n + 64, (rlim_t)n + 64});
    struct server s = start((char *[]){NULL});
    double before = resident_mb(s.pid);
    int *fds = xcalloc((size_t)n, sizeof *fds);
    for (int i = 0; i < n; i++) {
        char answer[2048];
        fds[i] = dial(s.port);
        if (write(fds[i], request, sizeof request - 1) < 0 || read(fds[i], answer, sizeof answer) < 12 ||
            memcmp(answer + 9, "200", 3) != 0)
            die("a request");
    }
    double cpu = cpu_of(s.pid);
    sleep(2);
    printf("%d idle connections: the server holds %.0f MB, %.1f KiB each, and uses %.1f %% of a processor\n", n,
           resident_mb(s.pid), (resident_mb(s.pid) - before) * 1024 / n, (cpu_of(s.pid) - cpu) * 50);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    stop(&s);
    free(fds);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc < 3) {
        static char *none[] = {NULL};
        bench_streams("completions", 256, 5, none);
        bench_streams("chat", 256, 5, none);
        bench_streams("completions", 1, 2, none);
        setenv("GYRE_TOY_STEP_US", "600", 1);
        printf("with a step of 600 us:\n");
        bench_streams("completions", 256, 5, none);
        unsetenv("GYRE_TOY_STEP_US");
        bench_idle(10000);
        return 0;
    }
    int n = atoi(argv[2]);
    if (n < 1 || n > MAX_STREAMS) {
        fprintf(stderr, "front: 1 to %d connections\n", MAX_STREAMS);
        return 1;
    }
    if (strcmp(argv[1], "idle") == 0)
        bench_idle(n);
    else
        bench_streams(argv[1], n, argc > 3 ? atof(argv[3]) : 5, argc > 4 ? argv + 4 : (char *[]){NULL});
    return 0;
}
