/* gemma4_assistant.c - Gemma 4's assistant: a few narrow layers that have queries only. Keys and values are the
 * target's own, of its last layer of the same kind, so nothing is stored and each row of a chain has the same position.
 *
 *     x = pre_projection [target's embed(token), h]      h: the target's last hidden state, then what comes back
 *     layers as Gemma 4's, which see the keys before the token's place
 *     logits = embed_tokens norm(x);  h = post_projection norm(x)
 *
 * A sliding layer sees the last sliding_window + 1 keys, as transformers' bidirectional window counts both ends.
 * Reference: transformers modeling_gemma4_assistant.py. */
#include "model/draft/draft_internal.h"

/* ---- what config.json says ---- */

/* All of its layers share caches, of another model. */
static enum status read_assistant(struct spec_reader *r) {
    bool ordered;
    const json_t *text = r->text;
    TRY(jv_bool_or(r->root, r->path, "use_ordered_embeddings", false, &ordered, r->err));
    if (ordered)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"use_ordered_embeddings\" is not supported", r->path);
    int64_t size;
    TRY(jv_int(r->root, r->path, "backbone_hidden_size", 1, SPEC_MAX_DIM, &size, r->err));
    r->spec->multimodal = false; // its text_config stands alone
    r->spec->draft.tap_size = (int)size;
    r->spec->draft.vocab = r->spec->vocab_size;
    json_t *copy = json_copy((json_t *)text);
    json_object_set_new(copy, "num_kv_shared_layers", json_integer(0));
    json_object_del(copy, "vocab_size_per_layer_input"); // 0 where there are none
    r->text = copy;
    enum status st = read_gemma4(r);
    r->text = text;
    json_decref(copy);
    return st;
}

static const struct model_type types[] = {
    {"gemma4_assistant", "Gemma4AssistantForCausalLM", .vocab = 262144, .hidden = 256, .ffn = 1024, .layers = 4,
     .heads = 4, .kv_heads = 4, .head_dim = 256, .max_positions = 131072, .norm_eps = 1e-6, .theta = 1000000,
     .activation_key = "hidden_activation", .activation = "gelu_pytorch_tanh", .tied = true, .bos = 2, .eos = 1,
     .pad = 0, .read = read_assistant},
    {NULL},
};

/* ---- what is bound and recorded ---- */

struct assistant_layer {
    const struct weight *attn_norm, *q, *q_norm, *attn_out, *post_attn_norm, *ffn_norm, *gate_up, *down, *post_ffn_norm,
        *scalar;
};

struct assistant {
    struct ends ends;
    const struct weight *pre, *post;
    struct assistant_layer *layers;
};

static void bind_layer(struct binder *b, int l, struct assistant_layer *w) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->layers[l].ffn_size), hd = dim_whole(s->layers[l].head_dim);
    struct dim Q = dim_heads(s->n_heads, s->layers[l].head_dim);
    w->attn_norm = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
    w->q = bind_matrix(b, Q, D, "layers.%d.self_attn.q_proj", l);
    w->q_norm = bind_vector(b, hd, "layers.%d.self_attn.q_norm.weight", l);
    w->attn_out = bind_matrix(b, D, Q, "layers.%d.self_attn.o_proj", l);
    w->post_attn_norm = bind_vector(b, D, "layers.%d.post_attention_layernorm.weight", l);
    w->ffn_norm = bind_vector(b, D, "layers.%d.pre_feedforward_layernorm.weight", l);
    w->gate_up = bind_fused(
        b, D, 2, (struct part[]){part(b, F, "layers.%d.mlp.gate_proj", l), part(b, F, "layers.%d.mlp.up_proj", l)});
    w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);
    w->post_ffn_norm = bind_vector(b, D, "layers.%d.post_feedforward_layernorm.weight", l);
    w->scalar = bind_vector(b, dim_whole(1), "layers.%d.layer_scalar", l);
}

static void *assistant_bind(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim D = dim_whole(s->hidden_size), T = dim_whole(s->draft.tap_size);
    struct assistant *m = arena_calloc(b->arena, 1, sizeof *m);
    m->ends = bind_ends(b);
    m->pre = bind_matrix(b, D, dim_times(T, 2), "/pre_projection");
    m->post = bind_matrix(b, T, D, "/post_projection");
    m->layers = arena_calloc(b->arena, (size_t)s->n_layers, sizeof *m->layers);
    for (int l = 0; l < s->n_layers; l++)
        bind_layer(b, l, &m->layers[l]);
    return m;
}

const struct family family_gemma4_assistant = {.types = types, .bind = assistant_bind};

/* The target's last layer of the same kind; -1: there is none with such heads. */
static int layer_like(const struct model_spec *s, int l, const struct model_spec *target) {
    for (int i = target->n_layers - 1; i >= 0; i--)
        if (target->layers[i].mixer == s->layers[l].mixer)
            return target->layers[i].head_dim == s->layers[l].head_dim && s->n_heads % target->layers[i].n_kv_heads == 0
                       ? i
                       : -1;
    return -1;
}

static struct attention_of attention_like(struct program *p, const struct model_spec *s, int l,
                                          const struct model_spec *target) {
    const struct layer_spec *own = &s->layers[l], *like = &target->layers[layer_like(s, l, target)];
    return (struct attention_of){
        .prep = {.cache = like->kv_source,
                 .rope = program_rope(p, &s->ropes[own->rope]),
                 .n_heads = s->n_heads,
                 .n_kv_heads = like->n_kv_heads,
                 .head_dim = own->head_dim,
                 .v_head_dim = own->head_dim,
                 .eps = (float)s->norm_eps,
                 .v_norm = true,
                 .v_from_k = like->v_from_k,
                 .k_absent = true},
        .attend = {.cache = like->kv_source,
                   .n_heads = s->n_heads,
                   .n_kv_heads = like->n_kv_heads,
                   .head_dim = own->head_dim,
                   .v_head_dim = own->head_dim,
                   .scale = (float)s->attention_scale,
                   .window = own->mixer == MIX_SLIDING ? s->sliding_window + 2 : 0,
                   .reach = REACH_BEFORE},
    };
}

static void assistant_record(struct program *p, const struct model_spec *s, const struct assistant *m,
                             const struct model_spec *target, const struct draft_target *t) {
    struct norm_args norm = {.eps = (float)s->norm_eps};
    const struct weight *r_scale = NULL;
    val e = op_embed(p, t->embed, t->embed_scale), h = op_states(p, s->draft.tap_size);
    val x = op_linear(p, op_concat(p, e, h, NO_VAL), m->pre, NULL), d = NO_VAL;
    for (int l = 0; l < s->n_layers; l++) {
        const struct assistant_layer *w = &m->layers[l];
        program_section(p, "layer", l);
        struct attention_of at = attention_like(p, s, l, target);
        struct normed n = op_add_norm(p, x, d, w->attn_norm, r_scale, norm);
        val q = op_qkv_prep(p, op_linear(p, n.y, w->q, NULL), w->q_norm, NULL, at.prep);
        val a = op_linear(p, op_attention(p, q, NULL, at.attend), w->attn_out, NULL);
        n = op_add_norm(p, n.r, op_norm(p, a, NO_VAL, w->post_attn_norm, norm), w->ffn_norm, NULL, norm);
        val f = op_linear(p, op_glu(p, op_linear(p, n.y, w->gate_up, NULL), (struct act_args){.act = s->activation}),
                          w->down, NULL);
        d = op_norm(p, f, NO_VAL, w->post_ffn_norm, norm);
        x = n.r;
        r_scale = w->scalar;
    }
    program_section(p, "head", -1);
    struct normed n = op_add_norm(p, x, d, m->ends.norm, r_scale, norm);
    val carry = op_linear(p, n.y, m->post, NULL);
    op_sample(p, op_linear(p, op_take_rows(p, n.y), m->ends.lm_head, NULL));
    program_keep(p, carry);
    p->vocab_size = s->vocab_size;
}

static enum status check_target(const struct model_spec *s, const struct model_spec *target, struct error *err) {
    if (strcmp(target->model_type, "gemma4_text") != 0 || s->draft.tap_size != target->hidden_size ||
        s->vocab_size != target->vocab_size || s->sliding_window != target->sliding_window)
        return fail(err, ERR_UNSUPPORTED, "%s: is the assistant of another model than the target", s->path);
    for (int l = 0; l < s->n_layers; l++)
        if (layer_like(s, l, target) < 0)
            return fail(err, ERR_UNSUPPORTED, "%s: the target has no cache for layer %d of this assistant", s->path, l);
    return OK;
}

enum status assistant_open(struct draft *d, const struct draft_source *source, const struct model *target,
                           struct error *err) {
    struct draft_target t;
    const void *weights;
    TRY(draft_bind(d, source->path, &family_gemma4_assistant, &weights, err));
    TRY(draft_target_of(target, &t, err));
    TRY(check_target(d->model->spec, target->spec, err));
    d->step = d->model->program = program_copy_caches(target->program);
    assistant_record(d->step, d->model->spec, weights, target->spec, &t);
    d->target = program_copy(target->program);
    for (int g = 0; g < d->target->n_groups; g++) // of a window the assistant sees the key before, too
        if (d->target->groups[g].window > 0)
            d->target->groups[g].window += 2;
    d->reads_target = true;
    d->feature = 0;
    d->carry = 1;
    return OK;
}
