/* test_prompt_fetch.c - the decode role against a prefill server that is the test: one that hangs while clients leave.
 * Over TCP on the loopback. */
#include "check.h"

#include "base/clock.h"
#include "base/random.h"
#include "dist/wire.h"
#include "engine/engine.h"
#include "engine/roles/prompt_wire.h"
#include "engine/roles/roles.h"

#include <stdio.h>
#include <unistd.h>

enum { BLOCK = 16, PROMPT = 100, IDENTITY = 42, SECOND_US = 1000000, TIMEOUT_US = 3 * SECOND_US };

static void no_news(void *context, struct answer *a) { (void)context, (void)a; }

struct rig {
    struct service *service;
    int fd; // listened on
    uint64_t n_asked;
};

static void open_rig(struct rig *r) {
    struct gyre_options o = {.model = "tests/models/llama",
                             .backend = &backend_cpu,
                             .n_threads = 1,
                             .block_size = BLOCK,
                             .max_batched_tokens = 64,
                             .max_seqs = 2};
    struct gyre *g;
    struct gyre_error e;
    struct error err;
    char address[32];
    int port;
    EXPECT_OK(gyre_open(&o, &g, &e), e);
    EXPECT_OK(service_open(g, &(struct service_options){.news = no_news}, &r->service, &e), e);
    EXPECT_OK(wire_listen("127.0.0.1:0", &r->fd, &port, &err), err);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    struct prompt_fetch_options f = {address, IDENTITY, BLOCK, TIMEOUT_US};
    EXPECT_OK(service_fetch_prompts(r->service, &f, &err), err);
    r->n_asked = 0;
}

static void close_rig(struct rig *r) {
    service_close(r->service);
    wire_close_listening(r->fd);
}

static int64_t n_failed(struct rig *r) {
    struct service_state now;
    service_state(r->service, &now);
    return now.n_failed_fetches;
}

static struct answer *submit(struct rig *r) {
    struct gyre_request q = service_request_default(r->service);
    struct answer *a;
    struct gyre_error err;
    int32_t text[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        text[i] = 3 + (int32_t)(philox_uniform(test_seed(), (uint64_t)i, r->n_asked) * 1000);
    r->n_asked++;
    q.prompt = text, q.n_prompt = PROMPT, q.max_tokens = 1;
    EXPECT_OK(service_submit(r->service, &q, NULL, &a, &err), err);
    return a;
}

static struct wire *hear_question(struct rig *r) {
    struct wire *w;
    struct buf question = {0};
    struct error err;
    uint32_t kind;
    EXPECT(wire_comes(r->fd, 20000)); // a machine that was away for seconds makes the server rest
    EXPECT_OK(wire_accept(r->fd, &w, &err), err);
    EXPECT_OK(wire_receive(w, &kind, &question, 1 << 20, clock_us() + 30 * SECOND_US, &err), err);
    EXPECT_EQ(kind, PROMPT_ASK);
    buf_release(&question);
    return w;
}

static void end(struct rig *r, struct answer *a) {
    for (int64_t until_us = clock_us() + 60 * SECOND_US; !a->done; usleep(1000)) {
        EXPECT(clock_us() < until_us);
        service_look(a);
    }
    service_release(r->service, a);
}

/* For `us` and a little more, which is added to *most_us. */
static void leave_after(struct rig *r, int64_t us, int64_t *most_us) {
    int64_t began_us = clock_us();
    struct answer *a = submit(r);
    struct wire *w = hear_question(r);
    usleep((useconds_t)us);
    service_cancel(r->service, a);
    end(r, a);
    wire_close(w);
    *most_us += clock_us() - began_us;
}

static void a_server_that_hangs_rests_though_clients_leave(void **state) {
    (void)state;
    struct rig r;
    int64_t most_us = 0;
    open_rig(&r);
    for (int i = 0; i < 3; i++) {
        if (most_us < TIMEOUT_US)
            EXPECT_EQ(n_failed(&r), 0);
        leave_after(&r, TIMEOUT_US / 3, &most_us);
    }
    EXPECT_EQ(n_failed(&r), 1);
    int64_t left_us = clock_us();
    struct answer *a = submit(&r);
    bool is_late = clock_us() - left_us > 4 * SECOND_US; // it rests for 5: the machine was away
    end(&r, a);
    EXPECT(is_late || n_failed(&r) == 1); // who is not asked is not late
    close_rig(&r);
}

/* A word between says that it is well: what came before it counts no more. */
static void a_server_that_speaks_does_not_rest(void **state) {
    (void)state;
    struct rig r;
    struct error err;
    open_rig(&r);
    for (int i = 0; i < 2; i++) {
        int64_t most_us = 0;
        leave_after(&r, TIMEOUT_US / 2, &most_us);
        if (most_us < TIMEOUT_US)
            EXPECT_EQ(n_failed(&r), i);
        struct answer *a = submit(&r);
        struct wire *w = hear_question(&r);
        EXPECT_OK(wire_send(w, PROMPT_FULL, str_of("no room"), clock_us() + SECOND_US, &err), err);
        end(&r, a);
        wire_close(w);
        if (most_us >= TIMEOUT_US) // the machine was away
            break;
        EXPECT_EQ(n_failed(&r), i + 1); // for each that was told that there is no room
    }
    close_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_hangs_rests_though_clients_leave),
        cmocka_unit_test(a_server_that_speaks_does_not_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
