/* latent_decode.cu - MLA_ATTENTION up to what is summed in the latent space: bound by reading the cache once.
 *
 *     S [16 heads, keys] = q [c | kr]^T,  P = 2^(S - m),  o [16, 512] = P c
 *
 * Heads are the 16 rows of mma.m16n8k16. A block takes the chunks of the line that are its own (latent.h). One of
 * its warps asks for tiles of 64 keys, 72 KiB, by bulk copies into a ring of three, two tiles ahead and into the next
 * task. All eight compute:
 *
 *     scores   warp w has keys 16 (w % 4) .. of a tile and one half of the 576 channels, w / 4; its queries stay in
 *              registers. The second half's scores go through shared memory to the first
 *     softmax  by the four warps of the first half: of a tile, and over the tiles of a chunk
 *     sums     warp w has latent channels 64 w .. 64 w + 63, a panel of the cache, and all keys: a tile comes to shared
 *              memory once for both products
 *
 * Lists, and the keys that earlier steps wrote, are read before the node before ends: latent_prep waits before it lets
 * this one start, so what came before that is there.
 *
 * At the end of a chunk its sums are divided by the sum of P, rounded to float16, and joined with those before, or
 * left to latent_out where the task is cut. */
#include "backend/cuda/attention/latent/latent_task.cuh"
#include "backend/cuda/ptx/device.cuh"

namespace {

__global__ void __launch_bounds__(THREADS, 1) latent_decode(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory m(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGES; i++)
            barrier_init(m.full(i), 1);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    compute_all(p, m);
}

} // namespace

void launch_latent_decode(const launch *l, const dmla *a, const dlatent_parts *parts, dmat q, dcache cache) {
    arguments p = {l->plan.block_table[cache.group],
                   l->plan.table_width[cache.group],
                   l->block_size,
                   l->plan.counts,
                   a->scale * 1.4426950408889634f,
                   q,
                   cache,
                   *parts};
    allow_shared(latent_decode, SHARED);
    launch_node(latent_decode, parts->n_blocks, THREADS, SHARED, l->stream, p);
}
