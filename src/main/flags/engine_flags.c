/* engine_flags.c - see engine_flags.h. */
#include "main/flags/engine_flags.h"

#include "backend/cpu/kernels/kernels.h"
#include "base/file.h"
#include "base/machine_memory.h"
#include "console/progress.h"
#include "console/terminal.h"
#include "dist/remote.h"
#include "dist/worker.h"
#include "engine/draft/text_drafter.h"
#include "engine/inspect.h"
#include "main/model/model_path.h"
#include "text/vocabulary_bytes.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status engine_fault(const struct gyre_error *from, struct error *err) {
    return fail(err, (enum status)from->status, "%s", from->text);
}

/* Sentences of backend_get begin with "device". */
static enum status find_backend(const char *device, const struct backend_ops **out, struct error *err) {
    struct error e;
    enum status st = backend_get(device, out, &e);
    return st == OK ? OK : fail(err, st, "--%s", e.text);
}

/* A line for vllm serve says it in GiB: "--swap-space 4". Nobody means 4 bytes. */
static int64_t swap_bytes(int64_t given) { return given < 1024 ? given << 30 : given; }

static void tell_of_scales(const struct gyre *g) {
    const struct model *model = engine_parts(g).model;
    if (model && model->n_unused_scales)
        fprintf(stderr,
                "gyre: %lld scales of caches and outputs in the checkpoint are read past: a cache of 8 bits makes a "
                "scale for each key and "
                "value itself\n",
                (long long)model->n_unused_scales);
}

enum { MOST_DEVICE_OPTIONS = 32 };

static bool has_option(const struct backend_ops *backend, const char *name) {
    for (const struct backend_option *o = backend->options; o && o->name; o++)
        if (strcmp(o->name, name) == 0)
            return true;
    return false;
}

/* Those that were given, up to a NULL; and what flags mean to a device: --enforce-eager to one that has graphs,
 * --xla-plugin, which may be in the environment, to one that loads a plugin. `plugin` [size] and `steps` hold
 * them. */
static enum status device_options(const struct engine_flags *f, const struct backend_ops *backend, char *plugin,
                                  size_t size, char steps[32], const char *out[MOST_DEVICE_OPTIONS + 4],
                                  struct error *err) {
    size_t n = f->device_options.n;
    if (n > MOST_DEVICE_OPTIONS)
        return fail(err, ERR_ARG, "--device-option: given %zu times, %d is the most", n, MOST_DEVICE_OPTIONS);
    size_t n_exact = f->exact && has_option(backend, "activations"); // first: what is given counts
    if (n_exact)
        out[0] = "activations=float32";
    if (n > 0)
        memcpy(out + n_exact, f->device_options.items, n * sizeof *out);
    n += n_exact;
    if (f->enforce_eager && has_option(backend, "eager"))
        out[n++] = "eager=1";
    if (f->xla_plugin && has_option(backend, "plugin")) {
        if (snprintf(plugin, size, "plugin=%s", f->xla_plugin) >= (int)size)
            return fail(err, ERR_ARG, "--xla-plugin: %.80s... is too long a path", f->xla_plugin);
        out[n++] = plugin;
    }
    if (f->xla_steps > 0 && has_option(backend, "steps")) {
        snprintf(steps, 32, "steps=%d", (int)f->xla_steps);
        out[n++] = steps;
    }
    out[n] = NULL;
    return OK;
}

/* Steps that read a disk are as slow as one: better said before the first. */
static void tell_of_disk(const struct gyre *g) {
    struct machine_memory memory;
    struct engine_parts e = engine_parts(g);
    machine_memory_get(&memory);
    if (e.model && e.model->checkpoint && e.ops->in_place && engine_weight_bytes(g) > memory.available)
        fprintf(stderr,
                "gyre: the weights (%s) are larger than what of %s memory is free (%s of %s): each step reads them "
                "from the disk again\n",
                human_bytes((double)engine_weight_bytes(g)).text, memory.whose,
                human_bytes((double)memory.available).text, human_bytes((double)memory.of_these).text);
}

static int64_t file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : 0;
}

/* Nobody waits for a smaller model, which so stays as exact as the references. A folder, or a GGUF file. */
static bool is_large(const char *model) {
    enum { LARGE = 256 << 20 };
    char path[FOLDER_PATH_BYTES];
    int64_t n = file_bytes(model);
    DIR *d = opendir(model);
    for (struct dirent *e; d && (e = readdir(d));)
        if (path_join(path, sizeof path, model, e->d_name, NULL) == OK)
            n += file_bytes(path);
    if (d)
        closedir(d);
    return n >= LARGE;
}

static bool names_kernels(const struct flag_list *options) {
    for (size_t i = 0; i < options->n; i++)
        if (strncmp(options->items[i], "kernels=", 8) == 0)
            return true;
    return false;
}

static bool is_dummy(const struct engine_flags *f) { return strcmp(f->load_format, "dummy") == 0; }

const char *engine_flags_dtype(const struct engine_flags *f, const char *model) {
    if (strcmp(f->dtype, "auto") != 0)
        return f->dtype;
    bool rounds = f->serves && strcmp(f->device, "cpu") == 0 && !names_kernels(&f->device_options) && kernels_bf16() &&
                  (is_dummy(f) || is_large(model));
    return rounds ? "bfloat16" : NULL;
}

/* What a CPU rounds without being asked, it says. */
static const char *dtype_told(const struct engine_flags *f, const char *model) {
    const char *dtype = engine_flags_dtype(f, model);
    if (dtype && strcmp(f->dtype, "auto") == 0)
        fprintf(stderr, "gyre: products with bf16 weights round activations to bf16; --dtype float32 keeps them\n");
    return dtype;
}

/* It costs more than a draft that goes with the model's rows, and vocabularies look alike. */
static void tell_of_draft(const struct gyre *g, const char *draft) {
    if (engine_guesses(g).through_text)
        fprintf(stderr, "gyre: %s has other tokens than the model: it guesses through the text\n", draft);
}

/* A draft model may have other tokens. */
static enum status read_tokens(const struct speculation *s, const char *model, struct vocabulary_bytes out[2],
                               struct error *err) {
    const char *method = s->method[0] ? s->method : NULL, *draft = s->model[0] ? s->model : NULL;
    out[0] = out[1] = (struct vocabulary_bytes){0};
    return engine_draft_is_model(method, draft) ? vocabulary_bytes_of_both(model, draft, out, err) : OK;
}

static struct gyre_token_bytes token_bytes_view(const struct vocabulary_bytes *v) {
    return (struct gyre_token_bytes){v->bytes.ptr, v->start, v->n, v->first};
}

/* The backend, and over it ranks, and over those stages. */
static enum status find_table(const struct engine_flags *f, const struct backend_ops **out, struct error *err) {
    TRY(find_backend(f->device, out, err));
    if (f->n_ranks > 1)
        TRY(backend_ranks(*out, (int)f->n_ranks, f->by_expert, out, err));
    if (f->n_nodes > 1)
        return backend_stages_far(*out, &backend_remote, f->n_nodes, out, err);
    return f->n_stages > 1 ? backend_stages(*out, (int)f->n_stages, out, err) : OK;
}

enum status engine_flags_n_devices(const struct engine_flags *f, int *out, struct error *err) {
    const struct backend_ops *table;
    TRY(find_table(f, &table, err));
    *out = MAX(table->n_devices, 1);
    return OK;
}

enum status engine_flags_open(const struct engine_flags *f, const char *model, struct gyre **out, struct error *err) {
    struct progress loading = {0};
    struct vocabulary_bytes tokens[2];
    const struct backend_ops *backend;
    const char *own[MOST_DEVICE_OPTIONS + 4];
    char plugin[4096], steps[32];
    TRY(find_table(f, &backend, err));
    TRY(device_options(f, backend, plugin, sizeof plugin, steps, own, err));
    TRY(model_path_check(model, is_dummy(f) || backend->no_weights ? MODEL_SETTINGS : MODEL_COMPUTE, err));
    TRY(read_tokens(&f->speculation, model, tokens, err));
    struct gyre_token_bytes model_tokens = token_bytes_view(&tokens[0]), draft_tokens = token_bytes_view(&tokens[1]);
    struct gyre_options options = {
        .struct_size = sizeof options,
        .model = model,
        .backend = backend,
        .dtype = dtype_told(f, model),
        .kv_cache_dtype = strcmp(f->kv_cache_dtype, "auto") == 0 ? NULL : f->kv_cache_dtype,
        .quantization = strcmp(f->quantization, "none") == 0 ? NULL : f->quantization,
        .n_threads = (int)f->n_threads,
        .device_index = (int)f->device_index,
        .device_options = own,
        .dummy_weights = is_dummy(f),
        .max_model_len = f->max_model_len,
        .kv_cache_bytes = f->kv_cache_memory,
        .gpu_memory_utilization = f->gpu_memory_utilization,
        .cache_idle_s = f->cache_idle > 0 ? f->cache_idle : -1,
        .swap_bytes = swap_bytes(f->swap_space),
        .max_batched_tokens = (int)f->max_batched_tokens,
        .max_seqs = (int)f->max_seqs,
        .block_size = (int)f->block_size,
        .policy = strcmp(f->policy, "sjf") == 0 ? GYRE_SJF : GYRE_FCFS,
        .itl_target_ms = f->itl_target,
        .no_prefix_cache = !f->prefix_cache,
        .n_tenants = f->n_tenants,
        .load_step = progress_of_load,
        .load_context = &loading,
        .eos = f->eos.ids,
        .n_eos = f->eos.n,
        .adapters = f->adapters,
        .n_adapters = f->n_adapters,
        .n_guesses = f->speculation.n_guesses,
        .ngram_min = f->speculation.ngram_min,
        .ngram_max = f->speculation.ngram_max,
        .guess_seqs = f->speculation.guess_seqs,
        .draft_topk = f->speculation.topk,
        .draft_rows = f->speculation.rows,
        .draft_rejection =
            f->speculation.rejects || (f->draft_acceptance && strcmp(f->draft_acceptance, "rejection") == 0),
        .always_guess = f->speculation.always,
        .synthetic_acceptance = MAX(f->speculation.synthetic, f->synthetic_acceptance),
        .draft_method = f->speculation.method[0] ? f->speculation.method : NULL,
        .draft_model = f->speculation.model[0] ? f->speculation.model : NULL,
        .model_tokens = tokens[0].n ? &model_tokens : NULL,
        .draft_tokens = tokens[1].n ? &draft_tokens : NULL,
    };
    struct gyre_error e;
    int rc = gyre_open(&options, out, &e);
    vocabulary_bytes_release(&tokens[0]);
    vocabulary_bytes_release(&tokens[1]);
    progress_end(&loading);
    if (rc != 0)
        return engine_fault(&e, err);
    tell_of_scales(*out);
    tell_of_disk(*out);
    tell_of_draft(*out, f->speculation.model);
    return OK;
}

static void read_ahead(void *context, const struct program *stage, const struct load_progress *progress) {
    model_read_ahead(context, stage, progress);
}

enum status engine_flags_work(const struct engine_flags *f, const char *model, const struct node_flags *node,
                              struct error *err) {
    const struct backend_ops *backend;
    const char *own[MOST_DEVICE_OPTIONS + 4];
    char plugin[4096], steps[32];
    struct model *m;
    TRY(find_backend(f->device, &backend, err));
    if (f->n_ranks > 1)
        TRY(backend_ranks(backend, (int)f->n_ranks, f->by_expert, &backend, err));
    TRY(device_options(f, backend, plugin, sizeof plugin, steps, own, err));
    if (!backend->hidden)
        return fail(err, ERR_UNSUPPORTED, "device %s cannot be a stage of a pipeline yet", backend->name);
    enum load_format load = !is_dummy(f) ? LOAD_CHECKPOINT : backend->makes_dummies ? LOAD_PHANTOM : LOAD_DUMMY;
    TRY(model_path_check(model, is_dummy(f) ? MODEL_SETTINGS : MODEL_COMPUTE, err));
    TRY(model_open(model, &(struct model_options){.load = load}, &m, err));
    struct worker_options o = {
        .address = node->address,
        .rank = node->rank,
        .n_nodes = node->n_nodes,
        .identity = node->identity,
        .until_us = node->until_us,
        .joined = node->joined,
        .backend = backend,
        .program = m->program,
        .device = {.n_threads = (int)f->n_threads,
                   .index = (int)f->device_index,
                   .memory_share = f->gpu_memory_utilization,
                   .own = own},
        .load = {.dtype = dtype_told(f, model),
                 .kv_dtype = strcmp(f->kv_cache_dtype, "auto") == 0 ? NULL : f->kv_cache_dtype,
                 .quantization = strcmp(f->quantization, "none") == 0 ? NULL : f->quantization,
                 .dummy_weights = load == LOAD_PHANTOM},
        .read_ahead = backend->in_place ? read_ahead : NULL,
        .context = m,
    };
    enum status st = worker_run(&o, err);
    model_free(m);
    return st;
}

enum status engine_flags_open_one_of(const struct engine_flags *f, const char *model, int i, int n, struct gyre **out,
                                     struct error *err) {
    const struct backend_ops *backend;
    int n_threads = f->n_threads ? (int)f->n_threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int n_devices;
    struct engine_flags one = *f;
    TRY(find_backend(f->device, &backend, err));
    TRY(engine_flags_n_devices(f, &n_devices, err));
    if (n > 1 && backend->in_place)
        one.n_threads = MAX(n_threads / n, 1);
    else if (!backend->in_place && !backend->no_weights)
        one.device_index += (int64_t)i * n_devices;
    return engine_flags_open(&one, model, out, err);
}

enum status engine_flags_open_several(const struct engine_flags *f, const char *model, int n, struct gyre **out,
                                      struct error *err) {
    const struct backend_ops *backend;
    enum status st = OK;
    TRY(find_backend(f->device, &backend, err));
    if (n > 2 && backend->in_place && f->kv_cache_memory == 0)
        return fail(err, ERR_ARG,
                    "--data-parallel-size: each of %d engines on the CPU would take a quarter of the memory for its "
                    "cache; --kv-cache-memory says how much each may",
                    n);
    for (int i = 0; i < n && st == OK; i++) {
        st = engine_flags_open_one_of(f, model, i, n, &out[i], err);
        for (int k = 0; k < i && st != OK; k++)
            gyre_close(out[k]);
    }
    return st;
}
