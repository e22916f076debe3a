/* gemma3.c - Gemma 3 (text): Gemma 2's layer with q and k norms in place of the soft-caps, five sliding layers to
 * one global, each kind with a RoPE of its own. Reference: transformers modeling_gemma3.py. */
#include "model/families/family.h"

/* ---- what config.json says ---- */

static enum status read_gemma3(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    bool given;
    int period, sliding, full;
    double local_theta, theta;
    TRY(read_gemma_common(r));
    TRY(read_gemma_scale(r));
    TRY(read_cap(r, "final_logit_softcapping", 0,
                 &s->final_softcap)); // attn_logit_softcapping is read by the class and not used
    TRY(read_optional(r, "sliding_window", 4096, &s->sliding_window));
    TRY(refuse_flag(r, "use_bidirectional_attention"));
    TRY(read_dim(r, "sliding_window_pattern", 6, &period));
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, period, MIX_SLIDING);
    TRY(read_real(r, "rope_local_base_freq", 10000, &local_theta));
    TRY(read_real(r, "rope_theta", r->type->theta, &theta));
    TRY(add_rope(r, "sliding_attention", NULL, local_theta, s->head_dim, ROPE_HALF, &sliding));
    TRY(add_rope(r, "full_attention", json_object_get(r->text, "rope_scaling"), theta, s->head_dim, ROPE_HALF, &full));
    ropes_by_mixer(r, sliding, full);
    return OK;
}

static const struct model_type types[] = {
    {"gemma3_text", "Gemma3", .vocab = 262208, .hidden = 2304, .ffn = 9216, .layers = 26, .heads = 8, .kv_heads = 4,
     .head_dim = 256, .max_positions = 131072, .norm_eps = 1e-6, .theta = 1000000,
     .activation_key = "hidden_activation", .activation = "gelu_pytorch_tanh", .tied = true, .bos = 2, .eos = 1,
     .pad = 0, .read = read_gemma3},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct gemma3_layer {
    const struct weight *attn_norm, *q_norm, *k_norm, *post_attn_norm, *ffn_norm, *gate_up, *down, *post_ffn_norm;
    struct projection qkv, attn_out;
};

struct gemma3 {
    struct ends ends;
    struct gemma3_layer *layers;
};

static void *gemma3_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size), hd = dim_whole(s->head_dim);
    struct gemma3 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct gemma3_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
        w->k_norm = bind_vector(b, hd, "layers.%d.self_attn.k_norm.weight", l);
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

static void gemma3_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct gemma3 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps, .plus_one = !s->norms_hold_one};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct gemma3_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        at.prep.plus_one = !s->norms_hold_one;
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), w->q_norm, w->k_norm, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, op_norm(p, a, NO_VAL, w->post_attn_norm, norm), w->ffn_norm, NULL, norm);
        val f = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                          w->down, NULL);
        d = op_norm(p, f, NO_VAL, w->post_ffn_norm, norm);
        x = n.r;
    }
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

const struct family family_gemma3 = {
    .types = types,
    .bind = gemma3_bind,
    .record = gemma3_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", "*vision_tower.*", "*multi_modal_projector.*", NULL},
};
