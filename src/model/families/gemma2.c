/* gemma2.c - Gemma 2: four norms a layer (weights stored less one), soft-caps, every other layer slides.
 *
 *     x += N2(attention(N1(x)));  x += N4(ffn(N3(x)))
 *
 * The embedding is multiplied by sqrt(D) rounded to bf16 (in the spec). Reference: transformers modeling_gemma2.py. */
#include "model/families/family.h"

/* ---- what config.json says ---- */

static enum status read_gemma2(struct spec_reader *r) {
    bool given;
    TRY(read_gemma_common(r));
    TRY(read_gemma_scale(r));
    TRY(read_cap(r, "attn_logit_softcapping", 50, &r->spec->attention_softcap));
    TRY(read_cap(r, "final_logit_softcapping", 30, &r->spec->final_softcap));
    TRY(read_optional(r, "sliding_window", 4096, &r->spec->sliding_window));
    TRY(refuse_flag(r, "use_bidirectional_attention"));
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, 2, MIX_SLIDING);
    return one_half_rope(r);
}

static const struct model_type types[] = {
    {"gemma2", "Gemma2", .vocab = 256000, .hidden = 2304, .ffn = 9216, .layers = 26, .heads = 8, .kv_heads = 4,
     .head_dim = 256, .max_positions = 8192, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh", .tied = true, .bos = 2, .eos = 1, .pad = 0, .read = read_gemma2},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct gemma2_layer {
    const struct weight *attn_norm, *post_attn_norm, *ffn_norm, *gate_up, *down, *post_ffn_norm;
    struct projection qkv, attn_out;
};

struct gemma2 {
    struct ends ends;
    struct gemma2_layer *layers;
};

static void *gemma2_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct gemma2 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct gemma2_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->attn_out = bind_attn_out(b, l);
        w->post_attn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.pre_feedforward_layernorm.weight", l);
        w->gate_up = bind_fused(
            b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        w->post_ffn_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm.weight", l);
    }
    return m;
}

static void gemma2_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct gemma2 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps, .plus_one = !s->norms_hold_one};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct gemma2_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), NULL, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, op_norm(p, a, NO_VAL, w->post_attn_norm, norm), w->ffn_norm, NULL, norm);
        val f = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                          w->down, NULL);
        d = op_norm(p, f, NO_VAL, w->post_ffn_norm, norm);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_gemma2 = {
    .types = types,
    .bind = gemma2_bind,
    .record = gemma2_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", NULL},
};
