/* mla.cu - the plain MLA_PREP and MLA_ATTENTION: latent attention in absorbed form, a block a token row and head.
 *
 *     MLA_PREP        c = norm(kva[0..rank)) w;  [c | rope(kva[rank..))] into the cache (block 0 of a row);
 *                     out_h = [Wuk_h^T q_nope | rope(q_rope)]: threads over rank, Wuk's rows one after another,
 *                     coalesced
 *     MLA_ATTENTION   four warps deal the keys as in attention.cu; key and value are the same latent row, read once a
 *                     head; then Wuv_h o, a warp an output channel */
#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/attention/mla.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

enum { WARPS = 4, THREADS = WARPS * 32, MAX_PER_LANE = 20 }; // rank + rope_dim: up to 640 channels

static __device__ void rotate_to(const drope &rope, int t, const float *from, float *to) {
    const float *cos_sin = rope.cos_sin + (int64_t)t * rope.dim;
    int half = rope.dim / 2;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        int a = rope.pairing == 0 ? i : 2 * i, b = rope.pairing == 0 ? i + half : 2 * i + 1;
        to[a] = from[a] * cos_sin[i] - from[b] * cos_sin[half + i];
        to[b] = from[b] * cos_sin[i] + from[a] * cos_sin[half + i];
    }
    __syncthreads(); // all of it is turned
}

static __device__ void store_latent(const device_plan &plan, const dmla &a, const drope &rope, const dmat &kva,
                                    const dweight &norm, const dcache &cache, int block_size, int t, float *row,
                                    float *turned) {
    __shared__ float shared[32];
    int width = a.rank + a.rope_dim, position = plan.position[t];
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        row[i] = load(kva, t, i);
        sum += i < a.rank ? row[i] * row[i] : 0.0f;
    }
    float factor = 1.0f / sqrtf(block_sum(sum, shared) / a.rank + a.eps); // its barriers also publish row
    int row_bytes = width * kv_element_bytes(cache.element);
    char *block = kv_block(plan, cache, block_size, plan.seq_of_row[t], position);
    rotate_to(rope, t, row + a.rank, turned);
    for (int i = threadIdx.x; i < width; i += THREADS)
        kv_store(block +
                     kv_row_byte(row_bytes, block_size, 0, position % block_size, i * kv_element_bytes(cache.element)),
                 cache.element, i < a.rank ? row[i] * factor * load(norm, i) : turned[i - a.rank]);
}

/* Head n_heads of the grid is the latent row itself. */
static __global__ void mla_prep(device_plan plan, dmla a, drope rope, dmat q, dmat kva, dweight norm, dweight w_uk,
                                dcache cache, int block_size, dmat out) {
    let_next_start();
    wait_for_previous();
    extern __shared__ float memory[]; // a row of kva or q, and what is turned
    int t = blockIdx.y, h = blockIdx.x, q_dim = a.nope_dim + a.rope_dim, width = a.rank + a.rope_dim;
    if (t >= step_tokens(plan))
        return;
    if (h == a.n_heads) {
        store_latent(plan, a, rope, kva, norm, cache, block_size, t, memory, memory + width);
        return;
    }
    float *turned = memory + q_dim;
    for (int i = threadIdx.x; i < q_dim; i += THREADS)
        memory[i] = load(q, t, h * q_dim + i);
    __syncthreads(); // the head is there
    rotate_to(rope, t, memory + a.nope_dim, turned);
    for (int r = threadIdx.x; r < a.rank; r += THREADS) {
        float sum = 0;
        for (int i = 0; i < a.nope_dim; i++)
            sum += memory[i] * load(w_uk, ((int64_t)h * a.nope_dim + i) * a.rank + r);
        store(out, t, h * width + r, sum);
    }
    for (int i = threadIdx.x; i < a.rope_dim; i += THREADS)
        store(out, t, h * width + a.rank + i, turned[i]);
}

void launch_mla_prep(const struct launch *l, const struct dmla *a, const struct drope *rope, struct dmat q,
                     struct dmat kva, struct dweight norm, struct dweight w_uk, struct dcache cache, struct dmat out) {
    int row = a->rank + a->rope_dim, head = a->nope_dim + a->rope_dim;
    size_t shared = (size_t)((row > head ? row : head) + a->rope_dim) * sizeof(float);
    launch_node(mla_prep, dim3(a->n_heads + 1, l->n_tokens), THREADS, shared, l->stream, l->plan, *a, *rope, q, kva,
                norm, w_uk, cache, l->block_size, out);
}

static __global__ void mla_attention(device_plan plan, dmla a, dmat q, dweight w_uv, dcache cache, int block_size,
                                     dmat out) {
    let_next_start();
    wait_for_previous();
    __shared__ float ms[WARPS], ls[WARPS];
    extern __shared__ float sums[]; // [WARPS][rank]; then the joined sum in the first
    int t = blockIdx.y, h = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = a.rank + a.rope_dim;
    if (t >= step_tokens(plan))
        return;
    int seq = plan.seq_of_row[t], position = plan.position[t], element_size = kv_element_bytes(cache.element);
    float query[MAX_PER_LANE], acc[MAX_PER_LANE] = {}, m = -INFINITY, l = 0;
#pragma unroll
    for (int i = 0; i < MAX_PER_LANE; i++)
        query[i] = lane + 32 * i < width ? load(q, t, h * width + lane + 32 * i) : 0.0f;
    for (int j = warp; j <= position; j += WARPS) {
        const char *block = kv_block(plan, cache, block_size, seq, j);
        float x[MAX_PER_LANE], s = 0;
#pragma unroll
        for (int i = 0; i < MAX_PER_LANE; i++) {
            int at = (lane + 32 * i) * element_size;
            x[i] = lane + 32 * i < width
                       ? kv_load(block + kv_row_byte(width * element_size, block_size, 0, j % block_size, at),
                                 cache.element)
                       : 0.0f;
            s += query[i] * x[i];
        }
        s = warp_sum(s) * a.scale;
        float larger = fmaxf(m, s), shrink = m == -INFINITY ? 0.0f : expf(m - larger), e = expf(s - larger);
        m = larger;
        l = l * shrink + e;
#pragma unroll
        for (int i = 0; i < MAX_PER_LANE; i++)
            acc[i] = acc[i] * shrink + e * x[i];
    }
    if (lane == 0) {
        ms[warp] = m;
        ls[warp] = l;
    }
#pragma unroll
    for (int i = 0; i < MAX_PER_LANE; i++)
        if (lane + 32 * i < a.rank)
            sums[warp * a.rank + lane + 32 * i] = acc[i];
    __syncthreads(); // all four partial softmaxes are there
    float largest = -INFINITY, total = 0, share[WARPS];
    for (int w = 0; w < WARPS; w++)
        largest = fmaxf(largest, ms[w]);
    for (int w = 0; w < WARPS; w++) {
        share[w] = ms[w] == -INFINITY ? 0.0f : expf(ms[w] - largest);
        total += ls[w] * share[w];
    }
    for (int i = threadIdx.x; i < a.rank; i += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += sums[w * a.rank + i] * share[w];
        sums[i] = sum / total; // column i of the first row, which no other thread reads
    }
    __syncthreads(); // the joined latent is there
    for (int v = warp; v < a.v_dim; v += WARPS) {
        float sum = 0;
        for (int i = lane; i < a.rank; i += 32)
            sum += sums[i] * load(w_uv, ((int64_t)h * a.v_dim + v) * a.rank + i);
        sum = warp_sum(sum);
        if (lane == 0)
            store(out, t, h * a.v_dim + v, sum);
    }
}

void launch_mla_attention(const struct launch *l, const struct dmla *a, struct dmat q, struct dweight w_uv,
                          struct dcache cache, struct dmat out) {
    launch_node(mla_attention, dim3(a->n_heads, l->n_tokens), THREADS, (size_t)WARPS * a->rank * sizeof(float),
                l->stream, l->plan, *a, q, w_uv, cache, l->block_size, out);
}
