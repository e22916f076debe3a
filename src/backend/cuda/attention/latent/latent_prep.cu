/* latent_prep.cu - MLA_PREP: queries taken to the latent space, and new latent rows.
 *
 *     out_h = [Wuk_h^T q_nope | rope(q_rope)]          for each token and head
 *     c = norm(kva[0..rank)) w;  [c | rope(kva[rank..))] into the cache
 *
 * Blocks come in two kinds. Of the first a block has 64 of a head's latent channels: its part of Wuk, [128][64], comes
 * to shared memory before the step's rows are waited for, then stays in registers as the right operand of
 * mma.m16n8k16; 16 tokens are its rows. A block of the second kind has a token: what turns of its queries, and its
 * latent row. All wait before they let latent_decode start, which relies on it.
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
    if (!x.col_scale)
        return y;
    float4 by = *reinterpret_cast<const float4 *>(x.col_scale + col), bias = {0, 0, 0, 0};
    float factor = x.row_scale[t];
    if (x.bias)
        bias = *reinterpret_cast<const float4 *>(x.bias + col);
    return {y.x * (factor * by.x) + bias.x, y.y * (factor * by.y) + bias.y, y.z * (factor * by.z) + bias.z,
            y.w * (factor * by.w) + bias.w};
}

/* Two of each of two tiles of eight columns of a row, which begin at col: lanes of a pair share out the tiles, so that
 * a store has four columns. */
__device__ void store_tiles(const dmat &out, int t, int col, float2 low, float2 high, bool is) {
    int quarter = threadIdx.x % 4;
    bool odd = quarter & 1;
    float2 sent = odd ? low : high;
    sent = {__shfl_xor_sync(0xffffffffu, sent.x, 1), __shfl_xor_sync(0xffffffffu, sent.y, 1)};
    float4 x = odd ? float4{sent.x, sent.y, high.x, high.y} : float4{low.x, low.y, sent.x, sent.y};
    int64_t at = t * out.stride + col + (odd ? 8 : 0) + quarter / 2 * 4;
    if (is && out.element == ELEMENT_F32)
        *reinterpret_cast<float4 *>(static_cast<float *>(out.at) + at) = x;
    else if (is)
        *reinterpret_cast<uint2 *>(static_cast<__half *>(out.at) + at) = {to_pair<false>(x.x, x.y),
                                                                          to_pair<false>(x.z, x.w)};
}

// ---- queries ----------------------------------------------------------------------------------------------------

/* Byte of a 16-byte piece of a row in shared memory, of the slice and of the tokens. */
__device__ uint32_t slice_piece(int row, int piece) { return row * SLICE * 2 + (piece ^ (row & 7)) * 16; }
__device__ uint32_t token_piece(int row, int piece) { return row * LATENT_NOPE * 2 + (piece ^ (row & 7)) * 16; }

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
        load_matrices_turned(b[s], base + slice_piece(16 * s + lane % 16, 2 * warp + lane / 16));
}

/* A head of 16 tokens, as float16; rows behind the last are zero. */
__device__ void load_tokens(const dmat &q, int first, int n, int col, char *tokens) {
#pragma unroll
    for (int i = 0; i < TOKENS * LATENT_NOPE / 8 / THREADS; i++) {
        int row = i * (THREADS / 16) + threadIdx.x / 16, piece = threadIdx.x % 16;
        uint4 x = {0, 0, 0, 0};
        if (row < n) {
            float4 low = load_four(q, first + row, col + 8 * piece),
                   high = load_four(q, first + row, col + 8 * piece + 4);
            x = {to_pair<false>(low.x, low.y), to_pair<false>(low.z, low.w), to_pair<false>(high.x, high.y),
                 to_pair<false>(high.z, high.w)};
        }
        *reinterpret_cast<uint4 *>(tokens + token_piece(row, piece)) = x;
    }
}

__device__ void absorb(const device_plan &plan, const dmat &q, const dweight &w_uk, int h, int slice, int tile,
                       int n_tiles, const dmat &out, char *shared, char *tokens) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4;
    uint32_t b[K_STEPS][4], base = shared_address(tokens);
    load_slice(w_uk, h, slice * SLICE, shared, b);
    wait_for_previous();
    let_next_start();
    int n = step_tokens(plan), col = h * LATENT_WIDTH + slice * SLICE + 16 * warp;
    for (int first = tile * TOKENS; first < n; first += n_tiles * TOKENS) {
        load_tokens(q, first, n - first, h * (LATENT_NOPE + LATENT_ROPE), tokens);
        __syncthreads(); // the tokens are there
        float c[2][4] = {};
#pragma unroll
        for (int s = 0; s < K_STEPS; s++) {
            uint32_t a[4];
            load_matrices(a, base + token_piece(lane % 16, 2 * s + lane / 16));
#pragma unroll
            for (int j = 0; j < 2; j++)
                multiply_add<false>(c[j], a, b[s][2 * j], b[s][2 * j + 1]);
        }
        __syncthreads(); // and read
#pragma unroll
        for (int k = 0; k < 2; k++)
            store_tiles(out, first + group + 8 * k, col, {c[0][2 * k], c[0][2 * k + 1]}, {c[1][2 * k], c[1][2 * k + 1]},
                        first + group + 8 * k < n);
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
    int position = plan.position[t], seq = plan.seq_of_row[t], slot = position % n_slots, c = 4 * threadIdx.x;
    static_assert(4 * THREADS == LATENT_RANK, "a thread has four channels");
    float4 x = load_four(kva, t, c);
    char *block = kv_block(plan, cache, n_slots, seq, position);
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
    __shared__ __align__(128) char shared[LATENT_NOPE * SLICE * 2], tokens[TOKENS * LATENT_NOPE * 2];
    int b = blockIdx.x, n_absorb = a.n_heads * SLICES * n_tiles;
    if (b < n_absorb) {
        absorb(plan, q, w_uk, b / SLICES % a.n_heads, b % SLICES, b / SLICES / a.n_heads, n_tiles, out, shared, tokens);
        return;
    }
    wait_for_previous();
    let_next_start();
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
    const int AT_ONCE = 4; // blocks of a slice that have tokens each: more would read Wuk more often
    int tiles = (l->n_tokens + TOKENS - 1) / TOKENS, n_tiles = tiles < AT_ONCE ? tiles : AT_ONCE;
    launch_node(latent_prep, a->n_heads * SLICES * n_tiles + l->n_tokens, THREADS, 0, l->stream, l->plan, *a, *rope, q,
                kva, norm, w_uk, cache, l->block_size, n_tiles, out);
}
