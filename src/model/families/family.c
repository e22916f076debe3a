/* family.c - the few things that every decoder has in common; see family.h. */
#include "model/families/family.h"

struct ends bind_ends(struct binder *b) {
    const struct model_spec *s = b->spec;
    struct dim V = dim_vocab(s->vocab_size), D = dim_whole(s->hidden_size);
    struct ends e;
    bool head_only = s->tied_embeddings && !bind_has(b, true, "embed_tokens.weight"); // the table under its other name
    e.embed = bind_matrix(b, V, D, head_only ? "/lm_head" : "embed_tokens");
    e.norm = bind_vector(b, D, "norm.weight");
    // A head that is stored counts, as in transformers 5: it is the table a second time, or the config is wrong.
    bool own_head = !head_only && (!s->tied_embeddings || bind_has(b, false, "/lm_head.weight"));
    e.lm_head = own_head ? bind_matrix(b, V, D, "/lm_head") : e.embed;
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

struct projection bind_qkv_of(struct binder *b, int l, struct dim q, struct dim kv) {
    const struct model_spec *s = b->spec;
    const struct layer_spec *layer = &s->layers[l];
    struct dim k = layer->kv_source == l ? kv : dim_whole(0), v = layer->v_from_k ? dim_whole(0) : k;
    struct part parts[3] = {
        part(b, q, "layers.%d.self_attn.q_proj", l),
        part(b, k, "layers.%d.self_attn.k_proj", l),
        part(b, v, "layers.%d.self_attn.v_proj", l),
    };
    return (struct projection){bind_fused(b, dim_whole(s->hidden_size), 3, parts),
                               s->qkv_bias ? bind_fused_bias(b, 3, parts) : NULL};
}

struct projection bind_qkv(struct binder *b, int l) {
    const struct layer_spec *layer = &b->spec->layers[l];
    return bind_qkv_of(b, l, dim_heads(b->spec->n_heads, layer->head_dim),
                       dim_kv_heads(layer->n_kv_heads, layer->head_dim));
}

struct projection bind_attn_out(struct binder *b, int l) {
    const struct model_spec *s = b->spec;
    struct part o = part(b, dim_whole(s->hidden_size), "layers.%d.self_attn.o_proj", l);
    return (struct projection){bind_fused(b, dim_heads(s->n_heads, s->layers[l].head_dim), 1, &o),
                               s->o_bias ? bind_fused_bias(b, 1, &o) : NULL};
}
