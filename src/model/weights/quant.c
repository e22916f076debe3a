/* quant.c - see quant.h.
 *
 * Every method comes down to the same three things: patterns of modules that stay plain, rules that give the
 * modules they match a storage, and one storage for all other linear layers. Exclusion wins over rules. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/weights/quant.h"

#include "base/buf.h"

#include <pcre2.h>

enum { MAX_PATTERNS = 1 << 16, MAX_REGEXES = 64 };

/* A name like "model.layers.3.self_attn", with '*' and '?' for any bytes, or a regular expression. */
struct pattern {
    const char *text;
    size_t len;
    bool glob;
    pcre2_code *regex; // NULL: not one
};

struct rule {
    struct pattern modules;
    struct quant_storage storage;
};

struct quant_spec {
    const char *name;
    struct pattern *excluded; // [n_excluded]
    struct rule *rules;       // [n_rules]
    size_t n_excluded, n_rules;
    struct quant_storage linear; // of linear layers that nothing else speaks of
    bool experts_only;           // `linear` is for expert matrices alone
    bool head_too;               // and reaches lm_head
};

/* What the functions that read one method share. */
struct reader {
    struct arena *arena;
    const json_t *config;
    const char *where;
    struct quant_spec *spec;
    struct error *err;
    int n_regexes;
};

/* ---- matching ---- */

// '*' is any run of bytes, '?' one byte; linear in practice: only the last star is retried.
static bool glob_matches(const char *p, const char *s) {
    const char *star = NULL, *retry = NULL;
    while (*s) {
        if (*p == '*') {
            star = p++;
            retry = s;
        } else if (*p == '?' || *p == *s) {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++retry;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return !*p;
}

// Whether the components of `want` stand in `name` one after another: "mlp.gate" in "model.layers.0.mlp.gate".
static bool has_components(const char *name, const char *want, size_t len) {
    for (const char *at = strstr(name, want); at; at = strstr(at + 1, want))
        if ((at == name || at[-1] == '.') && (at[len] == '\0' || at[len] == '.'))
            return true;
    return false;
}

static bool has_prefix(const char *name, const char *prefix, size_t len) {
    return strncmp(name, prefix, len) == 0 && (name[len] == '\0' || name[len] == '.');
}

/* A pattern whose matching runs into the limit does not match; the binder then misses the scales and says so. */
static bool regex_matches(const pcre2_code *regex, const char *name) {
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(context, 100000);
    int rc = pcre2_match(regex, (PCRE2_SPTR)name, strlen(name), 0, PCRE2_ANCHORED, data, context);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return rc >= 0;
}

// A glob also covers what lies below the module it names, as a plain name does.
static bool pattern_covers(const struct pattern *p, const char *module) {
    if (p->regex)
        return regex_matches(p->regex, module);
    if (!p->glob)
        return has_components(module, p->text, p->len);
    if (glob_matches(p->text, module))
        return true;
    for (const char *dot = strchr(module, '.'); dot; dot = strchr(dot + 1, '.')) {
        char head[512];
        size_t n = (size_t)(dot - module);
        if (n >= sizeof head)
            return false;
        memcpy(head, module, n);
        head[n] = '\0';
        if (glob_matches(p->text, head))
            return true;
    }
    return false;
}

static bool rule_covers(const struct rule *r, const char *module) {
    const struct pattern *p = &r->modules;
    return p->regex || p->glob ? pattern_covers(p, module) : has_prefix(module, p->text, p->len);
}

/* Modules that no library quantises unless told by name: they are no linear layers, or tiny ones whose result
 * decides where a token goes. */
static bool stays_plain(const char *module) {
    static const char *const leaves[] = {"embed_tokens", "embed_tokens_per_layer", "conv1d", "gate",
                                         "router",       "shared_expert_gate"};
    const char *dot = strrchr(module, '.'), *leaf = dot ? dot + 1 : module;
    if (strstr(leaf, "norm") || has_components(module, "router.proj", strlen("router.proj")))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(leaves); i++)
        if (strcmp(leaf, leaves[i]) == 0)
            return true;
    return false;
}

struct quant_storage quant_of(const struct quant_spec *spec, const char *module) {
    static const struct quant_storage plain = {.scheme = QUANT_NONE};
    if (!spec)
        return plain;
    for (size_t i = 0; i < spec->n_excluded; i++)
        if (pattern_covers(&spec->excluded[i], module))
            return plain;
    const struct rule *best = NULL; // the longest name, else the first that matches
    for (size_t i = 0; i < spec->n_rules; i++) {
        const struct rule *r = &spec->rules[i];
        if ((!best || (!best->modules.regex && !r->modules.regex && r->modules.len > best->modules.len)) &&
            rule_covers(r, module))
            best = r;
    }
    if (best)
        return best->storage;
    if (stays_plain(module) || (!spec->head_too && has_components(module, "lm_head", strlen("lm_head"))))
        return plain;
    if (spec->experts_only && !has_components(module, "experts", strlen("experts")))
        return plain;
    return spec->linear;
}

const char *quant_name(const struct quant_spec *spec) { return spec ? spec->name : "none"; }

static bool scheme_is_readable(const struct quant_spec *spec, const struct quant_storage *s) {
    switch (s->scheme) {
    case QUANT_NONE:
    case QUANT_FP8_TENSOR:
    case QUANT_FP8_CHANNEL:
    case QUANT_FP8_BLOCK:
    case QUANT_INT8_CHANNEL:
    case QUANT_NVFP4: return true;
    case QUANT_INT4_GROUP:
    case QUANT_GPTQ:
    case QUANT_AWQ: return 32 % s->bits == 0;
    case QUANT_MXFP4: return spec->experts_only || s->compressed_tensors;
    case QUANT_INT8_BNB: return false;
    }
    return false;
}

bool quant_is_readable(const struct quant_spec *spec) {
    bool readable = !spec || scheme_is_readable(spec, &spec->linear);
    for (size_t i = 0; spec && i < spec->n_rules; i++)
        readable = readable && scheme_is_readable(spec, &spec->rules[i].storage);
    return readable;
}

/* ---- reading patterns ---- */

static void *regex_alloc(size_t n, void *arena) { return arena_alloc(arena, n); }
static void regex_free(void *ptr, void *arena) { (void)ptr, (void)arena; } // dies with the arena

static enum status compile_regex(struct reader *r, const char *text, pcre2_code **out) {
    if (++r->n_regexes > MAX_REGEXES)
        return fail(r->err, ERR_LIMIT, "%s: more than %d regular expressions", r->where, MAX_REGEXES);
    pcre2_general_context *general = pcre2_general_context_create(regex_alloc, regex_free, r->arena);
    pcre2_compile_context *context = pcre2_compile_context_create(general);
    int code;
    PCRE2_SIZE offset;
    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                         context);
    if (*out)
        return OK;
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(code, message, sizeof message);
    return fail(r->err, ERR_FORMAT, "%s: \"re:%s\" is no regular expression: %s at %zu", r->where, text,
                (char *)message, (size_t)offset);
}

static enum status read_pattern(struct reader *r, const json_t *value, const char *key, struct pattern *out) {
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value) || !text[0])
        return fail(r->err, ERR_FORMAT, "%s: an entry of \"%s\" is %s, it must be the name of a module", r->where, key,
                    text ? "empty or has a NUL character" : jv_type_name(value));
    *out = (struct pattern){0};
    if (strncmp(text, "re:", 3) == 0)
        return compile_regex(r, text + 3, &out->regex);
    out->text = arena_strdup(r->arena, str_of(text));
    out->len = strlen(text);
    out->glob = strpbrk(text, "*?") != NULL;
    return OK;
}

// Adds the list of names at `key`, where there is one, to the excluded.
static enum status read_excluded(struct reader *r, const char *key) {
    json_t *list, *value;
    TRY(jv_array_or_null(r->config, r->where, key, &list, r->err));
    size_t n = json_array_size(list), i;
    if (n == 0)
        return OK;
    if (n > MAX_PATTERNS)
        return fail(r->err, ERR_LIMIT, "%s: \"%s\" has more than %d entries", r->where, key, MAX_PATTERNS);
    struct pattern *all = arena_calloc(r->arena, r->spec->n_excluded + n, sizeof *all);
    if (r->spec->n_excluded)
        memcpy(all, r->spec->excluded, r->spec->n_excluded * sizeof *all);
    r->spec->excluded = all;
    json_array_foreach(list, i, value) {
        TRY(read_pattern(r, value, key, &all[r->spec->n_excluded]));
        r->spec->n_excluded++;
    }
    return OK;
}

static enum status unsupported(const struct reader *r, const char *what, const char *value) {
    return fail(r->err, ERR_UNSUPPORTED, "%s: %s \"%s\" is not supported", r->where, what, value);
}

/* ---- fp8 of DeepSeek and transformers ---- */

static enum status read_pair(const struct reader *r, const json_t *obj, const char *key, int *rows, int *cols) {
    const json_t *pair = json_object_get(obj, key), *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(a) || !json_is_integer(b) || json_integer_value(a) < 1 ||
        json_integer_value(b) < 1 || json_integer_value(a) > 1 << 20 || json_integer_value(b) > 1 << 20)
        return fail(r->err, ERR_FORMAT, "%s: \"%s\" is not a pair of block sizes", r->where, key);
    *rows = (int)json_integer_value(a);
    *cols = (int)json_integer_value(b);
    return OK;
}

static enum status parse_fp8(struct reader *r) {
    const char *format;
    TRY(jv_string_or(r->config, r->where, "fmt", "e4m3", &format, r->err));
    if (strcmp(format, "e4m3") != 0)
        return unsupported(r, "fp8 \"fmt\"", format);
    struct quant_storage *s = &r->spec->linear;
    s->bits = 8;
    s->scheme = QUANT_FP8_TENSOR;
    r->spec->name = "fp8 per tensor";
    const json_t *block = json_object_get(r->config, "weight_block_size");
    if (block && !json_is_null(block)) {
        TRY(read_pair(r, r->config, "weight_block_size", &s->block_rows, &s->block_cols));
        s->scheme = QUANT_FP8_BLOCK;
        r->spec->name = arena_printf(r->arena, "fp8 blocks %dx%d", s->block_rows, s->block_cols);
    }
    TRY(read_excluded(r, "ignored_layers"));
    return read_excluded(r, "modules_to_not_convert");
}

static enum status parse_fbgemm_fp8(struct reader *r) {
    r->spec->linear = (struct quant_storage){.scheme = QUANT_FP8_CHANNEL, .bits = 8};
    r->spec->name = "fp8 per channel";
    return read_excluded(r, "modules_to_not_convert");
}

/* ---- GPTQ, AWQ, bitsandbytes, GPT-OSS ---- */

static enum status read_groups(struct reader *r, struct quant_storage *s) {
    int64_t bits, group;
    TRY(jv_int(r->config, r->where, "bits", 2, 8, &bits, r->err));
    TRY(jv_int_or(r->config, r->where, "group_size", -1, 1 << 20, -1, &group, r->err));
    s->bits = (int)bits;
    s->group_size = group > 0 ? (int)group : 0;
    s->weight_only = true;
    return OK;
}

static const char *groups_name(const struct reader *r, const char *method, const struct quant_storage *s) {
    if (s->group_size)
        return arena_printf(r->arena, "%s int%d, groups of %d", method, s->bits, s->group_size);
    return arena_printf(r->arena, "%s int%d, a scale a row", method, s->bits);
}

static enum status parse_gptq(struct reader *r) {
    struct quant_storage *s = &r->spec->linear;
    const char *format;
    bool marlin;
    TRY(read_groups(r, s));
    TRY(jv_string_or(r->config, r->where, "checkpoint_format", "gptq", &format, r->err));
    TRY(jv_bool_or(r->config, r->where, "is_marlin_format", false, &marlin, r->err));
    TRY(jv_bool_or(r->config, r->where, "lm_head", false, &r->spec->head_too, r->err));
    if (marlin || (strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0))
        return unsupported(r, "GPTQ \"checkpoint_format\"", marlin ? "marlin" : format);
    s->scheme = QUANT_GPTQ;
    s->asymmetric = true; // zero points are in the file whatever "sym" says
    s->gptq_v2 = strcmp(format, "gptq_v2") == 0;
    r->spec->name = groups_name(r, "gptq", s);
    return read_excluded(r, "modules_to_not_convert");
}

static enum status parse_awq(struct reader *r) {
    struct quant_storage *s = &r->spec->linear;
    const char *version;
    TRY(read_groups(r, s));
    TRY(jv_string_or(r->config, r->where, "version", "gemm", &version, r->err));
    if (s->bits != 4 || (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0))
        return unsupported(r, "AWQ \"version\"", version);
    s->scheme = QUANT_AWQ;
    s->asymmetric = true;
    r->spec->name = groups_name(r, "awq", s);
    return read_excluded(r, "modules_to_not_convert");
}

static enum status parse_bitsandbytes(struct reader *r) {
    bool eight;
    TRY(jv_bool_or(r->config, r->where, "load_in_8bit", false, &eight, r->err));
    if (!eight)
        return unsupported(r, "\"quant_method\"", "bitsandbytes in 4 bits");
    r->spec->linear = (struct quant_storage){.scheme = QUANT_INT8_BNB, .bits = 8, .weight_only = true};
    r->spec->name = "int8 rows (bitsandbytes)";
    return read_excluded(r, "llm_int8_skip_modules");
}

static enum status parse_mxfp4(struct reader *r) {
    r->spec->linear = (struct quant_storage){.scheme = QUANT_MXFP4, .bits = 4, .group_size = 32, .weight_only = true};
    r->spec->experts_only = true;
    r->spec->name = "mxfp4 experts";
    return read_excluded(r, "modules_to_not_convert");
}

/* ---- compressed-tensors ---- */

static enum status ct_float(struct reader *r, const json_t *weights, int64_t bits, const char *strategy, int64_t group,
                            struct quant_storage *s) {
    if (bits == 4) {
        bool mx = group == 32;
        if (!mx && group != 16)
            return unsupported(r, "4-bit float weights with \"strategy\"", strategy);
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
        return read_pair(r, weights, "block_structure", &s->block_rows, &s->block_cols);
    } else {
        return unsupported(r, "8-bit float weights with \"strategy\"", strategy);
    }
    return OK;
}

static enum status ct_int(struct reader *r, const char *format, int64_t bits, const char *strategy, int64_t group,
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
        return unsupported(r, "int weights with \"strategy\"", strategy);
    s->scheme = QUANT_INT8_CHANNEL;
    return OK;
}

static enum status ct_storage(struct reader *r, const json_t *group, const char *default_format,
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
    return unsupported(r, "weights of \"type\"", type);
}

static const char *storage_name(const struct reader *r, const struct quant_storage *s) {
    switch (s->scheme) {
    case QUANT_NONE: return "none";
    case QUANT_FP8_TENSOR: return "fp8 per tensor";
    case QUANT_FP8_CHANNEL: return "fp8 per channel";
    case QUANT_FP8_BLOCK: return arena_printf(r->arena, "fp8 blocks %dx%d", s->block_rows, s->block_cols);
    case QUANT_INT8_CHANNEL: return "int8 per channel";
    case QUANT_INT8_BNB: return "int8 rows";
    case QUANT_INT4_GROUP: return groups_name(r, "packed", s);
    case QUANT_GPTQ: return groups_name(r, "gptq", s);
    case QUANT_AWQ: return groups_name(r, "awq", s);
    case QUANT_MXFP4: return "mxfp4";
    case QUANT_NVFP4: return s->weight_only ? "nvfp4 weights" : "nvfp4";
    }
    return "none";
}

// Adds the group's targets as rules; "Linear" sets what all other linear layers are.
static enum status ct_targets(struct reader *r, const json_t *group, const struct quant_storage *s) {
    json_t *targets, *value;
    size_t i;
    TRY(jv_array_or_null(group, r->where, "targets", &targets, r->err));
    if (json_array_size(targets) > MAX_PATTERNS)
        return fail(r->err, ERR_LIMIT, "%s: \"targets\" has more than %d entries", r->where, MAX_PATTERNS);
    struct rule *all = arena_calloc(r->arena, r->spec->n_rules + json_array_size(targets) + 1, sizeof *all);
    if (r->spec->n_rules)
        memcpy(all, r->spec->rules, r->spec->n_rules * sizeof *all);
    r->spec->rules = all;
    json_array_foreach(targets, i, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "Linear") == 0) {
            r->spec->linear = *s;
            continue;
        }
        TRY(read_pattern(r, value, "targets", &all[r->spec->n_rules].modules));
        all[r->spec->n_rules++].storage = *s;
    }
    return OK;
}

static bool is_for_activations(const json_t *group) {
    return !json_is_object(json_object_get(group, "weights")) &&
           (json_is_object(json_object_get(group, "input_activations")) ||
            json_is_object(json_object_get(group, "output_activations")));
}

static enum status parse_compressed_tensors(struct reader *r) {
    json_t *groups, *group;
    const char *key, *format;
    TRY(jv_string_or(r->config, r->where, "format", "", &format, r->err));
    if (strncmp(format, "sparse", 6) == 0 || strncmp(format, "marlin", 6) == 0)
        return unsupported(r, "compressed-tensors \"format\"", format);
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
        buf_printf(&name, "%s%s", name.len ? " and " : "", storage_name(r, &s));
    }
    struct str all = name.len ? buf_view(&name) : STR("none");
    r->spec->name = arena_printf(r->arena, "%.*s (compressed-tensors)", STR_ARG(all));
    buf_release(&name);
    TRY(st);
    return read_excluded(r, "ignore");
}

/* ---- modelopt ---- */

static enum status modelopt_storage(const struct reader *r, const json_t *obj, const char *algo,
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
    return unsupported(r, "\"quant_algo\"", algo);
}

static enum status modelopt_layers(struct reader *r) {
    json_t *layers, *layer;
    const char *module, *algo;
    bool used[QUANT_NVFP4 + 1] = {false};
    TRY(jv_object_or_null(r->config, r->where, "quantized_layers", &layers, r->err));
    if (json_object_size(layers) == 0 || json_object_size(layers) > MAX_PATTERNS)
        return fail(r->err, ERR_FORMAT, "%s: \"quantized_layers\" must name 1 to %d modules", r->where, MAX_PATTERNS);
    r->spec->rules = arena_calloc(r->arena, json_object_size(layers), sizeof *r->spec->rules);
    struct quant_storage first = {0}, other = {0};
    json_object_foreach(layers, module, layer) {
        struct rule *rule = &r->spec->rules[r->spec->n_rules++];
        TRY(jv_string(layer, r->where, "quant_algo", &algo, r->err));
        TRY(modelopt_storage(r, layer, algo, &rule->storage));
        rule->modules = (struct pattern){.text = arena_strdup(r->arena, str_of(module)),
                                         .len = strlen(module),
                                         .glob = strpbrk(module, "*?") != NULL};
        if (!used[rule->storage.scheme])
            *(first.scheme ? &other : &first) = rule->storage;
        used[rule->storage.scheme] = true;
    }
    r->spec->name =
        other.scheme ? arena_printf(r->arena, "%s and %s (modelopt)", storage_name(r, &first), storage_name(r, &other))
                     : arena_printf(r->arena, "%s (modelopt)", storage_name(r, &first));
    return OK;
}

static enum status parse_modelopt(struct reader *r) {
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
        r->spec->name = arena_printf(r->arena, "%s (modelopt)", storage_name(r, &r->spec->linear));
    }
    TRY(read_excluded(r, "exclude_modules"));
    return read_excluded(r, "ignore");
}

/* ---- choosing ---- */

static const struct {
    const char *method;
    enum status (*parse)(struct reader *r);
} methods[] = {
    {"fp8", parse_fp8},
    {"fbgemm_fp8", parse_fbgemm_fp8},
    {"compressed-tensors", parse_compressed_tensors},
    {"modelopt", parse_modelopt},
    {"modelopt_fp4", parse_modelopt},
    {"gptq", parse_gptq},
    {"awq", parse_awq},
    {"bitsandbytes", parse_bitsandbytes},
    {"mxfp4", parse_mxfp4},
};

enum status quant_spec_parse(struct arena *arena, const json_t *config, const char *where, struct quant_spec **out,
                             struct error *err) {
    struct reader r = {.arena = arena, .config = config, .where = where, .err = err};
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
    return unsupported(&r, "\"quant_method\"", method);
}
