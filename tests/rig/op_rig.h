/* op_rig.h - runs one op (or a few) on a backend and gives back its rows, through core/backend.h alone.
 *
 * Inputs enter as rows of an embedding table, token i being row i, and results leave as the logits of a
 * SAMPLE, so that a rig works on any backend. Before the step that counts, a step of NaN tokens is run over
 * every block, state slot and activation: whoever reads what was not written shows it.
 *
 *     struct rig *rig = rig_new((struct rig_options){.lens = {5, 9}, .n_seqs = 2, .widths = {64}});
 *     rig_result(rig, op_linear(rig->p, rig->in[0], rig_weight(rig, FORMAT_BF16, 32, 64), NULL));
 *     double *y = rig_run(rig, SCHEDULE_CHUNK_7);        // [sum of lens][32]
 *     rig_free(rig);                                     // y too */
#pragma once

#include "on_device.h"

enum { RIG_MAX_SEQS = 512, RIG_MAX_IN = 3 };

/* How a weight is stored; each is decoded by the rig's own arithmetic for the oracle. */
enum rig_format {
    FORMAT_F32,
    FORMAT_F16,
    FORMAT_BF16,
    FORMAT_BF16_SPLIT,       // three parts from three tensors
    FORMAT_BF16_INTERLEAVED, // two parts of rows 0, 2, 4 .. and 1, 3, 5 .. of one tensor
    FORMAT_BF16_TURNED,      // stored [in, out]
    FORMAT_F8_CHANNEL,       // e4m3, a bf16 scale a row
    FORMAT_F8_TENSOR,        // e4m3, three parts from three tensors, each of one f32 scale
    FORMAT_F8_BLOCK,         // e4m3, an f32 scale a block of 32 x 16
    FORMAT_I8_TENSOR,        // one scale
    FORMAT_MXFP4,
    FORMAT_NVFP4,
    FORMAT_INT4, // in words of a row, with a scale of few bits and a zero point a 32 columns
    N_FORMATS,
    FORMAT_Q4_0 = N_FORMATS, // GGUF's blocks, of rows that are whole blocks
    FORMAT_Q8_0,
    FORMAT_Q4_K,
    FORMAT_Q6_K,
    FORMAT_Q4_K_AND_Q6_K, // two parts
    N_STORED_FORMATS
};
const char *rig_format_name(enum rig_format format);

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

/* A weight of random values with about unit rows; values (may be NULL) get what the stored numbers mean. */
const struct weight *rig_weight(struct rig *rig, enum rig_format format, int64_t out, int64_t in, double **values);
/* A vector of bf16 uniform in (low, high). */
const struct weight *rig_vector(struct rig *rig, int64_t n, double low, double high, double **values);

/* Input i of row `row` of sequence `seq`. */
const float *rig_input(const struct rig *rig, int i, int seq, int row);
int rig_row(const struct rig *rig, int seq, int row); // index among the results
/* Before rig_result: draws n columns of input 0 anew. */
void rig_draw_again(struct rig *rig, int seq, int row, int col, int n);

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

/* Largest error of a row, relative to the largest value wanted in that row, over all rows. */
double rig_error(const struct rig *rig, const double *got, const double *want);

double *rig_doubles(struct rig *rig, int64_t n);

/* Of all values of all rows. */
double rig_cosine(const struct rig *rig, const double *got, const double *want);

/* sqrt(sum (got - want)^2 / sum want^2); infinite where what was got is not a number. */
double rig_rms(const struct rig *rig, const double *got, const double *want);

/* How far a result may be off; rms and cosine of 0 are not looked at. */
struct rig_bounds {
    double most, rms, cosine;
};
/* Of an op that rounds to 16 bits inside, and is off by `exact` at most where it does not. */
struct rig_bounds rig_bounds_of_16(const struct rig *rig, double exact);

/* Fails the test unless what was got is within the bounds. With GYRE_TEST_TELL every judgement is printed. */
void rig_judge(struct rig *rig, const double *got, const double *want, struct rig_bounds bounds,
               enum rig_schedule schedule, const char *what);

/* Fails the test unless a run under the schedule (under each) is within the bounds, or by rig_error within the one. */
void rig_expect(struct rig *rig, const double *want, double most, enum rig_schedule schedule, const char *what);
void rig_expect_in_every_schedule(struct rig *rig, const double *want, double most, const char *what);
void rig_expect_bounds(struct rig *rig, const double *want, struct rig_bounds bounds,
                       const char *what); // in every schedule

/* ---- pieces of formulas, in double ---- */

#define EPS 0x1p-24 // half a unit of float32

double *rig_wide_input(struct rig *rig, int i, int seq, int row);
double rig_sigmoid(double x);

/* y [out] = W [out, in] x. Returns the largest root of a sum of squared terms: the size that a sum without
 * cancellation would have. */
double rig_multiply(const double *w, int64_t out, int64_t in, const double *x, double *y);

/* y = x / rms(x) * w (+ 1 with plus_one); w NULL: 1 */
void rig_rms_norm(const double *x, const double *w, int n, double eps, bool plus_one, double *y);

/* The backend of $GYRE_TEST_BACKEND, "cpu" (where it is not set) or "cuda". */
const struct backend_ops *rig_backend(void);

/* What one of rig_kernels() is asked for by: kernels of the CPU, what products are made in elsewhere. */
struct how rig_how(const char *kernels, int n_threads);

/* ---- what a device rounds ----
 *
 * Tables, caches and what products read are kept in 16 bits or e4m3 (the rig's own table holds what it becomes there);
 * sums, and what else ops make, are float32. An oracle that rounds what is read, as it is defined to be read, leaves
 * the arithmetic alone to be judged. On the CPU and in float32 nothing is rounded. */

/* How a product may read a row of its input, by which path timing chose and who wrote it. */
enum rig_reading {
    READING_AS_IT_IS = -1, // nothing rounded
    READING_16,            // the element that products are made in
    READING_E4M3, // where the weight is e4m3: elements with a scale a row, the largest becoming 28; of the value itself
    READING_E4M3_OF_16,    // of the value as it is kept in 16 bits
    READING_E4M3_AFTER_16, // elements of that, with the scale of the value itself
    N_ROW_READINGS,
    READING_BLOCKS =
        N_ROW_READINGS, // six more: a scale for each 32, 64 or 128 columns, of the value itself or of 16 bits
    N_READINGS = READING_BLOCKS + 6,
    READING_POWERS = N_READINGS, // five more, of a gated product: e4m3 of 16 bits by one of the powers of two for which
                                 // the largest is 1 to 28
    N_GATED_READINGS = READING_POWERS + 5,
};

void rig_round(const char *dtype, double *x, int64_t n); // to "float16" or "bfloat16"; in others (NULL too) as it is
void rig_read(const char *dtype, enum rig_reading how, double *x, int n);
double rig_distance(const double *a, const double *b, int n); // sum (a - b)^2
/* Of n oracles the one that is nearest to what was got, row by row: a step's path is that of its size. */
const double *rig_nearest(struct rig *rig, const double *got, const double *const *want, int n);
/* To e4m3 with a scale of their own, as rows of caches are kept. */
void rig_round_e4m3(double *x, int n);
/* A row of a weight: of eight scales the one that leaves least off, times a power of two (place.cu). */
void rig_round_weight_row(double *x, int n);
/* As a row of keys or values is kept by a cache of kv_dtype ("fp8", "int8"); NULL: of what products are made in,
 * `dtype`. */
void rig_round_cached(const char *dtype, const char *kv_dtype, double *x, int n);
/* The element in which ATTENTION reads queries: 16 bits where a device's fast kernels take the heads, else "float32".
 */
const char *rig_query_dtype(const char *dtype, const char *kv_dtype, const struct attention_args *a, int block_size);

/* ---- bounds ----
 *
 * A result is judged by up to three numbers.
 *
 *     most     the largest error of a row relative to the row's largest value: finds the single wrong value that a mean
 *              hides
 *     rms      sqrt(sum (got - want)^2 / sum want^2) over all values of all rows, the relative error of a result in 16
 *              bits
 *     cosine   of all values: for eight bits, against what nothing was rounded in
 *
 * Of a result in bfloat16 1e-3 in rms is wanted. One rounding to bfloat16 moves a value by 2^-9 of itself at most, and
 * by 1.6e-3 in the root of the mean square, so it is held against an oracle that rounds where the op is defined to. An
 * op that rounds nothing behind what it reads is then off by no more than in float32, and held to that. ATTENTION,
 * whose weights the tensor core takes in 16 bits, is off by that one rounding of each in float16, less for a sum of
 * many: 1.7e-4 is seen. In bfloat16 it has weights in two terms; what was seen, up to 1.6e-4 and 2.01e-3 of a row, were
 * queries and keys that lay in the middle between two numbers of bfloat16, which tests leave out: 7.5e-7 and 4.5e-6
 * remain. */
#define RIG_F16_BOUND 1e-3 // most
#define RIG_F16_RMS 3e-4
#define RIG_BF16_BOUND 2e-3
#define RIG_BF16_RMS 3e-4
/* Against the numbers that were stored, nothing rounded in the oracle: products of e4m3 rows with e4m3 rows, whose
 * factors are off by up to 1/16, by 0.027 in the mean; so is a sum of many, and four times that happens. */
#define RIG_F8_BOUND 0.15
#define RIG_F8_COSINE 0.999
/* Two such products multiplied, or keys that trained heads tell apart by large scores, leave less. There the bound is
 * the cosine of an oracle in double precision that rounds as the op is defined to, less what being off that oracle by
 * 3e-3 can make of it. */
#define RIG_F8_LEFT(cosine) fmin(RIG_F8_COSINE, (cosine)-2e-4)
/* Against the numbers read: the tensor core sums products of e4m3 with 14 bits of the largest, as others have found as
 * well (DeepSeek-V3's report, 3.3.2): 1.1e-3 of a sum of 2,064 is seen. Sums in half precision are rounded behind each
 * 32 terms as well, by 1.2e-3 of such a sum and up to 0.0043 of a row's largest in 2,000 rows, as double precision
 * tells; with both 1.6e-3 and 0.0060 are seen. */
#define RIG_F8_READ_BOUND 0.01
#define RIG_F8_READ_RMS 2.5e-3
/* The same where what is read was made by other products of e4m3: a number that lies in the middle between two of e4m3
 * may have become the other one, an eighth of it off. */
#define RIG_F8_CHAIN_BOUND 0.05
#define RIG_F8_CHAIN_RMS 0.02
/* And where the oracle took for the largest of them the one that is nearer: one number may be most of a row, so that of
 * a few rows the bounds above are passed now and then. Of 588 results of up to 8 rows the median is 0.002 in rms and
 * two are above 0.009; a wrong way to read leaves 0.013 to 0.025. */
#define RIG_F8_REQUANT_BOUND 0.035
#define RIG_F8_REQUANT_RMS 0.0175
/* What keys and values of 8 bits with a scale a row leave. Half a unit of e4m3's 3 bits of fraction is 1/16 of a value,
 * of int8 1/254 of the row's largest, and keys bring about as much again through the scores. */
#define RIG_FP8_CACHE_BOUND 0.35 // 0.25 is seen of heads of 20 channels, 0.14 of others; the cosine is what is tight
#define RIG_INT8_CACHE_BOUND 0.04
/* Against what was stored: keys and values in the middle as above, and weights of the softmax in two terms of e4m3. */
#define RIG_CACHE_READ_BOUND 0.125
#define RIG_CACHE_READ_RMS 3e-3

/* "reference" and the sets of kernels that this processor has; NULL ends. Op tests loop over it. */
const char *const *rig_kernels(void);
