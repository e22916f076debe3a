/* bind.h - from names in a checkpoint to weights that a program can use.
 *
 * A family names every weight with its shape in one line. The binder finds the tensor, checks rank, shape and
 * storage, joins parts, and marks the tensor as consumed; what is left over at the end is refused by name
 * (binder_finish). The first failure is kept in b->err and everything after it returns an empty weight, so a
 * bind function needs no checks of its own.
 *
 *     struct dim D = dim_whole(s->hidden_size), Q = dim_heads(H, hd), KV = dim_kv_heads(G, hd);      // core/axis.h
 *     w->attn_out = bind_matrix(b, D, Q, "layers.%d.self_attn.o_proj", l);                 // [out, in], no ".weight"
 *     w->qkv      = bind_fused(b, D, 3, (struct part[]){
 *                       part(b, Q, "layers.%d.self_attn.q_proj", l),
 *                       part(b, KV, "layers.%d.self_attn.k_proj", l),
 *                       part(b, KV, "layers.%d.self_attn.v_proj", l)});
 *     w->norm     = bind_vector(b, D, "layers.%d.input_layernorm.weight", l);
 *
 * Names stand under the model's prefix ("model.", "model.language_model." ...), which the binder finds; a name
 * that begins with '/' is taken as it is without that character ("/lm_head").
 *
 * Instead of a checkpoint the binder can work on
 *   LOAD_DUMMY    memory filled with random values (N(0, 1/in) matrices, vectors around 1): benchmarks
 *   LOAD_PHANTOM  nothing: every tensor asked for exists and has no bytes; `gyre info` counts parameters so */
#pragma once

#include "core/weight.h"
#include "file/checkpoint.h"
#include "model/spec/spec.h"

enum load_format { LOAD_CHECKPOINT, LOAD_DUMMY, LOAD_PHANTOM };

/* What a family took of its checkpoint, in its order and under the checkpoint's names, for who writes it anew. A
 * module's matrix is MODULE.weight, however it is stored; of stacks of experts each has the name that it would have
 * alone ("experts.3.gate_proj.weight"). */
struct bound {
    const char *name;
    bool is_matrix;     // else a vector, of `rows` elements
    int64_t rows, cols; // all of the tensor's
    struct weight_part part;
};
struct bound_list {
    struct bound *items; // [n]; freed by the caller
    size_t n, cap;
};

struct binder {
    struct arena *arena;      // weights and names live here
    struct bound_list *taken; // NULL: not wanted; names in it live in the arena
    const struct model_spec *spec;
    enum load_format load;
    struct checkpoint *checkpoint; // NULL unless LOAD_CHECKPOINT
    char prefix[64], head_prefix[64];
    enum status status;
    struct error *err;
    uint64_t dummy_seed;
    struct dummy_memory *dummy;
    int64_t dummy_done, dummy_total; // bytes
    struct load_progress progress;   // of dummies
    struct {                         // tensors that were taken in part, so that the next part does not count them again
        const char *name;
        struct weight_part view;
    } shared[8];
    size_t n_shared;
    int64_t n_parameters;             // of the model: packed and scaled weights count by element, scales do not
    int64_t stored_bytes[N_STORAGES]; // as in the file, scales and packed words included
};

/* For names that all stand under one prefix, whatever else the checkpoint has. */
void binder_init_under(struct binder *b, enum load_format load, struct checkpoint *checkpoint,
                       const struct model_spec *spec, struct arena *arena, const char *prefix, struct error *err);

enum status binder_init(struct binder *b, enum load_format load, struct checkpoint *checkpoint,
                        const struct model_spec *spec, struct arena *arena, struct error *err);

/* What a family took; then: every tensor of the checkpoint was consumed or matches one of the patterns
 * (fnmatch, on the full name; NULL-terminated list), else ERR_UNSUPPORTED names up to five of the rest. */
enum status binder_finish(struct binder *b, const char *const *unused);

/* Memory of LOAD_DUMMY outlives the binder; NULL is fine. */
void dummy_memory_free(struct dummy_memory *memory);

/* Rows [first, first + rows) of a module's matrix of stored_rows rows. */
struct part {
    const char *module;
    struct dim rows;
    int64_t first, stored_rows;
};
struct part part(struct binder *b, struct dim rows, const char *module, ...) __attribute__((format(printf, 3, 4)));
struct part part_rows(struct binder *b, int64_t first, struct dim rows, int64_t stored_rows, const char *module, ...)
    __attribute__((format(printf, 5, 6)));

/* A module's weight [out, in], in whatever storage the quantisation settings say. */
const struct weight *bind_matrix(struct binder *b, struct dim out, struct dim in, const char *module, ...)
    __attribute__((format(printf, 4, 5)));

/* Parts one under another. Parts may name the same module; empty parts (rows 0) are skipped. */
const struct weight *bind_fused(struct binder *b, struct dim in, int n_parts, const struct part *parts);

/* The tensor `name` as a vector of n elements, whatever its rank. */
const struct weight *bind_vector(struct binder *b, struct dim n, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

/* The biases (module.bias) of fused parts, as one vector. */
const struct weight *bind_fused_bias(struct binder *b, int n_parts, const struct part *parts);

/* Whether the checkpoint has this tensor. A phantom or dummy answers `otherwise`. */
bool bind_has(struct binder *b, bool otherwise, const char *name, ...) __attribute__((format(printf, 3, 4)));

/* Marks a tensor as known and not needed, where the checkpoint has it. */
void bind_set_aside(struct binder *b, const char *name);

/* The experts of one layer, stored as one tensor [E, 2F, D] and [E, D, F] (transformers 5) or as matrices of
 * their own under base.E.gate ... : w13 [E*2F, D] with each expert's gate rows before its up rows, w2 [E*D, F]. */
struct experts {
    const struct weight *w13, *w2;
};
struct expert_names {
    const char *gate, *up, *down;
};
struct experts bind_experts(struct binder *b, const char *base, struct expert_names names, int64_t n_experts,
                            int64_t ffn_size, int64_t hidden_size, bool fused_otherwise);

/* ---- for layouts that need views of their own (GPT-OSS) ---- */

/* Finds, checks and consumes `name` of exactly this shape; NULL after a failure. */
const struct stored_tensor *bind_tensor(struct binder *b, const char *name, int rank, const int64_t *shape);
/* The same, with the dtype that a phantom gives it in place of the model's. */
const struct stored_tensor *bind_tensor_as(struct binder *b, const char *name, enum dtype phantom_dtype, int rank,
                                           const int64_t *shape);
/* True for f32, f16 and bf16, not in blocks; else fails, saying that nothing tells how to read the tensor. */
bool bind_is_number(struct binder *b, const struct stored_tensor *t);
/* True for this dtype; else fails. Asked before a tensor's bytes are read: a shape does not say how many they are. */
bool bind_is_stored_as(struct binder *b, const struct stored_tensor *t, enum dtype dtype);
struct weight *bind_new_weight(struct binder *b, const char *name, int64_t out, struct dim in, int n_parts);
char *bind_full_name(struct binder *b, const char *name); // with the prefix
/* Notes what was taken. */
void bind_note(struct binder *b, const char *name, bool is_matrix, int64_t cols, struct weight_part part);
