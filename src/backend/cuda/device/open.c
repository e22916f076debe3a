/* open.c - opening a physical device, once for each, and giving it back. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/l2_copies.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/linear/linear.h"

#include "backend/cuda/device/manifest.h"
#include "backend/cuda/device/measure.h"
#include "backend/cuda/linear/plan_cache.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status no_device(struct error *err, cudaError_t code, const char *what) {
    cudaGetLastError();                    // is told
    if (code == cudaErrorMemoryAllocation) // there is no context yet to ask how much is free
        return fail(err, ERR_MEMORY,
                    "--device cuda: %s: the GPU's memory is taken by others, and some 600 MiB are needed to begin "
                    "with; nvidia-smi tells by whom",
                    what);
    return fail(err, ERR_UNSUPPORTED, "--device cuda: %s: %s", what, cudaGetErrorString(code));
}

/* Plans of products are good for this card, driver and library, and choices between paths for these kernels. */
static enum status open_plans(struct device *d, struct error *err) {
    char machine[400], path[4096];
    struct cudaDeviceProp card = {0};
    int driver = 0;
    cudaError_t code = cudaGetDeviceProperties(&card, d->index);
    if (code != cudaSuccess)
        return no_device(err, code, "the GPU does not say what it is");
    cudaDriverGetVersion(&driver);
    snprintf(machine, sizeof machine, "%.200s, %d multiprocessors, driver %d, cuBLASLt %zu, kernels %016llx", card.name,
             card.multiProcessorCount, driver, cublasLtGetVersion(), (unsigned long long)manifest_hash(&kernel_list));
    d->plans = plan_cache_open(plan_cache_path(path, sizeof path, machine) ? path : NULL, machine);
    return OK;
}

static enum status open_parts(struct device *d, bool shares, struct error *err) {
    struct machine_found machine = {.device = d->index, .runtime = CUDART_VERSION};
    int n = 0;
    TRY(manifest_check_code(&kernel_list, err));
    cudaDriverGetVersion(&machine.driver);
    TRY(manifest_check_driver(&machine, err));
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0)
        return no_device(err, code == cudaSuccess ? cudaErrorNoDevice : code, "no GPU can be used");
    if (shares)
        d->index %= n;
    if (d->index < 0 || d->index >= n)
        return fail(err, ERR_ARG, "--device-index: there is no GPU %d, there %s %d, from 0", d->index,
                    n == 1 ? "is" : "are", n);
    code = cudaDeviceGetAttribute(&machine.major, cudaDevAttrComputeCapabilityMajor, d->index);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&machine.minor, cudaDevAttrComputeCapabilityMinor, d->index);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&d->most_pitch, cudaDevAttrMaxPitch, d->index);
    if (code != cudaSuccess)
        return no_device(err, code, "the GPU does not answer");
    TRY(manifest_check_card(&kernel_list, &machine, &d->arch, err));
    d->is_fast = d->is_fast && d->arch->is_fast;
    d->multiplies_e4m3 = machine.major * 10 + machine.minor >= 89;
    if ((code = cudaSetDevice(d->index)) != cudaSuccess)
        return no_device(err, code, "the GPU cannot be used");
    if ((code = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking)) != cudaSuccess ||
        (code = cudaStreamCreateWithFlags(&d->ahead, cudaStreamNonBlocking)) != cudaSuccess)
        return no_device(err, code, "no stream");
    TRY(memory_take(d, &d->workspace, WORKSPACE_BYTES, "workspace", err));
    if (cublasLtCreate(&d->blas) != CUBLAS_STATUS_SUCCESS)
        return fail(err, ERR_UNSUPPORTED, "--device cuda: cuBLASLt does not start");
    if ((code = cudaEventCreate(&d->begun)) != cudaSuccess || (code = cudaEventCreate(&d->ended)) != cudaSuccess)
        return no_device(err, code, "no event");
    return open_plans(d, err);
}

/* Of a card that is not there: what the driver and the library would take to begin with (no_device, above). */
enum { CONTEXT_BYTES = 600 << 20 };

static enum status open_phantom(struct device *d, const struct phantom_card *card, struct error *err) {
    struct machine_found machine = {
        .card = card->name, .major = card->capability / 10, .minor = card->capability % 10};
    TRY(manifest_check_card(&kernel_list, &machine, &d->arch, err));
    d->card = card;
    d->is_fast = d->is_fast && d->arch->is_fast;
    d->multiplies_e4m3 = card->capability >= 89;
    d->taken = CONTEXT_BYTES + WORKSPACE_BYTES;
    card_pretend(card->n_multiprocessors, card->capability);
    return OK;
}

/* Whose products requantise rows (requant.cuh), by index. Their blocks wait for one another, as there is room for all
 * of a product at once; for those of two streams that run side by side there may not be, and they would wait for ever.
 * So a second object of one physical device, which an engine of the same process may have opened, does not. */
enum { MOST_DEVICES = 64 };
static _Atomic(struct device *) requantiser[MOST_DEVICES];

static bool requant_alone(struct device *d) {
    struct device *nobody = NULL;
    return d->index < MOST_DEVICES && atomic_compare_exchange_strong(&requantiser[d->index], &nobody, d);
}

void cuda_close(struct device *d) {
    if (d->card) {
        free(d);
        return;
    }
    if (d->requantises)
        atomic_store(&requantiser[d->index], NULL);
    cudaSetDevice(d->index);
    cudaFree(d->workspace);
    plan_cache_free(d->plans);
    if (d->begun)
        cudaEventDestroy(d->begun);
    if (d->ended)
        cudaEventDestroy(d->ended);
    if (d->blas)
        cublasLtDestroy(d->blas);
    if (d->ahead)
        cudaStreamDestroy(d->ahead);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    cudaGetLastError(); // whatever could not be given back: the next device of this process has nothing to do with it
    free(d);
}

/* The driver loads a kernel when it is launched first, and holds a lock until what runs on the card has ended: if that
 * waits for another rank, whose launch wants the lock, for ever. So all are loaded at the start, as this asks for where
 * the driver has not been started yet. */
static void load_kernels_first(void) { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

enum status cuda_open(const struct device_options *options, struct device **out, struct error *err) {
    TRY(linear_check(err));
    TRY(filter_check(err));
    TRY(l2_copy_check(err));
    const char *kernels = device_option(options->own, "kernels");
    if (kernels && strcmp(kernels, "plain") != 0)
        return fail(err, ERR_ARG, "kernels: CUDA has its fastest, or \"plain\" ones, not \"%.40s\"", kernels);
    int patience_s;
    TRY(device_option_patience(options->own, &patience_s, err));
    const char *state = device_option(options->own, "state");
    if (state && strcmp(state, "float32") != 0 && strcmp(state, "bfloat16") != 0)
        return fail(err, ERR_ARG, "state: recurrent states are float32 or bfloat16 on CUDA, not \"%.40s\"", state);
    struct device *d = xcalloc(1, sizeof *d);
    d->state = state && strcmp(state, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
    d->index = options->index;
    d->is_fast = !kernels;
    d->eager = device_option_is_on(options->own, "eager");
    d->whole_keys = device_option_is_off(options->own, "shared-kv");
    d->memory_share = options->memory_share;
    d->patience_s = patience_s;
    d->meets_by_host = device_option_is_off(options->own, "peer-access");
    enum status st = options->card ? open_phantom(d, options->card, err)
                                   : open_parts(d, device_option_is_on(options->own, "share-cards"), err);
    if (st != OK) {
        cuda_close(d);
        d = NULL;
    } else {
        d->requantises = !d->card && d->is_fast && requant_alone(d);
    }
    *out = d;
    return st;
}
