/* op_rig.h - runs one op (or a few) on a backend and gives back its rows, through core/backend.h alone.
 *
 * Inputs enter as rows of an embedding table, token i being row i, and results leave as the logits of a
 * SAMPLE, so that a rig works on any backend. Before the step that counts, a step of NaN tokens is run over
 * every block, state slot and activation: whoever reads what was not written shows it.
 *
 *     struct rig *rig = rig_new((struct rig_options){.lens = {5, 9}, .n_seqs = 2, .widths = {64}});
 *     rig_result(rig, op_linear(rig->p, rig->in[0], rig_weight(rig, FORMAT_BF16, 32, 64, NULL), NULL));
 *     double *y = rig_run(rig, SCHEDULE_CHUNK_7);        // [sum of lens][32]
 *     rig_free(rig);                                     // y too
 *
 * op_weights.h makes weights in every format, op_oracle.h has what an oracle in double precision is written with, and
 * op_judge.h bounds and compares. */
#pragma once

#include "on_device.h"

enum { RIG_MAX_SEQS = 512, RIG_MAX_IN = 3 };

/* In which steps the sequences are computed. */
enum rig_schedule {
    SCHEDULE_WHOLE,      // every sequence in one step
    SCHEDULE_ONE_BY_ONE, // one sequence after the other
    SCHEDULE_CHUNK_1,    // one token of every sequence a step; of long ones some 50 so, from a random place on
    SCHEDULE_CHUNK_7,
    SCHEDULE_CHUNK_64,
    SCHEDULE_RAGGED, // random pieces, some sequences sitting out
    N_SCHEDULES,
    SCHEDULE_SIZES = N_SCHEDULES, // of a rig of rig_sizes(): steps that decode, of every number of sequences
    SCHEDULE_BACK, // of a rig with n_back: random pieces, some with wrong tokens behind, before which the next begins
};

struct rig_options {
    int n_seqs, lens[RIG_MAX_SEQS];
    int widths[RIG_MAX_IN];   // of the inputs; 0 ends
    float spread;             // inputs are uniform in (-spread, spread); 0: 1
    int block_size;           // 0: 16
    const char *kernels;      // of the CPU; of others what products are made in
    int n_threads;            // 0: 2
    bool rounds;              // as in struct how
    const char *quantization; // as in load_options
    bool dummy_weights;       // likewise
    const char *kv_dtype;     // likewise
    int n_back;               // likewise
    int n_adapters;           // sequences have by turns none of them, the first, the second ...
    bool begins_clean;        // no step of NaNs, which each run has otherwise, comes before
    const struct rig *like;   // on the CPU, with the numbers that this one drew: an oracle
};

struct rig {
    struct rig_options o;
    struct program *p;
    val in[RIG_MAX_IN];
    struct arena arena;
    int n_rows;                 // sum of lens
    int ones_end[RIG_MAX_SEQS]; // see SCHEDULE_CHUNK_1
    int32_t sizes_left[128];    // of SCHEDULE_SIZES, numbers of sequences that no step has had yet
    int n_sizes_left;
    float *table;
    int width; // of the table
    val out;
    double floor; // smallest size that rig_error relates an error to
    bool *told;   // [n_rows], see rig_tells
    bool tells_all;
    uint64_t random, stream;
    const struct backend_ops *ops;
    struct on_device at;
};

/* Whether this process runs the next case of its program. With GYRE_TEST_PART=k/n it runs every n-th, and n processes
 * with k from 1 to n run all of them; which case is whose depends on the seed, so that one part alone is a sample. */
bool rig_takes_case(void);

/* Whether a case is to take few steps: GYRE_TEST_BRIEF is set, as each step costs a sanitizer some hundred
 * milliseconds. */
bool rig_is_brief(void);

/* A device times the library's algorithms for a weight of so many bytes (gemm_plan.c), by thousands of launches of
 * kernels that are not ours. No case in brief has one. */
enum { RIG_TIMED_BYTES = 2 << 20 };

/* As many sequences as a step may have, so long that SCHEDULE_SIZES computes them in one step of each number of
 * sequences from 1 to 64, and of each that a step may be padded to and some between up to 512, in random order. */
struct rig_options rig_sizes(struct rig_options options);

struct rig *rig_new(struct rig_options options);
void rig_free(struct rig *rig);

uint64_t rig_bits(struct rig *rig);
double rig_uniform(struct rig *rig, double low, double high);
int rig_between(struct rig *rig, int low, int high); // both included

/* Input i of row `row` of sequence `seq`. */
const float *rig_input(const struct rig *rig, int i, int seq, int row);
int rig_row(const struct rig *rig, int seq, int row); // index among the results
/* Before rig_result: draws n columns of input 0 anew. */
void rig_draw_again(struct rig *rig, int seq, int row, int col, int n);
double *rig_doubles(struct rig *rig, int64_t n); // zeros that live as long as the rig

/* for (each row t of each sequence s) */
#define RIG_EACH_ROW(rig, s, t)               \
    for (int s = 0; s < (rig)->o.n_seqs; s++) \
        for (int t = 0; t < (rig)->o.lens[s]; t++)

/* Ends the program with the value whose rows are wanted, places and compiles. */
void rig_result(struct rig *rig, val out);

/* Of rows that are as wide as that value: a zeroed set of them, and one in a set. */
double *rig_rows(struct rig *rig);
double *rig_at(const struct rig *rig, double *rows, int seq, int row);

double *rig_run(struct rig *rig, enum rig_schedule schedule); // [n_rows][out.width], lives as long as the rig

/* Whether the last run told of a row. In brief one that is not to tell all (tells_all) tells of a few rows of its last
 * step and of some of the others: to a sanitizer SAMPLE costs more than the rest of a step. All judges leave out the
 * others, which are not numbers. */
bool rig_tells(const struct rig *rig, int row);
bool rig_is_sparse(const struct rig *rig); // whether there are such others

/* The backend of $GYRE_TEST_BACKEND, "cpu" (where it is not set) or "cuda". */
const struct backend_ops *rig_backend(void);

/* What one of rig_kernels() is asked for by: kernels of the CPU, what products are made in elsewhere. */
struct how rig_how(const char *kernels, int n_threads);

/* "reference" and the sets of kernels that this processor has; NULL ends. Op tests loop over it. */
const char *const *rig_kernels(void);
