/* arch.cuh - what the device that is compiled for has. Plain kernels are compiled for every architecture of ARCHS
 * (build.mk). */
#pragma once

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GYRE_HOPPER 1 // clusters, bulk copies, nodes that start early
#define GYRE_CLUSTER(n) __cluster_dims__(n, 1, 1)
#else
#define GYRE_HOPPER 0
#define GYRE_CLUSTER(n) // a kernel that needs one is not launched there
#endif
