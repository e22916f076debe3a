/* graph_time.cuh - how the programs of bench/ time kernels: as nodes of a graph, which is replayed, so that launches
 * cost what they cost in a step. */
#pragma once

#include "backend/cuda/value.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
#include <vector>

#define TRY(call)                                                                          \
    do {                                                                                   \
        cudaError_t code_ = (call);                                                        \
        if (code_ != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* What `put` puts on the stream as a graph; nullptr: it does not run. */
inline cudaGraphExec_t captured(cudaStream_t stream, const std::function<bool()> &put) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    bool fine = put();
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !fine) {
        cudaGetLastError();
        return nullptr;
    }
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    TRY(cudaGraphDestroy(graph));
    return exec;
}

/* Microseconds of so many replays behind one another. */
inline double replay(cudaStream_t stream, cudaGraphExec_t exec, int n) {
    cudaEvent_t begin, end;
    float ms = 0;
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    TRY(cudaEventRecord(begin, stream));
    for (int i = 0; i < n; i++)
        TRY(cudaGraphLaunch(exec, stream));
    TRY(cudaEventRecord(end, stream));
    TRY(cudaEventSynchronize(end));
    TRY(cudaEventElapsedTime(&ms, begin, end));
    TRY(cudaEventDestroy(begin));
    TRY(cudaEventDestroy(end));
    return ms * 1e3;
}

/* Microseconds of all that `put` puts on the stream, for each of n_runs replays after n_warm, the shortest first;
 * empty: it does not run. */
inline std::vector<double> replay_times(cudaStream_t stream, const std::function<bool()> &put, int n_runs, int n_warm) {
    cudaGraphExec_t exec = captured(stream, put);
    std::vector<double> times;
    if (!exec)
        return times;
    for (int i = 0; i < n_warm + n_runs; i++) {
        double us = replay(stream, exec, 1);
        if (i >= n_warm)
            times.push_back(us);
    }
    TRY(cudaGetLastError());
    TRY(cudaGraphExecDestroy(exec));
    std::sort(times.begin(), times.end());
    return times;
}

/* Their median, after one replay that does not count; negative: it does not run. */
inline double microseconds(cudaStream_t stream, const std::function<bool()> &put, int n_runs) {
    std::vector<double> times = replay_times(stream, put, n_runs, 1);
    return times.empty() ? -1 : times[times.size() / 2];
}

/* The mean of the second of two halves of `seconds`, through which it is replayed without a pause: at the clock that
 * its power leaves. */
inline double steady_microseconds(cudaStream_t stream, const std::function<bool()> &put, double seconds) {
    cudaGraphExec_t exec = captured(stream, put);
    if (!exec)
        return -1;
    replay(stream, exec, 1);
    int n = (int)(seconds / 2 * 1e6 / replay(stream, exec, 1)) + 1;
    replay(stream, exec, n);
    double us = replay(stream, exec, n) / n;
    TRY(cudaGraphExecDestroy(exec));
    return us;
}
