/* template_chat.c - see template_chat.h. */
#include "text/chat/template_chat.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/gguf/gguf.h"
#include "base/gguf/gguf_find.h"
#include "text/chat/chat_messages.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TEMPLATE_BYTES = 4 << 20, MAX_CONFIG_BYTES = 64 << 20, MAX_TOKENS = 32, MAX_TEMPLATES = 16 };

struct chat_template {
    struct arena arena; // of names and sources
    struct chat_variant variants[MAX_TEMPLATES];
    size_t n_variants;
    json_t *tokens;   // by name, the special ones
    json_t *response; // tokenizer_config.json's "response_template"; NULL
    bool content_is_forced;
    enum chat_content forced_content;
};

// ---- special tokens ----

static bool is_token_name(const char *name) {
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_token") == 0;
}

/* Those of the first file that names one stay. */
static enum status take_tokens(struct chat_template *t, const json_t *named, bool any_name, const char *folder,
                               struct error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)named, name, value) { // jansson's iterators are not const; nothing is changed
        json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (!(any_name || is_token_name(name)) || !json_is_string(text) || json_object_get(t->tokens, name))
            continue;
        if (json_object_size(t->tokens) == MAX_TOKENS)
            return fail(err, ERR_LIMIT, "%s: more than %d special tokens have names in the tokenizer's files", folder,
                        MAX_TOKENS);
        json_object_set(t->tokens, name, text);
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
    TRY(jv_load(path, MAX_CONFIG_BYTES, JV_ALLOW_DUPLICATES | JV_PYTHON, out, err));
    if (json_is_object(*out))
        return OK;
    json_decref(*out);
    *out = NULL;
    return fail(err, ERR_FORMAT, "%s: must be a JSON object", path);
}

static enum status read_special_tokens(struct chat_template *t, const json_t *tokenizer_config, const char *folder,
                                       struct error *err) {
    static const char *const of_the_model[] = {"extra_special_tokens", "model_specific_special_tokens"};
    json_t *map;
    TRY(load_if_there(folder, "special_tokens_map.json", &map, err));
    enum status st = OK;
    if (!json_object_get(tokenizer_config, "added_tokens_decoder")) // then transformers lets the map decide
        st = take_tokens(t, map, false, folder, err);
    if (st == OK)
        st = take_tokens(t, tokenizer_config, false, folder, err);
    for (size_t i = 0; i < ARRAY_LEN(of_the_model) && st == OK; i++)
        st = take_tokens(t, json_object_get(tokenizer_config, of_the_model[i]), true, folder, err);
    if (st == OK)
        st = take_tokens(t, map, false, folder, err);
    json_decref(map);
    return st;
}

// ---- templates ----

static struct chat_variant *find_variant(struct chat_template *t, const char *name) {
    for (size_t i = 0; i < t->n_variants; i++)
        if (strcmp(t->variants[i].name, name) == 0)
            return &t->variants[i];
    return NULL;
}

static bool is_used_unasked(const char *name) { return strcmp(name, "default") == 0 || strcmp(name, "tool_use") == 0; }

/* A later one of the same name takes its place. Faults of one that nobody may ever ask for are told to who asks. */
static enum status add_template(struct chat_template *t, const char *name, struct str source, const char *where,
                                struct error *err) {
    struct template *parsed;
    struct chat_variant *v = find_variant(t, name);
    if (source.len > MAX_TEMPLATE_BYTES)
        return fail(err, ERR_LIMIT, "%s: a chat template is longer than %d bytes", where, MAX_TEMPLATE_BYTES);
    if (!v && t->n_variants == MAX_TEMPLATES)
        return fail(err, ERR_LIMIT, "%s: there are more than %d chat templates", where, MAX_TEMPLATES);
    enum status st = template_parse(source, where, &parsed, err);
    if (st != OK && is_used_unasked(name))
        return st;
    if (v)
        template_free(v->template);
    else
        v = &t->variants[t->n_variants++];
    v->name = arena_strdup(&t->arena, str_of(name));
    v->source = (struct str){arena_strdup(&t->arena, source), source.len};
    v->template = parsed;
    return OK;
}

static enum status add_file(struct chat_template *t, const char *name, const char *path, struct error *err) {
    struct buf text = {0};
    TRY(file_read(path, MAX_TEMPLATE_BYTES, &text, err));
    enum status st = add_template(t, name, buf_view(&text), path, err);
    buf_release(&text);
    return st;
}

static enum status add_member(struct chat_template *t, const char *name, const json_t *value, const char *where,
                              struct error *err) {
    if (!json_is_string(value))
        return fail(err, ERR_FORMAT, "%s: \"chat_template\" is %s, it must be a string", where, jv_type_name(value));
    return add_template(t, name, (struct str){json_string_value(value), json_string_length(value)}, where, err);
}

/* A list of {"name", "template"}. */
static enum status add_list(struct chat_template *t, const json_t *list, const char *where, struct error *err) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *member = json_array_get(list, i);
        const char *name;
        TRY(jv_string(member, where, "name", &name, err));
        TRY(add_member(t, name, json_object_get(member, "template"), where, err));
    }
    return OK;
}

static enum status add_object(struct chat_template *t, const json_t *object, const char *where, struct error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) TRY(add_member(t, name, value, where, err));
    return OK;
}

static enum status parse_config(struct chat_template *t, const json_t *config, const char *where, struct error *err) {
    const json_t *value = json_object_get(config, "chat_template");
    TRY(json_is_array(value)    ? add_list(t, value, where, err)
        : json_is_object(value) ? add_object(t, value, where, err)
                                : add_member(t, "default", value, where, err));
    return t->n_variants > 0 ? OK : fail(err, ERR_FORMAT, "%s: \"chat_template\" is empty", where);
}

static bool has_template(const json_t *config) {
    const json_t *value = json_object_get(config, "chat_template");
    return json_is_array(value) || json_is_object(value) ? json_array_size(value) + json_object_size(value) > 0
                                                         : value && !json_is_null(value);
}

#define ADDITIONAL "additional_chat_templates"

static int is_jinja(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 6 && strcmp(e->d_name + n - 6, ".jinja") == 0 && e->d_name[0] != '.';
}

static enum status add_named_file(struct chat_template *t, const char *folder, const char *file, struct error *err) {
    char inner[512], path[FOLDER_PATH_BYTES], name[256];
    snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - strlen(".jinja")), file);
    snprintf(inner, sizeof inner, ADDITIONAL "/%s", file);
    TRY(folder_file(folder, inner, path, err));
    return add_file(t, name, path, err);
}

/* How many there are, in the order of their names; none where there is no such folder. */
static int find_named_files(const char *folder, struct dirent ***files) {
    char path[FOLDER_PATH_BYTES];
    struct error ignored;
    *files = NULL;
    if (path_join(path, sizeof path, folder, ADDITIONAL, &ignored) != OK)
        return 0;
    return MAX(scandir(path, files, is_jinja, alphasort), 0);
}

static bool has_named_files(const char *folder) {
    struct dirent **files;
    int n = find_named_files(folder, &files);
    for (int i = 0; i < n; i++)
        free(files[i]);
    free(files);
    return n > 0;
}

/* additional_chat_templates/NAME.jinja. */
static enum status add_named_files(struct chat_template *t, const char *folder, struct error *err) {
    struct dirent **files;
    int n = find_named_files(folder, &files);
    enum status st = OK;
    for (int i = 0; i < n; i++) {
        if (st == OK)
            st = add_named_file(t, folder, files[i]->d_name, err);
        free(files[i]);
    }
    free(files);
    return st;
}

static enum status read_config(struct chat_template *t, const json_t *tokenizer_config, const char *folder,
                               struct error *err) {
    char path[FOLDER_PATH_BYTES];
    json_t *config;
    TRY(load_if_there(folder, "chat_template.json", &config, err));
    enum status st = path_join(path, sizeof path, folder, config ? "chat_template.json" : "tokenizer_config.json", err);
    if (st == OK && (config || has_template(tokenizer_config)))
        st = parse_config(t, config ? config : tokenizer_config, path, err);
    json_decref(config);
    return st;
}

/* As transformers does: templates in files of their own hide those of the configs, all of them. */
static enum status find_templates(struct chat_template *t, const json_t *tokenizer_config, const char *folder,
                                  struct error *err) {
    char path[FOLDER_PATH_BYTES];
    bool found;
    TRY(folder_find(folder, "chat_template.jinja", path, &found, err));
    if (found)
        TRY(add_file(t, "default", path, err));
    TRY(add_named_files(t, folder, err));
    if (t->n_variants == 0)
        TRY(read_config(t, tokenizer_config, folder, err));
    if (t->n_variants > 0)
        return OK;
    return fail(err, ERR_IO,
                "%s: no chat template here: neither chat_template.jinja nor chat_template.json, and none in "
                "tokenizer_config.json",
                folder);
}

/* Templates and special tokens; only the tokens where templates are not wanted. */
static enum status read_folder(struct chat_template *t, const char *folder, bool templates, struct error *err) {
    json_t *config;
    TRY(load_if_there(folder, "tokenizer_config.json", &config, err));
    enum status st = templates ? find_templates(t, config, folder, err) : OK;
    t->response = json_incref(json_object_get(config, "response_template"));
    if (st == OK)
        st = read_special_tokens(t, config, folder, err);
    json_decref(config);
    return st;
}

// ---- GGUF ----

static struct str nth_string(const struct gguf_value *list, int64_t n) {
    const char *at = list->at;
    struct str s = STR("");
    for (int64_t i = 0; i <= n; i++)
        s = gguf_next_string(&at, list->end);
    return s;
}

/* Special tokens by their ids in the vocabulary. */
static enum status take_gguf_tokens(struct chat_template *t, const struct gguf *g, struct error *err) {
    static const char *const keys[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},     {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"}, {"tokenizer.ggml.padding_token_id", "pad_token"},
        {"tokenizer.ggml.cls_token_id", "cls_token"},     {"tokenizer.ggml.seperator_token_id", "sep_token"},
        {"tokenizer.ggml.mask_token_id", "mask_token"}};
    const struct gguf_value *list;
    TRY(gguf_strings(g, "tokenizer.ggml.tokens", &list, err));
    for (size_t i = 0; list && i < ARRAY_LEN(keys); i++) {
        int64_t id;
        TRY(gguf_int_or(g, keys[i][0], -1, UINT32_MAX, -1, &id, err));
        if (id < 0 || (uint64_t)id >= list->n)
            continue;
        struct str text = nth_string(list, id);
        json_object_set_new(t->tokens, keys[i][1], json_stringn(text.ptr, text.len)); // nothing where it is no UTF-8
    }
    return OK;
}

/* tokenizer.chat_template, and those with a name behind it. */
static enum status add_gguf_templates(struct chat_template *t, const struct gguf *g, struct error *err) {
    static const char key[] = "tokenizer.chat_template";
    for (size_t i = 0; i < g->n_values; i++) {
        const struct gguf_value *v = &g->values[i];
        char name[256];
        struct str source;
        size_t n = v->key.len - MIN(v->key.len, sizeof key - 1);
        if (!str_starts(v->key, str_of(key)) || (n && v->key.ptr[sizeof key - 1] != '.') || n >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)v->key.len, v->key.ptr);
        TRY(gguf_string(g, name, &source, err));
        snprintf(name, sizeof name, "%.*s", n ? (int)n - 1 : 7, n ? v->key.ptr + sizeof key : "default");
        TRY(add_template(t, name, source, g->path, err));
    }
    if (t->n_variants > 0)
        return OK;
    return fail(err, ERR_IO, "%s: no chat template here: the key %s is missing", g->path, key);
}

static enum status read_gguf(struct chat_template *t, const char *path, bool templates, struct error *err) {
    struct gguf g;
    TRY(gguf_open(path, &g, err));
    enum status st = templates ? add_gguf_templates(t, &g, err) : OK;
    if (st == OK)
        st = take_gguf_tokens(t, &g, err);
    gguf_release(&g);
    return st;
}

/* Templates and special tokens of a folder or a GGUF file; anything else is the file of a template. */
static enum status read_model(struct chat_template *t, const char *path, bool templates, struct error *err) {
    char gguf[FOLDER_PATH_BYTES];
    bool is_gguf;
    TRY(gguf_find_model(path, gguf, &is_gguf, err));
    if (is_gguf)
        return read_gguf(t, gguf, templates, err);
    return dir_exists(path) || !templates ? read_folder(t, path, templates, err) : add_file(t, "default", path, err);
}

static void find_form(const struct chat_template *t, struct chat_variant *v) {
    if (!v->template)
        return;
    chat_form_find(v->template, v->source, t->tokens, &v->form);
    for (int role = 0; t->content_is_forced && role < CHAT_N_ROLES; role++)
        v->form.content[role] = t->forced_content;
}

static enum status finish(enum status st, struct chat_template *t, struct chat_template **out) {
    for (size_t i = 0; st == OK && i < t->n_variants; i++)
        find_form(t, &t->variants[i]);
    if (st != OK) {
        chat_template_free(t);
        t = NULL;
    }
    *out = t;
    return st;
}

static struct chat_template *new_template(json_t *take_tokens) {
    struct chat_template *t = xcalloc(1, sizeof *t);
    t->tokens = take_tokens;
    return t;
}

enum status chat_template_open(const char *path, struct chat_template **out, struct error *err) {
    struct chat_template *t = new_template(json_object());
    return finish(read_model(t, path, true, err), t, out);
}

enum status chat_template_open_other(const char *folder, const char *given, struct chat_template **out,
                                     struct error *err) {
    struct chat_template *t = new_template(json_object());
    enum status st = read_model(t, folder, false, err);
    if (st == OK && given)
        st = !file_exists(given) && strchr(given, '{')
                 ? add_template(t, "default", str_of(given), "--chat-template", err)
                 : add_file(t, "default", given, err);
    return finish(st, t, out);
}

void chat_template_force_content(struct chat_template *t, enum chat_content content) {
    t->content_is_forced = true;
    t->forced_content = content;
    for (size_t i = 0; i < t->n_variants; i++)
        find_form(t, &t->variants[i]);
}

enum status chat_template_with(const struct chat_template *model, struct str source, const char *where,
                               struct chat_template **out, struct error *err) {
    struct chat_template *t = new_template(json_copy(model->tokens));
    t->content_is_forced = model->content_is_forced;
    t->forced_content = model->forced_content;
    return finish(add_template(t, "default", source, where, err), t, out);
}

static bool gguf_has_template(const char *path) {
    struct gguf g;
    bool found = gguf_open(path, &g, NULL) == OK && gguf_get(&g, "tokenizer.chat_template");
    gguf_release(&g);
    return found;
}

bool chat_template_exists(const char *folder) {
    static const char *const files[] = {"chat_template.jinja", "chat_template.json"};
    char path[FOLDER_PATH_BYTES];
    bool is_gguf;
    if (gguf_find_model(folder, path, &is_gguf, NULL) == OK && is_gguf)
        return gguf_has_template(path);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (folder_has(folder, files[i]))
            return true;
    if (has_named_files(folder))
        return true;
    json_t *config = NULL;
    bool found = load_if_there(folder, "tokenizer_config.json", &config, NULL) == OK && has_template(config);
    json_decref(config);
    return found;
}

const json_t *chat_template_response(const struct chat_template *t) { return t->response; }

bool chat_template_writes(const struct chat_template *t, struct str text) {
    for (size_t i = 0; i < t->n_variants; i++)
        if (memmem(t->variants[i].source.ptr, t->variants[i].source.len, text.ptr, text.len))
            return true;
    return false;
}

void chat_template_free(struct chat_template *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->n_variants; i++)
        template_free(t->variants[i].template);
    json_decref(t->tokens);
    json_decref(t->response);
    arena_release(&t->arena);
    free(t);
}

// ---- rendering ----

static bool brings_tools(const json_t *request) {
    const json_t *tools = json_object_get(request, "tools");
    return tools && !json_is_null(tools);
}

const struct chat_variant *chat_template_named(const struct chat_template *t, const char *name) {
    return find_variant((struct chat_template *)t, name); // which changes nothing
}

void chat_template_names(const struct chat_template *t, struct buf *out) {
    for (size_t i = 0; i < t->n_variants; i++)
        buf_printf(out, "%s\"%s\"", i ? ", " : "", t->variants[i].name);
}

const struct chat_variant *chat_template_for(const struct chat_template *t, const json_t *request) {
    const struct chat_variant *with_tools = brings_tools(request) ? chat_template_named(t, "tool_use") : NULL;
    return with_tools ? with_tools : chat_template_named(t, "default");
}

enum status chat_variant_render(const struct chat_template *t, const struct chat_variant *v, const json_t *request,
                                const struct template_options *options, struct buf *out, struct error *err) {
    if (!v)
        return fail(err, ERR_UNSUPPORTED, "messages: the model has no chat template named \"default\"");
    if (!json_is_object(request))
        return fail(err, ERR_ARG, "a request must be a JSON object with \"messages\", this is %s",
                    jv_type_name(request));
    if (!v->template) { // it failed when the model was opened, and does so again
        struct template *none;
        return template_parse(v->source, v->name, &none, err);
    }
    json_t *context = json_copy(t->tokens);
    json_object_set_new(context, "tools", json_null());
    json_object_set_new(context, "documents", json_null());
    json_object_set_new(context, "add_generation_prompt", json_true());
    json_object_update(context, (json_t *)request); // not const, since it takes references
    enum status st = template_render(v->template, context, options, out, err);
    json_decref(context);
    return st;
}

enum status chat_template_render(const struct chat_template *t, const json_t *request,
                                 const struct template_options *options, struct buf *out, struct error *err) {
    return chat_variant_render(t, chat_template_for(t, request), request, options, out, err);
}

enum status chat_template_prompt(const struct chat_template *t, json_t *request, const struct template_options *options,
                                 struct buf *out, struct error *err) {
    const struct chat_variant *v = chat_template_for(t, request);
    struct jv_numbers own = {0};
    struct template_options with = *options;
    if (!with.numbers)
        with.numbers = &own;
    enum status st = OK;
    if (v)
        st = chat_messages_fit(json_object_get(request, "messages"), "messages", &v->form, with.numbers, err);
    if (v && st == OK)
        chat_tools_fit(request, &v->form);
    if (st == OK)
        st = chat_variant_render(t, v, request, &with, out, err);
    jv_numbers_release(&own);
    return st;
}
