/* smollm3.c - SmolLM3: Llama whose every fourth layer has no RoPE; with a window, those layers slide.
 * Reference: transformers modeling_smollm3.py. */
#include "model/families/family.h"

/* ---- what config.json says ---- */

// no_rope_layers says 1 for a layer with RoPE and 0 for one without.
static enum status read_smollm3(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    json_t *list;
    bool given;
    int interval;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_flag(r, "mlp_bias", false, &s->mlp_bias));
    TRY(window_if_used(r));
    TRY(read_dim(r, "no_rope_layer_interval", 4, &interval));
    TRY(jv_array_or_null(r->text, r->path, "no_rope_layers", &list, r->err));
    if (list && json_array_size(list) < (size_t)s->n_layers)
        return fail(r->err, ERR_FORMAT, "%s: \"no_rope_layers\" has %zu entries, \"num_hidden_layers\" is %d", r->path,
                    json_array_size(list), s->n_layers);
    TRY(one_half_rope(r));
    for (int l = 0; l < s->n_layers; l++) {
        const json_t *entry = json_array_get(list, (size_t)l);
        bool rope = entry ? json_is_true(entry) || json_integer_value(entry) != 0 : (l + 1) % interval != 0;
        s->layers[l].rope = rope ? s->layers[l].rope : -1;
        s->layers[l].mixer = !rope && s->sliding_window ? MIX_SLIDING : MIX_FULL;
    }
    TRY(layers_from_types(r, full_or_sliding, &given));
    return OK;
}

static const struct model_type types[] = {
    {"smollm3", "SmolLM3", .vocab = 128256, .hidden = 2048, .ffn = 11008, .layers = 36, .heads = 16, .kv_heads = 4,
     .max_positions = 32768, .norm_eps = 1e-6, .theta = 2000000, .activation_key = "hidden_act", .activation = "silu",
     .tied = true, .bos = 128000, .eos = 128001, .pad = 128004, .read = read_smollm3},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct smollm3_layer {
    const struct weight *attn_norm, *ffn_norm, *gate_up, *gate_up_bias, *down, *down_bias;
    struct projection qkv, attn_out;
};

struct smollm3 {
    struct ends ends;
    struct smollm3_layer *layers;
};

static void *smollm3_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct smollm3 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct smollm3_layer *w = &m->layers[l];
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

static void smollm3_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct smollm3 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct smollm3_layer *w = &m->layers[l];
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

const struct family family_smollm3 = {
    .types = types,
    .bind = smollm3_bind,
    .record = smollm3_record,
    .unused = (const char *const[]){"*.rotary_emb.inv_freq", NULL},
};
