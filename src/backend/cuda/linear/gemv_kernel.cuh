/* gemv_kernel.cuh - the kernel of gemv.cu, which says how it works: the queue of weights, the rows of x, and what
 * becomes of the sums.
 *
 * Its code is as much of its time as its loads: a node of a few microseconds begins with a cold instruction cache, and
 * each thousand instructions more cost it half a microsecond. So what a product ends with is compiled in, every piece
 * stands in one place, and what is rare is called. */
#pragma once

#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/rows/norm_row.cuh"
#include "backend/cuda/value.h"

enum { MAX_WARPS = 8, CHUNK_BYTES = 64, PIECE = 16, X_SLOTS = 4, X_BY_THREADS = 4, MAX_CLUSTER = 8 };

/* What a product ends with, and what that needs. */
enum gemv_end { END_PLAIN, END_GATED };
static __host__ __device__ constexpr bool in_pairs(gemv_end e) { return e == END_GATED; }

template <gemv_end E> struct end_args {};
template <> struct end_args<END_GATED> {
    int act;
    float limit;
};

template <gemv_end E> struct gemv_args {
    const unsigned char *w, *x;
    int64_t x_pitch;   // bytes
    int in, out_units; // columns of x, units of all blocks
    int n_tokens;
    int row_warps, log2_column_warps;

    // Shares, divided by the host: units of groups, of the row warps of one, of a pass; chunks of the blocks of a
    // group.
    int group_units, longer_groups; // so many groups have one more
    int rank_chunks, longer_ranks;
    int sub_units, pass_units, n_passes; // of the longest group

    // x is taken in parts of part_steps steps, the columns of a slot each; with more parts than slots they come again
    // in every pass.
    int part_steps, n_parts, n_slots, x_pitch_there; // pitch: bytes from token to token in a slot
    bool x_by_threads;                               // one part of one token, copied by plain loads

    int scale_room, bias_room, warp_sums_room; // floats in shared memory
    const float *scale, *bias;
    void *y;
    int64_t y_stride; // elements
    element y_element;

    end_args<E> end;
};

// ---- one instruction each -------------------------------------------------------------------------------------------

/* All threads of so many warps. The number is part of the instruction: one from a register would take all 16 barriers
 * of a block. */
template <int ID> static __device__ void wait_at(int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(n_threads) : "memory");
}
static __device__ void named_barrier(int id, int n_threads) {
    switch (id) {
    case 0: wait_at<1>(n_threads); break;
    case 1: wait_at<2>(n_threads); break;
    case 2: wait_at<3>(n_threads); break;
    case 3: wait_at<4>(n_threads); break;
    case 4: wait_at<5>(n_threads); break;
    case 5: wait_at<6>(n_threads); break;
    case 6: wait_at<7>(n_threads); break;
    default: wait_at<8>(n_threads);
    }
}

// ---- formats of W ---------------------------------------------------------------------------------------------------
// A lane's 16 bytes of a row as STEPS steps of the tensor core: lo and hi are a step's first two elements and its last
// two. X_ASIDE: by how much the pitch of tokens of x passes a multiple of 128 bytes, which keeps the lanes of a load in
// different banks: those of a token lie 32 bytes apart for e4m3, so that the next token goes between them, else side by
// side.

struct e4m3_weights {
    using product = __half;
    static constexpr int BYTES = 1, STEPS = 4, X_ASIDE = 16;
    static __device__ void step(const uint32_t (&w)[4], int s, uint32_t &lo, uint32_t &hi) {
        e4m3_to_pairs(w[s], lo, hi);
    }
};

template <class T> struct plain_weights {
    using product = T;
    static constexpr int BYTES = 2, STEPS = 2, X_ASIDE = 64;
    static __device__ void step(const uint32_t (&w)[4], int s, uint32_t &lo, uint32_t &hi) {
        lo = w[2 * s];
        hi = w[2 * s + 1];
    }
};

// ---- shares ---------------------------------------------------------------------------------------------------------

struct span {
    int begin, end;
};
static __device__ span share(int i, int length, int n_longer) {
    int begin = i * length + min(i, n_longer);
    return {begin, begin + length + (i < n_longer)};
}

/* Where a thread stands, and what its block and its warp compute. */
template <gemv_end E, bool CLUSTERED> struct station {
    int lane, r, q, warp, n_warps, column_warps, row_warp, column_warp;
    int rank, n_ranks;    // of the cluster's blocks
    span group, columns;  // units, and chunks, of the block
    int n_units, n_steps; // of the group; chunks of the warp: 0 is possible

    __device__ __forceinline__ station(const gemv_args<E> &a) {
        lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
        warp = threadIdx.x / 32, n_warps = blockDim.x / 32, column_warps = 1 << a.log2_column_warps;
        row_warp = warp >> a.log2_column_warps, column_warp = warp & (column_warps - 1);
        rank = CLUSTERED ? cluster_rank() : 0, n_ranks = CLUSTERED ? cluster_size() : 1;
        group = share(CLUSTERED ? cluster_id() : blockIdx.x, a.group_units, a.longer_groups);
        columns = share(rank, a.rank_chunks, a.longer_ranks);
        n_units = group.end - group.begin;
        n_steps = (columns.end - columns.begin - column_warp + column_warps - 1) >> a.log2_column_warps;
    }

    /* The units of a row warp's pass. */
    __device__ __forceinline__ span units_of_pass(const gemv_args<E> &a, int row_warp, int pass) const {
        int of_warp = group.begin + row_warp * a.sub_units, begin = of_warp + pass * a.pass_units;
        return {begin, min(min(begin + a.pass_units, of_warp + a.sub_units), group.end)};
    }
};

/* The row of W of a unit, or of pairs the second one. */
template <gemv_end E> static __device__ int row_of(const gemv_args<E> &a, int unit, bool second) {
    return second ? unit + a.out_units : unit;
}

/* Where a unit's row lies in the tiles of a pass: of pairs the upper half of each tile holds the first rows, the lower
 * one the second. */
static __device__ int tile_row(int unit_in_pass, bool pairs, bool second) {
    return pairs ? unit_in_pass / 8 * 16 + unit_in_pass % 8 + (second ? 8 : 0) : unit_in_pass;
}

/* Shared memory: queues | x | scales and biases of the group, first rows and then second ones | sums of warps | sums of
 * the block. */
struct places {
    unsigned char *queues, *x;
    float *scales, *biases, *warp_sums, *block_sums;

    template <gemv_end E>
    __device__ __forceinline__ places(const gemv_args<E> &a, unsigned char *shared, int queue_bytes) {
        queues = shared;
        x = shared + queue_bytes;
        scales = reinterpret_cast<float *>(x + a.n_slots * a.n_tokens * a.x_pitch_there);
        biases = scales + a.scale_room;
        warp_sums = biases + a.bias_room;
        block_sums = warp_sums + a.warp_sums_room;
    }
};

// ---- the weights ----------------------------------------------------------------------------------------------------

/* A warp's queue: slots of a chunk of each of its rows; every lane puts in what it takes out itself. */
template <class W, int M_TILES, int DEPTH, gemv_end E, bool CLUSTERED> struct weight_queue {
    static constexpr int SLOT = M_TILES * 2 * 32 * PIECE, BYTES = DEPTH * SLOT;

    const gemv_args<E> &a;
    const station<E, CLUSTERED> &at;
    const unsigned char *slots;
    uint64_t policy;
    uint32_t row_bytes, step_bytes, first_byte;
    // The writing end: where this lane reads next, of each of its rows that is there.
    uint32_t from[M_TILES][2], put_byte, to, to_end;
    bool there[M_TILES][2]; // else zeros
    int put_pass, put_step = 0, take_slot = 0;

    __device__ __forceinline__ weight_queue(const gemv_args<E> &a, const station<E, CLUSTERED> &at,
                                            unsigned char *queues)
        : a(a), at(at), slots(queues + at.warp * BYTES) {
        policy = policy_read_once();
        row_bytes = (uint32_t)a.in * W::BYTES;
        step_bytes = at.column_warps * CHUNK_BYTES;
        first_byte = (at.columns.begin + at.column_warp) * CHUNK_BYTES + at.q * PIECE;
        to = shared_address(slots) + at.lane * PIECE;
        to_end = to + BYTES;
        put_pass = at.n_steps > 0 ? 0 : a.n_passes;
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++)
            put();
    }

    __device__ __forceinline__ void begin_pass() {
        span units = at.units_of_pass(a, at.row_warp, put_pass);
        put_byte = first_byte;
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int u = units.begin + at.r + (in_pairs(E) ? t * 8 : t * 16 + half * 8);
                there[t][half] = u < units.end;
                from[t][half] =
                    first_byte + (there[t][half] ? (uint32_t)row_of<E>(a, u, in_pairs(E) && half) * row_bytes : 0);
            }
    }

    __device__ __forceinline__ void put() {
        if (put_pass < a.n_passes) {
            if (put_step == 0)
                begin_pass();
#pragma unroll
            for (int t = 0; t < M_TILES; t++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    copy_later(to + (t * 2 + half) * 32 * PIECE, a.w + from[t][half],
                               !there[t][half] || put_byte >= row_bytes, policy);
                    from[t][half] += step_bytes;
                }
            put_byte += step_bytes;
            to = to + SLOT == to_end ? to_end - BYTES : to + SLOT;
            if (++put_step == at.n_steps) {
                put_step = 0;
                put_pass++;
            }
        }
        close_batch();
    }

    /* The oldest slot's; then put() may fill it again. */
    __device__ __forceinline__ void take(uint32_t (&w)[M_TILES][2][4]) {
        wait_batches<DEPTH - 1>();
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 v = *reinterpret_cast<const uint4 *>(slots + take_slot * SLOT + (t * 2 + half) * 32 * PIECE +
                                                           at.lane * PIECE);
                w[t][half][0] = v.x, w[t][half][1] = v.y, w[t][half][2] = v.z, w[t][half][3] = v.w;
            }
        take_slot = take_slot + 1 == DEPTH ? 0 : take_slot + 1;
    }
};

// ---- x --------------------------------------------------------------------------------------------------------------

/* The rows of x that the block multiplies: a short one brought by every thread, others in parts that are copied as
 * wholes and waited for one by one. Barriers: a slot's part is there; all warps have read it. */
template <class W, gemv_end E, bool CLUSTERED> struct x_rows {
    static constexpr int CHUNK = CHUNK_BYTES / W::BYTES,
                         X_BYTES = CHUNK * 2; // of a chunk: elements, and bytes of x that it meets

    const gemv_args<E> &a;
    const station<E, CLUSTERED> &at;
    unsigned char *xs;
    uint64_t *full, *empty; // [X_SLOTS]
    int begin, n_bytes, part_bytes;
    bool stays; // every part has a slot of its own

    __device__ __forceinline__ x_rows(const gemv_args<E> &a, const station<E, CLUSTERED> &at, unsigned char *xs,
                                      uint64_t *full, uint64_t *empty)
        : a(a), at(at), xs(xs), full(full), empty(empty) {
        begin = at.columns.begin * CHUNK * 2;
        n_bytes = max(min(at.columns.end * CHUNK, a.in) - at.columns.begin * CHUNK, 0) * 2;
        part_bytes = a.part_steps * at.column_warps * X_BYTES;
        stays = a.n_parts <= a.n_slots;
    }

    __device__ __forceinline__ unsigned char *slot_of(int part) const {
        return xs + part % X_SLOTS * a.n_tokens * a.x_pitch_there;
    }

    /* By warp 0; count: of all parts of all passes. */
    __device__ __forceinline__ void fetch_part(int count) const {
        int part = count % a.n_parts, bytes = min(n_bytes - part * part_bytes, part_bytes);
        uint32_t barrier = shared_address(&full[count % X_SLOTS]), there = shared_address(slot_of(count));
        if (at.lane == 0)
            barrier_expect(barrier, a.n_tokens * max(bytes, 0));
        __syncwarp(); // it knows what to expect
        if (at.lane < a.n_tokens && bytes > 0)
            bulk_copy(there + at.lane * a.x_pitch_there, a.x + at.lane * a.x_pitch + begin + part * part_bytes, bytes,
                      barrier);
    }

    /* Before the wait for the node before. What lies behind the last column of x is zero, as the queue has it for W.
     * (Where slots are filled again, it is x of before.) */
    __device__ __forceinline__ void open() const {
        int behind = (at.columns.end - at.columns.begin) * X_BYTES;
        int part = n_bytes < behind ? n_bytes / part_bytes
                                    : a.n_slots; // where this block's columns end: others may have a part more
        if (threadIdx.x < X_SLOTS) {
            barrier_init(shared_address(&full[threadIdx.x]), 1);
            barrier_init(shared_address(&empty[threadIdx.x]), at.n_warps * WARP_ARRIVALS);
            barrier_init_done();
        }
#pragma unroll 1
        for (int i = threadIdx.x; part < a.n_slots && i < a.n_tokens * X_BYTES / PIECE; i += blockDim.x) {
            int to = n_bytes - part * part_bytes + i % (X_BYTES / PIECE) * PIECE;
            if (to < behind - part * part_bytes)
                *reinterpret_cast<uint4 *>(slot_of(part) + i / (X_BYTES / PIECE) * a.x_pitch_there + to) =
                    make_uint4(0, 0, 0, 0);
        }
        if (!a.x_by_threads)
            __syncthreads(); // the barriers are ready
    }

    /* After it, a row that is normed first: x_by_threads. */
    template <int FOURS>
    __device__ __forceinline__ void take(const norm_row_args &n, row_normed<FOURS> &row, float *shares) const {
        row.bring(n, shares, blockIdx.x, gridDim.x);
        row.each(n, [&](int col, float4 y) {
            int to = col * 2 - begin;
            if (to >= 0 && to < n_bytes)
                *reinterpret_cast<uint2 *>(xs + to) = stored_of<ELEMENT_F16>(y);
        });
    }

    /* After it; there once the block's threads have met, or its part is waited for. */
    __device__ __forceinline__ void bring() const {
        if (!a.x_by_threads) {
#pragma unroll 1
            for (int part = 0; at.warp == 0 && part < min(a.n_parts, a.n_slots); part++)
                fetch_part(part);
            return;
        }
        uint4 v[X_BY_THREADS];
#pragma unroll
        for (int k = 0; k < X_BY_THREADS; k++) {
            int i = (threadIdx.x + k * blockDim.x) * PIECE;
            if (i < n_bytes)
                v[k] = *reinterpret_cast<const uint4 *>(a.x + begin + i);
        }
#pragma unroll
        for (int k = 0; k < X_BY_THREADS; k++) {
            int i = (threadIdx.x + k * blockDim.x) * PIECE;
            if (i < n_bytes)
                *reinterpret_cast<uint4 *>(xs + i) = v[k];
        }
    }

    __device__ __forceinline__ const unsigned char *part(int part, int n_taken, int pass) const {
        if (!a.x_by_threads && (!stays || pass == 0))
            barrier_wait(shared_address(&full[n_taken % X_SLOTS]), n_taken / X_SLOTS & 1);
        return slot_of(stays ? part : n_taken) + at.column_warp * X_BYTES + at.q * (X_BYTES / 4);
    }

    /* The warp has read the part. The one before it has long been read by all, or about: its place takes the part that
     * is X_SLOTS ahead. */
    __device__ __forceinline__ void leave_part(int n_taken) const {
        if (stays)
            return;
        barrier_arrive_warp(shared_address(&empty[n_taken % X_SLOTS]), at.lane);
        int next = n_taken - 1 + X_SLOTS;
        if (at.warp == 0 && n_taken > 0 && next < a.n_parts * a.n_passes) {
            barrier_wait(shared_address(&empty[(n_taken - 1) % X_SLOTS]), (n_taken - 1) / X_SLOTS & 1);
            fetch_part(next);
        }
    }
};

// ---- sums -----------------------------------------------------------------------------------------------------------

/* A warp's sums of a pass. Two of each, by turns, so that neither waits for the other. */
template <class W, int M_TILES> struct warp_sums {
    static constexpr int X_BYTES = CHUNK_BYTES / W::BYTES * 2;
    static constexpr bool BF16 = std::is_same_v<typename W::product, __nv_bfloat16>;
    float of[2][M_TILES][4] = {};

    /* A chunk of every row by the same columns of the lane's token, which lie at x. */
    __device__ __forceinline__ void add_chunk(const uint32_t (&w)[M_TILES][2][4], const unsigned char *x) {
#pragma unroll
        for (int s = 0; s < W::STEPS; s += 2) {
            uint32_t m[2][M_TILES][4];
#pragma unroll
            for (int t = 0; t < M_TILES; t++)
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        W::step(w[t][half], s + k, m[k][t][half], m[k][t][half + 2]);
            uint4 b = *reinterpret_cast<const uint4 *>(x + s / 2 * PIECE);
#pragma unroll
            for (int t = 0; t < M_TILES; t++) {
                multiply_add<BF16>(of[0][t], m[0][t], b.x, b.y);
                multiply_add<BF16>(of[1][t], m[1][t], b.z, b.w);
            }
        }
    }

    __device__ __forceinline__ void leave(int n_tokens, int r, int q, float *to, int pitch) {
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int token = q * 2 + i % 2, row = t * 16 + r + i / 2 * 8;
                if (token < n_tokens)
                    to[token * pitch + row] = of[0][t][i] + of[1][t][i];
                of[0][t][i] = of[1][t][i] = 0;
            }
    }
};

/* Sums that warps, and blocks of a cluster, left in shared memory become results. */
template <class W, int M_TILES, gemv_end E, bool CLUSTERED> struct results {
    static constexpr int ROWS = 16 * M_TILES, SUM_PITCH = ROWS + 4;

    /* A thread's i-th result of a pass; none: token -1. */
    struct item {
        int token, unit, in_pass;
    };

    const gemv_args<E> &a;
    const station<E, CLUSTERED> &at;
    const places &m;
    int block_pitch;

    __device__ __forceinline__ results(const gemv_args<E> &a, const station<E, CLUSTERED> &at, const places &m)
        : a(a), at(at), m(m), block_pitch(a.row_warps * ROWS + 4) {}

    __device__ __forceinline__ item item_of(int i, int row_warp, int pass) const {
        span units = at.units_of_pass(a, row_warp, pass);
        int token = a.n_tokens == 1 ? 0 : i / a.pass_units, in_pass = i - token * a.pass_units;
        return {token < a.n_tokens && units.begin + in_pass < units.end ? token : -1, units.begin + in_pass, in_pass};
    }

    __device__ __forceinline__ void finish(const item &it, float first, float second) const {
        int64_t to = it.token * a.y_stride + it.unit;
        if constexpr (E == END_PLAIN)
            store(a.y, to, a.y_element, first);
        if constexpr (E == END_GATED)
            store(a.y, to, a.y_element,
                  a.end.act == 0 ? silu(first) * second : activate_rarely(a.end.act, a.end.limit, first, second));
    }
    static __device__ __noinline__ float activate_rarely(int act, float limit, float gate, float up) {
        return activate(act, limit, gate, up);
    }

    /* From the sums that `sum_of(tile row)` gives. */
    template <class F> __device__ __forceinline__ void write(const item &it, F sum_of) const {
        int i = it.unit - at.group.begin;
        auto scaled = [&](float sum, int i) {
            return sum * (W::BYTES == 1 ? m.scales[i] : 1.0f) + (a.bias ? m.biases[i] : 0.0f);
        };
        float first = scaled(sum_of(tile_row(it.in_pass, in_pairs(E), false)), i), second = 0;
        if (in_pairs(E))
            second = scaled(sum_of(tile_row(it.in_pass, true, true)), i + at.n_units);
        finish(it, first, second);
    }

    /* What the column warps of these rows left, added in their order. */
    __device__ __forceinline__ float sum_of_warps(const float *sums, int token, int row) const {
        float v[MAX_WARPS], sum = 0;
        const float *from = sums + token * SUM_PITCH + row;
#pragma unroll
        for (int c = 0; c < MAX_WARPS; c++)
            v[c] = c < at.column_warps ? from[c * a.n_tokens * SUM_PITCH] : 0;
#pragma unroll
        for (int c = 0; c < MAX_WARPS; c++)
            sum += v[c];
        return sum;
    }
    /* The same of the blocks of the cluster. */
    __device__ __forceinline__ float sum_of_blocks(const float *sums, int token, int row) const {
        float v[MAX_CLUSTER], sum = 0;
        uint32_t from = shared_address(sums + token * block_pitch + row);
#pragma unroll
        for (int k = 0; k < MAX_CLUSTER; k++)
            v[k] = k < at.n_ranks ? load_at_rank(address_at_rank(from, k)) : 0;
#pragma unroll
        for (int k = 0; k < MAX_CLUSTER; k++)
            sum += v[k];
        return sum;
    }

    __device__ __forceinline__ void write_pass(const float *sums, int pass) const {
        int thread = at.column_warp * 32 + at.lane, n_threads = at.column_warps * 32;
#pragma unroll 1
        for (int i = thread; i < a.n_tokens * a.pass_units; i += n_threads) {
            item it = item_of(i, at.row_warp, pass);
            if (it.token >= 0)
                write(it, [&](int row) { return sum_of_warps(sums, it.token, row); });
        }
    }

    __device__ __forceinline__ void write_pass_of_cluster(int pass) const {
        const float *sums = m.block_sums + (pass & 1) * a.n_tokens * block_pitch;
        int a_token = a.row_warps * a.pass_units;
#pragma unroll 1
        for (int i = at.rank * blockDim.x + threadIdx.x; i < a.n_tokens * a_token; i += at.n_ranks * blockDim.x) {
            int token = i / a_token, w = i % a_token / a.pass_units, in_pass = i % a.pass_units;
            span units = at.units_of_pass(a, w, pass);
            if (units.begin + in_pass < units.end)
                write({token, units.begin + in_pass, in_pass},
                      [&](int row) { return sum_of_blocks(sums, token, w * ROWS + row); });
        }
    }

    /* A pass has ended: its sums are left where others add them, and nobody waits for anybody's loads. */
    __device__ __forceinline__ void end_pass(int pass, warp_sums<W, M_TILES> &sums) const {
        float *of_row_warp =
            m.warp_sums + ((pass & 1) * at.n_warps + at.row_warp * at.column_warps) * a.n_tokens * SUM_PITCH;
        float *of_block = m.block_sums + (pass & 1) * a.n_tokens * block_pitch + at.row_warp * ROWS;
        int thread = at.column_warp * 32 + at.lane, n_threads = at.column_warps * 32;
        if (CLUSTERED && pass > 0) {
            cluster_wait(); // every block's sums of the pass before are there, and those of the one before that have
                            // been read
            write_pass_of_cluster(pass - 1);
        }
        if (CLUSTERED && at.column_warps == 1)
            sums.leave(a.n_tokens, at.r, at.q, of_block, block_pitch);
        else {
            sums.leave(a.n_tokens, at.r, at.q, of_row_warp + at.column_warp * a.n_tokens * SUM_PITCH, SUM_PITCH);
            named_barrier(at.row_warp,
                          n_threads); // the sums of the column warps are there; the pass before's have been read
            if (!CLUSTERED)
                write_pass(of_row_warp, pass);
            else
                for (int i = thread; i < a.n_tokens * ROWS; i += n_threads)
                    of_block[i / ROWS * block_pitch + i % ROWS] = sum_of_warps(of_row_warp, i / ROWS, i % ROWS);
        }
        if (CLUSTERED)
            cluster_arrive();
    }

    __device__ __forceinline__ void end() const {
        if (CLUSTERED) {
            cluster_wait();
            write_pass_of_cluster(a.n_passes - 1);
            cluster_arrive();
            cluster_wait(); // the others have read our sums
        }
    }
};

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* What x is: a row of halves, or of sums that are normed here (norm_row_args). */
struct as_it_is {};

template <class W, int M_TILES, int DEPTH, gemv_end E, bool CLUSTERED, class NORM>
static __global__ void __launch_bounds__(MAX_WARPS * 32, 1)
    gemv(const __grid_constant__ gemv_args<E> a, const __grid_constant__ NORM norm) {
    constexpr bool NORMED = std::is_same_v<NORM, norm_row_args>;
    using queue_type = weight_queue<W, M_TILES, DEPTH, E, CLUSTERED>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) uint64_t x_full[X_SLOTS], x_empty[X_SLOTS];
    __shared__ float shares[NORMED ? MAX_WARPS : 1];
    const station<E, CLUSTERED> at(a);
    const places m(a, shared, at.n_warps * queue_type::BYTES);

    queue_type queue(a, at, m.queues);
    let_next_start();
    const x_rows<W, E, CLUSTERED> x(a, at, m.x, x_full, x_empty);
    x.open();
#pragma unroll 1
    for (int i = threadIdx.x; i < (in_pairs(E) ? 2 : 1) * at.n_units; i += blockDim.x) { // they are weights as well
        int row = row_of<E>(a, at.group.begin + (i < at.n_units ? i : i - at.n_units), i >= at.n_units);
        if (W::BYTES == 1)
            m.scales[i] = a.scale[row];
        if (a.bias)
            m.biases[i] = a.bias[row];
    }
    const results<W, M_TILES, E, CLUSTERED> out(a, at, m);
    if constexpr (NORMED) {
        row_normed<NORM_ROW_WIDEST / (4 * MAX_WARPS * 32)> row(norm);
        wait_for_previous();
        x.take(norm, row, shares);
    } else {
        wait_for_previous();
        x.bring();
    }
    __syncthreads(); // scales are there, and x if threads copied it

    warp_sums<W, M_TILES> sums;
    const int token_at = min(at.r, a.n_tokens - 1) * a.x_pitch_there; // what a column beyond them sums, nobody reads
    for (int pass = 0, n_taken = 0; pass < a.n_passes; pass++) {      // n_taken: parts of x
        for (int part = 0, step = 0; part < a.n_parts; part++, n_taken++) {
            const unsigned char *columns = x.part(part, n_taken, pass) + token_at;
            for (int end = min(step + a.part_steps, at.n_steps); step < end; step++) {
                uint32_t w[M_TILES][2][4];
                queue.take(w);
                sums.add_chunk(w, columns);
                columns += x.X_BYTES << a.log2_column_warps;
                queue.put();
            }
            x.leave_part(n_taken);
        }
        out.end_pass(pass, sums);
    }
    out.end();
}
