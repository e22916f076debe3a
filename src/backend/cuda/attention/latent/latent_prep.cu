/* latent_prep.cu - MLA_PREP: queries taken to the latent space, and new latent rows.
 *
 *     out_h = [Wuk_h^T q_nope | rope(q_rope)]          for each token and head
 *     c = norm(kva[0..rank)) w;  [c | rope(kva[rank..))] into the cache
 *
 * Blocks come in two kinds. Of the first a block has 64 of a head's latent channels: its part of Wuk, [128][64], comes
 * to shared memory before the step's rows are waited for, then stays in registers as the right operand of
 * mma.m16n8k16; 16 tokens are its rows. Which of 16 query channels is which column of a product is free, so a lane
 * takes four in a row. A block of the second kind has a token: what turns of its queries, and its latent row.
 *
 * Bytes: Wuk once (2.1 MB of 16 heads), rows of q once for each of the eight blocks of a head. */
#include "backend/cuda/attention/latent/latent.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/rows/rows.h"

namespace {

enum { THREADS = 128, SLICE = 64, SLICES = LATENT_RANK / SLICE, TOKENS = 16, K_STEPS = LATENT_NOPE / 16 };

/* Channels col .. col + 3 of a row, of any element, unscaled or not. */
__device__ float4 load_four(const dmat &x, int t, int col) {
    int64_t at = t * x.stride + col;
    float4 y;
    if (x.element == ELEMENT_F32) {
        y = *reinterpret_cast<const float4 *>(static_cast<const float *>(x.at) + at);
    } else if (x.element == ELEMENT_F16) {
        uint2 four = *reinterpret_cast<const uint2 *>(static_cast<const __half *>(x.at) + at);
        float2 low = latent_halves(four.x), high = latent_halves(four.y);
        y = {low.x, low.y, high.x, high.y};
    } else {
        y = {load(x.at, at, x.element), load(x.at, at + 1, x.element), load(x.at, at + 2, x.element),
             load(x.at, at + 3, x.element)};
    }
    if (x.col_scale) {
        float factor = x.row_scale[t];
        y = {unscaled_value(x, factor, col, y.x), unscaled_value(x, factor, col + 1, y.y),
             unscaled_value(x, factor, col + 2, y.z), unscaled_value(x, factor, col + 3, y.w)};
    }
    return y;
}

__device__ void store_two(const dmat &out, int t, int col, float x, float y) {
    int64_t at = t * out.stride + col;
    if (out.element == ELEMENT_F32)
        *reinterpret_cast<float2 *>(static_cast<float *>(out.at) + at) = {x, y};
    else
        *reinterpret_cast<uint32_t *>(static_cast<__half *>(out.at) + at) = to_pair<false>(x, y);
}

// ---- queries ----------------------------------------------------------------------------------------------------

/* Byte of a 16-byte piece of a row of the slice in shared memory. */
__device__ uint32_t slice_piece(int row, int piece) { return row * SLICE * 2 + (piece ^ (row & 7)) * 16; }

/* The query channel, of 16, that stands at row k of a right operand. */
__device__ int channel_of(int k) { return 4 * (k % 8 / 2) + k % 2 + k / 8 * 2; }

/* The warp's 16 latent channels of a head as the right operand. */
__device__ void load_slice(const dweight &w_uk, int h, int first, char *shared, uint32_t (&b)[K_STEPS][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const __half *from = static_cast<const __half *>(w_uk.at) + (int64_t)h * LATENT_NOPE * LATENT_RANK + first;
    uint4 x[LATENT_NOPE * 8 / THREADS];
#pragma unroll
    for (int i = 0; i < LATENT_NOPE * 8 / THREADS; i++) {
        int row = i * (THREADS / 8) + threadIdx.x / 8;
        x[i] = *reinterpret_cast<const uint4 *>(from + row * LATENT_RANK + threadIdx.x % 8 * 8);
    }
#pragma unroll
    for (int i = 0; i < LATENT_NOPE * 8 / THREADS; i++)
        *reinterpret_cast<uint4 *>(shared + slice_piece(i * (THREADS / 8) + threadIdx.x / 8, threadIdx.x % 8)) = x[i];
    __syncthreads(); // the slice is there
    uint32_t base = shared_address(shared);
#pragma unroll
    for (int s = 0; s < K_STEPS; s++)
        load_matrices_turned(b[s], base + slice_piece(16 * s + channel_of(lane % 16), 2 * warp + lane / 16));
}

/* Four channels of 16 of two tokens: a step of the left operand. */
__device__ void load_tokens(const dmat &q, const int (&row)[2], const bool (&is)[2], int col, uint32_t (&a)[4]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float4 x = is[k] ? load_four(q, row[k], col) : float4{0, 0, 0, 0};
        a[k] = to_pair<false>(x.x, x.y);
        a[2 + k] = to_pair<false>(x.z, x.w);
    }
}

__device__ void absorb(const device_plan &plan, const dmat &q, const dweight &w_uk, int h, int slice, int tile,
                       int n_tiles, const dmat &out, char *shared) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quarter = lane % 4;
    uint32_t b[K_STEPS][4];
    load_slice(w_uk, h, slice * SLICE, shared, b);
    let_next_start();
    wait_for_previous();
    int n = step_tokens(plan), col = h * LATENT_WIDTH + slice * SLICE + 16 * warp + 2 * quarter;
    for (int first = tile * TOKENS; first < n; first += n_tiles * TOKENS) {
        int row[2] = {first + group, first + group + 8};
        bool is[2] = {row[0] < n, row[1] < n};
        uint32_t a[K_STEPS][4];
        float c[2][4] = {};
#pragma unroll
        for (int s = 0; s < K_STEPS; s++)
            load_tokens(q, row, is, h * (LATENT_NOPE + LATENT_ROPE) + 16 * s + 4 * quarter, a[s]);
#pragma unroll
        for (int s = 0; s < K_STEPS; s++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                multiply_add<false>(c[j], a[s], b[s][2 * j], b[s][2 * j + 1]);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (is[k])
                    store_two(out, row[k], col + 8 * j, c[j][2 * k], c[j][2 * k + 1]);
    }
}

// ---- what turns, and the latent row -----------------------------------------------------------------------------

/* Pair i of LATENT_ROPE channels that begin at x[col]: where its two stand, and what they become. */
struct turned_pair {
    int a, b;
    float x, y;
    __device__ turned_pair(const dmat &from, const drope &rope, int t, int col, int i) {
        const int half = LATENT_ROPE / 2;
        const float *cos_sin = rope.cos_sin + (int64_t)t * LATENT_ROPE;
        a = rope.pairing == 0 ? i : 2 * i, b = rope.pairing == 0 ? i + half : 2 * i + 1;
        float u = load(from, t, col + a), v = load(from, t, col + b);
        x = u * cos_sin[i] - v * cos_sin[half + i];
        y = v * cos_sin[i] + u * cos_sin[half + i];
    }
};

__device__ void turn_queries(const dmat &q, const drope &rope, int t, int n_heads, const dmat &out) {
    for (int i = threadIdx.x; i < n_heads * LATENT_ROPE / 2; i += THREADS) {
        int h = i / (LATENT_ROPE / 2);
        turned_pair p(q, rope, t, h * (LATENT_NOPE + LATENT_ROPE) + LATENT_NOPE, i % (LATENT_ROPE / 2));
        store(out, t, h * LATENT_WIDTH + LATENT_RANK + p.a, p.x);
        store(out, t, h * LATENT_WIDTH + LATENT_RANK + p.b, p.y);
    }
}

__device__ void store_latent(const device_plan &plan, const dmla &a, const drope &rope, const dmat &kva,
                             const dweight &norm, const dcache &cache, int n_slots, int t) {
    __shared__ float shared[32];
    int position = plan.position[t], slot = position % n_slots, c = 4 * threadIdx.x;
    static_assert(4 * THREADS == LATENT_RANK, "a thread has four channels");
    char *block = kv_block(plan, cache, n_slots, plan.seq_of_row[t], position);
    float4 x = load_four(kva, t, c);
    float sum = block_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w, shared);
    float factor = 1.0f / sqrtf(sum / LATENT_RANK + a.eps);
    uint2 four = {to_pair<false>(x.x * factor * load(norm, c), x.y * factor * load(norm, c + 1)),
                  to_pair<false>(x.z * factor * load(norm, c + 2), x.w * factor * load(norm, c + 3))};
    *reinterpret_cast<uint2 *>(block + kv_row_byte(LATENT_WIDTH * 2, n_slots, 0, slot, c * 2)) = four;
    if (threadIdx.x < LATENT_ROPE / 2) {
        turned_pair p(kva, rope, t, LATENT_RANK, threadIdx.x);
        kv_store(block + kv_row_byte(LATENT_WIDTH * 2, n_slots, 0, slot, (LATENT_RANK + p.a) * 2), ELEMENT_F16, p.x);
        kv_store(block + kv_row_byte(LATENT_WIDTH * 2, n_slots, 0, slot, (LATENT_RANK + p.b) * 2), ELEMENT_F16, p.y);
    }
}

__global__ void __launch_bounds__(THREADS)
    latent_prep(device_plan plan, dmla a, drope rope, dmat q, dmat kva, dweight norm, dweight w_uk, dcache cache,
                int n_slots, int n_tiles, dmat out) {
    __shared__ __align__(128) char shared[LATENT_NOPE * SLICE * 2];
    int b = blockIdx.x, n_absorb = a.n_heads * SLICES * n_tiles;
    if (b < n_absorb) {
        absorb(plan, q, w_uk, b / SLICES % a.n_heads, b % SLICES, b / SLICES / a.n_heads, n_tiles, out, shared);
        return;
    }
    let_next_start();
    wait_for_previous();
    int t = b - n_absorb;
    if (t >= step_tokens(plan))
        return;
    store_latent(plan, a, rope, kva, norm, cache, n_slots, t);
    turn_queries(q, rope, t, a.n_heads, out);
}

} // namespace

bool latent_takes(const dmla *a, element cache, int block_size) {
    bool shape = a->rank == LATENT_RANK && a->rope_dim == LATENT_ROPE && a->nope_dim == LATENT_NOPE;
    return shape && a->n_heads % LATENT_HEADS == 0 && a->v_dim % 32 == 0 && cache == ELEMENT_F16 && block_size >= 16;
}

void launch_latent_prep(const launch *l, const dmla *a, const drope *rope, dmat q, dmat kva, dweight norm, dweight w_uk,
                        dcache cache, dmat out) {
    const int AT_ONCE = 8; // blocks of a slice that have tokens each: more would read Wuk more often
    int tiles = (l->n_tokens + TOKENS - 1) / TOKENS, n_tiles = tiles < AT_ONCE ? tiles : AT_ONCE;
    launch_node(latent_prep, a->n_heads * SLICES * n_tiles + l->n_tokens, THREADS, 0, l->stream, l->plan, *a, *rope, q,
                kva, norm, w_uk, cache, l->block_size, n_tiles, out);
}
