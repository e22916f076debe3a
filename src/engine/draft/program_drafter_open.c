/* program_drafter_open.c - a draft's program is placed beside its target's, compiled and linked to it. */
#include "engine/draft/branches.h"
#include "engine/draft/program_drafter_parts.h"

#include <stdlib.h>

static void take_away(const struct gyre *g, const struct placed_program *p) {
    if (p->exe)
        g->ops->free_executable(p->exe);
    if (p->loaded)
        g->ops->unload(p->loaded);
}

static void close_drafter(void *context) {
    struct program_drafter *d = context;
    take_away(d->g, &d->chooser);
    take_away(d->g, &d->context);
    take_away(d->g, &d->step);
    draft_rows_release(&d->rows);
    free(d->samples[0]);
    free(d->samples[1]);
    free(d->results);
    for (int i = 0; d->trees && i < d->most_chains; i++)
        guess_tree_release(&d->trees[i].tree);
    free(d->trees);
    free(d->chains);
    free(d->block);
    free(d->q);
    free(d->own_q);
    sample_scratch_release(&d->scratch);
    free(d);
}

enum status program_drafter_check(const struct gyre *g, const struct draft *draft, struct error *err) {
    const struct program *p = draft->step;
    if (draft_group(g->program) < 0)
        return fail(err, ERR_UNSUPPORTED,
                    "speculation: %s keeps no cache of the whole text, beside which a draft's lies", g->program->name);
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].kind == CACHE_STATE)
            return fail(err, ERR_UNSUPPORTED, "speculation: the draft %s has recurrent layers, which cannot go back",
                        p->name);
    if (draft->feature != NO_STATES && !g->ops->hidden)
        return fail(err, ERR_UNSUPPORTED,
                    "speculation: the draft %s reads hidden states, which this device does not keep", p->name);
    if (program_rope_depends_on_length(p))
        return fail(err, ERR_UNSUPPORTED, "speculation: positions of the draft %s depend on the length of the text",
                    p->name);
    return OK;
}

struct executable *program_drafter_exe(const struct gyre *g, int *row) {
    const struct program_drafter *d = g->drafter.context;
    *row = d->chains[0].asked_row;
    return d->chooser.exe ? d->chooser.exe : d->step.exe;
}

enum status program_drafter_link(struct gyre *g, struct error *err) {
    struct program_drafter *d = g->drafter.context;
    if (!d->is_linked)
        return OK;
    if (d->draft->chooser)
        TRY(g->ops->states_from(d->chooser.exe, 1, d->step.exe, d->draft->carry, err));
    if (d->draft->context)
        return g->ops->states_from(d->context.exe, 0, g->exe, d->draft->feature, err);
    TRY(g->ops->states_from(d->step.exe, 0, g->exe, d->draft->feature, err));
    return g->ops->states_from(d->step.exe, 1, d->step.exe, d->draft->carry, err);
}

enum status program_drafter_load(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                                 struct error *err) {
    struct load_options options = {.dtype = o->dtype,
                                   .kv_dtype = draft->reads_target ? NULL : o->kv_cache_dtype,
                                   .quantization = o->quantization,
                                   .dummy_weights = o->dummy_weights,
                                   .is_draft = true};
    TRY(program_drafter_check(g, draft, err));
    TRY(o->draft_topk > 1 ? program_drafter_check_tree(g, draft, err) : OK);
    struct program_drafter *d = xcalloc(1, sizeof *d);
    *d = (struct program_drafter){.g = g, .draft = draft};
    g->drafter = (struct drafter){.context = d, .close = close_drafter};
    d->max_positions = draft->model->spec->max_positions;
    options.caches_of = draft->reads_target ? g->loaded : NULL;
    TRY(g->ops->load(g->device, draft->step, &options, &d->step.loaded, err));
    options.caches_of = d->step.loaded;
    if (draft->chooser)
        TRY(g->ops->load(g->device, draft->chooser, &options, &d->chooser.loaded, err));
    return draft->context ? g->ops->load(g->device, draft->context, &options, &d->context.loaded, err) : OK;
}

static int states_width(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_STATES)
            return p->ops[i].out[0].width;
    return 0;
}

static enum status alloc_cache(struct program_drafter *d, struct error *err) {
    const struct gyre *g = d->g;
    struct cache_config config = {.block_size = g->cache.block_size};
    for (int i = 0; i < d->draft->step->n_groups; i++) {
        config.n_blocks[i] = d->rows.n_blocks;
        config.table_width[i] = d->rows.width;
    }
    return d->draft->reads_target ? OK : g->ops->alloc_cache(d->step.loaded, &config, err);
}

/* Prompts, and the rows of all chains at once. */
static struct bucket bucket_of(const struct program_drafter *d, int most_seqs) {
    const struct step_limits *limits = &d->g->scheduler.limits;
    int a_seq = MAX(MAX(d->draft->block, d->topk), 1), per_seq = d->most_guesses / d->g->cache.block_size + 2;
    int n_copies = MAX(d->g->pool.max_copies, most_seqs * d->topk * per_seq);
    return (struct bucket){.max_tokens = MAX(limits->max_tokens, most_seqs * a_seq),
                           .max_seqs = MAX(limits->max_seqs, most_seqs * d->topk),
                           .max_rows = most_seqs * MAX(d->most_guesses + 1, d->topk),
                           .max_copies = d->draft->step->n_groups * n_copies};
}

static void allocate(struct program_drafter *d, struct bucket bucket, int most_seqs) {
    const struct draft *draft = d->draft;
    struct draft_rows_options rows = {.bucket = bucket,
                                      .target_group = draft_group(d->g->program),
                                      .n_groups = draft->step->n_groups,
                                      .n_scratch = most_seqs * (1 + 2 * d->topk),
                                      .most_ahead = MAX(d->most_guesses, draft->block),
                                      .shares = draft->reads_target};
    draft_rows_init(&d->rows, &d->g->cache, &rows);
    d->states_width = states_width(draft->context ? draft->context : draft->step);
    for (int i = 0; i < 2; i++) {
        if (d->states_width > 0 && !d->is_linked)
            batch_plan_add_states(&d->rows.plans[i], bucket, d->states_width);
        d->samples[i] = xcalloc((size_t)bucket.max_rows, sizeof *d->samples[i]);
    }
    d->sample = d->samples[0];
    d->results = xcalloc((size_t)bucket.max_rows, sizeof *d->results);
    d->chains = xcalloc((size_t)most_seqs, sizeof *d->chains);
    if (d->topk > 0)
        d->trees = xcalloc((size_t)most_seqs, sizeof *d->trees);
    for (int i = 0; i < most_seqs && d->trees; i++)
        guess_tree_init(&d->trees[i].tree, d->most_guesses, d->topk);
    d->block = xcalloc((size_t)draft->block + 1, sizeof *d->block);
    for (int i = 1; i < draft->block; i++)
        d->block[i] = draft->mask;
}

static enum status allocate_distributions(struct program_drafter *d, int most_seqs, struct error *err) {
    size_t rows = (size_t)most_seqs * (size_t)d->most_guesses, n_own = (size_t)d->draft->step->vocab_size;
    d->n_vocab = d->g->info.vocab_size;
    d->q = calloc(rows * (size_t)d->n_vocab, sizeof *d->q);
    if (!d->q)
        return fail(err, ERR_MEMORY, "speculation: no memory for the distributions of %zu guesses", rows);
    d->own_q = xcalloc(n_own, sizeof *d->own_q);
    sample_scratch_init(&d->scratch, (int64_t)n_own);
    return OK;
}

enum status program_drafter_open(struct gyre *g, const struct gyre_options *o, struct error *err) {
    struct program_drafter *d = g->drafter.context;
    int most_seqs = MIN(g->drafter.most_seqs, g->scheduler.limits.max_seqs);
    d->most_guesses = d->draft->block > 0 ? MIN(o->n_guesses, d->draft->block - !d->draft->from_anchor) : o->n_guesses;
    d->most_chains = most_seqs;
    d->topk = o->draft_topk > 1 ? o->draft_topk : 0;
    d->most_kept = o->draft_rows ? o->draft_rows - 1 : o->n_guesses;
    d->is_linked = g->ops->states_from && d->draft->feature != NO_STATES;
    d->runs_ahead = g->ops->max_in_flight > 1 && !o->draft_rejection && !d->draft->context && !d->topk &&
                    (d->is_linked || d->draft->feature == NO_STATES);
    struct bucket bucket = bucket_of(d, most_seqs);
    allocate(d, bucket, most_seqs);
    TRY(o->draft_rejection ? allocate_distributions(d, most_seqs, err) : OK);
    TRY(alloc_cache(d, err));
    TRY(g->ops->compile(d->step.loaded, bucket, &d->step.exe, err));
    TRY(d->draft->context ? g->ops->compile(d->context.loaded, bucket, &d->context.exe, err) : OK);
    TRY(d->draft->chooser ? g->ops->compile(d->chooser.loaded, bucket, &d->chooser.exe, err) : OK);
    g->drafter.guess = program_drafter_guess;
    g->drafter.branch = d->trees ? program_drafter_branch : NULL;
    g->drafter.most_branches = engine_most_branches(o);
    g->drafter.follow = program_drafter_follow;
    g->drafter.reads_hidden = d->draft->feature != NO_STATES;
    g->drafter.waits = true;
    return OK;
}
