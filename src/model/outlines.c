/* outlines.c - models that gyre describes but does not run: their tensors by name and shape, for `gyre info`.
 *
 * A family moves to a page of its own when it can be recorded and checked against its reference. */
#include "model/family.h"

#include <stdio.h>

/* ---- pieces ---- */

static void outline_norm(struct binder *b, const char *name, int l) {
    bind_vector(b, b->spec->hidden_size, "layers.%d.%s.weight", l, name);
}

// q, k, v and o under layers.L.self_attn, both norms beside it.
static void outline_attention(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    outline_norm(b, "input_layernorm", l);
    outline_norm(b, "post_attention_layernorm", l);
    bind_qkv(b, l);
    bind_matrix(b, s->hidden_size, (int64_t)s->n_heads * s->head_dim, "layers.%d.self_attn.o_proj", l);
    if (s->o_bias)
        bind_vector(b, s->hidden_size, "layers.%d.self_attn.o_proj.bias", l);
}

static void outline_ffn(struct binder *b, int l, const char *name, int64_t ffn_size) {
    int64_t D = b->spec->hidden_size;
    bind_matrix(b, ffn_size, D, "layers.%d.%s.gate_proj", l, name);
    bind_matrix(b, ffn_size, D, "layers.%d.%s.up_proj", l, name);
    bind_matrix(b, D, ffn_size, "layers.%d.%s.down_proj", l, name);
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
        bind_matrix(b, s->moe.n_experts, s->hidden_size, "layers.%d.mlp.gate", l);
        outline_experts(b, l);
        if (s->moe.shared_ffn_size) {
            outline_ffn(b, l, "mlp.shared_expert", s->moe.shared_ffn_size);
            bind_matrix(b, 1, s->hidden_size, "layers.%d.mlp.shared_expert_gate", l);
        }
    }
    return NULL; // nothing to record
}

/* ---- GPT-2 and the first Qwen ---- */

static void outline_layer_norm(struct binder *b, const char *name, int l) {
    bind_vector(b, b->spec->hidden_size, "h.%d.%s.weight", l, name);
    bind_vector(b, b->spec->hidden_size, "h.%d.%s.bias", l, name);
}

static void outline_biased(struct binder *b, int64_t out, int64_t in, const char *module, int l) {
    bind_matrix(b, out, in, "h.%d.%s", l, module);
    bind_vector(b, out, "h.%d.%s.bias", l, module);
}

static void *gpt2_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, F = s->ffn_size;
    bind_vector(b, s->vocab_size * D, "wte.weight");
    bind_vector(b, s->max_positions * D, "wpe.weight");
    for (int l = 0; l < s->n_layers; l++) {
        outline_layer_norm(b, "ln_1", l);
        outline_layer_norm(b, "ln_2", l);
        outline_biased(b, 3 * D, D, "attn.c_attn", l);
        outline_biased(b, D, D, "attn.c_proj", l);
        outline_biased(b, F, D, "mlp.c_fc", l);
        outline_biased(b, D, F, "mlp.c_proj", l);
    }
    bind_vector(b, D, "ln_f.weight");
    bind_vector(b, D, "ln_f.bias");
    if (!s->tied_embeddings)
        bind_matrix(b, s->vocab_size, D, "/lm_head");
    return NULL; // nothing to record
}

static void *qwen_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, F = s->ffn_size, Q = (int64_t)s->n_heads * s->head_dim;
    bind_vector(b, s->vocab_size * D, "wte.weight");
    for (int l = 0; l < s->n_layers; l++) {
        bind_vector(b, D, "h.%d.ln_1.weight", l);
        bind_vector(b, D, "h.%d.ln_2.weight", l);
        outline_biased(b, 3 * Q, D, "attn.c_attn", l);
        bind_matrix(b, D, Q, "h.%d.attn.c_proj", l);
        bind_matrix(b, F, D, "h.%d.mlp.w1", l);
        bind_matrix(b, F, D, "h.%d.mlp.w2", l);
        bind_matrix(b, D, F, "h.%d.mlp.c_proj", l);
    }
    bind_vector(b, D, "ln_f.weight");
    if (!s->tied_embeddings)
        bind_matrix(b, s->vocab_size, D, "/lm_head");
    return NULL; // nothing to record
}

/* ---- draft heads: what their own files hold; embeddings come from the larger model ---- */

static void outline_vocab_tables(struct binder *b) {
    bind_tensor_as(b, "d2t", DT_I64, 1, (int64_t[]){b->spec->draft.vocab});
    bind_tensor_as(b, "t2d", DT_BOOL, 1, (int64_t[]){b->spec->vocab_size});
}

static void *eagle3_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, Q = (int64_t)s->n_heads * s->head_dim, KV = (int64_t)s->n_kv_heads * s->head_dim;
    bind_matrix(b, D, (int64_t)s->draft.n_taps * s->draft.tap_size, "fc");
    bind_vector(b, D, "midlayer.hidden_norm.weight");
    bind_vector(b, D, "midlayer.input_layernorm.weight");
    bind_vector(b, D, "midlayer.post_attention_layernorm.weight");
    bind_matrix(b, Q, 2 * D, "midlayer.self_attn.q_proj");
    bind_matrix(b, KV, 2 * D, "midlayer.self_attn.k_proj");
    bind_matrix(b, KV, 2 * D, "midlayer.self_attn.v_proj");
    bind_matrix(b, D, Q, "midlayer.self_attn.o_proj");
    bind_matrix(b, s->ffn_size, D, "midlayer.mlp.gate_proj");
    bind_matrix(b, s->ffn_size, D, "midlayer.mlp.up_proj");
    bind_matrix(b, D, s->ffn_size, "midlayer.mlp.down_proj");
    bind_vector(b, D, "norm.weight");
    bind_matrix(b, s->draft.vocab, D, "/lm_head");
    if (s->draft.own_vocab)
        outline_vocab_tables(b);
    return NULL; // nothing to record
}

static void *dflash_outline(struct binder *b) {
    const struct model_spec *s = b->spec;
    bind_matrix(b, s->hidden_size, (int64_t)s->draft.n_taps * s->draft.tap_size, "fc");
    bind_vector(b, s->hidden_size, "hidden_norm.weight");
    bind_vector(b, s->hidden_size, "norm.weight");
    for (int l = 0; l < s->n_layers; l++) {
        outline_attention(b, l);
        bind_vector(b, s->head_dim, "layers.%d.self_attn.q_norm.weight", l);
        bind_vector(b, s->head_dim, "layers.%d.self_attn.k_norm.weight", l);
        outline_ffn(b, l, "mlp", s->ffn_size);
    }
    return NULL; // nothing to record
}

#define OUTLINE(name, type) \
    const struct family family_##name = {.model_types = (const char *const[]){type, NULL}, .bind = name##_outline}
OUTLINE(gemma, "gemma");
OUTLINE(qwen2_moe, "qwen2_moe");
OUTLINE(gpt2, "gpt2");
OUTLINE(qwen, "qwen");
OUTLINE(eagle3, "eagle3");
OUTLINE(dflash, "dflash");
