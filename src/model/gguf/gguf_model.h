/* gguf_model.h - a GGUF file as a model in Hugging Face's layout, which is what families read and bind.
 *
 *     metadata  llama.embedding_length = 2048        ─►  config.json  "hidden_size": 2048
 *     tensors   blk.3.attn_q.weight [D, Q]           ─►  model.layers.3.self_attn.q_proj.weight [Q, D]
 *               blk.3.ffn_up_exps.weight [D, F, E]   ─►  model.layers.3.mlp.experts.0.up_proj.weight [F, D], ...
 *
 * No weight is moved. What converters changed is said to the program in other ways: rows of q and k that were reordered
 * for interleaved RoPE get interleaved RoPE, norm weights stored as 1 + w are taken whole, divisors of RoPE's
 * frequencies (rope_freqs) become a rope type of their own. Small vectors are computed back (-exp(A_log)).
 *
 * One row of gguf_arch.c an architecture. A key of the architecture that is not read here is refused by its name, since
 * it may change what the model computes; so is a tensor that the family does not use. */
#pragma once

#include "base/gguf/gguf.h"
#include "file/checkpoint.h"
#include "model/spec/spec.h"

/* Tensors of a layer: what stands behind "blk.N." and behind "layers.N."; the ending .weight or .bias is kept where
 * `stored` has none. "%e" in `name` takes a stack of experts apart. `second`: where the stack holds the rows of two
 * matrices an expert, the name of the lower ones. */
struct gguf_name {
    const char *stored, *name, *second;
};

struct gguf_translation;

struct gguf_arch {
    const char *name;                                     // general.architecture
    bool experts;                                         // the row is for files with experts
    const char *model_type;                               // in config.json
    bool interleaved;                                     // q and k lie as interleaved RoPE wants them
    bool norms_hold_one;                                  // norm weights are stored as 1 + w
    bool partial_rope;                                    // RoPE may turn a part of a head
    bool tied;                                            // no head of its own is ever stored
    enum status (*translate)(struct gguf_translation *t); // keys beyond those of all; NULL: none
    const struct gguf_name *names;                        // before those of all; ended by NULL
};

/* The config.json that the metadata stand for; *out is the caller's. ERR_UNSUPPORTED names an architecture that no
 * family here computes. */
enum status gguf_config(const struct gguf *g, const struct gguf_arch **arch, json_t **out, struct error *err);

/* What no config.json can say, into a spec that was read from gguf_config's. */
void gguf_adjust(const struct gguf_arch *arch, struct model_spec *spec);

/* Gives the tensors of c the names that families bind. Errors have the names of the file. */
enum status gguf_rename(struct checkpoint *c, const struct model_spec *spec, struct error *err);

/* The name in the file of a tensor that a family asks for, for sentences; `name` itself when it is of no table. */
const char *gguf_stored_name(const struct gguf_arch *arch, const char *name, struct arena *arena);
