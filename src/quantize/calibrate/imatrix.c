/* imatrix.c - see imatrix.h. */
#include "quantize/calibrate/imatrix.h"

#include "base/gguf_write.h"
#include "file/gguf_tensors.h"
#include "quantize/names.h"
#include "quantize/output.h"

#include <stdio.h>
#include <stdlib.h>

static const char sums_leaf[] = ".in_sum2", counts_leaf[] = ".counts";

/* ---- measuring ---- */

struct entry {
    const char *name;
    int64_t cols, n;
    double *sums;   // [n][cols]
    double *counts; // [n]
};

struct measured {
    struct arena arena;
    struct file_names names;
    struct entry *entries; // [n], in the order of the model
    size_t n;
    const struct bound_list *taken;
    size_t *entry_of; // [taken->n]
};

static struct entry *entry_named(struct measured *m, const char *name) {
    enum { NEAR = 8 }; // kinds of experts that take turns
    for (size_t i = m->n; i > 0 && i + NEAR > m->n; i--)
        if (strcmp(m->entries[i - 1].name, name) == 0)
            return &m->entries[i - 1];
    m->entries[m->n] = (struct entry){.name = name};
    return &m->entries[m->n++];
}

static void make_entries(struct measured *m, const struct model *model) {
    m->entries = xcalloc(m->taken->n + 1, sizeof *m->entries);
    m->entry_of = xcalloc(m->taken->n + 1, sizeof *m->entry_of);
    file_names_init(&m->names, model->spec, m->taken, &m->arena);
    for (size_t i = 0; i < m->taken->n; i++) {
        const struct bound *b = &m->taken->items[i];
        const char *name = b->is_matrix ? file_name(&m->names, b->name) : NULL;
        if (!b->is_matrix)
            continue;
        struct entry *e = entry_named(m, name ? name : b->name);
        e->cols = b->cols;
        e->n = MAX(e->n, expert_of(b->name) + 1);
        e->n = MAX(e->n, 1);
        m->entry_of[i] = (size_t)(e - m->entries);
    }
    for (size_t i = 0; i < m->n; i++) {
        m->entries[i].sums = xcalloc((size_t)(m->entries[i].n * m->entries[i].cols), sizeof(double));
        m->entries[i].counts = xcalloc((size_t)m->entries[i].n, sizeof(double));
    }
}

static void see(void *context, const struct calibration_input *in) {
    struct measured *m = context;
    struct entry *e = &m->entries[m->entry_of[in->b - m->taken->items]];
    int64_t which = MAX(expert_of(in->b->name), 0);
    double *sums = e->sums + which * e->cols;
    for (int64_t i = 0; i < in->n; i++) {
        const float *x = calibration_row(in, i);
        for (int64_t c = 0; c < e->cols; c++)
            sums[c] += (double)(x[c] * x[c]);
    }
    e->counts[which] += (double)in->n;
}

static void measured_release(struct measured *m) {
    for (size_t i = 0; i < m->n; i++)
        free(m->entries[i].sums), free(m->entries[i].counts);
    free(m->entries), free(m->entry_of);
    arena_release(&m->arena);
}

/* ---- writing ---- */

static bool was_seen(const struct entry *e) {
    for (int64_t i = 0; i < e->n; i++)
        if (e->counts[i] > 0)
            return true;
    return false;
}

static uint64_t put_tensor(struct measured *m, struct gguf_writer *w, const struct entry *e, const char *leaf,
                           int64_t cols) {
    uint64_t dims[2] = {(uint64_t)cols, (uint64_t)e->n};
    return gguf_put_tensor(w, arena_printf(&m->arena, "%s%s", e->name, leaf), 2, dims,
                           gguf_type_number(DT_F32, QFORMAT_PLAIN), dims[0] * dims[1] * sizeof(float));
}

static void put_floats(struct buf *data, uint64_t offset, const double *x, int64_t n) {
    while (data->len < offset)
        buf_push(data, '\0');
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        buf_append(data, &f, sizeof f);
    }
}

static enum status write_file(struct measured *m, const struct calibration *c, const char *dataset, struct output *file,
                              int *n_matrices, struct error *err) {
    struct gguf_writer w = {0};
    struct buf head = {0}, data = {0};
    gguf_put_string(&w, "general.type", STR("imatrix"));
    gguf_put_array(&w, "imatrix.datasets", GGUF_STRING, 1);
    gguf_item_string(&w, str_of(dataset));
    gguf_put_u32(&w, "imatrix.chunk_count", (uint32_t)(c->n_tokens / c->chunk));
    gguf_put_u32(&w, "imatrix.chunk_size", (uint32_t)c->chunk);
    *n_matrices = 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct entry *e = &m->entries[i];
        if (!was_seen(e))
            continue;
        *n_matrices += (int)e->n;
        put_floats(&data, put_tensor(m, &w, e, sums_leaf, e->cols), e->sums, e->n * e->cols);
        put_floats(&data, put_tensor(m, &w, e, counts_leaf, 1), e->counts, e->n);
    }
    while (data.len < w.data_bytes)
        buf_push(&data, '\0');
    gguf_write_head(&w, &head);
    buf_str(&head, buf_view(&data));
    enum status st = output_write(file, head.ptr, head.len, err);
    if (st == OK)
        st = output_commit(file, err);
    gguf_writer_release(&w);
    buf_release(&head);
    buf_release(&data);
    return st;
}

enum status imatrix_write(const struct calibration *c, const char *dataset, const char *path, int *n_matrices,
                          struct error *err) {
    struct measured m = {.taken = c->taken};
    struct output file;
    TRY(output_begin(&file, path, err));
    make_entries(&m, c->model);
    struct calibration mine = *c;
    mine.see = see, mine.see_context = &m;
    enum status st = calibrate(&mine, err);
    if (st == OK)
        st = write_file(&m, c, dataset, &file, n_matrices, err);
    output_abandon(&file);
    measured_release(&m);
    return st;
}

/* ---- reading ---- */

struct imatrix {
    const char *path;
    struct checkpoint *file;
    struct arena arena; // means
};

void imatrix_free(struct imatrix *m) {
    if (!m)
        return;
    checkpoint_free(m->file);
    arena_release(&m->arena);
    free(m);
}

static enum status check_type(const char *path, struct error *err) {
    struct gguf g;
    struct str type;
    TRY(gguf_open(path, &g, err));
    enum status st = gguf_string_or(&g, "general.type", STR(""), &type, err);
    if (st == OK && !str_eq(type, STR("imatrix")))
        st = fail(err, ERR_FORMAT, "%s: general.type is not \"imatrix\"", path);
    gguf_release(&g);
    return st;
}

enum status imatrix_open(const char *path, struct imatrix **out, struct error *err) {
    struct imatrix *m = xcalloc(1, sizeof *m);
    m->path = arena_strdup(&m->arena, str_of(path));
    enum status st = check_type(path, err);
    if (st == OK)
        st = checkpoint_open(&m->file, path, err);
    if (st != OK) {
        imatrix_free(m);
        m = NULL;
    }
    *out = m;
    return st;
}

static const struct stored_tensor *find(const struct imatrix *m, const char *name, const char *leaf) {
    char whole[512];
    int n = snprintf(whole, sizeof whole, "%s%s", name, leaf);
    return n > 0 && (size_t)n < sizeof whole ? checkpoint_find(m->file, whole) : NULL;
}

static bool has_shape(const struct stored_tensor *t, int64_t rows, int64_t cols) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return t->dtype == DT_F32 && !t->format && t->rank >= 1 && t->shape[t->rank - 1] == cols && n == rows * cols;
}

enum status imatrix_find(const struct imatrix *m, const char *name, int64_t cols, int64_t n_matrices, const float **out,
                         struct error *err) {
    const struct stored_tensor *sums = find(m, name, sums_leaf), *counts = find(m, name, counts_leaf);
    *out = NULL;
    if (!sums || !counts)
        return OK;
    if (!has_shape(sums, n_matrices, cols) || !has_shape(counts, n_matrices, 1))
        return fail(err, ERR_FORMAT, "%s: %s%s is no matrix of float32 with %lld rows of %lld numbers", m->path, name,
                    sums_leaf, (long long)n_matrices, (long long)cols);
    float *means = arena_calloc((struct arena *)&m->arena, (size_t)(n_matrices * cols), sizeof *means);
    const float *x = sums->data, *count = counts->data;
    for (int64_t i = 0; i < n_matrices * cols; i++) {
        float n = count[i / cols];
        means[i] = n > 0 ? x[i] / n : 1;
        if (!(means[i] >= 0 && means[i] < 1e30f))
            return fail(err, ERR_FORMAT, "%s: %s%s has a number that is no mean square", m->path, name, sums_leaf);
    }
    *out = means;
    return OK;
}
