/* gemma4.c - Gemma 4 (text): 31B dense and 26B-A4B.
 *
 *     h = N_in(x);  q = rope(q_norm(Wq h));  k = rope(k_norm(Wk h));  v = v_norm(Wv h), or v_norm(Wk h) on global layers
 *     x += N_post_attn(Wo attention(q, k, v))           scale 1
 *     m = ffn(N_pre_ff(x));  with experts: m = N_ff1(m) + N_ff2(experts(N_pre_ff2(x), router(x)))
 *     x = (x + N_post_ff(m)) * layer_scalar
 *     router(x): softmax of W (norm(x) * scale / sqrt(D)), top-k, divided by their sum, times per_expert_scale
 *
 * Norm weights are plain (not plus one). Global layers have a head_dim and a number of KV heads of their own.
 * layer_scalar scales the whole stream once, so it travels with the next residual add. Reference: transformers
 * modeling_gemma4.py. The E-models (per-layer inputs, shared KV) are refused by the spec. */
#include "model/family.h"

#include <math.h>
#include <stdio.h>

struct gemma4_layer {
    const struct weight *attn_norm, *q_norm, *k_norm, *attn_out, *post_attn_norm, *ffn_norm, *gate_up, *down, *post_ffn_norm, *scalar;
    const struct weight *router, *router_scale, *expert_scale, *experts_norm, *post_dense_norm, *post_experts_norm; // NULL when dense
    struct experts experts;
    struct qkv qkv;
};

struct gemma4 {
    struct ends ends;
    struct gemma4_layer *layers;
};

static void bind_moe(struct binder *b, int l, struct gemma4_layer *w) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size;
    char base[64];
    snprintf(base, sizeof base, "layers.%d.experts", l);
    w->router = bind_matrix(b, s->moe.n_experts, D, "layers.%d.router.proj", l);
    w->router_scale = bind_vector(b, D, "layers.%d.router.scale", l);
    w->expert_scale = bind_vector(b, s->moe.n_experts, "layers.%d.router.per_expert_scale", l);
    w->experts =
        bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts, s->moe.ffn_size, D, true);
    w->experts_norm = bind_vector(b, D, "layers.%d.pre_feedforward_layernorm_2.weight", l);
    w->post_dense_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm_1.weight", l);
    w->post_experts_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm_2.weight", l);
}

static void *gemma4_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, F = s->ffn_size;
    struct gemma4 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct gemma4_layer *w = &m->layers[l];
        int64_t hd = s->layers[l].head_dim;
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
        w->k_norm = bind_vector(b, hd, "layers.%d.self_attn.k_norm.weight", l);
        w->attn_out = bind_matrix(b, D, s->n_heads * hd, "layers.%d.self_attn.o_proj", l);
        w->post_attn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.pre_feedforward_layernorm.weight", l);
        w->gate_up = bind_fused(b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        w->post_ffn_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm.weight", l);
        w->scalar = bind_vector(b, 1, "layers.%d.layer_scalar", l);
        if (s->layers[l].moe)
            bind_moe(b, l, w);
    }
    return m;
}

/* What the experts add beside the dense FFN; both read x, the stream after attention. */
static val record_moe(struct program *p, const struct model_spec *s, const struct gemma4_layer *w, val x, val dense,
                      struct norm_args norm) {
    struct norm_args router_norm = norm;
    router_norm.scale = 1 / sqrtf((float)s->hidden_size);
    val logits = op_linear(p, op_norm(p, x, NO_VAL, w->router_scale, router_norm), w->router, NULL);
    struct routed r = op_moe_route(
        p, logits, NULL, w->expert_scale,
        (struct route_args){.how = ROUTE_SOFTMAX, .n_experts = s->moe.n_experts, .top_k = s->moe.top_k, .renormalise = true, .scale = 1});
    val e = op_moe_ffn(p, op_norm(p, x, NO_VAL, w->experts_norm, norm), r, w->experts.w13, w->experts.w2, NULL, NULL,
                       (struct moe_args){s->moe.n_experts, s->moe.top_k, s->moe.ffn_size, {.act = s->activation}});
    return op_gated_add(p, op_norm(p, dense, NO_VAL, w->post_dense_norm, norm), op_norm(p, e, NO_VAL, w->post_experts_norm, norm), NO_VAL);
}

static void gemma4_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct gemma4 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    const struct weight *r_scale = NULL;
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct gemma4_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        at.prep.v_norm = true;
        struct normed n = op_add_norm(p, x, d, w->attn_norm, r_scale, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), w->q_norm, w->k_norm, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out, NULL);
        n = op_add_norm(p, n.r, op_norm(p, a, NO_VAL, w->post_attn_norm, norm), w->ffn_norm, NULL, norm);
        val f = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}), w->down, NULL);
        if (s->layers[l].moe)
            f = record_moe(p, s, w, n.r, f, norm);
        d = op_norm(p, f, NO_VAL, w->post_ffn_norm, norm);
        x = n.r;
        r_scale = w->scalar;
    }
    record_head(p, s, &m->ends, x, d, r_scale, norm);
}

const struct family family_gemma4 = {
    .model_types = (const char *const[]){"gemma4_text", "gemma4_unified_text", NULL},
    .bind = gemma4_bind,
    .record = gemma4_record,
    .unused = (const char *const[]){"*vision_tower.*", "*audio_tower.*", "*embed_vision.*", "*embed_audio.*", "*multi_modal_projector.*",
                                    "*.rotary_emb.inv_freq", NULL},
};
