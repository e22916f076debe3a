/* quant_internal.h - what the readers of quantisation settings share; see quant.h.
 *
 * Every method comes down to the same three things: patterns of modules that stay plain, rules that give the
 * modules they match a storage, and one storage for all other linear layers. Exclusion wins over rules. */
#pragma once

#include "model/weights/quant.h"

enum { MAX_PATTERNS = 1 << 16 };

/* A name like "model.layers.3.self_attn", with '*' and '?' for any bytes, or a regular expression. */
struct quant_pattern {
    const char *text;
    size_t len;
    bool glob;
    struct pcre2_real_code_8 *regex; // a pcre2_code; NULL: not one
};

struct quant_rule {
    struct quant_pattern modules;
    struct quant_storage storage;
};

struct quant_spec {
    const char *name;
    struct quant_pattern *excluded; // [n_excluded]
    struct quant_rule *rules;       // [n_rules]
    size_t n_excluded, n_rules;
    struct quant_storage linear; // of linear layers that nothing else speaks of
    bool experts_only;           // `linear` is for expert matrices alone
    bool head_too;               // and reaches lm_head
};

/* What the functions that read one method share. */
struct quant_reader {
    struct arena *arena;
    const json_t *config;
    const char *where;
    struct quant_spec *spec;
    struct error *err;
    int n_regexes;
};

/* ---- modules by name: quant_modules.c ---- */

/* A name, a glob or "re:..." of the list `key`. */
enum status quant_read_pattern(struct quant_reader *r, const json_t *value, const char *key, struct quant_pattern *out);
/* Adds the list of names at `key`, where there is one, to the excluded. */
enum status quant_read_excluded(struct quant_reader *r, const char *key);

/* ---- what methods share: quant.c ---- */

enum status quant_unsupported(const struct quant_reader *r, const char *what, const char *value);
/* [rows, cols] of a block at obj[key]. */
enum status quant_read_pair(const struct quant_reader *r, const json_t *obj, const char *key, int *rows, int *cols);
/* "fp8 blocks 128x128", in the arena. */
const char *quant_storage_name(const struct quant_reader *r, const struct quant_storage *s);

/* ---- methods in files of their own; each fills r->spec, or sets it to NULL where nothing is quantised ---- */

enum status quant_parse_compressed(struct quant_reader *r);
enum status quant_parse_modelopt(struct quant_reader *r);
