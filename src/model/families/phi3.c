/* phi3.c - Phi-3: Llama with qkv_proj and gate_up_proj stored fused, LongRoPE in the long variants.
 * Reference: transformers modeling_phi3.py. */
#include "model/families/family.h"

/* ---- what config.json says ---- */

static enum status read_phi3(struct spec_reader *r) {
    layers_init(r);
    TRY(window_on_all(r, 0));
    return one_half_rope(r);
}

static const struct model_type types[] = {
    {"phi3", "Phi3", .vocab = 32064, .hidden = 3072, .ffn = 8192, .layers = 32, .heads = 32, .max_positions = 4096,
     .norm_eps = 1e-5, .theta = 10000, .partial = 1, .activation_key = "hidden_act", .activation = "silu", .bos = 1,
     .eos = 32000, .pad = 32000, .read = read_phi3},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct phi3_layer {
    const struct weight *attn_norm, *qkv, *attn_out, *ffn_norm, *gate_up, *down;
};

struct phi3 {
    struct ends ends;
    struct phi3_layer *layers;
};

static void *phi3_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct dim Q = dim_heads(s->n_heads, s->head_dim), KV = dim_kv_heads(s->n_kv_heads, s->head_dim);
    int64_t all = Q.size + 2 * KV.size;
    struct phi3 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct phi3_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv =
            bind_fused(b, D, 3,
                       (struct part[]){part_rows(b, 0, Q, all, "layers.%d.self_attn.qkv_proj", l),
                                       part_rows(b, Q.size, KV, all, "layers.%d.self_attn.qkv_proj", l),
                                       part_rows(b, Q.size + KV.size, KV, all, "layers.%d.self_attn.qkv_proj", l)});
        w->attn_out = bind_matrix(b, D, Q, "layers.%d.self_attn.o_proj", l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->gate_up = bind_matrix(b, dim_times(F, 2), D, "layers.%d.mlp.gate_up_proj", l);
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
    }
    return m;
}

static void phi3_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct phi3 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct phi3_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv, NULL), NULL, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out, NULL);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        d = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                      w->down, NULL);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_phi3 = {
    .types = types,
    .bind = phi3_bind,
    .record = phi3_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", NULL},
};
