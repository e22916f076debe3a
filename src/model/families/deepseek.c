/* deepseek.c - DeepSeek V2 and V3 (and Kimi K2, which is V3 with other numbers): latent attention, grouped routing.
 *
 *     q = Wqb norm(Wqa h), or Wq h;  [c | kr] = Wkva h
 *     s = (q_nope . Wuk norm(c) + rope(q_rope) . rope(kr)) * scale;  out = Wo (Wuv sum p norm(c))
 *
 * in the absorbed form: the cache holds norm(c) and rope(kr), Wuk is applied to q and Wuv after the sum. kv_b_proj
 * holds both, per head nope rows of Wuk, then v rows of Wuv. The first layers have a dense FFN, the others experts
 * and an ungated shared expert. q_a and kv_a norms use eps 1e-6 whatever rms_norm_eps says, as in transformers
 * (modeling_deepseek_v3.py builds them with the class default). */
#include "model/families/family.h"
#include "model/spec/rope.h"

#include <stdio.h>

#include <math.h>

/* ---- what config.json says ---- */

static enum status read_latent(struct spec_reader *r, bool v3) {
    struct model_spec *s = r->spec;
    struct mla_spec *m = &s->mla;
    double factor;
    bool interleaved;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_optional(r, "q_lora_rank", 1536, &m->q_rank));
    TRY(read_dim(r, "kv_lora_rank", 512, &m->kv_rank));
    TRY(read_dim(r, "qk_nope_head_dim", 128, &m->nope_dim));
    TRY(read_dim(r, "qk_rope_head_dim", 64, &m->rope_dim));
    TRY(read_dim(r, "v_head_dim", 128, &m->v_dim));
    TRY(rope_softmax_factor(rope_parameters(r), r->path, &factor, r->err));
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

static enum status read_deepseek_experts(struct spec_reader *r, int first_dense, int n_shared, int top_k,
                                         int ffn_size) {
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
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"scoring_func\" %s is not supported for deepseek_v2", r->path,
                    scoring);
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
        return fail(r->err, ERR_UNSUPPORTED,
                    "%s: routing by \"topk_method\" %s and \"scoring_func\" %s is not supported", r->path, method,
                    scoring);
    m->routing = ROUTE_SIGMOID;
    TRY(read_flag(r, "norm_topk_prob", true, &m->renormalise));
    TRY(read_dim(r, "n_group", 8, &m->n_groups));
    TRY(read_dim(r, "topk_group", 4, &m->top_groups));
    if (m->n_experts / m->n_groups < 2)
        return fail(r->err, ERR_FORMAT, "%s: \"n_group\" %d leaves groups of fewer than 2 experts", r->path,
                    m->n_groups);
    return read_count(r, "num_nextn_predict_layers", 1, &r->spec->n_mtp_layers);
}

static const struct model_type types[] = {
    {"deepseek_v2", "DeepseekV2", .vocab = 102400, .hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32,
     .max_positions = 2048, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu",
     .bos = 1, .eos = 2, .pad = -1, .read = read_deepseek_v2},
    {"deepseek_v3", "DeepseekV3", .vocab = 129280, .hidden = 7168, .ffn = 18432, .layers = 61, .heads = 128,
     .kv_heads = 128, .max_positions = 4096, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act",
     .activation = "silu", .bos = 0, .eos = 1, .pad = -1, .read = read_deepseek_v3},
    {"kimi_k2", "DeepseekV3", .vocab = 129280, .hidden = 7168, .ffn = 18432, .layers = 61, .heads = 128,
     .kv_heads = 128, .max_positions = 4096, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act",
     .activation = "silu", .bos = 0, .eos = 1, .pad = -1, .read = read_deepseek_v3},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct deepseek_layer {
    const struct weight *attn_norm, *q_a_norm, *kv_a_norm, *w_uk, *w_uv, *ffn_norm;
    struct projection attn_in; // what reads the stream: q_a or q, then kv_a; kv_a alone where a bias is not for q
    const struct weight *q;    // what attn_in does not have of q, or NULL
    struct projection attn_out;
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
static struct projection bind_projection(struct binder *b, struct dim in, int n, const struct part *parts) {
    return (struct projection){bind_fused(b, in, n, parts), b->spec->qkv_bias ? bind_fused_bias(b, n, parts) : NULL};
}

static bool q_is_beside_kv(const struct model_spec *s) { return s->mla.q_rank || !s->qkv_bias; }

/* Wuk of a file that has it turned, [rank, nope] of each head one under another (GGUF). Blocks cannot be seen turned,
 * so they become floats. */
static const struct weight *bind_turned(struct binder *b, const struct weight *k, struct dim nope, struct dim rank) {
    int64_t n_heads = b->spec->n_heads, n = rank.size, m = b->spec->mla.nope_dim;
    struct weight *w = bind_new_weight(b, k->name, n_heads * m, rank, (int)n_heads);
    if (b->status != OK)
        return w;
    struct weight_part p = k->parts[0];
    if (p.format->id != QFORMAT_PLAIN) {
        float *floats = arena_calloc(b->arena, (size_t)(k->out * k->in), sizeof *floats);
        weight_rows_f32(k, 0, k->out, floats);
        p = (struct weight_part){.format = &qformat_plain, .dtype = DT_F32, .data = floats, .row_stride = m};
    }
    for (int64_t h = 0; h < n_heads; h++) {
        w->parts[h] = p;
        w->parts[h].data = (const char *)p.data + (size_t)(h * n * m) * dtype_bytes(p.dtype);
        w->parts[h].n_rows = m;
        w->parts[h].row_stride = 1;
        w->parts[h].col_stride = m;
        w->parts[h].rows = dim_share(nope, h, n_heads);
    }
    return w;
}

/* What is applied to q and after the sum. */
static void bind_absorbed(struct binder *b, int l, struct deepseek_layer *w) {
    const struct mla_spec *a = &b->spec->mla;
    int64_t H = b->spec->n_heads, head = a->nope_dim + a->v_dim;
    struct dim rank = dim_whole(a->kv_rank), nope = dim_heads(H, a->nope_dim), v = dim_heads(H, a->v_dim);
    if (bind_has(b, false, "layers.%d.self_attn.k_b_proj.weight", l)) {
        struct dim rows = dim_heads(H, a->kv_rank), cols = dim_whole(a->nope_dim);
        w->w_uk = bind_turned(b, bind_matrix(b, rows, cols, "layers.%d.self_attn.k_b_proj", l), nope, rank);
        w->w_uv = bind_matrix(b, v, rank, "layers.%d.self_attn.v_b_proj", l);
        return;
    }
    struct part *uk = arena_calloc(b->arena, (size_t)H, sizeof *uk),
                *uv = arena_calloc(b->arena, (size_t)H, sizeof *uv);
    for (int64_t h = 0; h < H; h++) {
        uk[h] = part_rows(b, h * head, dim_share(nope, h, H), H * head, "layers.%d.self_attn.kv_b_proj", l);
        uv[h] = part_rows(b, h * head + a->nope_dim, dim_share(v, h, H), H * head, "layers.%d.self_attn.kv_b_proj", l);
    }
    w->w_uk = bind_fused(b, rank, (int)H, uk);
    w->w_uv = bind_fused(b, rank, (int)H, uv);
}

static void bind_attention(struct binder *b, int l, struct deepseek_layer *w) {
    const struct model_spec *s = b->spec;
    const struct mla_spec *a = &s->mla;
    int64_t H = s->n_heads;
    struct dim D = dim_whole(s->hidden_size), q_rank = dim_whole(a->q_rank), rank = dim_whole(a->kv_rank);
    struct dim v = dim_heads(H, a->v_dim), heads = dim_heads(H, a->nope_dim + a->rope_dim);
    struct part q = a->q_rank ? part(b, q_rank, "layers.%d.self_attn.q_a_proj", l)
                              : part(b, heads, "layers.%d.self_attn.q_proj", l),
                kv = part(b, dim_whole(a->kv_rank + a->rope_dim), "layers.%d.self_attn.kv_a_proj_with_mqa", l);
    if (q_is_beside_kv(s)) {
        w->attn_in = bind_projection(b, D, 2, (struct part[]){q, kv});
    } else {
        w->q = bind_fused(b, D, 1, &q);
        w->attn_in = bind_projection(b, D, 1, &kv);
    }
    if (a->q_rank) {
        w->q_a_norm = bind_vector(b, q_rank, "layers.%d.self_attn.q_a_layernorm.weight", l);
        w->q = bind_matrix(b, heads, q_rank, "layers.%d.self_attn.q_b_proj", l);
    }
    w->kv_a_norm = bind_vector(b, rank, "layers.%d.self_attn.kv_a_layernorm.weight", l);
    bind_absorbed(b, l, w);
    w->attn_out = bind_projection(b, v, 1, (struct part[]){part(b, D, "layers.%d.self_attn.o_proj", l)});
}

static void bind_moe(struct binder *b, int l, struct deepseek_layer *w) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->moe.shared_ffn_size);
    char base[64];
    snprintf(base, sizeof base, "layers.%d.mlp.experts", l);
    w->router = bind_matrix(b, dim_whole(s->moe.n_experts), D, "layers.%d.mlp.gate", l);
    if (s->moe.routing == ROUTE_SIGMOID)
        w->router_bias = bind_vector(b, dim_whole(s->moe.n_experts), "layers.%d.mlp.gate.e_score_correction_bias", l);
    w->experts = bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts,
                              s->moe.ffn_size, s->hidden_size, false);
    if (F.size) {
        w->shared_gate_up = bind_fused(b, D, 2,
                                       (struct part[]){part(b, F, "layers.%d.mlp.shared_experts.gate_proj", l),
                                                       part(b, F, "layers.%d.mlp.shared_experts.up_proj", l)});
        w->shared_down = bind_matrix(b, D, F, "layers.%d.mlp.shared_experts.down_proj", l);
    }
}

static void bind_layer(struct binder *b, int l, struct deepseek_layer *w) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
    bind_attention(b, l, w);
    w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
    if (s->layers[l].moe) {
        bind_moe(b, l, w);
        return;
    }
    w->gate_up = bind_fused(
        b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
    w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
}

static void *deepseek_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct deepseek *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++)
        bind_layer(b, l, &m->layers[l]);
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
    int kv_width = a->kv_rank + a->rope_dim;
    val in = op_linear(p, y, w->attn_in.w, w->attn_in.bias), q = y;
    if (q_is_beside_kv(s))
        q = val_cols(in, 0, in.width - kv_width);
    if (a->q_rank)
        q = op_norm(p, q, NO_VAL, w->q_a_norm, (struct norm_args){.eps = LATENT_EPS});
    if (w->q)
        q = op_linear(p, q, w->q, NULL);
    q = op_mla_prep(p, q, val_cols(in, in.width - kv_width, kv_width), w->kv_a_norm, w->w_uk, args);
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

/* x is the stream, d what the layer before adds to it; both become this layer's. */
static void record_layer(struct program *p, const struct model_spec *s, int l, const struct deepseek_layer *w, val *x,
                         val *d) {
    struct norm_args norm = {.eps = (float)s->norm_eps};
    program_section(p, "layer", l);
    struct normed n = op_add_norm(p, *x, *d, w->attn_norm, NULL, norm);
    n = op_add_norm(p, n.r, record_attention(p, s, w, n.y, l), w->ffn_norm, NULL, norm);
    *d = record_ffn(p, s, w, s->layers[l].moe, n.y);
    *x = n.r;
}

static void deepseek_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct deepseek *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++)
        record_layer(p, s, l, &m->layers[l], &x, &d);
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

/* ---- the next-token predictor: x = eh_proj [norm(embed), norm(hidden)], and a layer like the last ---- */

struct deepseek_mtp {
    const struct weight *embed, *lm_head; // NULL: the model's
    const struct weight *embed_norm, *hidden_norm, *fc, *norm;
    struct deepseek_layer layer;
};

static void *bind_mtp(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    struct dim V = dim_vocab(s->vocab_size), D = dim_whole(s->hidden_size);
    struct deepseek_mtp *m = arena_calloc(b->arena, 1, sizeof *m);
    if (bind_has(b, false, "layers.%d.embed_tokens.weight", l))
        m->embed = bind_matrix(b, V, D, "layers.%d.embed_tokens", l);
    if (bind_has(b, false, "layers.%d.shared_head.head.weight", l))
        m->lm_head = bind_matrix(b, V, D, "layers.%d.shared_head.head", l);
    m->embed_norm = bind_vector(b, D, "layers.%d.enorm.weight", l);
    m->hidden_norm = bind_vector(b, D, "layers.%d.hnorm.weight", l);
    m->fc = bind_matrix(b, D, dim_times(D, 2), "layers.%d.eh_proj", l);
    bind_layer(b, l, &m->layer);
    m->norm = bind_vector(b, D, "layers.%d.shared_head.norm.weight", l);
    return m;
}

static void record_mtp(struct program *p, const struct model_spec *s, int l, const void *weights,
                       struct mtp_ends target) {
    const struct deepseek_mtp *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    struct ends ends = {m->embed ? m->embed : target.embed, m->norm, m->lm_head ? m->lm_head : target.lm_head};
    val e = op_norm(p, op_embed(p, ends.embed, 1), NO_VAL, m->embed_norm, norm);
    val h = op_norm(p, op_states(p, s->hidden_size), NO_VAL, m->hidden_norm, norm);
    val x = op_linear(p, op_concat(p, e, h, NO_VAL), m->fc, NULL), d = NO_VAL;
    record_layer(p, s, l, &m->layer, &x, &d);
    record_head(p, s, &ends, x, d, NULL, norm);
}

const struct family family_deepseek = {
    .types = types,
    .bind = deepseek_bind,
    .record = deepseek_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", "vision_tower.*", "mm_projector.*", NULL},
    .bind_mtp = bind_mtp,
    .record_mtp = record_mtp,
    .mtp_first_blank = true,
};
