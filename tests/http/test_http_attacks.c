/* test_http_attacks.c - clients that lie, send too much or dawdle.
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

#define CLOSED 1
#define RAW(text) text, sizeof(text) - 1

/* ---- framing ----------------------------------------------------------------------------------------------------- */

static void a_head_with_two_readings_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        int status, or_status; // the other where versions of the library differ
    } cases[] = {
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400,
         0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), 400,
         0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5, 5\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: +5\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 0x5\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5 5\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length:\r\n\r\nhello"), 400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999\r\n\r\nhello"), 400, 413},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\nx"), 501, 400},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501, 400},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"), 501, 400},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 501, 400},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
             "chunked\r\n\r\n0\r\n\r\n"),
         400, 0},
        {RAW("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400, 0},
        {RAW("POST /echo HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\n Transfer-Encoding: chunked\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nX: a\r\n b\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nX: a\0b\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\n\0Content-Length: 5\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nX\0: a\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\nX: y\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\n\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nX: a\rb\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nX: \x01\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\n: a\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: t\r\nX(y): a\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400, 0},
        {RAW("GET /hel lo HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET /h\xC3\xA9llo HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET /hello#x HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET hello HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET \\hello HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("CONNECT test:80 HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("G@T /hello HTTP/1.1\r\nHost: t\r\n\r\n"), 405, 400},
        {RAW("G\"T /hello HTTP/1.1\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/1.1 \r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/one\r\nHost: t\r\n\r\n"), 400, 0},
        {RAW("GET /hello HTTP/2.0\r\nHost: t\r\n\r\n"), 505, 0},
        {RAW("GET /hello HTTP/0.9\r\nHost: t\r\n\r\n"), 505, 400},
        {RAW("GET /hello\r\n\r\n"), 400, 505},
        {RAW("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"), 505, 0},
        {RAW("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400, CLOSED}, // TLS to a plain port
    };
    struct rig r = rig_open((struct http_options){0});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int status = ask_status(r.port, cases[i].bytes, cases[i].n);
        if (status != cases[i].status && (status ? status : CLOSED) != cases[i].or_status)
            fail_msg("case %zu: %d instead of %d: %.80s", i, status, cases[i].status, cases[i].bytes);
        expect_alive(r.port);
    }
    EXPECT_EQ(rig_seen.handled, ARRAY_LEN(cases)); // those that ask whether it lives
    rig_close(&r);
}

static void chunks_that_are_none_are_refused(void **state) {
    (void)state;
    static const char *const bodies[] = {"x\r\n",
                                         "-5\r\nhello\r\n0\r\n\r\n",
                                         "5 \r\nhello\r\n0\r\n\r\n",
                                         "0x5\r\nhello\r\n0\r\n\r\n",
                                         "5\r\nhelloX\r\n0\r\n\r\n",
                                         "\r\n\r\n",
                                         ";x\r\nhello\r\n0\r\n\r\n",
                                         "FFFFFFFFFFFFFFFFF\r\nhello\r\n"};
    struct rig r = rig_open((struct http_options){0});
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        char request[256];
        int n = snprintf(request, sizeof request,
                         "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n%s", bodies[i]);
        int status = ask_status(r.port, request, (size_t)n);
        if (status != 400 && status != 413)
            fail_msg("%s: %d", bodies[i], status);
    }
    EXPECT_EQ(rig_seen.handled, 0);
    expect_alive(r.port);
    rig_close(&r);
}

static void what_follows_a_chunked_body_is_never_a_request(void **state) {
    (void)state;
    static const char *const tails[] = {"0\r\n\r\n", "0;x=y\r\n\r\n", "0;x=\"\n\r\n\r\n\"\r\n\r\n",
                                        "0\r\nX: y\r\n\r\n"};
    struct rig r = rig_open((struct http_options){0});
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        char request[512];
        snprintf(request, sizeof request,
                 "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n%s" GET("/hello"), tails[i]);
        int fd = dial(r.port), before = rig_seen.handled;
        say_text(fd, request);
        struct heard a = hear(fd, false);
        EXPECT(heard_has(&a, "Connection: close") && is_closed(fd));
        if (a.status != 400 || i == 0) { // a newer library refuses what it cannot be sure of
            if (a.status != 200 || a.body.len)
                fail_msg("tail %zu: %d", i, a.status);
            EXPECT_EQ(rig_seen.handled, before + 1);
        }
        heard_release(&a);
        close(fd);
    }
    rig_close(&r);
}

static void a_refused_body_is_not_taken_for_a_request(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    say_text(fd, "POST /hello HTTP/1.1\r\nHost: t\r\nContent-Length: 35\r\n\r\n" GET("/hello") GET("/query?a=real"));
    struct heard a = hear(fd, false), b = hear(fd, false);
    EXPECT(a.status == 405 && b.status == 200);
    EXPECT_STR(b.body.ptr, "real");
    heard_release(&a);
    heard_release(&b);
    close(fd);
    rig_close(&r);
}

/* ---- size -------------------------------------------------------------------------------------------------------- */

static int status_of_head(int port, size_t target, size_t n_fields, size_t field) {
    struct buf b = {0};
    buf_printf(&b, "GET /");
    for (size_t i = 1; i < target; i++)
        buf_push(&b, 'a');
    buf_printf(&b, " HTTP/1.1\r\nHost: t\r\n");
    for (size_t k = 0; k < n_fields; k++) {
        buf_printf(&b, "X-%zu: ", k);
        for (size_t i = 0; i < field; i++)
            buf_push(&b, 'b');
        buf_printf(&b, "\r\n");
    }
    buf_printf(&b, "\r\n");
    int status = ask_status(port, b.ptr, b.len);
    buf_release(&b);
    return status;
}

static void heads_have_limits(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    EXPECT_EQ(status_of_head(r.port, 8000, 10, 100), 404);
    EXPECT_EQ(status_of_head(r.port, 8193, 0, 0), 414);
    EXPECT_EQ(status_of_head(r.port, 20000, 0, 0), 414);
    EXPECT_EQ(status_of_head(r.port, 1 << 20, 0, 0), 414);
    EXPECT_EQ(status_of_head(r.port, 10, 99, 10), 404);
    EXPECT_EQ(status_of_head(r.port, 10, 100, 10), 431);
    EXPECT_EQ(status_of_head(r.port, 10, 1, 15000), 404);
    EXPECT_EQ(status_of_head(r.port, 10, 1, 17000), 431);
    EXPECT_EQ(status_of_head(r.port, 10, 1, 1 << 20), 431);
    EXPECT_EQ(status_of_head(r.port, 10, 100000, 10), 431);
    expect_alive(r.port);
    rig_close(&r);
}

static int status_of_parameters(int port, int n, const char *one) {
    struct buf b = {0};
    buf_printf(&b, "GET /query?a=1");
    for (int i = 1; i < n; i++)
        buf_printf(&b, "&%s", one);
    buf_printf(&b, " HTTP/1.1\r\nHost: t\r\n");
    for (int i = 0; i < 99; i++)
        buf_printf(&b, "x%d: y\r\n", i);
    buf_printf(&b, "\r\n");
    int status = ask_status(port, b.ptr, b.len);
    buf_release(&b);
    return status;
}

/* The library keeps a record of each; a kilobyte of them must not take the server down. */
static void parameters_have_a_limit(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    EXPECT_EQ(status_of_parameters(r.port, 64, "x=y"), 200);
    static const char *const ones[] = {"", "x", "=", "x=y", "%", "xxxxxxxxxxxxxxxxxxxx=yyyyyyyyyyyyyyyyy"};
    for (size_t i = 0; i < ARRAY_LEN(ones); i++)
        for (int n = 65; n < 8000; n = 2 * n + 1) {
            int status = status_of_parameters(r.port, n, ones[i]);
            if (status != 414)
                fail_msg("%d times %s: %d", n, ones[i], status);
        }
    expect_alive(r.port);
    rig_close(&r);
}

static void an_endless_head_is_cut(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    char block[65536];
    memset(block, 'a', sizeof block);
    say_text(fd, "GET /hello HTTP/1.1\r\nHost: t\r\nX: ");
    size_t sent = 0;
    for (ssize_t n; sent < (1u << 30) && (n = send(fd, block, sizeof block, MSG_NOSIGNAL)) > 0;)
        sent += (size_t)n;
    EXPECT(sent < (64u << 20)); // what sockets buffer, at most
    close(fd);
    expect_alive(r.port);
    rig_close(&r);
}

static void bodies_share_a_bound(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.all_bodies = 5300000});
    static const char head[] = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n";
    char *block = xcalloc(1, 1000000);
    int fds[5];
    for (int i = 0; i < 4; i++) {
        fds[i] = dial(r.port);
        say_text(fds[i], head);
        say(fds[i], block, 999999);
    }
    settle(&r, 4, 4 * 999999);
    for (int i = 4; i >= 0; i--) { // the fifth finds no room; the four finish, and then there is
        if (i == 4) {
            fds[i] = dial(r.port);
            say_text(fds[i], head);
            say(fds[i], block, 999999);
        }
        say(fds[i], block, 1);
        struct heard a = hear(fds[i], false);
        EXPECT_EQ(a.status, i == 4 ? 503 : 200);
        EXPECT(i == 4 ? heard_has(&a, "Retry-After: 1") : a.body.len == 1000000);
        heard_release(&a);
        close(fds[i]);
    }
    settle(&r, 0, 0);
    int fd = dial(r.port);
    say_text(fd, head);
    say(fd, block, 1000000);
    struct heard a = hear(fd, false);
    EXPECT_EQ(a.status, 200);
    heard_release(&a);
    close(fd);
    free(block);
    rig_close(&r);
}

static void past_the_last_connection_there_is_503(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.max_connections = 8});
    int fds[8];
    for (int i = 0; i < 8; i++) {
        fds[i] = dial(r.port);
        say_text(fds[i], GET("/hello"));
        struct heard a = hear(fds[i], false);
        EXPECT_EQ(a.status, 200);
        heard_release(&a);
    }
    struct heard a = ask(r.port, "");
    EXPECT(a.status == 503 && a.whole && heard_has(&a, "Retry-After: 1") && strstr(a.body.ptr, "\"error\""));
    heard_release(&a);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    settle(&r, 0, 0);
    expect_alive(r.port);
    rig_close(&r);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Sends a byte every 20 ms until an answer is there; the answer's status. */
static int dribble(int fd, const char *text) {
    char c;
    for (size_t i = 0; i < 5000; i++) {
        if (send(fd, text[i % strlen(text)] ? &text[i % strlen(text)] : "x", 1, MSG_NOSIGNAL) != 1)
            break;
        usleep(20000);
        if (recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) >= 0)
            break;
    }
    struct heard a = hear(fd, false);
    int status = a.status;
    heard_release(&a);
    return status;
}

static void a_head_that_dribbles_is_408(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.header_timeout_ms = 1000});
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_us();
        int fd = dial(r.port);
        if (i == 1) { // also the second request of a connection
            say_text(fd, GET("/hello"));
            struct heard a = hear(fd, false);
            heard_release(&a);
        }
        if (i == 2) // also after the request line
            say_text(fd, "GET /hello HTTP/1.1\r\n");
        EXPECT_EQ(dribble(fd, "GET"), 408);
        EXPECT(clock_us() - start > 950000 && clock_us() - start < SOON_US);
        close(fd);
    }
    expect_alive(r.port);
    rig_close(&r);
}

static void a_body_that_dribbles_is_408(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.body_timeout_ms = 300});
    int64_t start = clock_us();
    int fd = dial(r.port);
    say_text(fd, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n");
    EXPECT_EQ(dribble(fd, "x"), 408);
    EXPECT(clock_us() - start > 250000 && clock_us() - start < SOON_US);
    EXPECT(is_closed(fd));
    close(fd);
    fd = dial(r.port);
    say_text(fd, "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
    struct heard a = hear(fd, false); // silence is no better
    EXPECT_EQ(a.status, 408);
    heard_release(&a);
    close(fd);
    EXPECT_EQ(rig_seen.handled, 0);
    rig_close(&r);
}

static void an_idle_connection_is_closed_in_time(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.idle_timeout_ms = 1000});
    int64_t start = clock_us();
    int fresh = dial(r.port), used = dial(r.port);
    say_text(used, GET("/hello"));
    struct heard a = hear(used, false);
    heard_release(&a);
    EXPECT(is_closed(used) && is_closed(fresh));
    EXPECT(clock_us() - start > 500000 && clock_us() - start < SOON_US);
    close(fresh);
    close(used);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_with_two_readings_is_refused),
        cmocka_unit_test(chunks_that_are_none_are_refused),
        cmocka_unit_test(what_follows_a_chunked_body_is_never_a_request),
        cmocka_unit_test(a_refused_body_is_not_taken_for_a_request),
        cmocka_unit_test(heads_have_limits),
        cmocka_unit_test(parameters_have_a_limit),
        cmocka_unit_test(an_endless_head_is_cut),
        cmocka_unit_test(bodies_share_a_bound),
        cmocka_unit_test(past_the_last_connection_there_is_503),
        cmocka_unit_test(a_head_that_dribbles_is_408),
        cmocka_unit_test(a_body_that_dribbles_is_408),
        cmocka_unit_test(an_idle_connection_is_closed_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
