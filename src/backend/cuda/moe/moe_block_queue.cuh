/* moe_block_queue.cuh - moe_stream_queue.cuh's queue for weights in blocks, and which of the two a format has. */
#pragma once

#include "backend/cuda/moe/moe_stream_queue.cuh"

/* Of blocks: a lane asks for a step, which is one run of bytes, and a barrier a slot tells that it is there. TOGETHER
 * warps take as many tiles of rows, a unit, at the same time; shares are of units then. */
template <class W, bool UP, int DEPTH, int TOGETHER = 1> struct block_queue {
    static constexpr int SLOT = W::CHUNKS * W::CHUNK_BYTES, BARRIERS = 128, BYTES = DEPTH * SLOT + BARRIERS;
    static_assert(DEPTH * 8 <= BARRIERS && SLOT % PIECE == 0, "barriers lie behind the slots");

    const stream_args &a;
    const dmoe_tile *tiles; // of tokens, from first_tile on
    const unsigned char *slots, *from;
    int next, end;             // the unit that is put in, and where those end
    int first_tile, of, of_at; // its tile of tokens, and where that one's units begin
    int n_units, n_steps, tile_bytes, put_byte = 0, put_slot = 0, take_slot = 0, parity = 0;

    __device__ __forceinline__ block_queue(const stream_args &a, const dmoe_tile *tiles, int first_tile, int first,
                                           int end, unsigned char *queues)
        : a(a), tiles(tiles), next(first), end(end), first_tile(first_tile) {
        slots = queues + threadIdx.x / 32 * BYTES;
        n_units = (a.n_row_tiles + TOGETHER - 1) / TOGETHER;
        of = first_tile, of_at = of * n_units;
        int n_chunks = (a.in + W::COLUMNS - 1) / W::COLUMNS;
        n_steps = (n_chunks + W::CHUNKS - 1) / W::CHUNKS, tile_bytes = n_chunks * W::CHUNK_BYTES;
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < DEPTH; i++)
                barrier_init(barrier(i), 1);
            barrier_init_done();
        }
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++)
            put();
    }

    __device__ __forceinline__ uint32_t barrier(int slot) const {
        return shared_address(slots) + DEPTH * SLOT + slot * 8;
    }

    __device__ __forceinline__ void put() {
        __syncwarp(); // all lanes have read the slot
        if (next >= end)
            return;
        if (put_byte == 0) {
            for (; next - of_at >= n_units; of++)
                of_at += n_units;
            int row_tile = (next - of_at) * TOGETHER + threadIdx.x / 32 % TOGETHER;
            row_tile = TOGETHER > 1 ? min(row_tile, a.n_row_tiles - 1) : row_tile; // who has none reads another's
            from = a.w + ((int64_t)tiles[of - first_tile].expert * a.n_row_tiles + row_tile) * tile_bytes;
        }
        int n_bytes = min(SLOT, tile_bytes - put_byte);
        if (threadIdx.x % 32 == 0) {
            barrier_expect(barrier(put_slot), n_bytes);
            bulk_copy(shared_address(slots) + put_slot * SLOT, from + put_byte, n_bytes, barrier(put_slot));
        }
        put_slot = put_slot + 1 == DEPTH ? 0 : put_slot + 1;
        put_byte += SLOT;
        if (put_byte >= tile_bytes)
            put_byte = 0, next += blockDim.x / 32 / TOGETHER;
    }

    /* The oldest slot, which stays until put(). */
    __device__ __forceinline__ const unsigned char *take() {
        const unsigned char *at = slots + take_slot * SLOT;
        barrier_wait(barrier(take_slot), parity);
        take_slot = take_slot + 1 == DEPTH ? 0 : take_slot + 1;
        parity ^= take_slot == 0;
        return at;
    }
    /* n: how many chunks the step has. */
    __device__ __forceinline__ void take(typename W::chunk (&w)[W::CHUNKS], int n) {
        const unsigned char *at = take();
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++)
            if (j < n)
                w[j].load(at + j * W::CHUNK_BYTES);
    }
};

template <class W, bool UP, int DEPTH>
using expert_queue = std::conditional_t<W::IN_BLOCKS, block_queue<W, UP, DEPTH>, row_queue<W, UP, DEPTH>>;
