/* engine_flags.c - see engine_flags.h. */
#include "main/engine_flags.h"

#include "engine/engine.h"
#include "main/progress.h"

#include <stdio.h>

enum status engine_fault(const struct gyre_error *from, struct error *err) {
    return fail(err, (enum status)from->status, "%s", from->text);
}

/* A line for vllm serve says it in GiB: "--swap-space 4". Nobody means 4 bytes. */
static int64_t swap_bytes(int64_t given) { return given < 1024 ? given << 30 : given; }

static void tell_of_scales(const struct gyre *g) {
    if (g->model && g->model->n_unused_scales)
        fprintf(stderr,
                "gyre: %lld scales of caches and outputs in the checkpoint are read past: a cache of 8 bits makes a scale for each key and "
                "value itself\n",
                (long long)g->model->n_unused_scales);
}

enum status engine_flags_open(const struct engine_flags *f, const char *model, struct gyre **out, struct error *err) {
    struct progress loading = {0};
    const struct backend_ops *backend;
    TRY(backend_get(f->device, &backend, err));
    struct gyre_options options = {
        .model = model,
        .backend = backend,
        .dtype = strcmp(f->dtype, "auto") == 0 ? NULL : f->dtype,
        .kv_cache_dtype = strcmp(f->kv_cache_dtype, "auto") == 0 ? NULL : f->kv_cache_dtype,
        .quantization = strcmp(f->quantization, "none") == 0 ? NULL : f->quantization,
        .n_threads = (int)f->n_threads,
        .enforce_eager = f->enforce_eager,
        .dummy_weights = strcmp(f->load_format, "dummy") == 0,
        .max_model_len = f->max_model_len,
        .kv_cache_bytes = f->kv_cache_memory,
        .gpu_memory_utilization = f->gpu_memory_utilization,
        .cache_idle_s = f->cache_idle > 0 ? f->cache_idle : -1,
        .swap_bytes = swap_bytes(f->swap_space),
        .max_batched_tokens = (int)f->max_batched_tokens,
        .max_seqs = (int)f->max_seqs,
        .block_size = (int)f->block_size,
        .policy = strcmp(f->policy, "sjf") == 0 ? GYRE_SJF : GYRE_FCFS,
        .itl_target_ms = f->itl_target,
        .no_prefix_cache = !f->prefix_cache,
        .n_tenants = f->n_tenants,
        .load_step = progress_of_load,
        .load_context = &loading,
    };
    struct gyre_error e;
    int rc = gyre_open(&options, out, &e);
    progress_end(&loading);
    if (rc != 0)
        return engine_fault(&e, err);
    tell_of_scales(*out);
    return OK;
}
