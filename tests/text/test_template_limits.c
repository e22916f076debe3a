/* test_template_limits.c - what a hostile template or request meets: limits, the sandbox, sentences. */
#include "check.h"

#include "base/clock.h"
#include "jinja/template.h"

#include <pthread.h>

static const struct template_limits small = {
    .max_memory_bytes = 16 << 20, .max_output_bytes = 1 << 20, .max_steps = 1000000};

/* The status of rendering source with no context; the sentence is in err. Nothing may be printed on an error. */
static enum status render(const char *source, const struct template_limits *limits, struct error *err) {
    struct template *t;
    struct buf out = {0};
    json_t *context = json_object();
    buf_str(&out, STR("before"));
    enum status st = template_parse(str_of(source), "t", &t, err);
    if (st == OK)
        st = template_render(t, context, &(struct template_options){.limits = *limits}, &out, err);
    EXPECT(st == OK || str_eq(buf_view(&out), STR("before")));
    template_free(t);
    json_decref(context);
    buf_release(&out);
    return st;
}

static void expect_limit(const char *source, const char *sentence) {
    struct error err = {0};
    enum status st = render(source, &small, &err);
    if (st != ERR_LIMIT || !strstr(err.text, sentence))
        fail_msg("%.100s: %s: %s, wanted %s", source, status_name(st), err.text, sentence);
}

static void expect_refused(const char *source, enum status status, const char *sentence) {
    struct error err = {0};
    enum status st = render(source, &small, &err);
    if (st != status || !strstr(err.text, sentence))
        fail_msg("%s: %s: %s, wanted %s", source, status_name(st), err.text, sentence);
}

/* before, then 10^5 times open, middle, 10^5 times close, after. */
static void expect_too_deep(const char *before, const char *open, const char *middle, const char *close,
                            const char *after) {
    struct buf source = {0};
    buf_str(&source, str_of(before));
    for (int i = 0; i < 100000; i++)
        buf_str(&source, str_of(open));
    buf_str(&source, str_of(middle));
    for (int i = 0; i < 100000; i++)
        buf_str(&source, str_of(close));
    buf_str(&source, str_of(after));
    expect_limit(source.ptr, "nests more than");
    buf_release(&source);
}

static void nesting_in_the_text_is_limited(void **state) {
    (void)state;
    expect_too_deep("{{ ", "(", "1", ")", " }}");
    expect_too_deep("{{ ", "[", "", "]", " }}");
    expect_too_deep("{{ ", "{1:", "2", "}", " }}");
    expect_too_deep("{{ ", "not ", "1", "", " }}");
    expect_too_deep("{{ ", "- ", "1", "", " }}");
    expect_too_deep("{{ ", "1 if 0 else ", "1", "", " }}");
    expect_too_deep("{{ 1", "+1", "", "", " }}");
    expect_too_deep("{{ 1", "|string", "", "", " }}");
    expect_too_deep("{{ a", ".b", "", "", " }}");
    expect_too_deep("{{ a", "()", "", "", " }}");
    expect_too_deep("{{ 1", " and 1", "", "", " }}");
    expect_too_deep("", "{% if 1 %}", "", "{% endif %}", "");
    expect_too_deep("", "{% for i in [1] %}", "", "{% endfor %}", "");
    expect_too_deep("{% set ", "(", "a", ",)", " = 1 %}");
}

static void recursion_is_limited(void **state) {
    (void)state;
    expect_limit("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "nests more than");
    expect_limit("{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", "nests more than");
    expect_limit("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", "nests more than");
}

static void nesting_of_values_is_limited(void **state) {
    (void)state;
#define GROW(start, step) \
    "{% set ns = namespace(v=" start ") %}{% for i in range(5000) %}{% set ns.v = " step " %}{% endfor %}"
    expect_limit(GROW("[]", "[ns.v]") "{{ ns.v }}", "nests more than");
    expect_limit(GROW("[]", "[ns.v]") "{{ ns.v | tojson }}", "nests more than");
    expect_limit(GROW("1", "(ns.v,)") "{{ {ns.v: 1} }}", "nests more than");
    expect_limit(GROW("[1]", "ns.v | map('string')") "{{ ns.v | list }}", "nests more than");
    expect_limit(GROW("[1]", "ns.v | select") "{{ ns.v | list }}", "nests more than");
    expect_limit(GROW("[1]", "ns.v | batch(1)") "{{ ns.v | list }}", "nests more than");
    expect_limit(GROW("[1]", "ns.v | unique") "{{ ns.v | list }}", "nests more than");
    expect_limit(
        "{% set a = namespace(v=1) %}{% set b = namespace(v=1) %}{% for i in range(5000) %}{% set a.v = [a.v] %}"
        "{% set b.v = [b.v] %}{% endfor %}{{ a.v == b.v }}",
        "nests more than");
}

static void steps_are_limited(void **state) {
    (void)state;
    expect_limit("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps");
    expect_limit(GROW("[1]", "[ns.v, ns.v] if i < 60 else ns.v") "{{ ns.v == 1 }}{{ ns.v | tojson | length }}",
                 "steps");
    expect_limit("{{ [1] | batch(10 ** 12, 0) | list }}", "");
    expect_limit("{{ [1] | slice(10 ** 12) | list }}", "");
    expect_limit("{% set s = 'a' * 10 ** 6 %}{% for i in range(100000) %}{% if s is upper or 'b' in s or s.rfind('b') "
                 "> 1 %}{% endif %}{% endfor %}",
                 "steps");
    expect_limit("{{ ('a' * 2000000).rfind('a' * 1000000 ~ 'b') }}", "steps");
}
#undef GROW

static void memory_is_limited(void **state) {
    (void)state;
    expect_limit("{{ 'a' * 10 ** 9 }}", "memory");
    expect_limit("{{ [1] * 10 ** 9 }}", "memory");
    expect_limit("{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 "memory");
    expect_limit("{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                 "memory");
    expect_limit("{% set x %}{% for i in range(99999) %}{{ '%1000d' % i }}{% endfor %}{% endset %}", "memory");
    expect_limit("{{ 'a'.ljust(10 ** 12) }}", "memory");
    expect_limit("{{ '%999999999d' % 1 }}", "memory");
    expect_limit("{{ '{:999999999}'.format(1) }}", "a million");
    expect_limit("{{ ('a' * 10 ** 5).replace('', 'b' * 10 ** 5) }}", "memory");
    expect_limit("{{ ('\\n' * 10 ** 5) | indent(10 ** 5, blank=true) }}", "memory");
    expect_limit("{{ ('b' * 10 ** 5).join('a' * 10 ** 5) }}", "memory");
}

static void building_a_text_piece_by_piece_costs_its_length(void **state) {
    (void)state;
    struct error err;
    // 200,000 appends of 10 bytes: 2 MB in the end, 200 GB if each append copied.
    EXPECT_OK(
        render(
            "{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = ns.s + 'xxxxxxxxxx' %}{% endfor %}"
            "{% for i in range(100000) %}{% set ns.s = ns.s ~ 'xxxxxxxxxx' %}{% endfor %}{{ ns.s | length }}",
            &(struct template_limits){.max_memory_bytes = 64 << 20}, &err),
        err);
}

static void output_is_limited(void **state) {
    (void)state;
    expect_limit("{% for i in range(2000) %}{{ 'x' * 1000 }}{% endfor %}", "prints more than 1048576 bytes");
}

static void time_is_limited(void **state) {
    (void)state;
    struct error err;
    int64_t start = clock_us();
    enum status st = render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                            &(struct template_limits){.max_steps = UINT64_MAX - 1, .max_time_us = 50000}, &err);
    EXPECT_EQ(st, ERR_LIMIT);
    EXPECT(strstr(err.text, "longer than 0.05 seconds"));
    EXPECT(clock_seconds_since(start) < 60);
}

static void integers_do_not_wrap(void **state) {
    (void)state;
    expect_limit("{{ 9223372036854775807 + 1 }}", "64 bits");
    expect_limit("{{ 10 ** 10 ** 10 }}", "64 bits");
    expect_limit("{{ (-9223372036854775807 - 1) // -1 }}", "64 bits");
    expect_limit("{{ -(-9223372036854775807 - 1) }}", "64 bits");
    expect_limit("{{ (-9223372036854775807 - 1) | abs }}", "64 bits");
    expect_limit("{{ 99999999999999999999 }}", "64 bits");
    expect_limit("{{ '99999999999999999999' | int }}", "64 bits");
    expect_limit("{{ 1e30 | int }}", "64 bits");
    expect_limit("{{ range(10 ** 12) }}", "Range too big");
}

static void nothing_leads_out_of_the_sandbox(void **state) {
    (void)state;
    expect_refused("{{ ''.__class__.__mro__ }}", ERR_ARG, "access to attribute '__class__' of 'str' object is unsafe");
    expect_refused("{{ ''['__class__'].x }}", ERR_ARG, "unsafe");
    expect_refused("{{ ('' | attr('__class__')).x }}", ERR_ARG, "unsafe");
    expect_refused("{{ '{0.__class__.x}'.format(1) }}", ERR_ARG, "unsafe");
    expect_refused("{{ [''] | map(attribute='__class__.x') | list }}", ERR_ARG, "unsafe");
    expect_refused("{{ range.__globals__.x }}", ERR_ARG, "unsafe");
    expect_refused("{% macro m() %}{% endmacro %}{{ m.__init__.x }}", ERR_ARG, "unsafe");
    expect_refused("{{ cycler(1)._x.y }}", ERR_ARG, "has no attribute '_x'");
    expect_refused("{{ [].append(1) }}", ERR_ARG, "access to attribute 'append' of 'list' object is unsafe");
    expect_refused("{{ {}.update({}) }}", ERR_ARG, "access to attribute 'update' of 'dict' object is unsafe");
    expect_refused("{{ {}.pop(1) }}", ERR_ARG, "unsafe");
    expect_refused("{{ lipsum() }}", ERR_ARG, "'lipsum' is undefined");
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    (void)state;
    expect_refused("{% include 'x' %}", ERR_UNSUPPORTED, "t:1: the tag 'include'");
    expect_refused("\n{% import 'x' as y %}", ERR_UNSUPPORTED, "t:2: the tag 'import'");
    expect_refused("{% from 'x' import y %}", ERR_UNSUPPORTED, "the tag 'from'");
    expect_refused("{% extends 'x' %}", ERR_UNSUPPORTED, "the tag 'extends'");
    expect_refused("{% autoescape true %}{% endautoescape %}", ERR_UNSUPPORTED, "the tag 'autoescape'");
    expect_refused("{{ 'x' | urlize }}", ERR_UNSUPPORTED, "urlize");
    expect_refused("{{ [1] | random }}", ERR_UNSUPPORTED, "random");
    expect_refused("{{ 'x' | nothing }}", ERR_FORMAT, "No filter named 'nothing'.");
    expect_refused("{{ 'x' is nothing }}", ERR_FORMAT, "No test named 'nothing'.");
    expect_refused("{% nothing %}", ERR_FORMAT, "Encountered unknown tag 'nothing'.");
}

static void faults_of_the_text_name_the_line(void **state) {
    (void)state;
    expect_refused("a\n{# x", ERR_FORMAT, "t:2: Missing end of comment tag");
    expect_refused("a\n\n{% if 1 %}", ERR_FORMAT, "t:3: Unexpected end of template");
    expect_refused("{{ 1 +\n\n }}", ERR_FORMAT, "t:3: unexpected 'end of print statement'");
    expect_refused("{{ 'abc }}", ERR_FORMAT, "unexpected char '");
    expect_refused("{{ (1] }}", ERR_FORMAT, "unexpected bracket ], expected )");
    expect_refused("\xFF", ERR_FORMAT, "not valid UTF-8");
    expect_refused("{{ '\\ud800' }}", ERR_FORMAT, "illegal Unicode character");
    expect_refused("{% break %}", ERR_FORMAT, "'break' outside loop");
    expect_refused("a\n{{ b }}\n{{ b.c }}", ERR_ARG, "t:3: 'b' is undefined");
    expect_refused("{% macro m() %}\n{{ 1 + 'x' }}{% endmacro %}\n{{ m() }}", ERR_ARG,
                   "t:2: unsupported operand type(s) for +");
}

static void a_long_name_is_cut_between_characters(void **state) {
    (void)state;
    for (int n = 0; n < 3; n++) { // the cut falls on each byte of a character once
        struct error err = {0};
        struct buf source = {0};
        buf_printf(&source, "{{ 'x' | upper(%.*s", n, "aa");
        for (int i = 0; i < 200; i++)
            buf_str(&source, STR("\xE6\x9D\xB1"));
        buf_str(&source, STR("=1) }}"));
        EXPECT_EQ(render(source.ptr, &small, &err), ERR_ARG);
        EXPECT(utf8_valid(str_of(err.text)));
        EXPECT(strstr(err.text, "unexpected keyword argument '"));
        buf_release(&source);
    }
}

static void what_raise_exception_says_is_passed_on_whole(void **state) {
    (void)state;
    struct error err;
    struct template *t;
    struct buf out = {0}, raised = {0};
    json_t *context = json_object();
    EXPECT_OK(template_parse(STR("\n{{ raise_exception('first line\nsecond ' ~ 'x' * 2000) }}"), "t", &t, &err), err);
    EXPECT_EQ(template_render(t, context, &(struct template_options){.raised = &raised}, &out, &err), ERR_ARG);
    EXPECT(str_starts(str_of(err.text), STR("t:2: first line?second xxx")));
    EXPECT(str_starts(buf_view(&raised), STR("t:2: first line\nsecond xxx")));
    EXPECT_EQ(raised.len, strlen("t:2: first line\nsecond ") + 2000);
    template_free(t);
    json_decref(context);
    buf_release(&out);
    buf_release(&raised);
}

static void a_context_that_is_no_object_is_refused(void **state) {
    (void)state;
    struct error err;
    struct template *t;
    struct buf out = {0};
    json_t *context = json_array();
    EXPECT_OK(template_parse(STR("x"), "t", &t, &err), err);
    EXPECT_EQ(template_render(t, context, &(struct template_options){0}, &out, &err), ERR_ARG);
    EXPECT(strstr(err.text, "must be a JSON object, this is an array"));
    template_free(t);
    json_decref(context);
}

static void a_time_is_read_or_refused(void **state) {
    (void)state;
    struct error err;
    struct tm t;
    EXPECT_OK(template_read_time("2024-02-29 23:59:58", "--now", &t, &err), err);
    EXPECT(t.tm_year == 124 && t.tm_mon == 1 && t.tm_mday == 29 && t.tm_wday == 4 && t.tm_yday == 59);
    static const char *const bad[] = {"",           "2024-02-30 00:00:00", "2024-13-01 00:00:00",
                                      "2024-01-01", "2024-01-01 24:00:00", "2024-01-01 00:00:00x",
                                      "x"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        EXPECT_EQ(template_read_time(bad[i], "--now", &t, &err), ERR_ARG);
        EXPECT(strstr(err.text, "--now: '"));
    }
}

// ---- one template on many threads ----

struct renderer {
    const struct template *t;
    int failures;
};

static void *render_often(void *arg) {
    struct renderer *r = arg;
    json_t *context = json_pack("{s:[s,s]}", "l", "a", "\xC3\xA4");
    for (int i = 0; i < 300; i++) {
        struct buf out = {0};
        struct error err;
        if (template_render(r->t, context, &(struct template_options){0}, &out, &err) != OK ||
            !str_eq(buf_view(&out), STR("3 \xC3\xB6[0] a\xC3\xA4 m\xC3\xB6xa m\xC3\xB6x\xC3\xA4")))
            r->failures++;
        buf_release(&out);
    }
    json_decref(context);
    return NULL;
}

static void many_threads_render_one_template(void **state) {
    (void)state;
    struct error err;
    struct template *t;
    EXPECT_OK(template_parse(STR("{% macro m(x) %}m{{ 'xö'[::-1] }}{{ x }}{% endmacro %}{{ 'xöx'|length }} {{ 'xöx'[1] "
                                 "}}{{ [0] }} {{ l|join }}"
                                 "{% for x in l %} {{ m(x)|replace('mö', 'mö') }}{% endfor %}"),
                             "t", &t, &err),
              err);
    pthread_t threads[4];
    struct renderer renderers[4];
    for (int i = 0; i < 4; i++) {
        renderers[i] = (struct renderer){.t = t};
        EXPECT(pthread_create(&threads[i], NULL, render_often, &renderers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(renderers[i].failures, 0);
    }
    template_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nesting_in_the_text_is_limited),
        cmocka_unit_test(recursion_is_limited),
        cmocka_unit_test(nesting_of_values_is_limited),
        cmocka_unit_test(steps_are_limited),
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(building_a_text_piece_by_piece_costs_its_length),
        cmocka_unit_test(output_is_limited),
        cmocka_unit_test(time_is_limited),
        cmocka_unit_test(integers_do_not_wrap),
        cmocka_unit_test(nothing_leads_out_of_the_sandbox),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(faults_of_the_text_name_the_line),
        cmocka_unit_test(a_long_name_is_cut_between_characters),
        cmocka_unit_test(what_raise_exception_says_is_passed_on_whole),
        cmocka_unit_test(a_context_that_is_no_object_is_refused),
        cmocka_unit_test(a_time_is_read_or_refused),
        cmocka_unit_test(many_threads_render_one_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
