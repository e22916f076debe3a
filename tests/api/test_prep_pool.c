/* test_prep_pool.c - requests that are worked on by other threads: who has to wait for whom, who is refused, and what
 * becomes of clients that leave and of servers that stop meanwhile. */
#include "check.h"

#include "api/prep_pool.h"
#include "http_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* POST /work?tenant=T&id=N is handled by the pool, which waits at the gate unless id is 9; then it says id and the
 * body's length. POST /priority says by how much the thread that works on it is nicer than the one that opened the
 * pool. POST /stream likewise, as a stream; /held holds until gone() is called. GET /now is answered by the
 * I/O thread. */
static struct {
    struct http_server *server;
    struct prep_pool *pool;
    int port;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    int order[64], n_order; // ids, as they were begun
    int priority;           // of who opened the pool
    _Atomic int begun, handed, refused, finished, complete, gone, left;
} s;

static int number(struct http_exchange *x, const char *name) {
    struct str text = http_parameter(x, name);
    return text.ptr ? atoi(arena_strdup(&x->arena, text)) : 0;
}

static void pass_gate(struct http_exchange *x) {
    int id = number(x, "id");
    pthread_mutex_lock(&s.lock);
    s.order[s.n_order++] = id;
    s.begun++;
    while (!s.open && id != 9)
        pthread_cond_wait(&s.changed, &s.lock);
    pthread_mutex_unlock(&s.lock);
    s.left += http_was_left(x);
}

static void open_gate(void) {
    pthread_mutex_lock(&s.lock);
    s.open = true;
    pthread_cond_broadcast(&s.changed);
    pthread_mutex_unlock(&s.lock);
}

static void work(struct http_exchange *x) {
    pass_gate(x);
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"},
               str_of(arena_printf(&x->arena, "%d: %zu", number(x, "id"), x->body.len)));
}

static void say_priority(struct http_exchange *x) {
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"},
               str_of(arena_printf(&x->arena, "%d", getpriority(PRIO_PROCESS, (id_t)gettid()) - s.priority)));
}

static void begin_stream(struct http_exchange *x) {
    pass_gate(x);
    http_stream_begin(x, &(struct http_answer){.status = 200, .content_type = "text/event-stream"});
    http_hold(x);
}

static bool fill(struct http_exchange *x, struct buf *out) {
    buf_str(out, STR("data: all\n\n"));
    http_release(x);
    return true;
}

static void hold(struct http_exchange *x) {
    pass_gate(x);
    http_hold(x);
}

static void gone(struct http_exchange *x, enum http_gone why) {
    (void)why;
    s.gone++;
    http_release(x);
}

static void now(struct http_exchange *x) {
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain"}, STR("now"));
}

static void hand_over(struct http_exchange *x) {
    if (!prep_pool_add(s.pool, x, number(x, "tenant"))) {
        s.refused++;
        http_reply(x, &(struct http_answer){.status = 503, .content_type = "text/plain"}, STR("no room"));
    }
    s.handed++;
}

static void finished(struct http_exchange *x, const struct http_outcome *o) {
    (void)x;
    s.finished++;
    s.complete += o->complete;
}

static const struct http_route routes[] = {
    {HTTP_POST, "/work", work, NULL, NULL, HTTP_LONG, 0},
    {HTTP_POST, "/priority", say_priority, NULL, NULL, HTTP_LONG, 0},
    {HTTP_POST, "/stream", begin_stream, fill, gone, HTTP_LONG, 0},
    {HTTP_POST, "/held", hold, NULL, gone, HTTP_LONG, 0},
    {HTTP_GET, "/now", now, NULL, NULL, 0, 0},
};

static void handle(struct http_exchange *x) { x->route->handle(x); }

static void start(int n_threads, size_t max_waiting) {
    struct error err;
    memset(&s, 0, sizeof s);
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    s.priority = getpriority(PRIO_PROCESS, 0);
    EXPECT_OK(prep_pool_open(n_threads, 4, max_waiting, handle, &s.pool, &err), err);
    struct http_options o = {.host = "127.0.0.1",
                             .n_threads = 1,
                             .routes = routes,
                             .n_routes = ARRAY_LEN(routes),
                             .hand_over = hand_over,
                             .finished = finished};
    EXPECT_OK(http_open(&o, &s.server, &err), err);
    s.port = http_port(s.server);
}

static void end(void) {
    open_gate();
    http_stop(s.server, 10000);
    struct http_stats stats;
    http_stats(s.server, &stats);
    EXPECT_EQ(stats.in_flight, 0);
    EXPECT_EQ(stats.body_bytes, 0);
    EXPECT_EQ(s.finished, stats.exchanges);
    prep_pool_close(s.pool);
    http_free(s.server);
}

/* Sends a request with a body of n bytes, on a connection of its own, and returns when the server has all of it. */
static int post(const char *path, int tenant, int id, size_t n) {
    int fd = dial(s.port), before = s.handed;
    struct buf text = {0};
    buf_printf(&text, "POST %s?tenant=%d&id=%d HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path, tenant, id,
               n);
    for (size_t i = 0; i < n; i++)
        buf_push(&text, 'x');
    say(fd, text.ptr, text.len);
    buf_release(&text);
    EXPECT(comes_to(&s.handed, before + 1));
    return fd;
}

static void expect_heard(int fd, int status, const char *body) {
    struct heard a = hear(fd, false);
    EXPECT_EQ(a.status, status);
    EXPECT_STR(a.body.ptr, body);
    heard_release(&a);
    close(fd);
}

static void expect_order(const int *ids, int n) {
    EXPECT_EQ(s.n_order, n);
    for (int i = 0; i < n; i++)
        EXPECT_EQ(s.order[i], ids[i]);
}

// ---- claims -----------------------------------------------------------------------------------------------------

static void connections_of_the_same_thread_do_not_wait(void **state) {
    (void)state;
    start(1, 1 << 20);
    int busy = post("/work", 0, 1, 5), waits = post("/work", 0, 2, 6);
    int fd = dial(s.port);
    say_text(fd, "GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_heard(fd, 200, "now");
    open_gate();
    expect_heard(waits, 200, "2: 6");
    expect_heard(busy, 200, "1: 5");
    end();
}

static void a_stream_begins_elsewhere(void **state) {
    (void)state;
    start(2, 1 << 20);
    int fd = post("/stream", 0, 1, 0);
    open_gate();
    expect_heard(fd, 200, "data: all\n\n");
    end();
}

static void who_sends_much_waits_behind_himself(void **state) {
    (void)state;
    start(1, 1 << 20);
    int fds[8], n = 0;
    fds[n++] = post("/work", 1, 1, 10000);
    EXPECT(comes_to(&s.begun, 1));
    for (int id = 2; id <= 4; id++)
        fds[n++] = post("/work", 1, id, 50000);
    fds[n++] = post("/work", 2, 20, 20000);
    fds[n++] = post("/work", 3, 30, 10);
    fds[n++] = post("/work", 3, 31, 10);
    open_gate();
    for (int i = 0; i < n; i++) {
        struct heard a = hear(fds[i], false);
        EXPECT_EQ(a.status, 200);
        heard_release(&a);
        close(fds[i]);
    }
    // 1 begins at 0 and costs 11,024: the others of its key follow at that distance; those of 2 and 3 stand where it
    // began.
    expect_order((const int[]){1, 20, 30, 31, 2, 3, 4}, 7);
    end();
}

static void small_ones_do_not_wait_for_large_ones(void **state) {
    (void)state;
    start(2, 4 << 20);
    int large[3];
    for (int i = 0; i < 3; i++)
        large[i] = post("/work", 0, 1 + i, 400 << 10);
    expect_heard(post("/work", 0, 9, 10), 200, "9: 10");
    EXPECT_EQ(s.begun, 2); // one large one at a time
    open_gate();
    for (int i = 0; i < 3; i++)
        expect_heard(large[i], 200, i == 0 ? "1: 409600" : i == 1 ? "2: 409600" : "3: 409600");
    end();
}

/* Which thread would win a race decides nothing: a small one is the first thread's, which has had none before. */
static void large_ones_are_read_at_a_lower_priority(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        start(3, 4 << 20);
        char nicer[16];
        snprintf(nicer, sizeof nicer, "%d", MIN(10, 19 - s.priority)); // there is nothing behind 19
        expect_heard(post("/priority", 0, 9, 400 << 10), 200, nicer);
        expect_heard(post("/priority", 0, 9, 10), 200, "0");
        end();
    }
}

static void one_thread_keeps_its_priority(void **state) {
    (void)state;
    start(1, 4 << 20);
    expect_heard(post("/priority", 0, 9, 400 << 10), 200, "0");
    end();
}

static void what_waits_of_a_key_is_bounded(void **state) {
    (void)state;
    start(1, 100000);
    int first = post("/work", 1, 1, 90000); // more than the bound passes alone
    EXPECT(comes_to(&s.begun, 1));
    int second = post("/work", 1, 2, 90000), third = post("/work", 1, 3, 20000), other = post("/work", 2, 4, 20000);
    expect_heard(third, 503, "no room");
    open_gate();
    expect_heard(first, 200, "1: 90000");
    expect_heard(second, 200, "2: 90000");
    expect_heard(other, 200, "4: 20000");
    EXPECT_EQ(s.refused, 1);
    expect_heard(post("/work", 1, 5, 200000), 200, "5: 200000"); // and alone
    end();
}

static void who_leaves_while_he_waits_is_not_worked_for(void **state) {
    (void)state;
    start(1, 1 << 20);
    int first = post("/work", 0, 1, 10), second = post("/work", 0, 2, 10), third = post("/work", 0, 3, 10);
    EXPECT(comes_to(&s.begun, 1));
    const struct linger reset = {1, 0};
    setsockopt(second, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(second);
    struct heard a =
        ask(s.port, "GET /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); // the thread has seen it by then
    EXPECT_EQ(a.status, 200);
    heard_release(&a);
    open_gate();
    expect_heard(first, 200, "1: 10");
    expect_heard(third, 200, "3: 10");
    expect_order((const int[]){1, 3}, 2);
    EXPECT(comes_to(&s.finished, 4));
    EXPECT_EQ(s.complete, 3);
    end();
}

static void who_leaves_while_he_is_worked_for_is_told_afterwards(void **state) {
    (void)state;
    start(1, 1 << 20);
    static const char *const paths[] = {"/work", "/stream", "/held"};
    for (int i = 0; i < 3; i++) {
        int before = s.begun, fd = post(paths[i], 0, i, 10);
        EXPECT(comes_to(&s.begun, before + 1));
        const struct linger reset = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        struct heard a = ask(s.port, "GET /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        heard_release(&a);
        EXPECT_EQ(s.gone, MAX(i - 1, 0)); // not yet
        open_gate();
        EXPECT(comes_to(&s.finished, 2 * (i + 1)));
        EXPECT_EQ(s.left, i + 1);
        EXPECT(comes_to(&s.gone, i)); // who answered whole had nothing more to be told
        pthread_mutex_lock(&s.lock);
        s.open = false;
        pthread_mutex_unlock(&s.lock);
    }
    end();
}

static void *open_later(void *arg) {
    usleep(300000);
    open_gate();
    return arg;
}

/* Longer than http_stop has patience: what is worked on and what waits is freed by those who come last. */
static void a_server_stops_although_it_is_worked_for(void **state) {
    (void)state;
    start(1, 1 << 20);
    int held = post("/held", 0, 1, 10), waits = post("/work", 0, 2, 10);
    EXPECT(comes_to(&s.begun, 1));
    pthread_t opener;
    EXPECT(pthread_create(&opener, NULL, open_later, NULL) == 0);
    http_hurry(s.server);
    http_hurry(s.server); // nor for what is told
    http_stop(s.server, 0);
    prep_pool_close(s.pool);
    http_free(s.server);
    pthread_join(opener, NULL);
    expect_order((const int[]){1}, 1);
    close(held);
    close(waits);
}

static void a_half_closed_client_gets_its_answer(void **state) {
    (void)state;
    start(1, 1 << 20);
    int fd = post("/work", 0, 1, 10);
    shutdown(fd, SHUT_WR);
    EXPECT(comes_to(&s.begun, 1));
    usleep(20000);
    open_gate();
    expect_heard(fd, 200, "1: 10");
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_of_the_same_thread_do_not_wait),
        cmocka_unit_test(a_stream_begins_elsewhere),
        cmocka_unit_test(who_sends_much_waits_behind_himself),
        cmocka_unit_test(small_ones_do_not_wait_for_large_ones),
        cmocka_unit_test(large_ones_are_read_at_a_lower_priority),
        cmocka_unit_test(one_thread_keeps_its_priority),
        cmocka_unit_test(what_waits_of_a_key_is_bounded),
        cmocka_unit_test(who_leaves_while_he_waits_is_not_worked_for),
        cmocka_unit_test(who_leaves_while_he_is_worked_for_is_told_afterwards),
        cmocka_unit_test(a_server_stops_although_it_is_worked_for),
        cmocka_unit_test(a_half_closed_client_gets_its_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
