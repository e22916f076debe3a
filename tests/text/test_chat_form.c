/* test_chat_form.c - histories as clients send them, made fit for the templates of real models and of some that are
 * hostile. */
#include "check.h"

#include "text/chat/chat_messages.h"
#include "text/chat/template_chat.h"

#include <time.h>

static json_t *parse(const char *text) {
    struct error err;
    json_t *v;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &v, &err), err);
    return v;
}

static struct chat_template *template_of(const char *source) {
    struct error err;
    struct chat_template *none, *t;
    EXPECT_OK(chat_template_open("tests/data/chat/templates/Qwen-Qwen3-0.6B.jinja", &none, &err), err);
    EXPECT_OK(chat_template_with(none, str_of(source), "t", &t, &err), err);
    chat_template_free(none);
    return t;
}

/* The prompt of a request whose messages were made fit. */
static enum status render(const struct chat_template *t, json_t *request, struct buf *out, struct error *err) {
    struct tm now;
    struct jv_numbers numbers = {0};
    EXPECT_OK(template_read_time("2026-03-14 09:26:53", "now", &now, err), *err);
    json_object_set_new(request, "bos_token", json_string("<s>"));
    json_object_set_new(request, "eos_token", json_string("</s>"));
    const struct chat_form *form = &chat_template_for(t, request)->form;
    enum status st = chat_messages_fit(json_object_get(request, "messages"), "messages", form, &numbers, err);
    if (st == OK)
        st = chat_template_render(t, request, &(struct template_options){.now = &now, .numbers = &numbers}, out, err);
    jv_numbers_release(&numbers);
    return st;
}

static void check_prompt(const char *template, const struct chat_template *t, const json_t *history,
                         const json_t *want) {
    struct error err = {0};
    struct buf out = {0};
    json_t *request = json_deep_copy(history);
    enum status st = render(t, request, &out, &err);
    const char *name = json_string_value(json_object_get(history, "name"));
    if (json_is_string(want) ? st != OK : st == OK)
        fail_msg("%s, %s: %s", template, name, st == OK ? "an error was wanted" : err.text);
    if (st == OK && strcmp(out.ptr, json_string_value(want)) != 0)
        fail_msg("%s, %s: printed\n%s\nwanted\n%s", template, name, out.ptr, json_string_value(want));
    buf_release(&out);
    json_decref(request);
}

static struct chat_template *open_named(const char *name, const json_t *inline_sources) {
    struct error err;
    struct chat_template *t;
    char path[256];
    const char *source = json_string_value(json_object_get(inline_sources, name));
    if (source)
        return template_of(source);
    snprintf(path, sizeof path, "tests/data/chat/templates/%s", name);
    EXPECT_OK(chat_template_open(path, &t, &err), err);
    return t;
}

static void every_template_gets_histories_as_it_reads_them(void **state) {
    (void)state;
    struct error err;
    json_t *file, *prompts;
    const char *name;
    EXPECT_OK(jv_load("build/data/chat/histories.json", 0, 0, &file, &err), err);
    const json_t *histories = json_object_get(file, "histories");
    json_t *rendered = json_object_get(file, "rendered");
    EXPECT(json_object_size(rendered) >= 60 && json_array_size(histories) >= 13);
    json_object_foreach(rendered, name, prompts) {
        struct chat_template *t = open_named(name, json_object_get(file, "inline"));
        for (size_t i = 0; i < json_array_size(histories); i++)
            check_prompt(name, t, json_array_get(histories, i), json_array_get(prompts, i));
        chat_template_free(t);
    }
    json_decref(file);
}

static void expect(const char *source, const char *messages, const char *prompt) {
    struct error err = {0};
    struct buf out = {0};
    struct chat_template *t = template_of(source);
    json_t *request = json_object();
    json_object_set_new(request, "messages", parse(messages));
    EXPECT_OK(render(t, request, &out, &err), err);
    EXPECT_STR(out.ptr ? out.ptr : "", prompt);
    json_decref(request);
    buf_release(&out);
    chat_template_free(t);
}

#define CALL(arguments)                                                                                            \
    "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":" arguments \
    "}}]}]"

/* As DeepSeek's first ones: the arguments are joined to other text. */
static void a_template_that_joins_arguments_gets_the_text(void **state) {
    (void)state;
    static const char joins[] = "{% for m in messages %}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' "
                                "}}{% endfor %}{% endfor %}";
    static const char prints[] =
        "{% for m in messages %}{% for c in m.tool_calls %}<{{ c.function.arguments }}>{% endfor %}{% endfor %}";
    static const char *const both[] = {joins, prints};
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        expect(both[i], CALL("\"{\\\"x\\\":1, \\\"y\\\": 1e2}\""), "<{\"x\":1, \"y\": 1e2}>");
        expect(both[i], CALL("\"\""), "<{}>");
        expect(both[i], CALL("null"), "<{}>");
        expect(both[i], CALL("{\"x\":1,\"y\":[0.5]}"), "<{\"x\": 1, \"y\": [0.5]}>");
        expect(both[i], CALL("\"\\\"{\\\\\\\"x\\\\\\\":1}\\\"\""), "<{\"x\": 1}>"); // written twice
    }
}

static void a_template_that_writes_json_gets_an_object(void **state) {
    (void)state;
    static const char either[] = "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}"
                                 "{{ a if a is string else a | tojson }}{% endfor %}{% endfor %}";
    expect(either, CALL("\"{\\\"x\\\":1}\""), "{\"x\": 1}");
    expect(either, CALL("\" \\n\""), "{}");
    expect(either, CALL("\"null\""), "{}");
    expect(either, CALL("\"[1,2]\""), "{}"); // JSON, and no object
    expect(either, CALL("\"\\\"abc\\\"\""), "{}");
    expect(either, CALL("\"{\\\"x\\\":-123456789012345678901234567890,\\\"y\\\":[18446744073709551616,1e2]}\""),
           "{\"x\": -123456789012345678901234567890, \"y\": [18446744073709551616, 100.0]}");
    expect(either, CALL("\"123456789012345678901\""), "{}");
    expect(either, CALL("\"\\\"{\\\\\\\"x\\\\\\\":1}\\\"\""), "{\"x\": 1}"); // written twice
}

/* A number past 64 bits keeps its digits wherever it is printed, and counts as a float. */
static void large_integers_of_arguments_are_printed_as_they_came(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{{ x }} {{ x | string }} {{ x ~ '' }} {{ [x] }} {{ x | tojson }} {{ {'k': x} | tojson }}",
         "N N N [N] N {\"k\": N}"},
        {"{{ x is integer }} {{ x is float }} {{ x is number }} {{ x is string }} {{ x > 5 }} {{ x == x }}",
         "True False True False True True"},
        {"{{ -x + x }} {{ (x * 1) is integer }}", "0.0 False"},
    };
    expect("{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}",
           CALL("\"{\\\"x\\\":1e400,\\\"y\\\":-1E999,\\\"z\\\":1e18}\""),
           "{\"x\": Infinity, \"y\": -Infinity, \"z\": 1e+18}");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf template = {0}, want = {0};
        buf_printf(&template,
                   "{%% for m in messages %%}{%% for c in m.tool_calls %%}{%% set x = c.function.arguments.x %%}"
                   "{%% if x %%}%s{%% else %%}{{ c.function.arguments | tojson }}{%% endif %%}{%% endfor %%}"
                   "{%% endfor %%}",
                   cases[i][0]);
        for (const char *p = cases[i][1]; *p; p++)
            buf_str(&want, *p == 'N' ? STR("123456789012345678901234567890") : (struct str){p, 1});
        expect(template.ptr, CALL("\"{\\\"x\\\":123456789012345678901234567890}\""), want.ptr);
        buf_release(&template);
        buf_release(&want);
    }
}

/* DeepSeek's and Apertus' templates read it; some clients leave it out. */
static void a_call_without_a_type_is_one_of_a_function(void **state) {
    (void)state;
    expect("{% for m in messages %}{{ m.tool_calls | map(attribute='type') | join(',') }}{% endfor %}",
           "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}},"
           "{\"type\":null,\"function\":{\"name\":\"f\"}},{\"type\":\"other\",\"function\":{\"name\":\"f\"}}]}]",
           "function,function,other");
}

static void a_template_that_only_walks_parts_gets_texts_as_parts(void **state) {
    (void)state;
    static const char walks[] =
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
        "{% endfor %}";
    expect(walks, "[{\"role\":\"user\",\"content\":\"A\"}]", "A");
    expect(walks, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A\"},\"B\"]}]", "AB");
    expect(walks, "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"critic\",\"content\":\"C\"}]", "SC");
}

static void a_template_that_takes_texts_gets_parts_joined(void **state) {
    (void)state;
    static const char prints[] = "{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}";
    expect(prints,
           "[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"A\"},{\"type\":\"refusal\","
           "\"refusal\":\"B\"}]},"
           "{\"role\":\"user\",\"content\":[]}]",
           "user A\nB;user ;");
    expect(prints, "[{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"},{\"role\":\"assistant\"}]",
           "assistant no;assistant ;");
}

static void a_null_content_stays_where_the_template_means_it(void **state) {
    (void)state;
    static const char call[] =
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"assistant\",\"content\":null},{\"role\":\"user\",\"content\":null}]";
    static const char skips[] =
        "{% for m in messages %}{% if m.content is not none %}[{{ m.content }}]{% endif %}{% endfor %}";
    expect(skips, call, "[][]");
    static const char prints[] = "{% for m in messages %}[{{ m.content | tojson }}]{% endfor %}";
    expect(prints, call, "[\"\"][\"\"][\"\"]");
}

static void old_names_are_the_new_ones(void **state) {
    (void)state;
    static const char prints[] = "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls %} {{ c.function.name }}"
                                 "{{ c.function.arguments|tojson }}{% endfor %}{{ m.reasoning_content }};{% endfor %}";
    expect(prints,
           "[{\"role\":\"developer\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"hm\","
           "\"function_call\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},{\"role\":\"function\",\"name\":\"f\","
           "\"content\":\"7\"}]",
           "system;assistant f{\"a\": 1}hm;tool;");
    static const char knows[] =
        "{% for m in messages %}{% if m.role == 'developer' %}{{ m.content }}{% endif %}{% endfor %}";
    expect(knows, "[{\"role\":\"developer\",\"content\":\"D\"}]", "D");
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static const struct fault {
        const char *messages, *sentence;
    } faults[] = {
        {"{}", "messages: it must be an array of messages"},
        {"[]", "messages: the array is empty"},
        {"[1]", "messages[0]: it must be an object"},
        {"[{\"role\":1}]", "messages[0].role: it must be a string"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content: it must be a string or an array of parts"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
         "messages[0].content[0].type: \"image_url\" is not supported"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text: it must be a string"},
        {"[{\"role\":\"user\",\"content\":\"\",\"name\":1}]", "messages[0].name: it must be a string"},
        {CALL("\"{x\""), "messages[0].tool_calls[0].function.arguments: not valid JSON"},
        {CALL("\"{} {}\""), "messages[0].tool_calls[0].function.arguments: not valid JSON"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{\"a\":1}}]", "messages[0].tool_calls: it must be an array"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[5]}]", "messages[0].tool_calls[0]: it must be an object"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0].function: it must be an object"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]",
         "messages[0].tool_calls[0].function.name: it must be a string"},
    };
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        struct error err = {0};
        json_t *messages = parse(faults[i].messages);
        EXPECT(chat_messages_fit(messages, "messages", &(struct chat_form){0}, NULL, &err) != OK);
        if (!strstr(err.text, faults[i].sentence))
            fail_msg("%s: %s", faults[i].messages, err.text);
        json_decref(messages);
    }
}

/* Arguments become values too: together they may not take more than a bound. */
static void arguments_cannot_multiply(void **state) {
    (void)state;
    struct error err = {0};
    struct buf arguments = {0};
    buf_push(&arguments, '[');
    for (int i = 0; i < 20000; i++)
        buf_str(&arguments, STR("{},"));
    buf_str(&arguments, STR("{}]"));
    json_t *calls = json_array(), *messages = json_pack("[{s:s, s:o}]", "role", "assistant", "tool_calls", calls);
    for (int i = 0; i < 100; i++)
        json_array_append_new(calls, json_pack("{s:{s:s, s:s}}", "function", "name", "f", "arguments", arguments.ptr));
    EXPECT_EQ(chat_messages_fit(messages, "messages", &(struct chat_form){0}, NULL, &err), ERR_LIMIT);
    json_decref(messages);
    buf_release(&arguments);
}

/* As frameworks dump tools: what was not given is null, and templates would print None. Nulls of schemas stay. */
static void members_of_tools_that_are_null_are_as_absent(void **state) {
    (void)state;
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"default\": null}}}";
    static const char *const templates[] = {"google-gemma-4-31B-it", "ByteDance-Seed-OSS", "Qwen-Qwen3-0.6B",
                                            "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b"};
    for (size_t i = 0; i < ARRAY_LEN(templates); i++) {
        char name[128];
        struct buf prompts[2] = {{0}, {0}};
        snprintf(name, sizeof name, "%s.jinja", templates[i]);
        struct chat_template *t = open_named(name, NULL);
        for (int nulls = 0; nulls < 2; nulls++) {
            struct error err = {0};
            json_t *function = json_pack("{s:s, s:o}", "name", "jasperoid", "parameters", parse(schema));
            json_t *tool = json_pack("{s:s, s:o}", "type", "function", "function", function);
            if (nulls) {
                json_object_set_new(function, "description", json_null());
                json_object_set_new(function, "strict", json_null());
                json_object_set_new(tool, "defer_loading", json_null());
            }
            json_t *request = json_pack("{s:[{s:s, s:s}], s:[o]}", "messages", "role", "user", "content", "Hi",
                                        "tools", tool);
            EXPECT_OK(chat_template_prompt(t, request, &(struct template_options){0}, &prompts[nulls], &err), err);
            json_decref(request);
        }
        if (!str_eq(buf_view(&prompts[0]), buf_view(&prompts[1])))
            fail_msg("%s: %s\n%s", name, prompts[0].ptr, prompts[1].ptr);
        EXPECT(memmem(prompts[1].ptr, prompts[1].len, "jasperoid", 9));
        buf_release(&prompts[0]);
        buf_release(&prompts[1]);
        chat_template_free(t);
    }
}

/* OpenAI's API lets a function have a name alone, and some templates read more of it. */
static void functions_may_have_a_name_alone(void **state) {
    (void)state;
    static const struct {
        const char *template;
        bool needs_description, needs_parameters;
    } cases[] = {
        {"openai-gpt-oss-120b", true, false}, {"Apertus-8B-Instruct", true, false},
        {"ByteDance-Seed-OSS", false, true},  {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", true, true},
        {"Qwen-Qwen3-0.6B", false, false},
    };
    static const char *const functions[] = {"{\"name\": \"jasperoid\"}",
                                            "{\"name\": \"jasperoid\", \"description\": null, \"parameters\": null}",
                                            "{\"name\": \"jasperoid\", \"description\": \"x\", \"parameters\": {}}"};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.jinja", cases[i].template);
        struct chat_template *t = open_named(name, NULL);
        for (size_t k = 0; k < ARRAY_LEN(functions); k++) {
            struct error err = {0};
            struct buf out = {0};
            json_t *request = json_pack("{s:[{s:s, s:s}], s:[{s:s, s:o}]}", "messages", "role", "user", "content", "Hi",
                                        "tools", "type", "function", "function", parse(functions[k]));
            const struct chat_form *form = &chat_template_for(t, request)->form;
            json_t *given = json_incref(json_object_get(request, "tools"));
            EXPECT_EQ(form->needs_description, cases[i].needs_description);
            EXPECT_EQ(form->needs_parameters, cases[i].needs_parameters);
            EXPECT_OK(chat_template_prompt(t, request, &(struct template_options){0}, &out, &err), err);
            EXPECT(memmem(out.ptr, out.len, "jasperoid", 9));
            bool fitted = form->needs_description || form->needs_parameters || k == 1;
            EXPECT(fitted || json_object_get(request, "tools") == given);
            json_decref(given);
            json_decref(request);
            buf_release(&out);
        }
        chat_template_free(t);
    }
}

/* Opening a model renders its template: what never ends, or fills memory, ends soon. */
static void hostile_templates_are_opened_soon(void **state) {
    (void)state;
    static const char *const hostile[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(99999) %}{{ messages | tojson | replace('a', 'bbbb') | length }}{% endfor %}",
        "{% for a in range(99999) %}{{ ('x' * 999999) == ('x' * 999999) }}{% endfor %}",
    };
    for (size_t i = 0; i < ARRAY_LEN(hostile); i++) {
        if (test_is_brief() && (i + test_seed()) % 3 != 0)
            continue;
        clock_t begin = clock(); // of this process: others may be busy
        chat_template_free(template_of(hostile[i]));
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        printf("%zu: %.2f s\n", i, seconds);
        EXPECT(seconds < 20); // sanitizers
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_template_gets_histories_as_it_reads_them),
        cmocka_unit_test(a_template_that_joins_arguments_gets_the_text),
        cmocka_unit_test(a_template_that_writes_json_gets_an_object),
        cmocka_unit_test(a_template_that_only_walks_parts_gets_texts_as_parts),
        cmocka_unit_test(a_template_that_takes_texts_gets_parts_joined),
        cmocka_unit_test(a_null_content_stays_where_the_template_means_it),
        cmocka_unit_test(old_names_are_the_new_ones),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(arguments_cannot_multiply),
        cmocka_unit_test(large_integers_of_arguments_are_printed_as_they_came),
        cmocka_unit_test(a_call_without_a_type_is_one_of_a_function),
        cmocka_unit_test(members_of_tools_that_are_null_are_as_absent),
        cmocka_unit_test(functions_may_have_a_name_alone),
        cmocka_unit_test(hostile_templates_are_opened_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
