/* watch.cu - rows that hold values at the end of half precision: see watch.c. A block a row, each value once; or one
 * block for the rows' sizes. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/step/watch.h"
#include "backend/cuda/value.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) watch_values(dmat x, dcounter cut) {
    const uint16_t *row = static_cast<const uint16_t *>(x.at) + blockIdx.x * x.stride;
    bool found = false;
    for (int i = threadIdx.x; i < x.width; i += THREADS) {
        uint16_t size = row[i] & 0x7fff;
        found |= size == 0x7bff || size == 0x7c00; // 65504; an infinity, which is read as that
    }
    add_to_counter(cut, __syncthreads_or(found) && blockIdx.x < *cut.n_rows, threadIdx.x == 0);
}

static __global__ void __launch_bounds__(THREADS)
    watch_sizes(const float *sizes, float least, float most, dcounter cut) {
    int n_rows = *cut.n_rows, n = 0;
    for (int first = 0; first < n_rows; first += THREADS) {
        int row = first + threadIdx.x;
        n += __syncthreads_count(row < n_rows && sizes[row] >= least && sizes[row] <= most);
    }
    add_to_counter(cut, n, threadIdx.x == 0);
}

/* Without an early start, so that what stands behind it may take for granted what it would without it. */
void launch_watch(const struct launch *l, int n_rows, const struct dwatch *w, struct dcounter cut) {
    if (w->sizes)
        watch_sizes<<<1, THREADS, 0, l->stream>>>(w->sizes, w->least, w->most, cut);
    else
        watch_values<<<n_rows, THREADS, 0, l->stream>>>(w->x, cut);
}
