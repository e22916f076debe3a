/* adapter.c - addends on projections: see pass.h. */
#include "core/pass/pass.h"

#include "base/machine_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct adding {
    const struct program *from;
    const struct adapter *const *adapters;
    int n;
    struct arena *memory; // of what is made
    bool **used;          // [n][n_modules]
    struct machine_memory left;
    struct op *ops;
    struct value *values; // behind those of the first program
    int n_ops, n_values;
    struct error *err;
};

enum { MAX_MODULES = 64 }; // of one projection

/* What of a projection is whose. */
struct target {
    const struct weight *w;
    const char *modules[MAX_MODULES];
    int64_t rows[MAX_MODULES];     // that the module has
    int n_modules, rank;           // rank: the largest of all adapters,
    const struct adapter *largest; // whose it is
    struct lora_run *runs;         // one a part
};

/* ---- which modules ---- */

static const struct adapter_module *module_of(const struct adapter *a, const char *name) {
    for (int i = 0; i < a->n_modules; i++)
        if (strcmp(a->modules[i].name, name) == 0)
            return &a->modules[i];
    return NULL;
}

/* The index of a module among the target's; it is added. -1: there are too many. */
static int index_of(struct target *t, const char *module) {
    for (int m = 0; m < t->n_modules; m++)
        if (strcmp(t->modules[m], module) == 0)
            return m;
    if (t->n_modules == MAX_MODULES)
        return -1;
    t->modules[t->n_modules] = module;
    t->rows[t->n_modules] = 0;
    return t->n_modules++;
}

/* Modules of a projection's parts; false: parts that no module has, or of too many. */
static bool find_modules(const struct adding *s, const struct weight *w, struct target *t) {
    *t = (struct target){.w = w};
    t->runs = arena_calloc(s->memory, (size_t)w->n_parts, sizeof *t->runs);
    for (int i = 0; i < w->n_parts; i++) {
        const struct weight_part *p = &w->parts[i];
        int m = p->module ? index_of(t, p->module) : -1;
        if (m < 0)
            return false;
        t->runs[i] = (struct lora_run){(int)p->n_rows, m};
        t->rows[m] = MAX(t->rows[m], p->first_row + p->n_rows);
    }
    return true;
}

static enum status check_shape(const struct adding *s, const struct target *t, const struct adapter *a, int m,
                               const struct adapter_module *x) {
    if (x->a->in == t->w->in && x->b->out == t->rows[m] && x->b->in == x->a->out)
        return OK;
    return fail(
        s->err, ERR_FORMAT,
        "adapter %s: module %s: lora_A is [%lld, %lld] and lora_B [%lld, %lld], the model's module is [%lld, %lld]",
        a->name, x->name, (long long)x->a->out, (long long)x->a->in, (long long)x->b->out, (long long)x->b->in,
        (long long)t->rows[m], (long long)t->w->in);
}

/* A head that is the table too has the table's name, which as a module is another. */
static bool is_table(const struct program *p, const struct weight *w) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_EMBED && p->ops[i].weights[0] == w)
            return true;
    return false;
}

/* Which adapters change a projection; t->rank 0: none. */
static enum status find_target(struct adding *s, const struct weight *w, struct target *t) {
    if (is_table(s->from, w) || !find_modules(s, w, t))
        return OK;
    for (int i = 0; i < s->n; i++)
        for (int m = 0; m < t->n_modules; m++) {
            const struct adapter_module *x = module_of(s->adapters[i], t->modules[m]);
            if (!x)
                continue;
            TRY(check_shape(s, t, s->adapters[i], m, x));
            s->used[i][x - s->adapters[i]->modules] = true;
            if (x->a->out > t->rank) {
                t->rank = (int)x->a->out;
                t->largest = s->adapters[i];
            }
        }
    return OK;
}

/* ---- matrices of all adapters ---- */

/* Every adapter's are as large as those of the largest rank. Takes them from what memory is left. */
static enum status expect_matrices(struct adding *s, const struct target *t) {
    size_t per_rank, one, n_bytes;
    bool fits = size_mul((size_t)t->w->in, (size_t)t->n_modules, &per_rank) &&
                size_add(per_rank, (size_t)t->w->out, &per_rank) && size_mul(per_rank, (size_t)t->rank, &one) &&
                size_add(one, (size_t)t->n_modules, &one) && size_mul(one, (size_t)s->n * sizeof(float), &n_bytes);
    if (!fits || s->left.available < 0 || n_bytes > (size_t)s->left.available)
        return fail(s->err, ERR_MEMORY,
                    "%s: %d adapters, all of rank %d as adapter %s is, want %.1f GiB; %.1f GiB of %s memory are left",
                    t->w->name, s->n, t->rank, t->largest->name, fits ? (double)n_bytes / (1 << 30) : INFINITY,
                    (double)s->left.available / (1 << 30), s->left.whose);
    s->left.available -= (int64_t)n_bytes;
    return OK;
}

static struct weight *new_matrix(struct adding *s, const struct weight *like, const char *leaf, int64_t out,
                                 int64_t in) {
    struct weight *w = arena_alloc(s->memory, sizeof *w);
    *w =
        (struct weight){.name = arena_printf(s->memory, "%s.%s", like->name, leaf), .out = out, .in = in, .n_parts = 1};
    w->cols = dim_whole(in);
    w->parts = arena_alloc(s->memory, sizeof *w->parts);
    *w->parts = (struct weight_part){.format = &qformat_plain,
                                     .dtype = DT_F32,
                                     .data = arena_calloc(s->memory, (size_t)(out * in), sizeof(float)),
                                     .n_rows = out,
                                     .row_stride = in,
                                     .col_stride = 1,
                                     .rows = dim_whole(out)};
    return w;
}

static float *row_of(const struct weight *w, int64_t row) { return (float *)(uintptr_t)w->parts->data + row * w->in; }

/* B's rows in the order of the projection's, which may be another than the module's. */
static void fill_b(const struct target *t, int m, const struct adapter_module *x, const struct weight *b,
                   int64_t first) {
    for (int i = 0; i < t->w->n_parts; i++) {
        const struct weight_part *p = &t->w->parts[i];
        for (int64_t r = 0; t->runs[i].module == m && r < p->n_rows; r++)
            weight_rows_f32(x->b, p->first_row + r, 1, row_of(b, first + r));
        first += p->n_rows;
    }
}

static void fill(const struct adding *s, const struct target *t, const struct op *lora) {
    for (int i = 0; i < s->n; i++)
        for (int m = 0; m < t->n_modules; m++) {
            const struct adapter_module *x = module_of(s->adapters[i], t->modules[m]);
            int64_t at = (int64_t)i * t->n_modules + m;
            if (!x)
                continue;
            *row_of(lora->weights[2], at) = x->scale;
            weight_rows_f32(x->a, 0, x->a->out, row_of(lora->weights[0], at * t->rank));
            fill_b(t, m, x, lora->weights[1], i * t->w->out);
        }
}

/* ---- ops ---- */

/* Cut as the projection is (pass_shard): A by its columns, B by its rows, which are parts as its are. */
static void take_axes(struct adding *s, const struct target *t, struct weight *a, struct weight *b) {
    struct weight_part all = *b->parts;
    a->cols = t->w->cols;
    b->n_parts = s->n * t->w->n_parts;
    b->parts = arena_calloc(s->memory, (size_t)b->n_parts, sizeof *b->parts);
    for (int64_t i = 0, at = 0; i < b->n_parts; at += b->parts[i++].n_rows) {
        const struct weight_part *like = &t->w->parts[i % t->w->n_parts];
        b->parts[i] = weight_part_rows(&all, at, like->n_rows);
        b->parts[i].first_row = 0;
        b->parts[i].rows = like->rows.n ? like->rows : dim_whole(like->n_rows);
    }
}

/* The projection gets a new value, and what it is with the adapters' addends the old one's number. */
static void add_lora(struct adding *s, struct op *linear, const struct target *t) {
    struct op *lora = &s->ops[s->n_ops++];
    val was = linear->out[0], base = {s->from->n_values + s->n_values, 0, was.width};
    s->values[s->n_values++] = s->from->values[was.id];
    linear->out[0] = base;
    *lora = (struct op){
        .code = OP_LORA, .section = linear->section, .in = {base, linear->in[0], NO_VAL}, .out = {was, NO_VAL}};
    lora->args.lora = (struct lora_args){s->n, t->n_modules, t->rank, t->w->n_parts, t->runs};
    struct weight *a = new_matrix(s, t->w, "lora_A", (int64_t)s->n * t->n_modules * t->rank, t->w->in);
    struct weight *b = new_matrix(s, t->w, "lora_B", s->n * t->w->out, t->rank);
    lora->weights[0] = a;
    lora->weights[1] = b;
    lora->weights[2] = new_matrix(s, t->w, "lora_scale", (int64_t)s->n * t->n_modules, 1);
    fill(s, t, lora);
    take_axes(s, t, a, b);
}

static enum status add_all(struct adding *s) {
    for (int i = 0; i < s->from->n_ops; i++) {
        struct op *op = &s->ops[s->n_ops++];
        struct target t = {0};
        *op = s->from->ops[i];
        if (op->code == OP_LINEAR)
            TRY(find_target(s, op->weights[0], &t));
        if (t.rank) {
            TRY(expect_matrices(s, &t));
            add_lora(s, op, &t);
        }
    }
    for (int i = 0; i < s->n; i++)
        for (int m = 0; m < s->adapters[i]->n_modules; m++)
            if (!s->used[i][m])
                return fail(s->err, ERR_UNSUPPORTED,
                            "adapter %s: module %s is no projection of %s that an adapter can add to",
                            s->adapters[i]->name, s->adapters[i]->modules[m].name, s->from->name);
    return OK;
}

enum status pass_adapter(const struct program *from, const struct adapter *const *adapters, int n, struct program **out,
                         struct error *err) {
    struct arena memory = {0};
    struct adding s = {.from = from, .adapters = adapters, .n = n, .memory = &memory, .err = err};
    machine_memory_get(&s.left);
    s.ops = xcalloc((size_t)from->n_ops * 2 + 1, sizeof *s.ops);
    s.values = xcalloc((size_t)from->n_ops + 1, sizeof *s.values);
    s.used = arena_calloc(&memory, (size_t)n + 1, sizeof *s.used);
    for (int i = 0; i < n; i++)
        s.used[i] = arena_calloc(&memory, (size_t)adapters[i]->n_modules + 1, sizeof **s.used);
    enum status st = add_all(&s);
    *out = st == OK ? program_copy_with(from, s.ops, s.n_ops, s.values, s.n_values) : NULL;
    if (*out)
        (*out)->arena = memory; // a copy's own is empty
    else
        arena_release(&memory);
    free(s.ops);
    free(s.values);
    return st;
}
