/* mixture_rig.h - checkpoints of mixtures of experts with a next-token predictor of random numbers, which has experts
 * as well: the target is one of tests/models_random, in the first shard, the predictor's tensors are in the second. */
#pragma once

#include "draft_rig.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum rig_mixture {
    RIG_QWEN3_5_MOE,   // experts one by one, as in Qwen3.5-35B-A3B, whose layers have them in stacks
    RIG_QWEN3_5_STACK, // experts in stacks; the same numbers
    RIG_QWEN3_NEXT,    //
    RIG_DEEPSEEK_V3,   // the layer behind the last one; without a table and a head of its own
    RIG_N_MIXTURES
};

enum { MIX_MOST_TENSORS = 64, MIX_H = 24, MIX_FFN = 8, MIX_MOST_EXPERTS = 8 };

struct mix_tensors {
    struct rig_tensor t[MIX_MOST_TENSORS];
    char names[MIX_MOST_TENSORS][80];
    size_t n;
    float stack13[MIX_MOST_EXPERTS * 2 * MIX_FFN * MIX_H], stack2[MIX_MOST_EXPERTS * MIX_H * MIX_FFN];
};

/* cols 0: a vector */
static struct rig_tensor *put_tensor(struct mix_tensors *all, int64_t rows, int64_t cols, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
static struct rig_tensor *put_tensor(struct mix_tensors *all, int64_t rows, int64_t cols, const char *name, ...) {
    va_list args;
    va_start(args, name);
    vsnprintf(all->names[all->n], sizeof all->names[0], name, args);
    va_end(args);
    struct rig_tensor *t = &all->t[all->n];
    *t = (struct rig_tensor){all->names[all->n], cols ? 2 : 1, {rows, cols}, NULL, 900 + all->n, NULL};
    BUG_IF(++all->n == MIX_MOST_TENSORS);
    return t;
}

/* The same numbers in either form. */
static void put_experts(struct mix_tensors *all, const char *layer, int n_experts, bool in_stacks) {
    struct rig_tensor s13 = {"", 3, {n_experts, 2 * MIX_FFN, MIX_H}, NULL, 700, NULL};
    struct rig_tensor s2 = {"", 3, {n_experts, MIX_H, MIX_FFN}, NULL, 701, NULL};
    enum { SIZE = MIX_FFN * MIX_H };
    rig_fill(&s13, all->stack13), rig_fill(&s2, all->stack2);
    if (in_stacks) {
        struct rig_tensor *t13 = put_tensor(all, 1, 1, "%s.mlp.experts.gate_up_proj", layer);
        struct rig_tensor *t2 = put_tensor(all, 1, 1, "%s.mlp.experts.down_proj", layer);
        s13.name = t13->name, s13.data = all->stack13, *t13 = s13;
        s2.name = t2->name, s2.data = all->stack2, *t2 = s2;
        return;
    }
    for (int e = 0; e < n_experts; e++) {
        put_tensor(all, MIX_FFN, MIX_H, "%s.mlp.experts.%d.gate_proj.weight", layer, e)->data =
            all->stack13 + 2 * e * SIZE;
        put_tensor(all, MIX_FFN, MIX_H, "%s.mlp.experts.%d.up_proj.weight", layer, e)->data =
            all->stack13 + (2 * e + 1) * SIZE;
        put_tensor(all, MIX_H, MIX_FFN, "%s.mlp.experts.%d.down_proj.weight", layer, e)->data = all->stack2 + e * SIZE;
    }
}

static void put_ffn(struct mix_tensors *all, const char *module, int ffn) {
    put_tensor(all, ffn, MIX_H, "%s.gate_proj.weight", module);
    put_tensor(all, ffn, MIX_H, "%s.up_proj.weight", module);
    put_tensor(all, MIX_H, ffn, "%s.down_proj.weight", module);
}

static void put_norms(struct mix_tensors *all, const char *layer) {
    put_tensor(all, MIX_H, 0, "%s.input_layernorm.weight", layer);
    put_tensor(all, MIX_H, 0, "%s.post_attention_layernorm.weight", layer);
}

static void put_qwen(struct mix_tensors *all, bool in_stacks) {
    enum { MIX_HEADS = 4, KV_HEADS = 2, HEAD = 16, N_EXPERTS = 4, SHARED_FFN = 12 };
    const char *layer = "mtp.layers.0";
    put_tensor(all, MIX_H, 0, "mtp.pre_fc_norm_embedding.weight"),
        put_tensor(all, MIX_H, 0, "mtp.pre_fc_norm_hidden.weight");
    put_tensor(all, MIX_H, 2 * MIX_H, "mtp.fc.weight"), put_tensor(all, MIX_H, 0, "mtp.norm.weight");
    put_norms(all, layer);
    put_tensor(all, 2 * MIX_HEADS * HEAD, MIX_H, "%s.self_attn.q_proj.weight", layer);
    put_tensor(all, KV_HEADS * HEAD, MIX_H, "%s.self_attn.k_proj.weight", layer);
    put_tensor(all, KV_HEADS * HEAD, MIX_H, "%s.self_attn.v_proj.weight", layer);
    put_tensor(all, MIX_H, MIX_HEADS * HEAD, "%s.self_attn.o_proj.weight", layer);
    put_tensor(all, HEAD, 0, "%s.self_attn.q_norm.weight", layer),
        put_tensor(all, HEAD, 0, "%s.self_attn.k_norm.weight", layer);
    put_tensor(all, N_EXPERTS, MIX_H, "%s.mlp.gate.weight", layer),
        put_tensor(all, 1, MIX_H, "%s.mlp.shared_expert_gate.weight", layer);
    put_ffn(all, "mtp.layers.0.mlp.shared_expert", SHARED_FFN);
    put_experts(all, layer, N_EXPERTS, in_stacks);
}

static void put_deepseek(struct mix_tensors *all) {
    enum { MIX_HEADS = 4, RANK = 12, NOPE = 16, ROPE = 8, V = 12, N_EXPERTS = 8 };
    const char *layer = "model.layers.2";
    put_tensor(all, MIX_H, 0, "%s.enorm.weight", layer), put_tensor(all, MIX_H, 0, "%s.hnorm.weight", layer);
    put_tensor(all, MIX_H, 2 * MIX_H, "%s.eh_proj.weight", layer),
        put_tensor(all, MIX_H, 0, "%s.shared_head.norm.weight", layer);
    put_norms(all, layer);
    put_tensor(all, RANK, MIX_H, "%s.self_attn.q_a_proj.weight", layer),
        put_tensor(all, RANK, 0, "%s.self_attn.q_a_layernorm.weight", layer);
    put_tensor(all, MIX_HEADS * (NOPE + ROPE), RANK, "%s.self_attn.q_b_proj.weight", layer);
    put_tensor(all, RANK + ROPE, MIX_H, "%s.self_attn.kv_a_proj_with_mqa.weight", layer);
    put_tensor(all, RANK, 0, "%s.self_attn.kv_a_layernorm.weight", layer);
    put_tensor(all, MIX_HEADS * (NOPE + V), RANK, "%s.self_attn.kv_b_proj.weight", layer);
    put_tensor(all, MIX_H, MIX_HEADS * V, "%s.self_attn.o_proj.weight", layer);
    put_tensor(all, N_EXPERTS, MIX_H, "%s.mlp.gate.weight", layer);
    put_tensor(all, N_EXPERTS, 0, "%s.mlp.gate.e_score_correction_bias", layer);
    put_ffn(all, "model.layers.2.mlp.shared_experts", MIX_FFN);
    put_experts(all, layer, N_EXPERTS, false);
}

static void rig_mixture(enum rig_mixture kind, char path[RIG_PATH]) {
    static const char *const targets[RIG_N_MIXTURES] = {
        "tests/models_random/qwen3_5_moe_plain", "tests/models_random/qwen3_5_moe_plain",
        "tests/models_random/qwen3_next_plain", "tests/models_random/deepseek_v3_yarn_old"};
    static struct mix_tensors all;
    all.n = 0;
    if (kind == RIG_DEEPSEEK_V3)
        put_deepseek(&all);
    else
        put_qwen(&all, kind == RIG_QWEN3_5_STACK);
    rig_write_beside(targets[kind], all.t, all.n, path);
    if (kind != RIG_DEEPSEEK_V3)
        return;
    rig_replace(path, "config.json", "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    rig_replace(path, "config.json", "\"rope_scaling\"", "\"rope_no_more\""); // plain RoPE, as a test can follow it
}
