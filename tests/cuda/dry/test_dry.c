/* test_dry.c - the host side of the CUDA backend on a device that computes nothing (device.h): what it asks a device
 * for is what one gives, and whatever call fails, at the start or in a step, is told in a sentence and leaves nothing
 * behind. Wants no GPU; every call of a start and two requests fails once, or every third in a brief run. */
#include "rig.h"

#include "backend/cuda/step/compile.h"

static void every_family_asks_for_what_a_device_gives(void **state) {
    (void)state;
    static const char *const made[] = {NULL, "fp8", "int4", "nvfp4"};
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (size_t k = 0; k < ARRAY_LEN(made); k++) {
            struct outcome o;
            char folder[80];
            snprintf(folder, sizeof folder, "tests/models/%s", models[i]);
            struct gyre_options options = options_for(folder);
            options.quantization = made[k];
            if (k == 1)
                options.kv_cache_dtype = strcmp(models[i], "deepseek_v3") ? "fp8" : NULL;
            dry_begin(0, DRY_ONCE);
            run(&options, false, &o);
            if (!o.opened || o.finish[0] != GYRE_LENGTH || o.finish[1] != GYRE_LENGTH)
                fail_msg("%s: %s; %s; %s", folder, o.opened ? "opened" : o.refused.text, o.why[0], o.why[1]);
            printf("%-12s %-8s %lld calls\n", models[i], made[k] ? made[k] : "float16", (long long)dry_calls());
            expect_clean(folder);
            EXPECT_EQ(dry_unordered(), 0);
        }
}

struct outcomes {
    int64_t n_refused, n_ended, n_through;
};

static void a_path_or_a_number_that_the_environment_misnames_is_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"GYRE_LINEAR", "tile"},      {"GYRE_LINEAR", ""},
                                           {"GYRE_ARGMAX_FILTER", "no"}, {"GYRE_ARGMAX_FILTER", "-1"},
                                           {"GYRE_L2_COPIES", "yes"},    {"GYRE_L2_COPIES", ""}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct outcome o;
        struct gyre_options options = options_for("tests/models/llama");
        const char *was = getenv(cases[i][0]);
        dry_begin(0, DRY_ONCE);
        setenv(cases[i][0], cases[i][1], 1);
        run(&options, false, &o);
        if (was)
            setenv(cases[i][0], strcmp(cases[i][0], "GYRE_L2_COPIES") ? SCREEN : "force", 1);
        else
            unsetenv(cases[i][0]);
        EXPECT(!o.opened && strstr(o.refused.text, cases[i][0]) && dry_calls() == 0);
    }
}

/* 40,000 tokens with two experts each are more than a grid has rows. */
static void the_largest_steps_are_launched_or_refused_when_a_model_is_opened(void **state) {
    (void)state;
    static const struct {
        const char *folder;
        int tokens;
        bool opens;
    } cases[] = {{"tests/models/qwen3_moe", 40000, true},
                 {"tests/models/gemma3", 65535, true},
                 {"tests/models/gemma3", 65536, false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct outcome o;
        struct gyre_options options = options_for(cases[i].folder);
        options.max_batched_tokens = cases[i].tokens;
        dry_begin(0, DRY_ONCE);
        run(&options, false, &o);
        if (o.opened != cases[i].opens || (o.opened && o.finish[0] != GYRE_LENGTH))
            fail_msg("%s, %d tokens: %s %s", cases[i].folder, cases[i].tokens, o.refused.text, o.why[0]);
        EXPECT(o.opened || strstr(o.refused.text, "--max-num-batched-tokens"));
        EXPECT(!o.opened ||
               dry_most_rows() >= cases[i].tokens); // what a step can be was recorded, if it is no padded number either
        expect_clean(cases[i].folder);
    }
}

/* The head of 60,000 tokens is computed for four rows, so products of all 8,192 want no room (0.9 GiB it was), and its
 * copy for screening is no more than a sixth of what may be taken. */
static void a_step_takes_what_its_ops_want(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-config-XXXXXX.json";
    write_config(path, 64, 60000);
    for (int fp8 = 0; fp8 < 2; fp8++)
        for (int is_short = 0; is_short < 2; is_short++) {
            struct gyre_options options = options_for(path);
            options.dummy_weights = true, options.max_batched_tokens = 8192, options.quantization = fp8 ? "fp8" : NULL;
            options.gpu_memory_utilization = is_short ? 0.0034 : 0.9;
            struct gyre *g = open_dry(&options);
            if (g->exe->step_bytes > 100 << 20)
                fail_msg("a step of 8,192 tokens takes %lld MiB", (long long)g->exe->step_bytes >> 20);
            EXPECT_EQ(g->loaded->filter.left_out, is_short);
            gyre_close(g);
            expect_clean(path);
        }
    remove(path);
}

/* The cache gets what a step leaves, by its size before it is compiled. */
static void a_step_is_as_large_as_it_was_sized(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            char folder[80];
            struct error err;
            int64_t n_bytes;
            snprintf(folder, sizeof folder, "tests/models/%s", models[i]);
            struct gyre_options options = options_for(folder);
            options.quantization = fp8 ? "fp8" : NULL;
            struct gyre *g = open_dry(&options);
            EXPECT_OK(step_sized(g->loaded, g->exe->bucket, &n_bytes, &err), err);
            if (n_bytes != g->exe->step_bytes)
                fail_msg("%s: a step takes %lld bytes, sized as %lld", folder, (long long)g->exe->step_bytes,
                         (long long)n_bytes);
            gyre_close(g);
        }
    expect_clean("sizing");
}

/* Blocks that fast attention does not take make another step, which is to be sized before there is any block. */
static void a_step_is_sized_for_the_blocks_that_it_will_have(void **state) {
    (void)state;
    struct error err;
    int64_t room, n_bytes[2];
    struct gyre_options options = options_for("tests/models/llama");
    options.block_size = 8;
    struct gyre *g = open_dry(&options);
    int table_width[MAX_CACHE_GROUPS];
    memcpy(table_width, g->loaded->table_width, sizeof table_width);
    for (int i = 0; i < 2; i++) {
        g->loaded->block_size = 0; // as before the cache is there
        EXPECT_OK(g->ops->cache_room(g->loaded, g->exe->bucket, 1, i ? 8 : 64, table_width, 0, &room, &err), err);
        EXPECT_OK(step_sized(g->loaded, g->exe->bucket, &n_bytes[i], &err), err);
    }
    EXPECT(n_bytes[0] != n_bytes[1]);
    EXPECT_EQ(n_bytes[1], g->exe->step_bytes);
    gyre_close(g);
    expect_clean("sizing blocks");
}

/* Two sequences for whom the cache is too small: one gives way to the other, to the host's memory. */
static void give_way(int most_pitch) {
    struct gyre_options options = options_for("tests/models/llama");
    options.kv_cache_bytes = 130 << 10, options.swap_bytes = 1 << 20, options.block_size = 16;
    dry_limit_pitch(most_pitch);
    struct gyre *g = open_dry(&options);
    static const int32_t prompt[12] = {5, 6, 7};
    int n_through = 0;
    for (int i = 0; i < 2; i++) {
        struct gyre_request q = gyre_request_default(g);
        struct gyre_error e;
        uint64_t id;
        q.prompt = prompt, q.n_prompt = ARRAY_LEN(prompt), q.ignore_eos = true, q.max_tokens = 40;
        if (gyre_submit(g, &q, &id, &e) != 0)
            fail_msg("%s", e.text);
    }
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int i = 0, n = gyre_poll(g, e, 16); i < n; i++)
            n_through += e[i].kind == GYRE_DONE && e[i].finish == GYRE_LENGTH;
    }
    EXPECT_EQ(n_through, 2);
    EXPECT_EQ(dry_row_copies() > 0, most_pitch == INT32_MAX);
    gyre_close(g);
    dry_limit_pitch(INT32_MAX);
    expect_clean("giving way");
}

static void layers_that_lie_far_apart_are_copied_one_by_one(void **state) {
    (void)state;
    give_way(INT32_MAX);
    give_way(64);
}

/* Blocks of a product that requantises rows wait for one another: of two engines' products neither might have room. */
static void of_two_engines_one_has_products_that_requantise(void **state) {
    (void)state;
    struct gyre_options options = options_for("tests/models/llama");
    options.quantization = options.kv_cache_dtype = "fp8";
    struct gyre *first = open_dry(&options), *second = open_dry(&options);
    EXPECT(first->device->requantises && !second->device->requantises);
    gyre_close(first);
    struct gyre *third = open_dry(&options);
    EXPECT(third->device->requantises && !second->device->requantises);
    gyre_close(second);
    gyre_close(third);
    expect_clean("two engines");
}

/* The figure of docs/lab/cuda_memory.md ("CUDA, memory of the cache"). */
static void a_step_of_a_model_of_7_billion_is_told(void **state) {
    (void)state;
    struct gyre_options options = options_for("tests/data/configs/Qwen--Qwen2.5-7B/config.json");
    options.dummy_weights = true, options.quantization = options.kv_cache_dtype = "fp8";
    options.max_batched_tokens = 8192, options.max_seqs = 512;
    setenv("GYRE_L2_COPIES", "0", 1); // forced copies of all weights have no room
    struct gyre *g = open_dry(&options);
    setenv("GYRE_L2_COPIES", "force", 1);
    printf("Qwen2.5-7B: a step of 8,192 tokens and 512 sequences takes %lld MiB\n",
           (long long)g->exe->step_bytes >> 20);
    EXPECT(g->exe->step_bytes < 1600LL << 20); // less than 2,376 MiB, which scratch alone was
    gyre_close(g);
    expect_clean("7 billion");
}

/* A launch that was refused is told with its kernel; a kernel that is innocent of the context's loss is not. */
static void check_sentence(const char *what, const char *why, enum dry_fault fault) {
    char name[60];
    if (strlen(why) < 20)
        fail_msg("%s: told as \"%s\"", what, why);
    snprintf(name, sizeof name, "%s", dry_failed_kernel() ? dry_failed_kernel() : "");
    if (fault == DRY_ONCE ? strstr(why, name) == NULL || (*name && !strstr(why, "refused"))
                          : strstr(why, "refused") != NULL)
        fail_msg("%s, kernel %s: told as \"%s\"", what, name, why);
}

static void judge(const char *what, const struct outcome *o, enum dry_fault fault, struct outcomes *all) {
    expect_clean(what);
    if (fault == DRY_ONCE && cudaPeekAtLastError() != cudaSuccess)
        fail_msg("%s: it is left to the next engine", what);
    if (getenv("GYRE_TEST_TELL"))
        printf("%s: %s; %s; %s\n", what, o->opened ? "opened" : o->refused.text, o->why[0], o->why[1]);
    bool through = o->opened && o->finish[0] == GYRE_LENGTH && o->finish[1] == GYRE_LENGTH;
    if (!o->opened)
        check_sentence(what, o->refused.text, fault);
    bool lacks_memory = strcmp(dry_failed(), "cudaMalloc") == 0 || strcmp(dry_failed(), "cudaMallocHost") == 0;
    if (!o->opened && fault == DRY_ONCE && lacks_memory && o->refused.status != ERR_MEMORY)
        fail_msg("%s: a shortage is told with status %d: %s", what, o->refused.status, o->refused.text);
    for (int i = 0; o->opened && !through && i < 2; i++)
        if (o->finish[i] != GYRE_LENGTH && (i == 0 || o->why[1][0]))
            check_sentence(what, o->why[i], fault);
    all->n_refused += !o->opened, all->n_through += through, all->n_ended += o->opened && !through;
}

/* Every by-th call fails in a run of its own, from one of the first by on, or of those behind the start; then none
 * does. Which is drawn. */
static void fail_each(struct gyre_options options, bool measures, enum dry_fault fault, bool behind_start, int by) {
    struct outcomes all = {0};
    struct outcome o;
    char what[300];
    int n_shortages = 0;
    dry_begin(0, fault);
    run(&options, measures, &o);
    int64_t first = 1 + (int64_t)(test_seed() % (uint64_t)by);
    for (int64_t call = behind_start ? o.opened_at + first : first;; call += by) {
        dry_begin(call, fault);
        run(&options, measures, &o);
        if (!dry_failed())
            break;
        snprintf(what, sizeof what, "%s, call %lld, %s", options.model, (long long)call, dry_failed());
        judge(what, &o, fault, &all);
        bool is_shortage =
            strcmp(dry_failed(), "cudaMalloc") == 0 && o.opened && call > o.opened_at; // of room for a step's lists
        if (is_shortage && !measures && fault == DRY_ONCE && (o.finish[0] != GYRE_LENGTH || o.finish[1] != GYRE_LENGTH))
            fail_msg("%s: a request ended for want of memory: %s; %s", what, o.why[0], o.why[1]);
        bool lacks_room = is_shortage && fault == DRY_ONCE; // measuring asks for other memory too
        EXPECT(measures ? o.n_lists_left == 0 || lacks_room : (o.n_lists_left > 0) == lacks_room);
        n_shortages += is_shortage;
    }
    printf("%s: %lld starts refused, %lld times requests ended, %lld times nothing was seen\n", options.model,
           (long long)all.n_refused, (long long)all.n_ended, (long long)all.n_through);
    EXPECT(n_shortages > 0 || measures || fault != DRY_ONCE || by > 1); // by 1 none is left out
    if (!o.opened || o.finish[0] != GYRE_LENGTH || o.finish[1] != GYRE_LENGTH)
        fail_msg("%s, behind those that failed: %s; %s; %s", options.model, o.opened ? "opened" : o.refused.text,
                 o.why[0], o.why[1]);
}

static void any_call_that_fails_is_told_and_leaves_nothing_behind(void **state) {
    (void)state;
    struct gyre_options options = options_for("tests/models/llama");
    options.quantization = options.kv_cache_dtype = "fp8";
    int by = test_is_brief() ? 3 : 1; // all of them take a minute and a half
    fail_each(options, false, DRY_ONCE, false, by);
    if (by > 1) // which may leave out the few that ask for a step's lists
        fail_each(options, false, DRY_ONCE, true, 1);
    fail_each(options, true, DRY_ONCE, true, 3 * by);
}

static void a_device_that_is_lost_is_told_and_leaves_nothing_behind(void **state) {
    (void)state;
    struct gyre_options options = options_for("tests/models/qwen3_5");
    fail_each(options, false, DRY_LOST, false, 11);
    fail_each(options, true, DRY_LOST, true, 31);
}

enum { COPIED = 3 }; // blocks

static enum status copy_blocks(struct gyre *g, char *bytes, size_t stride, struct error *err) {
    static const int32_t from[COPIED] = {0, 1, 2}, to[COPIED] = {2, 0, 1};
    const struct backend_handover *h = g->ops->handover;
    TRY(h->prepare(g->loaded, err));
    for (int group = 0; group < g->program->n_groups; group++) {
        TRY(h->get(g->loaded, group, from, COPIED, bytes, stride, err));
        TRY(h->put(g->loaded, group, to, COPIED, bytes, stride, err));
    }
    char name[WINDOW_NAME];
    TRY(h->share(g->loaded, name, err));
    for (int group = 0; group < g->program->n_groups; group++)
        if (g->program->groups[group].kind != CACHE_STATE) {
            TRY(h->show(g->loaded, group, from, COPIED, 64, err));
            TRY(h->take(g->loaded, name, group, to, COPIED, 64, err));
        }
    return OK;
}

/* Of a server whose memory is gone, say: what would be read behind it is nobody's. */
static void a_window_that_is_too_small_is_refused(void **state) {
    (void)state;
    struct gyre_options options = options_for("tests/models/llama");
    struct gyre *g = open_dry(&options);
    const struct backend_handover *h = g->ops->handover;
    const int32_t block = 0;
    char name[WINDOW_NAME];
    void *small;
    struct error err;
    EXPECT_OK(h->prepare(g->loaded, &err), err);
    EXPECT_OK(h->share(g->loaded, name, &err), err);
    EXPECT_OK(h->take(g->loaded, name, 0, &block, 1, 0, &err), err);
    EXPECT(cudaMalloc(&small, WINDOW_MEMORY - 1) == cudaSuccess);
    memcpy((char *)small + WINDOW_BYTES, name + WINDOW_NAME - sizeof(uint64_t), sizeof(uint64_t));
    memcpy(name, &small, sizeof small);
    EXPECT_EQ(h->take(g->loaded, name, 0, &block, 1, 0, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "bytes"));
    cudaFree(small);
    gyre_close(g);
    expect_clean("a small window");
}

/* Copies that fail are told to who makes them; the engine, its steps and the next copies are well, but for the memory
 * and streams that they want once. */
static void copies_that_fail_are_told_and_leave_the_engine_well(void **state) {
    (void)state;
    struct gyre_options options = options_for("tests/models/qwen3_5"); // keys, and states
    options.block_size = 16;
    size_t stride = 1 << 20;
    char *bytes = xmalloc(COPIED * stride);
    int n_failed = 0;
    for (int64_t call = 1;; call++) {
        struct gyre *g = open_dry(&options);
        struct error err;
        for (int group = 0; group < g->program->n_groups; group++)
            EXPECT((size_t)g->ops->handover->bytes(g->loaded, group) <= stride);
        dry_begin(call, DRY_ONCE);
        enum status st = copy_blocks(g, bytes, stride, &err);
        bool has_failed = dry_failed() != NULL;
        EXPECT(has_failed == (st != OK));
        if (has_failed && g->loaded->copies) {                 // else they were not made, which is the device's
            EXPECT(st == ERR_DEVICE || st == ERR_UNSUPPORTED); // of windows
            EXPECT(g->device->fault.status == OK && cudaPeekAtLastError() == cudaSuccess);
            EXPECT_OK(copy_blocks(g, bytes, stride, &err), err);
            n_failed++;
        }
        gyre_close(g);
        expect_clean("copies");
        if (!has_failed)
            break;
    }
    EXPECT(n_failed > 8);
    free(bytes);
}

int main(void) {
    set_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_asks_for_what_a_device_gives),
        cmocka_unit_test(a_path_or_a_number_that_the_environment_misnames_is_refused),
        cmocka_unit_test(the_largest_steps_are_launched_or_refused_when_a_model_is_opened),
        cmocka_unit_test(a_step_takes_what_its_ops_want),
        cmocka_unit_test(a_step_is_as_large_as_it_was_sized),
        cmocka_unit_test(a_step_is_sized_for_the_blocks_that_it_will_have),
        cmocka_unit_test(a_step_of_a_model_of_7_billion_is_told),
        cmocka_unit_test(layers_that_lie_far_apart_are_copied_one_by_one),
        cmocka_unit_test(of_two_engines_one_has_products_that_requantise),
        cmocka_unit_test(a_window_that_is_too_small_is_refused),
        cmocka_unit_test(copies_that_fail_are_told_and_leave_the_engine_well),
        cmocka_unit_test(any_call_that_fails_is_told_and_leaves_nothing_behind),
        cmocka_unit_test(a_device_that_is_lost_is_told_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
