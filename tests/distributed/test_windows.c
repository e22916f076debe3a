/* test_windows.c - prompts handed over from device to device, of two services in one process: the toy's windows are of
 * the host's memory, and its answers say whether each block is the right one. */
#include "check.h"

#include "backend/toy/toy.h"
#include "base/clock.h"
#include "base/random.h"
#include "dist/wire.h"
#include "engine/engine.h"
#include "engine/lanes/lane.h"
#include "engine/roles/prompt_wire.h"
#include "engine/roles/roles.h"

#include <stdio.h>
#include <unistd.h>

enum { BLOCK = 16, PROMPT = 900, ANSWER = 12, IDENTITY = 42, SECOND_US = 1000000 };

static void no_news(void *context, struct answer *a) { (void)context, (void)a; }

static struct service *open_service(const struct backend_ops *backend, const char *model) {
    struct gyre_options o = {
        .model = model, .backend = backend, .block_size = BLOCK, .max_batched_tokens = 256, .max_seqs = 4};
    struct gyre *g;
    struct service *s;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    EXPECT_OK(service_open(g, &(struct service_options){.news = no_news}, &s, &err), err);
    return s;
}

struct rig {
    struct service *gives, *takes, *one;
    int n_asked;
    char address[32];
};

static void open_rig(struct rig *r, const struct backend_ops *backend, const char *model) {
    struct error err;
    int port;
    *r = (struct rig){open_service(backend, model), open_service(backend, model), open_service(backend, model)};
    EXPECT_OK(service_give_prompts(r->gives, "127.0.0.1:0", IDENTITY, &port, &err), err);
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", port);
    struct prompt_fetch_options f = {r->address, IDENTITY, BLOCK, 30 * SECOND_US};
    EXPECT_OK(service_fetch_prompts(r->takes, &f, &err), err);
}

static struct service_state close_rig(struct rig *r) {
    struct service_state now;
    service_state(r->takes, &now);
    service_close(r->takes), service_close(r->gives), service_close(r->one);
    return now;
}

static struct answer *submit(struct service *s, const int32_t *text, int n) {
    struct gyre_request q = service_request_default(s);
    struct answer *a;
    struct gyre_error err;
    q.prompt = text, q.n_prompt = n, q.max_tokens = ANSWER, q.ignore_eos = true, q.temperature = 0;
    EXPECT_OK(service_submit(s, &q, NULL, &a, &err), err);
    return a;
}

static void await_end(struct answer *a) {
    for (int64_t until_us = clock_us() + 60 * SECOND_US; !a->done; usleep(1000)) {
        EXPECT(clock_us() < until_us);
        service_look(a);
    }
    EXPECT_EQ(a->finish, GYRE_LENGTH);
}

/* Some prompts at a time; each is answered as by one engine that computes all. */
static void ask_some(struct rig *r, int n) {
    int32_t text[4][PROMPT];
    struct answer *apart[4], *one[4];
    for (int i = 0; i < n; i++, r->n_asked++) {
        for (int k = 0; k < PROMPT; k++)
            text[i][k] = 3 + (int32_t)(philox_uniform(test_seed(), (uint64_t)k, (uint64_t)r->n_asked) * 1000);
        apart[i] = submit(r->takes, text[i], PROMPT - i), one[i] = submit(r->one, text[i], PROMPT - i);
    }
    for (int i = 0; i < n; i++) {
        await_end(apart[i]), await_end(one[i]);
        for (int k = 0; k < ANSWER; k++)
            EXPECT_EQ(apart[i]->tokens[k], one[i]->tokens[k]);
        service_release(r->takes, apart[i]), service_release(r->one, one[i]);
    }
}

static void prompts_come_through_windows(void **state) {
    (void)state;
    static const char *const models[] = {"tests/models/llama", "tests/models/gemma3", "tests/models/deepseek_v3"};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct rig r;
        open_rig(&r, &backend_toy, models[m]);
        for (int i = 0; i < 4; i++)
            ask_some(&r, 1 + i % 2);
        struct service_state now;
        service_state(r.takes, &now);
        EXPECT_EQ(now.n_fetched_prompts, r.n_asked);
        EXPECT(now.n_fetched_windows >= now.n_fetched_prompts);
        for (int i = 0; i < 3; i++)
            ask_some(&r, 4); // more than there are slots: some come as bytes
        now = close_rig(&r);
        EXPECT_EQ(now.n_failed_fetches, 0);
        EXPECT_EQ(now.n_fetched_prompts, r.n_asked);
    }
}

static void what_cannot_be_reached_comes_as_bytes(void **state) {
    (void)state;
    struct rig r;
    toy_faults.no_windows = true;
    open_rig(&r, &backend_toy, "tests/models/llama");
    ask_some(&r, 3), ask_some(&r, 1);
    struct service_state now = close_rig(&r);
    toy_faults.no_windows = false;
    EXPECT_EQ(now.n_failed_fetches, 0);
    EXPECT_EQ(now.n_fetched_prompts, r.n_asked);
    EXPECT_EQ(now.n_fetched_windows, 0);
}

/* A state is no block of a window. */
static void states_come_as_bytes(void **state) {
    (void)state;
    struct rig r;
    open_rig(&r, &backend_toy, "tests/models/qwen3_5");
    ask_some(&r, 2);
    struct service_state now = close_rig(&r);
    EXPECT_EQ(now.n_fetched_prompts, r.n_asked);
    EXPECT_EQ(now.n_fetched_windows, 0);
}

static struct backend_ops changed; // outlives a test that fails
static struct backend_handover handover;
static _Atomic int n_called;

static struct backend_handover *change_toy(void) {
    changed = backend_toy, handover = *backend_toy.handover;
    changed.handover = &handover;
    n_called = 0;
    return &handover;
}

static enum status late_take(struct loaded *l, const char name[WINDOW_NAME], int group, const int32_t *blocks, int n,
                             size_t at, struct error *err) {
    enum status st = backend_toy.handover->take(l, name, group, blocks, n, at, err);
    if (n_called++ == 0)
        usleep(2100000);
    return st;
}

/* The window may show something else by then: bytes come, and a window for the next prompt. */
static void what_is_copied_too_late_comes_as_bytes(void **state) {
    (void)state;
    struct rig r;
    change_toy()->take = late_take;
    open_rig(&r, &changed, "tests/models/llama");
    ask_some(&r, 1);
    struct service_state late, now;
    service_state(r.takes, &late);
    ask_some(&r, 1);
    now = close_rig(&r);
    EXPECT_EQ(late.n_fetched_windows, 0);
    EXPECT(now.n_fetched_windows > 0);
    EXPECT_EQ(now.n_failed_fetches, 0);
    EXPECT_EQ(now.n_fetched_prompts, 2);
}

static enum status late_show(struct loaded *l, int group, const int32_t *blocks, int n, size_t at, struct error *err) {
    if (n_called++ == 0)
        usleep(2100000);
    return backend_toy.handover->show(l, group, blocks, n, at, err);
}

static void the_time_is_counted_from_when_blocks_are_shown(void **state) {
    (void)state;
    struct rig r;
    change_toy()->show = late_show;
    open_rig(&r, &changed, "tests/models/llama");
    ask_some(&r, 1);
    struct service_state now = close_rig(&r);
    EXPECT_EQ(now.n_failed_fetches, 0);
    EXPECT(now.n_fetched_windows >= 1);
}

static enum status no_share(struct loaded *l, char name[WINDOW_NAME], struct error *err) {
    (void)l, (void)name, n_called++;
    return fail(err, ERR_UNSUPPORTED, "no memory for a window");
}

static void memory_for_a_window_is_asked_for_once(void **state) {
    (void)state;
    struct rig r;
    change_toy()->share = no_share;
    open_rig(&r, &changed, "tests/models/llama");
    for (int i = 0; i < 3; i++)
        ask_some(&r, 1);
    struct service_state now = close_rig(&r);
    EXPECT_EQ(n_called, 1);
    EXPECT_EQ(now.n_failed_fetches, 0);
    EXPECT_EQ(now.n_fetched_windows, 0);
    EXPECT_EQ(now.n_fetched_prompts, 3);
}

static void count_leave(struct loaded *l) { (void)l, n_called++; }

static void no_window_of_who_is_gone_is_kept_open(void **state) {
    (void)state;
    struct rig r;
    change_toy()->leave = count_leave;
    open_rig(&r, &changed, "tests/models/llama");
    ask_some(&r, 1);
    EXPECT_EQ(n_called, 0);
    service_close(r.gives);
    r.gives = open_service(&backend_toy, "tests/models/llama");
    ask_some(&r, 1);
    EXPECT(n_called > 0);
    close_rig(&r);
}

/* What it shows first; the asker has it then. */
static uint32_t ask_alone(struct rig *r, struct wire **w) {
    struct buf question = {0}, answer = {0};
    struct error err;
    uint32_t kind;
    struct prompt_ask q = {.identity = IDENTITY, .host = prompt_host(), .n = PROMPT};
    buf_append(&question, &q, sizeof q);
    r->n_asked++;
    for (int32_t k = 0; k < PROMPT; k++) {
        int32_t token = 3 + (k * 7 + r->n_asked * 131) % 1000;
        buf_append(&question, &token, sizeof token);
    }
    EXPECT_OK(wire_connect(r->address, 10000, w, &err), err);
    EXPECT_OK(wire_send(*w, PROMPT_ASK, buf_view(&question), clock_us() + 30 * SECOND_US, &err), err);
    EXPECT_OK(wire_receive(*w, &kind, &answer, 1 << 30, clock_us() + 30 * SECOND_US, &err), err);
    buf_release(&question), buf_release(&answer);
    return kind;
}

/* Who leaves may still copy: its part of the window is nobody's until its time is over, but nobody waits for that. */
static void who_leaves_is_not_waited_for(void **state) {
    (void)state;
    struct rig r;
    struct wire *w[3];
    open_rig(&r, &backend_toy, "tests/models/llama");
    int64_t began_us = clock_us();
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(ask_alone(&r, &w[i]), PROMPT_WINDOW);
        wire_close(w[i]);
    }
    uint32_t kind = ask_alone(&r, &w[2]);
    EXPECT(kind == PROMPT_PART || clock_us() - began_us > 2 * SECOND_US); // the machine was away
    wire_close(w[2]);
    int64_t left_us = clock_us();
    close_rig(&r);
    EXPECT(clock_us() - left_us < 3 * SECOND_US / 2 || left_us - began_us > SECOND_US / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_come_through_windows),
        cmocka_unit_test(what_cannot_be_reached_comes_as_bytes),
        cmocka_unit_test(states_come_as_bytes),
        cmocka_unit_test(what_is_copied_too_late_comes_as_bytes),
        cmocka_unit_test(the_time_is_counted_from_when_blocks_are_shown),
        cmocka_unit_test(memory_for_a_window_is_asked_for_once),
        cmocka_unit_test(no_window_of_who_is_gone_is_kept_open),
        cmocka_unit_test(who_leaves_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
