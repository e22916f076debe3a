/* text_drafter_open.c - a draft model with tokens of its own is placed beside its target. */
#include "engine/draft/draft_rows.h"
#include "engine/draft/text_drafter_parts.h"
#include "model/draft/draft_kind.h"

#include <stdlib.h>

static void close_drafter(void *context) {
    struct text_drafter *d = context;
    if (d->exe)
        d->g->ops->free_executable(d->exe);
    if (d->loaded)
        d->g->ops->unload(d->loaded);
    batch_plan_release(&d->plan);
    for (int i = 0; d->places && i < d->n_places; i++) {
        free(d->places[i].ids);
        free(d->places[i].blocks);
    }
    token_bytes_release(&d->target);
    token_bytes_release(&d->own);
    free(d->special);
    free(d->places);
    free(d->chains);
    free(d->free_blocks);
    free(d->sample);
    free(d->results);
    free(d);
}

/* Of each special token of the target the draft's of that name. */
static void find_specials(struct text_drafter *d) {
    d->special = xcalloc((size_t)d->target.n + 1, sizeof *d->special);
    for (int32_t i = 0; i < d->target.n; i++)
        d->special[i] = token_is_special(&d->target, i)
                            ? token_find(&d->own, token_at(&d->target, i), token_length(&d->target, i))
                            : -1;
}

bool engine_draft_is_model(const char *method, const char *path) { return path && draft_is_model(method, path); }

enum status text_drafter_load(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                              struct error *err) {
    struct load_options options = {.dtype = o->dtype,
                                   .kv_dtype = o->kv_cache_dtype,
                                   .quantization = o->quantization,
                                   .dummy_weights = o->dummy_weights,
                                   .is_draft = true};
    TRY(program_drafter_check(g, draft, err));
    TRY(o->draft_topk > 1 ? program_drafter_check_tree(g, draft, err) : OK);
    struct text_drafter *d = xcalloc(1, sizeof *d);
    *d = (struct text_drafter){.g = g, .draft = draft};
    g->drafter = (struct drafter){.context = d, .close = close_drafter};
    TRY(token_bytes_init(&d->target, o->model_tokens, g->program->vocab_size, err));
    TRY(token_bytes_init(&d->own, o->draft_tokens, draft->step->vocab_size, err));
    find_specials(d);
    return g->ops->load(g->device, draft->step, &options, &d->loaded, err);
}

static void allocate(struct text_drafter *d, int32_t n_blocks, int32_t width) {
    int widths[MAX_CACHE_GROUPS];
    for (int g = 0; g < d->draft->step->n_groups; g++)
        widths[g] = width;
    batch_plan_init(&d->plan, d->bucket, d->draft->step->n_groups, widths);
    d->places = xcalloc((size_t)d->n_places, sizeof *d->places);
    d->chains = xcalloc((size_t)d->n_places, sizeof *d->chains);
    d->sample = xcalloc((size_t)d->bucket.max_rows, sizeof *d->sample);
    d->results = xcalloc((size_t)d->bucket.max_rows, sizeof *d->results);
    d->free_blocks = xcalloc((size_t)n_blocks, sizeof *d->free_blocks);
    for (int32_t b = n_blocks - 1; b >= 0; b--)
        d->free_blocks[d->n_free++] = b;
    for (int i = 0; i < d->n_places; i++) {
        d->places[i].ids = xcalloc((size_t)d->longest + MOST_GUESSES, sizeof *d->places[i].ids);
        d->places[i].blocks = xcalloc((size_t)width, sizeof *d->places[i].blocks);
    }
}

enum status text_drafter_open(struct gyre *g, const struct gyre_options *o, struct error *err) {
    struct text_drafter *d = g->drafter.context;
    struct cache_config config = {.block_size = g->cache.block_size};
    int32_t n_blocks = g->cache.n_blocks[draft_group(g->program)];
    d->n_places = MIN(g->drafter.most_seqs, g->scheduler.limits.max_seqs);
    d->most_guesses = o->n_guesses;
    d->block_size = config.block_size;
    int64_t longest = MIN(d->draft->model->spec->max_positions, (int64_t)n_blocks * config.block_size);
    d->longest = (int32_t)MIN(longest, 2 * g->info.max_model_len + MOST_GUESSES);
    int32_t width = (d->longest + config.block_size - 1) / config.block_size;
    d->bucket = (struct bucket){.max_tokens = MAX(g->scheduler.limits.max_tokens, d->n_places),
                                .max_seqs = d->n_places,
                                .max_rows = d->n_places};
    for (int i = 0; i < d->draft->step->n_groups; i++)
        config.n_blocks[i] = n_blocks, config.table_width[i] = width;
    allocate(d, n_blocks, width);
    TRY(g->ops->alloc_cache(d->loaded, &config, err));
    TRY(g->ops->compile(d->loaded, d->bucket, &d->exe, err));
    g->drafter.guess = text_drafter_guess;
    g->drafter.follow = text_drafter_follow;
    g->drafter.waits = true;
    return OK;
}
