/* outlines.c - models that gyre describes but does not run: their tensors by name and shape, for `gyre info`.
 *
 * A family moves to a page of its own when it can be recorded and checked against its reference. */
#include "model/families/family.h"

#include <stdio.h>

/* ---- what config.json says ---- */

// "gelu" in the first Gemma's files always meant the tanh form.
static enum status read_gemma(struct spec_reader *r) {
    TRY(read_gemma_common(r));
    r->spec->activation = ACT_GELU_TANH;
    TRY(refuse_flag(r, "use_bidirectional_attention"));
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

// Positions have a table of their own, max_position_embeddings long.
static enum status read_gpt2(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    const json_t *inner = json_object_get(r->text, "intermediate_size");
    if (!inner || json_is_null(inner))
        TRY(read_dim(r, "intermediate_size", MIN(4 * s->hidden_size, SPEC_MAX_DIM), &s->ffn_size));
    layers_init(r);
    s->qkv_bias = s->o_bias = s->mlp_bias = true;
    for (int l = 0; l < s->n_layers; l++)
        s->layers[l].rope = -1;
    return OK;
}

// intermediate_size counts the two halves of the gated FFN.
static enum status read_qwen(struct spec_reader *r) {
    r->spec->ffn_size = MAX(r->spec->ffn_size / 2, 1);
    layers_init(r);
    r->spec->qkv_bias = true;
    return one_half_rope(r);
}

static const char *const gpt2_keys[][2] = {{"n_embd", "hidden_size"},
                                           {"n_layer", "num_hidden_layers"},
                                           {"n_head", "num_attention_heads"},
                                           {"n_inner", "intermediate_size"},
                                           {"n_positions", "max_position_embeddings"},
                                           {"layer_norm_epsilon", "rms_norm_eps"},
                                           {NULL, NULL}};
static const char *const qwen_keys[][2] = {{"layer_norm_epsilon", "rms_norm_eps"},
                                           {"rotary_emb_base", "rope_theta"},
                                           {"kv_channels", "head_dim"},
                                           {NULL, NULL}};

static const struct model_type gemma_types[] = {
    {"gemma", "Gemma", .vocab = 256000, .hidden = 3072, .ffn = 24576, .layers = 28, .heads = 16, .kv_heads = 16,
     .head_dim = 256, .max_positions = 8192, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act",
     .activation = "gelu_pytorch_tanh", .tied = true, .bos = 2, .eos = 1, .pad = 0, .read = read_gemma},
    {NULL},
};
static const struct model_type qwen2_moe_types[] = {
    {"qwen2_moe", "Qwen2Moe", .vocab = 151936, .hidden = 2048, .ffn = 5632, .layers = 24, .heads = 16, .kv_heads = 16,
     .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu",
     .bos = -1, .eos = -1, .pad = -1, .read = read_qwen2_moe},
    {NULL},
};
static const struct model_type gpt2_types[] = {
    {"gpt2", "GPT2", .vocab = 50257, .hidden = 768, .ffn = 3072, .layers = 12, .heads = 12, .max_positions = 1024,
     .norm_eps = 1e-5, .theta = 10000, .activation_key = "activation_function", .activation = "gelu_new", .tied = true,
     .bos = 50256, .eos = 50256, .pad = -1, .read = read_gpt2, .renames = gpt2_keys},
    {NULL},
};
static const struct model_type qwen_types[] = {
    {"qwen", "QWen", .vocab = 151936, .hidden = 4096, .ffn = 22016, .layers = 32, .heads = 32, .max_positions = 8192,
     .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu", .bos = -1, .eos = -1,
     .pad = -1, .read = read_qwen, .renames = qwen_keys},
    {NULL},
};
/* ---- what is bound and recorded ---- */

/* ---- pieces ---- */

static void outline_norm(struct binder *b, const char *name, int l) {
    bind_vector(b, dim_whole(b->spec->hidden_size), "layers.%d.%s.weight", l, name);
}

// q, k, v and o under layers.L.self_attn, both norms beside it.
static void outline_attention(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    outline_norm(b, "input_layernorm", l);
    outline_norm(b, "post_attention_layernorm", l);
    bind_qkv(b, l);
    bind_matrix(b, dim_whole(s->hidden_size), dim_heads(s->n_heads, s->head_dim), "layers.%d.self_attn.o_proj", l);
    if (s->o_bias)
        bind_vector(b, dim_whole(s->hidden_size), "layers.%d.self_attn.o_proj.bias", l);
}

static void outline_ffn(struct binder *b, int l, const char *name, int64_t ffn_size) {
    struct dim D = dim_whole(b->spec->hidden_size), F = dim_ffn(ffn_size);
    bind_matrix(b, F, D, "layers.%d.%s.gate_proj", l, name);
    bind_matrix(b, F, D, "layers.%d.%s.up_proj", l, name);
    bind_matrix(b, D, F, "layers.%d.%s.down_proj", l, name);
}

static void outline_experts(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    char base[64];
    snprintf(base, sizeof base, "layers.%d.mlp.experts", l);
    bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts, s->moe.ffn_size,
                 s->hidden_size, false);
}

/* ---- Gemma, Qwen2-MoE ---- */

static void *gemma_outline(struct binder *b) {
    bind_ends(b);
    for (int l = 0; l < b->spec->n_layers; l++) {
        outline_attention(b, l);
        outline_ffn(b, l, "mlp", b->spec->ffn_size);
    }
    return NULL; // nothing to record
}

static void *qwen2_moe_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    bind_ends(b);
    for (int l = 0; l < s->n_layers; l++) {
        outline_attention(b, l);
        if (!s->layers[l].moe) {
            outline_ffn(b, l, "mlp", s->ffn_size);
            continue;
        }
        bind_matrix(b, dim_whole(s->moe.n_experts), dim_whole(s->hidden_size), "layers.%d.mlp.gate", l);
        outline_experts(b, l);
        if (s->moe.shared_ffn_size) {
            outline_ffn(b, l, "mlp.shared_expert", s->moe.shared_ffn_size);
            bind_matrix(b, dim_whole(1), dim_whole(s->hidden_size), "layers.%d.mlp.shared_expert_gate", l);
        }
    }
    return NULL; // nothing to record
}

/* ---- GPT-2 and the first Qwen ---- */

static void outline_layer_norm(struct binder *b, const char *name, int l) {
    bind_vector(b, dim_whole(b->spec->hidden_size), "h.%d.%s.weight", l, name);
    bind_vector(b, dim_whole(b->spec->hidden_size), "h.%d.%s.bias", l, name);
}

static void outline_biased(struct binder *b, struct dim out, struct dim in, const char *module, int l) {
    bind_matrix(b, out, in, "h.%d.%s", l, module);
    bind_vector(b, out, "h.%d.%s.bias", l, module);
}

static void *gpt2_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    bind_vector(b, dim_times(D, s->vocab_size), "wte.weight");
    bind_vector(b, dim_times(D, s->max_positions), "wpe.weight");
    for (int l = 0; l < s->n_layers; l++) {
        outline_layer_norm(b, "ln_1", l);
        outline_layer_norm(b, "ln_2", l);
        outline_biased(b, dim_times(D, 3), D, "attn.c_attn", l);
        outline_biased(b, D, D, "attn.c_proj", l);
        outline_biased(b, F, D, "mlp.c_fc", l);
        outline_biased(b, D, F, "mlp.c_proj", l);
    }
    bind_vector(b, D, "ln_f.weight");
    bind_vector(b, D, "ln_f.bias");
    if (!s->tied_embeddings)
        bind_matrix(b, dim_vocab(s->vocab_size), D, "/lm_head");
    return NULL; // nothing to record
}

static void *qwen_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size), Q = dim_heads(s->n_heads, s->head_dim);
    bind_vector(b, dim_times(D, s->vocab_size), "wte.weight");
    for (int l = 0; l < s->n_layers; l++) {
        bind_vector(b, D, "h.%d.ln_1.weight", l);
        bind_vector(b, D, "h.%d.ln_2.weight", l);
        outline_biased(b, dim_times(Q, 3), D, "attn.c_attn", l);
        bind_matrix(b, D, Q, "h.%d.attn.c_proj", l);
        bind_matrix(b, F, D, "h.%d.mlp.w1", l);
        bind_matrix(b, F, D, "h.%d.mlp.w2", l);
        bind_matrix(b, D, F, "h.%d.mlp.c_proj", l);
    }
    bind_vector(b, D, "ln_f.weight");
    if (!s->tied_embeddings)
        bind_matrix(b, dim_vocab(s->vocab_size), D, "/lm_head");
    return NULL; // nothing to record
}

#define OUTLINE(name) const struct family family_##name = {.types = name##_types, .bind = name##_outline}
OUTLINE(gemma);
OUTLINE(qwen2_moe);
OUTLINE(gpt2);
OUTLINE(qwen);
