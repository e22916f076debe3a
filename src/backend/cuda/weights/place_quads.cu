/* place_quads.cu - matrices of four bits, and of integers of eight, as they are loaded, into the tiles of quads.h. A
 * thread block a row: once for the scales, which wait in shared memory, once to put 16 columns at a time where their
 * lanes will look for them.
 *
 * From numbers, to the nearest code, ties to even where the format has them:
 *
 *     INT4    z 8; s of a group is its largest size / 8 * 2^(k/8), with the k of 0 .. 7 that leaves the least squares
 *             of what is off
 *     NVFP4   scale[o] is the row's largest / (6 * 448) times 2^14; s the group's largest / 6, as e4m3
 *     MXFP4   s is the least power of two with which no column of the group is beyond 6
 *     Q8_0    s is the group's largest / 127 */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/weights/placing.cuh"
#include "backend/cuda/weights/placing_quads.cuh"
#include "backend/cuda/weights/quads.h"

namespace {

enum { THREADS = 128, LARGEST_B = 29, TRIED = 8 };
const float AS_READ = 0x1p-14f, TINIEST = 1e-30f; // e2m1 is read times 2^-14

__device__ float e2m1_value(uint32_t code) {
    const float sizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}
__device__ uint32_t to_e2m1(float v) {
    float a = fabsf(v);
    uint32_t size = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return size | (v < 0 ? 8u : 0u);
}
__device__ uint32_t to_int4(float v, int zero) { return (uint32_t)fminf(fmaxf(rintf(v) + zero, 0.0f), 15.0f); }
__device__ uint32_t to_byte(float v) { return (uint32_t)(fminf(fmaxf(rintf(v), -127.0f), 127.0f) + 128); }
__device__ float meant(quad_kind kind, uint32_t code, int zero) {
    if (kind == QUADS_Q8_0)
        return (float)((int)code - 128);
    return kind == QUADS_INT4 ? (float)((int)code - zero) : e2m1_value(code);
}
/* A number that is not zero, times what makes it a code; 0 where there is no scale. */
__device__ float per(float scale) { return scale > 0 ? 1 / scale : 0; }

__device__ float power_below(float v) { return ldexpf(1.0f, ilogbf(v)); }

/* A group's scale and zero point as they come; from numbers, those that suit them best. */
struct group_scale {
    float s;
    int zero;
};

struct from_codes {
    static constexpr bool IS_NUMBERS = false;
    dstored_quads x;
    __device__ int64_t in() const { return x.in; }
    __device__ group_scale scale_of(int64_t row, int64_t col, const dquads &) const {
        int64_t i = row * ((x.in + x.group - 1) / x.group) + col / x.group;
        return {x.scale[i], x.zero ? (int)x.zero[i] : 8};
    }
    /* What all scales of a row are per: of one alone that, which then loses nothing. */
    __device__ float of_row(float largest, const dquads &q) const {
        if (q.kind == QUADS_NVFP4)
            return x.tensor_scale;
        return q.kind == QUADS_Q8_0 && x.group >= x.in ? largest : power_below(largest);
    }
    __device__ uint32_t code(int64_t row, int64_t col, const dquads &q, const group_scale &stored, float,
                             float &is) const {
        if (q.kind == QUADS_Q8_0) {
            is = meant(q.kind, x.codes[row * x.in + col], 0) * stored.s;
            return x.codes[row * x.in + col];
        }
        uint8_t two = x.codes[row * (x.in / 2) + col / 2];
        uint32_t code = col % 2 ? two >> 4 : two & 15;
        is = meant(q.kind, code, stored.zero) * (stored.s * x.tensor_scale);
        return code;
    }
};

struct from_numbers {
    static constexpr bool IS_NUMBERS = true;
    dstored x;
    __device__ int64_t in() const { return x.in; }
    __device__ float int4_scale(int64_t row, int64_t col, int64_t end, float most) const {
        float best = most / 8, least = INFINITY;
        for (int k = 0; k < TRIED; k++) {
            float s = most / 8 * exp2f(k / 8.0f), off = 0;
            for (int64_t c = col; c < end; c++) {
                float v = stored(x, row, c), d = v - (float)((int)to_int4(v * per(s), 8) - 8) * s;
                off += d * d;
            }
            best = off < least ? s : best;
            least = fminf(least, off);
        }
        return best;
    }
    __device__ group_scale scale_of(int64_t row, int64_t col, const dquads &q) const {
        float most = 0;
        int64_t end = col + q.group < x.in ? col + q.group : x.in;
        for (int64_t c = col; c < end; c++)
            most = fmaxf(most, fabsf(stored(x, row, c)));
        if (most < TINIEST || !isfinite(most))
            return {0, 8};
        if (q.kind == QUADS_INT4)
            return {int4_scale(row, col, end, most), 8};
        if (q.kind == QUADS_NVFP4)
            return {most / 6, 8};
        if (q.kind == QUADS_Q8_0)
            return {most / 127, 8};
        int e = 0;
        float fraction = frexpf(most / 6, &e); // most / 6 = fraction * 2^e, fraction of 0.5 up to 1
        return {ldexpf(1.0f, fraction == 0.5f ? e - 1 : e), 8};
    }
    __device__ float of_row(float largest, const dquads &q) const {
        return q.kind == QUADS_NVFP4 ? largest / 448 : power_below(largest);
    }
    __device__ uint32_t code(int64_t row, int64_t col, const dquads &q, const group_scale &, float unit,
                             float &is) const {
        is = stored(x, row, col);
        float v = isfinite(is) ? is * per(unit) : 0;
        if (q.kind == QUADS_Q8_0)
            return to_byte(v);
        return q.kind == QUADS_INT4 ? to_int4(v, 8) : to_e2m1(v);
    }
};

/* What a group's scale is on the device: its bits, and what a code is multiplied by in all. */
struct placed_scale {
    uint16_t bits;
    float unit;
};
__device__ placed_scale place_scale(quad_kind kind, float s, float of_row) {
    if (kind == QUADS_NVFP4) {
        uint8_t bits = __nv_cvt_float_to_fp8(s, __NV_SATFINITE, __NV_E4M3);
        return {bits, from_e4m3(bits) * of_row};
    }
    if (kind == QUADS_MXFP4) {
        int b = s > 0 ? max(ilogbf(s) - ilogbf(of_row) + LARGEST_B, 0) : 0;
        return {(uint16_t)(b << 2), b ? ldexpf(of_row, b - LARGEST_B) : 0};
    }
    __half h = __float2half_rn(s / of_row);
    return {__half_as_ushort(h), __half2float(h) * of_row};
}

template <class SOURCE>
__global__ void __launch_bounds__(THREADS) place_rows(SOURCE x, dweight to, int64_t first_row, dplaced *counts) {
    extern __shared__ float unit_of_group[];
    __shared__ float shared[32];
    const dquads q = to.quads;
    int64_t row = blockIdx.x, n_groups = quads_blocks(to.in) * quads_groups(q);
    float largest = 0;
    for (int64_t i = threadIdx.x; i < n_groups; i += THREADS) {
        float s = i * q.group < x.in() ? x.scale_of(row, i * q.group, q).s : 0;
        unit_of_group[i] = s;
        largest = fmaxf(largest, isfinite(s) ? fabsf(s) : 0);
    }
    largest = fmaxf(block_max(largest, shared), TINIEST);
    float of_row = x.of_row(largest, q);
    const place_of_row at(to, first_row + row);
    seen s = {};
    for (int64_t i = threadIdx.x; i < n_groups; i += THREADS) {
        group_scale g = i * q.group < x.in() ? x.scale_of(row, i * q.group, q) : group_scale{0, 8};
        bool by_row = q.kind == QUADS_NVFP4 && SOURCE::IS_NUMBERS;
        placed_scale p = place_scale(q.kind, by_row ? g.s / of_row : g.s, of_row);
        unit_of_group[i] = p.unit;
        at.put_scale(i * q.group, p.bits, g.zero);
    }
    __syncthreads(); // units are there
    for (int64_t i = threadIdx.x; i < quads_blocks(to.in) * (QUADS_COLUMNS / QUADS_STEP); i += THREADS) {
        uint32_t codes[QUADS_STEP];
        for (int c = 0; c < QUADS_STEP; c++) {
            int64_t col = i * QUADS_STEP + c;
            codes[c] = 0;
            if (col >= x.in())
                continue;
            group_scale g = SOURCE::IS_NUMBERS ? group_scale{0, 8} : x.scale_of(row, col, q);
            float is, unit = unit_of_group[col / q.group];
            codes[c] = x.code(row, col, q, g, unit, is);
            look(&s, is, meant(q.kind, codes[c], g.zero) * unit, false);
        }
        if (q.kind == QUADS_Q8_0)
            at.put_bytes(i, codes);
        else
            at.put_codes(i, codes);
    }
    if (threadIdx.x == 0)
        const_cast<float *>(to.scale)[first_row + row] = q.kind == QUADS_NVFP4 ? of_row / AS_READ : of_row;
    publish(s, counts, shared);
}

template <class SOURCE>
void put_rows(cudaStream_t stream, const SOURCE &x, int64_t n_rows, const dweight &to, int64_t first_row,
              dplaced *counts) {
    size_t shared = (size_t)quads_blocks(to.in) * quads_groups(to.quads) * sizeof(float);
    cudaFuncSetAttribute(place_rows<SOURCE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    place_rows<SOURCE><<<(unsigned)n_rows, THREADS, shared, stream>>>(x, to, first_row, counts);
}

} // namespace

void launch_place_quads(cudaStream_t stream, const struct dstored_quads *x, int64_t n_rows, struct dweight to,
                        int64_t first_row, struct dplaced *counts) {
    put_rows(stream, from_codes{*x}, n_rows, to, first_row, counts);
}
void launch_quantise_quads(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to,
                           int64_t first_row, struct dplaced *counts) {
    put_rows(stream, from_numbers{*x}, n_rows, to, first_row, counts);
}
