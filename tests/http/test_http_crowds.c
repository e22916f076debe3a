/* test_http_crowds.c - clients that leave, never read, or come in thousands; and stopping among them.
 *
 * After each attack the server answers the next request, no exchange is left over (rig_close checks), and where a limit
 * is the defence the test shows the limit at work. Which attack is tested where: the table in
 * tests/cli/service/test_attacks.py. */
#include "check.h"

#include "base/random.h"
#include "http_attack_rig.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- clients that leave ------------------------------------------------------------------------------------------ */

static void leaving_tells_the_handler_within_a_moment(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    static const char *const requests[] = {
        GET("/later"),
        GET("/stream?n=1000000&gap=1000"),
        GET("/stream?n=1000000&gap=60000000"),
        GET("/stream?n=100000000&batch=100"),
        "GET /later HTTP/1.0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx" GET("/later")};
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        for (int resets = 0; resets < 2; resets++) {
            int fd = dial(r.port);
            say_text(fd, requests[i]);
            EXPECT(comes_to(&rig_seen.running, 1));
            usleep(20000);
            long start = (long)clock_us();
            if (resets)
                reset(fd);
            else
                close(fd);
            EXPECT(comes_to(&rig_seen.gone, ++n));
            if (rig_seen.gone_us - start > SOON_US / 2)
                fail_msg("request %zu: known only after %ld us", i, rig_seen.gone_us - start);
            EXPECT(comes_to(&rig_seen.running, 0));
        }
    }
    expect_alive(r.port);
    EXPECT_EQ(rig_seen.gone_slow, 0);
    rig_close(&r);
}

static void a_half_closed_client_gets_its_answers(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.ping_ms = 200});
    int fd = dial(r.port);
    say_text(fd, GET("/later?ms=300"));
    shutdown(fd, SHUT_WR);
    struct heard a = hear(fd, false);
    EXPECT(a.status == 200 && a.n_interim <= 1 && strcmp(a.body.ptr, "later\n") == 0);
    EXPECT(is_closed(fd));
    heard_release(&a);
    close(fd);

    fd = dial(r.port); // pipelined, and FIN in the same moment
    say_text(fd, GET("/hello") GET("/later?ms=100") GET("/stream?n=20&gap=20000&size=40") GET("/hello"));
    shutdown(fd, SHUT_WR);
    static const int length[] = {6, 6, 800, 6};
    for (int i = 0; i < 4; i++) {
        a = hear(fd, false);
        EXPECT_EQ(a.status, 200);
        EXPECT(a.whole && a.body.len >= (size_t)length[i]);
        heard_release(&a);
    }
    EXPECT(is_closed(fd));
    close(fd);
    EXPECT_EQ(rig_seen.gone, 0);
    rig_close(&r);
}

static void an_http_1_0_client_that_sends_fin_has_left(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    say_text(fd, "GET /later HTTP/1.0\r\n\r\n");
    EXPECT(comes_to(&rig_seen.handled, 1));
    shutdown(fd, SHUT_WR);
    EXPECT(comes_to(&rig_seen.gone, 1) && is_closed(fd));
    close(fd);
    rig_close(&r);
}

static void leaving_in_the_middle_of_a_request_leaves_nothing(void **state) {
    (void)state;
    static const char request[] =
        "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    struct rig r = rig_open((struct http_options){0});
    for (size_t n = 0; n < sizeof request - 1; n++) {
        for (int resets = 0; resets < 2; resets++) {
            int fd = dial(r.port);
            say(fd, request, n);
            if (resets)
                reset(fd);
            else
                close(fd);
        }
    }
    expect_alive(r.port);
    EXPECT_EQ(rig_seen.handled, 1);
    settle(&r, 0, 0);
    rig_close(&r);
}

/* ---- clients that never read ---------------------------------------------------------------------------------------
 */

static void who_never_reads_costs_little_and_is_cut_off(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.idle_timeout_ms = 1000});
    enum { N = 16 };
    int fds[N];
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < N; i++) { // a hundred megabytes of events for each
        fds[i] = dial(r.port);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &(int){8192}, sizeof(int));
        say_text(fds[i], GET("/stream?n=100000&batch=100&size=1000"));
    }
    int64_t start = clock_us();
    expect_alive(r.port);
    EXPECT(clock_us() - start < SOON_US); // the others do not wait
    EXPECT(comes_to(&rig_seen.running, 0));
    size_t peak = mallinfo2().uordblks;
    EXPECT(peak - before < N * (512u << 10));
    EXPECT(comes_to(&rig_seen.gone, N));
    EXPECT_EQ(rig_seen.gone_slow, N);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    struct http_stats s;
    http_stats(r.server, &s);
    EXPECT_EQ(s.gone_slow, N);
    rig_close(&r);
}

static void a_slow_reader_gets_everything(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){65536}, sizeof(int));
    say_text(fd, GET("/stream?n=4000&batch=100&size=1000"));
    struct buf all = {0};
    char c[65536];
    for (ssize_t n;
         !strstr(all.len > 5 ? all.ptr + all.len - 5 : "", "0\r\n\r\n") && (n = recv(fd, c, sizeof c, 0)) > 0;) {
        buf_append(&all, c, (size_t)n);
        usleep(300);
    }
    EXPECT(strstr(all.ptr + all.len - 4000, "data: 3999 "));
    EXPECT_EQ(rig_seen.gone, 0);
    buf_release(&all);
    close(fd);
    rig_close(&r);
}

/* ---- thousands -----------------------------------------------------------------------------------------------------
 */

static void two_thousand_idle_connections_are_no_burden(void **state) {
    (void)state;
    enum { N = 2000 };
    static int fds[N];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = MIN(limit.rlim_max, (rlim_t)8192);
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 2 * N + 100)
        skip(); // this machine allows too few descriptors
    struct rig r =
        rig_open((struct http_options){.header_timeout_ms = PATIENCE_US / 1000, .idle_timeout_ms = PATIENCE_US / 1000});
    for (int i = 0; i < N; i++) {
        fds[i] = dial(r.port);
        if (i % 3 == 1)
            say_text(fds[i], "GET /hello HT"); // some in the middle of a head
        if (i % 3 == 2)
            say_text(fds[i], GET("/hello"));
    }
    for (int i = 2; i < N; i += 3) {
        struct heard a = hear(fds[i], false);
        EXPECT_EQ(a.status, 200);
        heard_release(&a);
    }
    settle(&r, N, 0);
    int64_t start = clock_us();
    for (int i = 0; i < 100; i++)
        expect_alive(r.port);
    EXPECT(clock_us() - start < SOON_US);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    rig_close(&r);
}

struct crowd {
    int port;
    uint64_t seed;
    _Atomic long n_answers;
    atomic_bool over;
};

/* One request of a random kind, and what must come of it. */
static void random_visit(struct crowd *c, int *fd, uint64_t dice) {
    char request[256];
    long n = (long)(dice >> 32) % 300, size = 20 + (long)(dice >> 20) % 100;
    int kind = (int)(dice % 8);
    if (*fd < 0)
        *fd = dial(c->port);
    if (kind == 0)
        snprintf(request, sizeof request, GET("/hello"));
    else if (kind == 1)
        snprintf(request, sizeof request, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n%05ld", n);
    else if (kind == 2)
        snprintf(request, sizeof request, "GET /later?ms=%ld HTTP/1.1\r\nHost: t\r\n\r\n", n % 10);
    else if (kind == 3)
        snprintf(request, sizeof request,
                 "POST /nothing HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    else
        snprintf(request, sizeof request, "GET /stream?n=%ld&batch=%ld&size=%ld HTTP/1.1\r\nHost: t\r\n\r\n", n,
                 1 + n % 17, size);
    say_text(*fd, request);
    if (kind == 7) { // leaves
        usleep((useconds_t)(dice >> 40) % 2000);
        if (dice & 256)
            reset(*fd);
        else
            close(*fd);
        *fd = -1;
        return;
    }
    struct heard a = hear(*fd, false);
    EXPECT_EQ(a.status, kind == 3 ? 404 : 200);
    EXPECT(a.whole);
    if (kind >= 4) {
        EXPECT_EQ(a.body.len, n * size);
        for (long i = 0; i < n; i++)
            EXPECT(strtol(a.body.ptr + i * size + 6, NULL, 10) == i);
    }
    heard_release(&a);
    c->n_answers++;
    if (kind == 3 || dice & 512) {
        close(*fd);
        *fd = -1;
    }
}

static void *visitor(void *arg) {
    struct crowd *c = arg;
    static _Atomic uint64_t n_visitors;
    uint64_t me = n_visitors++;
    int fd = -1;
    for (uint64_t i = 0; !c->over; i++)
        random_visit(c, &fd,
                     (uint64_t)philox4x32(c->seed, me, i).v[0] | (uint64_t)philox4x32(c->seed, me, i).v[1] << 32);
    if (fd >= 0)
        close(fd);
    return NULL;
}

static void a_crowd_is_served_and_leaves_nothing(void **state) {
    (void)state;
    enum { N = 24 };
    struct rig r = rig_open((struct http_options){.n_threads = 3});
    struct crowd c = {.port = r.port, .seed = test_seed()};
    pthread_t threads[N];
    for (int i = 0; i < N; i++)
        EXPECT(pthread_create(&threads[i], NULL, visitor, &c) == 0);
    usleep(test_is_brief() ? 300000 : 3000000);
    for (int64_t end = clock_us() + PATIENCE_US; c.n_answers <= 1000 && clock_us() < end;)
        usleep(10000);
    c.over = true;
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    EXPECT(c.n_answers > 1000);
    settle(&r, 0, 0);
    rig_close(&r);
}

/* ---- stopping ------------------------------------------------------------------------------------------------------
 */

struct stopping {
    struct rig *rig;
    int patience_ms;
    _Atomic int returned;
    long took_us;
};

static void *stop_it(void *arg) {
    struct stopping *s = arg;
    int64_t start = clock_us();
    http_stop(s->rig->server, s->patience_ms);
    s->took_us = (long)(clock_us() - start);
    s->returned = 1;
    return NULL;
}

static void end_stopped(struct rig *r, pthread_t t) {
    pthread_join(t, NULL);
    EXPECT(comes_to(&rig_seen.running, 0));
    usleep(1000);
    http_free(r->server);
}

static void stopping_lets_what_is_in_flight_finish(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct stopping s = {.rig = &r, .patience_ms = 600000};
    int waiting = dial(r.port), streaming = dial(r.port), idle = dial(r.port), unfinished = dial(r.port),
        gone = dial(r.port);
    say_text(idle, GET("/hello"));
    struct heard a = hear(idle, false);
    heard_release(&a);
    say_text(unfinished, "GET /hello HTTP/1.1\r\nHo");
    say_text(waiting, GET("/later?ms=300") GET("/hello"));
    say_text(streaming, GET("/stream?n=30&gap=10000&size=40"));
    EXPECT(comes_to(&rig_seen.running, 2));
    usleep(20000);
    pthread_t t;
    EXPECT(pthread_create(&t, NULL, stop_it, &s) == 0);
    EXPECT(is_closed(idle) && is_closed(unfinished) && is_closed(gone));
    int64_t start = clock_us();
    int newcomer = dial(r.port), silent = dial(r.port); // is heard; and who says nothing keeps nobody
    say_text(newcomer, GET("/hello") GET("/hello"));
    a = hear(newcomer, false);
    EXPECT(a.status == 200 && heard_has(&a, "Connection: close") && is_closed(newcomer));
    heard_release(&a);
    a = hear(waiting, false);
    EXPECT(a.status == 200 && heard_has(&a, "Connection: close") && is_closed(waiting));
    heard_release(&a);
    a = hear(streaming, false);
    EXPECT(a.status == 200 && a.whole && a.body.len == 1200 && is_closed(streaming));
    heard_release(&a);
    EXPECT(comes_to(&s.returned, 1));
    EXPECT(clock_us() - start < SOON_US && s.took_us < SOON_US);
    EXPECT_EQ(rig_seen.gone, 0);
    EXPECT(is_closed(silent));
    close(waiting), close(streaming), close(idle), close(unfinished), close(gone), close(newcomer), close(silent);
    end_stopped(&r, t);
}

static void patience_ends_and_the_rest_is_told(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct stopping s = {.rig = &r, .patience_ms = 200};
    int waiting = dial(r.port), streaming = dial(r.port);
    say_text(waiting, GET("/later"));
    say_text(streaming, GET("/stream?n=1000000&gap=10000&size=40"));
    EXPECT(comes_to(&rig_seen.running, 2));
    pthread_t t;
    EXPECT(pthread_create(&t, NULL, stop_it, &s) == 0);
    struct heard a = hear(waiting, false), b = hear(streaming, false); // told, they end their answers properly
    EXPECT(a.status == 200 && b.status == 200 && b.whole);
    EXPECT_EQ(rig_seen.gone_stopping, 2);
    heard_release(&a);
    heard_release(&b);
    EXPECT(comes_to(&s.returned, 1));
    EXPECT(s.took_us > 150000 && s.took_us < SOON_US);
    close(waiting), close(streaming);
    end_stopped(&r, t);
}

static void a_second_stop_is_immediate(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct stopping s = {.rig = &r, .patience_ms = 600000};
    int waiting = dial(r.port);
    say_text(waiting, GET("/later"));
    EXPECT(comes_to(&rig_seen.running, 1));
    pthread_t t;
    EXPECT(pthread_create(&t, NULL, stop_it, &s) == 0);
    usleep(100000);
    EXPECT_EQ(s.returned, 0);
    http_hurry(r.server);
    EXPECT(comes_to(&s.returned, 1));
    EXPECT(s.took_us < SOON_US);
    close(waiting);
    end_stopped(&r, t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaving_tells_the_handler_within_a_moment),
        cmocka_unit_test(a_half_closed_client_gets_its_answers),
        cmocka_unit_test(an_http_1_0_client_that_sends_fin_has_left),
        cmocka_unit_test(leaving_in_the_middle_of_a_request_leaves_nothing),
        cmocka_unit_test(who_never_reads_costs_little_and_is_cut_off),
        cmocka_unit_test(a_slow_reader_gets_everything),
        cmocka_unit_test(two_thousand_idle_connections_are_no_burden),
        cmocka_unit_test(a_crowd_is_served_and_leaves_nothing),
        cmocka_unit_test(stopping_lets_what_is_in_flight_finish),
        cmocka_unit_test(patience_ends_and_the_rest_is_told),
        cmocka_unit_test(a_second_stop_is_immediate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
