/* test_ops_layer.c - the ops of a decoder layer in a row, as models record them, against the CPU's plain functions:
 * what a backend makes of neighbours (endings of products, rows' largest sizes handed on, values that nobody needs) has
 * no other test that reaches all of it. How the tests are run is said in test_ops.c.
 *
 * Batches are of every size that a step may be padded to, and odd ones: a prompt of a few tokens each, then single
 * ones.
 *
 * Bounds: a product of e4m3 with e4m3 is off by some 4 % of its size, with directions at random; four of them, one
 * behind the other and each beside the rows they are added to, leave a cosine of some 0.995, and 0.992 where weights
 * were rounded too. Products in 16 bits round a hundred times less. A row that is another's, or is scaled by another's,
 * has a cosine near 0. Scores are small where heads are not normed: were they three times as large, what 8 bits leave
 * of them would decide between the keys of one row in some ten thousand, which the right arithmetic then leaves off by
 * ten times the mean. */
#include "op_judge.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>

struct layer_case {
    const char *name;
    int width, n_heads, n_kv_heads, head_dim, ffn;
    int rope_dim; // 0: head_dim
    enum rope_pairing pairing;
    bool qk_norm, v_norm, biased, v_from_k, sandwich;
    int window;
    enum activation act;
};

static const struct layer_case layers[] = {
    {.name = "qwen2", .width = 512, .n_heads = 14, .n_kv_heads = 2, .head_dim = 64, .ffn = 608, .biased = true},
    {.name = "llama", .width = 256, .n_heads = 4, .n_kv_heads = 2, .head_dim = 128, .ffn = 704},
    {.name = "qwen3", .width = 384, .n_heads = 6, .n_kv_heads = 3, .head_dim = 128, .ffn = 512, .qk_norm = true},
    {.name = "gemma",
     .width = 256,
     .n_heads = 2,
     .n_kv_heads = 1,
     .head_dim = 256,
     .ffn = 480,
     .sandwich = true,
     .window = 5,
     .act = ACT_GELU_TANH},
    {.name = "gemma 4",
     .width = 256,
     .n_heads = 4,
     .n_kv_heads = 1,
     .head_dim = 256,
     .ffn = 272,
     .qk_norm = true,
     .v_from_k = true,
     .rope_dim = 64},
    {.name = "interleaved",
     .width = 272,
     .n_heads = 5,
     .n_kv_heads = 5,
     .head_dim = 64,
     .ffn = 336,
     .pairing = ROPE_INTERLEAVED,
     .biased = true},
    {.name = "odd", .width = 120, .n_heads = 3, .n_kv_heads = 1, .head_dim = 40, .ffn = 72, .rope_dim = 24},
    {.name = "gemma 4, sliding",
     .width = 272,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 256,
     .ffn = 304,
     .qk_norm = true,
     .v_norm = true,
     .sandwich = true,
     .window = 7,
     .act = ACT_GELU_TANH},
};

/* A backend's way of storing: of products, of weights that a checkpoint has in this format, and of keys and values. */
struct storing {
    const char *dtype;
    enum rig_format format;
    const char *quantization, *kv_dtype;
    double least; // cosine of all rows; of each it may be as far off 1 five times
};

static const struct storing stored[] = {
    {"float32", FORMAT_BF16, NULL, NULL, 0.9999999999},  {"float16", FORMAT_BF16, NULL, NULL, 0.999998},
    {"bfloat16", FORMAT_BF16_SPLIT, NULL, NULL, 0.9998}, {"float16", FORMAT_BF16, NULL, "fp8", 0.998},
    {"float16", FORMAT_F8_CHANNEL, NULL, "fp8", 0.99},   {"bfloat16", FORMAT_F8_CHANNEL, NULL, "int8", 0.99},
    {"float16", FORMAT_BF16, "fp8", "fp8", 0.988},       {"float16", FORMAT_F8_CHANNEL, NULL, NULL, 0.99},
};

/* y of a product whose rows have about the size of x's. */
static val product(struct rig *rig, const struct storing *s, val x, int out, bool biased) {
    const struct weight *w = rig_weight(rig, s->format, out, x.width, NULL);
    return op_linear(rig->p, x, w, biased ? rig_vector(rig, out, -1, 1, NULL) : NULL);
}

static const struct weight *some_vector(struct rig *rig, int n) { return rig_vector(rig, n, 0.5, 1.5, NULL); }

static val layer_attention(struct rig *rig, const struct layer_case *c, const struct storing *s,
                           const struct rope *rope, val x) {
    int kv = c->n_kv_heads * c->head_dim * (c->v_from_k ? 1 : 2);
    struct qkv_args prep = {.cache = program_cache_kv(rig->p, c->n_kv_heads, c->head_dim, c->head_dim, c->window),
                            .rope = program_rope(rig->p, rope),
                            .n_heads = c->n_heads,
                            .n_kv_heads = c->n_kv_heads,
                            .head_dim = c->head_dim,
                            .v_head_dim = c->head_dim,
                            .eps = 1e-6f,
                            .v_norm = c->v_norm,
                            .v_from_k = c->v_from_k};
    // Of heads that are not normed, scores grow with the square of the products' size.
    struct attention_args args = {.cache = prep.cache,
                                  .n_heads = c->n_heads,
                                  .n_kv_heads = c->n_kv_heads,
                                  .head_dim = c->head_dim,
                                  .v_head_dim = c->head_dim,
                                  .scale = (c->qk_norm ? 1 : 1.0f / (float)c->width) / sqrtf((float)c->head_dim),
                                  .window = c->window};
    val qkv = product(rig, s, x, c->n_heads * c->head_dim + kv, c->biased);
    const struct weight *q_norm = c->qk_norm ? some_vector(rig, c->head_dim) : NULL,
                        *k_norm = c->qk_norm ? some_vector(rig, c->head_dim) : NULL;
    val a = op_attention(rig->p, op_qkv_prep(rig->p, qkv, q_norm, k_norm, prep), NULL, args);
    return product(rig, s, a, c->width, false);
}

/* What a branch adds; Gemma norms it before. */
static val branch(struct rig *rig, const struct layer_case *c, val y) {
    struct norm_args args = {.eps = 1e-6f, .group = c->width, .scale = 1};
    return c->sandwich ? op_norm(rig->p, y, NO_VAL, some_vector(rig, c->width), args) : y;
}

static void record_layer(struct rig *rig, const struct layer_case *c, const struct storing *s, struct rope *rope) {
    struct norm_args args = {.eps = 1e-6f};
    rope->dim = c->rope_dim ? c->rope_dim : c->head_dim;
    rope->pairing = c->pairing;
    rope->factor = 1;
    float *freq = arena_alloc(&rig->arena, (size_t)rope->dim / 2 * sizeof *freq);
    for (int i = 0; i < rope->dim / 2; i++)
        freq[i] = (float)rig_uniform(rig, 0, 1);
    rope->inv_freq = freq;
    struct normed n = op_add_norm(rig->p, rig->in[0], NO_VAL, some_vector(rig, c->width), NULL, args);
    val a = branch(rig, c, layer_attention(rig, c, s, rope, n.y));
    n = op_add_norm(rig->p, n.r, a, some_vector(rig, c->width), NULL, args);
    val gate_up = product(rig, s, n.y, 2 * c->ffn, c->biased);
    val down = branch(rig, c, product(rig, s, op_glu(rig->p, gate_up, (struct act_args){c->act, 0}), c->width, false));
    rig_result(rig, op_add_norm(rig->p, n.r, down, some_vector(rig, c->width), NULL, args).y);
}

static double worst_of[ARRAY_LEN(stored)][2]; // 1 - cosine of all rows and of one, told at the end

static double row_cosine(const double *a, const double *b, int n) {
    double both = 0, of_a = 0, of_b = 0;
    for (int i = 0; i < n; i++) {
        both += a[i] * b[i];
        of_a += a[i] * a[i];
        of_b += b[i] * b[i];
    }
    return both / sqrt(of_a * of_b);
}

static void compare(struct rig *rig, const double *got, const double *want, const struct layer_case *c,
                    const struct storing *s, int schedule) {
    double all = rig_cosine(rig, got, want), least = 1;
    int worst = 0, width = rig->out.width;
    for (int r = 0; r < rig->n_rows; r++) {
        if (!rig_tells(rig, r))
            continue;
        double one = row_cosine(got + (int64_t)r * width, want + (int64_t)r * width, width);
        if (!(one >= least)) {
            worst = r;
            least = one;
        }
    }
    if (s >= stored && s < stored + ARRAY_LEN(stored)) {
        worst_of[s - stored][0] = fmax(worst_of[s - stored][0], 1 - all);
        worst_of[s - stored][1] = fmax(worst_of[s - stored][1], 1 - least);
    }
    if (!(all >= s->least) || !(least >= 1 - 5 * (1 - s->least)))
        fail_msg("layer of %s, %d sequences, %s%s, cache %s, schedule %d: cosine %.7f, of row %d of %d %.7f, over %.7f",
                 c->name, rig->o.n_seqs, s->dtype,
                 s->quantization                  ? " quantised"
                 : s->format == FORMAT_F8_CHANNEL ? " of e4m3"
                                                  : "",
                 s->kv_dtype ? s->kv_dtype : "as it is", schedule, all, worst, rig->n_rows, least, s->least);
}

/* Steps that take a sanitizer long, and float32 products of the larger layers. */
static bool is_for_brief(const struct layer_case *c, const struct storing *s, int n_seqs) {
    int kv = c->n_kv_heads * c->head_dim * (c->v_from_k ? 1 : 2),
        widest = MAX(2 * c->ffn, c->n_heads * c->head_dim + kv);
    bool is_wide = s->dtype && strcmp(s->dtype, "float32") == 0;
    return n_seqs <= 130 && widest * c->width * (is_wide ? 4 : 2) < RIG_TIMED_BYTES;
}

static void go_through(const struct layer_case *c, const struct storing *s, int n_seqs) {
    struct rig_options o = {.n_seqs = n_seqs,
                            .widths = {c->width},
                            .spread = 2,
                            .kernels = s->dtype,
                            .quantization = s->quantization,
                            .kv_dtype = s->kv_dtype};
    int longest = n_seqs > 16 ? 6 : 40;
    for (int i = 0; i < n_seqs; i++)
        o.lens[i] = 3 + (i * 7 + n_seqs) % (longest - 2);
    if (n_seqs <= 3)
        o.lens[0] = 90; // of several blocks, and more rows than kernels for a few take
    o.block_size = n_seqs > 64 ? 64 : n_seqs > 16 ? 16 : 32; // 64: as an engine has them
    struct rope ropes[2] = {0};
    struct rig *rig = rig_new(o);
    record_layer(rig, c, s, &ropes[0]);
    o.like = rig;
    o.block_size = 16;
    struct rig *plain = rig_new(o);
    record_layer(plain, c, s, &ropes[1]);
    const double *want = rig_run(plain, SCHEDULE_WHOLE);
    compare(rig, rig_run(rig, SCHEDULE_WHOLE), want, c, s, SCHEDULE_WHOLE);
    compare(rig, rig_run(rig, SCHEDULE_CHUNK_1), want, c, s, SCHEDULE_CHUNK_1);
    if (!rig_is_brief() && n_seqs <= 64)
        compare(rig, rig_run(rig, SCHEDULE_RAGGED), want, c, s, SCHEDULE_RAGGED);
    rig_free(plain);
    rig_free(rig);
}

static void layer_case(const struct layer_case *c, const struct storing *s, int n_seqs) {
    if (rig_takes_case() && (!rig_is_brief() || is_for_brief(c, s, n_seqs)))
        go_through(c, s, n_seqs);
}

/* In every part: steps of one row have kernels of their own; no block may overwrite what another reads. */
static void a_row_goes_through_a_layer_as_on_the_cpu(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    for (size_t k = 0; k < 3; k++)
        go_through(&layers[k], &stored[k == 1 ? 4 : 7], 1);
}

static void batches_of_every_size_go_through_a_layer_as_on_the_cpu(void **state) {
    (void)state;
    static const int sizes[] = {1,  2,  3,  4,  5,  8,  9,   13,  16,  17,  24,  29,  32,  33,  40,
                                48, 57, 64, 65, 80, 97, 128, 130, 160, 200, 256, 300, 384, 500, 512};
    if (rig_backend() == &backend_cpu) { // whose sets of kernels are tried one op at a time; here they are together
        layer_case(&layers[0], &(struct storing){NULL, FORMAT_BF16, NULL, NULL, 0.9999999}, 5);
        layer_case(&layers[3], &(struct storing){NULL, FORMAT_F8_CHANNEL, NULL, NULL, 0.9999999}, 17);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (size_t k = 0; k < ARRAY_LEN(layers); k++)
            if (sizes[i] <= 64 || (k + i) % 3 == 0)
                layer_case(&layers[k], &stored[(i + k + test_seed()) % ARRAY_LEN(stored)], sizes[i]);
    for (size_t s = 0; s < ARRAY_LEN(stored); s++) {
        layer_case(&layers[0], &stored[s], 33);
        print_message("layers, %s%s, cache %s: 1 - cosine at most %.1e, of a row %.1e; %.1e may be\n", stored[s].dtype,
                      stored[s].quantization                  ? " quantised"
                      : stored[s].format == FORMAT_F8_CHANNEL ? " of e4m3"
                                                              : "",
                      stored[s].kv_dtype ? stored[s].kv_dtype : "as it is", worst_of[s][0], worst_of[s][1],
                      1 - stored[s].least);
    }
}

/* More pairs of a sequence and a KV head than a device works on at once, or half as many, over a cache of 8 bits:
 * decode attention takes them otherwise than few. */
static void many_pairs_go_through_a_layer_as_on_the_cpu(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip(); // its cache is float32
    layer_case(&layers[2], &stored[3], 130);
    layer_case(&layers[2], &stored[3], 300);
}

enum { LOUD, QUIET, USUAL, N_LOUDNESSES }; // by turns, of a step's rows

/* Rows of one channel, which the norm's weight makes large or small; and of all. */
static void make_loud_and_quiet(struct rig *rig, const struct weight *norm, float size) {
    uint16_t *n = (uint16_t *)(uintptr_t)norm->parts[0].data;
    n[LOUD] = f32_to_bf16(8 * size);
    n[QUIET] = f32_to_bf16(size / 16);
    RIG_EACH_ROW(rig, s, t) {
        float *x = (float *)(uintptr_t)rig_input(rig, 0, s, t);
        int loudness = rig_row(rig, s, t) % N_LOUDNESSES;
        for (int i = 0; loudness != USUAL && i < rig->o.widths[0]; i++)
            x[i] = i == loudness ? 2 : 0;
    }
}

static void record_loud_and_quiet(struct rig *rig, const struct layer_case *c, const struct storing *s) {
    float size = 4 / sqrtf((float)c->width); // half precision holds gate times up of loud rows
    const struct weight *norm = rig_vector(rig, c->width, 0.5 * (double)size, 1.5 * (double)size, NULL);
    make_loud_and_quiet(rig, norm, size);
    val y = op_add_norm(rig->p, rig->in[0], NO_VAL, norm, NULL, (struct norm_args){.eps = 1e-6f}).y;
    val gated = op_glu(rig->p, product(rig, s, y, 2 * c->ffn, false), (struct act_args){c->act, 0});
    rig_result(rig, product(rig, s, gated, c->width, false));
}

static void loud_and_quiet_case(const struct layer_case *c, const char *dtype, int n_rows) {
    struct storing s = {dtype, FORMAT_F8_CHANNEL, NULL, NULL, 0.99};
    struct rig_options o = {.n_seqs = (n_rows + 1) / 2, .widths = {c->width}, .spread = 2, .kernels = dtype};
    if (!rig_takes_case())
        return;
    for (int i = 0; i < o.n_seqs; i++)
        o.lens[i] = 2;
    struct rig *rig = rig_new(o);
    record_loud_and_quiet(rig, c, &s);
    o.like = rig;
    struct rig *plain = rig_new(o);
    record_loud_and_quiet(plain, c, &s);
    const double *want = rig_run(plain, SCHEDULE_WHOLE);
    compare(rig, rig_run(rig, SCHEDULE_WHOLE), want, c, &s, SCHEDULE_WHOLE);
    compare(rig, rig_run(rig, SCHEDULE_CHUNK_1), want, c, &s, SCHEDULE_CHUNK_1);
    rig_free(plain);
    rig_free(rig);
}

/* What a scale is foreseen for by the weights (static_scale.c) is far from rows that have their size from one channel:
 * 10 times larger, 1,000 times smaller. Clamped, or as zeros, those would be like nothing. */
static void rows_that_a_scale_was_not_foreseen_for_have_their_own(void **state) {
    (void)state;
    static const struct layer_case large = {
        .name = "large", .width = 3584, .ffn = 4704}; // as gemm_fp8_gated.cu and gemm_fp8_split_k.cu take them unasked
    static const int sizes[] = {6, 90, 300};
    if (rig_backend() == &backend_cpu)
        skip(); // nothing is quantised
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        loud_and_quiet_case(&layers[1], "float16", sizes[i]);
        loud_and_quiet_case(&layers[3], "bfloat16", sizes[i]); // GELU
    }
    if (!rig_is_brief())
        loud_and_quiet_case(&large, "float16", 200); // steps of 200 rows and of 100
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_goes_through_a_layer_as_on_the_cpu),
        cmocka_unit_test(batches_of_every_size_go_through_a_layer_as_on_the_cpu),
        cmocka_unit_test(many_pairs_go_through_a_layer_as_on_the_cpu),
        cmocka_unit_test(rows_that_a_scale_was_not_foreseen_for_have_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
