/* latent_shape.cuh - of latent_decode.cu: sizes, what it is given, its shared memory, and the walk over its chunks. */
#pragma once

#include "backend/cuda/attention/latent/latent_cache.cuh"
#include "backend/cuda/ptx/card.cuh"

namespace {

enum {
    WARPS = 8,
    THREADS = WARPS * 32, // a ninth warp would leave each thread 168 registers
    COPIER = WARPS - 1,   // the warp that asks for tiles
    KEY_WARPS = 4,        // of scores
    STAGE = PANELS * PANEL_TILE,
    N_STAGES = 3,
    QUERY_ROW = LATENT_WIDTH * 2 + 16,  // bytes; 16 keep rows in different banks
    HALF_STEPS = LATENT_WIDTH / 2 / 16, // products of half the channels
    SUM_TILES = PANEL / 2 / 8,          // of eight channels of a warp's sums
};
static_assert(LATENT_RANK == WARPS * PANEL / 2, "a warp sums a panel");
static_assert(LATENT_LEAST_CHUNK % TILE == 0, "chunks are whole tiles");

enum {                                                     // bytes, behind the stages
    WEIGHTS_AT = N_STAGES * STAGE,                         // P of two tiles, [16][64] float16, pieces of a row swizzled
    HALVES_AT = WEIGHTS_AT + 2 * LATENT_HEADS * PANEL,     // scores of the second half of the channels
    LARGEST_AT = HALVES_AT + KEY_WARPS * 32 * 32,          // of a tile, by warp
    SHRINK_AT = LARGEST_AT + KEY_WARPS * LATENT_HEADS * 4, // what sums are multiplied by first, of two tiles
    ENDS_AT = SHRINK_AT + 2 * LATENT_HEADS * 4, // of a chunk: the largest score, then sums of P by warp; of two tiles
    ENDS = (1 + KEY_WARPS) * LATENT_HEADS * 4,
    BARRIERS_AT = ENDS_AT + 2 * ENDS,
    SHARED = BARRIERS_AT + N_STAGES * 8 + 1024,
};
static_assert(SHARED <= 227 * 1024, "a block has its place");

enum { SCORES_READY = 1, LARGEST_READY = KEY_WARPS + 1, WEIGHTS_READY }; // barriers; the first is one a key warp

struct arguments {
    const int32_t *table; // of blocks
    int table_width, n_slots;
    const int32_t *counts;
    float scale; // with log2 e
    dmat q;
    dcache cache;
    dlatent_parts parts;

    __device__ const int32_t *table_at(int seq) const { return table + (int64_t)seq * table_width; }
};

struct memory {
    char *base;
    uint32_t at;

    __device__ explicit memory(char *shared) {
        uint32_t from = shared_address(shared);
        at = (from + 1023) & ~1023u;
        base = shared + (at - from);
    }
    __device__ uint32_t stage(int i) const { return at + i * STAGE; }
    __device__ uint32_t full(int i) const { return at + BARRIERS_AT + i * 8; }
    __device__ uint32_t weights(int buffer) const { return at + WEIGHTS_AT + buffer * LATENT_HEADS * PANEL; }
    __device__ float4 *halves(int key_warp) const {
        return reinterpret_cast<float4 *>(base + HALVES_AT + key_warp * 1024);
    }
    __device__ float *largest() const { return reinterpret_cast<float *>(base + LARGEST_AT); }
    __device__ float *shrink(int buffer) const {
        return reinterpret_cast<float *>(base + SHRINK_AT) + buffer * LATENT_HEADS;
    }
    __device__ float *ends(int buffer) const { return reinterpret_cast<float *>(base + ENDS_AT + buffer * ENDS); }
};

struct ring_at {
    int stage, parity;
    int item; // how many came before
    __device__ void next() {
        item++;
        if (++stage == N_STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* The chunks of this block, task by task: [first, end) of the task's. */
struct chunk_walk {
    dlatent_task task;
    int row, group, first, end, chunk; // chunk: keys of one
    int left, n_tokens;

    __device__ explicit chunk_walk(const arguments &p) {
        const int4 *begin = reinterpret_cast<const int4 *>(p.parts.begin + blockIdx.x);
        int4 where = __ldcg(begin), what = __ldcg(begin + 1);
        n_tokens = __ldcg(p.counts);
        row = where.x, group = where.y, first = where.z, left = where.w;
        if (left > 0)
            take(what);
    }
    __device__ bool is() const { return left > 0; }
    __device__ bool is_cut() const { return task.sums & LATENT_CUT; }
    __device__ int sums() const { return task.sums & ~LATENT_CUT; }
    __device__ void next(const arguments &p) {
        left -= end - first;
        first = 0;
        if (++row == n_tokens) {
            row = 0;
            group++;
        }
        if (left > 0)
            take(__ldcg(reinterpret_cast<const int4 *>(p.parts.task + group * p.parts.max_tokens + row)));
    }

  private:
    __device__ void take(int4 t) {
        task = {t.x, t.y, t.z, t.w};
        chunk = latent_chunk(task.n_keys);
        end = min(first + left, latent_n_chunks(task.n_keys));
    }
};

// ---- copies -----------------------------------------------------------------------------------------------------

enum keys { ALL_KEYS, OLD_KEYS, NEW_KEYS }; // of a tile; new: of this step

/* Asks for the queries and the tiles of tasks, an item of the ring each, ahead of those who compute and into the next
 * task: a warp's. */
struct copier {
    chunk_walk walk;
    ring_at at;
    int tile, end;
    bool query_is_next;
    table_entries entries;

    __device__ explicit copier(const arguments &p)
        : walk(p), at{0, 0, 0}, tile(0), end(0), query_is_next(false), entries(p.table_width, p.n_slots) {
        begin(p);
    }

    /* As many as there is room for. n_done: items whose stage is free. */
    __device__ void fill(const arguments &p, const memory &m, int n_done) {
        while (walk.is() && at.item < n_done + N_STAGES)
            ask(p, m, ALL_KEYS);
    }

    /* The next item, if there is one; its stage is free. Queries and keys of this step may come later, by a copy of
     * this copier that asks for the same item. */
    __device__ void ask(const arguments &p, const memory &m, keys which) {
        if (!walk.is())
            return;
        if (query_is_next) {
            if (which != OLD_KEYS)
                copy_query(p, m);
            query_is_next = false;
            at.next();
            return;
        }
        int n = min((int)TILE, end - tile), old = max(0, min(n, walk.task.fresh - tile));
        if (which != NEW_KEYS)
            tile_expect(m.full(at.stage), n);
        entries.need(p.table_at(walk.task.seq), tile);
        copy_tile(p.cache, entries, tile, which == NEW_KEYS ? old : 0, which == OLD_KEYS ? old : n, m.stage(at.stage),
                  m.full(at.stage));
        at.next();
        tile += TILE;
        if (tile >= end) {
            walk.next(p);
            begin(p);
        }
    }

  private:
    __device__ void copy_query(const arguments &p, const memory &m) {
        int head = threadIdx.x % 32;
        const __half *from = static_cast<const __half *>(p.q.at) + walk.row * p.q.stride +
                             (int64_t)(walk.group * LATENT_HEADS + head) * LATENT_WIDTH;
        if (head == 0)
            barrier_expect(m.full(at.stage), LATENT_HEADS * LATENT_WIDTH * 2);
        __syncwarp();
        if (head < LATENT_HEADS)
            bulk_copy(m.stage(at.stage) + head * QUERY_ROW, from, LATENT_WIDTH * 2, m.full(at.stage));
    }
    __device__ void begin(const arguments &p) {
        if (!walk.is())
            return;
        query_is_next = true;
        tile = walk.first * walk.chunk;
        end = min(walk.end * walk.chunk, walk.task.n_keys);
        entries.read(p.table_at(walk.task.seq), tile);
    }
};

} // namespace
