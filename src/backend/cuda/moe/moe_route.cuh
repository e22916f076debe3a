/* moe_route.cuh - MOE_ROUTE of a token, by a warp: top_k rounds of the largest. Scores of up to 256 experts without
 * groups lie in registers, others in shared memory. */
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

enum { ROUTE_IN_REGISTERS = 256 }; // experts
static __host__ __device__ inline bool routes_in_registers(const droute &a) {
    return a.n_groups == 0 && a.n_experts <= ROUTE_IN_REGISTERS && a.top_k <= 32;
}
static __host__ __device__ inline int route_floats(const droute &a) {
    return routes_in_registers(a) ? 0 : 2 * a.n_experts + a.n_groups;
}

static __device__ float route_divisor(const droute &a, float sum) {
    return a.how == SOFTMAX_TOPK ? sum : a.renormalise ? sum + (a.how == SIGMOID ? 1e-20f : 0.0f) : 1.0f;
}

/* memory [route_floats], shared, of the warp alone. */
static __device__ void route_in_memory(const route_args &all, int t, float *memory) {
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
    float divisor = route_divisor(a, sum);
    for (int k = lane; k < a.top_k; k += 32) {
        int id = static_cast<int32_t *>(ids.at)[t * ids.stride + k];
        float w = load(weights, t, k) / divisor * a.scale;
        store(weights, t, k, expert_scale.at ? w * load(expert_scale, id) : w);
    }
}

// ---- in registers ---------------------------------------------------------------------------------------------------

/* Bits that are ordered as floats are; none is 0. What is not a number is smallest or largest. */
static __device__ uint32_t ordered_bits(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits | 1u : bits | 0x80000000u;
}

/* A lane has every 32nd expert, from its own number on. */
template <int PER> struct lane_experts {
    float score[PER];
    uint32_t choice[PER]; // ordered_bits; 0: taken, or not there

    __device__ __forceinline__ lane_experts(const route_args &all, int t) {
        const droute &a = all.how;
        int lane = threadIdx.x % 32;
        float largest = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            int i = lane + 32 * j;
            score[j] = i < a.n_experts ? load(all.logits, t, i) : -INFINITY;
            largest = fmaxf(largest, score[j]);
        }
        if (a.how == SOFTMAX || a.how == SOFTMAX_GROUP) {
            largest = warp_max(largest);
#pragma unroll
            for (int j = 0; j < PER; j++)
                sum += score[j] = expf(score[j] - largest);
            sum = warp_sum(sum);
        }
#pragma unroll
        for (int j = 0; j < PER; j++) {
            int i = lane + 32 * j;
            if (a.how == SOFTMAX || a.how == SOFTMAX_GROUP)
                score[j] /= sum;
            if (a.how == SIGMOID)
                score[j] = sigmoid(score[j]);
            choice[j] = i < a.n_experts ? ordered_bits(score[j] + (all.bias.at ? load(all.bias, i) : 0.0f)) : 0;
        }
    }

    /* Takes the best out, ties to the lower expert; it and its score are known to all lanes. */
    __device__ __forceinline__ int take_best(float &score_of_best) {
        int lane = threadIdx.x % 32, at = 0;
        uint32_t best = choice[0];
        float of_best = score[0];
#pragma unroll
        for (int j = 1; j < PER; j++)
            if (choice[j] > best)
                best = choice[j], of_best = score[j], at = j;
        uint32_t best_of_all = __reduce_max_sync(0xffffffffu, best);
        uint32_t expert =
            __reduce_min_sync(0xffffffffu, best == best_of_all ? (uint32_t)(lane + 32 * at) : 0xffffffffu);
        score_of_best = __shfl_sync(0xffffffffu, of_best, expert % 32);
#pragma unroll
        for (int j = 0; j < PER; j++)
            choice[j] = (uint32_t)(lane + 32 * j) == expert ? 0 : choice[j];
        return (int)expert;
    }
};

/* ids_too: a place for the token's ids in shared memory, or NULL. */
template <int PER> static __device__ void route_in_registers(const route_args &all, int t, int *ids_too) {
    const droute &a = all.how;
    lane_experts<PER> experts(all, t);
    int lane = threadIdx.x % 32, my_id = 0;
    float sum = 0, largest = 0, my_weight = 0, w;
    for (int k = 0; k < a.top_k; k++) {
        int expert = experts.take_best(w);
        if (a.how == SOFTMAX_TOPK) {
            largest = k == 0 ? w : largest;
            w = expf(w - largest);
        }
        sum += w;
        if (lane == k)
            my_id = expert, my_weight = w;
    }
    if (lane >= a.top_k)
        return;
    w = my_weight / route_divisor(a, sum) * a.scale;
    static_cast<int32_t *>(all.ids.at)[t * all.ids.stride + lane] = my_id;
    store(all.weights, t, lane, all.expert_scale.at ? w * load(all.expert_scale, my_id) : w);
    if (ids_too)
        ids_too[lane] = my_id;
}

// ---- either way -----------------------------------------------------------------------------------------------------

static __host__ __device__ inline int route_slots(const droute &a) { return a.top_k + a.n_shared; }

/* ids_too [slots], shared, or NULL. The weights of shared experts are route_shared's. */
static __device__ void route_token(const route_args &all, int t, float *memory, int *ids_too) {
    if (!routes_in_registers(all.how)) {
        route_in_memory(all, t, memory);
        for (int k = threadIdx.x % 32; ids_too && k < all.how.top_k; k += 32)
            ids_too[k] = static_cast<const int32_t *>(all.ids.at)[t * all.ids.stride + k];
    } else if (all.how.n_experts <= 128) {
        route_in_registers<4>(all, t, ids_too);
    } else {
        route_in_registers<8>(all, t, ids_too);
    }
    for (int k = threadIdx.x % 32; ids_too && k < all.how.n_shared; k += 32)
        ids_too[all.how.top_k + k] = all.how.n_experts + k;
}
