/* family.h - what a model family is: a name in registry.c and a page of its own.
 *
 * bind() names the weights and returns the family's own struct (in the binder's arena); record() writes the
 * program from the description and that struct. Neither checks anything: shapes are checked by the binder,
 * sizes by the spec. */
#pragma once

#include "core/program.h"
#include "model/spec/spec_read.h"
#include "model/weights/bind.h"

/* Next-token predictors borrow the ends of the model that they are beside. */
struct mtp_ends {
    const struct weight *embed, *lm_head;
};

struct family {
    const struct model_type *types; // that config.json may name, each with its defaults and reader; ended by no name
    void *(*bind)(struct binder *b);
    void (*record)(struct program *p, const struct model_spec *s, const void *weights); // NULL: described, not run
    const char *const *unused; // tensors of the checkpoint that the model does not need (fnmatch)

    /* The predictor that a checkpoint may hold beside the model (draft/mtp.c), with s->layers[l] as its layer; NULL:
     * none is known. Its names stand under mtp_prefix, and l is 0; NULL: it is the layer behind the last. */
    void *(*bind_mtp)(struct binder *b, int l);
    void (*record_mtp)(struct program *p, const struct model_spec *s, int l, const void *weights,
                       struct mtp_ends target);
    const char *mtp_prefix;
    bool mtp_first_blank; // row 0 has no token: its embedding is 0
};

const struct family *family_find(const char *model_type); // NULL when there is none

/* ---- the ends of every decoder: table, final norm, head ---- */

struct ends {
    const struct weight *embed, *norm, *lm_head; // lm_head == embed when tied
};
struct ends bind_ends(struct binder *b);
val record_embed(struct program *p, const struct model_spec *s, const struct ends *ends);

/* Final norm of (x + d) * r_scale (NULL: 1), the rows that are asked for, head, soft-cap, sampling. */
void record_head(struct program *p, const struct model_spec *s, const struct ends *ends, val x, val d,
                 const struct weight *r_scale, struct norm_args norm);

/* ---- arguments of a layer's attention, as its spec row says ---- */

struct attention_of {
    struct qkv_args prep;
    struct attention_args attend;
};

/* Declares layer l's cache, or names the one it shares, and fills in heads, dims, rope, window, scale and soft-cap. */
struct attention_of layer_attention(struct program *p, const struct model_spec *s, int l);

/* A projection and its bias, NULL where the description says that there is none. */
struct projection {
    const struct weight *w, *bias;
};

/* q, k and v of layer l as one projection; v is left out where the layer takes it from k, and k too where another
 * layer's cache is read. */
struct projection bind_qkv(struct binder *b, int l);
/* The same of heads in another order than one after another. */
struct projection bind_qkv_of(struct binder *b, int l, struct dim q, struct dim kv);

/* o_proj of layer l. */
struct projection bind_attn_out(struct binder *b, int l);
