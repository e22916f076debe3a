/* adapter_config.c - see adapter_config.h. Settings: peft/tuners/lora/config.py; keys of patterns are matched as
 * peft/utils/other.py get_pattern_key does it: a regular expression for the end of a module's name, behind a dot. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/adapter_config.h"

#include "base/buf.h"
#include "base/json/json.h"

#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_RANK = 4096, MAX_ALPHA = 1000000, MAX_PATTERNS = 4096, MAX_CONFIG_BYTES = 4 << 20 };

struct name_pattern {
    char *text;
    pcre2_code *code;
    double value;
};

struct name_patterns {
    const char *setting;
    struct name_pattern *all; // [n], the first that matches counts
    size_t n;
};

struct adapter_config {
    char *path;
    double rank, alpha;
    bool by_root; // use_rslora
    struct name_patterns ranks, alphas;
};

/* ---- settings that are refused ---- */

static bool is_nothing(const json_t *v) {
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

/* Initialisations that change the base too: such an adapter, saved as it is, fits that base and not the one here. */
static enum status refuse_changed_base(const json_t *config, const char *path, struct error *err) {
    static const char *const begins[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    const char *how = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; how && i < ARRAY_LEN(begins); i++)
        if (strncasecmp(how, begins[i], strlen(begins[i])) == 0)
            return fail(
                err, ERR_UNSUPPORTED,
                "%s: \"init_lora_weights\" is \"%s\", which changes the base model's weights: the adapter has to "
                "be converted to a plain one when it is saved",
                path, how);
    return OK;
}

static enum status refuse_others(const json_t *config, const char *path, struct error *err) {
    static const char *const settings[] = {"use_dora",      "modules_to_save",         "target_parameters",
                                           "lora_bias",     "layer_replication",       "trainable_token_indices",
                                           "use_qalora",    "alora_invocation_tokens", "arrow_config",
                                           "fan_in_fan_out"};
    const char *type, *bias;
    TRY(jv_string_or(config, path, "peft_type", "LORA", &type, err));
    if (strcmp(type, "LORA") != 0)
        return fail(err, ERR_UNSUPPORTED, "%s: peft_type is \"%s\"; only LORA adapters are read", path, type);
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (!is_nothing(json_object_get(config, settings[i])))
            return fail(err, ERR_UNSUPPORTED, "%s: \"%s\" is set, which adapters cannot have here", path, settings[i]);
    TRY(jv_string_or(config, path, "bias", "none", &bias, err));
    if (strcmp(bias, "none") != 0)
        return fail(err, ERR_UNSUPPORTED, "%s: \"bias\" is \"%s\"; only \"none\" is possible here", path, bias);
    return refuse_changed_base(config, path, err);
}

/* ---- patterns ---- */

static pcre2_code *compiled(const char *key) {
    struct buf text = {0};
    int code;
    PCRE2_SIZE offset;
    buf_printf(&text, "(?:.*\\.)?(?:%s)$", key);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)text.ptr, text.len, PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    buf_release(&text);
    return re;
}

/* PCRE2's answer: not negative if it matches, PCRE2_ERROR_NOMATCH, or another error, as where it takes too long. */
static int match(const pcre2_code *re, const char *name) {
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(context, 100000);
    int rc = pcre2_match(re, (PCRE2_SPTR)name, strlen(name), 0, PCRE2_ANCHORED, data, context);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return rc;
}

/* *value stays where no pattern matches. */
static enum status find_value(const struct adapter_config *c, const struct name_patterns *p, const char *module,
                              double *value, struct error *err) {
    for (size_t i = 0; i < p->n; i++) {
        int rc = match(p->all[i].code, module);
        if (rc >= 0) {
            *value = p->all[i].value;
            return OK;
        }
        PCRE2_UCHAR why[128] = "";
        if (rc == PCRE2_ERROR_NOMATCH)
            continue;
        pcre2_get_error_message(rc, why, sizeof why);
        return fail(err, ERR_LIMIT, "%s: \"%s\" of \"%s\" cannot be matched with module %s: %s", c->path, p->setting,
                    p->all[i].text, module, (const char *)why);
    }
    return OK;
}

static enum status read_patterns(const json_t *config, const char *path, const char *name, int max,
                                 struct name_patterns *out, struct error *err) {
    json_t *patterns;
    TRY(jv_object_or_null(config, path, name, &patterns, err));
    size_t n = patterns ? json_object_size(patterns) : 0;
    if (n > MAX_PATTERNS)
        return fail(err, ERR_LIMIT, "%s: \"%s\" has more than %d entries", path, name, MAX_PATTERNS);
    out->setting = name;
    out->all = xcalloc(n + 1, sizeof *out->all);
    const char *key;
    json_t *value;
    json_object_foreach(patterns, key, value) {
        struct name_pattern *p = &out->all[out->n];
        p->value = json_number_value(value);
        if (!(p->value > 0) || p->value > max)
            return fail(err, ERR_FORMAT, "%s: \"%s\" of \"%s\" is no positive number up to %d", path, name, key, max);
        p->code = compiled(key);
        if (!p->code)
            return fail(err, ERR_FORMAT, "%s: \"%s\" of \"%s\" is no regular expression", path, name, key);
        p->text = xstrdup(key);
        out->n++;
    }
    return OK;
}

static void patterns_free(struct name_patterns *p) {
    for (size_t i = 0; i < p->n; i++) {
        pcre2_code_free(p->all[i].code);
        free(p->all[i].text);
    }
    free(p->all);
}

/* ---- the file ---- */

static enum status read_all(struct adapter_config *c, const json_t *config, const char *path, struct error *err) {
    int64_t rank;
    if (!json_is_object(config))
        return fail(err, ERR_FORMAT, "%s: is %s, it must be an object", path, jv_type_name(config));
    TRY(refuse_others(config, path, err));
    TRY(jv_int_or(config, path, "r", 1, MAX_RANK, 8, &rank, err));
    TRY(jv_real_or(config, path, "lora_alpha", 8, &c->alpha, err));
    TRY(jv_bool_or(config, path, "use_rslora", false, &c->by_root, err));
    c->rank = (double)rank;
    TRY(read_patterns(config, path, "rank_pattern", MAX_RANK, &c->ranks, err));
    return read_patterns(config, path, "alpha_pattern", MAX_ALPHA, &c->alphas, err);
}

enum status adapter_config_read(const json_t *config, const char *path, struct adapter_config **out,
                                struct error *err) {
    struct adapter_config *c = xcalloc(1, sizeof *c);
    c->path = xstrdup(path);
    enum status st = read_all(c, config, path, err);
    if (st != OK) {
        adapter_config_free(c);
        c = NULL;
    }
    *out = c;
    return st;
}

enum status adapter_config_open(const char *path, struct adapter_config **out, struct error *err) {
    json_t *config;
    *out = NULL;
    TRY(jv_load(path, MAX_CONFIG_BYTES, 0, &config, err));
    enum status st = adapter_config_read(config, path, out, err);
    json_decref(config);
    return st;
}

void adapter_config_free(struct adapter_config *c) {
    if (!c)
        return;
    patterns_free(&c->ranks);
    patterns_free(&c->alphas);
    free(c->path);
    free(c);
}

enum status adapter_config_rank(const struct adapter_config *c, const char *module, int64_t *rank, struct error *err) {
    double value = c->rank;
    TRY(find_value(c, &c->ranks, module, &value, err));
    *rank = (int64_t)value;
    return OK;
}

enum status adapter_config_scale(const struct adapter_config *c, const char *module, int64_t rank, double *scale,
                                 struct error *err) {
    double alpha = c->alpha;
    TRY(find_value(c, &c->alphas, module, &alpha, err));
    *scale = alpha / (c->by_root ? sqrt((double)rank) : (double)rank);
    return OK;
}
