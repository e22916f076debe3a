/* attention_prefill.cu - ATTENTION for many query tokens a sequence: bound by the tensor cores.
 *
 *     S [rows, keys] = q K^T,  P = 2^(S - m),  O [rows, channels] += P V
 *
 * A row is a query head of a token; the rows of a KV head, token after token, are cut into tiles of ROWS (attention_parts.cu), and
 * a block of threads takes one tile and walks over the keys that it sees, read in place from the cache's blocks. Two warpgroups
 * compute, with wgmma: each has 64 rows, or, where 512 channels do not fit the registers of one, half of the channels of the
 * same 64. While one makes exponentials the other has the tensor cores. A third warpgroup brings keys and values, KEYS at a time
 * and in turn, into a ring of stages by bulk copies: kv.cuh's layout is what wgmma reads. Of 8 bits it brings the bytes and
 * widens them to float16, times their row's scale, so that the rest need not know.
 *
 * The largest score m is kept per row and raised only when a score passes it by 8; scores count in powers of two.
 * FLOPs: 4 * rows * keys seen * channels (6 with 512: both warpgroups make the scores). */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/wgmma.cuh"

namespace {

constexpr int GROUPS = 2, COMPUTE = GROUPS * 128, THREADS = COMPUTE + 128;

template <int DIM_, element E_> struct shape {
    static constexpr int DIM = DIM_;
    static constexpr element E = E_;
    static constexpr bool BYTES = E == ELEMENT_E4M3 || E == ELEMENT_I8, BF16 = E == ELEMENT_BF16;
    static constexpr int SHARERS = DIM == 512 ? 2 : 1; // warpgroups of the same rows
    static constexpr int ROWS = 64 * GROUPS / SHARERS, KEYS = DIM <= 128 ? 128 : 64, CHANNELS = DIM / SHARERS;
    static constexpr int N_PANELS = DIM / 64, PANEL = KEYS * 128, STAGE = N_PANELS * PANEL, N_STAGES = DIM == 512 ? 2 : 4;
    static constexpr int QUERY_PANEL = ROWS * 128, QUERY = N_PANELS * QUERY_PANEL;
    // Bytes as they lie in the cache:
    static constexpr int RAW_WIDTH = DIM % 128 == 0 ? 128 : 64, RAW_PANELS = DIM / RAW_WIDTH;
    static constexpr int RAW = BYTES ? KEYS * DIM + KEYS * 4 : 0, N_RAW = !BYTES ? 0 : DIM == 512 ? 1 : 2;
    static constexpr int SHARED = QUERY + N_STAGES * STAGE + N_RAW * RAW + 256 + 1024;
    static constexpr int COPY_REGISTERS = BYTES ? 56 : 40, COMPUTE_REGISTERS = BYTES ? 224 : 232;
};

struct arguments {
    device_plan plan;
    dattention a;
    dparts parts;
    dmat q, out;
    dweight sinks;
    dcache cache;
    int n_slots;
};

template <class S> struct memory {
    char *base;
    uint32_t query, ring, raw, full, empty, raw_full; // addresses in shared memory

    __device__ explicit memory(char *shared) {
        base = shared + (1024 - (shared_address(shared) & 1023)) % 1024;
        query = shared_address(base);
        ring = query + S::QUERY;
        raw = ring + S::N_STAGES * S::STAGE;
        full = raw + S::N_RAW * S::RAW;
        empty = full + 8 * 8;
        raw_full = empty + 8 * 8;
    }
    __device__ char *at(uint32_t address) const { return base + (address - query); }
};

/* A tile's keys (side 0) or values (1): number i of what a block reads, one after the other. */
struct tile_side {
    int tile, side;
};

__device__ int first_visible(const dattention &a, int position) {
    int first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    return a.chunk > 0 ? max(first, position / a.chunk * a.chunk) : first;
}

// ---- copying ----------------------------------------------------------------------------------------------------

/* What the copying warpgroup knows of the item. */
struct source {
    const int32_t *table;
    const char *keys, *scales; // of the KV head in block 0
    int64_t block_bytes, to_values, to_value_scales, panel_bytes;
    int low, end, run, n_runs, shift; // run: slots that lie together; shift: log2 of a block's slots
};

template <class S> __device__ source source_of(const arguments &p, const dpart &part, int kv) {
    constexpr int ELEMENT = S::BYTES ? 1 : 2;
    int64_t side = (int64_t)p.n_slots * S::DIM * ELEMENT; // of a head
    const char *cache = static_cast<const char *>(p.cache.at);
    source s;
    s.table = p.plan.block_table[p.cache.group] + (int64_t)part.seq * p.plan.table_width[p.cache.group];
    s.keys = cache + kv * side;
    s.scales = cache + 2 * p.a.n_kv_heads * side + (int64_t)kv * p.n_slots * 4;
    s.block_bytes = p.cache.block_elements * ELEMENT;
    s.to_values = p.a.n_kv_heads * side;
    s.to_value_scales = (int64_t)p.a.n_kv_heads * p.n_slots * 4;
    s.panel_bytes = (int64_t)p.n_slots * (S::BYTES ? S::RAW_WIDTH : 128);
    s.low = first_visible(p.a, part.position + part.first_column / (p.a.n_heads / p.a.n_kv_heads));
    s.end = part.end;
    s.run = min(64, p.n_slots); // tiles begin at multiples of 64
    s.n_runs = S::KEYS / s.run;
    s.shift = __ffs(p.n_slots) - 1;
    return s;
}

/* How many slots of run r of a tile are read. */
__device__ int run_length(const source &s, int tile, int r) {
    int key = tile + r * s.run;
    return key + s.run <= s.low ? 0 : max(0, min(s.run, s.end - key));
}

/* Rows of values that are not copied become zeros: 0 times what lies there must be 0. */
template <class S> __device__ void clear_rows(const memory<S> &m, const source &s, int tile, uint32_t stage) {
    for (int r = 0; r < s.n_runs; r++) {
        int first = r * s.run + run_length(s, tile, r), n = (r + 1) * s.run - first;
        for (int i = threadIdx.x % 32; i < n * S::N_PANELS * 8; i += 32) {
            int row = first + i / (S::N_PANELS * 8), piece = i % (S::N_PANELS * 8);
            *reinterpret_cast<uint4 *>(m.at(stage) + piece / 8 * S::PANEL + row * 128 + piece % 8 * 16) = {0, 0, 0, 0};
        }
    }
    fence_bulk();
    __syncwarp();
}

/* One warp: a lane copies what lies together, a run of slots of a panel, or their scales. */
template <class S> __device__ void copy_side(const source &s, tile_side h, uint32_t to, uint32_t full) {
    constexpr int WIDTH = S::BYTES ? S::RAW_WIDTH : 128, N_PANELS = S::BYTES ? S::RAW_PANELS : S::N_PANELS;
    int lane = threadIdx.x % 32, n_copies = s.n_runs * N_PANELS;
    bool scales = S::BYTES && lane >= n_copies;
    int r = scales ? lane - n_copies : lane / N_PANELS, panel = lane % N_PANELS, key = h.tile + r * s.run;
    int n = r < s.n_runs ? run_length(s, h.tile, r) : 0, n_bytes = scales ? (n * 4 + 15) / 16 * 16 : n * WIDTH;
    int total = __reduce_add_sync(0xffffffffu, n_bytes);
    if (lane == 0)
        barrier_expect(full, total);
    __syncwarp();
    if (n == 0)
        return;
    int64_t block = s.table[key >> s.shift] * s.block_bytes;
    int slot = key & ((1 << s.shift) - 1);
    if (scales)
        bulk_copy(to + S::KEYS * S::DIM + r * s.run * 4, s.scales + block + h.side * s.to_value_scales + slot * 4, n_bytes, full);
    else
        bulk_copy(to + panel * S::KEYS * WIDTH + r * s.run * WIDTH,
                  s.keys + block + h.side * s.to_values + panel * s.panel_bytes + (int64_t)slot * WIDTH, n_bytes, full);
}

template <class S> __device__ tile_side side_of(const dpart &part, int i) { return {part.first + i / 2 * S::KEYS, i % 2}; }

/* Of 16 bits: one warp brings them as they are. */
template <class S> __device__ void copy_all(const memory<S> &m, const dpart &part, const source &s, int n_sides) {
    for (int i = 0; i < n_sides; i++) {
        tile_side h = side_of<S>(part, i);
        int stage = i % S::N_STAGES;
        uint32_t to = m.ring + stage * S::STAGE;
        barrier_wait(m.empty + stage * 8, (i / S::N_STAGES & 1) ^ 1);
        if (h.side == 1 && (h.tile + S::KEYS > s.end || h.tile < s.low))
            clear_rows<S>(m, s, h.tile, to);
        copy_side<S>(s, h, to, m.full + stage * 8);
    }
}

/* A pair of elements times the scale, which comes as its fraction and its power of two: the power changes no fraction. */
__device__ uint32_t times(uint32_t pair, __half2 fraction, __half2 power) {
    __half2 x = __hmul2(__hmul2(*reinterpret_cast<__half2 *>(&pair), fraction), power);
    return *reinterpret_cast<uint32_t *>(&x);
}

template <class S> __device__ uint4 widen_eight(uint2 bytes, __half2 fraction, __half2 power) {
    uint32_t a, b, c, d;
    if (S::E == ELEMENT_E4M3) {
        e4m3_to_pairs(bytes.x, a, b);
        e4m3_to_pairs(bytes.y, c, d);
    } else {
        int8_to_pairs(bytes.x, a, b);
        int8_to_pairs(bytes.y, c, d);
    }
    return {times(a, fraction, power), times(b, fraction, power), times(c, fraction, power), times(d, fraction, power)};
}

/* Neighbouring threads take neighbouring rows, whose swizzled pieces lie in different banks on both sides. */
template <class S> __device__ void widen_side(const memory<S> &m, const source &s, tile_side h, uint32_t raw, uint32_t to) {
    constexpr int PIECES = S::DIM / 16, WIDTH_PIECES = S::RAW_WIDTH / 16;
    const float *scales = reinterpret_cast<const float *>(m.at(raw + S::KEYS * S::DIM));
    for (int i = threadIdx.x % 128; i < S::KEYS * PIECES; i += 128) {
        int row = i % S::KEYS, c = i / S::KEYS, key = h.tile + row, turn = S::RAW_WIDTH == 128 ? row & 7 : (row >> 1) & 3;
        char *at = m.at(to) + 2 * c / 8 * S::PANEL + row * 128;
        uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
        if (key >= s.low && key < s.end) {
            uint4 bytes = *reinterpret_cast<const uint4 *>(m.at(raw) + c / WIDTH_PIECES * S::KEYS * S::RAW_WIDTH + row * S::RAW_WIDTH +
                                                           ((c % WIDTH_PIECES) ^ turn) * 16);
            uint32_t scale = __float_as_uint(scales[row]);
            __half2 fraction = __float2half2_rn(__uint_as_float((scale & 0x7FFFFF) | 0x3F800000));
            __half2 power = __float2half2_rn(__uint_as_float(scale & 0xFF800000));
            low = widen_eight<S>({bytes.x, bytes.y}, fraction, power);
            high = widen_eight<S>({bytes.z, bytes.w}, fraction, power);
        }
        *reinterpret_cast<uint4 *>(at + ((2 * c % 8) ^ (row & 7)) * 16) = low;
        *reinterpret_cast<uint4 *>(at + ((2 * c % 8 + 1) ^ (row & 7)) * 16) = high;
    }
}

/* Of 8 bits: the first of four warps brings them, all four widen them. */
template <class S> __device__ void widen_all(const memory<S> &m, const dpart &part, const source &s, int n_sides) {
    constexpr int AHEAD = S::N_RAW > 0 ? S::N_RAW : 1;
    bool copies = threadIdx.x % 128 < 32;
    for (int i = 0; copies && i < min(AHEAD, n_sides); i++)
        copy_side<S>(s, side_of<S>(part, i), m.raw + i * S::RAW, m.raw_full + i * 8);
    for (int i = 0; i < n_sides; i++) {
        int from = i % AHEAD, stage = i % S::N_STAGES;
        barrier_wait(m.raw_full + from * 8, i / AHEAD & 1);
        barrier_wait(m.empty + stage * 8, (i / S::N_STAGES & 1) ^ 1);
        widen_side<S>(m, s, side_of<S>(part, i), m.raw + from * S::RAW, m.ring + stage * S::STAGE);
        fence_bulk();
        barrier_arrive(m.full + stage * 8);
        threads_sync(2, 128); // nobody reads these bytes any more
        if (copies && i + AHEAD < n_sides)
            copy_side<S>(s, side_of<S>(part, i + AHEAD), m.raw + from * S::RAW, m.raw_full + from * 8);
    }
}

// ---- computing --------------------------------------------------------------------------------------------------

template <element Q> struct eight_of { // eight queries as they come
    uint4 half;
    __device__ void load(const dmat &q, int64_t at) { half = *reinterpret_cast<const uint4 *>(static_cast<const char *>(q.at) + at * 2); }
    __device__ float2 pair(int i) const {
        uint32_t x = i == 0 ? half.x : i == 1 ? half.y : i == 2 ? half.z : half.w;
        return Q == ELEMENT_F16 ? __half22float2(*reinterpret_cast<__half2 *>(&x))
                                : __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&x));
    }
};
template <> struct eight_of<ELEMENT_F32> {
    float4 low, high;
    __device__ void load(const dmat &q, int64_t at) {
        const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(q.at) + at);
        low = from[0];
        high = from[1];
    }
    __device__ float2 pair(int i) const {
        return i == 0 ? float2{low.x, low.y} : i == 1 ? float2{low.z, low.w} : i == 2 ? float2{high.x, high.y} : float2{high.z, high.w};
    }
};

/* Both computing warpgroups bring the rows' queries, rounded to the keys' element; UNROLL loads a thread are under way at a time. */
template <class S, element Q> __device__ void load_rows(const arguments &p, const memory<S> &m, const dpart &part, int kv) {
    constexpr int UNROLL = 4, PIECES = S::DIM / 8;
    int per_kv = p.a.n_heads / p.a.n_kv_heads;
    for (int first = threadIdx.x; first < S::ROWS * PIECES; first += UNROLL * COMPUTE) {
        eight_of<Q> eight[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = first + u * COMPUTE, row = min(part.first_column + i / PIECES, part.columns - 1);
            eight[u].load(p.q, (part.row + row / per_kv) * p.q.stride + (int64_t)(kv * per_kv + row % per_kv) * S::DIM + 8 * (i % PIECES));
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = first + u * COMPUTE, r = i / PIECES, c = i % PIECES;
            uint32_t y[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 x = eight[u].pair(k);
                y[k] = to_pair<S::BF16>(x.x, x.y);
            }
            *reinterpret_cast<uint4 *>(m.at(m.query) + c / 8 * S::QUERY_PANEL + r * 128 + ((c % 8) ^ (r & 7)) * 16) = {y[0], y[1], y[2],
                                                                                                                       y[3]};
        }
    }
    static_assert(S::ROWS * PIECES % (UNROLL * COMPUTE) == 0, "no thread is left over");
}

template <class S> __device__ void load_queries(const arguments &p, const memory<S> &m, const dpart &part, int kv) {
    if (p.q.element == ELEMENT_F32)
        load_rows<S, ELEMENT_F32>(p, m, part, kv);
    else if (p.q.element == ELEMENT_F16)
        load_rows<S, ELEMENT_F16>(p, m, part, kv);
    else
        load_rows<S, ELEMENT_BF16>(p, m, part, kv);
    fence_bulk();
    threads_sync(1, COMPUTE); // all queries are there
}

/* Where a computing thread stands: its two rows of the sequence, and what its warpgroup's rows see. */
struct place {
    int sharer, first_row; // of the warpgroup: which share of the channels; in the tile
    int row[2], position[2];
    int first_position, last_position;
};

template <class S> __device__ place place_of(const arguments &p, const dpart &part) {
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, per_kv = p.a.n_heads / p.a.n_kv_heads;
    place at;
    at.sharer = group % S::SHARERS;
    at.first_row = group / S::SHARERS * 64;
    for (int k = 0; k < 2; k++) {
        at.row[k] = part.first_column + at.first_row + 16 * warp + g + 8 * k;
        at.position[k] = part.position + min(at.row[k], part.columns - 1) / per_kv;
    }
    int first = part.first_column + at.first_row;
    at.first_position = part.position + min(first, part.columns - 1) / per_kv;
    at.last_position = part.position + min(first + 63, part.columns - 1) / per_kv;
    return at;
}

template <class S> struct sums { float o[S::CHANNELS / 2], m[2], l[2]; };

/* s = q k^T of the warpgroup's rows, unscaled. */
template <class S> __device__ void scores(const memory<S> &m, const place &at, uint32_t stage, float (&s)[S::KEYS / 2]) {
    products_begin();
    registers_settle(s);
#pragma unroll
    for (int k = 0; k < S::DIM / 16; k++)
        group_product<S::KEYS, S::BF16>::of_shared(s, operand_rows(m.query + k / 4 * S::QUERY_PANEL + at.first_row * 128 + k % 4 * 32),
                                                   operand_rows(stage + k / 4 * S::PANEL + k % 4 * 32), k > 0);
    products_commit();
    products_wait<0>();
    registers_settle(s);
}

template <class S> __device__ void hide(const arguments &p, const dpart &part, const place &at, int tile, float (&s)[S::KEYS / 2]) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int first = first_visible(p.a, at.position[k]), last = min(at.position[k], part.end - 1);
#pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int key = tile + 8 * j + 2 * t + i;
                if (key < first || key > last)
                    s[4 * j + 2 * k + i] = -INFINITY;
            }
    }
}

/* s becomes P; o and l shrink where m is raised. */
template <class S> __device__ void soften(const arguments &p, float (&s)[S::KEYS / 2], sums<S> &o) {
    constexpr float SLACK = 8;
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            most[k] = fmaxf(most[k], fmaxf(s[4 * j + 2 * k], s[4 * j + 2 * k + 1]));
    if (__any_sync(0xffffffffu, most[0] > o.m[0] + SLACK || most[1] > o.m[1] + SLACK)) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float m = fmaxf(most[k], __shfl_xor_sync(0xffffffffu, most[k], 1));
            m = fmaxf(o.m[k], fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2)));
            by[k] = m == -INFINITY ? 1.0f : exp2_fast(o.m[k] - m);
            o.m[k] = m;
            o.l[k] *= by[k];
        }
#pragma unroll
        for (int j = 0; j < S::CHANNELS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o.o[4 * j + i] *= by[i / 2];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float m = o.m[k] == -INFINITY ? 0.0f : o.m[k];
#pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float e = exp2_fast(s[4 * j + 2 * k + i] - m);
                s[4 * j + 2 * k + i] = e;
                o.l[k] += e;
            }
    }
}

/* o += P V of the warpgroup's channels. */
template <class S> __device__ void add_values(const place &at, uint32_t stage, const uint32_t (&pairs)[S::KEYS / 16][4], sums<S> &o) {
    uint32_t values = stage + at.sharer * (S::CHANNELS / 64) * S::PANEL;
    products_begin();
    registers_settle(o.o);
#pragma unroll
    for (int k = 0; k < S::KEYS / 16; k++)
        group_product<S::CHANNELS, S::BF16>::of_registers(o.o, pairs[k], operand_turned(values + k * 2048, S::PANEL));
    products_commit();
    products_wait<0>();
    registers_settle(o.o);
}

template <class S> __device__ void release(uint32_t empty) {
    if (threadIdx.x % 128 == 0)
        barrier_arrive(empty);
}

template <class S>
__device__ void take_tile(const arguments &p, const memory<S> &m, const dpart &part, const place &at, int i, sums<S> &o) {
    constexpr float LOG2_E = 1.4426950408889634f;
    int tile = part.first + i * S::KEYS, keys = 2 * i % S::N_STAGES, values = (2 * i + 1) % S::N_STAGES;
    bool seen = tile <= at.last_position && tile + S::KEYS > first_visible(p.a, at.first_position);
    bool edge = tile + S::KEYS > min(at.first_position + 1, part.end) || tile < first_visible(p.a, at.last_position);
    uint32_t pairs[S::KEYS / 16][4];
    barrier_wait(m.full + keys * 8, 2 * i / S::N_STAGES & 1);
    if (seen) {
        float s[S::KEYS / 2];
        scores<S>(m, at, m.ring + keys * S::STAGE, s);
        release<S>(m.empty + keys * 8);
        float by = p.a.scale * LOG2_E;
        if (p.a.softcap > 0) {
#pragma unroll
            for (int j = 0; j < S::KEYS / 2; j++) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x)
                float e = exp2_fast(s[j] * (2 * by / p.a.softcap));
                s[j] = p.a.softcap * LOG2_E * (1.0f - __fdividef(2.0f, 1.0f + e));
            }
        } else {
#pragma unroll
            for (int j = 0; j < S::KEYS / 2; j++)
                s[j] *= by;
        }
        if (edge)
            hide<S>(p, part, at, tile, s);
        soften<S>(p, s, o);
#pragma unroll
        for (int k = 0; k < S::KEYS / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                pairs[k][j] = to_pair<S::BF16>(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
    } else {
        release<S>(m.empty + keys * 8);
    }
    barrier_wait(m.full + values * 8, (2 * i + 1) / S::N_STAGES & 1);
    if (seen)
        add_values<S>(at, m.ring + values * S::STAGE, pairs, o);
    release<S>(m.empty + values * 8);
}

/* Divides by the softmax's denominator and stores: a lane has two channels in a row. */
template <class S> __device__ void finish(const arguments &p, const dpart &part, int kv, const place &at, sums<S> &o) {
    int per_kv = p.a.n_heads / p.a.n_kv_heads, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float l = o.l[k] + __shfl_xor_sync(0xffffffffu, o.l[k], 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        int head = kv * per_kv + at.row[k] % per_kv;
        if (p.sinks.at)
            l += exp2_fast(load(p.sinks, min(head, p.a.n_heads - 1)) * 1.4426950408889634f - o.m[k]);
        if (at.row[k] >= part.columns)
            continue;
        float by = 1.0f / l;
        int64_t to = (part.row + at.row[k] / per_kv) * p.out.stride + (int64_t)head * S::DIM + at.sharer * S::CHANNELS + 2 * t;
#pragma unroll
        for (int j = 0; j < S::CHANNELS / 8; j++) {
            float x = o.o[4 * j + 2 * k] * by, y = o.o[4 * j + 2 * k + 1] * by;
            if (p.out.element == ELEMENT_F32)
                *reinterpret_cast<float2 *>(static_cast<float *>(p.out.at) + to + 8 * j) = {x, y};
            else
                *reinterpret_cast<uint32_t *>(static_cast<char *>(p.out.at) + (to + 8 * j) * 2) =
                    p.out.element == ELEMENT_F16 ? to_pair<false>(x, y) : to_pair<true>(x, y);
        }
    }
}

template <class S> __device__ void compute_all(const arguments &p, const memory<S> &m, const dpart &part, int kv, int n_tiles) {
    place at = place_of<S>(p, part);
    sums<S> o;
#pragma unroll
    for (int i = 0; i < S::CHANNELS / 2; i++)
        o.o[i] = 0;
    o.m[0] = o.m[1] = -INFINITY;
    o.l[0] = o.l[1] = 0;
    load_queries<S>(p, m, part, kv);
    for (int i = 0; i < n_tiles; i++)
        take_tile<S>(p, m, part, at, i, o);
    finish<S>(p, part, kv, at, o);
}

template <class S> __global__ void __launch_bounds__(THREADS, 1) attention_prefill(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory<S> m(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(m.full + i * 8, S::BYTES ? 128 : 1);
            barrier_init(m.empty + i * 8, GROUPS);
        }
        for (int i = 0; i < S::N_RAW; i++)
            barrier_init(m.raw_full + i * 8, 1);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    wait_for_previous();
    let_next_start();
    int item = blockIdx.x, n_kv = p.a.n_kv_heads;
    if (item >= *p.parts.n * n_kv)
        return;
    dpart part = p.parts.part[item / n_kv];
    int kv = item % n_kv, n_tiles = (part.end - part.first + S::KEYS - 1) / S::KEYS;
    if (threadIdx.x >= COMPUTE) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::COPY_REGISTERS));
        source s = source_of<S>(p, part, kv);
        if constexpr (S::BYTES)
            widen_all<S>(m, part, s, 2 * n_tiles);
        else if (threadIdx.x < COMPUTE + 32)
            copy_all<S>(m, part, s, 2 * n_tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::COMPUTE_REGISTERS));
        compute_all<S>(p, m, part, kv, n_tiles);
    }
}

template <class S> void start(const launch *l, const arguments &p) {
    static bool ready;
    if (!ready)
        cudaFuncSetAttribute(attention_prefill<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
    ready = true;
    int n_tiles = l->n_tokens * (p.a.n_heads / p.a.n_kv_heads) / S::ROWS + min(l->n_seqs, l->n_tokens / p.parts.least_tokens) + 1;
    launch_node(attention_prefill<S>, n_tiles * p.a.n_kv_heads, THREADS, S::SHARED, l->stream, p);
}

template <element E> void start_dim(const launch *l, const arguments &p) {
    switch (p.a.head_dim) {
    case 64: start<shape<64, E>>(l, p); break;
    case 128: start<shape<128, E>>(l, p); break;
    case 256: start<shape<256, E>>(l, p); break;
    case 512: start<shape<512, E>>(l, p); break;
    }
}

} // namespace

int attention_prefill_rows(const dattention *a) {
    return a->head_dim == 512 ? shape<512, ELEMENT_F16>::ROWS : shape<128, ELEMENT_F16>::ROWS;
}

void launch_attention_prefill(const launch *l, const dattention *a, const dparts *parts, dmat q, dweight sinks, dcache cache, dmat out) {
    arguments p = {l->plan, *a, *parts, q, out, sinks, cache, l->block_size};
    switch (cache.element) {
    case ELEMENT_F16: start_dim<ELEMENT_F16>(l, p); break;
    case ELEMENT_BF16: start_dim<ELEMENT_BF16>(l, p); break;
    case ELEMENT_E4M3: start_dim<ELEMENT_E4M3>(l, p); break;
    default: start_dim<ELEMENT_I8>(l, p);
    }
}
