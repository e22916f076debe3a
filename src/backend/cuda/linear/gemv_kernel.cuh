/* gemv_kernel.cuh - the kernel of gemv.cu, which says how it works.
 *
 *     gemv/gemv_parts.cuh   arguments, formats, shares
 *     gemv/gemv_feed.cuh    the queue of weights, the rows of x
 *     gemv/gemv_sums.cuh    the multiplying, and what becomes of the sums
 *
 * Its code is as much of its time as its loads: a node of a few microseconds begins with a cold instruction cache, and
 * each thousand instructions more cost it half a microsecond. So what a product ends with is compiled in, every piece
 * stands in one place, and what is rare is called. */
#pragma once

#include "backend/cuda/linear/gemv/gemv_feed.cuh"
#include "backend/cuda/linear/gemv/gemv_sums.cuh"

template <class W, int M_TILES, int DEPTH, gemv_end E, bool CLUSTERED>
static __global__ void __launch_bounds__(MAX_WARPS * 32, 1) gemv(const __grid_constant__ gemv_args<E> a) {
    using queue_type = weight_queue<W, M_TILES, DEPTH, E, CLUSTERED>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) uint64_t x_full[X_SLOTS], x_empty[X_SLOTS];
    const station<E, CLUSTERED> at(a);
    const places m(a, shared, at.n_warps * queue_type::BYTES);

    queue_type queue(a, at, m.queues);
    let_next_start();
    const x_rows<W, E, CLUSTERED> x(a, at, m.x, x_full, x_empty);
    x.open();
#pragma unroll 1
    for (int i = threadIdx.x; i < (in_pairs(E) ? 2 : 1) * at.n_units; i += blockDim.x) { // they are weights as well
        int row = row_of<E>(a, at.group.begin + (i < at.n_units ? i : i - at.n_units), i >= at.n_units);
        if (W::BYTES == 1)
            m.scales[i] = a.scale[row];
        if (a.bias)
            m.biases[i] = a.bias[row];
    }
    const results<W, M_TILES, E, CLUSTERED> out(a, at, m);
    wait_for_previous();
    x.bring();
    __syncthreads(); // scales are there, and x if threads copied it

    warp_sums<W, M_TILES> sums;
    const int token_at = min(at.r, a.n_tokens - 1) * a.x_pitch_there; // what a column beyond them sums, nobody reads
    for (int pass = 0, n_taken = 0; pass < a.n_passes; pass++) {      // n_taken: parts of x
        for (int part = 0, step = 0; part < a.n_parts; part++, n_taken++) {
            const unsigned char *columns = x.part(part, n_taken, pass) + token_at;
            for (int end = min(step + a.part_steps, at.n_steps); step < end; step++) {
                uint32_t w[M_TILES][2][4];
                queue.take(w);
                sums.add_chunk(w, columns);
                columns += x.X_BYTES << a.log2_column_warps;
                queue.put();
            }
            x.leave_part(n_taken);
        }
        out.end_pass(pass, sums);
    }
    out.end();
}
