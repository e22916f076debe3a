/* chat_prompt.c - see chat_prompt.h. */
#include "api/chat_prompt.h"

// ---- messages ---------------------------------------------------------------------------------------------------

static bool is_text_type(const char *type) {
    return type && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0);
}

enum status chat_join_parts(const json_t *parts, const char *where, struct buf *out, struct error *err) {
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(part) && !is_text_type(type))
            return fail(err, ERR_UNSUPPORTED, "%s[%zu].type: \"%.40s\" is not supported, only text is", where, i, type ? type : "?");
        if (!json_is_string(text))
            return fail(err, ERR_ARG, "%s[%zu].text: it must be a string", where, i);
        if (i > 0)
            buf_push(out, '\n');
        buf_append(out, json_string_value(text), json_string_length(text));
    }
    return OK;
}

static enum status check_message(json_t *message, const char *name, size_t at, struct error *err) {
    if (!json_is_object(message))
        return fail(err, ERR_ARG, "%s[%zu]: it must be an object", name, at);
    const json_t *role = json_object_get(message, "role");
    if (!json_is_string(role))
        return fail(err, ERR_ARG, "%s[%zu].role: it must be a string", name, at);
    if (strcmp(json_string_value(role), "developer") == 0)
        json_object_set_new(message, "role", json_string("system"));
    json_t *content = json_object_get(message, "content"), *reasoning = json_object_get(message, "reasoning");
    if (json_is_string(reasoning) && !json_object_get(message, "reasoning_content")) // vLLM's name for what templates call so
        json_object_set(message, "reasoning_content", reasoning);
    if (!content || json_is_null(content) || json_is_string(content))
        return OK;
    if (!json_is_array(content))
        return fail(err, ERR_ARG, "%s[%zu].content: it must be a string or an array of parts", name, at);
    struct buf text = {0}, where = {0};
    buf_printf(&where, "%s[%zu].content", name, at);
    enum status st = chat_join_parts(content, where.ptr, &text, err);
    if (st == OK)
        json_object_set_new(message, "content", json_stringn_nocheck(text.ptr ? text.ptr : "", text.len));
    buf_release(&text);
    buf_release(&where);
    return st;
}

enum status chat_check_messages(json_t *messages, const char *name, struct error *err) {
    json_t *message;
    size_t i;
    if (!json_is_array(messages))
        return fail(err, ERR_ARG, "%s: it must be an array of messages", name);
    if (json_array_size(messages) == 0)
        return fail(err, ERR_ARG, "%s: the array is empty", name);
    json_array_foreach(messages, i, message) TRY(check_message(message, name, i, err));
    return OK;
}

// ---- the prompt -------------------------------------------------------------------------------------------------

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Puts a mark behind the content of the last message, in messages of the context's own: where the template writes it, the
 * content ends. A blank follows the mark, to see whether the template trims. */
static enum status mark_last(json_t *context, const char *mark, struct error *err) {
    json_t *messages = json_copy(json_object_get(context, "messages"));
    size_t last = json_array_size(messages) - 1;
    json_t *message = json_copy(json_array_get(messages, last)), *content = json_object_get(message, "content");
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
    json_object_set_new(message, "content", json_stringn_nocheck(text.ptr, text.len));
    buf_release(&text);
    return OK;
}

/* Cuts the prompt at the mark; a template that trims would have trimmed the content before it too. */
static enum status cut_at(const char *mark, struct buf *prompt, struct error *err) {
    char *at = prompt->len ? memmem(prompt->ptr, prompt->len, mark, strlen(mark)) : NULL;
    if (!at)
        return fail(err, ERR_UNSUPPORTED, "messages: the chat template does not show the last one as it is, so it cannot be continued");
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

static enum status render(struct generation *g, json_t *context, enum chat_end end, struct buf *prompt, struct error *err) {
    char mark[64];
    if (!g->api->options.chat)
        return fail(err, ERR_UNSUPPORTED, "messages: the model has no chat template; use /v1/completions");
    json_object_set_new(context, "add_generation_prompt", json_boolean(end == CHAT_ASKS));
    const char *effort = json_string_value(json_object_get(context, "reasoning_effort"));
    if (effort && strcmp(effort, "none") == 0 && !json_object_get(context, "enable_thinking"))
        json_object_set_new(context, "enable_thinking", json_false()); // the name that templates of models that can do both read
    api_new_id("continue", mark);
    if (end == CHAT_CONTINUES)
        TRY(mark_last(context, mark, err));
    enum status st = chat_template_render(g->api->options.chat, context, &(struct template_options){0}, prompt, err);
    if (st != OK) {
        without_folder(err->text);
        return st;
    }
    return end == CHAT_CONTINUES ? cut_at(mark, prompt, err) : OK;
}

enum status chat_prompt(struct generation *g, json_t *context, enum chat_end end, struct prompt_ids *out, struct error *err) {
    struct buf text = {0};
    struct token_ids ids = {0};
    enum status st = render(g, context, end, &text, err);
    if (st == OK) // the template writes its own special tokens, BOS among them
        st = api_tokenize(g->api, buf_view(&text), ENCODE_PARSE_SPECIAL | (g->add_special ? ENCODE_ADD_SPECIAL : 0), &ids, err);
    if (st == OK) {
        *out = (struct prompt_ids){arena_calloc(&g->x->arena, ids.n, sizeof *ids.ids), ids.n};
        if (ids.n > 0)
            memcpy(out->ids, ids.ids, ids.n * sizeof *ids.ids);
        g->split_reasoning = true;
        g->prompt_opens_reasoning = think_prompt_opens(buf_view(&text));
    }
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}
