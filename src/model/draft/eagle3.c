/* eagle3.c - EAGLE-3: one Llama layer that reads the next token's embedding beside what it makes of three hidden states
 * of the target, and then its own.
 *
 *     g      = fc [a, b, c]                         of the row's taps: the target's program computes it (pass_feature)
 *     u      = [norm(embed(next token)), norm(g)]   the input of q, k and v
 *     x      = g + Wo attention(u);  y = x + mlp(norm(x))
 *     logits = lm_head norm(y), of the draft's own vocabulary;  the next row's g = y
 *
 * Written by SpecForge, by EAGLE itself and by speculators: names of the layer, where the layers that are tapped stand,
 * and whether what is added to is g or norm(g) differ. Reference: SpecForge's LlamaForCausalLMEagle3, speculators'
 * Eagle3DraftModel, vLLM's llama_eagle3.py. */
#include "model/draft/draft_internal.h"

/* ---- what config.json says ---- */

/* Ids of SGLang's and EAGLE's nested key are layers whose outputs are read; those of vLLM's and speculators' are
 * inputs. */
static enum status read_layer_ids(const struct spec_reader *r, const json_t *ids, int less, int *out) {
    json_t *id;
    size_t i;
    if (json_array_size(ids) != 3)
        return fail(r->err, ERR_FORMAT, "%s: \"eagle_aux_hidden_state_layer_ids\" must list 3 layers", r->path);
    json_array_foreach((json_t *)ids, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < less || json_integer_value(id) > SPEC_MAX_LAYERS)
            return fail(r->err, ERR_UNSUPPORTED,
                        "%s: \"eagle_aux_hidden_state_layer_ids\" names something that is not behind a layer", r->path);
        out[i] = (int)json_integer_value(id) - less;
    }
    return OK;
}

static enum status read_taps(const struct spec_reader *r, struct draft_spec *d) {
    json_t *nested, *ids;
    bool reads_taps;
    d->n_taps = 3;
    d->layers[0] = DEFAULT_TAPS;
    TRY(jv_object_or_null(r->text, r->path, "eagle_config", &nested, r->err));
    TRY(jv_bool_or(nested, r->path, "use_aux_hidden_state", true, &reads_taps, r->err));
    if (!reads_taps)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"use_aux_hidden_state\" is false, as of a head before EAGLE-3",
                    r->path);
    TRY(jv_array_or_null(nested, r->path, "eagle_aux_hidden_state_layer_ids", &ids, r->err));
    if (ids)
        return read_layer_ids(r, ids, 0, d->layers);
    TRY(jv_array_or_null(r->text, r->path, "eagle_aux_hidden_state_layer_ids", &ids, r->err));
    return ids ? read_layer_ids(r, ids, 1, d->layers) : OK;
}

/* A flag beside the others, or in eagle_config (NVIDIA). */
static enum status read_either(const struct spec_reader *r, const char *key, bool fallback, bool *out) {
    json_t *nested;
    TRY(jv_object_or_null(r->text, r->path, "eagle_config", &nested, r->err));
    if (nested && json_object_get(nested, key))
        return jv_bool_or(nested, r->path, key, fallback, out, r->err);
    return read_flag(r, key, fallback, out);
}

static enum status read_eagle3(struct spec_reader *r) {
    struct draft_spec *d = &r->spec->draft;
    if (r->spec->n_layers != 1)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"num_hidden_layers\" of an EAGLE-3 head is %d, it must be 1",
                    r->path, r->spec->n_layers);
    TRY(read_dim(r, "target_hidden_size", r->spec->hidden_size, &d->tap_size));
    TRY(read_dim(r, "draft_vocab_size", r->spec->vocab_size, &d->vocab));
    d->own_vocab = d->vocab != r->spec->vocab_size;
    bool is_speculators = json_object_get(r->text, "speculators_model_type") != NULL;
    TRY(read_either(r, "norm_before_residual", is_speculators, &d->norm_before_residual));
    TRY(read_either(r, "norm_before_fc", false, &d->norm_before_fc));
    TRY(read_either(r, "fc_norm", false, &d->fc_norm));
    TRY(read_either(r, "norm_output", false, &d->norm_output));
    TRY(read_taps(r, d));
    return read_llama(r);
}

#define EAGLE3_TYPE(class)                                                                                        \
    {                                                                                                             \
        "eagle3", class, .vocab = 32000, .hidden = 4096, .ffn = 11008, .layers = 1, .heads = 32,                  \
                         .max_positions = 2048, .norm_eps = 1e-6, .theta = 10000, .activation_key = "hidden_act", \
                         .activation = "silu", .bos = 1, .eos = 2, .pad = -1, .read = read_eagle3                 \
    }
static const struct model_type types[] = {EAGLE3_TYPE("LlamaForCausalLMEagle3"),
                                          EAGLE3_TYPE("Eagle3LlamaForCausalLM"),
                                          EAGLE3_TYPE("Eagle3Speculator"),
                                          EAGLE3_TYPE("Eagle3DraftModel"),
                                          {NULL}};

/* ---- what is bound and recorded ---- */

struct eagle3 {
    const struct weight *fc, *input_norm, *fc_norm[3];
    const struct weight *embed_norm, *hidden_norm, *ffn_norm, *gate_up, *down, *norm, *lm_head, *embed;
    struct projection qkv, attn_out;
    const struct stored_tensor *offsets; // d2t
};

static void bind_layer(struct binder *b, struct eagle3 *m) {
    const struct model_spec *s = b->spec;
    const char *l = bind_has(b, true, "midlayer.hidden_norm.weight") ? "midlayer" : "layers.0";
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
    struct dim Q = dim_heads(s->n_heads, s->head_dim), KV = dim_kv_heads(s->n_kv_heads, s->head_dim);
    m->hidden_norm = bind_vector(b, D, "%s.hidden_norm.weight", l);
    m->embed_norm = bind_vector(b, D, "%s.input_layernorm.weight", l);
    m->ffn_norm = bind_vector(b, D, "%s.post_attention_layernorm.weight", l);
    struct part qkv[3] = {part(b, Q, "%s.self_attn.q_proj", l), part(b, KV, "%s.self_attn.k_proj", l),
                          part(b, KV, "%s.self_attn.v_proj", l)};
    struct part o = part(b, D, "%s.self_attn.o_proj", l);
    m->qkv =
        (struct projection){bind_fused(b, dim_times(D, 2), 3, qkv), s->qkv_bias ? bind_fused_bias(b, 3, qkv) : NULL};
    m->attn_out = (struct projection){bind_fused(b, Q, 1, &o), s->o_bias ? bind_fused_bias(b, 1, &o) : NULL};
    m->gate_up =
        bind_fused(b, D, 2, (struct part[]){part(b, F, "%s.mlp.gate_proj", l), part(b, F, "%s.mlp.up_proj", l)});
    m->down = bind_matrix(b, D, F, "%s.mlp.down_proj", l);
}

static void *eagle3_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    const struct draft_spec *d = &s->draft;
    struct dim D = dim_whole(s->hidden_size), T = dim_whole(d->tap_size);
    struct eagle3 *m = arena_calloc(b->arena, 1, sizeof *m);
    m->fc = bind_matrix(b, D, dim_times(T, d->n_taps), "fc");
    m->input_norm = d->norm_before_fc ? bind_vector(b, dim_times(T, d->n_taps), "input_norm.weight") : NULL;
    for (int i = 0; i < d->n_taps && d->fc_norm; i++)
        m->fc_norm[i] = bind_vector(b, T, "fc_norm.%d.weight", i);
    bind_layer(b, m);
    m->norm = bind_vector(b, D, "norm.weight");
    m->lm_head = bind_has(b, true, "/lm_head.weight") ? bind_matrix(b, dim_vocab(d->vocab), D, "/lm_head") : NULL;
    m->embed =
        bind_has(b, false, "embed_tokens.weight") ? bind_matrix(b, dim_vocab(s->vocab_size), D, "embed_tokens") : NULL;
    m->offsets = draft_bind_offsets(b);
    return m;
}

const struct family family_eagle3 = {.types = types, .bind = eagle3_bind};

static void eagle3_record(struct program *p, const struct model_spec *s, const struct eagle3 *m,
                          const struct draft_target *t) {
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val e = op_embed(p, m->embed ? m->embed : t->embed, 1), g = op_states(p, s->hidden_size);
    program_section(p, "layer", 0);
    struct attention_of at = layer_attention(p, s, 0);
    val h = op_norm(p, g, NO_VAL, m->hidden_norm, norm);
    val u = op_concat(p, op_norm(p, e, NO_VAL, m->embed_norm, norm), h, NO_VAL);
    val q = op_qkv_prep(p, op_linear(p, u, m->qkv.w, m->qkv.bias), NULL, NULL, at.prep);
    val a = op_linear(p, op_attention(p, q, NULL, at.attend), m->attn_out.w, m->attn_out.bias);
    struct normed n = op_add_norm(p, s->draft.norm_before_residual ? h : g, a, m->ffn_norm, NULL, norm);
    val d = op_linear(p, op_glu(p, op_linear(p, n.y, m->gate_up, NULL), (struct act_args){.act = s->activation}),
                      m->down, NULL);
    program_section(p, "head", -1);
    n = op_add_norm(p, n.r, d, m->norm, NULL, norm);
    op_sample(p, op_linear(p, op_take_rows(p, n.y), m->lm_head ? m->lm_head : t->lm_head, NULL));
    program_keep(p, s->draft.norm_output ? n.y : n.r);
    p->vocab_size = s->draft.vocab;
}

enum status eagle3_open(struct draft *d, const struct draft_source *source, const struct model *target,
                        struct error *err) {
    struct draft_target t;
    const void *weights;
    TRY(draft_bind(d, source->path, &family_eagle3, &weights, err));
    TRY(draft_target_of(target, &t, err));
    const struct model_spec *s = d->model->spec;
    const struct eagle3 *m = weights;
    if (m->embed && s->vocab_size != t.vocab_size)
        return fail(err, ERR_UNSUPPORTED, "%s: its embed_tokens has %d tokens, the target has %d", s->path,
                    s->vocab_size, t.vocab_size);
    if (!m->embed && t.embed->in != s->hidden_size)
        return fail(err, ERR_UNSUPPORTED, "%s: no embed_tokens of its own, and the target's is %lld wide, not %d",
                    s->path, (long long)t.embed->in, s->hidden_size);
    if (!m->lm_head && (t.lm_head->in != s->hidden_size || t.lm_head->out != s->draft.vocab))
        return fail(err, ERR_UNSUPPORTED, "%s: no lm_head of its own, and the target's has another shape", s->path);
    if (!s->draft.own_vocab && s->draft.vocab != t.vocab_size)
        return fail(err, ERR_UNSUPPORTED, "%s: a draft of %d tokens cannot guess for a model of %d", s->path,
                    s->draft.vocab, t.vocab_size);
    TRY(draft_own_vocab(d, m->offsets, &t, err));
    struct feature f = {.fc = m->fc, .all_norm = m->input_norm, .eps = (float)s->norm_eps};
    memcpy(f.tap_norm, m->fc_norm, sizeof m->fc_norm);
    TRY(draft_feature(d, target, &f, err));
    d->step = d->model->program = program_new("eagle3");
    eagle3_record(d->step, s, m, &t);
    d->step->token_of = d->target_id;
    d->is_ahead = true;
    d->carry = 1;
    return OK;
}
