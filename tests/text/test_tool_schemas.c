/* test_tool_schemas.c - schemas of tagged arguments, as clients and attackers write them: what a grammar of tags cannot
 * hold a value to is refused by name, and none takes more time than its length. */
#include "check.h"

#include "grammar/matcher.h"
#include "text/tools/tool_parser.h"

#include <time.h>

#define NS "]<]minimax[>["

static struct tool_format *qwen;

static json_t *parsed(const char *text) {
    json_t *value;
    struct error err;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &value, &err), err);
    return value;
}

/* A tool f that must have an argument v and may have another, a number; definitions are members of $defs. */
static json_t *tools_of(const char *property, const char *definitions) {
    struct buf text = {0};
    buf_printf(&text,
               "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
               "\"required\":[\"v\"],\"properties\":{\"v\":%s,\"other\":{\"type\":\"integer\"}},\"$defs\":{%s}}}}]",
               property, definitions);
    json_t *tools = parsed(text.ptr);
    buf_release(&text);
    return tools;
}

static enum status tag_of(const json_t *tools, json_t **tag, struct error *err) {
    const struct tool_choice choice = {.kind = TOOL_CHOICE_REQUIRED};
    *tag = NULL;
    return tool_format_tag(qwen, tools, &choice, tag, err);
}

/* The request is refused, with these words. */
static void expect_refused(const char *property, const char *definitions, const char *words) {
    json_t *tools = tools_of(property, definitions), *tag;
    struct error err = {0};
    if (tag_of(tools, &tag, &err) != ERR_UNSUPPORTED)
        fail_msg("%s is taken", property);
    if (!strstr(err.text, words))
        fail_msg("%s: \"%s\" does not say \"%s\"", property, err.text, words);
    json_decref(tag);
    json_decref(tools);
}

/* The text of a value that a call may have, and one that it may not. */
static void expect_binds(const char *property, const char *definitions, const char *good, const char *bad) {
    json_t *tools = tools_of(property, definitions), *tag;
    struct error err;
    struct grammar *grammar;
    EXPECT_OK(tag_of(tools, &tag, &err), err);
    const struct grammar_source source = {.kind = GRAMMAR_STRUCTURAL_TAG, .value = tag};
    EXPECT_OK(grammar_compile(&source, NULL, &grammar, &err), err);
    for (int is_good = 0; is_good < 2; is_good++) {
        struct matcher *m;
        char text[256];
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=f>\n<parameter=v>\n%s\n</parameter>\n</function>\n</tool_call>",
                 is_good ? good : bad);
        EXPECT_OK(matcher_open(grammar, NULL, &m, &err), err);
        if ((matcher_accept_bytes(m, str_of(text)) && matcher_may_end(m)) != is_good)
            fail_msg("%s: \"%s\" is %staken", property, is_good ? good : bad, is_good ? "not " : "");
        matcher_free(m);
    }
    grammar_release(grammar);
    json_decref(tag);
    json_decref(tools);
}

static void hear(void *arg, const struct tool_event *e) {
    if (e->kind == TOOL_EVENT_ARGUMENTS)
        buf_str(arg, e->text);
}

/* What the arguments of a text become, which is a call in f's form. */
static void expect_arguments(const struct tool_format *f, const json_t *tools, struct str text, const char *want) {
    struct buf told = {0};
    const struct tool_parser_options options = {.tools = tools, .told = hear, .arg = &told};
    struct tool_parser *p = tool_parser_open(f, &options);
    tool_parser_feed(p, text);
    tool_parser_finish(p, TOOL_TEXT_ENDED);
    if (want)
        EXPECT_STR(told.ptr, want);
    tool_parser_free(p);
    buf_release(&told);
}

static struct tool_format *minimax_format(void) {
    static const char template[] =
        "{# " NS "<tool_call> <invoke name= #}{% for m in messages %}{{ m.role + m.content }}{% endfor %}";
    struct chat_template *chat;
    struct error err;
    EXPECT_OK(chat_template_open_other("tests/data/chat", template, &chat, &err), err);
    struct tool_format *f = tool_format_open(chat, NULL);
    chat_template_free(chat);
    return f;
}

// ---- time -------------------------------------------------------------------------------------------------------

static void list_of(struct buf *out, const char *before, const char *one, int n, const char *behind) {
    buf_str(out, str_of(before));
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%s", i ? "," : "", one);
    buf_str(out, str_of(behind));
}

/* References that lead to themselves, or to each other: 30 wide and 8 deep they were 30^8 visits. In a chain of
 * definitions, each of them five times the next, there are as many alternatives and no circle. The longest list has
 * 500,000 values, as often as a circle leads to it. */
static void references_that_multiply_are_refused_at_once(void **state) {
    (void)state;
    static const char property[] = "{\"$ref\":\"#/$defs/A0\"}";
    static const char *const choices[] = {"anyOf", "oneOf"};
    struct buf circle = {0}, chain = {0}, values = {0}, before = {0};
    const clock_t start = clock();
    for (size_t i = 0; i < ARRAY_LEN(choices); i++) {
        buf_clear(&circle);
        buf_clear(&before);
        buf_printf(&before, "\"A0\":{\"%s\":[", choices[i]);
        list_of(&circle, before.ptr, property, 30, "]}");
        expect_refused(property, circle.ptr, "the schema of \"v\" is nested too deeply");
    }
    for (int level = 0; level < 7; level++) {
        char next[64];
        buf_clear(&before);
        buf_printf(&before, "%s\"A%d\":{\"anyOf\":[", level ? "," : "", level);
        snprintf(next, sizeof next, "{\"$ref\":\"#/$defs/A%d\"}", level + 1);
        list_of(&chain, before.ptr, next, 5, "]}");
    }
    buf_str(&chain, STR(",\"A7\":{\"enum\":[\"a\",1]}"));
    expect_refused(property, chain.ptr, "the schema of \"v\" has too many alternatives");
    list_of(&values, "\"B\":{\"enum\":[", "\"a\"", 500000, "]},\"A0\":{\"anyOf\":[");
    list_of(&values, "", "{\"$ref\":\"#/$defs/B\"}", 1000, "]}");
    expect_refused(property, values.ptr, "the schema of \"v\" has too many alternatives");
    EXPECT((double)(clock() - start) / CLOCKS_PER_SEC < 20);
    buf_release(&circle);
    buf_release(&chain);
    buf_release(&values);
    buf_release(&before);
}

/* An answer of 3,000 elements whose members have such a schema: what a budget leaves is read as what it looks like. */
static void references_that_multiply_are_read_in_a_bounded_time(void **state) {
    (void)state;
    static const char ref[] = "{\"$ref\":\"#/$defs/A0\"}";
    struct tool_format *minimax = minimax_format();
    struct buf circle = {0}, text = {0};
    const clock_t start = clock();
    list_of(&circle, "\"A0\":{\"anyOf\":[", ref, 30, "]}");
    json_t *tools = tools_of(ref, circle.ptr);
    expect_arguments(qwen, tools,
                     STR("<tool_call>\n<function=f>\n<parameter=v>\n7\n</parameter>\n</function>\n</tool_call>"),
                     "{\"v\": 7}");
    buf_str(&text, STR(NS "<tool_call>\n" NS "<invoke name=\"f\">" NS "<v>"));
    for (int i = 0; i < 3000; i++)
        buf_str(&text, STR(NS "<item>x" NS "</item>"));
    buf_str(&text, STR(NS "</v>" NS "</invoke>\n" NS "</tool_call>"));
    expect_arguments(minimax, tools, buf_view(&text), NULL);
    EXPECT((double)(clock() - start) / CLOCKS_PER_SEC < 20);
    json_decref(tools);
    buf_release(&circle);
    buf_release(&text);
    tool_format_free(minimax);
}

/* What a schema of honest size has is bound: hundreds of names, unions within unions. */
static void a_large_union_is_bound(void **state) {
    (void)state;
    struct buf names = {0}, all = {0};
    for (int i = 0; i < 300; i++)
        buf_printf(&names, "%s\"n%d\"", i ? "," : "", i);
    buf_printf(&all, "\"A0\":{\"anyOf\":[{\"enum\":[%s]},{\"anyOf\":[", names.ptr);
    list_of(&all, "", "{\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"x\"}]}", 60, "]}]}");
    expect_binds("{\"$ref\":\"#/$defs/A0\"}", all.ptr, "n299", "n300");
    expect_binds("{\"$ref\":\"#/$defs/A0\"}", all.ptr, "x", "y");
    buf_release(&names);
    buf_release(&all);
}

// ---- bounds -----------------------------------------------------------------------------------------------------

/* A bound beside alternatives or names binds all of them: what the grammar of tags would drop is refused. */
static void a_bound_beside_alternatives_is_not_dropped(void **state) {
    (void)state;
    static const struct {
        const char *property, *word;
    } cases[] = {
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"maxLength\":5}", "maxLength"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"not\":{\"const\":\"x\"}}", "not"},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/S\"}],\"pattern\":\"^a\"}", "pattern"},
        {"{\"anyOf\":[{\"type\":\"string\"}],\"oneOf\":[{\"const\":\"x\"},{\"const\":\"y\"}]}", "oneOf"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"maximum\":5}", "maximum"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\"}],\"items\":{\"type\":\"integer\"}}", "items"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\"}],\"required\":[\"k\"]}", "required"},
        {"{\"enum\":[\"a\",\"b\"],\"pattern\":\"^a\"}", "pattern"},
        {"{\"enum\":[\"a\",\"b\"],\"const\":\"a\"}", "const"},
        {"{\"type\":\"string\",\"const\":\"a\",\"not\":{\"const\":\"a\"}}", "not"},
        {"{\"type\":\"string\",\"enum\":[\"a\",\"b\"],\"anyOf\":[{\"const\":\"b\"}]}", "anyOf"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char words[80];
        snprintf(words, sizeof words, "\"%s\" of the string \"v\" is not enforced", cases[i].word);
        expect_refused(cases[i].property, "\"S\":{\"type\":\"string\"}", words);
    }
    static const char union_of[] = "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"null\"}],\"default\":null,"
                                   "\"title\":\"T\",\"description\":\"d\",\"minimum\":3}"; // of numbers: it has none
    expect_binds(union_of, "", "null", "b");
    expect_binds("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"maximum\":5}", "", "5", "6");
}

// ---- references -------------------------------------------------------------------------------------------------

static const char definitions[] =
    "\"A\":{\"$ref\":\"#/$defs/B\"},\"B\":{\"$ref\":\"#/$defs/C\"},\"C\":{\"enum\":[\"red\",\"green\"]},"
    "\"N\":{\"type\":\"integer\"},\"S\":{\"type\":\"string\"},\"In\":{\"properties\":{\"a/b\":{\"const\":\"x\"}}},"
    "\"Any\":{},\"P\":{\"$ref\":\"#/$defs/S\",\"pattern\":\"^a\"},\"Loop\":{\"$ref\":\"#/$defs/Loop\"}";

/* Wherever it leads, over whichever definitions, and whatever else it says. */
static void a_reference_binds_or_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *property, *good, *bad;
    } bound[] = {
        {"{\"$ref\":\"#/$defs/A\"}", "red", "blue"},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/A\"},{\"type\":\"null\"}]}", "green", "blue"},
        {"{\"$ref\":\"#/$defs/In/properties/a~1b\"}", "x", "y"},
        {"{\"$ref\":\"#/properties/other\"}", "7", "x"},
        {"{\"$ref\":\"#/$defs/N\",\"maximum\":5}", "5", "6"},
        {"{\"$ref\":\"#/$defs/S\",\"maximum\":5,\"description\":\"d\"}", "any", "any\n</parameter>"},
    };
    static const struct {
        const char *property, *words;
    } refused[] = {
        {"{\"$ref\":\"#/$defs/Loop\"}", "the schema of \"v\" is nested too deeply"},
        {"{\"$ref\":\"#/$defs/Missing\"}", "\"#/$defs/Missing\" of \"v\" leads to no schema"},
        {"{\"$ref\":\"other.json\"}", "\"other.json\" of \"v\" leads to no schema"},
        {"{\"$ref\":7}", "\"\" of \"v\" leads to no schema"},
        {"{\"$ref\":\"#/$defs/S\",\"maxLength\":5}", "\"maxLength\" of the string \"v\""},
        {"{\"$ref\":\"#/$defs/A\",\"enum\":[\"red\"]}", "\"enum\" of the string \"v\""},
        {"{\"$ref\":\"#/$defs/P\"}", "\"pattern\" of the string \"v\""},
        {"{\"$ref\":\"#/$defs/Any\",\"maximum\":5}", "\"maximum\" of the string \"v\""},
        {"{\"$ref\":\"#/$defs/Any\",\"type\":\"string\"}", "\"type\" beside the $ref of \"v\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(bound); i++)
        expect_binds(bound[i].property, definitions, bound[i].good, bound[i].bad);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        expect_refused(refused[i].property, definitions, refused[i].words);
    json_t *tools = tools_of("{\"$ref\":\"#/properties/other\"}", ""),
           *texts = tools_of("{\"$ref\":\"#/$defs/A\"}", definitions);
    static const char call[] = "<tool_call>\n<function=f>\n<parameter=v>\n07\n</parameter>\n</function>\n</tool_call>";
    expect_arguments(qwen, tools, str_of(call), "{\"v\": 7}");
    expect_arguments(qwen, texts, str_of(call), "{\"v\": \"07\"}");
    json_decref(tools);
    json_decref(texts);
}

// ---- elements ---------------------------------------------------------------------------------------------------

#define ELEMENT(name, text) NS "<" name ">" text NS "</" name ">"

/* A value of elements may be one of several: its members say which, and not the order of the alternatives. */
static void members_are_read_by_the_alternative_that_has_them(void **state) {
    (void)state;
    static const char tags[] = "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}";
    static const char object[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
                                 "\"additionalProperties\":false}";
    static const char other[] = "{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\"},"
                                "\"a\":{\"type\":\"string\"}}}";
    static const char open_one[] = "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}";
    static const struct {
        const char *schemas[2], *value, *arguments;
    } cases[] = {
        {{object, tags}, ELEMENT("item", "7") ELEMENT("item", "8"), "{\"v\": [\"7\", \"8\"]}"},
        {{tags, object}, ELEMENT("a", "07"), "{\"v\": {\"a\": 7}}"},
        {{object, other}, ELEMENT("a", "7") ELEMENT("b", "8"), "{\"v\": {\"a\": 7, \"b\": \"8\"}}"},
        {{object, open_one}, ELEMENT("a", "7") ELEMENT("c", "9"), "{\"v\": {\"a\": 7, \"c\": \"9\"}}"},
        {{open_one, object}, ELEMENT("a", "7") ELEMENT("c", "9"), "{\"v\": {\"a\": 7, \"c\": \"9\"}}"},
    };
    struct tool_format *minimax = minimax_format();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf property = {0}, text = {0};
        buf_printf(&property, "{\"anyOf\":[%s,%s,{\"type\":\"null\"}]}", cases[i].schemas[0], cases[i].schemas[1]);
        buf_printf(&text, "%s%s%s", NS "<tool_call>\n" NS "<invoke name=\"f\">" NS "<v>", cases[i].value,
                   NS "</v>" NS "</invoke>\n" NS "</tool_call>");
        json_t *tools = tools_of(property.ptr, "");
        expect_arguments(minimax, tools, buf_view(&text), cases[i].arguments);
        json_decref(tools);
        buf_release(&property);
        buf_release(&text);
    }
    tool_format_free(minimax);
}

static int open_format(void **state) {
    (void)state;
    struct chat_template *chat;
    struct error err;
    if (chat_template_open("tests/data/chat/templates/Qwen3.5-4B.jinja", &chat, &err) != OK)
        return -1;
    qwen = tool_format_open(chat, NULL);
    chat_template_free(chat);
    return 0;
}

static int close_format(void **state) {
    (void)state;
    tool_format_free(qwen);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_that_multiply_are_refused_at_once),
        cmocka_unit_test(references_that_multiply_are_read_in_a_bounded_time),
        cmocka_unit_test(a_large_union_is_bound),
        cmocka_unit_test(a_bound_beside_alternatives_is_not_dropped),
        cmocka_unit_test(a_reference_binds_or_is_refused),
        cmocka_unit_test(members_are_read_by_the_alternative_that_has_them),
    };
    return cmocka_run_group_tests(tests, open_format, close_format);
}
