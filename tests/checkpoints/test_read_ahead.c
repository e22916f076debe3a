/* test_read_ahead.c - a stage's weights are read ahead, all of them and no others: the test is told by the calls of the
 * system what is read. */
#include "check.h"

#include "checkpoint_files.h"
#include "core/pass/pass.h"
#include "model/model.h"
#include "quantize/quantize.h"

#include <sys/mman.h>

enum { PAGE = 4096, MOST = 10000 };

static const char *const folders[] = {"tests/models/llama",     "tests/models/gemma3",  "tests/models/deepseek_v3",
                                      "tests/models/gpt_oss",   "tests/models/qwen3_5", "tests/models/diffllama",
                                      "tests/models/qwen3_moe", "models/story"};

static struct range { uintptr_t begin, end; } read_ranges[MOST];
static int n_ranges;

// In place of the C library's: nothing is in memory yet, and what is to be read is written down.
int mincore(void *at, size_t n, unsigned char *out) {
    (void)at;
    memset(out, 0, (n + PAGE - 1) / PAGE);
    return 0;
}
int madvise(void *at, size_t n, int advice) {
    EXPECT((uintptr_t)at % PAGE == 0);
    if (advice != MADV_POPULATE_READ)
        return 0;
    EXPECT(n_ranges < MOST);
    read_ranges[n_ranges++] = (struct range){(uintptr_t)at, (uintptr_t)at + n};
    return 0;
}

/* A first page may begin with others' bytes. */
static bool is_read(const void *at, size_t but) {
    for (int i = 0; i < n_ranges; i++)
        if ((uintptr_t)at >= read_ranges[i].begin + but && (uintptr_t)at < read_ranges[i].end)
            return true;
    return false;
}

struct told {
    int64_t done, total;
};

static void tell(void *context, int64_t done, int64_t total) {
    struct told *t = context;
    EXPECT(done > t->done && done <= total);
    *t = (struct told){done, total};
}

/* How many bytes. */
static int64_t read_ahead(const struct model *m, const struct program *part) {
    struct told told = {0};
    n_ranges = 0;
    model_read_ahead(m, part, &(struct load_progress){tell, &told});
    EXPECT_EQ(told.done, told.total);
    return told.total;
}

static bool has_weight(const struct program *p, const struct weight *w) {
    for (int i = 0; i < p->n_ops; i++)
        for (int slot = 0; slot < OP_MAX_WEIGHTS; slot++)
            if (p->ops[i].weights[slot] == w)
                return true;
    return false;
}

static bool is_read_whole(const struct weight_part *p) {
    return is_read(p->data, 0) && (!p->scale.data || is_read(p->scale.data, 0)) &&
           (!p->packed || !p->packed->zeros || is_read(p->packed->zeros, 0));
}

/* Those of the stage, scales too, and not those that it lacks. */
static void expect_read(const struct model *m, const struct program *stage) {
    const struct program *p = m->program;
    for (int i = 0; i < p->n_ops; i++)
        for (int slot = 0; slot < OP_MAX_WEIGHTS; slot++) {
            const struct weight *w = p->ops[i].weights[slot];
            for (int k = 0; w && k < w->n_parts; k++) {
                const struct weight_part *part = &w->parts[k];
                if (!has_weight(stage, w))
                    EXPECT(!is_read(part->data, PAGE));
                else if (!is_read_whole(part))
                    fail_msg("%s: %s is not read", p->name, w->name);
            }
        }
}

static int64_t all_bytes(const struct model *m) {
    int64_t n = 0;
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++)
        n += (int64_t)checkpoint_at(m->checkpoint, i)->n_bytes;
    return n;
}

static void expect_shares(const char *folder) {
    struct model *m;
    struct error err;
    EXPECT_OK(model_open(folder, &(struct model_options){.load = LOAD_CHECKPOINT}, &m, &err), err);
    int64_t stored = all_bytes(m), whole = read_ahead(m, m->program), sum = 0;
    int64_t numbers = (int64_t)checkpoint_count(m->checkpoint) * (int64_t)sizeof(float);
    EXPECT(whole <= stored && whole >= stored - numbers); // all but scales of whole tensors, which are read by then
    expect_read(m, m->program);
    for (int s = 0; s < 2; s++) {
        struct program *stage;
        EXPECT_OK(pass_stage(m->program, s, 2, &stage, &err), err);
        int64_t n = read_ahead(m, stage);
        if (n <= 0 || n >= whole)
            fail_msg("%s: stage %d reads %lld of %lld bytes", folder, s, (long long)n, (long long)whole);
        sum += n;
        expect_read(m, stage);
        program_free(stage);
    }
    EXPECT(sum >= whole);                  // a table that is tied is in both
    EXPECT(read_ahead(m, NULL) >= stored); // files, with what is between tensors
    model_free(m);
}

static void a_stage_reads_its_share(void **state) {
    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(folders); f++)
        expect_shares(folders[f]);
}

static void scales_are_read_too(void **state) {
    (void)state;
    static const char *const types[] = {"fp8", "nvfp4"};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct quantize_job job = {.model = folders[0], .out = in_dir(types[i]), .type = types[i], .n_threads = 1};
        struct error err;
        EXPECT_OK(quantize_safetensors(&job, &err), err);
        expect_shares(job.out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_reads_its_share),
        cmocka_unit_test(scales_are_read_too),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
