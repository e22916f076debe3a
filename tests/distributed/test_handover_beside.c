/* test_handover_beside.c - a cache handed over while steps of both engines are in flight: by the toy, which computes
 * nothing before a step is collected and ends the program where a block is not what it should be. */
#include "check.h"

#include "backend/toy/toy.h"
#include "base/clock.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/roles/handover.h"
#include "engine/roles/visit.h"
#include "engine/service.h"
#include "sched/kv_handover.h"

#include <stdlib.h>
#include <unistd.h>

enum { PROMPT = 150, ANSWER = 12, BLOCK = 16, WHOLE = (PROMPT - 1) / BLOCK, MOST = 4096 };

static const char *const models[] = {"tests/models/llama", "tests/models/gemma3", "tests/models/deepseek_v3",
                                     "tests/models/qwen3_5"};

static const int64_t tight[] = {32 * 128, 6000, 4500, 6500}; // bytes of a cache with room for three texts or so

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 1) * n); }

static struct gyre *open_with(const struct backend_ops *backend, const char *model, int64_t cache_bytes) {
    struct gyre_options o = {.model = model,
                             .backend = backend,
                             .block_size = BLOCK,
                             .max_batched_tokens = 96,
                             .max_seqs = 3,
                             .max_model_len = 2 * PROMPT,
                             .kv_cache_bytes = cache_bytes};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

struct outcome {
    int32_t tokens[ANSWER];
    int n;
    bool is_done;
};

static void submit(struct gyre *g, const int32_t *prompt, int n, int max_tokens, struct outcome *o) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    *o = (struct outcome){0};
    q.prompt = prompt, q.n_prompt = n, q.max_tokens = max_tokens, q.ignore_eos = true, q.temperature = 0, q.user = o;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
}

static void poll_once(struct gyre *g) {
    struct gyre_event e[8];
    for (int i = 0, n = gyre_poll(g, e, 8); i < n; i++) {
        struct outcome *o = e[i].user;
        EXPECT(e[i].kind != GYRE_DONE || e[i].finish == GYRE_LENGTH);
        if (e[i].kind == GYRE_TOKEN)
            o->tokens[o->n++] = e[i].token;
        if (e[i].kind == GYRE_DONE)
            o->is_done = true;
    }
}

static void fill(int32_t *text, int n, const struct gyre *g) {
    for (int i = 0; i < n; i++)
        text[i] = below(((struct gyre *)g)->info.vocab_size);
}

/* What else the engine has to do, so that steps are always in flight: texts that nobody hands over. */
struct traffic {
    struct gyre *g;
    int32_t text[2][PROMPT];
    struct outcome of[2];
    int64_t n_ended;
};

static void go_on(struct traffic *t) {
    for (int i = 0; i < 2; i++)
        if (!t->text[i][0] || t->of[i].is_done) {
            t->n_ended += t->of[i].is_done;
            fill(t->text[i], PROMPT, t->g);
            t->text[i][0] = 1;
            submit(t->g, t->text[i], 1 + below(PROMPT), 1 + below(ANSWER), &t->of[i]);
        }
    poll_once(t->g);
}

static void go_on_until_settled(struct traffic *t, struct handover_visit *v, int *n_waits) {
    struct error err;
    for (bool settles;; ++*n_waits) {
        EXPECT_OK(handover_settles(v, &settles, &err), err);
        if (settles)
            return;
        go_on(t);
    }
}

static void some_steps(struct traffic *t) {
    for (int n = below(4); n > 0; n--)
        go_on(t);
}

/* false: there is no room for it now. */
static bool take(struct traffic *b, const struct handover_prompt *p, struct str bytes, int *n_waits) {
    struct handover_visit v;
    struct error err;
    EXPECT_OK(handover_check_bytes(b->g, p, bytes, &err), err);
    enum status st = handover_make_room(b->g, p, bytes, &v, &err);
    EXPECT(st == OK || st == ERR_FULL);
    if (st != OK)
        return false;
    go_on_until_settled(b, &v, n_waits);
    some_steps(b);
    EXPECT_OK(handover_write(&v, bytes, &err), err);
    some_steps(b);
    handover_adopt(&v);
    return true;
}

/* Part by part while the prompt is computed; what of it was taken over. */
static int hand_over(struct traffic *a, struct traffic *b, const struct handover_prompt *p, struct outcome *computed,
                     int *n_waits) {
    int from = handover_known(b->g, p);
    struct buf bytes = {0};
    for (bool was_done = false; !was_done;) {
        struct handover_visit v;
        struct error err;
        was_done = computed->is_done;
        some_steps(a);
        if (handover_hold(a->g, p, from, &v, &err) != OK) {
            go_on(a);
            continue;
        }
        go_on_until_settled(a, &v, n_waits);
        buf_clear(&bytes);
        some_steps(a);
        struct handover_part part = handover_part(&v, from, (size_t)below(200000));
        EXPECT_OK(handover_read(&v, part, SIZE_MAX, &bytes, &err), err);
        int end = part.end;
        handover_end(&v);
        some_steps(b);
        if (!take(b, p, buf_view(&bytes), n_waits))
            break;
        from = end;
        was_done = false;
    }
    buf_release(&bytes);
    return from;
}

static void expect_same(const struct outcome *a, const struct outcome *b, const char *where) {
    EXPECT_EQ(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        if (a->tokens[i] != b->tokens[i])
            fail_msg("%s: token %d is %d, and %d of one engine", where, i, a->tokens[i], b->tokens[i]);
}

/* The taker's cache holds a few texts only, so that its blocks are given and taken all the time. */
static void blocks_move_while_steps_are_in_flight(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct gyre *c = open_with(&backend_toy, models[m], 0);
        static struct traffic a, b, none;
        int n_waits = 0, n_taken = 0;
        a = b = none;
        a.g = open_with(&backend_toy, models[m], 0), b.g = open_with(&backend_toy, models[m], tight[m]);
        EXPECT(a.g->ops->max_in_flight > 1);
        for (int turn = 0; turn < 40; turn++) {
            int32_t text[PROMPT];
            struct outcome computed, apart, one;
            fill(text, PROMPT, c);
            struct handover_prompt p = {text, PROMPT, 0, 42};
            submit(a.g, text, PROMPT, 0, &computed);
            n_taken += hand_over(&a, &b, &p, &computed, &n_waits);
            while (!computed.is_done)
                go_on(&a);
            submit(b.g, text, PROMPT, ANSWER, &apart);
            while (!apart.is_done)
                go_on(&b);
            submit(c, text, PROMPT, ANSWER, &one);
            while (!one.is_done)
                poll_once(c);
            expect_same(&apart, &one, models[m]);
        }
        print_message("%s: %d blocks taken, %d waits for steps, %lld other texts\n", models[m], n_taken, n_waits,
                      (long long)(a.n_ended + b.n_ended));
        EXPECT(n_taken > 0 && n_waits > 0);
        gyre_close(a.g), gyre_close(b.g), gyre_close(c);
    }
}

/* A sequence alone, which needs the blocks that a visit holds, waits until that is ended: it is not told that there is
 * no memory. */
static void who_needs_what_is_held_waits(void **state) {
    (void)state;
    struct gyre *a = open_with(&backend_toy, models[0], 0), *b = open_with(&backend_toy, models[0], 22 * 128);
    int32_t text[PROMPT], other[2 * PROMPT];
    struct handover_visit v, w;
    struct outcome o;
    struct buf bytes = {0};
    struct error err;
    bool settles;
    fill(text, PROMPT, a), fill(other, 2 * PROMPT, a);
    struct handover_prompt p = {text, PROMPT, 0, 42};
    for (submit(a, text, PROMPT, 0, &o); !o.is_done;)
        poll_once(a);
    EXPECT_OK(handover_hold(a, &p, 0, &v, &err), err);
    EXPECT_OK(handover_settles(&v, &settles, &err), err);
    EXPECT(settles);
    EXPECT_OK(handover_read(&v, handover_part(&v, 0, SIZE_MAX), SIZE_MAX, &bytes, &err), err);
    handover_end(&v);
    EXPECT_OK(handover_make_room(b, &p, buf_view(&bytes), &w, &err), err);
    EXPECT(b->pool.groups[0].blocks.n_free < 2 * PROMPT / BLOCK);
    submit(b, other, 2 * PROMPT - ANSWER, ANSWER, &o);
    for (int i = 0; i < 100; i++)
        poll_once(b);
    EXPECT(!o.is_done && o.n == 0);
    EXPECT_OK(handover_write(&w, buf_view(&bytes), &err), err);
    handover_adopt(&w);
    for (int i = 0; i < 1000 && !o.is_done; i++)
        poll_once(b);
    EXPECT(o.is_done && o.n == ANSWER);
    buf_release(&bytes);
    gyre_close(a), gyre_close(b);
}

/* Blocks that were given back while steps are in flight are written when those have been collected, and the next one
 * too, which may begin with copies of them; at once where nothing is in flight. */
static void a_block_is_written_when_steps_have_left_it(void **state) {
    (void)state;
    static const struct cache_group full = {.kind = CACHE_KV, .n_layers = 1, .n_heads = 1, .k_dim = 8, .v_dim = 8};
    struct kv_pool_options o = {.groups = &full,
                                .n_groups = 1,
                                .block_size = BLOCK,
                                .max_chunk = PROMPT,
                                .max_copies = 4,
                                .n_blocks = {WHOLE + 1},
                                .block_bytes = {1},
                                .remember_tokens = PROMPT};
    struct kv_pool pool;
    struct arena arena = {0};
    struct sequence runs, comes;
    struct error err;
    int64_t at;
    kv_pool_init(&pool, &o);
    sequence_init(&runs, &arena, PROMPT, 1, BLOCK), sequence_init(&comes, &arena, PROMPT, 1, BLOCK);
    runs.n_tokens = comes.n_tokens = comes.n_known = PROMPT;
    EXPECT_EQ(kv_pool_extend(&pool, &runs, PROMPT), OK);
    kv_pool_step_started(&pool), kv_pool_step_started(&pool);
    kv_pool_drop(&pool, &runs);
    EXPECT_OK(kv_handover_take(&pool, &comes, 0, WHOLE, &at, &err), err);
    EXPECT(!kv_pool_is_settled(&pool, at));
    kv_pool_step_started(&pool), kv_pool_step_collected(&pool), kv_pool_step_collected(&pool);
    EXPECT(!kv_pool_is_settled(&pool, at));
    kv_pool_step_started(&pool), kv_pool_step_collected(&pool);
    EXPECT(kv_pool_is_settled(&pool, at));
    kv_handover_end(&pool, &comes);
    EXPECT_OK(kv_handover_take(&pool, &comes, 0, WHOLE, &at, &err), err);
    EXPECT(!kv_pool_is_settled(&pool, at));
    kv_pool_step_collected(&pool);
    EXPECT(kv_pool_is_settled(&pool, at)); // none is in flight
    kv_handover_end(&pool, &comes);
    kv_pool_release(&pool);
    arena_release(&arena);
}

// ---- on threads -------------------------------------------------------------------------------------------------

static const int64_t COPY_US = 200000;

/* A device whose copies take long. */
static enum status slow_put(struct loaded *l, int group, const int32_t *blocks, int n, const void *in, size_t stride,
                            struct error *err) {
    usleep((useconds_t)COPY_US);
    return backend_toy.handover->put(l, group, blocks, n, in, stride, err);
}
static enum status slow_get(struct loaded *l, int group, const int32_t *blocks, int n, void *out, size_t stride,
                            struct error *err) {
    usleep((useconds_t)COPY_US);
    return backend_toy.handover->get(l, group, blocks, n, out, stride, err);
}

static void no_news(void *context, struct answer *a) { (void)context, (void)a; }

static struct service *open_service(const struct backend_ops *backend) {
    struct service *s;
    struct gyre_error err;
    EXPECT_OK(service_open(open_with(backend, models[0], 0), &(struct service_options){.news = no_news}, &s, &err),
              err);
    return s;
}

static int64_t n_steps(struct service *s) {
    struct service_state state;
    lane_state(service_lane(s), &state);
    return state.n_steps;
}

static void end_stream(struct service *s, struct answer *a) {
    service_cancel(s, a);
    for (service_look(a); !a->done; service_look(a))
        usleep(1000);
    service_release(s, a);
}

static struct answer *start_stream(struct service *s) {
    int32_t short_text[] = {5, 6, 7, 8};
    struct gyre_request r = gyre_request_default(lane_engine(service_lane(s)));
    struct answer *a;
    struct error err;
    r.prompt = short_text, r.n_prompt = 4, r.max_tokens = 2 * PROMPT - 4, r.ignore_eos = true;
    EXPECT_OK(lane_submit(service_lane(s), &r, NULL, false, &a, &err), err);
    return a;
}

/* While blocks are copied the engine's steps go on: a stream does not wait for them. */
static void a_stream_goes_on_while_blocks_are_copied(void **state) {
    (void)state;
    static struct backend_ops slow;
    static struct backend_handover handover;
    slow = backend_toy, handover = *backend_toy.handover;
    handover.put = slow_put, handover.get = slow_get;
    slow.handover = &handover;
    setenv("GYRE_TOY_STEP_US", "1000", 1);
    struct service *a = open_service(&slow), *b = open_service(&slow);
    struct service *both[] = {a, b};
    struct answer *streams[2];
    struct buf bytes = {0};
    struct error err;
    int32_t text[PROMPT], n;
    fill(text, PROMPT, lane_engine(service_lane(a)));
    struct handover_prompt p = {text, PROMPT, 0, 42};
    struct gyre_request q = gyre_request_default(lane_engine(service_lane(a)));
    q.prompt = text, q.n_prompt = PROMPT, q.max_tokens = 0;
    EXPECT_OK(lane_prompt(service_lane(a), &q, &(struct prompt_watch){0}, &err), err);
    streams[0] = start_stream(a);
    int64_t before_a = n_steps(a);
    struct visit v = {.lane = service_lane(a), .prompt = &p};
    visit_hold(&v);
    EXPECT_OK(visit_read(&v, handover_part(&v.of, 0, SIZE_MAX), SIZE_MAX, &bytes, &err), err);
    visit_end(&v);
    EXPECT(n_steps(a) - before_a > COPY_US / 1000 / 4);
    streams[1] = start_stream(b);
    int64_t before_b = n_steps(b);
    EXPECT_OK(visit_write(service_lane(b), &p, buf_view(&bytes), &n, &err), err);
    EXPECT_EQ(n, WHOLE);
    EXPECT(n_steps(b) - before_b > COPY_US / 1000 / 4);
    EXPECT_EQ(visit_known(service_lane(b), &p), WHOLE);
    for (int i = 0; i < 2; i++)
        end_stream(both[i], streams[i]);
    buf_release(&bytes);
    service_close(a), service_close(b);
    unsetenv("GYRE_TOY_STEP_US");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_move_while_steps_are_in_flight),
        cmocka_unit_test(who_needs_what_is_held_waits),
        cmocka_unit_test(a_block_is_written_when_steps_have_left_it),
        cmocka_unit_test(a_stream_goes_on_while_blocks_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
