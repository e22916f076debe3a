/* same_spec.c - see same_spec.h. */
#include "quantize/same_spec.h"

#include <math.h>

static bool near(double a, double b) { return a == b || fabs(a - b) <= 1e-5 * fmax(fabs(a), fabs(b)); }

static bool same_frequencies(const float *a, const float *b, int n) {
    for (int i = 0; i < n; i++)
        if (!near((double)a[i], (double)b[i]))
            return false;
    return true;
}

static bool same_rope(const struct rope *a, const struct rope *b) {
    return a->dim == b->dim && a->by_length == b->by_length && near((double)a->factor, (double)b->factor) &&
           same_frequencies(a->inv_freq, b->inv_freq, a->dim / 2) &&
           (a->by_length != ROPE_LONG ||
            (near((double)a->factor_long, (double)b->factor_long) && a->original_context == b->original_context &&
             same_frequencies(a->inv_freq_long, b->inv_freq_long, a->dim / 2)));
}

static bool same_layer(const struct model_spec *s, const struct layer_spec *a, const struct model_spec *t,
                       const struct layer_spec *b) {
    if ((a->rope < 0) != (b->rope < 0) || (a->rope >= 0 && !same_rope(&s->ropes[a->rope], &t->ropes[b->rope])))
        return false;
    return a->mixer == b->mixer && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim && a->moe == b->moe &&
           a->v_from_k == b->v_from_k && a->ffn_size == b->ffn_size && a->kv_source == b->kv_source;
}

static bool same_moe(const struct moe_spec *a, const struct moe_spec *b) {
    return a->n_experts == b->n_experts && a->top_k == b->top_k && a->ffn_size == b->ffn_size &&
           a->shared_ffn_size == b->shared_ffn_size && a->renormalise == b->renormalise &&
           near((double)a->scale, (double)b->scale) && a->n_groups == b->n_groups && a->top_groups == b->top_groups &&
           a->routing == b->routing;
}

static bool same_ends(const struct model_spec *a, const struct model_spec *b) {
    for (int i = 0; i < a->n_eos; i++) {
        bool found = false;
        for (int k = 0; k < b->n_eos; k++)
            found = found || a->eos[i] == b->eos[k];
        if (!found)
            return false;
    }
    return true;
}

const char *spec_difference(const struct model_spec *a, const struct model_spec *b) {
    bool windows = false;
    if (a->hidden_size != b->hidden_size || a->n_layers != b->n_layers || a->vocab_size != b->vocab_size)
        return "a size";
    for (int l = 0; l < a->n_layers; l++) {
        if (!same_layer(a, &a->layers[l], b, &b->layers[l]))
            return "what a layer is";
        windows = windows || a->layers[l].mixer == MIX_SLIDING;
    }
    if (a->n_heads != b->n_heads || a->head_dim != b->head_dim)
        return "the heads";
    if (windows && a->sliding_window != b->sliding_window)
        return "the window of attention";
    if (!near(a->norm_eps, b->norm_eps))
        return "the epsilon of norms";
    if (a->activation != b->activation)
        return "the activation";
    if (a->tied_embeddings != b->tied_embeddings)
        return "whether the table is the head";
    if (a->qkv_bias != b->qkv_bias || a->o_bias != b->o_bias || a->mlp_bias != b->mlp_bias)
        return "which projections have a bias";
    if (!near(a->attention_scale, b->attention_scale) || !near(a->attention_softcap, b->attention_softcap) ||
        !near(a->final_softcap, b->final_softcap) || !near(a->embedding_scale, b->embedding_scale) ||
        !near(a->swiglu_limit, b->swiglu_limit))
        return "a scale or a soft-cap";
    if (!same_moe(&a->moe, &b->moe))
        return "the experts";
    if (memcmp(&a->mla, &b->mla, sizeof a->mla) != 0 || memcmp(&a->delta, &b->delta, sizeof a->delta) != 0)
        return "a mixer's sizes";
    if (a->per_layer_input_size != b->per_layer_input_size || a->per_layer_vocab_size != b->per_layer_vocab_size)
        return "the inputs of layers";
    return same_ends(a, b) ? NULL : "the tokens that end an answer";
}
