/* gguf_arch.c - one row an architecture of GGUF files: its model type, its own keys, its own names of tensors. */
#include "model/gguf/gguf_translation.h"
#include "model/spec_read.h"

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
    {.name = "phi3", .model_type = "phi3", .partial_rope = true, .translate = phi3, .names = phi3_names},
    {.name = "gemma2",
     .model_type = "gemma2",
     .norms_hold_one = true,
     .tied = true,
     .translate = gemma2,
     .names = gemma_names},
    {.name = "gemma3", .model_type = "gemma3_text", .norms_hold_one = true, .translate = gemma3, .names = gemma_names},
    {.name = "gpt-oss", .experts = true, .model_type = "gpt_oss", .translate = gpt_oss, .names = gpt_oss_names},
    {NULL},
};
