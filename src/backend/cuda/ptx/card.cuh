/* card.cuh - what launchers ask about the device they launch on. Host code.
 *
 * Facts are found once a device and kept in one table for the process, so that a launcher keeps none of its own: a
 * second device has other facts, and attributes of a kernel hold for one device each. All functions speak of the
 * calling thread's current device. Any thread may call them. */
#pragma once

#include <cuda_runtime.h>
#include <mutex>
#include <stdint.h>

/* What is known, by device and by what was asked: a kernel with its launch, or a kernel alone. */
class card_facts {
  public:
    struct key {
        const void *kernel;
        int device, cluster, n_threads, n_shared;
        bool operator==(const key &o) const {
            return kernel == o.kernel && device == o.device && cluster == o.cluster && n_threads == o.n_threads &&
                   n_shared == o.n_shared;
        }
    };

    /* What `find` gave for this key the first time. */
    template <class F> int get(const key &k, F find) {
        std::lock_guard<std::mutex> held(lock);
        uint64_t hash = (uint64_t)(uintptr_t)k.kernel * 0x9E3779B97F4A7C15u +
                        (uint64_t)(k.device * 131 + k.cluster * 31 + k.n_threads);
        hash = (hash + (uint64_t)k.n_shared) * 0x9E3779B97F4A7C15u >> 32;
        for (int i = 0; i < SIZE; i++) {
            entry &e = entries[(hash + (uint64_t)i) % SIZE];
            if (e.used && e.of == k)
                return e.value;
            if (!e.used) {
                e = entry{true, k, find()};
                return e.value;
            }
        }
        return find(); // the table is full: found anew each time
    }

  private:
    enum { SIZE = 4096 };
    struct entry {
        bool used;
        key of;
        int value;
    };
    std::mutex lock;
    entry entries[SIZE] = {};
};
inline card_facts facts_of_cards;

inline int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
}

inline int n_multiprocessors() {
    int device = current_device();
    return facts_of_cards.get({nullptr, device, 0, 0, 0}, [&] {
        int n = 0;
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
        return n;
    });
}

/* The compute capability, 90 for Hopper. */
inline int compute_capability() {
    int device = current_device();
    return facts_of_cards.get({nullptr, device, 1, 0, 0}, [&] {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        return 10 * major + minor;
    });
}

/* Lets the kernel have so many bytes of shared memory, asked once a device; what goes wrong shows as cudaGetLastError.
 */
template <class K> inline void allow_shared(K *kernel, int n_bytes) {
    facts_of_cards.get({(const void *)kernel, current_device(), -1, 0, n_bytes}, [&] {
        return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
    });
}

/* How many clusters of so many blocks run at once; at least 1, as the launch says why it cannot be. `before` is called
 * when that is found, to allow shared memory. */
template <class K, class F>
inline int clusters_at_once(K *kernel, int cluster, int n_blocks, int n_threads, int n_shared, F before) {
    return facts_of_cards.get({(const void *)kernel, current_device(), cluster, n_threads, n_shared}, [&] {
        before();
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = (unsigned)cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {
            dim3((unsigned)n_blocks), dim3((unsigned)n_threads), (size_t)n_shared, nullptr, &attribute, 1};
        int n = 0;
        return cudaOccupancyMaxActiveClusters(&n, kernel, &config) == cudaSuccess && n > 0 ? n : 1;
    });
}

/* How many blocks run at once of a kernel that fills a multiprocessor: in clusters not all multiprocessors have a
 * place. Its shared memory is allowed anew when that is found, as launches in between may have allowed it less. */
template <class K> inline int blocks_at_once(K *kernel, int cluster, int n_threads, int n_shared) {
    int most = n_multiprocessors() / cluster;
    auto allow = [&] { cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_shared); };
    int n = clusters_at_once(kernel, cluster, most * cluster, n_threads, n_shared, allow);
    return (n < most ? n : most) * cluster;
}
