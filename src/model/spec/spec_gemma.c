/* spec_gemma.c - what the Gemma families read alike; see spec_read.h. */
#include "model/spec/spec_read.h"

#include <math.h>

enum status read_gemma_common(struct spec_reader *r) {
    layers_init(r);
    r->spec->embedding_scale = sqrt(r->spec->hidden_size);
    return biases(r, false);
}

enum status read_gemma_scale(struct spec_reader *r) {
    double scalar;
    TRY(read_real(r, "query_pre_attn_scalar", 256, &scalar));
    if (!(scalar > 0 && scalar <= 1e9))
        return fail(r->err, ERR_FORMAT, "%s: \"query_pre_attn_scalar\" is %g, it must be above 0", r->path, scalar);
    r->spec->attention_scale = pow(scalar, -0.5);
    return OK;
}

// Absent: `fallback`; null: none.
enum status read_cap(struct spec_reader *r, const char *key, double fallback, double *out) {
    TRY(read_real(r, key, json_is_null(json_object_get(r->text, key)) ? 0 : fallback, out));
    if (!(*out >= 0 && *out <= 1e9))
        return fail(r->err, ERR_FORMAT, "%s: \"%s\" is %g, it must be at least 0", r->path, key, *out);
    return OK;
}

// Rope 0 is that of sliding layers, rope 1 that of full ones.
void ropes_by_mixer(struct spec_reader *r, int sliding, int full) {
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].rope = r->spec->layers[l].mixer == MIX_SLIDING ? sliding : full;
}
