/* cuda.h - the objects of the CUDA backend: a device, a program loaded on it, and one made ready for steps.
 *
 *     open device (device/) -> load weights (weights/) -> caches (cache/) -> compile (step/compile.c): values get
 *     elements and places, ops their arguments; LINEARs their kernels (linear/choose.c); graphs are captured
 *     (step/graphs.c) -> a step: its plan goes up (step/plan.c), its nodes (step/lower.c) on the stream
 *     (step/launch.c), results come back (step/step.c)
 *
 * Products run in float16 where the checkpoint stores most of its matrices in 16 bits or fewer (eight times finer than
 * bfloat16; what its range does not hold is refused when weights are placed), else in float32; matrices of LINEAR may
 * be e4m3; sums are float32, or half precision where a kernel of ours multiplies e4m3. The residual stream, logits,
 * router scores and gates of recurrences stay float32; what a product reads has the product's element. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/latent/latent.h"
#include "backend/cuda/device/l2_copy.h"
#include "backend/cuda/device/virtual.h"
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/step/plan_layout.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/blocks.h"
#include "backend/cuda/weights/place.h"
#include "core/backend.h"

#include <cublasLt.h>

/* A weight on the device. */
struct placed {
    const struct weight *weight;
    int64_t n_bytes;                                // of all its places
    int number, n_rest;                             // number: of weights, as ops come to them
    bool is_multiplied;                             // or added: more than EMBED reads it
    struct dweight matrix, rest[2];                 // of matrices; at NULL: the weight is read whole. rest: rows behind
                                                    // it, of another kind of QUADS each
    int32_t *column_order, *order_there;            // of QUADS, host and device: where column k is stored; NULL: at k
    struct dblocks blocks;                          // how its rows lie, where it is in blocks
    struct dweight floats;                          // of vectors and convolutions
    const struct dl2_copy *l2_copy[L2_COPY_SHAPES]; // the matrix once more, l2_copy.c; NULL: it is not
};

/* The memory of a cache group, see cache.c. */
struct group_cache {
    void *at, *host; // host: blocks that are only copied from and to, pinned
    int64_t layer_elements, block_elements, n_blocks, n_host;
    enum element element;
    bool is_mapped;           // by need, in pieces; else at is one allocation
    int piece_blocks;         // blocks in a piece ...
    int piece_places;         // ... and block_elements from piece to piece
    struct virtual_range map; // if is_mapped
};

/* Where kernels find block b: layer's address + place * block_elements. NO_BLOCK stays. */
static inline int32_t cache_place(const struct group_cache *c, int32_t b) {
    return b < c->piece_blocks ? b : b / c->piece_blocks * c->piece_places + b % c->piece_blocks;
}

struct device {
    int index;
    const struct phantom_card *card; // of device_options: nothing is sent there or run; NULL: the device is there
    int64_t taken;                   // of such a card's memory
    int most_pitch;                  // bytes from row to row of a copy of rows
    cudaStream_t stream; // of all that a step reads or writes; with it nothing is ordered, the runtime's own neither
    cudaStream_t ahead;  // of copies that the stream waits for
    cublasLtHandle_t blas;
    void *workspace; // of cuBLASLt
    struct plan_cache *plans;
    cudaEvent_t begun, ended; // of what is timed
    double memory_share;      // device_options
    bool requantises; // products of what is loaded may (gemm_requantises): of one object for each physical device
    const struct kernel_arch *arch; // whose code it runs (manifest.h)
    bool is_fast;                   // by Hopper's kernels (build.mk), where they take a shape; else by plain ones alone
    bool multiplies_e4m3;           // the library does here
    bool eager;                     // no graphs
    int patience_s;                 // of a rank that waits for another
    bool meets_by_host;             // ranks leave each other's memory alone
    bool whole_keys;
    enum element state; // of the delta rule's states: float32, or bfloat16 where that is asked for
    struct error fault; // sticky
};

struct ranks; // ranks/join.c

/* load_options.quantization. */
enum quantise { QUANTISE_NOTHING, QUANTISE_FP8, QUANTISE_INT4, QUANTISE_NVFP4 };

struct loaded {
    struct device *device;
    struct ranks *ranks;     // of the program's, and those of others; NULL: it has not been joined
    struct program *program; // as passes left it
    enum element product;
    bool product_is_set;    // by load_options.dtype
    enum quantise quantise; // matrices of LINEAR when they are loaded, and of FP8 experts
    bool dummies, is_draft; // weights without data are made here; of load_options
    struct load_progress progress;
    const struct loaded *caches_of; // of load_options, and n_back
    int n_back;
    int32_t *state_base; // [n_states + n_host_states]: tokens that a slot's state has, where it can go back
    enum element kv;     // of KV caches, if kv_is_set: by load_options.kv_dtype; else that of the products
    bool kv_is_set;
    struct placed *placed; // [n_slots], open addressing by the weight's address
    int n_slots, n_placed;
    void *weights; // one allocation
    int64_t weight_bytes;
    struct {
        const struct weight *head; // that has a copy in 8 bits, among the weights; NULL: none
        void *copy;                // whole pages of l2_topology.h
        int64_t n_bytes;           // that it takes, or would
        bool left_out;             // there is not room enough for it
        bool not_finite;           // the head holds such elements, and its copy is of no use
        uint32_t *flips;           // of the copy's pages (l2_topology.h); NULL: sides are not known
    } filter;
    struct {
        bool looked; // for sides
        struct dl2_sides sides;
        struct l2_copy *all; // l2_copy.c
        void *at;            // of n_pages, among the weights
        int64_t n_bytes;
        int n_pages, n_left_out; // n_left_out: weights for which there is not room enough
        const char *none;        // why the device's sides are not known
    } l2_copy;
    struct dcounts *counts; // pinned
    int64_t n_filtered;     // steps of greedy rows alone, of a screened head
    int64_t n_lists_left;   // steps whose lists had no room on the device
    int64_t n_not_captured; // steps that were no graphs, if products are made in float16 ...
    int64_t n_watched;      // ... and those of them that were looked at
    struct group_cache caches[MAX_CACHE_GROUPS];
    struct handed_copies *copies; // cache/handover.c; NULL: nothing was handed over yet
    int n_caches, block_size, table_width[MAX_CACHE_GROUPS];
};

enum { WORKSPACE_BYTES = 32 << 20, COUNTER_BYTES = 256 }; // the library wants either aligned to so many bytes

struct qact;
struct qact_state;
/* Whether an op needs no node of its own (step/fold.c). */
enum fold {
    FOLD_NEVER,
    FOLD_ALWAYS,   // a NORM that an ADD_NORM does
    FOLD_IN_ORDER, // a TAKE_ROWS, in a step whose output row r is token row r
};

struct compiled_op {
    const struct op *op;
    struct dmat in[OP_MAX_IN], out[OP_MAX_OUT];
    struct dweight matrix[OP_MAX_WEIGHTS], floats[OP_MAX_WEIGHTS];
    struct gemm *gemm;        // LINEAR
    int gemv_rows;            // LINEAR: up to so many rows gemv.cu takes it
    bool is_head;             // LINEAR: the program's head, and lm_head.cu takes it
    struct compiled_op *pair; // LINEAR: the GATED_ACT that its node does too on some paths, and GATED_ACT: that LINEAR;
                              // MOE_ROUTE and MOE_FFN likewise; of a DeltaNet layer in one node (delta_layer.c)
                              // SHORT_CONV and DELTA_RULE have the NORM, and that the SHORT_CONV
    struct compiled_op *router; // MOE_ROUTE: the LINEAR that its node does too on some paths, and that LINEAR likewise
    struct compiled_op *gate;   // MOE_ROUTE: the LINEAR that gates shared experts, which its node does, and that LINEAR
    struct compiled_op *sum, *reduce;  // ADD_NORM: the GATED_ADD, and the ALL_REDUCE that makes what it adds, that its
                                       // node does too in steps of few rows; and those
    struct dmat convert;               // LINEAR: where x goes first, if it has another element, or ...
    const int32_t *column_order;       // ... its columns are wanted in this order; NULL: in their own
    struct qact *in_qact;              // LINEAR with an e4m3 weight: of in[0]
    struct dmat unscaled;              // likewise: its products before their scales
    bool unscaled_is_read;             // whoever reads out[0] takes unscaled products
    struct qact *out_qact[OP_MAX_OUT]; // of out[k], all its columns; NULL: it has none
    enum fold fold;
    struct dmat in_order; // LINEAR of rows taken: in[0] in a step where they are the token rows; at NULL: of others
    const struct norm_args *d_norm; // ADD_NORM: in[1] is normed first, with the weight d_weight; NULL: it is not
    struct dweight d_weight;
    struct dcache cache;
    const struct drope *rope;
};

/* Every sequence has one token, and a row; few, of which each has a row (drafts to be checked); few, of which some have
 * none (what a grammar forces, short prompts). */
enum step_shape { STEP_DECODES, STEP_DRAFTS, STEP_FEW, STEP_OTHER };

/* Of a step: all; all but SAMPLE; what comes before the head. */
enum step_part { STEP_WHOLE, STEP_FORWARD, STEP_BODY, N_STEP_PARTS };

/* Captured steps of padded_rows_at(i) rows, [n] of each part. NULL until there was such a step. */
struct step_graphs {
    cudaGraphExec_t *of[N_STEP_PARTS];
    int n;
};

struct executable {
    struct loaded *loaded;
    const struct program *program;
    struct bucket bucket;
    struct compiled_op *ops;        // [program.n_ops]
    struct qact *qacts;             // [n_qacts]
    struct qact_state *qact_states; // [n_qacts], of a step that is being lowered
    struct node *nodes;             // of the step that was lowered last: step/node.h
    int n_qacts;
    struct drow_absmax row_absmax;  // of the qacts, zero when a step begins
    struct dgrid_barrier *barriers; // likewise, [n_qacts][REQUANT_MEETINGS]
    void *memory;                   // values
    int64_t step_bytes;             // of all that a step uses on the device
    struct trace_mark *marks;       // [program.n_ops + 1] while a step is traced, else NULL
    bool only_sized;                // nothing is allocated: step_bytes is what is wanted
    void *scratch;                  // of conversions and experts
    void *expert_list;              // of the layer's experts: moe/moe_stream.h
    char *counters;                 // [program.n_ops][COUNTER_BYTES], of LINEARs
    struct step_graphs graphs[STEP_OTHER];
    int n_untimed;       // numbers of rows for which linear_choose had no time left
    struct drope *ropes; // [program.n_ropes]
    void *rope_memory;
    struct dparts *parts; // [n_parts], lists for the attention kernels
    int n_parts;
    void *partial, *arrived; // of the lists
    struct dlatent_parts latent;
    struct dmat logits;             // at NULL: nothing is drawn
    struct dmat kept[1 + MAX_TAPS]; // hidden, then the program's taps
    struct dbest *bests;            // [HEAD_MAX_ROWS][HEAD_BESTS], by lm_head.cu
    float *row_copies;              // of SAMPLE, where the device needs them
    struct {
        void *scratch; // NULL: the head is not screened
        struct dfilter_state *state;
        int32_t *asked; // pinned: filter_again has something to do
    } filter;
    char *plan_device; // one block, read by every step
    size_t plan_bytes;
    struct plan_layout layout;
    struct device_plan plan_view;
    int32_t *row_token;         // [max_rows]: what the last step sampled
    int32_t *token_of;          // of the program, on the device; NULL: it has none
    struct dmat *state_sources; // [STATE_SOURCES], on the device; NULL: the program has no STATES
    void *given_states;         // [max_tokens, width] float32, of plans that bring them; NULL: none has yet
    struct step_slot slots[STEPS_IN_FLIGHT];
    int64_t n_started, n_collected;
    bool is_late;       // the step that was started last waits for draw, ...
    int drawn_from;     // ... which launches the ops from this one on
    float *logits_host; // [max_rows][vocab], rows that the host was asked for; pages that nobody writes take no memory
    struct {
        int64_t step; // n_collected
        int first, end;
    } logits_there;     // rows of logits_host that were fetched last
    float *hidden_host; // a row of kept
};
