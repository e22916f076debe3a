/* test_wire.c - a name with several addresses: whichever of them answers is connected to, within one bound. The test
 * says what addresses a name has. */
#include "check.h"

#include "base/clock.h"
#include "dist/wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 4, BOUND_MS = 3000 };

// In place of the C library's: ports of the loopback in the order that the test wants.
static struct addrinfo found[MOST];
static struct sockaddr_in places[MOST];
static int n_found;

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    (void)name, (void)service, (void)hints;
    *out = found;
    return n_found > 0 ? 0 : EAI_NONAME;
}
void freeaddrinfo(struct addrinfo *all) { EXPECT(all == found); }

static void add(int port) {
    EXPECT(n_found < MOST);
    places[n_found] = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    found[n_found] = (struct addrinfo){.ai_family = AF_INET,
                                       .ai_socktype = SOCK_STREAM,
                                       .ai_addr = (struct sockaddr *)&places[n_found],
                                       .ai_addrlen = sizeof *places};
    if (n_found > 0)
        found[n_found - 1].ai_next = &found[n_found];
    n_found++;
}

/* Bound, and listened on if `backlog` is not negative. */
static int open_port(int backlog, int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    EXPECT(backlog < 0 || listen(fd, backlog) == 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* One that answers nobody, as a host behind a dead link: those that nobody accepts fill it. */
struct silent {
    int fd, port, waiting[8];
};

static void open_silent(struct silent *s) {
    s->fd = open_port(0, &s->port);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (size_t i = 0; i < ARRAY_LEN(s->waiting); i++) {
        s->waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(s->waiting[i], (struct sockaddr *)&a, sizeof a);
    }
}

static void close_silent(struct silent *s) {
    for (size_t i = 0; i < ARRAY_LEN(s->waiting); i++)
        close(s->waiting[i]);
    close(s->fd);
}

static void the_address_that_answers_is_found(void **state) {
    (void)state;
    struct silent silent;
    struct wire *w, *peer;
    struct error err;
    int refuses, port, is_there;
    int closed = open_port(-1, &refuses), fd = open_port(8, &port);
    open_silent(&silent);
    for (is_there = 0; is_there < 3; is_there++) { // first, second, third
        int ports[3] = {refuses, silent.port, 0};
        n_found = 0;
        for (int i = 0, k = 0; i < 3; i++)
            add(i == is_there ? port : ports[k++]);
        EXPECT_OK(wire_connect("somewhere:1", BOUND_MS, &w, &err), err);
        EXPECT_OK(wire_accept(fd, &peer, &err), err);
        wire_close(peer), wire_close(w);
    }
    close_silent(&silent);
    close(closed), close(fd);
}

static void all_are_tried_within_the_bound(void **state) {
    (void)state;
    struct silent silent;
    struct wire *w;
    struct error err;
    int refuses, closed = open_port(-1, &refuses);
    open_silent(&silent);
    n_found = 0;
    add(silent.port), add(refuses), add(silent.port), add(silent.port);
    int64_t began_us = clock_us();
    EXPECT_EQ(wire_connect("somewhere:1", BOUND_MS / 2, &w, &err), ERR_IO);
    EXPECT_STR(err.text, "the peer is late");
    int64_t us = clock_us() - began_us;
    EXPECT(us >= BOUND_MS / 2 * 1000 && us < 3 * BOUND_MS / 2 * 1000); // the latter: a bound for each of three
    n_found = 1, found[0].ai_next = NULL, places[0].sin_port = htons((uint16_t)refuses);
    EXPECT_EQ(wire_connect("somewhere:1", BOUND_MS, &w, &err), ERR_IO);
    EXPECT_STR(err.text, "somewhere:1: it cannot be connected to: Connection refused");
    close_silent(&silent);
    close(closed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_address_that_answers_is_found),
        cmocka_unit_test(all_are_tried_within_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
