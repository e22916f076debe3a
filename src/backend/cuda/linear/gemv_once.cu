/* gemv_once.cu - LINEAR of one token by e4m3 whose weights have a place in shared memory all at once.
 *
 *     y [out] = x [in] W^T scale + b
 *
 * gemv.cu keeps a queue, which costs 1,200 instructions; a small product is over before they are all fetched. Here a
 * warp asks for every chunk of its rows before it waits for the node before, and then multiplies: 250 to 340
 * instructions, and few enough registers that blocks of the next node have a place beside these. Where a block has more
 * rows than fit, a warp asks for the next pass's chunk where it has taken one (SEVERAL).
 *
 * A block has eight warps, each with every eighth chunk of the columns of all the block's rows; lanes, chunks and tiles
 * are gemv.cu's. The eight sums of a row are added in the order of the warps: the bits of gemv.cu with eight column
 * warps and no cluster.
 *
 * Bytes: W once, x once a block. */
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/linear/gemv/gemv_parts.cuh"
#include "backend/cuda/value.h"

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    X_PIECES = 4,
    X_CHUNK = CHUNK_BYTES * 2,
    MOST_TILES = 3,
    PASS_STEPS = 4,
    LATE_BYTES = 64 << 10
};

struct once_args {
    const unsigned char *w, *x;
    int in, block_rows, longer_blocks; // columns; rows of a block, and how many blocks have one more
    int n_steps, n_passes;             // chunks of the longest warp in a pass
    const float *scale, *bias;
    void *y;
    element y_element;
};

static __host__ __device__ constexpr int slot_bytes(int m_tiles) { return m_tiles * 2 * 32 * PIECE; }

/* A lane's pieces of a chunk of each row on their way to a slot; zeros where there is neither row nor column. */
template <int M_TILES>
static __device__ __forceinline__ void ask(const once_args &a, const unsigned char *from, int n_rows, bool column,
                                           uint32_t to, uint64_t policy) {
#pragma unroll
    for (int k = 0; k < 2 * M_TILES; k++) {
        bool there = 8 * k < n_rows && column;
        copy_later(to + k * 32 * PIECE, there ? from + (size_t)(8 * k) * a.in : a.w, !there, policy);
    }
}

/* x from memory to shared memory, by all threads. */
static __device__ __forceinline__ void bring_x(const once_args &a, unsigned char *to) {
    uint4 piece[X_PIECES];
#pragma unroll
    for (int k = 0; k < X_PIECES; k++) {
        int i = (threadIdx.x + k * THREADS) * PIECE;
        if (i < a.in * 2)
            piece[k] = *reinterpret_cast<const uint4 *>(a.x + i);
    }
#pragma unroll
    for (int k = 0; k < X_PIECES; k++) {
        int i = (threadIdx.x + k * THREADS) * PIECE;
        if (i < a.in * 2)
            *reinterpret_cast<uint4 *>(to + i) = piece[k];
    }
}

/* A chunk of each row, at w, by the same columns of x. Two sums of each row by turns, so that neither waits. */
template <int M_TILES>
static __device__ __forceinline__ void add_chunk(float (&sums)[2][M_TILES][4], const unsigned char *w,
                                                 const unsigned char *x) {
    const uint4 b[2] = {*reinterpret_cast<const uint4 *>(x), *reinterpret_cast<const uint4 *>(x + PIECE)};
#pragma unroll
    for (int t = 0; t < M_TILES; t++) {
        uint4 v = *reinterpret_cast<const uint4 *>(w + 2 * t * 32 * PIECE),
              v8 = *reinterpret_cast<const uint4 *>(w + (2 * t + 1) * 32 * PIECE);
        const uint32_t upper[4] = {v.x, v.y, v.z, v.w}, lower[4] = {v8.x, v8.y, v8.z, v8.w};
#pragma unroll
        for (int k = 0; k < e4m3_weights::STEPS; k++) {
            uint32_t m[4];
            e4m3_weights::step(upper, k, m[0], m[2]);
            e4m3_weights::step(lower, k, m[1], m[3]);
            multiply_add<false>(sums[k % 2][t], m, k % 2 ? b[k / 2].z : b[k / 2].x, k % 2 ? b[k / 2].w : b[k / 2].y);
        }
    }
}

template <int M_TILES, bool SEVERAL>
static __global__ void __launch_bounds__(THREADS, 1) gemv_once(const __grid_constant__ once_args a) {
    constexpr int ROWS = 16 * M_TILES, SLOT = slot_bytes(M_TILES), PITCH = ROWS + 4;
    extern __shared__ __align__(128) unsigned char shared[]; // slots of warps | x | sums of warps, of two passes
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const span rows = share(blockIdx.x, a.block_rows, a.longer_blocks);
    unsigned char *slots = shared + warp * a.n_steps * SLOT + lane * PIECE, *x = shared + WARPS * a.n_steps * SLOT;
    float *left = reinterpret_cast<float *>(x + WARPS * a.n_steps * X_CHUNK);
    const uint64_t policy = policy_read_once();
    const unsigned char *from = a.w + (size_t)(rows.begin + r) * a.in;
    int byte = warp * CHUNK_BYTES + q * PIECE;
    uint32_t to = shared_address(slots);
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        ask<M_TILES>(a, from + byte, rows.end - rows.begin - r, byte < a.in, to, policy);
        if (SEVERAL)
            close_batch();
        byte += WARPS * CHUNK_BYTES;
        to += SLOT;
    }
    if (!SEVERAL)
        close_batch();
    let_next_start();

#pragma unroll 1
    for (int i = a.in * 2 + threadIdx.x * PIECE; i < WARPS * a.n_steps * X_CHUNK; i += THREADS * PIECE)
        *reinterpret_cast<uint4 *>(x + i) = make_uint4(0, 0, 0, 0); // met by zeros of W
    int mine = rows.begin + threadIdx.x;                            // a thread's row of a pass
    float scale = 0, bias = 0;
    auto of_row = [&] {
        if (threadIdx.x < ROWS && mine < rows.end) {
            scale = a.scale[mine];
            bias = a.bias ? a.bias[mine] : 0;
        }
    };
    of_row();
    wait_for_previous();
    bring_x(a, x);
    if (!SEVERAL)
        wait_batches<0>();
    __syncthreads();

    for (int pass = 0; pass < (SEVERAL ? a.n_passes : 1); pass++) {
        float sums[2][M_TILES][4] = {};
        if (SEVERAL)
            from += (size_t)ROWS * a.in;
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++) {
            if (SEVERAL)
                wait_batches<PASS_STEPS - 1>();
            add_chunk<M_TILES>(sums, slots + s * SLOT, x + (s * WARPS + warp) * X_CHUNK + q * (X_CHUNK / 4));
            if (SEVERAL) {
                byte = (s * WARPS + warp) * CHUNK_BYTES + q * PIECE;
                ask<M_TILES>(a, from + byte, rows.end - rows.begin - (pass + 1) * ROWS - r, byte < a.in,
                             shared_address(slots) + s * SLOT, policy);
                close_batch();
            }
        }
        float *of_pass = left + (SEVERAL ? (pass & 1) * WARPS * PITCH : 0);
        if (q == 0)
#pragma unroll
            for (int t = 0; t < M_TILES; t++) {
                of_pass[warp * PITCH + t * 16 + r] = sums[0][t][0] + sums[1][t][0];
                of_pass[warp * PITCH + t * 16 + r + 8] = sums[0][t][2] + sums[1][t][2];
            }
        __syncthreads();
        if (threadIdx.x < ROWS && mine < rows.end) {
            float sum = 0;
#pragma unroll
            for (int c = 0; c < WARPS; c++)
                sum += of_pass[c * PITCH + threadIdx.x];
            store(a.y, mine, a.y_element, __fadd_rn(__fmul_rn(sum, scale), bias));
        }
        if (SEVERAL) {
            mine += ROWS;
            of_row();
        }
    }
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

static int up_to(int n, int of) { return (n + of - 1) / of; }
static int steps_of(const struct dgemv *a) { return up_to(up_to((int)a->w.in, CHUNK_BYTES), WARPS); }

struct gemv_once_cut gemv_once_cut_by(const struct dgemv *a, int n_blocks) {
    int tiles = up_to(up_to((int)a->w.out, n_blocks), 16), n_steps = steps_of(a);
    struct gemv_once_cut c = {.n_blocks = n_blocks, .n_passes = up_to(tiles, MOST_TILES)};
    c.m_tiles = up_to(tiles, c.n_passes);
    c.bytes = (size_t)WARPS * n_steps * (slot_bytes(c.m_tiles) + X_CHUNK) +
              sizeof(float) * (c.n_passes > 1 ? 2 : 1) * WARPS * (16 * c.m_tiles + 4);
    bool fits = c.bytes <= (a->among_experts ? GEMV_SHARED_LEAST : GEMV_SHARED_MOST) &&
                (c.n_passes == 1 || n_steps == PASS_STEPS);
    return fits ? c : (struct gemv_once_cut){};
}

struct gemv_once_cut gemv_once_cut_of(const struct dgemv *a, int n_rows) {
    const struct gemv_once_cut none = {};
    if (n_rows != 1 || a->w.element != ELEMENT_E4M3 || a->ending.kind != ENDING_PLAIN ||
        a->w.in > X_PIECES * THREADS * 8)
        return none;
    int all = gemv_blocks(1), n_free = gemv_blocks_for(a, 1), rows = up_to((int)a->w.out, all);
    // Blocks that begin late are waited for: where they read little, not for as long as another tile takes.
    bool late = up_to(rows, 16) < up_to(up_to((int)a->w.out, n_free), 16) && rows * a->w.in <= LATE_BYTES;
    return gemv_once_cut_by(a, late ? all : n_free);
}

template <int M_TILES>
static void launch(const struct launch *l, const once_args &args, const struct gemv_once_cut *c) {
    auto k = args.n_passes > 1 ? gemv_once<M_TILES, true> : gemv_once<M_TILES, false>;
    size_t bytes = c->bytes > GEMV_SHARED_LEAST ? c->bytes : GEMV_SHARED_LEAST;
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_node(k, dim3(c->n_blocks), dim3(THREADS), bytes, l->stream, args);
}

void launch_gemv_once(const struct launch *l, const struct dgemv *a, struct dmat x, struct dmat y,
                      const struct gemv_once_cut *c) {
    const once_args args = {.w = static_cast<const unsigned char *>(a->w.at),
                            .x = static_cast<const unsigned char *>(x.at),
                            .in = (int)a->w.in,
                            .block_rows = (int)a->w.out / c->n_blocks,
                            .longer_blocks = (int)a->w.out % c->n_blocks,
                            .n_steps = steps_of(a),
                            .n_passes = c->n_passes,
                            .scale = a->w.scale,
                            .bias = a->bias,
                            .y = y.at,
                            .y_element = y.element};
    switch (c->m_tiles) {
    case 1: launch<1>(l, args, c); break;
    case 2: launch<2>(l, args, c); break;
    default: launch<3>(l, args, c);
    }
}
