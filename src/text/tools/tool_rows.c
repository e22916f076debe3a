/* tool_rows.c - see tool_rows.h. */
#include "text/tools/tool_rows.h"

#include "text/tools/tool_marks.h"

#define TEXT(s) \
    { s, sizeof(s) - 1 }

#define MINIMAX "]<]minimax[>["

#define HERMES                                                                                              \
    {                                                                                                       \
        .style = TOOL_STYLE_JSON, .call_open = TEXT("<tool_call>\n"), .call_close = TEXT("\n</tool_call>"), \
        .name_key = TEXT("name"), .arguments_key = TEXT("arguments"),                                       \
    }

enum { NEEDS = 3 };

struct tool_row {
    const char *name;
    bool always;
    const char *needs[NEEDS]; // texts of the template's source, all of them
    struct tool_format format;
};

static const struct tool_row rows[] = {
    {
        "harmony", // gpt-oss: messages in channels
        true,
        {"<|channel|>", "<|message|>", "<|start|>"},
        {
            .style = TOOL_STYLE_CHANNELS,
            .reasoning_open = TEXT("<|channel|>analysis<|message|>"),
            .reasoning_close = TEXT("<|end|>"),
        },
    },
    {
        "functionary v3.2", // >>>all\ncontent>>>name\n{...}, with the first >>> in the prompt
        true,
        {">>>all"},
        {
            .style = TOOL_STYLE_MARKED,
            .content_open = TEXT(">>>all\n"),
            .call_open = TEXT(">>>"),
            .heads = {{TEXT(">>>"), TOOL_SLOT_NAME}, {TEXT("\n"), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
        },
    },
    {
        "minimax m3", // an element an argument, elements within; a mark of its own before each tag
        true,
        {MINIMAX, "<invoke name="},
        {
            .style = TOOL_STYLE_MARKED,
            .section_open = TEXT(MINIMAX "<tool_call>\n"),
            .section_close = TEXT("\n" MINIMAX "</tool_call>"),
            .call_open = TEXT(MINIMAX "<invoke name=\""),
            .call_separator = TEXT("\n"),
            .call_close = TEXT(MINIMAX "</invoke>"),
            .heads = {{TEXT(MINIMAX "<invoke name=\""), TOOL_SLOT_NAME}, {TEXT("\">"), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
            .arguments = TOOL_ARGUMENTS_TAGGED,
            .key_open = TEXT(MINIMAX "<"),
            .key_close = TEXT(">"),
            .value_close = TEXT(MINIMAX "</"),
            .nested = true,
        },
    },
    {
        "kimi", // its template changes a list, which sandboxes refuse
        false,
        {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"},
        {
            .style = TOOL_STYLE_MARKED,
            .section_open = TEXT("<|tool_calls_section_begin|>"),
            .section_close = TEXT("<|tool_calls_section_end|>"),
            .call_open = TEXT("<|tool_call_begin|>"),
            .call_close = TEXT("<|tool_call_end|>"),
            .heads = {{TEXT("<|tool_call_begin|>"), TOOL_SLOT_NAME},
                      {TEXT("<|tool_call_argument_begin|>"), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
            .id = TOOL_ID_PATH,
        },
    },
    {
        "lfm2", // shows tools and no calls
        false,
        {"<|tool_list_start|>"},
        {
            .style = TOOL_STYLE_MARKED,
            .section_open = TEXT("<|tool_call_start|>["),
            .section_close = TEXT("]<|tool_call_end|>"),
            .call_separator = TEXT(", "),
            .heads = {{TEXT(""), TOOL_SLOT_NAME}, {TEXT(""), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
            .arguments = TOOL_ARGUMENTS_LITERAL,
            .arguments_open = TEXT("("),
            .arguments_close = TEXT(")"),
        },
    },
    {
        "granite", // tells the model in words
        false,
        {"<|tool_call|>", "JSON list"},
        {
            .style = TOOL_STYLE_JSON,
            .section_open = TEXT("<|tool_call|>"),
            .in_array = true,
            .name_key = TEXT("name"),
            .arguments_key = TEXT("arguments"),
        },
    },
    {
        "phi 4", // <|tool_call|>[...]<|/tool_call|>
        false,
        {"<|tool_call|>", "<|/tool_call|>"},
        {
            .style = TOOL_STYLE_JSON,
            .section_open = TEXT("<|tool_call|>"),
            .section_close = TEXT("<|/tool_call|>"),
            .in_array = true,
            .name_key = TEXT("name"),
            .arguments_key = TEXT("arguments"),
        },
    },
    {
        "glm 4.5", // told in words: a name, and a tag a key
        false,
        {"<tool_call>function_name", "<arg_key>", "<arg_value>"},
        {
            .style = TOOL_STYLE_MARKED,
            .call_open = TEXT("<tool_call>"),
            .call_close = TEXT("\n</tool_call>"),
            .heads = {{TEXT("<tool_call>"), TOOL_SLOT_NAME}, {TEXT(""), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
            .arguments = TOOL_ARGUMENTS_TAGGED,
            .key_open = TEXT("\n<arg_key>"),
            .key_close = TEXT("</arg_key>\n<arg_value>"),
            .value_close = TEXT("</arg_value>"),
        },
    },
    {
        "glm 4", // a name, a line end and JSON
        false,
        {"<tool_call>function_name", "</tool_call>"},
        {
            .style = TOOL_STYLE_MARKED,
            .call_open = TEXT("<tool_call>"),
            .call_close = TEXT("\n</tool_call>"),
            .heads = {{TEXT("<tool_call>"), TOOL_SLOT_NAME}, {TEXT("\n"), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
        },
    },
    {
        "qwen xml",
        false,
        {"<tool_call>", "<function=", "<parameter="},
        {
            .style = TOOL_STYLE_MARKED,
            .call_open = TEXT("<tool_call>\n<function="),
            .call_close = TEXT("</function>\n</tool_call>"),
            .heads = {{TEXT("<tool_call>\n<function="), TOOL_SLOT_NAME}, {TEXT(">"), TOOL_SLOT_ARGUMENTS}},
            .n_heads = 2,
            .arguments = TOOL_ARGUMENTS_TAGGED,
            .key_open = TEXT("\n<parameter="),
            .key_close = TEXT(">\n"),
            .value_close = TEXT("\n</parameter>"),
        },
    },
    {"hermes", false, {"<tool_call>", "\"name\"", "\"arguments\""}, HERMES},
    {"hermes in Python's words", false, {"<tool_call>", "'name'", "'arguments'"}, HERMES}, // Hermes 2 Pro, Falcon H1
};

const struct tool_wrapper tool_wrappers[TOOL_WRAPPERS] = {
    {TEXT("<tool_call>"), TEXT("</tool_call>"), false, false},
    {TEXT("[TOOL_CALLS]"), TEXT(""), false, false},
    {TEXT("```json"), TEXT("```"), false, true},
    {TEXT("```"), TEXT("```"), false, true},
    {TEXT("<|python_start|>"), TEXT("<|python_end|>"), true, false},
};

bool tool_wrapper_fits(const struct tool_wrapper *w, const struct tool_format *f) {
    bool marked = str_core(str_is_blank(f->section_open) ? f->call_open : f->section_open).len > 1;
    if (f->style == TOOL_STYLE_NONE || f->style == TOOL_STYLE_CHANNELS || (w->fence && marked))
        return false;
    return !w->literal || f->arguments == TOOL_ARGUMENTS_LITERAL;
}

static bool fits(const struct tool_row *row, struct str source) {
    for (size_t i = 0; i < NEEDS && row->needs[i]; i++)
        if (text_find(source, str_of(row->needs[i])) == NOT_FOUND)
            return false;
    return true;
}

/* What a row does not say of reasoning and content stays as it was found. */
static void take(struct tool_format *f, const struct tool_row *row) {
    struct tool_format before = *f;
    *f = row->format;
    f->arena = before.arena;
    f->found = row->name;
    if (f->reasoning_close.len == 0) {
        f->reasoning_open = before.reasoning_open;
        f->reasoning_close = before.reasoning_close;
        f->reasoning_is_exact = before.reasoning_is_exact;
    }
    if (f->content_open.len == 0) {
        f->content_open = before.content_open;
        f->content_close = before.content_close;
    }
}

bool tool_row_take(struct tool_format *f, struct str source, bool always) {
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].always == always && fits(&rows[i], source)) {
            take(f, &rows[i]);
            return true;
        }
    return false;
}
