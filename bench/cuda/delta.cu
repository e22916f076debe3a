/* delta.cu - a gated DeltaNet layer's kernels alone (src/backend/cuda/recurrent): us, and of decoding GB/s of state.
 *
 *   bench_delta [MODEL]      Qwen3.5-27B and 35B-A3B, or those whose name has MODEL in it: 1 to 256 sequences that
 *                            decode, and one prompt of 512, 2,048 and 8,192 tokens by chunks, each pass alone
 *
 * Times are medians of graphs of LAYERS launches, each over a state of its own, so that states come from memory. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta_layer.h"
#include "graph_time.cuh"

#include <cstring>
#include <functional>

enum { LAYERS = 12, MOST_SEQS = 256, MOST_TOKENS = 8192 };
static cudaStream_t stream;

struct model {
    const char *name;
    int key_heads, value_heads;
};
static const model models[] = {{"Qwen3.5-27B", 16, 48}, {"Qwen3.5-35B-A3B", 16, 32}};

static __global__ void fill(float *at, int64_t n, uint32_t seed, float size) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
        x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
        at[i] = ((float)(x >> 40) / 8388608.0f - 1) * size;
    }
}
static float *floats(int64_t n, float size) {
    float *p;
    static uint32_t seed;
    TRY(cudaMalloc(&p, (n + 4) * sizeof(float)));
    fill<<<528, 256, 0, stream>>>(p, n, ++seed * 977, size);
    return p;
}
static int32_t *numbers(const std::vector<int32_t> &v) {
    int32_t *p;
    TRY(cudaMalloc(&p, v.size() * sizeof(int32_t)));
    TRY(cudaMemcpy(p, v.data(), v.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    return p;
}

/* n_seqs sequences of n tokens each, behind others. */
static launch step_of(int n_seqs, int n) {
    std::vector<int32_t> start(n_seqs + 1), slot(n_seqs), position(n_seqs * n, 100);
    for (int s = 0; s <= n_seqs; s++)
        start[s] = s * n;
    for (int s = 0; s < n_seqs; s++)
        slot[s] = s;
    launch l = {};
    l.stream = stream, l.n_tokens = n_seqs * n, l.n_seqs = n_seqs, l.n_rows = n_seqs;
    l.plan.counts = numbers({n_seqs * n, n_seqs, n_seqs, 0});
    l.plan.query_start = numbers(start), l.plan.state_slot = numbers(slot), l.plan.position = numbers(position);
    return l;
}

static dmat matrix(int64_t rows, int width, float size) {
    return dmat{floats(rows * width, size), width, width, ELEMENT_F32};
}
static dmat columns(const dmat &m, int first, int width) {
    return dmat{static_cast<float *>(m.at) + first, m.stride, width, m.element};
}
static dweight vector(int64_t n, float size) { return dweight{floats(n, size), n, 1, ELEMENT_F32}; }

static std::vector<ddelta_layer> layers_of(const model &m, int n_seqs, int n_tokens) {
    int keys = m.key_heads * 128, values = m.value_heads * 128, channels = 2 * keys + values;
    int64_t state = (int64_t)m.value_heads * 128 * 128, slot = 3 * channels + state;
    dmat all = matrix(n_tokens, channels + values + 2 * m.value_heads, 1);
    ddelta_layer a = {};
    a.shape = ddelta{m.key_heads, m.value_heads, 128, 128, 3 * channels};
    a.kernel = 4, a.eps = 1e-6f, a.scale = 1;
    a.u = columns(all, 0, channels), a.z = columns(all, channels, values);
    a.b = columns(all, channels + values, m.value_heads);
    a.a = columns(all, channels + values + m.value_heads, m.value_heads);
    a.conv = vector(4 * channels, 0.5f), a.a_log = vector(m.value_heads, 1), a.dt_bias = vector(m.value_heads, 1);
    a.norm = vector(128, 1);
    a.y = matrix(n_tokens, values, 0), a.y.element = ELEMENT_F16;
    a.mixed = matrix(n_tokens, channels, 0), a.parts = matrix(n_tokens, values, 0);
    std::vector<ddelta_layer> layers(LAYERS, a);
    for (ddelta_layer &l : layers)
        l.cache = dcache{floats(n_seqs * slot, 0.1f), slot, 0, ELEMENT_F32};
    return layers;
}

static double time_of(void (*put)(const launch *, const ddelta_layer *), const launch &l,
                      const std::vector<ddelta_layer> &layers) {
    auto all = [&] {
        for (const ddelta_layer &a : layers)
            put(&l, &a);
        return cudaGetLastError() == cudaSuccess;
    };
    return microseconds(stream, all, 9) / LAYERS;
}

int main(int argc, char **argv) {
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (const model &m : models) {
        if (argc > 1 && !strstr(m.name, argv[1]))
            continue;
        std::vector<ddelta_layer> layers = layers_of(m, MOST_SEQS, MOST_TOKENS);
        for (int n : {1, 8, 32, 64, 128, 256}) {
            double us = time_of(launch_delta_decode, step_of(n, 1), layers), bytes = 2.0 * n * m.value_heads * 65536;
            printf("%-16s %4d sequences  %8.2f us  %7.0f GB/s of state\n", m.name, n, us, bytes / us * 1e-3);
        }
        for (int n : {512, 2048, 8192}) {
            launch l = step_of(1, n);
            double inputs = time_of(launch_delta_chunk_inputs, l, layers),
                   parts = time_of(launch_delta_chunk_parts, l, layers),
                   scan = time_of(launch_delta_chunk_scan, l, layers), norm = time_of(launch_delta_norm, l, layers);
            printf("%-16s %5d tokens  %8.2f us: inputs %.2f, parts %.2f, scan %.2f, norm %.2f\n", m.name, n,
                   inputs + parts + scan + norm, inputs, parts, scan, norm);
        }
        for (ddelta_layer &a : layers)
            TRY(cudaFree(a.cache.at));
    }
    TRY(cudaStreamSynchronize(stream));
    return 0;
}
