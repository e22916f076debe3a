/* latent_prefill.cu - MLA_ATTENTION up to what is summed in the latent space, of sequences with many tokens in a step:
 * bound by products.
 *
 *     S [64 rows, 64 keys] = q [c | kr]^T,  P = 2^(S - m),  o [64, 512] += P c
 *
 * Four tokens and 16 heads are the 64 rows of wgmma; a block has such a tile of rows and walks over its keys, the last
 * tokens of a prompt first. Queries stay in shared memory, 72 KiB, beside two stages of 64 keys. Of two warpgroups each
 * makes the scores of 32 keys, and sums the half of the channels: P goes through shared memory to both. A warp has the
 * heads of one token, so what is hidden is the same for all its rows.
 *
 * In the absorbed form a key costs a head 2,176 FLOPs; expanded to the head's own keys and values 640, and 262,144 once
 * for each key and layer: of prompts beyond some 200 tokens the expanded form would multiply a third. It is not there.
 * FLOPs here: tokens * heads * keys seen * 2,176. */
#include "backend/cuda/attention/latent/latent_cache.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/wgmma_halves.cuh"

namespace {

enum {
    THREADS = 256,
    ROWS = LATENT_TOKENS * LATENT_HEADS,
    HALF = TILE / 2,            // keys of a warpgroup's scores
    CHANNELS = LATENT_RANK / 2, // of a warpgroup's sums
    QUERY_AT = 2 * PANELS * PANEL_TILE,
    WEIGHTS_AT = QUERY_AT + PANELS * ROWS * PANEL,
    LARGEST_AT = WEIGHTS_AT + ROWS * PANEL, // [2][ROWS], of a tile, then sums of P
    BARRIERS_AT = LARGEST_AT + 2 * ROWS * 4,
    SHARED = BARRIERS_AT + 2 * 8 + 1024,
};
static_assert(ROWS == 64 && SHARED <= 227 * 1024, "rows of a product, and a block has its place");
enum { BOTH = 1 }; // barrier of all threads

struct arguments {
    device_plan plan;
    const int32_t *table;
    int table_width, n_slots;
    float scale; // with log2 e
    dmat q;
    dcache cache;
    dlatent_parts parts;
};

struct memory {
    char *base;
    uint32_t at;

    __device__ explicit memory(char *shared) {
        uint32_t from = shared_address(shared);
        at = (from + 1023) & ~1023u;
        base = shared + (at - from);
    }
    __device__ uint32_t stage(int i) const { return at + i * PANELS * PANEL_TILE; }
    __device__ uint32_t query() const { return at + QUERY_AT; }
    __device__ uint32_t weights() const { return at + WEIGHTS_AT; }
    __device__ float *largest(int warpgroup) const {
        return reinterpret_cast<float *>(base + LARGEST_AT) + warpgroup * ROWS;
    }
    __device__ uint32_t full(int i) const { return at + BARRIERS_AT + i * 8; }
};

/* Where a thread stands in its warpgroup, and what its token sees. Rows are 16 token + group and 8 more. */
struct place {
    int warpgroup, token, group, quarter;
    int row, n_keys; // of the step; behind the sequence's last token that once more
    bool is;
};

__device__ place place_of(const arguments &p, const dlatent_tile &tile) {
    int lane = threadIdx.x % 32, token = threadIdx.x / 32 % 4, last = p.plan.query_start[tile.seq + 1] - 1;
    int row = min(tile.row + token, last);
    return {(int)threadIdx.x / 128, token, lane / 4, lane % 4, row, p.plan.position[row] + 1, tile.row + token <= last};
}

__device__ void load_queries(const arguments &p, const memory &m, const dlatent_tile &tile, int group) {
    int last = p.plan.query_start[tile.seq + 1] - 1;
    uint4 x[ROWS * PANELS * 8 / THREADS]; // all under way before one is stored
#pragma unroll
    for (int i = 0; i < ROWS * PANELS * 8 / THREADS; i++) {
        int r = (i * THREADS + threadIdx.x) / (PANELS * 8), piece = (i * THREADS + threadIdx.x) % (PANELS * 8);
        x[i] = __ldcg(reinterpret_cast<const uint4 *>(
            static_cast<const __half *>(p.q.at) + min(tile.row + r / LATENT_HEADS, last) * p.q.stride +
            (group * LATENT_HEADS + r % LATENT_HEADS) * LATENT_WIDTH + piece * 8));
    }
#pragma unroll
    for (int i = 0; i < ROWS * PANELS * 8 / THREADS; i++) {
        int r = (i * THREADS + threadIdx.x) / (PANELS * 8), piece = (i * THREADS + threadIdx.x) % (PANELS * 8);
        *reinterpret_cast<uint4 *>(m.base + QUERY_AT + piece / 8 * (ROWS * PANEL) + piece_at(r, piece % 8)) = x[i];
    }
    fence_bulk();
}

typedef float tile_scores[HALF / 2];
typedef float half_sums[CHANNELS / 2];

/* Of the warpgroup's 32 keys of a tile. */
__device__ void make_scores(const memory &m, int stage, int warpgroup, tile_scores &s) {
    uint32_t keys = m.stage(stage) + warpgroup * HALF * PANEL;
    products_begin();
#pragma unroll
    for (int k = 0; k < LATENT_WIDTH / HALVES_K; k++)
        halves_product<HALF, false>::multiply(s, operand_rows(m.query() + k / 4 * (ROWS * PANEL)) + k % 4 * 2,
                                              operand_rows(keys + k / 4 * PANEL_TILE) + k % 4 * 2, k > 0);
    products_commit();
    products_wait<0>();
    registers_settle(s);
}

__device__ float over_quarters(float x, bool sum) {
    for (int step = 1; step < 4; step *= 2) {
        float y = __shfl_xor_sync(0xffffffffu, x, step);
        x = sum ? x + y : fmaxf(x, y);
    }
    return x;
}

/* Zeroes the warpgroup's keys behind the last, which may be anything: 0 times it must be 0. */
__device__ void clear_keys(const memory &m, int stage, int warpgroup, int n) {
    for (int key = max(n, warpgroup * HALF); key < (warpgroup + 1) * HALF; key++)
        for (int i = threadIdx.x % 128; i < PANELS * 8; i += 128)
            *reinterpret_cast<uint4 *>(m.base + (m.stage(stage) - m.at) + i / 8 * PANEL_TILE + key * PANEL +
                                       i % 8 * 16) = {0, 0, 0, 0};
    fence_bulk();
}

struct softmax_rows {
    float top[2], total[2]; // total: of this lane's keys
};

/* P of the warpgroup's keys; by: what sums so far shrink by. left: keys that the token sees from this tile on. */
__device__ void weigh(const arguments &p, const memory &m, const place &at, int left, tile_scores &s, softmax_rows &r,
                      float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < HALF / 2; i++) {
        int key = at.warpgroup * HALF + i / 4 * 8 + 2 * at.quarter + i % 2;
        s[i] = key < left ? s[i] * p.scale : -INFINITY;
    }
    int row = LATENT_HEADS * at.token + at.group;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float top = -INFINITY;
#pragma unroll
        for (int i = 0; i < HALF / 2; i += 4)
            top = fmaxf(top, fmaxf(s[i + 2 * k], s[i + 2 * k + 1]));
        top = over_quarters(top, false);
        if (at.quarter == 0)
            m.largest(at.warpgroup)[row + 8 * k] = top;
    }
    threads_sync(BOTH, THREADS); // both halves' largest scores are there, and P of the tile before is read
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float top = fmaxf(r.top[k], fmaxf(m.largest(0)[row + 8 * k], m.largest(1)[row + 8 * k])), sum = 0;
        by[k] = r.top[k] == -INFINITY ? 0.0f : exp2_fast(r.top[k] - top);
        r.top[k] = top;
#pragma unroll
        for (int i = 0; i < HALF / 2; i += 4) {
            float x = exp2_fast(s[i + 2 * k] - top), y = exp2_fast(s[i + 2 * k + 1] - top);
            sum += x + y;
            store_shared(m.weights() + piece_at(row + 8 * k, at.warpgroup * 4 + i / 4) + 4 * at.quarter,
                         to_pair<false>(x, y));
        }
        r.total[k] = r.total[k] * by[k] + sum;
    }
}

__device__ void add_values(const memory &m, const place &at, int stage, const float (&by)[2], half_sums &o) {
    int lane = threadIdx.x % 32;
    uint32_t values = m.stage(stage) + at.warpgroup * (CHANNELS / 64) * PANEL_TILE, a[TILE / 16][4];
    if (__any_sync(0xffffffffu, by[0] != 1.0f || by[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < CHANNELS / 2; i++)
            o[i] *= by[i / 2 % 2];
#pragma unroll
    for (int j = 0; j < TILE / 16; j++)
        load_matrices(a[j], m.weights() + piece_at(LATENT_HEADS * at.token + lane % 16, 2 * j + lane / 16));
    registers_settle(o);
    products_begin();
#pragma unroll
    for (int j = 0; j < TILE / 16; j++)
        halves_product<CHANNELS, false>::add_turned(o, a[j], operand_turned(values + j * 16 * PANEL, PANEL_TILE));
    products_commit();
    products_wait<0>();
    registers_settle(o);
}

/* Divides by the sum of P, and leaves the rows to latent_out. */
__device__ void finish(const arguments &p, const memory &m, const place &at, int group, softmax_rows &r,
                       const half_sums &o) {
    int row = LATENT_HEADS * at.token + at.group;
    threads_sync(BOTH, THREADS); // the largest scores are read
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float total = over_quarters(r.total[k], true);
        if (at.quarter == 0)
            m.largest(at.warpgroup)[row + 8 * k] = total;
    }
    threads_sync(BOTH, THREADS); // both halves' sums of P are there
    if (!at.is)
        return;
    int64_t entry = __ldcg(&p.parts.task[group * p.parts.max_tokens + at.row].sums) & ~LATENT_CUT;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float by = __frcp_rn(m.largest(0)[row + 8 * k] + m.largest(1)[row + 8 * k]);
        uint4 *to = reinterpret_cast<uint4 *>(static_cast<__half *>(p.parts.sums) +
                                              (entry * LATENT_HEADS + at.group + 8 * k) * LATENT_RANK +
                                              at.warpgroup * CHANNELS) +
                    at.quarter;
#pragma unroll
        for (int j = 0; j < CHANNELS / 8; j += 4) {
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                pairs[i] = to_pair<false>(o[4 * (j + i) + 2 * k] * by, o[4 * (j + i) + 2 * k + 1] * by);
            __stcg(to + j, latent_turned(pairs));
        }
    }
}

/* A warp asks for a tile; its stage is free. */
__device__ void ask(const arguments &p, const memory &m, table_entries &entries, int seq, int tile, int end) {
    int stage = tile / TILE % 2, n = min((int)TILE, end - tile);
    const int32_t *table = p.table + (int64_t)seq * p.table_width;
    if (tile >= end)
        return;
    tile_expect(m.full(stage), n);
    entries.need(table, tile);
    copy_tile(p.cache, entries, tile, 0, n, m.stage(stage), m.full(stage));
}

__device__ void compute(const arguments &p, const memory &m, const dlatent_tile &tile, int group) {
    place at = place_of(p, tile);
    bool copies = threadIdx.x / 32 == THREADS / 32 - 1; // the warp that asks for tiles; its token is the tile's last
    int end = p.plan.position[min(tile.row + LATENT_TOKENS, p.plan.query_start[tile.seq + 1]) - 1] + 1;
    table_entries entries(p.table_width, p.n_slots);
    if (copies) {
        entries.read(p.table + (int64_t)tile.seq * p.table_width, 0);
        ask(p, m, entries, tile.seq, 0, end);
        ask(p, m, entries, tile.seq, TILE, end);
    }
    load_queries(p, m, tile, group);
    __syncthreads(); // the queries are there
    half_sums o;
    softmax_rows r = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int i = 0; i < CHANNELS / 2; i++)
        o[i] = 0;
    for (int from = 0; from < end; from += TILE) {
        int stage = from / TILE % 2;
        tile_scores s;
        float by[2];
        barrier_wait(m.full(stage), from / TILE / 2 & 1);
        make_scores(m, stage, at.warpgroup, s);
        if (end - from < TILE)
            clear_keys(m, stage, at.warpgroup, end - from);
        weigh(p, m, at, at.n_keys - from, s, r, by);
        fence_bulk();
        threads_sync(BOTH, THREADS); // P of the tile is there, and what was cleared
        add_values(m, at, stage, by, o);
        threads_sync(BOTH, THREADS); // both have read the tile
        if (copies)
            ask(p, m, entries, tile.seq, from + 2 * TILE, end);
    }
    finish(p, m, at, group, r, o);
}

__global__ void __launch_bounds__(THREADS, 1) latent_prefill(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory m(shared);
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x / p.parts.n_groups;
    if (i >= __ldcg(p.parts.n_tiles))
        return;
    int2 tile = __ldcg(reinterpret_cast<const int2 *>(p.parts.tile) + i);
    if (threadIdx.x == 0) {
        barrier_init(m.full(0), 1);
        barrier_init(m.full(1), 1);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    compute(p, m, {tile.x, tile.y}, blockIdx.x % p.parts.n_groups);
}

} // namespace

void launch_latent_prefill(const launch *l, const dmla *a, const dlatent_parts *parts, dmat q, dcache cache) {
    arguments p = {l->plan,
                   l->plan.block_table[cache.group],
                   l->plan.table_width[cache.group],
                   l->block_size,
                   a->scale * 1.4426950408889634f,
                   q,
                   cache,
                   *parts};
    int most = l->n_tokens / LATENT_TOKENS + l->n_seqs;
    allow_shared(latent_prefill, SHARED);
    launch_node(latent_prefill, (most < parts->max_tiles ? most : parts->max_tiles) * parts->n_groups, THREADS, SHARED,
                l->stream, p);
}
