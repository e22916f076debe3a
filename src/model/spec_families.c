/* spec_families.c - what each family reads beyond the common keys, and the defaults of its class.
 *
 * Defaults are those of transformers' configuration classes (5.x), checked against 5.23. */
#include "model/rope.h"
#include "model/spec_read.h"

#include <math.h>

static const char *const full_or_sliding[] = {"full_attention", "sliding_attention", NULL};
static const char *const full_or_linear[] = {"full_attention", "linear_attention", NULL};
static const char *const full_or_chunked[] = {"full_attention", "chunked_attention", NULL};

/* ---- what several families share ---- */

// One rope for all layers, from rope_parameters or rope_scaling.
static enum status one_rope(struct spec_reader *r, enum rope_pairing pairing, int head_dim) {
    double theta;
    int index;
    TRY(read_real(r, "rope_theta", r->family->theta, &theta));
    return add_rope(r, NULL, json_object_get(r->text, "rope_scaling"), theta, head_dim, pairing, &index);
}

static enum status one_half_rope(struct spec_reader *r) { return one_rope(r, ROPE_HALF, r->spec->head_dim); }

static void all_layers(struct spec_reader *r, enum mixer mixer) {
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].mixer = mixer;
}

// A window that, where it is given, every layer has.
static enum status window_on_all(struct spec_reader *r, int fallback) {
    TRY(read_optional(r, "sliding_window", fallback, &r->spec->sliding_window));
    if (r->spec->sliding_window)
        all_layers(r, MIX_SLIDING);
    return OK;
}

// sliding_window counts only with use_sliding_window.
static enum status window_if_used(struct spec_reader *r) {
    bool used;
    TRY(read_flag(r, "use_sliding_window", false, &used));
    TRY(read_optional(r, "sliding_window", 4096, &r->spec->sliding_window));
    if (!used)
        r->spec->sliding_window = 0;
    return OK;
}

static enum status biases(struct spec_reader *r, bool fallback) {
    TRY(read_flag(r, "attention_bias", fallback, &r->spec->qkv_bias));
    r->spec->o_bias = r->spec->qkv_bias;
    return OK;
}

static enum status refuse_flag(const struct spec_reader *r, const char *key) {
    bool on;
    TRY(read_flag(r, key, false, &on));
    return on ? fail(r->err, ERR_UNSUPPORTED, "%s: \"%s\" true is not supported for %s", r->path, key, r->spec->model_type) : OK;
}

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

/* ---- dense families ---- */

static enum status read_llama(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_flag(r, "mlp_bias", false, &r->spec->mlp_bias));
    return one_half_rope(r);
}

static enum status read_mistral(struct spec_reader *r) {
    layers_init(r);
    TRY(window_on_all(r, 4096));
    return one_half_rope(r);
}

// qwen2 and qwen3: layers from max_window_layers on slide, unless layer_types says which.
static enum status read_qwen_layers(struct spec_reader *r) {
    int first;
    bool given;
    layers_init(r);
    TRY(window_if_used(r));
    TRY(read_count(r, "max_window_layers", 28, &first));
    TRY(layers_from_types(r, full_or_sliding, &given));
    for (int l = first; !given && r->spec->sliding_window && l < r->spec->n_layers; l++)
        r->spec->layers[l].mixer = MIX_SLIDING;
    return one_half_rope(r);
}

static enum status read_qwen2(struct spec_reader *r) {
    r->spec->qkv_bias = true;
    return read_qwen_layers(r);
}

static enum status read_qwen3(struct spec_reader *r) {
    TRY(biases(r, false));
    return read_qwen_layers(r);
}

static enum status read_diffllama(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    if (r->spec->n_heads % 2 || r->spec->n_kv_heads % 2)
        return fail(r->err, ERR_FORMAT, "%s: diffllama pairs its heads, so their numbers must be even", r->path);
    return one_half_rope(r);
}

static enum status read_phi3(struct spec_reader *r) {
    layers_init(r);
    TRY(window_on_all(r, 0));
    return one_half_rope(r);
}

/* ---- Gemma ---- */

static enum status read_gemma_common(struct spec_reader *r) {
    layers_init(r);
    r->spec->embedding_scale = sqrt(r->spec->hidden_size);
    return biases(r, false);
}

// "gelu" in the first Gemma's files always meant the tanh form.
static enum status read_gemma(struct spec_reader *r) {
    TRY(read_gemma_common(r));
    r->spec->activation = ACT_GELU_TANH;
    TRY(refuse_flag(r, "use_bidirectional_attention"));
    return one_half_rope(r);
}

static enum status read_gemma_scale(struct spec_reader *r) {
    double scalar;
    TRY(read_real(r, "query_pre_attn_scalar", 256, &scalar));
    if (!(scalar > 0 && scalar <= 1e9))
        return fail(r->err, ERR_FORMAT, "%s: \"query_pre_attn_scalar\" is %g, it must be above 0", r->path, scalar);
    r->spec->attention_scale = pow(scalar, -0.5);
    return OK;
}

// Absent: `fallback`; null: none.
static enum status read_cap(struct spec_reader *r, const char *key, double fallback, double *out) {
    TRY(read_real(r, key, json_is_null(json_object_get(r->text, key)) ? 0 : fallback, out));
    if (!(*out >= 0 && *out <= 1e9))
        return fail(r->err, ERR_FORMAT, "%s: \"%s\" is %g, it must be at least 0", r->path, key, *out);
    return OK;
}

static enum status read_gemma2(struct spec_reader *r) {
    bool given;
    TRY(read_gemma_common(r));
    TRY(read_gemma_scale(r));
    TRY(read_cap(r, "attn_logit_softcapping", 50, &r->spec->attention_softcap));
    TRY(read_cap(r, "final_logit_softcapping", 30, &r->spec->final_softcap));
    TRY(read_optional(r, "sliding_window", 4096, &r->spec->sliding_window));
    TRY(refuse_flag(r, "use_bidirectional_attention"));
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, 2, MIX_SLIDING);
    return one_half_rope(r);
}

// Rope 0 is that of sliding layers, rope 1 that of full ones.
static void ropes_by_mixer(struct spec_reader *r, int sliding, int full) {
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].rope = r->spec->layers[l].mixer == MIX_SLIDING ? sliding : full;
}

static enum status read_gemma3(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    bool given;
    int period, sliding, full;
    double local_theta, theta;
    TRY(read_gemma_common(r));
    TRY(read_gemma_scale(r));
    TRY(read_cap(r, "attn_logit_softcapping", 0, &s->attention_softcap));
    TRY(read_cap(r, "final_logit_softcapping", 0, &s->final_softcap));
    TRY(read_optional(r, "sliding_window", 4096, &s->sliding_window));
    TRY(refuse_flag(r, "use_bidirectional_attention"));
    TRY(read_dim(r, "sliding_window_pattern", 6, &period));
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, period, MIX_SLIDING);
    TRY(read_real(r, "rope_local_base_freq", 10000, &local_theta));
    TRY(read_real(r, "rope_theta", r->family->theta, &theta));
    TRY(add_rope(r, "sliding_attention", NULL, local_theta, s->head_dim, ROPE_HALF, &sliding));
    TRY(add_rope(r, "full_attention", json_object_get(r->text, "rope_scaling"), theta, s->head_dim, ROPE_HALF, &full));
    ropes_by_mixer(r, sliding, full);
    return OK;
}

/* Layers whose attention differs: {"5": {"head_dim": 128, "num_key_value_heads": 1}}, as transformers writes it from 5.10 on. */
static enum status gemma4_overrides(struct spec_reader *r, json_t *overrides) {
    const char *key;
    json_t *layer, *value;
    json_object_foreach(overrides, key, layer) {
        char *end;
        long l = strtol(key, &end, 10);
        if (*end || end == key || l < 0 || l >= r->spec->n_layers)
            return fail(r->err, ERR_FORMAT, "%s: \"per_layer_config\" names layer \"%s\"", r->path, key);
        const char *name;
        json_object_foreach(layer, name, value) {
            int *out = strcmp(name, "head_dim") == 0              ? &r->spec->layers[l].head_dim
                       : strcmp(name, "num_key_value_heads") == 0 ? &r->spec->layers[l].n_kv_heads
                                                                  : NULL;
            if (!out)
                return fail(r->err, ERR_UNSUPPORTED, "%s: \"per_layer_config\" sets \"%s\", which is not supported", r->path, name);
            int64_t n;
            TRY(jv_int(layer, r->path, name, 1, SPEC_MAX_DIM, &n, r->err));
            *out = (int)n;
        }
    }
    return OK;
}

static enum status gemma4_heads(struct spec_reader *r, bool k_eq_v) {
    json_t *overrides;
    int global_head_dim, global_kv_heads;
    TRY(jv_object_or_null(r->text, r->path, "per_layer_config", &overrides, r->err));
    if (overrides)
        return gemma4_overrides(r, overrides);
    TRY(read_dim(r, "global_head_dim", 512, &global_head_dim));
    TRY(read_count(r, "num_global_key_value_heads", 0, &global_kv_heads));
    for (int l = 0; l < r->spec->n_layers; l++) {
        struct layer_spec *layer = &r->spec->layers[l];
        if (layer->mixer != MIX_FULL)
            continue;
        layer->head_dim = global_head_dim;
        if (k_eq_v && global_kv_heads)
            layer->n_kv_heads = global_kv_heads;
    }
    return OK;
}

/* The last n_shared layers read the cache of the last layer of their kind before them. */
static enum status gemma4_sharing(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    int n_shared;
    bool double_wide;
    TRY(read_count(r, "num_kv_shared_layers", 0, &n_shared));
    TRY(read_flag(r, "use_double_wide_mlp", false, &double_wide));
    if (n_shared >= s->n_layers)
        return fail(r->err, ERR_FORMAT, "%s: \"num_kv_shared_layers\" is %d of %d layers", r->path, n_shared, s->n_layers);
    int first = s->n_layers - n_shared;
    for (int l = first; l < s->n_layers; l++) {
        int source = first - 1;
        while (source >= 0 && s->layers[source].mixer != s->layers[l].mixer)
            source--;
        if (source < 0)
            return fail(r->err, ERR_FORMAT, "%s: layer %d shares a cache, but no layer before %d is of its kind", r->path, l, first);
        s->layers[l].kv_source = source;
        if (double_wide)
            s->layers[l].ffn_size = 2 * s->ffn_size;
    }
    return OK;
}

static enum status gemma4_experts(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    bool on;
    TRY(read_flag(r, "enable_moe_block", false, &on));
    if (!on)
        return OK;
    TRY(jv_int(r->text, r->path, "num_experts", 1, SPEC_MAX_DIM, &(int64_t){0}, r->err)); // has no default
    TRY(read_dim(r, "num_experts", 1, &m->n_experts));
    TRY(read_dim(r, "top_k_experts", 1, &m->top_k));
    TRY(read_dim(r, "moe_intermediate_size", 1, &m->ffn_size));
    m->routing = ROUTE_SOFTMAX;
    m->renormalise = true;
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].moe = true; // beside the dense FFN
    return OK;
}

static enum status gemma4_ropes(struct spec_reader *r) {
    const struct model_spec *s = r->spec;
    int full_dim = s->head_dim, sliding, full;
    for (int l = 0; l < s->n_layers; l++)
        if (s->layers[l].mixer == MIX_FULL)
            full_dim = s->layers[l].head_dim;
    for (int l = 0; l < s->n_layers; l++)
        if (s->layers[l].head_dim != (s->layers[l].mixer == MIX_FULL ? full_dim : s->head_dim))
            return fail(r->err, ERR_UNSUPPORTED, "%s: layers of one kind have different \"head_dim\"", r->path);
    json_t *proportional = json_pack("{s:s, s:f}", "rope_type", "proportional", "partial_rotary_factor", 0.25);
    enum status st = add_rope(r, "sliding_attention", NULL, 10000, s->head_dim, ROPE_HALF, &sliding);
    if (st == OK)
        st = add_rope(r, "full_attention", proportional, 1000000, full_dim, ROPE_HALF, &full);
    json_decref(proportional);
    TRY(st);
    ropes_by_mixer(r, sliding, full);
    return OK;
}

static enum status read_gemma4(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    bool given, k_eq_v;
    const char *bidirectional;
    TRY(read_gemma_common(r));
    s->attention_scale = 1;
    TRY(read_cap(r, "final_logit_softcapping", 0, &s->final_softcap));
    TRY(read_dim(r, "sliding_window", 512, &s->sliding_window));
    TRY(jv_string_or(r->text, r->path, "use_bidirectional_attention", "vision", &bidirectional, r->err));
    if (strcmp(bidirectional, "vision") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"use_bidirectional_attention\" %s is not supported", r->path, bidirectional);
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, 6, MIX_SLIDING);
    s->layers[s->n_layers - 1].mixer = MIX_FULL; // whatever the list says
    TRY(read_flag(r, "attention_k_eq_v", false, &k_eq_v));
    for (int l = 0; l < s->n_layers; l++)
        s->layers[l].v_from_k = k_eq_v && s->layers[l].mixer == MIX_FULL;
    TRY(gemma4_heads(r, k_eq_v));
    TRY(gemma4_sharing(r));
    TRY(gemma4_experts(r));
    TRY(read_optional(r, "hidden_size_per_layer_input", 256, &s->per_layer_input_size));
    TRY(read_dim(r, "vocab_size_per_layer_input", 262144, &s->per_layer_vocab_size));
    if (!s->per_layer_input_size)
        s->per_layer_vocab_size = 0;
    return gemma4_ropes(r);
}

/* ---- mixtures of experts ---- */

static enum status read_mixtral(struct spec_reader *r) {
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

static enum status read_qwen2_moe(struct spec_reader *r) {
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

static enum status read_qwen3_moe(struct spec_reader *r) {
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

static enum status read_gpt_oss(struct spec_reader *r) {
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
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"swiglu_alpha\" must be 1.702 and \"swiglu_limit\" above 0", r->path);
    if (quant_of(r->spec->quant, "model.layers.0.mlp.experts").scheme == QUANT_MXFP4 && (r->spec->hidden_size % 32 || m->ffn_size % 32))
        return fail(r->err, ERR_FORMAT, "%s: \"hidden_size\" and \"intermediate_size\" must be multiples of 32 for mxfp4", r->path);
    json_t *yarn = json_pack("{s:s, s:f, s:f, s:f, s:b, s:i}", "rope_type", "yarn", "factor", 32.0, "beta_fast", 32.0, "beta_slow", 1.0,
                             "truncate", 0, "original_max_position_embeddings", 4096);
    const json_t *scaling = json_object_get(r->text, "rope_scaling");
    double theta;
    int index;
    enum status st = read_real(r, "rope_theta", r->family->theta, &theta);
    if (st == OK)
        st = add_rope(r, NULL, scaling && !json_is_null(scaling) ? scaling : yarn, theta, r->spec->head_dim, ROPE_HALF, &index);
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
    TRY(refuse_flag(r, "attention_bias"));
    TRY(read_optional(r, "q_lora_rank", 1536, &m->q_rank));
    TRY(read_dim(r, "kv_lora_rank", 512, &m->kv_rank));
    TRY(read_dim(r, "qk_nope_head_dim", 128, &m->nope_dim));
    TRY(read_dim(r, "qk_rope_head_dim", 64, &m->rope_dim));
    TRY(read_dim(r, "v_head_dim", 128, &m->v_dim));
    TRY(rope_softmax_factor(rope_parameters(r, NULL), r->path, &factor, r->err));
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

static enum status read_deepseek_experts(struct spec_reader *r, int first_dense, int n_shared, int top_k, int ffn_size) {
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

static enum status read_deepseek_v2(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    const char *method, *scoring;
    TRY(read_latent(r, false));
    TRY(read_n_experts(r, "n_routed_experts", "num_experts", 64));
    TRY(read_deepseek_experts(r, 0, 2, 6, 1407));
    TRY(jv_string_or(r->text, r->path, "topk_method", "greedy", &method, r->err));
    TRY(jv_string_or(r->text, r->path, "scoring_func", "softmax", &scoring, r->err));
    if (strcmp(scoring, "softmax") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"scoring_func\" %s is not supported for deepseek_v2", r->path, scoring);
    m->routing = ROUTE_SOFTMAX;
    if (strcmp(method, "greedy") == 0)
        return OK;
    if (strcmp(method, "group_limited_greedy") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"topk_method\" %s is not supported", r->path, method);
    m->routing = ROUTE_SOFTMAX_GROUP;
    TRY(read_dim(r, "n_group", 1, &m->n_groups));
    return read_dim(r, "topk_group", 1, &m->top_groups);
}

static enum status read_deepseek_v3(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    const char *method, *scoring;
    m->scale = 2.5;
    TRY(read_latent(r, true));
    TRY(read_n_experts(r, "n_routed_experts", "num_local_experts", 256));
    TRY(read_deepseek_experts(r, 3, 1, 8, 2048));
    TRY(jv_string_or(r->text, r->path, "topk_method", "noaux_tc", &method, r->err));
    TRY(jv_string_or(r->text, r->path, "scoring_func", "sigmoid", &scoring, r->err));
    if (strcmp(method, "noaux_tc") != 0 || strcmp(scoring, "sigmoid") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: routing by \"topk_method\" %s and \"scoring_func\" %s is not supported", r->path, method,
                    scoring);
    m->routing = ROUTE_SIGMOID;
    TRY(read_flag(r, "norm_topk_prob", true, &m->renormalise));
    TRY(read_dim(r, "n_group", 8, &m->n_groups));
    TRY(read_dim(r, "topk_group", 4, &m->top_groups));
    if (m->n_experts / m->n_groups < 2)
        return fail(r->err, ERR_FORMAT, "%s: \"n_group\" %d leaves groups of fewer than 2 experts", r->path, m->n_groups);
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
    return one_half_rope(r);
}

static enum status read_qwen3_next(struct spec_reader *r) {
    TRY(read_hybrid(r));
    TRY(read_flag(r, "norm_topk_prob", true, &r->spec->moe.renormalise));
    TRY(read_qwen_experts(r, 512, 10, 512, 512));
    return experts_by_step(r);
}

static enum status read_qwen3_5(struct spec_reader *r) { return read_hybrid(r); }

static enum status read_qwen3_5_moe(struct spec_reader *r) {
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

static enum status read_llama4(struct spec_reader *r) {
    int dense_ffn_size;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_dim(r, "intermediate_size_mlp", 16384, &dense_ffn_size));
    TRY(llama4_layers(r));
    TRY(llama4_experts(r, dense_ffn_size));
    return one_rope(r, ROPE_INTERLEAVED, r->spec->head_dim);
}

/* ---- the table ---- */

#define SILU "hidden_act", "silu"
#define GELU "hidden_activation", "gelu_pytorch_tanh"

// clang-format off
static const struct spec_family families[] = {
    // type           class          vocab   hidden  ffn    layers heads kv  hd   max_pos  eps    theta    partial  act  tied   bos eos    pad
    {"llama",        "Llama",        32000,  4096,  11008,  32,  32,   0,   0,    2048, 1e-6,    10000, 1,    SILU, false,  1,     2,    -1, read_llama},
    {"mistral",      "Mistral",      32000,  4096,  14336,  32,  32,   8,   0,  131072, 1e-6,    10000, 1,    SILU, false,  1,     2,    -1, read_mistral},
    {"qwen2",        "Qwen2",       151936,  4096,  22016,  32,  32,  32,   0,   32768, 1e-6,    10000, 1,    SILU, false, -1,    -1,    -1, read_qwen2},
    {"qwen3",        "Qwen3",       151936,  4096,  22016,  32,  32,  32, 128,   32768, 1e-6,    10000, 1,    SILU, false, -1,    -1,    -1, read_qwen3},
    {"diffllama",    "DiffLlama",    32000,  2048,   8192,  16,  32,   0,   0,    2048, 1e-5,    10000, 1,    SILU, false,  1,     2,    -1, read_diffllama},
    {"phi3",         "Phi3",         32064,  3072,   8192,  32,  32,   0,   0,    4096, 1e-5,    10000, 1,    SILU, false,  1, 32000, 32000, read_phi3},
    {"gemma",        "Gemma",       256000,  3072,  24576,  28,  16,  16, 256,    8192, 1e-6,    10000, 1,    "hidden_act", "gelu_pytorch_tanh", true, 2, 1, 0, read_gemma},
    {"gemma2",       "Gemma2",      256000,  2304,   9216,  26,   8,   4, 256,    8192, 1e-6,    10000, 1,    GELU, true,   2,     1,     0, read_gemma2},
    {"gemma3_text",       "Gemma3",      262208,  2304,   9216,  26,   8,   4, 256,  131072, 1e-6,  1000000, 1,    GELU, true,   2,     1,     0, read_gemma3},
    {"gemma4_text",       "Gemma4",      262144,  2304,   9216,  30,   8,   4, 256,  131072, 1e-6,  1000000, 1,    GELU, true,   2,     1,     0, read_gemma4},
    {"mixtral",      "Mixtral",      32000,  4096,  14336,  32,  32,   8,   0,  131072, 1e-5,  1000000, 1,    SILU, false,  1,     2,    -1, read_mixtral},
    {"qwen2_moe",    "Qwen2Moe",    151936,  2048,   5632,  24,  16,  16,   0,   32768, 1e-6,    10000, 1,    SILU, false, -1,    -1,    -1, read_qwen2_moe},
    {"qwen3_moe",    "Qwen3Moe",    151936,  2048,   6144,  24,  32,   4,   0,   32768, 1e-6,    10000, 1,    SILU, false, -1,    -1,    -1, read_qwen3_moe},
    {"gpt_oss",      "GptOss",      201088,  2880,   2880,  36,  64,   8,  64,  131072, 1e-5,   150000, 1,    SILU, false, -1,    -1,    -1, read_gpt_oss},
    {"deepseek_v2",  "DeepseekV2",  102400,  4096,  11008,  32,  32,   0,   0,    2048, 1e-6,    10000, 1,    SILU, false,  1,     2,    -1, read_deepseek_v2},
    {"deepseek_v3",  "DeepseekV3",  129280,  7168,  18432,  61, 128, 128,   0,    4096, 1e-6,    10000, 1,    SILU, false,  0,     1,    -1, read_deepseek_v3},
    {"kimi_k2",      "DeepseekV3",  129280,  7168,  18432,  61, 128, 128,   0,    4096, 1e-6,    10000, 1,    SILU, false,  0,     1,    -1, read_deepseek_v3},
    {"qwen3_next",   "Qwen3Next",   151936,  2048,   5632,  48,  16,   2, 256,   32768, 1e-6,    10000, 0.25, SILU, false, -1,    -1,    -1, read_qwen3_next},
    {"qwen3_5_text",      "Qwen3_5",     248320,  4096,  12288,  32,  16,   4, 256,   32768, 1e-6,    10000, 0.25, SILU, false, -1,    -1,    -1, read_qwen3_5},
    {"qwen3_5_moe_text",  "Qwen3_5Moe",  248320,  2048,   5632,  40,  16,   2, 256,   32768, 1e-6,    10000, 0.25, SILU, false, -1,    -1,    -1, read_qwen3_5_moe},
    {"llama4_text",       "Llama4",      202048,  5120,   8192,  48,  40,   8, 128,  131072, 1e-5,   500000, 1,    SILU, false,  1,     2,    -1, read_llama4},
};
// clang-format on

const struct spec_family *spec_family_find(const char *model_type) {
    // a text_config may leave its type out, and then the wrapper's stands for it
    static const char *const aliases[][2] = {
        {"gemma3", "gemma3_text"},   {"gemma4", "gemma4_text"}, {"gemma4_unified_text", "gemma4_text"}, {"gemma4_unified", "gemma4_text"},
        {"qwen3_5", "qwen3_5_text"}, {"llama4", "llama4_text"}, {"qwen3_5_moe", "qwen3_5_moe_text"},    {"kimi_k25", "kimi_k2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (strcmp(model_type, aliases[i][0]) == 0)
            model_type = aliases[i][1];
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strcmp(model_type, families[i].model_type) == 0)
            return &families[i];
    return NULL;
}
