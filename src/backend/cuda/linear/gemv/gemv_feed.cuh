/* gemv_feed.cuh - of gemv_kernel.cuh: the queue of weights of a warp, and the rows of x of a block. */
#pragma once

#include "backend/cuda/linear/gemv/gemv_parts.cuh"

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
