/* test_cache.c - memory of the cache by need, on a device: where blocks are, what is taken and given back, what happens
 * when the device has none left, and that a model does not see any of it.
 *
 *     build/cuda/test_cache         in the root of the sources; wants a GPU that nobody else uses */
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"
#include "check.h"
#include "on_device.h"

#include "backend/cuda/cuda.h"
#include "base/clock.h"
#include "base/random.h"
#include "engine/engine.h"
#include "sched/kv_pool_internal.h"

#include <unistd.h>

extern const struct backend_ops backend_cuda;

static int64_t free_bytes(void) {
    size_t f = 0, total;
    EXPECT_EQ(cudaMemGetInfo(&f, &total), cudaSuccess);
    return (int64_t)f;
}

// ---- where blocks are -------------------------------------------------------------------------------------------

struct rig {
    struct on_device at;
    struct cache_group groups[2];
    struct program *p;
    struct cache_config config;
};

static struct cache_group keys_and_values(int n_heads, int k_dim, int v_dim, int n_layers) {
    return (struct cache_group){
        .kind = CACHE_KV, .n_heads = n_heads, .k_dim = k_dim, .v_dim = v_dim, .n_layers = n_layers};
}

static void rig_close(struct rig *r) {
    on_device_close(&r->at);
    program_free(r->p);
}

static void rig_open(struct rig *r, const char *kv, struct cache_group a, int blocks_a, struct cache_group z,
                     int blocks_z, bool by_need) {
    static const float row[16];
    static struct weight_part part = {&qformat_plain, DT_F32, row, .n_rows = 1, .row_stride = 16, .col_stride = 1};
    static const struct weight table = {"table", 1, 16, 1, &part};
    struct error err;
    *r = (struct rig){.groups = {a, z}, .p = program_new("test")};
    op_sample(r->p, op_take_rows(r->p, op_embed(r->p, &table, 1)));
    r->p->n_groups = 2;
    r->p->groups = xcalloc(2, sizeof *r->p->groups);
    memcpy(r->p->groups, r->groups, sizeof r->groups);
    r->config = (struct cache_config){
        .block_size = 64, .n_blocks = {blocks_a, blocks_z}, .table_width = {4, 4}, .by_need = by_need};
    EXPECT_OK(
        on_device_load(&backend_cuda, (struct how){.load = {.dtype = "float16", .kv_dtype = kv}}, r->p, &r->at, &err),
        err);
    EXPECT_OK(backend_cuda.alloc_cache(r->at.loaded, &r->config, &err), err);
}

/* Of block b of a layer, as kernels find it. */
static char *place_of(const struct rig *r, int group, int layer, int b) {
    const struct group_cache *c = &r->at.loaded->caches[group];
    int64_t element = element_bytes(c->element);
    return (char *)c->at + (layer * c->layer_elements + cache_place(c, b) * c->block_elements) * element;
}

static int64_t size_of(const struct rig *r, int group) {
    return cuda_cache_block_bytes(r->at.loaded, group, 64) / r->groups[group].n_layers;
}

static void commit(struct rig *r, int group, int n) {
    struct error err;
    int usable = n;
    EXPECT_OK(backend_cuda.commit_cache(r->at.loaded, group, &usable, &err), err);
    EXPECT(usable >= n && usable <= r->config.n_blocks[group]);
    EXPECT(usable == r->config.n_blocks[group] || usable - n < r->at.loaded->caches[group].piece_blocks);
    EXPECT_EQ(cudaStreamSynchronize(r->at.device->stream), cudaSuccess);
}

static uint64_t tag_of(int group, int layer, int b, int end) {
    return ((uint64_t)test_seed() << 40) ^ (uint64_t)((group * 1000 + layer) * 2 + end) << 24 ^ (uint64_t)b;
}

/* The first and the last eight bytes of every block of every layer, [first, end). */
static void tag_blocks(const struct rig *r, int group, int first, int end) {
    for (int l = 0; l < r->groups[group].n_layers; l++)
        for (int b = first; b < end; b++)
            for (int e = 0; e < 2; e++) {
                uint64_t tag = tag_of(group, l, b, e), was = 1;
                char *at = place_of(r, group, l, b) + (e ? size_of(r, group) - 8 : 0);
                EXPECT_EQ(cudaMemcpy(&was, at, 8, cudaMemcpyDeviceToHost), cudaSuccess);
                EXPECT_EQ(was, 0); // zeroed, and nobody else's
                EXPECT_EQ(cudaMemcpy(at, &tag, 8, cudaMemcpyHostToDevice), cudaSuccess);
            }
}

static void expect_tags(const struct rig *r, int group, int end) {
    for (int l = 0; l < r->groups[group].n_layers; l++)
        for (int b = 0; b < end; b++)
            for (int e = 0; e < 2; e++) {
                uint64_t is = 0;
                EXPECT_EQ(cudaMemcpy(&is, place_of(r, group, l, b) + (e ? size_of(r, group) - 8 : 0), 8,
                                     cudaMemcpyDeviceToHost),
                          cudaSuccess);
                EXPECT(is == tag_of(group, l, b, e));
            }
}

static void every_block_of_every_layer_has_memory_of_its_own(void **state) {
    (void)state;
    static const char *const kinds[] = {"fp8", "float16", "int8", "int4"};
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct rig r;
        struct cache_group other = keys_and_values(3, 72, 40, 5);
        other.window = 100;
        rig_open(&r, kinds[k], keys_and_values(4, 128, 128, 28), 120, other, 700, true);
        for (int g = 0; g < 2; g++)
            for (int n = 1, done = 0; done < r.config.n_blocks[g]; done = n, n = MIN(n * 5 + 2, r.config.n_blocks[g])) {
                commit(&r, g, n);
                tag_blocks(&r, g, done, n);
            }
        expect_tags(&r, 0, r.config.n_blocks[0]);
        expect_tags(&r, 1, r.config.n_blocks[1]);
        printf("%s: pieces of %zu and %zu MiB, %d and %d blocks\n", kinds[k],
               r.at.loaded->caches[0].map.piece_bytes >> 20, r.at.loaded->caches[1].map.piece_bytes >> 20,
               r.at.loaded->caches[0].piece_blocks, r.at.loaded->caches[1].piece_blocks);
        rig_close(&r);
    }
}

/* Of 20 GiB: taken as it is asked for, given back, taken again zeroed, at the same addresses. */
static void memory_is_taken_by_need_and_given_back(void **state) {
    (void)state;
    struct rig r;
    struct cache_group g = keys_and_values(8, 128, 128, 32);
    int64_t before = free_bytes();
    rig_open(&r, "fp8", g, 5000, keys_and_values(1, 64, 64, 1), 1, true);
    EXPECT(before - free_bytes() < 1 << 30); // the context's
    int64_t opened = free_bytes(), block = cuda_cache_block_bytes(r.at.loaded, 0, 64);
    const void *at = r.at.loaded->caches[0].at;
    for (int round = 0; round < 3; round++) {
        int64_t start = clock_us();
        commit(&r, 0, 2000);
        int64_t mapped = clock_us(), took = opened - free_bytes();
        EXPECT(took >= 2000 * block && took < 2100 * block);
        tag_blocks(&r, 0, 1990, 1992);
        commit(&r, 0, 0);
        int64_t given = clock_us();
        EXPECT(opened - free_bytes() < 256 << 20);
        EXPECT(r.at.loaded->caches[0].at == at);
        printf("%lld MiB: %lld us to map and clear, %lld to give back (with a few copies)\n", (long long)(took >> 20),
               (long long)(mapped - start), (long long)(given - mapped));
    }
    rig_close(&r);
}

static void a_device_without_memory_refuses_and_works_on(void **state) {
    (void)state;
    struct rig r;
    struct error err;
    void *hog;
    rig_open(&r, "fp8", keys_and_values(8, 128, 128, 32), 5000, keys_and_values(1, 64, 64, 1), 1, true);
    commit(&r, 0, 100);
    tag_blocks(&r, 0, 0, 2);
    EXPECT_EQ(cudaMalloc(&hog, (size_t)(free_bytes() - (int64_t)(1 << 30))), cudaSuccess);
    int n = 5000;
    EXPECT_EQ(backend_cuda.commit_cache(r.at.loaded, 0, &n, &err), ERR_MEMORY);
    printf("%s\n", err.text);
    EXPECT(n >= 100 && n < 5000 && strstr(err.text, "MiB"));
    expect_tags(&r, 0, 2);
    EXPECT_EQ(cudaFree(hog), cudaSuccess);
    commit(&r, 0, 5000);
    expect_tags(&r, 0, 2);
    rig_close(&r);
}

// ---- a model over it --------------------------------------------------------------------------------------------

enum { TEXTS = 3, LENGTH = 300, PROMPT = 9 };

struct text {
    int32_t tokens[LENGTH];
    float logprob[LENGTH];
    int n;
    enum gyre_finish finish;
    char error[400];
};

static struct gyre *open_model(const char *folder, const char *kv, int64_t cache_bytes, double idle_s) {
    struct gyre_error err;
    struct gyre *g;
    struct gyre_options o = {.model = folder,
                             .backend = &backend_cuda,
                             .dtype = "float16",
                             .kv_cache_dtype = kv,
                             .max_seqs = 256, // so many decide how large the cache may be
                             .block_size = 16,
                             .kv_cache_bytes = cache_bytes,
                             .cache_idle_s = idle_s};
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

static void write_texts(struct gyre *g, struct text *texts) {
    for (int i = 0; i < TEXTS; i++) {
        struct gyre_request q = gyre_request_default(g);
        struct gyre_error err;
        uint64_t id;
        texts[i] = (struct text){.n = PROMPT};
        for (int k = 0; k < PROMPT; k++)
            texts[i].tokens[k] =
                (int32_t)(philox4x32(test_seed(), (uint64_t)i, (uint64_t)k).v[0] % (uint32_t)gyre_info(g)->vocab_size);
        q.prompt = texts[i].tokens, q.n_prompt = PROMPT, q.max_tokens = LENGTH - PROMPT,
        q.ignore_eos = q.logprobs = true;
        q.temperature = 1, q.seed = 7 + (uint64_t)i, q.user = &texts[i];
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    }
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int i = 0, n = gyre_poll(g, e, 16); i < n; i++) {
            struct text *t = e[i].user;
            if (e[i].kind == GYRE_TOKEN)
                t->tokens[t->n] = e[i].token, t->logprob[t->n++] = e[i].logprob;
            else if (e[i].kind == GYRE_DONE)
                t->finish = e[i].finish, snprintf(t->error, sizeof t->error, "%s", e[i].error ? e[i].error : "");
        }
    }
}

static void expect_same(const struct text *a, const struct text *b) {
    for (int i = 0; i < TEXTS; i++) {
        EXPECT_EQ(a[i].n, LENGTH);
        EXPECT_EQ(memcmp(&a[i], &b[i], sizeof a[i]), 0);
    }
}

/* The free blocks of each group then begin a few before the end of the first piece, so that sequences have blocks of
 * two and more. */
static int take_low_blocks(struct gyre *g) {
    int n_pieces = 0;
    for (int i = 0; i < g->pool.n_groups; i++) {
        const struct group_cache *c = &g->loaded->caches[i];
        if (!g->pool.groups[i].paged)
            continue;
        n_pieces += c->map.n_pieces > 1;
        for (int k = 0; k < c->piece_blocks - 5 && c->map.n_pieces > 1; k++)
            kv_pool_take_block(&g->pool, i);
    }
    return n_pieces;
}

static void texts_do_not_depend_on_where_their_blocks_are(void **state) {
    (void)state;
    static const struct {
        const char *name, *kv;
    } models[] = {{"llama", NULL},   {"llama", "fp8"},   {"llama", "int4"},     {"gemma3", NULL},
                  {"gemma4", "fp8"}, {"gemma4", "int4"}, {"deepseek_v3", NULL}, {"qwen3_5", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        static struct text low[TEXTS], high[TEXTS];
        char folder[80];
        snprintf(folder, sizeof folder, "tests/models/%s", models[i].name);
        struct gyre *g = open_model(folder, models[i].kv, (int64_t)256 << 20, 0);
        write_texts(g, low);
        gyre_close(g);
        g = open_model(folder, models[i].kv, (int64_t)256 << 20, 0);
        int n = take_low_blocks(g);
        write_texts(g, high);
        printf("%s %s: %d groups of several pieces, %d mapped of the first\n", models[i].name,
               models[i].kv ? models[i].kv : "float16", n, g->loaded->caches[0].map.n_mapped);
        EXPECT(n > 0);
        gyre_close(g);
        expect_same(low, high);
    }
}

/* Until nothing has run for cache_idle_s, and what may go back has. */
static void rest(struct gyre *g) {
    while (engine_rest_us(g) > 0)
        usleep(1000);
    engine_rest(g);
}

/* Opening maps what the first batch will want, here two pieces, and kernels take memory when they are first loaded: so
 * what counts is what the second texts take and leave. */
static void an_idle_engine_gives_memory_back_and_writes_the_same_again(void **state) {
    (void)state;
    static struct text first[TEXTS], again[TEXTS];
    struct gyre *g = open_model("tests/models/llama", NULL, (int64_t)256 << 20, 0.2);
    take_low_blocks(g);
    write_texts(g, first);
    rest(g);
    int64_t rested = free_bytes();
    write_texts(g, again);
    int64_t used = free_bytes();
    for (int b = 0; b < g->loaded->caches[0].piece_blocks - 5; b++) // those of take_low_blocks
        blocks_give_back(&g->pool.groups[0].blocks, b);
    rest(g);
    printf("%lld bytes free at rest, %lld with texts, %lld at rest again\n", (long long)rested, (long long)used,
           (long long)free_bytes());
    EXPECT(used < rested && free_bytes() >= rested);
    EXPECT_EQ(g->loaded->caches[0].map.n_mapped, 1);
    expect_same(first, again);
    write_texts(g, again);
    expect_same(first, again);
    gyre_close(g);
}

static void a_full_device_ends_requests_with_a_sentence(void **state) {
    (void)state;
    static struct text texts[TEXTS];
    struct gyre *g = open_model("tests/models/llama", NULL, (int64_t)4 << 30, 0);
    int64_t most = 0;
    void *hogs[64];
    int n = 0;
    for (int64_t size = (int64_t)64 << 30; size >= 2 << 20; size /= 2)
        while (n < (int)ARRAY_LEN(hogs) && free_bytes() > size && cudaMalloc(&hogs[n], (size_t)size) == cudaSuccess)
            n++, most += size;
    cudaGetLastError();
    for (int i = g->pool.groups[0].blocks.n_free; i > 2; i--) // all but a few of the blocks that have memory
        kv_pool_take_block(&g->pool, 0);
    write_texts(g, texts);
    printf("%lld MiB taken by others: %s\n", (long long)(most >> 20), texts[0].error);
    for (int i = 0; i < TEXTS; i++)
        EXPECT(texts[i].finish == GYRE_FAILED && strstr(texts[i].error, "no memory left"));
    while (n > 0)
        EXPECT_EQ(cudaFree(hogs[--n]), cudaSuccess);
    usleep(1100000); // then it is asked again
    write_texts(g, texts);
    for (int i = 0; i < TEXTS; i++)
        EXPECT_EQ(texts[i].n, LENGTH);
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_of_every_layer_has_memory_of_its_own),
        cmocka_unit_test(memory_is_taken_by_need_and_given_back),
        cmocka_unit_test(a_device_without_memory_refuses_and_works_on),
        cmocka_unit_test(texts_do_not_depend_on_where_their_blocks_are),
        cmocka_unit_test(an_idle_engine_gives_memory_back_and_writes_the_same_again),
        cmocka_unit_test(a_full_device_ends_requests_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
