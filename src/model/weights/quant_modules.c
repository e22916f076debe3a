/* quant_modules.c - which modules a quantisation method means: names, globs, regular expressions, and how the
 * module of a tensor is stored. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/weights/quant_internal.h"

#include <pcre2.h>

enum { MAX_REGEXES = 64 };

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
static bool pattern_covers(const struct quant_pattern *p, const char *module) {
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

static bool rule_covers(const struct quant_rule *r, const char *module) {
    const struct quant_pattern *p = &r->modules;
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
    const struct quant_rule *best = NULL; // the longest name, else the first that matches
    for (size_t i = 0; i < spec->n_rules; i++) {
        const struct quant_rule *r = &spec->rules[i];
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

/* ---- reading ---- */

static void *regex_alloc(size_t n, void *arena) { return arena_alloc(arena, n); }
static void regex_free(void *ptr, void *arena) { (void)ptr, (void)arena; } // dies with the arena

static enum status compile_regex(struct quant_reader *r, const char *text, pcre2_code **out) {
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

enum status quant_read_pattern(struct quant_reader *r, const json_t *value, const char *key,
                               struct quant_pattern *out) {
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value) || !text[0])
        return fail(r->err, ERR_FORMAT, "%s: an entry of \"%s\" is %s, it must be the name of a module", r->where, key,
                    text ? "empty or has a NUL character" : jv_type_name(value));
    *out = (struct quant_pattern){0};
    if (strncmp(text, "re:", 3) == 0)
        return compile_regex(r, text + 3, &out->regex);
    out->text = arena_strdup(r->arena, str_of(text));
    out->len = strlen(text);
    out->glob = strpbrk(text, "*?") != NULL;
    return OK;
}

enum status quant_read_excluded(struct quant_reader *r, const char *key) {
    json_t *list, *value;
    TRY(jv_array_or_null(r->config, r->where, key, &list, r->err));
    size_t n = json_array_size(list), i;
    if (n == 0)
        return OK;
    if (n > MAX_PATTERNS)
        return fail(r->err, ERR_LIMIT, "%s: \"%s\" has more than %d entries", r->where, key, MAX_PATTERNS);
    struct quant_pattern *all = arena_calloc(r->arena, r->spec->n_excluded + n, sizeof *all);
    if (r->spec->n_excluded)
        memcpy(all, r->spec->excluded, r->spec->n_excluded * sizeof *all);
    r->spec->excluded = all;
    json_array_foreach(list, i, value) {
        TRY(quant_read_pattern(r, value, key, &all[r->spec->n_excluded]));
        r->spec->n_excluded++;
    }
    return OK;
}
