/* gpt_oss.c - GPT-OSS: attention sinks, biases everywhere, sliding layers first, experts with a clamped SwiGLU.
 *
 * Router: logits = W x + b, top-k of the logits, softmax over those. Experts interleave gate and up:
 *
 *   as bf16 (transformers)   gate_up_proj [E, D, 2F]  column 2i gate i, 2i+1 up i;  down_proj [E, F, D]: transposed
 *   as MXFP4 (released)      gate_up_proj_blocks [E, 2F, D/32, 16] and _scales [E, 2F, D/32], row 2i gate i;  down_proj
 *                            [E, D, F/32, 16]
 *
 * Both are the same matrices to the program: strided parts undo the layout. Reference: transformers
 * modeling_gpt_oss.py. */
#include "model/bind_internal.h"
#include "model/family.h"

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

static size_t element(const struct stored_tensor *t) { return dtype_bytes(t->dtype); }

/* Row r of the matrix of expert e is `stride` apart; `n_kinds` kinds of rows are interleaved in the tensor. */
static const struct weight *bind_transposed(struct binder *b, int l, const char *leaf, int n_kinds, int64_t rows,
                                            int64_t in) {
    int64_t E = b->spec->moe.n_experts, all = rows * n_kinds;
    const char *name = expert_tensor(b, l, leaf);
    const struct stored_tensor *t = bind_tensor(b, name, 3, (int64_t[]){E, in, all});
    struct weight *w = bind_new_weight(b, name, E * all, in, (int)E * n_kinds);
    if (!t || !bind_is_number(b, t))
        return w;
    b->n_parameters += E * all * in;
    for (int64_t i = 0; i < E * n_kinds; i++) {
        int64_t e = i / n_kinds, kind = i % n_kinds;
        const char *at = t->data ? (const char *)t->data + (size_t)(e * in * all + kind) * element(t) : NULL;
        w->parts[i] = (struct weight_part){&qformat_plain, t->dtype, at, rows, n_kinds, all, {0}, 0};
    }
    return w;
}

static const struct weight *bind_mxfp4(struct binder *b, int l, const char *leaf, int n_kinds, int64_t rows,
                                       int64_t in) {
    int64_t E = b->spec->moe.n_experts, all = rows * n_kinds, groups = in / 32;
    const char *name = expert_tensor(b, l, arena_printf(b->arena, "%s_blocks", leaf));
    if (in % 32 != 0) {
        bind_failed(b, fail(b->err, ERR_FORMAT, "%s: %s has %lld columns, MXFP4 needs a multiple of 32", b->spec->path,
                            name, (long long)in));
        return bind_new_weight(b, name, E * all, in, (int)E * n_kinds);
    }
    const struct stored_tensor *t = bind_tensor_as(b, name, DT_U8, 4, (int64_t[]){E, all, groups, 16});
    const struct stored_tensor *s = bind_tensor_as(b, expert_tensor(b, l, arena_printf(b->arena, "%s_scales", leaf)),
                                                   DT_U8, 3, (int64_t[]){E, all, groups});
    struct weight *w = bind_new_weight(b, name, E * all, in, (int)E * n_kinds);
    if (!t || !s)
        return w;
    b->n_parameters += E * all * in;
    for (int64_t i = 0; i < E * n_kinds; i++) {
        int64_t e = i / n_kinds, kind = i % n_kinds, first = e * all + kind;
        const uint8_t *blocks = t->data, *scales = s->data;
        struct qscale scale = {scales ? scales + first * groups : NULL, DT_F8_E8M0, 1, 32, groups * n_kinds, 1};
        w->parts[i] = (struct weight_part){
            &qformat_mxfp4, DT_U8, blocks ? blocks + first * in / 2 : NULL, rows, in / 2 * n_kinds, 1, scale, 0};
    }
    return w;
}

static const struct weight *bind_expert_matrix(struct binder *b, int l, const char *leaf, int n_kinds, int64_t rows,
                                               int64_t in) {
    bool packed = quant_of(b->spec->quant, expert_tensor(b, l, leaf)).scheme == QUANT_MXFP4;
    return packed ? bind_mxfp4(b, l, leaf, n_kinds, rows, in) : bind_transposed(b, l, leaf, n_kinds, rows, in);
}

/* gate_up_proj_bias [E, 2F], interleaved, as gate then up of each expert; down_proj_bias [E, D]. */
static const struct weight *bind_expert_bias(struct binder *b, int l, const char *leaf, int n_kinds, int64_t rows) {
    int64_t E = b->spec->moe.n_experts, all = rows * n_kinds;
    const char *name = expert_tensor(b, l, leaf);
    const struct stored_tensor *t = bind_tensor(b, name, 2, (int64_t[]){E, all});
    struct weight *w = bind_new_weight(b, name, E * all, 1, (int)E * n_kinds);
    if (!t || !bind_is_number(b, t))
        return w;
    b->n_parameters += E * all;
    for (int64_t i = 0; i < E * n_kinds; i++) {
        const char *at =
            t->data ? (const char *)t->data + (size_t)(i / n_kinds * all + i % n_kinds) * element(t) : NULL;
        w->parts[i] = (struct weight_part){&qformat_plain, t->dtype, at, rows, n_kinds, 1, {0}, 0};
    }
    return w;
}

static void *gpt_oss_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    int64_t D = s->hidden_size, F = s->moe.ffn_size;
    struct gpt_oss *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct gpt_oss_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->sinks = bind_vector(b, s->n_heads, "layers.%d.self_attn.sinks", l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->router = bind_matrix(b, s->moe.n_experts, D, "layers.%d.mlp.router", l);
        w->router_bias = bind_vector(b, s->moe.n_experts, "layers.%d.mlp.router.bias", l);
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
    .model_types = (const char *const[]){"gpt_oss", NULL},
    .bind = gpt_oss_bind,
    .record = gpt_oss_record,
    .unused = NULL,
};
