/* adapter.c - see adapter.h. */
#include "model/adapter.h"

#include "base/folder.h"
#include "model/adapter_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct adapter_files {
    struct arena arena;
    struct adapter adapter;
    struct checkpoint *tensors;
    struct adapter_config *config;
};

/* What module names begin with, in checkpoints and in adapters: the same model may be stored under either. */
static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "language_model.", "model."};

static const char *without_prefix(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

/* The module of the program that an adapter means by this name; the name itself if there is none, which pass_adapter
 * refuses. */
static const char *module_of_program(const struct program *p, const char *name) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct weight *w = p->ops[i].code == OP_LINEAR ? p->ops[i].weights[0] : NULL;
        for (int k = 0; w && k < w->n_parts; k++)
            if (w->parts[k].module && strcmp(without_prefix(w->parts[k].module), without_prefix(name)) == 0)
                return w->parts[k].module;
    }
    return name;
}

/* ---- tensors ---- */

static bool ends_with(const char *s, const char *end, size_t *n) {
    size_t length = strlen(s), m = strlen(end);
    if (length < m || strcmp(s + length - m, end) != 0)
        return false;
    *n = length - m;
    return true;
}

/* "base_model.model.M.lora_A.weight": M. PEFT also writes the adapter's name, "default", before "weight". */
static const char *module_named(struct adapter_files *a, const char *tensor, const char *leaf) {
    static const char base[] = "base_model.model.";
    const char *ends[] = {arena_printf(&a->arena, ".%s.weight", leaf),
                          arena_printf(&a->arena, ".%s.default.weight", leaf)};
    size_t n, skip = strncmp(tensor, base, sizeof base - 1) == 0 ? sizeof base - 1 : 0;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (ends_with(tensor, ends[i], &n) && n > skip)
            return arena_printf(&a->arena, "%.*s", (int)(n - skip), tensor + skip);
    return NULL;
}

static struct stored_tensor *partner_of(struct adapter_files *a, const char *tensor) {
    char *name = arena_printf(&a->arena, "%s", tensor), *leaf = strstr(name, ".lora_A.");
    while (leaf && strstr(leaf + 1, ".lora_A."))
        leaf = strstr(leaf + 1, ".lora_A.");
    leaf[sizeof ".lora_" - 1] = 'B';
    return checkpoint_find(a->tensors, name);
}

static const struct weight *matrix(struct adapter_files *a, const struct stored_tensor *t) {
    struct weight *w = arena_alloc(&a->arena, sizeof *w);
    *w = (struct weight){.name = t->name, .out = t->shape[0], .in = t->shape[1], .n_parts = 1};
    w->parts = arena_alloc(&a->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){.format = &qformat_plain,
                                     .dtype = t->dtype,
                                     .data = t->data,
                                     .n_rows = w->out,
                                     .row_stride = w->in,
                                     .col_stride = 1};
    return w;
}

static enum status check_matrix(const struct adapter_files *a, const struct stored_tensor *t, struct error *err) {
    const char *path = checkpoint_path(a->tensors, t);
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1 || t->shape[0] > 1 << 24 || t->shape[1] > 1 << 24)
        return fail(err, ERR_FORMAT, "%s: tensor %s is no matrix", path, t->name);
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return fail(err, ERR_UNSUPPORTED, "%s: tensor %s is stored as %s, adapters are read as f32, f16 and bf16", path,
                    t->name, dtype_name(t->dtype));
    return OK;
}

static enum status add_module(struct adapter_files *a, const struct model *m, struct stored_tensor *t,
                              const char *module, struct error *err) {
    struct stored_tensor *b = partner_of(a, t->name);
    const char *path = checkpoint_path(a->tensors, t);
    if (!b)
        return fail(err, ERR_FORMAT, "%s: tensor %s has no lora_B", path, t->name);
    TRY(check_matrix(a, t, err));
    TRY(check_matrix(a, b, err));
    t->consumed = b->consumed = true;
    int64_t rank;
    double scale;
    TRY(adapter_config_rank(a->config, module, &rank, err));
    if (t->shape[0] != rank)
        return fail(err, ERR_FORMAT, "%s: tensor %s has %lld rows, adapter_config.json says r = %lld", path, t->name,
                    (long long)t->shape[0], (long long)rank);
    TRY(adapter_config_scale(a->config, module, rank, &scale, err));
    a->adapter.modules[a->adapter.n_modules++] =
        (struct adapter_module){module_of_program(m->program, module), matrix(a, t), matrix(a, b), (float)scale};
    return OK;
}

static enum status read_tensors(struct adapter_files *a, const struct model *m, struct error *err) {
    size_t n = checkpoint_count(a->tensors);
    a->adapter.modules = arena_calloc(&a->arena, n + 1, sizeof *a->adapter.modules);
    for (size_t i = 0; i < n; i++) {
        struct stored_tensor *t = checkpoint_at(a->tensors, i);
        const char *module = module_named(a, t->name, "lora_A");
        if (module)
            TRY(add_module(a, m, t, module, err));
    }
    for (size_t i = 0; i < n; i++) {
        const struct stored_tensor *t = checkpoint_at(a->tensors, i);
        if (!t->consumed)
            return fail(err, ERR_UNSUPPORTED, "%s: tensor %s is neither lora_A nor lora_B of a module",
                        checkpoint_path(a->tensors, t), t->name);
    }
    return OK;
}

static enum status open_files(struct adapter_files *a, const char *folder, const struct model *m, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    TRY(folder_file(folder, "adapter_config.json", path, err));
    TRY(adapter_config_open(path, &a->config, err));
    TRY(folder_file(folder, "adapter_model.safetensors", path, err));
    TRY(checkpoint_open(&a->tensors, path, err));
    return read_tensors(a, m, err);
}

enum status adapter_open(const char *folder, const char *name, const struct model *model, struct adapter_files **out,
                         struct error *err) {
    struct adapter_files *a = xcalloc(1, sizeof *a);
    a->adapter.name = arena_strdup(&a->arena, str_of(name));
    enum status st = open_files(a, folder, model, err);
    if (st != OK) {
        adapter_free(a);
        a = NULL;
    }
    *out = a;
    return st == OK ? OK : fail_within(err, st, "adapter %s", name);
}

void adapter_free(struct adapter_files *a) {
    if (!a)
        return;
    adapter_config_free(a->config);
    checkpoint_free(a->tensors);
    arena_release(&a->arena);
    free(a);
}

enum status adapter_check(const struct adapter_files *a, struct error *err) {
    enum status st = checkpoint_check(a->tensors, err);
    return st == OK ? OK : fail_within(err, st, "adapter %s", a->adapter.name);
}

const struct adapter *adapter_of(const struct adapter_files *a) { return &a->adapter; }
