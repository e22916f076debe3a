/* mixtral.c - Mixtral: Mistral's attention, and experts chosen by a softmax router, top-k renormalised.
 * Expert matrices are called w1 (gate), w3 (up), w2 (down); as transformers 5 holds them they are one tensor a
 * kind, and the block is called mlp. Reference: transformers modeling_mixtral.py. */
#include "model/families/family.h"

#include <stdio.h>

/* ---- what config.json says ---- */

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

static const struct model_type types[] = {
    {"mixtral", "Mixtral", .vocab = 32000, .hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8,
     .max_positions = 131072, .norm_eps = 1e-5, .theta = 1000000, .activation_key = "hidden_act", .activation = "silu",
     .bos = 1, .eos = 2, .pad = -1, .read = read_mixtral},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct mixtral_layer {
    const struct weight *attn_norm, *ffn_norm, *router;
    struct experts experts;
    struct projection qkv, attn_out;
};

struct mixtral {
    struct ends ends;
    struct mixtral_layer *layers;
};

static void *mixtral_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size);
    struct mixtral *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct mixtral_layer *w = &m->layers[l];
        const char *block = bind_has(b, false, "layers.%d.mlp.gate.weight", l) ? "mlp" : "block_sparse_moe";
        char base[64];
        snprintf(base, sizeof base, "layers.%d.%s.experts", l, block);
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->router = bind_matrix(b, dim_whole(s->moe.n_experts), D, "layers.%d.%s.gate", l, block);
        w->experts = bind_experts(b, base, (struct expert_names){"w1", "w3", "w2"}, s->moe.n_experts, s->moe.ffn_size,
                                  s->hidden_size, false);
    }
    return m;
}

static void mixtral_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct mixtral *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    struct route_args route = {
        .how = ROUTE_SOFTMAX, .n_experts = s->moe.n_experts, .top_k = s->moe.top_k, .renormalise = true, .scale = 1};
    struct moe_args moe = {s->moe.n_experts, s->moe.top_k, s->moe.ffn_size, {.act = s->activation}};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct mixtral_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), NULL, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        struct routed r = op_moe_route(p, op_linear(p, n.y, w->router, NULL), NULL, NULL, route);
        d = op_moe_ffn(p, n.y, r, w->experts.w13, w->experts.w2, NULL, NULL, moe);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_mixtral = {
    .types = types,
    .bind = mixtral_bind,
    .record = mixtral_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", NULL},
};
