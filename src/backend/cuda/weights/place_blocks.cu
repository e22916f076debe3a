/* place_blocks.cu - experts' matrices of four bits as they are loaded, into the blocks of blocks.h. A thread block a
 * row: once for its scale, once to put 16 columns at a time where their lane will look for them.
 *
 *     as stored       codes stay; a scale 2^(s - 127) becomes b = s - (the row's largest s) + 29
 *     from numbers    s is the least with which no column of the 32 is beyond 6 * 2^(s - 127); codes to nearest, ties
 *                     to even. Numbers that were of the format come back as they were. */
#include "backend/cuda/ptx/nibbles.cuh"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/blocks.h"
#include "backend/cuda/weights/placing.cuh"

enum { THREADS = 128, LARGEST_B = 29, NOT_A_NUMBER = 255, SIXTEEN = 16 };

struct block_args {
    dstored x;
    dweight to;
    dblocks rows;
    int64_t first_row, n_tiles, n_blocks; // tiles of an expert, blocks of a tile
};

/* e8m0 of 32 columns of a row. */
static __device__ int exponent_of(const dstored &x, int64_t row, int64_t group) {
    if (x.element == ELEMENT_MXFP4)
        return x.byte_scale[row * x.n_scales + group];
    float most = 0;
    for (int c = 0; c < MXFP4_COLUMNS; c++) {
        float v = stored(x, row, group * MXFP4_COLUMNS + c);
        if (!isfinite(v))
            return NOT_A_NUMBER;
        most = fmaxf(most, fabsf(v));
    }
    int e = 0;
    float fraction = frexpf(most / 6, &e); // most / 6 = fraction * 2^e, fraction of 0.5 up to 1
    e = fraction == 0.5f ? e - 1 : e;
    return most == 0 ? 0 : min(max(e + 127, 0), NOT_A_NUMBER - 1);
}

static __device__ float e2m1_value(uint32_t code) {
    const float sizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}
static __device__ uint32_t to_e2m1(float v) {
    float a = fabsf(v);
    uint32_t size = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return size | (v < 0 ? 8u : 0u);
}

static __device__ float power_of_two(int e) { return ldexpf(1.0f, e); }

/* The code of a column, and what it means. */
static __device__ uint32_t code_of(const dstored &x, int64_t row, int64_t col, int exponent, float &is) {
    if (x.element == ELEMENT_MXFP4) {
        uint8_t two = static_cast<const uint8_t *>(x.at)[row * (x.in / 2) + col / 2];
        uint32_t code = col % 2 ? two >> 4 : two & 15;
        is = exponent == NOT_A_NUMBER ? NAN : ldexpf(e2m1_value(code), exponent - 127);
        return code;
    }
    is = stored(x, row, col);
    return exponent == NOT_A_NUMBER ? 0 : to_e2m1(ldexpf(is, 127 - exponent));
}

/* Where the lanes' 16 columns of a row lie, and their scale. */
struct place_of_row {
    uint8_t *tile;
    int half, r;
    __device__ place_of_row(const block_args &a, int64_t row) {
        int64_t of_expert = a.rows.units * (a.rows.gated ? 2 : 1), expert = row / of_expert, i = row % of_expert,
                unit = i % a.rows.units;
        int in_tile = a.rows.gated ? (int)(unit % 8 + i / a.rows.units * 8) : (int)(unit % BLOCK_ROWS);
        tile = static_cast<uint8_t *>(const_cast<void *>(a.to.at)) +
               (expert * a.n_tiles + unit / (a.rows.gated ? 8 : BLOCK_ROWS)) * a.n_blocks * MXFP4_BLOCK;
        half = in_tile / 8, r = in_tile % 8;
    }
    __device__ uint8_t *block(int64_t sixteen) const { return tile + sixteen / 4 * MXFP4_BLOCK; }
    __device__ void put(int64_t sixteen, const uint32_t (&words)[2], int b) const {
        int q = (int)(sixteen % 4), lane = r * 4 + q;
        *reinterpret_cast<uint2 *>(block(sixteen) + lane * 16 + half * 8) = make_uint2(words[0], words[1]);
        if (q % 2 == 0)
            block(sixteen)[BLOCK_NIBBLES + (r * 2 + q / 2) * 2 + half] = (uint8_t)b;
    }
};

static __global__ void __launch_bounds__(THREADS) place_mxfp4(block_args a, dplaced *counts) {
    __shared__ float shared[32];
    int64_t row = blockIdx.x, n_groups = a.x.in / MXFP4_COLUMNS;
    float largest = 0;
    for (int64_t g = threadIdx.x; g < n_groups; g += THREADS) {
        int e = exponent_of(a.x, row, g);
        largest = fmaxf(largest, e == NOT_A_NUMBER ? 0.0f : (float)e);
    }
    int most = (int)block_max(largest, shared);
    const place_of_row at(a, a.first_row + row);
    seen s = {};
    for (int64_t i = threadIdx.x; i < a.n_blocks * 4; i += THREADS) {
        uint32_t words[2] = {0, 0};
        int b = 0;
        if (i * SIXTEEN < a.x.in) {
            int e = exponent_of(a.x, row, i / 2);
            b = e == NOT_A_NUMBER ? 0 : max(e - most + LARGEST_B, 0);
            for (int c = 0; c < SIXTEEN; c++) {
                float is;
                uint32_t code = code_of(a.x, row, i * SIXTEEN + c, e, is);
                words[c / 8] |= e2m1_in_word(code, c % 8);
                __half h = __float2half_rn(b ? ldexpf(e2m1_value(code), b - LARGEST_B) : 0.0f);
                look(&s, is, ldexpf(__half2float(h), most - 127), false);
            }
        }
        at.put(i, words, b);
    }
    if (threadIdx.x == 0)
        const_cast<float *>(a.to.scale)[a.first_row + row] = power_of_two(most - 127);
    publish(s, counts, shared);
}

void launch_place_blocks(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to,
                         struct dblocks rows, int64_t first_row, struct dplaced *counts) {
    block_args a = {*x, to, rows, first_row, blocks_tiles(rows), (to.in + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS};
    place_mxfp4<<<(unsigned)n_rows, THREADS, 0, stream>>>(a, counts);
}
