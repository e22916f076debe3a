/* backend.h - what a device must do: hold weights and cache, compile a program, run steps.
 *
 *     open -> place_weights -> alloc_cache -> compile (one executable a bucket) -> run, collect, run, collect ...
 *
 * run() is asynchronous where the device is. Steps run in the order they were started, whatever their executable, and are
 * collected in that order; at most max_in_flight of them are started and not collected. What a step writes to the cache
 * the next one sees, so a block may be given to another sequence while a step that reads it is in flight. The first fault
 * of a device is sticky: every later call returns ERR_DEVICE with the same sentence.
 *
 * compile() refuses, naming the op and the program, what the backend cannot do: an op, a shape or a format.
 * It never chooses a slower path silently. */
#pragma once

#include "base/load_progress.h"
#include "base/status.h"
#include "core/plan.h"
#include "core/program.h"

struct backend;
struct executable;

struct backend_options {
    int n_threads;                 // CPU; 0: one a processor
    const char *kernels;           // CPU: "portable", "avx2" or "avx512"; "reference": the plain function of every op, the oracle
                                   // of the op tests; NULL: the best that this processor has
    const char *dtype;             // what products are made in, "float32", "float16" or "bfloat16"; NULL: the backend's choice
    const char *kv_dtype;          // of KV and latent caches: "float32", "float16", "bfloat16", "fp8" or "int8"; NULL: the backend's choice
    bool eager;                    // CUDA: start every op of a step by itself, never a captured graph
    const char *quantization;      // "fp8": matrices that are stored wider are made e4m3 with a scale a row; NULL: as stored
    bool dummy_weights;            // weights may be without data: random numbers take their place (backend_ops.makes_dummies)
    double memory_share;           // of the device's memory, that the engine is to take at most; 0: the backend's choice
    struct load_progress progress; // of placing weights
};

/* How the cache is laid out: the engine decides on counts, the backend on the memory behind them. */
struct cache_config {
    int block_size;                      // tokens a block, a power of two
    int n_blocks[MAX_CACHE_GROUPS];      // of KV and latent groups; block ids are 0 .. n_blocks-1
    int n_states;                        // slots of state groups: running sequences and checkpoints
    int table_width[MAX_CACHE_GROUPS];   // of KV and latent groups in plans: entries a sequence
    int n_host_blocks[MAX_CACHE_GROUPS]; // in the host's memory, only copied from and to; ids from n_blocks[group] on
    int n_host_states;                   // likewise, from n_states on
    bool by_need;                        // no block of a KV or latent group can be used before commit_cache says so
};

/* A number that a device tells under a name of its own: metrics, `gyre run` and bench print it without knowing it. */
struct device_report {
    const char *name;    // "cut_rows_total", as in metrics; one that ends in _total only grows
    const char *help;    // a line on it; of bytes that the device holds: what they are for
    const char *unit;    // "steps", "rows", "bytes"
    const char *warning; // to be told to whoever started the engine, once value is not 0; NULL: nothing is
    int64_t value;
};
enum { MAX_DEVICE_REPORTS = 16 };

/* In bytes; 0: not known. */
struct device_memory {
    int64_t total; // that the device has
    int64_t taken; // of it, now, by whomever
};

/* What a device can do at best, so that a speed can be given as per cent of a limit. */
struct device_limits {
    char name[96];           // "NVIDIA H200, 132 multiprocessors"
    double read_bytes_per_s; // of its memory
    double flops_per_s;      // of large products ...
    const char *product;     // ... of what most of the matrices are multiplied as: "e4m3"
    double wide_flops_per_s; // ... and of those that take two bytes or more an element
};

/* What only a bench asks for, between steps. Each may be NULL. */
struct backend_probes {
    /* Measures for up to a second. */
    enum status (*measure)(struct backend *b, struct device_limits *out, struct error *err);

    /* Runs the step that was collected last again, which none may have followed, and tells how long each op takes by itself and how many
     * launches it is, 0 where another op's did it, both [program.n_ops]. */
    enum status (*trace)(struct executable *exe, double *op_us, int *op_nodes, struct error *err);

    /* Seconds that the products of a step of n_tokens rows, n_out of them with logits, take by the fastest algorithms of the vendor's
     * library, alone, measured now: what an engine that multiplies by those cannot get under. */
    enum status (*ladder)(struct executable *exe, int n_tokens, int n_out, double *seconds, struct error *err);

    /* Bytes that are read of a weight when a step reads all of it; NULL: those that are stored. */
    int64_t (*weight_bytes)(const struct backend *b, const struct weight *w);
};

struct backend_ops {
    const char *name;
    bool ragged;                      // takes steps with sequences of unequal length
    bool in_place;                    // computes with weights where the checkpoint's map has them, so they had better be in memory
    bool no_weights;                  // computes without weights: a model is opened by its config alone
    bool makes_dummies;               // fills dummy weights by itself: matrices N(0, 1/in), vectors uniform in [0.9, 1.1]
    int default_tokens, default_seqs; // of a step, where the user does not say; 0: the engine's
    /* Whether a cache may hold `turned` channels of a key of head_dim, where its others are its value's (ops.def, QKV_PREP); NULL: never. */
    bool (*short_keys)(int head_dim, int turned);
    int max_in_flight; // 1: run() computes; 2: the device does, while the host prepares the next step

    enum status (*open)(const struct backend_options *options, struct backend **out, struct error *err);

    /* Makes every weight of the program usable by this device; the backend keeps what it made of each in a table
     * of its own, so that two backends can hold one model. Once, before compile. */
    enum status (*place_weights)(struct backend *b, const struct program *p, struct error *err);

    /* Memory for the caches of the program's groups, zeroed. ERR_MEMORY names what did not fit. */
    enum status (*alloc_cache)(struct backend *b, const struct program *p, const struct cache_config *config, struct error *err);

    /* Makes blocks 0 .. n-1 of a KV or latent group usable, at least, and gives the device back what those behind took; *n becomes how
     * many are usable then. Where blocks are does not change, and what becomes usable is zeroed before the next step. ERR_MEMORY, which is
     * not sticky, if the device has no memory left: nothing has changed. What is given back is read by no step in flight. NULL: alloc_cache
     * makes all usable, and by_need is not asked for. */
    enum status (*commit_cache)(struct backend *b, int group, int *n, struct error *err);

    /* Bytes of one block of a group over all its layers (a state slot for state groups), once the weights are placed. */
    int64_t (*cache_block_bytes)(const struct backend *b, const struct program *p, int group, int block_size);

    /* Bytes that caches may take once the weights are placed: `share` (0: the backend's choice) of the device's memory, less what is taken
     * of it by whomever and what an executable for the bucket, with blocks of so many tokens and plans of these tables, will take.
     * ERR_MEMORY says why nothing is left. NULL: the memory is the host's, and the engine decides. */
    enum status (*cache_room)(struct backend *b, const struct program *p, struct bucket bucket, int block_size, const int *table_width,
                              double share, int64_t *out, struct error *err);

    enum status (*compile)(struct backend *b, const struct program *p, struct bucket bucket, struct executable **out, struct error *err);

    /* A sentence on how it was compiled that whoever starts it should read; false: there is nothing to say. NULL: there never is. */
    bool (*remark)(const struct executable *exe, char *out, size_t n);

    /* Starts a step. The plan must stay as it is until collect. What it takes of the step before (from_row, newest_row) is
     * read on the device: that step need not have been collected. */
    enum status (*run)(struct executable *exe, const struct batch_plan *plan, struct error *err);

    /* Waits for the oldest step in flight and fills results[n_rows]. */
    enum status (*collect)(struct executable *exe, struct sample_result *results, struct error *err);

    /* After collect and until the next run: row r's raw logits [vocab_size], if its want_logits was set. Nothing is started
     * while a step with such a row is in flight. */
    enum status (*logits)(struct executable *exe, int row, const float **out, struct error *err);

    /* After collect and until the next run: the state of token row t behind the last norm, [program.hidden.width], of a program that has
     * one. Nothing is started while a step whose rows will be asked for is in flight. */
    enum status (*hidden)(struct executable *exe, int t, const float **out, struct error *err);

    void (*memory)(const struct backend *b, struct device_memory *out);

    /* What there is to tell of an executable and what it runs on, between steps or while some are in flight; returns how many. Always the
     * same names in the same order. */
    int (*report)(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]);

    const struct backend_probes *probes; // NULL: none

    void (*free_executable)(struct executable *exe); // waits for what is in flight
    void (*free)(struct backend *b);
};

extern const struct backend_ops backend_cpu;
