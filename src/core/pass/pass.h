/* pass.h - programs made of programs: what one device, or one use of a model, wants otherwise than families record it.
 *
 * A pass takes a program and gives a new one. That borrows the names, weights and ropes of the first, which outlives
 * it. Cache groups and section numbers stay as they are, so an engine goes by either. Families know none of them. */
#pragma once

#include "base/status.h"
#include "core/program.h"

/* Keys of which a part follows from their values (ops.def, QKV_PREP, rotary_dim): how many channels of a key have to be
 * stored in this group of caches, if that can be less than all; else 0. */
int shared_kv_channels(const struct program *p, int group);

/* Stores only those, in groups for which takes(head_dim, channels) holds; NULL: in all. */
struct program *pass_shared_kv(const struct program *p, bool (*takes)(int head_dim, int channels));

/* The same for a program that reads caches of another, `owner`, which the pass was applied to. */
struct program *pass_shared_kv_as(const struct program *p, const struct program *owner);

/* Makes rings of what layers with a window keep, in each sequence's state slot (CACHE_STATE): keys and values of
 * position i at i % ring, of no block. A ring holds the window of a row while up to max_rows rows that follow it, or
 * 64, are written, which may be taken back. Layers that see all tokens keep their blocks. NULL: there are not layers
 * of both kinds. */
struct program *pass_rings(const struct program *p, int max_rows);

/* Makes the shared FFN of a layer of experts, which GATED_ADD adds to what those make, n experts behind them that every
 * token is sent to (MOE_ROUTE, n_shared), each with an n-th of its channels: so it needs no ops of its own. Where it is
 * as n experts are: channels, activation, format, no biases; and a token has no more than most_slots experts then. Its
 * gate, if it has one, is read by MOE_ROUTE. of_op and joined say what became of ops and weights. */
struct program *pass_shared_expert(const struct program *p, int most_slots);

/* Keeps, to the end of a step, what each of these n layers adds up to: the residual stream behind it, [T, hidden_size].
 * They become the program's taps, in this order. A draft model reads them. NULL: it has no such layer, or too many are
 * asked for. */
struct program *pass_taps(const struct program *p, const int *layers, int n);

/* What a draft reads of its target: fc times the outputs of chosen layers side by side, with norms (NULL: none) on each
 * of them, on all, and on the result. It becomes tap 1, [T, rows of fc]. NULL: there is no such layer. */
struct feature {
    int layers[MAX_TAPS], n_layers;
    const struct weight *tap_norm[MAX_TAPS], *all_norm; // [width], [n_layers * width]
    const struct weight *fc, *out_norm;                 // [out, n_layers * width], [out]
    float eps;                                          // of the norms
};
struct program *pass_feature(const struct program *p, const struct feature *f);

/* What rank `rank` of n_ranks devices computes of the model (tensor parallelism): its share of the heads, the FFN, the
 * vocabulary, as axes of the weights say (core/axis.h), with ALL_REDUCE and ALL_GATHER where ranks have to meet. All
 * ranks' programs have the same ops in the same order, and each draws the same tokens.
 *
 *     query heads, value heads of the delta rule   n_ranks divides their number
 *     KV heads, key heads of the delta rule        likewise; or their number divides n_ranks, and ranks share one
 *     FFN                                          at borders of the blocks that any weight is quantised in
 *     experts                                      each cut along its FFN; or dealt out whole (by_expert)
 *     vocabulary                                   rows of the table and of the head
 *
 * What sums of two products need is summed once: a layer with experts and a shared one has two ALL_REDUCEs, as others.
 * Comes before pass_shared_kv, which devices apply. ERR_UNSUPPORTED names the program and the weight that cannot be cut
 * so. *out outlives what is loaded of it, and `p` outlives *out. */
struct shard_options {
    int rank, n_ranks;
    bool by_expert;
};
enum status pass_shard(const struct program *p, const struct shard_options *options, struct program **out,
                       struct error *err);

/* What stage `stage` of a pipeline of n_stages devices computes: some of the layers, with the embedding before the
 * first and the head behind the last. What crosses a border are the taps of a stage that is not the last, and the
 * STATES of the next one, [T, sum of their widths], side by side in the same order. Groups of caches stay, with the
 * layers that the stage has. Comes before pass_shard. ERR_UNSUPPORTED: there are fewer layers, a layer reads the keys
 * of one in another stage, or the program keeps taps already. */
enum status pass_stage(const struct program *p, int stage, int n_stages, struct program **out, struct error *err);

/* ---- adapters ---- */

/* A low-rank addend of one module: y += scale * B (A x). */
struct adapter_module {
    const char *name;           // as weight_part.module
    const struct weight *a, *b; // [r, in], [rows of the module, r], each one plain part
    float scale;
};

struct adapter {
    const char *name;
    struct adapter_module *modules;
    int n_modules;
};

/* Adds to each projection what the adapters say, by row: see ops.def, LORA. Adapter i of these is plan.adapter i + 1. A
 * and B are copied. ERR_UNSUPPORTED or ERR_FORMAT names adapter and module: it is no projection (LINEAR) of the
 * program, or of another shape. All adapters' matrices of a projection take the space of the largest rank; ERR_MEMORY
 * where that is more than the machine has left. Comes before pass_shard. */
enum status pass_adapter(const struct program *p, const struct adapter *const *adapters, int n, struct program **out,
                         struct error *err);
