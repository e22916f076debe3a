/* on_device.h - a program on a device of its own, through core/backend.h alone. */
#pragma once

#include "check.h"
#include "core/backend.h"

/* How; zero is the backend's choice. */
struct how {
    int n_threads;
    const char *kernels; // of the CPU; of others GYRE_TEST_KERNELS
    bool rounds;         // of the CPU: activations that meet blocks and codes go to 8 bits; else they stay float32
    bool eager;          // of CUDA
    bool whole_keys;     // shared-kv=0
    struct load_options load;
};

struct on_device {
    const struct backend_ops *ops;
    struct device *device;
    struct loaded *loaded;
    struct executable *exe;
};

/* Whether $GYRE_TEST_KERNELS asks for plain ones, which keep keys and values each for itself. */
static inline bool on_device_is_plain(void) {
    const char *named = getenv("GYRE_TEST_KERNELS");
    return named && strcmp(named, "plain") == 0;
}

static inline enum status on_device_open(const struct backend_ops *ops, struct how how, struct on_device *out,
                                         struct error *err) {
    char kernels[64];
    char state[64];
    const char *own[5] = {NULL};
    int n = 0;
    const char *named = how.kernels || ops == &backend_cpu ? how.kernels : getenv("GYRE_TEST_KERNELS");
    snprintf(kernels, sizeof kernels, "kernels=%s", named ? named : "");
    if (named)
        own[n++] = kernels;
    if (ops == &backend_cpu && !how.rounds)
        own[n++] = "activations=float32";
    if (ops != &backend_cpu && getenv("GYRE_TEST_STATE")) {
        snprintf(state, sizeof state, "state=%s", getenv("GYRE_TEST_STATE"));
        own[n++] = state;
    }
    if (how.eager)
        own[n++] = "eager=1";
    if (how.whole_keys)
        own[n++] = "shared-kv=0";
    *out = (struct on_device){.ops = ops};
    return ops->open(&(struct device_options){.n_threads = how.n_threads, .own = own}, &out->device, err);
}

static inline void on_device_close(struct on_device *o) {
    if (o->exe)
        o->ops->free_executable(o->exe);
    if (o->loaded)
        o->ops->unload(o->loaded);
    if (o->device)
        o->ops->close(o->device);
    *o = (struct on_device){.ops = o->ops};
}

/* Opens and loads; only a refusal of the program is the caller's. */
static inline enum status on_device_load(const struct backend_ops *ops, struct how how, const struct program *p,
                                         struct on_device *out, struct error *err) {
    EXPECT_OK(on_device_open(ops, how, out, err), *err);
    return ops->load(out->device, p, &how.load, &out->loaded, err);
}

/* All that comes before the first step. */
static inline void on_device_compile(const struct backend_ops *ops, struct how how, const struct program *p,
                                     const struct cache_config *config, struct bucket bucket, struct on_device *out) {
    struct error err;
    EXPECT_OK(on_device_load(ops, how, p, out, &err), err);
    EXPECT_OK(ops->alloc_cache(out->loaded, config, &err), err);
    EXPECT_OK(ops->compile(out->loaded, bucket, &out->exe, &err), err);
}

/* Late: what is asked of the rows comes when the step has been started. */
static inline enum status on_device_step(const struct on_device *o, const struct batch_plan *plan,
                                         const struct sample_params *sample, bool late, struct sample_result *results,
                                         struct error *err) {
    TRY(o->ops->run(o->exe, plan, late ? NULL : sample, err));
    TRY(late ? o->ops->draw(o->exe, sample, err) : OK);
    return o->ops->collect(o->exe, results, err);
}
