/* test_model.c - binding and recording: every family's checkpoint is consumed whole, and counted right without it. */
#include "check.h"

#include "file/checkpoint.h"
#include "model/families/family.h"
#include "model/model.h"

static const char *const folders[] = {
    "models/story",         "tests/models/deepseek_v3", "tests/models/diffllama", "tests/models/gemma2",
    "tests/models/gemma3",  "tests/models/gemma4",      "tests/models/gpt_oss",   "tests/models/llama",
    "tests/models/mistral", "tests/models/mixtral",     "tests/models/qwen2",     "tests/models/qwen3",
    "tests/models/qwen3_5", "tests/models/qwen3_5_moe", "tests/models/qwen3_moe",
};

static struct model *opened(const char *folder) {
    struct error err;
    struct model *m;
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    return m;
}

static void a_phantom_counts_what_the_checkpoint_holds(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        struct model *m = opened(folders[i]);
        int64_t n_parameters, bytes[N_STORAGES], in_file = 0;
        struct error err;
        EXPECT_OK(model_count(m->spec, &n_parameters, bytes, &err), err);
        EXPECT_EQ(n_parameters, m->n_parameters);
        for (size_t t = 0; t < checkpoint_count(m->checkpoint); t++)
            in_file += (int64_t)checkpoint_at(m->checkpoint, t)->n_bytes;
        int64_t counted = 0;
        for (int d = 0; d < N_STORAGES; d++) {
            if (bytes[d] != m->stored_bytes[d])
                fail_msg("%s: %lld bytes of %s counted, %lld in the file", folders[i], (long long)bytes[d],
                         storage_name(d), (long long)m->stored_bytes[d]);
            counted += bytes[d];
        }
        EXPECT_EQ(counted, in_file);
        model_free(m);
    }
}

static void dummy_weights_record_the_same_program(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        struct model *m = opened(folders[i]), *d;
        struct error err;
        EXPECT_OK(model_open(folders[i], &(struct model_options){LOAD_DUMMY}, &d, &err), err);
        EXPECT_EQ(d->program->n_ops, m->program->n_ops);
        for (int k = 0; k < m->program->n_ops; k++) {
            EXPECT_EQ(d->program->ops[k].code, m->program->ops[k].code);
            for (int w = 0; w < OP_MAX_WEIGHTS; w++) {
                const struct weight *a = m->program->ops[k].weights[w], *b = d->program->ops[k].weights[w];
                EXPECT(!a == !b && (!a || (a->out == b->out && a->in == b->in)));
            }
        }
        model_free(m);
        model_free(d);
    }
}

/* Rows of the interleaved projection [per head: query, gate] come out as all queries, k, v, all gates. */
static void parts_put_rows_in_the_order_that_the_program_wants(void **state) {
    (void)state;
    struct model *m = opened("tests/models/qwen3_5");
    const struct model_spec *s = m->spec;
    int hd = s->head_dim, H = s->n_heads, kv = s->n_kv_heads * hd, D = s->hidden_size;
    const struct stored_tensor *q = checkpoint_find(m->checkpoint, "model.layers.3.self_attn.q_proj.weight");
    const struct weight *w = NULL;
    for (int k = 0; k < m->program->n_ops; k++)
        if (m->program->ops[k].code == OP_QKV_PREP)
            w = m->program->ops[k - 1].weights[0];
    EXPECT(w && w->out == 2 * H * hd + 2 * kv && w->in == D);
    float row[256], want[256];
    for (int h = 0; h < H; h++)
        for (int r = 0; r < hd; r++)
            for (int gate = 0; gate < 2; gate++) {
                weight_rows_f32(w, gate * (H * hd + 2 * kv) + h * hd + r, 1, row);
                dtype_to_f32(q->dtype, (const uint16_t *)q->data + (size_t)((2 * h + gate) * hd + r) * (size_t)D, 1, D,
                             want);
                EXPECT(memcmp(row, want, (size_t)D * sizeof *row) == 0);
            }
    model_free(m);
}

/* GPT-OSS stores experts transposed with gate and up interleaved: [E, D, 2F]. */
static void strided_parts_undo_a_transposed_interleaved_tensor(void **state) {
    (void)state;
    struct model *m = opened("tests/models/gpt_oss");
    int64_t E = m->spec->moe.n_experts, F = m->spec->moe.ffn_size, D = m->spec->hidden_size;
    const struct stored_tensor *t = checkpoint_find(m->checkpoint, "model.layers.1.mlp.experts.gate_up_proj");
    const struct stored_tensor *bias = checkpoint_find(m->checkpoint, "model.layers.1.mlp.experts.gate_up_proj_bias");
    const struct op *moe = NULL;
    for (int k = 0, n = 0; k < m->program->n_ops && !moe; k++)
        if (m->program->ops[k].code == OP_MOE_FFN && n++ == 1)
            moe = &m->program->ops[k];
    EXPECT(moe);
    float row[256], *biases = xcalloc((size_t)(E * 2 * F), sizeof *biases);
    weight_vector_f32(moe->weights[2], biases);
    for (int64_t e = 0; e < E; e++)
        for (int64_t r = 0; r < 2 * F; r++) {
            int64_t column = r < F ? 2 * r : 2 * (r - F) + 1;
            weight_rows_f32(moe->weights[0], e * 2 * F + r, 1, row);
            for (int64_t i = 0; i < D; i++)
                EXPECT(row[i] == bf16_to_f32(((const uint16_t *)t->data)[(e * D + i) * 2 * F + column]));
            EXPECT(biases[e * 2 * F + r] == bf16_to_f32(((const uint16_t *)bias->data)[e * 2 * F + column]));
        }
    free(biases);
    model_free(m);
}

static void layers_that_repeat_are_folded_when_explained(void **state) {
    (void)state;
    struct model *m = opened("tests/models/gemma4");
    struct buf text = {0};
    program_explain(m->program, &text);
    EXPECT(strstr(text.ptr, "layer 5:\n"));    // the global layer is not like the sliding ones
    EXPECT(strstr(text.ptr, "of which 1:\n")); // the first layer has no residual to add, nor a scalar
    EXPECT(strstr(text.ptr, "window=48") && strstr(text.ptr, "v_from_k") && strstr(text.ptr, "cap=30"));
    EXPECT(!strstr(text.ptr, "layer 3:"));
    buf_release(&text);
    model_free(m);
}

static void a_caches_group_is_a_shape_and_a_window(void **state) {
    (void)state;
    struct model *m = opened("tests/models/gemma3");
    EXPECT_EQ(m->program->n_groups, 2);
    EXPECT_EQ(m->program->groups[0].window, 48);
    EXPECT_EQ(m->program->groups[0].n_layers, 5);
    EXPECT_EQ(m->program->groups[1].window, 0);
    model_free(m);
    m = opened("tests/models/qwen3_5");
    EXPECT_EQ(m->program->n_groups, 2);
    EXPECT_EQ(m->program->groups[0].kind, CACHE_STATE);
    EXPECT_EQ(m->program->groups[0].n_layers, 3);
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_phantom_counts_what_the_checkpoint_holds),
        cmocka_unit_test(dummy_weights_record_the_same_program),
        cmocka_unit_test(parts_put_rows_in_the_order_that_the_program_wants),
        cmocka_unit_test(strided_parts_undo_a_transposed_interleaved_tensor),
        cmocka_unit_test(layers_that_repeat_are_folded_when_explained),
        cmocka_unit_test(a_caches_group_is_a_shape_and_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
