/* test_custom_input.c - custom tools: as functions, and their input, out of arguments that come in pieces. */
#include "check.h"

#include "api/tools/custom.h"
#include "base/random.h"
#include "text/tools/tool_format.h"

#include <time.h>

struct draws {
    uint64_t seed, n;
};

static uint64_t draw(struct draws *d) { return philox_bits53(d->seed, d->n++, 0); }

/* What comes of the text, cut at random places. */
static void take(struct str text, struct draws *rng, struct buf *out) {
    struct custom_input input = {0};
    for (size_t at = 0; at < text.len;) {
        size_t most = 1 + draw(rng) % 4, n = MIN(most, text.len - at);
        custom_input_feed(&input, (struct str){text.ptr + at, n}, out);
        at += n;
    }
    custom_input_finish(&input, out);
    custom_input_release(&input);
}

static void expect(struct str text, struct str wanted, struct draws *rng) {
    struct buf out = {0};
    take(text, rng, &out);
    if (!str_eq(buf_view(&out), wanted))
        fail_msg("%.*s gave %.*s, not %.*s", STR_ARG(text), STR_ARG(buf_view(&out)), STR_ARG(wanted));
    buf_release(&out);
}

/* A string of characters that JSON escapes, and others, as jansson writes it: with and without \u. */
static void any_cut_of_a_string_says_the_same(void **state) {
    (void)state;
    static const char *const parts[] = {"a", "\"", "\\", "\n", "\t", "\x01", "é", "中", "😀", "/", "u0041", "}", "\x7F"};
    struct draws rng = {.seed = test_seed()};
    for (int round = 0; round < 2000; round++) {
        struct buf text = {0};
        for (uint64_t n = draw(&rng) % 12; n > 0; n--)
            buf_str(&text, str_of(parts[draw(&rng) % ARRAY_LEN(parts)]));
        json_t *arguments = json_pack("{s:s%}", "input", text.ptr ? text.ptr : "", text.len);
        char *written = json_dumps(arguments, round % 2 ? JSON_ENSURE_ASCII : JSON_INDENT(round % 3));
        expect(str_of(written), buf_view(&text), &rng);
        free(written);
        json_decref(arguments);
        buf_release(&text);
    }
}

static void what_is_no_input_is_the_arguments_as_they_are(void **state) {
    (void)state;
    static const char *const others[] = {"{}", "{\"text\": \"x\"}", "{\"input\": 7}", "[\"input\"]",
                                         "{\"inputs\": \"x\"}"};
    struct draws rng = {.seed = test_seed()};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        expect(str_of(others[i]), str_of(others[i]), &rng);
}

/* What comes of the text as a whole: the input, or the text. */
static struct str said(struct str text) {
    struct custom_input input = {0};
    struct buf out = {0};
    custom_input_feed(&input, text, &out);
    bool is_input = out.len == 1;
    custom_input_release(&input);
    buf_release(&out);
    return is_input ? STR("x") : text;
}

/* What begins with very many blanks is no input, however it is cut, and is not read anew with each piece: 300,000 of
 * them took over ten seconds, and take some milliseconds. */
static void blanks_without_end_are_read_once(void **state) {
    (void)state;
    struct draws rng = {.seed = test_seed()};
    const clock_t start = clock();
    for (size_t n = 4000; n <= 300000; n = n < 4200 ? n + 7 : n * 8) {
        struct buf text = {0};
        buf_printf(&text, "{%*s\"input\": \"x\"}", (int)n, "");
        expect(buf_view(&text), n < 4050 ? STR("x") : n > 4100 ? buf_view(&text) : said(buf_view(&text)), &rng);
        buf_release(&text);
    }
    EXPECT((double)(clock() - start) / CLOCKS_PER_SEC < 3);
}

/* max_tokens may cut anywhere; half of a pair of surrogates is no character. */
static void arguments_that_are_cut_say_what_they_said(void **state) {
    (void)state;
    static const struct {
        const char *text, *input;
    } cut[] = {{"", ""},
               {"{\"inp", ""},
               {"{\"input\": \"ab", "ab"},
               {"{\"input\": \"ab\\", "ab\\"},
               {"{\"input\": \"ab\\u00", "ab\\u00"},
               {"{\"input\": \"\\ud83d", "\xEF\xBF\xBD"},
               {"{\"input\": \"\\ud83dx\"}", "\xEF\xBF\xBDx"},
               {"{\"input\": \"\\udc00\"}", "\xEF\xBF\xBD"},
               {"{\"input\": \"a\", \"b\": 1}", "a"},
               {"{\"input\": \"\\u00e", "\\u00e"},
               {"{\"input\": \"\\ud83d\\u12", "\xEF\xBF\xBD\\u12"}};
    struct draws rng = {.seed = test_seed()};
    for (size_t i = 0; i < ARRAY_LEN(cut); i++)
        expect(str_of(cut[i].text), str_of(cut[i].input), &rng);
}

/* A \u that no four hexadecimal digits follow stays as it is; what is behind it counts as ever. */
static void an_escape_that_is_none_stays(void **state) {
    (void)state;
    static const struct {
        const char *text, *input;
    } bad[] = {{"\\uXYZW", "\\uXYZW"},
               {"a\\uXYZWb\\n\\u00e9", "a\\uXYZWb\n\xC3\xA9"},
               {"\\u+123", "\\u+123"},
               {"\\u 12f", "\\u 12f"},
               {"\\u0x1f", "\\u0x1f"},
               {"\\u-001", "\\u-001"},
               {"\\u", "\\u"},
               {"\\u12", "\\u12"},
               {"\\u12\\n\\\"x", "\\u12\n\"x"},
               {"\\u\\u00e9", "\\u\xC3\xA9"},
               {"\\ud83d\\uXYZW", "\xEF\xBF\xBD\\uXYZW"},
               {"\\ud83d\\u+e00", "\xEF\xBF\xBD\\u+e00"}};
    struct draws rng = {.seed = test_seed()};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        for (int round = 0; round < 8; round++) {
            struct buf text = {0}, whole = {0};
            struct custom_input at_once = {0};
            buf_printf(&text, "{\"input\": \"%s\"}", bad[i].text);
            custom_input_feed(&at_once, buf_view(&text), &whole);
            custom_input_finish(&at_once, &whole);
            custom_input_release(&at_once);
            EXPECT(str_eq(buf_view(&whole), str_of(bad[i].input)));
            expect(buf_view(&text), str_of(bad[i].input), &rng);
            buf_release(&text);
            buf_release(&whole);
        }
}

static void a_zero_byte_is_no_blank(void **state) {
    (void)state;
    struct draws rng = {.seed = test_seed()};
    const struct str first = STR("\0{\"input\": \"x\"}"), inner = STR("{\"input\"\0: \"x\"}");
    expect(first, first, &rng);
    expect(inner, inner, &rng);
}

/* The grammar of a call that must be made, as text. */
static char *tag_of(const json_t *tools) {
    const struct tool_format f = {.style = TOOL_STYLE_JSON,
                                  .call_open = STR("<call>"),
                                  .call_close = STR("</call>"),
                                  .name_key = STR("name"),
                                  .arguments_key = STR("arguments")};
    const struct tool_choice must = {.kind = TOOL_CHOICE_REQUIRED};
    struct error err;
    json_t *tag;
    EXPECT_OK(tool_format_tag(&f, tools, &must, &tag, &err), err);
    char *text = json_dumps(tag, 0);
    json_decref(tag);
    return text;
}

/* Whatever a client adds to a function, templates see it, and the call stays one of JSON. */
static void a_member_of_a_function_makes_no_custom_tool(void **state) {
    (void)state;
    static const char *const functions[] = {
        "{\"function\": {\"name\": \"f\", \"custom\": null}}",
        "{\"function\": {\"name\": \"f\", \"strict\": true, \"custom\": {\"a\": 1}}}",
        "{\"function\": {\"name\": \"f\", \"custom\": {\"syntax\": \"regex\", \"definition\": \"x\"}}}",
        "{\"function\": {\"name\": \"f\"}, \"format\": {\"syntax\": \"regex\", \"definition\": \"x\"}}",
        "{\"type\": \"function\", \"function\": {\"name\": \"f\"}, \"custom\": {\"name\": \"f\"}}"};
    for (size_t i = 0; i < ARRAY_LEN(functions); i++) {
        struct error err;
        json_t *given = json_pack("[o]", json_loads(functions[i], 0, NULL)), *tools;
        EXPECT_OK(custom_tools_as_functions(given, &tools, &err), err);
        json_t *shown = custom_tools_shown(tools);
        char *tag = tag_of(tools);
        EXPECT(!custom_is(tools, STR("f")));
        EXPECT(json_equal(shown, given));
        EXPECT(strstr(tag, "json_schema") && !strstr(tag, "regex"));
        free(tag);
        json_decref(shown);
        json_decref(tools);
        json_decref(given);
    }
}

/* Members that a client puts where this server keeps its own are not taken for these. */
static void a_custom_tool_is_what_its_member_custom_says(void **state) {
    (void)state;
    struct error err;
    json_t *tools,
        *given = json_loads("[{\"type\": \"custom\", \"function\": {\"name\": \"g\"}, \"format\": {\"syntax\": 1},"
                            " \"custom\": {\"name\": \"f\", \"format\": {\"type\": \"grammar\", \"syntax\":"
                            " \"regex\", \"definition\": \"[ab]\"}}}]",
                            0, NULL);
    EXPECT_OK(custom_tools_as_functions(given, &tools, &err), err);
    EXPECT(custom_is(tools, STR("f")) && !custom_is(tools, STR("g")));
    char *tag = tag_of(tools);
    EXPECT(strstr(tag, "\"pattern\": \"[ab]\"") != NULL);
    json_t *shown = custom_tools_shown(tools), *tool = json_array_get(shown, 0);
    EXPECT_STR(json_string_value(json_object_get(tool, "type")), "function");
    EXPECT_EQ(json_object_size(tool), 2);
    EXPECT_EQ(json_object_size(json_object_get(tool, "function")), 2);
    free(tag);
    json_decref(shown);
    json_decref(tools);
    json_decref(given);
}

/* A format that binds nothing is none, and not believed to be whole. */
static void a_format_that_is_none_binds_nothing(void **state) {
    (void)state;
    static const char *const formats[] = {"null",
                                          "7",
                                          "{}",
                                          "{\"a\": 1}",
                                          "{\"syntax\": \"regex\"}",
                                          "{\"syntax\": 1, \"definition\": \"x\"}",
                                          "{\"syntax\": \"regex\", \"definition\": 1}"};
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        json_t *tools = json_pack("[{s:s, s:{s:s}, s:o}]", "type", "custom", "function", "name", "f", "format",
                                  json_loads(formats[i], JSON_DECODE_ANY, NULL));
        char *tag = tag_of(tools);
        EXPECT(strstr(tag, "json_schema") && !strstr(tag, "regex"));
        free(tag);
        json_decref(tools);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_of_a_string_says_the_same),
        cmocka_unit_test(what_is_no_input_is_the_arguments_as_they_are),
        cmocka_unit_test(blanks_without_end_are_read_once),
        cmocka_unit_test(arguments_that_are_cut_say_what_they_said),
        cmocka_unit_test(an_escape_that_is_none_stays),
        cmocka_unit_test(a_zero_byte_is_no_blank),
        cmocka_unit_test(a_member_of_a_function_makes_no_custom_tool),
        cmocka_unit_test(a_custom_tool_is_what_its_member_custom_says),
        cmocka_unit_test(a_format_that_is_none_binds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
