/* chat_prompt.c - see chat_prompt.h. */
#include "api/chat_prompt.h"

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

/* Puts a mark behind the content of the last message, in messages of the context's own: where the template writes it, the
 * content ends. A blank follows the mark, to see whether the template trims. */
static enum status mark_last(json_t *context, const char *mark, struct error *err) {
    json_t *messages = json_copy(json_object_get(context, "messages"));
    size_t last = json_array_size(messages) - 1;
    json_t *message = json_copy(json_array_get(messages, last)), *content = last_text(json_object_get(message, "content"));
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
    const struct chat_template *chat = g->api->options.chat;
    if (!chat)
        return fail(err, ERR_UNSUPPORTED, "messages: the model has no chat template; use /v1/completions");
    const struct chat_variant *variant = chat_template_for(chat, context);
    TRY(chat_messages_fit(json_object_get(context, "messages"), "messages", &variant->form, err));
    json_object_set_new(context, "add_generation_prompt", json_boolean(end == CHAT_ASKS));
    const char *effort = json_string_value(json_object_get(context, "reasoning_effort"));
    if (effort && strcmp(effort, "none") == 0 && !json_object_get(context, "enable_thinking"))
        json_object_set_new(context, "enable_thinking", json_false()); // the name that templates of models that can do both read
    api_new_id("continue", mark);
    if (end == CHAT_CONTINUES)
        TRY(mark_last(context, mark, err));
    enum status st = chat_variant_render(chat, variant, context, &(struct template_options){0}, prompt, err);
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
