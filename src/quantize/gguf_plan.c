/* gguf_plan.c - see gguf_plan.h. */
#include "quantize/gguf_plan.h"

#include "base/gguf/gguf_find.h"
#include "file/gguf_tensors.h"
#include "model/gguf/gguf_keys.h"
#include "quantize/names.h"
#include "text/gguf_vocabulary.h"

#include <stdlib.h>

void gguf_plan_release(struct gguf_plan *p) {
    arena_release(&p->arena);
    free(p->targets);
    gguf_writer_release(&p->head);
    *p = (struct gguf_plan){0};
}

static struct target *add_target(struct gguf_plan *p, const char *name) {
    if (p->n == p->cap) {
        p->cap = p->cap ? p->cap * 2 : 256;
        p->targets = xrealloc(p->targets, p->cap, sizeof *p->targets);
    }
    p->targets[p->n] = (struct target){.name = name};
    return &p->targets[p->n++];
}

/* ---- names ---- */

struct planner {
    struct gguf_plan *plan;
    const struct model_spec *s;
    const struct gguf_arch *arch;
    struct file_names names;
    struct error *err;
};

/* The stack that an expert's tensor goes on; NULL: it begins one. Experts come one after another, kinds in turns. */
static struct target *find_stack(struct gguf_plan *plan, const char *stored) {
    enum { KINDS = 8 };
    for (size_t i = plan->n; i > 0 && i + KINDS > plan->n; i--)
        if (strcmp(plan->targets[i - 1].name, stored) == 0)
            return &plan->targets[i - 1];
    return NULL;
}

static void add_part(struct gguf_plan *plan, struct target *t, const struct bound *b, int most) {
    struct weight_part *parts = (struct weight_part *)t->parts;
    if (!parts)
        t->parts = parts = arena_calloc(&plan->arena, (size_t)most, sizeof *parts);
    BUG_IF(t->n_parts == most);
    parts[t->n_parts++] = b->part;
}

/* ---- changes ---- */

static bool leaf_is(const char *name, const char *leaf) { // "blk.N.LEAF.weight" or .bias
    const char *at = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    size_t n = strlen(leaf);
    return at && strncmp(at + 1, leaf, n) == 0 && at[1 + n] == '.';
}

static bool ends(const char *s, const char *with) {
    size_t n = strlen(s), k = strlen(with);
    return n >= k && strcmp(s + n - k, with) == 0;
}

/* Row 2i + s of a head is row s * half + i. */
static const int32_t *paired_rows(struct arena *arena, int64_t rows, int64_t head_dim) {
    int32_t *out = arena_calloc(arena, (size_t)rows, sizeof *out);
    for (int64_t row = 0; row < rows; row++) {
        int64_t in_head = row % head_dim;
        out[row] = (int32_t)(row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2);
    }
    return out;
}

static void change(const struct planner *p, struct target *t) {
    bool is_rotated = leaf_is(t->name, "attn_q") || leaf_is(t->name, "attn_k");
    if (p->arch->interleaved && is_rotated) {
        const int32_t *order = paired_rows(&p->plan->arena, t->is_vector ? t->cols : t->rows, p->s->head_dim);
        *(t->is_vector ? &t->col_of : &t->row_of) = order;
    }
    if (p->arch->norms_hold_one && ends(t->name, "norm.weight"))
        t->change = CHANGE_PLUS_ONE;
}

/* kv_b_proj [H * (nope + v), rank] as k_b [H, rank, nope], turned, and v_b [H, v, rank]. */
static void add_latent_halves(const struct planner *p, int layer, const struct bound *b) {
    struct arena *arena = &p->plan->arena;
    const struct mla_spec *a = &p->s->mla;
    int64_t H = p->s->n_heads, step = a->nope_dim + a->v_dim;
    struct target *k = add_target(p->plan, arena_printf(arena, "blk.%d.attn_k_b.weight", layer));
    add_part(p->plan, k, b, 1);
    k->n_dims = 3, k->rows = H * a->kv_rank, k->cols = a->nope_dim, k->turn_heads = (int)H, k->turn_step = step;
    k->dims[0] = (uint64_t)a->nope_dim, k->dims[1] = (uint64_t)a->kv_rank, k->dims[2] = (uint64_t)H;
    struct target *v = add_target(p->plan, arena_printf(arena, "blk.%d.attn_v_b.weight", layer));
    add_part(p->plan, v, b, 1);
    v->n_dims = 3, v->rows = H * a->v_dim, v->cols = a->kv_rank;
    v->dims[0] = (uint64_t)a->kv_rank, v->dims[1] = (uint64_t)a->v_dim, v->dims[2] = (uint64_t)H;
    int32_t *rows = arena_calloc(arena, (size_t)v->rows, sizeof *rows);
    for (int64_t row = 0; row < v->rows; row++)
        rows[row] = (int32_t)(row / a->v_dim * step + a->nope_dim + row % a->v_dim);
    v->row_of = rows;
}

static void take_matrix(struct target *t, const struct bound *b, bool is_stack) {
    t->rows += b->rows;
    t->cols = b->cols;
    t->n_dims = is_stack ? 3 : 2;
    t->dims[0] = (uint64_t)b->cols, t->dims[1] = (uint64_t)b->rows, t->dims[2] = (uint64_t)t->n_parts;
}

static void take_vector(struct target *t, const struct bound *b, bool is_stack) {
    t->is_vector = true;
    t->rows++;
    t->cols = b->rows;
    t->n_dims = is_stack ? 2 : 1;
    t->dims[0] = (uint64_t)b->rows, t->dims[1] = (uint64_t)t->n_parts;
}

static enum status plan_bound(const struct planner *p, const struct bound *b) {
    const char *stored = file_name(&p->names, b->name);
    bool is_stack = expert_of(b->name) >= 0;
    if (!stored)
        return fail(p->err, ERR_UNSUPPORTED, "%s: tensor %s has no name in GGUF files of architecture %s", p->s->path,
                    b->name, p->arch->name);
    if (leaf_is(stored, "attn_kv_b")) {
        add_latent_halves(p, atoi(stored + 4), b);
        return OK;
    }
    struct target *t = is_stack ? find_stack(p->plan, stored) : NULL;
    bool is_new = !t;
    if (is_new)
        t = add_target(p->plan, stored);
    add_part(p->plan, t, b, is_stack ? p->s->moe.n_experts : 1);
    if (b->is_matrix)
        take_matrix(t, b, is_stack);
    else
        take_vector(t, b, is_stack);
    if (is_new)
        change(p, t);
    return OK;
}

static void add_extras(const struct planner *p, const struct gguf_keys *keys) {
    for (int i = 0; i < keys->n_extra; i++) {
        struct target *t = add_target(p->plan, keys->extra[i].name);
        t->n_dims = 1, t->rows = 1, t->cols = keys->extra[i].n, t->values = keys->extra[i].values;
        t->dims[0] = (uint64_t)t->cols, t->is_vector = true;
    }
}

/* ---- types and places ---- */

static void place(struct gguf_plan *plan, struct target *t) {
    uint32_t number = gguf_type_number(t->to.dtype, t->to.format);
    t->offset = gguf_put_tensor(&plan->head, t->name, t->n_dims, t->dims, number, target_bytes(t));
}

static void put_file_keys(struct gguf_plan *plan, const struct mix *mix) {
    gguf_put_u32(&plan->head, "general.file_type", mix_file_type(mix));
    gguf_put_u32(&plan->head, "general.quantization_version", 2);
}

static enum status put_model(const char *folder, const struct planner *p, struct gguf_keys *keys) {
    const struct model_spec *s = p->s;
    struct gguf_vocabulary v = {.n_vocab = s->vocab_size,
                                .bos = s->bos,
                                .ends = s->eos,
                                .n_ends = s->n_eos,
                                .keeps_merges = strcmp(s->model_type, "gemma4_text") == 0};
    TRY(gguf_put_keys(s, &p->plan->head, &p->plan->arena, keys, p->err));
    TRY(gguf_put_vocabulary(folder, &v, &p->plan->head, p->err));
    return gguf_put_chat_templates(folder, &p->plan->head, p->err);
}

static enum status plan_model(const char *folder, struct planner *p, const struct bound_list *taken,
                              const struct mix *mix) {
    const struct model_spec *s = p->s;
    struct gguf_keys keys;
    TRY(put_model(folder, p, &keys));
    put_file_keys(p->plan, mix);
    p->arch = keys.arch;
    file_names_init(&p->names, s, taken, &p->plan->arena);
    for (size_t i = 0; i < taken->n; i++)
        TRY(plan_bound(p, &taken->items[i]));
    add_extras(p, &keys);
    struct mix_model model = {s->n_layers, s->moe.n_experts, s->n_heads / MAX(s->n_kv_heads, 1), s->tied_embeddings};
    for (size_t i = 0; i < p->plan->n; i++) {
        struct target *t = &p->plan->targets[i];
        t->to = mix_storage(mix, &model, t->name, t->n_dims, t->cols);
        place(p->plan, t);
    }
    return OK;
}

enum status gguf_plan_model(const char *folder, const struct model *m, const struct bound_list *taken,
                            const struct mix *mix, struct gguf_plan *out, struct error *err) {
    *out = (struct gguf_plan){0};
    struct planner p = {.plan = out, .s = m->spec, .err = err};
    return plan_model(folder, &p, taken, mix);
}

/* ---- a GGUF file again ---- */

static enum status read_mix_model(const struct gguf *g, const struct checkpoint *c, struct mix_model *out,
                                  struct error *err) {
    static const char *const leaves[] = {"block_count", "expert_count", "attention.head_count",
                                         "attention.head_count_kv"};
    int64_t n[ARRAY_LEN(leaves)];
    struct str arch;
    TRY(gguf_string(g, "general.architecture", &arch, err));
    for (size_t i = 0; i < ARRAY_LEN(leaves); i++) {
        char key[160];
        snprintf(key, sizeof key, "%.*s.%s", (int)MIN(arch.len, 60), arch.ptr, leaves[i]);
        const struct gguf_value *v = gguf_get(g, key); // layers that differ: the first
        n[i] = v && gguf_is_int(v->type) && v->n ? MIN(gguf_item_int(v, 0), INT32_MAX) : 0;
    }
    *out = (struct mix_model){(int)n[0], (int)n[1], (int)(n[2] / MAX(n[3], 1)), !checkpoint_find(c, "output.weight")};
    return OK;
}

static struct weight_part part_of(const struct stored_tensor *t, int64_t rows, int64_t cols) {
    struct weight_part p = {.format = t->format ? t->format : &qformat_plain,
                            .dtype = t->dtype,
                            .data = t->data,
                            .n_rows = rows,
                            .row_stride = t->format ? block_row_bytes(t->format, cols) : cols,
                            .col_stride = 1};
    return p;
}

static enum status plan_tensor(struct gguf_plan *plan, const struct stored_tensor *s, const struct mix *mix,
                               const struct mix_model *model, bool may_requantize, const char *path,
                               struct error *err) {
    struct target *t = add_target(plan, s->name);
    struct weight_part *part = arena_alloc(&plan->arena, sizeof *part);
    t->n_dims = s->rank, t->rows = 1, t->cols = s->rank ? s->shape[s->rank - 1] : 1;
    for (int i = 0; i < s->rank; i++) {
        t->dims[i] = (uint64_t)s->shape[s->rank - 1 - i];
        t->rows *= i ? s->shape[s->rank - 1 - i] : 1;
    }
    *part = part_of(s, t->rows, t->cols);
    t->parts = part, t->n_parts = 1;
    t->to = mix_storage(mix, model, t->name, t->n_dims, t->cols);
    struct storage from = {s->dtype, s->format ? s->format->id : QFORMAT_PLAIN};
    if (!s->format && (!dtype_is_float(s->dtype) || t->n_dims < 2))
        t->to = from;
    if (from.format != QFORMAT_PLAIN && from.format != t->to.format && !may_requantize)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: tensor %s is stored as %s: quantising again loses more than quantising the original does; "
                    "--allow-requantize does it",
                    path, s->name, storage_name(storage_of(s->dtype, s->format)));
    place(plan, t);
    return OK;
}

static void copy_keys(struct gguf_plan *plan, const struct gguf *g) {
    for (size_t i = 0; i < g->n_values; i++) {
        struct str key = g->values[i].key;
        if (!str_starts(key, STR("split.")) && !str_eq(key, STR("general.file_type")) &&
            !str_eq(key, STR("general.quantization_version")) && !str_eq(key, STR("general.alignment")))
            gguf_put_value(&plan->head, &g->values[i]);
    }
}

enum status gguf_plan_file(const char *path, const struct checkpoint *c, const struct mix *mix, bool may_requantize,
                           struct gguf_plan *out, struct error *err) {
    struct gguf g;
    struct mix_model model;
    *out = (struct gguf_plan){0};
    TRY(gguf_open(path, &g, err));
    copy_keys(out, &g);
    put_file_keys(out, mix);
    enum status st = read_mix_model(&g, c, &model, err);
    gguf_release(&g);
    for (size_t i = 0; i < checkpoint_count(c) && st == OK; i++)
        st = plan_tensor(out, checkpoint_at(c, i), mix, &model, may_requantize, path, err);
    return st;
}
