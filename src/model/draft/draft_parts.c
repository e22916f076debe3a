/* draft_parts.c - what drafts have in common: their files, and what they borrow of a target. See draft_internal.h. */
#include "model/draft/draft_internal.h"

#include <stdlib.h>

enum status draft_target_of(const struct model *target, struct draft_target *out, struct error *err) {
    const struct program *p = target->program;
    *out = (struct draft_target){.vocab_size = target->spec->vocab_size,
                                 .hidden_size = target->spec->hidden_size,
                                 .n_layers = target->spec->n_layers};
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (op->code == OP_EMBED && !out->embed)
            out->embed = op->weights[0], out->embed_scale = op->args.embed.scale;
        else if (op->code == OP_SOFTCAP)
            out->softcap = op->args.softcap.cap;
        else if (op->code == OP_LINEAR && p->values[op->out[0].id].rows == ROWS_OUT)
            out->lm_head = op->weights[0];
    }
    return out->embed && out->lm_head
               ? OK
               : fail(err, ERR_UNSUPPORTED, "%s: has no table or no head that a draft could share", p->name);
}

enum status draft_weights_open(struct draft *d, const char *path, const char *prefix, struct binder *b,
                               struct error *err) {
    struct model *m = d->model;
    enum load_format load = d->is_phantom ? LOAD_PHANTOM : LOAD_CHECKPOINT;
    TRY(d->is_phantom ? OK : checkpoint_open(&m->checkpoint, path, err));
    if (!prefix)
        return binder_init(b, load, m->checkpoint, m->spec, &m->arena, err);
    binder_init_under(b, load, m->checkpoint, m->spec, &m->arena, prefix, err);
    return OK;
}

enum status draft_bind(struct draft *d, const char *path, const struct family *family, const void **weights,
                       struct error *err) {
    struct model *m = d->model = xcalloc(1, sizeof *m);
    struct binder b;
    TRY(model_spec_open(path, &m->spec, err));
    if (family_find(m->spec->model_type) != family)
        return fail(err, ERR_UNSUPPORTED, "%s: is of type %s, which is no draft for method \"%s\"", m->spec->path,
                    m->spec->architecture, d->method);
    TRY(draft_weights_open(d, path, NULL, &b, err));
    *weights = family->bind(&b);
    m->n_parameters = b.n_parameters;
    memcpy(m->stored_bytes, b.stored_bytes, sizeof m->stored_bytes);
    return binder_finish(&b, family->unused);
}

void draft_default_taps(int n_layers, int out[3]) {
    out[0] = MIN(1, n_layers - 1);
    out[1] = MAX(n_layers / 2 - 1, 0);
    out[2] = MAX(n_layers - 4, 0);
}

enum status draft_feature(struct draft *d, const struct model *target, struct feature *f, struct error *err) {
    const struct draft_spec *s = &d->model->spec->draft;
    if (s->tap_size != target->spec->hidden_size)
        return fail(err, ERR_UNSUPPORTED, "%s: reads hidden states of %d channels, the target's have %d",
                    d->model->spec->path, s->tap_size, target->spec->hidden_size);
    f->n_layers = s->n_taps;
    memcpy(f->layers, s->layers, sizeof f->layers);
    if (s->layers[0] == DEFAULT_TAPS)
        draft_default_taps(target->spec->n_layers, f->layers);
    d->target = pass_feature(target->program, f);
    d->feature = 1;
    return d->target ? OK
                     : fail(err, ERR_UNSUPPORTED, "%s: reads a layer that the target of %d layers does not have",
                            d->model->spec->path, target->spec->n_layers);
}

// ---- a vocabulary of its own ------------------------------------------------------------------------------------

const struct stored_tensor *draft_bind_offsets(struct binder *b) {
    const struct draft_spec *d = &b->spec->draft;
    const struct stored_tensor *t = NULL;
    if (bind_has(b, d->own_vocab, "d2t"))
        t = bind_tensor_as(b, bind_full_name(b, "d2t"), DT_I64, 1, (int64_t[]){d->vocab});
    if (bind_has(b, d->own_vocab, "t2d")) // says the same
        bind_tensor_as(b, bind_full_name(b, "t2d"), DT_BOOL, 1, (int64_t[]){b->spec->vocab_size});
    return t && bind_is_stored_as(b, t, DT_I64) ? t : NULL;
}

/* Of phantoms, which say none: the target's first. */
enum status draft_own_vocab(struct draft *d, const struct stored_tensor *offsets, const struct draft_target *t,
                            struct error *err) {
    const struct model_spec *s = d->model->spec;
    if (!s->draft.own_vocab)
        return OK;
    if (!offsets && !d->is_phantom)
        return fail(err, ERR_FORMAT, "%s: tensor d2t is missing, which says what the %d tokens are", s->path,
                    s->draft.vocab);
    int32_t *ids = arena_calloc(&d->model->arena, (size_t)s->draft.vocab, sizeof *ids);
    for (int64_t i = 0; i < s->draft.vocab; i++) {
        int64_t offset = 0;
        if (!d->is_phantom)
            memcpy(&offset, (const char *)offsets->data + (size_t)i * sizeof offset, sizeof offset);
        if (offset < -i || offset >= t->vocab_size - i)
            return fail(err, ERR_FORMAT,
                        "%s: tensor d2t has %lld at %lld, and their sum is no token of the target's %d", s->path,
                        (long long)offset, (long long)i, t->vocab_size);
        ids[i] = (int32_t)(i + offset);
    }
    d->target_id = ids;
    return OK;
}
