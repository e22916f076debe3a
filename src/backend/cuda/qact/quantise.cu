/* quantise.cu - rows to e4m3 with a scale a row, and what products of such rows are worth.
 *
 *     scale[t] = max_i |x[t, i]| / E4M3_FULL;   y8[t, i] = e4m3(x[t, i] / scale[t]), to nearest, ties to even
 *
 * A block a row; a thread holds up to HELD pieces of 8 columns in registers, so that a row is read once, 16 bytes at a
 * time. Rows wider than WIDEST, or that do not lie on 16 bytes, are read twice. Bytes: a row of x in, a byte a column
 * and 4 out. A row of zeros has the smallest scale, not zero; a row that holds what is not finite gets codes that are
 * not numbers.
 *
 * Where a row may already be there by a scale known beforehand (static_scale.c), its largest size is looked at, and the
 * row made anew only if that scale does not fit it (static_rows.cuh).
 *
 * Where the largest sizes are known (dmat.absmax) no thread waits for another: a row is spread over as many blocks as
 * there is room for. On an H200, us of a node behind its like with and without (bench/cuda/nodes.cu), 18,944 wide: 32
 * rows 1.2 and 2.2, 128 1.7 and 2.5, 512 3.9 and 8.0 (7.6 TB/s, from L2). In a step what counts more is that blocks of
 * the product behind (gemm_fp8_split_k.cu) find room beside these, so that their weights are under way meanwhile: two
 * pieces a thread take half of the threads. */
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/qact/static_rows.cuh"
#include "backend/cuda/value.h"

enum { PIECE = 8, HELD = 4, MOST_THREADS = 1024, WIDEST = MOST_THREADS * HELD * PIECE };
/* Up to KNOWN_SINGLE pieces a thread makes one, else two; in larger blocks, which are spread more evenly over the
 * multiprocessors, as long as all have a place at once. */
enum {
    KNOWN_THREADS = 640,
    KNOWN_SINGLE = 200000,
    KNOWN_EACH = 3 * KNOWN_THREADS * 2
}; // EACH: pieces of a multiprocessor at once

static const float TINIEST = 1e-30f; // E4M3_FULL / TINIEST is still a float

struct piece {
    float v[PIECE];
};

static __device__ piece load_piece(const dmat &x, int64_t row, int col) {
    piece p;
    const char *at = static_cast<const char *>(x.at) + (row * x.stride + col) * (x.element == ELEMENT_F32 ? 4 : 2);
    if (x.element == ELEMENT_F32) {
        float4 a = *reinterpret_cast<const float4 *>(at), b = *reinterpret_cast<const float4 *>(at + 16);
        p = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        return p;
    }
    uint4 bits = *reinterpret_cast<const uint4 *>(at);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair;
        if (x.element == ELEMENT_F16)
            pair = __half22float2(*reinterpret_cast<const __half2 *>(&words[i]));
        else
            pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&words[i]));
        p.v[2 * i] = pair.x;
        p.v[2 * i + 1] = pair.y;
    }
    return p;
}

static __device__ piece load_piece_anyhow(const dmat &x, int64_t row, int col) {
    piece p;
    for (int i = 0; i < PIECE; i++)
        p.v[i] = load(x, row, col + i);
    return p;
}

static __device__ float largest(const piece &p, float most) {
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        most = fmaxf(most, fabsf(p.v[i]));
    return most;
}

static __device__ void store_piece(const dmat &y8, int64_t row, int col, const piece &p, float factor) {
    uint32_t words[2];
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const float *v = p.v + 4 * w;
        uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v[0] * factor, v[1] * factor), __NV_SATFINITE, __NV_E4M3);
        uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v[2] * factor, v[3] * factor), __NV_SATFINITE, __NV_E4M3);
        words[w] = low | high << 16;
    }
    *reinterpret_cast<uint2 *>(static_cast<char *>(y8.at) + row * y8.stride + col) = make_uint2(words[0], words[1]);
}

/* Of the row that the block holds: the factor to e4m3, known to all threads. */
static __device__ float requant_scale(const dmat &y8, int64_t row, float most, float *shared) {
    most = fmaxf(block_max(most, shared), TINIEST);
    if (threadIdx.x == 0)
        y8.scale[row] = most / E4M3_FULL;
    return E4M3_FULL / most;
}

static __global__ void __launch_bounds__(MOST_THREADS) quantise(dmat x, dmat y8) {
    __shared__ float shared[32];
    let_next_start();
    wait_for_previous();
    int64_t row = blockIdx.x;
    piece held[HELD];
    float most = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int col = (threadIdx.x + k * blockDim.x) * PIECE;
        if (col < y8.width) {
            held[k] = load_piece(x, row, col);
            most = largest(held[k], most);
        }
    }
    float factor = requant_scale(y8, row, most, shared);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int col = (threadIdx.x + k * blockDim.x) * PIECE;
        if (col < y8.width)
            store_piece(y8, row, col, held[k], factor);
    }
}

static __global__ void quantise_anyhow(dmat x, dmat y8) {
    __shared__ float shared[32];
    let_next_start();
    wait_for_previous();
    int64_t row = blockIdx.x;
    float most = 0;
    for (int col = threadIdx.x * PIECE; col < y8.width; col += blockDim.x * PIECE)
        most = largest(load_piece_anyhow(x, row, col), most);
    float factor = requant_scale(y8, row, most, shared);
    for (int col = threadIdx.x * PIECE; col < y8.width; col += blockDim.x * PIECE)
        store_piece(y8, row, col, load_piece_anyhow(x, row, col), factor);
}

/* Thread i of a row's n_threads makes the pieces i, i + n_threads, ... */
template <element E, int EACH> static __global__ void __launch_bounds__(KNOWN_THREADS) quantise_known(dmat x, dmat y8) {
    let_next_start();
    wait_for_previous();
    int64_t row = blockIdx.y;
    int thread = blockIdx.x * blockDim.x + threadIdx.x, n_threads = gridDim.x * blockDim.x;
    eight_of<E> held[EACH];
    float most = __uint_as_float(x.absmax[row]);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int col = (thread + k * n_threads) * PIECE;
        if (col < y8.width)
            held[k] = load_eight<E>(x, row, col);
    }
    float inverse = e4m3_inverse(most);
    if (thread == 0)
        y8.scale[row] = e4m3_scale(most);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int col = (thread + k * n_threads) * PIECE;
        if (col < y8.width)
            store_e4m3(y8, row, col, floats_of<E>(held[k].low) * inverse, floats_of<E>(held[k].high) * inverse);
    }
}

template <element E> static void launch_known(const struct launch *l, int n_rows, struct dmat x, struct dmat y8) {
    int pieces = y8.width / PIECE;
    int64_t all = (int64_t)n_rows * pieces;
    int each = all > KNOWN_SINGLE ? 2 : 1,
        most = each == 2 && all <= (int64_t)n_multiprocessors() * KNOWN_EACH ? KNOWN_THREADS : KNOWN_THREADS / 2;
    int threads = (pieces + each - 1) / each, blocks = (threads + most - 1) / most;
    dim3 grid(blocks, n_rows), block(((threads + blocks - 1) / blocks + 31) / 32 * 32);
    launch_node(each == 1 ? quantise_known<E, 1> : quantise_known<E, 2>, grid, block, 0, l->stream, x, y8);
}

static void launch_known(const struct launch *l, int n_rows, struct dmat x, struct dmat y8) {
    switch (x.element) {
    case ELEMENT_F32: launch_known<ELEMENT_F32>(l, n_rows, x, y8); break;
    case ELEMENT_F16: launch_known<ELEMENT_F16>(l, n_rows, x, y8); break;
    default: launch_known<ELEMENT_BF16>(l, n_rows, x, y8);
    }
}

void launch_quantise(const struct launch *l, int n_rows, struct dmat x, struct dmat y8) {
    int64_t size = x.element == ELEMENT_F32 ? 4 : 2;
    bool aligned = (reinterpret_cast<uintptr_t>(x.at) | (uintptr_t)(x.stride * size)) % 16 == 0;
    int pieces = y8.width / PIECE, per_thread = (pieces + MOST_THREADS - 1) / MOST_THREADS;
    int threads = ((pieces + per_thread - 1) / per_thread + 31) / 32 * 32;
    if (aligned && x.absmax)
        launch_known(l, n_rows, x, y8);
    else if (aligned && y8.width <= WIDEST)
        launch_node(quantise, n_rows, threads, 0, l->stream, x, y8);
    else
        launch_node(quantise_anyhow, n_rows, MOST_THREADS, 0, l->stream, x, y8);
}

// ---- rows that are there by a scale known beforehand --------------------------------------------------------------

/* Small blocks, so that those of the product behind find registers beside them; more of them beyond FEW_LEFT rows,
 * which may be many pieces. */
enum { LEFT_THREADS = 256, LEFT_HELD = 4, FEW_LEFT = 128 };

/* The threads for which that holds, in order: all blocks have the same list. Returns how many; all threads call it. */
static __device__ int list_in_order(bool holds, int *listed, int *of_warps) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, before = 0, all = 0;
    uint32_t held = __ballot_sync(0xffffffffu, holds);
    if (lane == 0)
        of_warps[warp] = __popc(held);
    __syncthreads(); // every warp's number is there
    for (int i = 0; i < LEFT_THREADS / 32; i++) {
        before += i < warp ? of_warps[i] : 0;
        all += of_warps[i];
    }
    if (holds)
        listed[before + __popc(held & (1u << lane) - 1)] = threadIdx.x;
    __syncthreads(); // the list is whole
    return all;
}

/* Each block looks at all rows, a thread at one: in most steps that is all. */
template <element E>
static __global__ void __launch_bounds__(LEFT_THREADS) requantise(dmat x, dmat y8, int n_rows, dcounter others) {
    __shared__ int listed[LEFT_THREADS], of_warps[LEFT_THREADS / 32];
    let_next_start();
    wait_for_previous();
    for (int first_row = 0; first_row < n_rows; first_row += LEFT_THREADS) {
        int row = first_row + threadIdx.x;
        float most = row < n_rows ? __uint_as_float(x.absmax[row]) : 0;
        bool there = static_scale_fits(most, y8.static_scale);
        if (row < n_rows && row % gridDim.x == blockIdx.x)
            y8.scale[row] = there ? y8.static_scale : static_scale_else(most);
        if (!__syncthreads_or(!there))
            continue;
        if (others.at && blockIdx.x == 0)
            add_to_counter(others, __syncthreads_count(!there && row < *others.n_rows), threadIdx.x == 0);
        int n_listed = list_in_order(!there, listed, of_warps);
        make_static_rows<E, LEFT_HELD>(x, y8, n_listed, blockIdx.x * LEFT_THREADS + threadIdx.x,
                                       gridDim.x * LEFT_THREADS, [&](int k) { return first_row + listed[k]; });
        __syncthreads(); // nobody reads it any more
    }
}

void launch_requantise(const struct launch *l, int n_rows, struct dmat x, struct dmat y8, struct dcounter others) {
    int blocks = n_multiprocessors() * (n_rows <= FEW_LEFT ? 1 : 4);
    auto requant = x.element == ELEMENT_F16 ? requantise<ELEMENT_F16> : requantise<ELEMENT_BF16>;
    launch_node(requant, blocks, LEFT_THREADS, 0, l->stream, x, y8, n_rows, others);
}

// ---- unscaled products ----------------------------------------------------------------------------------------------

enum { RESCALE_MANY = 512, RESCALE_ROWS = 8, RESCALE_AT_ONCE = 4 };

/* A thread makes eight neighbours of one row, or of ROWS, for which it reads their columns' scales once. Bytes: 2 in, 2
 * or 4 out. */
template <int ROWS> static __global__ void __launch_bounds__(256) rescale(dmat raw, dmat y, int n_rows, bool in_fours) {
    constexpr int AT_ONCE = ROWS < RESCALE_AT_ONCE ? ROWS : RESCALE_AT_ONCE;
    let_next_start();
    wait_for_previous();
    int col = (blockIdx.x * blockDim.x + threadIdx.x) * PIECE, first = blockIdx.y * ROWS,
        end = min(first + ROWS, n_rows);
    if (col >= y.width)
        return;
    float of_column[PIECE], bias[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        of_column[i] = raw.col_scale[col + i], bias[i] = raw.bias ? raw.bias[col + i] : 0.0f;
#pragma unroll 1
    for (int row = first; row < end; row += AT_ONCE) {
        piece p[AT_ONCE];
        float factor[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (row + k < end)
                p[k] = load_piece(raw, row + k, col), factor[k] = raw.row_scale[row + k];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (row + k >= end)
                break;
            float *v = p[k].v;
#pragma unroll
            for (int i = 0; i < PIECE; i++)
                v[i] = fmaf(v[i], factor[k] * of_column[i], bias[i]);
            if (in_fours) {
                store_four(y, row + k, col, make_float4(v[0], v[1], v[2], v[3]));
                store_four(y, row + k, col + 4, make_float4(v[4], v[5], v[6], v[7]));
            } else {
                for (int i = 0; i < PIECE; i++)
                    store(y, row + k, col + i, v[i]);
            }
        }
    }
}

void launch_rescale(const struct launch *l, int n_rows, struct dmat raw, struct dmat y) {
    int rows = n_rows > RESCALE_MANY ? RESCALE_ROWS : 1;
    dim3 grid((y.width / PIECE + 255) / 256, (n_rows + rows - 1) / rows);
    launch_node(rows > 1 ? rescale<RESCALE_ROWS> : rescale<1>, grid, 256, 0, l->stream, raw, y, n_rows,
                lies_in_fours(y));
}
