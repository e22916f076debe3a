/* l2_topology.h - the two sides of the L2. Cards of compute capability 9.0 have two, with half of the multiprocessors
 * and half of the memory each. What is read from memory of the other side crosses the chip: 180 pJ a byte at 2.3 TB/s
 * on an H200, where what is near takes 111 at 4.0, and addresses as they come 129 at 3.8.
 *
 * Nothing says which side an address is on, or a multiprocessor; l2_topology.cu finds it by what an atomic takes, as
 * atomics go to the side that the address is on (loads may be served by what the reader's side keeps). As measured on
 * an H200 (8 GB, each chunk; tests/cuda/test_l2_topology.cu):
 *
 *     within a page of 2 MB    by chunks of 4 KB, the parity of some bits of the offset: 12, 13, 15, 17, 19 on an H200,
 *                              12, 13, 16, 17, 19 on an H100 of 80 GB
 *     of a page                one bit, its flip, by no rule that shows in its address
 *     of a multiprocessor      by %smid; 66 and 66 of one card, 64 and 68 of another
 *
 * Which bits these are is found of all there could be: of 64 chunks in four pages, any two choices differ in 12 at
 * least. l2_copy.h asks that bits 12 and 13 are in, and bit 14 not. Everything that is measured must agree, else the
 * device has no sides for us: another card, a part of one (MIG). Of a multiprocessor's latencies a side explains 0.97
 * and must explain 0.8; sides are 196 cycles apart and must be 80; a page's chunks together 156 at least, and must be
 * half of what is usual; of single chunks one in 200 and one more may be off, where one in 30,000 was. A flip that were
 * wrong would make weights far, which costs time and no result. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SIDES_PAGE = 2 << 20, SIDES_MOST_SMS = 160, SIDES_CHUNKS = 16 }; // SIDES_CHUNKS: that are looked at in a page

struct dl2_sides {
    uint32_t sm[SIDES_MOST_SMS / 32]; // a bit a multiprocessor, by %smid
    uint32_t hash; // bits of a chunk's number in its page: their parity and the page's flip are its side. Of the lowest
                   // three the first two are in
    int n_sms[2];  // of either side
    float sure;    // the least share of a multiprocessor's latencies that its side explains
    float apart;   // cycles of an atomic between sides
    const char *none; // why there are no sides; NULL: there are
};

/* What was found in pages of memory. */
struct dside_pages {
    int n_pages, n_flipped, n_chunks,
        n_against;      // chunks that were looked at, and that are not where the hash says (noise: a few of a million)
    float apart, least; // cycles between the sides: of a page as a rule, and of the page where they are least apart
    const char *none;   // as of dl2_sides
};

/* Both measure, in a launch each and a fraction of a millisecond, and wait for it; nothing in the memory that they look
 * at is changed. Only faults are not cudaSuccess. */
cudaError_t l2_sides_find(cudaStream_t stream, struct dl2_sides *out);
/* at: a multiple of SIDES_PAGE. flips [(n_pages + 31) / 32]: a bit a page, as l2_copy.h counts them from `at`. */
cudaError_t sides_of_pages(cudaStream_t stream, const struct dl2_sides *s, void *at, int n_pages, uint32_t *flips,
                           struct dside_pages *out);

#ifdef __cplusplus
}
#endif
