/* template_chat.h - the chat template of a model folder, with the model's own special tokens.
 *
 * Where it is looked for, the first that is there:
 *   chat_template.jinja, with additional_chat_templates/tool_use.jinja for requests that bring tools
 *   chat_template.json   {"chat_template": ...}
 *   tokenizer_config.json "chat_template": a text, or a list of {"name", "template"} with "default" and,
 *                        for requests that bring tools, "tool_use"
 *
 * What a template sees, later ones winning: every "..._token" of special_tokens_map.json and of
 * tokenizer_config.json (a text, or an object with "content"); tools and documents, null;
 * add_generation_prompt, true; and the fields of the request. */
#pragma once

#include "text/template.h"

struct chat_template;

/* path is a model folder, or a file that is a template. ERR_IO when a folder has no template; other faults
 * as template_parse. The files are read once; *out owns what it needs of them. */
enum status chat_template_open(const char *path, struct chat_template **out, struct error *err);

/* Whether a folder has any of the places above; chat_template_open may still refuse what is there. */
bool chat_template_exists(const char *folder);

/* Appends the prompt for a request, an object: messages, tools, and whatever else the template reads. Many
 * threads may render one template. Errors as template_render. */
enum status chat_template_render(const struct chat_template *t, const json_t *request, const struct template_options *options,
                                 struct buf *out, struct error *err);

void chat_template_free(struct chat_template *t); // NULL is fine
