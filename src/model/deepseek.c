/* deepseek.c - DeepSeek V2 and V3 (and Kimi K2, which is V3 with other numbers): latent attention, grouped routing.
 *
 *     q = Wqb norm(Wqa h), or Wq h;  [c | kr] = Wkva h
 *     s = (q_nope . Wuk norm(c) + rope(q_rope) . rope(kr)) * scale;  out = Wo (Wuv sum p norm(c))
 *
 * in the absorbed form: the cache holds norm(c) and rope(kr), Wuk is applied to q and Wuv after the sum. kv_b_proj
 * holds both, per head nope rows of Wuk, then v rows of Wuv. The first layers have a dense FFN, the others experts
 * and an ungated shared expert. q_a and kv_a norms use eps 1e-6 whatever rms_norm_eps says, as in transformers
 * (modeling_deepseek_v3.py builds them with the class default). */
#include "model/family.h"

#include <stdio.h>

struct deepseek_layer {
    const struct weight *attn_norm, *q_a_norm, *q, *kv_a_norm, *w_uk, *w_uv, *ffn_norm;
    struct projection q_a, kv_a, attn_out;
    const struct weight *gate_up, *down;       // dense layers
    const struct weight *router, *router_bias; // expert layers
    const struct weight *shared_gate_up, *shared_down;
    struct experts experts;
};

struct deepseek {
    struct ends ends;
    struct deepseek_layer *layers;
};

static const float LATENT_EPS = 1e-6f;

/* attention_bias gives one to what reads the stream or writes it, and to nothing between. */
static struct projection bind_projection(struct binder *b, struct part whole, int64_t in) {
    return (struct projection){bind_fused(b, in, 1, &whole), b->spec->qkv_bias ? bind_fused_bias(b, 1, &whole) : NULL};
}

static void bind_attention(struct binder *b, int l, struct deepseek_layer *w) {
    const struct model_spec *s = b->spec;
    const struct mla_spec *a = &s->mla;
    int64_t D = s->hidden_size, H = s->n_heads, head = a->nope_dim + a->v_dim;
    int64_t q_in = a->q_rank ? a->q_rank : D;
    if (a->q_rank) {
        w->q_a = bind_projection(b, part(b, a->q_rank, "layers.%d.self_attn.q_a_proj", l), D);
        w->q_a_norm = bind_vector(b, a->q_rank, "layers.%d.self_attn.q_a_layernorm.weight", l);
    }
    w->q = bind_matrix(b, H * (a->nope_dim + a->rope_dim), q_in,
                       a->q_rank ? "layers.%d.self_attn.q_b_proj" : "layers.%d.self_attn.q_proj", l);
    w->kv_a = bind_projection(b, part(b, a->kv_rank + a->rope_dim, "layers.%d.self_attn.kv_a_proj_with_mqa", l), D);
    w->kv_a_norm = bind_vector(b, a->kv_rank, "layers.%d.self_attn.kv_a_layernorm.weight", l);
    struct part *uk = arena_calloc(b->arena, (size_t)H, sizeof *uk),
                *uv = arena_calloc(b->arena, (size_t)H, sizeof *uv);
    for (int64_t h = 0; h < H; h++) {
        uk[h] = part_rows(b, h * head, a->nope_dim, H * head, "layers.%d.self_attn.kv_b_proj", l);
        uv[h] = part_rows(b, h * head + a->nope_dim, a->v_dim, H * head, "layers.%d.self_attn.kv_b_proj", l);
    }
    w->w_uk = bind_fused(b, a->kv_rank, (int)H, uk);
    w->w_uv = bind_fused(b, a->kv_rank, (int)H, uv);
    w->attn_out = bind_projection(b, part(b, D, "layers.%d.self_attn.o_proj", l), H * a->v_dim);
}

static void bind_moe(struct binder *b, int l, struct deepseek_layer *w) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, F = s->moe.shared_ffn_size;
    char base[64];
    snprintf(base, sizeof base, "layers.%d.mlp.experts", l);
    w->router = bind_matrix(b, s->moe.n_experts, D, "layers.%d.mlp.gate", l);
    if (s->moe.routing == ROUTE_SIGMOID)
        w->router_bias = bind_vector(b, s->moe.n_experts, "layers.%d.mlp.gate.e_score_correction_bias", l);
    w->experts = bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts,
                              s->moe.ffn_size, D, false);
    if (F) {
        w->shared_gate_up = bind_fused(b, D, 2,
                                       (struct part[]){part(b, F, "layers.%d.mlp.shared_experts.gate_proj", l),
                                                       part(b, F, "layers.%d.mlp.shared_experts.up_proj", l)});
        w->shared_down = bind_matrix(b, D, F, "layers.%d.mlp.shared_experts.down_proj", l);
    }
}

static void *deepseek_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, F = s->ffn_size;
    struct deepseek *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct deepseek_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        bind_attention(b, l, w);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        if (s->layers[l].moe) {
            bind_moe(b, l, w);
        } else {
            w->gate_up = bind_fused(
                b, D, 2,
                (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
            w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        }
    }
    return m;
}

static val record_attention(struct program *p, const struct model_spec *s, const struct deepseek_layer *w, val y,
                            int l) {
    const struct mla_spec *a = &s->mla;
    struct mla_args args = {.cache = program_cache_latent(p, a->kv_rank + a->rope_dim),
                            .rope = program_rope(p, &s->ropes[s->layers[l].rope]),
                            .n_heads = s->n_heads,
                            .rank = a->kv_rank,
                            .nope_dim = a->nope_dim,
                            .rope_dim = a->rope_dim,
                            .v_dim = a->v_dim,
                            .eps = LATENT_EPS,
                            .scale = (float)s->attention_scale};
    val q_in = y;
    if (w->q_a.w)
        q_in = op_norm(p, op_linear(p, y, w->q_a.w, w->q_a.bias), NO_VAL, w->q_a_norm,
                       (struct norm_args){.eps = LATENT_EPS});
    val q = op_mla_prep(p, op_linear(p, q_in, w->q, NULL), op_linear(p, y, w->kv_a.w, w->kv_a.bias), w->kv_a_norm,
                        w->w_uk, args);
    return op_linear(p, op_mla_attention(p, q, w->w_uv, args), w->attn_out.w, w->attn_out.bias);
}

static val record_ffn(struct program *p, const struct model_spec *s, const struct deepseek_layer *w, bool moe, val y) {
    struct act_args act = {.act = s->activation};
    if (!moe)
        return op_linear(p, op_glu(p, op_linear(p, y, w->gate_up, NULL), act), w->down, NULL);
    const struct moe_spec *e = &s->moe;
    struct routed r = op_moe_route(p, op_linear(p, y, w->router, NULL), w->router_bias, NULL,
                                   (struct route_args){.how = e->routing,
                                                       .n_experts = e->n_experts,
                                                       .top_k = e->top_k,
                                                       .n_groups = e->n_groups,
                                                       .top_groups = e->top_groups,
                                                       .renormalise = e->renormalise,
                                                       .scale = e->scale});
    val out = op_moe_ffn(p, y, r, w->experts.w13, w->experts.w2, NULL, NULL,
                         (struct moe_args){e->n_experts, e->top_k, e->ffn_size, act});
    if (!w->shared_down)
        return out;
    val shared = op_linear(p, op_glu(p, op_linear(p, y, w->shared_gate_up, NULL), act), w->shared_down, NULL);
    return op_gated_add(p, out, shared, NO_VAL);
}

static void deepseek_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct deepseek *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct deepseek_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        n = op_add_norm(p, n.r, record_attention(p, s, w, n.y, l), w->ffn_norm, NULL, norm);
        d = record_ffn(p, s, w, s->layers[l].moe, n.y);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_deepseek = {
    .model_types = (const char *const[]){"deepseek_v2", "deepseek_v3", "kimi_k2", NULL},
    .bind = deepseek_bind,
    .record = deepseek_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", "vision_tower.*", "mm_projector.*", NULL},
};
