/* handed.cu - see handed.h: blocks of a cache as bytes in a row, and back.
 *
 *     byte x of the row  =  byte x % span of block x / span;  span = n_layers * part
 *     byte r of a block  =  byte r % part of layer r / part
 *
 * A thread copies words, 16 bytes where sizes and addresses allow it, four at a time and far apart; neighbours copy
 * neighbours. The grid takes a third of the multiprocessors, since steps run beside it: what it reads from another card
 * is bound by the link, and by words under way. Reads and writes each byte once. */
#include "backend/cuda/cache/handed.h"

enum { THREADS = 256, MOST_GRID = 48, AT_ONCE = 4 };

struct place {
    char *there, *here; // in the cache; in the row
};

static __device__ place place_of(const dhanded &h, int64_t x, int64_t row_first) {
    int64_t span = h.part * h.n_layers, i = x / span, r = x - i * span, layer = r / h.part;
    return {h.block[i] + layer * h.pitch + (r - layer * h.part), h.row + (i * h.stride + r - row_first)};
}

template <typename word, bool GATHER>
static __global__ void __launch_bounds__(THREADS) copy_words(const __grid_constant__ dhanded h) {
    int64_t span = h.part * h.n_layers, step = (int64_t)gridDim.x * THREADS * sizeof(word);
    int64_t row_first = h.first / span * h.stride + h.first % span;
    int64_t x = h.first + ((int64_t)blockIdx.x * THREADS + threadIdx.x) * (int64_t)sizeof(word);
    for (; x < h.end; x += AT_ONCE * step) {
        word w[AT_ONCE];
        char *to[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            to[k] = nullptr;
            if (x + k * step < h.end) {
                place p = place_of(h, x + k * step, row_first);
                w[k] = *reinterpret_cast<const word *>(GATHER ? p.there : p.here);
                to[k] = GATHER ? p.here : p.there;
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (to[k])
                *reinterpret_cast<word *>(to[k]) = w[k];
    }
}

template <typename word> static void launch(cudaStream_t stream, const dhanded *h, bool gathers) {
    int64_t words = (h->end - h->first) / (int64_t)sizeof(word), grid = (words + THREADS - 1) / THREADS;
    if (grid > MOST_GRID)
        grid = MOST_GRID;
    if (gathers)
        copy_words<word, true><<<(int)grid, THREADS, 0, stream>>>(*h);
    else
        copy_words<word, false><<<(int)grid, THREADS, 0, stream>>>(*h);
}

/* What divides all sizes and addresses. */
static uint64_t common_bits(const dhanded *h) {
    int64_t span = h->part * h->n_layers;
    uint64_t bits = (uint64_t)h->part | (uint64_t)h->pitch | (uint64_t)h->stride | (uint64_t)h->first |
                    (uint64_t)h->end | (uint64_t)(uintptr_t)h->row;
    for (int64_t i = h->first / span; i * span < h->end; i++)
        bits |= (uint64_t)(uintptr_t)h->block[i];
    return bits;
}

static void launch_copy(cudaStream_t stream, const dhanded *h, bool gathers) {
    uint64_t bits = common_bits(h);
    if (bits % 16 == 0)
        launch<uint4>(stream, h, gathers);
    else if (bits % 4 == 0)
        launch<uint32_t>(stream, h, gathers);
    else
        launch<uint8_t>(stream, h, gathers);
}

void launch_gather(cudaStream_t stream, const dhanded *h) { launch_copy(stream, h, true); }
void launch_scatter(cudaStream_t stream, const dhanded *h) { launch_copy(stream, h, false); }
