/* stats.c - see stats.h. */
#include "quantize/calibrate/stats.h"

#include <math.h>
#include <stdlib.h>

struct stats {
    struct calibration c;
    const struct bound *const *matrices; // [n]
    size_t n, first, end;                // those of [first, end) are there
    size_t *index_of;                    // by number in c.taken: in matrices, or n
    struct input_stats *own;             // [n]: those that a matrix has, where no other has the same rows
    size_t *shared;                      // [n]: whose the statistics are
    bool pairs;
    size_t max_bytes;
    int64_t reading; // of the call before: the same rows are told for each matrix that reads them
    size_t last;     // whose statistics got them; n: nobody's
};

struct stats *stats_new(const struct calibration *c, const struct bound *const *matrices, size_t n, bool pairs,
                        size_t max_bytes) {
    struct stats *s = xcalloc(1, sizeof *s);
    *s = (struct stats){.c = *c, .matrices = matrices, .n = n, .pairs = pairs, .max_bytes = max_bytes};
    s->index_of = xcalloc(c->taken->n + 1, sizeof *s->index_of);
    s->own = xcalloc(n + 1, sizeof *s->own);
    s->shared = xcalloc(n + 1, sizeof *s->shared);
    for (size_t i = 0; i < c->taken->n; i++)
        s->index_of[i] = n;
    for (size_t i = 0; i < n; i++)
        s->index_of[matrices[i] - c->taken->items] = i;
    return s;
}

static void drop(struct stats *s) {
    for (size_t i = 0; i < s->n; i++) {
        free(s->own[i].mean), free(s->own[i].most), free(s->own[i].h);
        s->own[i] = (struct input_stats){0};
        s->shared[i] = i;
    }
}

void stats_free(struct stats *s) {
    if (!s)
        return;
    drop(s);
    free(s->index_of), free(s->own), free(s->shared);
    free(s);
}

static void make(struct stats *s, size_t i) {
    struct input_stats *t = &s->own[i];
    size_t n = (size_t)s->matrices[i]->cols;
    *t = (struct input_stats){.n = (int64_t)n};
    t->mean = xcalloc(n, sizeof *t->mean);
    t->most = xcalloc(n, sizeof *t->most);
    t->h = s->pairs ? xcalloc(n * n, sizeof *t->h) : NULL;
}

static void add_row(struct input_stats *t, const float *x) {
    for (int64_t i = 0; i < t->n; i++) {
        t->mean[i] += fabsf(x[i]);
        t->most[i] = MAX(t->most[i], fabsf(x[i]));
    }
    for (int64_t i = 0; t->h && i < t->n; i++)
        for (int64_t j = 0; j <= i; j++)
            t->h[i * t->n + j] += x[i] * x[j];
    t->n_rows++;
}

static void see(void *context, const struct calibration_input *in) {
    struct stats *s = context;
    size_t i = s->index_of[in->b - s->c.taken->items];
    bool same = in->reading == s->reading && s->last < s->n;
    bool wanted = i >= s->first && i < s->end;
    if (!same)
        s->last = s->n;
    s->reading = in->reading;
    if (!wanted)
        return;
    if (same) {
        s->shared[i] = s->last;
        return;
    }
    s->last = i;
    if (!s->own[i].mean)
        make(s, i);
    for (int64_t k = 0; k < in->n; k++)
        add_row(&s->own[i], calibration_row(in, k));
}

static void finish(struct stats *s) {
    for (size_t i = s->first; i < s->end; i++) {
        struct input_stats *t = &s->own[i];
        for (int64_t k = 0; t->n_rows && k < t->n; k++)
            t->mean[k] /= (float)t->n_rows;
        for (int64_t k = 0; t->h && k < t->n; k++) // the other half
            for (int64_t j = 0; j < k; j++)
                t->h[j * t->n + k] = t->h[k * t->n + j];
        if (!t->mean && s->shared[i] == i) // nothing was read
            make(s, i);
    }
}

/* As many from i on as there is room for. */
static void choose_range(struct stats *s, size_t i) {
    size_t bytes = 0;
    s->first = s->end = i;
    while (s->end < s->n) {
        size_t n = (size_t)s->matrices[s->end]->cols, more = s->pairs ? n * n * sizeof(float) : n * sizeof(float);
        if (s->end > i && bytes + more > s->max_bytes)
            break;
        bytes += more;
        s->end++;
    }
}

enum status stats_of(struct stats *s, size_t i, const struct input_stats **out, struct error *err) {
    if (i < s->first || i >= s->end) {
        struct calibration c = s->c;
        drop(s);
        choose_range(s, i);
        s->reading = 0, s->last = s->n;
        c.see = see, c.see_context = s;
        TRY(calibrate(&c, err));
        finish(s);
    }
    *out = &s->own[s->shared[i]];
    return OK;
}
