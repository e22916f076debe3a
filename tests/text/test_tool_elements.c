/* test_tool_elements.c - the grammar of calls whose arguments are elements: what it takes is read as it was meant. */
#include "check.h"

#include "base/file.h"
#include "grammar/matcher.h"
#include "text/tools/tool_parser.h"

#define NS "]<]minimax[>["

static const char template[] =
    "{# " NS "<tool_call> <invoke name= #}{% for m in messages %}{{ m.role + m.content }}{% endfor %}";

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"e\":{\"enum\":[\"one\",\"two\"]},\"o\":{\"type\":\"object\",\"properties\":"
    "{\"k\":{\"type\":\"integer\"}},\"required\":[\"k\"]}},\"required\":[\"s\",\"o\"]}}}]";

static json_t *parsed(const char *text) {
    json_t *value;
    struct error err;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &value, &err), err);
    return value;
}

static void see(void *arg, const struct tool_event *e) {
    if (e->kind == TOOL_EVENT_ARGUMENTS)
        buf_str(arg, e->text);
}

static bool takes(struct grammar *grammar, const char *text) {
    struct matcher *m;
    struct error err;
    EXPECT_OK(matcher_open(grammar, NULL, &m, &err), err);
    bool whole = matcher_accept_bytes(m, str_of(text)) && matcher_may_end(m);
    matcher_free(m);
    return whole;
}

static void expect_arguments(const struct tool_format *f, const json_t *tools, const char *text, const char *want) {
    struct buf told = {0};
    const struct tool_parser_options options = {.tools = tools, .told = see, .arg = &told};
    struct tool_parser *p = tool_parser_open(f, &options);
    tool_parser_feed(p, str_of(text));
    tool_parser_finish(p, TOOL_TEXT_ENDED);
    EXPECT_STR(told.ptr, want);
    tool_parser_free(p);
    buf_release(&told);
}

static void a_call_of_the_grammar_is_read(void **state) {
    (void)state;
    static const char open[] = NS "<tool_call>\n" NS "<invoke name=\"f\">";
    static const char close[] = NS "</invoke>\n" NS "</tool_call>";
    static const struct {
        const char *inside, *arguments; // NULL: the grammar does not take it
    } cases[] = {
        {NS "<s>a <b> 7" NS "</s>" NS "<e>two" NS "</e>" NS "<o>{\"k\": 7}" NS "</o>",
         "{\"s\": \"a <b> 7\", \"e\": \"two\", \"o\": {\"k\": 7}}"},
        {NS "<s>" NS "</s>" NS "<o>{\"k\": 7}" NS "</o>", "{\"s\": \"\", \"o\": {\"k\": 7}}"},
        {NS "<s>x" NS "</e>" NS "<o>{\"k\": 7}" NS "</o>", NULL},
        {NS "<s>x" NS "</s>" NS "<o>{\"k\": \"7\"}" NS "</o>", NULL},
        {NS "<s>x" NS "</s>", NULL},
    };
    struct chat_template *chat;
    struct error err;
    struct buf said = {0};
    json_t *tools = parsed(tools_text), *tag;
    EXPECT_OK(chat_template_open_other("tests/data/chat", template, &chat, &err), err);
    struct tool_format *f = tool_format_open(chat, NULL);
    tool_format_describe(f, &said);
    EXPECT_STR(said.ptr, NS "<tool_call> nested tags (minimax m3)");
    const struct tool_choice choice = {.kind = TOOL_CHOICE_REQUIRED};
    EXPECT_OK(tool_format_tag(f, tools, &choice, &tag, &err), err);
    struct grammar *grammar;
    const struct grammar_source source = {.kind = GRAMMAR_STRUCTURAL_TAG, .value = tag};
    EXPECT_OK(grammar_compile(&source, NULL, &grammar, &err), err);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf text = {0};
        buf_printf(&text, "%s%s%s", open, cases[i].inside, close);
        if (takes(grammar, text.ptr) != (cases[i].arguments != NULL))
            fail_msg("case %zu: the grammar %s %s", i, cases[i].arguments ? "does not take" : "takes", text.ptr);
        if (cases[i].arguments)
            expect_arguments(f, tools, text.ptr, cases[i].arguments);
        buf_release(&text);
    }
    grammar_release(grammar);
    json_decref(tag);
    json_decref(tools);
    tool_format_free(f);
    chat_template_free(chat);
    buf_release(&said);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_call_of_the_grammar_is_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
