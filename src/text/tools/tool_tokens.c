/* tool_tokens.c - see tool_tokens.h. */
#include "text/tools/tool_tokens.h"

#include "text/tools/tool_marks.h"
#include "text/tools/tool_rows.h"

static bool is_part(struct str token, const struct str *marks, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text_find(marks[i], token) != NOT_FOUND)
            return true;
    return false;
}

static bool is_wrapper(const struct tool_format *f, struct str token) {
    for (size_t i = 0; i < TOOL_WRAPPERS; i++)
        if (tool_wrapper_fits(&tool_wrappers[i], f) &&
            (str_eq(token, tool_wrappers[i].open) || str_eq(token, tool_wrappers[i].close)))
            return true;
    return false;
}

void tool_format_tokens(const struct tool_format *f, const struct tokenizer *tok, bool calls, struct token_ids *out) {
    static const struct str harmony = {"<|start|><|channel|><|constrain|><|message|><|end|><|call|>", 59};
    const struct str said[] = {f->reasoning_open, f->reasoning_close, f->content_open, f->content_close,
                               f->style == TOOL_STYLE_CHANNELS ? harmony : STR("")};
    struct str called[] = {f->section_open, f->section_close,      f->call_open,     f->call_close,
                           f->call_prefix,  f->call_separator,     f->key_open,      f->key_close,
                           f->value_close,  f->key_close_other,    f->quote,         f->array_open,
                           f->array_close,  f->argument_separator, f->heads[0].mark, f->heads[1].mark,
                           f->heads[2].mark};
    for (int32_t id = 0; id < tokenizer_n_vocab(tok); id++) {
        struct str token = tokenizer_token_text(tok, id);
        bool shown = token.len && tokenizer_is_special(tok, id) &&
                     (is_part(token, said, ARRAY_LEN(said)) ||
                      (calls && (is_part(token, called, ARRAY_LEN(called)) || is_wrapper(f, token))));
        if (shown)
            token_ids_push(out, id);
    }
}
