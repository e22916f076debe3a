/* diffllama.c - DiffLlama: differential attention in the layout of transformers (pairs h and h + H/2).
 *
 *     o_h = softmax(q_h k) [v_a | v_b]    of both heads of a pair, over the values of both
 *     o = norm(o_h - lambda o_{h+H/2}) * (1 - lambda_init),  lambda = exp(lq1.lk1) - exp(lq2.lk2) + lambda_init
 *     lambda_init = 0.8 - 0.6 exp(-0.3 l);  the norm has no weight and spans 2 head_dim
 *
 * The rest is Llama. Reference: transformers modeling_diffllama.py (eager). */
#include "model/families/family.h"

#include <math.h>

/* ---- what config.json says ---- */

static enum status read_diffllama(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    if (r->spec->n_heads % 2 || r->spec->n_kv_heads % 2)
        return fail(r->err, ERR_FORMAT, "%s: diffllama pairs its heads, so their numbers must be even", r->path);
    return one_half_rope(r);
}

static const struct model_type types[] = {
    {"diffllama", "DiffLlama", .vocab = 32000, .hidden = 2048, .ffn = 8192, .layers = 16, .heads = 32,
     .max_positions = 2048, .norm_eps = 1e-5, .theta = 10000, .activation_key = "hidden_act", .activation = "silu",
     .bos = 1, .eos = 2, .pad = -1, .read = read_diffllama},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct diffllama_layer {
    const struct weight *attn_norm, *ffn_norm, *gate_up, *down, *lambda[4];
    struct projection qkv, attn_out;
};

struct diffllama {
    struct ends ends;
    struct diffllama_layer *layers;
};

/* KV heads of first and of second query heads, where those are others. */
static struct dim kv_dim(const struct model_spec *s) {
    int pairs = s->n_kv_heads % 2 == 0 ? 2 : 1;
    return dim_times(dim_kv_heads(s->n_kv_heads / pairs, s->head_dim), pairs);
}

static void *diffllama_bind(struct binder *b) {
    static const char *const lambdas[4] = {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"};
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct dim Q = dim_times(dim_heads(s->n_heads / 2, s->head_dim), 2), KV = kv_dim(s); // a pair stays together
    struct diffllama *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct diffllama_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv_of(b, l, Q, KV);
        for (int i = 0; i < 4; i++)
            w->lambda[i] = bind_vector(b, dim_whole(s->head_dim), "layers.%d.self_attn.%s", l, lambdas[i]);
        w->attn_out.w = bind_matrix(b, D, dim_heads(s->n_heads / 2, 2 * s->head_dim), "layers.%d.self_attn.o_proj", l);
        w->attn_out.bias = s->o_bias ? bind_vector(b, D, "layers.%d.self_attn.o_proj.bias", l) : NULL;
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->gate_up = bind_fused(
            b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
    }
    return m;
}

static val record_attention(struct program *p, const struct model_spec *s, const struct diffllama_layer *w, int l,
                            val y) {
    struct attention_of at = layer_attention(p, s, l);
    at.attend.paired_values = true;
    float lambda_init = (float)(0.8 - 0.6 * exp(-0.3 * l));
    val q = op_qkv_prep(p, op_linear(p, y, w->qkv.w, w->qkv.bias), NULL, NULL, at.prep);
    val o = op_diff_heads(p, op_attention(p, q, NULL, at.attend), (const struct weight **)w->lambda,
                          (struct diff_args){s->n_heads, 2 * s->head_dim, lambda_init});
    val n = op_norm(p, o, NO_VAL, NULL,
                    (struct norm_args){.eps = (float)s->norm_eps, .group = 2 * s->head_dim, .scale = 1 - lambda_init});
    return op_linear(p, n, w->attn_out.w, w->attn_out.bias);
}

static void diffllama_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct diffllama *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct diffllama_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        n = op_add_norm(p, n.r, record_attention(p, s, w, l, n.y), w->ffn_norm, NULL, norm);
        d = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                      w->down, NULL);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_diffllama = {
    .types = types,
    .bind = diffllama_bind,
    .record = diffllama_record,
    .unused = NULL,
};
