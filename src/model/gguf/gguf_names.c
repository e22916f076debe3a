/* gguf_names.c - tensors of GGUF files under the names that families bind; see gguf_model.h. */
#include "model/gguf/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>

static const struct gguf_name common_names[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.%e.gate_proj"},
    {"ffn_up_exps", "mlp.experts.%e.up_proj"},
    {"ffn_down_exps", "mlp.experts.%e.down_proj"},
    {"ffn_gate_up_exps", "mlp.experts.%e.gate_proj", "mlp.experts.%e.up_proj"},
    {NULL},
};

static const struct {
    const char *stored, *name;
} model_names[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                   {"output_norm.weight", "model.norm.weight"},
                   {"output.weight", "lm_head.weight"},
                   {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
                   {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
                   {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}};

/* Tensors that gguf_config has read. */
static const char *const metadata[] = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"};

/* ---- one name ---- */

/* The row for what stands behind "blk.N."; *ending is what it leaves of that: ".weight", or nothing. */
static const struct gguf_name *find_row(const struct gguf_arch *arch, const char *rest, const char **ending) {
    const struct gguf_name *const tables[] = {arch->names, common_names};
    const char *dot = strrchr(rest, '.');
    *ending = dot ? dot : "";
    size_t n_stem = dot ? (size_t)(dot - rest) : strlen(rest);
    for (size_t k = 0; k < ARRAY_LEN(tables); k++)
        for (const struct gguf_name *row = tables[k]; row && row->stored; row++) {
            if (strcmp(row->stored, rest) == 0) {
                *ending = "";
                return row;
            }
            if (strlen(row->stored) == n_stem && strncmp(row->stored, rest, n_stem) == 0)
                return row;
        }
    return NULL;
}

/* N and what stands behind it, of blk.N.REST. */
static const char *block_of(const char *name, int *layer) {
    char *end;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9')
        return NULL;
    unsigned long n = strtoul(name + 4, &end, 10);
    *layer = n > INT32_MAX ? INT32_MAX : (int)n;
    return *end == '.' ? end + 1 : NULL;
}

/* "model.layers.N." and the row's name, with the number of the expert. */
static const char *name_of(struct arena *arena, int layer, const char *form, int64_t expert, const char *ending) {
    const char *mark = strstr(form, "%e");
    if (!mark)
        return arena_printf(arena, "model.layers.%d.%s%s", layer, form, ending);
    return arena_printf(arena, "model.layers.%d.%.*s%lld%s%s", layer, (int)(mark - form), form, (long long)expert,
                        mark + 2, ending);
}

/* ---- stacks ---- */

static struct stored_tensor *add_as(struct stored_list *out, const struct stored_tensor *t, const char *name) {
    struct stored_tensor *s = stored_list_add(out);
    *s = *t;
    s->stored_name = t->name;
    s->name = name;
    return s;
}

/* Rows [first, first + n) of the second dimension of expert e of a stack. */
static void take_rows(struct stored_tensor *s, const struct stored_tensor *stack, int64_t e, int64_t first, int64_t n) {
    size_t row_bytes = stack->n_bytes / (size_t)MAX(stack->shape[0] * stack->shape[1], 1);
    s->data = (const char *)stack->data + (size_t)(e * stack->shape[1] + first) * row_bytes;
    s->n_bytes = (size_t)n * row_bytes;
    s->rank = stack->rank - 1;
    s->shape[0] = n;
    memmove(s->shape + 1, stack->shape + 2, sizeof s->shape - 2 * sizeof *s->shape);
}

static enum status split_stack(const struct stored_tensor *t, const struct gguf_name *row, int layer,
                               const char *ending, const struct model_spec *spec, struct arena *arena,
                               struct stored_list *out, struct error *err) {
    if (t->rank < 2 || t->shape[0] != spec->moe.n_experts || (row->second && t->shape[1] % 2))
        return fail(err, ERR_FORMAT, "%s: tensor %s is no stack of %d experts", spec->path, t->name,
                    spec->moe.n_experts);
    int64_t n = row->second ? t->shape[1] / 2 : t->shape[1];
    for (int64_t e = 0; e < t->shape[0]; e++) {
        take_rows(add_as(out, t, name_of(arena, layer, row->name, e, ending)), t, e, 0, n);
        if (row->second)
            take_rows(add_as(out, t, name_of(arena, layer, row->second, e, ending)), t, e, n, n);
    }
    return OK;
}

/* ---- all ---- */

static bool is_metadata(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(metadata); i++)
        if (strcmp(name, metadata[i]) == 0)
            return true;
    return false;
}

static enum status rename_one(const struct stored_tensor *t, const struct model_spec *spec, struct arena *arena,
                              struct stored_list *out, struct error *err) {
    int layer = 0;
    const char *ending = "", *rest = block_of(t->name, &layer);
    const struct gguf_name *row = rest ? find_row(spec->gguf, rest, &ending) : NULL;
    for (size_t i = 0; i < ARRAY_LEN(model_names); i++)
        if (strcmp(t->name, model_names[i].stored) == 0) {
            add_as(out, t, model_names[i].name);
            return OK;
        }
    if (row && strstr(row->name, "%e") && layer < spec->n_layers)
        return split_stack(t, row, layer, ending, spec, arena, out, err);
    const char *name = row && !strstr(row->name, "%e") ? name_of(arena, layer, row->name, 0, ending) : t->name;
    bool is_predictor = rest && layer >= spec->n_layers; // reads the model, and is not read here
    struct stored_tensor *s = add_as(out, t, name);
    s->consumed = is_metadata(t->name) || is_predictor;
    if (s->rank == 1 && row && strcmp(row->stored, "ffn_gate_inp_shexp") == 0) { // a matrix of one row
        s->shape[1] = s->shape[0];
        s->shape[0] = 1;
        s->rank = 2;
    }
    if (s->rank == 3) { // matrices of heads, one under another
        s->shape[0] *= s->shape[1];
        s->shape[1] = s->shape[2];
        s->rank = 2;
    }
    return OK;
}

static enum status rename_each(void *arg, const struct stored_tensor *t, struct arena *arena, struct stored_list *out,
                               struct error *err) {
    return rename_one(t, arg, arena, out, err);
}

enum status gguf_rename(struct checkpoint *c, const struct model_spec *spec, struct error *err) {
    return checkpoint_rename(c, rename_each, (void *)spec, err);
}

/* ---- back ---- */

/* Whether `name` is of the form; the expert's number stands for %e. */
static bool fits(const char *form, const char *name, size_t n) {
    const char *mark = strstr(form, "%e");
    if (!mark)
        return strlen(form) == n && strncmp(form, name, n) == 0;
    size_t n_begin = (size_t)(mark - form), n_end = strlen(mark + 2);
    return n > n_begin + n_end && strncmp(form, name, n_begin) == 0 &&
           strncmp(name + n - n_end, mark + 2, n_end) == 0 &&
           strspn(name + n_begin, "0123456789") == n - n_begin - n_end;
}

static const char *row_name(const struct gguf_arch *arch, const char *rest, size_t n) {
    const struct gguf_name *const tables[] = {arch->names, common_names};
    for (size_t k = 0; k < ARRAY_LEN(tables); k++)
        for (const struct gguf_name *row = tables[k]; row && row->stored; row++)
            if (fits(row->name, rest, n))
                return row->stored;
    return NULL;
}

const char *gguf_stored_name(const struct gguf_arch *arch, const char *name, struct arena *arena) {
    static const char layers[] = "model.layers.";
    for (size_t i = 0; i < ARRAY_LEN(model_names); i++)
        if (strcmp(name, model_names[i].name) == 0)
            return model_names[i].stored;
    if (strncmp(name, layers, sizeof layers - 1) != 0)
        return name;
    char *end;
    unsigned long layer = strtoul(name + sizeof layers - 1, &end, 10);
    const char *rest = end + (*end == '.'), *dot = strrchr(rest, '.');
    const char *whole = row_name(arch, rest, strlen(rest));
    const char *stem = dot ? row_name(arch, rest, (size_t)(dot - rest)) : NULL;
    if (whole)
        return arena_printf(arena, "blk.%lu.%s", layer, whole);
    return stem ? arena_printf(arena, "blk.%lu.%s%s", layer, stem, dot) : name;
}
