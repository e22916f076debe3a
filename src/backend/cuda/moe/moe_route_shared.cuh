/* moe_route_shared.cuh - the slots of experts that every token is sent to, behind those of the chosen, and what gates
 * them. */
#pragma once

#include "backend/cuda/moe/moe_route.cuh"
#include "backend/cuda/ptx/fours.cuh"

/* By a warp, in one order; known to all lanes. */
template <element E> static __device__ float gate_logit(const droute &a, int t) {
    dmat w = {const_cast<void *>(a.gate_w.at), a.gate_w.in, (int)a.gate_w.in, E, nullptr};
    float sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x % 32 * 8; i < (int)a.gate_w.in; i += 8 * 32) {
        eight_of<E> of_w = load_eight<E>(w, 0, i), of_x = load_eight<E>(a.gate_x, t, i);
        sum +=
            dot(floats_of<E>(of_w.low), floats_of<E>(of_x.low)) + dot(floats_of<E>(of_w.high), floats_of<E>(of_x.high));
    }
    return warp_sum(sum);
}

/* The slots behind the chosen experts. */
static __device__ void route_shared(const route_args &all, int t) {
    const droute &a = all.how;
    int lane = threadIdx.x % 32;
    float weight = 1;
    if (a.n_shared == 0)
        return;
    if (a.gate_w.at)
        weight =
            sigmoid(a.gate_w.element == ELEMENT_F16 ? gate_logit<ELEMENT_F16>(a, t) : gate_logit<ELEMENT_BF16>(a, t));
    else if (a.gate.at)
        weight = sigmoid(load(a.gate, t, 0));
    for (int k = lane; k < a.n_shared; k += 32) {
        static_cast<int32_t *>(all.ids.at)[t * all.ids.stride + a.top_k + k] = a.n_experts + k;
        store(all.weights, t, a.top_k + k, weight);
    }
}
