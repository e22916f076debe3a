/* latent_cache.cuh - tiles of a latent cache on their way to shared memory, for latent_decode.cu and latent_prefill.cu.
 *
 * A tile has 64 keys, [panel][key][128 bytes], pieces of 16 bytes swizzled as in the cache (kv.cuh): an operand of
 * wgmma, and what ldmatrix reads without conflicts. */
#pragma once

#include "backend/cuda/attention/latent/latent.cuh"

namespace {

enum {
    TILE = 64,   // keys
    PANEL = 128, // bytes of a row of the cache that lie together
    PANELS = LATENT_WIDTH * 2 / PANEL,
    PANEL_TILE = TILE * PANEL,
};

/* Byte of a 16-byte piece of a row of a panel. */
__device__ uint32_t piece_at(int row, int piece) { return row * PANEL + ((piece ^ (row & 7)) << 4); }

/* 32 entries of a sequence's block table, one a lane. */
struct table_entries {
    int width, n_slots, entry, first;

    __device__ table_entries(int table_width, int slots) : width(table_width), n_slots(slots), entry(-1), first(0) {}
    __device__ int shift() const { return __ffs(n_slots) - 1; }
    __device__ void read(const int32_t *table, int key) {
        first = key >> shift();
        int i = first + threadIdx.x % 32;
        entry = i < width ? __ldcg(table + i) : -1;
    }
    /* Those of the tile from `key` on. */
    __device__ void need(const int32_t *table, int key) {
        if ((key >> shift()) + max(1, TILE / n_slots) > first + 32)
            read(table, key);
    }
    __device__ int block(int key) const { return __shfl_sync(0xffffffffu, entry, ((key >> shift()) - first) & 31); }
};

/* A warp: a tile of n keys will come. */
__device__ void tile_expect(uint32_t full, int n) {
    if (threadIdx.x % 32 == 0)
        barrier_expect(full, n * LATENT_WIDTH * 2);
    __syncwarp();
}

/* A warp: keys [from, to) of a tile. A lane brings the slots that a panel of a block has of it. */
__device__ void copy_tile(const dcache &cache, const table_entries &entries, int tile, int from, int to, uint32_t stage,
                          uint32_t full) {
    int run = min(entries.n_slots, (int)TILE), n_copies = TILE / run * PANELS;
    for (int first = 0; first < n_copies; first += 32) {
        int i = first + threadIdx.x % 32, from_run = i / PANELS, panel = i % PANELS;
        int id = entries.block(tile + from_run * run);
        int key = max(from, from_run * run), rows = min(to, (from_run + 1) * run) - key;
        if (i < n_copies && rows > 0)
            bulk_copy(stage + panel * PANEL_TILE + key * PANEL,
                      static_cast<const char *>(cache.at) + id * cache.block_elements * 2 +
                          ((int64_t)panel * entries.n_slots + (tile + key & entries.n_slots - 1)) * PANEL,
                      rows * PANEL, full);
    }
}

} // namespace
