/* llama4.c - Llama 4 (text): described, not run.
 *
 * gyre info counts it; running needs the attention temperature of layers without RoPE and a router that scales the
 * expert's input, which no other family has. Reference: transformers modeling_llama4.py. */
#include "model/family.h"

#include <stdio.h>

static void *llama4_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, Fs = s->moe.shared_ffn_size;
    bind_ends(b);
    for (int l = 0; l < s->n_layers; l++) {
        bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        bind_qkv(b, l);
        bind_matrix(b, D, (int64_t)s->n_heads * s->head_dim, "layers.%d.self_attn.o_proj", l);
        bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        if (s->layers[l].moe) {
            char base[64];
            snprintf(base, sizeof base, "layers.%d.feed_forward.experts", l);
            bind_matrix(b, s->moe.n_experts, D, "layers.%d.feed_forward.router", l);
            bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts,
                         s->moe.ffn_size, D, !s->quant);
            bind_matrix(b, Fs, D, "layers.%d.feed_forward.shared_expert.gate_proj", l);
            bind_matrix(b, Fs, D, "layers.%d.feed_forward.shared_expert.up_proj", l);
            bind_matrix(b, D, Fs, "layers.%d.feed_forward.shared_expert.down_proj", l);
        } else {
            int64_t F = s->layers[l].ffn_size; // intermediate_size_mlp, twice that of an expert
            bind_matrix(b, F, D, "layers.%d.feed_forward.gate_proj", l);
            bind_matrix(b, F, D, "layers.%d.feed_forward.up_proj", l);
            bind_matrix(b, D, F, "layers.%d.feed_forward.down_proj", l);
        }
    }
    return NULL;
}

const struct family family_llama4 = {
    .model_types = (const char *const[]){"llama4_text", NULL},
    .bind = llama4_bind,
    .record = NULL,
    .unused = NULL,
};
