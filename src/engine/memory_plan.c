/* memory_plan.c - see memory_plan.h. */
#include "engine/memory_plan.h"

#include "engine/engine.h"

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

static void add_group(struct memory_plan *plan, const struct gyre *g, int group) {
    const struct cache_group *c = &g->program->groups[group];
    int64_t each = g->ops->cache_block_bytes(g->loaded, group, g->cache.block_size);
    int64_t n = c->kind == CACHE_STATE ? g->cache.n_states : g->cache.n_blocks[group];
    const char *s = c->n_layers == 1 ? "" : "s";
    if (c->kind == CACHE_STATE)
        add(plan, n, each, "recurrent state, %d layer%s", c->n_layers, s);
    else if (c->kind == CACHE_LATENT)
        add(plan, n, each, "latent cache, %d layer%s", c->n_layers, s);
    else if (c->window)
        add(plan, n, each, "cache of a window of %d, %d layer%s", c->window, c->n_layers, s);
    else
        add(plan, n, each, "cache, %d layer%s", c->n_layers, s);
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
