/* test_ops_int4_cache.c - blocks of a cache of int4 are the same bytes on every device that has one: what one keeps of
 * rows another may go on with, after a hand-over or from a prefix that is kept on the host.
 *
 * Rows that are neither normed nor turned reach the cache as they were drawn; then every operation of the rounding is
 * exact or rounded once, and equal bytes are what core/kv_int4.h promises. Norms and turns are summed in an order of
 * each backend's own: those rows are held by test_ops_attention.c. */
#include "op_judge.h"
#include "op_rig.h"

#include <float.h>
#include <math.h>

enum { N_SEQS = 3 };

struct heads {
    int n_heads, n_kv_heads, k_dim, v_dim, block_size;
};

static int width_of(const struct heads *h) {
    return (h->n_heads + h->n_kv_heads) * h->k_dim + h->n_kv_heads * h->v_dim;
}

/* Rows that rounding might take for something else, behind those that were drawn: by the element's number i. */
static float zero(int i) { return (void)i, 0; }
static float one_alone(int i) { return i % 40 == 5 ? -3 : 0; }
static float alike(int i) { return (void)i, 1; }
static float tiny(int i) { return (i % 7 - 3) * 1e-39f; }
static float huge(int i) { return (i % 5 - 2) * 1e37f; }
static float too_large(int i) { return (i % 3 - 1) * FLT_MAX; }
static float infinite(int i) { return i % 50 == 7 ? INFINITY : (float)(i % 9); }
static float no_number(int i) { return i % 60 == 11 ? NAN : (float)(i % 9); }
static float (*const special[])(int) = {zero, one_alone, alike, tiny, huge, too_large, infinite, no_number};

/* With the rows above, where products are made in float32 and there is room for them. */
static struct rig *make(const struct heads *h, const int *lens, const char *kernels, const struct rig *like) {
    struct rig *rig = rig_new((struct rig_options){.n_seqs = N_SEQS,
                                                   .lens = {lens[0], lens[1], lens[2]},
                                                   .widths = {width_of(h)},
                                                   .spread = 3,
                                                   .block_size = h->block_size,
                                                   .kernels = kernels,
                                                   .kv_dtype = "int4",
                                                   .like = like});
    for (size_t k = 0; k < ARRAY_LEN(special) && strcmp(kernels, "float32") == 0 && lens[0] < 100; k++)
        for (int i = 0; i < rig->width; i++)
            rig->table[(int64_t)rig_row(rig, 0, 2 + (int)k) * rig->width + i] = special[k](i);
    int cache = program_cache_kv(rig->p, h->n_kv_heads, h->k_dim, h->v_dim, 0);
    struct qkv_args prep = {.cache = cache,
                            .rope = -1,
                            .n_heads = h->n_heads,
                            .n_kv_heads = h->n_kv_heads,
                            .head_dim = h->k_dim,
                            .v_head_dim = h->v_dim,
                            .eps = 1e-6f};
    struct attention_args args = {.cache = cache,
                                  .n_heads = h->n_heads,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->k_dim,
                                  .v_head_dim = h->v_dim,
                                  .scale = 0.1f};
    rig_result(rig, op_attention(rig->p, op_qkv_prep(rig->p, rig->in[0], NULL, NULL, prep), NULL, args));
    return rig;
}

static int blocks_of_one(const struct rig *rig) {
    return (rig->o.lens[0] + rig->o.block_size - 1) / rig->o.block_size; // the first is the longest
}

/* A step of the last n rows of each sequence, or all; sequence s has blocks s * width, s * width + 1 ... want: of their
 * last row what comes out. */
static void step(struct rig *rig, int most, double *out) {
    struct batch_plan plan;
    struct error err;
    int width = blocks_of_one(rig), n = N_SEQS * width * rig->o.block_size;
    batch_plan_init(&plan, (struct bucket){n, N_SEQS, n, 0}, 1, (int[MAX_CACHE_GROUPS]){width});
    for (int s = 0; s < N_SEQS; s++) {
        int len = rig->o.lens[s];
        for (int i = len - MIN(most, len); i < len; i++, plan.n_tokens++)
            plan.token_id[plan.n_tokens] = rig_row(rig, s, i), plan.position[plan.n_tokens] = i;
        for (int b = 0; b < width; b++)
            plan.block_table[0][s * width + b] = s * width + b;
        plan.query_start[++plan.n_seqs] = plan.n_tokens;
        plan.seq_len[s] = plan.n_sure[s] = plan.n_known[s] = len;
        plan.out_row[plan.n_rows++] = plan.n_tokens - 1;
    }
    struct sample_params sample[N_SEQS];
    struct sample_result result[N_SEQS];
    for (int s = 0; s < N_SEQS; s++) {
        sample[s] = sample_params_default();
        sample[s].want_logits = out != NULL;
    }
    EXPECT_OK(on_device_step(&rig->at, &plan, sample, false, result, &err), err);
    for (int s = 0; s < N_SEQS && out; s++) {
        const float *logits;
        EXPECT_OK(rig->ops->logits(rig->at.exe, s, &logits, &err), err);
        for (int i = 0; i < rig->out.width; i++)
            *out++ = (double)logits[i];
    }
    batch_plan_release(&plan);
}

static void prepare(struct rig *rig) {
    struct error err;
    if (rig->ops->handover->prepare)
        EXPECT_OK(rig->ops->handover->prepare(rig->at.loaded, &err), err);
}

static unsigned char *block(struct rig *rig, int i, int64_t *n_bytes) {
    struct error err;
    *n_bytes = rig->ops->handover->bytes(rig->at.loaded, 0);
    unsigned char *out = xcalloc(1, (size_t)*n_bytes);
    prepare(rig);
    EXPECT_OK(rig->ops->handover->get(rig->at.loaded, 0, &i, 1, out, 0, &err), err);
    return out;
}

static void expect_same_blocks(struct rig *rig, struct rig *cpu, const struct heads *h, int n, const char *kernels) {
    for (int i = 0; i < n; i++) {
        int64_t n_bytes, n_wanted;
        unsigned char *got = block(rig, i, &n_bytes), *want = block(cpu, i, &n_wanted);
        EXPECT_EQ(n_bytes, n_wanted);
        for (int64_t k = 0; k < n_bytes; k++)
            if (got[k] != want[k])
                fail_msg("%s, heads of %d and %d, blocks of %d: byte %lld of block %d is %02x, on the CPU %02x",
                         kernels, h->k_dim, h->v_dim, h->block_size, (long long)k, i, got[k], want[k]);
        free(got);
        free(want);
    }
}

static void compare(const struct heads *h, const char *kernels) {
    static const int lens[N_SEQS] = {37, 1, 18};
    if (!rig_takes_case())
        return;
    struct rig *rig = make(h, lens, kernels, NULL), *cpu = make(h, lens, kernels, rig);
    step(rig, lens[0], NULL);
    step(cpu, lens[0], NULL);
    expect_same_blocks(rig, cpu, h, N_SEQS * blocks_of_one(rig), kernels);
    rig_free(cpu);
    rig_free(rig);
}

static void a_block_is_the_same_bytes_as_on_the_cpu(void **state) {
    (void)state;
    static const struct heads all[] = {{4, 2, 128, 128, 64}, {2, 1, 64, 64, 16},   {2, 2, 80, 80, 4},
                                       {2, 1, 96, 96, 16},   {2, 1, 256, 256, 16}, {1, 1, 512, 512, 32},
                                       {2, 1, 46, 15, 1},    {4, 2, 24, 40, 8}};
    if (strcmp(rig_backend()->name, "xla") == 0)
        skip(); // which has no such cache
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(all); i++)
            compare(&all[i], *kernels);
}

/* Some codes and scales, on both. */
static void fill(struct rig *rig, struct rig *cpu, const struct heads *h, int i) {
    int64_t n_bytes = rig->ops->handover->bytes(rig->at.loaded, 0),
            groups = (h->k_dim + 31) / 32 + (h->v_dim + 31) / 32;
    unsigned char *bytes = xcalloc(1, (size_t)n_bytes);
    struct error err;
    for (int64_t k = 0; k < n_bytes; k++)
        bytes[k] = (unsigned char)rig_bits(rig);
    for (int64_t k = 0; k < groups * h->n_kv_heads * h->block_size; k++) {
        uint16_t scale = f32_to_bf16((float)rig_uniform(rig, -0.2, 0.2));
        memcpy(bytes + 2 * k, &scale, 2);
    }
    prepare(rig);
    EXPECT_OK(rig->ops->handover->put(rig->at.loaded, 0, &i, 1, bytes, 0, &err), err);
    EXPECT_OK(cpu->ops->handover->put(cpu->at.loaded, 0, &i, 1, bytes, 0, &err), err);
    free(bytes);
}

/* The longest is cut into parts by fast kernels; `most` tokens a sequence. */
static void go_on(const struct heads *h, const char *kernels, int most) {
    static const int lens[N_SEQS] = {1100, 200, 64};
    if (!rig_takes_case())
        return;
    struct rig *rig = make(h, lens, kernels, NULL), *cpu = make(h, lens, kernels, rig);
    for (int i = 0; i < N_SEQS * blocks_of_one(rig); i++)
        fill(rig, cpu, h, i);
    int64_t width = rig->out.width;
    double *got = rig_doubles(rig, N_SEQS * width), *want = rig_doubles(rig, N_SEQS * width);
    step(rig, most, got);
    step(cpu, most, want);
    for (int s = 0; s < N_SEQS; s++, got += width, want += width) {
        double largest = 0, off = 0, squares = 0;
        for (int64_t i = 0; i < width; i++) {
            largest = fmax(largest, fabs(want[i]));
            off = fmax(off, fabs(got[i] - want[i]));
            squares += (got[i] - want[i]) * (got[i] - want[i]);
        }
        double rms = sqrt(squares / (double)width);
        if (!(off < RIG_INT4_READ_BOUND * largest && rms < RIG_INT4_READ_RMS * largest))
            fail_msg("%s, heads of %d, blocks of %d, %d tokens: sequence %d is off by %g of %g, rms %g", kernels,
                     h->k_dim, h->block_size, most, s, off, largest, rms);
    }
    rig_free(cpu);
    rig_free(rig);
}

static void a_cache_of_the_cpu_is_gone_on_with(void **state) {
    (void)state;
    static const struct heads all[] = {
        {14, 2, 128, 128, 64}, {3, 3, 64, 64, 64}, {8, 1, 256, 256, 64}, {16, 1, 64, 64, 64}, {4, 2, 128, 128, 16}};
    if (strcmp(rig_backend()->name, "cuda") != 0)
        skip(); // the CPU is who it is compared with
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(all); i++) {
            go_on(&all[i], *kernels, 1);
            go_on(&all[i], *kernels, 3); // as drafts have
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_the_same_bytes_as_on_the_cpu),
        cmocka_unit_test(a_cache_of_the_cpu_is_gone_on_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
