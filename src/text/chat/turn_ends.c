/* turn_ends.c - see turn_ends.h. */
#include "text/chat/turn_ends.h"

/* What models of these families say when their turn is over, or when they have called a tool and wait. A vocabulary may
 * have such a token without a use for it, so the template has to write it. */
static const char *const known[] = {
    "<|im_end|>",            // ChatML: Qwen, Yi, Kimi, SmolLM ...
    "<|eot_id|>",            // Llama 3
    "<|eom_id|>",            // Llama 3, before a tool's answer
    "<|eot|>",               // Llama 4
    "<|eom|>",               //
    "<end_of_turn>",         // Gemma 2, 3
    "<turn|>",               // Gemma 4
    "<|end|>",               // Phi 3
    "<|end_of_turn|>",       // OpenChat, Hermes
    "<|endofturn|>",         //
    "[|endofturn|]",         // EXAONE
    "<|END_OF_TURN_TOKEN|>", // Command R
    "<end_of_utterance>",    // Idefics, SmolVLM
    "<|return|>",            // gpt-oss
    "<|call|>",              //
};

/* gpt-oss ends each of the messages of a turn with <|end|>, and the turn with another token. */
static bool ends_messages_only(const struct tokenizer *tok, const char *text) {
    return strcmp(text, "<|end|>") == 0 && tokenizer_find(tok, STR("<|return|>")) >= 0;
}

static void add(struct token_ids *out, int32_t id) {
    for (size_t i = 0; i < out->n; i++)
        if (out->ids[i] == id)
            return;
    if (id >= 0)
        token_ids_push(out, id);
}

void turn_ends_find(const struct tokenizer *tok, const struct chat_template *chat, struct token_ids *out) {
    add(out, tokenizer_special(tok, SPECIAL_EOS).id);
    add(out, tokenizer_special(tok, SPECIAL_EOT).id);
    for (size_t i = 0; i < ARRAY_LEN(known) && chat; i++) {
        int32_t id = tokenizer_find(tok, str_of(known[i]));
        if (id >= 0 && tokenizer_is_added(tok, id) && !ends_messages_only(tok, known[i]) &&
            chat_template_writes(chat, str_of(known[i])))
            add(out, id);
    }
}

void turn_ends_in_folder(const struct tokenizer *tok, const char *folder, struct token_ids *out) {
    struct chat_template *chat = NULL;
    struct error ignored; // who renders is told
    if (chat_template_exists(folder) && chat_template_open(folder, &chat, &ignored) != OK)
        chat = NULL;
    turn_ends_find(tok, chat, out);
    chat_template_free(chat);
}
