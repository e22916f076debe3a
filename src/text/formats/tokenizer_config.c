/* tokenizer_config.c - reading a tokenizer_config.json: what it adds to the tokenizer beside it. */
#include "text/formats/tokenizer_json.h"

enum { FILE_MAX_BYTES = 64 << 20 };

/* "<s>", or {"content": "<s>", ...}; null or missing is none. */
static enum status read_special(struct tokenizer *t, const json_t *config, const char *path, const char *key,
                                enum special_name name, struct error *err) {
    const json_t *v = json_object_get(config, key);
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

/* A special token that no list of added tokens has gets the next id, as in transformers. What is no text is none. */
static enum status add_special(struct tokenizer *t, const json_t *v, const char *path, struct error *err) {
    const json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;
    struct str name = {json_string_value(text), json_string_length(text)};
    struct added_token flags = {0};
    if (!json_is_string(text) || tokenizer_find(t, name) >= 0)
        return OK;
    if (json_is_object(v))
        TRY(added_token_read(v, path, &flags, err));
    flags.special = true;
    return tokenizer_add_token(t, name, tokenizer_n_vocab(t), flags, path, err);
}

/* A list, or in extra_special_tokens an object of names. */
static enum status add_specials(struct tokenizer *t, const json_t *config, const char *path, struct error *err) {
    static const char *const keys[] = {"additional_special_tokens", "extra_special_tokens"};
    for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
        json_t *all = json_object_get(config, keys[k]), *v;
        const char *name;
        size_t i;
        json_array_foreach(all, i, v) TRY(add_special(t, v, path, err));
        json_object_foreach(all, name, v) TRY(add_special(t, v, path, err));
    }
    return OK;
}

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

static enum status read_names(struct tokenizer *t, const json_t *config, const char *path, bool only_missing,
                              struct error *err) {
    static const char *const keys[N_SPECIAL_NAMES] = {[SPECIAL_BOS] = "bos_token",
                                                      [SPECIAL_EOS] = "eos_token",
                                                      [SPECIAL_UNK] = "unk_token",
                                                      [SPECIAL_PAD] = "pad_token",
                                                      [SPECIAL_EOT] = "eot_token"};
    for (enum special_name name = 0; name < N_SPECIAL_NAMES; name++)
        if (!only_missing || !t->special_text[name])
            TRY(read_special(t, config, path, keys[name], name, err));
    return OK;
}

static enum status load_object(const char *path, json_t **out, struct error *err) {
    TRY(jv_load(path, FILE_MAX_BYTES, JV_ALLOW_DUPLICATES | JV_PYTHON, out, err));
    if (json_is_object(*out))
        return OK;
    fail(err, ERR_FORMAT, "%s: the file is %s, it must be an object", path, jv_type_name(*out));
    json_decref(*out);
    return ERR_FORMAT;
}

enum status tokenizer_read_config(struct tokenizer *t, const char *path, struct error *err) {
    json_t *config;
    TRY(load_object(path, &config, err));
    enum status st = read_names(t, config, path, false, err);
    if (st == OK)
        st = read_added(t, config, path, err);
    if (st == OK)
        st = add_specials(t, config, path, err);
    if (st == OK)
        st = read_switches(t, config, path, err);
    json_decref(config);
    return st;
}

enum status tokenizer_read_special_map(struct tokenizer *t, const char *path, struct error *err) {
    json_t *map;
    TRY(load_object(path, &map, err));
    enum status st = read_names(t, map, path, true, err);
    if (st == OK)
        st = add_specials(t, map, path, err);
    json_decref(map);
    return st;
}
