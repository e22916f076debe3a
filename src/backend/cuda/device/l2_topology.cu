/* l2_topology.cu - which multiprocessors and which pages of memory are of which side of the L2: see l2_topology.h.
 *
 * One thread a multiprocessor times single atomics, the fastest of a few, so that others on the card can only make a
 * time longer. All multiprocessors do so at once: that moves a time by little (docs/lab/cuda_decoding.md).
 *
 *     multiprocessors    each times the same lines of a few pages. Less their means, the times of any two are alike or
 *                        opposite, but for some cycles; what is common to all is found as the principal axis of them
 *     pages              chunks by twos that differ in bit 12, eight such pairs of a page from everywhere in it. A
 *                        multiprocessor of either side times all of a page's, so what it takes to any place drops out
 */
#include "backend/cuda/device/l2_topology.h"
#include "backend/cuda/value.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum {
    CHUNK_BYTES = 4096,
    PAGE_CHUNKS = SIDES_PAGE / CHUNK_BYTES,
    LINE_BYTES = 128,
    TIMES = 3,
    OWN_PAGES = 4,
    SHARED_BYTES = 200 << 10
}; // SHARED_BYTES: one block a multiprocessor
const float SURE = 0.8f, APART = 80,
            LEAST = 0.5f; // SURE: of 0.97, APART: of 196 cycles, LEAST: of that, as measured on an H200
const int NOISE = 200; // one chunk of so many may be off, and one more; a bit of the hash that were another would make
                       // half of them so

// ---- on the device --------------------------------------------------------------------------------------------------

struct looking {
    char *at;
    uint32_t *cycles; // [multiprocessor or side][page][SIDES_CHUNKS]; not written: not measured
    uint32_t *taken;  // pages, by each side
    int n_pages;
    uint32_t zero; // which the compiler does not know
};

__device__ uint32_t processor() {
    uint32_t n;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(n));
    return n;
}
__device__ uint32_t now() {
    uint32_t cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
    return cycles;
}
/* Adds nothing, and waits until it is done. */
__device__ void add_nothing(uint32_t *at, uint32_t zero) {
    uint32_t v;
    asm volatile("atom.global.add.u32 %0, [%1], 0;" : "=r"(v) : "l"(at) : "memory");
    if ((v & zero) == 1)
        asm volatile("trap;");
}
__device__ uint32_t fastest(uint32_t *at, uint32_t zero) {
    uint32_t least = ~0u;
    add_nothing(at, zero); // from memory
#pragma unroll 1
    for (int i = 0; i < TIMES; i++) {
        uint32_t begun = now();
        add_nothing(at, zero);
        least = min(least, now() - begun);
    }
    return least;
}

/* 115 and 11: of OWN_PAGES, no two hashes agree in more than 52 of 64, whatever the flips. */
__host__ __device__ int chunk_of(int page, int i) {
    return ((i >> 1) * 115 + page * 11) % (PAGE_CHUNKS / 2) * 2 + (i & 1);
}
__host__ __device__ int line_of(int page, int i) { return (i * 5 + page * 3) % 32; }

__device__ void look_at_page(const looking &a, int row, int page) {
    for (int i = 0; i < SIDES_CHUNKS; i++) {
        char *at = a.at + (int64_t)page * SIDES_PAGE + chunk_of(page, i) * CHUNK_BYTES + line_of(page, i) * LINE_BYTES;
        a.cycles[((int64_t)row * a.n_pages + page) * SIDES_CHUNKS + i] =
            fastest(reinterpret_cast<uint32_t *>(at), a.zero);
    }
}

__global__ void look_from_all(looking a) {
    uint32_t sm = processor();
    for (int i = 0; i < a.n_pages && sm < SIDES_MOST_SMS; i++) // not all at the same page
        look_at_page(a, (int)sm, (int)((i + sm) % a.n_pages));
}

__global__ void look_from_sides(looking a, dl2_sides s) {
    uint32_t sm = processor();
    if (sm >= SIDES_MOST_SMS)
        return;
    int side = s.sm[sm / 32] >> sm % 32 & 1;
    for (;;) {
        int page = (int)atomicAdd(&a.taken[side], 1u);
        if (page >= a.n_pages)
            return;
        look_at_page(a, side, page);
    }
}

// ---- looking --------------------------------------------------------------------------------------------------------

/* Cycles [n_rows][n_pages][SIDES_CHUNKS], 0 where nothing was measured. */
struct looked {
    uint32_t *cycles = nullptr;
    int n_pages = 0;
    looked() = default;
    looked(const looked &) = delete;
    looked &operator=(const looked &) = delete;
    ~looked() { free(cycles); }
    const uint32_t *of(int row, int page) const { return cycles + ((int64_t)row * n_pages + page) * SIDES_CHUNKS; }
};

struct on_device { // freed at the end
    void *at = nullptr;
    on_device() = default;
    on_device(const on_device &) = delete;
    on_device &operator=(const on_device &) = delete;
    ~on_device() { cudaFree(at); }
};

cudaError_t blocks(int *n) { // one a multiprocessor
    int device;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(n, cudaDevAttrMultiProcessorCount, device);
    for (const void *kernel : {(const void *)look_from_all, (const void *)look_from_sides})
        if (code == cudaSuccess)
            code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    return code;
}

/* s: from its sides, of which there are two rows; NULL: from all multiprocessors. */
cudaError_t look(cudaStream_t stream, const dl2_sides *s, void *at, int n_pages, looked *out) {
    size_t n = (size_t)(s ? 2 : SIDES_MOST_SMS) * n_pages * SIDES_CHUNKS, n_bytes = (n + 2) * sizeof(uint32_t);
    int n_blocks;
    on_device memory;
    out->n_pages = n_pages;
    out->cycles = static_cast<uint32_t *>(malloc(n * sizeof(uint32_t)));
    cudaError_t code = out->cycles ? blocks(&n_blocks) : cudaErrorMemoryAllocation;
    if (code == cudaSuccess)
        code = cudaMalloc(&memory.at, n_bytes);
    if (code == cudaSuccess)
        code = cudaMemsetAsync(memory.at, 0, n_bytes, stream);
    if (code != cudaSuccess)
        return code;
    uint32_t *words = static_cast<uint32_t *>(memory.at);
    looking a = {static_cast<char *>(at), words + 2, words, n_pages, 0};
    if (s)
        look_from_sides<<<n_blocks, 1, SHARED_BYTES, stream>>>(a, *s);
    else
        look_from_all<<<n_blocks, 1, SHARED_BYTES, stream>>>(a);
    code = cudaGetLastError();
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(out->cycles, words + 2, n * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream);
    cudaError_t done = cudaStreamSynchronize(stream); // before the memory goes
    return code == cudaSuccess ? done : code;
}

// ---- multiprocessors ------------------------------------------------------------------------------------------------

enum { OWN_CHUNKS = OWN_PAGES * SIDES_CHUNKS };

/* A multiprocessor's cycles less their mean. */
struct latencies {
    int sm;
    double at[OWN_CHUNKS];
};

double product(const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < OWN_CHUNKS; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Of those that have been looked from; how many. */
int centred(const looked &l, latencies *all) {
    int n = 0;
    for (int sm = 0; sm < SIDES_MOST_SMS; sm++) {
        double mean = 0;
        bool there = true;
        for (int i = 0; i < OWN_CHUNKS; i++) {
            mean += l.of(sm, 0)[i] / (double)OWN_CHUNKS;
            there = there && l.of(sm, 0)[i];
        }
        for (int i = 0; i < OWN_CHUNKS; i++)
            all[n].at[i] = l.of(sm, 0)[i] - mean;
        all[n].sm = sm;
        n += there;
    }
    return n;
}

/* The principal axis, toward the first: a few turns are enough where one is far longer than the others. */
void find_axis(const latencies *all, int n, double *axis) {
    memcpy(axis, all[0].at, sizeof all[0].at);
    for (int turn = 0; turn < 4; turn++) {
        double next[OWN_CHUNKS] = {};
        for (int k = 0; k < n; k++) {
            double sign = product(all[k].at, axis) < 0 ? -1 : 1;
            for (int i = 0; i < OWN_CHUNKS; i++)
                next[i] += sign * all[k].at[i] / n;
        }
        memcpy(axis, next, sizeof next);
    }
}

const char *judge(const dl2_sides *s, int n_seen) {
    if (n_seen < 2)
        return "multiprocessors did not all take part";
    if (s->sure < SURE)
        return "what atomics take does not tell multiprocessors apart";
    if (s->n_sms[0] < n_seen / 4 || s->n_sms[1] < n_seen / 4)
        return "nearly all multiprocessors are of one side";
    return s->apart < APART ? "sides are not far enough from one another" : nullptr;
}

/* The first multiprocessor is of side 0. */
void find_sides(const latencies *all, int n, dl2_sides *s) {
    double axis[OWN_CHUNKS];
    if (n > 0)
        find_axis(all, n, axis);
    s->sure = 1;
    for (int k = 0; k < n; k++) {
        double with = product(all[k].at, axis), own = product(all[k].at, all[k].at);
        int side = with < 0;
        s->sm[all[k].sm / 32] |= (uint32_t)side << all[k].sm % 32;
        s->n_sms[side]++;
        s->sure = fminf(s->sure, (float)(fabs(with) / sqrt(product(axis, axis) * own + 1e-9)));
    }
    for (int i = 0; n > 0 && i < OWN_CHUNKS; i++)
        s->apart += (float)(2 * fabs(axis[i]) / OWN_CHUNKS);
    s->none = judge(s, n);
}

// ---- pages ----------------------------------------------------------------------------------------------------------

struct one_page {
    float toward; // by how many cycles chunks of hash 1 are nearer to side 1 than those of hash 0
    int n_against;
    bool missing;
};

one_page of_page(const looked &l, int page, uint32_t hash) {
    const uint32_t *from0 = l.of(0, page), *from1 = l.of(1, page);
    one_page p = {};
    float difference[SIDES_CHUNKS];
    for (int i = 0; i < SIDES_CHUNKS; i++) {
        p.missing = p.missing || !from0[i] || !from1[i];
        bool is_1 = __builtin_parity((uint32_t)chunk_of(page, i) & hash);
        difference[i] = ((float)from0[i] - (float)from1[i]) * (is_1 ? 1.0f : -1.0f);
        p.toward += difference[i] / SIDES_CHUNKS;
    }
    for (float d : difference)
        p.n_against += d * p.toward <= 0;
    return p;
}

const char *judge(const dside_pages *p, bool missing) {
    if (missing)
        return "multiprocessors did not all take part";
    if (p->n_against > 1 + p->n_chunks / NOISE)
        return "chunks are not where the hash says";
    return p->apart < APART || p->least < LEAST * p->apart ? "sides are not far enough from one another" : nullptr;
}

/* The one that most chunks agree with. */
uint32_t find_hash(const looked &l) {
    uint32_t best = 0;
    int least = INT_MAX;
    for (uint32_t hash = 1; hash < PAGE_CHUNKS; hash++) {
        int n_against = 0;
        for (int i = 0; i < l.n_pages; i++)
            n_against += of_page(l, i, hash).n_against;
        if (n_against < least)
            best = hash, least = n_against;
    }
    return best;
}

dside_pages find_pages(const looked &l, uint32_t hash, uint32_t *flips) {
    dside_pages all = {};
    bool missing = false;
    all.n_pages = l.n_pages;
    all.n_chunks = l.n_pages * SIDES_CHUNKS;
    all.least = INFINITY;
    memset(flips, 0, (size_t)(l.n_pages + 31) / 32 * sizeof *flips);
    for (int i = 0; i < l.n_pages; i++) {
        one_page p = of_page(l, i, hash);
        flips[i / 32] |= (uint32_t)(p.toward < 0) << i % 32;
        all.n_flipped += p.toward < 0;
        all.n_against += p.n_against;
        all.apart += fabsf(p.toward) / (float)l.n_pages;
        all.least = fminf(all.least, fabsf(p.toward));
        missing = missing || p.missing;
    }
    all.none = judge(&all, missing);
    return all;
}

enum { OF_EIGHT = 7, FIRST_TWO = 3 }; // bits 12 to 14; those that l2_copy.h asks for

} // namespace

cudaError_t sides_of_pages(cudaStream_t stream, const struct dl2_sides *s, void *at, int n_pages, uint32_t *flips,
                           struct dside_pages *out) {
    looked l;
    cudaError_t code = look(stream, s, at, n_pages, &l);
    *out = {};
    if (code == cudaSuccess)
        *out = find_pages(l, s->hash, flips);
    return code;
}

cudaError_t l2_sides_find(cudaStream_t stream, struct dl2_sides *out) {
    latencies all[SIDES_MOST_SMS + 1];
    on_device memory;
    looked l, of_sides;
    uint32_t flips[1];
    *out = {};
    cudaError_t code = cudaMalloc(&memory.at, (size_t)(OWN_PAGES + 1) * SIDES_PAGE);
    if (code != cudaSuccess)
        return code;
    char *at = reinterpret_cast<char *>(((uintptr_t)memory.at + SIDES_PAGE - 1) / SIDES_PAGE * SIDES_PAGE);
    code = look(stream, nullptr, at, OWN_PAGES, &l);
    if (code == cudaSuccess)
        find_sides(all, centred(l, all), out);
    if (code != cudaSuccess || out->none)
        return code;
    code = look(stream, out, at, OWN_PAGES, &of_sides);
    if (code != cudaSuccess)
        return code;
    out->hash = find_hash(of_sides);
    out->none = find_pages(of_sides, out->hash, flips).none;
    if (!out->none && (out->hash & OF_EIGHT) != FIRST_TWO)
        out->none = "of eight chunks other four are on a side than weights could lie by";
    return code;
}
