/* footprint.c - see footprint.h. */
#include "model/footprint.h"

const char *mixer_name(enum mixer mixer) {
    switch (mixer) {
    case MIX_FULL: return "full attention";
    case MIX_SLIDING: return "sliding window";
    case MIX_CHUNKED: return "chunked attention";
    case MIX_LATENT: return "latent attention";
    case MIX_DELTA: return "recurrent state";
    }
    return "";
}

// Channels of a key that do not follow from its value (core/pass/pass.h, shared_kv_channels).
static int stored_of_key(const struct model_spec *s, const struct layer_spec *l) {
    const struct rope *rope = l->rope >= 0 ? &s->ropes[l->rope] : NULL;
    return l->v_from_k && rope && rope->dim == l->head_dim ? rope_turned(rope) : l->head_dim;
}

// What one layer needs.
static struct cache_need layer_need(const struct model_spec *s, const struct layer_spec *l, int element_bytes) {
    struct cache_need n = {.mixer = l->mixer, .n_layers = 1, .n_kv_heads = l->n_kv_heads, .head_dim = l->head_dim};
    const struct delta_spec *d = &s->delta;
    switch (l->mixer) {
    case MIX_SLIDING: n.max_tokens = s->sliding_window; break;
    case MIX_CHUNKED: n.max_tokens = s->attention_chunk; break;
    case MIX_FULL: break;
    case MIX_LATENT:
        n.n_kv_heads = 1;
        n.head_dim = s->mla.kv_rank + s->mla.rope_dim;
        n.bytes_per_token = (int64_t)n.head_dim * element_bytes;
        return n;
    case MIX_DELTA:
        n.n_kv_heads = d->n_value_heads;
        n.head_dim = d->value_dim;
        n.state_bytes = (int64_t)d->n_value_heads * d->key_dim * d->value_dim * 4;
        n.conv_bytes = (2LL * spec_key_heads(s) * d->key_dim + (int64_t)d->n_value_heads * d->value_dim) *
                       (d->conv_kernel - 1) * element_bytes;
        return n;
    }
    n.bytes_per_token = (int64_t)n.n_kv_heads * (stored_of_key(s, l) + n.head_dim) * element_bytes;
    return n;
}

static bool same_group(const struct cache_need *a, const struct cache_need *b) {
    return a->mixer == b->mixer && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim;
}

int cache_needs(struct model_spec *spec, int element_bytes, const struct cache_need **out) {
    struct cache_need *groups = arena_calloc(&spec->arena, (size_t)spec->n_layers, sizeof *groups);
    int n_groups = 0;
    for (int l = 0; l < spec->n_layers; l++) {
        if (spec->layers[l].kv_source != l)
            continue;
        struct cache_need need = layer_need(spec, &spec->layers[l], element_bytes);
        int g = 0;
        while (g < n_groups && !same_group(&groups[g], &need))
            g++;
        if (g == n_groups) {
            groups[n_groups++] = need;
            continue;
        }
        groups[g].n_layers++;
        groups[g].bytes_per_token += need.bytes_per_token;
        groups[g].state_bytes += need.state_bytes;
        groups[g].conv_bytes += need.conv_bytes;
    }
    *out = groups;
    return n_groups;
}
