/* chat_form.h - in which form a chat template reads a history: found by rendering a few when it is opened.
 *
 * Clients send what OpenAI's API allows: function.arguments as a JSON text, contents as texts, as arrays of parts or
 * null. Templates were written for one form of each. Small renderings, each bounded, tell which:
 *
 *   content     parts      two are shown, both, as text and with nothing else of them
 *               a text     otherwise
 *   arguments   an object  is shown as JSON or walked: what transformers and vLLM give
 *               a text     an object fails or is shown as Python prints it, and a text is shown as it is
 *   functions   without description, or parameters, where the template takes them so
 *   null, of a message that calls tools: some templates write what "" says otherwise
 *               ""         null fails, or "None" or "null" is shown where "" shows nothing
 *               null       otherwise
 *
 * Where no rendering shows what was asked (a template that always fails, or ignores tool calls): texts and objects. */
#pragma once

#include "base/json/json.h"
#include "jinja/template.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_N_ROLES };

enum chat_content {
    CHAT_CONTENT_TEXT,  // a text; parts are joined by line feeds
    CHAT_CONTENT_GIVEN, // a text or parts, as the client sent it
    CHAT_CONTENT_PARTS, // parts; a text becomes one
};

struct chat_form {
    enum chat_content content[CHAT_N_ROLES];
    bool arguments_are_text;  // of tool calls; else objects
    bool takes_null_at_calls; // as the content of a message that calls tools
    bool knows_developer;     // the role; else it is "system"
    bool needs_description;   // of a function, which OpenAI's API lets be absent
    bool needs_parameters;    // likewise, and their properties
};

/* The role's form; roles that are not listed go as the user's. */
enum chat_role chat_role_of(const char *role);

/* source is the text that t was parsed from; globals an object of what each rendering sees besides, the model's
 * special tokens. */
void chat_form_find(const struct template *t, struct str source, const json_t *globals, struct chat_form *out);
