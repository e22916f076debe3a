/* gpt_oss.c - GPT-OSS: attention sinks, biases everywhere, sliding layers first, experts with a clamped SwiGLU.
 *
 * Router: logits = W x + b, top-k of the logits, softmax over those. Experts interleave gate and up:
 *
 *   as bf16 (transformers)   gate_up_proj [E, D, 2F]  column 2i gate i, 2i+1 up i;  down_proj [E, F, D]: transposed
 *   as MXFP4 (released)      gate_up_proj_blocks [E, 2F, D/32, 16] and _scales [E, 2F, D/32], row 2i gate i;  down_proj
 *                            [E, D, F/32, 16]
 *
 *   as GGUF                  a matrix and a bias for each of gate, up and down of each expert
 *
 * All are the same matrices to the program: strided parts undo the layout. Reference: transformers
 * modeling_gpt_oss.py. */
#include "model/families/family.h"
#include "model/weights/bind_internal.h"

/* ---- what config.json says ---- */

static enum status read_gpt_oss(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    double alpha;
    bool given;
    layers_init(r);
    TRY(biases(r, true));
    TRY(read_dim(r, "sliding_window", 128, &r->spec->sliding_window));
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, 2, MIX_SLIDING);
    experts_everywhere(r);
    m->routing = ROUTE_SOFTMAX_TOPK;
    m->ffn_size = r->spec->ffn_size;
    TRY(read_n_experts(r, "num_local_experts", "num_experts", 128));
    TRY(read_dim(r, "num_experts_per_tok", 4, &m->top_k));
    r->spec->activation = ACT_SWIGLU_CLAMPED;
    TRY(read_real(r, "swiglu_limit", 7, &r->spec->swiglu_limit));
    TRY(read_real(r, "swiglu_alpha", 1.702, &alpha));
    if (alpha != 1.702 || !(r->spec->swiglu_limit > 0))
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"swiglu_alpha\" must be 1.702 and \"swiglu_limit\" above 0",
                    r->path);
    if (quant_of(r->spec->quant, "model.layers.0.mlp.experts").scheme == QUANT_MXFP4 &&
        (r->spec->hidden_size % 32 || m->ffn_size % 32))
        return fail(r->err, ERR_FORMAT,
                    "%s: \"hidden_size\" and \"intermediate_size\" must be multiples of 32 for mxfp4", r->path);
    json_t *yarn = json_pack("{s:s, s:f, s:f, s:f, s:b, s:i}", "rope_type", "yarn", "factor", 32.0, "beta_fast", 32.0,
                             "beta_slow", 1.0, "truncate", 0, "original_max_position_embeddings", 4096);
    double theta;
    int index;
    enum status st = read_real(r, "rope_theta", r->type->theta, &theta);
    if (st == OK)
        st = add_rope(r, NULL, yarn, theta, r->spec->head_dim, ROPE_HALF, &index);
    json_decref(yarn);
    return st;
}

static const struct model_type types[] = {
    {"gpt_oss", "GptOss", .vocab = 201088, .hidden = 2880, .ffn = 2880, .layers = 36, .heads = 64, .kv_heads = 8,
     .head_dim = 64, .max_positions = 131072, .norm_eps = 1e-5, .theta = 150000, .activation_key = "hidden_act",
     .activation = "silu", .bos = -1, .eos = -1, .pad = -1, .read = read_gpt_oss},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct gpt_oss_layer {
    const struct weight *attn_norm, *sinks, *ffn_norm, *router, *router_bias;
    const struct weight *w13, *b13, *w2, *b2;
    struct projection qkv, attn_out;
};

struct gpt_oss {
    struct ends ends;
    struct gpt_oss_layer *layers;
};

static const char *expert_tensor(struct binder *b, int l, const char *leaf) {
    return bind_full_name(b, arena_printf(b->arena, "layers.%d.mlp.experts.%s", l, leaf));
}

/* Rows `row_stride` apart, of columns `col_stride` apart, from element `first` of a tensor on. */
static struct weight_part strided_part(const struct stored_tensor *t, int64_t first, struct dim rows,
                                       int64_t row_stride, int64_t col_stride) {
    struct weight_part p = plain_part(t, rows.size, row_stride);
    p.col_stride = col_stride;
    p.rows = rows;
    if (t->data)
        p.data = (const char *)t->data + (size_t)first * dtype_bytes(t->dtype);
    return p;
}

/* Notes part i of a matrix of experts, of n_kinds an expert, under the name of a matrix of its own. */
static void note_expert(struct binder *b, int l, const char *leaf, int n_kinds, int64_t i, int64_t cols, bool is_bias,
                        struct weight_part p) {
    static const char *const kinds[] = {"gate_proj", "up_proj"};
    if (b->taken)
        bind_note(b,
                  expert_tensor(b, l,
                                arena_printf(b->arena, "%lld.%s.%s", (long long)(i / n_kinds),
                                             n_kinds == 2 ? kinds[i % 2] : leaf, is_bias ? "bias" : "weight")),
                  !is_bias, cols, p);
}

/* Row r of the matrix of expert e is `stride` apart; `n_kinds` kinds of rows are interleaved in the tensor. */
static const struct weight *bind_transposed(struct binder *b, int l, const char *leaf, int n_kinds, struct dim rows,
                                            struct dim in) {
    int64_t E = b->spec->moe.n_experts, all = rows.size * n_kinds;
    const char *name = expert_tensor(b, l, leaf);
    const struct stored_tensor *t = bind_tensor(b, name, 3, (int64_t[]){E, in.size, all});
    struct weight *w = bind_new_weight(b, name, E * all, in, (int)E * n_kinds);
    if (!t || !bind_is_number(b, t))
        return w;
    b->n_parameters += E * all * in.size;
    for (int64_t i = 0; i < E * n_kinds; i++) {
        int64_t e = i / n_kinds, kind = i % n_kinds;
        w->parts[i] = strided_part(t, e * in.size * all + kind, dim_experts(rows, e, 1), n_kinds, all);
        note_expert(b, l, leaf, n_kinds, i, in.size, false, w->parts[i]);
    }
    return w;
}

static const struct weight *bind_mxfp4(struct binder *b, int l, const char *leaf, int n_kinds, struct dim rows,
                                       struct dim in) {
    int64_t E = b->spec->moe.n_experts, all = rows.size * n_kinds, groups = in.size / 32;
    const char *name = expert_tensor(b, l, arena_printf(b->arena, "%s_blocks", leaf));
    if (in.size % 32 != 0) {
        bind_failed(b, fail(b->err, ERR_FORMAT, "%s: %s has %lld columns, MXFP4 needs a multiple of 32", b->spec->path,
                            name, (long long)in.size));
        return bind_new_weight(b, name, E * all, in, (int)E * n_kinds);
    }
    const struct stored_tensor *t = bind_tensor_as(b, name, DT_U8, 4, (int64_t[]){E, all, groups, 16});
    const struct stored_tensor *s = bind_tensor_as(b, expert_tensor(b, l, arena_printf(b->arena, "%s_scales", leaf)),
                                                   DT_U8, 3, (int64_t[]){E, all, groups});
    struct weight *w = bind_new_weight(b, name, E * all, in, (int)E * n_kinds);
    if (!t || !s || !bind_is_stored_as(b, t, DT_U8) || (s->dtype != DT_F8_E8M0 && !bind_is_stored_as(b, s, DT_U8)))
        return w;
    b->n_parameters += E * all * in.size;
    for (int64_t i = 0; i < E * n_kinds; i++) {
        int64_t e = i / n_kinds, kind = i % n_kinds, first = e * all + kind, bytes = in.size / 2;
        const uint8_t *scales = s->data;
        struct weight_part *p = &w->parts[i];
        *p = strided_part(t, first * bytes, dim_experts(rows, e, 1), bytes * n_kinds, 1);
        p->format = &qformat_mxfp4;
        p->scale = (struct qscale){scales ? scales + first * groups : NULL, DT_F8_E8M0, 1, 32, groups * n_kinds, 1};
        note_expert(b, l, leaf, n_kinds, i, in.size, false, *p);
    }
    return w;
}

static const struct weight *bind_expert_matrix(struct binder *b, int l, const char *leaf, int n_kinds, struct dim rows,
                                               struct dim in) {
    bool packed = quant_of(b->spec->quant, expert_tensor(b, l, leaf)).scheme == QUANT_MXFP4;
    return packed ? bind_mxfp4(b, l, leaf, n_kinds, rows, in) : bind_transposed(b, l, leaf, n_kinds, rows, in);
}

/* gate_up_proj_bias [E, 2F], interleaved, as gate then up of each expert; down_proj_bias [E, D]. */
static const struct weight *bind_expert_bias(struct binder *b, int l, const char *leaf, int n_kinds, struct dim rows) {
    int64_t E = b->spec->moe.n_experts, all = rows.size * n_kinds;
    const char *name = expert_tensor(b, l, leaf);
    const struct stored_tensor *t = bind_tensor(b, name, 2, (int64_t[]){E, all});
    struct weight *w = bind_new_weight(b, name, E * all, dim_whole(1), (int)E * n_kinds);
    if (!t || !bind_is_number(b, t))
        return w;
    b->n_parameters += E * all;
    for (int64_t i = 0; i < E * n_kinds; i++) {
        int64_t e = i / n_kinds, kind = i % n_kinds;
        w->parts[i] = strided_part(t, e * all + kind, dim_experts(rows, e, 1), n_kinds, 1);
        note_expert(b, l, "down_proj", n_kinds, i, 1, true, w->parts[i]);
    }
    return w;
}

/* Experts as matrices of their own, as GGUF files have them: gate, up and down of each, with a bias each. */
static void bind_apart(struct binder *b, int l, struct gpt_oss_layer *w, struct dim F, struct dim D) {
    int64_t E = b->spec->moe.n_experts;
    struct part *p13 = arena_calloc(b->arena, (size_t)E * 2, sizeof *p13),
                *p2 = arena_calloc(b->arena, (size_t)E, sizeof *p2);
    for (int e = 0; e < E; e++) {
        p13[2 * e] = part(b, dim_experts(F, e, 1), "layers.%d.mlp.experts.%d.gate_proj", l, e);
        p13[2 * e + 1] = part(b, dim_experts(F, e, 1), "layers.%d.mlp.experts.%d.up_proj", l, e);
        p2[e] = part(b, dim_experts(D, e, 1), "layers.%d.mlp.experts.%d.down_proj", l, e);
    }
    w->w13 = bind_fused(b, D, (int)E * 2, p13);
    w->b13 = bind_fused_bias(b, (int)E * 2, p13);
    w->w2 = bind_fused(b, F, (int)E, p2);
    w->b2 = bind_fused_bias(b, (int)E, p2);
}

static void *gpt_oss_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->moe.ffn_size), E = dim_whole(s->moe.n_experts);
    struct gpt_oss *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct gpt_oss_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->sinks = bind_vector(b, dim_heads(s->n_heads, 1), "layers.%d.self_attn.sinks", l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->router = bind_matrix(b, E, D, "layers.%d.mlp.router", l);
        w->router_bias = bind_vector(b, E, "layers.%d.mlp.router.bias", l);
        if (bind_has(b, false, "layers.%d.mlp.experts.0.gate_proj.weight", l)) {
            bind_apart(b, l, w, F, D);
            continue;
        }
        w->w13 = bind_expert_matrix(b, l, "gate_up_proj", 2, F, D);
        w->b13 = bind_expert_bias(b, l, "gate_up_proj_bias", 2, F);
        w->w2 = bind_expert_matrix(b, l, "down_proj", 1, D, F);
        w->b2 = bind_expert_bias(b, l, "down_proj_bias", 1, D);
    }
    return m;
}

static void gpt_oss_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct gpt_oss *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    struct route_args route = {
        .how = ROUTE_SOFTMAX_TOPK, .n_experts = s->moe.n_experts, .top_k = s->moe.top_k, .scale = 1};
    struct moe_args moe = {
        s->moe.n_experts, s->moe.top_k, s->moe.ffn_size, {ACT_SWIGLU_CLAMPED, (float)s->swiglu_limit}};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct gpt_oss_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), NULL, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, w->sinks, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        struct routed r = op_moe_route(p, op_linear(p, n.y, w->router, w->router_bias), NULL, NULL, route);
        d = op_moe_ffn(p, n.y, r, w->w13, w->w2, w->b13, w->b2, moe);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_gpt_oss = {
    .types = types,
    .bind = gpt_oss_bind,
    .record = gpt_oss_record,
    .unused = NULL,
};
