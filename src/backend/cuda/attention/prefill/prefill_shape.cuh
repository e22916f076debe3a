/* prefill_shape.cuh - sizes of attention_prefill.cu: what a block of threads has in shared memory, and who waits for
 * whom there.
 *
 *     queries   [panel][row][128 bytes]                  of 16 bits; over an e4m3 cache e4m3 twice, prefill_rows.cuh
 *     keys      ring of N_KEYS  [panel][key][128 bytes]  as scores multiply them: of 16 bits, or e4m3 as they lie in
 *                                                        the cache, and then their scales behind them
 *     values    ring of N_VALUES [panel][key][128 bytes] of 16 bits, always
 *     raw       ring of N_RAW    [panel][key][bytes]     of 8 bits as they lie in the cache, and their scales: what is
 *               to be widened
 *
 * The copying warpgroup fills (full) what both computing warpgroups, or the one whose half it is, have left (empty). */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/wgmma_e4m3.cuh"
#include "backend/cuda/ptx/wgmma_halves.cuh"
#include "backend/cuda/value.h"

namespace {

constexpr int GROUPS = 2, COMPUTE = GROUPS * 128, THREADS = COMPUTE + 128;

template <int DIM_, element E_> struct shape {
    static constexpr int DIM = DIM_;
    static constexpr element E = E_;
    static constexpr bool BYTES = E == ELEMENT_E4M3 || E == ELEMENT_I8, BF16 = E == ELEMENT_BF16;
    static constexpr bool KEYS_AS_THEY_ARE = E == ELEMENT_E4M3; // scores are products of e4m3; else of 16 bits
    static constexpr int SHARERS = DIM == 512 ? 2 : 1;          // warpgroups of the same rows
    static constexpr int ROWS = 64 * GROUPS / SHARERS, KEYS = DIM <= 128 ? 128 : 64, CHANNELS = DIM / SHARERS;
    static constexpr int N_PANELS = DIM / 64, PANEL = KEYS * 128, SIDE = N_PANELS * PANEL;
    static constexpr int QUERY_PANEL = ROWS * 128, QUERY = N_PANELS * QUERY_PANEL;
    // Bytes as they lie in the cache:
    static constexpr int RAW_WIDTH = DIM % 128 == 0 ? 128 : 64, RAW_PANELS = DIM / RAW_WIDTH,
                         RAW_PANEL = KEYS * RAW_WIDTH;
    static constexpr int RAW = BYTES ? RAW_PANELS * RAW_PANEL : 0, SCALES = BYTES ? KEYS * 4 : 0;
    static constexpr int N_RAW = !BYTES ? 0 : DIM == 512 && !KEYS_AS_THEY_ARE ? 1 : 2;

    static constexpr int KEY_STAGE = KEYS_AS_THEY_ARE ? KEYS * DIM : SIDE;
    static constexpr int N_VALUES = DIM == 512 ? 1 : 2, N_KEYS = KEYS_AS_THEY_ARE ? N_VALUES + 1 : N_VALUES;
    static constexpr int KEYS_AT = QUERY, VALUES_AT = KEYS_AT + N_KEYS * KEY_STAGE,
                         RAW_AT = VALUES_AT + N_VALUES * SIDE;
    static constexpr int KEY_SCALES_AT = RAW_AT + N_RAW * RAW,
                         RAW_SCALES_AT = KEY_SCALES_AT + (KEYS_AS_THEY_ARE ? N_KEYS * SCALES : 0);
    static constexpr int ROW_SCALES_AT = RAW_SCALES_AT + N_RAW * SCALES,
                         BARRIERS_AT = ROW_SCALES_AT + (KEYS_AS_THEY_ARE ? ROWS * 4 : 0);
    static constexpr int SHARED =
        BARRIERS_AT + 2 * 8 * (N_KEYS + N_VALUES) + 8 * N_RAW + 1024; // to begin at a multiple of 1,024
    static constexpr int COPY_REGISTERS = !BYTES       ? 40
                                          : DIM == 512 ? 72
                                                       : 56,
                         COMPUTE_REGISTERS = !BYTES       ? 232
                                             : DIM == 512 ? 216
                                                          : 224;
    static_assert(SHARED <= 227 * 1024, "a block has room");
};

struct arguments {
    device_plan plan;
    dattention a;
    dparts parts;
    dmat q, out;
    dweight sinks;
    dcache cache;
    int n_slots;
};

/* Addresses in shared memory. */
template <class S> struct memory {
    char *base;
    uint32_t query;

    __device__ explicit memory(char *shared) {
        base = shared + (1024 - (shared_address(shared) & 1023)) % 1024;
        query = shared_address(base);
    }
    __device__ char *at(uint32_t address) const { return base + (address - query); }

    __device__ uint32_t keys(int tile) const { return query + S::KEYS_AT + tile % S::N_KEYS * S::KEY_STAGE; }
    __device__ uint32_t key_scales(int tile) const { return query + S::KEY_SCALES_AT + tile % S::N_KEYS * S::SCALES; }
    __device__ uint32_t values(int tile) const { return query + S::VALUES_AT + tile % S::N_VALUES * S::SIDE; }
    __device__ uint32_t raw(int i) const { return query + S::RAW_AT + i % ring(S::N_RAW) * S::RAW; }
    __device__ uint32_t raw_scales(int i) const { return query + S::RAW_SCALES_AT + i % ring(S::N_RAW) * S::SCALES; }
    __device__ uint32_t row_scales() const { return query + S::ROW_SCALES_AT; }

    __device__ uint32_t key_full(int tile) const { return barrier(tile % S::N_KEYS); }
    __device__ uint32_t key_empty(int tile) const { return barrier(S::N_KEYS + tile % S::N_KEYS); }
    __device__ uint32_t value_full(int tile) const { return barrier(2 * S::N_KEYS + tile % S::N_VALUES); }
    __device__ uint32_t value_empty(int tile) const {
        return barrier(2 * S::N_KEYS + S::N_VALUES + tile % S::N_VALUES);
    }
    __device__ uint32_t raw_full(int i) const { return barrier(2 * (S::N_KEYS + S::N_VALUES) + i % ring(S::N_RAW)); }
    static __device__ constexpr int ring(int n) { return n > 0 ? n : 1; }

    /* Before the first use of what a ring holds it is not full, and counts as left empty. */
    __device__ static int turn(int i, int n) { return i / n & 1; }

    __device__ void start() const {
        for (int i = 0; i < S::N_KEYS; i++) {
            barrier_init(key_full(i), S::BYTES && !S::KEYS_AS_THEY_ARE ? 128 : 1);
            barrier_init(key_empty(i), 4 * GROUPS * WARP_ARRIVALS); // a warp each
        }
        for (int i = 0; i < S::N_VALUES; i++) {
            barrier_init(value_full(i), S::BYTES ? 128 : 1);
            barrier_init(value_empty(i), 4 * GROUPS * WARP_ARRIVALS);
        }
        for (int i = 0; i < S::N_RAW; i++)
            barrier_init(raw_full(i), 1);
        barrier_init_done();
    }

  private:
    __device__ uint32_t barrier(int i) const { return query + S::BARRIERS_AT + 8 * i; }
};

/* Where channel i of a head stands: of shared keys (kv.cuh) some change places. In both directions. */
template <class S> __device__ int moved(const arguments &p, int i) {
    return S::DIM == 512 && p.a.rotary_dim > 0 ? kv_moved_512(i) : i;
}

__device__ int first_visible(const dattention &a, int position) {
    int first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    return a.chunk > 0 ? max(first, position / a.chunk * a.chunk) : first;
}

/* Launches the kernel of this shape, which no other has: a block of threads for every item that the list may have. */
template <class S> void launch_items(void (*kernel)(arguments), const launch *l, const arguments &p) {
    allow_shared(kernel, S::SHARED);
    int n_tiles =
        l->n_tokens * (p.a.n_heads / p.a.n_kv_heads) / S::ROWS + min(l->n_seqs, l->n_tokens / p.parts.least_tokens) + 1;
    launch_node(kernel, n_tiles * p.a.n_kv_heads, THREADS, S::SHARED, l->stream, p);
}

} // namespace
