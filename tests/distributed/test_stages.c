/* test_stages.c - a model in stages on devices one behind the other: what an engine answers is what one device
 * answers, for every family, with parts in flight, chunks, prefix hits and sequences that give way; and a stage that
 * fails ends all. One test runs on the backend of $GYRE_TEST_BACKEND, in float32. */
#include "check.h"
#include "op_rig.h"

#include "backend/ranks/ranks.h"
#include "backend/ranks/stages.h"
#include "backend/toy/toy.h"
#include "base/random.h"
#include "core/pass/pass.h"
#include "engine/engine.h"
#include "engine/fit.h"
#include "model/model.h"

#include <pthread.h>

enum { SEQS = 5, ANSWER = 10, LONGEST = 90, BLOCK = 16 };

static const char *const models[] = {"llama",     "mistral", "qwen2",       "qwen3",    "gemma2",
                                     "gemma3",    "gemma4",  "mixtral",     "gpt_oss",  "deepseek_v3",
                                     "qwen3_moe", "qwen3_5", "qwen3_5_moe", "diffllama"};

static struct gyre *open_on(const struct backend_ops *backend, const char *model, int64_t cache_bytes) {
    char folder[80];
    snprintf(folder, sizeof folder, "tests/models/%s", model);
    struct gyre_options o = {.model = folder,
                             .backend = backend,
                             .dtype = "float32",
                             .n_threads = 1,
                             .block_size = BLOCK,
                             .max_batched_tokens = 64,
                             .max_seqs = SEQS,
                             .kv_cache_bytes = cache_bytes};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

struct answers {
    int32_t tokens[SEQS][ANSWER];
    int n[SEQS], n_failed;
    int64_t n_reused;
    char error[200];
};

static void submit(struct gyre *g, int s, uint64_t which) {
    int32_t text[LONGEST];
    int n = 10 + 19 * s;
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    for (int i = 0; i < n; i++)
        text[i] = (int32_t)(philox_uniform(test_seed(), (uint64_t)i, which + (uint64_t)s) * g->info.vocab_size);
    q.prompt = text, q.n_prompt = n, q.max_tokens = ANSWER, q.ignore_eos = true;
    q.temperature = s % 2 ? 0.7f : 0, q.seed = 5 + (uint64_t)s, q.user = (void *)(intptr_t)s;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
}

static struct answers run_all(struct gyre *g, uint64_t which) {
    struct answers a = {0};
    for (int s = 0; s < SEQS; s++)
        submit(g, s, which);
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int i = 0, n = gyre_poll(g, e, 16); i < n; i++) {
            intptr_t s = (intptr_t)e[i].user;
            if (e[i].kind == GYRE_TOKEN)
                a.tokens[s][a.n[s]++] = e[i].token;
            if (e[i].kind == GYRE_DONE && e[i].finish == GYRE_FAILED) {
                a.n_failed++;
                snprintf(a.error, sizeof a.error, "%s", e[i].error);
            }
            if (e[i].kind == GYRE_DONE)
                a.n_reused += e[i].timing.n_reused;
        }
    }
    return a;
}

static void expect_same(const struct answers *a, const struct answers *b, const char *model, const char *how) {
    for (int s = 0; s < SEQS; s++) {
        EXPECT_EQ(a->n[s], ANSWER);
        for (int i = 0; i < ANSWER; i++)
            if (a->tokens[s][i] != b->tokens[s][i])
                fail_msg("%s, %s: token %d of answer %d is %d, and %d of one device", model, how, i, s, a->tokens[s][i],
                         b->tokens[s][i]);
    }
}

static const struct backend_ops *stages_of(const struct backend_ops *of, int n) {
    const struct backend_ops *ops;
    struct error err;
    EXPECT_OK(backend_stages(of, n, &ops, &err), err);
    return ops;
}

/* Of the models one in three is looked at in brief, others in each run. */
static bool takes_model(size_t m) { return !test_is_brief() || (m + test_seed()) % 3 == 0; }

static int n_layers_of(const struct program *p) {
    int n = 0;
    for (int i = 0; i < p->n_sections; i++)
        n += p->sections[i].layer >= 0;
    return n;
}

/* Twice: the second time prompts are found in the prefix cache. */
static void every_family_answers_as_one_device(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        if (!takes_model(m))
            continue;
        struct gyre *one = open_on(&backend_cpu, models[m], 0);
        int most = MIN(n_layers_of(one->program), 3);
        struct answers want = run_all(one, 100 * m);
        for (int n = 2; n <= most; n++) {
            struct gyre *g = open_on(stages_of(&backend_cpu, n), models[m], 0);
            struct answers first = run_all(g, 100 * m), again = run_all(g, 100 * m);
            expect_same(&first, &want, models[m], "stages");
            expect_same(&again, &want, models[m], "stages, prompts cached");
            EXPECT(again.n_reused > 0);
            gyre_close(g);
        }
        gyre_close(one);
    }
}

static void a_stage_may_be_several_devices(void **state) {
    (void)state;
    static const char *const some[] = {"llama", "gemma3", "deepseek_v3", "qwen3_moe", "qwen3_5"};
    const struct backend_ops *ranks;
    struct error err;
    EXPECT_OK(backend_ranks(&backend_cpu, 2, false, &ranks, &err), err);
    for (size_t m = 0; m < ARRAY_LEN(some); m++) {
        struct gyre *one = open_on(&backend_cpu, some[m], 0), *g = open_on(stages_of(ranks, 2), some[m], 0);
        struct answers want = run_all(one, 7), got = run_all(g, 7);
        expect_same(&got, &want, some[m], "2 stages of 2 ranks");
        gyre_close(one), gyre_close(g);
    }
}

/* A cache for some of the sequences: the others give way, and are computed again. */
static void who_gives_way_comes_back(void **state) {
    (void)state;
    struct gyre *one = open_on(&backend_cpu, "llama", 0);
    struct answers want = run_all(one, 9);
    int64_t block = one->ops->cache_block_bytes(one->loaded, 0, BLOCK);
    gyre_close(one);
    struct gyre *g = open_on(stages_of(&backend_cpu, 2), "llama", 8 * block);
    EXPECT_EQ(g->ops->cache_block_bytes(g->loaded, 0, BLOCK), block); // of both stages together
    struct answers got = run_all(g, 9);
    expect_same(&got, &want, "llama", "a small cache");
    EXPECT(g->scheduler.n_preempted > 0);
    gyre_close(g);
}

/* Each weight is one stage's, and layers are dealt out evenly. */
static void stages_share_the_model_out(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct model *model;
        struct error err;
        char folder[80];
        snprintf(folder, sizeof folder, "tests/models/%s", models[m]);
        EXPECT_OK(model_open(folder, &(struct model_options){0}, &model, &err), err);
        int n_ops = 0, n = n_layers_of(model->program);
        for (int s = 0; s < n; s++) {
            struct program *p;
            EXPECT_OK(pass_stage(model->program, s, n, &p, &err), err);
            n_ops += p->n_ops - (p->ops[0].code == OP_STATES);
            EXPECT_EQ(p->n_taps == 0, s == n - 1);
            EXPECT_EQ(p->ops[0].code == OP_STATES, s > 0);
            EXPECT_EQ(p->n_groups, model->program->n_groups);
            program_free(p);
        }
        EXPECT_EQ(n_ops, model->program->n_ops);
        struct program *p;
        EXPECT(pass_stage(model->program, 0, n + 1, &p, &err) == ERR_UNSUPPORTED &&
               strstr(err.text, "layers cannot be"));
        model_free(model);
    }
}

// ---- a device that computes later -------------------------------------------------------------------------------

static struct later {
    struct executable *exe;
    const struct batch_plan *plan;
    const struct sample_params *sample;
    bool is_late;
} laters[64];
static pthread_mutex_t laters_lock = PTHREAD_MUTEX_INITIALIZER;

/* The step of this executable that was started, as one at a time is; NULL: a free place. */
static struct later *later_of(struct executable *exe) {
    pthread_mutex_lock(&laters_lock);
    struct later *l = laters;
    while (l < laters + ARRAY_LEN(laters) && l->exe != exe)
        l++;
    EXPECT(l < laters + ARRAY_LEN(laters));
    pthread_mutex_unlock(&laters_lock);
    return l;
}

static enum status run_later(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                             struct error *err) {
    (void)err;
    pthread_mutex_lock(&laters_lock);
    struct later *l = laters;
    for (; l < laters + ARRAY_LEN(laters) - 1 && l->exe; l++)
        EXPECT(l->exe != exe); // collected before
    EXPECT(!l->exe);
    *l = (struct later){exe, plan, sample, !sample};
    pthread_mutex_unlock(&laters_lock);
    return OK;
}

static enum status draw_later(struct executable *exe, const struct sample_params *sample, struct error *err) {
    (void)err;
    struct later *l = later_of(exe);
    EXPECT(l->is_late);
    l->sample = sample;
    return OK;
}

static enum status collect_later(struct executable *exe, struct sample_result *results, struct error *err) {
    struct later *l = later_of(exe), now = *l;
    EXPECT(now.sample);
    TRY(backend_cpu.run(exe, now.plan, now.is_late ? NULL : now.sample, err));
    if (now.is_late)
        TRY(backend_cpu.draw(exe, now.sample, err));
    enum status st = backend_cpu.collect(exe, results, err);
    pthread_mutex_lock(&laters_lock);
    l->exe = NULL;
    pthread_mutex_unlock(&laters_lock);
    return st;
}

static int opened_indices; // a bit each

static enum status open_later(const struct device_options *options, struct device **out, struct error *err) {
    struct device_options one = *options; // there is one CPU
    opened_indices |= 1 << one.index;
    one.index = 0;
    return backend_cpu.open(&one, out, err);
}

static void devices_with_steps_in_flight_are_stages(void **state) {
    (void)state;
    static struct backend_ops later;
    later = backend_cpu;
    later.max_in_flight = 2, later.in_place = false; // each with a memory of its own
    later.open = open_later, later.run = run_later, later.draw = draw_later, later.collect = collect_later;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        if (!takes_model(m))
            continue;
        struct gyre *one = open_on(&backend_cpu, models[m], 0);
        const struct backend_ops *stages = stages_of(&later, 2);
        EXPECT_EQ(stages->max_in_flight, 1);
        EXPECT_EQ(stages->n_devices, 2);
        opened_indices = 0;
        struct gyre *g = open_on(stages, models[m], 0);
        EXPECT_EQ(opened_indices, 3);
        struct answers want = run_all(one, 13), got = run_all(g, 13), again = run_all(g, 13);
        expect_same(&got, &want, models[m], "stages that compute later");
        expect_same(&again, &want, models[m], "stages that compute later, prompts cached");
        gyre_close(one), gyre_close(g);
    }
}

/* Of a pipeline over hosts memory is wanted for what is computed here alone; what answers is all of it. */
static void a_host_counts_its_own_layers(void **state) {
    (void)state;
    static const char *const some[] = {"llama", "gemma3", "qwen3_5"};
    static struct backend_ops far;
    const struct backend_ops *hosts;
    struct error err;
    far = backend_cpu;
    far.open = open_later;
    EXPECT_OK(backend_stages_far(&backend_cpu, &far, 2, &hosts, &err), err);
    for (size_t m = 0; m < ARRAY_LEN(some); m++) {
        struct gyre *one = open_on(&backend_cpu, some[m], 0), *g = open_on(hosts, some[m], 0);
        struct program *p;
        EXPECT_OK(pass_stage(g->program, 0, 2, &p, &err), err);
        int64_t there = engine_stored_bytes(p), whole = engine_stored_bytes(one->program);
        EXPECT_EQ(one->weight_bytes, whole);
        EXPECT(there > 0 && g->weight_bytes < whole && g->weight_bytes + there >= whole); // a tied table is in both
        EXPECT(g->ops->cache_block_bytes(g->loaded, 0, BLOCK) < one->ops->cache_block_bytes(one->loaded, 0, BLOCK));
        struct answers want = run_all(one, 19), got = run_all(g, 19);
        expect_same(&got, &want, some[m], "2 hosts");
        program_free(p);
        gyre_close(one), gyre_close(g);
    }
}

static void stages_of_that_backend_answer_as_one_of_it(void **state) {
    (void)state;
    static const char *const some[] = {"llama", "gemma3", "deepseek_v3", "qwen3_5", "qwen3_moe"};
    for (size_t m = 0; m < ARRAY_LEN(some); m++) {
        struct gyre *one = open_on(rig_backend(), some[m], 0), *g = open_on(stages_of(rig_backend(), 2), some[m], 0);
        struct answers want = run_all(one, 17), got = run_all(g, 17);
        expect_same(&got, &want, some[m], "2 stages");
        gyre_close(one), gyre_close(g);
    }
}

// ---- a stage that fails -----------------------------------------------------------------------------------------

static int fails_in; // runs from now on

static enum status failing_run(struct executable *exe, const struct batch_plan *plan,
                               const struct sample_params *sample, struct error *err) {
    if (__atomic_sub_fetch(&fails_in, 1, __ATOMIC_RELAXED) == 0)
        return fail(err, ERR_DEVICE, "the stage broke");
    return backend_cpu.run(exe, plan, sample, err);
}

/* Whichever stage and part it is: every request ends with the reason, and so does the next. */
static void a_stage_that_fails_ends_all(void **state) {
    (void)state;
    static struct backend_ops failing;
    failing = backend_cpu;
    failing.run = failing_run;
    for (int at = 1; at < 20; at++) {
        fails_in = 1 << 30;
        struct gyre *g = open_on(stages_of(&failing, 3), "llama", 0);
        fails_in = at;
        struct answers a = run_all(g, 11);
        EXPECT_EQ(a.n_failed, SEQS);
        EXPECT(strstr(a.error, "the stage broke"));
        struct gyre_error err;
        struct gyre_request q = gyre_request_default(g);
        uint64_t id;
        q.prompt = (int32_t[]){5}, q.n_prompt = 1;
        EXPECT(gyre_submit(g, &q, &id, &err) != 0 && strstr(err.text, "the stage broke"));
        gyre_close(g);
    }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    const struct backend_ops *ops;
    struct error err;
    EXPECT(backend_stages(&backend_toy, 2, &ops, &err) == ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "device toy cannot be a stage"));
    EXPECT(backend_stages(&backend_cpu, MAX_STAGES + 1, &ops, &err) == ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_answers_as_one_device),
        cmocka_unit_test(a_stage_may_be_several_devices),
        cmocka_unit_test(who_gives_way_comes_back),
        cmocka_unit_test(stages_share_the_model_out),
        cmocka_unit_test(a_stage_that_fails_ends_all),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(devices_with_steps_in_flight_are_stages),
        cmocka_unit_test(stages_of_that_backend_answer_as_one_of_it),
        cmocka_unit_test(a_host_counts_its_own_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
