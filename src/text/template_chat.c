/* template_chat.c - see template_chat.h. */
#include "text/template_chat.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/folder.h"

#include <stdlib.h>

enum { MAX_TEMPLATE_BYTES = 4 << 20, MAX_CONFIG_BYTES = 64 << 20, MAX_TOKENS = 32 };

struct chat_template {
    struct arena arena;
    struct template *usual, *with_tools; // with_tools may be NULL
    struct special_token {
        const char *name, *text;
    } tokens[MAX_TOKENS];
    size_t n_tokens;
};

// ---- special tokens ----

static bool is_token_name(const char *name) {
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_token") == 0;
}

static bool has_token(const struct chat_template *t, const char *name) {
    for (size_t i = 0; i < t->n_tokens; i++)
        if (strcmp(t->tokens[i].name, name) == 0)
            return true;
    return false;
}

/* Those of the first file that names one stay. */
static enum status take_tokens(struct chat_template *t, const json_t *config, const char *folder, struct error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)config, name, value) { // jansson's iterators are not const; nothing is changed
        const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (!is_token_name(name) || !json_is_string(text) || has_token(t, name))
            continue;
        if (t->n_tokens == MAX_TOKENS)
            return fail(err, ERR_LIMIT, "%s: more than %d special tokens have names in the tokenizer's files", folder, MAX_TOKENS);
        struct str s = {json_string_value(text), json_string_length(text)};
        t->tokens[t->n_tokens++] = (struct special_token){arena_strdup(&t->arena, str_of(name)), arena_strdup(&t->arena, s)};
    }
    return OK;
}

/* *out is NULL when the file is not there. */
static enum status load_if_there(const char *folder, const char *name, json_t **out, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    bool found;
    *out = NULL;
    TRY(folder_find(folder, name, path, &found, err));
    if (!found)
        return OK;
    TRY(jv_load(path, MAX_CONFIG_BYTES, JV_ALLOW_DUPLICATES, out, err));
    if (json_is_object(*out))
        return OK;
    json_decref(*out);
    *out = NULL;
    return fail(err, ERR_FORMAT, "%s: must be a JSON object", path);
}

static enum status read_special_tokens(struct chat_template *t, const json_t *tokenizer_config, const char *folder, struct error *err) {
    json_t *map;
    TRY(load_if_there(folder, "special_tokens_map.json", &map, err));
    enum status st = take_tokens(t, tokenizer_config, folder, err);
    if (st == OK)
        st = take_tokens(t, map, folder, err);
    json_decref(map);
    return st;
}

// ---- templates ----

static enum status parse_file(const char *path, struct template **out, struct error *err) {
    struct buf text = {0};
    TRY(file_read(path, MAX_TEMPLATE_BYTES, &text, err));
    enum status st = template_parse(buf_view(&text), path, out, err);
    buf_release(&text);
    return st;
}

static enum status parse_member(const json_t *value, const char *where, struct template **out, struct error *err) {
    if (!json_is_string(value))
        return fail(err, ERR_FORMAT, "%s: \"chat_template\" is %s, it must be a string", where, jv_type_name(value));
    if (json_string_length(value) > MAX_TEMPLATE_BYTES)
        return fail(err, ERR_LIMIT, "%s: \"chat_template\" is longer than %d bytes", where, MAX_TEMPLATE_BYTES);
    return template_parse((struct str){json_string_value(value), json_string_length(value)}, where, out, err);
}

/* A list of {"name", "template"}. */
static enum status parse_list(struct chat_template *t, const json_t *list, const char *where, struct error *err) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *member = json_array_get(list, i);
        const char *name;
        TRY(jv_string(member, where, "name", &name, err));
        struct template **place = strcmp(name, "default") == 0 ? &t->usual : strcmp(name, "tool_use") == 0 ? &t->with_tools : NULL;
        if (place && !*place)
            TRY(parse_member(json_object_get(member, "template"), where, place, err));
    }
    if (!t->usual)
        return fail(err, ERR_FORMAT, "%s: \"chat_template\" is a list without one named \"default\"", where);
    return OK;
}

static enum status parse_config(struct chat_template *t, const json_t *config, const char *where, struct error *err) {
    const json_t *value = json_object_get(config, "chat_template");
    return json_is_array(value) ? parse_list(t, value, where, err) : parse_member(value, where, &t->usual, err);
}

static bool has_template(const json_t *config) {
    const json_t *value = json_object_get(config, "chat_template");
    return value && !json_is_null(value);
}

static enum status parse_jinja_files(struct chat_template *t, const char *folder, const char *path, struct error *err) {
    char with_tools[FOLDER_PATH_BYTES];
    bool found;
    TRY(parse_file(path, &t->usual, err));
    TRY(folder_find(folder, "additional_chat_templates/tool_use.jinja", with_tools, &found, err));
    return found ? parse_file(with_tools, &t->with_tools, err) : OK;
}

static enum status find_templates(struct chat_template *t, const json_t *tokenizer_config, const char *folder, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    bool found;
    TRY(folder_find(folder, "chat_template.jinja", path, &found, err));
    if (found)
        return parse_jinja_files(t, folder, path, err);
    json_t *config;
    TRY(load_if_there(folder, "chat_template.json", &config, err));
    enum status st = OK;
    TRY(path_join(path, sizeof path, folder, config ? "chat_template.json" : "tokenizer_config.json", err));
    if (config || has_template(tokenizer_config))
        st = parse_config(t, config ? config : tokenizer_config, path, err);
    else
        st = fail(err, ERR_IO,
                  "%s: no chat template here: neither chat_template.jinja nor chat_template.json, and none in tokenizer_config.json",
                  folder);
    json_decref(config);
    return st;
}

static enum status open_folder(struct chat_template *t, const char *folder, struct error *err) {
    json_t *config;
    TRY(load_if_there(folder, "tokenizer_config.json", &config, err));
    enum status st = find_templates(t, config, folder, err);
    if (st == OK)
        st = read_special_tokens(t, config, folder, err);
    json_decref(config);
    return st;
}

enum status chat_template_open(const char *path, struct chat_template **out, struct error *err) {
    struct chat_template *t = xcalloc(1, sizeof *t);
    enum status st = dir_exists(path) ? open_folder(t, path, err) : parse_file(path, &t->usual, err);
    if (st != OK) {
        chat_template_free(t);
        t = NULL;
    }
    *out = t;
    return st;
}

bool chat_template_exists(const char *folder) {
    static const char *const files[] = {"chat_template.jinja", "chat_template.json"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (folder_has(folder, files[i]))
            return true;
    json_t *config = NULL;
    bool found = load_if_there(folder, "tokenizer_config.json", &config, NULL) == OK && has_template(config);
    json_decref(config);
    return found;
}

void chat_template_free(struct chat_template *t) {
    if (!t)
        return;
    template_free(t->usual);
    template_free(t->with_tools);
    arena_release(&t->arena);
    free(t);
}

// ---- rendering ----

static json_t *context_for(const struct chat_template *t, const json_t *request) {
    json_t *context = json_object();
    for (size_t i = 0; i < t->n_tokens; i++)
        json_object_set_new(context, t->tokens[i].name, json_string(t->tokens[i].text));
    json_object_set_new(context, "tools", json_null());
    json_object_set_new(context, "documents", json_null());
    json_object_set_new(context, "add_generation_prompt", json_true());
    json_object_update(context, (json_t *)request); // not const, since it takes references
    return context;
}

enum status chat_template_render(const struct chat_template *t, const json_t *request, const struct template_options *options,
                                 struct buf *out, struct error *err) {
    if (!json_is_object(request))
        return fail(err, ERR_ARG, "a request must be a JSON object with \"messages\", this is %s", jv_type_name(request));
    bool brings_tools = json_object_get(request, "tools") && !json_is_null(json_object_get(request, "tools"));
    json_t *context = context_for(t, request);
    enum status st = template_render(brings_tools && t->with_tools ? t->with_tools : t->usual, context, options, out, err);
    json_decref(context);
    return st;
}
