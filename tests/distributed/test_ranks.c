/* test_ranks.c - what pass_shard makes of weights of every format and of a program, and which ranks may be joined. */
#include "on_ranks.h"
#include "op_weights.h"

#include "backend/ranks/ranks.h"
#include "backend/toy/toy.h"

#include <math.h>

/* ---- every format ---- */

static const struct weight *sized(const struct weight *w, struct dim rows, struct dim cols) {
    struct weight *s = (struct weight *)(uintptr_t)w;
    int64_t at = 0;
    for (int i = 0; i < w->n_parts; at += w->parts[i++].n_rows) {
        struct dim d =
            rows.axis == AXIS_NONE ? dim_whole(w->parts[i].n_rows) : dim_of(rows.axis, w->parts[i].n_rows, 1);
        d.first = rows.axis == AXIS_NONE ? 0 : at;
        d.of = rows.of;
        w->parts[i].rows = d;
    }
    s->cols = cols;
    return w;
}

/* table, up, down, head: the FFN alone is cut, and the vocabulary. */
static struct program *small_program(struct rig *rig, enum rig_format format, int width, int ffn) {
    enum { VOCAB = 53 };
    struct dim D = dim_whole(width), F = dim_ffn(ffn), V = dim_vocab(VOCAB);
    struct program *p = program_new("small");
    const struct weight *table = sized(rig_weight(rig, FORMAT_F32, VOCAB, width, NULL), V, D);
    const struct weight *up = sized(rig_weight(rig, format, ffn, width, NULL), F, D);
    const struct weight *down = sized(rig_weight(rig, format, width, ffn, NULL), D, F);
    val h = op_linear(p, op_embed(p, table, 1), up, NULL);
    val y = op_linear(p, op_gated_act(p, h, h, (struct act_args){.act = ACT_SILU}), down,
                      rig_vector(rig, width, -1, 1, NULL));
    op_sample(p, op_linear(p, op_take_rows(p, y), table, NULL));
    return p;
}

static void random_prompts(struct scene *sc) {
    sc->n_seqs = 3;
    sc->table_width = 4;
    for (int s = 0; s < sc->n_seqs; s++) {
        sc->seqs[s].n_prompt = 3 + 5 * s;
        for (int t = 0; t < sc->seqs[s].n_prompt; t++)
            sc->seqs[s].tokens[t] = (int32_t)(test_random() % (uint64_t)sc->model->program->vocab_size);
    }
}

static void columns_of_every_format_are_cut(void **state) {
    (void)state;
    for (int f = 0; f < N_FORMATS; f++)
        for (int n = 2; n <= 4; n++) {
            struct rig *rig = rig_new((struct rig_options){.lens = {1}, .n_seqs = 1, .widths = {192}});
            static struct scene sc;
            struct model model = {.program = small_program(rig, f, 96, 192)};
            struct ranks whole;
            sc = (struct scene){.folder = rig_format_name(f), .model = &model};
            random_prompts(&sc);
            whole_open(&sc, (struct how){.n_threads = 1}, &whole);
            scene_compare(&sc, &whole, n, false, (struct how){.n_threads = 1}, NULL);
            ranks_close(&whole);
            program_free(model.program);
            rig_free(rig);
        }
}

/* ---- what a pass makes ---- */

static int count_ops(const struct program *p, enum opcode code) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].code == code;
    return n;
}

static struct program *shard_of(const struct program *p, int rank, int n) {
    struct program *out;
    struct error err;
    EXPECT_OK(pass_shard(p, &(struct shard_options){rank, n, false}, &out, &err), err);
    return out;
}

/* After attention, after the FFN, experts and the shared one together; after the table. */
static void layers_have_two_sums(void **state) {
    static const char *const models[] = {"llama", "gemma3", "deepseek_v3", "qwen3_5_moe"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        static struct scene sc;
        char folder[80];
        snprintf(folder, sizeof folder, "tests/models/%s", models[i]);
        scene_open(&sc, folder);
        struct program *p = shard_of(sc.model->program, 1, 2);
        EXPECT_EQ(count_ops(p, OP_ALL_REDUCE), 2 * sc.model->spec->n_layers + 1);
        EXPECT_EQ(count_ops(p, OP_ALL_GATHER), 1);
        EXPECT(p->n_sections == sc.model->program->n_sections && p->n_groups == sc.model->program->n_groups);
        program_free(p);
        scene_close(&sc);
    }
}

/* The states behind the last norm and behind layers, which drafts read. */
static void ranks_have_the_hidden_states_of_the_whole(void **state) {
    (void)state;
    static struct scene sc;
    struct ranks whole = {.n = 1}, r = {.n = 2};
    scene_open(&sc, "tests/models/qwen3");
    whole.programs[0] = pass_taps(sc.model->program, (int[]){0, 2}, 2);
    for (int i = 0; i < 2; i++)
        r.programs[i] = shard_of(whole.programs[0], i, 2);
    ranks_compile(&sc, &whole, (struct how){.n_threads = 1});
    ranks_compile(&sc, &r, (struct how){.n_threads = 1});
    ranks_compare(&sc, &whole, &r, "with taps");
    for (int tap = 0; tap <= 2; tap++)
        for (int i = 0; i < 2; i++) {
            const float *want, *is;
            struct error err;
            EXPECT_OK(backend_cpu.hidden(whole.at[0].exe, tap, 0, &want, &err), err);
            EXPECT_OK(backend_cpu.hidden(r.at[i].exe, tap, 0, &is, &err), err);
            for (int k = 0; k < sc.model->spec->hidden_size; k++)
                EXPECT(fabsf(want[k] - is[k]) < 2e-3f);
        }
    ranks_close(&whole);
    ranks_close(&r);
    scene_close(&sc);
}

static void ranks_that_do_not_belong_together_are_refused(void **state) {
    (void)state;
    static struct scene sc;
    struct ranks r = {.n = 2};
    struct on_device toy;
    struct error err;
    scene_open(&sc, "tests/models/llama");
    for (int i = 0; i < 2; i++) {
        r.programs[i] = shard_of(sc.model->program, i, 2);
        EXPECT_OK(on_device_load(&backend_cpu, (struct how){.n_threads = 1}, r.programs[i], &r.at[i], &err), err);
    }
    EXPECT_EQ(backend_cpu.join((struct loaded *[]){r.at[1].loaded, r.at[0].loaded}, 2, &err), ERR_ARG);
    EXPECT(strstr(err.text, "rank 1 of 2 was joined as rank 0 of 2"));
    EXPECT_EQ(backend_cpu.join((struct loaded *[]){r.at[0].loaded}, 1, &err), ERR_ARG);
    struct loaded *same;
    EXPECT_OK(backend_cpu.load(r.at[0].device, r.programs[1], &(struct load_options){0}, &same, &err), err);
    EXPECT_EQ(backend_cpu.join((struct loaded *[]){r.at[0].loaded, same}, 2, &err), ERR_ARG);
    EXPECT(strstr(err.text, "on one device"));
    backend_cpu.unload(same);
    EXPECT_EQ(on_device_load(&backend_toy, (struct how){.n_threads = 1}, r.programs[0], &toy, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "ALL_REDUCE: device toy does not run rank 0 of 2"));
    on_device_close(&toy);
    ranks_close(&r);
    scene_close(&sc);
}

/* Devices with memory of their own, each of a share of the weights. */
static enum status own_open(const struct device_options *options, struct device **out, struct error *err) {
    struct device_options one = *options;
    one.index = 0;
    return backend_cpu.open(&one, out, err);
}
static void own_memory(const struct device *d, struct device_memory *out) {
    (void)d;
    *out = (struct device_memory){.total = 1000, .taken = 7};
}

static void memory_is_that_of_all_devices(void **state) {
    (void)state;
    static struct backend_ops own;
    const struct backend_ops *ops;
    struct device *device;
    struct device_memory m;
    struct error err;
    own = backend_cpu;
    own.in_place = false, own.open = own_open, own.memory = own_memory;
    EXPECT_OK(backend_ranks(&own, 3, false, &ops, &err), err);
    EXPECT_OK(ops->open(&(struct device_options){.n_threads = 1}, &device, &err), err);
    ops->memory(device, &m);
    EXPECT(m.total == 3000 && m.taken == 21);
    ops->close(device);
}

/* A bench's floor is that of one device with its share. */
static void a_bench_counts_a_ranks_share_of_weights(void **state) {
    (void)state;
    static struct backend_ops own;
    static struct scene sc;
    const struct backend_ops *ops;
    struct device *device;
    struct loaded *loaded;
    struct error err;
    int64_t all = 0, mine = 0;
    own = backend_cpu;
    own.in_place = false, own.open = own_open, own.memory = own_memory;
    EXPECT_OK(backend_ranks(&own, 2, false, &ops, &err), err);
    EXPECT_OK(ops->open(&(struct device_options){.n_threads = 1}, &device, &err), err);
    scene_open(&sc, "tests/models/llama");
    const struct program *p = sc.model->program;
    EXPECT_OK(ops->load(device, p, &(struct load_options){0}, &loaded, &err), err);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++)
            if (p->ops[i].weights[k] && p->ops[i].weights[k]->in > 1) {
                all += weight_stored_bytes(p->ops[i].weights[k]);
                mine += ops->probes->weight_bytes(loaded, p->ops[i].weights[k]);
            }
    EXPECT(all > 0 && mine == all / 2);
    ops->unload(loaded);
    ops->close(device);
    scene_close(&sc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_of_every_format_are_cut),
        cmocka_unit_test(layers_have_two_sums),
        cmocka_unit_test(ranks_have_the_hidden_states_of_the_whole),
        cmocka_unit_test(memory_is_that_of_all_devices),
        cmocka_unit_test(a_bench_counts_a_ranks_share_of_weights),
        cmocka_unit_test(ranks_that_do_not_belong_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
