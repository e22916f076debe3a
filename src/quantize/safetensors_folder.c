/* safetensors_folder.c - quantize_safetensors; see quantize.h. */
#include "quantize/quantize.h"

#include "base/file.h"
#include "base/gguf/gguf_find.h"
#include "file/safetensors_write.h"
#include "quantize/calibrate/calibrated.h"

#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TENSORS_A_MATRIX = 4, MAX_FILE_BYTES = 256 << 20 };

struct folder_job {
    const struct quantize_job *job;
    struct model *model;
    struct bound_list taken;
    struct layer_matrices layers;
    struct calibration text;
    struct calibrated calibrated;
    struct new_tensor *tensors;          // [n]: of the i-th matrix from first[i] on, and then copies
    const struct stored_tensor **copies; // [n]; NULL: made of a matrix
    size_t n, *first;
    struct pool *pool;
    struct output folder, file;
    struct store_progress progress;
    struct error *err;
};

/* ---- what is in the file ---- */

static void add(struct folder_job *f, const char *name, enum dtype dtype, int rank, const int64_t *shape,
                const struct stored_tensor *copy) {
    struct new_tensor *t = &f->tensors[f->n];
    *t = (struct new_tensor){.name = name, .dtype = dtype, .rank = rank};
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    f->copies[f->n++] = copy;
}

/* The tensors of a matrix: codes, scales, and what the format has besides. */
static void add_matrix(struct folder_job *f, const struct layer_matrix *m) {
    struct arena *arena = &f->layers.arena;
    int64_t rows = m->b->rows, cols = m->b->cols, bytes = codes_bytes(&m->codes, cols);
    int64_t scales[] = {rows, codes_scales(&m->codes, cols)};
    const char *scale = arena_printf(arena, "%s.weight_scale", m->module);
    const char *packed = arena_printf(arena, "%s.weight_packed", m->module);
    switch (m->codes.format) {
    case CODES_FP8:
    case CODES_INT8:
        add(f, m->b->name, m->codes.format == CODES_FP8 ? DT_F8_E4M3 : DT_I8, 2, (int64_t[]){rows, cols}, NULL);
        add(f, scale, m->codes.scale_dtype, 2, scales, NULL);
        break;
    case CODES_INT4:
        add(f, packed, DT_I32, 2, (int64_t[]){rows, bytes / 4}, NULL);
        add(f, scale, m->codes.scale_dtype, 2, scales, NULL);
        add(f, arena_printf(arena, "%s.weight_shape", m->module), DT_I64, 1, (int64_t[]){2}, NULL);
        break;
    case CODES_NVFP4:
        add(f, packed, DT_U8, 2, (int64_t[]){rows, bytes}, NULL);
        add(f, scale, DT_F8_E4M3, 2, scales, NULL);
        add(f, arena_printf(arena, "%s.weight_global_scale", m->module), DT_F32, 1, (int64_t[]){1}, NULL);
        break;
    case CODES_MXFP4:
        add(f, packed, DT_U8, 2, (int64_t[]){rows, bytes}, NULL);
        add(f, scale, DT_U8, 2, scales, NULL);
        break;
    case N_CODE_FORMATS: break;
    }
}

static int by_pointer(const void *a, const void *b) {
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

/* Tensors that no quantised matrix lies in. Their data tell, since experts may be a part of a stack. */
static void add_copies(struct folder_job *f) {
    const struct checkpoint *c = f->model->checkpoint;
    const char **places = xcalloc(f->layers.n, sizeof *places);
    for (size_t i = 0; i < f->layers.n; i++)
        places[i] = f->layers.items[i].b->part.data;
    qsort(places, f->layers.n, sizeof *places, by_pointer);
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct stored_tensor *t = checkpoint_at(c, i);
        size_t low = 0, high = f->layers.n;
        while (low < high) { // the first place at or behind the tensor's data
            size_t mid = (low + high) / 2;
            if (places[mid] < (const char *)t->data)
                low = mid + 1;
            else
                high = mid;
        }
        if (low == f->layers.n || places[low] >= (const char *)t->data + t->n_bytes)
            add(f, t->name, t->dtype, t->rank, t->shape, t);
    }
    free(places);
}

static void plan(struct folder_job *f) {
    size_t most = f->layers.n * MAX_TENSORS_A_MATRIX + checkpoint_count(f->model->checkpoint);
    f->tensors = xcalloc(most, sizeof *f->tensors);
    f->copies = xcalloc(most, sizeof *f->copies);
    f->first = xcalloc(f->layers.n, sizeof *f->first);
    for (size_t i = 0; i < f->layers.n; i++) {
        f->first[i] = f->n;
        add_matrix(f, &f->layers.items[i]);
    }
    add_copies(f);
}

/* ---- rows ---- */

struct rows_job {
    const struct layer_matrix *m;
    const struct calibrated *calibrated;
    uint8_t *codes, *scales;
    size_t code_bytes, scale_bytes; // a row
    float *most;                    // [workers], of all numbers; NULL: codes are made
    struct loss *losses;            // [workers]
    float *buffers;                 // [workers][3][cols]
    atomic_bool odd;
};

static void do_rows(void *arg, int worker, int n_workers) {
    struct rows_job *r = arg;
    int64_t cols = r->m->b->cols, begin, end;
    float *x = r->buffers + (int64_t)worker * 3 * cols, *y = x + cols, *work = y + cols;
    pool_share(r->m->b->rows, 1, worker, n_workers, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const struct weight_part *p = &r->m->b->part;
        float check = 0;
        p->format->row_to_f32(p, row, cols, x);
        for (int64_t i = 0; i < cols; i++)
            check += x[i] * 0;
        if (check != 0)
            atomic_store(&r->odd, true);
        if (r->most) {
            for (int64_t i = 0; i < cols; i++)
                r->most[worker] = MAX(r->most[worker], fabsf(x[i]));
            continue;
        }
        calibrated_row(r->calibrated, r->m, row, x, work, r->codes + (size_t)row * r->code_bytes,
                       r->scales + (size_t)row * r->scale_bytes, y);
        loss_add(&r->losses[worker], x, y, cols, row);
    }
}

static enum status run_rows(struct folder_job *f, struct rows_job *r) {
    int n = pool_size(f->pool);
    r->buffers = xcalloc((size_t)n * 3 * (size_t)r->m->b->cols, sizeof *r->buffers);
    pool_run(f->pool, do_rows, r);
    free(r->buffers);
    if (atomic_load(&r->odd))
        return fail(f->err, ERR_FORMAT, "tensor %s has a number that is not finite", r->m->b->name);
    return OK;
}

/* nvfp4: one divisor for matrices that are computed together. */
static enum status find_tensor_scales(struct folder_job *f) {
    int n = pool_size(f->pool);
    float *most = xcalloc(f->layers.n, sizeof *most), *each = xcalloc((size_t)n, sizeof *each);
    enum status st = OK;
    for (size_t i = 0; i < f->layers.n && st == OK; i++) {
        struct rows_job r = {.m = &f->layers.items[i], .most = each};
        memset(each, 0, (size_t)n * sizeof *each);
        st = run_rows(f, &r);
        for (int k = 0; k < n; k++)
            most[i] = MAX(most[i], each[k]);
    }
    for (size_t i = 0; i < f->layers.n; i++) {
        float whole = most[i];
        for (size_t k = i > 4 ? i - 4 : 0; k < MIN(i + 5, f->layers.n); k++)
            if (layer_siblings(f->layers.items[i].module, f->layers.items[k].module))
                whole = MAX(whole, most[k]);
        f->layers.items[i].codes.tensor_scale = nvfp4_tensor_scale(whole);
    }
    free(most), free(each);
    return st;
}

/* ---- writing ---- */

static enum status put(struct folder_job *f, const struct new_tensor *t, const void *bytes) {
    uint64_t n = new_tensor_bytes(t);
    TRY(output_write_at(&f->file, t->offset, bytes, (size_t)n, f->err));
    f->progress.done += n;
    if (!f->progress.step || f->progress.step(f->progress.context, f->progress.done, f->progress.total))
        return OK;
    return fail(f->err, ERR_IO, "interrupted: nothing was written");
}

static void report(const struct folder_job *f, const struct layer_matrix *m, const struct rows_job *r) {
    struct tensor_report told = {m->b->name,
                                 dtype_name(m->b->part.dtype),
                                 f->job->type,
                                 {0},
                                 (r->code_bytes + r->scale_bytes) * (uint64_t)m->b->rows};
    for (int k = 0; k < pool_size(f->pool); k++)
        loss_join(&told.loss, &r->losses[k]);
    if (f->job->report)
        f->job->report(f->job->context, &told);
}

static enum status write_matrix(struct folder_job *f, size_t i) {
    const struct layer_matrix *m = &f->layers.items[i];
    const struct new_tensor *t = &f->tensors[f->first[i]];
    uint64_t rows = (uint64_t)m->b->rows;
    TRY(calibrated_prepare(&f->calibrated, i, f->err));
    struct rows_job r = {.m = m,
                         .calibrated = &f->calibrated,
                         .code_bytes = new_tensor_bytes(&t[0]) / rows,
                         .scale_bytes = new_tensor_bytes(&t[1]) / rows};
    r.codes = xcalloc(rows, r.code_bytes);
    r.scales = xcalloc(rows, r.scale_bytes);
    r.losses = xcalloc((size_t)pool_size(f->pool), sizeof *r.losses);
    enum status st = run_rows(f, &r);
    if (st == OK)
        st = put(f, &t[0], r.codes);
    if (st == OK)
        st = put(f, &t[1], r.scales);
    if (st == OK && m->codes.format == CODES_INT4)
        st = put(f, &t[2], (int64_t[]){m->b->rows, m->b->cols});
    if (st == OK && m->codes.format == CODES_NVFP4)
        st = put(f, &t[2], &m->codes.tensor_scale);
    if (st == OK)
        report(f, m, &r);
    free(r.codes), free(r.scales), free(r.losses);
    return st;
}

static enum status write_weights(struct folder_job *f) {
    char path[FOLDER_PATH_BYTES];
    struct buf head = {0};
    TRY(path_join(path, sizeof path, f->folder.temporary, "model.safetensors", f->err));
    f->progress.total = safetensors_write_head(f->tensors, f->n, &head);
    enum status st = output_check_room(f->job->out, f->progress.total, f->err);
    if (st == OK)
        st = output_begin(&f->file, path, f->err);
    if (st == OK)
        st = output_write(&f->file, head.ptr, head.len, f->err);
    buf_release(&head);
    for (size_t i = 0; i < f->layers.n && st == OK; i++)
        st = write_matrix(f, i);
    for (size_t i = 0; i < f->n && st == OK; i++) {
        void *changed = f->copies[i] ? calibrated_vector(&f->calibrated, &f->taken, f->copies[i]) : NULL;
        if (f->copies[i])
            st = put(f, &f->tensors[i], changed ? changed : f->copies[i]->data);
        free(changed);
    }
    if (f->calibrated.n_unread && f->job->note) {
        char text[160];
        snprintf(text, sizeof text, "%d matrices read nothing of the text, and are rounded to the nearest",
                 f->calibrated.n_unread);
        f->job->note(f->job->context, text);
    }
    if (st == OK)
        st = output_commit(&f->file, f->err);
    output_abandon(&f->file);
    return st;
}

/* ---- the files beside ---- */

static bool is_table(const char *name) { return strstr(name, "embed_tokens") != NULL; }

/* Modules of matrices that are copied, and the head, which may be the table. */
static json_t *ignored(const struct folder_job *f) {
    json_t *list = json_pack("[s]", "lm_head");
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->tensors[i].name;
        size_t n = strlen(name), leaf = sizeof ".weight" - 1;
        if (f->copies[i] && f->tensors[i].rank == 2 && n > leaf && strcmp(name + n - leaf, ".weight") == 0 &&
            !is_table(name) && strcmp(name, "lm_head.weight") != 0)
            json_array_append_new(list, json_stringn(name, n - leaf));
    }
    return list;
}

static enum status write_config(struct folder_job *f) {
    char from[FOLDER_PATH_BYTES], to[FOLDER_PATH_BYTES];
    json_t *config;
    TRY(folder_file(f->job->model, "config.json", from, f->err));
    TRY(path_join(to, sizeof to, f->folder.temporary, "config.json", f->err));
    TRY(jv_load(from, MAX_FILE_BYTES, 0, &config, f->err));
    json_object_set_new(config, "quantization_config", layer_config(&f->layers.items[0].codes, ignored(f)));
    char *text = json_dumps(config, JSON_INDENT(2));
    json_decref(config);
    enum status st =
        text ? file_write(to, str_of(text), f->err) : fail(f->err, ERR_FORMAT, "%s: cannot be written again", from);
    free(text);
    return st;
}

static bool ends(const char *s, const char *with) {
    size_t n = strlen(s), k = strlen(with);
    return n >= k && strcmp(s + n - k, with) == 0;
}

/* Settings, tokenizer and templates; never code. */
static bool is_beside(const char *name) {
    static const char *const endings[] = {".json", ".model", ".jinja", ".tiktoken", "merges.txt", "vocab.txt"};
    if (name[0] == '.' || strcmp(name, "config.json") == 0 || ends(name, ".safetensors.index.json"))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(endings); i++)
        if (ends(name, endings[i]))
            return true;
    return false;
}

static enum status copy_file(struct folder_job *f, const char *name) {
    char from[FOLDER_PATH_BYTES], to[FOLDER_PATH_BYTES];
    struct buf bytes = {0};
    TRY(folder_file(f->job->model, name, from, f->err));
    TRY(path_join(to, sizeof to, f->folder.temporary, name, f->err));
    enum status st = file_read(from, MAX_FILE_BYTES, &bytes, f->err);
    if (st == OK)
        st = file_write(to, buf_view(&bytes), f->err);
    buf_release(&bytes);
    return st;
}

static enum status copy_files(struct folder_job *f) {
    DIR *dir = opendir(f->job->model);
    enum status st = dir ? OK : fail(f->err, ERR_ARG, "%s: is no folder", f->job->model);
    for (struct dirent *e; st == OK && (e = readdir(dir));)
        if (is_beside(e->d_name))
            st = copy_file(f, e->d_name);
    if (dir)
        closedir(dir);
    return st;
}

/* ---- the whole ---- */

static enum status check_written(const struct folder_job *f) {
    struct model *again;
    TRY(model_check(f->model, f->err));
    enum status st = model_open(f->folder.temporary, &(struct model_options){0}, &again, f->err);
    if (st != OK)
        return fail_within(f->err, st, "the folder as written cannot be read");
    model_free(again);
    return OK;
}

static enum status write_folder(struct folder_job *f) {
    TRY(output_begin_folder(&f->folder, f->job->out, f->err));
    TRY(write_weights(f));
    TRY(write_config(f));
    TRY(copy_files(f));
    TRY(check_written(f));
    return output_commit_folder(&f->folder, f->err);
}

static enum status do_job(struct folder_job *f, enum code_format format, enum method method) {
    char path[FOLDER_PATH_BYTES];
    bool is_gguf;
    TRY(gguf_find_model(f->job->model, path, &is_gguf, f->err));
    if (is_gguf)
        return fail(f->err, ERR_UNSUPPORTED, "%s: is a GGUF file, of which no folder of safetensors is made", path);
    TRY(model_open(f->job->model, &(struct model_options){.taken = &f->taken}, &f->model, f->err));
    if (f->model->spec->quant)
        return fail(f->err, ERR_UNSUPPORTED, "%s: is quantised already (%s); quantise the original",
                    f->model->spec->path, quant_name(f->model->spec->quant));
    if (strcmp(f->model->spec->model_type, "gpt_oss") == 0)
        return fail(f->err, ERR_UNSUPPORTED,
                    "%s: experts of gpt_oss have no layout of compressed-tensors; --format gguf "
                    "writes them",
                    f->model->spec->path);
    TRY(layer_matrices_choose(f->model, &f->taken, format, &f->layers, f->err));
    if (f->layers.n_plain && f->job->note) {
        char text[512];
        snprintf(text, sizeof text,
                 "%zu matrices stay as they are, since their columns are no multiple of %d; %s is the "
                 "first",
                 f->layers.n_plain, f->layers.items[0].codes.group, f->layers.first_plain);
        f->job->note(f->job->context, text);
    }
    plan(f);
    f->text = (struct calibration){f->model,      &f->taken,         f->job->tokens,       f->job->n_tokens,
                                   f->job->chunk, f->job->n_threads, .step = f->job->read, .context = f->job->context};
    TRY(calibrated_begin(&f->calibrated, method, &f->text, &f->layers, f->err));
    if (format == CODES_NVFP4)
        TRY(find_tensor_scales(f));
    return write_folder(f);
}

static const struct folder_type {
    const char *name;
    enum code_format format;
    enum method method;
} folder_types[] = {
    {"fp8", CODES_FP8, METHOD_NEAREST},     {"int8", CODES_INT8, METHOD_NEAREST},
    {"int4", CODES_INT4, METHOD_NEAREST},   {"nvfp4", CODES_NVFP4, METHOD_NEAREST},
    {"mxfp4", CODES_MXFP4, METHOD_NEAREST}, {"gptq-int4", CODES_INT4, METHOD_GPTQ},
    {"awq-int4", CODES_INT4, METHOD_AWQ},   {"smoothquant-int8", CODES_INT8, METHOD_SMOOTH},
};

static const struct folder_type *find_type(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(folder_types); i++)
        if (strcmp(folder_types[i].name, name) == 0)
            return &folder_types[i];
    return NULL;
}

enum status quantize_safetensors(const struct quantize_job *job, struct error *err) {
    struct folder_job f = {.job = job, .progress = job->progress, .err = err};
    const struct folder_type *type = find_type(job->type);
    if (!type)
        return fail(err, ERR_ARG, "--type %s: is none that a folder of safetensors is written in", job->type);
    if (type->method != METHOD_NEAREST && !job->tokens)
        return fail(err, ERR_ARG, "--type %s: needs a text to calibrate with: --calibration FILE", job->type);
    f.pool = pool_open(job->n_threads);
    enum status st = do_job(&f, type->format, type->method);
    output_abandon(&f.folder);
    pool_free(f.pool);
    calibrated_release(&f.calibrated);
    layer_matrices_release(&f.layers);
    free(f.tensors), free(f.copies), free(f.first), free(f.taken.items);
    model_free(f.model);
    return st;
}
