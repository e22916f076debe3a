/* delta_decode_many.cu - a gated DeltaNet layer between its products where many sequences decode: as delta_decode.cu,
 * bit for bit, at the rate of memory.
 *
 * There a block waits for its state, computes and ends, and while it computes nothing is asked for. Here a block stays:
 * it takes a key head of a sequence after another, and the value heads of each one by one. States come by bulk copies
 * into a ring of STAGES in shared memory, asked for as far ahead; a state goes from the ring into registers, and from
 * there to memory. What else a head wants (window, inputs, gates) is loaded a head ahead. A window is one block's, so
 * no cluster is needed.
 *
 * For heads of 128 channels and steps of one token a sequence. Bytes: as there. */
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/recurrent/delta_token.cuh"

enum { MANY_WIDTH = 128, STAGES = 3, MOST_GROUPS = 192 }; // MOST_GROUPS: key heads of sequences, of a block

/* Where a key head of a sequence is. */
struct group_place {
    int row, slot, key_head;
    bool fresh;
};

struct many_memory {
    token_memory<MANY_WIDTH> token;
    group_place group[MOST_GROUPS];
    uint64_t arrived[STAGES];
};

/* All that a head brings but its state. */
template <bool RAW> struct head_inputs {
    window<MANY_WIDTH, RAW> w;
    token_gates<RAW> gates;
    head_constants head;
    __device__ void load_head(const ddelta_layer &a, const group_place &g, int h) {
        w.open(a, h, g.key_head);
        gates.open(a, h, h * MANY_WIDTH + threadIdx.x % MANY_WIDTH);
        head.open<MANY_WIDTH>(a, h);
        w.recall(a, kept_of(a, g.slot));
        w.forget(g.fresh);
        w.load_token(a, g.row);
        gates.load_token(a, g.row);
    }
};

/* A block's heads, one after the other: value head i % per of its group i / per. */
struct head_list {
    int n, per;
    __device__ int head(const group_place *groups, int i) const { return groups[i / per].key_head * per + i % per; }
};

static __device__ head_list list_heads(const ddelta_layer &a, const device_plan &plan, group_place *groups) {
    int n_all = step_seqs(plan) * a.shape.n_key_heads, block = blockIdx.x, n_blocks = gridDim.x;
    int n = block < n_all ? (n_all - block + n_blocks - 1) / n_blocks : 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int at = block + i * n_blocks, seq = at / a.shape.n_key_heads, row = plan.query_start[seq];
        groups[i] = group_place{row, plan.state_slot[seq], at % a.shape.n_key_heads, plan.position[row] == 0};
    }
    int per = a.shape.n_value_heads / a.shape.n_key_heads;
    return head_list{n * per, per};
}

template <bool RAW, class State>
static __global__ void __launch_bounds__(THREADS, 1)
    delta_decode_many(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan) {
    typedef state_tile<MANY_WIDTH> tile;
    constexpr int BYTES = MANY_WIDTH * MANY_WIDTH * (int)sizeof(State);
    extern __shared__ __align__(128) char ring[];
    __shared__ many_memory m;
    let_next_start();
    if (threadIdx.x < STAGES)
        barrier_init(shared_address(&m.arrived[threadIdx.x]), 1);
    barrier_init_done();
    wait_for_previous();
    head_list heads = list_heads(a, plan, m.group);
    __syncthreads(); // barriers and groups are there
    auto state_of_head = [&](int i) { return state_of<State>(a, m.group[i / heads.per].slot, heads.head(m.group, i)); };
    auto ask = [&](int i) { // by a thread
        uint32_t barrier = shared_address(&m.arrived[i % STAGES]);
        barrier_expect(barrier, BYTES);
        bulk_copy(shared_address(ring + i % STAGES * BYTES), state_of_head(i), BYTES, barrier);
    };
    for (int i = 0; threadIdx.x == 0 && i < STAGES && i < heads.n; i++)
        ask(i);
    head_inputs<RAW> now, next;
    if (heads.n > 0)
        next.load_head(a, m.group[0], heads.head(m.group, 0));
    for (int i = 0; i < heads.n; i++) {
        const group_place g = m.group[i / heads.per];
        float4 s[tile::DEPTH];
        now = next;
        barrier_wait(shared_address(&m.arrived[i % STAGES]), i / STAGES % 2);
        tile::load(s, reinterpret_cast<const State *>(ring + i % STAGES * BYTES) + tile::place());
        tile::forget(s, g.fresh);
        advance<MANY_WIDTH>(a, m.token, i % 2, false, g.row, heads.head(m.group, i), now.w, now.gates, now.head, s,
                            [&] {
                                if (threadIdx.x == 0 && i + STAGES < heads.n) // all have taken this state from the ring
                                    ask(i + STAGES);
                                if (i + 1 < heads.n)
                                    next.load_head(a, m.group[(i + 1) / heads.per], heads.head(m.group, i + 1));
                            });
        tile::keep(s, state_of_head(i) + tile::place());
        now.w.keep(a, kept_of(a, g.slot), i % heads.per == heads.per - 1);
    }
}

template <bool RAW, class State> static void launch_states(const struct launch *l, const ddelta_layer &a, int blocks) {
    int n_bytes = STAGES * MANY_WIDTH * MANY_WIDTH * (int)sizeof(State);
    allow_shared(delta_decode_many<RAW, State>, n_bytes);
    launch_node(delta_decode_many<RAW, State>, blocks, THREADS, n_bytes, l->stream, a, l->plan);
}

bool delta_decode_many_takes(const struct launch *l, const struct ddelta_layer *a) {
    int groups = l->n_seqs * a->shape.n_key_heads, blocks = n_multiprocessors();
    return a->shape.key_dim == MANY_WIDTH && l->n_tokens == l->n_seqs && 4 * groups >= 3 * blocks &&
           groups <= MOST_GROUPS * blocks;
}

void launch_delta_decode_many(const struct launch *l, const struct ddelta_layer *a) {
    int blocks = n_multiprocessors();
    if (a->cache.element == ELEMENT_F32 && a->u.col_scale)
        launch_states<true, float>(l, *a, blocks);
    else if (a->cache.element == ELEMENT_F32)
        launch_states<false, float>(l, *a, blocks);
    else if (a->u.col_scale)
        launch_states<true, __nv_bfloat16>(l, *a, blocks);
    else
        launch_states<false, __nv_bfloat16>(l, *a, blocks);
}
