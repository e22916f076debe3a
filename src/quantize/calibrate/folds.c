/* folds.c - see folds.h. */
#include "quantize/calibrate/folds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 20, SAMPLED_ROWS = 48 };

void folds_release(struct folds *f) {
    for (size_t i = 0; i < f->n; i++)
        free(f->items[i].scale);
    free(f->items);
    *f = (struct folds){0};
}

/* ---- what can be folded ---- */

static const struct bound *find_bound(const struct bound_list *taken, const char *prefix, size_t n, const char *leaf) {
    char name[512];
    if (snprintf(name, sizeof name, "%.*s%s", (int)n, prefix, leaf) >= (int)sizeof name)
        return NULL;
    for (size_t i = 0; i < taken->n; i++)
        if (strcmp(taken->items[i].name, name) == 0)
            return &taken->items[i];
    return NULL;
}

static bool find_layer_matrix(const struct layer_matrices *l, const struct bound *b, size_t *out) {
    for (size_t i = 0; b && i < l->n; i++)
        if (l->items[i].b == b) {
            *out = i;
            return true;
        }
    return false;
}

static const struct rule {
    const char *before, *bias, *readers[3];
    bool is_matrix;
} rules[] = {
    {"input_layernorm.weight", NULL, {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
    {"post_attention_layernorm.weight", NULL, {"mlp.gate_proj.weight", "mlp.up_proj.weight", NULL}},
    {"mlp.up_proj.weight", "mlp.up_proj.bias", {"mlp.down_proj.weight", NULL, NULL}, true},
    {"self_attn.v_proj.weight", "self_attn.v_proj.bias", {"self_attn.o_proj.weight", NULL, NULL}, true},
};

static bool is_plain_family(const struct model_spec *s) {
    static const char *const names[] = {"llama", "mistral", "qwen2", "qwen3", "smollm3"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(s->model_type, names[i]) == 0)
            return true;
    return false;
}

/* The fold of a rule in the layer of that prefix; false where its matrices are not all quantised. */
static bool find_fold(const struct bound_list *taken, const struct layer_matrices *layers, const struct rule *rule,
                      const char *prefix, size_t n, struct fold *out) {
    *out = (struct fold){.before = find_bound(taken, prefix, n, rule->before)};
    out->before_bias = rule->bias ? find_bound(taken, prefix, n, rule->bias) : NULL;
    for (int i = 0; i < 3 && rule->readers[i]; i++)
        if (!find_layer_matrix(layers, find_bound(taken, prefix, n, rule->readers[i]), &out->readers[out->n_readers++]))
            return false;
    int64_t cols = layers->items[out->readers[0]].b->cols;
    return out->before && out->before->rows == cols;
}

enum status folds_find(const struct model *m, const struct bound_list *taken, const struct layer_matrices *layers,
                       bool all, struct folds *out, struct error *err) {
    *out = (struct folds){.items = xcalloc((size_t)m->spec->n_layers * ARRAY_LEN(rules), sizeof *out->items)};
    if (!is_plain_family(m->spec))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: scales cannot be moved in model type %s, whose layers are not known to be "
                    "a norm before q, k and v and a norm before gate and up",
                    m->spec->path, m->spec->model_type);
    for (size_t i = 0; i < layers->n; i++) {
        const char *name = layers->items[i].b->name, *leaf = strstr(name, "self_attn.q_proj.weight");
        for (size_t k = 0; leaf && k < ARRAY_LEN(rules); k++) {
            struct fold *f = &out->items[out->n];
            if ((rules[k].is_matrix && !all) || !find_fold(taken, layers, &rules[k], name, (size_t)(leaf - name), f))
                continue;
            f->scale = xcalloc((size_t)layers->items[f->readers[0]].b->cols, sizeof *f->scale);
            for (int64_t c = 0; c < layers->items[f->readers[0]].b->cols; c++)
                f->scale[c] = 1;
            out->n++;
        }
    }
    return OK;
}

/* ---- scales ---- */

/* (W_rounded(s) / s - W) for a row, to `off`. */
static void rounding_error(const struct codes *c, const float *w, const float *s, int64_t n, float *scaled, float *off,
                           uint8_t *codes, uint8_t *scales) {
    for (int64_t i = 0; i < n; i++)
        scaled[i] = w[i] * s[i];
    codes_write(c, scaled, NULL, n, codes, scales, off);
    for (int64_t i = 0; i < n; i++)
        off[i] = off[i] / s[i] - w[i];
}

/* off H off^T: what the row's products are wrong by, squared and summed over what was read. */
static double product_error(const float *off, const float *h, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float row = 0;
        for (int64_t j = 0; j < n; j++)
            row += h[i * n + j] * off[j];
        sum += (double)(off[i] * row);
    }
    return sum;
}

struct scratch {
    float *w, *scaled, *off, *s;
    uint8_t *codes, *scales;
};

/* Over up to SAMPLED_ROWS rows of each reader, evenly spaced. */
static double fold_error(const struct fold *f, const struct layer_matrices *layers, const struct input_stats *stats,
                         const struct scratch *t) {
    double sum = 0;
    for (int i = 0; i < f->n_readers; i++) {
        const struct layer_matrix *m = &layers->items[f->readers[i]];
        int64_t step = MAX(m->b->rows / SAMPLED_ROWS, 1);
        for (int64_t row = 0; row < m->b->rows; row += step) {
            m->b->part.format->row_to_f32(&m->b->part, row, m->b->cols, t->w);
            rounding_error(&m->codes, t->w, t->s, m->b->cols, t->scaled, t->off, t->codes, t->scales);
            sum += product_error(t->off, stats->h, m->b->cols) * (double)step;
        }
    }
    return sum;
}

static void power_scale(const struct input_stats *stats, int64_t n, float a, float *s) {
    float least = INFINITY, most = 0;
    for (int64_t i = 0; i < n; i++) {
        s[i] = fmaxf(powf(fmaxf(stats->mean[i], 1e-6f), a), 1e-4f);
        least = MIN(least, s[i]);
        most = MAX(most, s[i]);
    }
    for (int64_t i = 0; i < n; i++)
        s[i] /= sqrtf(least * most);
}

enum status fold_awq(struct fold *f, const struct layer_matrices *layers, const struct input_stats *stats,
                     struct error *err) {
    int64_t n = layers->items[f->readers[0]].b->cols;
    struct scratch t = {xcalloc((size_t)n, 4), xcalloc((size_t)n, 4), xcalloc((size_t)n, 4),
                        xcalloc((size_t)n, 4), xcalloc((size_t)n, 1), xcalloc((size_t)n, 4)};
    double best = INFINITY;
    for (int step = 0; step <= STEPS; step++) {
        power_scale(stats, n, (float)step / STEPS, t.s);
        double error = fold_error(f, layers, stats, &t);
        if (error < best) {
            best = error;
            memcpy(f->scale, t.s, (size_t)n * sizeof *t.s);
        }
    }
    free(t.w), free(t.scaled), free(t.off), free(t.s), free(t.codes), free(t.scales);
    return isfinite(best) ? OK
                          : fail(err, ERR_FORMAT, "tensor %s: no scale gives finite products on this text",
                                 layers->items[f->readers[0]].b->name);
}

void fold_smooth(struct fold *f, const struct layer_matrices *layers, const struct input_stats *stats) {
    int64_t n = layers->items[f->readers[0]].b->cols;
    float *row = xcalloc((size_t)n, sizeof *row), *most = xcalloc((size_t)n, sizeof *most);
    for (int i = 0; i < f->n_readers; i++) {
        const struct bound *b = layers->items[f->readers[i]].b;
        for (int64_t r = 0; r < b->rows; r++) {
            b->part.format->row_to_f32(&b->part, r, n, row);
            for (int64_t c = 0; c < n; c++)
                most[c] = MAX(most[c], fabsf(row[c]));
        }
    }
    for (int64_t c = 0; c < n; c++)
        f->scale[c] = fmaxf(sqrtf(fmaxf(stats->most[c], 1e-5f) / fmaxf(most[c], 1e-5f)), 1e-5f);
    free(row), free(most);
}

/* ---- weights ---- */

static bool reads(const struct fold *f, const struct layer_matrices *layers, const struct bound *b) {
    for (int i = 0; i < f->n_readers; i++)
        if (layers->items[f->readers[i]].b == b)
            return true;
    return false;
}

void folds_apply(const struct folds *f, const struct layer_matrices *layers, const struct bound *b, int64_t row,
                 float *x, int64_t n) {
    for (size_t i = 0; i < f->n; i++) {
        const struct fold *fold = &f->items[i];
        if (fold->before == b || fold->before_bias == b)
            for (int64_t c = 0; c < n; c++)
                x[c] /= fold->scale[row];
        else if (reads(fold, layers, b))
            for (int64_t c = 0; c < n; c++)
                x[c] *= fold->scale[c];
    }
}

bool folds_change(const struct folds *f, const struct bound *b) {
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].before == b || f->items[i].before_bias == b)
            return true;
    return false;
}
