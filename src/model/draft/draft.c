/* draft.c - see draft.h. */
#include "model/draft/draft_internal.h"
#include "model/draft/draft_kind.h"

#include <stdlib.h>

/* Another model, with the same tokens or others. */
static enum status open_draft_model(struct draft *d, const struct draft_source *source, const struct model *target,
                                    struct error *err) {
    TRY(model_open(source->path, &(struct model_options){.load = source->is_phantom ? LOAD_PHANTOM : LOAD_CHECKPOINT},
                   &d->model, err));
    bool as_many = d->model->spec->vocab_size == target->spec->vocab_size;
    if (!as_many && source->tokens == TOKENS_UNKNOWN)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: a draft of %d tokens cannot guess for a model of %d: they must be the same, or both folders "
                    "have a tokenizer, so that it guesses through the text",
                    d->model->spec->path, d->model->spec->vocab_size, target->spec->vocab_size);
    d->through_text = !as_many || source->tokens == TOKENS_OTHER;
    d->step = d->model->program;
    d->feature = NO_STATES;
    return OK;
}

static const struct draft_method {
    const char *name;
    enum status (*open)(struct draft *d, const struct draft_source *source, const struct model *target,
                        struct error *err);
} methods[] = {
    {"draft_model", open_draft_model},
    {"eagle3", eagle3_open},
    {"mtp", mtp_open},
    {"dflash", dflash_open},
    {"dspark", dflash_open},
    {"gemma4_mtp", assistant_open}, // vLLM's name of it
    {"gemma4_assistant", assistant_open},
    {"qwen3_5_mtp", mtp_open}, // vLLM's names
    {"qwen3_next_mtp", mtp_open},
    {"deepseek_mtp", mtp_open},
};

/* A checkpoint of a predictor and nothing else, as it is trained (docs/speculation.md). */
static bool is_predictor_alone(const char *path, const char *model_type) {
    const struct family *family = family_find(model_type);
    struct checkpoint *c;
    struct error err;
    if (!family || !family->mtp_prefix || checkpoint_open(&c, path, &err) != OK)
        return false;
    size_t n = checkpoint_count(c), i = 0;
    while (i < n && strncmp(checkpoint_at(c, i)->name, family->mtp_prefix, strlen(family->mtp_prefix)) == 0)
        i++;
    checkpoint_free(c);
    return n > 0 && i == n;
}

/* What the draft's config says it is, or its checkpoint. */
static enum status method_of(const char *path, const char **out, struct error *err) {
    struct model_spec *spec;
    TRY(model_spec_open(path, &spec, err));
    static const char *const own[] = {"eagle3", "dflash", "dspark", "gemma4_assistant"};
    *out = "draft_model";
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (strcmp(spec->model_type, own[i]) == 0)
            *out = own[i];
    if (is_predictor_alone(path, spec->model_type))
        *out = "mtp";
    model_spec_free(spec);
    return OK;
}

bool draft_is_model(const char *method, const char *path) {
    struct error err;
    return (method || method_of(path, &method, &err) == OK) && strcmp(method, "draft_model") == 0;
}

static enum status open_parts(struct draft *d, const struct draft_source *source, const struct model *target,
                              struct error *err) {
    const char *name = source->method;
    if (!name)
        TRY(method_of(source->path, &name, err));
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (strcmp(methods[i].name, name) == 0) {
            d->method = methods[i].name;
            if (!source->path && methods[i].open != mtp_open)
                return fail(err, ERR_ARG, "speculation: a draft needs its folder, \"model\"");
            return methods[i].open(d, source, target, err);
        }
    return fail(err, ERR_UNSUPPORTED, "speculation: method \"%.100s\" is not known", name);
}

enum status draft_open(const struct draft_source *source, const struct model *target, struct draft **out,
                       struct error *err) {
    struct draft *d = xcalloc(1, sizeof *d);
    d->is_phantom = source->is_phantom;
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
    program_free(d->target);
    program_free(d->context);
    program_free(d->chooser);
    model_free(d->model);
    free(d);
}
