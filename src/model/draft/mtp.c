/* mtp.c - next-token predictors: a layer of the target's own kind that its checkpoint holds beside it (Qwen3.5,
 * DeepSeek V3). It reads the target's last hidden state, behind the final norm, beside the next token's embedding; in a
 * chain its own, behind its norm. What it is made of stands in its family's file (family.h). */
#include "model/draft/draft_internal.h"

/* The description with a layer l, of the kind of its last attention layer. */
static enum status add_layer(struct model_spec *s, int l, struct error *err) {
    int like = s->n_layers - 1;
    while (like >= 0 && s->layers[like].mixer == MIX_DELTA)
        like--;
    if (like < 0)
        return fail(err, ERR_UNSUPPORTED, "%s: has no attention layer like which its predictor could be", s->path);
    struct layer_spec *layers = arena_calloc(&s->arena, (size_t)s->n_layers + 1, sizeof *layers);
    memcpy(layers, s->layers, (size_t)s->n_layers * sizeof *layers);
    layers[l] = s->layers[like];
    layers[l].kv_source = l;
    s->layers = layers;
    return OK;
}

/* All that stands under its prefix is used. */
static enum status check_unused(const struct binder *b, const char *prefix) {
    for (size_t i = 0; b->status == OK && b->checkpoint && i < checkpoint_count(b->checkpoint); i++) {
        const struct stored_tensor *t = checkpoint_at(b->checkpoint, i);
        if (strncmp(t->name, prefix, strlen(prefix)) == 0 && !t->consumed)
            return fail(b->err, ERR_UNSUPPORTED, "%s: tensor %s of the next-token predictor would not be used",
                        b->spec->path, t->name);
    }
    return b->status;
}

static enum status bind_predictor(struct draft *d, const char *path, const struct family *family, int l,
                                  const void **weights, struct error *err) {
    struct model *m = d->model;
    struct binder b;
    TRY(add_layer(m->spec, l, err));
    TRY(draft_weights_open(d, path, family->mtp_prefix, &b, err));
    *weights = family->bind_mtp(&b, l);
    m->n_parameters = b.n_parameters;
    memcpy(m->stored_bytes, b.stored_bytes, sizeof m->stored_bytes);
    return check_unused(&b,
                        family->mtp_prefix ? family->mtp_prefix : arena_printf(&m->arena, "%slayers.%d.", b.prefix, l));
}

enum status mtp_open(struct draft *d, const struct draft_source *source, const struct model *target,
                     struct error *err) {
    const char *path = source->path ? source->path : source->target_path;
    struct draft_target t;
    const void *weights;
    d->model = xcalloc(1, sizeof *d->model);
    TRY(draft_target_of(target, &t, err));
    TRY(model_spec_open(path, &d->model->spec, err));
    const struct model_spec *s = d->model->spec;
    const struct family *family = family_find(s->model_type);
    if (!family || !family->bind_mtp)
        return fail(err, ERR_UNSUPPORTED, "%s: no next-token predictor of %s is known here", s->path, s->model_type);
    if (strcmp(s->model_type, target->spec->model_type) != 0 || s->hidden_size != t.hidden_size ||
        s->vocab_size != t.vocab_size)
        return fail(err, ERR_UNSUPPORTED, "%s: its predictor is of another model than the target", s->path);
    int l = family->mtp_prefix ? 0 : s->n_layers;
    TRY(bind_predictor(d, path, family, l, &weights, err));
    d->step = d->model->program = program_new("mtp");
    family->record_mtp(d->step, s, l, weights, (struct mtp_ends){t.embed, t.lm_head});
    d->is_ahead = true;
    d->is_first_blank = family->mtp_first_blank;
    d->feature = d->carry = 0;
    return OK;
}
