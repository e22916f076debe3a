/* test_tool_elements.c - the grammar of calls whose arguments are tags or elements: what it takes is read as it was
 * meant, and follows the schema. */
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

static struct grammar *grammar_of(const struct tool_format *f, const json_t *tools) {
    struct error err;
    json_t *tag;
    const struct tool_choice choice = {.kind = TOOL_CHOICE_REQUIRED};
    EXPECT_OK(tool_format_tag(f, tools, &choice, &tag, &err), err);
    struct grammar *grammar;
    const struct grammar_source source = {.kind = GRAMMAR_STRUCTURAL_TAG, .value = tag};
    EXPECT_OK(grammar_compile(&source, NULL, &grammar, &err), err);
    json_decref(tag);
    return grammar;
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
    json_t *tools = parsed(tools_text);
    EXPECT_OK(chat_template_open_other("tests/data/chat", template, &chat, &err), err);
    struct tool_format *f = tool_format_open(chat, NULL);
    tool_format_describe(f, &said);
    EXPECT_STR(said.ptr, NS "<tool_call> nested tags (minimax m3)");
    struct grammar *grammar = grammar_of(f, tools);
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
    json_decref(tools);
    tool_format_free(f);
    chat_template_free(chat);
    buf_release(&said);
}

#define PARAMETERS(property)                                                                                         \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"required\":[\"v\"]," \
    "\"properties\":{\"v\":" property "},\"$defs\":{\"Color\":{\"enum\":[\"red\",\"green\"],\"type\":\"string\"},"   \
    "\"Size\":{\"type\":\"integer\",\"minimum\":3},\"Code\":{\"type\":\"string\",\"pattern\":\"^a$\"}}}}}]"

/* As pydantic writes schemas: what may be missing, names of a list and constants are not any text. */
static void alternatives_and_references_bind_a_tagged_value(void **state) {
    (void)state;
    static const struct {
        const char *tools, *good[4], *bad[4];
    } cases[] = {
        {PARAMETERS("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}"), {"7", "null"}, {"abc", "7.5", ""}},
        {PARAMETERS("{\"$ref\":\"#/$defs/Color\"}"), {"red", "green"}, {"blue", "7", "re"}},
        {PARAMETERS("{\"allOf\":[{\"$ref\":\"#/$defs/Size\"}],\"default\":4}"), {"3", "40"}, {"2", "x"}},
        {PARAMETERS("{\"anyOf\":[{\"$ref\":\"#/$defs/Color\"},{\"type\":\"null\"}]}"),
         {"red", "null"},
         {"blue", "nul"}},
        {PARAMETERS("{\"type\":\"string\",\"const\":\"x\"}"), {"x"}, {"y", "xx"}},
        {PARAMETERS("{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}"), {"null", "any <b>", ""}, {NULL}},
        {PARAMETERS("{}"), {"any", "7"}, {NULL}},
    };
    struct chat_template *chat;
    struct error err;
    EXPECT_OK(chat_template_open("tests/data/chat/templates/Qwen3.5-4B.jinja", &chat, &err), err);
    struct tool_format *f = tool_format_open(chat, NULL);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_t *tools = parsed(cases[i].tools);
        struct grammar *grammar = grammar_of(f, tools);
        for (size_t k = 0; k < 8; k++) {
            const char *value = k < 4 ? cases[i].good[k] : cases[i].bad[k - 4];
            char text[256];
            snprintf(text, sizeof text,
                     "<tool_call>\n<function=f>\n<parameter=v>\n%s\n</parameter>\n</function>\n</tool_call>", value);
            if (value && takes(grammar, text) != (k < 4))
                fail_msg("case %zu: \"%s\" is %staken", i, value, k < 4 ? "not " : "");
        }
        grammar_release(grammar);
        json_decref(tools);
    }
    json_t *tools = parsed(PARAMETERS("{\"anyOf\":[{\"$ref\":\"#/$defs/Code\"},{\"type\":\"null\"}]}")), *tag;
    const struct tool_choice choice = {.kind = TOOL_CHOICE_REQUIRED};
    EXPECT_EQ(tool_format_tag(f, tools, &choice, &tag, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "\"pattern\" of the string \"v\" is not enforced") != NULL);
    json_decref(tools);
    tool_format_free(f);
    chat_template_free(chat);
}

/* Calls that are asked for would not be read. */
static void marks_with_the_name_in_them_are_not_understood(void **state) {
    (void)state;
    static const char twice[] =
        "{% for m in messages %}<|start|>{{ m.role }}{% for c in m.tool_calls %} to={{ c.function.name }}<|message|>"
        "<invoke name=\"{{ c.function.name }}\">\n{% for k, v in c.function.arguments.items() %}<parameter name=\"{{ k "
        "}}"
        "\">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>{% endfor %}{{ m.content }}<|end|>"
        "{% endfor %}<|start|>assistant";
    struct chat_template *chat;
    struct error err;
    struct buf said = {0};
    EXPECT_OK(chat_template_open_other("tests/data/chat", twice, &chat, &err), err);
    struct tool_format *f = tool_format_open(chat, NULL);
    tool_format_describe(f, &said);
    EXPECT_STR(said.ptr, "none: the template's form of calls is not understood");
    buf_release(&said);
    tool_format_free(f);
    chat_template_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(marks_with_the_name_in_them_are_not_understood),
                                       cmocka_unit_test(a_call_of_the_grammar_is_read),
                                       cmocka_unit_test(alternatives_and_references_bind_a_tagged_value)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
