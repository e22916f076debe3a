/* gguf_arch.c - one row an architecture of GGUF files: its model type, its own keys, its own names of tensors. */
#include "model/gguf/gguf_translation.h"
#include "model/spec/spec_read.h"

#include <stdio.h>

/* ---- experts ---- */

static enum status experts(struct gguf_translation *t, const char *count) {
    TRY(gguf_copy_dim(t, "expert_count", 1, count));
    TRY(gguf_copy_dim(t, "expert_used_count", 1, "num_experts_per_tok"));
    return OK;
}

static enum status expert_width(struct gguf_translation *t) {
    int64_t n;
    TRY(gguf_read_same(t, "expert_feed_forward_length", 1, 0, &n));
    if (n)
        gguf_set_int(t, "moe_intermediate_size", n);
    return OK;
}

/* ---- Llama and its relatives ---- */

static void bias_flags(struct gguf_translation *t) {
    json_object_set_new(t->config, "attention_bias", json_boolean(gguf_tensor_named(t->g, "blk.0.attn_q.bias")));
    json_object_set_new(t->config, "mlp_bias", json_boolean(gguf_tensor_named(t->g, "blk.0.ffn_up.bias")));
}

static enum status no_experts(struct gguf_translation *t) { // which writers say with a count of 0
    gguf_key(t, "expert_count"), gguf_key(t, "expert_used_count");
    return OK;
}

static enum status llama(struct gguf_translation *t) {
    bias_flags(t);
    TRY(no_experts(t));
    if (!gguf_key(t, "attention.sliding_window"))
        return OK;
    gguf_set_string(t, "model_type", "mistral");
    return gguf_copy_dim(t, "attention.sliding_window", 0, "sliding_window");
}

static enum status mixtral(struct gguf_translation *t) {
    TRY(experts(t, "num_local_experts"));
    TRY(gguf_copy_dim_if(t, "attention.sliding_window", 0, "sliding_window"));
    return gguf_copy_dim_if(t, "expert_feed_forward_length", 1, "intermediate_size");
}

static enum status smollm3(struct gguf_translation *t) {
    bias_flags(t);
    return no_experts(t);
}

static enum status phi3(struct gguf_translation *t) {
    TRY(no_experts(t));
    return gguf_copy_dim_if(t, "attention.sliding_window", 0, "sliding_window");
}

/* ---- Qwen ---- */

static enum status qwen3_moe(struct gguf_translation *t) {
    TRY(experts(t, "num_experts"));
    json_object_set_new(t->config, "norm_topk_prob", json_true());
    return expert_width(t);
}

/* Which layers are recurrent: said for each, or by a period whose last layer is not. */
static enum status recurrent_layers(struct gguf_translation *t) {
    const struct gguf_value *v = gguf_key(t, "attention.recurrent_layers");
    if (!v)
        return gguf_copy_dim_if(t, "full_attention_interval", 1, "full_attention_interval");
    gguf_key(t, "full_attention_interval");
    if (!v->is_array || !gguf_is_int(v->type) || v->n < (uint64_t)t->n_layers)
        return fail(t->err, ERR_FORMAT, "%s: %s must say for each of %lld layers whether it is recurrent", t->g->path,
                    gguf_key_name(t, "attention.recurrent_layers"), (long long)t->n_layers);
    json_t *types = json_array();
    for (int64_t l = 0; l < t->n_layers; l++)
        json_array_append_new(types,
                              json_string(gguf_item_int(v, (uint64_t)l) ? "linear_attention" : "full_attention"));
    json_object_set_new(t->config, "layer_types", types);
    return OK;
}

static enum status qwen35(struct gguf_translation *t) {
    int64_t inner = 0, heads = 0;
    TRY(gguf_copy_dim(t, "ssm.conv_kernel", 1, "linear_conv_kernel_dim"));
    TRY(gguf_copy_dim(t, "ssm.state_size", 1, "linear_key_head_dim"));
    TRY(gguf_copy_dim(t, "ssm.group_count", 1, "linear_num_key_heads"));
    TRY(gguf_copy_dim(t, "ssm.time_step_rank", 1, "linear_num_value_heads"));
    TRY(gguf_read_dim(t, "ssm.time_step_rank", 1, &heads));
    TRY(gguf_read_dim(t, "ssm.inner_size", heads, &inner));
    gguf_set_int(t, "linear_value_head_dim", inner / heads);
    TRY(recurrent_layers(t));
    if (!t->arch->experts)
        return no_experts(t);
    TRY(experts(t, "num_experts"));
    TRY(gguf_copy_dim_if(t, "expert_shared_feed_forward_length", 0, "shared_expert_intermediate_size"));
    return expert_width(t);
}

/* ---- Gemma ---- */

/* Which layers slide: an array of truth values, or a period whose last layer is full. */
static enum status layer_types(struct gguf_translation *t) {
    const struct gguf_value *v = gguf_key(t, "attention.sliding_window_pattern");
    const char *key = gguf_key_name(t, "attention.sliding_window_pattern");
    int64_t period = 0;
    if (!v)
        return OK;
    if (!v->is_array)
        TRY(gguf_int_or(t->g, key, 1, SPEC_MAX_LAYERS, 0, &period, t->err));
    if (v->is_array && (!gguf_is_int(v->type) || v->n < (uint64_t)t->n_layers))
        return fail(t->err, ERR_FORMAT, "%s: %s must say for each of %lld layers whether it slides", t->g->path, key,
                    (long long)t->n_layers);
    json_t *types = json_array();
    for (int64_t l = 0; l < t->n_layers; l++) {
        bool slides = period ? (l + 1) % period != 0 : gguf_item_int(v, (uint64_t)l) != 0;
        json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(t->config, "layer_types", types);
    return OK;
}

/* The scale of q.k is in no key: it follows from the size of a head, but for the largest model. */
static enum status gemma(struct gguf_translation *t, int64_t layers_of_27b) {
    int64_t n_heads = 0, head_dim = 0;
    TRY(gguf_read_same(t, "attention.head_count", 1, 0, &n_heads));
    TRY(gguf_int_or(t->g, gguf_key_name(t, "attention.key_length"), 1, SPEC_MAX_DIM,
                    MAX(t->hidden_size / MAX(n_heads, 1), 1), &head_dim, t->err));
    bool largest = t->n_layers == layers_of_27b && n_heads > 0;
    gguf_set_int(t, "query_pre_attn_scalar", largest ? t->hidden_size / n_heads : head_dim);
    TRY(gguf_copy_dim_if(t, "attention.sliding_window", 0, "sliding_window"));
    TRY(gguf_copy_real_if(t, "final_logit_softcapping", "final_logit_softcapping"));
    return layer_types(t);
}

static enum status gemma2(struct gguf_translation *t) {
    TRY(gguf_copy_real_if(t, "attn_logit_softcapping", "attn_logit_softcapping"));
    return gemma(t, 46);
}

static enum status gemma3(struct gguf_translation *t) {
    TRY(gguf_copy_real_if(t, "rope.freq_base_swa", "rope_local_base_freq"));
    return gemma(t, 62);
}

/* ---- GPT-OSS ---- */

static enum status gpt_oss(struct gguf_translation *t) {
    TRY(experts(t, "num_local_experts"));
    TRY(gguf_copy_dim(t, "attention.sliding_window", 1, "sliding_window"));
    TRY(gguf_copy_dim(t, "expert_feed_forward_length", 1, "intermediate_size"));
    gguf_key(t, "feed_forward_length");
    return layer_types(t);
}

/* ---- DeepSeek ---- */

static enum status latent_sizes(struct gguf_translation *t) {
    int64_t turned = 0, head = 0, value = 0;
    bool split = gguf_key(t, "attention.key_length_mla"); // else keys and values are as the heads see them
    TRY(gguf_read_dim(t, "rope.dimension_count", 1, &turned));
    TRY(gguf_read_dim(t, split ? "attention.key_length_mla" : "attention.key_length", turned + 1, &head));
    TRY(gguf_read_dim(t, split ? "attention.value_length_mla" : "attention.value_length", 1, &value));
    gguf_key(t, "attention.key_length"), gguf_key(t, "attention.value_length");
    gguf_set_int(t, "qk_rope_head_dim", turned);
    gguf_set_int(t, "qk_nope_head_dim", head - turned);
    gguf_set_int(t, "v_head_dim", value);
    t->head_dim = head;
    TRY(gguf_copy_dim(t, "attention.kv_lora_rank", 1, "kv_lora_rank"));
    json_object_set_new(t->config, "q_lora_rank", json_null());
    return gguf_copy_dim_if(t, "attention.q_lora_rank", 1, "q_lora_rank");
}

/* Whether the router is sigmoid (V3): said, or older than the key and seen by its bias. */
static enum status is_sigmoid(struct gguf_translation *t, int64_t first_dense, bool *out) {
    char bias[64];
    int64_t function;
    snprintf(bias, sizeof bias, "blk.%lld.exp_probs_b.bias", (long long)first_dense);
    gguf_key(t, "expert_gating_func");
    TRY(gguf_int_or(t->g, gguf_key_name(t, "expert_gating_func"), 1, 2, gguf_tensor_named(t->g, bias) ? 2 : 1,
                    &function, t->err));
    *out = function == 2;
    return OK;
}

static enum status deepseek(struct gguf_translation *t) {
    int64_t first_dense = 0, n_heads = 0, n_groups = 1;
    bool sigmoid;
    json_t *c = t->config;
    TRY(latent_sizes(t));
    TRY(gguf_read_same(t, "attention.head_count", 1, 1, &n_heads));
    gguf_set_int(t, "num_key_value_heads", n_heads);
    gguf_key(t, "attention.head_count_kv");
    TRY(experts(t, "n_routed_experts"));
    TRY(expert_width(t));
    TRY(gguf_copy_dim(t, "expert_shared_count", 0, "n_shared_experts"));
    gguf_key(t, "leading_dense_block_count");
    TRY(gguf_int_or(t->g, gguf_key_name(t, "leading_dense_block_count"), 0, t->n_layers, 0, &first_dense, t->err));
    gguf_set_int(t, "first_k_dense_replace", first_dense);
    json_object_set_new(c, "routed_scaling_factor", json_real(1));
    TRY(gguf_copy_real_if(t, "expert_weights_scale", "routed_scaling_factor"));
    gguf_key(t, "expert_weights_norm");
    bool norm;
    TRY(gguf_bool_or(t->g, gguf_key_name(t, "expert_weights_norm"), false, &norm, t->err));
    json_object_set_new(c, "norm_topk_prob", json_boolean(norm));
    gguf_set_int(t, "n_group", 1), gguf_set_int(t, "topk_group", 1), gguf_set_int(t, "num_nextn_predict_layers", 0);
    TRY(gguf_copy_dim_if(t, "expert_group_count", 1, "n_group"));
    TRY(gguf_copy_dim_if(t, "expert_group_used_count", 1, "topk_group"));
    n_groups = json_integer_value(json_object_get(c, "n_group"));
    TRY(is_sigmoid(t, first_dense, &sigmoid));
    gguf_set_string(t, "model_type", sigmoid ? "deepseek_v3" : "deepseek_v2");
    gguf_set_string(t, "scoring_func", sigmoid ? "sigmoid" : "softmax");
    gguf_set_string(t, "topk_method", sigmoid ? "noaux_tc" : n_groups > 1 ? "group_limited_greedy" : "greedy");
    return OK;
}

/* ---- Gemma 4 ---- */

/* Full layers have heads of their own. */
static enum status gemma4_layers(struct gguf_translation *t, int64_t full_dim) {
    const struct gguf_value *v = gguf_key(t, "attention.head_count_kv");
    json_t *types = json_object_get(t->config, "layer_types"), *full = json_object();
    json_object_set_new(t->config, "per_layer_config", full);
    if (!v || !gguf_is_int(v->type) || (v->is_array && v->n < (uint64_t)t->n_layers) || !types)
        return fail(t->err, ERR_FORMAT, "%s: %s and attention.sliding_window_pattern must be there, for each layer",
                    t->g->path, gguf_key_name(t, "attention.head_count_kv"));
    for (int64_t l = 0; l < t->n_layers; l++) {
        char number[48];
        int64_t n = gguf_item_int(v, v->is_array ? (uint64_t)l : 0);
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (strcmp(type, "full_attention") != 0) {
            gguf_set_int(t, "num_key_value_heads", n);
            continue;
        }
        snprintf(number, sizeof number, "%lld", (long long)l);
        json_object_set_new(
            full, number,
            json_pack("{s:I, s:I}", "head_dim", (json_int_t)full_dim, "num_key_value_heads", (json_int_t)n));
        snprintf(number, sizeof number, "blk.%lld.attn_v.weight", (long long)l);
        if (!gguf_tensor_named(t->g, number) && gguf_tensor_named(t->g, "blk.0.attn_v.weight"))
            json_object_set_new(t->config, "attention_k_eq_v", json_true());
    }
    return OK;
}

/* Of the pairs of a full layer's heads the first ones turn; the others have divisors without end. */
static enum status gemma4_ropes(struct gguf_translation *t) {
    json_t *divisors, *v;
    double base, base_sliding;
    size_t i, n_turning = 0, n;
    bool good = true;
    gguf_key(t, "rope.freq_base"), gguf_key(t, "rope.freq_base_swa");
    gguf_key(t, "rope.dimension_count"), gguf_key(t, "rope.dimension_count_swa");
    TRY(gguf_real_or(t->g, gguf_key_name(t, "rope.freq_base"), 1000000, &base, t->err));
    TRY(gguf_real_or(t->g, gguf_key_name(t, "rope.freq_base_swa"), 10000, &base_sliding, t->err));
    TRY(gguf_float_list(t, "rope_freqs.weight", &divisors));
    json_array_foreach(divisors, i, v) {
        bool turns = json_number_value(v) == 1;
        good = good && (turns ? i == n_turning : json_number_value(v) >= 1e20);
        n_turning += turns;
    }
    n = json_array_size(divisors);
    json_decref(divisors);
    if (n == 0 || !good)
        return fail(t->err, ERR_UNSUPPORTED, "%s: tensor rope_freqs.weight must be ones and then 1e30", t->g->path);
    json_object_set_new(t->config, "rope_parameters",
                        json_pack("{s:{s:s, s:f, s:f}, s:{s:s, s:f}}", "full_attention", "rope_type", "proportional",
                                  "rope_theta", base, "partial_rotary_factor", (double)n_turning / (double)n,
                                  "sliding_attention", "rope_type", "default", "rope_theta", base_sliding));
    return OK;
}

/* Layers that share a cache may have an FFN of twice the width. */
static enum status gemma4_ffn(struct gguf_translation *t, int64_t n_shared) {
    const struct gguf_value *v = gguf_key(t, "feed_forward_length");
    if (!v || !v->is_array)
        return OK;
    if (!gguf_is_int(v->type) || v->n < (uint64_t)t->n_layers)
        return fail(t->err, ERR_FORMAT, "%s: %s must be a number for each layer", t->g->path,
                    gguf_key_name(t, "feed_forward_length"));
    int64_t first = gguf_item_int(v, 0), last = gguf_item_int(v, (uint64_t)t->n_layers - 1);
    for (int64_t l = 0; l < t->n_layers; l++)
        if (gguf_item_int(v, (uint64_t)l) != (l < t->n_layers - n_shared ? first : last))
            return fail(t->err, ERR_UNSUPPORTED, "%s: %s differs in layer %lld", t->g->path,
                        gguf_key_name(t, "feed_forward_length"), (long long)l);
    if (first < 1 || first > SPEC_MAX_DIM || (last != first && last != 2 * first))
        return fail(t->err, ERR_UNSUPPORTED, "%s: %s must be one size, or twice that in the last layers", t->g->path,
                    gguf_key_name(t, "feed_forward_length"));
    gguf_set_int(t, "intermediate_size", first);
    json_object_set_new(t->config, "use_double_wide_mlp", json_boolean(last != first));
    return OK;
}

static enum status gemma4(struct gguf_translation *t) {
    int64_t full_dim = 0, n_shared = 0;
    const struct gguf_tensor *table = gguf_tensor_named(t->g, "per_layer_token_embd.weight");
    TRY(layer_types(t));
    TRY(gguf_read_dim(t, "attention.key_length", 1, &full_dim));
    TRY(gguf_read_dim(t, "attention.key_length_swa", 1, &t->head_dim));
    gguf_key(t, "attention.value_length"), gguf_key(t, "attention.value_length_swa");
    gguf_set_int(t, "head_dim", t->head_dim);
    TRY(gemma4_layers(t, full_dim));
    TRY(gemma4_ropes(t));
    gguf_key(t, "attention.shared_kv_layers");
    TRY(gguf_int_or(t->g, gguf_key_name(t, "attention.shared_kv_layers"), 0, t->n_layers, 0, &n_shared, t->err));
    gguf_set_int(t, "num_kv_shared_layers", n_shared);
    TRY(gemma4_ffn(t, n_shared));
    TRY(gguf_copy_dim(t, "attention.sliding_window", 1, "sliding_window"));
    TRY(gguf_copy_real_if(t, "final_logit_softcapping", "final_logit_softcapping"));
    gguf_set_int(t, "hidden_size_per_layer_input", 0);
    TRY(gguf_copy_dim_if(t, "embedding_length_per_layer_input", 0, "hidden_size_per_layer_input"));
    if (table && table->n_dims == 2 && table->dims[1] <= SPEC_MAX_DIM)
        gguf_set_int(t, "vocab_size_per_layer_input", (int64_t)table->dims[1]);
    if (!t->arch->experts)
        return no_experts(t);
    json_object_set_new(t->config, "enable_moe_block", json_true());
    TRY(gguf_copy_dim(t, "expert_count", 1, "num_experts"));
    TRY(gguf_copy_dim(t, "expert_used_count", 1, "top_k_experts"));
    return expert_width(t);
}

/* ---- names ---- */

static const struct gguf_name mixtral_names[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.%e.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.%e.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.%e.w2"},
    {"ffn_gate_up_exps", "block_sparse_moe.experts.%e.w1", "block_sparse_moe.experts.%e.w3"},
    {NULL},
};

static const struct gguf_name gemma_names[] = {
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL},
};

static const struct gguf_name gpt_oss_names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_post_norm", "post_attention_layernorm"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_gate_inp", "mlp.router"},
    {NULL},
};

static const struct gguf_name deepseek_names[] = {
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_v_b", "self_attn.v_b_proj"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    {NULL},
};

static const struct gguf_name gemma4_names[] = {
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_gate_inp", "router.proj"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"ffn_gate_exps", "experts.%e.gate_proj"},
    {"ffn_up_exps", "experts.%e.up_proj"},
    {"ffn_down_exps", "experts.%e.down_proj"},
    {"ffn_gate_up_exps", "experts.%e.gate_proj", "experts.%e.up_proj"},
    {NULL},
};

static const struct gguf_name qwen35_names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_post_norm", "post_attention_layernorm"},
    {"attn_qkv", "linear_attn.in_proj_qkv"},
    {"attn_gate", "linear_attn.in_proj_z"},
    {"ssm_beta", "linear_attn.in_proj_b"},
    {"ssm_alpha", "linear_attn.in_proj_a"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {NULL},
};

static const struct gguf_name phi3_names[] = {{"ffn_up", "mlp.gate_up_proj"}, {NULL}};

const struct gguf_arch gguf_archs[] = {
    {.name = "llama", .model_type = "llama", .interleaved = true, .translate = llama},
    {.name = "llama",
     .experts = true,
     .model_type = "mixtral",
     .interleaved = true,
     .translate = mixtral,
     .names = mixtral_names},
    {.name = "mistral3", .model_type = "llama", .interleaved = true, .translate = llama},
    {.name = "smollm3", .model_type = "smollm3", .interleaved = true, .translate = smollm3},
    {.name = "qwen2", .model_type = "qwen2", .translate = no_experts},
    {.name = "qwen3", .model_type = "qwen3", .translate = no_experts},
    {.name = "qwen3moe", .experts = true, .model_type = "qwen3_moe", .translate = qwen3_moe},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .norms_hold_one = true,
     .partial_rope = true,
     .translate = qwen35,
     .names = qwen35_names},
    {.name = "qwen35moe",
     .experts = true,
     .model_type = "qwen3_5_moe_text",
     .norms_hold_one = true,
     .partial_rope = true,
     .translate = qwen35,
     .names = qwen35_names},
    {.name = "phi3", .model_type = "phi3", .partial_rope = true, .translate = phi3, .names = phi3_names},
    {.name = "gemma2",
     .model_type = "gemma2",
     .norms_hold_one = true,
     .tied = true,
     .translate = gemma2,
     .names = gemma_names},
    {.name = "gemma3", .model_type = "gemma3_text", .norms_hold_one = true, .translate = gemma3, .names = gemma_names},
    {.name = "gemma4", .model_type = "gemma4_text", .tied = true, .translate = gemma4, .names = gemma4_names},
    {.name = "gemma4",
     .experts = true,
     .model_type = "gemma4_text",
     .tied = true,
     .translate = gemma4,
     .names = gemma4_names},
    {.name = "deepseek2", .experts = true, .model_type = "deepseek_v3", .translate = deepseek, .names = deepseek_names},
    {.name = "gpt-oss", .experts = true, .model_type = "gpt_oss", .translate = gpt_oss, .names = gpt_oss_names},
    {NULL},
};
