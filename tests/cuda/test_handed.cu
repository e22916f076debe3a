/* test_handed.cu - blocks of a cache as bytes in a row, and back (cache/handed.cu): each byte of each layer at its
 * place, and none beside them, for parts of any size, wherever a run begins and ends. */
#include "backend/cuda/cache/handed.cu"

#include "products.cuh"

#include <string.h>
#include <time.h>
#include <vector>

/* A cache of some blocks in the order 0, 1, ..., layers `pitch` apart; those that are copied in any order. */
struct cache {
    int64_t part, pitch;
    int n_layers, n_blocks;
    std::vector<uint8_t> bytes;
    std::vector<int> chosen;
};

static uint64_t seed;
static int below(int n) { return (int)(hash(seed++) % (unsigned)n); }

static cache draw(int64_t part, int n_layers, int n_chosen) {
    cache c = {part, 0, n_layers, n_chosen + 3, {}, {}};
    c.pitch = c.n_blocks * part + (part % 16 == 0 ? 16 * below(3) : below(40));
    c.bytes.resize(c.pitch * n_layers + 16);
    for (uint8_t &b : c.bytes)
        b = (uint8_t)hash(seed++);
    for (int i = 0; i < c.n_blocks; i++)
        c.chosen.push_back(i);
    for (int i = c.n_blocks - 1; i > 0; i--)
        std::swap(c.chosen[i], c.chosen[below(i + 1)]);
    c.chosen.resize(n_chosen);
    return c;
}

static uint8_t *sent(const std::vector<uint8_t> &from) {
    uint8_t *at;
    MUST(cudaMalloc((void **)&at, from.size()));
    MUST(cudaMemcpy(at, from.data(), from.size(), cudaMemcpyHostToDevice));
    return at;
}

static bool same(const char *what, const cache &c, const std::vector<uint8_t> &wanted, const uint8_t *at) {
    std::vector<uint8_t> got(wanted.size());
    MUST(cudaMemcpy(got.data(), at, got.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < got.size(); i++)
        if (got[i] != wanted[i]) {
            printf("%s, parts of %lld, %d layers, %d blocks: byte %zu is %02x, not %02x\n", what, (long long)c.part,
                   c.n_layers, (int)c.chosen.size(), i, got[i], wanted[i]);
            return false;
        }
    return true;
}

/* Bytes [first, end) of the blocks, into a row whose blocks are `gap` more than their bytes apart. */
static bool run(const cache &c, int64_t first, int64_t end, int64_t gap) {
    int64_t span = c.part * c.n_layers, stride = span + gap;
    std::vector<uint8_t> row((size_t)(stride * (int64_t)c.chosen.size() + 16)), scattered = c.bytes;
    for (uint8_t &b : row)
        b = (uint8_t)hash(seed++);
    uint8_t *at = sent(c.bytes), *into = sent(c.bytes), *gathered = sent(row), *from = sent(row);
    int64_t row_first = first / span * stride + first % span;
    dhanded g = {};
    g.pitch = c.pitch, g.part = c.part, g.n_layers = c.n_layers, g.stride = stride, g.first = first, g.end = end;
    g.row = (char *)gathered + row_first;
    dhanded s = g;
    s.row = (char *)from + row_first;
    for (size_t i = 0; i < c.chosen.size(); i++)
        g.block[i] = (char *)at + c.chosen[i] * c.part, s.block[i] = (char *)into + c.chosen[i] * c.part;
    launch_gather(0, &g);
    launch_scatter(0, &s);
    MUST(cudaGetLastError());
    MUST(cudaDeviceSynchronize());
    for (int64_t x = first; x < end; x++) {
        int64_t i = x / span, r = x % span, there = r / c.part * c.pitch + c.chosen[i] * c.part + r % c.part;
        scattered[there] = row[i * stride + r];
    }
    for (int64_t x = first; x < end; x++) {
        int64_t i = x / span, r = x % span, there = r / c.part * c.pitch + c.chosen[i] * c.part + r % c.part;
        row[i * stride + r] = c.bytes[there];
    }
    bool ok = same("gathered", c, row, gathered) && same("scattered", c, scattered, into);
    for (uint8_t *p : {at, into, gathered, from})
        MUST(cudaFree(p));
    return ok;
}

int main(void) {
    seed = getenv("GYRE_TEST_SEED") ? strtoull(getenv("GYRE_TEST_SEED"), NULL, 10) : (uint64_t)time(NULL);
    printf("GYRE_TEST_SEED=%llu\n", (unsigned long long)seed);
    static const int64_t parts[] = {16, 4224, 132, 33, 1, 16384 + 16};
    bool ok = true;
    for (int64_t part : parts)
        for (int k = 0; k < 4 && ok; k++) {
            cache c = draw(part, 1 + below(4), k == 0 ? MOST_HANDED : 1 + below(7));
            int64_t span = c.part * c.n_layers, all = span * (int64_t)c.chosen.size();
            int64_t unit = part % 16 == 0 ? 16 : part % 4 == 0 ? 4 : 1, gap = k % 2 ? unit * below(5) : 0;
            if (k > 1) { // a run of some of the bytes, from within the first block on
                int64_t first = (int64_t)(hash(seed++) % (uint64_t)span) / unit * unit;
                int64_t end = first + unit + (int64_t)(hash(seed++) % (uint64_t)(all - first)) / unit * unit;
                ok = run(c, first, end < all ? end : all, gap);
            } else {
                ok = run(c, 0, all, gap);
            }
        }
    printf(ok ? "all fine\n" : "FAILED\n");
    return !ok;
}
