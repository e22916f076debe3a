/* gemm_fp8_gated_columns.cuh - the scales and biases of a tile's columns and tokens in shared memory, and what they and
 * the activation make of sums: of gemm_fp8_gated.cu. */
#pragma once

#include "backend/cuda/linear/fp8/gated_end.cuh"
#include "backend/cuda/linear/fp8/gemm_fp8_gated_products.cuh"

namespace {

static __device__ float4 load_four(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
static __device__ float load_float(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

/* Bytes of scales and biases: of a tile's rows of W and its tokens. */
template <int N, int PARTS> constexpr int SCALES = (4 * N + PARTS * PART_TOKENS) * 4;

/* PLAIN: SiLU and no biases. */
template <int N, int PARTS, bool PLAIN> struct tile_columns : tile_products<N, PARTS> {
    using products = tile_products<N, PARTS>;
    using products::a, products::m, products::TILE_OCTETS;

    /* Of the tile: of W's rows [scale, bias][gate, up][octets][8], then the scales of its tokens. */
    __device__ uint32_t x_scales() const { return m.scales + TILE_OCTETS * 128; }
    __device__ void fetch_w_scales(int first_column) const {
        const int n = TILE_OCTETS * 8;
        for (int i = threadIdx.x; i < n * 2; i += CONSUMERS) {
            int half = i >= n, column = first_column + i - half * n;
            bool there = column < a.n_columns;
            int row = there ? column + half * a.n_columns : 0;
            copy_four(m.scales + i * 4, a.w_scale + row, there);
            if (!PLAIN)
                copy_four(m.scales + (i + 2 * n) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }
    __device__ void fetch_x_scales(int token) const {
        for (int i = threadIdx.x; i < PARTS * PART_TOKENS; i += CONSUMERS) {
            bool there = token + i < a.n_tokens;
            copy_four(x_scales() + i * 4, a.x_scale + (there ? token + i : 0), there);
        }
    }

    /* What a gate lets through. SiLU is x/2 + x/2 tanh(x/2). What the hyperbolic tangent is off by, 2^-11 at most, is
     * what half precision makes of x/2. */
    static __device__ float silu(float gate, float up, float by) {
        float half = gate * (0.5f * by);
        return fmaf(half, tanh_fast(half), half) * (up * by);
    }
    __device__ float gated(float gate, float up) const {
        float half = 0.5f * gate;
        return fmaf(half, tanh_fast(gate * (a.bend + a.twist * gate * gate)), half) * up;
    }

    /* Four columns of a token from its sums, two pairs each, by the columns' scales (and biases) and its own. */
    struct column_scales {
        float4 gate, up, gate_bias, up_bias;
    };
    __device__ column_scales scales_at(uint32_t at) const {
        column_scales s = {load_four(at), load_four(at + TILE_OCTETS * 32)};
        if (!PLAIN)
            s.gate_bias = load_four(at + TILE_OCTETS * 64), s.up_bias = load_four(at + TILE_OCTETS * 96);
        return s;
    }
    template <bool BF16>
    __device__ void gated_four(uint32_t *pairs, const uint32_t *gates, const uint32_t *ups, const column_scales &s,
                               float by) const {
        const float *gs = &s.gate.x, *us = &s.up.x, *gb = &s.gate_bias.x, *ub = &s.up_bias.x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 gate = __half22float2(reinterpret_cast<const __half2 &>(gates[i])),
                   up = __half22float2(reinterpret_cast<const __half2 &>(ups[i]));
            int k = 2 * i;
            if (PLAIN)
                pairs[i] = to_pair<BF16>(silu(gate.x * gs[k], up.x * us[k], by),
                                         silu(gate.y * gs[k + 1], up.y * us[k + 1], by));
            else
                pairs[i] = to_pair<BF16>(
                    gated(fmaf(gate.x, gs[k] * by, gb[k]), fmaf(up.x, us[k] * by, ub[k])),
                    gated(fmaf(gate.y, gs[k + 1] * by, gb[k + 1]), fmaf(up.y, us[k + 1] * by, ub[k + 1])));
        }
    }
};

} // namespace
