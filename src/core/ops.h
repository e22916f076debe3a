/* ops.h - opcodes and the arguments that travel in an op's record. What each op computes: ops.def. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum opcode {
#define OP(code, function, n_in, n_out, n_weights) OP_##code,
#include "core/ops.def"
#undef OP
    N_OPCODES,
};

enum { OP_MAX_IN = 3, OP_MAX_OUT = 2, OP_MAX_WEIGHTS = 4 };

enum activation { ACT_SILU, ACT_GELU_TANH, ACT_GELU, ACT_SIGMOID, ACT_SWIGLU_CLAMPED };
enum routing { ROUTE_SOFTMAX, ROUTE_SOFTMAX_TOPK, ROUTE_SIGMOID, ROUTE_SOFTMAX_GROUP };

struct embed_args {
    float scale; // already rounded as the family requires
    int first;   // the token of the table's row 0
};

struct norm_args {
    float eps;
    bool plus_one;
    int group;   // NORM: channels a group; 0: the row
    float scale; // NORM: on the result
};

struct qkv_args {
    int cache; // which layer's cache: index into program.caches
    int rope;  // index into program.ropes; -1: none
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    float eps;
    bool plus_one, v_norm, v_from_k, k_absent;
    int rotary_dim; // channels of a key that are stored, the others being its value's; 0: all
};

/* Which keys of its sequence a query at position i sees, of those in its window. */
enum attention_reach {
    REACH_CAUSAL, // j <= i
    REACH_BEFORE, // j < i: its own is not there
    REACH_ALL,    // all that the step leaves there, those of later rows too
};

struct attention_args {
    int cache;
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    float scale, softcap;
    int window, chunk; // tokens; 0: none
    bool paired_values;
    int rotary_dim;
    enum attention_reach reach;
};

/* Where channel i of a key is among the rotary_dim that are stored; -1: it is its value's. */
static inline int turned_channel(int i, int head_dim, int rotary_dim) {
    int half = head_dim / 2, n = rotary_dim / 2;
    return i % half < n ? i / half * n + i % half : -1;
}

struct mla_args {
    int cache, rope;
    int n_heads, rank, nope_dim, rope_dim, v_dim;
    float eps, scale;
};

struct act_args {
    enum activation act;
    float limit; // ACT_SWIGLU_CLAMPED
};

struct diff_args {
    int n_heads, width; // width: columns a head
    float lambda_init;
};

struct route_args {
    enum routing how;
    int n_experts, top_k, n_groups, top_groups;
    bool renormalise;
    float scale;
    int n_shared; // experts behind those that all tokens are sent to
};

static inline int route_slots(const struct route_args *a) { return a->top_k + a->n_shared; }

struct moe_args {
    int n_experts, top_k, ffn_size;
    struct act_args act;
    int first_expert;
};

struct conv_args {
    int cache, kernel;
};

struct delta_args {
    int cache;
    int n_key_heads, n_value_heads, key_dim, value_dim;
};

struct softcap_args {
    float cap;
};

struct lora_run { // columns of a projection
    int width, module;
};

struct lora_args {
    int n_adapters, n_modules, rank, n_runs;
    const struct lora_run *runs; // [n_runs], of all columns in order; of the program
};

struct gather_args {
    int first; // column of y that this rank's begin at
};

union op_args {
    struct embed_args embed;
    struct norm_args norm; // ADD_NORM, NORM
    struct qkv_args qkv_prep;
    struct attention_args attention;
    struct mla_args mla; // MLA_PREP, MLA_ATTENTION
    struct act_args gated_act;
    struct diff_args diff_heads;
    struct route_args moe_route;
    struct moe_args moe_ffn;
    struct conv_args short_conv;
    struct delta_args delta_rule;
    struct softcap_args softcap;
    struct lora_args lora;
    struct gather_args all_gather;
};
