/* family.c - the few things that every decoder has in common; see family.h. */
#include "model/family.h"

struct ends bind_ends(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct ends e;
    bool head_only = s->tied_embeddings && !bind_has(b, true, "embed_tokens.weight"); // the table under its other name
    e.embed = bind_matrix(b, s->vocab_size, s->hidden_size, head_only ? "/lm_head" : "embed_tokens");
    e.norm = bind_vector(b, s->hidden_size, "norm.weight");
    // A head that is stored counts, as in transformers 5: it is the table a second time, or the config is wrong.
    bool own_head = !head_only && (!s->tied_embeddings || bind_has(b, false, "/lm_head.weight"));
    e.lm_head = own_head ? bind_matrix(b, s->vocab_size, s->hidden_size, "/lm_head") : e.embed;
    return e;
}

val record_embed(struct program *p, const struct model_spec *s, const struct ends *ends) {
    return op_embed(p, ends->embed, (float)s->embedding_scale);
}

void record_head(struct program *p, const struct model_spec *s, const struct ends *ends, val x, val d,
                 const struct weight *r_scale, struct norm_args norm) {
    program_section(p, "head", -1);
    struct normed n = op_add_norm(p, x, d, ends->norm, r_scale, norm);
    val logits = op_linear(p, op_take_rows(p, n.y), ends->lm_head, NULL);
    if (s->final_softcap > 0)
        logits = op_softcap(p, logits, (float)s->final_softcap);
    op_sample(p, logits);
}

struct attention_of layer_attention(struct program *p, const struct model_spec *s, int l) {
    const struct layer_spec *layer = &s->layers[l];
    int window = layer->mixer == MIX_SLIDING ? s->sliding_window : 0;
    bool shares = layer->kv_source != l; // every layer before it has declared one cache
    int cache =
        shares ? layer->kv_source : program_cache_kv(p, layer->n_kv_heads, layer->head_dim, layer->head_dim, window);
    return (struct attention_of){
        .prep = {.cache = cache,
                 .rope = layer->rope >= 0 ? program_rope(p, &s->ropes[layer->rope]) : -1,
                 .n_heads = s->n_heads,
                 .n_kv_heads = layer->n_kv_heads,
                 .head_dim = layer->head_dim,
                 .v_head_dim = layer->head_dim,
                 .eps = (float)s->norm_eps,
                 .v_from_k = layer->v_from_k,
                 .k_absent = shares},
        .attend = {.cache = cache,
                   .n_heads = s->n_heads,
                   .n_kv_heads = layer->n_kv_heads,
                   .head_dim = layer->head_dim,
                   .v_head_dim = layer->head_dim,
                   .scale = (float)s->attention_scale,
                   .softcap = (float)s->attention_softcap,
                   .window = window,
                   .chunk = layer->mixer == MIX_CHUNKED ? s->attention_chunk : 0},
    };
}

struct projection bind_qkv(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    const struct layer_spec *layer = &s->layers[l];
    int64_t kv = layer->kv_source == l ? (int64_t)layer->n_kv_heads * layer->head_dim : 0;
    struct part parts[3] = {
        part(b, (int64_t)s->n_heads * layer->head_dim, "layers.%d.self_attn.q_proj", l),
        part(b, kv, "layers.%d.self_attn.k_proj", l),
        part(b, layer->v_from_k ? 0 : kv, "layers.%d.self_attn.v_proj", l),
    };
    return (struct projection){bind_fused(b, s->hidden_size, 3, parts),
                               s->qkv_bias ? bind_fused_bias(b, 3, parts) : NULL};
}

struct projection bind_attn_out(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    struct part o = part(b, s->hidden_size, "layers.%d.self_attn.o_proj", l);
    return (struct projection){bind_fused(b, (int64_t)s->n_heads * s->layers[l].head_dim, 1, &o),
                               s->o_bias ? bind_fused_bias(b, 1, &o) : NULL};
}
