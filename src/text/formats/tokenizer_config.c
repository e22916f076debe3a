/* tokenizer_config.c - reading tokenizer_config.json, special_tokens_map.json and added_tokens.json: what they add to
 * the tokenizer beside them. */
#include "text/formats/tokenizer_json.h"

enum { FILE_MAX_BYTES = 64 << 20 };

/* "<s>", or {"content": "<s>", ...}; null or missing is none. */
static enum status read_special(struct tokenizer *t, const json_t *v, const char *path, const char *key,
                                enum special_name name, struct error *err) {
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!v || json_is_null(v))
        return OK;
    if (!json_is_string(v))
        return fail(err, ERR_FORMAT, "%s: \"%s\" is %s, it must be a string or an object with \"content\"", path, key,
                    jv_type_name(v));
    free(t->special_text[name]);
    t->special_text[name] = xstrdup(json_string_value(v));
    return OK;
}

/* {"151643": {"content": "<|endoftext|>", ...}, ...} */
static enum status read_added(struct tokenizer *t, const json_t *config, const char *path, struct error *err) {
    json_t *tokens;
    TRY(jv_object_or_null(config, path, "added_tokens_decoder", &tokens, err));
    const char *key;
    json_t *v;
    json_object_foreach(tokens, key, v) {
        int64_t id = 0;
        const char *content;
        struct added_token flags;
        size_t n_digits = strspn(key, "0123456789");
        if (n_digits == 0 || n_digits > 10 || key[n_digits])
            return fail(err, ERR_FORMAT, "%s: \"%.60s\" in \"added_tokens_decoder\" is no token id", path, key);
        for (const char *p = key; *p; p++)
            id = id * 10 + (*p - '0');
        TRY(jv_string(v, path, "content", &content, err));
        TRY(added_token_read(v, path, &flags, err));
        TRY(tokenizer_add_token(t, str_of(content), id, flags, path, err));
    }
    return OK;
}

/* A special token that no list of added tokens has is one all the same: of the model's vocabulary, or with the next id,
 * as in transformers. What is no text is none. */
static enum status add_special(struct tokenizer *t, const json_t *v, const char *path, struct error *err) {
    const json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;
    struct str name = {json_string_value(text), json_string_length(text)};
    struct added_token flags = {0};
    if (!json_is_string(text))
        return OK;
    if (json_is_object(v))
        TRY(added_token_read(v, path, &flags, err));
    flags.special = true;
    int32_t known = tokenizer_find(t, name);
    return tokenizer_add_token(t, name, known >= 0 ? known : tokenizer_n_vocab(t), flags, path, err);
}

static const char *const EXTRAS[] = {"additional_special_tokens", "extra_special_tokens"};

/* The lists of a file; or its objects of names. */
static enum status add_extras(struct tokenizer *t, const json_t *file, const char *path, bool lists,
                              struct error *err) {
    for (size_t k = 0; k < ARRAY_LEN(EXTRAS); k++) {
        json_t *all = json_object_get(file, EXTRAS[k]), *v;
        const char *name;
        size_t i;
        if (lists)
            json_array_foreach(all, i, v) TRY(add_special(t, v, path, err));
        else
            json_object_foreach(all, name, v) TRY(add_special(t, v, path, err));
    }
    return OK;
}

/* tokenizer_config.json and special_tokens_map.json; NULL where there is none. Which one counts is as in transformers:
 * beside a config that lists its added tokens the map says nothing new, and before there were such it decided. */
struct beside {
    json_t *config, *map;
    const char *config_path, *map_path;
    bool map_decides;
};

static const json_t *beside_find(const struct beside *b, const char *key, const char **path) {
    const json_t *config = json_object_get(b->config, key), *map = json_object_get(b->map, key);
    bool in_config = config && !json_is_null(config), in_map = map && !json_is_null(map);
    bool from_map = in_map && (b->map_decides || !in_config);
    *path = from_map ? b->map_path : b->config_path;
    return from_map ? map : config;
}

/* Names of the model's own, which eot_token is to transformers. */
static const char *const OF_THE_MODEL[] = {"extra_special_tokens", "model_specific_special_tokens"};

static enum status read_names(struct tokenizer *t, const struct beside *b, struct error *err) {
    static const char *const keys[N_SPECIAL_NAMES] = {[SPECIAL_BOS] = "bos_token",
                                                      [SPECIAL_EOS] = "eos_token",
                                                      [SPECIAL_UNK] = "unk_token",
                                                      [SPECIAL_PAD] = "pad_token",
                                                      [SPECIAL_EOT] = "eot_token"};
    const char *path;
    for (enum special_name name = 0; name < N_SPECIAL_NAMES; name++) {
        const json_t *v = beside_find(b, keys[name], &path);
        for (size_t i = 0; !v && name == SPECIAL_EOT && i < ARRAY_LEN(OF_THE_MODEL); i++)
            v = json_object_get(json_object_get(b->config, OF_THE_MODEL[i]), keys[name]);
        TRY(read_special(t, v, path, keys[name], name, err));
    }
    return OK;
}

static const char *const NAMED[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

static bool is_named(const char *key) {
    for (size_t i = 0; i < ARRAY_LEN(NAMED); i++)
        if (strcmp(key, NAMED[i]) == 0)
            return true;
    return false;
}

/* Tokens that a file gives names of the model's own, such as image_token; those of the other file are done. */
static enum status add_own_names(struct tokenizer *t, const struct beside *b, json_t *file, const json_t *done,
                                 struct error *err) {
    const char *key, *path;
    json_t *v;
    json_object_foreach(file, key, v) {
        if (is_named(key) || !str_ends(str_of(key), STR("_token")) || json_object_get(done, key))
            continue;
        const json_t *value = beside_find(b, key, &path);
        TRY(add_special(t, value, path, err));
    }
    return OK;
}

/* In the order in which transformers gives them ids. */
static enum status add_specials(struct tokenizer *t, const struct beside *b, struct error *err) {
    const char *path;
    json_t *map = b->map_decides ? b->map : NULL, *v;
    for (size_t i = 0; i < ARRAY_LEN(NAMED); i++) {
        const json_t *value = beside_find(b, NAMED[i], &path);
        TRY(add_special(t, value, path, err));
    }
    TRY(add_own_names(t, b, b->config, NULL, err));
    TRY(add_own_names(t, b, map, b->config, err));
    json_object_foreach(json_object_get(b->config, "model_specific_special_tokens"), path, v)
        TRY(add_special(t, v, b->config_path, err));
    for (int lists = 0; lists < 2; lists++) {
        TRY(add_extras(t, b->config, b->config_path, lists, err));
        TRY(add_extras(t, map, b->map_path, lists, err));
    }
    return OK;
}

/* ---- added_tokens.json: {"<x>": 32000, ...}, where tokenizer_config.json has no list ----------------------------- */

struct old_token {
    const char *text;
    int64_t id;
};

static int by_id(const void *a, const void *b) {
    int64_t x = ((const struct old_token *)a)->id, y = ((const struct old_token *)b)->id;
    return x < y ? -1 : x > y;
}

static bool is_text(const json_t *v, const char *text) {
    const json_t *content = json_is_object(v) ? json_object_get(v, "content") : v;
    return json_is_string(content) && strcmp(json_string_value(content), text) == 0;
}

static bool calls_special(json_t *file, const char *text) {
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach(file, key, v) if (str_ends(str_of(key), STR("_token")) && is_text(v, text)) return true;
    for (size_t k = 0; k < ARRAY_LEN(EXTRAS); k++)
        json_array_foreach(json_object_get(file, EXTRAS[k]), i, v) if (is_text(v, text)) return true;
    return false;
}

static enum status add_old_token(struct tokenizer *t, const struct beside *b, struct old_token old, const char *path,
                                 struct error *err) {
    bool special = calls_special(b->config, old.text) || calls_special(b->map, old.text);
    int32_t known = tokenizer_find(t, str_of(old.text)), next = tokenizer_n_vocab(t);
    struct added_token flags = {.special = special, .normalized = !special};
    // an id that another token has is not insisted on
    return tokenizer_add_token(t, str_of(old.text), known >= 0 ? known : MAX(old.id, next), flags, path, err);
}

static enum status add_old_tokens(struct tokenizer *t, const struct beside *b, json_t *list, const char *path,
                                  struct error *err) {
    size_t n = 0;
    struct old_token *all = xcalloc(json_object_size(list) + 1, sizeof *all);
    const char *text;
    json_t *v;
    enum status st = OK;
    json_object_foreach(list, text, v) {
        all[n] = (struct old_token){text, -1};
        if (!jv_whole(v, &all[n].id) || all[n].id < 0 || all[n].id >= TOKENIZER_MAX_TOKENS)
            st = fail(err, ERR_FORMAT, "%s: the id of \"%.60s\" is no token id", path, text);
        n++;
    }
    qsort(all, n, sizeof *all, by_id);
    for (size_t i = 0; i < n && st == OK; i++)
        st = add_old_token(t, b, all[i], path, err);
    free(all);
    return st;
}

/* ---- what stands around a text ----------------------------------------------------------------------------------- */

static void push_special(const struct tokenizer *t, bool wanted, enum special_name name, struct token_ids *items) {
    int32_t id = tokenizer_special(t, name).id;
    if (wanted && id >= 0)
        token_ids_push(items, id);
}

/* Where tokenizer.json has no post-processor of its own, a file with one of the two switches decides alone what stands
 * around a text. transformers 4 let the switches decide for some classes of tokenizers; 5 asks tokenizer.json for all.
 */
static enum status read_switches(struct tokenizer *t, const json_t *config, const char *path, struct error *err) {
    bool add_bos, add_eos;
    TRY(jv_bool_or(config, path, "add_bos_token", false, &add_bos, err));
    TRY(jv_bool_or(config, path, "add_eos_token", false, &add_eos, err));
    if (t->has_postprocessor ||
        (!json_object_get(config, "add_bos_token") && !json_object_get(config, "add_eos_token")))
        return OK;
    struct token_ids items = {0};
    push_special(t, add_bos, SPECIAL_BOS, &items);
    token_ids_push(&items, TEMPLATE_BODY);
    push_special(t, add_eos, SPECIAL_EOS, &items);
    postprocessor_release(&t->post);
    postprocessor_take_template(&t->post, items);
    return OK;
}

static enum status load_object(const char *path, json_t **out, struct error *err) {
    *out = NULL;
    TRY(jv_load(path, FILE_MAX_BYTES, JV_ALLOW_DUPLICATES | JV_PYTHON, out, err));
    if (json_is_object(*out))
        return OK;
    fail(err, ERR_FORMAT, "%s: the file is %s, it must be an object", path, jv_type_name(*out));
    json_decref(*out);
    *out = NULL;
    return ERR_FORMAT;
}

static enum status read_loaded(struct tokenizer *t, const struct beside *b, json_t *old, const char *old_path,
                               struct error *err) {
    TRY(read_names(t, b, err));
    TRY(read_added(t, b->config, b->config_path, err));
    if (b->map_decides)
        TRY(add_old_tokens(t, b, old, old_path, err));
    TRY(add_specials(t, b, err));
    return read_switches(t, b->config, b->config_path, err);
}

enum status tokenizer_read_beside(struct tokenizer *t, const char *config_path, const char *map_path,
                                  const char *old_path, struct error *err) {
    struct beside b = {.config_path = config_path, .map_path = map_path};
    json_t *old = NULL;
    enum status st = config_path ? load_object(config_path, &b.config, err) : OK;
    if (st == OK && map_path)
        st = load_object(map_path, &b.map, err);
    if (st == OK && old_path)
        st = load_object(old_path, &old, err);
    b.map_decides = !json_object_get(b.config, "added_tokens_decoder");
    if (st == OK)
        st = read_loaded(t, &b, old, old_path, err);
    json_decref(b.config);
    json_decref(b.map);
    json_decref(old);
    return st;
}
