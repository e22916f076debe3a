/* moe_route.cuh - MOE_ROUTE of a token, by a warp: the logits lie in shared memory, top_k rounds of the largest. */
#pragma once

#include "backend/cuda/moe/moe.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { SOFTMAX, SOFTMAX_TOPK, SIGMOID, SOFTMAX_GROUP }; // core/ops.h routing

static __device__ void warp_softmax(float *s, int n) {
    int lane = threadIdx.x % 32;
    float m = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32)
        m = fmaxf(m, s[i]);
    m = warp_max(m);
    for (int i = lane; i < n; i += 32) {
        s[i] = expf(s[i] - m);
        sum += s[i];
    }
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32)
        s[i] /= sum;
    __syncwarp(); // others' elements are read next
}

/* The largest of s[n], ties to the lower index, known to all lanes. */
static __device__ int warp_argmax(const float *s, int n) {
    int lane = threadIdx.x % 32, at = n;
    float best = -INFINITY;
    for (int i = lane; i < n; i += 32)
        if (at == n || s[i] > best) {
            best = s[i];
            at = i;
        }
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, best, step);
        int other_at = __shfl_xor_sync(0xffffffffu, at, step);
        if (other_at < n && (at == n || other > best || (other == best && other_at < at))) {
            best = other;
            at = other_at;
        }
    }
    return at;
}

/* What a group is worth: its best choice, or the sum of its two best. */
static __device__ float group_worth(const float *choice, int n, bool two) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        second = fmaxf(second, fminf(first, choice[i]));
        first = fmaxf(first, choice[i]);
    }
    return two ? first + second : first;
}

/* Groups that are not among the best have their choices set to `out`. worth [n_groups], shared. */
static __device__ void keep_groups(const droute &a, float *choice, float *worth, float out) {
    int lane = threadIdx.x % 32, size = a.n_experts / a.n_groups;
    for (int g = lane; g < a.n_groups; g += 32)
        worth[g] = group_worth(choice + g * size, size, a.how == SIGMOID);
    __syncwarp();
    unsigned long long kept = 0; // n_groups <= 64
    for (int k = 0; k < a.top_groups; k++) {
        int best = warp_argmax(worth, a.n_groups);
        kept |= 1ull << best;
        __syncwarp(); // all have seen it before it is taken out
        if (lane == 0)
            worth[best] = -INFINITY;
        __syncwarp();
    }
    for (int i = lane; i < a.n_experts; i += 32)
        if (!(kept >> i / size & 1))
            choice[i] = out;
    __syncwarp();
}

struct route_args {
    droute how;
    dmat logits;
    dweight bias, expert_scale; // at NULL: none
    dmat ids, weights;
};

static __host__ __device__ inline int route_floats(const droute &a) { return 2 * a.n_experts + a.n_groups; }

/* memory [route_floats], shared, of the warp alone. */
static __device__ void route_token(const route_args &all, int t, float *memory) {
    const droute &a = all.how;
    const dmat &logits = all.logits, &ids = all.ids, &weights = all.weights;
    const dweight &bias = all.bias, &expert_scale = all.expert_scale;
    float *score = memory, *choice = memory + a.n_experts, *worth = memory + 2 * a.n_experts;
    int lane = threadIdx.x % 32;
    for (int i = lane; i < a.n_experts; i += 32)
        score[i] = load(logits, t, i);
    __syncwarp();
    if (a.how == SOFTMAX || a.how == SOFTMAX_GROUP)
        warp_softmax(score, a.n_experts);
    for (int i = lane; i < a.n_experts; i += 32) {
        if (a.how == SIGMOID)
            score[i] = sigmoid(score[i]);
        choice[i] = score[i] + (bias.at ? load(bias, i) : 0.0f);
    }
    __syncwarp();
    if (a.n_groups > 0)
        keep_groups(a, choice, worth, a.how == SIGMOID ? -INFINITY : 0.0f);
    float sum = 0, largest = 0;
    for (int k = 0; k < a.top_k; k++) {
        int best = warp_argmax(choice, a.n_experts);
        float w = score[best];
        if (a.how == SOFTMAX_TOPK) {
            largest = k == 0 ? w : largest;
            w = expf(w - largest);
        }
        sum += w;
        __syncwarp(); // all have seen the choice before it is taken out
        if (lane == 0) {
            static_cast<int32_t *>(ids.at)[t * ids.stride + k] = best;
            store(weights, t, k, w);
            choice[best] = -INFINITY;
        }
        __syncwarp();
    }
    float divisor = a.how == SOFTMAX_TOPK ? sum : a.renormalise ? sum + (a.how == SIGMOID ? 1e-20f : 0.0f) : 1.0f;
    for (int k = lane; k < a.top_k; k += 32) {
        int id = static_cast<int32_t *>(ids.at)[t * ids.stride + k];
        float w = load(weights, t, k) / divisor * a.scale;
        store(weights, t, k, expert_scale.at ? w * load(expert_scale, id) : w);
    }
}
