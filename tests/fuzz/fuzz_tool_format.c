/* fuzz_tool_format.c - any bytes as a chat template: a format is found or not, says what it is, and reads texts. */
#include "text/tools/tool_parser.h"

static void hear(void *arg, const struct tool_event *e) { *(size_t *)arg += e->text.len; }

static void read(const struct tool_format *f, const json_t *tools, struct str text) {
    size_t told = 0;
    const struct tool_parser_options options = {.tools = tools, .told = hear, .arg = &told};
    struct tool_parser *p = tool_parser_open(f, &options);
    tool_parser_feed(p, text);
    tool_parser_finish(p, TOOL_TEXT_ENDED);
    tool_parser_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static struct chat_template *none;
    struct chat_template *chat;
    struct error err;
    struct buf said = {0}, id = {0};
    struct str text = {(const char *)data, n_bytes};
    if (!none && chat_template_open_other("tests/data/chat", NULL, &none, &err) != OK)
        bug(__FILE__, __LINE__, err.text);
    if (chat_template_with(none, text, "template", &chat, &err) != OK)
        return 0;
    struct tool_format *f = tool_format_open(chat, NULL);
    chat_template_free(chat);
    json_t *tools = json_pack("[{s:{s:s, s:b, s:{s:{s:{s:s}}}}}]", "function", "name", "f", "strict", 1, "parameters",
                              "properties", "s", "type", "string");
    tool_format_describe(f, &said);
    tool_format_make_id(f, STR("f"), 1, (const uint64_t[2]){1, 2}, &id);
    read(f, tools, text);
    read(f, tools, buf_view(&said));
    for (int kind = 0; kind < 3; kind++) {
        json_t *tag = NULL;
        const struct tool_choice choice = {.kind = (enum tool_choice_kind)kind, .name = "f"};
        if (tool_format_tag(f, tools, &choice, &tag, &err) == OK)
            json_decref(tag);
    }
    BUG_IF(tool_format_opened(f, text).len > text.len);
    json_decref(tools);
    buf_release(&said);
    buf_release(&id);
    tool_format_free(f);
    return 0;
}
