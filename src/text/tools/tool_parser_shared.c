/* tool_parser_shared.c - see tool_parser_parts.h: what all states do. */
#include "text/tools/tool_parser_parts.h"

void parser_take(struct tool_parser *p, size_t n) {
    p->at += n;
    if (p->at == p->held.len) {
        buf_clear(&p->held);
        p->at = 0;
    }
}

void parser_tell(struct tool_parser *p, enum tool_event_kind kind, struct str text) {
    if (text.len)
        p->options.told(p->options.arg, &(struct tool_event){.kind = kind, .index = p->n_calls - 1, .text = text});
}

void parser_tell_text(struct tool_parser *p, enum tool_event_kind kind, size_t n) {
    parser_tell(p, kind, str_to(parser_rest(p), n));
    parser_take(p, n);
}

void parser_begin_call(struct tool_parser *p, struct str name, struct str id) {
    const struct tool_event event = {.kind = TOOL_EVENT_CALL, .index = p->n_calls++, .text = name, .id = id};
    p->running = true;
    p->parameters = json_object_get(parser_tool(p, name), "parameters");
    p->options.told(p->options.arg, &event);
}

void parser_end_call(struct tool_parser *p) {
    if (p->running)
        p->options.told(p->options.arg, &(struct tool_event){.kind = TOOL_EVENT_END, .index = p->n_calls - 1});
    p->running = false;
    p->after_call = p->blank_so_far = true;
}

void parser_tell_word(struct tool_parser *p) {
    struct buf out = {0};
    literal_cut(&p->literal, &out);
    parser_tell(p, TOOL_EVENT_ARGUMENTS, buf_view(&out));
    buf_release(&out);
}

void parser_break_call(struct tool_parser *p) {
    parser_end_call(p);
    p->blank_so_far = p->after_call = false;
    parser_tell(p, TOOL_EVENT_CONTENT, buf_view(&p->literal.word));
    buf_clear(&p->literal.word);
}

const json_t *parser_tool(const struct tool_parser *p, struct str name) {
    char key[MAX_NAME + 1];
    if (name.len > MAX_NAME)
        return NULL;
    memcpy(key, name.ptr, name.len);
    key[name.len] = '\0';
    return strlen(key) == name.len ? json_object_get(p->tools, key) : NULL;
}
