/* program.h - the flat list of operations that a model is, and the recorder that writes it.
 *
 * A family records values in and values out: numbers, not memory. A backend gets the whole list and decides
 * on memory, kernels and fusion. The list has sections: embed, one a layer, head; layers repeat.
 *
 *     struct program *p = program_new("qwen3");
 *     val x = op_embed(p, &w->embed, 1);                 // [T, D]
 *     program_section(p, "layer", l);
 *     struct normed n = op_add_norm(p, x, NO_VAL, &w->norm, eps_args);
 *     ...
 *     op_sample(p, op_linear(p, rows, &w->lm_head, NULL));
 *
 * The recorder checks each op's shapes as it is recorded. A shape that does not fit is our own mistake (BUG):
 * what a checkpoint says has been checked by the binder before.
 *
 * Weights, ropes and the strings are borrowed and must outlive the program (they belong to the model). */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "core/ops.h"
#include "core/rope.h"
#include "core/weight.h"

/* A value, or a run of its columns. */
typedef struct val {
    int id; // index into program.values; < 0: absent
    int col, width;
} val;

#define NO_VAL ((val){.id = -1})
static inline bool val_given(val v) { return v.id >= 0; }

/* Columns [first, first + width) of v. */
val val_cols(val v, int first, int width);

enum rows { ROWS_TOKENS, ROWS_OUT }; // T or R rows

struct value {
    int width;
    enum rows rows;
    enum dtype dtype;        // f32, or i32 for expert ids
    int first_use, last_use; // op indices: defined by, last read by
};

struct op {
    enum opcode code;
    int section;
    val in[OP_MAX_IN], out[OP_MAX_OUT];
    const struct weight *weights[OP_MAX_WEIGHTS];
    union op_args args;
};

/* Layers whose caches have the same shape and window share a group, and so block tables. */
enum cache_kind {
    CACHE_KV,     // k [n_heads, k_dim] and v [n_heads, v_dim] a token
    CACHE_LATENT, // one row of k_dim a token (MLA)
    CACHE_STATE,  // a fixed number of floats a sequence (recurrent)
};

struct cache_group {
    enum cache_kind kind;
    int n_heads, k_dim, v_dim; // KV; LATENT: k_dim
    bool shared_kv;       // KV: only k_dim channels of a key are there, its others are its value's (ops.def, QKV_PREP)
    int window;           // tokens that a layer can see; 0: all of them
    int64_t state_floats; // STATE: a layer and sequence; conv inputs first, then the delta state
    int64_t conv_floats, delta_floats; // of them, those of SHORT_CONV and of DELTA_RULE
    int conv_width, delta_width;       // what these ops read of a token
    int ring; // STATE: keys and values as of KV, of a sequence's last so many tokens (pass_rings); 0: recurrent
    int n_layers;
};

struct cache_layer {
    int group, index; // index among the group's layers
};

struct section {
    const char *name; // "embed", "layer", "head"
    int layer;        // -1 outside layers
    int first_op;
};

enum { MAX_TAPS = 8 };

/* A weight that a pass made a part of another. */
struct joined_weight {
    const struct weight *was, *is;
};

struct program {
    struct arena arena;
    const char *name;
    struct op *ops;
    int n_ops, cap_ops;
    struct value *values;
    int n_values, cap_values;
    struct section *sections;
    int n_sections, cap_sections;
    struct cache_group *groups;
    int n_groups;
    struct cache_layer *caches; // by cache number, as ops name them
    int n_caches;
    const struct rope **ropes;
    int n_ropes;
    const int
        *of_op; // [n_ops]: the op of the first program whose work it does, where a pass joined some; NULL: as they
                // stand there
    const struct joined_weight *joined; // [n_joined], by the same pass
    int n_joined;
    int rank, n_ranks; // of what was cut for several devices (pass/pass.h); n_ranks 0: the whole model
    int vocab_size;
    const int32_t *token_of; // [vocab_size], borrowed: what EMBED calls a token that SAMPLE gives; NULL: the same
    val hidden; // [T, W], behind the last norm: what TAKE_ROWS reads. Kept to the end of a step, for backend_ops.hidden
    val taps[MAX_TAPS]; // [n_taps], kept too (pass/pass.h)
    int n_taps;
};

static inline int32_t program_token_of(const struct program *p, int32_t drawn) {
    return p->token_of ? p->token_of[drawn] : drawn;
}

/* The op of the program that passes began with. */
static inline int program_op_of(const struct program *p, int op) { return p->of_op ? p->of_op[op] : op; }

struct program *program_new(const char *name);
void program_free(struct program *p);
/* Names, weights and ropes are borrowed of the first, of_op and joined too. */
struct program *program_copy(const struct program *p);
/* With other ops, in order of their sections; `more` are values behind those of the first. */
struct program *program_copy_with(const struct program *p, const struct op *ops, int n_ops, const struct value *more,
                                  int n_more);
/* Without ops, values and sections but "embed": to be recorded anew with the caches and ropes of the first. */
struct program *program_copy_caches(const struct program *p);

void program_section(struct program *p, const char *name, int layer);

/* Declares a layer's cache; equal shapes and windows join a group. Returns the cache's number. */
int program_cache_kv(struct program *p, int n_heads, int k_dim, int v_dim, int window);
int program_cache_latent(struct program *p, int width);
int program_cache_state(struct program *p, int64_t conv_floats, int64_t state_floats);
/* Floats of a slot, a layer, whose state can go back n_back tokens (plan.h, state_slot): what its ops read of these is
 * kept beside it. Whether all states are of ops that can do so. */
enum { STATE_MARKS = 16 };
int64_t cache_state_floats(const struct cache_group *g, int n_back);
bool program_states_go_back(const struct program *p);
int program_rope(struct program *p, const struct rope *rope); // the same pointer gives the same number
/* Whether the rotation of a position depends on the length of the text: then the keys of a text are not those of
 * another that begins alike. */
bool program_rope_depends_on_length(const struct program *p);

/* The ops, one function each; what they compute is in ops.def. */
struct normed {
    val r, y;
};
struct routed {
    val ids, weights;
};
#define RECORDER(type, name, parameters) type name parameters;
#include "core/ops.def"

/* An op of another program anew, with inputs and weights that are this one's; sets its results, which are as wide. */
void program_repeat_op(struct program *p, const struct program *from, struct op *op);

/* v is kept to the end of a step: a tap more. After the last op is recorded. */
void program_keep(struct program *p, val v);
bool program_keeps(const struct program *p, int id); // whether the value is `hidden` or a tap

/* The two halves of a fused gate_up projection through the activation: gate columns first. */
val op_glu(struct program *p, val gate_up, struct act_args args);

const char *op_name(enum opcode code); // "QKV_PREP"

/* Whether an op multiplies by its weight of this slot row by row; it reads the others whole. */
bool op_multiplies_by(enum opcode code, int slot);

/* The cache and the rope that an op names; -1: none. */
int op_cache(const struct op *op);
int op_rope(const struct op *op);

/* Where each value lies in one block of memory for a step of at most max_tokens and max_rows rows, so that
 * values that live at the same time never overlap (greedy by size; alignment 64 bytes). offset [n_values];
 * returns the block's size in bytes. */
int64_t program_plan_memory(const struct program *p, int64_t max_tokens, int64_t max_rows, int64_t *offset);

/* EXPLAIN: one line an op; layers that repeat the previous one but for their weights are folded. */
void program_explain(const struct program *p, struct buf *out);
