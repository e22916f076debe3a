/* test_load.c - a crowd on real models: whatever runs beside it, a request gets the tokens, and to the last bit the
 * log-probabilities, that it gets alone.
 *
 * 64 streams and more arrive at random, begin alike or not, sample in different ways, leave in the middle, are
 * preempted for want of cache or for more important ones and computed again, and are cut into chunks by whatever else
 * is in the step. Each is then computed alone, with room for all and nothing remembered, in one piece. What is held
 * still is the cache's block size: MLA takes its softmax in runs of at most a block. test_engine.c runs 4,000 schedules
 * on a backend whose arithmetic is exact by nature; here it is the kernels that must sum every row in the same order,
 * however many rows a step has.
 * Not in make test-fast: a crowd on four models. */
#include "check.h"

#include "base/random.h"
#include "engine/fit.h"

enum { STREAMS = 64, REQUESTS = 96, MAX_PROMPT = 220, MAX_ANSWER = 48, PREFIX = 80 };

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 2) * n); }
static bool one_in(int n) { return below(n) == 0; }

struct stream {
    struct gyre_request request;
    int32_t prompt[MAX_PROMPT];
    int cancel_after; // tokens; -1: never
    uint64_t id;
    int32_t tokens[MAX_ANSWER];
    float logprobs[MAX_ANSWER];
    int n_tokens, n_done;
    enum gyre_finish finish;
    int64_t n_reused;
};

static struct gyre *open_model(const char *folder, struct gyre_options options) {
    struct gyre *g;
    struct gyre_error err;
    options.model = folder, options.backend = &backend_cpu, options.n_threads = 1;
    EXPECT_OK(gyre_open(&options, &g, &err), err);
    return g;
}

// ---- what is asked ----------------------------------------------------------------------------------------------

/* One of three beginnings that are longer than a block, or none, and then text of its own. */
static void random_prompt(struct stream *s, const struct gyre_info *info) {
    int n = 0, beginning = below(4);
    for (; beginning > 0 && n < PREFIX; n++)
        s->prompt[n] = (int32_t)(philox4x32(test_seed(), (uint64_t)n, (uint64_t)beginning + 100).v[0] %
                                 (uint32_t)info->vocab_size);
    for (int end = n + 1 + (one_in(6) ? below(MAX_PROMPT - n - 1) : below(30)); n < end; n++)
        s->prompt[n] = below(info->vocab_size);
    s->request.prompt = s->prompt;
    s->request.n_prompt = n;
}

static void random_request(struct stream *s, const struct gyre *g) {
    memset(s, 0, sizeof *s);
    s->request = gyre_request_default(g);
    struct gyre_request *q = &s->request;
    random_prompt(s, gyre_info(g));
    q->max_tokens = 1 + below(MAX_ANSWER);
    q->temperature = one_in(3) ? 0 : 0.5f + 0.1f * (float)below(10);
    q->top_p = one_in(2) ? 1 : 0.9f;
    q->top_k = one_in(3) ? 20 : 0;
    q->min_p = one_in(4) ? 0.05f : 0;
    q->repetition_penalty = one_in(3) ? 1.2f : 1;
    q->presence_penalty = one_in(4) ? 0.5f : 0;
    q->seed = (uint64_t)below(1000);
    q->ignore_eos = one_in(2);
    q->priority = one_in(4) ? -1 - below(2) : 0;
    q->logprobs = true;
    q->user = s;
    s->cancel_after = one_in(5) ? below(10) : -1;
}

static void submit(struct gyre *g, struct stream *s) {
    struct gyre_error err;
    EXPECT_OK(gyre_submit(g, &s->request, &s->id, &err), err);
}

// ---- what comes -------------------------------------------------------------------------------------------------

static void take_event(struct gyre *g, const struct gyre_event *e) {
    struct stream *s = e->user;
    EXPECT_EQ(s->n_done, 0);
    if (e->kind == GYRE_TOKEN) {
        EXPECT(s->n_tokens < MAX_ANSWER);
        s->logprobs[s->n_tokens] = e->logprob;
        s->tokens[s->n_tokens++] = e->token;
    } else if (e->kind == GYRE_DONE) {
        if (e->error)
            fail_msg("%s", e->error);
        s->n_done++;
        s->finish = e->finish;
        s->n_reused = e->timing.n_reused;
    }
    if (!s->n_done && s->n_tokens == s->cancel_after)
        gyre_cancel(g, s->id);
}

static void poll_once(struct gyre *g) {
    struct gyre_event events[256];
    int n = gyre_poll(g, events, 256);
    for (int i = 0; i < n; i++)
        take_event(g, &events[i]);
}

struct tally {
    int64_t n_preempted, n_reused;
    int n_cancelled, most_running, n_tokens;
};

static struct tally run_crowd(struct gyre *g, struct stream *all, int n) {
    struct tally t = {0};
    int next = 0;
    while (next < n || gyre_busy(g)) {
        for (int arrivals = next < STREAMS ? below(9) : below(3); arrivals > 0 && next < n; arrivals--)
            submit(g, &all[next++]);
        poll_once(g);
        t.most_running = MAX(t.most_running, g->scheduler.n_running);
    }
    t.n_preempted = g->scheduler.n_preempted;
    for (int i = 0; i < n; i++) {
        t.n_cancelled += all[i].finish == GYRE_CANCELLED;
        t.n_reused += all[i].n_reused;
        t.n_tokens += all[i].n_tokens;
    }
    return t;
}

static void expect_same(const struct stream *s, const struct stream *alone, const char *folder, int number) {
    EXPECT_EQ(s->n_done, 1);
    bool cut = s->finish == GYRE_CANCELLED;
    if (cut ? s->n_tokens > alone->n_tokens : s->finish != alone->finish || s->n_tokens != alone->n_tokens)
        fail_msg("%s, request %d: %d tokens and finish %d, alone %d and %d", folder, number, s->n_tokens,
                 (int)s->finish, alone->n_tokens, (int)alone->finish);
    for (int i = 0; i < s->n_tokens; i++)
        if (s->tokens[i] != alone->tokens[i] || s->logprobs[i] != alone->logprobs[i])
            fail_msg("%s, request %d of %d prompt tokens: token %d is %d (%.9g), alone %d (%.9g)", folder, number,
                     (int)s->request.n_prompt, i, s->tokens[i], (double)s->logprobs[i], alone->tokens[i],
                     (double)alone->logprobs[i]);
}

static struct tally crowd_against_alone(const char *folder, struct gyre_options options, int n) {
    static struct stream all[REQUESTS], alone;
    struct gyre *g = open_model(folder, options),
                *empty = open_model(folder,
                                    (struct gyre_options){.no_prefix_cache = true, .block_size = options.block_size});
    for (int i = 0; i < n; i++)
        random_request(&all[i], g);
    struct tally t = run_crowd(g, all, n);
    printf("%s: %d tokens, %d running at most, %lld preempted, %d cancelled, %lld tokens reused\n", folder, t.n_tokens,
           t.most_running, (long long)t.n_preempted, t.n_cancelled, (long long)t.n_reused);
    for (int i = 0; i < n; i++) {
        memset(&alone, 0, sizeof alone);
        alone.request = all[i].request;
        alone.request.user = &alone;
        alone.cancel_after = -1;
        submit(empty, &alone);
        while (gyre_busy(empty))
            poll_once(empty);
        expect_same(&all[i], &alone, folder, i);
    }
    gyre_close(g);
    gyre_close(empty);
    return t;
}

static struct gyre_options crowded(int64_t kv_cache_bytes) {
    return (struct gyre_options){
        .max_batched_tokens = 128 + below(200), .block_size = 16, .kv_cache_bytes = kv_cache_bytes};
}

static void expect_crowd(struct tally t) { EXPECT(t.n_cancelled > 0 && t.most_running > STREAMS / 4); }

static void story_in_a_crowd(void **state) {
    (void)state;
    struct tally t = crowd_against_alone("models/story", crowded(14 << 20), REQUESTS);
    expect_crowd(t);
    EXPECT(t.n_reused > 0 && t.n_preempted > 0);
}

static void sliding_windows_in_a_crowd(void **state) {
    (void)state;
    struct tally t = crowd_against_alone("tests/models/gemma4", crowded(8 << 20), REQUESTS);
    expect_crowd(t);
    EXPECT(t.n_reused > 0 && t.n_preempted > 0);
}

/* Its state slots are what is scarce, so that only priorities preempt: a few times in most runs. */
static void recurrent_state_in_a_crowd(void **state) {
    (void)state;
    expect_crowd(crowd_against_alone("tests/models/qwen3_5", crowded(10 << 20), REQUESTS));
}

static void experts_latents_and_sinks_in_a_crowd(void **state) {
    (void)state;
    crowd_against_alone("tests/models/qwen3_moe", crowded(6 << 20), 24);
    crowd_against_alone("tests/models/deepseek_v3", crowded(6 << 20), 24);
    crowd_against_alone("tests/models/gpt_oss", crowded(6 << 20), 24);
    crowd_against_alone("tests/models/diffllama", crowded(6 << 20), 24);
}

static void a_block_of_cache_takes_before_loading_what_it_takes_after(void **state) {
    (void)state;
    static const char *const folders[] = {"models/story", "tests/models/gemma4", "tests/models/deepseek_v3",
                                          "tests/models/qwen3_5"};
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        struct gyre *g = open_model(folders[i], (struct gyre_options){0});
        struct gyre_options o = {.backend = &backend_cpu};
        for (int group = 0; group < g->program->n_groups; group++)
            EXPECT_EQ(engine_block_bytes(&o, g->program, NULL, group, 16),
                      engine_block_bytes(&o, g->program, g->loaded, group, 16));
        gyre_close(g);
    }
}

/* A device with memory of its own. */
static int64_t device_total, device_taken;
static void fake_memory(const struct device *d, struct device_memory *out) {
    (void)d;
    *out = (struct device_memory){device_total, device_taken};
}
static enum status fake_room(struct loaded *l, struct bucket bucket, int n, int block_size, const int *table_width,
                             double share, int64_t *out, struct error *err) {
    (void)l, (void)bucket, (void)n, (void)block_size, (void)table_width, (void)share, (void)out, (void)err;
    return OK;
}

static void weights_that_a_device_cannot_hold_are_refused_before_they_are_placed(void **state) {
    (void)state;
    static const struct backend_ops device = {.name = "device", .memory = fake_memory, .cache_room = fake_room};
    struct gyre_options o = {.backend = &device, .model = "models/story", .gpu_memory_utilization = 0.5};
    struct model *model;
    struct error err;
    EXPECT_OK(model_open("models/story", &(struct model_options){.load = LOAD_PHANTOM}, &model, &err), err);
    struct engine_model m = {.program = model->program};
    device_total = 40 << 20, device_taken = 5 << 20; // 15 MiB may be taken: its 14.0 MiB fit
    EXPECT_OK(engine_weights_fit(&o, &m, NULL, &err), err);
    device_taken = 10 << 20;
    EXPECT_EQ(engine_weights_fit(&o, &m, NULL, &err), ERR_MEMORY);
    EXPECT(strstr(err.text, "at least 14.0 MiB (weights 14.0 MiB)") &&
           strstr(err.text, "40.0 MiB 10.0 MiB may still be taken") && strstr(err.text, "--quantization fp8"));
    o.quantization = "fp8"; // half of it
    EXPECT_OK(engine_weights_fit(&o, &m, NULL, &err), err);
    o.kv_cache_bytes = 8 << 20;
    EXPECT_EQ(engine_weights_fit(&o, &m, NULL, &err), ERR_MEMORY);
    EXPECT(strstr(err.text, "cache 8.0 MiB") && strstr(err.text, "--kv-cache-memory"));
    device_total = 0; // it does not say
    EXPECT_OK(engine_weights_fit(&o, &m, NULL, &err), err);
    model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_that_a_device_cannot_hold_are_refused_before_they_are_placed),
        cmocka_unit_test(a_block_of_cache_takes_before_loading_what_it_takes_after),
        cmocka_unit_test(story_in_a_crowd),
        cmocka_unit_test(sliding_windows_in_a_crowd),
        cmocka_unit_test(recurrent_state_in_a_crowd),
        cmocka_unit_test(experts_latents_and_sinks_in_a_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
