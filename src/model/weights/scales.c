/* scales.c - see scales.h. */
#include "model/weights/scales.h"

#include "base/str.h"

#include <ctype.h>
#include <stdlib.h>

static bool is_among(const char *name, const char *const *names) {
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

/* What stands behind "layers.N.", N < n_layers; NULL when it does not. */
static const char *within_layer(const char *name, int n_layers) {
    static const char marker[] = "layers.";
    const char *at = strstr(name, marker);
    if (!at || (at > name && at[-1] != '.'))
        return NULL;
    at += sizeof marker - 1;
    if (!isdigit((unsigned char)*at))
        return NULL;
    char *end;
    long layer = strtol(at, &end, 10); // LONG_MAX if it is beyond
    return *end == '.' && layer < n_layers ? end + 1 : NULL;
}

/* at: what stands behind "self_attn.". */
static bool is_cache_scale(const char *at) {
    static const char *const leaves[] = {"q_scale",
                                         "k_scale",
                                         "v_scale",
                                         "kv_scale",
                                         "q_zero_point",
                                         "k_zero_point",
                                         "v_zero_point",
                                         "q_global_scale",
                                         "k_global_scale",
                                         "v_global_scale",
                                         "prob_scale",
                                         "prob_output_scale",
                                         NULL};
    static const char *const of_projections[] = {"q_scale", "k_scale", "v_scale", "kv_scale", NULL};
    if (is_among(strncmp(at, "attn.", 5) == 0 ? at + 5 : at, leaves))
        return true;
    const char *dot = strchr(at, '.');
    return dot && str_ends((struct str){at, (size_t)(dot - at)}, STR("_proj")) && is_among(dot + 1, of_projections);
}

static bool is_vector(const struct stored_tensor *t) {
    int wide = 0;
    for (int i = 0; i < t->rank; i++)
        wide += t->shape[i] != 1;
    return wide <= 1;
}

bool is_unused_scale(const struct stored_tensor *t, int n_layers) {
    static const char *const of_outputs[] = {"output_scale", "output_zero_point", "output_global_scale", NULL};
    static const char attention[] = "self_attn.";
    const char *at = within_layer(t->name, n_layers);
    if (!at || !is_vector(t))
        return false;
    const char *leaf = strrchr(at, '.');
    return (strncmp(at, attention, sizeof attention - 1) == 0 && is_cache_scale(at + sizeof attention - 1)) ||
           (leaf && is_among(leaf + 1, of_outputs));
}

int64_t count_unused_scales(const struct checkpoint *c, int n_layers) {
    int64_t n = 0;
    for (size_t i = 0; i < checkpoint_count(c); i++)
        n += is_unused_scale(checkpoint_at(c, i), n_layers);
    return n;
}
