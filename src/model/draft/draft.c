/* draft.c - see draft.h. */
#include "model/draft/draft.h"

#include <stdlib.h>
#include <string.h>

/* Another model with the same tokens. */
static enum status open_draft_model(struct draft *d, const struct draft_source *source, const struct model *target,
                                    struct error *err) {
    if (!source->path)
        return fail(err, ERR_ARG, "speculation: a draft model needs its folder");
    TRY(model_open(source->path, &(struct model_options){0}, &d->model, err));
    if (d->model->spec->vocab_size != target->spec->vocab_size)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: a draft of %d tokens cannot guess for a model of %d: they must be the same",
                    d->model->spec->path, d->model->spec->vocab_size, target->spec->vocab_size);
    d->step = d->model->program;
    return OK;
}

static const struct draft_method {
    const char *name;
    enum status (*open)(struct draft *d, const struct draft_source *source, const struct model *target,
                        struct error *err);
} methods[] = {
    {"draft_model", open_draft_model},
};

static enum status open_parts(struct draft *d, const struct draft_source *source, const struct model *target,
                              struct error *err) {
    const char *name = source->method ? source->method : "draft_model";
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (strcmp(methods[i].name, name) == 0) {
            d->method = methods[i].name;
            return methods[i].open(d, source, target, err);
        }
    return fail(err, ERR_UNSUPPORTED, "speculation: method \"%.100s\" is not known", name);
}

enum status draft_open(const struct draft_source *source, const struct model *target, struct draft **out,
                       struct error *err) {
    struct draft *d = xcalloc(1, sizeof *d);
    enum status st = open_parts(d, source, target, err);
    if (st != OK) {
        draft_free(d);
        d = NULL;
    }
    *out = d;
    return st;
}

void draft_free(struct draft *d) {
    if (!d)
        return;
    model_free(d->model);
    free(d);
}
