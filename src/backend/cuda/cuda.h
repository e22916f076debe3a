/* cuda.h - what the host files of the CUDA backend share.
 *
 *     faults.c    what is said when the device fails
 *     manifest.c  whether the kernels that were loaded are those of the build, and for this card
 *     open.c      a physical device
 *     backend.c   the vtable: load, cache, compile (values get elements and places, ops their launchers), free
 *     weights.c   weights on the device: which element and place each gets, and what rounding did
 *     upload.c    how they come there
 *     gemm.c      LINEAR by cuBLASLt, gemm_fp8_small_m.cu, gemm_fp8_gated.cu, gemm_fp8_split_k.cu or gemm_fp8_prefill.cu
 *     memory.c    what a step takes of the device, and what is left for caches
 *     report.c    what the device tells of itself
 *     cache.c     caches: addresses for all blocks, memory behind those that are used; virtual.c maps it
 *     gemm_plan.c which of the library's algorithms for each number of rows, found by timing (gemm_time.c); plan_cache.c keeps what was found
 *     paths.c     which kernel computes each LINEAR for each number of rows, found by timing layers
 *     padded.c    the numbers of rows that a step is padded to
 *     qact.c     which values have an e4m3 qact, and who writes it
 *     static_scale.c  scales of qacts that are known before the values are
 *     fold.c      ops that need no node of their own
 *     fuse.c      which LINEARs stream their weight, and which neighbours are one node
 *     lm_head.c      the LINEAR that makes logits, whose largest SAMPLE may take from it
 *     argmax_filter.c    greedy steps that leave most of it out
 *     l2_copy.c      weights once more on either side of the L2, so that all is near who reads it (l2_topology.h, l2_copy.h)
 *     attention.c which kernel an ATTENTION runs on, and what it works on
 *     plan.c      the plan's way to the device
 *     step.c      a step: launches or a graph, and its results
 *     graphs.c    the graphs, captured when a program is compiled
 *     trace.c     how long each op takes
 *     watch.c     whether values were too large for half precision
 *     measure.c   what the card can do at best
 *     library_floor.c    what the library's products of a step take alone
 *
 * Products run in float16 where the checkpoint stores most of its matrices in 16 bits or fewer (eight times finer than bfloat16;
 * what its range does not hold is refused when weights are placed), else in float32; matrices of LINEAR may be e4m3; sums are
 * float32, or half precision where a kernel of ours multiplies e4m3. The residual stream, logits, router scores and gates of recurrences stay float32; what a product reads
 * has the product's element. A device fault is kept in device.fault and given again for ever. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/device/l2_copy.h"
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"
#include "core/backend.h"

#include "backend/cuda/device/virtual.h"

#include <cublasLt.h>

/* A weight on the device. */
struct placed {
    const struct weight *weight;
    int number;                                     // of weights, as ops come to them
    bool is_multiplied;                             // or added: more than EMBED reads it
    struct dweight matrix;                          // of matrices; at NULL: the weight is read whole
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
    int most_pitch;      // bytes from row to row of a copy of rows
    cudaStream_t stream; // of all that a step reads or writes; nothing else is ordered with it, the runtime's own stream neither
    cublasLtHandle_t blas;
    void *workspace; // of cuBLASLt
    struct plan_cache *plans;
    cudaEvent_t begun, ended; // of what is timed
    double memory_share;      // device_options
    bool requantises;         // products of what is loaded may (gemm_requantises): of one object for each physical device
    bool eager;               // no graphs
    bool whole_keys;
    struct error fault; // sticky
};

struct loaded {
    struct device *device;
    struct program *program; // as passes left it
    enum element product;
    bool product_is_set; // by load_options.dtype
    bool quantise;       // matrices of LINEAR to e4m3 when they are loaded
    bool dummies;        // weights without data are made here
    struct load_progress progress;
    enum element kv; // of KV caches, if kv_is_set: by load_options.kv_dtype; else that of the products
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
    int n_caches, block_size, table_width[MAX_CACHE_GROUPS];
};

enum { WORKSPACE_BYTES = 32 << 20, COUNTER_BYTES = 256 }; // the library wants either aligned to so many bytes

/* The first fault stays, and is told again by whatever comes later; but memory that is short is none (ERR_MEMORY). The sentence says what was done, with
 * which sizes. */
enum status device_fault(struct device *d, struct error *err, cudaError_t code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
struct executable;
struct compiled_op;
void op_described(const struct executable *exe, const struct compiled_op *c, int n_rows, char *out, size_t n); // for such a sentence

#define DEVICE_TRY(d, err, call, ...)                                   \
    do {                                                                \
        cudaError_t device_code_ = (call);                              \
        if (device_code_ != cudaSuccess)                                \
            return device_fault((d), (err), device_code_, __VA_ARGS__); \
    } while (0)

int64_t element_bytes(enum element e);

/* ---- cache.c ---- */
enum element kv_element(const struct loaded *loaded); // once the weights are placed
int64_t cuda_cache_block_bytes(const struct loaded *loaded, int group, int block_size);
/* Of `bytes` for blocks of all groups, what pieces that are not full waste at most. */
int64_t cache_waste(const struct loaded *loaded, const struct program *p, int block_size, int64_t bytes);
enum status cuda_alloc_cache(struct loaded *loaded, const struct cache_config *config, struct error *err);
enum status cuda_commit_cache(struct loaded *loaded, int group, int *n, struct error *err);
void caches_release(struct loaded *loaded);

/* ---- weights.c ---- */
enum status weights_place(struct loaded *loaded, struct error *err);
const struct placed *weight_on_device(const struct loaded *loaded, const struct weight *w); // NULL for NULL
struct placed *placed_on_device(const struct loaded *loaded, const struct weight *w);
void weights_release(struct loaded *loaded);
bool part_is_plain(const struct weight_part *part);

/* ---- upload.c ---- */
/* All that has a place goes there; counts [n_slots] on the device, in the order of b->placed. */
enum status upload_weights(struct loaded *loaded, struct dplaced *counts, struct error *err);
enum element upload_element(enum dtype dtype); // ELEMENT_I32: not one that is sent as it is stored

/* ---- gemm.c ---- */
/* x and y are where they lie in a step. With a weight of e4m3, x is a qact and y gets unscaled products (value.h). */
struct gemm; // y = x W^T + b of one LINEAR, for every number of rows of a bucket
/* act: the GATED_ACT that some paths do too, or NULL; made: where they write, which get no unscaled products. */
enum status gemm_open(struct loaded *loaded, const struct op *op, const struct op *act, struct dmat x, struct dmat y, struct dmat made,
                      int max_rows, struct gemm **out, struct error *err);
void gemm_free(struct gemm *g);
/* COUNTER_BYTES that no other LINEAR of the program has: a kernel of the library whose blocks draw tiles from a counter has it there, zeroed by a
 * node that the library puts before the kernel's, unless somebody does that for all (graph_gather_fills). */
void gemm_count_at(struct gemm *g, void *counter);

/* How a LINEAR is computed for a number of rows, and so what it reads. */
enum linear_path {
    PATH_VALUE,   // by cuBLASLt from the value, in the element of the products
    PATH_QACT,    // by cuBLASLt from its e4m3 qact, to unscaled products
    PATH_SMALL_M, // by gemm_fp8_small_m.cu from its qact, with the GATED_ACT behind it
    PATH_GEMV,    // by gemv.cu from the value, likewise
    PATH_GATED,   // by gemm_fp8_gated.cu, or of many rows gemm_fp8_prefill.cu, from its qact, likewise
    PATH_SPLIT_K, // by gemm_fp8_split_k.cu from its qact, to unscaled products
    PATH_PREFILL, // by gemm_fp8_prefill.cu from its qact, likewise
    PATH_HEAD,    // by lm_head.cu from the value, with the SOFTCAP behind it and what SAMPLE wants of greedy rows
    N_PATHS
};
static inline bool makes_unscaled(enum linear_path path) { return path == PATH_QACT || path == PATH_SPLIT_K || path == PATH_PREFILL; }
static inline bool reads_qact(enum linear_path path) { return makes_unscaled(path) || path == PATH_SMALL_M || path == PATH_GATED; }
static inline bool is_ours(enum linear_path path) { return path == PATH_SMALL_M || path == PATH_GEMV || path == PATH_GATED; }
enum linear_path gemm_library(const struct gemm *g);                    // PATH_VALUE or PATH_TWIN
enum linear_path gemm_path(const struct gemm *g, int n_rows);           // the library, until one is taken
void gemm_take(struct gemm *g, enum linear_path path, int n_rows);      // nothing beyond the rows it is for
bool gemm_takes(const struct gemm *g, enum linear_path path, int rows); // whether that can be; of all but gemv.cu's
bool gemm_is_worth_timing(const struct gemm *g);                        // its weight is large
/* What a LINEAR reads and writes. */
struct linear_values {
    struct dmat x, y;
    struct drequant requant; // of x, by PATH_SPLIT_K: what is left to be done
    struct dmat qact;        // of y, by PATH_GATED and PATH_SMALL_M, with a static_scale; at NULL: none
};
enum status gemm_run(struct gemm *g, int n_rows, const struct linear_values *v, struct error *err);
bool gemm_requantises(const struct gemm *g, int n_rows); // whether it takes a rest.value

/* ---- paths.c ----
 * Chooses the path of every LINEAR for every number of rows, as gemm_take has it. Before graphs are captured, when a step can run. */
enum status paths_choose(struct executable *exe, struct error *err);
enum status paths_check(struct error *err); // whether GYRE_LINEAR, if it is set, names a path

/* ---- padded.c ---- */
int padded_rows(int n);    // what a step of n >= 1 rows is computed as: what lies between is padding
int padded_index(int n);   // which of those numbers, in order, from 0
int padded_rows_at(int i); // and back

/* ---- qact.c ----
 * A LINEAR whose weight is e4m3 reads, when the step is large, its input as e4m3 with a scale a row: the value's qact. Whoever makes
 * the value may write the qact in the same pass (twin_to_write), and need not write the value if nobody reads that
 * (value_is_read); where it does not write the qact, the first LINEAR that reads it puts launch_quantise before itself, which is a
 * shorter way if whoever made the value has left its rows' largest sizes behind (output_with_most), and shorter still if it has also written
 * the qact by a scale that holds for most rows, which is then looked at alone (twin_foreseen, static_scale.c). */
struct qact {
    val of;                          // the value, or columns of it
    struct dmat q;                   // e4m3, as many rows as the value
    uint32_t *absmax;                // [rows]: dmat.absmax of the value
    struct dgrid_barrier *of_tokens; // drequant.of_tokens
    // In the step that is being put on the stream: q, with a scale a row; q by q.static_scale; most.
    bool written, has_static_scale, folded;
};

/* ---- watch.c ---- */
bool watch_begins(struct loaded *loaded); // whether the step that is about to be launched, no graph, is looked at
/* The rows of x, which the op reads; t: its qact, read in its place, or NULL. */
void watch_input(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows, struct dmat x,
                 const struct qact *t);

/* ---- fold.c ---- */
enum fold {
    FOLD_NEVER,
    FOLD_ALWAYS,   // a NORM that an ADD_NORM does
    FOLD_IN_ORDER, // a TAKE_ROWS, in a step whose output row r is token row r
};
enum fold fold_of(const struct program *p, const struct op *op);
/* The NORM that makes in[1] of this ADD_NORM and is done in its node; NULL: none. */
const struct op *norm_folded_into(const struct program *p, const struct op *add);
/* What this LINEAR reads of a step in order, where the TAKE_ROWS before it is folded; else NO_VAL. */
val rows_in_order(const struct program *p, const struct op *op);
/* Values [p->n_values] live as long as the nodes that folded ops went into need them. */
void fold_lives(const struct program *p, struct value *values);

struct compiled_op {
    const struct op *op;
    struct dmat in[OP_MAX_IN], out[OP_MAX_OUT];
    struct dweight matrix[OP_MAX_WEIGHTS], floats[OP_MAX_WEIGHTS];
    struct gemm *gemm;                 // LINEAR
    int gemv_rows;                     // LINEAR: up to so many rows gemv.cu takes it
    bool is_head;                      // LINEAR: the program's head, and lm_head.cu takes it
    struct compiled_op *pair;          // LINEAR: the GATED_ACT that its node does too on some paths, and GATED_ACT: that LINEAR
    struct dmat convert;               // LINEAR: where x goes first, if it has another element
    struct qact *in_qact;              // LINEAR with an e4m3 weight: of in[0]
    struct dmat unscaled;              // likewise: its products before their scales
    bool unscaled_is_read;             // whoever reads out[0] takes unscaled products
    struct qact *out_qact[OP_MAX_OUT]; // of out[k], all its columns; NULL: it has none
    enum fold fold;
    struct dmat in_order;           // LINEAR of rows taken: in[0] in a step where they are the token rows; at NULL: of others
    const struct norm_args *d_norm; // ADD_NORM: in[1] is normed first, with the weight d_weight; NULL: it is not
    struct dweight d_weight;
    struct dcache cache;
    const struct drope *rope;
};

enum { STEPS_IN_FLIGHT = 2 };

/* Where the parts of a plan are, in bytes from its start. */
struct plan_layout {
    size_t counts, places, token_id, from_row, position, seq_of_row, query_start, seq_len, n_known, state_slot, out_row, newest_row, rows,
        block_table[MAX_CACHE_GROUPS];
};

/* What a step in flight has of its own, in pinned memory. */
struct step_slot {
    const struct batch_plan *plan;
    const struct sample_params *sample; // NULL: the step is late, and nobody has drawn yet
    char *plan_host;
    int32_t *lists; // [n_lists], the first n_listed of this step
    size_t n_lists, n_listed;
    int n_not_plain;          // rows of which more is asked than the most probable token
    struct dsampled *sampled; // [max_rows]
    int32_t *top_token;       // [max_rows][MOST_TOP_LOGPROBS]
    float *top_logprob;
    cudaEvent_t done; // of a late step, until it is drawn: the device has the plan
};

struct executable {
    struct loaded *loaded;
    const struct program *program;
    struct bucket bucket;
    struct compiled_op *ops; // [program.n_ops]
    struct qact *qacts;      // [n_twins]
    int n_qacts;
    struct drow_absmax row_absmax;  // of the qacts, zero when a step begins
    struct dgrid_barrier *barriers; // likewise, [n_twins][REST_MEETINGS]
    void *memory;                   // values
    int64_t step_bytes;             // of all that a step uses on the device
    struct trace_mark *marks;       // [program.n_ops + 1] while a step is traced, else NULL
    bool only_sized;                // nothing is allocated: step_bytes is what is wanted
    void *scratch;                  // of conversions and experts
    char *counters;                 // [program.n_ops][COUNTER_BYTES], of LINEARs
    cudaGraphExec_t *graphs;        // [n_graphs]: the ops of a step that decodes padded_rows_at(i) rows
    int n_graphs;
    int n_untimed;       // numbers of rows for which paths_choose had no time left
    struct drope *ropes; // [program.n_ropes]
    void *rope_memory;
    struct dparts *parts; // [n_parts], lists for the attention kernels
    int n_parts;
    void *partial, *arrived; // of the lists
    struct dmat logits, hidden;
    struct dbest *bests; // [HEAD_MAX_ROWS][HEAD_BESTS], by lm_head.cu
    float *row_copies;   // of SAMPLE, where the device needs them
    struct {
        void *scratch; // NULL: the head is not screened
        struct dfilter_state *state;
        int32_t *asked; // pinned: filter_again has something to do
    } filter;

    char *plan_device; // one block, read by every step
    size_t plan_bytes;
    struct plan_layout layout;
    struct device_plan plan_view;
    int32_t *lists; // of the step, behind the plan: [n_lists]
    size_t n_lists;
    int32_t *row_token; // [max_rows]: what the last step sampled
    struct step_slot slots[STEPS_IN_FLIGHT];
    int64_t n_started, n_collected;
    bool is_late;       // the step that was started last waits for draw
    float *logits_host; // [max_rows][vocab], rows that the host was asked for; pages that nobody writes take no memory
    struct {
        int64_t step; // n_collected
        int first, end;
    } logits_there;     // rows of logits_host that were fetched last
    float *hidden_host; // [width]
};

/* The qacts that the program's LINEARs may read, without places yet. After the weights are placed. */
void qacts_plan(struct executable *exe);
/* For program_plan_memory, beside the program's values as they live here. */
struct value qact_as_value(const struct executable *exe, const struct value *values, const struct qact *t);
void qact_place(struct executable *exe, struct qact *t, void *at);
enum status qacts_alloc(struct executable *exe, struct error *err); // their `most` and `of_tokens`
struct qact *qact_of(const struct executable *exe, val v);          // NULL: none

/* The qact that a producer is to write beside out[k] in a step of so many rows; it counts as written. at NULL: nobody reads it. */
struct dmat qact_to_write(const struct executable *exe, const struct compiled_op *c, int k, int n_rows);
/* out[k] of a step of so many rows, for a producer that folds its largest sizes if it is told where (dmat.absmax): it is where a qact is
 * wanted that the producer does not write. */
struct dmat output_with_absmax(const struct executable *exe, const struct compiled_op *c, int k, int n_rows);
/* Behind output_with_most of out[k]: the qact that the producer is to write by its static_scale. at NULL: it has none. */
struct dmat qact_static(const struct compiled_op *c, int k);
/* in[k] of a step of so many rows: unscaled products, if the LINEAR that makes them leaves them so. */
struct dmat input_of(const struct executable *exe, const struct compiled_op *c, int k, int n_rows);
/* Whether all that read the LINEAR's output take unscaled products. */
bool unscaled_will_be_read(const struct program *p, const struct op *linear);

/* Whether anybody reads out[k] itself in a step of so many rows. */
bool value_is_read(const struct executable *exe, const struct compiled_op *c, int k, int n_rows);

/* ---- static_scale.c ---- */
enum status static_scales_find(struct executable *exe, struct error *err); // once its ops are compiled

/* ---- backend.c ---- */
int linear_most_rows(const struct executable *exe, const struct op *linear); // in a step
enum status step_sized(struct loaded *loaded, struct bucket bucket, int64_t *n_bytes, struct error *err);

/* ---- open.c ---- */
enum status cuda_open(const struct device_options *options, struct device **out, struct error *err);
void cuda_close(struct device *d);

/* ---- faults.c ---- */
/* Makes it the thread's; before anything else that is asked of a device. */
enum status device_enter(struct device *d, struct error *err);

/* ---- memory.c ---- */
/* *(void **)out becomes memory of the device as it is there; ERR_MEMORY says how much is wanted for what, and how much there is. */
enum status memory_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err);
/* Likewise of the host's, for copies and for kernels that read or write it. */
enum status pinned_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err);
/* *(void **)out becomes memory of the device, unless the executable is only sized; either way it is counted. Whatever a step needs is
 * asked for here, before graphs are captured. */
enum status device_alloc(struct executable *exe, void *out, int64_t n_bytes, const char *what, struct error *err);
enum status cuda_cache_room(struct loaded *loaded, struct bucket bucket, int block_size, const int *table_width, double share, int64_t *out,
                            struct error *err);
int64_t memory_left(const struct device *d); // that may still be taken, of what is free; 0: none, or the device does not say
void cuda_memory(const struct device *d, struct device_memory *out);
int cuda_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]);

/* ---- measure.c ---- */
enum status cuda_measure(struct loaded *loaded, struct device_limits *out, struct error *err);
int64_t cuda_weight_bytes(const struct loaded *loaded, const struct weight *w);

/* ---- library_floor.c ---- */
enum status cuda_library_floor(struct executable *exe, int n_tokens, int n_out, double *seconds, struct error *err);

/* ---- attention.c ---- */
enum element attention_query_element(const struct loaded *loaded, const struct op *op); // what an ATTENTION rounds its queries to
enum status attention_plan(struct executable *exe, struct error *err);
void attention_free(struct executable *exe);
enum status attention_lists_launch(const struct executable *exe, const struct launch *l, struct error *err); // once a step, before its ops
struct dqkv qkv_of(const struct op *op);                                                                     // of a QKV_PREP
/* Whether the ATTENTION behind this QKV_PREP does it too in such a step. */
bool attention_prepares(const struct executable *exe, const struct compiled_op *prep, const struct launch *l);
void attention_launch(struct executable *exe, const struct compiled_op *c, const struct launch *l);
/* ATTENTIONs that the fast kernels do not take, the first of them in *first: a block computes a token and a head. */
int attention_n_plain(const struct executable *exe, const struct op **first);

/* ---- plan.c ---- */
enum status plan_alloc(struct executable *exe, struct error *err);
void plan_free(struct executable *exe);
/* Writes the slot's plan, and what its rows ask for, to the slot and puts its way to the device on the stream. Without a sample all logits will be
 * written. */
enum status plan_send(struct executable *exe, struct step_slot *slot, struct error *err);
/* What the rows of a late step ask for, once the device has taken its plan. */
enum status plan_send_rows(struct executable *exe, struct step_slot *slot, struct error *err);

/* ---- fuse.c ---- */
/* Whether op i is a LINEAR that only the next reads, a GATED_ACT of its two halves. */
bool gated_act_follows(const struct program *p, int i);
/* Whether op i is a QKV_PREP that only the next reads, an ATTENTION over the cache that it writes. */
bool attention_follows(const struct program *p, int i);
/* Values [p->n_values] live as long as fused nodes need them. */
void fuse_lives(const struct program *p, struct value *values);
/* Up to how many rows of x, of max_rows, gemv.cu takes a LINEAR; 0: never. */
int gemv_rows(const struct compiled_op *c, struct dmat x, int max_rows);
bool linear_takes(const struct compiled_op *c, enum linear_path path, int rows); // rows: one of padded_rows
enum linear_path linear_path(const struct compiled_op *c, int n_rows);
bool does_its_pair(const struct compiled_op *linear, int n_rows);                     // in one node
const struct compiled_op *linear_maker(const struct compiled_op *linear, int n_rows); // which of the two has the node's output
struct dmat linear_made(const struct compiled_op *linear);                            // that output where the node is one of ours
void gemv_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows, struct dmat x);

/* ---- lm_head.c ---- */
/* The LINEAR whose rows are the logits, all of them, but for a SOFTCAP between it and SAMPLE, and that nobody else reads; NULL: there is none. */
const struct op *head_of(const struct program *p);
void head_lives(const struct program *p, struct value *values);           // what it reads lives until SOFTCAP's result is written
bool head_may_be_ours(const struct executable *exe);                      // it has a head, in 16 bits or more
enum status head_alloc(struct executable *exe, struct error *err);        // what it leaves for SAMPLE
const struct compiled_op *compiled_lm_head(const struct executable *exe); // NULL: none
struct dlm_head dhead_of(const struct executable *exe, const struct compiled_op *c);
bool head_compiled(const struct executable *exe, const struct compiled_op *c,
                   struct dmat x);                        // whether lm_head.cu takes it; x: what it reads
bool head_does(const struct executable *exe, int n_rows); // whether it does, in a step of so many rows
enum status head_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, struct dmat x, struct error *err);
struct dbests head_bests(const struct executable *exe, int n_rows);

/* ---- argmax_filter.c ---- */
/* Bytes for a copy of the program's head, once all weights have been counted; 0: it gets none. */
int64_t filter_room(struct loaded *loaded, const struct program *p);
enum status filter_check(struct error *err);                       // whether GYRE_ARGMAX_FILTER, if it is set, is a number
enum status filter_copy(struct loaded *loaded, struct error *err); // once they are there
enum status filter_alloc(struct executable *exe, struct error *err);
const int32_t *filter_done(const struct executable *exe, int n_rows); // what says that a step needs nothing more; NULL: it is not tried
enum status filter_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, struct dmat x, struct error *err);
enum status filter_again(const struct executable *exe, struct error *err); // before a step: the copy anew, if steps have asked for it

/* ---- l2_copy.c ---- */
enum status l2_copy_check(struct error *err); // whether GYRE_L2_COPIES, if it is set, is 0 or force
/* Bytes for all copies, once all weights have been counted; 0: there are none. */
enum status l2_copy_room(struct loaded *loaded, const struct program *p, int64_t *n_bytes, struct error *err);
enum status l2_copy_make(struct loaded *loaded, struct error *err); // once they are there
bool l2_copy_wanted(void);
enum status l2_copy_sides(struct loaded *loaded, struct error *err); // finds b->l2_copy.sides, once
void l2_copy_release(struct loaded *loaded);

/* ---- step.c ---- */
enum status step_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample, struct error *err);
enum status step_draw(struct executable *exe, const struct sample_params *sample, struct error *err);
enum status step_collect(struct executable *exe, struct sample_result *results, struct error *err);
const struct step_slot *step_collected(const struct executable *exe);                       // the one collected last
enum status step_launch(struct executable *exe, const struct launch *l, struct error *err); // all ops, one after the other
enum status step_launch_ops(struct executable *exe, const struct launch *l, int first, int end, struct error *err); // some of them

/* ---- trace.c ---- */
struct trace_mark { // before an op
    cudaEvent_t event;
    int n_kernels; // captured so far
};
enum status trace_mark(struct executable *exe, int op, struct error *err); // nothing, unless a step is traced
enum status cuda_trace(struct executable *exe, double *op_us, int *op_nodes, struct error *err);

/* ---- graphs.c ---- */
/* Of a graph that was captured from one stream: nodes that write zeros somewhere in these bytes are taken out, and one node zeroes all of the bytes
 * before the first that followed any of them, beside what else the graph begins with. */
cudaError_t graph_gather_fills(cudaGraph_t graph, void *at, size_t n_bytes);
/* Ends the capture of the backend's stream, whatever came of recording: *out is the caller's where that was OK, else nothing is left and the status given
 * on. `what` of so many rows, for the sentence of a capture that fails. */
enum status graph_captured(struct loaded *loaded, enum status recorded, const char *what, int rows, cudaGraph_t *out, struct error *err);
struct launch launch_of(const struct executable *exe, int rows); // a step that decodes in so many rows
struct launch launch_for(const struct executable *exe, const struct batch_plan *plan);
enum status graphs_capture(struct executable *exe, struct error *err);
bool graphs_have(const struct executable *exe, const struct batch_plan *plan); // one for this step
enum status graphs_run(struct executable *exe, int n_rows, struct error *err);
void graphs_free(struct executable *exe);
