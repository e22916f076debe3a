/* chat_prompt.c - see chat_prompt.h. */
#include "api/chat/chat_prompt.h"

#include "api/fields/params.h"
#include "api/tools/custom.h"

// ---- the prompt -------------------------------------------------------------------------------------------------

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The last text of a content, a text or parts; NULL where there is none. */
static json_t *last_text(json_t *content) {
    if (json_is_array(content))
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    return json_is_string(content) ? content : NULL;
}

static void replace_last_text(json_t *message, json_t *take_text) {
    json_t *parts = json_copy(json_object_get(message, "content"));
    if (json_is_array(parts)) {
        size_t last = json_array_size(parts) - 1;
        json_array_set_new(parts, last, json_pack("{s:s, s:o}", "type", "text", "text", take_text));
        json_object_set_new(message, "content", parts);
    } else {
        json_decref(parts);
        json_object_set_new(message, "content", take_text);
    }
}

/* Puts a mark behind the content of the last message, in messages of the context's own: where the template writes it,
 * the content ends. A blank follows the mark, to see whether the template trims. */
static enum status mark_last(json_t *context, const char *mark, struct error *err) {
    json_t *messages = json_copy(json_object_get(context, "messages"));
    size_t last = json_array_size(messages) - 1;
    json_t *message = json_copy(json_array_get(messages, last)),
           *content = last_text(json_object_get(message, "content"));
    struct buf text = {0};
    json_array_set_new(messages, last, message);
    json_object_set_new(context, "messages", messages);
    bool blank = true;
    for (size_t i = 0; i < json_string_length(content) && blank; i++)
        blank = is_blank(json_string_value(content)[i]);
    if (blank)
        return fail(err, ERR_ARG, "messages: the last one has no text that could be continued");
    buf_append(&text, json_string_value(content), json_string_length(content));
    buf_printf(&text, "%s ", mark);
    replace_last_text(message, json_stringn_nocheck(text.ptr, text.len));
    buf_release(&text);
    return OK;
}

void chat_content_text(const json_t *message, struct buf *out) {
    const json_t *content = json_object_get(message, "content");
    json_t *part;
    size_t i;
    if (json_is_string(content))
        buf_append(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) {
        const json_t *text = json_object_get(part, "text");
        buf_append(out, json_string_value(text), json_string_length(text));
    }
}

/* Cuts the prompt at the mark; a template that trims would have trimmed the content before it too. */
static enum status cut_at(const char *mark, struct buf *prompt, struct error *err) {
    char *at = prompt->len ? memmem(prompt->ptr, prompt->len, mark, strlen(mark)) : NULL;
    if (!at)
        return fail(err, ERR_UNSUPPORTED,
                    "messages: the chat template does not show the last one as it is, so it cannot be continued");
    bool trims = at[strlen(mark)] != ' ';
    for (prompt->len = (size_t)(at - prompt->ptr); trims && prompt->len > 0 && is_blank(prompt->ptr[prompt->len - 1]);)
        prompt->len--;
    prompt->ptr[prompt->len] = '\0';
    return OK;
}

/* "FOLDER/chat_template.jinja:2: ..." as who asked may read it. */
static void without_folder(char *sentence) {
    size_t file = strcspn(sentence, ":");
    const char *slash = memrchr(sentence, '/', file);
    if (slash)
        memmove(sentence, slash + 1, strlen(slash + 1) + 1);
}

/* Which template it is: the model's, one of its others by name, or the request's where the server trusts requests.
 * *own is what was parsed for it, the caller's. */
static enum status choose(const struct api *api, const struct chat_ask *ask, struct chat_template **own,
                          const struct chat_variant **variant, struct error *err) {
    const struct chat_template *chat = api->options.chat;
    struct str given = {json_string_value(ask->chat_template), json_string_length(ask->chat_template)};
    *own = NULL;
    *variant = chat && given.ptr ? chat_template_named(chat, given.ptr)
               : chat            ? chat_template_for(chat, ask->context)
                                 : NULL;
    if (given.ptr && !*variant) {
        if (!chat || !api->options.trust_request_chat_template)
            return fail(err, ERR_UNSUPPORTED,
                        "chat_template: templates of requests are used where the server was started with "
                        "--trust-request-chat-template");
        TRY(chat_template_with(chat, given, "chat_template", own, err));
        *variant = chat_template_for(*own, ask->context);
    }
    if (*variant)
        return OK;
    struct buf names = {0};
    if (chat)
        chat_template_names(chat, &names);
    if (names.len == 0)
        return fail(err, ERR_UNSUPPORTED, "messages: the model has no chat template; use /v1/completions");
    enum status st =
        fail(err, ERR_UNSUPPORTED, "chat_template: the model has none for this request but by name: %s", names.ptr);
    buf_release(&names);
    return st;
}

static enum status render(const struct chat_template *chat, const struct chat_variant *variant,
                          const struct chat_ask *ask, struct jv_numbers *numbers, struct buf *prompt,
                          struct error *err) {
    char mark[64];
    json_t *context = ask->context;
    TRY(chat_messages_fit(json_object_get(context, "messages"), "messages", &variant->form, numbers, err));
    chat_tools_fit(context, &variant->form);
    json_object_set_new(context, "add_generation_prompt", json_boolean(ask->end == CHAT_ASKS));
    const char *effort = json_string_value(json_object_get(context, "reasoning_effort"));
    if (effort && strcmp(effort, "none") == 0 && !json_object_get(context, "enable_thinking"))
        json_object_set_new(context, "enable_thinking",
                            json_false()); // as templates of models that can do both call it
    api_new_id("continue", mark);
    if (ask->end == CHAT_CONTINUES)
        TRY(mark_last(context, mark, err));
    enum status st =
        chat_variant_render(chat, variant, context, &(struct template_options){.numbers = numbers}, prompt, err);
    if (st != OK) {
        without_folder(err->text);
        return st;
    }
    return ask->end == CHAT_CONTINUES ? cut_at(mark, prompt, err) : OK;
}

enum status chat_render(struct http_exchange *x, const struct chat_ask *ask, struct tool_format **own_format,
                        struct buf *prompt, struct error *err) {
    const struct api *api = api_of(x);
    struct api_record *record = x->record;
    struct chat_template *own;
    const struct chat_variant *variant;
    enum status st = choose(api, ask, &own, &variant, err);
    if (api->options.template_kwargs)
        json_object_update_missing(ask->context, (json_t *)api->options.template_kwargs); // which takes references
    if (st == OK)
        st = render(own ? own : api->options.chat, variant, ask, &record->numbers, prompt, err);
    if (st == OK && own && own_format)
        *own_format = tool_format_open(own, NULL);
    chat_template_free(own);
    return st;
}

/* What the answer goes on from. */
static void read_end_of_prompt(struct generation *g, struct str prompt) {
    g->format = g->own_format ? g->own_format : g->api->format;
    struct str opened = tool_format_opened(g->format, prompt);
    g->opened = (struct str){arena_strdup(&g->x->arena, opened), opened.len};
    g->prompt_ends_reasoning = tool_format_ends_reasoning(g->format, prompt);
}

enum status chat_prompt(struct generation *g, const struct chat_ask *ask, struct prompt_ids *out, struct error *err) {
    struct buf text = {0};
    struct token_ids ids = {0};
    enum status st = chat_render(g->x, ask, &g->own_format, &text, err);
    if (st == OK && !g->cuts_prompt)
        st = api_check_prompt(g->api, buf_view(&text), err);
    if (st == OK) // the template writes its own special tokens, BOS among them
        st = api_tokenize(g->api, buf_view(&text), ENCODE_PARSE_SPECIAL | (g->add_special ? ENCODE_ADD_SPECIAL : 0),
                          &ids, err);
    api_charge_text(g->x, ids.n);
    if (st == OK) {
        *out = (struct prompt_ids){arena_calloc(&g->x->arena, ids.n, sizeof *ids.ids), ids.n};
        if (ids.n > 0)
            memcpy(out->ids, ids.ids, ids.n * sizeof *ids.ids);
        read_end_of_prompt(g, buf_view(&text));
        st = tool_ask_check(&g->tools, g->format, json_object_get(ask->context, "messages"), err);
    }
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}

// ---- requests ---------------------------------------------------------------------------------------------------

static enum status check_tools(const json_t *tools, struct error *err) {
    const json_t *tool;
    size_t i;
    if (!tools || json_is_null(tools))
        return OK;
    if (!json_is_array(tools))
        return fail(err, ERR_ARG, "tools: it must be an array");
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "custom") == 0) // is read by itself
            continue;
        if (!json_is_object(json_object_get(tool, "function")))
            return fail(err, ERR_ARG, "tools[%zu].function: it must be an object", i);
    }
    return OK;
}

void chat_put_tools(const struct generation *g, json_t *take_tools, json_t *context) {
    bool none = !g->tools.tools && g->api->options.exclude_tools_when_none;
    bool shown = json_array_size(take_tools) > 0 && !none;
    json_object_set_new(context, "tools", shown ? json_incref(take_tools) : json_null());
    json_decref(take_tools);
}

enum status chat_leave_tools(struct generation *g, const json_t *body, int first, const json_t *choice,
                             const json_t *others, struct error *err) {
    const char *word = json_string_value(choice);
    const json_t *tool = json_array_get(json_object_get(body, "tools"), (size_t)first);
    const char *type = json_string_value(json_object_get(tool, "type"));
    bool none = word && strcmp(word, "none") == 0;
    bool free = !choice || json_is_null(choice) || (word && strcmp(word, "auto") == 0);
    if (first < 0 || none)
        return OK;
    if (!free || json_array_size(others) == 0)
        return fail(err, ERR_UNSUPPORTED, "tools[%d].type: \"%.40s\" is not supported, only function and custom are",
                    first, type);
    char sentence[160];
    snprintf(sentence, sizeof sentence, "tools[%d] was left out: this server runs no tools itself, as \"%.40s\"", first,
             type);
    params_warn(g, sentence);
    return OK;
}

static enum status read_end(const json_t *body, enum chat_end *out, struct error *err) {
    bool add_prompt, go_on;
    TRY(jv_bool_or(body, "request", "continue_final_message", false, &go_on, err));
    TRY(jv_bool_or(body, "request", "add_generation_prompt", true, &add_prompt, err));
    if (go_on && add_prompt)
        return fail(err, ERR_ARG,
                    "continue_final_message: it excludes add_generation_prompt, which is true unless given as false");
    *out = go_on ? CHAT_CONTINUES : add_prompt ? CHAT_ASKS : CHAT_ENDS;
    return OK;
}

/* Custom tools, and calls of them, as the functions that a template knows. */
static enum status show_custom(json_t *context, struct error *err) {
    json_t *tools = json_object_get(context, "tools"), *messages = json_object_get(context, "messages"), *functions;
    if (json_is_array(messages))
        json_object_set_new(context, "messages", custom_calls_as_functions(messages));
    if (!json_is_array(tools))
        return OK;
    TRY(custom_tools_as_functions(tools, &functions, err));
    json_object_set_new(context, "tools", custom_tools_shown(functions));
    json_decref(functions);
    return OK;
}

enum status chat_ask_read(const json_t *body, struct chat_ask *out, struct error *err) {
    static const char *const own[] = {"messages", "documents", "reasoning_effort", "tools"};
    json_t *kwargs, *template = json_object_get(body, "chat_template");
    *out = (struct chat_ask){0};
    TRY(read_end(body, &out->end, err));
    TRY(check_tools(json_object_get(body, "tools"), err));
    TRY(jv_object_or_null(body, "request", "chat_template_kwargs", &kwargs, err));
    if (template && !json_is_null(template) && !json_is_string(template))
        return fail(err, ERR_ARG, "chat_template: it must be a string");
    out->chat_template = json_is_string(template) ? template : NULL;
    out->context = kwargs ? json_copy(kwargs) : json_object();
    for (size_t i = 0; i < ARRAY_LEN(own); i++) // which kwargs cannot stand for
        if (json_object_get(body, own[i]))
            json_object_set(out->context, own[i], json_object_get(body, own[i]));
    TRY(show_custom(out->context, err));
    if (json_array_size(json_object_get(out->context, "tools")) == 0) // as if there were none, as vLLM has it
        json_object_set_new(out->context, "tools", json_null());
    return OK;
}

void chat_ask_release(struct chat_ask *ask) {
    json_decref(ask->context);
    *ask = (struct chat_ask){0};
}
