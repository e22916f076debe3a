/* sample_changes.cuh - of sample.cu: what is done to a row before the draw: bias, bans, masks, penalties. */
#pragma once

#include "backend/cuda/sample/sample_slice.cuh"

static __device__ void add_bias(const row_view &v, const int32_t *pairs) {
    for (int i = threadIdx.x; i < v.s.asked.n_bias; i += THREADS) {
        int at = pairs[2 * i] - v.first;
        if (at >= 0 && at < v.n)
            atomicAdd(&v.x[at], __int_as_float(pairs[2 * i + 1])); // a token that is named twice: in either order
    }
}

static __device__ void ban(const row_view &v, const int32_t *pairs, int newest) {
    for (int i = threadIdx.x; i < v.s.asked.n_banned; i += THREADS) {
        int at = pairs[2 * i] - v.first, after = pairs[2 * i + 1];
        if (at >= 0 && at < v.n && (after < 0 || after == newest))
            v.x[at] = -INFINITY;
    }
}

/* A warp looks at one word or two at a time. */
static __device__ void keep_masked(const row_view &v, const int32_t *words) {
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        int token = v.first + i;
        if (!((uint32_t)words[token / 32] >> token % 32 & 1))
            v.x[i] = -INFINITY;
    }
}

/* Marks the tokens first .. first + n of the slice. */
static __device__ void mark(const row_view &v, const int32_t *lists, int newest, int first, int n) {
    const drow &a = v.s.asked;
    for (int i = threadIdx.x; i < n; i += THREADS)
        v.s.marks[i] = 0;
    __syncthreads(); // all are zero
    for (int i = threadIdx.x; i < a.n_allowed; i += THREADS) {
        int at = lists[a.allowed + i] - v.first - first;
        if (at >= 0 && at < n)
            atomicOr(&v.s.marks[at], ALLOWED);
    }
    int n_seen = a.n_history + (newest >= 0);
    for (int i = threadIdx.x; i < n_seen; i += THREADS) {
        int at = (i < a.n_history ? lists[a.history + i] : newest) - v.first - first;
        if (at < 0 || at >= n)
            continue;
        atomicOr(&v.s.marks[at], SEEN);
        if (i >= a.n_prompt)
            atomicAdd(&v.s.marks[at], 1);
    }
    __syncthreads(); // all are marked
}

static __device__ float penalised(const drow &a, float x, uint32_t mark) {
    uint32_t count = mark & COUNT;
    if (a.n_allowed > 0 && !(mark & ALLOWED))
        x = -INFINITY;
    if (a.repetition != 1 && (mark & SEEN))
        x = x > 0 ? __fdiv_rn(x, a.repetition) : __fmul_rn(x, a.repetition);
    if ((a.presence != 0 || a.frequency != 0) && count > 0)
        x = __fadd_rn(x, -__fadd_rn(a.presence, __fmul_rn(a.frequency, (float)count)));
    return x;
}

static __device__ void change_slice(const row_view &v) {
    const drow &a = v.s.asked;
    const int32_t *lists = v.plan.places->lists;
    int newest = v.plan.newest[v.r];
    await_slice(v);
    __syncthreads(); // the slice has been read by whoever reads the raw one, and is there for all
    add_bias(v, lists + a.bias);
    __syncthreads(); // biases before bans
    ban(v, lists + a.banned, newest);
    __syncthreads(); // bans before penalties
    if (a.mask >= 0) {
        keep_masked(v, lists + a.mask);
        __syncthreads(); // masks before penalties
    }
    if (a.n_allowed > 0 || a.repetition != 1 || a.presence != 0 || a.frequency != 0)
        for (int from = 0; from < v.n; from += CHUNK) {
            int n = min(CHUNK, v.n - from);
            mark(v, lists, newest, from, n);
            for (int i = threadIdx.x; i < n; i += THREADS)
                v.x[from + i] = penalised(a, v.x[from + i], v.s.marks[i]);
            __syncthreads(); // marks have been read
        }
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    for (int i = threadIdx.x; i < v.n; i += THREADS)
        look_at(v.x[i], v.first + i, mine, bad);
    tell_best(v, 1, mine, 0);
}
