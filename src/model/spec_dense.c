/* spec_dense.c - readers of the dense families; see spec_read.h. */
#include "model/spec_read.h"

#include <math.h>

static const char *const full_or_sliding[] = {"full_attention", "sliding_attention", NULL};

/* ---- Llama and its kin ---- */

enum status read_llama(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_flag(r, "mlp_bias", false, &r->spec->mlp_bias));
    return one_half_rope(r);
}

enum status read_mistral(struct spec_reader *r) {
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

enum status read_qwen2(struct spec_reader *r) {
    r->spec->qkv_bias = true;
    return read_qwen_layers(r);
}

enum status read_qwen3(struct spec_reader *r) {
    TRY(biases(r, false));
    return read_qwen_layers(r);
}

enum status read_diffllama(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    if (r->spec->n_heads % 2 || r->spec->n_kv_heads % 2)
        return fail(r->err, ERR_FORMAT, "%s: diffllama pairs its heads, so their numbers must be even", r->path);
    return one_half_rope(r);
}

enum status read_phi3(struct spec_reader *r) {
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
enum status read_gemma(struct spec_reader *r) {
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

enum status read_gemma2(struct spec_reader *r) {
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

enum status read_gemma3(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    bool given;
    int period, sliding, full;
    double local_theta, theta;
    TRY(read_gemma_common(r));
    TRY(read_gemma_scale(r));
    TRY(read_cap(r, "final_logit_softcapping", 0,
                 &s->final_softcap)); // attn_logit_softcapping is read by the class and not used
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

/* Layers whose attention differs: {"5": {"head_dim": 128, "num_key_value_heads": 1}}, as transformers writes it
 * from 5.10 on. */
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
                return fail(r->err, ERR_UNSUPPORTED, "%s: \"per_layer_config\" sets \"%s\", which is not supported",
                            r->path, name);
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
        return fail(r->err, ERR_FORMAT, "%s: \"num_kv_shared_layers\" is %d of %d layers", r->path, n_shared,
                    s->n_layers);
    int first = s->n_layers - n_shared;
    for (int l = first; l < s->n_layers; l++) {
        int source = first - 1;
        while (source >= 0 && s->layers[source].mixer != s->layers[l].mixer)
            source--;
        if (source < 0)
            return fail(r->err, ERR_FORMAT, "%s: layer %d shares a cache, but no layer before %d is of its kind",
                        r->path, l, first);
        if (s->layers[l].n_kv_heads != s->layers[source].n_kv_heads ||
            s->layers[l].head_dim != s->layers[source].head_dim)
            return fail(r->err, ERR_FORMAT, "%s: layer %d shares the cache of layer %d, whose heads are others",
                        r->path, l, source);
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

enum status read_gemma4(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    bool given, k_eq_v;
    const char *bidirectional;
    TRY(read_gemma_common(r));
    s->attention_scale = 1;
    TRY(read_cap(r, "final_logit_softcapping", 0, &s->final_softcap));
    TRY(read_dim(r, "sliding_window", 512, &s->sliding_window));
    TRY(jv_string_or(r->text, r->path, "use_bidirectional_attention", "vision", &bidirectional, r->err));
    if (strcmp(bidirectional, "vision") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"use_bidirectional_attention\" %s is not supported", r->path,
                    bidirectional);
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
    TRY(gemma4_ropes(r));
    return OK;
}
