/* latent_out.cu - the end of MLA_ATTENTION: joins the chunks of cut tasks, and takes the latent sums to each head's
 * values.
 *
 *     out_h = Wuv_h o_h        o_h: the softmax's sum of latents, float16
 *
 * A block has 16 tokens, a head and V of its channels. Its part of Wuv is on the way while the node before still runs.
 * Four warps have a quarter of the 512 latent channels each, as columns of mma.m16n8k16, and their sums are added in
 * that order. Which channel is which column is free, so a lane takes eight in a row, one load, of either operand.
 *
 * Bytes: Wuv once for 16 tokens (2.1 MB of 16 heads), sums once for each block of a head. */
#include "backend/cuda/attention/latent/latent.cuh"
#include "backend/cuda/ptx/device.cuh"

namespace {

enum { WARPS = 4, THREADS = WARPS * 32, TOKENS = 16, PIECES = LATENT_RANK / 8, ROW = LATENT_RANK * 2 + 64 };
enum { GROUPS = LATENT_RANK / WARPS / 32 }; // of 32 latent channels of a warp

/* Eight channels of a task's row, joined. */
__device__ uint4 joined_piece(const dlatent_parts &p, const dlatent_task &task, int head, int piece) {
    int first = task.sums & ~LATENT_CUT, n = latent_n_chunks(task.n_keys);
    const uint4 *from = static_cast<const uint4 *>(p.sums) + ((int64_t)first * LATENT_HEADS + head) * PIECES + piece;
    if (!(task.sums & LATENT_CUT))
        return __ldcg(from);
    const float2 *ends = reinterpret_cast<const float2 *>(p.ends) + (int64_t)first * LATENT_HEADS + head;
    latent_join join;
    float o[8] = {};
    join.clear();
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        float2 end = __ldcg(ends + i * LATENT_HEADS), by = join.add(end.x, end.y);
        uint4 x = __ldcg(from + (int64_t)i * LATENT_HEADS * PIECES);
        const uint32_t pair[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 two = latent_halves(pair[k]);
            o[2 * k] = latent_joined(o[2 * k], two.x, by);
            o[2 * k + 1] = latent_joined(o[2 * k + 1], two.y, by);
        }
    }
    float f = join.factor();
    return {to_pair<false>(o[0] * f, o[1] * f), to_pair<false>(o[2] * f, o[3] * f), to_pair<false>(o[4] * f, o[5] * f),
            to_pair<false>(o[6] * f, o[7] * f)};
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    latent_out(device_plan plan, dlatent_parts p, int n_heads, int v_dim, dweight w_uv, dmat out) {
    __shared__ __align__(16) char sums[TOKENS * ROW];
    __shared__ float parts[WARPS][TOKENS][V + 2];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quarter = lane % 4;
    int slices = v_dim / V, h = blockIdx.x / slices, first_v = blockIdx.x % slices * V, first = blockIdx.y * TOKENS;
    const __half *from = static_cast<const __half *>(w_uv.at) + ((int64_t)h * v_dim + first_v + group) * LATENT_RANK +
                         warp * GROUPS * 32 + 8 * quarter;
    uint4 w[GROUPS][V / 8];
#pragma unroll
    for (int c = 0; c < GROUPS; c++)
#pragma unroll
        for (int j = 0; j < V / 8; j++)
            w[c][j] = *reinterpret_cast<const uint4 *>(from + 8 * j * LATENT_RANK + 32 * c);
    let_next_start();
    wait_for_previous();
    int n = min(TOKENS, step_tokens(plan) - first);
    if (n <= 0)
        return;
    const dlatent_task *tasks = p.task + h / LATENT_HEADS * step_tokens(plan) + first;
    for (int i = threadIdx.x; i < TOKENS * PIECES; i += THREADS) {
        int token = i / PIECES, piece = i % PIECES;
        uint4 x = {0, 0, 0, 0};
        if (token < n)
            x = joined_piece(p, tasks[token], h % LATENT_HEADS, piece);
        *reinterpret_cast<uint4 *>(sums + token * ROW + piece * 16) = x;
    }
    __syncthreads(); // the sums are there
    float o[V / 8][4] = {};
    const char *mine = sums + group * ROW + (warp * GROUPS * 4 + quarter) * 16;
#pragma unroll
    for (int c = 0; c < GROUPS; c++) {
        uint4 low = *reinterpret_cast<const uint4 *>(mine + 64 * c),
              high = *reinterpret_cast<const uint4 *>(mine + 64 * c + 8 * ROW);
        uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
        for (int j = 0; j < V / 8; j++) {
            multiply_add<false>(o[j], a[0], w[c][j].x, w[c][j].y);
            multiply_add<false>(o[j], a[1], w[c][j].z, w[c][j].w);
        }
    }
#pragma unroll
    for (int j = 0; j < V / 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            parts[warp][group + k / 2 * 8][8 * j + 2 * quarter + k % 2] = o[j][k];
    __syncthreads(); // the quarters are there
    for (int i = threadIdx.x; i < n * V; i += THREADS) {
        int token = i / V, v = i % V;
        float x = parts[0][token][v] + parts[1][token][v] + parts[2][token][v] + parts[3][token][v];
        store(out, first + token, h * v_dim + first_v + v, x);
    }
}

template <int V> void start(const launch *l, const dmla *a, const dlatent_parts *parts, dweight w_uv, dmat out) {
    dim3 grid(a->n_heads * a->v_dim / V, (l->n_tokens + TOKENS - 1) / TOKENS);
    launch_node(latent_out<V>, grid, THREADS, 0, l->stream, l->plan, *parts, a->n_heads, a->v_dim, w_uv, out);
}

} // namespace

void launch_latent_out(const launch *l, const dmla *a, const dlatent_parts *parts, dweight w_uv, dmat out) {
    if (l->n_tokens <= TOKENS)
        start<16>(l, a, parts, w_uv, out); // more blocks read Wuv at once
    else
        start<32>(l, a, parts, w_uv, out);
}
