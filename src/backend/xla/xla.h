/* xla.h - what the files of the XLA backend share: a program that is loaded, the shapes that launches have, what a
 * launch is given.
 *
 * A step of ragged sequences becomes launches of rectangles: so many sequences with so many token rows each, all padded
 * to sizes of short ladders (shapes.h). Each such shape is an executable, compiled when it is first wanted. Its
 * arguments and results, by number:
 *
 *     arguments   caches | dense copies in place of others (dense.h) | fed [n_fed] i32 | weights, and their scales
 *                 | fed_before [n_fed] i32 | numbers [n_ints + n_floats] i32, floats as their bits
 *     results     caches, copies and fed, in the memory of the arguments | drawn [rows * DRAWN_INTS] i32
 *                 | logits [rows * vocab_size] | hidden [tokens * width], and taps
 *
 * fed has the tokens that a step drew, by its output rows: the step behind it takes them from there, so that the host
 * need not have read them. Results that the host reads have one dimension: their layout is the same on every device.
 *
 * Where sequences take one token each the executable is a loop of up to n_steps steps, how many being one of the
 * numbers: a step by itself needs no other program. drawn is then of all steps, the rest of the last. But a GPU's first
 * step of a loop is slow, and each that leaves logits: there a loop leaves none, nor hidden states, and steps that are
 * asked for them have a program of their own. */
#pragma once

#include "backend/xla/lower/hlo.h"
#include "backend/xla/pjrt/pjrt.h"
#include "core/backend.h"

#include <string.h>

/* One executable's. */
struct launch_shape {
    int n_seqs, n_queries; // sequences, and token rows of each
    int n_rows;            // output rows
    int context;           // tokens that a sequence can have: entries of block tables, times the block size
    int n_steps;           // that the launch may do, one token each; 1: it is no loop
    int n_fed;             // tokens that a step can hand to the next on the device; 0: the host hands them over
    bool is_dense;         // keys and values are read from dense copies, which a row a sequence has
    bool draws;            // rows may be drawn with a temperature; else each is its most probable token
};

static inline int launch_tokens(const struct launch_shape *s) { return s->n_seqs * s->n_queries; }

enum { XLA_MAX_ROPES = 16, XLA_MAX_TOP_K = 64, XLA_MAX_PAIRED_HEADS = 512, XLA_MAX_RANKS = 64, XLA_MAX_STEPS = 64 };
enum { DRAWN_TOKEN, DRAWN_ARGMAX, DRAWN_NOT_FINITE, DRAWN_INTS }; // [DRAWN_INTS][rows]

/* Where a launch's numbers stand. T tokens, sequence after sequence; S sequences; R rows. */
struct inputs {
    int token, position;              // ints [T]; position of padding: that of the row before it
    int n_query, state_slot, adapter; // [S]; of padding 0, n_states (which is none) and 0
    int out_row;                      // [R], into T
    int from_row, fed_to;             // with n_fed: [T], of the step before, -1: token; [R], into fed
    int table[MAX_CACHE_GROUPS], base[MAX_CACHE_GROUPS]; // [S][width]; [S], position of the table's first entry
    int width[MAX_CACHE_GROUPS];
    int ranks;             // numbers that differ from rank to rank, in the order of their ops
    int top_k, bits, zero; // [R]; [steps][2][R] low and high half of 53 random bits; 0
    int n_loop;            // how many steps this launch does
    int n_ints;
    int cos_sin[XLA_MAX_ROPES];    // floats [steps][T][dim]: cosines, then sines
    int temperature, top_p, least; // [R]
    int states, states_width;      // [T][width], of programs with STATES; width 0: none
    int n_floats;                  // behind the ints: one upload takes both
};

/* A weight as it lies on the device. */
struct placed {
    const struct weight *weight;
    enum hlo_type type;
    struct shape shape;         // [out, in]; [out] of vectors
    struct pjrt_buffer *buffer; // NULL until it is placed
    struct pjrt_buffer *scales; // f32 [out], a scale a row; NULL: none
    bool is_scaled;
};

/* What a step changes: an array of the device, which each launch gives away and gets back. */
struct cache_array {
    enum hlo_type type;
    struct shape shape; // axis 0: blocks or slots of states
    int group;
    struct pjrt_buffer *buffer;
};

/* The arrays of one layer's cache, from `first` on. */
enum { CACHE_K, CACHE_V, CACHE_K_SCALE, CACHE_V_SCALE }; // KV: [blocks, heads, block_size, dim]; scales without dim
enum { CACHE_LATENT_ROW };                               // LATENT: [blocks, 1, block_size, dim]
enum { CACHE_CONV, CACHE_DELTA };                        // STATE: [slots, floats] each, those that there are

struct layer_cache {
    int first, n;
    int64_t conv_floats, delta_floats; // of STATE
};

struct device {
    struct pjrt *pjrt;
    int index; // of pjrt's devices
    struct error fault;
    int steps;           // of a launch, at most (ahead.c)
    int sums;            // 1: products of one row are sums in float32 (lower.h)
    int blockwise;       // tokens of context from which attention goes in pieces ...
    int piece;           // ... and of a piece, for sequences of one row
    int64_t dense_bytes; // that dense copies of caches may take (dense.h)
    char *dump;          // a folder for the text of modules; NULL: none
    int store;           // a folder of executables (store.h); -1: none, and why, if that is not what was asked for
    char why_no_store[320];
};

static inline bool device_is_cpu(const struct device *d) {
    return d->pjrt->platform && strcmp(d->pjrt->platform, "cpu") == 0;
}

static inline bool device_is_gpu(const struct device *d) {
    static const char *const names[] = {"cuda", "rocm", "gpu", "sycl"};
    bool is = false;
    for (size_t i = 0; i < ARRAY_LEN(names) && d->pjrt->platform; i++)
        is |= strcmp(d->pjrt->platform, names[i]) == 0;
    return is;
}

struct loaded {
    struct device *device;
    const struct program *program;
    enum hlo_type type;    // of products and caches
    bool has_int8_weights; // of LINEAR, MOE_FFN and EMBED
    bool has_int8_cache;
    struct placed *weights; // in the order of arguments
    int n_weights;
    int *weight_of;             // [n_ops * OP_MAX_WEIGHTS], into weights; -1
    struct layer_cache *layers; // [program->n_caches]
    struct cache_array *caches;
    int n_caches;
    int block_size, n_blocks[MAX_CACHE_GROUPS], n_states, table_width[MAX_CACHE_GROUPS];
    struct dense *dense; // dense.h; NULL: none
    int32_t *rank_ints;  // as inputs.ranks
    int n_rank_ints;
    struct compiled *compiled; // compiled.h, a list
    int64_t n_compiled, n_from_disk, compile_us;
    struct replicas *replicas;     // with whom it is joined (replicas.h); NULL: none
    int ids[XLA_MAX_RANKS], n_ids; // of the devices that its programs are compiled for: its own, or those of all ranks
    struct pjrt_buffer **arguments, **outputs; // of the launch at hand; as many as any has
    struct pjrt_buffer ***given;               // [n_caches]: where what it gives away is kept
    int *array_ids;                            // [n_caches]
};

static inline bool launch_keeps_logits(const struct loaded *l, const struct launch_shape *s) {
    return s->n_steps == 1 || !device_is_gpu(l->device);
}

/* ---- shapes.c ---- */
int shape_widest_table(const struct loaded *l); // entries that any group's block table has

/* ---- inputs.c ---- */
int states_width(const struct program *p); // of STATES; 0: it has none
/* Entries of a group's block table that a launch needs: those of the context, or of the window and the rows. */
int inputs_table_width(const struct loaded *l, const struct launch_shape *s, int group);
void inputs_layout(const struct loaded *l, const struct launch_shape *s, struct inputs *out);

/* ---- lower.c: the module of a shape, as text ---- */
void xla_lower(const struct loaded *l, const struct launch_shape *s, struct buf *out);

/* ---- lower_copies.c: copies among blocks of a group's arrays, or of all states (STATE_SLOTS) ---- */
enum { COPIES_A_LAUNCH = 64 };
int copied_arrays(const struct loaded *l, int group, int *out); // into l->caches; returns how many
/* ints [1 + 2 * COPIES_A_LAUNCH]: how many, then from and to of each. */
void xla_lower_copies(const struct loaded *l, int group, struct buf *out);

/* ---- load.c ---- */
enum status load_program(struct device *d, const struct program *p, const struct load_options *options,
                         struct loaded **out, struct error *err);
void load_free(struct loaded *l); // NULL is fine
/* What l->program will be there, without placing anything. ERR_UNSUPPORTED names an op or a type that is not done. */
enum status load_describe(struct loaded *l, const struct load_options *options, struct error *err);
