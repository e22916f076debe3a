/* test_adapter.c - adapters (LoRA): what pass_adapter adds row by row, against the model with the adapter merged into
 * its weights in float32; and what adapter_open reads and refuses. Adapters are made here, random, in files as PEFT
 * writes them. Bound: logits within 2e-3 of the merged model's, which sums in another order.
 * Not in make test-fast: all trained models, each with adapters and merged. */
#include "on_ranks.h"

#include "model/adapter.h"

#include <glob.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TENSORS = 1024, N_ADAPTERS = 2 };

/* A module of the model and what an adapter adds to it, B A x times scale. */
struct addend {
    const char *module;
    int64_t rows, in, rank;
    float *a, *b, scale;
};

struct made {
    char folder[200];
    struct arena arena;
    struct addend all[MAX_TENSORS];
    int n;
    const char *config; // JSON
    enum dtype dtype;
};

/* ---- files ---- */

static float rounded(float x, enum dtype dtype) {
    return dtype == DT_F32 ? x : dtype == DT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
}

static float *random_matrix(struct made *m, int64_t n, float size) {
    float *x = arena_calloc(&m->arena, (size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rounded(size * ((float)(test_random() % 20001) / 10000 - 1), m->dtype);
    return x;
}

static void put_tensor(FILE *data, struct buf *header, const struct made *m, const char *module, const char *leaf,
                       int64_t rows, int64_t cols, const float *x) {
    long begin = ftell(data);
    for (int64_t i = 0; i < rows * cols; i++) {
        uint16_t half = m->dtype == DT_BF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
        fwrite(m->dtype == DT_F32 ? (const void *)&x[i] : &half, dtype_bytes(m->dtype), 1, data);
    }
    buf_printf(
        header,
        "%s\"base_model.model.%s.%s.weight\":{\"dtype\":\"%s\",\"shape\":[%lld,%lld],\"data_offsets\":[%ld,%ld]}",
        header->len > 1 ? "," : "", module, leaf,
        m->dtype == DT_F32    ? "F32"
        : m->dtype == DT_BF16 ? "BF16"
                              : "F16",
        (long long)rows, (long long)cols, begin, ftell(data));
}

static void write_text(const struct made *m, const char *name, const char *text, size_t n, const char *more,
                       size_t n_more) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", m->folder, name);
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(text, 1, n, f) == n && fwrite(more, 1, n_more, f) == n_more);
    EXPECT_EQ(fclose(f), 0);
}

static void write_tensors(const struct made *m) {
    char *bytes;
    size_t n_bytes;
    FILE *data = open_memstream(&bytes, &n_bytes);
    struct buf header = {0}, all = {0};
    buf_push(&header, '{');
    for (int i = 0; i < m->n; i++) {
        const struct addend *x = &m->all[i];
        put_tensor(data, &header, m, x->module, "lora_A", x->rank, x->in, x->a);
        put_tensor(data, &header, m, x->module, "lora_B", x->rows, x->rank, x->b);
    }
    buf_push(&header, '}');
    while (header.len % 8)
        buf_push(&header, ' ');
    uint64_t n = header.len;
    fclose(data);
    for (int i = 0; i < 8; i++)
        buf_push(&all, (char)(n >> (8 * i)));
    buf_str(&all, (struct str){header.ptr, header.len});
    write_text(m, "adapter_model.safetensors", all.ptr, all.len, bytes, n_bytes);
    buf_release(&header);
    buf_release(&all);
    free(bytes);
}

static void made_write(struct made *m) {
    snprintf(m->folder, sizeof m->folder, "/tmp/test_adapter.XXXXXX");
    EXPECT(mkdtemp(m->folder));
    write_tensors(m);
    write_text(m, "adapter_config.json", m->config, strlen(m->config), "", 0);
}

static void made_free(struct made *m) {
    static const char *const names[] = {"adapter_model.safetensors", "adapter_config.json"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unlink(arena_printf(&m->arena, "%s/%s", m->folder, names[i]));
    rmdir(m->folder);
    arena_release(&m->arena);
}

/* ---- modules of a model ---- */

static struct addend *addend_of(struct made *m, const char *module) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->all[i].module, module) == 0)
            return &m->all[i];
    return NULL;
}

static bool is_table(const struct program *p, const struct weight *w) { return p->ops[0].weights[0] == w; }

/* Every `stride`-th module of the LINEARs. */
static void add_modules(struct made *m, const struct program *p, int stride) {
    int n_seen = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const struct weight *w = p->ops[i].weights[0];
        for (int k = 0; p->ops[i].code == OP_LINEAR && !is_table(p, w) && k < w->n_parts; k++) {
            const struct weight_part *part = &w->parts[k];
            struct addend *x = addend_of(m, part->module);
            if (!x && (k == 0 || strcmp(part->module, w->parts[k - 1].module) != 0) && n_seen++ % stride == 0) {
                EXPECT(m->n < MAX_TENSORS);
                x = &m->all[m->n++];
                *x = (struct addend){.module = part->module, .in = w->in};
            }
            if (x)
                x->rows = MAX(x->rows, part->first_row + part->n_rows);
        }
    }
}

static void draw(struct made *m) {
    for (int i = 0; i < m->n; i++) {
        struct addend *x = &m->all[i];
        x->a = random_matrix(m, x->rank * x->in, 1.5f / sqrtf((float)x->in));
        x->b = random_matrix(m, x->rows * x->rank, 0.3f);
    }
}

/* Of rank 4 but where patterns say otherwise; the second of every third module, by the root of the rank, in bf16. */
static void make_adapters(struct made made[N_ADAPTERS], const struct program *p) {
    made[0] =
        (struct made){.dtype = DT_F32,
                      .config = "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 6, \"bias\": \"none\","
                                "\"rank_pattern\": {\"o_proj\": 2, \"layers\\\\.1\\\\.mlp\\\\.(up|down)_proj\": 5},"
                                "\"alpha_pattern\": {\"o_proj\": 3, \"down_proj\": 1}}"};
    made[1] = (struct made){.dtype = DT_BF16,
                            .config = "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 2, \"use_rslora\": true}"};
    for (int k = 0; k < N_ADAPTERS; k++) {
        add_modules(&made[k], p, k == 0 ? 1 : 3);
        for (int i = 0; i < made[k].n; i++) {
            struct addend *x = &made[k].all[i];
            bool is_o = strstr(x->module, "o_proj"), is_down = strstr(x->module, "down_proj"),
                 is_wide = strstr(x->module, "layers.1.mlp.") && !strstr(x->module, "experts") &&
                           (strstr(x->module, "mlp.up_proj") || strstr(x->module, "mlp.down_proj"));
            x->rank = k == 1 ? 3 : is_o ? 2 : is_wide ? 5 : 4;
            x->scale = k == 1 ? 2 / sqrtf(3) : (is_o ? 3.0f : is_down ? 1.0f : 6.0f) / (float)x->rank;
        }
        draw(&made[k]);
        made_write(&made[k]);
    }
}

/* ---- merged weights ---- */

static const struct weight *merged(struct made *m, const struct weight *w) {
    struct weight *sum = arena_alloc(&m->arena, sizeof *sum);
    float *data = arena_calloc(&m->arena, (size_t)(w->out * w->in), sizeof *data), *row = data;
    *sum = (struct weight){.name = w->name, .out = w->out, .in = w->in, .n_parts = 1};
    sum->parts = arena_alloc(&m->arena, sizeof *sum->parts);
    *sum->parts = (struct weight_part){.format = &qformat_plain,
                                       .dtype = DT_F32,
                                       .data = data,
                                       .n_rows = w->out,
                                       .row_stride = w->in,
                                       .col_stride = 1};
    weight_rows_f32(w, 0, w->out, data);
    for (int k = 0; k < w->n_parts; k++) {
        const struct addend *x = addend_of(m, w->parts[k].module);
        for (int64_t r = 0; r < w->parts[k].n_rows; r++, row += w->in)
            for (int64_t i = 0; x && i < w->in; i++) {
                double add = 0;
                for (int64_t j = 0; j < x->rank; j++)
                    add += (double)x->b[(w->parts[k].first_row + r) * x->rank + j] * (double)x->a[j * x->in + i];
                row[i] += (float)add * x->scale;
            }
    }
    return sum;
}

static struct program *merged_program(struct made *m, const struct program *from) {
    struct program *p = program_copy(from);
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_LINEAR && !is_table(from, p->ops[i].weights[0]))
            p->ops[i].weights[0] = merged(m, p->ops[i].weights[0]);
    return p;
}

/* ---- claims ---- */

static struct program *adapted_program(struct made made[N_ADAPTERS], const struct model *model) {
    struct adapter_files *files[N_ADAPTERS];
    const struct adapter *adapters[N_ADAPTERS];
    struct program *p;
    struct error err;
    for (int i = 0; i < N_ADAPTERS; i++) {
        EXPECT_OK(adapter_open(made[i].folder, "x", model, &files[i], &err), err);
        adapters[i] = adapter_of(files[i]);
        EXPECT_EQ(adapters[i]->n_modules, made[i].n);
    }
    EXPECT_OK(pass_adapter(model->program, adapters, N_ADAPTERS, &p, &err), err);
    for (int i = 0; i < N_ADAPTERS; i++)
        adapter_free(files[i]);
    return p;
}

static double worst_of_row(const struct scene *sc, const struct ranks *is, const struct ranks *want, int row) {
    double off = 0;
    const float *a = ranks_logits(is, 0, row), *b = ranks_logits(want, 0, row);
    for (int i = 0; i < sc->model->program->vocab_size; i++)
        off = fmax(off, fabs((double)a[i] - (double)b[i]));
    return off;
}

/* Sequences of no adapter, of the first and of the second in the same steps. */
static double compare_adapters(struct scene *sc, struct how how, int n_ranks) {
    struct made made[N_ADAPTERS];
    struct ranks adapted = {.n = n_ranks}, want[1 + N_ADAPTERS] = {{.n = 1}, {.n = 1}, {.n = 1}};
    double worst = 0, least_change = INFINITY;
    make_adapters(made, sc->model->program);
    struct program *whole = adapted_program(made, sc->model);
    for (int i = 0; i < n_ranks; i++) {
        struct error err;
        EXPECT_OK(pass_shard(whole, &(struct shard_options){i, n_ranks, false}, &adapted.programs[i], &err), err);
    }
    ranks_compile(sc, &adapted, how);
    for (int i = 0; i <= N_ADAPTERS; i++) {
        want[i].programs[0] = i ? merged_program(&made[i - 1], sc->model->program) : program_copy(sc->model->program);
        ranks_compile(sc, &want[i], how);
    }
    for (int s = 0; s < sc->n_seqs; s++)
        sc->seqs[s].adapter = s % (N_ADAPTERS + 1);
    scene_begin(sc);
    while (scene_step(sc)) {
        ranks_step(&adapted, sc);
        for (int i = 0; i <= N_ADAPTERS; i++)
            ranks_step(&want[i], sc);
        for (int row = 0; row < sc->plan.n_rows; row++) {
            struct seq *q = &sc->seqs[sc->row_seq[row]];
            worst = fmax(worst, worst_of_row(sc, &adapted, &want[q->adapter], row));
            if (q->adapter)
                least_change = fmin(least_change, worst_of_row(sc, &adapted, &want[0], row));
            if (q->n_tokens < q->n_prompt + N_DECODE)
                q->tokens[q->n_tokens++] = want[q->adapter].results[0][row].token;
        }
    }
    EXPECT(least_change > 20 * 2e-3); // adapters do something
    batch_plan_release(&sc->plan);
    ranks_close(&adapted);
    program_free(whole);
    for (int i = 0; i <= N_ADAPTERS; i++)
        ranks_close(&want[i]);
    for (int i = 0; i < N_ADAPTERS; i++)
        made_free(&made[i]);
    return worst;
}

static void adapters_are_what_merged_weights_are(void **state) {
    (void)state;
    glob_t found = {0};
    double worst = 0;
    EXPECT_EQ(glob("tests/models/*/golden.json", 0, NULL, &found), 0);
    EXPECT_EQ(glob("tests/models_random/*/golden.json", GLOB_APPEND, NULL, &found), 0);
    EXPECT(found.gl_pathc >= 44);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        static struct scene sc;
        *strrchr(found.gl_pathv[i], '/') = '\0';
        scene_open(&sc, found.gl_pathv[i]);
        scene_shorten(&sc, 50);
        double off = compare_adapters(&sc, (struct how){.n_threads = 1}, 1);
        if (i % 5 == 0)
            off = fmax(off, compare_adapters(&sc, (struct how){.n_threads = 2, .kernels = "reference"}, 1));
        if (i % 5 == 1)
            off = fmax(off, compare_adapters(&sc, (struct how){.n_threads = 3}, 1));
        if (!(off <= 2e-3))
            fail_msg("%s: logits are off by %g", found.gl_pathv[i], off);
        worst = fmax(worst, off);
        scene_close(&sc);
    }
    globfree(&found);
    print_message("logits off by %g at most\n", worst);
}

/* ---- what is refused ---- */

static struct addend *add_module(struct made *m, const char *module, int64_t rows, int64_t in, int64_t rank) {
    struct addend *x = &m->all[m->n++];
    *x = (struct addend){.module = module, .rows = rows, .in = in, .rank = rank};
    return x;
}

static void expect_refused(struct made *m, const struct model *model, const char *word) {
    struct adapter_files *files = NULL;
    struct program *p = NULL;
    struct error err = {0};
    made_write(m);
    enum status st = adapter_open(m->folder, "tone", model, &files, &err);
    if (st == OK)
        st = pass_adapter(model->program, (const struct adapter *[]){adapter_of(files)}, 1, &p, &err);
    if (st == OK || !strstr(err.text, word) || !strstr(err.text, "tone"))
        fail_msg("no \"%s\" in \"%s\" for %s", word, err.text, m->config);
    EXPECT(!p);
    adapter_free(files);
    made_free(m);
}

static void settings_that_make_other_numbers_are_refused_by_name(void **state) {
    static const struct {
        const char *config, *word;
    } cases[] = {
        {"{\"r\": 4, \"use_dora\": true}", "use_dora"},
        {"{\"r\": 4, \"modules_to_save\": [\"lm_head\"]}", "modules_to_save"},
        {"{\"r\": 4, \"bias\": \"lora_only\"}", "lora_only"},
        {"{\"r\": 4, \"lora_bias\": true}", "lora_bias"},
        {"{\"r\": 4, \"target_parameters\": [\"mlp.experts.gate_up_proj\"]}", "target_parameters"},
        {"{\"r\": 4, \"layer_replication\": [[0, 4]]}", "layer_replication"},
        {"{\"r\": 4, \"fan_in_fan_out\": true}", "fan_in_fan_out"},
        {"{\"r\": 4, \"peft_type\": \"IA3\"}", "IA3"},
        {"{\"r\": 4, \"init_lora_weights\": \"pissa\"}", "\"init_lora_weights\" is \"pissa\""},
        {"{\"r\": 4, \"init_lora_weights\": \"pissa_niter_16\"}", "pissa_niter_16"},
        {"{\"r\": 4, \"init_lora_weights\": \"olora\"}", "olora"},
        {"{\"r\": 4, \"init_lora_weights\": \"corda\"}", "corda"},
        {"{\"r\": 4, \"init_lora_weights\": \"loftq\"}", "loftq"},
        {"{\"r\": 4, \"init_lora_weights\": \"lora_ga\"}", "lora_ga"},
        {"{\"r\": 0}", "\"r\""},
        {"{\"r\": 4, \"rank_pattern\": {\"q_proj(\": 4}}", "q_proj("},
        {"{\"r\": 4, \"alpha_pattern\": {\"q_proj\": \"4\"}}", "alpha_pattern"},
        {"{\"r\": 4, \"rank_pattern\": {\"k_proj\": 4097}}", "no positive number up to 4096"},
        {"{\"r\": 4, \"alpha_pattern\": {\"(.*)*x|layers.0.self_attn.q_proj\": 64}}",
         "\"alpha_pattern\" of \"(.*)*x|layers.0.self_attn.q_proj\""},
        {"{\"r\": 8, \"rank_pattern\": {\"(.*)*x|layers.0.self_attn.q_proj\": 4}}",
         "\"rank_pattern\" of \"(.*)*x|layers.0.self_attn.q_proj\""},
        {"{\"r\": 8}", "r = 8"}, // these initialisations are no reason
        {"{\"r\": 8, \"init_lora_weights\": \"gaussian\"}", "r = 8"},
        {"{\"r\": 8, \"init_lora_weights\": \"eva\"}", "r = 8"},
        {"{\"r\": 8, \"init_lora_weights\": \"orthogonal\"}", "r = 8"},
        {"[]", "must be an object"},
        {"{\"r\": 4,", "adapter_config.json"},
    };
    (void)state;
    static struct scene sc;
    scene_open(&sc, "tests/models/llama");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct made m = {.dtype = DT_F16, .config = cases[i].config};
        add_module(&m, "model.layers.0.self_attn.q_proj", 256, 128, 4);
        draw(&m);
        expect_refused(&m, sc.model, cases[i].word);
    }
    scene_close(&sc);
}

static void modules_that_are_no_projections_of_the_model_are_refused_by_name(void **state) {
    static const struct {
        const char *model, *module, *word;
        int64_t rows, in;
    } cases[] = {
        {"llama", "model.layers.0.self_attn.q_proj", "lora_A is [4, 64] and lora_B [256, 4]", 256, 64},
        {"llama", "model.layers.0.self_attn.q_proj", "the model's module is [256, 128]", 128, 128},
        {"llama", "model.layers.9.self_attn.q_proj", "layers.9.self_attn.q_proj is no projection", 256, 128},
        {"llama", "model.vision_tower.layers.0.self_attn.q_proj", "vision_tower", 256, 128},
        {"llama", "model.embed_tokens", "model.embed_tokens is no projection", 1024, 128},
        {"qwen3", "model.embed_tokens", "model.embed_tokens is no projection", 1024, 128}, // the head's name, too
        {"qwen3", "lm_head", "lm_head is no projection", 1024, 128},
        {"qwen3_moe", "model.layers.0.mlp.experts.0.gate_proj", "experts.0.gate_proj is no projection", 64, 128},
        {"deepseek_v3", "model.layers.0.self_attn.kv_b_proj", "kv_b_proj is no projection", 256, 64},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        static struct scene sc;
        char folder[80];
        struct made m = {.dtype = DT_F32, .config = "{\"r\": 4}"};
        snprintf(folder, sizeof folder, "tests/models/%s", cases[i].model);
        scene_open(&sc, folder);
        add_module(&m, cases[i].module, cases[i].rows, cases[i].in, 4);
        draw(&m);
        expect_refused(&m, sc.model, cases[i].word);
        scene_close(&sc);
    }
}

/* Every one has the space of the largest: 256 of rank 2^30 are refused before their numbers are looked at. */
static void adapters_that_memory_cannot_hold_are_refused(void **state) {
    static struct scene sc;
    struct weight a = {.out = 1 << 30, .in = 128}, b = {.out = 256, .in = 1 << 30};
    struct adapter_module module = {"model.layers.0.self_attn.q_proj", &a, &b, 1};
    struct adapter wide = {"wide", &module, 1};
    const struct adapter *all[256];
    struct program *p;
    struct error err = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        all[i] = &wide;
    scene_open(&sc, "tests/models/llama");
    EXPECT_EQ(pass_adapter(sc.model->program, all, ARRAY_LEN(all), &p, &err), ERR_MEMORY);
    EXPECT(!p && strstr(err.text, "q_proj") && strstr(err.text, "adapter wide"));
    scene_close(&sc);
}

/* Between opening and copying: the pages that are lost read as zeros. */
static void a_file_that_is_cut_while_it_is_read_is_refused(void **state) {
    static struct scene sc;
    struct made m = {.dtype = DT_F32, .config = "{\"r\": 4}"};
    struct adapter_files *files;
    struct program *p;
    struct error err;
    (void)state;
    scene_open(&sc, "tests/models/llama");
    add_module(&m, "model.layers.0.self_attn.q_proj", 256, 128, 4);
    draw(&m);
    made_write(&m);
    EXPECT_OK(adapter_open(m.folder, "tone", sc.model, &files, &err), err);
    EXPECT_EQ(truncate(arena_printf(&m.arena, "%s/adapter_model.safetensors", m.folder), 4096), 0);
    EXPECT_OK(pass_adapter(sc.model->program, (const struct adapter *[]){adapter_of(files)}, 1, &p, &err), err);
    EXPECT(adapter_check(files, &err) == ERR_IO && strstr(err.text, "adapter tone") && strstr(err.text, "lost bytes"));
    program_free(p);
    adapter_free(files);
    made_free(&m);
    scene_close(&sc);
}

/* Under any of the prefixes that a model's tensors may have. */
static void a_module_is_found_under_another_prefix(void **state) {
    static const char *const names[] = {"model.layers.1.mlp.down_proj", "model.language_model.layers.1.mlp.down_proj",
                                        "language_model.model.layers.1.mlp.down_proj"};
    (void)state;
    static struct scene sc;
    scene_open(&sc, "tests/models/llama");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct made m = {.dtype = DT_F32, .config = "{\"r\": 4}"};
        struct adapter_files *files;
        struct error err;
        add_module(&m, names[i], 128, 256, 4);
        draw(&m);
        made_write(&m);
        EXPECT_OK(adapter_open(m.folder, "x", sc.model, &files, &err), err);
        EXPECT(strcmp(adapter_of(files)->modules[0].name, "model.layers.1.mlp.down_proj") == 0);
        adapter_free(files);
        made_free(&m);
    }
    scene_close(&sc);
}

/* Ranks of a model with adapters, which are cut as its projections are. */
static void ranks_have_their_share_of_adapters(void **state) {
    static const char *const models[] = {"models/llama",
                                         "models/qwen3_5_moe",
                                         "models/deepseek_v3",
                                         "models/gemma3",
                                         "models/diffllama",
                                         "models/gpt_oss",
                                         "models_random/phi3_plain",
                                         "models_random/llama_biases",
                                         "models_random/qwen3_next_plain"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        static struct scene sc;
        char folder[80];
        snprintf(folder, sizeof folder, "tests/%s", models[i]);
        scene_open(&sc, folder);
        scene_shorten(&sc, 50);
        double off = compare_adapters(&sc, (struct how){.n_threads = 1}, 2);
        if (!(off <= 2e-3))
            fail_msg("%s: logits are off by %g", folder, off);
        scene_close(&sc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        // First: the SIGBUS handler is installed with the first map, and cmocka puts its own in at each test.
        cmocka_unit_test(a_file_that_is_cut_while_it_is_read_is_refused),
        cmocka_unit_test(adapters_are_what_merged_weights_are),
        cmocka_unit_test(settings_that_make_other_numbers_are_refused_by_name),
        cmocka_unit_test(modules_that_are_no_projections_of_the_model_are_refused_by_name),
        cmocka_unit_test(adapters_that_memory_cannot_hold_are_refused),
        cmocka_unit_test(a_module_is_found_under_another_prefix),
        cmocka_unit_test(ranks_have_their_share_of_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
