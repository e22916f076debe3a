/* dflash.c - DFlash: Qwen3 layers that guess a block of tokens in one pass.
 *
 *     context   c_j = norm(fc [taps of token j]), which the target's program computes; each layer's k and v of c_j as
 *               it is go into the draft's cache
 *     block     rows of the newest token and of masks, at the places behind it; each row sees the context and all rows
 *               of the block. Row i gives the token at its own place
 *
 * Embedding and head are the target's, unless the draft has some of its own; or its embedding is its head, if they are
 * tied. Reference: z-lab's DFlashDraftModel.
 * DSpark's blocks are the same but for the head (dspark.c); row 0 gives the token behind its own there, and each other
 * row likewise. */
#include "model/draft/draft_internal.h"

/* ---- what config.json says ---- */

/* speculators counts inputs, and has it all beside the other keys. */
static enum status read_layer_ids(const struct spec_reader *r, const json_t *settings, struct draft_spec *d) {
    json_t *taps, *id;
    size_t i;
    int less = 0;
    TRY(jv_array_or_null(settings, r->path, "target_layer_ids", &taps, r->err));
    if (!taps) {
        TRY(jv_array_or_null(r->text, r->path, "aux_hidden_state_layer_ids", &taps, r->err));
        less = 1;
    }
    if (json_array_size(taps) < 1 || json_array_size(taps) > MAX_TAPS)
        return fail(r->err, ERR_FORMAT, "%s: \"target_layer_ids\" must list 1 to %d layers", r->path, MAX_TAPS);
    json_array_foreach(taps, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < less || json_integer_value(id) > SPEC_MAX_LAYERS)
            return fail(r->err, ERR_FORMAT, "%s: \"target_layer_ids\" names something that is not behind a layer",
                        r->path);
        d->layers[i] = (int)json_integer_value(id) - less;
    }
    d->n_taps = (int)json_array_size(taps);
    return OK;
}

static enum status refuse_setting(const struct spec_reader *r, const json_t *settings, const char *key) {
    return json_is_true(json_object_get(settings, key))
               ? fail(r->err, ERR_UNSUPPORTED, "%s: \"%s\" of a DFlash draft is not supported", r->path, key)
               : OK;
}

static enum status read_dflash(struct spec_reader *r) {
    static const char *const refused[] = {"use_swa", "causal"};
    struct draft_spec *d = &r->spec->draft;
    json_t *nested;
    int64_t mask;
    TRY(jv_object_or_null(r->text, r->path, "dflash_config", &nested, r->err));
    const json_t *settings = nested ? nested : r->text;
    TRY(read_layer_ids(r, settings, d));
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        TRY(refuse_setting(r, settings, refused[i]));
    d->tap_size = r->spec->hidden_size;
    TRY(read_dim(r, "draft_vocab_size", r->spec->vocab_size, &d->vocab));
    d->own_vocab = d->vocab != r->spec->vocab_size;
    TRY(jv_int(settings, r->path, "mask_token_id", 0, r->spec->vocab_size - 1, &mask, r->err));
    d->mask = (int32_t)mask;
    TRY(read_dim(r, "block_size", 16, &d->block));
    if (d->block < 2 || d->block > 256)
        return fail(r->err, ERR_FORMAT, "%s: \"block_size\" is %d, it must be 2 to 256", r->path, d->block);
    if (strcmp(r->type->name, "dspark") == 0)
        TRY(dspark_read(r, settings));
    else
        TRY(jv_bool_or(settings, r->path, "sample_from_anchor", false, &d->from_anchor, r->err));
    return read_qwen3(r);
}

#define BLOCK_TYPE(name, class)                                                                               \
    {                                                                                                         \
        name, class, .vocab = 151936, .hidden = 4096, .ffn = 22016, .layers = 5, .heads = 32, .kv_heads = 32, \
                     .head_dim = 128, .max_positions = 32768, .norm_eps = 1e-6, .theta = 10000,               \
                     .activation_key = "hidden_act", .activation = "silu", .bos = -1, .eos = -1, .pad = -1,   \
                     .read = read_dflash                                                                      \
    }
static const struct model_type types[] = {BLOCK_TYPE("dflash", "DFlashDraftModel"),
                                          BLOCK_TYPE("dspark", "Qwen3DSparkModel"),
                                          BLOCK_TYPE("dspark", "DSparkSpeculator"),
                                          {NULL}};

/* ---- what is bound and recorded ---- */

struct dflash_layer {
    const struct weight *attn_norm, *q_norm, *k_norm, *ffn_norm, *gate_up, *down;
    struct projection qkv, kv, attn_out; // kv: rows of qkv
};

struct dflash {
    const struct weight *fc, *hidden_norm, *norm;
    const struct weight *embed, *lm_head; // NULL: the target's
    struct dflash_layer *layers;
    const struct stored_tensor *offsets; // d2t
    struct markov markov;
};

/* The rows of k and v: all but the first part. */
static struct projection rows_of_kv(struct binder *b, struct projection qkv, int64_t q_rows) {
    struct weight *w = arena_calloc(b->arena, 1, sizeof *w), *bias = NULL;
    *w = *qkv.w;
    w->out -= q_rows;
    w->n_parts -= 1;
    w->parts += 1;
    if (qkv.bias) {
        bias = arena_calloc(b->arena, 1, sizeof *bias);
        *bias = *qkv.bias;
        bias->out -= q_rows;
        bias->n_parts -= 1;
        bias->parts += 1;
    }
    return (struct projection){w, bias};
}

static void *dflash_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size), hd = dim_whole(s->head_dim);
    struct dflash *m = arena_calloc(b->arena, 1, sizeof *m);
    m->fc = bind_matrix(b, D, dim_times(dim_whole(s->draft.tap_size), s->draft.n_taps), "fc");
    m->hidden_norm = bind_vector(b, D, "hidden_norm.weight");
    m->norm = bind_vector(b, D, "norm.weight");
    if (bind_has(b, false, "embed_tokens.weight"))
        m->embed = bind_matrix(b, dim_vocab(s->vocab_size), D, "embed_tokens");
    if (bind_has(b, s->draft.own_vocab, "lm_head.weight"))
        m->lm_head = bind_matrix(b, dim_vocab(s->draft.vocab), D, "lm_head");
    else if (s->tied_embeddings && !s->draft.own_vocab)
        m->lm_head = m->embed;
    m->offsets = draft_bind_offsets(b);
    if (s->draft.markov_rank > 0)
        markov_bind(b, &m->markov);
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers && b->status == OK; l++) {
        struct dflash_layer *w = &m->layers[l];
        w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
        w->qkv = bind_qkv(b, l);
        w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
        w->k_norm = bind_vector(b, hd, "layers.%d.self_attn.k_norm.weight", l);
        w->attn_out = bind_attn_out(b, l);
        w->ffn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
        w->gate_up = bind_fused(
            b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
        w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
        if (b->status == OK)
            w->kv = rows_of_kv(b, w->qkv, (int64_t)s->n_heads * s->head_dim);
    }
    return m;
}

const struct family family_dflash = {
    .types = types, .bind = dflash_bind, .unused = (const char *const[]){"confidence_head.*", NULL}};

static void record_block(struct program *p, const struct model_spec *s, const struct dflash *m,
                         const struct draft_target *t) {
    struct norm_args norm = {.eps = (float)s->norm_eps};
    val x = m->embed ? op_embed(p, m->embed, 1) : op_embed(p, t->embed, t->embed_scale), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct dflash_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = layer_attention(p, s, l);
        at.attend.reach = REACH_ALL;
        struct normed n = op_add_norm(p, x, d, w->attn_norm, NULL, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->qkv.w, w->qkv.bias), w->q_norm, w->k_norm, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out.w, w->attn_out.bias);
        n = op_add_norm(p, n.r, a, w->ffn_norm, NULL, norm);
        d = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                      w->down, NULL);
        x = n.r;
    }
    const struct weight *lm_head = m->lm_head ? m->lm_head : t->lm_head;
    if (!m->markov.w1) {
        record_head(p, s, &(struct ends){t->embed, m->norm, lm_head}, x, d, NULL, norm);
        p->vocab_size = s->draft.vocab;
        return;
    }
    program_keep(p, op_add_norm(p, x, d, m->norm, NULL, norm).y);
    p->vocab_size = s->draft.vocab;
}

/* Into the same caches, layer by layer: no queries. */
static void record_context(struct program *p, const struct model_spec *s, const struct dflash *m) {
    val c = op_states(p, s->hidden_size);
    for (int l = 0; l < s->n_layers; l++) {
        const struct dflash_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        op_qkv_prep(p, op_linear(p, c, w->kv.w, w->kv.bias), NULL, w->k_norm,
                    (struct qkv_args){.cache = l,
                                      .rope = program_rope(p, &s->ropes[s->layers[l].rope]),
                                      .n_kv_heads = s->layers[l].n_kv_heads,
                                      .head_dim = s->head_dim,
                                      .v_head_dim = s->head_dim,
                                      .eps = (float)s->norm_eps});
    }
}

enum status dflash_open(struct draft *d, const struct draft_source *source, const struct model *target,
                        struct error *err) {
    struct draft_target t;
    const void *weights;
    TRY(draft_bind(d, source->path, &family_dflash, &weights, err));
    TRY(draft_target_of(target, &t, err));
    const struct model_spec *s = d->model->spec;
    const struct dflash *m = weights;
    if ((!m->embed && t.embed->in != s->hidden_size) || (!m->lm_head && t.lm_head->in != s->hidden_size) ||
        t.vocab_size != s->vocab_size)
        return fail(err, ERR_UNSUPPORTED, "%s: is the draft of another model than the target", s->path);
    if (s->draft.own_vocab && !m->lm_head)
        return fail(err, ERR_FORMAT, "%s: tensor lm_head.weight is missing, of %d tokens of its own", s->path,
                    s->draft.vocab);
    TRY(draft_own_vocab(d, m->offsets, &t, err));
    for (int l = 0; l < s->n_layers; l++)
        if (s->layers[l].mixer != MIX_FULL)
            return fail(err, ERR_UNSUPPORTED, "%s: a DFlash draft with a window is not supported", s->path);
    struct feature f = {.fc = m->fc, .out_norm = m->hidden_norm, .eps = (float)s->norm_eps};
    TRY(draft_feature(d, target, &f, err));
    d->step = d->model->program = program_new(s->model_type);
    record_block(d->step, s, m, &t);
    d->step->token_of = d->target_id;
    d->context = program_copy_caches(d->step);
    record_context(d->context, s, m);
    if (m->markov.w1) {
        d->chooser = program_copy_caches(d->step);
        markov_record(d->chooser, s, &m->markov, m->lm_head ? m->lm_head : t.lm_head);
        d->carry = 1;
    }
    d->from_anchor = s->draft.from_anchor;
    d->is_ahead = true;
    d->block = s->draft.block;
    d->mask = s->draft.mask;
    return OK;
}
