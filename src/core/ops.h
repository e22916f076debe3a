/* ops.h - opcodes and the arguments that travel in an op's record. What each op computes: ops.def. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum opcode {
#define OP(code, function, n_in, n_out, n_weights, args) OP_##code,
#include "core/ops.def"
    N_OPCODES,
};

enum { OP_MAX_IN = 3, OP_MAX_OUT = 2, OP_MAX_WEIGHTS = 4 };

enum activation { ACT_SILU, ACT_GELU_TANH, ACT_GELU, ACT_SIGMOID, ACT_SWIGLU_CLAMPED };
enum routing { ROUTE_SOFTMAX, ROUTE_SOFTMAX_TOPK, ROUTE_SIGMOID, ROUTE_SOFTMAX_GROUP };

/* Which keys of its sequence a query at position i sees, of those in its window. */
enum attention_reach {
    REACH_CAUSAL, // j <= i
    REACH_BEFORE, // j < i: its own is not there
    REACH_ALL,    // all that the step leaves there, those of later rows too
};

struct lora_run { // columns of a projection
    int width, module;
};

/* struct embed_args and the others, as ops.def lists their fields. */
#define ARGS(args, name, fields) struct args##_args { fields };
#define ARG_INT(name) int name;
#define ARG_FLOAT(name) float name;
#define ARG_FLAG(name) bool name;
#define ARG_WORD(words, name) enum words name;
#define ARG_CACHE(name) int name;
#define ARG_ROPE(name) int name;
#define ARG_PART(args, name) struct args##_args name;
#define ARG_OTHER(type, name) type name;
#include "core/ops.def"

union op_args {
#define ARGS(args, name, fields) struct args##_args name;
#include "core/ops.def"
};

/* Where channel i of a key is among the rotary_dim that are stored; -1: it is its value's. */
static inline int turned_channel(int i, int head_dim, int rotary_dim) {
    int half = head_dim / 2, n = rotary_dim / 2;
    return i % half < n ? i / half * n + i % half : -1;
}

static inline int route_slots(const struct route_args *a) { return a->top_k + a->n_shared; }
