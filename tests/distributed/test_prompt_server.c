/* test_prompt_server.c - the prefill role and those who ask it, as they come, go and stay: over TCP on the loopback. */
#include "check.h"
#include "handover_rig.h"

#include "base/clock.h"
#include "base/random.h"
#include "dist/wire.h"
#include "engine/engine.h"
#include "engine/lanes/lane.h"
#include "engine/roles/handover.h"
#include "engine/roles/prompt_server.h"
#include "engine/roles/prompt_wire.h"
#include "engine/roles/roles.h"

#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCK = 16, PROMPT = 600, IDENTITY = 42, SECOND_US = 1000000 };

static void no_news(void *context, struct answer *a) { (void)context, (void)a; }

static struct gyre *open_engine(const struct backend_ops *backend) {
    struct gyre_options o = {.model = "tests/models/llama",
                             .backend = backend,
                             .n_threads = 1,
                             .block_size = BLOCK,
                             .max_batched_tokens = 64,
                             .max_seqs = 2};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

static struct service *open_service(const struct backend_ops *backend) {
    struct service *s;
    struct gyre_error err;
    EXPECT_OK(service_open(open_engine(backend), &(struct service_options){.news = no_news}, &s, &err), err);
    return s;
}

struct rig {
    struct service *service;
    struct prompt_server *server;
    char address[32];
};

static void open_rig_on(const struct backend_ops *backend, struct rig *r, int64_t patience_us, int64_t idle_us) {
    struct prompt_server_options o = {"127.0.0.1:0", IDENTITY, patience_us, idle_us};
    struct error err;
    int port;
    r->service = open_service(backend);
    EXPECT_OK(prompt_server_open(service_lane(r->service), &o, &r->server, &port, &err), err);
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", port);
}

static void open_rig(struct rig *r, int64_t patience_us, int64_t idle_us) {
    open_rig_on(&backend_cpu, r, patience_us, idle_us);
}

static void close_rig(struct rig *r) {
    prompt_server_close(r->server);
    service_close(r->service);
}

static struct wire *connect_to(const char *address) {
    struct wire *w;
    struct error err;
    EXPECT_OK(wire_connect(address, 5000, &w, &err), err);
    return w;
}

static enum status send_ask(struct wire *w, struct prompt_ask q, uint64_t which, struct error *err) {
    struct buf bytes = {0};
    buf_append(&bytes, &q, sizeof q);
    for (int i = 0; i < q.n; i++) {
        int32_t token = 3 + (int32_t)(philox_uniform(test_seed(), (uint64_t)i, which) * 1000);
        buf_append(&bytes, &token, sizeof token);
    }
    enum status st = wire_send(w, PROMPT_ASK, buf_view(&bytes), clock_us() + 30 * SECOND_US, err);
    buf_release(&bytes);
    return st;
}

/* All parts, one behind the other; of what kind the last one is. */
static enum status receive_all(struct wire *w, uint32_t *kind, struct buf *bytes, int *n_parts, struct error *err) {
    enum status st;
    *n_parts = 0;
    while ((st = wire_receive(w, kind, bytes, 1 << 30, clock_us() + 60 * SECOND_US, err)) == OK && *kind == PROMPT_PART)
        ++*n_parts;
    return st;
}

static enum status ask(struct wire *w, uint64_t which, uint32_t *kind, struct error *err) {
    struct buf bytes = {0};
    int n_parts;
    enum status st = send_ask(w, (struct prompt_ask){.identity = IDENTITY, .n = PROMPT}, which, err);
    if (st == OK)
        st = receive_all(w, kind, &bytes, &n_parts, err);
    EXPECT(st != OK || *kind != PROMPT_CACHE || bytes.len > PROMPT * 1000);
    buf_release(&bytes);
    return st;
}

static void expect_told(struct wire *w, struct prompt_ask q, uint32_t as, const char *why) {
    struct error err;
    struct buf bytes = {0};
    uint32_t kind;
    EXPECT_OK(send_ask(w, q, 1, &err), err);
    EXPECT_OK(wire_receive(w, &kind, &bytes, 1000, clock_us() + 30 * SECOND_US, &err), err);
    EXPECT_EQ(kind, as);
    EXPECT(strstr(bytes.ptr, why));
    buf_release(&bytes);
}

static void expect_given(struct wire *w, uint64_t which) {
    struct error err;
    uint32_t kind;
    EXPECT_OK(ask(w, which, &kind, &err), err);
    EXPECT_EQ(kind, PROMPT_CACHE);
}

static bool is_shut(struct wire *w, int64_t within_us) {
    struct error err;
    struct buf bytes = {0};
    uint32_t kind;
    int64_t until_us = clock_us() + within_us;
    bool is = wire_receive(w, &kind, &bytes, 100, until_us, &err) != OK && clock_us() < until_us;
    buf_release(&bytes);
    return is;
}

/* Who is full may be asked again at once. */
static void why_there_is_no_cache_is_told(void **state) {
    (void)state;
    struct rig r;
    open_rig(&r, 0, 0);
    struct wire *w = connect_to(r.address);
    struct prompt_ask q = {.identity = IDENTITY, .n = PROMPT}, other = q, rest = q;
    other.identity++;
    rest.from = PROMPT / BLOCK;
    expect_told(w, other, PROMPT_NOTHING, "another model");
    expect_told(w, rest, PROMPT_FULL, "no more than");
    expect_given(w, 1);
    wire_close(w);
    close_rig(&r);
}

/* A prompt of ten steps: each part holds what follows the one before, and all of it is taken. */
static void expect_parts(const struct backend_ops *giver, int least_parts) {
    struct rig r;
    struct service *taker = open_service(&backend_cpu);
    struct wire *w;
    struct error err;
    int n_parts = 0;
    open_rig_on(giver, &r, 0, 0);
    w = connect_to(r.address);
    int32_t text[PROMPT], n;
    for (int i = 0; i < PROMPT; i++)
        text[i] = 3 + (int32_t)(philox_uniform(test_seed(), (uint64_t)i, 7) * 1000);
    struct handover_prompt p = {text, PROMPT, 0, IDENTITY};
    struct gyre *g = lane_engine(service_lane(taker)); // which is idle
    uint32_t kind = PROMPT_PART;
    EXPECT_OK(send_ask(w, (struct prompt_ask){.identity = IDENTITY, .n = PROMPT}, 7, &err), err);
    while (kind == PROMPT_PART) {
        struct buf bytes = {0};
        int32_t before = handover_known(g, &p);
        EXPECT_OK(wire_receive(w, &kind, &bytes, 1 << 30, clock_us() + 60 * SECOND_US, &err), err);
        EXPECT(kind == PROMPT_PART || kind == PROMPT_CACHE);
        n_parts += kind == PROMPT_PART;
        if (bytes.len == 0)
            break;
        EXPECT(handover_take(g, &p, (struct str){bytes.ptr, bytes.len - 1}, &n, &err) == ERR_FORMAT);
        EXPECT_OK(handover_take(g, &p, buf_view(&bytes), &n, &err), err);
        EXPECT(n > before);
        buf_release(&bytes);
    }
    EXPECT_EQ(kind, PROMPT_CACHE);
    EXPECT(n_parts >= least_parts);
    EXPECT_EQ(handover_known(g, &p), (PROMPT - 1) / BLOCK);
    wire_close(w);
    close_rig(&r);
    service_close(taker);
}

static void a_prompt_comes_as_it_is_computed(void **state) {
    (void)state;
    expect_parts(&backend_cpu, 2);
}

static _Atomic int n_gets; // by threads of askers

/* Once, in the middle of a part. */
static enum status get_or_fail(struct loaded *l, int group, const int32_t *blocks, int n, void *out, size_t stride,
                               struct error *err) {
    enum status st = backend_cpu.handover->get(l, group, blocks, n, out, stride, err);
    return ++n_gets == 1 ? fail(err, ERR_DEVICE, "a fault") : st;
}

/* What there was of it is no beginning of the next one. */
static void a_part_that_fails_leaves_nothing(void **state) {
    (void)state;
    static struct backend_ops failing; // outlives a test that fails
    static struct backend_handover handover;
    failing = backend_cpu;
    handover = *backend_cpu.handover;
    handover.get = get_or_fail;
    failing.handover = &handover;
    n_gets = 0;
    expect_parts(&failing, 1);
    EXPECT(n_gets > 1);
}

static void compute(struct gyre *g, const int32_t *prompt, int n) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_event e[8];
    struct gyre_error err;
    uint64_t id;
    q.prompt = prompt, q.n_prompt = n, q.max_tokens = 0;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    while (gyre_busy(g))
        gyre_poll(g, e, 8);
}

static void send_part(struct wire *w, uint32_t kind, const struct buf *part) {
    struct error err;
    EXPECT_OK(wire_send(w, kind, buf_view(part), clock_us() + 30 * SECOND_US, &err), err);
}

struct watched {
    struct handover_prompt prompt;
    int32_t n;
};

static void watch(struct gyre *g, void *context) {
    struct watched *w = context;
    w->n = handover_known(g, &w->prompt);
}

static void await_blocks(struct service *s, struct handover_prompt p, int32_t n) {
    struct watched w = {.prompt = p};
    for (int64_t until_us = clock_us() + 60 * SECOND_US; w.n < n; usleep(1000)) {
        EXPECT(clock_us() < until_us);
        EXPECT(lane_errand(service_lane(s), watch, &w));
    }
}

/* The test is the prefill server: one has two parts of the text before the other has its first. */
static void who_fetch_the_same_take_nothing_from_each_other(void **state) {
    (void)state;
    static const int ends[] = {8, 16, (PROMPT - 1) / BLOCK};
    struct service *taker = open_service(&backend_cpu);
    struct gyre *giver = open_engine(&backend_cpu);
    struct service_state now = {0};
    struct buf parts[3] = {{0}}, question = {0};
    struct answer *answers[2];
    struct wire *w[2];
    struct error err;
    int32_t text[PROMPT];
    uint32_t kind;
    char address[32];
    int fd, port;
    for (int i = 0; i < PROMPT; i++)
        text[i] = 3 + (int32_t)(philox_uniform(test_seed(), (uint64_t)i, 11) * 1000);
    struct handover_prompt p = {text, PROMPT, 0, IDENTITY};
    for (int i = 0; i < 3; i++) {
        compute(giver, text, MIN(ends[i] * BLOCK + 1, PROMPT));
        EXPECT_OK(handover_give(giver, &p, i ? ends[i - 1] : 0, SIZE_MAX, &parts[i], &err), err);
    }
    EXPECT_OK(wire_listen("127.0.0.1:0", &fd, &port, &err), err);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    struct prompt_fetch_options o = {address, IDENTITY, BLOCK, 60 * SECOND_US};
    EXPECT_OK(service_fetch_prompts(taker, &o, &err), err);
    struct gyre_request q = gyre_request_default(lane_engine(service_lane(taker)));
    q.prompt = text, q.n_prompt = PROMPT, q.max_tokens = 1;
    for (int i = 0; i < 2; i++) {
        struct gyre_error e;
        EXPECT_OK(service_submit(taker, &q, NULL, &answers[i], &e), e);
        EXPECT_OK(wire_accept(fd, &w[i], &err), err);
        EXPECT_OK(wire_receive(w[i], &kind, &question, 1 << 20, clock_us() + 30 * SECOND_US, &err), err);
        EXPECT_EQ(kind, PROMPT_ASK);
        buf_clear(&question);
    }
    for (int i = 0; i < 2; i++) {
        send_part(w[i], PROMPT_PART, &parts[0]), send_part(w[i], PROMPT_PART, &parts[1]);
        await_blocks(taker, p, ends[1]);
    }
    send_part(w[0], PROMPT_CACHE, &parts[2]), send_part(w[1], PROMPT_CACHE, &parts[2]);
    for (int64_t until_us = clock_us() + 60 * SECOND_US; now.n_fetched_prompts + now.n_failed_fetches < 2;
         usleep(1000)) {
        EXPECT(clock_us() < until_us);
        service_state(taker, &now);
    }
    EXPECT_EQ(now.n_failed_fetches, 0);
    EXPECT_EQ(now.n_fetched_tokens, 2 * ends[2] * BLOCK);
    service_close(taker);
    gyre_close(giver);
    for (int i = 0; i < 2; i++)
        wire_close(w[i]);
    wire_close_listening(fd);
    for (int i = 0; i < 3; i++)
        buf_release(&parts[i]);
    buf_release(&question);
}

/* Bytes of no whole frame. */
static int begin_question(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1));
    EXPECT(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && send(fd, "gyrWire1", 8, 0) == 8);
    return fd;
}

static void a_question_that_has_begun_is_not_waited_for(void **state) {
    (void)state;
    struct rig r;
    open_rig(&r, SECOND_US / 5, 0);
    struct timeval most = {10, 0};
    struct wire *silent = connect_to(r.address);
    int half = begin_question(r.address);
    char byte;
    setsockopt(half, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    EXPECT_EQ(recv(half, &byte, 1, 0), 0);
    EXPECT(!is_shut(silent, SECOND_US / 2)); // nothing has begun: it may come
    close(half);
    wire_close(silent);
    close_rig(&r);
}

static void who_says_nothing_makes_room_for_who_comes(void **state) {
    (void)state;
    struct rig r;
    struct wire *silent[MOST_ASKERS], *late[4];
    open_rig(&r, 0, 0);
    for (int i = 0; i < MOST_ASKERS; i++)
        silent[i] = connect_to(r.address);
    expect_given(silent[0], 1); // so that the next one is idle longest
    for (int i = 1; i <= 3; i++) {
        late[i] = connect_to(r.address);
        expect_given(late[i], 1);
        EXPECT(is_shut(silent[i], 10 * SECOND_US));
        EXPECT(!is_shut(silent[i + 1], SECOND_US / 20));
    }
    expect_given(silent[0], 1);
    for (int i = 1; i <= 3; i++)
        wire_close(late[i]);
    for (int i = 0; i < MOST_ASKERS; i++)
        wire_close(silent[i]);
    close_rig(&r);
}

/* Half a question holds neither a place nor the engine. */
static void who_asks_half_makes_room_for_who_comes(void **state) {
    (void)state;
    struct rig r;
    int half[MOST_ASKERS];
    char byte;
    open_rig(&r, 0, 0);
    for (int i = 0; i < MOST_ASKERS; i++)
        half[i] = begin_question(r.address);
    struct wire *w = connect_to(r.address);
    int64_t began_us = clock_us();
    expect_given(w, 1);
    EXPECT(clock_us() - began_us < 50 * SECOND_US); // of 60 that a question may take
    EXPECT_EQ(recv(half[0], &byte, 1, 0), 0);
    EXPECT(recv(half[1], &byte, 1, MSG_DONTWAIT) < 0);
    for (int i = 0; i < MOST_ASKERS; i++)
        close(half[i]);
    wire_close(w);
    close_rig(&r);
}

static size_t bytes_in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void no_connection_keeps_what_it_was_given(void **state) {
    (void)state;
    enum { N = 8, BYTES = PROMPT * 1000 };
    struct rig r;
    struct wire *w[N];
    open_rig(&r, 0, 0);
    for (int i = 0; i < N; i++)
        w[i] = connect_to(r.address);
    expect_given(w[0], 1);
    usleep(50000);
    size_t before = bytes_in_use();
    for (int i = 1; i < N; i++)
        expect_given(w[i], 1);
    int64_t until_us = clock_us() + 5 * SECOND_US;
    while (bytes_in_use() > before + BYTES && clock_us() < until_us)
        usleep(1000);
    EXPECT(bytes_in_use() <= before + BYTES);
    for (int i = 0; i < N; i++)
        wire_close(w[i]);
    close_rig(&r);
}

/* Of the system, which cannot be seen to do it without a host that loses its power. */
static void peers_are_asked_whether_they_are_there(void **state) {
    (void)state;
    struct error err;
    int fd, port, n_asked = 0;
    char address[32];
    struct wire *one, *other;
    EXPECT_OK(wire_listen("127.0.0.1:0", &fd, &port, &err), err);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    one = connect_to(address);
    EXPECT_OK(wire_accept(fd, &other, &err), err);
    for (int i = 0; i < 256; i++) {
        int is_asked = 0;
        unsigned gone_ms = 0;
        struct sockaddr_in peer;
        socklen_t n = sizeof peer, size = sizeof is_asked;
        if (getpeername(i, (struct sockaddr *)&peer, &n) != 0 ||
            getsockopt(i, SOL_SOCKET, SO_KEEPALIVE, &is_asked, &size))
            continue;
        EXPECT(getsockopt(i, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms, &size) == 0);
        n_asked += is_asked && gone_ms == WIRE_GONE_S * 1000;
    }
    EXPECT_EQ(n_asked, 2);
    wire_close(one), wire_close(other);
    wire_close_listening(fd);
}

/* Many wait for their prompts: those are cancelled, not computed. */
static void an_end_does_not_wait_for_prompts(void **state) {
    (void)state;
    enum { N = 24, LONG = 1900 };
    struct wire *w[N];
    struct service *s = open_service(&backend_cpu);
    struct prompt_ask q = {.identity = IDENTITY, .n = LONG};
    struct error err;
    struct service_state now = {0};
    char address[32];
    int port;
    EXPECT_OK(service_give_prompts(s, "127.0.0.1:0", IDENTITY, &port, &err), err);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    for (int i = 0; i < N; i++)
        w[i] = connect_to(address);
    int64_t began_us = clock_us();
    struct buf bytes = {0};
    uint32_t kind;
    EXPECT_OK(send_ask(w[0], q, 100, &err), err);
    EXPECT_OK(receive_all(w[0], &kind, &bytes, &(int){0}, &err), err);
    EXPECT_EQ(kind, PROMPT_CACHE);
    int64_t one_us = clock_us() - began_us;
    for (int i = 0; i < N; i++)
        EXPECT_OK(send_ask(w[i], q, 101 + (uint64_t)i, &err), err);
    for (int64_t until_us = clock_us() + 10 * SECOND_US; now.n_running + now.n_waiting < N / 2; usleep(1000)) {
        EXPECT(clock_us() < until_us);
        service_state(s, &now);
    }
    began_us = clock_us();
    service_close(s);
    int64_t end_us = clock_us() - began_us;
    if (end_us > N / 4 * one_us)
        fail_msg("the end took %lld us, and one prompt %lld", (long long)end_us, (long long)one_us);
    for (int i = 0; i < N; i++)
        wire_close(w[i]);
    buf_release(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(why_there_is_no_cache_is_told),
        cmocka_unit_test(a_prompt_comes_as_it_is_computed),
        cmocka_unit_test(a_part_that_fails_leaves_nothing),
        cmocka_unit_test(who_fetch_the_same_take_nothing_from_each_other),
        cmocka_unit_test(a_question_that_has_begun_is_not_waited_for),
        cmocka_unit_test(who_says_nothing_makes_room_for_who_comes),
        cmocka_unit_test(who_asks_half_makes_room_for_who_comes),
        cmocka_unit_test(no_connection_keeps_what_it_was_given),
        cmocka_unit_test(an_end_does_not_wait_for_prompts),
        cmocka_unit_test(peers_are_asked_whether_they_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
