/* delta_decode.cu - a gated DeltaNet layer between its products, token by token, in one node; see delta_layer.h.
 *
 * A block has a sequence and a value head, its 256 threads all of the head's state in registers: [D, D] float32, fours
 * of a row side by side in a warp, 64 KiB at D = 128, which cross memory once each way a step. Two blocks to a
 * multiprocessor have 128 KiB under way. delta_token.cuh has what a token does to it. The value heads of
 * a key head each convolve its q and k for themselves, from L2, and are a cluster, since one of them moves on the
 * window of inputs that all read.
 *
 * Before it waits for the projection a block asks for its state in L2. Which slot that is it reads from the plan, which
 * may be the last step's still: a prefetch of another slot costs time and nothing else, and is read past L1, where an
 * old entry would stay.
 *
 * Where states go back (BACK) the tokens between the slot's state and the step are walked first, by the rows that the
 * slot keeps (delta.h): what that gives is the same to the bit, since a token is made in the same order of sums.
 *
 * Bytes: 8 D^2 a head and sequence (4 D^2 with a state of bfloat16). Sums are in a fixed order that depends on nothing
 * but D. */
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/recurrent/delta_token.cuh"

enum { FIRST_BLOCKS = 264 }; // that are on the card while the node before still runs

/* The tokens that a block walks: those that are computed again, then the step's own. */
struct walk {
    int first, n_again, n, n_kept; // rows from `first` on; n_kept: after so many the state is the slot's
    int base;                      // the first one's position
};
template <bool BACK>
static __device__ __forceinline__ walk walk_of(const ddelta_layer &a, const device_plan &plan, int seq) {
    int first = plan.query_start[seq], n = plan.query_start[seq + 1] - first, position = plan.position[first];
    if constexpr (!BACK)
        return walk{first, 0, n, n, position};
    int base = a.back.base[seq];
    return walk{first, position - base, position - base + n, a.back.kept[seq] - base, base};
}

/* The rows of tokens that the slot's state does not have, once nobody reads those before. */
template <int D, bool RAW>
static __device__ void keep_rows(const ddelta_layer &a, const walk &at, float *slot, int h, bool all,
                                 const window<D, RAW> &w, const token_gates<RAW> &gates) {
    for (int i = max(at.n_kept, at.n_again); i < at.n; i++) {
        int t = at.first + i - at.n_again;
        w.keep_row(a, kept_u(a, slot, at.base + i), t, all);
        if (threadIdx.x == 0)
            gates.keep_row(a, kept_gates(a, slot, at.base + i, h), t);
    }
}

template <int D, bool RAW, class State, bool BACK>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_decode(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan, bool few) {
    typedef state_tile<D> tile;
    __shared__ token_memory<D> m;
    let_next_start();
    int h = blockIdx.x, seq = blockIdx.y, group = a.shape.n_value_heads / a.shape.n_key_heads, kh = h / group;
    if ((int)(blockIdx.y * gridDim.x + blockIdx.x) < FIRST_BLOCKS)
        prefetch_bytes(state_of<State>(a, __ldcg(plan.state_slot + seq), h), D * D * (int)sizeof(State));
    window<D, RAW> w;
    token_gates<RAW> gates, next;
    head_constants head;
    w.open(a, h, kh);
    next.open(a, h, h * D + threadIdx.x % D);
    head.open<D>(a, h);
    wait_for_previous();
    if (seq >= step_seqs(plan))
        return; // the cluster
    int slot = plan.state_slot[seq];
    if (few && chunked_tokens(a, plan, seq) > 0)
        return; // likewise
    walk at = walk_of<BACK>(a, plan, seq);
    float *kept = kept_of(a, slot);
    State *state = state_of<State>(a, slot, h) + tile::place();
    float4 s[tile::DEPTH];
    tile::load(s, state);
    w.recall(a, kept);
    auto load = [&](int i) {
        if (BACK && i < at.n_again) {
            w.load_again(kept_u(a, kept, at.base + i));
            next.load_again(a, kept_gates(a, kept, at.base + i, h));
        } else if (i < at.n) {
            w.load_token(a, at.first + i - at.n_again), next.load_token(a, at.first + i - at.n_again);
        }
    };
    load(0);
    bool fresh = at.base == 0; // then what was loaded is another's
    w.forget(fresh);
    tile::forget(s, fresh);
    float inputs[window<D, RAW>::N][DELTA_TAPS - 1];
    for (int i = 0; i < at.n; i++) {
        gates = next;
        if (BACK && i == at.n_kept)
            tile::keep(s, state), w.copy_inputs(inputs);
        auto used = [&] {
            load(i + 1);
            if (i == at.n_again && group > 1)
                cluster_is_here(); // this block has used the window, and rows that were kept
        };
        if (BACK && i < at.n_again)
            advance<D, true>(a, m, i % 2, few, 0, h, w, gates, head, s, used);
        else
            advance<D, false>(a, m, i % 2, few, at.first + i - at.n_again, h, w, gates, head, s, used);
    }
    if (!BACK || at.n_kept == at.n)
        tile::keep(s, state), w.copy_inputs(inputs);
    if (group > 1)
        cluster_are_here();
    w.keep(a, kept, h % group == 0, inputs);
    if constexpr (BACK)
        keep_rows(a, at, kept, h, h % group == 0, w, gates);
}

template <int D, class State, bool BACK>
static void launch_heads(const struct launch *l, const ddelta_layer &a, bool few) {
    dim3 grid(a.shape.n_value_heads, l->n_seqs);
    int group = a.shape.n_value_heads / a.shape.n_key_heads;
    if (a.u.col_scale)
        launch_cluster(delta_decode<D, true, State, BACK>, grid, group, THREADS, 0, l->stream, a, l->plan, few);
    else
        launch_cluster(delta_decode<D, false, State, BACK>, grid, group, THREADS, 0, l->stream, a, l->plan, few);
}

template <int D, bool BACK> static void launch_states(const struct launch *l, const ddelta_layer &a, bool few) {
    if (a.cache.element == ELEMENT_F32)
        launch_heads<D, float, BACK>(l, a, few);
    else
        launch_heads<D, __nv_bfloat16, BACK>(l, a, few);
}

template <int D> static void launch_back(const struct launch *l, const ddelta_layer &a, bool few) {
    if (a.back.n > 0)
        launch_states<D, true>(l, a, few);
    else
        launch_states<D, false>(l, a, few);
}

static void launch_of_width(const struct launch *l, const ddelta_layer &a, bool few) {
    switch (a.shape.key_dim) {
    case 32: launch_back<32>(l, a, few); break;
    case 64: launch_back<64>(l, a, few); break;
    default: launch_back<128>(l, a, few);
    }
}

void launch_delta_decode(const struct launch *l, const struct ddelta_layer *a) { launch_of_width(l, *a, false); }
void launch_delta_decode_few(const struct launch *l, const struct ddelta_layer *a) { launch_of_width(l, *a, true); }

bool delta_layer_takes(const struct ddelta *s, int kernel) {
    bool has_width = s->key_dim == 32 || s->key_dim == 64 || s->key_dim == 128;
    return has_width && s->value_dim == s->key_dim && s->state_offset % 4 == 0 && kernel >= 1 && kernel <= DELTA_TAPS &&
           s->n_value_heads <= DELTA_MOST_GROUP * s->n_key_heads &&
           s->n_value_heads * s->value_dim + 32 <= DELTA_MOST_ROW;
}
