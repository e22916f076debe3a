/* test_two_devices.c - two GPUs in one process: the same model on each gives the same tokens, one after the other, by
 * turns, and from two threads at once; so nothing that is known of one is taken for the other's.
 *
 *     build/cuda/test_two_devices     wants two GPUs alike, and skips with fewer (tools/gpu.sh leaves it out then)
 *     GYRE_PTX_DEVICES=2 build/ptx/test_two_devices     on the CPU; with GYRE_TEST_BRIEF one model and few tokens */
#include "check.h"

#include "base/status.h"
#include "gyre.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

extern const struct backend_ops backend_cuda;

enum { SEQS = 5, TOKENS = 60, FEW_TOKENS = 34, N_PROMPT = 12 };

static bool is_brief(void) { return getenv("GYRE_TEST_BRIEF") != NULL; }

/* Of sequence s. */
static int n_tokens_of(int s) { return (is_brief() ? FEW_TOKENS : TOKENS) - 7 * s; }

struct texts {
    struct gyre *g;
    int32_t tokens[SEQS][TOKENS];
    int n[SEQS];
};

static void open_on(int index, const char *folder, const struct gyre_options *asked, struct texts *t) {
    struct gyre_options options = *asked;
    struct gyre_error e;
    options.model = folder;
    options.backend = &backend_cuda;
    options.device_index = index;
    options.max_seqs = 8;
    memset(t, 0, sizeof *t);
    if (gyre_open(&options, &t->g, &e) != 0)
        fail_msg("GPU %d: %s: %s", index, folder, e.text);
}

static void ask(struct texts *t) {
    int vocab = gyre_info(t->g)->vocab_size;
    for (int s = 0; s < SEQS; s++) {
        int32_t prompt[N_PROMPT];
        struct gyre_request q = gyre_request_default(t->g);
        struct gyre_error e;
        uint64_t id;
        for (int i = 0; i < N_PROMPT; i++)
            prompt[i] = (int32_t)((test_seed() % 1000 + (uint64_t)(s * 131 + i * 1013)) % (uint64_t)vocab);
        q.prompt = prompt, q.n_prompt = N_PROMPT - s, q.max_tokens = n_tokens_of(s), q.ignore_eos = true;
        q.temperature = s % 2 ? 1.0f : 0, q.seed = 5, q.user = (void *)(intptr_t)s;
        if (gyre_submit(t->g, &q, &id, &e) != 0)
            fail_msg("%s", e.text);
    }
}

static void poll_once(struct texts *t) {
    struct gyre_event events[16];
    for (int i = 0, n = gyre_poll(t->g, events, 16); i < n; i++) {
        int s = (int)(intptr_t)events[i].user;
        if (events[i].kind == GYRE_TOKEN)
            t->tokens[s][t->n[s]++] = events[i].token;
        else if (events[i].error)
            fail_msg("%s", events[i].error);
    }
}

static void *finish(void *texts) {
    struct texts *t = texts;
    while (gyre_busy(t->g))
        poll_once(t);
    return NULL;
}

static void expect_same(const struct texts *a, const struct texts *b, const char *what) {
    for (int s = 0; s < SEQS; s++)
        if (a->n[s] != n_tokens_of(s) || a->n[s] != b->n[s] ||
            memcmp(a->tokens[s], b->tokens[s], (size_t)a->n[s] * sizeof(int32_t)) != 0)
            fail_msg("%s: sequence %d differs, %d tokens and %d", what, s, a->n[s], b->n[s]);
}

static void close_both(struct texts *t) {
    gyre_close(t[0].g);
    gyre_close(t[1].g);
}

static bool are_two(void) {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n >= 2;
}

static const char *const models[] = {"tests/models/llama", "tests/models/qwen2", "tests/models/gemma3"};

static size_t n_models(void) { return is_brief() ? 1 : ARRAY_LEN(models); }

/* FP8 weights and caches too: their kernels know most of the card. */
static const struct gyre_options asked[] = {{.dtype = "float16"},
                                            {.dtype = "float16", .quantization = "fp8", .kv_cache_dtype = "fp8"}};

static void one_after_the_other_and_by_turns(void **state) {
    (void)state;
    static struct texts alone, t[2];
    if (!are_two())
        skip();
    for (size_t m = 0; m < n_models(); m++)
        for (size_t k = 0; k < ARRAY_LEN(asked); k++) {
            open_on(0, models[m], &asked[k], &alone);
            ask(&alone);
            finish(&alone);
            gyre_close(alone.g);
            for (int i = 0; i < 2; i++) {
                open_on(1 - i, models[m], &asked[k], &t[i]);
                ask(&t[i]);
            }
            while (gyre_busy(t[0].g) || gyre_busy(t[1].g))
                for (int i = 0; i < 2; i++)
                    if (gyre_busy(t[i].g))
                        poll_once(&t[i]);
            expect_same(&alone, &t[0], models[m]);
            expect_same(&alone, &t[1], models[m]);
            close_both(t);
        }
}

static void from_two_threads(void **state) {
    (void)state;
    static struct texts t[2];
    pthread_t threads[2];
    if (!are_two())
        skip();
    for (size_t m = 0; m < n_models(); m++)
        for (size_t k = 0; k < ARRAY_LEN(asked); k++) {
            for (int i = 0; i < 2; i++) {
                open_on(i, models[m], &asked[k], &t[i]);
                ask(&t[i]);
            }
            for (int i = 0; i < 2; i++)
                EXPECT_EQ(pthread_create(&threads[i], NULL, finish, &t[i]), 0);
            for (int i = 0; i < 2; i++)
                EXPECT_EQ(pthread_join(threads[i], NULL), 0);
            expect_same(&t[0], &t[1], models[m]);
            close_both(t);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_after_the_other_and_by_turns),
        cmocka_unit_test(from_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
