/* llama.c - Llama 2 and 3, Mistral: the plain pre-norm decoder.
 *
 *     x += Wo attention(rope(Wq h), rope(Wk h), Wv h),  h = norm(x)
 *     x += Wd (silu(Wg h) * Wu h),                      h = norm(x)
 *
 * Mistral differs by a sliding window on every layer. Reference: transformers modeling_llama.py, modeling_mistral.py.
 */
#include "model/families/family.h"

/* ---- what config.json says ---- */

enum status read_llama(struct spec_reader *r) {
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_flag(r, "mlp_bias", false, &r->spec->mlp_bias));
    return one_half_rope(r);
}

static enum status read_mistral(struct spec_reader *r) {
    layers_init(r);
    TRY(window_on_all(r, 4096));
    return one_half_rope(r);
}

static const struct model_type types[] = {
    {"llama", "Llama", .vocab = 32000, .hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .max_positions = 2048,
     .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu", .bos = 1, .eos = 2,
     .pad = -1, .read = read_llama},
    {"mistral", "Mistral", .vocab = 32000, .hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8,
     .max_positions = 131072, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", .activation = "silu",
     .bos = 1, .eos = 2, .pad = -1, .read = read_mistral},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct llama_layer {
    const struct weight *attn_norm, *ffn_norm, *gate_up, *gate_up_bias, *down, *down_bias;
    struct projection qkv, attn_out;
};

struct llama {
    struct ends ends;
    struct llama_layer *layers;
};

static void *llama_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct llama *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct llama_layer *w = &m->layers[l];
        struct part gate_up[2] = {part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)};
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->gate_up = bind_fused(b, D, 2, gate_up);
        w->gate_up_bias = s->mlp_bias ? bind_fused_bias(b, 2, gate_up) : NULL;
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        w->down_bias = s->mlp_bias ? bind_vector(b, D, "layers.%d.mlp.down_proj.bias", l) : NULL;
    }
    return m;
}

static void llama_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct llama *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct llama_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), NULL, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        val g = op_glu(p, op_linear(p, n.y, w->gate_up, w->gate_up_bias), (struct act_args){.act = s->activation});
        d = op_linear(p, g, w->down, w->down_bias);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_llama = {
    .types = types,
    .bind = llama_bind,
    .record = llama_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", "*vision_tower.*", "*multi_modal_projector.*",
                                    NULL}, // of mistral3
};
