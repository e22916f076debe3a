/* attention_prefill_halves.cu - attention_prefill.cu's over 512 channels of e4m3, where the sums of 64 rows fill the
 * registers of two warpgroups: of a step of 128 keys each makes the scores of one half, and multiplies all of P by one
 * half of the channels.
 *
 *     S [rows, keys] = q K^T,  P = 2^(S - m),  O^T [channels, rows] += V^T P^T
 *
 * Arithmetic is prefill_bytes.cuh's; P in shared memory is for both. The first warpgroup makes the scores of a step
 * before the sums of the step before, the second after them: so while one has exponentials to make the other has the
 * tensor cores. What P and O are relative to each warpgroup raises for its half by itself, and both agree on it when P
 * of both is there. FLOPs: 8 * rows * keys seen * channels of e4m3, which take as long as 4 of float16. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/prefill/attention_prefill.h"
#include "backend/cuda/attention/prefill/prefill_halves.cuh"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/value.h"

namespace {

typedef halves S;

/* Nobody sees a key of the half. */
__device__ void clear_weights(const memory<S> &m, int step, const place &at) {
    uint32_t to = weights_of(m, step, at);
    for (int q = 0; q < S::KEYS / 16; q++)
        for (int k = 0; k < 4; k++)
            store_shared((to ^ q * 16) + k / 2 * S::TERM + k % 2 * 8 * 128, 0);
    fence_bulk();
}

/* What this thread has placed, times a power of two a row. */
__device__ void shrink_weights(const memory<S> &m, int step, const place &at, const float (&by)[2]) {
    uint32_t to = weights_of(m, step, at);
#pragma unroll
    for (int q = 0; q < S::KEYS / 16; q++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t *word = reinterpret_cast<uint32_t *>(m.at((to ^ q * 16) + k * 8 * 128)), a, b, c, d;
            e4m3_to_pairs(word[0], a, b);
            e4m3_to_pairs(word[S::TERM / 4], c, d);
            __half2 factor = __float2half2_rn(by[k]);
            __half2 x = __hmul2(__hadd2(reinterpret_cast<__half2 &>(a), reinterpret_cast<__half2 &>(c)), factor);
            __half2 y = __hmul2(__hadd2(reinterpret_cast<__half2 &>(b), reinterpret_cast<__half2 &>(d)), factor);
            word[0] = take_e4m3(x, y);
            word[S::TERM / 4] = take_e4m3(x, y);
        }
    fence_bulk();
}

/* By both: what P and o are relative to becomes the larger of the two. */
__device__ void raise_both(const memory<S> &m, bool any, int step, const place &at, row_sums<S> &o) {
    int row = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4;
    bool leads = threadIdx.x % 4 == 0;
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (leads)
            m.largest()[at.sharer * S::ROWS + row + 8 * k] = o.m[k];
    if (threadIdx.x % 128 == 0)
        m.reference()[at.sharer] = o.reference;
    m.meet(); // what both are relative to is there
    float reference = fmaxf(m.reference()[0], m.reference()[1]), by[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float top = fmaxf(o.m[k], m.largest()[(1 - at.sharer) * S::ROWS + row + 8 * k]);
        by[k] = top == -INFINITY ? 1.0f : exp2_fast(o.m[k] - top);
        o.l[k] *= by[k];
        by[k] *= o.reference / reference;
        if (leads && at.sharer == 0)
            m.shrink(step)[row + 8 * k] =
                __float2bfloat16_rn(top == -INFINITY ? 1.0f : exp2_fast(o.o_m[k] - top) * (o.o_reference / reference));
        o.m[k] = o.o_m[k] = top;
    }
    o.reference = o.o_reference = reference;
    if (any && (by[0] != 1.0f || by[1] != 1.0f))
        shrink_weights(m, step, at, by);
    m.meet(); // P is there, and what sums shrink by
}

/* P of the step is there, of both. */
__device__ void agree(const memory<S> &m, bool any, int step, const place &at, bool raised, row_sums<S> &o) {
    if (m.any(raised)) {
        raise_both(m, any, step, at, o);
        shrink_sums(m, step, o);
    }
}

/* Divides by the softmax's denominator and stores. */
__device__ void finish(const arguments &p, const dpart &part, const memory<S> &m, int kv, const place &at,
                       const row_sums<S> &o) {
    ending *endings = reinterpret_cast<ending *>(m.base + S::WEIGHTS_AT);
    int row = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4, r = threadIdx.x;
    for (int k = 0; k < 2; k++) {
        float l = row_total(p, kv, at, o, k, at.sharer == 0);
        if (threadIdx.x % 4 == 0)
            m.largest()[at.sharer * S::ROWS + row + 8 * k] = l;
    }
    m.meet(); // both warpgroups' sums of P are there, and P is read
    if (r < S::ROWS)
        endings[r] = ending_of(p, part, kv, r, o.reference / (m.largest()[r] + m.largest()[S::ROWS + r]));
    m.meet(); // the endings are there
    store_rows(p, endings, at.sharer * S::CHANNELS, m.base + at.sharer * (S::CHANNELS / 64) * S::QUERY_PANEL, o);
}

/* The warpgroup's P of a step, of which it sees a key; whether it is relative to more than before. */
__device__ bool weigh(const arguments &p, const dpart &part, const memory<S> &m, const source &src, const place &at,
                      int step, row_sums<S> &o) {
    some_keys h = keys_from<S>(p, part, at, part.first + step * S::STEP + at.sharer * S::KEYS);
    float s[S::KEYS / 2];
    begin_scores<S>(m, at, step, s);
    products_wait<0>();
    release(m.key_empty());
    mask_scores<S>(p, part, m, src, at, h, step, s);
    bool raised = raise_own<S>(m, h, step, s, o);
    place_weights<S>(m, h, step, at, s, o);
    return raised;
}

__device__ void compute(const arguments &p, const dpart &part, const memory<S> &m, const source &src, int kv,
                        int n_steps) {
    load_queries<S>(p, m, part, kv);
    place at = place_of<S>(p, part);
    set_row_scales<S>(p, m, at);
    row_sums<S> o;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 32; j++)
            o.o[i][j] = 0;
    o.m[0] = o.m[1] = o.o_m[0] = o.o_m[1] = -INFINITY;
    o.l[0] = o.l[1] = 0;
    o.reference = o.o_reference = 0x1p-120f;
    // The first warpgroup: scores of a step, sums of the one before, agree. The second: scores of a step, agree, sums
    // of the same.
    for (int step = 0; step <= n_steps; step++) {
        bool any = step < n_steps && part.first + step * S::STEP + at.sharer * S::KEYS < part.end, raised = false;
        if (step < n_steps)
            barrier_wait(m.key_full(), step & 1);
        if (any)
            raised = weigh(p, part, m, src, at, step, o);
        else if (step < n_steps)
            clear_weights(m, step, at);
        if (at.sharer == 1 && step < n_steps)
            agree(m, any, step, at, raised, o);
        int of = step - 1 + at.sharer;
        if (of >= 0 && of < n_steps) {
            barrier_wait(m.value_full(), of & 1);
            add_values(m, src, of, o);
            release(m.value_empty());
        }
        if (at.sharer == 0 && step < n_steps)
            agree(m, any, step, at, raised, o);
    }
    finish(p, part, m, kv, at, o);
}

__global__ void __launch_bounds__(THREADS, 1) attention_prefill_halves(const __grid_constant__ arguments p) {
    extern __shared__ __align__(1024) char shared[];
    if (threadIdx.x == 0) {
        for (int group = 0; group < GROUPS; group++)
            memory<S>(shared, group).start();
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    wait_for_previous();
    let_next_start();
    int item = blockIdx.x, n_kv = p.a.n_kv_heads;
    dpart part = p.parts.part[item / n_kv]; // there is one, or room for one: both loads are under way together
    if (item >= *p.parts.n * n_kv)
        return;
    int kv = item % n_kv, n_steps = (part.end - part.first + S::STEP - 1) / S::STEP, warp = uniform(threadIdx.x / 32);
    source src = source_of<S>(p, part, kv);
    if (threadIdx.x >= COMPUTE) {
        registers_fewer<S::COPY_REGISTERS>();
        feed(memory<S>(shared, warp % GROUPS), src, warp % 4 < GROUPS, n_steps);
    } else {
        registers_more<S::COMPUTE_REGISTERS>();
        compute(p, part, memory<S>(shared, warp / 4), src, kv, n_steps);
    }
}

} // namespace

void launch_attention_prefill_halves(const launch *l, const dattention *a, const dparts *parts, dmat q, dweight sinks,
                                     dcache cache, dmat out) {
    launch_items<S>(attention_prefill_halves, l, {l->plan, *a, *parts, q, out, sinks, cache, l->block_size});
}
