/* qwen2.c - Qwen2 and Qwen2.5: Llama with biases on q, k and v. Windows, where switched on, only from
 * max_window_layers up (the spec's rows say which). Reference: transformers modeling_qwen2.py. */
#include "model/families/family.h"

/* ---- what config.json says ---- */

static enum status read_qwen2(struct spec_reader *r) {
    r->spec->qkv_bias = true;
    return read_qwen_layers(r);
}

static const struct model_type types[] = {
    {"qwen2", "Qwen2", .vocab = 151936, .hidden = 4096, .ffn = 22016, .layers = 32, .heads = 32, .kv_heads = 32,
     .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu",
     .bos = -1, .eos = -1, .pad = -1, .read = read_qwen2},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct qwen2_layer {
    const struct weight *attn_norm, *ffn_norm, *gate_up, *down;
    struct projection qkv, attn_out;
};

struct qwen2 {
    struct ends ends;
    struct qwen2_layer *layers;
};

static void *qwen2_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct qwen2 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct qwen2_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->gate_up = bind_fused(
            b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
    }
    return m;
}

static void qwen2_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct qwen2 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct qwen2_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), NULL, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        d = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                      w->down, NULL);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_qwen2 = {
    .types = types,
    .bind = qwen2_bind,
    .record = qwen2_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", NULL},
};
