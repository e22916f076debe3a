/* cluster.cuh - of bulk.cuh, which says who may end: blocks of a cluster, their meeting, and each other's memory. */
#pragma once

#include <stdint.h>

__device__ __forceinline__ int cluster_rank() {
    int n;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
    return n;
}
__device__ __forceinline__ int cluster_size() {
    int n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}
__device__ __forceinline__ int cluster_id() {
    int n;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(n));
    return n;
}

/* All threads of the cluster's blocks; what they wrote before they arrived is seen by who has waited. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* They are here, no more: no memory is ordered beyond the block. A fence for the cluster costs half a microsecond. */
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* cluster_sync in two: here, and all are here. */
__device__ __forceinline__ void cluster_is_here() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_are_here() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

/* The same place in the block with that rank, as the functions below take it. */
__device__ __forceinline__ uint32_t address_at_rank(uint32_t address, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/* Only what has been read, and used by the tensor core or bulk copies, is told so: no memory of the cluster is ordered.
 */
__device__ __forceinline__ void barrier_arrive_at_rank(uint32_t there) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
__device__ __forceinline__ float load_at_rank(uint32_t there) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}
/* Counted, as 4, 8 or 16 bytes, by a barrier of the block it goes to: no fence is needed on either side. */
__device__ __forceinline__ void store_at_rank(uint32_t there, float v, uint32_t barrier_there) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %2, [%1];" ::"r"(there),
                 "r"(barrier_there), "f"(v)
                 : "memory");
}
__device__ __forceinline__ void store_at_rank(uint32_t there, uint2 v, uint32_t barrier_there) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2, %3}, [%1];" ::"r"(there),
                 "r"(barrier_there), "r"(v.x), "r"(v.y)
                 : "memory");
}
__device__ __forceinline__ void store_at_rank(uint32_t there, float4 v, uint32_t barrier_there) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(there),
        "r"(barrier_there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
        : "memory");
}
