/* quant.c - see quant.h. Methods of a few fields each; compressed-tensors and modelopt have files of their own. */
#include "model/weights/quant_internal.h"

const char *quant_name(const struct quant_spec *spec) { return spec ? spec->name : "none"; }

static bool scheme_is_readable(const struct quant_spec *spec, const struct quant_storage *s) {
    switch (s->scheme) {
    case QUANT_NONE:
    case QUANT_FP8_TENSOR:
    case QUANT_FP8_CHANNEL:
    case QUANT_FP8_BLOCK:
    case QUANT_INT8_CHANNEL:
    case QUANT_BNB_INT8:
    case QUANT_BNB_CODES:
    case QUANT_NVFP4: return true;
    case QUANT_INT4_GROUP:
    case QUANT_GPTQ:
    case QUANT_AWQ: return 32 % s->bits == 0;
    case QUANT_MXFP4: return spec->experts_only || s->compressed_tensors;
    }
    return false;
}

bool quant_is_readable(const struct quant_spec *spec) {
    bool readable = !spec || scheme_is_readable(spec, &spec->linear);
    for (size_t i = 0; spec && i < spec->n_rules; i++)
        readable = readable && scheme_is_readable(spec, &spec->rules[i].storage);
    return readable;
}

/* ---- what methods share ---- */

enum status quant_unsupported(const struct quant_reader *r, const char *what, const char *value) {
    return fail(r->err, ERR_UNSUPPORTED, "%s: %s \"%s\" is not supported", r->where, what, value);
}

enum status quant_read_pair(const struct quant_reader *r, const json_t *obj, const char *key, int *rows, int *cols) {
    const json_t *pair = json_object_get(obj, key), *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(a) || !json_is_integer(b) || json_integer_value(a) < 1 ||
        json_integer_value(b) < 1 || json_integer_value(a) > 1 << 20 || json_integer_value(b) > 1 << 20)
        return fail(r->err, ERR_FORMAT, "%s: \"%s\" is not a pair of block sizes", r->where, key);
    *rows = (int)json_integer_value(a);
    *cols = (int)json_integer_value(b);
    return OK;
}

static const char *quant_groups_name(const struct quant_reader *r, const char *method, const struct quant_storage *s) {
    if (s->group_size)
        return arena_printf(r->arena, "%s int%d, groups of %d", method, s->bits, s->group_size);
    return arena_printf(r->arena, "%s int%d, a scale a row", method, s->bits);
}

const char *quant_storage_name(const struct quant_reader *r, const struct quant_storage *s) {
    switch (s->scheme) {
    case QUANT_NONE: return "none";
    case QUANT_FP8_TENSOR: return "fp8 per tensor";
    case QUANT_FP8_CHANNEL: return "fp8 per channel";
    case QUANT_FP8_BLOCK: return arena_printf(r->arena, "fp8 blocks %dx%d", s->block_rows, s->block_cols);
    case QUANT_INT8_CHANNEL: return "int8 per channel";
    case QUANT_BNB_INT8: return "int8 rows";
    case QUANT_BNB_CODES: return "codes of 4 bits";
    case QUANT_INT4_GROUP: return quant_groups_name(r, "packed", s);
    case QUANT_GPTQ: return quant_groups_name(r, "gptq", s);
    case QUANT_AWQ: return quant_groups_name(r, "awq", s);
    case QUANT_MXFP4: return "mxfp4";
    case QUANT_NVFP4: return s->weight_only ? "nvfp4 weights" : "nvfp4";
    }
    return "none";
}

/* ---- fp8 of DeepSeek and transformers ---- */

static enum status parse_fp8(struct quant_reader *r) {
    const char *format;
    TRY(jv_string_or(r->config, r->where, "fmt", "e4m3", &format, r->err));
    if (strcmp(format, "e4m3") != 0)
        return quant_unsupported(r, "fp8 \"fmt\"", format);
    struct quant_storage *s = &r->spec->linear;
    s->bits = 8;
    s->scheme = QUANT_FP8_TENSOR;
    r->spec->name = "fp8 per tensor";
    const json_t *block = json_object_get(r->config, "weight_block_size");
    if (block && !json_is_null(block)) {
        TRY(quant_read_pair(r, r->config, "weight_block_size", &s->block_rows, &s->block_cols));
        s->scheme = QUANT_FP8_BLOCK;
        r->spec->name = arena_printf(r->arena, "fp8 blocks %dx%d", s->block_rows, s->block_cols);
    }
    TRY(quant_read_excluded(r, "ignored_layers"));
    return quant_read_excluded(r, "modules_to_not_convert");
}

static enum status parse_fbgemm_fp8(struct quant_reader *r) {
    r->spec->linear = (struct quant_storage){.scheme = QUANT_FP8_CHANNEL, .bits = 8};
    r->spec->name = "fp8 per channel";
    return quant_read_excluded(r, "modules_to_not_convert");
}

/* ---- GPTQ, AWQ, bitsandbytes, GPT-OSS ---- */

static enum status read_groups(struct quant_reader *r, struct quant_storage *s) {
    int64_t bits, group;
    TRY(jv_int(r->config, r->where, "bits", 2, 8, &bits, r->err));
    TRY(jv_int_or(r->config, r->where, "group_size", -1, 1 << 20, -1, &group, r->err));
    s->bits = (int)bits;
    s->group_size = group > 0 ? (int)group : 0;
    s->weight_only = true;
    return OK;
}

static enum status parse_gptq(struct quant_reader *r) {
    struct quant_storage *s = &r->spec->linear;
    const char *format;
    bool marlin;
    TRY(read_groups(r, s));
    TRY(jv_string_or(r->config, r->where, "checkpoint_format", "gptq", &format, r->err));
    TRY(jv_bool_or(r->config, r->where, "is_marlin_format", false, &marlin, r->err));
    TRY(jv_bool_or(r->config, r->where, "lm_head", false, &r->spec->head_too, r->err));
    if (marlin || (strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0))
        return quant_unsupported(r, "GPTQ \"checkpoint_format\"", marlin ? "marlin" : format);
    s->scheme = QUANT_GPTQ;
    s->asymmetric = true; // zero points are in the file whatever "sym" says
    s->gptq_v2 = strcmp(format, "gptq_v2") == 0;
    r->spec->name = quant_groups_name(r, "gptq", s);
    return quant_read_excluded(r, "modules_to_not_convert");
}

static enum status parse_awq(struct quant_reader *r) {
    struct quant_storage *s = &r->spec->linear;
    const char *version;
    TRY(read_groups(r, s));
    TRY(jv_string_or(r->config, r->where, "version", "gemm", &version, r->err));
    if (s->bits != 4 || (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0))
        return quant_unsupported(r, "AWQ \"version\"", version);
    s->scheme = QUANT_AWQ;
    s->asymmetric = true;
    r->spec->name = quant_groups_name(r, "awq", s);
    return quant_read_excluded(r, "modules_to_not_convert");
}

static enum status parse_bitsandbytes(struct quant_reader *r) {
    bool eight, four, nested;
    const char *type;
    TRY(jv_bool_or(r->config, r->where, "load_in_8bit", false, &eight, r->err));
    TRY(jv_bool_or(r->config, r->where, "load_in_4bit", !eight, &four, r->err));
    TRY(jv_string_or(r->config, r->where, "bnb_4bit_quant_type", "fp4", &type, r->err));
    TRY(jv_bool_or(r->config, r->where, "bnb_4bit_use_double_quant", false, &nested, r->err));
    if (four && strcmp(type, "nf4") != 0 && strcmp(type, "fp4") != 0)
        return quant_unsupported(r, "\"bnb_4bit_quant_type\"", type);
    r->spec->linear = (struct quant_storage){.scheme = four ? QUANT_BNB_CODES : QUANT_BNB_INT8,
                                             .bits = four ? 4 : 8,
                                             .nested = four && nested,
                                             .weight_only = true};
    r->spec->name = four ? arena_printf(r->arena, "%s (bitsandbytes)", type) : "int8 rows (bitsandbytes)";
    return quant_read_excluded(r, "llm_int8_skip_modules");
}

bool quant_is_bnb(const struct quant_spec *spec) {
    return spec && (spec->linear.scheme == QUANT_BNB_INT8 || spec->linear.scheme == QUANT_BNB_CODES);
}

static enum status parse_mxfp4(struct quant_reader *r) {
    r->spec->linear = (struct quant_storage){.scheme = QUANT_MXFP4, .bits = 4, .group_size = 32, .weight_only = true};
    r->spec->experts_only = true;
    r->spec->name = "mxfp4 experts";
    return quant_read_excluded(r, "modules_to_not_convert");
}

/* ---- choosing ---- */

static const struct {
    const char *method;
    enum status (*parse)(struct quant_reader *r);
} methods[] = {
    {"fp8", parse_fp8},
    {"fbgemm_fp8", parse_fbgemm_fp8},
    {"compressed-tensors", quant_parse_compressed},
    {"modelopt", quant_parse_modelopt},
    {"modelopt_fp4", quant_parse_modelopt},
    {"gptq", parse_gptq},
    {"awq", parse_awq},
    {"bitsandbytes", parse_bitsandbytes},
    {"mxfp4", parse_mxfp4},
};

enum status quant_spec_parse(struct arena *arena, const json_t *config, const char *where, struct quant_spec **out,
                             struct error *err) {
    struct quant_reader r = {.arena = arena, .config = config, .where = where, .err = err};
    const char *method;
    *out = NULL;
    if (!json_is_object(config))
        return fail(err, ERR_FORMAT, "%s: the quantisation settings are %s, they must be an object", where,
                    jv_type_name(config));
    // modelopt's own file and its older exports do not name the method
    TRY(jv_string_or(config, where, "quant_method", json_object_get(config, "quant_algo") ? "modelopt" : "", &method,
                     err));
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        if (strcmp(method, methods[i].method) != 0)
            continue;
        r.spec = arena_alloc(arena, sizeof *r.spec);
        TRY(methods[i].parse(&r));
        *out = r.spec;
        return OK;
    }
    return quant_unsupported(&r, "\"quant_method\"", method);
}
