/* static_rows.cuh - rows of a qact that their static scale does not fit, made anew (launch_requantise): from the qact
 * itself, and from 16 bits where it does not tell. */
#pragma once

#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

namespace {

/* Values of eight elements. */
static __device__ eight_of<ELEMENT_F32> told_by(uint2 elements, float static_scale) {
    uint32_t pairs[4];
    float2 v[4];
    e4m3_to_pairs(elements.x, pairs[0], pairs[1]);
    e4m3_to_pairs(elements.y, pairs[2], pairs[3]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __half22float2(reinterpret_cast<const __half2 &>(pairs[i]));
    return {make_float4(v[0].x, v[0].y, v[1].x, v[1].y) * static_scale,
            make_float4(v[2].x, v[2].y, v[3].x, v[3].y) * static_scale};
}

/* The octets first, first + step, ... of the n rows row_of(0), row_of(1), ..., HELD at once; nobody else touches these.
 * value has most. What is held are bytes, not floats: kernels that do this now and then have no registers to spare for
 * it. */
template <element E, int HELD, class ROWS>
static __device__ void make_static_rows(const dmat &value, const dmat &qact, int n, int first, int step,
                                        const ROWS &row_of) {
    const int octets = qact.width / 8, all = n * octets;
    for (int base = first; base < all; base += step * HELD) {
        uint2 elements[HELD];
        eight_of<E> untold[HELD];
        int row[HELD];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int i = base + k * step;
            if (i < all) {
                row[k] = row_of(i / octets);
                elements[k] = __ldcg(reinterpret_cast<const uint2 *>(static_cast<const char *>(qact.at) +
                                                                     row[k] * qact.stride + i % octets * 8));
            }
        }
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (base + k * step < all && !qact_tells(elements[k]))
                untold[k] = load_eight<E>(value, row[k], (base + k * step) % octets * 8);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (base + k * step < all) {
                eight_of<ELEMENT_F32> v = {floats_of<E>(untold[k].low), floats_of<E>(untold[k].high)};
                float inverse = __frcp_rn(static_scale_else(__uint_as_float(value.absmax[row[k]])));
                if (qact_tells(elements[k]))
                    v = told_by(elements[k], qact.static_scale);
                store_e4m3(qact, row[k], (base + k * step) % octets * 8, v.low * inverse, v.high * inverse);
            }
    }
}

} // namespace
