/* quant_compressed.c - the settings of compressed-tensors: groups of targets, each with a type, bits and a strategy. */
#include "model/weights/quant_internal.h"

#include "base/buf.h"

static enum status ct_float(struct quant_reader *r, const json_t *weights, int64_t bits, const char *strategy,
                            int64_t group, struct quant_storage *s) {
    if (bits == 4) {
        bool mx = group == 32;
        if (!mx && group != 16)
            return quant_unsupported(r, "4-bit float weights with \"strategy\"", strategy);
        s->scheme = mx ? QUANT_MXFP4 : QUANT_NVFP4;
        s->group_size = (int)group;
        return OK;
    }
    if (bits != 8)
        return fail(r->err, ERR_UNSUPPORTED, "%s: float weights of %lld bits are not supported", r->where,
                    (long long)bits);
    if (strcmp(strategy, "tensor") == 0) {
        s->scheme = QUANT_FP8_TENSOR;
    } else if (strcmp(strategy, "channel") == 0) {
        s->scheme = QUANT_FP8_CHANNEL;
    } else if (strcmp(strategy, "block") == 0) {
        s->scheme = QUANT_FP8_BLOCK;
        return quant_read_pair(r, weights, "block_structure", &s->block_rows, &s->block_cols);
    } else {
        return quant_unsupported(r, "8-bit float weights with \"strategy\"", strategy);
    }
    return OK;
}

static enum status ct_int(struct quant_reader *r, const char *format, int64_t bits, const char *strategy, int64_t group,
                          struct quant_storage *s) {
    bool packed = strcmp(format, "pack-quantized") == 0;
    if (packed ? bits != 4 && bits != 8 : bits != 8)
        return fail(r->err, ERR_UNSUPPORTED, "%s: int weights of %lld bits in format %s are not supported", r->where,
                    (long long)bits, format);
    if (packed && (strcmp(strategy, "group") == 0 || strcmp(strategy, "channel") == 0)) {
        s->scheme = QUANT_INT4_GROUP;
        s->group_size = group > 0 ? (int)group : 0;
        return OK;
    }
    if (packed || strcmp(strategy, "channel") != 0)
        return quant_unsupported(r, "int weights with \"strategy\"", strategy);
    s->scheme = QUANT_INT8_CHANNEL;
    return OK;
}

static enum status ct_storage(struct quant_reader *r, const json_t *group, const char *default_format,
                              struct quant_storage *s) {
    json_t *weights, *inputs;
    const char *type, *strategy, *format;
    int64_t bits, group_size;
    bool symmetric;
    TRY(jv_object_or_null(group, r->where, "weights", &weights, r->err));
    TRY(jv_object_or_null(group, r->where, "input_activations", &inputs, r->err));
    if (!weights)
        return fail(r->err, ERR_UNSUPPORTED, "%s: a group of \"config_groups\" quantises no weights", r->where);
    TRY(jv_string_or(group, r->where, "format", default_format, &format, r->err));
    TRY(jv_string(weights, r->where, "type", &type, r->err));
    TRY(jv_int(weights, r->where, "num_bits", 1, 16, &bits, r->err));
    TRY(jv_int_or(weights, r->where, "group_size", -1, 1 << 20, 0, &group_size, r->err));
    TRY(jv_string_or(weights, r->where, "strategy", group_size > 0 ? "group" : "tensor", &strategy, r->err));
    TRY(jv_bool_or(weights, r->where, "symmetric", true, &symmetric, r->err));
    *s = (struct quant_storage){
        .bits = (int)bits, .compressed_tensors = true, .asymmetric = !symmetric, .weight_only = !inputs};
    if (strcmp(type, "float") == 0)
        return ct_float(r, weights, bits, strategy, group_size, s);
    if (strcmp(type, "int") == 0)
        return ct_int(r, format, bits, strategy, group_size, s);
    return quant_unsupported(r, "weights of \"type\"", type);
}

// Adds the group's targets as rules; "Linear" sets what all other linear layers are.
static enum status ct_targets(struct quant_reader *r, const json_t *group, const struct quant_storage *s) {
    json_t *targets, *value;
    size_t i;
    TRY(jv_array_or_null(group, r->where, "targets", &targets, r->err));
    if (json_array_size(targets) > MAX_PATTERNS)
        return fail(r->err, ERR_LIMIT, "%s: \"targets\" has more than %d entries", r->where, MAX_PATTERNS);
    struct quant_rule *all = arena_calloc(r->arena, r->spec->n_rules + json_array_size(targets) + 1, sizeof *all);
    if (r->spec->n_rules)
        memcpy(all, r->spec->rules, r->spec->n_rules * sizeof *all);
    r->spec->rules = all;
    json_array_foreach(targets, i, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "Linear") == 0) {
            r->spec->linear = *s;
            continue;
        }
        TRY(quant_read_pattern(r, value, "targets", &all[r->spec->n_rules].modules));
        all[r->spec->n_rules++].storage = *s;
    }
    return OK;
}

static bool is_for_activations(const json_t *group) {
    return !json_is_object(json_object_get(group, "weights")) &&
           (json_is_object(json_object_get(group, "input_activations")) ||
            json_is_object(json_object_get(group, "output_activations")));
}

enum status quant_parse_compressed(struct quant_reader *r) {
    json_t *groups, *group;
    const char *key, *format;
    TRY(jv_string_or(r->config, r->where, "format", "", &format, r->err));
    if (strncmp(format, "sparse", 6) == 0 || strncmp(format, "marlin", 6) == 0)
        return quant_unsupported(r, "compressed-tensors \"format\"", format);
    TRY(jv_object_or_null(r->config, r->where, "config_groups", &groups, r->err));
    if (json_object_size(groups) == 0 &&
        json_is_object(json_object_get(r->config, "kv_cache_scheme"))) { // the cache alone
        r->spec = NULL;
        return OK;
    }
    if (json_object_size(groups) == 0 || json_object_size(groups) > 64)
        return fail(r->err, ERR_FORMAT, "%s: \"config_groups\" must have 1 to 64 groups", r->where);
    r->spec->head_too = true; // "ignore" lists it where it stays plain
    struct buf name = {0};
    enum status st = OK;
    json_object_foreach(groups, key, group) {
        struct quant_storage s;
        if (is_for_activations(group)) // of attention: queries, keys, values
            continue;
        if ((st = ct_storage(r, group, format, &s)) != OK || (st = ct_targets(r, group, &s)) != OK)
            break;
        buf_printf(&name, "%s%s", name.len ? " and " : "", quant_storage_name(r, &s));
    }
    struct str all = name.len ? buf_view(&name) : STR("none");
    r->spec->name = arena_printf(r->arena, "%.*s (compressed-tensors)", STR_ARG(all));
    buf_release(&name);
    TRY(st);
    return quant_read_excluded(r, "ignore");
}
