/* topology.c - see topology.h. */
#include "backend/xla/topology.h"

#include "backend/xla/cache.h"
#include "backend/xla/compiled.h"
#include "backend/xla/dense.h"
#include "backend/xla/run.h"
#include "backend/xla/weights.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Blocks of a group that the sequences of the launch hold. */
static int blocks_of(const struct cache_group *g, const struct xla_target *t) {
    int all = (t->context + t->block_size - 1) / t->block_size;
    int seen = g->window ? (g->window + t->n_queries - 2) / t->block_size + 2 : all;
    return t->n_seqs * MIN(all, seen);
}

static void shape_cache(struct loaded *l, const struct xla_target *t) {
    struct cache_config config = {.block_size = t->block_size, .n_states = t->n_seqs};
    for (int g = 0; g < l->program->n_groups; g++) {
        config.n_blocks[g] = blocks_of(&l->program->groups[g], t);
        config.table_width[g] = (t->context + t->block_size - 1) / t->block_size;
    }
    cache_shape(l, &config);
    dense_reserve(l, t->n_seqs);
}

static void put_gib(struct buf *out, const char *what, int64_t bytes) {
    buf_printf(out, "%-24s %8.3f GiB\n", what, (double)bytes / (1 << 30));
}

static void put_result(const struct loaded *l, size_t n_text, double seconds, const struct pjrt_program_bytes *b,
                       const struct pjrt_cost *cost, struct buf *out) {
    buf_printf(out, "%-24s %8.1f s, of %.1f MB of StableHLO\n", "compiled in", seconds, (double)n_text / 1e6);
    put_gib(out, "weights a chip", weights_bytes(l));
    put_gib(out, "caches a chip", cache_bytes(l));
    put_gib(out, "arguments, padded", b->arguments);
    put_gib(out, "written in place", b->aliased);
    put_gib(out, "values of the launch", b->temporary);
    put_gib(out, "code", b->code);
    put_gib(out, "in all", b->arguments + b->outputs - b->aliased + b->temporary + b->code);
    buf_printf(out, "%-24s %8.2f GFLOP, %.3f GB accessed\n", "by the plugin's count", cost->flops / 1e9,
               cost->bytes / 1e9);
}

static enum status compile_launch(struct loaded *l, const struct xla_target *t, struct buf *out, struct error *err) {
    struct launch_shape s = {.n_seqs = t->n_seqs,
                             .n_queries = t->n_queries,
                             .n_rows = t->n_seqs,
                             .context = t->context,
                             .n_steps = ahead_most(l, t->n_queries)};
    s.is_dense = dense_fits(l, &s);
    struct buf text = {0}, options = {0};
    struct pjrt_program_bytes bytes;
    struct pjrt_cost cost;
    int ids[XLA_MAX_RANKS], n = MAX(l->program->n_ranks, 1);
    for (int i = 0; i < n; i++)
        ids[i] = i;
    xla_lower(l, &s, &text);
    pjrt_compile_options(ids, n, &options);
    int64_t start = clock_us();
    enum status st =
        pjrt_compile_for(l->device->pjrt, t->topology, buf_view(&text), buf_view(&options), &bytes, &cost, err);
    if (st == OK)
        put_result(l, text.len, (double)(clock_us() - start) * 1e-6, &bytes, &cost, out);
    buf_release(&text);
    buf_release(&options);
    return st;
}

static enum status describe_and_compile(struct loaded *l, const struct xla_target *t, struct buf *out,
                                        struct error *err) {
    char path[PJRT_PATH_BYTES];
    if (l->program->n_ranks > XLA_MAX_RANKS)
        return fail(err, ERR_ARG, "%s: %d devices are more than %d", l->program->name, l->program->n_ranks,
                    XLA_MAX_RANKS);
    TRY(pjrt_find(t->plugin, path, err));
    TRY(pjrt_load(path, &l->device->pjrt, err));
    TRY(load_describe(l, &t->load, err));
    shape_cache(l, t);
    return compile_launch(l, t, out, err);
}

enum status xla_compile_for(const struct program *p, const struct xla_target *t, struct buf *out, struct error *err) {
    struct device device = {.blockwise = t->blockwise,
                            .piece = XLA_PIECE_TOKENS,
                            .steps = XLA_STEPS,
                            .store = -1,
                            .dense_bytes = INT64_MAX};
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = &device;
    l->program = p;
    enum status st = describe_and_compile(l, t, out, err);
    load_free(l);
    return st;
}
