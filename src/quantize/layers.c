/* layers.c - see layers.h. */
#include "quantize/layers.h"

#include <stdlib.h>

void layer_matrices_release(struct layer_matrices *l) {
    free(l->items);
    arena_release(&l->arena);
    *l = (struct layer_matrices){0};
}

static bool is_quantised(const struct bound *b) {
    static const char *const plain[] = {".gate.weight", ".router.",    "shared_expert_gate",
                                        "conv1d",       ".in_proj_a.", ".in_proj_b.",
                                        ".in_proj_ba.", "per_layer",   ".layers.weight"};
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (strstr(b->name, plain[i]))
            return false;
    return b->is_matrix && (strstr(b->name, ".layers.") || strncmp(b->name, "layers.", 7) == 0);
}

/* Of 128, 64 and 32 the largest that divides all widths; 32 where none does. */
static int common_group(const struct bound_list *taken) {
    for (int group = 128; group > 32; group /= 2) {
        bool fits = true;
        for (size_t i = 0; i < taken->n; i++)
            fits = fits && (!is_quantised(&taken->items[i]) || taken->items[i].cols % group == 0);
        if (fits)
            return group;
    }
    return 32;
}

enum status layer_matrices_choose(const struct model *m, const struct bound_list *taken, enum code_format format,
                                  struct layer_matrices *out, struct error *err) {
    static const int groups[N_CODE_FORMATS] = {[CODES_NVFP4] = 16, [CODES_MXFP4] = 32};
    *out = (struct layer_matrices){.items = xcalloc(taken->n + 1, sizeof *out->items)};
    struct codes c = {.format = format, .group = groups[format], .scale_dtype = DT_F32, .tensor_scale = 1};
    if (format == CODES_INT4) {
        c.group = common_group(taken);
        c.scale_dtype = m->spec->dtype == DT_F16 ? DT_F16 : DT_BF16;
    }
    for (size_t i = 0; i < taken->n; i++) {
        const struct bound *b = &taken->items[i];
        if (!is_quantised(b))
            continue;
        if (b->part.format->id != QFORMAT_PLAIN)
            return fail(err, ERR_UNSUPPORTED, "%s: tensor %s is stored as %s already; quantise the original",
                        m->spec->path, b->name, b->part.format->name);
        if (c.group && b->cols % c.group) {
            out->first_plain = out->n_plain++ ? out->first_plain : b->name;
            continue;
        }
        const char *module = arena_strdup(&out->arena, (struct str){b->name, strlen(b->name) - sizeof ".weight" + 1});
        out->items[out->n++] = (struct layer_matrix){b, module, c};
    }
    return out->n ? OK : fail(err, ERR_UNSUPPORTED, "%s: no matrix of its layers can be quantised", m->spec->path);
}

bool layer_siblings(const char *a, const char *b) {
    static const char *const kinds[][3] = {
        {"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", "gate_proj"}, {"w1", "w3", "w1"}};
    const char *x = strrchr(a, '.'), *y = strrchr(b, '.');
    if (!x || !y || x - a != y - b || strncmp(a, b, (size_t)(x - a)) != 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        int n = 0;
        for (int k = 0; k < 3; k++)
            n += (strcmp(x + 1, kinds[i][k]) == 0 ? 1 : 0) | (strcmp(y + 1, kinds[i][k]) == 0 ? 16 : 0);
        if (n & 15 && n >> 4)
            return true;
    }
    return strcmp(a, b) == 0;
}

static json_t *token_activations(const char *type) {
    return json_pack("{s:i, s:s, s:b, s:b, s:s, s:n}", "num_bits", 8, "type", type, "symmetric", 1, "dynamic", 1,
                     "strategy", "token", "group_size");
}

json_t *layer_config(const struct codes *c, json_t *take_ignored) {
    static const struct {
        const char *format, *type, *strategy;
        int bits;
    } said[N_CODE_FORMATS] = {[CODES_FP8] = {"float-quantized", "float", "channel", 8},
                              [CODES_INT8] = {"int-quantized", "int", "channel", 8},
                              [CODES_INT4] = {"pack-quantized", "int", "group", 4},
                              [CODES_NVFP4] = {"nvfp4-pack-quantized", "float", "tensor_group", 4},
                              [CODES_MXFP4] = {"mxfp4-pack-quantized", "float", "group", 4}};
    const char *format = said[c->format].format, *type = said[c->format].type;
    json_t *weights = json_pack("{s:i, s:s, s:b, s:b, s:s, s:o}", "num_bits", said[c->format].bits, "type", type,
                                "symmetric", 1, "dynamic", 0, "strategy", said[c->format].strategy, "group_size",
                                c->group ? json_integer(c->group) : json_null());
    bool rounds_activations = c->format == CODES_FP8 || c->format == CODES_INT8;
    json_t *inputs = rounds_activations ? token_activations(type) : json_null();
    json_t *group = json_pack("{s:[s], s:o, s:o, s:n, s:s}", "targets", "Linear", "weights", weights,
                              "input_activations", inputs, "output_activations", "format", format);
    return json_pack("{s:s, s:s, s:s, s:{s:o}, s:o, s:n}", "quant_method", "compressed-tensors", "format", format,
                     "quantization_status", "compressed", "config_groups", "group_0", group, "ignore", take_ignored,
                     "kv_cache_scheme");
}
