/* layers.h - which matrices of a checkpoint are quantised where its layout stays Hugging Face's, and as what.
 *
 * Those are the projections of layers, each expert's too. The table, the head, routers, convolutions and the small
 * gates of recurrent layers stay as they are, and so does what the model does not read (predictors, towers). */
#pragma once

#include "base/json/json.h"
#include "model/model.h"
#include "quantize/round/codes.h"

struct layer_matrix {
    const struct bound *b;
    const char *module; // the name less ".weight"
    struct codes codes;
};

struct layer_matrices {
    struct arena arena;
    struct layer_matrix *items; // [n]
    size_t n;
    size_t n_plain; // matrices that stay as they are, since their columns are no multiple of a group
    const char *first_plain;
};

/* format as in --type; ERR_UNSUPPORTED names a matrix that is quantised already. Groups of int4 have 128 columns, or 64
 * or 32 where those divide all widths. */
enum status layer_matrices_choose(const struct model *m, const struct bound_list *taken, enum code_format format,
                                  struct layer_matrices *out, struct error *err);
void layer_matrices_release(struct layer_matrices *l);

/* Whether another module reads the same rows and is computed together with this one (q, k and v; gate and up): engines
 * that fuse them want one scale for the tensors. */
bool layer_siblings(const char *a, const char *b);

/* "quantization_config" of compressed-tensors; the caller's. ignored: names of modules that stay plain. */
json_t *layer_config(const struct codes *c, json_t *take_ignored);
