/* test_ops_refusals.c - what a backend cannot compute it refuses before the first step, in a sentence with the program,
 * the op and the weight; it never computes something else. Every op that has weights, every weight of each. */
#include "op_rig.h"
#include "op_weights.h"

/* A program of every op that has weights. */
static val record_moe(struct rig *rig, val x) {
    struct program *p = rig->p;
    struct route_args route = {ROUTE_SIGMOID, 8, 2, 0, 0, true, 1};
    struct moe_args moe = {.n_experts = 8, .top_k = 2, .ffn_size = 4, .act = {ACT_SILU, 0}};
    val logits = op_linear(p, x, rig_weight(rig, FORMAT_BF16, 8, 64, NULL), NULL);
    struct routed r = op_moe_route(p, logits, rig_vector(rig, 8, -1, 1, NULL), rig_vector(rig, 8, 0.5, 2, NULL), route);
    return op_moe_ffn(p, x, r, rig_weight(rig, FORMAT_MXFP4, 8 * 2 * 4, 64, NULL),
                      rig_weight(rig, FORMAT_F16, 8 * 64, 4, NULL), rig_vector(rig, 8 * 2 * 4, -1, 1, NULL),
                      rig_vector(rig, 8 * 64, -1, 1, NULL), moe);
}

static val record_attention(struct rig *rig, val x) {
    struct program *p = rig->p;
    int cache = program_cache_kv(p, 2, 16, 16, 0);
    struct qkv_args prep = {
        .cache = cache, .rope = -1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .v_head_dim = 16, .eps = 1e-6f};
    struct attention_args args = {
        .cache = cache, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .v_head_dim = 16, .scale = 1};
    val qkv = op_linear(p, x, rig_weight(rig, FORMAT_BF16_SPLIT, 128, 64, NULL), rig_vector(rig, 128, -1, 1, NULL));
    val q = op_qkv_prep(p, qkv, rig_vector(rig, 16, -1, 1, NULL), rig_vector(rig, 16, -1, 1, NULL), prep);
    const struct weight *lambda[4];
    for (int i = 0; i < 4; i++)
        lambda[i] = rig_vector(rig, 8, -1, 1, NULL);
    return op_diff_heads(p, op_attention(p, q, rig_vector(rig, 4, -1, 1, NULL), args), lambda,
                         (struct diff_args){4, 16, 0.3f});
}

static void record_mla(struct rig *rig, val x, val q) {
    struct program *p = rig->p;
    static float inv_freq[] = {1, 0.5f, 0.2f, 0.1f}; // the program keeps both
    static struct rope rope = {.pairing = ROPE_INTERLEAVED, .dim = 8, .inv_freq = inv_freq, .factor = 1};
    struct mla_args a = {.n_heads = 2, .rank = 16, .nope_dim = 8, .rope_dim = 8, .v_dim = 8, .eps = 1e-6f, .scale = 1};
    a.rope = program_rope(p, &rope);
    a.cache = program_cache_latent(p, 24);
    val kva = op_linear(p, x, rig_weight(rig, FORMAT_F8_BLOCK, 24, 64, NULL), NULL);
    val prepared =
        op_mla_prep(p, q, kva, rig_vector(rig, 16, -1, 1, NULL), rig_weight(rig, FORMAT_BF16, 16, 16, NULL), a);
    op_mla_attention(p, prepared, rig_weight(rig, FORMAT_F32, 16, 16, NULL), a);
}

static val record_recurrent(struct rig *rig, val x) {
    struct program *p = rig->p;
    struct delta_args delta = {.n_key_heads = 1, .n_value_heads = 2, .key_dim = 16, .value_dim = 16};
    val b = val_cols(x, 0, 2), a = val_cols(x, 2, 2);
    int conv = program_cache_state(p, 64 * 3, 1);
    delta.cache = program_cache_state(p, 1, 2 * 16 * 16);
    val qkv = op_short_conv(p, x, rig_weight(rig, FORMAT_BF16, 64, 4, NULL), (struct conv_args){conv, 4});
    return op_delta_rule(p, qkv, b, a, rig_vector(rig, 2, -1, 1, NULL), rig_vector(rig, 2, -1, 1, NULL), delta);
}

/* Where the backend has it. */
static val record_lora(struct rig *rig, val x) {
    static const struct lora_run runs[] = {{64, 0}};
    struct lora_args args = {.n_adapters = 1, .n_modules = 1, .rank = 4, .n_runs = 1, .runs = runs};
    if (rig_backend() != &backend_cpu)
        return x;
    return op_lora(rig->p, x, x, rig_weight(rig, FORMAT_BF16, 4, 64, NULL), rig_weight(rig, FORMAT_F32, 64, 4, NULL),
                   rig_vector(rig, 1, 1, 2, NULL), args);
}

static struct rig *everything(void) {
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 1, .lens = {3}, .widths = {64}});
    struct norm_args plain = {.eps = 1e-5f}, groups = {.eps = 1e-5f, .group = 32};
    val x =
        op_add_norm(rig->p, rig->in[0], NO_VAL, rig_vector(rig, 64, -1, 1, NULL), rig_vector(rig, 1, 1, 2, NULL), plain)
            .y;
    x = op_norm(rig->p, x, NO_VAL, rig_vector(rig, 32, -1, 1, NULL), groups);
    x = record_lora(rig, x);
    record_mla(rig, x, record_attention(rig, x));
    rig_result(rig, record_recurrent(rig, record_moe(rig, x)));
    return rig;
}

static const int n_weights[N_OPCODES] = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = n_weights,
#include "core/ops.def"
};

struct defect {
    const char *word; // of the sentence
    void (*spoil)(struct weight_part *part);
};

static void no_data(struct weight_part *part) { part->data = NULL; }
static void plain_integers(struct weight_part *part) { part->format = &qformat_plain, part->dtype = DT_I32; }
static void plain_bytes(struct weight_part *part) { part->format = &qformat_plain, part->dtype = DT_I8; }
static void scaled_bits(struct weight_part *part) { part->format = &qformat_scaled, part->dtype = DT_U8; }
static void packed_floats(struct weight_part *part) { part->format = &qformat_mxfp4, part->dtype = DT_F32; }
static void packed_and_turned(struct weight_part *part) {
    part->format = &qformat_nvfp4, part->dtype = DT_U8, part->col_stride = 2;
}

static const struct defect defects[] = {
    {"no data", no_data}, {"i32", plain_integers},  {"i8", plain_bytes},
    {"u8", scaled_bits},  {"mxfp4", packed_floats}, {"nvfp4", packed_and_turned},
};

/* On a backend of its own; the error is empty if it was taken. */
static struct error place_anew(const struct rig *rig) {
    struct on_device at;
    struct error err = {0};
    EXPECT_EQ(on_device_load(rig->ops, (struct how){.n_threads = 1}, rig->p, &at, &err), err.status);
    on_device_close(&at); // also after a refusal
    return err;
}

static void expect_word(const char *text, const char *word) {
    if (!strstr(text, word))
        fail_msg("no \"%s\" in \"%s\"", word, text);
}

static void spoil_and_place(const struct rig *rig, const struct op *op, const struct weight *w,
                            const struct defect *d) {
    struct weight_part *part = &w->parts[w->n_parts - 1], good = *part;
    d->spoil(part);
    struct error err = place_anew(rig);
    *part = good;
    if (err.status != ERR_UNSUPPORTED)
        fail_msg("%s with %s in %s: status %d, \"%s\"", op_name(op->code), d->word, w->name, (int)err.status, err.text);
    expect_word(err.text, d->word);
    expect_word(err.text, rig->p->name);
    expect_word(err.text, op_name(op->code));
    expect_word(err.text, w->name);
}

static void every_weight_of_every_op_is_refused_by_name_in_a_format_that_nobody_computes(void **state) {
    (void)state;
    struct rig *rig = everything();
    bool seen[N_OPCODES][OP_MAX_WEIGHTS] = {{false}};
    for (int i = 0; i < rig->p->n_ops; i++)
        for (int slot = 0; slot < OP_MAX_WEIGHTS; slot++) {
            const struct op *op = &rig->p->ops[i];
            const struct weight *w = op->weights[slot];
            for (size_t d = 0; w && d < ARRAY_LEN(defects); d++)
                spoil_and_place(rig, op, w, &defects[d]);
            seen[op->code][slot] |= w != NULL;
        }
    for (int code = 0; code < N_OPCODES; code++)
        for (int slot = 0; slot < n_weights[code]; slot++)
            if (!seen[code][slot] && (code != OP_LORA || rig_backend() == &backend_cpu))
                fail_msg("weight %d of %s is not tried here", slot, op_name((enum opcode)code));
    EXPECT_EQ(place_anew(rig).status, OK); // as it was
    rig_free(rig);
}

static val record_keys(struct rig *rig) {
    int cache = program_cache_kv(rig->p, 1, 16, 16, 0);
    struct qkv_args prep = {.cache = cache, .rope = -1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16,
                            .v_head_dim = 16};
    struct attention_args args = {
        .cache = cache, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .v_head_dim = 16, .scale = 1};
    return op_attention(rig->p, op_qkv_prep(rig->p, rig->in[0], NULL, NULL, prep), NULL, args);
}

static struct error load_with_cache(const struct rig *rig, const char *kv_dtype) {
    struct on_device at;
    struct error err = {0};
    struct how how = {.n_threads = 1, .load.kv_dtype = kv_dtype};
    EXPECT_EQ(on_device_load(rig->ops, how, rig->p, &at, &err), err.status);
    on_device_close(&at);
    return err;
}

/* int4: of keys and values of the CPU and CUDA alone, and not of latent rows. */
static void a_cache_that_a_backend_has_not_is_refused_by_name(void **state) {
    (void)state;
    bool has = strcmp(rig_backend()->name, "xla") != 0;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 1, .lens = {3}, .widths = {64}}), *latent = everything();
    rig_result(rig, record_keys(rig));
    struct error four = load_with_cache(rig, "int4"), unknown = load_with_cache(rig, "int3");
    EXPECT_EQ(four.status == OK, has);
    expect_word(four.text, has ? "" : "int4");
    EXPECT(unknown.status != OK);
    expect_word(unknown.text, "int3");
    four = load_with_cache(latent, "int4");
    EXPECT(four.status != OK);
    expect_word(four.text, "int4");
    expect_word(four.text, has ? "latent cache" : "");
    rig_free(latent);
    rig_free(rig);
}

static void a_cache_that_no_memory_holds_is_refused_with_its_size(void **state) {
    (void)state;
    struct rig *rig = everything();
    struct on_device at;
    struct error err = {0};
    EXPECT_OK(on_device_load(rig->ops, (struct how){.n_threads = 1}, rig->p, &at, &err), err);
    struct cache_config config = {.block_size = 1 << 14, .n_states = 1};
    for (int g = 0; g < rig->p->n_groups; g++)
        config.n_blocks[g] = INT32_MAX;
    EXPECT_EQ(rig->ops->alloc_cache(at.loaded, &config, &err), ERR_MEMORY);
    expect_word(err.text, rig->p->name);
    expect_word(err.text, "2147483647 blocks");
    on_device_close(&at);
    rig_free(rig);
}

/* ---- what an element of a device cannot hold ---- */

static void one_too_large(uint16_t *row, int64_t n) { row[n / 2] = f32_to_bf16(1e5f); }
static void one_not_finite(uint16_t *row, int64_t n) { row[n / 3] = 0x7f80; }
static void one_not_a_number(uint16_t *row, int64_t n) { row[n / 3] = 0x7fc0; }
static void many_too_small(uint16_t *row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        row[i] = f32_to_bf16(i == 5 ? 1e4f : 1e-3f);
}
static void all_too_small(uint16_t *row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        row[i] = f32_to_bf16(1e-12f);
}
static void all_large(uint16_t *row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        row[i] = f32_to_bf16(bf16_to_f32(row[i]) * 0x1p20f);
}
static void nothing(uint16_t *row, int64_t n) { (void)row, (void)n; }

static const struct {
    const char *dtype, *quantization;
    void (*spoil)(uint16_t *row, int64_t n); // each row of the matrix
    const char *words[2];                    // of the refusal; NULL: it is taken
} holds[] = {
    {NULL, NULL, nothing, {NULL}},
    {NULL, NULL, one_too_large, {"65504", "--dtype bfloat16"}},
    {"float16", NULL, one_too_large, {"65504", "--dtype bfloat16"}},
    {"bfloat16", NULL, one_too_large, {NULL}},
    {NULL, NULL, all_too_small, {"too small", "--dtype bfloat16"}},
    {NULL, "fp8", nothing, {NULL}},
    {NULL, NULL, all_large, {"65504", "--dtype bfloat16"}},
    {NULL, "fp8", all_large, {NULL}},                    // a scale a row holds them ...
    {NULL, "fp8", one_too_large, {"zero", "one in 16"}}, // ... but not what stands beside one
    {"bfloat16", "fp8", many_too_small, {"zero", "one in 16"}},
    {NULL, "fp8", one_not_finite, {"not finite", "FP8"}},
    {NULL, NULL, one_not_a_number, {"48 values", "NaN"}},
    {"bfloat16", NULL, one_not_a_number, {NULL}}, // goes as it is, and is found by logits
    {"float32", NULL, one_not_a_number, {"48 values", "NaN"}},
    {NULL, "fp8", one_not_a_number, {"48 values", "NaN"}},
    {"float32", "fp8", nothing, {"16 bits", "--dtype"}},
};

static void what_an_element_cannot_hold_is_refused_by_the_matrix(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip(); // computes in float32
    for (size_t i = 0; i < ARRAY_LEN(holds); i++) {
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 1, .lens = {3}, .widths = {64}});
        const struct weight *w = rig_weight(rig, FORMAT_BF16, 48, 64, NULL);
        for (int64_t r = 0; r < w->out; r++)
            holds[i].spoil((uint16_t *)(uintptr_t)w->parts[0].data + r * w->in, w->in);
        op_sample(rig->p, op_take_rows(rig->p, op_linear(rig->p, rig->in[0], w, NULL)));
        struct on_device at;
        struct error err = {0};
        struct how how = {.load = {.dtype = holds[i].dtype, .quantization = holds[i].quantization}};
        enum status st = on_device_load(rig->ops, how, rig->p, &at, &err);
        if (st != (holds[i].words[0] ? ERR_UNSUPPORTED : OK))
            fail_msg("case %zu: status %d, \"%s\"", i, (int)st, err.text);
        for (int k = 0; k < 2 && holds[i].words[0]; k++)
            expect_word(err.text, holds[i].words[k]);
        if (holds[i].words[0] && strcmp(holds[i].words[0], "16 bits") != 0)
            expect_word(err.text, w->name);
        on_device_close(&at);
        rig_free(rig);
    }
}

static void weights_of_a_type_that_nobody_makes_are_refused(void **state) {
    (void)state;
    struct rig *rig = everything();
    struct on_device at;
    struct error err = {0};
    EXPECT_EQ(on_device_load(rig->ops, (struct how){.n_threads = 1, .load.quantization = "int3"}, rig->p, &at, &err),
              ERR_UNSUPPORTED);
    on_device_close(&at);
    rig_free(rig);
    expect_word(err.text, "quantization");
    expect_word(err.text, "int3");
}

static void kernels_that_are_not_there_are_refused_by_name(void **state) {
    (void)state;
    struct on_device at;
    struct error err = {0};
    EXPECT_EQ(on_device_open(&backend_cpu, (struct how){.n_threads = 1, .kernels = "altivec"}, &at, &err),
              ERR_UNSUPPORTED);
    expect_word(err.text, "altivec");
}

/* A backend has each op of ops.def, or it would have to refuse programs with it; the CPU has all, in every set of
 * kernels. */
static void every_set_of_kernels_takes_every_op(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
        struct rig *rig = everything();
        struct on_device at;
        struct cache_config config = {.block_size = 16, .n_states = 1};
        for (int g = 0; g < rig->p->n_groups; g++)
            config.n_blocks[g] = 1;
        on_device_compile(rig->ops, rig_how(*kernels, 1), rig->p, &config, (struct bucket){16, 1, 16}, &at);
        on_device_close(&at);
        rig_free(rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_of_every_op_is_refused_by_name_in_a_format_that_nobody_computes),
        cmocka_unit_test(a_cache_that_a_backend_has_not_is_refused_by_name),
        cmocka_unit_test(a_cache_that_no_memory_holds_is_refused_with_its_size),
        cmocka_unit_test(what_an_element_cannot_hold_is_refused_by_the_matrix),
        cmocka_unit_test(weights_of_a_type_that_nobody_makes_are_refused),
        cmocka_unit_test(kernels_that_are_not_there_are_refused_by_name),
        cmocka_unit_test(every_set_of_kernels_takes_every_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
