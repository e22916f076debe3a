/* llama4.c - Llama 4 (text): described, not run.
 *
 * gyre info counts it; running needs the attention temperature of layers without RoPE and a router that scales the
 * expert's input, which no other family has. Reference: transformers modeling_llama4.py. */
#include "model/families/family.h"

#include <stdio.h>

/* ---- what config.json says ---- */

static const char *const full_or_chunked[] = {"full_attention", "chunked_attention", NULL};

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

static const struct model_type types[] = {
    {"llama4_text", "Llama4", .vocab = 202048, .hidden = 5120, .ffn = 8192, .layers = 48, .heads = 40, .kv_heads = 8,
     .head_dim = 128, .max_positions = 131072, .norm_eps = 1e-5, .theta = 500000, .activation_key = "hidden_act",
     .activation = "silu", .bos = 1, .eos = 2, .pad = -1, .read = read_llama4},
    {NULL},
};

/* ---- what is bound and recorded ---- */

static void *llama4_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), Fs = dim_ffn(s->moe.shared_ffn_size);
    bind_ends(b);
    for (int l = 0; l < s->n_layers; l++) {
        bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        bind_qkv(b, l);
        bind_matrix(b, D, dim_heads(s->n_heads, s->head_dim), "layers.%d.self_attn.o_proj", l);
        bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        if (s->layers[l].moe) {
            char base[64];
            snprintf(base, sizeof base, "layers.%d.feed_forward.experts", l);
            bind_matrix(b, dim_whole(s->moe.n_experts), D, "layers.%d.feed_forward.router", l);
            bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts,
                         s->moe.ffn_size, s->hidden_size, !s->quant || quant_is_bnb(s->quant));
            bind_matrix(b, Fs, D, "layers.%d.feed_forward.shared_expert.gate_proj", l);
            bind_matrix(b, Fs, D, "layers.%d.feed_forward.shared_expert.up_proj", l);
            bind_matrix(b, D, Fs, "layers.%d.feed_forward.shared_expert.down_proj", l);
        } else {
            struct dim F = dim_ffn(s->layers[l].ffn_size); // intermediate_size_mlp, twice that of an expert
            bind_matrix(b, F, D, "layers.%d.feed_forward.gate_proj", l);
            bind_matrix(b, F, D, "layers.%d.feed_forward.up_proj", l);
            bind_matrix(b, D, F, "layers.%d.feed_forward.down_proj", l);
        }
    }
    return NULL;
}

const struct family family_llama4 = {
    .types = types,
    .bind = llama4_bind,
    .record = NULL,
    .unused = NULL,
};
