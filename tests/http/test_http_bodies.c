/* test_http_bodies.c - bodies that nobody wants, and how those of many requests share what memory there is for them. */
#include "check.h"

#include "http_rig.h"

#include <unistd.h>

enum { CHUNK = 200 << 10 };

/* A request whose body of n bytes lacks its end. */
static int begin(int port, const char *line, size_t n) {
    struct buf text = {0};
    int fd = dial(port);
    buf_printf(&text, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", line, n + 1);
    for (size_t i = 0; i < n; i++)
        buf_push(&text, 'x');
    say(fd, text.ptr, text.len);
    buf_release(&text);
    return fd;
}

static int status_of(int fd) {
    struct heard a = hear(fd, false);
    int status = a.status;
    heard_release(&a);
    close(fd);
    return status;
}

static size_t kept(struct rig *r) {
    struct http_stats s;
    http_stats(r->server, &s);
    return s.body_bytes;
}

/* As much as asked, or after ten seconds what there is. */
static size_t kept_soon(struct rig *r, size_t at_least) {
    for (int i = 0; i < 10000 && kept(r) < at_least; i++)
        usleep(1000);
    return kept(r);
}

static void a_body_that_no_route_wants_is_not_kept(void **state) {
    (void)state;
    static const char *const lines[] = {"GET /hello", "HEAD /hello", "DELETE /things/1"};
    struct rig r = rig_open((struct http_options){.all_bodies = 1 << 20});
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        int fds[12];
        for (size_t k = 0; k < ARRAY_LEN(fds); k++) // twice what all bodies may have
            fds[k] = begin(r.port, lines[i], CHUNK);
        EXPECT_EQ(ask_status(
                      r.port,
                      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", 80),
                  200);
        for (int k = 0; k < 10000 && kept(&r) > 0; k++) // that of the POST goes after its answer
            usleep(1000);
        EXPECT_EQ(kept(&r), 0);
        for (size_t k = 0; k < ARRAY_LEN(fds); k++) {
            say_text(fds[k], "x");
            struct heard a = hear(fds[k], i == 1);
            EXPECT_EQ(a.status, 200);
            heard_release(&a);
            close(fds[k]);
        }
    }
    rig_close(&r);
}

static void small_bodies_pass_when_large_ones_have_used_their_share(void **state) {
    (void)state;
    enum { ALL = 2 << 20, N_LARGE = ALL / CHUNK + 1 };
    struct rig r = rig_open((struct http_options){.all_bodies = ALL});
    int fds[N_LARGE], n_refused = 0, n_taken = 0;
    for (int i = 0; i < N_LARGE; i++) {
        fds[i] = begin(r.port, "POST /echo", CHUNK);
        kept_soon(&r, MIN((size_t)(i + 1) * CHUNK, (size_t)5 * CHUNK));
    }
    for (int i = 0; i < 20; i++) {
        int small = begin(r.port, "POST /echo", 30 << 10);
        say_text(small, "x");
        EXPECT_EQ(status_of(small), 200);
    }
    EXPECT(kept(&r) <= ALL);
    for (int i = 0; i < N_LARGE; i++) {
        say_text(fds[i], "x");
        int status = status_of(fds[i]);
        EXPECT(status == 200 || status == 503);
        n_taken += status == 200;
        n_refused += status == 503;
    }
    EXPECT(n_refused >= 2 && n_taken >= 5);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_that_no_route_wants_is_not_kept),
        cmocka_unit_test(small_bodies_pass_when_large_ones_have_used_their_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
