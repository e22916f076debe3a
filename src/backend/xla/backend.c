/* backend.c - XLA as a backend: see core/backend.h. A program becomes StableHLO text (lower.h), which a PJRT plugin
 * compiles for its devices: a TPU, a GPU, the CPU. */
#include "backend/xla/backend.h"

#include "backend/xla/cache.h"
#include "backend/xla/dense.h"
#include "backend/xla/replicas.h"
#include "backend/xla/run.h"
#include "backend/xla/store.h"
#include "backend/xla/topology.h"
#include "backend/xla/weights.h"

#include "base/machine_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- device ---- */

static enum status read_number(const char *text, const char *name, int least, int most, int *out, struct error *err) {
    char *end;
    long n = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || n < least || n > most)
        return fail(err, ERR_ARG, "device-option: %s=%.40s: it is a number from %d to %d", name, text, least, most);
    *out = (int)n;
    return OK;
}

static enum status read_options(struct device *d, const struct device_options *o, struct error *err) {
    int beyond; // xla_rings_beyond has it
    const struct {
        const char *name;
        int least, most, usual, *to;
    } numbers[] = {
        {"blockwise", 0, 1 << 24, XLA_BLOCKWISE_TOKENS, &d->blockwise},
        {"piece", 1, 1 << 24, XLA_PIECE_TOKENS, &d->piece},
        {"rings", 0, 1 << 24, XLA_RINGS_BEYOND, &beyond},
        {"steps", 1, XLA_MAX_STEPS, 0, &d->steps}, // 0: as the device wants
        {"sums", 0, 1, -1, &d->sums},              // -1: likewise
    };
    const char *folder = device_option(o->own, "dump");
    d->dump = folder ? xstrdup(folder) : NULL;
    d->store = store_open(device_option(o->own, "cache"), d->why_no_store, sizeof d->why_no_store);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        const char *text = device_option(o->own, numbers[i].name);
        *numbers[i].to = numbers[i].usual;
        if (text)
            TRY(read_number(text, numbers[i].name, numbers[i].least, numbers[i].most, numbers[i].to, err));
    }
    return OK;
}

static int64_t xla_rings_beyond(const char *const *own) {
    const char *rings = device_option(own, "rings");
    return rings ? strtol(rings, NULL, 10) : XLA_RINGS_BEYOND; // read_options refuses what is no number
}

static void xla_close(struct device *d) {
    pjrt_close(d->pjrt);
    free(d->dump);
    store_close(d->store);
    free(d);
}

static void xla_memory(const struct device *d, struct device_memory *out) {
    struct pjrt_memory_bytes m;
    struct machine_memory machine;
    pjrt_device_memory(d->pjrt, d->index, &m);
    *out = (struct device_memory){.total = m.limit, .taken = m.in_use};
    if (m.limit == 0 && device_is_cpu(d)) {
        machine_memory_get(&machine);
        *out = (struct device_memory){.total = machine.total, .taken = machine.total - machine.available};
    }
}

/* An eighth of the device's memory, if it tells how much it has; on the CPU, which has other things to do, a 32th of
 * the machine's. */
static enum status read_dense(struct device *d, const struct device_options *o, struct error *err) {
    const char *given = device_option(o->own, "dense");
    struct device_memory m;
    int mib = 0;
    xla_memory(d, &m);
    if (given)
        TRY(read_number(given, "dense", 0, 1 << 24, &mib, err));
    d->dense_bytes = given ? (int64_t)mib << 20 : m.total / (device_is_cpu(d) ? 32 : 8);
    return OK;
}

/* A step in a loop takes an H200 what one by itself takes, 4.3 to 6.9 ms, and the loop 2 besides (docs/lab/xla.md). On
 * the CPU a launch is next to nothing. On a TPU the host is further away: not measured. */
static int usual_steps(const struct device *d) { return device_is_cpu(d) || device_is_gpu(d) ? 1 : XLA_STEPS; }

static enum status open_plugin(struct device *d, const struct device_options *o, struct error *err) {
    char path[PJRT_PATH_BYTES];
    TRY(read_options(d, o, err));
    TRY(pjrt_find(device_option(o->own, "plugin"), path, err));
    TRY(pjrt_open(path, &(struct pjrt_options){.memory_share = o->memory_share}, &d->pjrt, err));
    if (o->index < 0 || o->index >= d->pjrt->n_devices)
        return fail(err, ERR_ARG, "device index: %s has devices 0 to %d, not %d", path, d->pjrt->n_devices - 1,
                    o->index);
    d->index = o->index;
    d->steps = d->steps ? d->steps : usual_steps(d);
    d->sums = d->sums >= 0 ? d->sums : device_is_gpu(d);
    return read_dense(d, o, err);
}

static enum status xla_open(const struct device_options *options, struct device **out, struct error *err) {
    int patience_s; // of hosts, which dist/remote.c waits for
    *out = NULL;
    TRY(device_option_patience(options->own, &patience_s, err));
    struct device *d = xcalloc(1, sizeof *d);
    d->store = -1;
    enum status st = open_plugin(d, options, err);
    if (st != OK) {
        xla_close(d);
        d = NULL;
    }
    *out = d;
    return st;
}

/* What dense copies can take at most. */
static int64_t dense_room(const struct loaded *l, struct bucket bucket, int block_size, const int *table_width) {
    int64_t all = dense_bytes(l, shape_seqs(bucket.max_seqs), block_size, table_width);
    return dense_can(l) ? MIN(all, l->device->dense_bytes) : 0;
}

/* Of a device that does not tell, as of the CPU, a quarter of the machine's memory, or half of what is free. */
static enum status xla_cache_room(struct loaded *l, struct bucket bucket, int n, int block_size, const int *table_width,
                                  double share, int64_t *out, struct error *err) {
    struct device_memory m;
    (void)n;
    xla_memory(l->device, &m);
    int64_t free_now = m.total - m.taken, logits = (int64_t)bucket.max_rows * l->program->vocab_size * 4,
            dense = dense_room(l, bucket, block_size, table_width);
    if (device_is_cpu(l->device))
        *out = MIN(m.total / 4, free_now / 2);
    else if (m.total > 0) // what is left is for a step: values of its rows, which no one knows before it is compiled
        *out = (int64_t)((double)m.total * (share > 0 ? share : 0.92)) - m.taken - m.total / 16 - 2 * logits - dense;
    else
        *out = (int64_t)1 << 30;
    return *out > 0
               ? OK
               : fail(err, ERR_MEMORY, "device xla: of %lld MiB none are left for a cache", (long long)(m.total >> 20));
}

/* ---- report ---- */

static int xla_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    const struct loaded *l = exe->loaded;
    int64_t temporary = 0, code = 0;
    for (const struct compiled *c = l->compiled; c; c = c->next) {
        temporary = MAX(temporary, c->bytes.temporary);
        code += c->bytes.code;
    }
    const struct device_report all[] = {
        {"device_weight_bytes", "weights on the device", "bytes", NULL, weights_bytes(l)},
        {"temporary_bytes", "values of the largest launch compiled so far", "bytes", NULL, temporary},
        {"code_bytes", "programs compiled so far", "bytes", NULL, code},
        {"programs_compiled_total", "shapes of launches and copies that were compiled", "programs", NULL,
         l->n_compiled},
        {"programs_from_disk_total", "those that an earlier start had compiled", "programs", NULL, l->n_from_disk},
        {"compile_us_total", "time that compiling took", "us", NULL, l->compile_us},
        {"launches_total", "launches that steps were cut into", "launches", NULL, exe->n_launches},
        {"launched_rows_total", "token rows of launches, padding among them", "rows", NULL, exe->n_padded_rows},
        {"foreseen_steps_total", "steps that a launch before had done already", "steps", NULL, exe->n_foreseen},
        {"unread_steps_total", "steps that were started before the one before was read", "steps", NULL, exe->n_unread},
        {"filled_blocks_total", "blocks that were copied to where a sequence's cache is dense", "blocks", NULL,
         dense_count(l)},
        {"drained_blocks_total", "blocks that such copies were brought back to", "blocks", NULL, dense_drained(l)},
        {"host_drawn_rows_total", "rows that were drawn on the host from their logits", "rows", NULL,
         exe->n_host_drawn},
        {"prepare_us_total", "before launches: copies of blocks, dense copies filled and brought back", "us", NULL,
         exe->phase_us[PHASE_PREPARE]},
        {"pack_us_total", "numbers of launches put together", "us", NULL, exe->phase_us[PHASE_PACK]},
        {"upload_us_total", "numbers of launches sent", "us", NULL, exe->phase_us[PHASE_UPLOAD]},
        {"execute_us_total", "launches queued", "us", NULL, exe->phase_us[PHASE_EXECUTE]},
        {"read_us_total", "results waited for and brought back", "us", NULL, exe->phase_us[PHASE_READ]},
    };
    memcpy(out, all, sizeof all);
    return (int)ARRAY_LEN(all);
}

static bool xla_warning(struct executable *exe, int i, char *out, size_t n) {
    const char *why = exe->loaded->device->why_no_store;
    bool any = i == 0 && why[0];
    if (any)
        snprintf(out, n, "%s", why);
    return any;
}

static const struct backend_option xla_options[] = {
    {"plugin", "FILE", "the PJRT plugin; otherwise that of a Python package is looked for"},
    {"blockwise", "TOKENS", "attention goes in pieces where the context is longer than this; 8192 unless given"},
    {"dense", "MIB",
     "memory for dense copies of the caches of sequences that take one token a step; an eighth unless given"},
    {"piece", "TOKENS", "of a long context that a token is attended to at once; 8192 unless given"},
    {"rings", "TOKENS",
     "layers with a window keep a ring a sequence where --max-model-len is more; 32768 unless given"},
    {"sums", "0|1", "products of one row as sums in float32, as a GPU reads weights faster; 1 on a GPU, else 0"},
    {"steps", "N",
     "tokens of each sequence that a launch makes, together, where no more is asked for; 8 on a TPU, else 1"},
    {"cache", "FOLDER|0", "where compiled programs are kept; ~/.cache/gyre/xla unless given; 0: nowhere"},
    {"dump", "FOLDER", "writes the StableHLO of what it compiles there, as 0.mlir, 1.mlir ..."},
    {"patience", "SECONDS", "how long another host of the model is waited for until it is given up; 30"},
    {0},
};

static const struct backend_probes xla_probes = {.weight_bytes = weights_bytes_of};

const struct backend_ops backend_xla = {
    .name = "xla",
    .ragged = true,
    .makes_dummies = true,
    .default_tokens = 8192, // prompts that come together begin together, in several launches (shapes.c)
    .default_chunk = 512,   // what a ring has room for behind its window
    .max_in_flight = 2,
    .tokens_ahead = XLA_STEPS - 1,
    .options = xla_options,
    .probes = &xla_probes,
    .open = xla_open,
    .memory = xla_memory,
    .close = xla_close,
    .rings_beyond = xla_rings_beyond,
    .load = load_program,
    .unload = load_free,
    .join = replicas_join,
    .alloc_cache = cache_alloc,
    .cache_block_bytes = cache_block_bytes,
    .cache_room = xla_cache_room,
    .compile = run_compile,
    .free_executable = run_free,
    .warning = xla_warning,
    .report = xla_report,
    .foreseen = ahead_left,
    .run = run_step,
    .draw = run_draw,
    .collect = run_collect,
    .logits = run_logits,
    .hidden = run_hidden,
};
