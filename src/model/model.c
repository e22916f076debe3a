/* model.c - see model.h: spec, checkpoint, bind, record, in that order. */
#include "model/model.h"

#include "model/adapter.h"
#include "model/families/family.h"
#include "model/gguf/gguf_model.h"
#include "model/weights/scales.h"

#include <stdlib.h>

/* How much is to be made is known before the first byte is. */
static enum status expect_dummies(struct binder *b, const struct load_progress *progress, struct error *err) {
    int64_t n_parameters, bytes[N_STORAGES];
    TRY(model_count(b->spec, &n_parameters, bytes, err));
    b->progress = *progress;
    for (int i = 0; i < N_STORAGES; i++)
        b->dummy_total += bytes[i];
    return OK;
}

static enum status bind_and_record(struct model *m, const struct family *family, const struct model_options *options,
                                   struct error *err) {
    struct binder b;
    TRY(binder_init(&b, options->load, m->checkpoint, m->spec, &m->arena, err));
    b.taken = options->taken;
    if (options->load == LOAD_DUMMY)
        TRY(expect_dummies(&b, &options->progress, err));
    const void *weights = family->bind(&b);
    m->dummy = b.dummy;
    m->n_parameters = b.n_parameters;
    memcpy(m->stored_bytes, b.stored_bytes, sizeof m->stored_bytes);
    TRY(binder_finish(&b, family->unused));
    if (m->checkpoint)
        m->n_unused_scales = count_unused_scales(m->checkpoint, m->spec->n_layers);
    m->program = program_new(m->spec->model_type);
    family->record(m->program, m->spec, weights);
    return OK;
}

/* Its tensors have the names that families bind. */
static enum status open_checkpoint(const char *path, const struct model_spec *spec, struct checkpoint **out,
                                   struct error *err) {
    TRY(checkpoint_open(out, path, err));
    return spec->gguf ? gguf_rename(*out, spec, err) : OK;
}

static enum status open_parts(struct model *m, const char *path, const struct model_options *options,
                              struct error *err) {
    TRY(model_spec_open(path, &m->spec, err));
    const struct family *family = family_find(m->spec->model_type);
    if (!family || !family->record)
        return fail(err, ERR_UNSUPPORTED, "%s: model_type \"%s\" cannot be run yet", m->spec->path,
                    m->spec->model_type);
    if (options->load == LOAD_CHECKPOINT)
        TRY(open_checkpoint(path, m->spec, &m->checkpoint, err));
    return bind_and_record(m, family, options, err);
}

enum { MAX_ADAPTERS = 256 };

static enum status add_adapters(struct model *m, const struct model_options *o, struct error *err) {
    struct adapter_files *files[MAX_ADAPTERS] = {NULL};
    const struct adapter *adapters[MAX_ADAPTERS];
    struct program *adapted = NULL;
    enum status st = OK;
    if (o->n_adapters == 0)
        return OK;
    if (o->n_adapters > MAX_ADAPTERS)
        return fail(err, ERR_LIMIT, "%zu adapters are given, %d is the most", o->n_adapters, MAX_ADAPTERS);
    for (size_t i = 0; i < o->n_adapters && st == OK; i++) {
        st = adapter_open(o->adapters[i].folder, o->adapters[i].name, m, &files[i], err);
        adapters[i] = st == OK ? adapter_of(files[i]) : NULL;
    }
    if (st == OK)
        st = pass_adapter(m->program, adapters, (int)o->n_adapters, &adapted, err);
    for (size_t i = 0; i < o->n_adapters && st == OK; i++)
        st = adapter_check(files[i], err);
    for (size_t i = 0; i < o->n_adapters; i++)
        adapter_free(files[i]);
    if (st != OK) {
        program_free(adapted);
        return st;
    }
    m->plain = m->program;
    m->program = adapted;
    return OK;
}

enum status model_open(const char *path, const struct model_options *options, struct model **out, struct error *err) {
    struct model *m = xcalloc(1, sizeof *m);
    enum status st = open_parts(m, path, options, err);
    if (st == OK)
        st = model_check(m, err);
    if (st == OK)
        st = add_adapters(m, options, err);
    if (st != OK) {
        model_free(m);
        m = NULL;
    }
    *out = m;
    return st;
}

void model_free(struct model *m) {
    if (!m)
        return;
    program_free(m->program);
    program_free(m->plain);
    arena_release(&m->arena);
    dummy_memory_free(m->dummy);
    checkpoint_free(m->checkpoint);
    model_spec_free(m->spec);
    free(m);
}

enum status model_check(const struct model *m, struct error *err) {
    return m->checkpoint ? checkpoint_check(m->checkpoint, err) : OK;
}

/* Binds and counts, and keeps nothing. */
static enum status count(const struct model_spec *spec, enum load_format load, struct checkpoint *checkpoint,
                         int64_t *n_parameters, int64_t stored_bytes[N_STORAGES], struct error *err) {
    const struct family *family = family_find(spec->model_type);
    if (!family)
        return fail(err, ERR_UNSUPPORTED, "%s: model_type \"%s\" is not known", spec->path, spec->model_type);
    struct arena arena;
    arena_init(&arena);
    struct binder b;
    enum status st = binder_init(&b, load, checkpoint, spec, &arena, err);
    if (st == OK) {
        family->bind(&b);
        st = binder_finish(&b, family->unused);
        *n_parameters = b.n_parameters;
        memcpy(stored_bytes, b.stored_bytes, sizeof b.stored_bytes);
    }
    arena_release(&arena);
    return st;
}

enum status model_count(const struct model_spec *spec, int64_t *n_parameters, int64_t stored_bytes[N_STORAGES],
                        struct error *err) {
    return count(spec, LOAD_PHANTOM, NULL, n_parameters, stored_bytes, err);
}

enum status model_count_at(const char *path, const struct model_spec *spec, int64_t *n_parameters,
                           int64_t stored_bytes[N_STORAGES], struct error *fault, struct error *err) {
    struct checkpoint *c = NULL;
    if (!spec->gguf && !quant_is_bnb(spec->quant))
        return model_count(spec, n_parameters, stored_bytes, err);
    enum status st = open_checkpoint(path, spec, &c, err);
    bool is_open = st == OK;
    if (is_open)
        st = count(spec, LOAD_CHECKPOINT, c, n_parameters, stored_bytes, err);
    if (is_open && st != OK)
        *fault = *err;
    checkpoint_free(c);
    return st == OK || spec->gguf ? st : model_count(spec, n_parameters, stored_bytes, err);
}
