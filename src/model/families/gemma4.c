/* gemma4.c - Gemma 4 (text): 31B dense, 26B-A4B, and the E-models (E2B, E4B).
 *
 *     h = N_in(x);  q = rope(q_norm(Wq h));  k = rope(k_norm(Wk h));  v = v_norm(Wv h);  global layers: v_norm(Wk h)
 *     x += N_post_attn(Wo attention(q, k, v))           scale 1
 *     m = ffn(N_pre_ff(x));  with experts: m = N_ff1(m) + N_ff2(experts(N_pre_ff2(x), router(x)))
 *     x += N_post_ff(m);  in E-models then x += N_input(Wp (act(Wi x) * inputs_l))
 *     x *= layer_scalar
 *     router(x): softmax of W (norm(x) * scale / sqrt(D)), top-k, divided by their sum, times per_expert_scale
 *
 * Norm weights are plain (not plus one). Global layers have a head_dim and a number of KV heads of their own.
 * layer_scalar scales the whole stream once, so it travels with the next residual add. E-models give each layer an
 * input of its own, inputs = (N(Wm x0 / sqrt(D)) + table[token] * sqrt(P)) / sqrt(2) with x0 the scaled embedding, and
 * their last layers read the cache of an earlier layer of their kind. Reference: transformers modeling_gemma4.py. */
#include "model/families/family.h"

#include <math.h>
#include <stdio.h>

/* ---- what config.json says ---- */

/* Layers whose attention differs: {"5": {"head_dim": 128, "num_key_value_heads": 1}}, as transformers writes it
 * from 5.10 on. */
static enum status gemma4_overrides(struct spec_reader *r, json_t *overrides) {
    const char *key;
    json_t *layer, *value;
    json_object_foreach(overrides, key, layer) {
        char *end;
        long l = strtol(key, &end, 10);
        if (*end || end == key || l < 0 || l >= r->spec->n_layers)
            return fail(r->err, ERR_FORMAT, "%s: \"per_layer_config\" names layer \"%s\"", r->path, key);
        const char *name;
        json_object_foreach(layer, name, value) {
            int *out = strcmp(name, "head_dim") == 0              ? &r->spec->layers[l].head_dim
                       : strcmp(name, "num_key_value_heads") == 0 ? &r->spec->layers[l].n_kv_heads
                                                                  : NULL;
            if (!out)
                return fail(r->err, ERR_UNSUPPORTED, "%s: \"per_layer_config\" sets \"%s\", which is not supported",
                            r->path, name);
            int64_t n;
            TRY(jv_int(layer, r->path, name, 1, SPEC_MAX_DIM, &n, r->err));
            *out = (int)n;
        }
    }
    return OK;
}

static enum status gemma4_heads(struct spec_reader *r, bool k_eq_v) {
    json_t *overrides;
    int global_head_dim, global_kv_heads;
    TRY(jv_object_or_null(r->text, r->path, "per_layer_config", &overrides, r->err));
    if (overrides)
        return gemma4_overrides(r, overrides);
    TRY(read_dim(r, "global_head_dim", 512, &global_head_dim));
    TRY(read_count(r, "num_global_key_value_heads", 0, &global_kv_heads));
    for (int l = 0; l < r->spec->n_layers; l++) {
        struct layer_spec *layer = &r->spec->layers[l];
        if (layer->mixer != MIX_FULL)
            continue;
        layer->head_dim = global_head_dim;
        if (k_eq_v && global_kv_heads)
            layer->n_kv_heads = global_kv_heads;
    }
    return OK;
}

/* The last n_shared layers read the cache of the last layer of their kind before them. */
static enum status gemma4_sharing(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    int n_shared;
    bool double_wide;
    TRY(read_count(r, "num_kv_shared_layers", 0, &n_shared));
    TRY(read_flag(r, "use_double_wide_mlp", false, &double_wide));
    if (n_shared >= s->n_layers)
        return fail(r->err, ERR_FORMAT, "%s: \"num_kv_shared_layers\" is %d of %d layers", r->path, n_shared,
                    s->n_layers);
    int first = s->n_layers - n_shared;
    for (int l = first; l < s->n_layers; l++) {
        int source = first - 1;
        while (source >= 0 && s->layers[source].mixer != s->layers[l].mixer)
            source--;
        if (source < 0)
            return fail(r->err, ERR_FORMAT, "%s: layer %d shares a cache, but no layer before %d is of its kind",
                        r->path, l, first);
        if (s->layers[l].n_kv_heads != s->layers[source].n_kv_heads ||
            s->layers[l].head_dim != s->layers[source].head_dim)
            return fail(r->err, ERR_FORMAT, "%s: layer %d shares the cache of layer %d, whose heads are others",
                        r->path, l, source);
        s->layers[l].kv_source = source;
        if (double_wide)
            s->layers[l].ffn_size = 2 * s->ffn_size;
    }
    return OK;
}

static enum status gemma4_experts(struct spec_reader *r) {
    struct moe_spec *m = &r->spec->moe;
    bool on;
    TRY(read_flag(r, "enable_moe_block", false, &on));
    if (!on)
        return OK;
    TRY(jv_int(r->text, r->path, "num_experts", 1, SPEC_MAX_DIM, &(int64_t){0}, r->err)); // has no default
    TRY(read_dim(r, "num_experts", 1, &m->n_experts));
    TRY(read_dim(r, "top_k_experts", 1, &m->top_k));
    TRY(read_dim(r, "moe_intermediate_size", 1, &m->ffn_size));
    m->routing = ROUTE_SOFTMAX;
    m->renormalise = true;
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].moe = true; // beside the dense FFN
    return OK;
}

static enum status gemma4_ropes(struct spec_reader *r) {
    const struct model_spec *s = r->spec;
    int full_dim = s->head_dim, sliding, full;
    for (int l = 0; l < s->n_layers; l++)
        if (s->layers[l].mixer == MIX_FULL)
            full_dim = s->layers[l].head_dim;
    for (int l = 0; l < s->n_layers; l++)
        if (s->layers[l].head_dim != (s->layers[l].mixer == MIX_FULL ? full_dim : s->head_dim))
            return fail(r->err, ERR_UNSUPPORTED, "%s: layers of one kind have different \"head_dim\"", r->path);
    json_t *proportional = json_pack("{s:s, s:f}", "rope_type", "proportional", "partial_rotary_factor", 0.25);
    enum status st = add_rope(r, "sliding_attention", NULL, 10000, s->head_dim, ROPE_HALF, &sliding);
    if (st == OK)
        st = add_rope(r, "full_attention", proportional, 1000000, full_dim, ROPE_HALF, &full);
    json_decref(proportional);
    TRY(st);
    ropes_by_mixer(r, sliding, full);
    return OK;
}

enum status read_gemma4(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    bool given, k_eq_v;
    const char *bidirectional;
    TRY(read_gemma_common(r));
    s->attention_scale = 1;
    TRY(read_cap(r, "final_logit_softcapping", 0, &s->final_softcap));
    TRY(read_dim(r, "sliding_window", 512, &s->sliding_window));
    TRY(jv_string_or(r->text, r->path, "use_bidirectional_attention", "vision", &bidirectional, r->err));
    if (strcmp(bidirectional, "vision") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"use_bidirectional_attention\" %s is not supported", r->path,
                    bidirectional);
    TRY(layers_from_types(r, full_or_sliding, &given));
    if (!given)
        layers_by_period(r, 6, MIX_SLIDING);
    s->layers[s->n_layers - 1].mixer = MIX_FULL; // whatever the list says
    TRY(read_flag(r, "attention_k_eq_v", false, &k_eq_v));
    for (int l = 0; l < s->n_layers; l++)
        s->layers[l].v_from_k = k_eq_v && s->layers[l].mixer == MIX_FULL;
    TRY(gemma4_heads(r, k_eq_v));
    TRY(gemma4_sharing(r));
    TRY(gemma4_experts(r));
    TRY(read_optional(r, "hidden_size_per_layer_input", 256, &s->per_layer_input_size));
    TRY(read_dim(r, "vocab_size_per_layer_input", 262144, &s->per_layer_vocab_size));
    if (!s->per_layer_input_size)
        s->per_layer_vocab_size = 0;
    TRY(gemma4_ropes(r));
    return OK;
}

static const struct model_type types[] = {
    {"gemma4_text", "Gemma4", .vocab = 262144, .hidden = 2304, .ffn = 9216, .layers = 30, .heads = 8, .kv_heads = 4,
     .head_dim = 256, .max_positions = 131072, .norm_eps = 1e-6, .theta = 1000000,
     .activation_key = "hidden_activation", .activation = "gelu_pytorch_tanh", .tied = true, .bos = 2, .eos = 1,
     .pad = 0, .read = read_gemma4},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct gemma4_layer {
    const struct weight *attn_norm, *q_norm, *k_norm, *post_attn_norm, *ffn_norm, *gate_up, *down, *post_ffn_norm,
        *scalar;
    const struct weight *router, *router_scale, *expert_scale, *experts_norm, *post_dense_norm,
        *post_experts_norm;                                   // NULL when dense
    const struct weight *input_gate, *input_out, *input_norm; // NULL but in E-models
    struct experts experts;
    struct projection qkv, attn_out;
};

struct gemma4 {
    struct ends ends;
    const struct weight *input_table, *input_proj, *input_norm; // NULL but in E-models
    struct gemma4_layer *layers;
};

static void bind_moe(struct binder *b, int l, struct gemma4_layer *w) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size);
    char base[64];
    snprintf(base, sizeof base, "layers.%d.experts", l);
    w->router = bind_matrix(b, dim_whole(s->moe.n_experts), D, "layers.%d.router.proj", l);
    w->router_scale = bind_vector(b, D, "layers.%d.router.scale", l);
    w->expert_scale = bind_vector(b, dim_whole(s->moe.n_experts), "layers.%d.router.per_expert_scale", l);
    w->experts = bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts,
                              s->moe.ffn_size, s->hidden_size, true);
    w->experts_norm = bind_vector(b, D, "layers.%d.pre_feedforward_layernorm_2.weight", l);
    w->post_dense_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm_1.weight", l);
    w->post_experts_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm_2.weight", l);
}

/* Layers that share a cache have no k and v; some files hold them all the same. */
static void set_shared_aside(struct binder *b, int l) {
    static const char *const names[] = {"k_proj", "v_proj", "k_norm"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        bind_set_aside(b, arena_printf(b->arena, "layers.%d.self_attn.%s.weight", l, names[i]));
}

static void bind_inputs(struct binder *b, struct gemma4 *m) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), P = dim_whole(s->per_layer_input_size);
    m->input_table = bind_matrix(b, dim_vocab(s->vocab_size), dim_times(P, s->n_layers), "embed_tokens_per_layer");
    m->input_proj = bind_matrix(b, dim_times(P, s->n_layers), D, "per_layer_model_projection");
    m->input_norm = bind_vector(b, P, "per_layer_projection_norm.weight");
    for (int l = 0; l < s->n_layers; l++) {
        m->layers[l].input_gate = bind_matrix(b, P, D, "layers.%d.per_layer_input_gate", l);
        m->layers[l].input_out = bind_matrix(b, D, P, "layers.%d.per_layer_projection", l);
        m->layers[l].input_norm = bind_vector(b, D, "layers.%d.post_per_layer_input_norm.weight", l);
    }
}

static void *gemma4_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size);
    struct gemma4 *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++) {
        struct gemma4_layer *w = &m->layers[l];
        struct dim hd = dim_whole(s->layers[l].head_dim), F = dim_ffn(s->layers[l].ffn_size);
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
        if (s->layers[l].kv_source == l)
            w->k_norm = bind_vector(b, hd, "layers.%d.self_attn.k_norm.weight", l);
        else
            set_shared_aside(b, l);
        w->attn_out = bind_attn_out(b, l);
        w->post_attn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.pre_feedforward_layernorm.weight", l);
        w->gate_up = bind_fused(
            b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        w->post_ffn_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm.weight", l);
        w->scalar = bind_vector(b, dim_whole(1), "layers.%d.layer_scalar", l);
        if (s->layers[l].moe)
            bind_moe(b, l, w);
    }
    if (s->per_layer_input_size)
        bind_inputs(b, m);
    return m;
}

/* What the experts add beside the dense FFN; both read x, the stream after attention. */
static val record_moe(struct program *p, const struct model_spec *s, const struct gemma4_layer *w, val x, val dense,
                      struct norm_args norm) {
    struct norm_args router_norm = norm;
    router_norm.scale = 1 / sqrtf((float)s->hidden_size);
    val logits = op_linear(p, op_norm(p, x, NO_VAL, w->router_scale, router_norm), w->router, NULL);
    struct routed r = op_moe_route(p, logits, NULL, w->expert_scale,
                                   (struct route_args){.how = ROUTE_SOFTMAX,
                                                       .n_experts = s->moe.n_experts,
                                                       .top_k = s->moe.top_k,
                                                       .renormalise = true,
                                                       .scale = 1});
    val e = op_moe_ffn(p, op_norm(p, x, NO_VAL, w->experts_norm, norm), r, w->experts.w13, w->experts.w2, NULL, NULL,
                       (struct moe_args){s->moe.n_experts, s->moe.top_k, s->moe.ffn_size, {.act = s->activation}});
    return op_gated_add(p, op_norm(p, dense, NO_VAL, w->post_dense_norm, norm),
                        op_norm(p, e, NO_VAL, w->post_experts_norm, norm), NO_VAL);
}

/* The inputs of all layers side by side, P columns each. The norm's eps stands against the unscaled projection. */
static val record_inputs(struct program *p, const struct model_spec *s, const struct gemma4 *m, val x0) {
    int P = s->per_layer_input_size;
    struct norm_args norm = {.eps = (float)(s->norm_eps * s->hidden_size), .group = P, .scale = sqrtf(0.5f)};
    val of_token = op_embed(p, m->input_table, sqrtf(0.5f * (float)P));
    return op_gated_add(p, op_norm(p, op_linear(p, x0, m->input_proj, NULL), NO_VAL, m->input_norm, norm), of_token,
                        NO_VAL);
}

/* What layer l's input adds to the stream. */
static val record_input(struct program *p, const struct model_spec *s, const struct gemma4_layer *w, val x, val input,
                        struct norm_args norm) {
    val g = op_gated_act(p, op_linear(p, x, w->input_gate, NULL), input, (struct act_args){.act = s->activation});
    return op_norm(p, op_linear(p, g, w->input_out, NULL), NO_VAL, w->input_norm, norm);
}

static void gemma4_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct gemma4 *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps};
    const struct weight *r_scale = NULL;
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    int P = s->per_layer_input_size;
    val inputs = P ? record_inputs(p, s, m, x) : NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct gemma4_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        at.prep.v_norm = true;
        struct normed n = op_add_norm(p, x, d, w->attn_norm, r_scale, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), w->q_norm, w->k_norm, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, op_norm(p, a, NO_VAL, w->post_attn_norm, norm), w->ffn_norm, NULL, norm);
        val f = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                          w->down, NULL);
        if (s->layers[l].moe)
            f = record_moe(p, s, w, n.r, f, norm);
        d = op_norm(p, f, NO_VAL, w->post_ffn_norm, norm);
        x = n.r;
        if (P) {
            x = op_gated_add(p, x, d, NO_VAL);
            d = record_input(p, s, w, x, val_cols(inputs, l * P, P), norm);
        }
        r_scale = w->scalar;
    }
    record_head(p, s, &m->ends, x, d, r_scale, norm);
}

const struct family family_gemma4 = {
    .types = types,
    .bind = gemma4_bind,
    .record = gemma4_record,
    .unused = (const char *const[]){"*vision_tower.*", "*audio_tower.*", "*embed_vision.*", "*embed_audio.*",
                                    "*multi_modal_projector.*", "*.rotary_emb.inv_freq", NULL},
};
