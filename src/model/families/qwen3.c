/* qwen3.c - Qwen3 dense: q and k are RMS-normalised per head before RoPE.
 * Reference: transformers modeling_qwen3.py. */
#include "model/families/family.h"

/* ---- what config.json says ---- */

enum status read_qwen3(struct spec_reader *r) {
    TRY(biases(r, false));
    return read_qwen_layers(r);
}

static const struct model_type types[] = {
    {"qwen3", "Qwen3", .vocab = 151936, .hidden = 4096, .ffn = 22016, .layers = 32, .heads = 32, .kv_heads = 32,
     .head_dim = 128, .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act",
     .activation = "silu", .bos = -1, .eos = -1, .pad = -1, .read = read_qwen3},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct qwen3_layer {
    const struct weight *attn_norm, *q_norm, *k_norm, *ffn_norm, *gate_up, *down;
    struct projection qkv, attn_out;
};

struct qwen3 {
    struct ends ends;
    struct qwen3_layer *layers;
};

static void *qwen3_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size), hd = dim_whole(s->head_dim);
    struct qwen3 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct qwen3_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
        w->k_norm = bind_vector(b, hd, "layers.%d.self_attn.k_norm.weight", l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->gate_up = bind_fused(
            b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
    }
    return m;
}

static void qwen3_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct qwen3 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct qwen3_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), w->q_norm, w->k_norm, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        d = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                      w->down, NULL);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_qwen3 = {
    .types = types,
    .bind = qwen3_bind,
    .record = qwen3_record,
    .unused = NULL,
};
