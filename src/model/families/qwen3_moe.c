/* qwen3_moe.c - Qwen3 MoE: Qwen3's attention; softmax router, top-k, renormalised where norm_topk_prob says so.
 * Layers that the spec calls dense (mlp_only_layers, decoder_sparse_step) have a plain FFN.
 * Reference: transformers modeling_qwen3_moe.py. */
#include "model/families/family.h"

#include <stdio.h>

/* ---- what config.json says ---- */

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

static const struct model_type types[] = {
    {"qwen3_moe", "Qwen3Moe", .vocab = 151936, .hidden = 2048, .ffn = 6144, .layers = 24, .heads = 32, .kv_heads = 4,
     .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu",
     .bos = -1, .eos = -1, .pad = -1, .read = read_qwen3_moe},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct qwen3_moe_layer {
    const struct weight *attn_norm, *q_norm, *k_norm, *ffn_norm;
    const struct weight *router;         // of expert layers
    const struct weight *gate_up, *down; // of dense layers
    struct experts experts;
    struct projection qkv, attn_out;
};

struct qwen3_moe {
    struct ends ends;
    struct qwen3_moe_layer *layers;
};

static void *qwen3_moe_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size), hd = dim_whole(s->head_dim);
    struct qwen3_moe *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct qwen3_moe_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
        w->k_norm = bind_vector(b, hd, "layers.%d.self_attn.k_norm.weight", l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        if (s->layers[l].moe) {
            char base[64];
            snprintf(base, sizeof base, "layers.%d.mlp.experts", l);
            w->router = bind_matrix(b, dim_whole(s->moe.n_experts), D, "layers.%d.mlp.gate", l);
            w->experts = bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"},
                                      s->moe.n_experts, s->moe.ffn_size, s->hidden_size, false);
        } else {
            w->gate_up = bind_fused(
                b, D, 2,
                (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
            w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        }
    }
    return m;
}

static val record_ffn(struct program *p, const struct model_spec *s, const struct qwen3_moe_layer *w, bool moe, val y) {
    if (!moe)
        return op_linear(p, op_glu(p, op_linear(p, y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                         w->down, NULL);
    struct routed r = op_moe_route(p, op_linear(p, y, w->router, NULL), NULL, NULL,
                                   (struct route_args){.how = ROUTE_SOFTMAX,
                                                       .n_experts = s->moe.n_experts,
                                                       .top_k = s->moe.top_k,
                                                       .renormalise = s->moe.renormalise,
                                                       .scale = 1});
    return op_moe_ffn(p, y, r, w->experts.w13, w->experts.w2, NULL, NULL,
                      (struct moe_args){s->moe.n_experts, s->moe.top_k, s->moe.ffn_size, {.act = s->activation}});
}

static void qwen3_moe_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct qwen3_moe *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct qwen3_moe_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), w->q_norm, w->k_norm, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        d = record_ffn(p, s, w, s->layers[l].moe, n.y);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_qwen3_moe = {
    .types = types,
    .bind = qwen3_moe_bind,
    .record = qwen3_moe_record,
    .unused = NULL,
};
