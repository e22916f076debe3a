/* memory_plan.c - see memory_plan.h. */
#include "engine/memory_plan.h"

#include "engine/engine.h"
#include "engine/fit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void __attribute__((format(printf, 4, 5)))
add(struct memory_plan *plan, int64_t n, int64_t each, const char *what, ...) {
    if (n * each == 0)
        return;
    BUG_IF(plan->n_parts == MAX_MEMORY_PARTS);
    struct memory_part *part = &plan->parts[plan->n_parts++];
    va_list args;
    va_start(args, what);
    vsnprintf(part->what, sizeof part->what, what, args);
    va_end(args);
    part->n = n;
    part->each = each;
    plan->total += n * each;
}

/* What the device says that it holds. */
static void add_device(struct memory_plan *plan, const struct gyre *g) {
    struct device_report reports[MAX_DEVICE_REPORTS];
    int n = g->ops->report(g->exe, reports);
    for (int i = 0; i < n; i++)
        if (strcmp(reports[i].unit, "bytes") == 0)
            add(plan, 1, reports[i].value, "%s", reports[i].help);
}

void memory_group_name(const struct cache_group *c, char *out, size_t size) {
    const char *s = c->n_layers == 1 ? "" : "s";
    if (c->ring)
        snprintf(out, size, "rings of %d tokens, %d layer%s", c->ring, c->n_layers, s);
    else if (c->kind == CACHE_STATE)
        snprintf(out, size, "recurrent state, %d layer%s", c->n_layers, s);
    else if (c->kind == CACHE_LATENT)
        snprintf(out, size, "latent cache, %d layer%s", c->n_layers, s);
    else if (c->window)
        snprintf(out, size, "cache of a window of %d, %d layer%s", c->window, c->n_layers, s);
    else
        snprintf(out, size, "cache, %d layer%s", c->n_layers, s);
}

static void add_group(struct memory_plan *plan, const struct gyre *g, int group) {
    const struct cache_group *c = &g->program->groups[group];
    int64_t each = g->ops->cache_block_bytes(g->loaded, group, g->cache.block_size);
    char name[64];
    memory_group_name(c, name, sizeof name);
    add(plan, c->kind == CACHE_STATE ? g->cache.n_states : g->cache.n_blocks[group], each, "%s", name);
}

static int64_t swap_bytes(const struct gyre *g) {
    int64_t bytes = 0;
    for (int i = 0; i < g->program->n_groups; i++) {
        int n = g->program->groups[i].kind == CACHE_STATE ? g->cache.n_host_states : g->cache.n_host_blocks[i];
        bytes += n * g->ops->cache_block_bytes(g->loaded, i, g->cache.block_size);
    }
    return bytes;
}

void memory_plan(const struct gyre *g, struct memory_plan *out) {
    struct device_memory device;
    *out = (struct memory_plan){0};
    g->ops->memory(g->device, &device);
    out->machine = device.total;
    out->taken = device.taken;
    if (g->ops->in_place)
        add(out, 1, g->weight_bytes, "weights, as stored");
    add_device(out, g);
    for (int i = 0; i < g->program->n_groups; i++)
        add_group(out, g, i);
    int64_t swap = swap_bytes(g);
    add(out, 1, swap, "swap space, on the host");
    if (g->ops->cache_room) // the device has memory of its own
        out->total -= swap;
}

// ---- of a card that need not be there ---------------------------------------------------------------------------

static void add_caches(const struct gyre_options *o, const struct program *p, struct loaded *l, int block_size,
                       struct footprint *out) {
    for (int g = 0; g < p->n_groups; g++) {
        struct footprint_cache *c = &out->caches[out->n_caches++];
        int64_t block = o->backend->cache_block_bytes(l, g, block_size);
        c->is_state = p->groups[g].kind == CACHE_STATE;
        c->n_bytes = c->is_state ? block : block / block_size;
        memory_group_name(&p->groups[g], c->what, sizeof c->what);
    }
}

/* As engine_size asks for a step: a table for the longest sequence that the model has. */
static void widths_of(const struct program *p, int64_t max_len, int block_size, int out[MAX_CACHE_GROUPS]) {
    for (int g = 0; g < p->n_groups; g++)
        out[g] = p->groups[g].kind == CACHE_STATE ? 0 : (int)((max_len + block_size - 1) / block_size);
}

static enum status measure(const struct gyre_options *o, const struct engine_model *m, struct loaded *l,
                           struct footprint *out, struct error *err) {
    struct engine_sizes sizes;
    int width[MAX_CACHE_GROUPS] = {0};
    enum status st = engine_size(o, m, l, &sizes, &out->no_room);
    if (st == OK)
        out->no_room.text[0] = '\0';
    else if (st != ERR_MEMORY) { // what was asked for, not what there is
        *err = out->no_room;
        return st;
    }
    int block_size = sizes.cache.block_size;
    int64_t most = 1 << 24, longest = o->max_model_len ? o->max_model_len : m->max_positions; // size.c
    widths_of(m->program, MIN(longest, most), block_size, width);
    TRY(o->backend->probes->footprint(l, sizes.bucket, block_size, width, out->parts, &out->n_parts, err));
    for (int i = 0; i < out->n_parts; i++) {
        out->stored_bytes += out->parts[i].stored_bytes;
        out->n_bytes += out->parts[i].n_bytes;
    }
    add_caches(o, m->program, l, block_size, out);
    if (st == OK)
        out->cache_bytes = sizes.kv_cache_bytes, out->cache_tokens = sizes.kv_cache_tokens,
        out->max_model_len = sizes.max_model_len;
    return OK;
}

enum status engine_footprint(const struct gyre_options *o, const struct model *model, const struct phantom_card *card,
                             struct footprint *out, struct error *err) {
    const struct backend_ops *ops = o->backend;
    struct device *device = NULL;
    struct loaded *loaded = NULL;
    struct device_options on = {.memory_share = o->gpu_memory_utilization, .own = o->device_options, .card = card};
    struct load_options load = {.dtype = o->dtype,
                                .kv_dtype = o->kv_cache_dtype,
                                .quantization = o->quantization,
                                .dummy_weights = o->dummy_weights};
    struct engine_model m = {.program = model->program, .max_positions = model->spec->max_positions};
    *out = (struct footprint){.memory_bytes = card->memory_bytes};
    out->may_bytes = (int64_t)((double)card->memory_bytes * o->gpu_memory_utilization);
    if (!ops->probes || !ops->probes->footprint)
        return fail(err, ERR_UNSUPPORTED, "device %s: it does not tell what a model takes of a card", ops->name);
    TRY(device_options_check(ops, on.own, err));
    enum status st = ops->open(&on, &device, err);
    if (st == OK)
        st = ops->load(device, model->program, &load, &loaded, err);
    if (st == OK)
        st = measure(o, &m, loaded, out, err);
    if (loaded)
        ops->unload(loaded);
    if (device)
        ops->close(device);
    return st;
}
