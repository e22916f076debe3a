/* open.c - putting an engine together, and taking it apart. */
#include "engine/fit.h"

#include "base/clock.h"
#include "core/pass/pass.h"
#include "engine/abi.h"
#include "engine/draft/branches.h"
#include "engine/draft/text_drafter.h"
#include "engine/draft/token_bytes.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CACHE_IDLE_S = 300, MASK_PATIENCE_US = 10000 };

/* A config may name one that the vocabulary does not have. */
static void add_eos(struct gyre *g, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool known = ids[i] < 0 || ids[i] >= g->info.vocab_size;
        for (int k = 0; k < g->info.n_eos; k++)
            known |= g->eos[k] == ids[i];
        if (!known)
            g->eos[g->info.n_eos++] = ids[i];
    }
}

static void fill_info(struct gyre *g, const struct gyre_options *o, const struct engine_model *m,
                      const struct engine_sizes *sizes) {
    struct gyre_info *info = &g->info;
    *info = (struct gyre_info){
        .vocab_size = m->program->vocab_size,
        .hidden_size = g->ops->hidden ? m->program->hidden.width : 0,
        .bos = m->bos,
        .max_model_len = sizes->max_model_len,
        .model_max_len = m->max_positions,
        .kv_cache_bytes = sizes->kv_cache_bytes,
        .kv_cache_tokens = sizes->kv_cache_tokens,
        .max_batched_tokens = sizes->bucket.max_tokens,
        .max_seqs = sizes->bucket.max_seqs,
        .block_size = sizes->cache.block_size,
    };
    info->eos = g->eos = xcalloc((size_t)m->n_eos + o->n_eos + 1, sizeof *g->eos);
    add_eos(g, m->eos, (size_t)m->n_eos);
    add_eos(g, o->eos, o->n_eos);
}

/* Whether no sequences that may run together can ever hold more blocks than there are. */
static bool holds_all(const struct program *p, const struct engine_sizes *sizes) {
    for (int i = 0; i < p->n_groups; i++) {
        int64_t one =
            kv_group_blocks_for(&p->groups[i], sizes->max_model_len, sizes->cache.block_size, sizes->max_chunk);
        if (p->groups[i].kind != CACHE_STATE && sizes->cache.n_blocks[i] / sizes->bucket.max_seqs < one)
            return false;
    }
    return true;
}

/* Branches are sequences of a step, each of which may begin with a block copied, and share rows of another. */
static struct bucket bucket_with_branches(const struct gyre *g, const struct gyre_options *o, struct bucket b) {
    int n = engine_most_branches(o) * MIN(o->guess_seqs ? o->guess_seqs : MOST_SEQS_THAT_GUESS, b.max_seqs);
    b.max_seqs += n;
    b.max_copies += n * g->program->n_groups;
    b.max_also = n * (MOST_BRANCH_TOKENS + 1);
    return b;
}

static void allocate_step(struct gyre *g, const struct gyre_options *o, const struct engine_sizes *sizes) {
    const struct program *p = g->program;
    struct bucket b = bucket_with_branches(g, o, sizes->bucket);
    for (int i = 0; i < MAX_STEPS_IN_FLIGHT; i++) {
        batch_plan_init(&g->steps[i].plan, b, p->n_groups, sizes->cache.table_width);
        g->steps[i].sample = xcalloc((size_t)b.max_rows, sizeof *g->steps[i].sample);
        g->steps[i].rows = xcalloc((size_t)b.max_rows, sizeof *g->steps[i].rows);
        g->steps[i].requests = xcalloc((size_t)b.max_seqs, sizeof *g->steps[i].requests);
        g->steps[i].branch = xcalloc((size_t)b.max_seqs, sizeof *g->steps[i].branch);
    }
    struct kv_pool_options pool = {
        .groups = p->groups,
        .n_groups = p->n_groups,
        .block_size = sizes->cache.block_size,
        .max_chunk = sizes->max_chunk,
        .max_copies = b.max_copies,
        .n_back = g->n_back,
        .n_states = sizes->cache.n_states,
        .n_host_states = sizes->cache.n_host_states,
        .holds_all = holds_all(p, sizes),
        .remember_tokens = o->no_prefix_cache || program_rope_depends_on_length(p) ? 0 : sizes->kv_cache_tokens,
        .commit = sizes->cache.by_need ? engine_commit : NULL,
        .commit_context = g};
    memcpy(pool.n_blocks, sizes->cache.n_blocks, sizeof pool.n_blocks);
    memcpy(pool.n_host_blocks, sizes->cache.n_host_blocks, sizeof pool.n_host_blocks);
    for (int i = 0; i < p->n_groups; i++)
        pool.block_bytes[i] = g->ops->cache_block_bytes(g->loaded, i, pool.block_size);
    kv_pool_init(&g->pool, &pool);
    scheduler_init(&g->scheduler, &g->pool,
                   (struct step_limits){.max_tokens = b.max_tokens,
                                        .max_seqs = sizes->bucket.max_seqs,
                                        .max_branches = b.max_seqs - sizes->bucket.max_seqs,
                                        .max_rows = b.max_rows,
                                        .n_ahead = g->ops->tokens_ahead,
                                        .itl_target_us = o->itl_target_ms * 1e3});
    g->results = xcalloc((size_t)b.max_rows, sizeof *g->results);
    g->events = xcalloc(2 * (size_t)b.max_rows + (size_t)MAX_FORCED * (size_t)b.max_seqs, sizeof *g->events);
}

/* l NULL: not loaded yet, on the host. */
static enum status size_parts(const struct gyre_options *o, const struct engine_model *m, struct loaded *l,
                              struct engine_sizes *sizes, struct error *err) {
    TRY(engine_size(o, m, l, sizes, err));
    sizes->cache.by_need = o->backend->commit_cache != NULL;
    return engine_fits(o, m, l, sizes, err);
}

static enum status open_device(struct gyre *g, const struct gyre_options *o, struct error *err) {
    struct device_options options = {.index = o->device_index,
                                     .n_threads = o->n_threads,
                                     .memory_share = o->gpu_memory_utilization,
                                     .own = o->device_options};
    TRY(device_options_check(g->ops, options.own, err));
    return g->ops->open(&options, &g->device, err);
}

static enum status load(struct gyre *g, const struct gyre_options *o, struct error *err) {
    struct load_options options = {.dtype = o->dtype,
                                   .kv_dtype = o->kv_cache_dtype,
                                   .quantization = o->quantization,
                                   .dummy_weights = o->dummy_weights,
                                   .progress = {o->load_step, o->load_context},
                                   .n_back = engine_n_back(o, g->program)};
    g->n_back = options.n_back;
    return g->ops->load(g->device, g->program, &options, &g->loaded, err);
}

/* What a block of cache takes is known once the weights are placed, and the sizes with it. */
static enum status open_cache(struct gyre *g, const struct gyre_options *o, const struct engine_model *m,
                              struct engine_sizes *sizes, struct error *err) {
    TRY(size_parts(o, m, g->loaded, sizes, err));
    g->cache = sizes->cache;
    fill_info(g, o, m, sizes);
    g->info.n_tenants = g->fair.n_tenants;
    g->info.n_adapters = (int)o->n_adapters;
    allocate_step(g, o, sizes);
    TRY(g->ops->alloc_cache(g->loaded, &sizes->cache, err));
    engine_commit_ahead(g);
    if (g->cache_fault.status != OK) {
        *err = g->cache_fault;
        return err->status;
    }
    if (kv_pool_is_short(&g->pool))
        return fail(err, ERR_MEMORY, "the device has no memory left for a cache");
    engine_commit_first(g, sizes->bucket.max_seqs);
    return OK;
}

static int64_t lap(int64_t *since_us) {
    int64_t now = clock_us(), took = now - *since_us;
    *since_us = now;
    return took;
}

static enum status open_parts(struct gyre *g, const struct gyre_options *o, const struct engine_model *m,
                              struct error *err) {
    struct engine_sizes sizes;
    int64_t at = clock_us();
    TRY(open_device(g, o, err));
    g->open_us.device = lap(&at);
    TRY(g->ops->in_place ? size_parts(o, m, NULL, &sizes, err) : engine_weights_fit(o, m, g->device, err));
    if (m->to_read)
        model_read_ahead(m->to_read, m->own, &(struct load_progress){o->load_step, o->load_context});
    TRY(load(g, o, err));
    if (m->draft)
        TRY((m->draft->through_text ? text_drafter_load : program_drafter_load)(g, o, m->draft, err));
    g->open_us.weights = lap(&at);
    TRY(open_cache(g, o, m, &sizes, err));
    TRY(engine_draft_open(g, o, m->draft, err));
    g->open_us.cache = lap(&at);
    TRY(g->ops->compile(g->loaded, bucket_with_branches(g, o, sizes.bucket), &g->exe, err));
    TRY(m->draft && !m->draft->through_text && o->n_guesses > 0 ? program_drafter_link(g, err) : OK);
    g->open_us.compile = lap(&at);
    if (m->to_read)
        g->settling = model_settle_begin(
            m->to_read, m->own, sizes.kv_cache_bytes + engine_step_bytes(o, engine_own_program(m), sizes.bucket));
    return OK;
}

enum status engine_open(const struct gyre_options *o, const struct engine_model *m, struct gyre **out,
                        struct error *err) {
    *out = NULL;
    BUG_IF(m->program->n_groups > MAX_CACHE_GROUPS);
    BUG_IF(o->backend->max_in_flight < 1 || o->backend->max_in_flight > MAX_STEPS_IN_FLIGHT);
    static _Atomic uint64_t n_opened;
    struct gyre *g = xcalloc(1, sizeof *g);
    g->number = ++n_opened;
    g->ops = o->backend;
    g->program = m->program;
    g->policy = o->policy;
    g->mask_patience_us = MASK_PATIENCE_US;
    g->weight_bytes = m->weight_bytes;
    g->cache_idle_us = (int64_t)(MAX(o->cache_idle_s == 0 ? DEFAULT_CACHE_IDLE_S : o->cache_idle_s, 0) * 1e6);
    fair_share_init(&g->fair, MAX(o->n_tenants, 1));
    BUG_IF(sodium_init() < 0);
    randombytes_buf(g->salt_key, sizeof g->salt_key);
    enum status st = open_parts(g, o, m, err);
    if (st != OK) {
        gyre_close(g);
        return st;
    }
    *out = g;
    return OK;
}

int engine_report(struct gyre_error *out, const struct error *err) {
    if (out) {
        out->status = err->status;
        memcpy(out->text, err->text, sizeof out->text);
        memcpy(out->field, err->field, sizeof out->field);
    }
    return err->status;
}
_Static_assert(sizeof(struct gyre_error) == sizeof(struct error) &&
                   offsetof(struct gyre_error, field) == offsetof(struct error, field),
               "sentence and field are copied whole");

static enum status read_options(const struct gyre_options *from, struct gyre_options *o, struct error *err) {
    TRY(abi_read(&abi_options, from, o, err));
    if (!o->model)
        return fail(err, ERR_ARG, "model is NULL: it is a folder in Hugging Face's layout");
    for (size_t i = 0; i < o->n_adapters; i++)
        if (!o->adapters || !o->adapters[i].name || !o->adapters[i].folder)
            return fail(err, ERR_ARG, "adapters: entry %zu has no name or no folder", i);
    if (!o->backend)
        return fail(err, ERR_ARG, "backend is NULL: set it to &backend_cpu, or to what gyre_backend gives");
    return engine_draft_check(o, err);
}

_Static_assert(sizeof(struct gyre_adapter) == sizeof(struct adapter_source) &&
                   offsetof(struct gyre_adapter, folder) == offsetof(struct adapter_source, folder),
               "an adapter is the same in and out of the house");

static struct engine_model engine_model_of(const struct gyre_options *o, const struct model *model) {
    const struct model_spec *spec = model->spec;
    struct engine_model m = {model->program, spec->max_positions, spec->bos, spec->eos, spec->n_eos, .to_read = NULL};
    for (int i = 0; i < N_STORAGES && !o->backend->no_weights; i++)
        m.weight_bytes += model->stored_bytes[i];
    return m;
}

/* Of a pipeline over hosts. */
static enum status own_part(const struct gyre_options *o, struct engine_model *m, struct program **own,
                            struct error *err) {
    if (o->backend->n_stages == 0)
        return OK;
    TRY(pass_stage(m->program, o->backend->stage, o->backend->n_stages, own, err));
    m->own = *own;
    m->weight_bytes = engine_stored_bytes(*own);
    return OK;
}

/* Whether dummies that the host has to make fit, and all else with them, before the first of them is made. */
static enum status dummies_fit(const struct gyre_options *o, struct error *err) {
    struct model *model;
    struct engine_sizes sizes;
    TRY(model_open(o->model, &(struct model_options){.load = LOAD_PHANTOM}, &model, err));
    struct engine_model m = engine_model_of(o, model);
    m.made_bytes = m.weight_bytes;
    enum status st = size_parts(o, &m, NULL, &sizes, err);
    model_free(model);
    return st;
}

static enum draft_tokens tokens_of(const struct gyre_options *o) {
    if (!o->model_tokens || !o->draft_tokens)
        return TOKENS_UNKNOWN;
    return token_bytes_equal(o->model_tokens, o->draft_tokens) ? TOKENS_SAME : TOKENS_OTHER;
}

/* NULL: nobody guesses, or the text itself. */
static enum status open_draft(const struct gyre_options *o, const struct model *target, bool is_phantom,
                              struct draft **out, struct error *err) {
    struct draft_source source = {o->draft_method, o->draft_model, o->model, is_phantom, tokens_of(o)};
    bool is_suffix = o->draft_method && strcmp(o->draft_method, "suffix") == 0; // of answers: no model
    *out = NULL;
    if (is_suffix && o->draft_model)
        return fail(err, ERR_ARG, "speculation: \"model\" is not for suffixes, which are of recent answers");
    return !is_suffix && (o->draft_model || o->draft_method) ? draft_open(&source, target, out, err) : OK;
}

/* The options of this version. */
static int open_with(const struct gyre_options *o, struct gyre **out, struct gyre_error *err) {
    struct error e = {0};
    struct model *model;
    int64_t start = clock_us();
    struct load_progress progress = {o->load_step, o->load_context};
    bool no_data = o->backend->no_weights || (o->dummy_weights && o->backend->makes_dummies);
    enum load_format load = no_data ? LOAD_PHANTOM : o->dummy_weights ? LOAD_DUMMY : LOAD_CHECKPOINT;
    struct model_options options = {load, progress, (const struct adapter_source *)o->adapters, o->n_adapters};
    if ((load == LOAD_DUMMY && dummies_fit(o, &e) != OK) || model_open(o->model, &options, &model, &e) != OK)
        return engine_report(err, &e);
    struct engine_model m = engine_model_of(o, model);
    struct program *own = NULL;
    struct draft *draft = NULL;
    enum status st = own_part(o, &m, &own, &e);
    if (load == LOAD_CHECKPOINT && o->backend->in_place) {
        m.mapped_bytes = m.weight_bytes;
        m.to_read = model;
    }
    if (st == OK)
        st = open_draft(o, model, load == LOAD_PHANTOM, &draft, &e);
    m.draft = draft;
    if (draft && draft->target)
        m.program = draft->target;
    struct program *rings = st == OK ? engine_rings(o, &m) : NULL;
    if (rings)
        m.program = rings;
    int64_t model_us = clock_us() - start;
    if (st == OK)
        st = engine_open(o, &m, out, &e);
    program_free(own);
    if (st != OK) {
        program_free(rings);
        draft_free(draft);
        model_free(model);
        return engine_report(err, &e);
    }
    (*out)->model = model;
    (*out)->draft = draft;
    (*out)->rings = rings;
    (*out)->open_us.model = model_us;
    return 0;
}

int gyre_open(const struct gyre_options *options, struct gyre **out, struct gyre_error *err) {
    struct gyre_options o;
    struct error e;
    *out = NULL;
    return read_options(options, &o, &e) == OK ? open_with(&o, out, err) : engine_report(err, &e);
}

static void free_requests(struct gyre *g) {
    while (g->delivered) {
        struct request *next = g->delivered->next_ended;
        request_free(g->delivered);
        g->delivered = next;
    }
    for (int i = 0; i < REQUEST_BUCKETS; i++)
        for (struct request *r = g->requests.buckets[i], *next; r; r = next) {
            next = r->next_in_bucket;
            request_free(r);
        }
}

void gyre_close(struct gyre *g) {
    if (!g)
        return;
    model_settle_end(g->settling);
    if (g->drafter.close)
        g->drafter.close(g->drafter.context);
    if (g->exe) // first: a step in flight reads its plan and what that points to
        g->ops->free_executable(g->exe);
    if (g->loaded)
        g->ops->unload(g->loaded);
    if (g->device)
        g->ops->close(g->device);
    mask_crew_free(g->mask_crew); // first: helpers read what requests have
    free_requests(g);
    scheduler_release(&g->scheduler);
    fair_share_release(&g->fair);
    kv_pool_release(&g->pool);
    for (int i = 0; i < MAX_STEPS_IN_FLIGHT; i++) {
        batch_plan_release(&g->steps[i].plan);
        free(g->steps[i].sample);
        free(g->steps[i].rows);
        free(g->steps[i].requests);
        free(g->steps[i].branch);
    }
    free(g->eos);
    free(g->results);
    free(g->events);
    program_free(g->rings);
    draft_free(g->draft);
    model_free(g->model);
    free(g);
}

const struct gyre_info *gyre_info(const struct gyre *g) { return &g->info; }
