/* moe_router.cu - the router's LINEAR, MOE_ROUTE and the list of experts of a few tokens, in one node.
 *
 *     logits [T, E] = x [T, D] W^T + b        T <= 32, E <= 256
 *
 * A cluster of eight blocks shares the rows of W, each up to 32 of them; a block's 16 warps share the columns, chunks
 * of 32 by turns. The tensor core has W as the first operand, eight tokens as the second (m16n8k16). Lane 4r + q has 16
 * bytes of rows r and r + 8 of each 16 and of token r, so any order of a chunk's columns does that both agree on. A
 * warp's first chunks of W are in registers before the wait for the node before. Sums of warps are added in their order
 * through shared memory, and go to the first block, which routes and makes the list. So a token's logits are the same,
 * to the bit, whatever others stand beside it. One token's ids are posted to moe_up, which does not wait for this
 * node's end: so it may start only when this one's wait is over, and with it all that made x.
 *
 * Bytes: W once, 0.5 MB of 128 experts by 2,048; x once a block, from the L2. What counts is that one node begins and
 * ends, not three. */
#include "backend/cuda/moe/moe_list.cuh"
#include "backend/cuda/moe/moe_route.cuh"
#include "backend/cuda/moe/moe_route_shared.cuh"
#include "backend/cuda/moe/moe_router.h"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

enum { CLUSTER = 8, WARPS = LISTED_WARPS, CHUNK = 32, EARLY = 4, ROUTER_SHARED = 160 << 10 };

struct router_args {
    const uint16_t *w, *x;
    const float *bias; // NULL: none
    int64_t x_stride;
    int in, n_experts, rows; // rows: of a block
    route_args route;        // but for its logits
    list_args list;
    int n_tokens;
    unsigned long long *posted; // moe_stream.h; NULL: nobody looks
};

/* 16 bytes of each row that the lane has of a chunk; zeros where nothing is. */
template <int TILES>
static __device__ __forceinline__ void load_chunk(const router_args &a, int first_row, int chunk,
                                                  uint4 (&w)[TILES][2]) {
    int r = threadIdx.x % 32 / 4, column = chunk * CHUNK + threadIdx.x % 4 * 8;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = t * 16 + half * 8 + r;
            bool there = row < a.rows && first_row + row < a.n_experts && column < a.in;
            w[t][half] = there ? *reinterpret_cast<const uint4 *>(a.w + (int64_t)(first_row + row) * a.in + column)
                               : make_uint4(0, 0, 0, 0);
        }
}

template <int TILES, int OCTETS, bool BF16>
static __device__ __forceinline__ void add_chunk(const router_args &a, int chunk, const uint4 (&w)[TILES][2],
                                                 float (&sums)[TILES][OCTETS][4]) {
    int column = chunk * CHUNK + threadIdx.x % 4 * 8;
    uint4 x[OCTETS];
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        int token = min(o * 8 + (int)threadIdx.x % 32 / 4, a.n_tokens - 1);
        x[o] = make_uint4(0, 0, 0, 0);
        if (column < a.in)
            x[o] = *reinterpret_cast<const uint4 *>(a.x + token * a.x_stride + column);
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const uint32_t first[4] = {w[t][0].x, w[t][1].x, w[t][0].y, w[t][1].y},
                       second[4] = {w[t][0].z, w[t][1].z, w[t][0].w, w[t][1].w};
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
            multiply_add<BF16>(sums[t][o], first, x[o].x, x[o].y);
            multiply_add<BF16>(sums[t][o], second, x[o].z, x[o].w);
        }
    }
}

/* A token's sums of a warp lie together, at a distance by which the lanes of a store meet no bank twice. */
template <int TILES> constexpr int token_pitch = TILES * 16 + 4;

/* The block's rows of all tokens' logits, to the first block; sums [WARPS][OCTETS * 8][token_pitch], shared. */
template <int TILES, int OCTETS>
static __device__ __forceinline__ void send_logits(const router_args &a, int first_row, float *sums,
                                                   const float (&mine)[TILES][OCTETS][4], const float *logits,
                                                   const uint64_t *arrived) {
    constexpr int ROWS = TILES * 16, TOKENS = OCTETS * 8, PITCH = token_pitch<TILES>;
    int r = threadIdx.x % 32 / 4, q = threadIdx.x % 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[(warp * TOKENS + o * 8 + q * 2 + i % 2) * PITCH + t * 16 + i / 2 * 8 + r] = mine[t][o][i];
    __syncthreads(); // all warps' are there
    for (int i = threadIdx.x; i < ROWS * TOKENS; i += WARPS * 32) {
        int row = i % ROWS, token = i / ROWS;
        if (row >= a.rows || first_row + row >= a.n_experts || token >= a.n_tokens)
            continue;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += sums[(w * TOKENS + token) * PITCH + row];
        sum += a.bias ? a.bias[first_row + row] : 0.0f;
        store_at_rank(address_at_rank(shared_address(logits + token * a.n_experts + first_row + row), 0), sum,
                      address_at_rank(shared_address(arrived), 0));
    }
}

static __device__ __forceinline__ void post_ids(unsigned long long *at, unsigned long long ids) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(ids) : "memory");
}
/* By a warp, which has put them in shared memory. */
static __device__ __forceinline__ void post_chosen(unsigned long long *at, int top_k, const int *ids) {
    int lane = threadIdx.x % 32;
    __syncwarp(); // all ids are there
    uint32_t mine = lane < top_k ? (uint32_t)ids[lane] << lane % 4 * 8 : 0,
             low = __reduce_or_sync(0xffffffffu, lane < 4 ? mine : 0),
             high = __reduce_or_sync(0xffffffffu, lane >= 4 ? mine : 0);
    if (lane == 0)
        post_ids(at, (unsigned long long)high << 32 | low);
}

template <int TILES, int OCTETS, bool BF16>
static __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WARPS * 32, 1)
    moe_router(device_plan plan, const __grid_constant__ router_args a, dmoe_list list) {
    const bool posts = a.posted;
    if (!posts)
        let_next_start();
    extern __shared__ int shared[];
    __shared__ uint64_t arrived;
    int rank = cluster_rank(), first_row = rank * a.rows, warp = threadIdx.x / 32,
        n_chunks = (a.in + CHUNK - 1) / CHUNK, slots = route_slots(a.route.how);
    const list_memory memory(a.list, shared);
    float *logits = reinterpret_cast<float *>(memory.ids + a.n_tokens * slots),
          *sums = logits + a.n_tokens * a.n_experts;
    // Whoever read what the layer before posted has let the nodes start that this one starts behind.
    if (posts && rank == 0 && threadIdx.x == 0) {
        post_ids(a.posted, NOT_POSTED);
        __threadfence(); // before moe_up looks
    }
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&arrived), 1);
        barrier_init_done();
        if (rank == 0)
            barrier_expect(shared_address(&arrived), a.n_tokens * a.n_experts * (int)sizeof(float));
    }
    __syncthreads(); // the barrier is ready
    cluster_arrive();
    uint4 early[EARLY][TILES][2];
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        load_chunk<TILES>(a, first_row, warp + i * WARPS, early[i]);
    if (rank == 0)
        memory.clear(a.list);
    cluster_wait(); // all blocks are there, and the first one's barrier
    wait_for_previous();
    if (posts && threadIdx.x == 0) // moe_up, which finds x there then, and NOT_POSTED
        let_next_start();
    float mine[TILES][OCTETS][4] = {};
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        add_chunk<TILES, OCTETS, BF16>(a, warp + i * WARPS, early[i], mine);
    for (int chunk = warp + EARLY * WARPS; chunk < n_chunks; chunk += WARPS) {
        uint4 w[TILES][2];
        load_chunk<TILES>(a, first_row, chunk, w);
        add_chunk<TILES, OCTETS, BF16>(a, chunk, w, mine);
    }
    send_logits<TILES, OCTETS>(a, first_row, sums, mine, logits, &arrived);
    int n_tokens = min(step_tokens(plan), a.n_tokens);
    route_args route = a.route;
    if (rank == CLUSTER - 1) // beside the choice
        for (int t = warp; t < n_tokens; t += WARPS)
            route_shared(route, t);
    if (rank != 0)
        return;
    if (posts && n_tokens == 0 && threadIdx.x == 0)
        post_ids(a.posted, 0); // of a step that is timed
    barrier_wait(shared_address(&arrived), 0);
    route.logits = {logits, a.n_experts, a.n_experts, ELEMENT_F32, nullptr};
    for (int t = warp; t < n_tokens; t += WARPS) {
        route_token(route, t, nullptr, memory.ids + t * slots);
        if (posts)
            post_chosen(a.posted, route.how.top_k, memory.ids);
    }
    __syncthreads(); // all ids are there, and masks are zero
    list_args how = a.list;
    how.is_counted = decodes(plan);
    make_list(how, list, n_tokens * slots, slots, memory);
}

bool moe_router_takes(const struct droute *a, struct dweight w, struct dmat x, int n_tokens) {
    bool halves = w.element == ELEMENT_F16 || w.element == ELEMENT_BF16;
    return n_tokens <= MOE_LISTED_TOKENS && routes_in_registers(*a) && route_slots(*a) <= MOE_LISTED_TOP_K &&
           w.out == a->n_experts && halves && x.element == w.element && w.in % 8 == 0 && w.in <= 1 << 20 &&
           x.stride % 8 == 0 && (uintptr_t)x.at % 16 == 0 && (uintptr_t)w.at % 16 == 0;
}

struct router_kernel {
    void (*kernel)(device_plan, router_args, dmoe_list);
    int sums; // floats
};
template <int TILES, int OCTETS> static router_kernel router_of(bool bf16) {
    return {bf16 ? moe_router<TILES, OCTETS, true> : moe_router<TILES, OCTETS, false>,
            WARPS * OCTETS * 8 * token_pitch<TILES>};
}
template <int TILES> static router_kernel router_of(bool bf16, int n_tokens) {
    return n_tokens <= 8    ? router_of<TILES, 1>(bf16)
           : n_tokens <= 16 ? router_of<TILES, 2>(bf16)
                            : router_of<TILES, 4>(bf16);
}

void launch_moe_router(const struct launch *l, const struct droute *a, const struct dmoe *experts, struct dmat x,
                       struct dweight w, struct dweight linear_bias, struct dweight bias, struct dweight expert_scale,
                       struct dmat ids, struct dmat weights, int tile, struct dmoe_list list) {
    router_args args = {static_cast<const uint16_t *>(w.at),
                        static_cast<const uint16_t *>(x.at),
                        static_cast<const float *>(linear_bias.at),
                        x.stride,
                        (int)w.in,
                        a->n_experts,
                        up_to(a->n_experts, CLUSTER)};
    args.route = {*a, dmat{}, bias, expert_scale, ids, weights};
    args.list = args_of(experts, tile);
    args.n_tokens = l->n_tokens;
    args.posted = list.posted;
    bool bf16 = w.element == ELEMENT_BF16;
    router_kernel r = args.rows > 16 ? router_of<2>(bf16, l->n_tokens) : router_of<1>(bf16, l->n_tokens);
    size_t shared = list_bytes(args.list, l->n_tokens * (route_slots(*a) + a->n_experts)) + r.sums * sizeof(float);
    allow_shared(r.kernel, ROUTER_SHARED);
    launch_node(r.kernel, CLUSTER, WARPS * 32, shared, l->stream, l->plan, args, list);
}
