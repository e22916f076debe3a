/* quads.c - which weights the device keeps in tiles as they are stored, and their rows as they are sent. */
#include "backend/cuda/weights/quads.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/weights/layout.h"
#include "backend/cuda/weights/weights.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

// ---- which ------------------------------------------------------------------------------------------------------

/* Groups of INT4 that are whole blocks are kept a scale a block. */
static int group_kept(int64_t stored) {
    if (stored == 0 || stored % QUADS_COLUMNS == 0)
        return QUADS_COLUMNS;
    return stored == 32 || stored == 64 ? (int)stored : 0;
}

/* Whether all zero points of integers of eight bits are 128, as GPTQ's files say of what has none. */
static bool zeros_are_128(const struct qpacked *p) {
    const char *words = p->zeros; // of a file, aligned to nothing
    int64_t n = p->stored_rows / 4 * p->n_groups;
    if (!p->has_zeros)
        return true;
    for (int64_t i = 0; words && i < n; i++) {
        uint32_t word;
        memcpy(&word, words + i * (int64_t)sizeof word, sizeof word);
        if (word != 0x80808080u - p->zero_more * 0x01010101u)
            return false;
    }
    return words && p->stored_rows % 4 == 0;
}

static bool part_in_quads(const struct weight_part *part, struct dquads *out) {
    int64_t group = part->scale.block_cols;
    switch (part->format->id) {
    case QFORMAT_NVFP4: *out = (struct dquads){.kind = QUADS_NVFP4, .group = 16}; return group == 16;
    case QFORMAT_MXFP4: *out = (struct dquads){.kind = QUADS_MXFP4, .group = 32}; return group == 32;
    case QFORMAT_INT4:
        *out = (struct dquads){.kind = QUADS_INT4, .group = group_kept(group), .has_zeros = part->packed->has_zeros};
        return out->group != 0;
    case QFORMAT_INT8:
        *out = (struct dquads){.kind = QUADS_Q8_0, .group = 32};
        return group % 32 == 0 && zeros_are_128(part->packed);
    case QFORMAT_SCALED:
        *out = (struct dquads){.kind = QUADS_Q8_0, .group = 32};
        return group % 32 == 0 && part->dtype == DT_I8;
    case QFORMAT_Q4_0: *out = (struct dquads){.kind = QUADS_INT4, .group = 32}; return true;
    case QFORMAT_Q8_0: *out = (struct dquads){.kind = QUADS_Q8_0, .group = 32}; return true;
    case QFORMAT_Q4_K: *out = (struct dquads){.kind = QUADS_Q4_K, .group = 32}; return true;
    case QFORMAT_Q6_K: *out = (struct dquads){.kind = QUADS_Q6_K, .group = 16}; return true;
    default: return false;
    }
}

/* What numbers become. */
static bool made_quads(const struct loaded *loaded, const struct weight *w, struct dquads *out) {
    if (loaded->quantise == QUANTISE_NVFP4)
        *out = (struct dquads){.kind = QUADS_NVFP4, .group = 16};
    else
        *out = (struct dquads){.kind = QUADS_INT4, .group = QUADS_COLUMNS};
    return loaded->quantise > QUANTISE_FP8 && w->out % 16 == 0;
}

static const int32_t *groups_of(const struct weight *w, int part) {
    return w->parts[part].packed ? w->parts[part].packed->group_of : NULL;
}

/* Whether all parts have the same columns in a group, and whole groups: then their columns can be put in order. Of a
 * tensor that is cut into columns a rank has some of each group. */
static bool can_be_ordered(const struct weight *w) {
    const int32_t *group_of = groups_of(w, 0);
    int64_t group = w->parts[0].scale.block_cols, n_groups = group ? (w->in + group - 1) / group : 1;
    for (int i = 1; i < w->n_parts; i++) {
        const int32_t *of = groups_of(w, i);
        if (!of != !group_of || (of && memcmp(of, group_of, (size_t)w->in * sizeof *of) != 0))
            return false;
    }
    if (!group_of)
        return true;
    if (w->parts[0].packed->stored_cols != w->in)
        return false;
    int64_t *n = xcalloc((size_t)n_groups, sizeof *n);
    bool whole = true;
    for (int64_t c = 0; c < w->in; c++)
        n[group_of[c]]++;
    for (int64_t g = 0; group && g < n_groups; g++)
        whole = whole && n[g] == MIN(group, w->in - g * group);
    free(n);
    return whole;
}

static bool is_sorted(const struct weight *w) {
    for (int i = 0; i < w->n_parts; i++)
        if (groups_of(w, i))
            return true;
    return false;
}

int32_t *quads_column_order(const struct weight *w) {
    const int32_t *group_of = groups_of(w, 0);
    int64_t group = w->parts[0].scale.block_cols, n_groups = group ? (w->in + group - 1) / group : 1;
    if (!group_of || n_groups == 1)
        return NULL;
    int32_t *order = xcalloc((size_t)w->in, sizeof *order);
    int64_t *next = xcalloc((size_t)n_groups, sizeof *next);
    for (int64_t g = 0; g < n_groups; g++)
        next[g] = g * group;
    for (int64_t c = 0; c < w->in; c++)
        order[next[group_of[c]]++] = (int32_t)c;
    free(next);
    return order;
}

static bool can_be_in_quads(const struct loaded *loaded, const struct weight *w) {
    return loaded->device->is_fast && loaded->product == ELEMENT_F16 && w->in % 64 == 0;
}

/* Parts from `first` on that are stored alike, in what tiles keep: where they end; `first`: that one is not. */
static int run_end(const struct weight *w, int first, struct dquads *out) {
    int i = first;
    for (struct dquads q; i < w->n_parts; i++) {
        const struct weight_part *part = &w->parts[i];
        if (part->col_stride != 1 || !part_in_quads(part, &q))
            break;
        if (i > first && (part->format != w->parts[first].format || q.group != out->group ||
                          q.has_zeros != out->has_zeros || part->scale.block_cols != w->parts[first].scale.block_cols))
            break;
        *out = q;
    }
    return i;
}

/* Whether all parts are stored alike; or, made, are numbers that become such. */
static bool weight_in_quads(const struct loaded *loaded, const struct weight *w, bool made, struct dquads *out) {
    if (!can_be_in_quads(loaded, w))
        return false;
    return made ? made_quads(loaded, w, out) : run_end(w, 0, out) == w->n_parts;
}

int quads_runs(const struct loaded *loaded, const struct program *p, const struct op *op, bool made,
               struct quads_run out[MOST_RUNS]) {
    const struct weight *w = op->weights[0];
    bool gated = gated_act_follows(p, (int)(op - p->ops));
    int n = 0;
    if (op->code != OP_LINEAR || !can_be_ordered(w))
        return 0;
    if (weight_in_quads(loaded, w, made, &out[0].kind)) {
        out[0].kind.gated = gated;
        out[0].rows = w->out;
        return 1;
    }
    if (made || gated || is_sorted(w) || !can_be_in_quads(loaded, w))
        return 0;
    for (int i = 0, end; i < w->n_parts; i = end, n++) {
        if (n == MOST_RUNS || (end = run_end(w, i, &out[n].kind)) == i)
            return 0;
        out[n].rows = 0;
        for (int k = i; k < end; k++)
            out[n].rows += w->parts[k].n_rows;
    }
    return n;
}

bool quads_of(const struct loaded *loaded, const struct program *p, const struct op *op, bool made,
              struct dquads *out) {
    struct quads_run runs[MOST_RUNS];
    int n = quads_runs(loaded, p, op, made, runs);
    *out = n > 0 ? runs[0].kind : *out;
    return n > 0;
}

/* MXFP4 of experts lies in blocks (blocks.h). */
bool quads_of_experts(const struct loaded *loaded, const struct op *op, int slot, struct dquads *out) {
    struct dquads both[2];
    if (op->code != OP_MOE_FFN)
        return false;
    for (int k = 0; k < 2; k++)
        if (!weight_in_quads(loaded, op->weights[k], false, &both[k]) || both[k].kind == QUADS_MXFP4 ||
            quads_of_linear_alone(both[k]) || is_sorted(op->weights[k]))
            return false;
    if (both[0].kind != both[1].kind || both[0].group != both[1].group)
        return false;
    *out = both[slot];
    out->has_zeros = out->kind == QUADS_INT4;
    out->gated = slot == 0;
    return true;
}

// ---- rows -------------------------------------------------------------------------------------------------------

static bool has_zeros(const struct weight_part *part) { return part->packed && part->packed->has_zeros; }

/* Integers of eight bits. */
static bool is_bytes(const struct weight_part *part) {
    return part->format->id == QFORMAT_SCALED || part->format->id == QFORMAT_INT8;
}

int64_t quads_codes_bytes_a_row(const struct weight_part *part, int64_t in) {
    if (part->format->block_cols)
        return block_row_bytes(part->format, in);
    return is_bytes(part) ? in : in / 2;
}

int64_t quads_groups_a_row(const struct weight_part *part, int64_t in) {
    int64_t group = part->scale.block_cols ? part->scale.block_cols : in;
    return (in + group - 1) / group;
}

int64_t quads_scales_bytes_a_row(const struct weight_part *part, int64_t in) {
    if (part->format->block_cols)
        return 0; // blocks hold them
    return quads_groups_a_row(part, in) * ((int64_t)sizeof(float) + (has_zeros(part) ? 1 : 0));
}

/* Of a row, as they lie in memory. */
static void copy_codes(const struct layout_rows *r, int64_t row_bytes) {
    const struct weight_part *part = r->part;
    for (int64_t i = 0; i < r->n; i++) {
        uint8_t *to = (uint8_t *)r->to + i * row_bytes;
        memcpy(to, (const char *)part->data + (r->row_in_part + i) * part->row_stride, (size_t)row_bytes);
        for (int64_t c = 0; part->dtype == DT_I8 && c < row_bytes; c++)
            to[c] ^= 0x80; // q + 128
    }
}

/* Out of words. Those that hold rows are walked a few columns at a time, whose words stay near. */
static void unpack_codes(const struct layout_rows *r, int64_t row_bytes) {
    enum { AT_ONCE = 512 };
    const struct weight_part *part = r->part;
    int64_t in = r->weight->in;
    uint8_t codes[AT_ONCE];
    for (int64_t c = 0; c < in; c += AT_ONCE)
        for (int64_t i = 0; i < r->n; i++) {
            int64_t n = MIN(in - c, AT_ONCE);
            uint8_t *to = (uint8_t *)r->to + i * row_bytes;
            for (int64_t k = 0; r->column_order && k < n; k++)
                packed_codes(part, r->row_in_part + i, r->column_order[c + k], 1, &codes[k]);
            if (!r->column_order)
                packed_codes(part, r->row_in_part + i, c, n, codes);
            if (is_bytes(part))
                memcpy(to + c, codes, (size_t)n);
            for (int64_t k = 0; k < n && !is_bytes(part); k += 2)
                to[(c + k) / 2] = (uint8_t)(codes[k] | codes[k + 1] << 4);
        }
}

static void fill_codes(const struct layout_rows *r) {
    (r->part->packed ? unpack_codes : copy_codes)(r, quads_codes_bytes_a_row(r->part, r->weight->in));
}

static float scale_as_stored(const struct weight_part *part, int64_t row, int64_t group) {
    const struct qscale *s = &part->scale;
    float scale;
    int64_t scale_row = part->first_row + row;
    if (part->format->id == QFORMAT_SCALED)
        scale_row = s->block_rows ? scale_row / s->block_rows : 0;
    int64_t i = scale_row * s->stride + group;
    dtype_to_f32(s->dtype, (const char *)s->data + i * (int64_t)dtype_bytes(s->dtype), 1, 1, &scale);
    return scale;
}

void quads_fill(const struct layout_rows *r) {
    int64_t n_groups = quads_groups_a_row(r->part, r->weight->in), group = r->part->scale.block_cols;
    float *scales = (float *)(void *)(r->to + r->scales_at);
    uint8_t *zeros = (uint8_t *)(scales + r->n * n_groups);
    fill_codes(r);
    for (int64_t i = 0; i < r->n && !r->part->format->block_cols; i++)
        for (int64_t g = 0; g < n_groups; g++) {
            if (!r->part->packed) {
                scales[i * n_groups + g] = scale_as_stored(r->part, r->row_in_part + i, g);
                continue;
            }
            int64_t col = r->column_order ? r->column_order[g * group] : g * group;
            struct packed_group of = packed_group_at(r->part, r->row_in_part + i, col);
            scales[i * n_groups + g] = of.scale;
            if (has_zeros(r->part))
                zeros[i * n_groups + g] = (uint8_t)of.zero;
        }
}

struct dstored_quads quads_stored(const struct weight_part *part, struct dquads q, int64_t in, int64_t n_rows,
                                  const char *staged, int64_t scales_at) {
    int64_t n_groups = quads_groups_a_row(part, in);
    const float *scales = (const float *)(const void *)(staged + scales_at);
    return (struct dstored_quads){
        .codes = (const uint8_t *)staged,
        .in = in,
        .kind = q.kind,
        .group = (int)(part->scale.block_cols ? part->scale.block_cols : in),
        .scale = scales,
        .zero = has_zeros(part) ? (const uint8_t *)(scales + n_rows * n_groups) : NULL,
        .tensor_scale = q.kind == QUADS_NVFP4 ? part->scale.tensor_scale : 1,
    };
}
