/* spec_experts.c - readers of the families with experts, latent attention or recurrent layers; see spec_read.h. */
#include "model/rope.h"
#include "model/spec_read.h"

#include <math.h>

static const char *const full_or_sliding[] = {"full_attention", "sliding_attention", NULL};
static const char *const full_or_linear[] = {"full_attention", "linear_attention", NULL};
static const char *const full_or_chunked[] = {"full_attention", "chunked_attention", NULL};

/* ---- mixtures of experts ---- */

// Experts on every layer, in place of the dense FFN.
static void experts_everywhere(struct spec_reader *r) {
    for (int l = 0; l < r->spec->n_layers; l++) {
        r->spec->layers[l].moe = true;
        r->spec->layers[l].ffn_size = 0;
    }
}

/* Layers listed in mlp_only_layers, and those between the steps, keep the dense FFN. */
static enum status experts_by_step(struct spec_reader *r) {
    int step;
    json_t *dense, *value;
    size_t i;
    TRY(read_dim(r, "decoder_sparse_step", 1, &step));
    TRY(jv_array_or_null(r->text, r->path, "mlp_only_layers", &dense, r->err));
    for (int l = 0; l < r->spec->n_layers; l++) {
        bool moe = (l + 1) % step == 0;
        json_array_foreach(dense, i, value) moe = moe && !(json_is_integer(value) && json_integer_value(value) == l);
        r->spec->layers[l].moe = moe;
        if (moe)
            r->spec->layers[l].ffn_size = 0;
    }
    return OK;
}

/* The key of the newest files first; older ones wrote another. */
static enum status read_n_experts(struct spec_reader *r, const char *key, const char *other, int fallback) {
    bool absent = !json_object_get(r->text, key);
    return read_dim(r, absent ? other : key, fallback, &r->spec->moe.n_experts);
}

static enum status read_qwen_experts(struct spec_reader *r, int n_experts, int top_k, int ffn_size, int shared) {
    struct moe_spec *m = &r->spec->moe;
    m->routing = ROUTE_SOFTMAX;
    TRY(read_n_experts(r, "num_experts", "num_local_experts", n_experts));
    TRY(read_dim(r, "num_experts_per_tok", top_k, &m->top_k));
    TRY(read_dim(r, "moe_intermediate_size", ffn_size, &m->ffn_size));
    return read_count(r, "shared_expert_intermediate_size", shared, &m->shared_ffn_size);
}

enum status read_mixtral(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    layers_init(r);
    experts_everywhere(r);
    m->routing = ROUTE_SOFTMAX;
    m->renormalise = true;
    m->ffn_size = r->spec->ffn_size;
    TRY(read_n_experts(r, "num_local_experts", "num_experts", 8));
    TRY(read_dim(r, "num_experts_per_tok", 2, &m->top_k));
    TRY(window_on_all(r, 0));
    return one_half_rope(r);
}

enum status read_qwen2_moe(struct spec_reader *r) {
    bool given;
    int n_windowed;
    layers_init(r);
    TRY(read_flag(r, "qkv_bias", true, &r->spec->qkv_bias));
    TRY(window_if_used(r));
    TRY(read_count(r, "max_window_layers", 28, &n_windowed));
    TRY(layers_from_types(r, full_or_sliding, &given));
    for (int l = 0; !given && r->spec->sliding_window && l < MIN(n_windowed, r->spec->n_layers); l += 2)
        r->spec->layers[l].mixer = MIX_SLIDING;
    TRY(read_flag(r, "norm_topk_prob", false, &r->spec->moe.renormalise));
    TRY(read_qwen_experts(r, 60, 4, 1408, 5632));
    TRY(experts_by_step(r));
    return one_half_rope(r);
}

enum status read_qwen3_moe(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    TRY(window_if_used(r));
    if (r->spec->sliding_window)
        all_layers(r, MIX_SLIDING);
    TRY(read_flag(r, "norm_topk_prob", false, &r->spec->moe.renormalise));
    TRY(read_qwen_experts(r, 128, 8, 768, 0));
    TRY(experts_by_step(r));
    return one_half_rope(r);
}

enum status read_gpt_oss(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    double alpha;
    bool given;
    layers_init(r);
    TRY(biases(r, true));
    TRY(read_dim(r, "sliding_window", 128, &r->spec->sliding_window));
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, 2, MIX_SLIDING);
    experts_everywhere(r);
    m->routing = ROUTE_SOFTMAX_TOPK;
    m->ffn_size = r->spec->ffn_size;
    TRY(read_n_experts(r, "num_local_experts", "num_experts", 128));
    TRY(read_dim(r, "num_experts_per_tok", 4, &m->top_k));
    r->spec->activation = ACT_SWIGLU_CLAMPED;
    TRY(read_real(r, "swiglu_limit", 7, &r->spec->swiglu_limit));
    TRY(read_real(r, "swiglu_alpha", 1.702, &alpha));
    if (alpha != 1.702 || !(r->spec->swiglu_limit > 0))
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"swiglu_alpha\" must be 1.702 and \"swiglu_limit\" above 0",
                    r->path);
    if (quant_of(r->spec->quant, "model.layers.0.mlp.experts").scheme == QUANT_MXFP4 &&
        (r->spec->hidden_size % 32 || m->ffn_size % 32))
        return fail(r->err, ERR_FORMAT,
                    "%s: \"hidden_size\" and \"intermediate_size\" must be multiples of 32 for mxfp4", r->path);
    json_t *yarn = json_pack("{s:s, s:f, s:f, s:f, s:b, s:i}", "rope_type", "yarn", "factor", 32.0, "beta_fast", 32.0,
                             "beta_slow", 1.0, "truncate", 0, "original_max_position_embeddings", 4096);
    double theta;
    int index;
    enum status st = read_real(r, "rope_theta", r->family->theta, &theta);
    if (st == OK)
        st = add_rope(r, NULL, yarn, theta, r->spec->head_dim, ROPE_HALF, &index);
    json_decref(yarn);
    return st;
}

/* ---- DeepSeek ---- */

static enum status read_latent(struct spec_reader *r, bool v3) {
    struct model_spec *s = r->spec;
    struct mla_spec *m = &s->mla;
    double factor;
    bool interleaved;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_optional(r, "q_lora_rank", 1536, &m->q_rank));
    TRY(read_dim(r, "kv_lora_rank", 512, &m->kv_rank));
    TRY(read_dim(r, "qk_nope_head_dim", 128, &m->nope_dim));
    TRY(read_dim(r, "qk_rope_head_dim", 64, &m->rope_dim));
    TRY(read_dim(r, "v_head_dim", 128, &m->v_dim));
    TRY(rope_softmax_factor(rope_parameters(r), r->path, &factor, r->err));
    s->head_dim = m->nope_dim + m->rope_dim;
    s->n_kv_heads = s->n_heads;
    s->attention_scale = pow(s->head_dim, -0.5) * factor;
    for (int l = 0; l < s->n_layers; l++) {
        s->layers[l].mixer = MIX_LATENT;
        s->layers[l].head_dim = s->head_dim;
        s->layers[l].n_kv_heads = s->n_kv_heads;
    }
    TRY(read_flag(r, "rope_interleave", true, &interleaved));
    return one_rope(r, v3 && !interleaved ? ROPE_HALF : ROPE_INTERLEAVED, m->rope_dim);
}

static enum status read_deepseek_experts(struct spec_reader *r, int first_dense, int n_shared, int top_k,
                                         int ffn_size) {
    struct model_spec *s = r->spec;
    struct moe_spec *m = &s->moe;
    int frequency, shared;
    double scale;
    TRY(read_count(r, "first_k_dense_replace", first_dense, &s->first_dense_layers));
    TRY(read_dim(r, "moe_layer_freq", 1, &frequency));
    if (frequency != 1)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"moe_layer_freq\" is %d, only 1 is supported", r->path, frequency);
    TRY(read_dim(r, "num_experts_per_tok", top_k, &m->top_k));
    TRY(read_dim(r, "moe_intermediate_size", ffn_size, &m->ffn_size));
    TRY(read_optional(r, "n_shared_experts", n_shared, &shared));
    if ((int64_t)shared * m->ffn_size > SPEC_MAX_DIM)
        return fail(r->err, ERR_FORMAT, "%s: \"n_shared_experts\" is %d", r->path, shared);
    m->shared_ffn_size = shared * m->ffn_size;
    TRY(read_real(r, "routed_scaling_factor", (double)m->scale, &scale));
    m->scale = (float)scale;
    for (int l = s->first_dense_layers; l < s->n_layers; l++) {
        s->layers[l].moe = true;
        s->layers[l].ffn_size = 0;
    }
    return OK;
}

enum status read_deepseek_v2(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    const char *method, *scoring;
    TRY(read_latent(r, false));
    TRY(read_n_experts(r, "n_routed_experts", "num_experts", 64));
    TRY(read_deepseek_experts(r, 0, 2, 6, 1407));
    TRY(jv_string_or(r->text, r->path, "topk_method", "greedy", &method, r->err));
    TRY(jv_string_or(r->text, r->path, "scoring_func", "softmax", &scoring, r->err));
    if (strcmp(scoring, "softmax") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"scoring_func\" %s is not supported for deepseek_v2", r->path,
                    scoring);
    m->routing = ROUTE_SOFTMAX;
    if (strcmp(method, "greedy") == 0)
        return OK;
    if (strcmp(method, "group_limited_greedy") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"topk_method\" %s is not supported", r->path, method);
    m->routing = ROUTE_SOFTMAX_GROUP;
    TRY(read_dim(r, "n_group", 1, &m->n_groups));
    return read_dim(r, "topk_group", 1, &m->top_groups);
}

enum status read_deepseek_v3(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    const char *method, *scoring;
    m->scale = 2.5;
    TRY(read_latent(r, true));
    TRY(read_n_experts(r, "n_routed_experts", "num_local_experts", 256));
    TRY(read_deepseek_experts(r, 3, 1, 8, 2048));
    TRY(jv_string_or(r->text, r->path, "topk_method", "noaux_tc", &method, r->err));
    TRY(jv_string_or(r->text, r->path, "scoring_func", "sigmoid", &scoring, r->err));
    if (strcmp(method, "noaux_tc") != 0 || strcmp(scoring, "sigmoid") != 0)
        return fail(r->err, ERR_UNSUPPORTED,
                    "%s: routing by \"topk_method\" %s and \"scoring_func\" %s is not supported", r->path, method,
                    scoring);
    m->routing = ROUTE_SIGMOID;
    TRY(read_flag(r, "norm_topk_prob", true, &m->renormalise));
    TRY(read_dim(r, "n_group", 8, &m->n_groups));
    TRY(read_dim(r, "topk_group", 4, &m->top_groups));
    if (m->n_experts / m->n_groups < 2)
        return fail(r->err, ERR_FORMAT, "%s: \"n_group\" %d leaves groups of fewer than 2 experts", r->path,
                    m->n_groups);
    return read_count(r, "num_nextn_predict_layers", 1, &r->spec->n_mtp_layers);
}

/* ---- hybrids with gated DeltaNet ---- */

static enum status read_hybrid(struct spec_reader *r) {
    struct delta_spec *d = &r->spec->delta;
    bool given;
    int period;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_dim(r, "linear_conv_kernel_dim", 4, &d->conv_kernel));
    TRY(read_dim(r, "linear_key_head_dim", 128, &d->key_dim));
    TRY(read_dim(r, "linear_value_head_dim", 128, &d->value_dim));
    TRY(read_dim(r, "linear_num_key_heads", 16, &d->n_key_heads));
    TRY(read_dim(r, "linear_num_value_heads", 32, &d->n_value_heads));
    TRY(read_dim(r, "full_attention_interval", 4, &period));
    TRY(layers_from_types(r, full_or_linear, &given));
    if (!given)
        layers_by_period(r, period, MIX_DELTA);
    bool gate;
    TRY(read_flag(r, "attn_output_gate", true, &gate));
    if (!gate)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"attn_output_gate\" false is not supported", r->path);
    TRY(read_count(r, "mtp_num_hidden_layers", 0, &r->spec->n_mtp_layers));
    if (r->spec->activation != ACT_SILU) // which the convolution would take over
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"hidden_act\" must be silu for %s", r->path, r->spec->model_type);
    return one_half_rope(r);
}

enum status read_qwen3_next(struct spec_reader *r) {
    TRY(read_hybrid(r));
    TRY(read_flag(r, "norm_topk_prob", true, &r->spec->moe.renormalise));
    TRY(read_qwen_experts(r, 512, 10, 512, 512));
    return experts_by_step(r);
}

enum status read_qwen3_5(struct spec_reader *r) { return read_hybrid(r); }

enum status read_qwen3_5_moe(struct spec_reader *r) {
    TRY(read_hybrid(r));
    r->spec->moe.renormalise = true;
    TRY(read_qwen_experts(r, 256, 8, 512, 512));
    experts_everywhere(r);
    return OK;
}

/* ---- Llama 4 ---- */

// moe_layers lists them; without it every step-th layer.
static enum status llama4_experts(struct spec_reader *r, int dense_ffn_size) {
    struct model_spec *s = r->spec;
    json_t *list, *value;
    size_t i;
    int step;
    TRY(read_dim(r, "interleave_moe_layer_step", 1, &step));
    TRY(jv_array_or_null(r->text, r->path, "moe_layers", &list, r->err));
    for (int l = 0; l < s->n_layers; l++) {
        bool moe = !list && (l + 1) % step == 0;
        json_array_foreach(list, i, value) moe = moe || (json_is_integer(value) && json_integer_value(value) == l);
        s->layers[l].moe = moe;
        s->layers[l].ffn_size = moe ? 0 : dense_ffn_size;
    }
    s->moe.ffn_size = s->moe.shared_ffn_size = s->ffn_size;
    s->moe.routing = ROUTE_SIGMOID;
    TRY(read_n_experts(r, "num_local_experts", "num_experts", 16));
    return read_dim(r, "num_experts_per_tok", 1, &s->moe.top_k);
}

// Layers whose entry in no_rope_layers is 0 see everything and have no rope; the others see their chunk.
static enum status llama4_layers(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    json_t *list;
    bool given;
    int interval;
    TRY(read_dim(r, "no_rope_layer_interval", 4, &interval));
    TRY(jv_array_or_null(r->text, r->path, "no_rope_layers", &list, r->err));
    if (json_array_size(list) && json_array_size(list) != (size_t)s->n_layers)
        return fail(r->err, ERR_FORMAT, "%s: \"no_rope_layers\" has %zu entries, \"num_hidden_layers\" is %d", r->path,
                    json_array_size(list), s->n_layers);
    for (int l = 0; l < s->n_layers; l++) {
        const json_t *entry = json_array_get(list, (size_t)l);
        bool rope = entry ? json_integer_value(entry) != 0 : (l + 1) % interval != 0;
        s->layers[l].rope = rope ? 0 : -1;
        s->layers[l].mixer = rope ? MIX_CHUNKED : MIX_FULL;
    }
    TRY(layers_from_types(r, full_or_chunked, &given));
    return read_dim(r, "attention_chunk_size", 8192, &s->attention_chunk);
}

enum status read_llama4(struct spec_reader *r) {
    int dense_ffn_size;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_dim(r, "intermediate_size_mlp", 16384, &dense_ffn_size));
    TRY(llama4_layers(r));
    TRY(llama4_experts(r, dense_ffn_size));
    return one_rope(r, ROPE_INTERLEAVED, r->spec->head_dim);
}
