/* test_tools.c - formats of tool calls, derived from templates: what they say, the grammars made of them, their ids. */
#include "check.h"

#include "base/file.h"
#include "base/random.h"
#include "grammar/matcher.h"
#include "text/tools/tool_marks.h"
#include "text/tools/tool_parser.h"

#include <dirent.h>
#include <unistd.h>

#define TEMPLATES "tests/data/chat/templates/"

static struct chat_template *open_chat(const char *name) {
    char path[256];
    struct chat_template *t;
    struct error err;
    snprintf(path, sizeof path, TEMPLATES "%s.jinja", name);
    EXPECT_OK(chat_template_open(path, &t, &err), err);
    return t;
}

static struct tool_format *format_of(const char *name) {
    struct chat_template *t = open_chat(name);
    struct tool_format *f = tool_format_open(t, chat_template_named(t, "default"));
    chat_template_free(t); // a format owns what it says
    return f;
}

// ---- what is derived --------------------------------------------------------------------------------------------

static const struct {
    const char *name, *said;
} known[] = {
    {"Apertus-8B-Instruct", "<|tools_prefix|> JSON array (derived), reasoning: <|inner_prefix|>"},
    {"Bielik-11B-v3.0-Instruct", "<tool_call> JSON (derived), reasoning: <think>"},
    {"ByteDance-Seed-OSS", "<seed:tool_call> <function= tags (derived), reasoning: <seed:think>"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use",
     "<|START_ACTION|> JSON array (derived), reasoning: <|START_THINKING|>"},
    {"GLM-4.6", "<tool_call> tags (derived), reasoning: <think>"},
    {"HuggingFaceTB-SmolLM3-3B", "none: the template shows no calls, reasoning: <think>"},
    {"Kimi-K2-Instruct", "<|tool_calls_section_begin|> JSON (kimi)"},
    {"LFM2-8B-A1B", "<|tool_call_start|>[ literals (lfm2)"},
    {"MiMo-VL", "<tool_call> JSON (derived)"},
    {"MiniMax-M2", "<minimax:tool_call> tags (derived), reasoning: <think>"},
    {"Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS] JSON (derived)"},
    {"NVIDIA-Nemotron-Nano-v2", "<TOOLCALL> JSON array (derived), reasoning: <think>"},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<tool_call> JSON (derived)"},
    {"Qwen-QwQ-32B", "<tool_call> JSON (derived), reasoning: <think>"},
    {"Qwen-Qwen2.5-7B-Instruct", "<tool_call> JSON (derived)"},
    {"Qwen-Qwen3-0.6B", "<tool_call> JSON (derived), reasoning: <think>"},
    {"Qwen3.5-4B", "<tool_call> <function= tags (derived), reasoning: <think>"},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<｜tool▁calls▁begin｜> JSON (derived), reasoning: <think>"},
    {"deepseek-ai-DeepSeek-V3.1", "<｜tool▁calls▁begin｜> JSON (derived), reasoning: <think>"},
    {"fireworks-ai-llama-3-firefunction-v2", "functools JSON array (derived)"},
    {"google-gemma-2-2b-it", "none: the template shows no calls"},
    {"google-gemma-4-31B-it", "<|tool_call>call: literals (derived), reasoning: <|channel>thought"},
    {"ibm-granite-granite-3.3-2B-Instruct", "<|tool_call|> JSON array (granite), reasoning: <think>"},
    {"llama-cpp-deepseek-r1", "<｜tool▁calls▁begin｜> JSON (derived), reasoning: <think>"},
    {"llama-cpp-rwkv-world", "none: the template shows no calls, reasoning: <think>"},
    {"meetkai-functionary-medium-v3.1", "<function= JSON (derived)"},
    {"meta-llama-Llama-3.1-8B-Instruct", "JSON (derived)"},
    {"microsoft-Phi-3.5-mini-instruct", "none: the template shows no calls"},
    {"mistralai-Mistral-Nemo-Instruct-2407", "[TOOL_CALLS] JSON array (derived)"},
    {"openai-gpt-oss-120b", "in channels, JSON (harmony), reasoning: <|channel|>analysis<|message|>"},
    {"tencent-Hy3", "<tool_calls:opensource> tags (derived), reasoning: <think:opensource>"},
    {"upstage-Solar-Open-100B", "<|tool_calls|> JSON (derived), reasoning: <|think|>"},
};

static void a_template_tells_how_its_model_writes(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        struct tool_format *f = format_of(known[i].name);
        struct buf said = {0};
        tool_format_describe(f, &said);
        if (strcmp(said.ptr, known[i].said) != 0)
            fail_msg("%s: \"%s\", wanted \"%s\"", known[i].name, said.ptr, known[i].said);
        buf_release(&said);
        tool_format_free(f);
    }
}

static void every_template_at_hand_is_in_the_list(void **state) {
    (void)state;
    size_t n = 0;
    DIR *folder = opendir(TEMPLATES);
    EXPECT(folder != NULL);
    for (const struct dirent *e; (e = readdir(folder));)
        n += strstr(e->d_name, ".jinja") != NULL;
    closedir(folder);
    EXPECT_EQ(n, ARRAY_LEN(known));
}

static void a_model_without_a_template_has_no_calls(void **state) {
    (void)state;
    struct tool_format *f = tool_format_open(NULL, NULL);
    struct buf said = {0};
    EXPECT_EQ(f->style, TOOL_STYLE_NONE);
    tool_format_describe(f, &said);
    EXPECT_STR(said.ptr, "none: the model has no chat template");
    buf_release(&said);
    tool_format_free(f);
}

// ---- grammars ---------------------------------------------------------------------------------------------------

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"other\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"chosen\",\"strict\":true,\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"l\":{\"type\":\"array\"},"
    "\"o\":{\"type\":\"object\"},\"e\":{\"enum\":[\"one\",\"two\"]}},\"required\":[\"i\",\"s\"]}}}]";

static json_t *parsed(const char *text) {
    json_t *value;
    struct error err;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &value, &err), err);
    return value;
}

struct draws {
    uint64_t seed, n;
};

static uint64_t draw(struct draws *d) { return philox_bits53(d->seed, d->n++, 0); }

/* Some value of a schema, as JSON; of the tool's own: its required keys. */
static void write_value(const json_t *schema, struct buf *out) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (json_object_get(schema, "enum"))
        buf_str(out, STR("\"two\""));
    else if (json_object_get(schema, "required"))
        buf_str(out, STR("{\"i\": 7, \"s\": \"a \\\"b\\\" {<\"}"));
    else
        buf_str(out, str_of(strcmp(type, "object") == 0    ? "{\"k\": [null]}"
                            : strcmp(type, "array") == 0   ? "[1, \"x\"]"
                            : strcmp(type, "integer") == 0 ? "7"
                                                           : "\"s\""));
}

static const char *text_in(const json_t *element, const char *key) {
    return json_string_value(json_object_get(element, key));
}

/* A text of the grammar: with alternatives drawn at random. */
static void write_text(const json_t *element, struct draws *rng, struct buf *out) {
    const char *type = text_in(element, "type");
    const json_t *elements = json_object_get(element, "elements"), *tags = json_object_get(element, "tags");
    if (strcmp(type, "const_string") == 0)
        buf_str(out, str_of(text_in(element, "value")));
    else if (strcmp(type, "any_text") == 0)
        buf_str(out, STR("any {text} <"));
    else if (strcmp(type, "regex") == 0)
        buf_str(out, strchr(text_in(element, "pattern"), 'z') ? STR("abcdef123") : STR("0"));
    else if (strcmp(type, "json_schema") == 0)
        write_value(json_object_get(element, "json_schema"), out);
    else if (strcmp(type, "or") == 0)
        write_text(json_array_get(elements, draw(rng) % json_array_size(elements)), rng, out);
    else if (strcmp(type, "star") == 0)
        for (uint64_t n = draw(rng) % 3; n > 0; n--)
            write_text(json_object_get(element, "content"), rng, out);
    else if (strcmp(type, "sequence") == 0)
        for (size_t i = 0; i < json_array_size(elements); i++)
            write_text(json_array_get(elements, i), rng, out);
    else if (strcmp(type, "tag") == 0) {
        buf_str(out, str_of(text_in(element, "begin")));
        write_text(json_object_get(element, "content"), rng, out);
        buf_str(out, str_of(text_in(element, "end")));
    } else if (strcmp(type, "tags_with_separator") == 0) {
        bool more = !json_is_true(json_object_get(element, "stop_after_first"));
        write_text(json_array_get(tags, 0), rng, out);
        if (more) {
            buf_str(out, str_of(text_in(element, "separator")));
            write_text(json_array_get(tags, json_array_size(tags) - 1), rng, out);
        }
    } else if (strcmp(type, "triggered_tags") == 0) {
        const char *trigger = json_string_value(json_array_get(json_object_get(element, "triggers"), 0));
        EXPECT(strncmp(text_in(json_array_get(tags, 0), "begin"), trigger, strlen(trigger)) == 0);
        buf_str(out, STR("Well. "));
        write_text(json_array_get(tags, json_array_size(tags) - 1), rng, out);
    } else
        fail_msg("a form of tags that is not known: %s", type);
}

struct seen {
    struct buf content, name, arguments;
    int n_calls;
};

static void see(void *arg, const struct tool_event *e) {
    struct seen *seen = arg;
    if (e->kind == TOOL_EVENT_CONTENT)
        buf_str(&seen->content, e->text);
    if (e->kind == TOOL_EVENT_ARGUMENTS)
        buf_str(&seen->arguments, e->text);
    if (e->kind != TOOL_EVENT_CALL)
        return;
    buf_clear(&seen->name);
    buf_clear(&seen->arguments);
    buf_str(&seen->name, e->text);
    seen->n_calls = e->index + 1;
}

static void expect_call(const char *template, const json_t *tools, struct str text, const struct seen *seen) {
    const char *name = seen->name.ptr ? seen->name.ptr : "";
    json_error_t e;
    json_t *arguments = seen->arguments.ptr ? json_loads(seen->arguments.ptr, 0, &e) : NULL;
    bool is_other = strcmp(name, "other") == 0, known_name = is_other || strcmp(name, "chosen") == 0;
    bool good = known_name && json_is_object(arguments) &&
                (is_other || (json_is_string(json_object_get(arguments, "s")) &&
                              json_integer_value(json_object_get(arguments, "i")) == 7));
    if (!good)
        fail_msg("%s: %.*s: gave %s(%s) and \"%s\"", template, STR_ARG(text), name,
                 seen->arguments.ptr ? seen->arguments.ptr : "", seen->content.ptr ? seen->content.ptr : "");
    (void)tools;
    json_decref(arguments);
}

/* The grammar room takes the tag, and a text of it that is written here. */
static void expect_match(const char *name, struct grammar *grammar, struct str text) {
    struct matcher *m;
    struct error err;
    EXPECT_OK(matcher_open(grammar, NULL, &m, &err), err);
    if (!matcher_accept_bytes(m, text) || !matcher_may_end(m))
        fail_msg("%s: the grammar does not take %.*s", name, STR_ARG(text));
    matcher_free(m);
}

static void try_choice(const char *name, const struct tool_format *f, const json_t *tools, struct tool_choice choice,
                       struct draws *rng) {
    struct error err;
    json_t *tag;
    EXPECT_OK(tool_format_tag(f, tools, &choice, &tag, &err), err);
    if (!tag) {
        EXPECT(choice.kind == TOOL_CHOICE_AUTO);
        return;
    }
    struct grammar *grammar;
    const struct grammar_source source = {.kind = GRAMMAR_STRUCTURAL_TAG, .value = tag};
    if (grammar_compile(&source, NULL, &grammar, &err) != OK)
        fail_msg("%s: %s", name, err.text);
    for (int i = 0; i < 8; i++) {
        struct buf text = {0};
        struct seen seen = {0};
        const struct tool_parser_options options = {.tools = tools, .told = see, .arg = &seen};
        struct tool_parser *p = tool_parser_open(f, &options);
        write_text(json_object_get(tag, "format"), rng, &text);
        tool_parser_feed(p, buf_view(&text));
        tool_parser_finish(p, TOOL_TEXT_ENDED);
        expect_match(name, grammar, buf_view(&text));
        bool answers = choice.kind == TOOL_CHOICE_AUTO && f->style == TOOL_STYLE_CHANNELS &&
                       text_find(buf_view(&text), STR(TOOL_CHANNEL_ANSWER)) != NOT_FOUND;
        EXPECT(answers ? seen.content.len > 0 : seen.n_calls >= 1);
        if (!answers)
            expect_call(name, tools, buf_view(&text), &seen);
        if (choice.kind == TOOL_CHOICE_NAMED)
            EXPECT_STR(seen.name.ptr, "chosen");
        if (choice.kind != TOOL_CHOICE_AUTO && seen.content.len)
            fail_msg("%s: %s: has content", name, text.ptr);
        if (!choice.parallel && seen.n_calls != !answers)
            fail_msg("%s: %s: has %d calls", name, text.ptr, seen.n_calls);
        tool_parser_free(p);
        buf_release(&text);
        buf_release(&seen.content);
        buf_release(&seen.name);
        buf_release(&seen.arguments);
    }
    grammar_release(grammar);
    json_decref(tag);
}

static void a_text_of_the_grammar_is_a_call(void **state) {
    (void)state;
    struct draws rng = {.seed = test_seed()};
    json_t *tools = parsed(tools_text);
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        struct tool_format *f = format_of(known[i].name);
        for (int kind = TOOL_CHOICE_AUTO; f->style != TOOL_STYLE_NONE && kind <= TOOL_CHOICE_NAMED; kind++)
            for (int parallel = 0; parallel < 2; parallel++)
                try_choice(
                    known[i].name, f, tools,
                    (struct tool_choice){.kind = (enum tool_choice_kind)kind, .name = "chosen", .parallel = parallel},
                    &rng);
        tool_format_free(f);
    }
    json_decref(tools);
}

static void what_cannot_be_asked_for_is_said(void **state) {
    (void)state;
    struct error err;
    json_t *tools = parsed(tools_text), *tag,
           *bounded = parsed("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                             "\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":3}}}}}]");
    struct tool_format *tagged = format_of("GLM-4.6"), *none = format_of("google-gemma-2-2b-it");
    const struct tool_choice any = {.kind = TOOL_CHOICE_REQUIRED},
                             named = {.kind = TOOL_CHOICE_NAMED, .name = "nobody"};
    EXPECT_EQ(tool_format_tag(none, tools, &any, &tag, &err), ERR_UNSUPPORTED);
    EXPECT_STR(err.text, "tools: this model's calls are not understood: the template shows no calls");
    EXPECT_EQ(tool_format_tag(tagged, tools, &named, &tag, &err), ERR_ARG);
    EXPECT_STR(err.text, "tool_choice: there is no tool named \"nobody\"");
    EXPECT_EQ(tool_format_tag(tagged, bounded, &any, &tag, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "\"maxLength\" of the string \"s\"") != NULL);
    tool_format_free(tagged);
    tool_format_free(none);
    json_decref(tools);
    json_decref(bounded);
}

/* A tokenizer that says it itself is believed. */
static void a_response_template_is_believed(void **state) {
    (void)state;
    static const struct {
        const char *config, *said, *text, *arguments;
    } cases[] = {
        {"{\"response_template\": {\"fields\": {\"thinking\": {\"open\": \"<|channel>thought\\n\", \"close\": "
         "\"<channel|>\"}, \"tool_calls\": {\"close\": \"<tool_call|>\", \"content\": \"json\", \"content_args\": "
         "{\"string_delims\": [[\"<|\\\"|>\", \"<|\\\"|>\"]], \"unquoted_keys\": true}, \"open_pattern\": "
         "\"<\\\\|tool_call>call:(?P<name>\\\\w+)\", \"repeats\": true}}}}",
         "<|tool_call>call: literals (response_template), reasoning: <|channel>thought",
         "<|tool_call>call:chosen{i:7,s:<|\"|>x<|\"|>}<tool_call|>", "{\"i\": 7, \"s\": \"x\"}"},
        {"{\"response_template\": {\"fields\": {\"tool_calls\": {\"open\": \"<call>\", \"close\": \"</call>\", "
         "\"content\": \"json\", \"transform\": {\"function\": {\"name\": \"{content.tool}\", \"arguments\": "
         "\"{content.input}\"}}}}}}",
         "<call> JSON (response_template)", "<call>{\"tool\": \"chosen\", \"input\": {\"i\": 7}}</call>", "{\"i\": 7}"},
        {"{\"response_template\": {\"fields\": {\"tool_calls\": {\"open_pattern\": "
         "\"<tool_call>\\\\s*<function=(?P<name>[^>]+)>\\\\s*\", \"close\": \"</tool_call>\", \"content\": "
         "\"xml-inline\", \"content_args\": {\"tag_pattern\": "
         "\"<parameter=(?P<key>[^>]+)>\\\\n?(?P<value>.*?)\\\\n?</parameter>\"}}}}}",
         "<tool_call> <function= tags (response_template)",
         "<tool_call>\n<function=chosen>\n<parameter=i>\n7\n</parameter>\n</tool_call>", "{\"i\": 7}"},
    };
    json_t *tools = parsed(tools_text);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char folder[] = "/tmp/gyre-tools-XXXXXX", path[64];
        struct chat_template *chat;
        struct error err;
        struct buf said = {0};
        struct seen seen = {0};
        EXPECT(mkdtemp(folder) != NULL);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
        EXPECT_OK(file_write(path, str_of(cases[i].config), &err), err);
        EXPECT_OK(chat_template_open_other(folder, "{{ messages[0].content }}", &chat, &err), err);
        struct tool_format *f = tool_format_open(chat, NULL);
        tool_format_describe(f, &said);
        EXPECT_STR(said.ptr, cases[i].said);
        const struct tool_parser_options options = {.tools = tools, .told = see, .arg = &seen};
        struct tool_parser *p = tool_parser_open(f, &options);
        tool_parser_feed(p, str_of(cases[i].text));
        tool_parser_finish(p, TOOL_TEXT_ENDED);
        EXPECT_EQ(seen.n_calls, 1);
        EXPECT_STR(seen.arguments.ptr, cases[i].arguments);
        tool_parser_free(p);
        tool_format_free(f);
        chat_template_free(chat);
        unlink(path);
        rmdir(folder);
        buf_release(&said);
        buf_release(&seen.content);
        buf_release(&seen.name);
        buf_release(&seen.arguments);
    }
    json_decref(tools);
}

// ---- answers that end inside of a call ---------------------------------------------------------------------------

/* In one piece and byte by byte: the arguments and the content that are told. */
static void expect_told(const char *template, struct str text, enum tool_end end, struct str arguments,
                        struct str content) {
    json_t *tools = parsed(tools_text);
    struct tool_format *f = format_of(template);
    for (size_t step = text.len; step; step = step > 1 ? 1 : 0) {
        struct seen seen = {0};
        const struct tool_parser_options options = {.tools = tools, .told = see, .arg = &seen};
        struct tool_parser *p = tool_parser_open(f, &options);
        for (size_t at = 0; at < text.len; at += step)
            tool_parser_feed(p, str_to(str_from(text, at), MIN(step, text.len - at)));
        tool_parser_finish(p, end);
        EXPECT_EQ(seen.n_calls, 1);
        if (!str_eq(buf_view(&seen.arguments), arguments) || !str_eq(buf_view(&seen.content), content))
            fail_msg("%s: %.*s: gave %.*s and \"%.*s\"", template, STR_ARG(text), STR_ARG(buf_view(&seen.arguments)),
                     STR_ARG(buf_view(&seen.content)));
        tool_parser_free(p);
        buf_release(&seen.content);
        buf_release(&seen.name);
        buf_release(&seen.arguments);
    }
    tool_format_free(f);
    json_decref(tools);
}

static void a_key_that_the_answer_ends_in_loses_no_character(void **state) {
    (void)state;
    static const struct {
        const char *text, *ended, *content, *cut;
    } cases[] = {
        {"<parameter=na", "{}", "<parameter=na", "{\"na"},
        {"<parameter=", "{}", "<parameter=", ""},
        {"<parameter=i>\n7\n</parameter>\n<parameter=n\"a", "{\"i\": 7}", "<parameter=n\"a", "{\"i\": 7, \"n\\\"a"},
        {"<parameter=s>", "{\"s\": \"\"}", "", "{\"s\": \""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf text = {0};
        buf_printf(&text, "<tool_call>\n<function=chosen>\n%s", cases[i].text);
        expect_told("Qwen3.5-4B", buf_view(&text), TOOL_TEXT_ENDED, str_of(cases[i].ended), str_of(cases[i].content));
        expect_told("Qwen3.5-4B", buf_view(&text), TOOL_TEXT_CUT, str_of(cases[i].cut), STR(""));
        buf_release(&text);
    }
    expect_told("GLM-4.6", STR("<tool_call>chosen\n<arg_key>s</arg_key>\n<arg_va"), TOOL_TEXT_ENDED,
                STR("{\"s\": \"\"}"), STR(""));
}

static void a_key_that_is_too_long_is_text(void **state) {
    (void)state;
    static const char *const behind[] = {"", ">", ">\n", ">\n7\n</parameter>\n</function>\n</tool_call>"};
    for (size_t n = 1025; n < 1300; n += n < 1027 ? 1 : 30)
        for (size_t i = 0; i < ARRAY_LEN(behind); i++) {
            struct buf text = {0};
            buf_str(&text, STR("<tool_call>\n<function=chosen>\n"));
            size_t head = text.len;
            buf_str(&text, STR("<parameter="));
            for (size_t k = 0; k < n; k++)
                buf_push(&text, 'a');
            buf_str(&text, str_of(behind[i]));
            expect_told("Qwen3.5-4B", buf_view(&text), TOOL_TEXT_ENDED, STR("{}"), str_from(buf_view(&text), head));
            buf_release(&text);
        }
}

static void a_word_that_the_answer_ends_in_is_told(void **state) {
    (void)state;
    static const char *const words[] = {"12", "tr", "-", "null"}, *const behind[] = {"", "<|call|>", "<|end|>"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        for (size_t k = 0; k < ARRAY_LEN(behind); k++) {
            struct buf text = {0}, arguments = {0};
            buf_printf(&arguments, "{\"a\": %s", words[i]);
            buf_printf(&text, "<|channel|>commentary to=functions.chosen<|message|>%s%s", arguments.ptr, behind[k]);
            for (int end = TOOL_TEXT_ENDED; end <= TOOL_TEXT_CUT; end++)
                expect_told("openai-gpt-oss-120b", buf_view(&text), (enum tool_end)end, buf_view(&arguments), STR(""));
            buf_release(&text);
            buf_release(&arguments);
        }
}

// ---- ids and prompts --------------------------------------------------------------------------------------------

static void ids_have_the_form_that_the_template_takes(void **state) {
    (void)state;
    static const struct {
        const char *name, *id;
        size_t length;
    } forms[] = {{"Kimi-K2-Instruct", "functions.f:3", 13},
                 {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "3", 1},
                 {"mistralai-Mistral-Nemo-Instruct-2407", NULL, 9},
                 {"Qwen-Qwen2.5-7B-Instruct", NULL, 25}};
    const uint64_t random[2] = {0x0123456789ABCDEF, 42};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct tool_format *f = format_of(forms[i].name);
        struct buf id = {0};
        tool_format_make_id(f, STR("f"), 3, random, &id);
        EXPECT_EQ(id.len, forms[i].length);
        if (forms[i].id)
            EXPECT_STR(id.ptr, forms[i].id);
        buf_release(&id);
        tool_format_free(f);
    }
}

static void the_end_of_a_prompt_may_open_the_reasoning(void **state) {
    (void)state;
    struct tool_format *f = format_of("Qwen-Qwen3-0.6B");
    EXPECT(str_eq(tool_format_opened(f, STR("<|im_start|>assistant\n<think>\n")), STR("<think>\n")));
    EXPECT(tool_format_opens_reasoning(f, STR("assistant\n<think>\n")));
    EXPECT(tool_format_opened(f, STR("assistant\n<think>\n\n</think>\n\n")).len == 0);
    EXPECT(!tool_format_opens_reasoning(f, STR("say <think> twice\nassistant\n")));
    tool_format_free(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_tells_how_its_model_writes),
        cmocka_unit_test(every_template_at_hand_is_in_the_list),
        cmocka_unit_test(a_model_without_a_template_has_no_calls),
        cmocka_unit_test(a_response_template_is_believed),
        cmocka_unit_test(a_text_of_the_grammar_is_a_call),
        cmocka_unit_test(what_cannot_be_asked_for_is_said),
        cmocka_unit_test(a_key_that_the_answer_ends_in_loses_no_character),
        cmocka_unit_test(a_key_that_is_too_long_is_text),
        cmocka_unit_test(a_word_that_the_answer_ends_in_is_told),
        cmocka_unit_test(ids_have_the_form_that_the_template_takes),
        cmocka_unit_test(the_end_of_a_prompt_may_open_the_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
