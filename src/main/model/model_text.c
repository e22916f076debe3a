/* model_text.c - see model_text.h. */
#include "main/model/model_text.h"

#include "main/model/model_path.h"
#include "text/chat/turn_ends.h"

enum status model_text_open(struct model_text *t, const char *folder, struct error *err) {
    TRY(model_path_check(folder, MODEL_TEXT, err));
    TRY(tokenizer_open(folder, &t->tok, err));
    t->encoder = encoder_open(t->tok);
    return OK;
}

enum status model_text_open_chat(struct model_text *t, const char *folder, struct error *err) {
    TRY(chat_template_open(folder, &t->chat, err));
    t->format = tool_format_open(t->chat, NULL);
    return OK;
}

void model_text_ends(const struct model_text *t, const char *folder, struct token_ids *out) {
    if (t->chat)
        turn_ends_find(t->tok, t->chat, out);
    else if (t->tok)
        turn_ends_in_folder(t->tok, folder, out);
}

void model_text_release(struct model_text *t) {
    tool_format_free(t->format);
    chat_template_free(t->chat);
    encoder_free(t->encoder);
    tokenizer_free(t->tok);
    *t = (struct model_text){0};
}

enum status model_text_encode(struct model_text *t, struct str text, struct token_ids *out, struct error *err) {
    t->is_chat = t->prompt_thinks = t->prompt_thought = false;
    return tokenizer_encode(t->encoder, text, ENCODE_ADD_SPECIAL | ENCODE_PARSE_SPECIAL, out, err);
}

enum status model_text_encode_plain(struct model_text *t, struct str text, struct token_ids *out, struct error *err) {
    return tokenizer_encode(t->encoder, text, 0, out, err);
}

/* The template writes BOS itself where the model wants one. */
enum status model_text_encode_chat(struct model_text *t, json_t *messages, struct token_ids *out, struct error *err) {
    struct buf prompt = {0};
    json_t *request = json_object();
    json_object_set(request, "messages", messages);
    enum status st = chat_template_prompt(t->chat, request, &(struct template_options){0}, &prompt, err);
    if (st == OK)
        st = tokenizer_encode(t->encoder, buf_view(&prompt), ENCODE_PARSE_SPECIAL, out, err);
    t->is_chat = true;
    t->prompt_thinks = tool_format_opens_reasoning(t->format, buf_view(&prompt));
    t->prompt_thought = tool_format_ends_reasoning(t->format, buf_view(&prompt));
    json_decref(request);
    buf_release(&prompt);
    return st;
}
