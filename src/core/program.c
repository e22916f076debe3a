/* program.c - the list, its values, sections, caches and ropes: see program.h. Ops are recorded by record.c. */
#include "core/program_internal.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

struct program *program_new(const char *name) {
    struct program *p = xcalloc(1, sizeof *p);
    arena_init(&p->arena);
    p->name = arena_strdup(&p->arena, str_of(name));
    p->hidden = NO_VAL;
    program_section(p, "embed", -1);
    return p;
}

void program_free(struct program *p) {
    if (!p)
        return;
    free(p->ops);
    free(p->values);
    free(p->sections);
    free(p->groups);
    free(p->caches);
    free(p->ropes);
    arena_release(&p->arena);
    free(p);
}

static void *copy_of(const void *array, int n, size_t size) {
    void *copy = xcalloc((size_t)n + 1, size);
    if (n > 0)
        memcpy(copy, array, (size_t)n * size);
    return copy;
}

struct program *program_copy(const struct program *from) {
    struct program *p = xcalloc(1, sizeof *p);
    *p = *from;
    arena_init(&p->arena);
    p->ops = copy_of(from->ops, from->n_ops, sizeof *p->ops);
    p->values = copy_of(from->values, from->n_values, sizeof *p->values);
    p->sections = copy_of(from->sections, from->n_sections, sizeof *p->sections);
    p->groups = copy_of(from->groups, from->n_groups, sizeof *p->groups);
    p->caches = copy_of(from->caches, from->n_caches, sizeof *p->caches);
    p->ropes = copy_of(from->ropes, from->n_ropes, sizeof *p->ropes);
    p->cap_ops = from->n_ops;
    p->cap_values = from->n_values;
    p->cap_sections = from->n_sections;
    return p;
}

static void use(struct program *p, val v, int op) {
    if (val_given(v))
        p->values[v.id].last_use = MAX(p->values[v.id].last_use, op);
}

/* What is defined and read where, and where sections begin, from the ops. Values that no op makes any more live
 * nowhere. */
static void recount(struct program *p) {
    for (int i = 0; i < p->n_values; i++)
        p->values[i].first_use = 0, p->values[i].last_use = -1;
    int section = -1;
    for (int i = 0; i < p->n_ops; i++) {
        while (section < p->ops[i].section)
            p->sections[++section].first_op = i;
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (val_given(p->ops[i].out[k]))
                p->values[p->ops[i].out[k].id].first_use = p->values[p->ops[i].out[k].id].last_use = i;
        for (int k = 0; k < OP_MAX_IN; k++)
            use(p, p->ops[i].in[k], i);
    }
    while (section < p->n_sections - 1) // of which nothing is left
        p->sections[++section].first_op = p->n_ops;
    use(p, p->hidden, p->n_ops - 1);
    for (int i = 0; i < p->n_taps; i++)
        use(p, p->taps[i], p->n_ops - 1);
}

struct program *program_copy_with(const struct program *from, const struct op *ops, int n_ops, const struct value *more,
                                  int n_more) {
    struct program *p = program_copy(from);
    p->n_values = p->cap_values = from->n_values + n_more;
    p->values = xrealloc(p->values, (size_t)p->n_values + 1, sizeof *p->values);
    memcpy(p->values + from->n_values, more, (size_t)n_more * sizeof *more);
    free(p->ops);
    p->ops = copy_of(ops, n_ops, sizeof *p->ops);
    p->n_ops = p->cap_ops = n_ops;
    recount(p);
    return p;
}

struct program *program_copy_caches(const struct program *from) {
    struct program *p = program_new(from->name);
    p->groups = copy_of(from->groups, from->n_groups, sizeof *p->groups);
    p->caches = copy_of(from->caches, from->n_caches, sizeof *p->caches);
    p->ropes = copy_of(from->ropes, from->n_ropes, sizeof *p->ropes);
    p->n_groups = from->n_groups;
    p->n_caches = from->n_caches;
    p->n_ropes = from->n_ropes;
    p->rank = from->rank;
    p->n_ranks = from->n_ranks;
    return p;
}

void *program_grown(void *array, int n, int *cap, size_t size) {
    if (n < *cap)
        return array;
    *cap = *cap ? *cap * 2 : 64;
    return xrealloc(array, (size_t)*cap, size);
}

void program_section(struct program *p, const char *name, int layer) {
    p->sections = program_grown(p->sections, p->n_sections, &p->cap_sections, sizeof *p->sections);
    p->sections[p->n_sections++] = (struct section){arena_strdup(&p->arena, str_of(name)), layer, p->n_ops};
}

val val_cols(val v, int first, int width) {
    BUG_IF(v.id < 0 || first < 0 || width <= 0 || first > v.width - width);
    return (val){v.id, v.col + first, width};
}

/* ---- caches and ropes ---- */

static int add_cache(struct program *p, struct cache_group g) {
    int at = 0;
    while (at < p->n_groups) {
        struct cache_group *o = &p->groups[at];
        if (o->kind == g.kind && o->n_heads == g.n_heads && o->k_dim == g.k_dim && o->v_dim == g.v_dim &&
            o->window == g.window && o->shared_kv == g.shared_kv && o->state_floats == g.state_floats)
            break;
        at++;
    }
    if (at == p->n_groups) {
        p->groups = xrealloc(p->groups, (size_t)p->n_groups + 1, sizeof *p->groups);
        p->groups[p->n_groups++] = g;
    }
    p->caches = xrealloc(p->caches, (size_t)p->n_caches + 1, sizeof *p->caches);
    p->caches[p->n_caches] = (struct cache_layer){at, p->groups[at].n_layers++};
    return p->n_caches++;
}

int program_cache_kv(struct program *p, int n_heads, int k_dim, int v_dim, int window) {
    return add_cache(p, (struct cache_group){
                            .kind = CACHE_KV, .n_heads = n_heads, .k_dim = k_dim, .v_dim = v_dim, .window = window});
}

int program_cache_latent(struct program *p, int width) {
    return add_cache(p, (struct cache_group){.kind = CACHE_LATENT, .n_heads = 1, .k_dim = width});
}

int program_cache_state(struct program *p, int64_t conv_floats, int64_t state_floats) {
    return add_cache(p, (struct cache_group){.kind = CACHE_STATE, .state_floats = conv_floats + state_floats});
}

int64_t cache_state_floats(const struct cache_group *g, int n_back) {
    if (g->ring > 0)
        return (int64_t)g->ring * g->n_heads * (g->k_dim + g->v_dim);
    return g->state_floats + (n_back > 0 ? STATE_MARKS + (int64_t)n_back * (g->conv_width + g->delta_width) : 0);
}

bool program_states_go_back(const struct program *p) {
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].kind == CACHE_STATE && p->groups[i].ring == 0 &&
            p->groups[i].state_floats != p->groups[i].conv_floats + p->groups[i].delta_floats)
            return false;
    return true;
}

int program_rope(struct program *p, const struct rope *rope) {
    for (int i = 0; i < p->n_ropes; i++)
        if (p->ropes[i] == rope)
            return i;
    p->ropes = xrealloc(p->ropes, (size_t)p->n_ropes + 1, sizeof(*p->ropes));
    p->ropes[p->n_ropes] = rope;
    return p->n_ropes++;
}

bool program_rope_depends_on_length(const struct program *p) {
    for (int i = 0; i < p->n_ropes; i++)
        if (p->ropes[i]->by_length != ROPE_FIXED)
            return true;
    return false;
}

void program_keep(struct program *p, val v) {
    BUG_IF(p->n_taps == MAX_TAPS);
    p->taps[p->n_taps++] = v;
    p->values[v.id].last_use = p->n_ops - 1;
}

bool program_keeps(const struct program *p, int id) {
    bool is_kept = p->hidden.id == id;
    for (int i = 0; i < p->n_taps; i++)
        is_kept |= p->taps[i].id == id;
    return is_kept;
}
