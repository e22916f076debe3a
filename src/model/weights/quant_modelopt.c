/* quant_modelopt.c - the settings of NVIDIA's modelopt: one algorithm, or one a layer. */
#include "model/weights/quant_internal.h"

static enum status modelopt_storage(const struct quant_reader *r, const json_t *obj, const char *algo,
                                    struct quant_storage *s) {
    static const struct {
        const char *algo;
        struct quant_storage storage;
    } known[] = {
        {"FP8", {.scheme = QUANT_FP8_TENSOR, .bits = 8}},
        {"FP8_PER_CHANNEL_PER_TOKEN", {.scheme = QUANT_FP8_CHANNEL, .bits = 8}},
        {"FP8_PB_WO", {.scheme = QUANT_FP8_BLOCK, .bits = 8, .block_rows = 128, .block_cols = 128}},
        {"NVFP4", {.scheme = QUANT_NVFP4, .bits = 4, .group_size = 16}},
        {"W4A16_NVFP4", {.scheme = QUANT_NVFP4, .bits = 4, .group_size = 16, .weight_only = true}},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(algo, known[i].algo) != 0)
            continue;
        *s = known[i].storage;
        int64_t group;
        TRY(jv_int_or(obj, r->where, "group_size", 1, 1 << 20, s->group_size, &group, r->err));
        if (s->scheme == QUANT_NVFP4 && group != 16)
            return fail(r->err, ERR_UNSUPPORTED, "%s: \"group_size\" of %s is %lld, it must be 16", r->where, algo,
                        (long long)group);
        return OK;
    }
    return quant_unsupported(r, "\"quant_algo\"", algo);
}

static enum status modelopt_layers(struct quant_reader *r) {
    json_t *layers, *layer;
    const char *module, *algo;
    bool used[QUANT_NVFP4 + 1] = {false};
    TRY(jv_object_or_null(r->config, r->where, "quantized_layers", &layers, r->err));
    if (json_object_size(layers) == 0 || json_object_size(layers) > MAX_PATTERNS)
        return fail(r->err, ERR_FORMAT, "%s: \"quantized_layers\" must name 1 to %d modules", r->where, MAX_PATTERNS);
    r->spec->rules = arena_calloc(r->arena, json_object_size(layers), sizeof *r->spec->rules);
    struct quant_storage first = {0}, other = {0};
    json_object_foreach(layers, module, layer) {
        struct quant_rule *rule = &r->spec->rules[r->spec->n_rules++];
        TRY(jv_string(layer, r->where, "quant_algo", &algo, r->err));
        TRY(modelopt_storage(r, layer, algo, &rule->storage));
        rule->modules = (struct quant_pattern){.text = arena_strdup(r->arena, str_of(module)),
                                               .len = strlen(module),
                                               .glob = strpbrk(module, "*?") != NULL};
        if (!used[rule->storage.scheme])
            *(first.scheme ? &other : &first) = rule->storage;
        used[rule->storage.scheme] = true;
    }
    r->spec->name = other.scheme ? arena_printf(r->arena, "%s and %s (modelopt)", quant_storage_name(r, &first),
                                                quant_storage_name(r, &other))
                                 : arena_printf(r->arena, "%s (modelopt)", quant_storage_name(r, &first));
    return OK;
}

enum status quant_parse_modelopt(struct quant_reader *r) {
    const char *algo;
    TRY(jv_string_or(r->config, r->where, "quant_algo", "NO_QUANT", &algo, r->err));
    if (strcmp(algo, "NO_QUANT") == 0) {
        r->spec = NULL;
        return OK;
    }
    r->spec->head_too = true; // listed among the excluded where it stays plain
    if (strcmp(algo, "MIXED_PRECISION") == 0) {
        TRY(modelopt_layers(r));
    } else {
        TRY(modelopt_storage(r, r->config, algo, &r->spec->linear));
        r->spec->name = arena_printf(r->arena, "%s (modelopt)", quant_storage_name(r, &r->spec->linear));
    }
    TRY(quant_read_excluded(r, "exclude_modules"));
    return quant_read_excluded(r, "ignore");
}
