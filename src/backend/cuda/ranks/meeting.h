/* meeting.h - meeting.cu: how ranks of a model on several cards meet in a step: ALL_REDUCE and ALL_GATHER.
 *
 * Every rank has a box in its card's memory, which the others write to. What a rank is told lies in its own box, so
 * that waiting reads no other card's memory. A meeting is one op of a step that has rows; ranks count them alike
 * (epoch), and each has its half of the box by turns: when a rank writes to another's half for meeting e + 2, that one
 * has ended meeting e, because it has spoken in e + 1. Counting is the device's, so a captured graph serves every step.
 *
 *     packets   up to MEETING_PACKETS floats: each rank sends its x to all, a float and the epoch in 8 bytes, which
 *               are written at once: what has come says itself that it has. One way across the link.
 *     slices    up to MEETING_SLICED floats, sent by all ranks together: a block sends its slice of x to all, and then
 *               the epoch; half the bytes, and a fence more
 *     shares    of more: letters tell where x and y lie, rank r reads the r-th share of every x, and writes the sum
 *               into every y; letters tell the end
 *     gathered  letters, every rank writes its columns into every y, letters. Of logits that only the most probable
 *               token is asked of, the largest of parts are sent as packets in their place
 *
 * Where two cards do not reach each other's memory boxes are the host's (by_host): packets go there as they do to a
 * card; all else in slices of some rows a node, of gathered columns too. Each crosses the host's bus twice.
 *
 * Sums are x of rank 0 + x of rank 1 + ..., in float32, whichever way: all ranks have the same bits.
 *
 * Waiting is bounded. A rank that waits longer than `patience_ns` for another says for whom in *missed, in the host's
 * memory, and goes on with whatever is there, without waiting in later meetings: the host looks when it collects. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MEETING_RANKS = 8,
    MEETING_PACKETS = 1 << 16,
    MEETING_IN_NORM = 1 << 13, // floats whose sum ADD_NORM's node makes itself; of more two nodes are faster
    MEETING_SLICED = 1 << 20,
    MEETING_SLICES = 128,
    MEETING_BESTS = 16,
    MEETING_BEST_ROWS = 512,
    MEETING_HEAD = 16384,
    MEETING_COUNTS = 16
};

struct dmeeting {
    int rank, n;
    void *boxes[MEETING_RANKS]; // of each rank, meeting_box_bytes(n) of zeros, as this card reaches it
    void *counts;               // this card's own, MEETING_COUNTS bytes of zeros
    int32_t *missed;            // 0, or 1 + the rank that did not come
    unsigned long long patience_ns;
    bool one_card; // ranks share it: nothing may take the place of one that is waited for
    bool by_host;  // no value is wider than MEETING_SLICED then
};

int64_t meeting_box_bytes(int n);

/* rows: of the step, on the device (device_plan.counts). y may be x; x may be unscaled where that is said. */
bool all_reduce_takes_unscaled(const struct dmeeting *m, struct dmat x, int n_rows);
void launch_all_reduce(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, struct dmat x,
                       struct dmat y);
/* x goes to y's columns from `first` on; wanted: on the device, 0 if nobody reads y. */
void launch_all_gather(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows,
                       const int32_t *wanted, struct dmat x, int first, struct dmat y);

/* Of each row the largest of MEETING_BESTS parts of each rank's x, which are columns from `first` on of all, of up to
 * MEETING_BEST_ROWS rows: the first n * MEETING_BESTS of each row of largest, [rows][pitch]. */
struct dlargest { // as struct dbest (head/lm_head.h)
    float logit;
    int32_t id;
};
void launch_gather_largest(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows,
                           struct dmat x, int first, struct dlargest *largest, int pitch);

#ifdef __cplusplus
}
#endif
