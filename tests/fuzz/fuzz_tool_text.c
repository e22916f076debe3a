/* fuzz_tool_text.c - any bytes as what a model writes, in the form of one of some templates: in pieces it is the same
 * as whole, nothing that is told is cut inside a character, and text without a call loses no character but blanks. */
#include "text/tools/tool_marks.h"
#include "text/tools/tool_parser.h"

static const char *const templates[] = {"Qwen-Qwen3-0.6B",
                                        "Qwen3.5-4B",
                                        "LFM2-8B-A1B",
                                        "google-gemma-4-31B-it",
                                        "openai-gpt-oss-120b",
                                        "Kimi-K2-Instruct",
                                        "GLM-4.6",
                                        "meta-llama-Llama-3.1-8B-Instruct",
                                        "Apertus-8B-Instruct",
                                        "MiniMax-M2",
                                        "upstage-Solar-Open-100B",
                                        "Mistral-Small-3.2-24B-Instruct-2506",
                                        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
                                        "llama-cpp-deepseek-r1",
                                        "mistralai-Mistral-Nemo-Instruct-2407"};

/* Elements within elements; its own template is not at hand. */
static const char minimax_m3[] =
    "{# ]<]minimax[>[<tool_call> <invoke name= #}{% for m in messages %}{{ m.role + m.content }}{% endfor %}";

enum { N = sizeof templates / sizeof *templates + 1 };

static struct tool_format *formats[N];
static json_t *tools;

static void open_formats(void) {
    for (size_t i = 0; i < N; i++) {
        char path[256];
        struct chat_template *chat;
        struct error err;
        snprintf(path, sizeof path, "tests/data/chat/templates/%s.jinja", i < N - 1 ? templates[i] : "");
        enum status st = i < N - 1 ? chat_template_open(path, &chat, &err)
                                   : chat_template_open_other("tests/data/chat", minimax_m3, &chat, &err);
        if (st != OK)
            bug(__FILE__, __LINE__, err.text);
        formats[i] = tool_format_open(chat, NULL);
        chat_template_free(chat);
    }
    tools = json_pack("[{s:{s:s, s:{s:{s:{s:s}, s:{s:s}}}}}, {s:{s:s}}]", "function", "name", "add", "parameters",
                      "properties", "s", "type", "string", "i", "type", "integer", "function", "name", "f");
}

struct told {
    struct buf text[3]; // content, reasoning, calls
    int n_calls;
};

static void hear(void *arg, const struct tool_event *e) {
    struct told *t = arg;
    BUG_IF(e->kind != TOOL_EVENT_END && e->text.len == 0);
    if (e->kind == TOOL_EVENT_CONTENT)
        buf_str(&t->text[0], e->text);
    else if (e->kind == TOOL_EVENT_REASONING || e->kind == TOOL_EVENT_BLANKS)
        buf_str(&t->text[1], e->text);
    else {
        BUG_IF(e->kind == TOOL_EVENT_CALL && e->index != t->n_calls);
        t->n_calls += e->kind == TOOL_EVENT_CALL;
        BUG_IF(e->index != t->n_calls - 1);
        if (e->kind == TOOL_EVENT_CALL || e->kind == TOOL_EVENT_END)
            buf_push(&t->text[2], e->kind == TOOL_EVENT_CALL ? '>' : '.');
        buf_str(&t->text[2], e->text);
        buf_str(&t->text[2], e->id);
    }
}

static void parse(const struct tool_format *f, struct str text, size_t piece, int flags, struct told *out) {
    const struct tool_parser_options options = {.tools = flags & 1 ? tools : NULL,
                                                .keep_reasoning = flags & 2,
                                                .opened = flags & 4 ? f->reasoning_open : STR(""),
                                                .told = hear,
                                                .arg = out};
    struct tool_parser *p = tool_parser_open(f, &options);
    for (size_t i = 0; i < text.len; i += piece) {
        size_t before = out->text[0].len;
        tool_parser_feed(p, (struct str){text.ptr + i, MIN(piece, text.len - i)});
        struct str told = str_from(buf_view(&out->text[0]), before);
        BUG_IF(utf8_valid(text) && !utf8_valid(told));
    }
    tool_parser_finish(p, flags & 8 ? TOOL_TEXT_CUT : TOOL_TEXT_ENDED);
    tool_parser_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct told whole = {0}, cut = {0};
    if (n_bytes < 3)
        return 0;
    if (!tools)
        open_formats();
    const struct tool_format *f = formats[data[0] % N];
    struct str text = {(const char *)data + 3, n_bytes - 3};
    parse(f, text, MAX(text.len, 1), data[1], &whole);
    parse(f, text, 1 + data[2] % 16, data[1], &cut);
    for (int i = 0; i < 3; i++) {
        BUG_IF(!str_eq(buf_view(&whole.text[i]), buf_view(&cut.text[i])));
        buf_release(&whole.text[i]);
        buf_release(&cut.text[i]);
    }
    return 0;
}
