/* op_judge.h - whether what an op gave is what its oracle wants, by up to three numbers.
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
#pragma once

#include "op_rig.h"

/* Largest error of a row, relative to the largest value wanted in that row, over all rows. */
double rig_error(const struct rig *rig, const double *got, const double *want);

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

/* Of n oracles the one that is nearest to what was got, row by row: a step's path is that of its size. */
const double *rig_nearest(struct rig *rig, const double *got, const double *const *want, int n);
/* ---- bounds ---- */

#define RIG_F16_BOUND 1e-3 // most
#define RIG_F16_RMS 4e-4
#define RIG_BF16_BOUND 4e-3 // a number of bfloat16 that is rounded the other way is 2^-8 off
#define RIG_BF16_RMS 6e-4
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
/* Of four bits: a value is off by 0.08 of itself in the root of the mean square (core/kv_int4.h). */
#define RIG_INT4_CACHE_BOUND 0.5
#define RIG_INT4_COSINE 0.985
/* Against what was stored so: queries and weights of the softmax are rounded to half precision behind a rotation. */
#define RIG_INT4_READ_BOUND 2e-3 // 4e-4 is seen
#define RIG_INT4_READ_RMS 5e-4   // 1.5e-4
/* Against what was stored: keys and values in the middle as above, and weights of the softmax in two terms of e4m3. */
#define RIG_CACHE_READ_BOUND 0.125
#define RIG_CACHE_READ_RMS 5e-3
