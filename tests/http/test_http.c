/* test_http.c - requests find their handlers and get their answers, whole, later and streamed. */
#include "check.h"

#include "http_rig.h"

#include <sys/socket.h>
#include <unistd.h>

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void a_request_gets_its_answer(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct heard a = ask(r.port, GET("/hello"));
    EXPECT_EQ(a.status, 200);
    EXPECT_STR(a.body.ptr, "hello\n");
    EXPECT(heard_has(&a, "Content-Type: text/plain\r") && heard_has(&a, "Content-Length: 6\r") &&
           heard_has(&a, "Date: "));
    EXPECT(heard_has(&a, "X-Request-Id: ") && !heard_has(&a, "Connection: close") && !heard_has(&a, "Access-Control"));
    heard_release(&a);
    expect_answer(r.port, GET("/query?a=1%202+3%26&b=4"), 200, "1 2 3&");
    expect_answer(r.port, GET("/query?aa=1&b"), 200, "none");
    expect_answer(r.port, GET("/query?a=%zz"), 200, "none");
    rig_close(&r);
}

static void a_sane_request_id_comes_back_and_an_odd_one_does_not(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct heard a = ask(r.port, "GET /hello HTTP/1.1\r\nHost: t\r\nX-Request-ID: abc-123/4.5\r\n\r\n");
    EXPECT(heard_has(&a, "X-Request-Id: abc-123/4.5\r"));
    heard_release(&a);
    a = ask(r.port, "GET /hello HTTP/1.1\r\nHost: t\r\nX-Request-ID: <script>\r\n\r\n");
    struct heard b = ask(r.port, GET("/nothing"));
    const char *ida = strcasestr(a.head.ptr, "X-Request-Id: "), *idb = strcasestr(b.head.ptr, "X-Request-Id: ");
    EXPECT(ida && idb && !strstr(a.head.ptr, "script"));
    EXPECT(strncmp(ida, idb, 14 + 24) != 0 && strcspn(ida + 14, "\r") == 24);
    heard_release(&a);
    heard_release(&b);
    rig_close(&r);
}

static void head_is_get_without_the_body(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    say_text(fd, "HEAD /hello HTTP/1.1\r\nHost: t\r\n\r\n");
    struct heard a = hear(fd, true);
    EXPECT(a.status == 200 && heard_has(&a, "Content-Length: 6\r"));
    heard_release(&a);
    say_text(fd, GET("/hello")); // a body would be in the way now
    a = hear(fd, false);
    EXPECT(a.status == 200);
    heard_release(&a);
    close(fd);
    expect_answer(r.port, "HEAD /echo HTTP/1.1\r\nHost: t\r\n\r\n", 405, NULL);
    rig_close(&r);
}

static void a_path_for_another_method_says_for_which(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct heard a = ask(r.port, "POST /things/5 HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}");
    EXPECT(a.status == 405 && heard_has(&a, "Allow: GET, HEAD, DELETE\r") &&
           heard_has(&a, "Content-Type: application/json"));
    EXPECT_STR(a.body.ptr, "{\"error\":{\"message\":\"this path is there for another method\",\"code\":405}}\n");
    heard_release(&a);
    a = ask(r.port, "OPTIONS /things/5 HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT(a.status == 204 && heard_has(&a, "Allow: GET, HEAD, DELETE, OPTIONS\r"));
    heard_release(&a);
    expect_answer(r.port, "OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n", 204, NULL);
    expect_answer(r.port, "OPTIONS /nothing HTTP/1.1\r\nHost: t\r\n\r\n", 404, NULL);
    expect_answer(r.port, "BREW /hello HTTP/1.1\r\nHost: t\r\n\r\n", 405, NULL);
    expect_answer(r.port, "get /hello HTTP/1.1\r\nHost: t\r\n\r\n", 405, NULL);
    rig_close(&r);
}

static void pages_of_the_named_origin_may_call(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.cors_origin = "https://chat.example"});
    struct heard a = ask(r.port, "OPTIONS /json HTTP/1.1\r\nHost: t\r\nOrigin: "
                                 "https://chat.example\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    EXPECT(a.status == 204 && heard_has(&a, "Access-Control-Allow-Origin: https://chat.example\r"));
    EXPECT(heard_has(&a, "Access-Control-Allow-Methods: POST, OPTIONS\r") &&
           heard_has(&a, "Access-Control-Allow-Headers: *, Authorization\r"));
    heard_release(&a);
    a = ask(r.port, GET("/nothing"));
    EXPECT(heard_has(&a, "Access-Control-Allow-Origin: https://chat.example\r") && heard_has(&a, "Vary: Origin\r"));
    heard_release(&a);
    rig_close(&r);
}

static void paths_are_compared_as_they_were_sent(void **state) {
    (void)state;
    static const char *const strange[] = {
        "//hello",     "/./hello",       "/x/../hello", "/hello//", "/%68ello",         "/hello%2f",
        "/hello%00",   "/HELLO",         "/hello;x=1",  "/hell",    "/things/",         "/things",
        "/things/a/b", "/things//parts", "/files/",     "/",        "/things/../hello", "*"};
    struct rig r = rig_open((struct http_options){0});
    for (size_t i = 0; i < ARRAY_LEN(strange); i++) {
        char request[128];
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", strange[i]);
        expect_answer(r.port, request, 404, NULL);
    }
    expect_answer(r.port, GET("http://elsewhere/hello"), 200, "hello\n"); // absolute form means the path in it
    expect_answer(r.port, GET("HTTPS://a.b:80/hello?x"), 200, "hello\n");
    expect_answer(r.port, GET("/hello/?x"), 200, "hello\n"); // one slash at the end is nothing
    expect_answer(r.port, GET("http://elsewhere"), 404, NULL);
    expect_answer(r.port, GET("/things/a%2Fb"), 200, "thing a/b");
    expect_answer(r.port, GET("/things/%E2%82%AC?q=/"), 200, "thing \xE2\x82\xAC");
    expect_answer(r.port, GET("/things/org/parts"), 200, "parts of org");
    expect_answer(r.port, GET("/files/org/model"), 200, "file org/model");
    expect_answer(r.port, GET("/files/../../etc/passwd"), 200, "file ../../etc/passwd"); // a name, not a way
    expect_answer(r.port, GET("/things/%00"), 400, NULL);
    expect_answer(r.port, GET("/things/%f"), 400, NULL);
    expect_answer(r.port, GET("/things/%ff"), 400, NULL);
    rig_close(&r);
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static void a_body_may_come_in_any_pieces(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    const char *whole = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 11\r\n\r\nhello world";
    const char *chunks = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n006\r\n "
                         "world\r\n0\r\nTrailer: x\r\n\r\n";
    for (int i = 0; i < 2; i++) {
        expect_answer(r.port, i ? chunks : whole, 200, "hello world");
        int fd = dial(r.port);
        for (const char *p = i ? chunks : whole; *p; p++) {
            say(fd, p, 1);
            usleep(200);
        }
        struct heard a = hear(fd, false);
        EXPECT(a.status == 200 && a.n_interim == 0);
        EXPECT_STR(a.body.ptr, "hello world");
        heard_release(&a);
        close(fd);
    }
    expect_answer(r.port, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n", 200, "");
    rig_close(&r);
}

static void a_large_body_comes_back_unchanged(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    size_t n = 3 << 20;
    struct buf request = {0};
    buf_printf(&request, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n", n);
    size_t head = request.len;
    for (size_t i = 0; i < n; i++)
        buf_push(&request, (char)(i * 31 + (i >> 11)));
    int fd = dial(r.port);
    say(fd, request.ptr, request.len);
    struct heard a = hear(fd, false);
    EXPECT(a.status == 200 && a.body.len == n && memcmp(a.body.ptr, request.ptr + head, n) == 0);
    heard_release(&a);
    buf_release(&request);
    close(fd);
    rig_close(&r);
}

static void who_expects_100_continue_gets_it_or_the_refusal(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    say_text(fd, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    char interim[25];
    EXPECT(recv(fd, interim, sizeof interim, MSG_WAITALL) == 25 &&
           memcmp(interim, "HTTP/1.1 100 Continue\r\n\r\n", 25) == 0);
    say_text(fd, "body");
    struct heard a = hear(fd, false);
    EXPECT(a.status == 200 && strcmp(a.body.ptr, "body") == 0);
    heard_release(&a);
    close(fd);
    fd = dial(r.port);
    say_text(fd, "POST /small HTTP/1.1\r\nHost: t\r\nContent-Length: 65\r\nExpect: 100-continue\r\n\r\n");
    a = hear(fd, false);
    EXPECT(a.status == 413 && a.n_interim == 0 && is_closed(fd));
    heard_release(&a);
    close(fd);
    rig_close(&r);
}

static void a_body_that_is_too_large_is_413_even_to_a_client_that_only_writes(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.max_body = 1 << 20});
    size_t n = 3 << 20; // three times what is read, and more than the sockets buffer
    char *zeros = xcalloc(n, 1), head[128];
    for (int chunked = 0; chunked < 2; chunked++) {
        int fd = dial(r.port);
        snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: t\r\n%s: %s\r\n\r\n%s",
                 chunked ? "Transfer-Encoding" : "Content-Length", chunked ? "chunked" : "3145728",
                 chunked ? "300000\r\n" : "");
        say_text(fd, head);
        say(fd, zeros, n);
        if (chunked)
            say_text(fd, "\r\n0\r\n\r\n");
        struct heard a = hear(fd, false);
        EXPECT_EQ(a.status, 413);
        EXPECT(a.whole && strstr(a.body.ptr, "\"error\""));
        heard_release(&a);
        close(fd);
    }
    free(zeros);
    expect_answer(r.port,
                  "POST /small HTTP/1.1\r\nHost: t\r\nContent-Length: "
                  "65\r\n\r\n0123456789012345678901234567890123456789012345678901234567890123!",
                  413, "{\"error\":{\"message\":\"the body has 65 bytes, and at most 64 are read\",\"code\":413}}\n");
    expect_answer(r.port, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n", 413, NULL);
    rig_close(&r);
}

static void json_routes_want_json_of_a_known_length(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    expect_answer(r.port, "POST /json HTTP/1.1\r\nHost: t\r\n\r\n", 411, NULL);
    expect_answer(r.port, "POST /json HTTP/1.1\r\nHost: t\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
                  415, NULL);
    expect_answer(r.port, "POST /json HTTP/1.1\r\nHost: t\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 415,
                  NULL);
    expect_answer(r.port, "POST /json HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
                  400, NULL);
    expect_answer(r.port,
                  "POST /json HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: "
                  "2\r\n\r\n{}",
                  415, NULL);
    expect_answer(r.port, "POST /json HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}", 200, "{}");
    expect_answer(r.port,
                  "POST /json HTTP/1.1\r\nHost: t\r\nContent-Type: Application/JSON ; charset=utf-8\r\nContent-Length: "
                  "2\r\n\r\n{}",
                  200, "{}");
    rig_close(&r);
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static void pipelined_requests_are_answered_in_order(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct buf all = {0};
    for (int i = 0; i < 40; i++) {
        if (i % 4 == 0)
            buf_printf(&all, "GET /later?ms=%d HTTP/1.1\r\nHost: t\r\n\r\n", (40 - i) / 4);
        else if (i % 4 == 1)
            buf_printf(&all, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n%02d", i);
        else if (i % 4 == 2)
            buf_printf(&all, "GET /stream?n=3 HTTP/1.1\r\nHost: t\r\n\r\n");
        else
            buf_printf(&all, "POST /nothing HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nGET ");
    }
    int fd = dial(r.port);
    say(fd, all.ptr, all.len);
    for (int i = 0; i < 40; i++) {
        struct heard a = hear(fd, false);
        char number[8];
        snprintf(number, sizeof number, "%02d", i);
        EXPECT_EQ(a.status, i % 4 == 3 ? 404 : 200);
        EXPECT(a.whole);
        if (i % 4 == 0)
            EXPECT_STR(a.body.ptr, "later\n");
        if (i % 4 == 1)
            EXPECT_STR(a.body.ptr, number);
        if (i % 4 == 2)
            EXPECT(strncmp(a.body.ptr, "data: 0 ", 8) == 0);
        heard_release(&a);
    }
    struct http_stats s;
    http_stats(r.server, &s);
    EXPECT(s.accepted == 1 && s.exchanges == 40);
    close(fd);
    buf_release(&all);
    rig_close(&r);
}

static void http_1_0_closes_unless_asked_not_to(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    say_text(fd, "GET /stream?n=5&size=40 HTTP/1.0\r\n\r\n");
    struct heard a = hear(fd, false);
    EXPECT(a.status == 200 && !a.chunked && a.body.len == 200 && strncmp(a.body.ptr + 160, "data: 4 ", 8) == 0);
    heard_release(&a);
    close(fd);
    fd = dial(r.port);
    for (int i = 0; i < 3; i++) {
        say_text(fd, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        a = hear(fd, false);
        EXPECT(a.status == 200 && a.body.len == 6);
        heard_release(&a);
    }
    say_text(fd, "GET /hello HTTP/1.0\r\n\r\n");
    a = hear(fd, false);
    EXPECT(a.status == 200 && is_closed(fd));
    heard_release(&a);
    close(fd);
    rig_close(&r);
}

static void connection_close_is_obeyed(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    say_text(fd, "GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\nGET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
    struct heard a = hear(fd, false);
    EXPECT(a.status == 200 && heard_has(&a, "Connection: close") && is_closed(fd));
    heard_release(&a);
    close(fd);
    rig_close(&r);
}

/* ---- later, and streams ------------------------------------------------------------------------------------------ */

static void an_answer_may_come_later_from_another_thread(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int64_t start = clock_us();
    expect_answer(r.port, GET("/later?ms=50"), 200, "later\n");
    EXPECT(clock_us() - start >= 50000);
    rig_close(&r);
}

static void a_stream_is_whole_and_in_order(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct heard a = ask(r.port, GET("/stream?n=20000&batch=7&size=60"));
    EXPECT(a.status == 200 && a.chunked && a.whole && heard_has(&a, "Content-Type: text/event-stream\r"));
    expect_events(&a.body, 20000, 60);
    heard_release(&a);
    a = ask(r.port, GET("/stream?n=0"));
    EXPECT(a.status == 200 && a.whole && a.body.len == 0);
    heard_release(&a);
    rig_close(&r);
}

/* Receives until what has come holds the text. */
static void hear_text(int fd, struct buf *seen, const char *text) {
    while (!seen->len || !memmem(seen->ptr, seen->len, text, strlen(text))) {
        char c[65536];
        ssize_t n = recv(fd, c, sizeof c, 0);
        if (n <= 0)
            fail_msg("no %s in %zu bytes", text, seen->len);
        buf_append(seen, c, (size_t)n);
    }
}

/* Each event is made only when the one before has arrived: if one were kept back for the next, nothing would come. */
static void an_event_is_sent_when_it_is_there(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    int fd = dial(r.port);
    struct buf seen = {0};
    say_text(fd, GET("/stream?n=5&asks=1&size=32"));
    for (int i = 0; i < 5; i++) {
        char event[33];
        snprintf(event, sizeof event, "data: %d xxxxxxxxxxxxxxxxxxxxxx\n\n", i);
        rig_seen.batches++;
        hear_text(fd, &seen, event);
    }
    buf_release(&seen);
    close(fd);
    rig_close(&r);
}

/* A batch is made when the one before has been read, so that each is a wake of its own however slow client and server
 * are. */
static void what_comes_together_is_one_wake_and_few_writes(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct http_stats before, after;
    int fd = dial(r.port);
    struct buf seen = {0};
    http_stats(r.server, &before);
    say_text(fd, GET("/stream?n=10000&batch=1000&asks=1&size=50"));
    for (int i = 1; i <= 10; i++) {
        char last[32];
        snprintf(last, sizeof last, "data: %d x", i * 1000 - 1);
        rig_seen.batches++;
        hear_text(fd, &seen, last);
    }
    hear_text(fd, &seen, "\r\n0\r\n\r\n");
    http_stats(r.server, &after);
    EXPECT(after.wakes - before.wakes <= 12);                  // ten batches, the end, the connection
    EXPECT(after.stream_writes - before.stream_writes <= 100); // 50,000 bytes a batch, a few KiB a write
    buf_release(&seen);
    close(fd);
    rig_close(&r);
}

static void an_idle_stream_pings(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.ping_ms = 30});
    int64_t start = clock_us();
    struct heard a = ask(r.port, GET("/stream?n=3&gap=100000&size=32"));
    int64_t n_pings = 0, most = (clock_us() - start) / 30000 + 1;
    for (const char *p = a.body.ptr; (p = strstr(p, ": ping\n\n")); p++)
        n_pings++;
    EXPECT(a.whole && n_pings >= 3 && n_pings <= most);
    EXPECT(strstr(a.body.ptr, "data: 2 "));
    heard_release(&a);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gets_its_answer),
        cmocka_unit_test(a_sane_request_id_comes_back_and_an_odd_one_does_not),
        cmocka_unit_test(head_is_get_without_the_body),
        cmocka_unit_test(a_path_for_another_method_says_for_which),
        cmocka_unit_test(pages_of_the_named_origin_may_call),
        cmocka_unit_test(paths_are_compared_as_they_were_sent),
        cmocka_unit_test(a_body_may_come_in_any_pieces),
        cmocka_unit_test(a_large_body_comes_back_unchanged),
        cmocka_unit_test(who_expects_100_continue_gets_it_or_the_refusal),
        cmocka_unit_test(a_body_that_is_too_large_is_413_even_to_a_client_that_only_writes),
        cmocka_unit_test(json_routes_want_json_of_a_known_length),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(http_1_0_closes_unless_asked_not_to),
        cmocka_unit_test(connection_close_is_obeyed),
        cmocka_unit_test(an_answer_may_come_later_from_another_thread),
        cmocka_unit_test(a_stream_is_whole_and_in_order),
        cmocka_unit_test(an_event_is_sent_when_it_is_there),
        cmocka_unit_test(what_comes_together_is_one_wake_and_few_writes),
        cmocka_unit_test(an_idle_stream_pings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
