/* test_http_listen.c - where a server listens: sockets of the file system, ports, TLS, names of this machine. */
#include "check.h"

#include "http_rig.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int dial_unix(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = PATIENCE_US / 1000000}, sizeof(struct timeval));
    EXPECT(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static void a_unix_socket_serves_and_a_stale_one_is_replaced(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-http-XXXXXX/s";
    path[21] = '\0';
    EXPECT(mkdtemp(path));
    path[21] = '/';
    for (int i = 0; i < 2; i++) {
        struct rig r = rig_open((struct http_options){.unix_path = path, .port = -1});
        EXPECT_EQ(r.port, 0);
        struct http_server *second;
        struct error err;
        EXPECT_EQ(http_open(&r.options, &second, &err), ERR_IO); // a live one is left alone
        int fd = dial_unix(path);
        say_text(fd, GET("/stream?n=100&size=40"));
        struct heard a = hear(fd, false);
        EXPECT(a.status == 200 && a.whole);
        expect_events(&a.body, 100, 40);
        heard_release(&a);
        close(fd);
        rig_close(&r);
        EXPECT(access(path, F_OK) != 0);
        struct sockaddr_un stale = {.sun_family = AF_UNIX};
        strcpy(stale.sun_path, path);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        EXPECT(bind(fd, (struct sockaddr *)&stale, sizeof stale) == 0);
        close(fd); // the file stays
    }
    unlink(path);
    path[21] = '\0';
    rmdir(path);
}

static void a_port_in_use_and_an_unknown_host_are_refused_with_a_sentence(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){0});
    struct http_server *s;
    struct error err;
    struct http_options o = {.host = "127.0.0.1", .port = r.port};
    EXPECT_EQ(http_open(&o, &s, &err), ERR_IO);
    EXPECT(strstr(err.text, "127.0.0.1") && strstr(err.text, "in use"));
    o.host = "300.1.1.1";
    EXPECT_EQ(http_open(&o, &s, &err), ERR_ARG);
    o = (struct http_options){.host = "127.0.0.1", .tls_cert = "tests/data/tls/cert.pem"};
    EXPECT_EQ(http_open(&o, &s, &err), ERR_ARG);
    o.tls_key = "tests/data/README.md";
    EXPECT_EQ(http_open(&o, &s, &err), ERR_ARG);
    rig_close(&r);
}

static void tls_serves_the_same(void **state) {
    (void)state;
    struct rig r =
        rig_open((struct http_options){.tls_cert = "tests/data/tls/cert.pem", .tls_key = "tests/data/tls/key.pem"});
    char command[1024];
    snprintf(command, sizeof command,
             "python3 -c 'import socket, ssl, http.client as h\n"
             "c = h.HTTPSConnection(\"localhost\", %d, timeout=300, "
             "context=ssl.create_default_context(cafile=\"tests/data/tls/cert.pem\"))\n"
             "c._create_connection = lambda at, *rest: socket.create_connection((\"127.0.0.1\", at[1]), *rest)\n"
             "for i in range(20):\n"
             "    c.request(\"POST\", \"/echo\", b\"x\" * i * 5000)\n"
             "    assert c.getresponse().read() == b\"x\" * i * 5000\n"
             "    c.request(\"GET\", \"/later?ms=5\")\n"
             "    assert c.getresponse().read() == b\"later\\n\"\n"
             "    c.request(\"GET\", \"/stream?n=1000&batch=10&size=40\")\n"
             "    assert len(c.getresponse().read()) == 40000\n"
             "c.request(\"GET\", \"/later\")\n"
             "c.sock.close()'",
             r.port);
    EXPECT_EQ(system(command), 0);
    EXPECT(comes_to(&rig_seen.gone, 1));
    rig_close(&r);
}

static void all_addresses_share_a_chosen_port(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.host = "localhost"});
    EXPECT(r.port > 0);
    expect_answer(r.port, GET("/hello"), 200, "hello\n");
    rig_close(&r);
}

/* On a system without /etc/hosts none knows it. Names below it are known to few resolvers anywhere. */
static void localhost_needs_no_resolver(void **state) {
    (void)state;
    struct rig r = rig_open((struct http_options){.host = "gyre.LocalHost"});
    expect_answer(r.port, GET("/hello"), 200, "hello\n");
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unix_socket_serves_and_a_stale_one_is_replaced),
        cmocka_unit_test(a_port_in_use_and_an_unknown_host_are_refused_with_a_sentence),
        cmocka_unit_test(tls_serves_the_same),
        cmocka_unit_test(all_addresses_share_a_chosen_port),
        cmocka_unit_test(localhost_needs_no_resolver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
