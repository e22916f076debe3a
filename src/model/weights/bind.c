/* bind.c - see bind.h. Finds one tensor: bind_tensor.c. Storage of quantised modules: bind_quant.c. Dummy values:
 * dummy.c. */
#include "model/weights/bind.h"

#include "model/weights/bind_internal.h"

#include "base/buf.h"
#include "model/weights/scales.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct weight empty_weight = {.name = ""};

/* Where the text model of a checkpoint may stand, and its lm_head. */
static const struct {
    const char *prefix, *head_prefix;
} layouts[] = {
    {"model.", ""},
    {"model.language_model.", ""},
    {"language_model.model.", "language_model."},
    {"", ""},
};

/* One without elements, as sharded training leaves in place of what another process holds, is as absent. */
static bool is_there(const struct stored_tensor *t) { return t && t->n_bytes > 0; }

static bool has_tensor(const struct checkpoint *c, const char *prefix, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return is_there(checkpoint_find(c, full));
}

/* A model whose table is the head, too, may be stored with the head alone. */
static bool has_layout(const struct checkpoint *c, const struct model_spec *spec, size_t at) {
    if (spec->draft.n_taps > 0) // embeds with its target's table
        return has_tensor(c, layouts[at].prefix, "norm.weight");
    return has_tensor(c, layouts[at].prefix, "embed_tokens.weight") ||
           (spec->tied_embeddings && has_tensor(c, layouts[at].prefix, "norm.weight") &&
            has_tensor(c, layouts[at].head_prefix, "lm_head.weight"));
}

void binder_init_under(struct binder *b, enum load_format load, struct checkpoint *checkpoint,
                       const struct model_spec *spec, struct arena *arena, const char *prefix, struct error *err) {
    *b = (struct binder){
        .arena = arena, .spec = spec, .load = load, .checkpoint = checkpoint, .err = err, .dummy_seed = 1};
    snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
}

enum status binder_init(struct binder *b, enum load_format load, struct checkpoint *checkpoint,
                        const struct model_spec *spec, struct arena *arena, struct error *err) {
    size_t at = spec->multimodal ? 1 : 0;
    if (load == LOAD_CHECKPOINT && !spec->gguf) { // GGUF's names are made for the first
        for (at = 0; at < ARRAY_LEN(layouts) && !has_layout(checkpoint, spec, at); at++)
            ;
        if (at == ARRAY_LEN(layouts))
            return fail(err, ERR_FORMAT,
                        "%s: the checkpoint has no tensor model.embed_tokens.weight, so it is not a language model in "
                        "Hugging Face layout",
                        spec->path);
    }
    binder_init_under(b, load, checkpoint, spec, arena, layouts[at].prefix, err);
    snprintf(b->head_prefix, sizeof b->head_prefix, "%s", layouts[at].head_prefix);
    return OK;
}

char *bind_full_name(struct binder *b, const char *name) {
    if (name[0] == '/')
        return arena_printf(b->arena, "%s%s", b->head_prefix, name + 1);
    return arena_printf(b->arena, "%s%s", b->prefix, name);
}

static char *formatted(struct binder *b, const char *format, va_list args) {
    char name[256];
    int n = vsnprintf(name, sizeof name, format, args);
    BUG_IF(n < 0 || (size_t)n >= sizeof name); // our own formats and layer numbers
    return bind_full_name(b, name);
}

struct weight *bind_new_weight(struct binder *b, const char *name, int64_t out, struct dim in, int n_parts) {
    struct weight *w = arena_alloc(b->arena, sizeof *w);
    *w = (struct weight){.name = name, .out = out, .in = in.size, .n_parts = n_parts, .cols = in};
    w->parts = arena_calloc(b->arena, (size_t)n_parts, sizeof *w->parts);
    return w;
}

struct part part(struct binder *b, struct dim rows, const char *module, ...) {
    va_list args;
    va_start(args, module);
    struct part p = {formatted(b, module, args), rows, 0, rows.size};
    va_end(args);
    return p;
}

struct part part_rows(struct binder *b, int64_t first, struct dim rows, int64_t stored_rows, const char *module, ...) {
    va_list args;
    va_start(args, module);
    struct part p = {formatted(b, module, args), rows, first, stored_rows};
    va_end(args);
    return p;
}

/* A tensor of which several weights take rows (DeepSeek's kv_b_proj) is bound, and counted, once. */
static const struct weight_part *shared_find(const struct binder *b, const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(b->shared); i++)
        if (b->shared[i].name && strcmp(b->shared[i].name, name) == 0)
            return &b->shared[i].view;
    return NULL;
}

static void shared_keep(struct binder *b, const char *name, struct weight_part view) {
    size_t slot = b->n_shared++ % ARRAY_LEN(b->shared);
    b->shared[slot].name = name;
    b->shared[slot].view = view;
}

static bool bind_view(struct binder *b, const struct part *p, int64_t in, struct weight_part *view) {
    if (p->rows.size == p->stored_rows)
        return bind_module(b, p->module, p->stored_rows, in, view);
    const struct weight_part *found = shared_find(b, p->module);
    if (!found && !bind_module(b, p->module, p->stored_rows, in, view))
        return false;
    if (found)
        *view = *found;
    else
        shared_keep(b, p->module, *view);
    return true;
}

/* Narrows the view of a whole tensor to the part's rows. */
static void take_rows(struct weight_part *view, const struct part *p) {
    *view = weight_part_rows(view, p->first, p->rows.size);
    view->rows = p->rows;
}

static bool bind_parts(struct binder *b, struct weight *w, const struct part *parts, int n_parts) {
    w->n_parts = 0;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].rows.size == 0)
            continue;
        struct weight_part *p = &w->parts[w->n_parts++];
        if (!bind_view(b, &parts[i], w->in, p))
            return false;
        take_rows(p, &parts[i]);
        p->module = parts[i].module;
    }
    return true;
}

const struct weight *bind_fused(struct binder *b, struct dim in, int n_parts, const struct part *parts) {
    if (b->status != OK)
        return &empty_weight;
    int64_t out = 0;
    for (int i = 0; i < n_parts; i++)
        out += parts[i].rows.size;
    struct weight *w = bind_new_weight(b, arena_printf(b->arena, "%s.weight", parts[0].module), out, in, n_parts);
    return bind_parts(b, w, parts, n_parts) ? w : &empty_weight;
}

const struct weight *bind_matrix(struct binder *b, struct dim out, struct dim in, const char *module, ...) {
    va_list args;
    va_start(args, module);
    struct part p = {formatted(b, module, args), out, 0, out.size};
    va_end(args);
    return bind_fused(b, in, 1, &p);
}

void bind_note(struct binder *b, const char *name, bool is_matrix, int64_t cols, struct weight_part part) {
    struct bound_list *list = b->taken;
    if (!list)
        return;
    if (list->n == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 256;
        list->items = xrealloc(list->items, list->cap, sizeof *list->items);
    }
    list->items[list->n++] = (struct bound){name, is_matrix, part.n_rows, cols, part};
}

/* A vector part over a tensor of n elements of any rank; the parameters are counted. */
static bool vector_part(struct binder *b, const char *name, int64_t n, struct weight_part *out) {
    int rank = 1;
    int64_t shape[STORED_MAX_RANK] = {n};
    if (b->load == LOAD_CHECKPOINT) { // [n], [1, n], [C, 1, K] ...: the count must fit
        const struct stored_tensor *t = checkpoint_find(b->checkpoint, name);
        int64_t count = 1;
        for (int i = 0; t && i < t->rank; i++)
            count *= t->shape[i];
        if (t && count == n) {
            rank = t->rank;
            memcpy(shape, t->shape, sizeof shape);
        }
    }
    const struct stored_tensor *t = bind_tensor(b, name, rank, shape);
    if (!t || !bind_is_number(b, t))
        return false;
    b->n_parameters += n;
    *out = plain_part(t, n, 1);
    bind_note(b, name, false, 1, *out);
    return true;
}

const struct weight *bind_vector(struct binder *b, struct dim n, const char *name, ...) {
    if (b->status != OK)
        return &empty_weight;
    va_list args;
    va_start(args, name);
    const char *full = formatted(b, name, args);
    va_end(args);
    struct weight *w = bind_new_weight(b, full, n.size, dim_whole(1), 1);
    if (!vector_part(b, full, n.size, &w->parts[0]))
        return &empty_weight;
    w->parts[0].rows = n;
    return w;
}

static bool bias_view(struct binder *b, const struct part *p, struct weight_part *view) {
    const char *name = arena_printf(b->arena, "%s.bias", p->module);
    const struct weight_part *found = p->rows.size == p->stored_rows ? NULL : shared_find(b, name);
    if (!found && !vector_part(b, name, p->stored_rows, view))
        return false;
    if (found)
        *view = *found;
    else if (p->rows.size != p->stored_rows)
        shared_keep(b, name, *view);
    take_rows(view, p);
    return true;
}

const struct weight *bind_fused_bias(struct binder *b, int n_parts, const struct part *parts) {
    if (b->status != OK)
        return &empty_weight;
    int64_t out = 0;
    for (int i = 0; i < n_parts; i++)
        out += parts[i].rows.size;
    struct weight *w =
        bind_new_weight(b, arena_printf(b->arena, "%s.bias", parts[0].module), out, dim_whole(1), n_parts);
    w->n_parts = 0;
    for (int i = 0; i < n_parts; i++)
        if (parts[i].rows.size && !bias_view(b, &parts[i], &w->parts[w->n_parts++]))
            return &empty_weight;
    return w;
}

bool bind_has(struct binder *b, bool otherwise, const char *name, ...) {
    if (b->load != LOAD_CHECKPOINT)
        return otherwise;
    va_list args;
    va_start(args, name);
    const char *full = formatted(b, name, args);
    va_end(args);
    return is_there(checkpoint_find(b->checkpoint, full));
}

void bind_set_aside(struct binder *b, const char *name) {
    struct stored_tensor *t =
        b->load == LOAD_CHECKPOINT ? checkpoint_find(b->checkpoint, bind_full_name(b, name)) : NULL;
    if (t)
        t->consumed = true;
}

/* Of each expert `n_kinds` matrices one under another; `kinds` are their names. */
static void note_stack(struct binder *b, const char *base, const char *const *kinds, int n_kinds, int64_t n_experts,
                       const struct weight *w) {
    for (int64_t i = 0; b->taken && b->status == OK && i < n_experts * n_kinds; i++) {
        int64_t rows = w->out / (n_experts * n_kinds);
        const char *module = arena_printf(b->arena, "%s.%lld.%s", base, (long long)(i / n_kinds), kinds[i % n_kinds]);
        bind_note(b, arena_printf(b->arena, "%s.weight", bind_full_name(b, module)), true, w->in,
                  weight_part_rows(&w->parts[0], i * rows, rows));
    }
}

/* One plain 3-D tensor [E, rows, in] as E*rows rows. */
static const struct weight *bind_stack(struct binder *b, const char *name, int64_t n_experts, struct dim rows,
                                       struct dim in) {
    const char *full = bind_full_name(b, name);
    const struct stored_tensor *t = bind_tensor(b, full, 3, (int64_t[]){n_experts, rows.size, in.size});
    if (!t || !bind_is_number(b, t))
        return &empty_weight;
    struct weight *w = bind_new_weight(b, full, n_experts * rows.size, in, 1);
    w->parts[0] = plain_part(t, n_experts * rows.size, in.size);
    w->parts[0].rows = dim_experts(rows, 0, n_experts);
    b->n_parameters += n_experts * rows.size * in.size;
    return w;
}

struct experts bind_experts(struct binder *b, const char *base, struct expert_names names, int64_t n_experts,
                            int64_t ffn_size, int64_t hidden_size, bool fused_otherwise) {
    struct experts x = {&empty_weight, &empty_weight};
    struct dim D = dim_whole(hidden_size), F = dim_ffn(ffn_size);
    if (b->status != OK)
        return x;
    // quantised experts are exported one by one: a scale belongs to a matrix. bitsandbytes takes linear modules, and
    // leaves experts that are fused as they are.
    bool plain = quant_is_bnb(b->spec->quant) ||
                 quant_of(b->spec->quant, part(b, F, "%s.0.%s", base, names.gate).module).scheme == QUANT_NONE;
    if (bind_has(b, fused_otherwise && plain, "%s.gate_up_proj", base)) {
        x.w13 = bind_stack(b, arena_printf(b->arena, "%s.gate_up_proj", base), n_experts, dim_times(F, 2), D);
        x.w2 = bind_stack(b, arena_printf(b->arena, "%s.down_proj", base), n_experts, D, F);
        note_stack(b, base, (const char *const[]){names.gate, names.up}, 2, n_experts, x.w13);
        note_stack(b, base, &names.down, 1, n_experts, x.w2);
        return x;
    }
    struct part *p13 = arena_calloc(b->arena, (size_t)n_experts * 2, sizeof *p13);
    struct part *p2 = arena_calloc(b->arena, (size_t)n_experts, sizeof *p2);
    for (int e = 0; e < n_experts; e++) {
        p13[2 * e] = part(b, dim_experts(F, e, 1), "%s.%d.%s", base, e, names.gate);
        p13[2 * e + 1] = part(b, dim_experts(F, e, 1), "%s.%d.%s", base, e, names.up);
        p2[e] = part(b, dim_experts(D, e, 1), "%s.%d.%s", base, e, names.down);
    }
    x.w13 = bind_fused(b, D, (int)n_experts * 2, p13);
    x.w2 = bind_fused(b, F, (int)n_experts, p2);
    return x;
}

/* Next-token predictors stand behind the last layer, under its prefix (DeepSeek). */
static bool is_mtp_layer(const struct binder *b, const char *name) {
    size_t n = strlen(b->prefix);
    if (strncmp(name, b->prefix, n) != 0 || strncmp(name + n, "layers.", 7) != 0 || name[n + 7] < '0' ||
        name[n + 7] > '9')
        return false;
    char *end;
    long layer = strtol(name + n + 7, &end, 10); // LONG_MAX if it is beyond
    return *end == '.' && layer >= b->spec->n_layers && layer - b->spec->n_layers < b->spec->n_mtp_layers;
}

static bool matches(const char *name, const char *const *patterns) {
    for (; patterns && *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0)
            return true;
    return false;
}

enum status binder_finish(struct binder *b, const char *const *unused) {
    if (b->status != OK || b->load != LOAD_CHECKPOINT)
        return b->status;
    struct buf names = {0};
    int n_left = 0;
    for (size_t i = 0; i < checkpoint_count(b->checkpoint); i++) {
        const struct stored_tensor *t = checkpoint_at(b->checkpoint, i);
        if (t->consumed || !is_there(t) || matches(t->name, unused) || is_mtp_layer(b, t->name) ||
            is_unused_scale(t, b->spec->n_layers))
            continue;
        if (n_left++ < 5)
            buf_printf(&names, "%s%s", names.len ? ", " : "", stored_name(t));
    }
    if (n_left)
        b->status = fail(b->err, ERR_UNSUPPORTED,
                         "%s: %d tensor%s of the checkpoint would not be used by model type %s: %s%s", b->spec->path,
                         n_left, n_left == 1 ? "" : "s", b->spec->model_type, names.ptr, n_left > 5 ? ", ..." : "");
    buf_release(&names);
    return b->status;
}
