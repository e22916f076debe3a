/* backend_types.h - what goes to and from a device besides programs and plans: options, cache sizes, limits, reports.
 * See backend.h. */
#pragma once

#include "base/load_progress.h"
#include "base/status.h"
#include "core/plan.h"
#include "core/weight.h"

struct device;     // a physical device
struct loaded;     // a program on a device: its weights and caches
struct executable; // a loaded program made ready for steps up to a size

/* Something that one backend alone understands, a "name=value" in device_options.own. */
struct backend_option {
    const char *name;
    const char *value; // what may stand there, for people: "portable|avx2|avx512|reference"
    const char *help;  // a line
};

/* A card that need not be here: weights of what is loaded on it get their places and steps their sizes, and nothing is
 * sent there or run. */
struct phantom_card {
    const char *name; // "H200"
    int64_t memory_bytes;
    int capability, n_multiprocessors; // as CUDA counts; capability 90 is Hopper's
};

struct device_options {
    int index;                       // of the machine's devices of this kind, from 0
    int n_ranks;                     // that this is one of, which wait for each other in steps; 0: it is alone
    int n_threads;                   // of the host, for a device that computes there; 0: one a processor
    double memory_share;             // of the device's memory, that may be taken at most; 0: the backend's choice
    const char *const *own;          // "name=value" ..., NULL: what backend_ops.options tells of. NULL: nothing
    const struct phantom_card *card; // by backends that have a footprint (probes); outlives the device. NULL: index's
};

/* What an op is about to read, told before it runs: input i as `rows` rows of `width` numbers (of MOE_FFN's choices
 * int32_t), `stride` apart; rows 0 where there is none. By one thread, while nothing else of the step runs. */
struct op_input {
    const float *at;
    int64_t stride, rows, width;
};
struct op;
struct op_watch {
    void (*see)(void *context, const struct op *op, const struct op_input *in);
    void *context;
};

/* What caches may be kept in. A backend refuses by name what it has not. */
#define KV_CACHE_DTYPES "auto|float32|float16|bfloat16|fp8|int8|int4"

struct load_options {
    const char *dtype;    // what products are made in, "float32", "float16" or "bfloat16"; NULL: the backend's choice
    const char *kv_dtype; // of KV and latent caches: one of KV_CACHE_DTYPES; NULL (auto): the backend's choice
    const char *quantization;      // "fp8": wider matrices are made e4m3 with a scale a row; "int4", "nvfp4": made so,
                                   // with groups of 128 and 16 columns; NULL: as stored
    bool dummy_weights;            // weights may be without data: random numbers take their place (makes_dummies)
    struct load_progress progress; // of placing weights
    bool is_draft;                 // it guesses what another says: quantization takes its head, too
    const struct op_watch *watch;  // borrowed; of the CPU alone, others do not look at it; NULL: nobody watches
    struct loaded *caches_of;      // the program's caches are those of this one, which outlives it; NULL: its own
    int n_back;                    // tokens that a recurrent state has to be able to go back (plan.h, state_slot)
};

/* The value of an option of this name, the last if there are several; NULL: it is not there. */
const char *device_option(const char *const *own, const char *name);

/* Of those with the values 0 and 1. */
bool device_option_is_off(const char *const *own, const char *name);
bool device_option_is_on(const char *const *own, const char *name);

/* Of "patience": the seconds that a rank waits for the others of its model until it is given up, 30 unless it says. */
enum status device_option_patience(const char *const *own, int *seconds, struct error *err);

struct backend_ops;
struct program;
/* What a backend without join says of a program of one rank of several: ERR_UNSUPPORTED. */
enum status backend_refuse_ranks(const char *name, const struct program *p, struct error *err);

/* ERR_ARG, with what there is, if one is not "name=value" with a name that the backend tells of. */
enum status device_options_check(const struct backend_ops *ops, const char *const *own, struct error *err);

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
enum { MAX_DEVICE_REPORTS = 24, STATE_SOURCES = 2 };

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

/* One launch of a step, as a device has lowered the program. */
struct device_node {
    int op;              // of the program as loaded, whose work it does or helps to do ...
    const char *op_name; // ... and its name
    int n_rows;          // that it computes, padding among them
    const char *kernel, *file;
    const char *why; // it was chosen; NULL: there is no other for the shape
};

/* What takes memory of a device: weights of one kind, or something beside them. */
struct device_part {
    char what[64];                 // "experts"; "a step of up to 8192 tokens and 512 sequences"
    char stored[48], there[48];    // of weights: what they are in the model's files and there, "bf16", "e4m3 ..."
    int n_weights;                 // 0: something else
    int64_t stored_bytes, n_bytes; // in the files; there ...
    bool is_at_most;               // ... at most, as the card alone can tell
};
enum { MAX_DEVICE_PARTS = 48 };

/* What only a bench or a report asks for, between steps. Each may be NULL. */
struct backend_probes {
    /* What a program takes of the device's memory but for its caches, with steps up to the bucket, blocks of so many
     * tokens and plans of these tables: its weights by kind, the largest first, then what else; n of them. Of a
     * device_options.card, too. */
    enum status (*footprint)(struct loaded *l, struct bucket bucket, int block_size, const int *table_width,
                             struct device_part out[MAX_DEVICE_PARTS], int *n, struct error *err);

    /* Measures for up to a second. */
    enum status (*measure)(struct loaded *l, struct device_limits *out, struct error *err);

    /* Runs the step that was collected last again, which none may have followed, and tells how long each op takes by
     * itself and how many launches it is, both [program.n_ops]; what another op's launch did is left as it was. */
    enum status (*trace)(struct executable *exe, double *op_us, int *op_nodes, struct error *err);

    /* Seconds that the products of a step of n_tokens rows, n_out of them with logits, take by the fastest
     * algorithms of the vendor's library, alone, measured now: what an engine that multiplies by those cannot get
     * under. */
    enum status (*library_floor)(struct executable *exe, int n_tokens, int n_out, double *seconds, struct error *err);

    /* Bytes that are read of a weight when a step reads all of it; NULL: those that are stored. */
    int64_t (*weight_bytes)(const struct loaded *l, const struct weight *w);

    /* What a step that decodes n_rows sequences launches, in order: the first of them in out[most]. Returns how many
     * there are. */
    int (*nodes)(struct executable *exe, int n_rows, struct device_node *out, int most);
};
