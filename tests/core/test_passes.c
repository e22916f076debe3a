/* test_passes.c - programs that passes make of programs, and the table of uses. What they compute is held by goldens
 * (shared_kv), and here (taps). */
#include "on_device.h"

#include "core/pass/pass.h"
#include "core/pass/uses.h"
#include "model/model.h"

#include <math.h>

static struct model *opened(const char *name) {
    struct model *m;
    struct error err;
    char folder[80];
    snprintf(folder, sizeof folder, "tests/models/%s", name);
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    return m;
}

static bool takes_half_a_key(int head_dim, int channels) { return channels <= head_dim / 2; }
static bool takes_an_eighth(int head_dim, int channels) { return channels <= head_dim / 8; }

static void keys_are_short_where_the_device_takes_them(void **state) {
    (void)state;
    struct model *m = opened("gemma4");
    bool (*const takes[])(int, int) = {takes_an_eighth, takes_half_a_key, NULL};
    for (size_t i = 0; i < ARRAY_LEN(takes); i++) {
        struct program *p = pass_shared_kv(m->program, takes[i]);
        const struct cache_group *sliding = &p->groups[0], *global = &p->groups[1];
        EXPECT(sliding->k_dim == 64 && sliding->v_dim == 64 && !sliding->shared_kv);
        EXPECT(global->k_dim == (i == 0 ? 128 : 32) && global->v_dim == 128 && global->shared_kv == (i > 0));
        for (int k = 0; k < p->n_ops; k++) {
            const struct op *op = &p->ops[k], *was = &m->program->ops[k];
            bool is_global = op->code == OP_QKV_PREP && p->caches[op->args.qkv_prep.cache].group == 1;
            EXPECT(op->code == was->code &&
                   (op->code != OP_QKV_PREP || op->args.qkv_prep.rotary_dim == (is_global && i > 0 ? 32 : 0)));
            EXPECT(!is_global || op->weights[1]); // of the keys in the cache, also where a layer has none of its own
        }
        EXPECT(m->program->groups[1].k_dim == 128 && !m->program->groups[1].shared_kv); // the first is as it was
        program_free(p);
    }
    EXPECT(shared_kv_channels(m->program, 0) == 0 && shared_kv_channels(m->program, 1) == 32);
    model_free(m);
}

static void nothing_is_short_elsewhere(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gemma3", "diffllama", "qwen3_5", "deepseek_v3"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct model *m = opened(names[i]);
        struct program *p = pass_shared_kv(m->program, NULL);
        for (int g = 0; g < p->n_groups; g++)
            EXPECT(!p->groups[g].shared_kv && p->groups[g].k_dim == m->program->groups[g].k_dim);
        program_free(p);
        model_free(m);
    }
}

static void windows_become_rings_that_ranks_can_share(void **state) {
    (void)state;
    struct error err;
    struct model *m = opened("gemma4"), *all = opened("llama"), *windows = opened("mistral");
    struct program *p = pass_rings(m->program, 300), *half;
    EXPECT(p && p->groups[0].kind == CACHE_STATE && p->groups[0].window == 48);
    EXPECT(p->groups[0].ring == 384); // 64 + 300, rounded
    EXPECT(cache_state_floats(&p->groups[0], 0) == 384 * 2 * (64 + 64));
    EXPECT(p->groups[1].kind == CACHE_KV && p->groups[1].ring == 0);
    EXPECT(m->program->groups[0].kind == CACHE_KV && m->program->groups[0].ring == 0);
    EXPECT_OK(pass_shard(p, &(struct shard_options){1, 2, false}, &half, &err), err);
    EXPECT(half->groups[0].ring == 384 && half->groups[0].n_heads == 1);
    EXPECT(!pass_rings(all->program, 300) && !pass_rings(windows->program, 300));
    program_free(half);
    program_free(p);
    model_free(m);
    model_free(all);
    model_free(windows);
}

static void every_use_is_in_the_table_once(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gemma4", "qwen3_5_moe", "deepseek_v3"};
    for (size_t m = 0; m < ARRAY_LEN(names); m++) {
        struct model *model = opened(names[m]);
        const struct program *p = model->program;
        struct uses u;
        uses_init(&u, p);
        int n_reads = 0;
        for (int i = 0; i < p->n_ops; i++)
            for (int k = 0; k < OP_MAX_IN; k++)
                n_reads += val_given(p->ops[i].in[k]);
        EXPECT_EQ(u.first[p->n_values], n_reads);
        for (int v = 0; v < p->n_values; v++) {
            EXPECT_EQ(u.made_by[v], p->values[v].first_use);
            for (int i = u.first[v]; i < u.first[v + 1]; i++) {
                const struct op *op = &p->ops[u.readers[i]];
                EXPECT(op->in[0].id == v || op->in[1].id == v || op->in[2].id == v);
                EXPECT(i == u.first[v] || u.readers[i] >= u.readers[i - 1]);
            }
            val all = {v, 0, p->values[v].width};
            const struct op *only = uses_only_reader(&u, all);
            bool is_one = uses_count(&u, v) > 0 && u.readers[u.first[v]] == u.readers[u.first[v + 1] - 1];
            EXPECT(only == (is_one ? &p->ops[u.readers[u.first[v]]] : NULL));
        }
        uses_release(&u);
        model_free(model);
    }
}

// ---- taps -------------------------------------------------------------------------------------------------------

enum { N = 11, BLOCK = 16 };

static void one_chunk(const struct program *p, struct on_device *at, struct batch_plan *plan,
                      struct sample_params *sample) {
    static struct sample_result results[N];
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    struct bucket bucket = {N, 1, N, 0};
    struct error err;
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = config.table_width[g] = 1;
    on_device_compile(&backend_cpu, (struct how){.n_threads = 2}, p, &config, bucket, at);
    batch_plan_init(plan, bucket, p->n_groups, config.table_width);
    plan->n_tokens = plan->n_rows = plan->query_start[1] = plan->seq_len[0] = plan->n_known[0] = N;
    plan->n_seqs = 1;
    for (int i = 0; i < N; i++) {
        plan->token_id[i] = 13 * i + 5;
        plan->position[i] = plan->out_row[i] = i;
        sample[i] = sample_params_default();
        sample[i].want_logits = true;
    }
    EXPECT_OK(on_device_step(at, plan, sample, false, results, &err), err);
}

/* The program up to the op that makes v, whose rows are then its logits. */
static struct program *program_of(const struct program *from, val v) {
    struct program *p = program_copy(from);
    p->n_ops = from->values[v.id].first_use + 1;
    while (p->sections[p->n_sections - 1].first_op >= p->n_ops)
        p->n_sections--;
    p->hidden = NO_VAL;
    for (int i = 0; i < p->n_values; i++)
        p->values[i].last_use = MIN(p->values[i].last_use, p->n_ops - 1);
    op_sample(p, op_take_rows(p, v));
    return p;
}

static void taps_are_what_layers_add_up_to(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gemma3", "qwen3_5", "gpt_oss", "deepseek_v3"};
    for (size_t m = 0; m < ARRAY_LEN(names); m++) {
        struct model *model = opened(names[m]);
        int layers[] = {0, model->spec->n_layers - 1};
        struct program *tapped = pass_taps(model->program, layers, 2);
        struct sample_params sample[N];
        struct batch_plan plan, alone_plan;
        struct on_device at, alone;
        struct error err;
        EXPECT(tapped && tapped->n_taps == 2 && model->program->n_taps == 0);
        one_chunk(tapped, &at, &plan, sample);
        for (int k = 0; k < 2; k++) {
            struct program *cut = program_of(model->program, tapped->taps[k]);
            one_chunk(cut, &alone, &alone_plan, sample);
            for (int t = 0; t < N; t++) {
                const float *is, *wanted;
                EXPECT_OK(backend_cpu.hidden(at.exe, 1 + k, t, &is, &err), err);
                EXPECT_OK(backend_cpu.logits(alone.exe, t, &wanted, &err), err);
                EXPECT(memcmp(is, wanted, (size_t)tapped->taps[k].width * sizeof *is) == 0);
            }
            on_device_close(&alone);
            batch_plan_release(&alone_plan);
            program_free(cut);
        }
        on_device_close(&at);
        batch_plan_release(&plan);
        program_free(tapped);
        model_free(model);
    }
}

static void layers_that_are_not_there_have_no_taps(void **state) {
    (void)state;
    struct model *m = opened("llama");
    int layers[MAX_TAPS + 1] = {0};
    EXPECT(!pass_taps(m->program, &(int){m->spec->n_layers}, 1) && !pass_taps(m->program, &(int){-1}, 1));
    EXPECT(!pass_taps(m->program, layers, MAX_TAPS + 1));
    model_free(m);
}

// ---- shared experts ---------------------------------------------------------------------------------------------

static int count_of(const struct program *p, enum opcode code) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].code == code;
    return n;
}

/* How far logits of the two programs are apart, of the largest. */
static double logits_apart(const struct program *p, const struct program *other, int vocab) {
    struct sample_params sample[N];
    struct batch_plan plan, other_plan;
    struct on_device at, other_at;
    struct error err;
    double apart = 0, most = 0;
    one_chunk(p, &at, &plan, sample);
    one_chunk(other, &other_at, &other_plan, sample);
    for (int t = 0; t < N; t++) {
        const float *a, *b;
        EXPECT_OK(backend_cpu.logits(at.exe, t, &a, &err), err);
        EXPECT_OK(backend_cpu.logits(other_at.exe, t, &b, &err), err);
        for (int i = 0; i < vocab; i++)
            apart = fmax(apart, fabs((double)a[i] - (double)b[i])), most = fmax(most, fabs((double)a[i]));
    }
    on_device_close(&at), on_device_close(&other_at);
    batch_plan_release(&plan), batch_plan_release(&other_plan);
    return apart / most;
}

static int64_t planned_bytes(const struct program *p) {
    int64_t *offset = xcalloc((size_t)p->n_values, sizeof *offset), bytes = program_plan_memory(p, 64, 64, offset);
    free(offset);
    return bytes;
}

static void a_shared_expert_becomes_one_that_all_tokens_have(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool gated;
    } models[] = {{"qwen3_5_moe", true}, {"deepseek_v3", false}};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct model *model = opened(models[m].name);
        const struct program *was = model->program;
        struct program *p = pass_shared_expert(was, 16);
        int n_layers = count_of(was, OP_GATED_ADD);
        EXPECT(n_layers > 0 && count_of(p, OP_GATED_ADD) == 0);
        EXPECT_EQ(p->n_ops, was->n_ops - 4 * n_layers); // gate_up, activation, down and the sum
        EXPECT_EQ(p->n_joined, 4 * n_layers);
        EXPECT(planned_bytes(p) <= planned_bytes(was)); // values that no op makes any more have no place
        for (int i = 0; i < p->n_ops; i++) {
            const struct op *op = &p->ops[i], *of = &was->ops[program_op_of(p, i)];
            EXPECT(op->code == of->code);
            if (op->code != OP_MOE_ROUTE)
                continue;
            EXPECT(op->args.moe_route.n_shared > 0 && val_given(op->in[1]) == models[m].gated);
            const struct op *experts = &p->ops[i + 1];
            EXPECT(experts->code == OP_MOE_FFN &&
                   experts->args.moe_ffn.n_experts == op->args.moe_route.n_experts + op->args.moe_route.n_shared);
            EXPECT(experts->weights[1]->out == experts->args.moe_ffn.n_experts * (int64_t)op[1].out[0].width);
        }
        EXPECT(logits_apart(was, p, was->vocab_size) < 2e-5);
        program_free(p);
        p = pass_shared_expert(was, 1); // no token may have so few
        EXPECT(p->n_ops == was->n_ops && p->n_joined == 0);
        program_free(p);
        model_free(model);
    }
}

static void where_no_expert_is_shared_programs_stay_as_they_are(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "mixtral", "qwen3_moe", "gpt_oss"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct model *m = opened(names[i]);
        struct program *p = pass_shared_expert(m->program, 16);
        EXPECT(p->n_ops == m->program->n_ops &&
               memcmp(p->ops, m->program->ops, (size_t)p->n_ops * sizeof *p->ops) == 0);
        program_free(p);
        model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_short_where_the_device_takes_them),
        cmocka_unit_test(nothing_is_short_elsewhere),
        cmocka_unit_test(windows_become_rings_that_ranks_can_share),
        cmocka_unit_test(every_use_is_in_the_table_once),
        cmocka_unit_test(taps_are_what_layers_add_up_to),
        cmocka_unit_test(layers_that_are_not_there_have_no_taps),
        cmocka_unit_test(a_shared_expert_becomes_one_that_all_tokens_have),
        cmocka_unit_test(where_no_expert_is_shared_programs_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
