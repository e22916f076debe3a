/* attention_decode.cu - ATTENTION for few query tokens a sequence: bound by reading the cache once.
 *
 *     S^T [keys, columns] = K q^T,  P = 2^(S - m),  O^T [channels, columns] = V^T P^T
 *
 * A column is a query head of a token; the columns of a KV head share its keys, so a key is read once for all of them
 * (attention_parts.cu makes the list of what to read for whom). Keys are the 16 rows of mma.m16n8k16 and columns its 8, so 7 query
 * heads to a KV head fill the tensor core. The result of the first product, turned by movmatrix, is the second's right operand.
 *
 * A block of threads takes every gridDim-th pair (part, KV head), so the grid is as large as the device whatever the step holds. One
 * of its warps brings tiles of 64 keys, then of their 64 values, into a ring of stages by bulk copies, and runs ahead into the next
 * pair; another brings what is to be known of the next pair, and its queries; KEY_WARPS * CHANNEL_WARPS compute. Warp k takes keys 16k .. 16k+15 of each tile
 * with a softmax of its own, so the computing warps never wait for each other before a pair's end; where a value row is too wide
 * for the registers of one warp, CHANNEL_WARPS of them make the same scores and take their share of the channels. At the end the
 * KEY_WARPS sums are joined in shared memory and, where the sequence was cut, those of its parts by the block that comes last,
 * in the order of the parts.
 *
 * The largest score m is kept per column and raised only when a score passes it by 8 (P <= 256 fits float16 as well as 1 does),
 * which spares the reductions of nearly all tiles. Scores count in powers of two. Values of 8 bits have a scale a row: it goes
 * into P relative to the largest scale yet, so that P keeps float16's precision.
 *
 * Reads of the cache: each byte once a KV head, group of columns and step. Target: 85 % of the read rate, or 5 us. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/mma.cuh"

namespace {

constexpr int TILE = 64, KEY_WARPS = 4, MAX_STAGES = 24;

template <int DIM_, int N_TILES_, element E_> struct shape {
    static constexpr int DIM = DIM_, N_TILES = N_TILES_, COLUMNS = 8 * N_TILES;
    static constexpr element E = E_;
    static constexpr bool BYTES = E == ELEMENT_E4M3 || E == ELEMENT_I8, BF16 = E == ELEMENT_BF16;
    static constexpr int ROW = DIM * (BYTES ? 1 : 2), PANEL = ROW % 128 == 0 ? 128 : 64, N_PANELS = ROW / PANEL;
    static constexpr int CHANNEL_WARPS = DIM * N_TILES > 2048 ? 4 : DIM *N_TILES > 256 ? (DIM == 512 && N_TILES == 2 ? 4 : 2) : 1;
    static constexpr bool QUERY_IN_SHARED = DIM == 512 && N_TILES == 2;
    static constexpr int COMPUTE = KEY_WARPS * CHANNEL_WARPS * 32, THREADS = COMPUTE + 64;
    static constexpr int CHANNELS = DIM / CHANNEL_WARPS, M_TILES = CHANNELS / 16, K_STEPS = DIM / 16;
    static constexpr int STAGE = ROW * TILE + (BYTES ? TILE * 4 : 0);
    static constexpr int ROUND = N_TILES == 1 ? 64 : 32; // channels of a warp that are joined at a time
    static constexpr int MERGE_ROW = ROUND + 4;          // floats; 4 keep the stores of a warp in different banks
    static constexpr int MERGE = KEY_WARPS * CHANNEL_WARPS * COLUMNS * MERGE_ROW * 4;
    static constexpr int QUERY = QUERY_IN_SHARED ? K_STEPS * N_TILES * 32 * 8 : 0;
    static constexpr int MAX_ROW = DIM * 4 + 32; // of a query as it comes; 32 keep the reads of a warp in different banks
    static constexpr int FIXED =
        MERGE + QUERY + COLUMNS * MAX_ROW + (2 * KEY_WARPS + 3) * COLUMNS * 4 + 2 * (COLUMNS * 24 + 80) + (2 * MAX_STAGES + 4) * 8;
    static constexpr int BLOCKS = CHANNEL_WARPS > 1 ? 1 : 2; // an SM: registers decide
    static constexpr int BUDGET = (BLOCKS == 1 ? 226 : 112) * 1024 - FIXED;
    static constexpr int N_STAGES = BUDGET / STAGE < MAX_STAGES ? BUDGET / STAGE : MAX_STAGES;
    static constexpr int SHARED = FIXED + N_STAGES * STAGE + 128;
    static_assert(N_STAGES >= 2 && DIM % 64 == 0 && CHANNELS % ROUND == 0, "at least keys and values of a tile fit");
};

struct arguments {
    device_plan plan;
    dattention a;
    dparts parts;
    dmat q, out;
    dweight sinks;
    dcache cache;
    int n_slots;
    bool prefetch;
};

/* What the computing warps are told of a pair. */
template <class S> struct task {
    dpart part;
    int n_columns, low;                      // low: the first key that any column sees
    int inside_from, inside_to;              // keys that every column sees
    int64_t out[S::COLUMNS];                 // where a column's result goes, in elements
    int first[S::COLUMNS], last[S::COLUMNS]; // keys that it sees
    float sink[S::COLUMNS];                  // in powers of two
};

template <class S> struct memory {
    uint32_t ring, full, empty, queries_full, queries_empty, task_empty; // addresses in shared memory
    char *stages, *queries;                                              // queries as they come, COLUMNS rows
    task<S> *tasks;                                                      // [2]
    float *merge, *largest, *sum, *factor;                               // [KEY_WARPS][COLUMNS] largest and sum; [3][COLUMNS] factor
    uint2 *query;

    __device__ explicit memory(char *base) {
        char *at = base + (128 - (shared_address(base) & 127)) % 128; // the ring is aligned as ldmatrix's banks are
        stages = at;
        ring = shared_address(at);
        at += S::N_STAGES * S::STAGE;
        merge = reinterpret_cast<float *>(at);
        at += S::MERGE;
        query = reinterpret_cast<uint2 *>(at);
        at += S::QUERY;
        queries = at;
        at += S::COLUMNS * S::MAX_ROW;
        tasks = reinterpret_cast<task<S> *>(at);
        at += 2 * sizeof(task<S>);
        full = shared_address(at);
        empty = full + MAX_STAGES * 8;
        queries_full = empty + MAX_STAGES * 8;
        queries_empty = queries_full + 8;
        task_empty = queries_empty + 8;
        largest = reinterpret_cast<float *>(at + (2 * MAX_STAGES + 4) * 8);
        sum = largest + KEY_WARPS * S::COLUMNS;
        factor = sum + KEY_WARPS * S::COLUMNS;
    }
};

struct ring_place {
    int stage, parity;
    __device__ void next(int n_stages) {
        if (++stage == n_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

__device__ int first_visible(const dattention &a, int position) {
    int first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    return a.chunk > 0 ? max(first, position / a.chunk * a.chunk) : first;
}

__device__ dpart load_part(const arguments &p, int i) {
    const int2 *from = reinterpret_cast<const int2 *>(p.parts.part + i);
    int2 w[5];
    for (int k = 0; k < 5; k++)
        w[k] = __ldcg(from + k);
    return {w[0].x, w[0].y, w[1].x, w[1].y, w[2].x, w[2].y, w[3].x, w[3].y, w[4].x, w[4].y};
}

// ---- copying ----------------------------------------------------------------------------------------------------

/* Entries of a sequence's block table, 32 at a time, one a lane. */
struct table_reader {
    const int32_t *table;
    int base, entry;

    __device__ void need(int last, int first, int width) {
        if (base >= 0 && last < base + 32)
            return;
        base = first;
        int i = base + threadIdx.x % 32;
        entry = i < width ? __ldcg(table + i) : -1;
    }
    __device__ int get(int i) const { return __shfl_sync(0xffffffffu, entry, (i - base) & 31); }
};

/* Brings one side of a tile: lane l copies the slots of one block that one panel has of them, or their scales. */
template <class S>
__device__ void copy_side(const arguments &p, const memory<S> &m, ring_place &at, bool values, int kv, int tile, int low, int end, int run,
                          int n_runs, int block) {
    int lane = threadIdx.x % 32, panel = lane % S::N_PANELS, r = lane / S::N_PANELS, n_copies = n_runs * S::N_PANELS;
    bool scales = S::BYTES && lane >= n_copies && lane < n_copies + n_runs;
    int from_run = scales ? lane - n_copies : r;
    int id = __shfl_sync(0xffffffffu, block, from_run & 31); // lane i knows the block of run i
    int key = tile + from_run * run, n = min(run, end - key), slot = key & (p.n_slots - 1);
    bool wanted = (lane < n_copies || scales) && n > 0 && id >= 0 && key + run > low;
    int n_bytes = !wanted ? 0 : scales ? (n * 4 + 15) / 16 * 16 : n * S::PANEL;
    int total = __reduce_add_sync(0xffffffffu, n_bytes);
    barrier_wait(m.empty + at.stage * 8, at.parity ^ 1);
    uint32_t full = m.full + at.stage * 8, to = m.ring + at.stage * S::STAGE;
    if (lane == 0)
        barrier_expect(full, total);
    __syncwarp();
    if (wanted) {
        int64_t per_side = (int64_t)p.a.n_kv_heads * p.n_slots;
        const char *from = static_cast<const char *>(p.cache.at) + id * p.cache.block_elements * (S::BYTES ? 1 : 2);
        if (scales)
            from += 2 * per_side * S::ROW + ((values ? per_side : 0) + (int64_t)kv * p.n_slots + slot) * 4;
        else
            from += (values ? per_side * S::ROW : 0) + ((int64_t)(kv * S::N_PANELS + panel) * p.n_slots + slot) * S::PANEL;
        to += scales ? S::ROW * TILE + from_run * run * 4 : panel * TILE * S::PANEL + from_run * run * S::PANEL;
        bulk_copy(to, from, n_bytes, full);
    }
    at.next(S::N_STAGES);
}

template <class S> __device__ void copy_all(const arguments &p, const memory<S> &m) {
    ring_place at = {0, 0};
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, run = min(TILE, p.n_slots), n_runs = TILE / run, shift = __ffs(p.n_slots) - 1;
    int width = p.plan.table_width[p.cache.group];
    bool waited = !p.prefetch;
    if (waited)
        wait_for_previous();
    int n = __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x; item < n; item += gridDim.x) {
        dpart part = load_part(p, item / n_kv);
        int kv = item % n_kv, low = first_visible(p.a, part.position + part.first_column / (p.a.n_heads / n_kv));
        table_reader table = {p.plan.block_table[p.cache.group] + (int64_t)part.seq * width, -1, 0};
        for (int tile = part.first; tile < part.end; tile += TILE) {
            // Keys of this step's own tokens are there when the node before has ended; all others are of earlier steps.
            if (!waited && min(tile + TILE, part.end) > part.position) {
                wait_for_previous();
                waited = true;
            }
            table.need((tile + TILE - 1) >> shift, tile >> shift, width);
            int block = table.get((tile + min(lane, n_runs - 1) * run) >> shift);
            copy_side<S>(p, m, at, false, kv, tile, low, part.end, run, n_runs, block);
            copy_side<S>(p, m, at, true, kv, tile, low, part.end, run, n_runs, block);
        }
    }
    if (!waited)
        wait_for_previous();
}

// ---- what comes next --------------------------------------------------------------------------------------------

template <class S> __device__ void describe(const arguments &p, const dpart &part, int kv, task<S> &t) {
    int lane = threadIdx.x % 32, per_kv = p.a.n_heads / p.a.n_kv_heads, n = min(S::COLUMNS, part.columns - part.first_column);
    int column = part.first_column + min(lane, n - 1), head = kv * per_kv + column % per_kv, position = part.position + column / per_kv;
    if (lane < S::COLUMNS) {
        t.out[lane] = (part.row + column / per_kv) * p.out.stride + (int64_t)head * S::DIM;
        t.first[lane] = first_visible(p.a, position);
        t.last[lane] = min(position, part.end - 1);
        t.sink[lane] = p.sinks.at ? load(p.sinks, head) * 1.4426950408889634f : -INFINITY;
    }
    int first = __shfl_sync(0xffffffffu, position, 0), last = __shfl_sync(0xffffffffu, position, n - 1);
    if (lane == 0) {
        t.part = part;
        t.n_columns = n;
        t.low = first_visible(p.a, first);
        t.inside_from = first_visible(p.a, last);
        t.inside_to = min(first + 1, part.end);
    }
    __syncwarp();
}

/* A warp: the next pair is described and its queries come while the pair before is computed. */
template <class S> __device__ void tell_all(const arguments &p, const memory<S> &m) {
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, per_kv = p.a.n_heads / n_kv, element = p.q.element == ELEMENT_F32 ? 4 : 2;
    wait_for_previous();
    int n = __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x, i = 0; item < n; item += gridDim.x, i++) {
        dpart part = load_part(p, item / n_kv);
        int kv = item % n_kv, column = part.first_column + lane, n_columns = min(S::COLUMNS, part.columns - part.first_column);
        barrier_wait(m.task_empty + i % 2 * 8, (i / 2 & 1) ^ 1);
        describe<S>(p, part, kv, m.tasks[i % 2]);
        barrier_wait(m.queries_empty, (i & 1) ^ 1);
        if (lane == 0)
            barrier_expect(m.queries_full, n_columns * S::DIM * element);
        __syncwarp();
        if (lane < n_columns) {
            int64_t from = (part.row + column / per_kv) * p.q.stride + (int64_t)(kv * per_kv + column % per_kv) * S::DIM;
            bulk_copy(shared_address(m.queries) + lane * (S::DIM * element + 32), static_cast<const char *>(p.q.at) + from * element,
                      S::DIM * element, m.queries_full);
        }
    }
}

// ---- computing --------------------------------------------------------------------------------------------------

/* Where a computing thread stands. */
struct place {
    int lane, group, quarter, key_warp, channel_warp; // group: lane / 4, quarter: lane % 4
};

template <class S> struct sums {
    float o[S::M_TILES][S::N_TILES][4];       // channels by columns
    float m[S::N_TILES][2], l[S::N_TILES][2]; // of columns 2 quarter and 2 quarter + 1; l of this lane's keys alone
    float reference;                          // of the values' scales

    __device__ void clear() {
        for (int i = 0; i < S::M_TILES; i++)
            for (int n = 0; n < S::N_TILES; n++)
                for (int k = 0; k < 4; k++)
                    o[i][n][k] = 0;
        for (int n = 0; n < S::N_TILES; n++)
            for (int k = 0; k < 2; k++) {
                m[n][k] = -INFINITY;
                l[n][k] = 0;
            }
        reference = 0;
    }
};

/* The right operand of step k: channels of the query of column 8n + group. Which channels a lane holds is free as long as the keys'
 * side agrees: of bytes, a lane's word has four in a row. Columns that nobody has are zero. */
template <class S> __device__ uint2 take_query_f32(const memory<S> &m, int n_columns, int k, int n, int lane) {
    int column = 8 * n + lane / 4, t = lane % 4;
    const float *from = reinterpret_cast<const float *>(m.queries + column * (S::DIM * 4 + 32)) + 16 * k;
    float2 x = *reinterpret_cast<const float2 *>(from + (S::BYTES ? 4 * t : 2 * t));
    float2 y = *reinterpret_cast<const float2 *>(from + (S::BYTES ? 4 * t + 2 : 2 * t + 8));
    return column < n_columns ? uint2{to_pair<S::BF16>(x.x, x.y), to_pair<S::BF16>(y.x, y.y)} : uint2{0, 0};
}

template <bool BF16> __device__ uint32_t convert_pair(uint32_t pair, element e) {
    if (e == (BF16 ? ELEMENT_BF16 : ELEMENT_F16))
        return pair;
    float2 x = e == ELEMENT_F16 ? __half22float2(*reinterpret_cast<__half2 *>(&pair))
                                : __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
    return to_pair<BF16>(x.x, x.y);
}

template <class S> __device__ uint2 take_query_16(const memory<S> &m, element e, int n_columns, int k, int n, int lane) {
    int column = 8 * n + lane / 4, t = lane % 4;
    const uint32_t *from = reinterpret_cast<const uint32_t *>(m.queries + column * (S::DIM * 2 + 32)) + 8 * k;
    uint32_t x = from[S::BYTES ? 2 * t : t], y = from[S::BYTES ? 2 * t + 1 : t + 4];
    return column < n_columns ? uint2{convert_pair<S::BF16>(x, e), convert_pair<S::BF16>(y, e)} : uint2{0, 0};
}

template <class S> struct queries {
    uint2 own[S::QUERY_IN_SHARED ? 1 : S::K_STEPS][S::N_TILES];

    __device__ void take(const arguments &p, const memory<S> &m, int n_columns, const place &at) {
        element e = p.q.element;
        if constexpr (S::QUERY_IN_SHARED) {
            for (int i = threadIdx.x; i < S::K_STEPS * S::N_TILES * 32; i += S::COMPUTE) {
                int k = i / 32 / S::N_TILES, n = i / 32 % S::N_TILES;
                m.query[i] =
                    e == ELEMENT_F32 ? take_query_f32<S>(m, n_columns, k, n, i % 32) : take_query_16<S>(m, e, n_columns, k, n, i % 32);
            }
            threads_sync(1, S::COMPUTE); // the queries are there
        } else if (e == ELEMENT_F32) {
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k++)
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    own[k][n] = take_query_f32<S>(m, n_columns, k, n, at.lane);
        } else {
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k++)
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    own[k][n] = take_query_16<S>(m, e, n_columns, k, n, at.lane);
        }
    }
    __device__ uint2 get(const memory<S> &m, int k, int n, int lane) const {
        return S::QUERY_IN_SHARED ? m.query[(k * S::N_TILES + n) * 32 + lane] : own[S::QUERY_IN_SHARED ? 0 : k][n];
    }
};

/* Address of a 16-byte piece of a row of a stage; panels are TILE rows of PANEL bytes, swizzled as kv.cuh says. */
template <class S> __device__ uint32_t piece(uint32_t stage, int row, int c) {
    constexpr int PIECES = S::PANEL / 16;
    int turn = S::PANEL == 128 ? row & 7 : (row >> 1) & 3;
    return stage + (c / PIECES) * TILE * S::PANEL + row * S::PANEL + ((c % PIECES) ^ turn) * 16;
}

/* Pairs of the channels of one K step, or of keys of one tile of channels, from words of four bytes. */
template <class S> __device__ void widen(uint32_t word, uint32_t &low, uint32_t &high) {
    if (S::E == ELEMENT_E4M3)
        e4m3_to_pairs(word, low, high);
    else
        int8_to_pairs(word, low, high);
}

/* s [16 keys, columns] of the warp's 16 keys of a tile. Two sums a tile of columns, so that products need not wait for each other. */
template <class S>
__device__ void scores(const memory<S> &m, uint32_t stage, const queries<S> &q, const place &at, float (&s)[S::N_TILES][4]) {
    float odd[S::N_TILES][4];
    for (int n = 0; n < S::N_TILES; n++)
        for (int k = 0; k < 4; k++)
            s[n][k] = odd[n][k] = 0;
    int row = 16 * at.key_warp + at.lane % 16, half = at.lane / 16; // the row whose address this lane gives, and the piece
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k += S::BYTES ? 2 : 1) {
        uint32_t a[4];
        load_matrices(a, piece<S>(stage, row, (S::BYTES ? k : 2 * k) + half));
        if constexpr (S::BYTES) {
            uint32_t b[4], c[4];
            widen<S>(a[0], b[0], b[2]);
            widen<S>(a[1], b[1], b[3]);
            widen<S>(a[2], c[0], c[2]);
            widen<S>(a[3], c[1], c[3]);
            for (int n = 0; n < S::N_TILES; n++) {
                uint2 x = q.get(m, k, n, at.lane), y = q.get(m, k + 1, n, at.lane);
                multiply_add<false>(s[n], b, x.x, x.y);
                multiply_add<false>(odd[n], c, y.x, y.y);
            }
        } else {
            for (int n = 0; n < S::N_TILES; n++) {
                uint2 x = q.get(m, k, n, at.lane);
                multiply_add<S::BF16>(k % 2 ? odd[n] : s[n], a, x.x, x.y);
            }
        }
    }
    for (int n = 0; n < S::N_TILES; n++)
        for (int k = 0; k < 4; k++)
            s[n][k] += odd[n][k];
}

/* Scores of the two keys of this lane, times scale and log2 e, through the softcap. */
template <class S> __device__ void scale_scores(const arguments &p, float scale0, float scale1, float (&s)[S::N_TILES][4]) {
    constexpr float LOG2_E = 1.4426950408889634f;
    if (p.a.softcap > 0) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x)
        float by = 2 * LOG2_E / p.a.softcap, cap = p.a.softcap * LOG2_E;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(s[n][k] * (k < 2 ? scale0 : scale1) * by)));
        return;
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] *= (k < 2 ? scale0 : scale1) * LOG2_E;
}

/* -inf where the column does not see the key. */
template <class S> __device__ void hide(const task<S> &t, int key, const place &at, float (&s)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int column = 8 * n + 2 * at.quarter + k % 2, j = key + 8 * (k / 2);
            if (j < t.first[column] || j > t.last[column])
                s[n][k] = -INFINITY;
        }
}

/* Over the eight lanes that hold the other keys of the same columns. */
__device__ float largest_of_keys(float x) {
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ float sum_of_keys(float x) {
    for (int step = 4; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <class S> __device__ void shrink(sums<S> &o, int n, float by0, float by1) {
#pragma unroll
    for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o.o[i][n][k] *= k % 2 ? by1 : by0;
}

/* Raises m where a score passed it by more than 8, and what was summed shrinks. */
template <class S> __device__ void raise(sums<S> &o, const float (&s)[S::N_TILES][4]) {
    constexpr float SLACK = 8;
    bool passed = false;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        passed = passed || fmaxf(s[n][0], s[n][2]) > o.m[n][0] + SLACK || fmaxf(s[n][1], s[n][3]) > o.m[n][1] + SLACK;
    if (!__any_sync(0xffffffffu, passed))
        return;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float m = fmaxf(o.m[n][k], largest_of_keys(fmaxf(s[n][k], s[n][k + 2])));
            by[k] = m == -INFINITY ? 1.0f : exp2_fast(o.m[n][k] - m);
            o.m[n][k] = m;
            o.l[n][k] *= by[k];
        }
        shrink<S>(o, n, by[0], by[1]);
    }
}

/* P of two keys and this lane's columns into s. */
template <class S> __device__ void exponentials(sums<S> &o, float (&s)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float m = o.m[n][k % 2];
            s[n][k] = exp2_fast(s[n][k] - (m == -INFINITY ? 0.0f : m));
            o.l[n][k % 2] += s[n][k];
        }
}

/* P times the scales of the values' rows, divided by the largest scale yet. */
template <class S> __device__ void scale_values(sums<S> &o, float scale0, float scale1, float (&s)[S::N_TILES][4]) {
    float most = fmaxf(scale0, scale1);
    if (__any_sync(0xffffffffu, most > o.reference)) {
        most = fmaxf(o.reference, largest_of_keys(most));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            shrink<S>(o, n, o.reference / most, o.reference / most);
        o.reference = most;
    }
    float by0 = scale0 / o.reference, by1 = scale1 / o.reference;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] *= k < 2 ? by0 : by1;
}

/* o += V^T P^T of the warp's 16 keys and its channels. */
template <class S> __device__ void add_values(uint32_t stage, const place &at, const float (&s)[S::N_TILES][4], sums<S> &o) {
    uint2 b[S::N_TILES];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        b[n] = {turn_matrix(to_pair<S::BF16>(s[n][0], s[n][1])), turn_matrix(to_pair<S::BF16>(s[n][2], s[n][3]))};
    int first = at.channel_warp * S::CHANNELS / (S::BYTES ? 16 : 8); // piece
    if constexpr (S::BYTES) {
        int row = 16 * at.key_warp + at.lane % 16, half = at.lane / 16; // keys 0-7 and 8-15 of a piece, then of the next
#pragma unroll
        for (int i = 0; i < S::M_TILES; i += 2) {
            uint32_t words[4];
            load_matrices_turned(words, piece<S>(stage, row, first + i + half));
#pragma unroll
            for (int j = 0; j < 2; j++) { // rows g and g + 8 of the left operand are channels 2g and 2g + 1 of the piece
                uint32_t a[4];
                widen<S>(__byte_perm(words[2 * j], 0, 0x3120), a[0], a[1]);
                widen<S>(__byte_perm(words[2 * j + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    multiply_add<false>(o.o[i + j][n], a, b[n].x, b[n].y);
            }
        }
    } else {
        int row = 16 * at.key_warp + at.lane % 8 + at.lane / 16 * 8, half = at.lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++) {
            uint32_t a[4];
            load_matrices_turned(a, piece<S>(stage, row, first + 2 * i + half));
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
                multiply_add<S::BF16>(o.o[i][n], a, b[n].x, b[n].y);
        }
    }
}

/* Zeroes rows of values that nobody sees, which may be anything: 0 times it must be 0. A warp clears what it reads itself. */
template <class S> __device__ void clear_rows(const memory<S> &m, int stage, int tile, int low, int end, const place &at) {
    constexpr int PIECES = S::CHANNELS * (S::BYTES ? 1 : 2) / 16;
    char *base = m.stages + stage * S::STAGE;
    for (int r = 0; r < 16; r++) {
        int row = 16 * at.key_warp + r, key = tile + row;
        if (key >= low && key < end)
            continue;
        for (int c = at.lane; c < PIECES; c += 32)
            *reinterpret_cast<uint4 *>(base + piece<S>(0, row, at.channel_warp * PIECES + c)) = {0, 0, 0, 0};
    }
    fence_bulk();
    __syncwarp();
}

template <class S>
__device__ void take_tile(const arguments &p, const memory<S> &m, const task<S> &t, int tile, const queries<S> &q, const place &at,
                          ring_place &r, sums<S> &o) {
    int key = tile + 16 * at.key_warp, end = t.part.end;
    bool inside = tile >= t.inside_from && tile + TILE <= t.inside_to, seen = key < end && key + 16 > t.low;
    float s[S::N_TILES][4], key_scale[2] = {p.a.scale, p.a.scale};
    barrier_wait(m.full + r.stage * 8, r.parity);
    if (seen) {
        if constexpr (S::BYTES) {
            const float *scale = reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::ROW * TILE) + 16 * at.key_warp;
            key_scale[0] *= scale[at.group];
            key_scale[1] *= scale[at.group + 8];
        }
        scores<S>(m, m.ring + r.stage * S::STAGE, q, at, s);
    }
    __syncwarp();
    if (at.lane == 0)
        barrier_arrive(m.empty + r.stage * 8);
    r.next(S::N_STAGES);
    if (seen) {
        scale_scores<S>(p, key_scale[0], key_scale[1], s);
        if (!inside)
            hide<S>(t, key + at.group, at, s);
        raise<S>(o, s);
        exponentials<S>(o, s);
    }
    barrier_wait(m.full + r.stage * 8, r.parity);
    if (seen) {
        if (key < t.low || key + 16 > end)
            clear_rows<S>(m, r.stage, tile, t.low, end, at);
        if constexpr (S::BYTES) {
            const float *scale = reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::ROW * TILE) + 16 * at.key_warp;
            int j = key + at.group;
            scale_values<S>(o, j >= t.low && j < end ? scale[at.group] : 0.0f, j + 8 >= t.low && j + 8 < end ? scale[at.group + 8] : 0.0f,
                            s);
        }
        add_values<S>(m.ring + r.stage * S::STAGE, at, s, o);
    }
    __syncwarp();
    if (at.lane == 0)
        barrier_arrive(m.empty + r.stage * 8);
    r.next(S::N_STAGES);
}

// ---- joining ----------------------------------------------------------------------------------------------------

/* What a part leaves: [COLUMNS][DIM] sums, then the largest score and the sum of P of each column. */
template <class S> __device__ float *partial_of(const arguments &p, int part, int kv) {
    return p.parts.partial + ((int64_t)part * p.a.n_kv_heads + kv) * S::COLUMNS * (S::DIM + 2);
}

__device__ float weight_of(float m, float most) { return m == -INFINITY ? 0.0f : exp2_fast(m - most); }

/* factor[column]: what the sums over all keys are multiplied by; of a sequence in one piece the softmax's whole denominator. */
template <class S> __device__ void join_columns(const arguments &p, const memory<S> &m, const task<S> &t, int kv) {
    int c = threadIdx.x;
    if (c >= S::COLUMNS)
        return;
    float most = -INFINITY, total = 0;
    for (int w = 0; w < KEY_WARPS; w++)
        most = fmaxf(most, m.largest[w * S::COLUMNS + c]);
    for (int w = 0; w < KEY_WARPS; w++)
        total += m.sum[w * S::COLUMNS + c] * weight_of(m.largest[w * S::COLUMNS + c], most);
    if (t.part.n_parts == 1) {
        float top = fmaxf(most, t.sink[c]);
        m.factor[c] = weight_of(most, top) / (total * weight_of(most, top) + weight_of(t.sink[c], top));
    } else {
        float *left = partial_of<S>(p, t.part.at + t.part.part_of, kv) + S::COLUMNS * S::DIM + 2 * c;
        __stcg(reinterpret_cast<float2 *>(left), float2{most, total});
    }
}

template <class S> __device__ void store_four(const arguments &p, int64_t at, float4 x, float by) {
    x = {x.x * by, x.y * by, x.z * by, x.w * by};
    if (p.out.element == ELEMENT_F32)
        *reinterpret_cast<float4 *>(static_cast<float *>(p.out.at) + at) = x;
    else if (p.out.element == ELEMENT_F16)
        *reinterpret_cast<uint2 *>(static_cast<char *>(p.out.at) + at * 2) = {to_pair<false>(x.x, x.y), to_pair<false>(x.z, x.w)};
    else
        *reinterpret_cast<uint2 *>(static_cast<char *>(p.out.at) + at * 2) = {to_pair<true>(x.x, x.y), to_pair<true>(x.z, x.w)};
}

__device__ float4 plus(float4 a, float4 b, float by) { return {a.x + b.x * by, a.y + b.y * by, a.z + b.z * by, a.w + b.w * by}; }

/* The sums of the KEY_WARPS, ROUND channels of each channel warp at a time. */
template <class S>
__device__ void join_warps(const arguments &p, const memory<S> &m, const task<S> &t, int kv, const place &at, sums<S> &o) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            o.l[n][k] = sum_of_keys(o.l[n][k]);
            if (at.group == 0 && at.channel_warp == 0) {
                m.largest[at.key_warp * S::COLUMNS + 8 * n + 2 * at.quarter + k] = o.m[n][k];
                m.sum[at.key_warp * S::COLUMNS + 8 * n + 2 * at.quarter + k] = o.l[n][k];
            }
        }
    threads_sync(1, S::COMPUTE); // largest and sum of every warp are there
    join_columns<S>(p, m, t, kv);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float most = -INFINITY;
            for (int w = 0; w < KEY_WARPS; w++)
                most = fmaxf(most, m.largest[w * S::COLUMNS + 8 * n + 2 * at.quarter + k]);
            by[k] = weight_of(o.m[n][k], most) * (S::BYTES ? o.reference : 1.0f);
        }
        shrink<S>(o, n, by[0], by[1]);
    }
    bool whole = t.part.n_parts == 1;
    float *mine = m.merge + (at.key_warp * S::CHANNEL_WARPS + at.channel_warp) * S::COLUMNS * S::MERGE_ROW;
    float *left = whole ? nullptr : partial_of<S>(p, t.part.at + t.part.part_of, kv);
#pragma unroll
    for (int first = 0; first < S::M_TILES; first += S::ROUND / 16) {
#pragma unroll
        for (int i = 0; i < S::ROUND / 16; i++)
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    int channel = 16 * i + (S::BYTES ? 2 * at.group + k / 2 : at.group + k / 2 * 8);
                    mine[(8 * n + 2 * at.quarter + k % 2) * S::MERGE_ROW + channel] = o.o[first + i][n][k];
                }
        threads_sync(1, S::COMPUTE); // the sums of every warp are there, and the factors
        constexpr int FOURS = S::ROUND / 4;
        for (int i = threadIdx.x; i < S::CHANNEL_WARPS * t.n_columns * FOURS; i += S::COMPUTE) {
            int d = i % FOURS * 4, w = i / FOURS % S::CHANNEL_WARPS, c = i / FOURS / S::CHANNEL_WARPS;
            int channel = w * S::CHANNELS + first * 16 + d;
            float4 x = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < KEY_WARPS; k++)
                x = plus(x, *reinterpret_cast<const float4 *>(m.merge + ((k * S::CHANNEL_WARPS + w) * S::COLUMNS + c) * S::MERGE_ROW + d),
                         1);
            if (whole)
                store_four<S>(p, t.out[c] + channel, x, m.factor[c]);
            else
                __stcg(reinterpret_cast<float4 *>(left + c * S::DIM + channel), x);
        }
        threads_sync(1, S::COMPUTE); // the sums may be written over
    }
}

/* The parts of a sequence, by the block that ends last, in their order. */
template <class S> __device__ void join_parts(const arguments &p, const memory<S> &m, const task<S> &t, int kv) {
    int n_parts = t.part.n_parts, n_columns = t.n_columns, stride = p.a.n_kv_heads * S::COLUMNS * (S::DIM + 2);
    const float *base = partial_of<S>(p, t.part.at, kv);
    float *weight = m.merge; // [n_parts][COLUMNS]: at most 64 * 16
    if (threadIdx.x == 0) {  // behind join_warps's last barrier: what this block left is seen by who sees its arrival
        int32_t *arrived = p.parts.arrived + (int64_t)t.part.at * p.a.n_kv_heads + kv;
        int n;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(n) : "l"(arrived) : "memory");
        if (n == n_parts - 1)
            *arrived = 0;
        m.factor[0] = n == n_parts - 1 ? 1.0f : 0.0f;
    }
    threads_sync(1, S::COMPUTE); // who is last is known
    bool last = m.factor[0] != 0.0f;
    if (!last)
        return;
    for (int i = threadIdx.x; i < n_parts * S::COLUMNS; i += S::COMPUTE) {
        float2 left =
            __ldcg(reinterpret_cast<const float2 *>(base + (int64_t)(i / S::COLUMNS) * stride + S::COLUMNS * S::DIM) + i % S::COLUMNS);
        weight[i] = left.x;
        weight[i + 64 * S::COLUMNS] = left.y;
    }
    threads_sync(1, S::COMPUTE); // the largest scores of all parts are there
    if ((int)threadIdx.x < n_columns) {
        int c = threadIdx.x;
        float most = t.sink[c], total;
        for (int i = 0; i < n_parts; i++)
            most = fmaxf(most, weight[i * S::COLUMNS + c]);
        total = weight_of(t.sink[c], most);
        for (int i = 0; i < n_parts; i++) {
            float w = weight_of(weight[i * S::COLUMNS + c], most);
            total += w * weight[(64 + i) * S::COLUMNS + c];
            weight[i * S::COLUMNS + c] = w;
        }
        m.factor[c] = 1.0f / total;
    }
    threads_sync(1, S::COMPUTE); // the parts' weights are there
    for (int i = threadIdx.x; i < n_columns * (S::DIM / 4); i += S::COMPUTE) {
        int c = i / (S::DIM / 4), channel = i % (S::DIM / 4) * 4;
        float4 x = {0, 0, 0, 0};
#pragma unroll 8
        for (int k = 0; k < n_parts; k++)
            x = plus(x, __ldcg(reinterpret_cast<const float4 *>(base + (int64_t)k * stride + c * S::DIM + channel)),
                     weight[k * S::COLUMNS + c]);
        store_four<S>(p, t.out[c] + channel, x, m.factor[c]);
    }
    threads_sync(1, S::COMPUTE); // weights and factors may be written over
}

template <class S> __device__ void compute_all(const arguments &p, const memory<S> &m) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_kv = p.a.n_kv_heads;
    place at = {lane, lane / 4, lane % 4, warp % KEY_WARPS, warp / KEY_WARPS};
    ring_place r = {0, 0};
    wait_for_previous();
    let_next_start();
    int n = __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x, i = 0; item < n; item += gridDim.x, i++) {
        const task<S> &t = m.tasks[i % 2];
        queries<S> q;
        sums<S> o;
        barrier_wait(m.queries_full, i & 1);
        q.take(p, m, t.n_columns, at);
        __syncwarp();
        if (lane == 0)
            barrier_arrive(m.queries_empty);
        o.clear();
        for (int tile = t.part.first; tile < t.part.end; tile += TILE)
            take_tile<S>(p, m, t, tile, q, at, r, o);
        join_warps<S>(p, m, t, item % n_kv, at, o);
        if (t.part.n_parts > 1)
            join_parts<S>(p, m, t, item % n_kv);
        __syncwarp();
        if (lane == 0)
            barrier_arrive(m.task_empty + i % 2 * 8);
    }
}

template <class S> __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_decode(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory<S> m(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, S::COMPUTE / 32);
        }
        barrier_init(m.queries_full, 1);
        barrier_init(m.queries_empty, S::COMPUTE / 32);
        for (int i = 0; i < 2; i++)
            barrier_init(m.task_empty + i * 8, S::COMPUTE / 32);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    if (threadIdx.x >= S::COMPUTE + 32)
        tell_all<S>(p, m);
    else if (threadIdx.x >= S::COMPUTE)
        copy_all<S>(p, m);
    else
        compute_all<S>(p, m);
}

template <class S> void start(const launch *l, const arguments &p) {
    static int n_blocks;
    if (!n_blocks) {
        int device = 0, n_sms = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
        cudaFuncSetAttribute(attention_decode<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
        n_blocks = n_sms * S::BLOCKS;
    }
    launch_node(attention_decode<S>, n_blocks, S::THREADS, S::SHARED, l->stream, p);
}

template <int DIM, element E> void start_columns(const launch *l, const arguments &p) {
    if (p.parts.columns == 8)
        start<shape<DIM, 1, E>>(l, p);
    else
        start<shape<DIM, 2, E>>(l, p);
}

template <element E> void start_dim(const launch *l, const arguments &p) {
    switch (p.a.head_dim) {
    case 64: start_columns<64, E>(l, p); break;   // Qwen2.5-0.5B, GPT-OSS
    case 128: start_columns<128, E>(l, p); break; // most
    case 256: start_columns<256, E>(l, p); break; // Gemma, Qwen3.5
    case 512: start_columns<512, E>(l, p); break; // Gemma 4, global layers
    }
}

} // namespace

bool attention_decode_takes(const dattention *a, element cache, int block_size) {
    bool dim = a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256 || a->head_dim == 512;
    return dim && a->v_head_dim == a->head_dim && !a->paired_values && block_size >= 16 && cache != ELEMENT_F32;
}

void launch_attention_decode(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q, dweight sinks, dcache cache,
                             dmat out) {
    arguments p = {l->plan, *a, *parts, q, out, sinks, cache, l->block_size, prefetch};
    switch (cache.element) {
    case ELEMENT_F16: start_dim<ELEMENT_F16>(l, p); break;
    case ELEMENT_BF16: start_dim<ELEMENT_BF16>(l, p); break;
    case ELEMENT_E4M3: start_dim<ELEMENT_E4M3>(l, p); break;
    default: start_dim<ELEMENT_I8>(l, p);
    }
}
