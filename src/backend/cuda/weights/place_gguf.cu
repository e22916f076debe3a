/* place_gguf.cu - rows of GGUF's blocks (core/formats/qformat_blocks.c), as they are loaded, into the tiles of quads.h.
 * A thread block a row: once for its largest d, once to put 32 columns at a time where their lanes will look for them.
 * Nothing is rounded but d and dmin of blocks that are 2^14 times smaller than the row's largest. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/weights/placing.cuh"
#include "backend/cuda/weights/placing_quads.cuh"
#include "backend/cuda/weights/quads.h"

namespace gguf {

enum { THREADS = 128, PAIR = 2 * QUADS_STEP };

__device__ float half_at(const uint8_t *p) {
    return __half2float(__ushort_as_half((unsigned short)(p[0] | p[1] << 8)));
}
__device__ uint16_t half_bits(float v) { return __half_as_ushort(__float2half_rn(v)); }
/* What becomes of d once of_row is taken off. */
__device__ float kept(float d, float of_row) { return __half2float(__ushort_as_half(half_bits(d / of_row))) * of_row; }

/* A block's multipliers. */
struct factors {
    float d, dmin;
    __device__ float size() const { return fmaxf(fabsf(d), fabsf(dmin)); }
    __device__ factors placed(float of_row) const { return {kept(d, of_row), kept(dmin, of_row)}; }
};

/* Of each type: columns and bytes of a block; its factors; a column's code, as tiles have it; its value; the scale of a
 * group of columns. */
template <quad_kind KIND> struct type;

template <> struct type<QUADS_INT4> {
    static constexpr int COLUMNS = 32, BYTES = 18;
    static __device__ factors factors_of(const uint8_t *b) { return {half_at(b), 0}; }
    static __device__ uint32_t code(const uint8_t *b, int c) { return c < 16 ? b[2 + c] & 15 : b[2 + c - 16] >> 4; }
    static __device__ float value(const uint8_t *b, int c, factors f) { return f.d * (float)((int)code(b, c) - 8); }
    static __device__ void put_scale(const place_of_row &at, const uint8_t *, int64_t col, factors f) {
        at.put_scale(col, half_bits(f.d), 8);
    }
};

template <> struct type<QUADS_Q8_0> {
    static constexpr int COLUMNS = 32, BYTES = 34;
    static __device__ factors factors_of(const uint8_t *b) { return {half_at(b), 0}; }
    static __device__ uint32_t code(const uint8_t *b, int c) { return (uint32_t)((int8_t)b[2 + c] + 128); }
    static __device__ float value(const uint8_t *b, int c, factors f) { return f.d * (float)(int8_t)b[2 + c]; }
    static __device__ void put_scale(const place_of_row &at, const uint8_t *, int64_t col, factors f) {
        int c = (int)(col % QUADS_COLUMNS) / 32;
        reinterpret_cast<uint16_t *>(at.block(col) + QUADS_BYTES)[(at.g * 4 + c) * 2 + at.half] = half_bits(f.d);
    }
};

template <> struct type<QUADS_Q4_K> {
    static constexpr int COLUMNS = 256, BYTES = 144;
    static __device__ factors factors_of(const uint8_t *b) { return {half_at(b), half_at(b + 2)}; }
    static __device__ uint32_t code(const uint8_t *b, int c) {
        int sub = c / 32;
        return b[16 + sub / 2 * 32 + c % 32] >> sub % 2 * 4 & 15;
    }
    /* As core/qformat.h's k_scale_and_min. */
    static __device__ int2 scale_and_min(const uint8_t *b, int sub) {
        const uint8_t *s = b + 4;
        if (sub < 4)
            return {s[sub] & 63, s[sub + 4] & 63};
        return {(s[sub + 4] & 15) | s[sub - 4] >> 6 << 4, s[sub + 4] >> 4 | s[sub] >> 6 << 4};
    }
    static __device__ float value(const uint8_t *b, int c, factors f) {
        int2 s = scale_and_min(b, c / 32);
        return __fsub_rn(__fmul_rn(f.d * (float)s.x, (float)code(b, c)), f.dmin * (float)s.y);
    }
    static __device__ void put_scale(const place_of_row &at, const uint8_t *b, int64_t col, factors f) {
        uint8_t *scales = at.block(col) + QUADS_NIBBLES,
                *group = scales + at.g * 16 + (int)(col % QUADS_COLUMNS) / 32 * 4;
        int2 s = scale_and_min(b, (int)(col % COLUMNS) / 32);
        group[at.half] = (uint8_t)s.x, group[2 + at.half] = (uint8_t)s.y;
        uint16_t *d = reinterpret_cast<uint16_t *>(scales + 128 + at.g * 8);
        if (col % QUADS_COLUMNS == 0)
            d[at.half] = half_bits(f.d), d[2 + at.half] = half_bits(f.dmin);
    }
};

template <> struct type<QUADS_Q6_K> {
    static constexpr int COLUMNS = 256, BYTES = 210;
    static __device__ factors factors_of(const uint8_t *b) { return {half_at(b + 208), 0}; }
    static __device__ uint32_t code(const uint8_t *b, int c) {
        int half = c / 128, quarter = c % 128 / 32, t = c % 32;
        return (uint32_t)((b[half * 64 + quarter % 2 * 32 + t] >> quarter / 2 * 4 & 15) |
                          (b[128 + half * 32 + t] >> quarter * 2 & 3) << 4);
    }
    static __device__ float value(const uint8_t *b, int c, factors f) {
        return f.d * (float)(int8_t)b[192 + c / 16] * (float)((int)code(b, c) - 32);
    }
    static __device__ void put_scale(const place_of_row &at, const uint8_t *b, int64_t col, factors f) {
        uint8_t *scales = at.block(col) + QUADS_SIXES;
        scales[at.g * 16 + (int)(col % QUADS_COLUMNS) / 16 * 2 + at.half] =
            b ? (uint8_t)((int8_t)b[192 + (int)(col % COLUMNS) / 16] + 128) : 0;
        if (col % QUADS_COLUMNS == 0)
            reinterpret_cast<uint16_t *>(scales + 128)[at.g * 2 + at.half] = half_bits(f.d);
    }
};

template <quad_kind KIND>
__global__ void __launch_bounds__(THREADS) place(dstored_gguf x, dweight to, int64_t first_row, dplaced *counts) {
    using T = type<KIND>;
    __shared__ float shared[32];
    const uint8_t *row = x.blocks + blockIdx.x * x.row_bytes;
    float largest = 0;
    for (int64_t i = threadIdx.x; i < x.in / T::COLUMNS; i += THREADS) {
        float size = T::factors_of(row + i * T::BYTES).size();
        largest = fmaxf(largest, isfinite(size) ? size : 0);
    }
    float of_row = ldexpf(1.0f, ilogbf(fmaxf(block_max(largest, shared), 0x1p-24f)));
    const place_of_row at(to, first_row + blockIdx.x);
    seen s = {};
    for (int64_t i = threadIdx.x; i < quads_blocks(to.in) * (QUADS_COLUMNS / PAIR); i += THREADS) {
        const uint8_t *block = i * PAIR < x.in ? row + i * PAIR / T::COLUMNS * T::BYTES : nullptr;
        factors f = block ? T::factors_of(block) : factors{0, 0};
        uint32_t codes[2][QUADS_STEP] = {};
        for (int c = 0; block && c < PAIR; c++) {
            int of_block = (int)((i * PAIR + c) % T::COLUMNS);
            codes[c / QUADS_STEP][c % QUADS_STEP] = T::code(block, of_block);
            look(&s, T::value(block, of_block, f), T::value(block, of_block, f.placed(of_row)), false);
        }
        for (int64_t col = i * PAIR; col < (i + 1) * PAIR; col += to.quads.group)
            if (block || KIND == QUADS_INT4 || KIND == QUADS_Q8_0) // the others' rows end with a block of 256
                T::put_scale(at, block, col, {f.d / of_row, f.dmin / of_row});
        for (int k = 0; k < 2; k++)
            if (KIND == QUADS_Q8_0)
                at.put_bytes(i * 2 + k, codes[k]);
            else
                at.put_codes(i * 2 + k, codes[k]);
        if (KIND == QUADS_Q6_K)
            at.put_highs(i * 2, codes);
    }
    if (threadIdx.x == 0)
        const_cast<float *>(to.scale)[first_row + blockIdx.x] = of_row;
    publish(s, counts, shared);
}

} // namespace gguf

void launch_place_gguf(cudaStream_t stream, const struct dstored_gguf *x, int64_t n_rows, struct dweight to,
                       int64_t first_row, struct dplaced *counts) {
    auto put = [&](auto kernel) { kernel<<<(unsigned)n_rows, gguf::THREADS, 0, stream>>>(*x, to, first_row, counts); };
    switch (to.quads.kind) {
    case QUADS_Q8_0: return put(gguf::place<QUADS_Q8_0>);
    case QUADS_Q4_K: return put(gguf::place<QUADS_Q4_K>);
    case QUADS_Q6_K: return put(gguf::place<QUADS_Q6_K>);
    default: return put(gguf::place<QUADS_INT4>);
    }
}
