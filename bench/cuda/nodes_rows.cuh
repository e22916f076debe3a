/* nodes_rows.cuh - of nodes.cu: rows on the device that nodes read and write, of random numbers. */
#pragma once

#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/elementwise.h"
#include "backend/cuda/rows/norm.cu"
#include "backend/cuda/rows/norm.h"
#include "backend/cuda/value.h"
#include "graph_time.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

enum { NODES = 60, REPLAYS = 15 };

static cudaStream_t stream;
static uint64_t seed = 88172645463325252ull;

#define TRY_CUDA(call)                                                                       \
    do {                                                                                     \
        cudaError_t code_ = (call);                                                          \
        if (code_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_)); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static float uniform() {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (float)(seed >> 40) * 0x1p-23f - 1.0f;
}

static int bytes_of(element e) { return e == ELEMENT_F32 ? 4 : e == ELEMENT_E4M3 ? 1 : 2; }

static float decode(element e, const void *at, int64_t i) {
    switch (e) {
    case ELEMENT_F32: return static_cast<const float *>(at)[i];
    case ELEMENT_F16: return __half2float(static_cast<const __half *>(at)[i]);
    case ELEMENT_BF16: return __bfloat162float(static_cast<const __nv_bfloat16 *>(at)[i]);
    default: {
        int code = static_cast<const uint8_t *>(at)[i], exponent = code >> 3 & 15, fraction = code & 7;
        if ((code & 127) == 127)
            return NAN;
        float size = exponent ? ldexpf(1.0f + fraction / 8.0f, exponent - 7) : ldexpf(fraction / 8.0f, -6);
        return code & 128 ? -size : size;
    }
    }
}

/* Rows on the device, every byte 0xff (NaN in all elements) until filled. */
struct rows {
    dmat m;
    int n;
    std::vector<float> values; // as the device has them
    rows(int n_rows, int width, element e, int extra = 0) : n(n_rows) {
        m = {nullptr, width + extra, width, e, nullptr};
        size_t n_bytes = (size_t)n * m.stride * bytes_of(e);
        TRY_CUDA(cudaMalloc(&m.at, n_bytes));
        TRY_CUDA(cudaMemset(m.at, 0xff, n_bytes));
        if (e == ELEMENT_E4M3) {
            TRY_CUDA(cudaMalloc(&m.scale, n * sizeof(float)));
            TRY_CUDA(cudaMemset(m.scale, 0xff, n * sizeof(float)));
        }
    }
    rows(const rows &) = delete;
    ~rows() {
        cudaFree(m.at);
        cudaFree(m.scale);
    }
    void fill(float size, float centre = 0) {
        std::vector<char> host((size_t)n * m.stride * bytes_of(m.element));
        for (int64_t i = 0; i < n * m.stride; i++) {
            float x = centre + uniform() * size;
            if (m.element == ELEMENT_F32)
                reinterpret_cast<float *>(host.data())[i] = x;
            else if (m.element == ELEMENT_F16)
                reinterpret_cast<__half *>(host.data())[i] = __float2half(x);
            else
                reinterpret_cast<__nv_bfloat16 *>(host.data())[i] = __float2bfloat16(x);
        }
        TRY_CUDA(cudaMemcpy(m.at, host.data(), host.size(), cudaMemcpyHostToDevice));
        fetch();
    }
    void fetch() {
        std::vector<char> host((size_t)n * m.stride * bytes_of(m.element));
        std::vector<float> scale(n, 1.0f);
        TRY_CUDA(cudaMemcpy(host.data(), m.at, host.size(), cudaMemcpyDeviceToHost));
        if (m.scale)
            TRY_CUDA(cudaMemcpy(scale.data(), m.scale, n * sizeof(float), cudaMemcpyDeviceToHost));
        values.resize((size_t)n * m.width);
        for (int t = 0; t < n; t++)
            for (int i = 0; i < m.width; i++)
                values[(size_t)t * m.width + i] = decode(m.element, host.data(), t * m.stride + i) * scale[t];
    }
    const float *row(int t) const { return values.data() + (size_t)t * m.width; }
};

static struct launch step_of(int n_rows) {
    struct launch l = {};
    l.stream = stream;
    l.n_tokens = l.n_seqs = l.n_rows = n_rows;
    return l;
}

/* As a LINEAR leaves them: m's elements are unscaled products with scales that bring them back to about their size. */
struct unscaled_scales {
    rows of_row, of_column;
    unscaled_scales(rows &products) : of_row(1, products.n, ELEMENT_F32), of_column(1, products.m.width, ELEMENT_F32) {
        of_row.fill(0.4f, 0.6f); // so that no row is too small for half precision
        of_column.fill(1);
        products.m.row_scale = static_cast<const float *>(of_row.m.at);
        products.m.col_scale = static_cast<const float *>(of_column.m.at);
        for (int t = 0; t < products.n; t++)
            for (int i = 0; i < products.m.width; i++)
                products.values[(size_t)t * products.m.width + i] *= of_row.row(0)[t] * of_column.row(0)[i];
    }
};

static dweight vector_of(rows &w) { return dweight{w.m.at, w.m.width, 1, ELEMENT_F32, nullptr}; }
