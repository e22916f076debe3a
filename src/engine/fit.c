/* fit.c - see fit.h. */
#include "engine/fit.h"

#include "base/machine_memory.h"

#include <stdio.h>
#include <stdlib.h>

/* In bytes. */
struct need {
    int64_t weights, cache, step, swap;
};

struct human {
    char text[24];
};

static struct human human(int64_t bytes) {
    struct human h;
    bool large = bytes >= (int64_t)1 << 30;
    snprintf(h.text, sizeof h.text, "%.1f %s", (double)bytes / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
    return h;
}

static int64_t sum_of(const struct need *n) {
    int64_t sum = 0;
    const int64_t parts[] = {n->weights, n->cache, n->step, n->swap};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (__builtin_add_overflow(sum, parts[i], &sum))
            return INT64_MAX;
    return sum;
}

static void name_parts(const struct need *n, char *out, size_t size) {
    const struct {
        const char *name;
        int64_t bytes;
    } parts[] = {{"weights", n->weights}, {"cache", n->cache}, {"a step", n->step}, {"swap space", n->swap}};
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (parts[i].bytes && at < size)
            at += (size_t)snprintf(out + at, size - at, "%s%s %s", at ? ", " : "", parts[i].name,
                                   human(parts[i].bytes).text);
}

/* The flag that makes the largest part smaller. */
static const char *what_helps(const struct gyre_options *o, const struct need *n, bool is_device, int64_t available) {
    int64_t most = MAX(MAX(n->weights, n->cache), MAX(n->step, n->swap));
    if (most == n->swap)
        return "--swap-space says how much of it there is";
    if (most == n->cache)
        return o->kv_cache_bytes ? "--kv-cache-memory sets the cache; without it it is what is left"
                                 : "--max-model-len makes it smaller";
    if (most == n->step)
        return "--max-num-batched-tokens makes a step smaller";
    if (is_device && !o->quantization && n->weights / 2 < available)
        return "--quantization fp8 halves what is stored in 16 bits; a smaller model, or one stored in fewer bits, "
               "fits too";
    return "it takes a smaller model, one stored in fewer bits, or a machine with more memory";
}

static enum status refuse(const struct gyre_options *o, const struct need *n, int64_t available, int64_t total,
                          const char *whose, bool is_device, struct error *err) {
    char parts[128];
    name_parts(n, parts, sizeof parts);
    return fail(err, ERR_MEMORY, "%s: does not fit: it needs %s%s (%s), and of %s %s %s %s; %s",
                o->model ? o->model : "the model", is_device ? "at least " : "", human(sum_of(n)).text, parts, whose,
                human(total).text, human(available).text,
                is_device ? "may still be taken (--gpu-memory-utilization)" : "are free",
                what_helps(o, n, is_device, available));
}

int64_t engine_step_bytes(const struct gyre_options *o, const struct program *p, struct bucket bucket) {
    if (o->backend->cache_room || o->backend->no_weights) // on the device, or nowhere: it computes nothing
        return 0;
    int64_t *offset = xcalloc((size_t)p->n_values + 1, sizeof *offset);
    int64_t bytes = program_plan_memory(p, bucket.max_tokens, bucket.max_rows, offset);
    free(offset);
    return bytes;
}

/* As few bytes as a device can keep a weight in: as stored, but what is stored in 32 bits in 16, or 8 if asked. */
static int64_t least_bytes(const struct weight *w, const struct gyre_options *o) {
    bool to_four_bits = o->quantization && strstr(o->quantization, "4"); // int4, nvfp4: with scales 4.5 at most
    int64_t stored = weight_stored_bytes(w), most = w->out * w->in * (o->quantization ? 1 : 2);
    if (to_four_bits)
        most = w->out * w->in * 9 / 16;
    return w->in > 1 ? MIN(stored, most) : 0;
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (const void *const *)a, y = (uintptr_t) * (const void *const *)b;
    return x < y ? -1 : x > y;
}

/* What `one` says of all weights; a table that is the head too counts once. */
static int64_t sum_weights(const struct program *p,
                           int64_t (*one)(const struct weight *w, const struct gyre_options *o),
                           const struct gyre_options *o) {
    const struct weight **all = xcalloc((size_t)p->n_ops * OP_MAX_WEIGHTS + 1, sizeof *all);
    int64_t bytes = 0;
    size_t n = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++)
            if (p->ops[i].weights[k])
                all[n++] = p->ops[i].weights[k];
    qsort(all, n, sizeof *all, by_address);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || all[i] != all[i - 1])
            bytes += one(all[i], o);
    free(all);
    return bytes;
}

static int64_t stored_bytes(const struct weight *w, const struct gyre_options *o) {
    (void)o;
    return weight_stored_bytes(w);
}

int64_t engine_stored_bytes(const struct program *p) { return sum_weights(p, stored_bytes, NULL); }

const struct program *engine_own_program(const struct engine_model *m) { return m->own ? m->own : m->program; }

/* Copies of what is stored transposed, by a device that computes with the other weights where they lie. */
static int64_t turned_bytes(const struct program *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *w = p->ops[i].weights[k];
            for (int j = 0; w && w->in > 1 && j < w->n_parts; j++)
                if (w->parts[j].col_stride != 1)
                    bytes += w->parts[j].n_rows * w->in * (int64_t)dtype_bytes(w->parts[j].dtype);
        }
    return bytes;
}

enum status engine_weights_fit(const struct gyre_options *o, const struct engine_model *m, const struct device *d,
                               struct error *err) {
    if (!o->backend->cache_room || !o->backend->memory) // its memory is the host's
        return OK;
    static const double usual_share = 0.92;
    struct device_memory device = {0};
    o->backend->memory(d, &device);
    int64_t may =
        (int64_t)((double)device.total * (o->gpu_memory_utilization > 0 ? o->gpu_memory_utilization : usual_share));
    struct need n = {.weights = sum_weights(engine_own_program(m), least_bytes, o), .cache = o->kv_cache_bytes};
    int64_t available = MAX(may - device.taken, 0);
    return !device.total || sum_of(&n) <= available ? OK
                                                    : refuse(o, &n, available, device.total, "the device's", true, err);
}

static int64_t swap_bytes(const struct gyre_options *o, const struct engine_model *m, struct loaded *l,
                          const struct engine_sizes *sizes) {
    const struct program *p = engine_own_program(m);
    int64_t bytes = 0;
    for (int g = 0; g < p->n_groups; g++) {
        int n = p->groups[g].kind == CACHE_STATE ? sizes->cache.n_host_states : sizes->cache.n_host_blocks[g];
        bytes += n * engine_block_bytes(o, p, l, g, sizes->cache.block_size);
    }
    return bytes;
}

enum status engine_fits(const struct gyre_options *o, const struct engine_model *m, struct loaded *l,
                        const struct engine_sizes *sizes, struct error *err) {
    struct machine_memory memory;
    struct need n = {.swap = swap_bytes(o, m, l, sizes)};
    if (!o->backend->cache_room) {
        n.weights = l ? 0 : m->made_bytes + turned_bytes(engine_own_program(m));
        n.cache = sizes->kv_cache_bytes;
        n.step = engine_step_bytes(o, engine_own_program(m), sizes->bucket);
    }
    machine_memory_get(&memory);
    if (sum_of(&n) <= memory.available)
        return OK;
    return refuse(o, &n, memory.available, memory.of_these, memory.whose, false, err);
}
