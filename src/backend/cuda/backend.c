/* backend.c - the vtable of the CUDA backend; see cuda.h. */
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/linear/gemm.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/cache/handover.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/step/plan.h"
#include "backend/cuda/step/step.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

#include "backend/cuda/linear/plan_cache.h"
#include "core/pass/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- load -------------------------------------------------------------------------------------------------------

static void cuda_unload(struct loaded *loaded) {
    if (!loaded)
        return;
    if (!loaded->device->card)
        cudaSetDevice(loaded->device->index);
    weights_release(loaded);
    caches_release(loaded);
    ranks_leave(loaded);
    cudaFreeHost(loaded->counts);
    program_free(loaded->program);
    cudaGetLastError(); // whatever could not be given back: what is loaded next has nothing to do with it
    free(loaded);
}

static enum status choose_product(struct loaded *loaded, const char *name, struct error *err) {
    if (!name)
        return OK;
    static const struct {
        const char *name;
        enum element element;
    } known[] = {{"float32", ELEMENT_F32}, {"float16", ELEMENT_F16}, {"bfloat16", ELEMENT_BF16}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(name, known[i].name) == 0) {
            loaded->product_is_set = true;
            loaded->product = known[i].element;
            return OK;
        }
    return fail(err, ERR_ARG, "--device cuda: products are made in float32, float16 or bfloat16, not in %s", name);
}

/* Of other formats caches are refused when they are made, once it is known what products are made in. */
static enum status check_int4(const struct program *p, struct error *err) {
    for (int g = 0; g < p->n_groups; g++)
        if (p->groups[g].kind == CACHE_LATENT)
            return fail(err, ERR_UNSUPPORTED,
                        "kv_cache_dtype: %s has a latent cache (MLA), which has the element of the products on CUDA, "
                        "not int4",
                        p->name);
    return OK;
}

static enum status choose_kv(struct loaded *loaded, const char *name, struct error *err) {
    if (!name)
        return OK;
    static const struct {
        const char *name;
        enum element element;
    } known[] = {{"float32", ELEMENT_F32}, {"float16", ELEMENT_F16}, {"bfloat16", ELEMENT_BF16},
                 {"fp8", ELEMENT_E4M3},    {"int8", ELEMENT_I8},     {"int4", ELEMENT_KV_INT4}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(name, known[i].name) == 0) {
            loaded->kv_is_set = true;
            loaded->kv = known[i].element;
            return loaded->kv == ELEMENT_KV_INT4 ? check_int4(loaded->program, err) : OK;
        }
    return fail(err, ERR_ARG,
                "kv_cache_dtype: the CUDA backend has caches of float32, float16, bfloat16, fp8, int8 and int4, not "
                "of %s",
                name);
}

static enum status choose_quantise(struct loaded *loaded, const char *name, struct error *err) {
    static const char *const names[] = {[QUANTISE_FP8] = "fp8", [QUANTISE_INT4] = "int4", [QUANTISE_NVFP4] = "nvfp4"};
    for (int i = QUANTISE_FP8; name && i < (int)ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            loaded->quantise = (enum quantise)i;
    if (name && !loaded->quantise)
        return fail(err, ERR_UNSUPPORTED, "quantization: the CUDA backend makes weights fp8, int4 or nvfp4, not %s",
                    name);
    if (loaded->quantise == QUANTISE_FP8 && !loaded->device->multiplies_e4m3)
        return fail(err, ERR_UNSUPPORTED,
                    "quantization: this GPU has no products of fp8, as those from compute "
                    "capability 8.9 on have");
    if (loaded->quantise > QUANTISE_FP8 && !loaded->device->is_fast)
        return fail(err, ERR_UNSUPPORTED,
                    "quantization: weights of four bits are multiplied by kernels for Hopper alone, which this device "
                    "does not run");
    return OK;
}

enum { MOST_EXPERTS_OF_TOKEN = 16 }; // that a few tokens' experts have in one node (moe/)

/* Not where LINEARs get formats that experts do not get. */
static void join_shared_experts(struct loaded *loaded) {
    if (!loaded->device->is_fast || loaded->quantise > QUANTISE_FP8)
        return;
    struct program *joined = pass_shared_expert(loaded->program, MOST_EXPERTS_OF_TOKEN);
    program_free(loaded->program);
    loaded->program = joined;
}

static enum status load_parts(struct loaded *loaded, const struct load_options *options, struct error *err) {
    TRY(choose_quantise(loaded, options->quantization, err));
    join_shared_experts(loaded);
    TRY(choose_product(loaded, options->dtype, err));
    TRY(choose_kv(loaded, options->kv_dtype, err));
    if (loaded->caches_of)
        loaded->kv = kv_element(loaded->caches_of), loaded->kv_is_set = true;
    TRY(device_enter(loaded->device, err));
    if (loaded->device->card)
        return weights_place(loaded, err);
    TRY(pinned_take(loaded->device, &loaded->counts, sizeof *loaded->counts, "counters", err));
    *loaded->counts = (struct dcounts){0};
    return weights_place(loaded, err);
}

/* What fast kernels of attention take; plain ones have whole keys, but those over int4, whose blocks are the CPU's. */
static bool takes_shared_kv(int head_dim, int channels) { return head_dim == 512 && channels == 128; }

static bool has_whole_keys(const struct device *d, bool is_int4) { return d->whole_keys || (!d->is_fast && !is_int4); }

static enum status cuda_load(struct device *d, const struct program *p, const struct load_options *options,
                             struct loaded **out, struct error *err) {
    struct loaded *loaded = xcalloc(1, sizeof *loaded);
    bool is_int4 = options->kv_dtype && strcmp(options->kv_dtype, "int4") == 0;
    loaded->device = d;
    loaded->caches_of = options->caches_of;
    for (int g = 0; g < p->n_groups; g++)
        loaded->n_back = p->groups[g].kind == CACHE_STATE ? options->n_back : loaded->n_back;
    if (loaded->caches_of)
        loaded->program = pass_shared_kv_as(p, loaded->caches_of->program);
    else
        loaded->program =
            has_whole_keys(d, is_int4) ? program_copy(p) : pass_shared_kv(p, is_int4 ? NULL : takes_shared_kv);
    loaded->dummies = options->dummy_weights;
    loaded->is_draft = options->is_draft;
    loaded->progress = options->progress;
    enum status st = load_parts(loaded, options, err);
    if (st != OK) {
        cuda_unload(loaded);
        loaded = NULL;
    }
    *out = loaded;
    return st;
}

// ---- what a step left -------------------------------------------------------------------------------------------

/* A row, and those behind it that will be asked for too: every fetch waits for the device. */
static enum status fetch_logits(struct executable *exe, const struct step_slot *slot, int row, struct error *err) {
    int end = row + 1;
    while (end < slot->plan->n_rows && slot->sample[end].want_logits)
        end++;
    size_t row_bytes = (size_t)exe->logits.width * sizeof(float);
    const float *from = (const float *)exe->logits.at + (int64_t)row * exe->logits.stride;
    DEVICE_TRY(exe->loaded->device, err,
               cudaMemcpy2D(exe->logits_host + (int64_t)row * exe->logits.width, row_bytes, from,
                            (size_t)exe->logits.stride * sizeof(float), row_bytes, (size_t)(end - row),
                            cudaMemcpyDeviceToHost),
               "%s: fetching the logits of rows %d to %d", exe->program->name, row, end - 1);
    exe->logits_there.step = exe->n_collected;
    exe->logits_there.first = row;
    exe->logits_there.end = end;
    return OK;
}

static enum status cuda_logits(struct executable *exe, int row, const float **out, struct error *err) {
    TRY(device_enter(exe->loaded->device, err));
    const struct step_slot *slot = step_collected(exe);
    BUG_IF(row < 0 || row >= slot->plan->n_rows || exe->n_started != exe->n_collected);
    if (exe->logits_there.step != exe->n_collected || row < exe->logits_there.first || row >= exe->logits_there.end)
        TRY(fetch_logits(exe, slot, row, err));
    *out = exe->logits_host + (int64_t)row * exe->logits.width;
    return OK;
}

static enum status cuda_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err) {
    BUG_IF(tap < 0 || tap > exe->program->n_taps);
    struct dmat x = exe->kept[tap];
    TRY(device_enter(exe->loaded->device, err));
    BUG_IF(t < 0 || t >= step_collected(exe)->plan->n_tokens || exe->n_started != exe->n_collected);
    int64_t size = element_bytes(x.element);
    char *at = (char *)x.at + t * x.stride * size;
    DEVICE_TRY(exe->loaded->device, err,
               cudaMemcpy(exe->hidden_host, at, (size_t)(x.width * size), cudaMemcpyDeviceToHost),
               "%s: fetching the state of token row %d", exe->program->name, t);
    enum element e = x.element;
    const uint16_t *halves = (const uint16_t *)(const void *)exe->hidden_host;
    for (int i = x.width - 1; e != ELEMENT_F32 && i >= 0; i--) // from the end, as a float takes the place of two
        exe->hidden_host[i] = e == ELEMENT_F16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i]);
    *out = exe->hidden_host;
    return OK;
}

static const struct backend_probes cuda_probes = {
    .footprint = cuda_footprint,
    .nodes = cuda_nodes,
    .measure = cuda_measure,
    .trace = cuda_trace,
    .library_floor = cuda_library_floor,
    .weight_bytes = cuda_weight_bytes,
};

static const struct backend_option cuda_options[] = {
    {"shared-kv", "0|1", "0: keys of which a part follows from their values are stored whole"},
    {"state", "float32|bfloat16", "what states of gated DeltaNet layers are kept in; bfloat16 is half the bytes"},
    {"kernels", "plain", "kernels that every card runs, which are slow; otherwise the fastest there are for this one"},
    {"eager", "0|1", "start every op of a step by itself, never a captured graph"},
    {"share-cards", "0|1", "1: with more devices to a model than there are cards, several run on one, for tests"},
    {"peer-access", "0|1", "0: ranks sum through the host's memory, as where cards do not reach each other's; slow"},
    {"patience", "SECONDS", "how long a device waits for others of its model until it is given up; 30"},
    {0},
};

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .ragged = true,
    .makes_dummies = true,
    .default_tokens = 8192,
    .default_seqs = 512,
    .max_back = 64,
    .max_in_flight = STEPS_IN_FLIGHT,
    .options = cuda_options,
    .probes = &cuda_probes,
    .open = cuda_open,
    .memory = cuda_memory,
    .close = cuda_close,
    .load = cuda_load,
    .unload = cuda_unload,
    .join = cuda_join,
    .alloc_cache = cuda_alloc_cache,
    .commit_cache = cuda_commit_cache,
    .cache_block_bytes = cuda_cache_block_bytes,
    .handover = &cuda_handover,
    .cache_room = cuda_cache_room,
    .compile = cuda_compile,
    .free_executable = cuda_free_executable,
    .warning = cuda_warning,
    .report = cuda_report,
    .run = step_run,
    .draw = step_draw,
    .collect = step_collect,
    .logits = cuda_logits,
    .hidden = cuda_hidden,
    .states_from = cuda_states_from,
};
