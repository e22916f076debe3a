/* stream.cu - LINEAR of a few rows, and LINEAR with GATED_ACT behind it: see core/ops.def.
 *
 *     y [M, out] = x [M, in] W^T + b          1 <= M <= 16, bound by reading W once
 *     y [M, F]   = act(x Wg^T + bg) * (x Wu^T + bu),  W = [Wg; Wu] of 2F rows
 *
 * Mathematics on the tensor core with W as the first operand: m16n8k16, 16 rows of W by 8 tokens. The order of a sum's terms is
 * free as long as both operands agree, so a lane takes whatever 16 bytes of a row suit it:
 *
 *     chunk: 64 bytes of each of 16 * M_TILES rows. Lane 4r + q holds bytes 16q .. 16q+15 of rows r and r + 8 of every tile, a
 *     half-warp load being 64 bytes of each of 4 rows; of e4m3 these are 16 elements, 4 steps of the tensor core; of 16 bits 8, 2.
 *     The same elements of token r are 32 (16) bytes of x in shared memory, which is stored with a pitch that keeps banks apart.
 *
 * e4m3 becomes half on the way into the tensor core, two elements an instruction: exact. (mma.sync of e4m3 does the same on Hopper,
 * and would want x in e4m3.)
 *
 * Who does what. The rows of W go to groups of thread blocks in equal shares, whatever their number; a group (a cluster) shares
 * the columns among its blocks, so that as little as possible of x has to be copied to each multiprocessor; a block's warps share
 * the block's rows and columns further (row_warps, column_warps). A warp walks its rows in passes of 16 * M_TILES rows, each over
 * all its chunks. At a pass's end the warps leave their sums in shared memory, and go on; the sums over column warps and blocks
 * are added, in that order, at the next pass's end, so nobody waits for anybody while loads are under way. What a row of y is
 * does not depend on the other tokens, and is the same every time.
 *
 * Loads. Each lane copies what it will itself read into a queue in shared memory (cp.async, DEPTH chunks), so a warp needs no
 * barrier to take it out. The queue is filled before the wait for the node before: W is never written. 8 warps x 12 KB on each of
 * 132 multiprocessors keep 12.7 MB under way; 4.6 TB/s at a microsecond need 4.6 MB.
 *
 * Bytes: W once, x once a block. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/device.cuh"

enum { MAX_WARPS = 8, CHUNK_BYTES = 64, PIECE = 16, X_SLOTS = 4, X_BY_THREADS = 4, ROWS_HELD = 2, MAX_CLUSTER = 8 };

struct stream_args {
    const unsigned char *w;
    const float *scale, *bias;
    const unsigned char *x;
    void *y;
    int64_t x_pitch;  // bytes
    int64_t y_stride; // elements
    int64_t up_row;   // from a gate's row of w to its up row
    int in;
    int n_tokens, act;
    float limit;
    element y_element;
    bool gated;
    int scale_room, bias_room, warp_sums_room; // floats in shared memory

    // x is taken in parts of part_steps steps, the columns of a slot each; with more parts than slots they come again in every pass.
    int part_steps, n_parts, n_slots, x_pitch_there; // pitch: bytes from token to token in a slot
    bool x_by_threads;                               // one part, copied by plain loads

    // Shares, divided by the host: units (columns of y) of groups, of the row warps of one, of a pass; chunks of the blocks of a group.
    int group_units, longer_groups; // so many groups have one more
    int rank_chunks, longer_ranks;
    int sub_units, pass_units, n_passes; // of the longest group
    int row_warps, log2_column_warps;
};

// ---- one instruction each -------------------------------------------------------------------------------------------

/* 16 bytes, or zeros. */
static __device__ void copy_later(uint32_t to, const void *from, bool zeros, uint64_t policy) {
    asm volatile("{\n\t.reg .pred zeros;\n\tsetp.ne.b32 zeros, %2, 0;\n\t"
                 "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, zeros, %3;\n\t}" ::"r"(to),
                 "l"(from), "r"((int)zeros), "l"(policy)
                 : "memory");
}
static __device__ void close_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> static __device__ void wait_batches() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

static __device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- formats of W ---------------------------------------------------------------------------------------------------
// A lane's 16 bytes of a row as STEPS steps of the tensor core: lo and hi are a step's first two elements and its last two.
// X_ASIDE: by how much the pitch of tokens of x passes a multiple of 128 bytes, which keeps the lanes of a load in different banks:
// those of a token lie 32 bytes apart for e4m3, so that the next token goes between them, else side by side.

struct e4m3_weights {
    using product = __half;
    static constexpr int BYTES = 1, STEPS = 4, X_ASIDE = 16;
    static __device__ void step(const uint32_t (&w)[4], int s, uint32_t &lo, uint32_t &hi) {
        asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, h;\n\t}"
            : "=r"(lo), "=r"(hi)
            : "r"(w[s]));
    }
};

template <class T> struct plain_weights {
    using product = T;
    static constexpr int BYTES = 2, STEPS = 2, X_ASIDE = 64;
    static __device__ void step(const uint32_t (&w)[4], int s, uint32_t &lo, uint32_t &hi) {
        lo = w[2 * s];
        hi = w[2 * s + 1];
    }
};

// ---- shares ---------------------------------------------------------------------------------------------------------

struct span {
    int begin, end;
};
static __device__ span share(int i, int length, int n_longer) {
    int begin = i * length + min(i, n_longer);
    return {begin, begin + length + (i < n_longer)};
}

/* The units of a warp's pass. */
static __device__ span units_of_pass(const stream_args &a, span group, int row_warp, int pass) {
    int of_warp = group.begin + row_warp * a.sub_units, begin = of_warp + pass * a.pass_units;
    return {begin, min(min(begin + a.pass_units, of_warp + a.sub_units), group.end)};
}

/* Where a unit's row lies in the tiles of a pass: for pairs the upper half of each tile holds gates, the lower one ups. */
static __device__ int tile_row(int unit_in_pass, bool gated, bool up) {
    return gated ? unit_in_pass / 8 * 16 + unit_in_pass % 8 + (up ? 8 : 0) : unit_in_pass;
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <class W, int M_TILES, int N_TILES, int DEPTH, bool CLUSTERED>
static __global__ void __launch_bounds__(MAX_WARPS * 32, 1) stream_linear(const __grid_constant__ stream_args a) {
    constexpr int SLOT = M_TILES * 2 * 32 * PIECE, WARP_BYTES = DEPTH * SLOT, ROWS = 16 * M_TILES, SUM_PITCH = ROWS + 4;
    constexpr int CHUNK = CHUNK_BYTES / W::BYTES, X_BYTES = CHUNK * 2; // of a chunk: elements, and bytes of x that it meets
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) uint64_t x_full[X_SLOTS], x_empty[X_SLOTS];

    const int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    const int column_warps = 1 << a.log2_column_warps, row_warp = warp >> a.log2_column_warps, column_warp = warp & (column_warps - 1);
    const int rank = CLUSTERED ? cluster_rank() : 0, n_ranks = CLUSTERED ? cluster_size() : 1;
    const span group = share(CLUSTERED ? cluster_id() : blockIdx.x, a.group_units, a.longer_groups),
               columns = share(rank, a.rank_chunks, a.longer_ranks);
    const int n_steps = (columns.end - columns.begin - column_warp + column_warps - 1) >> a.log2_column_warps; // 0 is possible

    // Shared memory: queues | x | scales and biases of the group | sums of warps | sums of the block.
    unsigned char *queue = shared + warp * WARP_BYTES, *xs = shared + n_warps * WARP_BYTES;
    float *scales = reinterpret_cast<float *>(xs + a.n_slots * a.n_tokens * a.x_pitch_there), *biases = scales + a.scale_room;
    float *warp_sums = biases + a.bias_room, *block_sums = warp_sums + a.warp_sums_room;
    const int block_pitch = a.row_warps * ROWS + 4, n_units = group.end - group.begin;

    // The queue's writing end: where this lane reads next, of each of its rows that is there.
    const uint64_t policy = policy_read_once();
    const uint32_t row_bytes = (uint32_t)a.in * W::BYTES, step_bytes = column_warps * CHUNK_BYTES;
    const uint32_t first_byte = (columns.begin + column_warp) * CHUNK_BYTES + q * PIECE;
    uint32_t from[M_TILES][2];
    bool there[M_TILES][2]; // else zeros
    int put_pass = n_steps > 0 ? 0 : a.n_passes, put_step = 0;
    uint32_t put_byte = first_byte, to = shared_address(queue) + lane * PIECE;
    const uint32_t to_end = to + DEPTH * SLOT;
    auto begin_pass = [&] {
        span units = units_of_pass(a, group, row_warp, put_pass);
        put_step = 0;
        put_byte = first_byte;
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int u = units.begin + r + (a.gated ? t * 8 : t * 16 + half * 8);
                there[t][half] = u < units.end;
                from[t][half] = first_byte + (there[t][half] ? (u + (a.gated && half ? (uint32_t)a.up_row : 0)) * row_bytes : 0);
            }
    };
    auto put = [&] {
        if (put_pass < a.n_passes) {
#pragma unroll
            for (int t = 0; t < M_TILES; t++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    copy_later(to + (t * 2 + half) * 32 * PIECE, a.w + from[t][half], !there[t][half] || put_byte >= row_bytes, policy);
                    from[t][half] += step_bytes;
                }
            put_byte += step_bytes;
            to = to + SLOT == to_end ? to_end - DEPTH * SLOT : to + SLOT;
            if (++put_step == n_steps && ++put_pass < a.n_passes)
                begin_pass();
        }
        close_batch();
    };
    if (put_pass < a.n_passes)
        begin_pass();
    for (int i = 0; i < DEPTH; i++)
        put();
    let_next_start();

    // Scales and biases of the group's rows, gates and then ups: what this thread brings there. Of more than that, later.
    const int n_rows = a.gated ? 2 * n_units : n_units;
    auto row_of = [&](int i) { return group.begin + (i < n_units ? i : i - n_units + a.up_row); };
    float held_scale[ROWS_HELD], held_bias[ROWS_HELD];
#pragma unroll
    for (int k = 0; k < ROWS_HELD; k++) {
        int i = threadIdx.x + k * blockDim.x;
        held_scale[k] = W::BYTES == 1 && i < n_rows ? a.scale[row_of(i)] : 0;
        held_bias[k] = a.bias && i < n_rows ? a.bias[row_of(i)] : 0;
    }

    // x: of a few tokens by every thread, of more in parts that are copied as wholes and waited for one by one.
    const int x_begin = columns.begin * CHUNK * 2, x_chunks = columns.end - columns.begin;
    const int x_bytes = max(min(columns.end * CHUNK, a.in) - columns.begin * CHUNK, 0) * 2,
              part_bytes = a.part_steps * column_warps * X_BYTES;
    const bool x_stays = a.n_parts <= a.n_slots;
    auto slot_of = [&](int part) { return xs + part % X_SLOTS * a.n_tokens * a.x_pitch_there; };
    auto fetch_part = [&](int count) { // by warp 0; count: of all parts of all passes
        int part = count % a.n_parts, n_bytes = min(x_bytes - part * part_bytes, part_bytes);
        uint32_t barrier = shared_address(&x_full[count % X_SLOTS]), there = shared_address(slot_of(count));
        if (lane == 0)
            barrier_expect(barrier, a.n_tokens * max(n_bytes, 0));
        __syncwarp(); // it knows what to expect
        for (int token = lane; token < a.n_tokens && n_bytes > 0; token += 32)
            bulk_copy(there + token * a.x_pitch_there, a.x + token * a.x_pitch + x_begin + part * part_bytes, n_bytes, barrier);
    };
    if (threadIdx.x < X_SLOTS) {
        barrier_init(shared_address(&x_full[threadIdx.x]), 1);
        barrier_init(shared_address(&x_empty[threadIdx.x]), n_warps);
        barrier_init_done();
    }
    // What lies behind the last column of x is zero, as the queue has it for W. (Where slots are filled again, it is x of before.)
    for (int i = threadIdx.x; x_stays && x_bytes < x_chunks * X_BYTES && i < a.n_tokens * X_BYTES / PIECE; i += blockDim.x) {
        int part = a.n_parts - 1, at = x_bytes - part * part_bytes + i % (X_BYTES / PIECE) * PIECE;
        if (at < (x_chunks * X_BYTES - part * part_bytes))
            *reinterpret_cast<uint4 *>(slot_of(part) + i / (X_BYTES / PIECE) * a.x_pitch_there + at) = make_uint4(0, 0, 0, 0);
    }
    if (!a.x_by_threads)
        __syncthreads(); // the barriers are ready
    wait_for_previous();
    if (a.x_by_threads) {
        uint4 v[X_BY_THREADS];
        int pieces = x_bytes / PIECE;
#pragma unroll
        for (int k = 0; k < X_BY_THREADS; k++) {
            int i = threadIdx.x + k * blockDim.x, token = a.n_tokens == 1 ? 0 : i / pieces;
            if (i < a.n_tokens * pieces)
                v[k] = *reinterpret_cast<const uint4 *>(a.x + token * a.x_pitch + x_begin + (i - token * pieces) * PIECE);
        }
#pragma unroll
        for (int k = 0; k < X_BY_THREADS; k++) {
            int i = threadIdx.x + k * blockDim.x, token = a.n_tokens == 1 ? 0 : i / pieces;
            if (i < a.n_tokens * pieces)
                *reinterpret_cast<uint4 *>(xs + token * a.x_pitch_there + (i - token * pieces) * PIECE) = v[k];
        }
    } else if (warp == 0)
        for (int part = 0; part < min(a.n_parts, a.n_slots); part++)
            fetch_part(part);
    for (int i = threadIdx.x, k = 0; i < n_rows; i += blockDim.x, k++) {
        if (W::BYTES == 1)
            scales[i] = k < ROWS_HELD ? k == 0 ? held_scale[0] : held_scale[1] : a.scale[row_of(i)];
        if (a.bias)
            biases[i] = k < ROWS_HELD ? k == 0 ? held_bias[0] : held_bias[1] : a.bias[row_of(i)];
    }
    __syncthreads(); // scales are there, and x if threads copied it

    float acc[2][M_TILES][N_TILES][4] = {}; // by turns, so that neither waits for the other
    auto leave_sums = [&](float *to, int pitch) {
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int token = n * 8 + q * 2 + i % 2, row = t * 16 + r + i / 2 * 8;
                    if (token < a.n_tokens)
                        to[token * pitch + row] = acc[0][t][n][i] + acc[1][t][n][i];
                    acc[0][t][n][i] = acc[1][t][n][i] = 0;
                }
    };
    // y of a unit, from the sums that `sum_of(tile row)` gives.
    auto write_unit = [&](int token, int unit, int in_pass, auto sum_of) {
        int at = unit - group.begin;
        auto finish = [&](float sum, int i) { return sum * (W::BYTES == 1 ? scales[i] : 1.0f) + (a.bias ? biases[i] : 0.0f); };
        float v = finish(sum_of(tile_row(in_pass, a.gated, false)), at);
        if (a.gated)
            v = activate(a.act, a.limit, v, finish(sum_of(tile_row(in_pass, true, true)), at + n_units));
        store(a.y, token * a.y_stride + unit, a.y_element, v);
    };
    // What the column warps of these rows left, added in their order.
    auto sum_of_warps = [&](const float *sums, int token, int row) {
        float v[MAX_WARPS], sum = 0;
        const float *at = sums + token * SUM_PITCH + row;
#pragma unroll
        for (int c = 0; c < MAX_WARPS; c++)
            v[c] = c < column_warps ? at[c * a.n_tokens * SUM_PITCH] : 0;
#pragma unroll
        for (int c = 0; c < MAX_WARPS; c++)
            sum += v[c];
        return sum;
    };
    // The same of the blocks of the cluster.
    auto sum_of_blocks = [&](const float *sums, int token, int row) {
        float v[MAX_CLUSTER], sum = 0;
        uint32_t at = shared_address(sums + token * block_pitch + row);
#pragma unroll
        for (int k = 0; k < MAX_CLUSTER; k++)
            v[k] = k < n_ranks ? load_at_rank(address_at_rank(at, k)) : 0;
#pragma unroll
        for (int k = 0; k < MAX_CLUSTER; k++)
            sum += v[k];
        return sum;
    };
    auto write_pass_of_cluster = [&](int pass) {
        const float *sums = block_sums + (pass & 1) * a.n_tokens * block_pitch;
        int a_token = a.row_warps * a.pass_units;
        for (int i = rank * blockDim.x + threadIdx.x; i < a.n_tokens * a_token; i += n_ranks * blockDim.x) {
            int token = i / a_token, w = i % a_token / a.pass_units, in_pass = i % a.pass_units;
            span units = units_of_pass(a, group, w, pass);
            if (units.begin + in_pass < units.end)
                write_unit(token, units.begin + in_pass, in_pass, [&](int row) { return sum_of_blocks(sums, token, w * ROWS + row); });
        }
    };
    auto end_pass = [&](int pass) {
        float *of_row_warp = warp_sums + ((pass & 1) * n_warps + row_warp * column_warps) * a.n_tokens * SUM_PITCH;
        float *of_block = block_sums + (pass & 1) * a.n_tokens * block_pitch + row_warp * ROWS;
        int thread = column_warp * 32 + lane, n_threads = column_warps * 32;
        if (n_ranks > 1 && pass > 0) {
            cluster_wait(); // every block's sums of the pass before are there, and those of the one before that have been read
            write_pass_of_cluster(pass - 1);
        }
        if (column_warps == 1 && n_ranks > 1)
            leave_sums(of_block, block_pitch);
        else {
            leave_sums(of_row_warp + column_warp * a.n_tokens * SUM_PITCH, SUM_PITCH);
            threads_sync(1 + row_warp, n_threads); // the sums of the column warps are there; the pass before's have been read
            if (n_ranks > 1)
                for (int i = thread; i < a.n_tokens * ROWS; i += n_threads)
                    of_block[i / ROWS * block_pitch + i % ROWS] = sum_of_warps(of_row_warp, i / ROWS, i % ROWS);
            else {
                span units = units_of_pass(a, group, row_warp, pass);
                for (int i = thread; i < a.n_tokens * a.pass_units; i += n_threads) {
                    int token = a.n_tokens == 1 ? 0 : i / a.pass_units, in_pass = i - token * a.pass_units;
                    if (units.begin + in_pass < units.end)
                        write_unit(token, units.begin + in_pass, in_pass, [&](int row) { return sum_of_warps(of_row_warp, token, row); });
                }
            }
        }
        if (n_ranks > 1)
            cluster_arrive();
    };

    int take_slot = 0, n_taken = 0; // n_taken: parts of x
    for (int pass = 0; pass < a.n_passes; pass++) {
        for (int part = 0, step = 0; part < a.n_parts; part++, n_taken++) {
            const unsigned char *x_slot = slot_of(x_stays ? part : n_taken) + column_warp * X_BYTES + q * (X_BYTES / 4);
            if (!a.x_by_threads && (!x_stays || pass == 0))
                barrier_wait(shared_address(&x_full[n_taken % X_SLOTS]), n_taken / X_SLOTS & 1);
            for (int end = min(step + a.part_steps, n_steps); step < end; step++) {
                wait_batches<DEPTH - 1>();
                uint32_t w[M_TILES][2][4];
#pragma unroll
                for (int t = 0; t < M_TILES; t++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        uint4 v = *reinterpret_cast<const uint4 *>(queue + take_slot * SLOT + (t * 2 + half) * 32 * PIECE + lane * PIECE);
                        w[t][half][0] = v.x, w[t][half][1] = v.y, w[t][half][2] = v.z, w[t][half][3] = v.w;
                    }
                const unsigned char *x = x_slot + ((step - part * a.part_steps) << a.log2_column_warps) * X_BYTES;
#pragma unroll
                for (int s = 0; s < W::STEPS; s += 2) {
                    uint32_t m[2][M_TILES][4];
#pragma unroll
                    for (int t = 0; t < M_TILES; t++)
#pragma unroll
                        for (int k = 0; k < 2; k++)
#pragma unroll
                            for (int half = 0; half < 2; half++)
                                W::step(w[t][half], s + k, m[k][t][half], m[k][t][half + 2]);
#pragma unroll
                    for (int n = 0; n < N_TILES; n++) {
                        int token = min(n * 8 + r, a.n_tokens - 1); // what a column beyond them sums, nobody reads
                        uint4 b = *reinterpret_cast<const uint4 *>(x + token * a.x_pitch_there + s / 2 * PIECE);
#pragma unroll
                        for (int t = 0; t < M_TILES; t++) {
                            mma(acc[0][t][n], m[0][t], b.x, b.y, typename W::product());
                            mma(acc[1][t][n], m[1][t], b.z, b.w, typename W::product());
                        }
                    }
                }
                put();
                take_slot = take_slot + 1 == DEPTH ? 0 : take_slot + 1;
            }
            if (x_stays)
                continue;
            if (lane == 0)
                barrier_arrive(shared_address(&x_empty[n_taken % X_SLOTS]));
            // The part before this one has long been read by all, or about: its place takes the part that is X_SLOTS ahead.
            int next = n_taken - 1 + X_SLOTS;
            if (warp == 0 && n_taken > 0 && next < a.n_parts * a.n_passes) {
                barrier_wait(shared_address(&x_empty[(n_taken - 1) % X_SLOTS]), (n_taken - 1) / X_SLOTS & 1);
                fetch_part(next);
            }
        }
        end_pass(pass);
    }
    if (n_ranks > 1) {
        cluster_wait();
        write_pass_of_cluster(a.n_passes - 1);
        cluster_arrive();
        cluster_wait(); // the others have read our sums
    }
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { X_ROOM = 80 << 10, WARPS = 8, SHARED_MOST = 226 << 10, SHARED_LEAST = 116 << 10 };

static int up_to(int n, int of) { return (n + of - 1) / of; }
static int chunk_of(enum element e) { return e == ELEMENT_E4M3 ? CHUNK_BYTES : CHUNK_BYTES / 2; }

/* How a block takes x. */
struct x_parts {
    int n_parts, steps, n_slots, pitch;
    bool by_threads;
    int bytes;
};

static struct x_parts x_parts_of(const struct dstream *a, int n_rows, const struct stream_cut *c) {
    int x_bytes = chunk_of(a->w.element) * 2,
        steps = up_to(up_to(up_to((int)a->w.in, chunk_of(a->w.element)), c->cluster), c->column_warps);
    int a_step = c->column_warps * x_bytes, n_threads = c->row_warps * c->column_warps * 32;
    int aside = a->w.element == ELEMENT_E4M3 ? e4m3_weights::X_ASIDE : plain_weights<__half>::X_ASIDE;
    struct x_parts p = {.n_parts = 1, .steps = steps, .n_slots = 1};
    p.by_threads = n_rows * steps * a_step <= X_BY_THREADS * PIECE * n_threads;
    if (!p.by_threads) {
        int most = X_ROOM / X_SLOTS / n_rows / a_step;
        p.steps = up_to(steps, X_SLOTS);
        p.steps = p.steps < most ? p.steps : most < 1 ? 1 : most;
        p.n_parts = up_to(steps, p.steps);
        p.n_slots = p.n_parts < X_SLOTS ? p.n_parts : X_SLOTS;
    }
    p.pitch = up_to(p.steps * a_step, 128) * 128 + aside;
    p.bytes = p.n_slots * n_rows * p.pitch;
    return p;
}

/* How deep queues are: of few tokens all that a block of a small weight reads has a place. */
static int depth_of(int n_tokens, const struct stream_cut *c) {
    if (n_tokens <= 8)
        return c->deep && c->cluster == 1 ? 8 : 6;
    return c->m_tiles == 1 ? 8 : c->m_tiles == 2 ? 6 : 4;
}

/* What a block keeps in shared memory beside queues and x: floats. A block has a multiprocessor to itself: of two on one, as the next
 * launch would put them on one that is free early, each takes twice as long. */
struct rooms {
    int scale, bias, warp_sums, block_sums;
    size_t bytes;
};

static struct rooms rooms_of(const struct dstream *a, int n_rows, const struct stream_cut *c) {
    struct dweight w = a->w;
    int units = (int)(a->gated ? w.out / 2 : w.out), n_warps = c->row_warps * c->column_warps, rows = 16 * c->m_tiles;
    int of_group = up_to(units, c->n_blocks / c->cluster) * (a->gated ? 2 : 1);
    int n_passes = up_to(up_to(up_to(units, c->n_blocks / c->cluster), c->row_warps), a->gated ? rows / 2 : rows),
        buffers = n_passes > 1 ? 2 : 1;
    struct rooms r = {.scale = w.element == ELEMENT_E4M3 ? of_group : 0, .bias = a->bias ? of_group : 0};
    r.warp_sums = c->column_warps == 1 && c->cluster > 1 ? 0 : buffers * n_warps * n_rows * (rows + 4);
    r.block_sums = c->cluster > 1 ? buffers * n_rows * (c->row_warps * rows + 4) : 0;
    r.bytes = (size_t)n_warps * depth_of(n_rows, c) * c->m_tiles * 32 * 2 * PIECE + (size_t)x_parts_of(a, n_rows, c).bytes +
              sizeof(float) * ((size_t)r.scale + r.bias + r.warp_sums + r.block_sums);
    r.bytes = r.bytes > SHARED_LEAST ? r.bytes : SHARED_LEAST;
    return r;
}

using kernel = void (*)(stream_args);

template <class W, int M_TILES> static kernel kernel_for_tokens(int n, bool clustered, bool deep) {
    constexpr int DEPTH = M_TILES == 1 ? 8 : M_TILES == 2 ? 6 : 4;
    if (n <= 8)
        return clustered ? stream_linear<W, M_TILES, 1, 6, true>
               : deep    ? stream_linear<W, M_TILES, 1, 8, false>
                         : stream_linear<W, M_TILES, 1, 6, false>;
    return clustered ? stream_linear<W, M_TILES, 2, DEPTH, true> : stream_linear<W, M_TILES, 2, DEPTH, false>;
}

template <class W> static kernel kernel_for(int m_tiles, int n_tokens, bool clustered, bool deep) {
    switch (m_tiles) {
    case 1: return kernel_for_tokens<W, 1>(n_tokens, clustered, deep);
    case 2: return kernel_for_tokens<W, 2>(n_tokens, clustered, deep);
    default: return kernel_for_tokens<W, 3>(n_tokens, clustered, deep);
    }
}

static kernel kernel_of(enum element w, int n_tokens, const struct stream_cut *c) {
    switch (w) {
    case ELEMENT_E4M3: return kernel_for<e4m3_weights>(c->m_tiles, n_tokens, c->cluster > 1, c->deep);
    case ELEMENT_F16: return kernel_for<plain_weights<__half>>(c->m_tiles, n_tokens, c->cluster > 1, c->deep);
    default: return kernel_for<plain_weights<__nv_bfloat16>>(c->m_tiles, n_tokens, c->cluster > 1, c->deep);
    }
}

/* How many blocks run at once, one on a multiprocessor: with clusters of more than two not all have a place. */
int stream_blocks(int cluster) {
    static int found[MAX_CLUSTER + 1];
    if (found[cluster] == 0) {
        int device = 0, n = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {dim3(n / cluster * cluster), dim3(WARPS * 32), SHARED_MOST, nullptr, &attribute, 1};
        const struct stream_cut c = {1, 1, 1, cluster, cluster, false};
        kernel k = kernel_of(ELEMENT_E4M3, 1, &c);
        cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MOST);
        int n_clusters = 0;
        if (cudaOccupancyMaxActiveClusters(&n_clusters, k, &config) != cudaSuccess || n_clusters == 0)
            n_clusters = 1; // the launch says why
        found[cluster] = (n_clusters < n / cluster ? n_clusters : n / cluster) * cluster;
    }
    return found[cluster];
}

/* About how long a block takes, in clocks of a multiprocessor: what its warps issue, two to a quarter, or what it reads. Figures are
 * those that order the cuts of bench/cuda_linear.cu as an H200 does. */
static int64_t cost_of(const struct dstream *a, int n_rows, const struct stream_cut *c) {
    bool narrow = a->w.element == ELEMENT_E4M3;
    int units = up_to((int)(a->gated ? a->w.out / 2 : a->w.out), c->n_blocks / c->cluster), n_tiles = up_to(n_rows, 8);
    int64_t n_passes = up_to(up_to(units, c->row_warps), c->m_tiles * (a->gated ? 8 : 16));
    int64_t chunks = up_to(up_to((int)a->w.in, chunk_of(a->w.element)), c->cluster), n_steps = up_to((int)chunks, c->column_warps);
    int64_t step = 20 + c->m_tiles * (narrow ? 45 + 26 * n_tiles : 20 + 13 * n_tiles);
    int64_t end = 300 + (c->column_warps > 1 ? 150 : 0) + (c->cluster > 1 ? 1200 : 0);
    struct x_parts x = x_parts_of(a, n_rows, c);
    int64_t bytes =
        chunks * (units * (a->gated ? 2 : 1) * CHUNK_BYTES + n_rows * chunk_of(a->w.element) * 2 * (x.n_parts > x.n_slots ? n_passes : 1));
    int64_t issued = 2 * n_passes * (n_steps * step + end), read = bytes / 26;
    read += read * (WARPS / c->column_warps - 1) / 120; // memory likes long pieces of a row
    return (issued > read ? issued + read / 4 : read + issued / 4) + (c->cluster > 1 ? 2500 : 0);
}

struct stream_cut stream_cut_of(const struct dstream *a, int n_rows) {
    struct stream_cut best = {}; // none
    int64_t least = INT64_MAX;
    for (int cluster = 1; cluster <= MAX_CLUSTER; cluster *= 2)
        for (int row_warps = 1; row_warps <= WARPS; row_warps *= 2)
            for (int m_tiles = 1; m_tiles <= STREAM_MAX_M_TILES; m_tiles++) {
                struct stream_cut c = {m_tiles, row_warps, WARPS / row_warps, cluster, stream_blocks(cluster)};
                c.deep = true;
                c.deep = rooms_of(a, n_rows, &c).bytes <= SHARED_MOST;
                if (rooms_of(a, n_rows, &c).bytes <= SHARED_MOST && cost_of(a, n_rows, &c) < least) {
                    best = c;
                    least = cost_of(a, n_rows, &c);
                }
            }
    return best;
}

bool stream_takes(const struct dstream *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    enum element product = w.element == ELEMENT_E4M3 ? ELEMENT_F16 : w.element;
    bool elements = (product == ELEMENT_F16 || product == ELEMENT_BF16) && x.element == product &&
                    (y.element == ELEMENT_F32 || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
    bool lies_well = (w.element == ELEMENT_E4M3 ? w.in % 16 == 0 : w.in % 8 == 0) && (uintptr_t)w.at % 16 == 0 &&
                     (uintptr_t)x.at % 16 == 0 && x.stride % 8 == 0;
    bool counts = w.in < 1 << 24 && w.out < 1 << 24 && w.out * w.in * (w.element == ELEMENT_E4M3 ? 1 : 2) <= UINT32_MAX;
    if (!elements || !lies_well || !counts || n_rows < 1 || n_rows > STREAM_MAX_ROWS || (a->gated && w.out % 2))
        return false;
    return stream_cut_of(a, n_rows).n_blocks > 0;
}

bool stream_takes_cut(const struct dstream *a, int n_rows, const struct stream_cut *cut) {
    return rooms_of(a, n_rows, cut).bytes <= SHARED_MOST;
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

void launch_stream_linear_cut(const struct launch *l, int n_rows, const struct dstream *a, struct dmat x, struct dmat y,
                              const struct stream_cut *cut) {
    struct dweight w = a->w;
    struct rooms rooms = rooms_of(a, n_rows, cut);
    struct x_parts parts = x_parts_of(a, n_rows, cut);
    int units = (int)(a->gated ? w.out / 2 : w.out), n_groups = cut->n_blocks / cut->cluster,
        chunks = up_to((int)w.in, chunk_of(w.element));
    int sub_units = up_to(up_to(units, n_groups), cut->row_warps), n_passes = up_to(sub_units, cut->m_tiles * (a->gated ? 8 : 16));
    stream_args args = {static_cast<const unsigned char *>(w.at),
                        w.scale,
                        a->bias,
                        static_cast<const unsigned char *>(x.at),
                        y.at,
                        x.stride * 2,
                        y.stride,
                        w.out / 2,
                        (int)w.in,
                        n_rows,
                        a->act,
                        a->limit,
                        y.element,
                        a->gated,
                        rooms.scale,
                        rooms.bias,
                        rooms.warp_sums,
                        parts.steps,
                        parts.n_parts,
                        parts.n_slots,
                        parts.pitch,
                        parts.by_threads,
                        units / n_groups,
                        units % n_groups,
                        chunks / cut->cluster,
                        chunks % cut->cluster,
                        sub_units,
                        up_to(sub_units, n_passes),
                        n_passes,
                        cut->row_warps,
                        __builtin_ctz(cut->column_warps)};
    kernel k = kernel_of(w.element, n_rows, cut);
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)rooms.bytes);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cut->cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int n_warps = cut->row_warps * cut->column_warps;
    cudaLaunchConfig_t config = {dim3(cut->n_blocks), dim3(n_warps * 32), rooms.bytes, l->stream, attributes, 2};
    cudaLaunchKernelEx(&config, k, args);
}

void launch_stream_linear(const struct launch *l, int n_rows, const struct dstream *a, struct dmat x, struct dmat y) {
    struct stream_cut cut = stream_cut_of(a, n_rows);
    launch_stream_linear_cut(l, n_rows, a, x, y, &cut);
}
