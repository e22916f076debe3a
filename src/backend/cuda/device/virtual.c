/* virtual.c - see virtual.h. */
#include "backend/cuda/device/virtual.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>

/* clang-format off */
#define FUNCTIONS(X) \
    X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) \
    X(cuMemSetAccess)
/* clang-format on */

#define DECLARE(name) __typeof__(&name) name##_;
static struct driver { FUNCTIONS(DECLARE) } driver;

static void *find(const char *name) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
    return code == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : NULL;
}

static enum status find_all(struct error *err) {
#define FIND(name)                           \
    *(void **)&driver.name##_ = find(#name); \
    if (!driver.name##_)                     \
        return fail(err, ERR_UNSUPPORTED,    \
                    "--device cuda: the driver has no %s: it is older than CUDA 12, please renew it", #name);
    FUNCTIONS(FIND)
    return OK;
}

size_t virtual_bytes_behind(const void *at) {
    CUdeviceptr base = 0;
    size_t n_bytes = 0;
    __typeof__(&cuMemGetAddressRange) address_range;
    *(void **)&address_range = find("cuMemGetAddressRange");
    if (!address_range || address_range(&base, &n_bytes, (CUdeviceptr)(uintptr_t)at) != CUDA_SUCCESS) {
        cudaGetLastError();
        return 0;
    }
    return n_bytes - (size_t)((uintptr_t)at - base);
}

static CUmemAllocationProp of_device(int device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

enum status virtual_reserve(int device, size_t n_bytes, size_t piece_bytes, struct virtual_range *out,
                            struct error *err) {
    *out = (struct virtual_range){.piece_bytes = piece_bytes};
    BUG_IF(piece_bytes == 0 || piece_bytes % VIRTUAL_GRAIN != 0);
    TRY(find_all(err));
    size_t n = n_bytes / piece_bytes + (n_bytes % piece_bytes != 0);
    CUdeviceptr at = 0;
    if (n == 0)
        return OK;
    CUresult code =
        n > INT32_MAX ? CUDA_ERROR_INVALID_VALUE : driver.cuMemAddressReserve_(&at, n * piece_bytes, 0, 0, 0);
    if (code != CUDA_SUCCESS)
        return fail(err, ERR_MEMORY, "CUDA device %d: no addresses for %zu MiB (CUDA driver error %d)", device,
                    n_bytes >> 20, code);
    out->at = at;
    out->n_bytes = n * piece_bytes;
    out->n_pieces = (int)n;
    out->piece = xcalloc(n, sizeof *out->piece);
    return OK;
}

static enum status map_one(struct virtual_range *r, int device, struct error *err) {
    CUmemAllocationProp prop = of_device(device);
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle piece;
    CUdeviceptr at = r->at + (size_t)r->n_mapped * r->piece_bytes;
    const char *what = "getting memory";
    CUresult code = driver.cuMemCreate_(&piece, r->piece_bytes, &prop, 0);
    if (code == CUDA_SUCCESS) {
        what = "mapping memory";
        code = driver.cuMemMap_(at, r->piece_bytes, 0, piece, 0);
        if (code == CUDA_SUCCESS && (code = driver.cuMemSetAccess_(at, r->piece_bytes, &access, 1)) != CUDA_SUCCESS)
            driver.cuMemUnmap_(at, r->piece_bytes);
        if (code != CUDA_SUCCESS)
            driver.cuMemRelease_(piece);
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY) // of mapping too: what maps lies in the device's memory
        return fail(err, ERR_MEMORY, "CUDA device %d has no %zu MiB left for cache, %zu MiB are mapped", device,
                    r->piece_bytes >> 20, (size_t)r->n_mapped * r->piece_bytes >> 20);
    if (code != CUDA_SUCCESS)
        return fail(err, ERR_DEVICE,
                    "CUDA device %d: %s for piece %d of %d of a cache, %zu MiB each: CUDA driver error %d", device,
                    what, r->n_mapped, r->n_pieces, r->piece_bytes >> 20, code);
    r->piece[r->n_mapped++] = piece;
    return OK;
}

static enum status unmap_one(struct virtual_range *r, int device, struct error *err) {
    int last = r->n_mapped - 1;
    CUresult code = driver.cuMemUnmap_(r->at + (size_t)last * r->piece_bytes, r->piece_bytes);
    if (code == CUDA_SUCCESS)
        code = driver.cuMemRelease_(r->piece[last]);
    if (code != CUDA_SUCCESS)
        return fail(err, ERR_DEVICE, "CUDA device %d: giving back piece %d of %d of a cache: CUDA driver error %d",
                    device, last, r->n_pieces, code);
    r->n_mapped = last;
    return OK;
}

enum status virtual_map(struct virtual_range *r, int device, int n, struct error *err) {
    BUG_IF(n < 0 || n > r->n_pieces);
    while (r->n_mapped < n)
        TRY(map_one(r, device, err));
    while (r->n_mapped > n)
        TRY(unmap_one(r, device, err));
    return OK;
}

void virtual_release(struct virtual_range *r) {
    struct error ignored; // the process's end takes what is left
    if (!r->at)
        return;
    if (virtual_map(r, 0, 0, &ignored) == OK)
        driver.cuMemAddressFree_(r->at, r->n_bytes);
    free(r->piece);
    *r = (struct virtual_range){0};
}
