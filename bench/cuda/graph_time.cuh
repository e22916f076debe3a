/* graph_time.cuh - how the programs of bench/ time kernels: as nodes of a graph, which is replayed, so that launches cost what they cost in a step. */
#pragma once

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

/* Microseconds of all that `put` puts on the stream, for each of n_runs replays after n_warm, the shortest first; empty: it does not run. */
inline std::vector<double> replay_times(cudaStream_t stream, const std::function<bool()> &put, int n_runs, int n_warm) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    std::vector<double> times;
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    bool fine = put();
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !fine) {
        cudaGetLastError();
        return times;
    }
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    for (int i = 0; i < n_warm + n_runs; i++) {
        float ms = 0;
        TRY(cudaEventRecord(begin, stream));
        TRY(cudaGraphLaunch(exec, stream));
        TRY(cudaEventRecord(end, stream));
        TRY(cudaEventSynchronize(end));
        TRY(cudaEventElapsedTime(&ms, begin, end));
        if (i >= n_warm)
            times.push_back(ms * 1e3);
    }
    TRY(cudaGetLastError());
    TRY(cudaEventDestroy(begin));
    TRY(cudaEventDestroy(end));
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times;
}

/* Their median, after one replay that does not count; negative: it does not run. */
inline double microseconds(cudaStream_t stream, const std::function<bool()> &put, int n_runs) {
    std::vector<double> times = replay_times(stream, put, n_runs, 1);
    return times.empty() ? -1 : times[times.size() / 2];
}
