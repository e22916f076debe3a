/* template_chat.h - the chat templates of a model folder or a GGUF file, with the model's own special tokens.
 *
 * Where they are looked for, as transformers does:
 *   chat_template.jinja, and additional_chat_templates/NAME.jinja; no other place is looked at if there is one of them
 *   chat_template.json   {"chat_template": ...}, of processors
 *   tokenizer_config.json "chat_template"
 * In the last two a text, a list of {"name", "template"}, or an object of texts by name. Requests that bring tools are
 * rendered by the one named "tool_use", if there is one; others, such as "rag", when they are asked for.
 *
 * What a template sees, later ones winning: every "..._token" of special_tokens_map.json and of
 * tokenizer_config.json (a text, or an object with "content"), and what that calls extra_special_tokens by names; tools
 * and documents, null;
 * add_generation_prompt, true; and the fields of the request. */
#pragma once

#include "text/chat/chat_form.h"

struct chat_template;

/* One of them. Borrowed from the chat_template. */
struct chat_variant {
    const char *name;
    struct str source;
    struct template *template;
    struct chat_form form;
};

/* path is a model folder, a GGUF file, or a file that is a template. ERR_IO when a model has no template; other faults
 * as template_parse. The files are read once; *out owns what it needs of them. */
enum status chat_template_open(const char *path, struct chat_template **out, struct error *err);

/* The special tokens of a folder with another template: `given` names its file, or is its text; NULL: with none. */
enum status chat_template_open_other(const char *folder, const char *given, struct chat_template **out,
                                     struct error *err);

/* Contents of all roles go in that form, whatever was found. */
void chat_template_force_content(struct chat_template *t, enum chat_content content);

/* Another template with the special tokens of a model's. where opens sentences about it. */
enum status chat_template_with(const struct chat_template *model, struct str source, const char *where,
                               struct chat_template **out, struct error *err);

/* Whether a folder has any of the places above; chat_template_open may still refuse what is there. */
bool chat_template_exists(const char *folder);

/* The one of that name; and the one for a request, by the tools that it brings. NULL where there is none of the name,
 * or no default. */
const struct chat_variant *chat_template_named(const struct chat_template *t, const char *name);
const struct chat_variant *chat_template_for(const struct chat_template *t, const json_t *request);

/* Appends the names of all, as a sentence lists them. */
void chat_template_names(const struct chat_template *t, struct buf *out);

/* Appends the prompt for a request, an object: messages, tools, and whatever else the template reads, as they are; see
 * chat_messages_fit. Many threads may render one template. Errors as template_render. */
enum status chat_variant_render(const struct chat_template *t, const struct chat_variant *v, const json_t *request,
                                const struct template_options *options, struct buf *out, struct error *err);

/* A request as clients send it: its messages are made fit for the template, in place, and rendered. */
enum status chat_template_prompt(const struct chat_template *t, json_t *request, const struct template_options *options,
                                 struct buf *out, struct error *err);

/* chat_variant_render with chat_template_for. */
enum status chat_template_render(const struct chat_template *t, const json_t *request,
                                 const struct template_options *options, struct buf *out, struct error *err);

/* What tokenizer_config.json says in "response_template" of the form of answers; NULL: nothing. Borrowed. */
const json_t *chat_template_response(const struct chat_template *t);

/* Whether one of them has the text in its source. */
bool chat_template_writes(const struct chat_template *t, struct str text);

void chat_template_free(struct chat_template *t); // NULL is fine
