/* meeting.cuh - how kernels of ranks on several cards tell each other: boxes, packets, waiting. See meeting.h.
 *
 * A kernel that meets knows its number, epoch_of, behind wait_for_previous; sends and takes; and ends with
 * is_last_block and end_meeting, by which the next one has the next number. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ranks/meeting.h"

enum { LOOKS = 256 }; // at memory, before the time is looked at

/* A letter to a rank. The epoch is written last. */
struct letter {
    void *x, *y;
    uint32_t epoch, unused;
};

/* How far a rank is. */
struct counts {
    uint32_t epoch;  // of the last meeting
    uint32_t n_done; // blocks that have ended, of the one that is under way
    uint32_t gave_up, unused;
};
static_assert(sizeof(counts) == MEETING_COUNTS, "as it is made room for");

/* The front of a box; behind it, at MEETING_HEAD, what ranks send: packets, or floats [2][n][MEETING_SLICED]. */
struct box {
    letter begun[2][MEETING_RANKS];
    uint32_t ended[2][MEETING_RANKS];
    uint32_t sent[2][MEETING_RANKS][MEETING_SLICES];
};
static_assert(sizeof(box) <= MEETING_HEAD, "the front of a box fits");

__device__ inline box &box_of(const dmeeting &m, int rank) { return *static_cast<box *>(m.boxes[rank]); }

__device__ inline counts &counts_of(const dmeeting &m) { return *static_cast<counts *>(m.counts); }

/* What is in a rank's box from another. */
__device__ inline float *sent_to(const dmeeting &m, int to, int from, uint32_t epoch) {
    return reinterpret_cast<float *>(static_cast<char *>(m.boxes[to]) + MEETING_HEAD) +
           ((epoch & 1) * m.n + from) * (int64_t)MEETING_SLICED;
}
__device__ inline uint2 *packets_of(const dmeeting &m, int to, int from, uint32_t epoch) {
    return reinterpret_cast<uint2 *>(sent_to(m, to, from, epoch));
}
static_assert(2 * (int)MEETING_PACKETS <= (int)MEETING_SLICED, "packets have room");

// ---- words between cards ----------------------------------------------------------------------------------------

__device__ inline uint32_t look(const uint32_t *at) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ inline void tell(uint32_t *at, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
/* Two packets. Each is written and read at once, the two not with each other. */
__device__ inline void send_packets(uint2 *at, float2 x, uint32_t epoch) {
    uint64_t high = (uint64_t)epoch << 32;
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(high | __float_as_uint(x.x)),
                 "l"(high | __float_as_uint(x.y))
                 : "memory");
}
__device__ inline bool take_packets(const uint2 *at, uint32_t epoch, float2 &x) {
    uint64_t a, b;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
    x = make_float2(__uint_as_float((uint32_t)a), __uint_as_float((uint32_t)b));
    return (uint32_t)(a >> 32) == epoch && (uint32_t)(b >> 32) == epoch;
}

__device__ inline unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* Until there() holds; `from` is whom it waits for. Time is looked at rarely, since that takes some. */
template <class F> __device__ inline void wait_until(const dmeeting &m, int from, F there) {
    unsigned long long began = 0;
    for (uint32_t i = 1; !there(); i++) {
        if (i % LOOKS)
            continue;
        if (look(&counts_of(m).gave_up))
            return;
        unsigned long long now = now_ns();
        began = began ? began : now;
        if (now - began < m.patience_ns)
            continue;
        *static_cast<volatile int32_t *>(m.missed) = 1 + from;
        tell(&counts_of(m).gave_up, 1);
        return;
    }
}

/* The number of the meeting that begins, known behind the node before. */
__device__ inline uint32_t epoch_of(const dmeeting &m) { return counts_of(m).epoch + 1; }

/* The last block of a meeting, of n_blocks that have something to do, gets true. All of its threads call it. */
__device__ inline bool is_last_block(const dmeeting &m, uint32_t n_blocks) {
    __syncthreads(); // every thread knows the epoch
    return __syncthreads_or(threadIdx.x == 0 && atomicAdd(&counts_of(m).n_done, 1) == n_blocks - 1);
}

/* By the last block's first thread. */
__device__ inline void end_meeting(const dmeeting &m, uint32_t epoch) {
    counts_of(m).n_done = 0;
    counts_of(m).epoch = epoch;
}

/* Two columns: `mine` goes to all, and becomes the sum in the order of ranks. at: of the first, among all floats of the
 * meeting. */
__device__ inline void send_to_all(const dmeeting &m, uint32_t epoch, int64_t at, float2 mine) {
    for (int r = 1; r < m.n; r++) {
        int to = (m.rank + r) % m.n;
        send_packets(packets_of(m, to, m.rank, epoch) + at, mine, epoch);
    }
}
__device__ inline float2 sum_of_all(const dmeeting &m, uint32_t epoch, int64_t at, float2 mine) {
    float2 sum = {0, 0};
    for (int r = 0; r < m.n; r++) {
        float2 v = mine;
        if (r != m.rank)
            wait_until(m, r, [&] { return take_packets(packets_of(m, m.rank, r, epoch) + at, epoch, v); });
        sum = r == 0 ? v : make_float2(sum.x + v.x, sum.y + v.y);
    }
    return sum;
}
