/* latent_out.cu - the end of MLA_ATTENTION: joins the chunks of cut tasks, and takes the latent sums to each head's
 * values.
 *
 *     out_h = Wuv_h o_h        o_h: the softmax's sum of latents, float16
 *
 * A block has 16 tokens or 32, a head and some of its channels.
 * Four warps have a quarter of the 512 latent channels each, as columns of mma.m16n8k16, and their sums are added in
 * that order. Which channel is which column is free, so a lane takes eight in a row, one load, of either operand.
 *
 * Bytes: Wuv once for these tokens (2.1 MB of 16 heads), sums once for each block of a head. */
#include "backend/cuda/attention/latent/latent.cuh"
#include "backend/cuda/ptx/device.cuh"

namespace {

enum { WARPS = 4, TILE_TOKENS = 16, PIECES = LATENT_RANK / 8, ROW = LATENT_RANK * 2 + 64 };
enum { GROUPS = LATENT_RANK / WARPS / 32 }; // of 32 latent channels of a warp

/* Pieces of eight channels of a task's row, eight pieces apart, joined. */
template <int AT_ONCE>
__device__ void load_joined(const dlatent_parts &p, const dlatent_task &task, int head, int piece,
                            uint4 (&joined)[AT_ONCE]) {
    int first = task.sums & ~LATENT_CUT, n = latent_n_chunks(task.n_keys);
    const uint4 *from = static_cast<const uint4 *>(p.sums) + ((int64_t)first * LATENT_HEADS + head) * PIECES + piece;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        joined[i] = __ldcg(from + 8 * i);
    if (!(task.sums & LATENT_CUT))
        return;
    const float2 *ends = reinterpret_cast<const float2 *>(p.ends) + (int64_t)first * LATENT_HEADS + head;
    latent_join join;
    float o[AT_ONCE][8] = {};
    join.clear();
    for (int c = 0; c < n; c++) {
        float2 end = __ldcg(ends + c * LATENT_HEADS), by = join.add(end.x, end.y);
        uint4 chunk[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            chunk[i] = joined[i];
            joined[i] = __ldcg(from + (int64_t)min(c + 1, n - 1) * LATENT_HEADS * PIECES + 8 * i); // on its way
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t pair[4] = {chunk[i].x, chunk[i].y, chunk[i].z, chunk[i].w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 two = latent_halves(pair[k]);
                o[i][2 * k] = latent_joined(o[i][2 * k], two.x, by);
                o[i][2 * k + 1] = latent_joined(o[i][2 * k + 1], two.y, by);
            }
        }
    }
    float f = join.factor();
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        joined[i] = {to_pair<false>(o[i][0] * f, o[i][1] * f), to_pair<false>(o[i][2] * f, o[i][3] * f),
                     to_pair<false>(o[i][4] * f, o[i][5] * f), to_pair<false>(o[i][6] * f, o[i][7] * f)};
}

/* This lane's of the block's part of Wuv. */
template <int V> __device__ void load_weights(const __half *from, uint4 (&w)[GROUPS][V / 8]) {
#pragma unroll
    for (int c = 0; c < GROUPS; c++)
#pragma unroll
        for (int j = 0; j < V / 8; j++)
            w[c][j] = *reinterpret_cast<const uint4 *>(from + 8 * j * LATENT_RANK + 32 * c);
}

/* Of tiles of tokens that lie 16 rows apart, by the warp's quarter of the latent channels. */
template <int V, int TILES>
__device__ void multiply_tokens(const char *sums, const uint4 (&w)[GROUPS][V / 8], float (&o)[TILES][V / 8][4]) {
#pragma unroll
    for (int c = 0; c < GROUPS; c++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const char *from = sums + tile * TILE_TOKENS * ROW + 64 * c;
            uint4 low = *reinterpret_cast<const uint4 *>(from), high = *reinterpret_cast<const uint4 *>(from + 8 * ROW);
            uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
            for (int j = 0; j < V / 8; j++) {
                multiply_add<false>(o[tile][j], a[0], w[c][j].x, w[c][j].y);
                multiply_add<false>(o[tile][j], a[1], w[c][j].z, w[c][j].w);
            }
        }
}

/* The largest size of a row's V columns, which as many lanes have, into dmat.absmax. */
template <int V> __device__ void fold_columns(uint32_t *most, int64_t row, bool is, float x) {
    uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    for (int step = V / 2; step > 0; step /= 2)
        bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, step));
    if (is && threadIdx.x % V == 0)
        atomicMax(most + row, bits);
}

/* SIDES warps for each quarter have V of the block's channels each; there are as many tiles of 16 tokens. Of few tokens
 * weights come first, as nothing else is there to wait for them; of many, registers are kept for more blocks. */
template <int V, int SIDES>
__global__ void __launch_bounds__(SIDES *WARPS * 32)
    latent_out(device_plan plan, dlatent_parts p, int n_heads, int v_dim, dweight w_uv, dmat out) {
    constexpr bool EARLY = V == 16;
    constexpr int AT_ONCE = EARLY ? 8 : 4, TOKENS = TILE_TOKENS * SIDES, PITCH = V * SIDES + 2;
    constexpr int SUMS = TOKENS * ROW, PARTS = WARPS * TOKENS * PITCH * 4;
    __shared__ __align__(16) char shared[SUMS > PARTS ? SUMS : PARTS]; // sums of latents, then quarters of results
    float(*parts)[TOKENS][PITCH] = reinterpret_cast<float(*)[TOKENS][PITCH]>(shared);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, side = threadIdx.x / 32 / WARPS, group = lane / 4,
        quarter = lane % 4;
    int slices = v_dim / (V * SIDES), h = blockIdx.x / slices, first_v = blockIdx.x % slices * V * SIDES,
        first = blockIdx.y * TOKENS;
    const __half *from = static_cast<const __half *>(w_uv.at) +
                         ((int64_t)h * v_dim + first_v + side * V + group) * LATENT_RANK + warp * GROUPS * 32 +
                         8 * quarter;
    uint4 w[GROUPS][V / 8];
    if (EARLY)
        load_weights<V>(from, w);
    // Tasks are there: latent_decode waits before it lets this node start.
    int token = threadIdx.x / 8, n = min(TOKENS, step_tokens(plan) - first);
    const dlatent_task *tasks = p.task + h / LATENT_HEADS * p.max_tokens + first;
    int4 t = token < n ? __ldcg(reinterpret_cast<const int4 *>(tasks) + token) : int4{0, 0, 0, 0};
    let_next_start();
    wait_for_previous();
    if (n <= 0)
        return;
#pragma unroll
    for (int i = 0; i < PIECES / 8; i += AT_ONCE) {
        uint4 joined[AT_ONCE] = {};
        int piece = threadIdx.x % 8 + 8 * i;
        if (token < n)
            load_joined<AT_ONCE>(p, {t.x, t.y, t.z, t.w}, h % LATENT_HEADS, piece, joined);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            *reinterpret_cast<uint4 *>(shared + token * ROW + (piece + 8 * k) * 16) = joined[k];
    }
    if (!EARLY)
        load_weights<V>(from, w);
    __syncthreads(); // the sums are there
    float o[SIDES][V / 8][4] = {};
    multiply_tokens<V, SIDES>(shared + group * ROW + (warp * GROUPS * 4 + quarter) * 16, w, o);
    __syncthreads(); // and read
#pragma unroll
    for (int tile = 0; tile < SIDES; tile++)
#pragma unroll
        for (int j = 0; j < V / 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                parts[warp][TILE_TOKENS * tile + group + k / 2 * 8][side * V + 8 * j + 2 * quarter + k % 2] =
                    o[tile][j][k];
    __syncthreads(); // the quarters are there
    for (int at = threadIdx.x; at - lane < n * V * SIDES; at += SIDES * WARPS * 32) {
        int r = at / (V * SIDES), v = at % (V * SIDES), in = r % TOKENS;
        float x = parts[0][in][v] + parts[1][in][v] + parts[2][in][v] + parts[3][in][v];
        if (r < n)
            store(out, first + r, h * v_dim + first_v + v, x);
        if (out.absmax)
            fold_columns<V>(out.absmax, first + r, r < n, x);
    }
}

template <int V, int SIDES>
void start(const launch *l, const dmla *a, const dlatent_parts *parts, dweight w_uv, dmat out) {
    dim3 grid(a->n_heads * a->v_dim / (V * SIDES), (l->n_tokens + TILE_TOKENS * SIDES - 1) / (TILE_TOKENS * SIDES));
    launch_node(latent_out<V, SIDES>, grid, SIDES * WARPS * 32, 0, l->stream, l->plan, *parts, a->n_heads, a->v_dim,
                w_uv, out);
}

} // namespace

void launch_latent_out(const launch *l, const dmla *a, const dlatent_parts *parts, dweight w_uv, dmat out) {
    if (l->n_tokens <= 2 * TILE_TOKENS)
        start<16, 1>(l, a, parts, w_uv, out); // more blocks read Wuv at once
    else if (a->v_dim % 64 != 0)
        start<32, 1>(l, a, parts, w_uv, out);
    else
        start<32, 2>(l, a, parts, w_uv, out); // reads Wuv half as often, and sums too
}
