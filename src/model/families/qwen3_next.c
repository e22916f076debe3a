/* qwen3_next.c - Qwen3-Next, Qwen3.5 and 3.6: gated DeltaNet layers with gated full attention every fourth layer.
 *
 *     x += mixer(N1(x));  x += ffn(N2(x))                        all norms but the gated one multiply by 1 + w
 *     full:  out = Wo (attention(q, k, v) * sigmoid(gate));      q_proj holds, per head, q rows then gate rows
 *     delta: u = conv([q|k|v]);  o = delta_rule(u, b, a);  out = Wo (norm(o) * silu(z))
 *     ffn:   SwiGLU, or experts + sigmoid(shared_expert_gate x) * shared expert
 *
 * Qwen3.5 stores in_proj_{qkv,z,b,a}; Qwen3-Next stores in_proj_qkvz and in_proj_ba grouped by key head. Parts make
 * one projection [q|k|v|z|b|a] of both. Reference: transformers modeling_qwen3_5.py, modeling_qwen3_next.py. */
#include "model/families/family.h"
#include "model/gguf/gguf_model.h"
#include "model/weights/bind_internal.h"

#include <math.h>
#include <stdio.h>

/* ---- what config.json says ---- */

static const char *const full_or_linear[] = {"full_attention", "linear_attention", NULL};

static enum status read_hybrid(struct spec_reader *r) {
    struct delta_spec *d = &r->spec->delta;
    bool given;
    int period;
    layers_init(r);
    TRY(biases(r, false));
    TRY(read_dim(r, "linear_conv_kernel_dim", 4, &d->conv_kernel));
    TRY(read_dim(r, "linear_key_head_dim", 128, &d->key_dim));
    TRY(read_dim(r, "linear_value_head_dim", 128, &d->value_dim));
    TRY(read_dim(r, "linear_num_key_heads", 16, &d->n_key_heads));
    TRY(read_dim(r, "linear_num_value_heads", 32, &d->n_value_heads));
    TRY(read_dim(r, "full_attention_interval", 4, &period));
    TRY(layers_from_types(r, full_or_linear, &given));
    if (!given)
        layers_by_period(r, period, MIX_DELTA);
    bool gate;
    TRY(read_flag(r, "attn_output_gate", true, &gate));
    if (!gate)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"attn_output_gate\" false is not supported", r->path);
    TRY(read_count(r, "mtp_num_hidden_layers", 0, &r->spec->n_mtp_layers));
    if (r->spec->activation != ACT_SILU) // which the convolution would take over
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"hidden_act\" must be silu for %s", r->path, r->spec->model_type);
    return one_half_rope(r);
}

static enum status read_qwen3_next(struct spec_reader *r) {
    TRY(read_hybrid(r));
    TRY(read_flag(r, "norm_topk_prob", true, &r->spec->moe.renormalise));
    TRY(read_qwen_experts(r, 512, 10, 512, 512));
    return experts_by_step(r);
}

static enum status read_qwen3_5(struct spec_reader *r) { return read_hybrid(r); }

static enum status read_qwen3_5_moe(struct spec_reader *r) {
    TRY(read_hybrid(r));
    r->spec->moe.renormalise = true;
    TRY(read_qwen_experts(r, 256, 8, 512, 512));
    experts_everywhere(r);
    return OK;
}

static const struct model_type types[] = {
    {"qwen3_next", "Qwen3Next", .vocab = 151936, .hidden = 2048, .ffn = 5632, .layers = 48, .heads = 16, .kv_heads = 2,
     .head_dim = 256, .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .partial = 0.25,
     .activation_key = "hidden_act", .activation = "silu", .bos = -1, .eos = -1, .pad = -1, .read = read_qwen3_next},
    {"qwen3_5_text", "Qwen3_5", .vocab = 248320, .hidden = 4096, .ffn = 12288, .layers = 32, .heads = 16, .kv_heads = 4,
     .head_dim = 256, .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .partial = 0.25,
     .activation_key = "hidden_act", .activation = "silu", .bos = -1, .eos = -1, .pad = -1, .read = read_qwen3_5},
    {"qwen3_5_moe_text", "Qwen3_5Moe", .vocab = 248320, .hidden = 2048, .ffn = 5632, .layers = 40, .heads = 16,
     .kv_heads = 2, .head_dim = 256, .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000, .partial = 0.25,
     .activation_key = "hidden_act", .activation = "silu", .bos = -1, .eos = -1, .pad = -1, .read = read_qwen3_5_moe},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct qwen3_next_layer {
    const struct weight *mixer_norm, *ffn_norm;
    struct projection qkv_gate, attn_out;                                      // full attention
    const struct weight *q_norm, *k_norm;                                      //
    const struct weight *in, *conv, *a_log, *dt_bias, *gated_norm, *delta_out; // DeltaNet
    const struct weight *gate_up, *down;                                       // dense FFN, or the shared expert
    const struct weight *router, *shared_gate;
    struct experts experts;
};

struct qwen3_next {
    struct ends ends;
    struct qwen3_next_layer *layers;
};

static void bind_full(struct binder *b, int l, struct qwen3_next_layer *w) {
    const struct model_spec *s = b->spec;
    int H = s->n_heads, hd = s->head_dim;
    struct dim D = dim_whole(s->hidden_size), Q = dim_heads(H, hd), KV = dim_kv_heads(s->n_kv_heads, hd);
    struct part *parts = arena_calloc(b->arena, (size_t)H * 2 + 2, sizeof *parts), *at = parts;
    for (int h = 0; h < H; h++)
        *at++ = part_rows(b, 2 * h * hd, dim_share(Q, h, H), 2 * H * hd, "layers.%d.self_attn.q_proj", l);
    *at++ = part(b, KV, "layers.%d.self_attn.k_proj", l);
    *at++ = part(b, KV, "layers.%d.self_attn.v_proj", l);
    for (int h = 0; h < H; h++)
        *at++ = part_rows(b, (2 * h + 1) * hd, dim_share(Q, h, H), 2 * H * hd, "layers.%d.self_attn.q_proj", l);
    w->qkv_gate.w = bind_fused(b, D, 2 * H + 2, parts);
    w->qkv_gate.bias = s->qkv_bias ? bind_fused_bias(b, 2 * H + 2, parts) : NULL;
    w->q_norm = bind_vector(b, dim_whole(hd), "layers.%d.self_attn.q_norm.weight", l);
    w->k_norm = bind_vector(b, dim_whole(hd), "layers.%d.self_attn.k_norm.weight", l);
    w->attn_out = bind_attn_out(b, l);
}

/* A GGUF file has value head h beside those of other keys: it reads key head h modulo their number. The same rows of q
 * and k are taken once for each value head then, so that heads of both are as many. */
/* Rows [first, first + K * heads) of a module, a head's K for each value head. */
static struct part *tiled_rows(struct binder *b, struct part *at, int64_t first, struct dim keys, int64_t stored,
                               int l) {
    const struct delta_spec *d = &b->spec->delta;
    for (int64_t h = 0; h < d->n_value_heads; h++)
        *at++ = part_rows(b, first + h % d->n_key_heads * d->key_dim, dim_share(keys, h, d->n_value_heads), stored,
                          "layers.%d.linear_attn.in_proj_qkv", l);
    return at;
}

/* From `first` on a key head's share of `rows`, of each group of `group` rows. */
static struct part *grouped_rows(struct binder *b, struct part *at, int64_t n_groups, int64_t group, int64_t first,
                                 struct dim rows, const char *module, int l) {
    for (int64_t g = 0; g < n_groups; g++)
        *at++ = part_rows(b, g * group + first, dim_share(rows, g, n_groups), n_groups * group,
                          "layers.%d.linear_attn.%s", l, module);
    return at;
}

static const struct weight *bind_delta_in(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    const struct delta_spec *d = &s->delta;
    int64_t K = d->key_dim, r = d->n_value_heads / d->n_key_heads, V = r * d->value_dim; // a key head's share of v
    int64_t Hk = d->n_key_heads, Hv = d->n_value_heads, qk = Hk * K, qkv = 2 * qk + Hv * d->value_dim;
    struct dim keys = dim_key_heads(spec_key_heads(s), K), values = dim_value_heads(Hv, d->value_dim);
    struct dim gates = dim_value_heads(Hv, 1);
    struct part *parts = arena_calloc(b->arena, (size_t)(Hk * 6 + Hv * 2 + 6), sizeof *parts), *at = parts;
    if (strcmp(s->model_type, "qwen3_next") == 0) {
        int64_t group = 2 * K + 2 * V;
        at = grouped_rows(b, at, Hk, group, 0, keys, "in_proj_qkvz", l);
        at = grouped_rows(b, at, Hk, group, K, keys, "in_proj_qkvz", l);
        at = grouped_rows(b, at, Hk, group, 2 * K, values, "in_proj_qkvz", l);
        at = grouped_rows(b, at, Hk, group, 2 * K + V, values, "in_proj_qkvz", l);
        at = grouped_rows(b, at, Hk, 2 * r, 0, gates, "in_proj_ba", l);
        at = grouped_rows(b, at, Hk, 2 * r, r, gates, "in_proj_ba", l);
    } else {
        if (spec_tiles_keys(s)) {
            at = tiled_rows(b, at, 0, keys, qkv, l);
            at = tiled_rows(b, at, qk, keys, qkv, l);
        } else {
            *at++ = part_rows(b, 0, keys, qkv, "layers.%d.linear_attn.in_proj_qkv", l);
            *at++ = part_rows(b, qk, keys, qkv, "layers.%d.linear_attn.in_proj_qkv", l);
        }
        *at++ = part_rows(b, 2 * qk, values, qkv, "layers.%d.linear_attn.in_proj_qkv", l);
        *at++ = part(b, values, "layers.%d.linear_attn.in_proj_z", l);
        *at++ = part(b, gates, "layers.%d.linear_attn.in_proj_b", l);
        *at++ = part(b, gates, "layers.%d.linear_attn.in_proj_a", l);
    }
    return bind_fused(b, dim_whole(s->hidden_size), (int)(at - parts), parts);
}

/* The channels of a GGUF file's heads, tiled as in_proj_qkv's rows. */
static void bind_tiled_conv(struct binder *b, struct weight *w, const struct weight_part *all, struct dim keys,
                            struct dim values) {
    const struct delta_spec *d = &b->spec->delta;
    int64_t n = d->n_value_heads, K = d->key_dim, qk = d->n_key_heads * K;
    for (int64_t i = 0; i < 2 * n; i++) {
        w->parts[i] = weight_part_rows(all, i / n * qk + i % n % d->n_key_heads * K, K);
        w->parts[i].rows = dim_share(keys, i % n, n);
    }
    w->parts[2 * n] = weight_part_rows(all, 2 * qk, values.size);
    w->parts[2 * n].rows = values;
}

/* conv1d.weight [C, 1, K] is the matrix [C, K], of q's, k's and v's channels. */
static const struct weight *bind_conv(struct binder *b, struct dim keys, struct dim values, int64_t kernel, int l) {
    struct dim rows[3] = {keys, keys, values};
    const struct model_spec *s = b->spec;
    int64_t channels = 2 * keys.size + values.size, first = 0;
    int64_t stored = 2 * (int64_t)s->delta.n_key_heads * s->delta.key_dim + values.size;
    const char *name = bind_full_name(b, arena_printf(b->arena, "layers.%d.linear_attn.conv1d.weight", l));
    const struct stored_tensor *t = s->gguf ? bind_tensor(b, name, 2, (int64_t[]){stored, kernel})
                                            : bind_tensor(b, name, 3, (int64_t[]){stored, 1, kernel});
    struct weight *w =
        bind_new_weight(b, name, channels, dim_whole(kernel), spec_tiles_keys(s) ? 2 * s->delta.n_value_heads + 1 : 3);
    if (!t || !bind_is_number(b, t))
        return w;
    struct weight_part all = plain_part(t, stored, kernel);
    if (spec_tiles_keys(s))
        bind_tiled_conv(b, w, &all, keys, values);
    for (int i = 0; !spec_tiles_keys(s) && i < 3; first += rows[i++].size) {
        w->parts[i] = weight_part_rows(&all, first, rows[i].size);
        w->parts[i].rows = rows[i];
    }
    b->n_parameters += stored * kernel;
    bind_note(b, name, true, kernel, all);
    return w;
}

/* GGUF files have -exp(A_log). Phantoms have no numbers, and dummies are made as A_log. */
static const struct weight *log_of_minus(struct binder *b, const struct weight *stored) {
    if (b->status != OK || b->load != LOAD_CHECKPOINT)
        return stored;
    struct weight *w = bind_new_weight(b, stored->name, stored->out, dim_whole(1), 1);
    float *x = arena_calloc(b->arena, (size_t)stored->out, sizeof *x);
    weight_vector_f32(stored, x);
    for (int64_t i = 0; i < stored->out; i++) {
        float a = x[i];
        x[i] = logf(-a);
        if (!isfinite(x[i])) {
            bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s has %g at %lld, where less than 0 is wanted",
                                b->spec->path, gguf_stored_name(b->spec->gguf, stored->name, b->arena), (double)a,
                                (long long)i));
            return stored;
        }
    }
    w->parts[0] = stored->parts[0];
    w->parts[0].format = &qformat_plain;
    w->parts[0].data = x;
    w->parts[0].dtype = DT_F32;
    w->parts[0].row_stride = 1;
    return w;
}

static void bind_delta(struct binder *b, int l, struct qwen3_next_layer *w) {
    const struct model_spec *s = b->spec;
    const struct delta_spec *d = &s->delta;
    struct dim keys = dim_key_heads(spec_key_heads(s), d->key_dim), gates = dim_value_heads(d->n_value_heads, 1);
    struct dim values = dim_value_heads(d->n_value_heads, d->value_dim);
    w->in = bind_delta_in(b, l);
    w->conv = bind_conv(b, keys, values, d->conv_kernel, l);
    w->a_log = bind_vector(b, gates, "layers.%d.linear_attn.A_log", l);
    if (s->gguf)
        w->a_log = log_of_minus(b, w->a_log);
    w->dt_bias = bind_vector(b, gates, "layers.%d.linear_attn.dt_bias", l);
    w->gated_norm = bind_vector(b, dim_whole(d->value_dim), "layers.%d.linear_attn.norm.weight", l);
    w->delta_out = bind_matrix(b, dim_whole(s->hidden_size), values, "layers.%d.linear_attn.out_proj", l);
}

static void bind_ffn(struct binder *b, int l, bool moe, struct qwen3_next_layer *w) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(moe ? s->moe.shared_ffn_size : s->ffn_size);
    const char *shared = moe ? "shared_expert." : "";
    if (moe) {
        char base[64];
        snprintf(base, sizeof base, "layers.%d.mlp.experts", l);
        w->router = bind_matrix(b, dim_whole(s->moe.n_experts), D, "layers.%d.mlp.gate", l);
        w->experts = bind_experts(b, base, (struct expert_names){"gate_proj", "up_proj", "down_proj"}, s->moe.n_experts,
                                  s->moe.ffn_size, s->hidden_size, strcmp(s->model_type, "qwen3_next") != 0);
        w->shared_gate = F.size ? bind_matrix(b, dim_whole(1), D, "layers.%d.mlp.shared_expert_gate", l) : NULL;
    }
    if (F.size) {
        w->gate_up = bind_fused(b, D, 2,
                                (struct part[]){part(b, F, "layers.%d.mlp.%sgate_proj", l, shared),
                                                part(b, F, "layers.%d.mlp.%sup_proj", l, shared)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.%sdown_proj", l, shared);
    }
}

static void bind_layer(struct binder *b, int l, struct qwen3_next_layer *w) {
    const struct model_spec *s = b->spec;
    w->mixer_norm = bind_vector(b, dim_whole(s->hidden_size), "layers.%d.input_layernorm.weight", l);
    if (s->layers[l].mixer == MIX_DELTA)
        bind_delta(b, l, w);
    else
        bind_full(b, l, w);
    w->ffn_norm = bind_vector(b, dim_whole(s->hidden_size), "layers.%d.post_attention_layernorm.weight", l);
    bind_ffn(b, l, s->layers[l].moe, w);
}

static void *qwen3_next_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct qwen3_next *m = arena_alloc(b->arena, sizeof *m);
    m->ends = bind_ends(b);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++)
        bind_layer(b, l, &m->layers[l]);
    return m;
}

static val record_full(struct program *p, const struct model_spec *s, const struct qwen3_next_layer *w, int l, val y) {
    struct attention_of at = layer_attention(p, s, l);
    at.prep.plus_one = !s->norms_hold_one;
    int q_width = s->n_heads * s->head_dim, kv_width = 2 * s->n_kv_heads * s->head_dim;
    val all = op_linear(p, y, w->qkv_gate.w, w->qkv_gate.bias);
    val q = op_qkv_prep(p, val_cols(all, 0, q_width + kv_width), w->q_norm, w->k_norm, at.prep);
    val a = op_attention(p, q, NULL, at.attend);
    val gated = op_gated_act(p, val_cols(all, q_width + kv_width, q_width), a, (struct act_args){.act = ACT_SIGMOID});
    return op_linear(p, gated, w->attn_out.w, w->attn_out.bias);
}

static val record_delta(struct program *p, const struct model_spec *s, const struct qwen3_next_layer *w, val y) {
    const struct delta_spec *d = &s->delta;
    int values = d->n_value_heads * d->value_dim, channels = 2 * spec_key_heads(s) * d->key_dim + values;
    int cache = program_cache_state(p, (int64_t)channels * (d->conv_kernel - 1),
                                    (int64_t)d->n_value_heads * d->key_dim * d->value_dim);
    val all = op_linear(p, y, w->in, NULL); // [ q | k | v | z | b | a ]
    val u = op_short_conv(p, val_cols(all, 0, channels), w->conv, (struct conv_args){cache, d->conv_kernel});
    val z = val_cols(all, channels, values);
    val b = val_cols(all, channels + values, d->n_value_heads),
        a = val_cols(all, channels + values + d->n_value_heads, d->n_value_heads);
    val o = op_delta_rule(p, u, b, a, w->a_log, w->dt_bias,
                          (struct delta_args){cache, spec_key_heads(s), d->n_value_heads, d->key_dim, d->value_dim});
    val n = op_norm(p, o, z, w->gated_norm, (struct norm_args){.eps = (float)s->norm_eps, .group = d->value_dim});
    return op_linear(p, n, w->delta_out, NULL);
}

static val record_ffn(struct program *p, const struct model_spec *s, const struct qwen3_next_layer *w, bool moe,
                      val y) {
    struct act_args act = {.act = s->activation};
    val dense = w->down ? op_linear(p, op_glu(p, op_linear(p, y, w->gate_up, NULL), act), w->down, NULL) : NO_VAL;
    if (!moe)
        return dense;
    const struct moe_spec *e = &s->moe;
    struct routed r = op_moe_route(p, op_linear(p, y, w->router, NULL), NULL, NULL,
                                   (struct route_args){.how = ROUTE_SOFTMAX,
                                                       .n_experts = e->n_experts,
                                                       .top_k = e->top_k,
                                                       .renormalise = e->renormalise,
                                                       .scale = 1});
    val out = op_moe_ffn(p, y, r, w->experts.w13, w->experts.w2, NULL, NULL,
                         (struct moe_args){e->n_experts, e->top_k, e->ffn_size, act});
    return val_given(dense) ? op_gated_add(p, out, dense, op_linear(p, y, w->shared_gate, NULL)) : out;
}

/* x is the stream, d what the layer before adds to it; both become this layer's. */
static void record_layer(struct program *p, const struct model_spec *s, int l, const struct qwen3_next_layer *w, val *x,
                         val *d) {
    struct norm_args norm = {.eps = (float)s->norm_eps, .plus_one = !s->norms_hold_one};
    program_section(p, "layer", l);
    struct normed n = op_add_norm(p, *x, *d, w->mixer_norm, NULL, norm);
    val a = s->layers[l].mixer == MIX_DELTA ? record_delta(p, s, w, n.y) : record_full(p, s, w, l, n.y);
    n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
    *d = record_ffn(p, s, w, s->layers[l].moe, n.y);
    *x = n.r;
}

static void qwen3_next_record(struct program *p, const struct model_spec *s, const void *weights) {
    const struct qwen3_next *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps, .plus_one = !s->norms_hold_one};
    val x = record_embed(p, s, &m->ends), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++)
        record_layer(p, s, l, &m->layers[l], &x, &d);
    record_head(p, s, &m->ends, x, d, NULL, norm);
}

/* ---- the next-token predictor: x = fc [norm(embed), norm(hidden)], and a layer with full attention ---- */

struct qwen3_next_mtp {
    const struct weight *embed_norm, *hidden_norm, *fc, *norm;
    struct qwen3_next_layer layer;
};

static void *bind_mtp(struct binder *b, int l) {
    struct dim D = dim_whole(b->spec->hidden_size);
    struct qwen3_next_mtp *m = arena_calloc(b->arena, 1, sizeof *m);
    m->embed_norm = bind_vector(b, D, "pre_fc_norm_embedding.weight");
    m->hidden_norm = bind_vector(b, D, "pre_fc_norm_hidden.weight");
    m->fc = bind_matrix(b, D, dim_times(D, 2), "fc");
    bind_layer(b, l, &m->layer);
    m->norm = bind_vector(b, D, "norm.weight");
    return m;
}

static void record_mtp(struct program *p, const struct model_spec *s, int l, const void *weights,
                       struct mtp_ends target) {
    const struct qwen3_next_mtp *m = weights;
    struct norm_args norm = {.eps = (float)s->norm_eps, .plus_one = true};
    val e = op_norm(p, op_embed(p, target.embed, 1), NO_VAL, m->embed_norm, norm);
    val h = op_norm(p, op_states(p, s->hidden_size), NO_VAL, m->hidden_norm, norm);
    val x = op_linear(p, op_concat(p, e, h, NO_VAL), m->fc, NULL), d = NO_VAL;
    record_layer(p, s, l, &m->layer, &x, &d);
    record_head(p, s, &(struct ends){target.embed, m->norm, target.lm_head}, x, d, NULL, norm);
}

const struct family family_qwen3_next = {
    .types = types,
    .bind = qwen3_next_bind,
    .record = qwen3_next_record,
    .unused = (const char *const[]){"mtp.*", "model.visual.*", NULL},
    .bind_mtp = bind_mtp,
    .record_mtp = record_mtp,
    .mtp_prefix = "mtp.",
};
