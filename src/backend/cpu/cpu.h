/* cpu.h - what the files of the CPU backend share: the value of an op's inputs, the caches, one call of an op.
 *
 * A compiled op is a function that every worker calls at the same time with its own `struct call`; each does
 * its share (pool_share over rows, columns or heads) and the executor puts a barrier behind the op. An op of
 * several passes puts barriers of its own between them, and every worker takes the same path to each.
 *
 * Each op has a plain function, cpu_NAME, written to be read: the reference. Ops where time is spent have a
 * second one, fast_NAME, over the vector kernels of kernels.h. */
#pragma once

#include "base/pool.h"
#include "core/backend.h"
#include "core/kv_int4.h"

struct kernels;
struct ranks;

/* A value in a step: `rows` rows of `width` floats, `stride` floats apart. */
struct mat {
    float *at;
    int64_t stride, rows, width;
};

static inline float *mat_row(struct mat m, int64_t row) { return m.at + row * m.stride; }
static inline int32_t *mat_ids(struct mat m, int64_t row) { return (int32_t *)(void *)m.at + row * m.stride; }

/* A weight made ready: small ones (vectors, convolutions) as floats; matrices as parts whose rows are
 * contiguous. Only a part that is stored transposed is copied (see place.c). */
struct placed {
    const struct weight *weight; // as bound
    float *floats;               // all elements [out, in], of weights that an op reads whole; else NULL
    struct weight_part *parts;   // of matrices: n_parts, col_stride 1; else NULL
    int64_t *first_row;          // [n_parts + 1]: where each part begins in the weight
};

struct placed_table {
    struct placed *slots; // open addressing by the weight's address
    int n_slots;
    void **blocks; // repacked copies
    int n_blocks;
    int64_t n_bytes; // of all copies
};

enum status placed_table_fill(struct placed_table *table, const struct program *p, struct pool *pool,
                              struct error *err);
void placed_table_release(struct placed_table *table);
const struct placed *placed_find(const struct placed_table *table, const struct weight *w); // NULL for NULL

/* The longest run of rows from `row` on that lie in one part: the part, the row within it; returns their number. */
int64_t placed_run(const struct placed *w, int64_t row, const struct weight_part **part, int64_t *row_in_part);

/* Cache memory of a group, layer after layer. In a block of block_size slots:
 *
 *   KV      k [head][k_dim][slot]    slot innermost: the scores of neighbouring keys are a vector, with no sum across
 *           lanes v [head][slot][v_dim]
 *           of int4: scales of k [head][group][slot], of v [head][slot][group], codes of k [head][byte][slot], of v
 *           [head][slot][byte] (core/kv_int4.h)
 *   LATENT  [slot][k_dim]
 *   STATE   state_floats a slot: conv inputs [kernel-1][channels] oldest first, then [value head][key_dim][value_dim];
 *           and what it takes to go back (cpu_replay.c)
 */
struct cache {
    void *memory;
    unsigned char *at; // within memory, where a line begins
    int64_t layer_bytes, block_bytes;
};

struct device {
    struct pool *pool;
    const struct kernels *kernels; // NULL: reference functions only
    int patience_s;                // of a rank that waits for another
    bool whole_keys, exact;        // exact: activations that meet blocks are not rounded
};

struct loaded {
    struct device *device;
    struct program *program;        // as passes left it
    const struct kernels *products; // of the device, or those that round activations
    struct placed_table placed;
    struct cache caches[MAX_CACHE_GROUPS];
    int n_caches, block_size, block_shift;
    bool has_int4_cache;            // of keys and values; else float32
    int n_back;                     // of load_options
    const struct op_watch *watch;   // likewise
    const struct loaded *caches_of; // likewise
    _Atomic int64_t *expert_loads;  // [n_experts]: tokens that were sent to each, over all layers
    int n_experts;                  // of the layer that has most
    struct ranks *ranks;            // that it meets in collective ops; NULL: none (cpu_ranks.c)
};

/* What the options "kernels" and "activations" name; NULL in *out: reference functions only. And what multiplies with
 * weights: the device's kernels, or those that round what meets bf16 and what meets blocks. */
enum status cpu_choose_kernels(const char *const *own, const struct kernels **out, bool *exact, struct error *err);
const struct kernels *cpu_products(const struct device *d, bool rounds);

enum status cpu_join(struct loaded *const *ranks, int n, struct error *err);
void cpu_ranks_leave(struct ranks *ranks);                          // NULL is fine; the last one frees it
enum status ranks_fault(const struct loaded *l, struct error *err); // of a step that another rank did not come to

/* What one worker sees of one op in one step. */
struct call {
    const struct op *op;
    struct mat in[OP_MAX_IN], out[OP_MAX_OUT]; // at == NULL: absent
    const struct placed *weight[OP_MAX_WEIGHTS];
    const struct program *program;
    const struct loaded *loaded;
    const struct batch_plan *plan;
    const struct sample_params *sample; // [R]
    const int32_t *seq_of_row;          // [T]
    float *const *cos_sin;              // [n_ropes][T][dim]: cos [dim/2], then sin [dim/2]
    float *scratch;                     // this worker's: as many floats as the op's need says
    float *shared;                      // all workers'
    struct pool_range *rows;            // LINEAR: output columns, dealt out
    struct sample_scratch *sample_scratch;
    struct sample_result *results; // [R]
    int worker, n_workers;
};

/* Floats of scratch that an op wants: each worker's own, and together. */
struct need {
    int64_t worker, shared;
};

typedef void op_function(const struct call *c);

typedef struct need need_function(const struct op *op);

/* The references, and the scratch of those that have some: cpu_linear, and cpu_linear_need beside it. */
#define OP(code, function, n_in, n_out, n_weights, args)                                                               \
    op_function cpu_##function;                                                                                        \
    need_function cpu_##function##_need __attribute__((weak));
#include "core/ops.def"

/* The output columns of a LINEAR with n_x rows dealt out, so that each worker finds at least two pieces. */
void deal_columns(const struct op *op, int64_t n_x, int n_workers, struct pool_range *columns);

/* Before an op runs, by all workers; does nothing where nobody watches (cpu_watch.c). */
void cpu_tell_watch(const struct call *c);

/* Of a row of LORA: the adapter, from 0; -1: none (cpu_lora.c). */
int call_adapter(const struct call *c, int64_t row);

static inline void call_barrier(const struct call *c) { pool_barrier(c->loaded->device->pool); }

/* This worker's part of n items. */
static inline void call_share(const struct call *c, int64_t n, int64_t grain, int64_t *begin, int64_t *end) {
    pool_share(n, grain, c->worker, c->n_workers, begin, end);
}

static inline const float *call_floats(const struct call *c, int weight) {
    return c->weight[weight] ? c->weight[weight]->floats : NULL;
}

/* ---- cache addresses (cpu_cache.c) ---- */

/* The sequences in whose blocks row t's keys are kept: its own, then those of plan.also. *at is 0 before the first;
 * false: there is no other. */
bool next_keeper(const struct call *c, int64_t t, int *at, int *seq);

struct kv_block {
    float *k, *v; // of one head: k [k_dim][block_size], v [block_size][v_dim]; k_dim as in the cache's group
};
struct kv_block kv_block(const struct call *c, int cache, int seq, int64_t position, int head);

/* Of int4: the rows of one head at the position, those of slots behind it follow one (keys) or a row (values) after the
 * other. */
struct kv_int4_block {
    struct kv_int4_row k, v;
    int k_dim, v_dim;
};
struct kv_int4_block kv_int4_block(const struct call *c, int cache, int seq, int64_t position, int head);

/* The latent row of a position; rows of the block follow it. */
float *latent_row(const struct call *c, int cache, int seq, int64_t position);

/* The recurrent state of a sequence in a layer: conv inputs, then the delta state. */
float *conv_state(const struct call *c, int cache, int seq);
float *delta_state(const struct call *c, int cache, int seq);

/* l's caches are the owner's, once that has them; NULL: its own. */
void expert_loads_init(struct loaded *l); // cpu_moe.c
int expert_loads(const struct loaded *l, int64_t *out, int most);
enum status cpu_choose_cache(const struct program *p, const char *kv_dtype, bool *int4, struct error *err);
int64_t cpu_cache_block_bytes(const struct loaded *l, int group, int block_size);
enum status cpu_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err);
void cache_take(struct loaded *l, const struct loaded *owner);
extern const struct backend_handover cpu_handover;

/* Tokens that a recurrent op computes of a sequence: from `base`, where the slot's state ends, to `end`; those from
 * `first` on are the step's. Before `kept` they are the slot's from now on. (cpu_replay.c) */
struct replay {
    int32_t base, first, end, kept;
    int64_t row, width; // of the step's first token; of what the op reads of a token
    float *rows;        // [n_back][width]: that of tokens base ...
    int32_t *base_mark;
};
struct replay replay_of(const struct call *c, int cache, int seq, int64_t width, bool is_conv);

/* What the op reads of a token in a value, or as it was kept. */
static inline const float *replay_row(const struct replay *r, struct mat in, int32_t position) {
    return position < r->first ? r->rows + (position - r->base) * r->width : mat_row(in, r->row + position - r->first);
}

/* Keeps columns [begin, end) of what SHORT_CONV read of tokens kept ... end - 1; likewise all of DELTA_RULE's. */
void replay_keep(const struct replay *r, struct mat in, int64_t begin, int64_t end);
void delta_keep(const struct call *c);

/* The last of an op, by all workers: the slots' states end where they do now. */
void replay_end(const struct call *c, int cache, int64_t width, bool is_conv);

struct delta_inputs {
    const float *qkv, *b, *a;
};
struct delta_inputs delta_inputs_of(const struct call *c, const struct replay *r, int32_t position);
static inline int64_t delta_width(const struct call *c) { return c->in[0].width + c->in[1].width + c->in[2].width; }

/* Stores the latent row of a token of MLA_PREP (cpu_mla.c). */
void store_latent(const struct call *c, int64_t t);

/* Keys [first, position] that a query sees; the causal rule of ops.def ATTENTION. */
static inline int64_t first_visible(int64_t position, int window, int chunk) {
    int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
    int64_t chunk_start = chunk > 0 ? position / chunk * chunk : 0;
    return first > chunk_start ? first : chunk_start;
}

/* The end of the keys that row t of the step sees. */
static inline int64_t visible_end(const struct call *c, int64_t t) {
    int64_t position = c->plan->position[t];
    enum attention_reach reach = c->op->args.attention.reach;
    return reach == REACH_ALL ? c->plan->seq_len[c->seq_of_row[t]] : reach == REACH_BEFORE ? position : position + 1;
}

/* ---- small mathematics that several ops share (cpu_math.c) ---- */

float sigmoid_f32(float x);
float silu_f32(float x);
float softplus_f32(float x);
float activate(struct act_args act, float gate, float up); // ops.def GATED_ACT
float dot_f32(const float *a, const float *b, int64_t n);
/* y = x / rms(x) * w (1 + w with plus_one); w may be NULL, y may be x. */
void rms_norm_row(const float *x, const float *w, int64_t n, float eps, bool plus_one, float *y);
/* Rotates a head in place. cos_sin: cos [dim/2], sin [dim/2]. */
void rotate_head(const struct rope *rope, const float *cos_sin, float *head);
static inline const float *call_cos_sin(const struct call *c, int rope, int64_t row) {
    return c->cos_sin[rope] + row * c->program->ropes[rope]->dim;
}
