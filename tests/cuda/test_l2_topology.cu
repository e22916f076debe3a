/* test_l2_topology.cu - sides of the L2 (src/backend/cuda/device/l2_topology.cu) and copies of weights that lie by them
 * (l2_copy.cu).
 *
 *     test_l2_topology [SEED [N]]     N random copies (40), also [GYRE_TEST_SEED]
 *
 * Copies of weights of any size, in any shape, with any flips: every row's piece is where l2_copy.h's description has
 * it, found here chunk by chunk from the hash of addresses; zeros behind the weight's end; and no other byte is
 * written. What is found of the device's sides is found again, every time; and what is near by it is near by times
 * taken afterwards. A device without sides says why, but for an H200 and an H100, which have them. */
#include "backend/cuda/device/l2_copy.cu"
#include "backend/cuda/device/l2_topology.cu"
#include "backend/cuda/value.h"

#include "products.cuh"

#include <algorithm>
#include <time.h>
#include <vector>

enum { POISON = 0xee };

static uint64_t seed;
static int drawn(int n) { return (int)(hash(seed++) % (unsigned)n); }

// ---- copies ---------------------------------------------------------------------------------------------------------

static int side_of(const dl2_copy &n, int64_t offset) { // of what lies there
    return __builtin_parity((uint32_t)(offset % SIDES_PAGE) / L2_COPY_CHUNK & n.hash) ^
           (n.flips[offset / SIDES_PAGE / 32] >> offset / SIDES_PAGE % 32 & 1);
}

/* The chunks of a group that are of that side, in their order; -1: they are neither of the two halves. */
static int64_t chunk_at(const dl2_copy &n, int64_t group, int side, int i) {
    static const int halves[2][4] = {{0, 4, 3, 7}, {1, 5, 2, 6}};
    int half = side_of(n, group * L2_COPY_GROUP) != side;
    for (int k : halves[half])
        if (side_of(n, group * L2_COPY_GROUP + k * 4096) != side)
            return -1;
    return group * L2_COPY_GROUP + halves[half][i] * 4096;
}

struct weight_there {
    int out, in;
    std::vector<uint8_t> bytes;
    uint8_t at(int row, int column) const { return column < in ? bytes[(size_t)row * in + column] : 0; }
};

/* What a copy should hold, from the description alone. False: a place is asked for twice, or is none. */
struct expected {
    const dl2_copy &n;
    const weight_there &w;
    std::vector<uint8_t> bytes;
    std::vector<bool> written;

    bool put(int64_t at, int tile, int row, int piece) {
        int half = row / (n.shape.rows / n.shape.halves), rows = n.shape.rows / n.shape.halves,
            apart = w.out / n.shape.halves;
        int column = tile * rows + row % rows;
        for (int i = 0; i < 128; i++, at++) {
            if (at < 0 || at >= (int64_t)bytes.size() || written[at])
                return false;
            written[at] = true;
            bytes[at] = column < apart ? w.at(half * apart + column, piece * 128 + i) : 0;
        }
        return true;
    }
    bool put_tile(int tile, int64_t first_group, int side) {
        int rows = n.shape.rows, first = std::min(rows, 128), n_parts = (rows - first + 31) / 32,
            part = n_parts ? (rows - first) / n_parts : 1, of_half = 1;
        while (first / 4 * of_half * 2 <= 32)
            of_half *= 2;
        bool fine = true;
        for (int piece = 0; piece < n.n_pieces; piece++)
            for (int r = 0; r < rows; r++) {
                int k = r / (first / 4), tail = piece * n_parts + (r - first) / part, of_chunk = 32 / part;
                int64_t at =
                    r < first ? chunk_at(n, first_group + piece / of_half, side, k) +
                                    (piece % of_half * (first / 4) + r % (first / 4)) * 128
                              : chunk_at(n, first_group + n.n_pieces + tail / of_chunk / 4, side, tail / of_chunk % 4) +
                                    (tail % of_chunk * part + (r - first) % part) * 128;
                fine = fine && put(at, tile, r, piece);
            }
        return fine;
    }
    bool put_all() {
        bool fine = true;
        for (int tile = 0; tile < n.n_tiles; tile++)
            for (int side = 0; side < 2; side++)
                fine = fine && put_tile(tile, (int64_t)tile * n.tile_groups, side);
        return fine;
    }
};

static bool check_copy(l2_copy_shape shape, int out, int in) {
    weight_there w = {out, in, std::vector<uint8_t>((size_t)out * in)};
    for (uint8_t &v : w.bytes)
        v = (uint8_t)hash(seed++);
    dl2_copy n;
    uint8_t *weight, *copy;
    if (!l2_copy_lay_out({nullptr, out, in, ELEMENT_E4M3, nullptr}, shape, &n))
        return printf("no copy of %d x %d in tiles of %d\n", out, in, shape.rows), false;
    n.hash = hash(seed++) & 0x1f8 | 3;
    for (uint32_t &f : n.flips)
        f = hash(seed++);
    size_t n_bytes = (size_t)l2_copy_pages(&n) * SIDES_PAGE;
    MUST(cudaMalloc(&weight, w.bytes.size()));
    MUST(cudaMalloc(&copy, n_bytes));
    MUST(cudaMemcpy(weight, w.bytes.data(), w.bytes.size(), cudaMemcpyHostToDevice));
    MUST(cudaMemset(copy, POISON, n_bytes));
    n.at = reinterpret_cast<char *>(copy);
    launch_l2_copy(nullptr, &n, {weight, out, in, ELEMENT_E4M3, nullptr});
    MUST(cudaDeviceSynchronize());
    expected e = {n, w, std::vector<uint8_t>(n_bytes, POISON), std::vector<bool>(n_bytes)};
    bool fine = e.put_all();
    std::vector<uint8_t> got(n_bytes);
    MUST(cudaMemcpy(got.data(), copy, n_bytes, cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    for (size_t i = 0; i < n_bytes; i++)
        wrong += got[i] != e.bytes[i];
    MUST(cudaFree(weight));
    MUST(cudaFree(copy));
    if (!fine || wrong)
        printf("%d x %d in tiles of %d rows, %d halves: %zu of %zu bytes wrong%s\n", out, in, shape.rows, shape.halves,
               wrong, n_bytes, fine ? "" : ", and places are taken twice");
    return fine && !wrong;
}

static int check_copies(int n) {
    static const l2_copy_shape shapes[] = {{144, 2}, {96, 2},  {112, 2}, {176, 2}, {120, 1}, {56, 1},
                                           {72, 1},  {128, 1}, {136, 1}, {160, 1}, {24, 1},  {240, 1}};
    int n_bad = 0;
    for (int t = 0; t < n; t++) {
        l2_copy_shape shape = shapes[t % (int)(sizeof shapes / sizeof *shapes)];
        int in = t % 7 ? 16 * (1 + drawn(60)) : 3584, out = 16 * (1 + drawn(t % 7 ? 60 : 12));
        n_bad += !check_copy(shape, out, in);
    }
    dl2_copy ignored;
    n_bad += l2_copy_lay_out({nullptr, 1 << 20, 1 << 14, ELEMENT_E4M3, nullptr}, shapes[0], &ignored); // too many pages
    n_bad += l2_copy_lay_out({nullptr, 256, 256, ELEMENT_F16, nullptr}, shapes[0], &ignored);
    return n_bad;
}

// ---- the hash -------------------------------------------------------------------------------------------------------

/* Whatever the hash is, pages' flips and where times scatter, it is found, also where a chunk or two of all seem to be
 * on the other side. */
static int check_hashes(int n) {
    int n_bad = 0;
    for (int t = 0; t < n; t++) {
        looked l;
        uint32_t of_chunks = 1 + (uint32_t)drawn(PAGE_CHUNKS - 1), flips = hash(seed++);
        int turned[2] = {t % 2 ? drawn(OWN_CHUNKS) : -1, t % 2 ? drawn(OWN_CHUNKS) : -1};
        l.n_pages = OWN_PAGES;
        l.cycles = static_cast<uint32_t *>(malloc(2 * OWN_CHUNKS * sizeof *l.cycles));
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < OWN_CHUNKS; i++) {
                int page = i / SIDES_CHUNKS, chunk = chunk_of(page, i % SIDES_CHUNKS);
                bool far = side != (__builtin_parity((uint32_t)chunk & of_chunks) ^ (int)(flips >> page & 1) ^
                                    (i == turned[0] || i == turned[1]));
                l.cycles[side * OWN_CHUNKS + i] = (uint32_t)(280 + 200 * far + drawn(60));
            }
        uint32_t found = find_hash(l);
        if (found != of_chunks)
            printf("hash %#x, found %#x\n", of_chunks, found);
        n_bad += found != of_chunks;
    }
    return n_bad;
}

// ---- the device's sides ---------------------------------------------------------------------------------------------

/* Cycles of an atomic to chunks of both sides, one by one from each multiprocessor: sums[near or far], counts. */
static __global__ void time_sides(dl2_copy n, dl2_sides s, int n_groups, unsigned long long *sums, uint32_t zero) {
    uint32_t sm = processor();
    int own = l2_copy_bit(s.sm, (int)sm);
    for (int k = 0; k < 64; k++) {
        int group = (int)((sm * 131 + k * 977) % n_groups), side = k & 1;
        char *at = n.at + (int64_t)group * L2_COPY_GROUP + l2_copy_chunk(l2_copy_half(&n, group, side), k >> 1 & 3) +
                   (k * 7 % 32) * 128;
        atomicAdd(&sums[side != own], (unsigned long long)fastest(reinterpret_cast<uint32_t *>(at), zero));
        atomicAdd(&sums[2 + (side != own)], 1ull);
    }
}

static int check_nearness(const dl2_sides &s, char *at, const uint32_t *flips, int n_pages, float apart) {
    unsigned long long *on_device, sums[4];
    dl2_copy n = {};
    int n_blocks, n_bad = 0;
    MUST(blocks(&n_blocks));
    MUST(cudaMalloc(&on_device, sizeof sums));
    MUST(cudaFuncSetAttribute(time_sides, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    for (int first = 0; first < n_pages; first += L2_COPY_MOST_PAGES) {
        int pages = std::min((int)L2_COPY_MOST_PAGES, n_pages - first);
        n.at = at + (int64_t)first * SIDES_PAGE;
        n.hash = s.hash;
        memcpy(n.flips, flips + first / 32, sizeof n.flips);
        MUST(cudaMemset(on_device, 0, sizeof sums));
        time_sides<<<n_blocks, 1, SHARED_BYTES>>>(n, s, pages * (SIDES_PAGE / L2_COPY_GROUP), on_device, 0);
        MUST(cudaMemcpy(sums, on_device, sizeof sums, cudaMemcpyDeviceToHost));
        double l2_copy = (double)sums[0] / (double)sums[2], far = (double)sums[1] / (double)sums[3];
        printf("pages %d to %d: %.0f cycles near, %.0f far\n", first, first + pages - 1, l2_copy, far);
        n_bad += !(far - l2_copy > 0.8 * apart);
    }
    MUST(cudaFree(on_device));
    return n_bad;
}

static int check_pages(const dl2_sides &s) {
    enum { PAGES = 512 };
    char *memory;
    std::vector<uint32_t> flips(PAGES / 32), again(PAGES / 32);
    dside_pages p;
    int n_bad = 0;
    MUST(cudaMalloc(&memory, (size_t)(PAGES + 1) * SIDES_PAGE));
    char *at = reinterpret_cast<char *>(((uintptr_t)memory + SIDES_PAGE - 1) / SIDES_PAGE * SIDES_PAGE);
    MUST(cudaMemset(at, POISON, (size_t)PAGES * SIDES_PAGE));
    for (int t = 0; t < 5; t++) {
        MUST(sides_of_pages(nullptr, &s, at, PAGES, again.data(), &p));
        if (t == 0)
            flips = again;
        n_bad += p.none || again != flips;
    }
    printf("%d pages, %d flipped; %d of %d chunks against the hash; %.0f cycles apart, of the worst page %.0f%s%s\n",
           p.n_pages, p.n_flipped, p.n_against, p.n_chunks, p.apart, p.least, p.none ? ": " : "", p.none ? p.none : "");
    n_bad += check_nearness(s, at, flips.data(), PAGES, s.apart);
    std::vector<uint8_t> there((size_t)PAGES * SIDES_PAGE);
    MUST(cudaMemcpy(there.data(), at, there.size(), cudaMemcpyDeviceToHost));
    n_bad += std::count(there.begin(), there.end(), (uint8_t)POISON) != (ptrdiff_t)there.size(); // as it was
    MUST(cudaFree(memory));
    return n_bad;
}

static int check_sides() {
    dl2_sides s, again;
    cudaDeviceProp card;
    int n_bad = 0;
    MUST(cudaGetDeviceProperties(&card, 0));
    MUST(l2_sides_find(nullptr, &s));
    printf("%s: %d and %d multiprocessors, %.3f sure, %.0f cycles apart, hash %#x%s%s\n", card.name, s.n_sms[0],
           s.n_sms[1], s.sure, s.apart, s.hash, s.none ? ": no sides, " : "", s.none ? s.none : "");
    if (s.none)
        return (strstr(card.name, "H200") || strstr(card.name, "H100 80GB")) && !strstr(card.name, "MIG");
    for (int t = 0; t < 5; t++) {
        MUST(l2_sides_find(nullptr, &again));
        n_bad += again.none || again.hash != s.hash || memcmp(again.sm, s.sm, sizeof s.sm) != 0;
    }
    return n_bad + check_pages(s);
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    int n = argc > 2 ? atoi(argv[2]) : 40;
    printf("seed %llu\n", (unsigned long long)seed);
    int n_bad = check_copies(n);
    n_bad += check_hashes(100);
    n_bad += check_sides();
    printf(n_bad ? "%d CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad > 0;
}
