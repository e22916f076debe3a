/* moe_block_queue.cuh - moe_stream_queue.cuh's queue for weights in blocks, and which of the two a format has. */
#pragma once

#include "backend/cuda/moe/moe_stream_queue.cuh"

/* Of blocks: a step is one run of bytes, of which a lane copies every 32nd piece; the warp waits for all lanes'. */
template <class W, bool UP, int DEPTH> struct block_queue {
    static constexpr int SLOT = W::CHUNKS * W::CHUNK_BYTES, BYTES = DEPTH * SLOT, PIECES = SLOT / PIECE;
    static_assert(SLOT % PIECE == 0, "steps are copied in whole pieces");

    const stream_args &a;
    const dmoe_tile *tiles; // of tokens, from first_tile on
    const unsigned char *slots;
    const unsigned char *from; // the lane's first piece of what is put in next, of a tile that has `left` bytes more
    uint64_t policy;
    int next, end;             // the tile of rows behind that, and where those end
    int first_tile, of, of_at; // its tile of tokens, and where that one's rows begin
    int left = 0, slot = 0;

    __device__ __forceinline__ block_queue(const stream_args &a, const dmoe_tile *tiles, int first_tile, int first,
                                           int end, unsigned char *queues)
        : a(a), tiles(tiles), next(first), end(end), first_tile(first_tile) {
        slots = queues + threadIdx.x / 32 * BYTES;
        policy = policy_read_once();
        of = first_tile, of_at = of * a.n_row_tiles;
        begin_tile();
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++)
            fill(i);
    }

    __device__ __forceinline__ void begin_tile() {
        left = 0;
        if (next >= end)
            return;
        for (; next - of_at >= a.n_row_tiles; of++)
            of_at += a.n_row_tiles;
        left = (a.in + W::COLUMNS - 1) / W::COLUMNS * W::CHUNK_BYTES;
        from = a.w + ((int64_t)tiles[of - first_tile].expert * a.n_row_tiles + next - of_at) * left +
               threadIdx.x % 32 * PIECE;
        next += blockDim.x / 32;
    }

    /* Into a slot that all lanes have read. */
    __device__ __forceinline__ void fill(int slot) {
        uint32_t to = shared_address(slots) + slot * SLOT + threadIdx.x % 32 * PIECE;
        __syncwarp();
        if (left >= SLOT) {
#pragma unroll
            for (int i = 0; i < PIECES; i += 32)
                if (i + 32 <= PIECES || i + (int)threadIdx.x % 32 < PIECES)
                    copy_later(to + i * PIECE, from + i * PIECE, false, policy);
        } else if (left > 0) {
#pragma unroll
            for (int i = 0; i < PIECES; i += 32)
                if ((i + (int)threadIdx.x % 32) * PIECE < left)
                    copy_later(to + i * PIECE, from + i * PIECE, false, policy);
        }
        close_batch();
        from += SLOT, left -= SLOT;
        if (left <= 0)
            begin_tile();
    }

    /* n chunks of the oldest slot, which is filled again. */
    __device__ __forceinline__ void take(typename W::chunk (&w)[W::CHUNKS], int n) {
        const unsigned char *at = slots + slot * SLOT;
        wait_batches<DEPTH - 1>();
        __syncwarp(); // all lanes' pieces are there
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++)
            if (j < n)
                w[j].load(at + j * W::CHUNK_BYTES);
        fill(slot);
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }
};

template <class W, bool UP, int DEPTH>
using expert_queue = std::conditional_t<W::IN_BLOCKS, block_queue<W, UP, DEPTH>, row_queue<W, UP, DEPTH>>;
