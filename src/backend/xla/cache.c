/* cache.c - see cache.h. */
#include "backend/xla/cache.h"

#include "backend/xla/compiled.h"

#include <stdlib.h>

/* ---- shapes ---- */

static const struct cache_group *group_of(const struct loaded *l, int cache) {
    return &l->program->groups[l->program->caches[cache].group];
}

static int count_arrays(const struct loaded *l, int cache) {
    switch (group_of(l, cache)->kind) {
    case CACHE_KV: return l->has_int8_cache ? 4 : 2;
    case CACHE_LATENT: return 1;
    case CACHE_STATE:
        return group_of(l, cache)->ring ? (l->has_int8_cache ? 4 : 2) : l->layers[cache].delta_floats ? 2 : 1;
    }
    bug(__FILE__, __LINE__, "a cache kind without arrays");
}

void cache_list(struct loaded *l) {
    const struct program *p = l->program;
    l->layers = xcalloc((size_t)p->n_caches + 1, sizeof *l->layers);
    for (int i = 0; i < p->n_caches; i++) {
        l->layers[i].conv_floats = group_of(l, i)->conv_floats;
        l->layers[i].delta_floats = group_of(l, i)->delta_floats;
        l->layers[i].first = l->n_caches;
        l->layers[i].n = count_arrays(l, i);
        l->n_caches += l->layers[i].n;
    }
}

/* Array `which` of a layer's cache, for so many blocks or slots. */
static struct cache_array array_of(const struct loaded *l, int cache, int which, int64_t n, int block_size) {
    const struct cache_group *g = group_of(l, cache);
    struct cache_array a = {.type = l->type, .group = l->program->caches[cache].group};
    block_size = g->ring ? g->ring : block_size;
    if (g->kind == CACHE_STATE && !g->ring) {
        a.type = TYPE_F32;
        a.shape = SHAPE(n, MAX(which == CACHE_CONV ? l->layers[cache].conv_floats : l->layers[cache].delta_floats, 1));
    } else if (g->kind == CACHE_LATENT) {
        a.shape = SHAPE(n, 1, block_size, g->k_dim);
    } else if (which <= CACHE_V) {
        a.type = l->has_int8_cache ? TYPE_S8 : l->type;
        a.shape = SHAPE(n, g->n_heads, block_size, which == CACHE_K ? g->k_dim : g->v_dim);
    } else {
        a.type = TYPE_F32;
        a.shape = SHAPE(n, g->n_heads, block_size);
    }
    return a;
}

static int64_t array_bytes(const struct cache_array *a) {
    return shape_count(a->shape) * (a->type == TYPE_F32 ? 4 : a->type == TYPE_BF16 ? 2 : 1);
}

int64_t cache_block_bytes(const struct loaded *l, int group, int block_size) {
    int64_t n = 0;
    for (int i = 0; i < l->program->n_caches; i++)
        for (int k = 0; k < l->layers[i].n && l->program->caches[i].group == group; k++) {
            struct cache_array a = array_of(l, i, k, 1, block_size);
            n += array_bytes(&a);
        }
    return n;
}

int64_t cache_bytes(const struct loaded *l) {
    int64_t n = 0;
    for (int i = 0; i < l->n_caches && l->caches; i++)
        n += array_bytes(&l->caches[i]);
    return n;
}

/* ---- zeros ---- */

static void lower_zeros(const struct loaded *l, struct buf *out) {
    struct hlo h = {0};
    for (int i = 0; i < l->n_caches; i++) {
        struct tensor zero = hlo_full(&h, l->caches[i].type, SCALAR, 0);
        hlo_result(&h, hlo_spread(&h, zero, l->caches[i].shape, NULL));
    }
    hlo_module(&h, "zeros", 1, out);
}

/* A program makes them: there is no call that does, and nothing has to be sent. */
static enum status make_zeros(struct loaded *l, struct error *err) {
    struct buf text = {0};
    struct pjrt_buffer **made = xcalloc((size_t)l->n_caches + 1, sizeof *made);
    lower_zeros(l, &text);
    struct pjrt_loaded *program = NULL;
    enum status st = compiled_make(l, buf_view(&text), &program, err);
    if (st == OK)
        st = compiled_run(l, program, made, 0, made, err);
    for (int i = 0; i < l->n_caches && st == OK; i++)
        l->caches[i].buffer = made[i];
    pjrt_loaded_free(l->device->pjrt, program);
    buf_release(&text);
    free(made);
    return st;
}

void cache_shape(struct loaded *l, const struct cache_config *config) {
    const struct program *p = l->program;
    l->block_size = config->block_size;
    l->n_states = config->n_states + config->n_host_states;
    for (int g = 0; g < p->n_groups; g++) {
        l->n_blocks[g] = config->n_blocks[g] + config->n_host_blocks[g];
        l->table_width[g] = config->table_width[g];
    }
    l->caches = xcalloc((size_t)l->n_caches + 1, sizeof *l->caches);
    for (int i = 0; i < p->n_caches; i++)
        for (int k = 0; k < l->layers[i].n; k++) {
            int group = p->caches[i].group;
            int64_t n = p->groups[group].kind == CACHE_STATE ? l->n_states : l->n_blocks[group];
            l->caches[l->layers[i].first + k] = array_of(l, i, k, n, l->block_size);
        }
}

enum status cache_alloc(struct loaded *l, const struct cache_config *config, struct error *err) {
    const struct program *p = l->program;
    bool has_host = config->n_host_states > 0;
    BUG_IF(l->caches);
    if (config->block_size < 1 || (config->block_size & (config->block_size - 1)) != 0)
        return fail(err, ERR_ARG, "%s: a cache block of %d tokens is not a power of two", p->name, config->block_size);
    for (int g = 0; g < p->n_groups; g++)
        has_host |= config->n_host_blocks[g] > 0;
    if (has_host && !device_is_cpu(l->device))
        return fail(err, ERR_UNSUPPORTED, "%s: swap_space: device xla keeps no blocks in the host's memory", p->name);
    cache_shape(l, config);
    return l->n_caches ? make_zeros(l, err) : OK;
}

void cache_release(struct loaded *l) {
    for (int i = 0; i < l->n_caches && l->caches; i++)
        pjrt_buffer_free(l->device->pjrt, l->caches[i].buffer);
    free(l->caches);
    free(l->layers);
}

/* ---- copies ---- */

/* Copies of one group, at most as many as a launch takes. */
static enum status copy_some(struct loaded *l, const struct cache_copy *copies, int n, struct error *err) {
    const struct device *d = l->device;
    int32_t ints[1 + 2 * COPIES_A_LAUNCH] = {n};
    int n_arrays = copied_arrays(l, copies[0].group, l->array_ids);
    const struct compiled *program;
    if (n_arrays == 0)
        return OK;
    for (int i = 0; i < n; i++) {
        ints[1 + 2 * i] = copies[i].from;
        ints[2 + 2 * i] = copies[i].to;
    }
    TRY(compiled_copies(l, copies[0].group, &program, err));
    for (int i = 0; i < n_arrays; i++)
        l->arguments[i] = l->caches[l->array_ids[i]].buffer;
    TRY(pjrt_upload(d->pjrt, d->index, PJRT_S32, (int64_t[]){ARRAY_LEN(ints)}, 1, ints, &l->arguments[n_arrays], err));
    enum status st = compiled_execute(l, program, n_arrays + 1, err);
    pjrt_buffer_free(d->pjrt, l->arguments[n_arrays]);
    for (int i = 0; i < n_arrays && st == OK; i++) {
        pjrt_buffer_free(d->pjrt, l->caches[l->array_ids[i]].buffer);
        l->caches[l->array_ids[i]].buffer = l->outputs[i];
    }
    return st;
}

enum status cache_copy_blocks(struct loaded *l, const struct cache_copy *copies, int n, struct error *err) {
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && end - first < COPIES_A_LAUNCH && copies[end].group == copies[first].group;)
            end++;
        TRY(copy_some(l, copies + first, end - first, err));
    }
    return OK;
}
