/* test_template.c - what templates print, against files of what Jinja2 printed. */
#include "check.h"

#include "base/file.h"
#include "jinja/template.h"

static json_t *load(const char *path) {
    struct error err;
    json_t *v;
    EXPECT_OK(jv_load(path, 0, 0, &v, &err), err);
    return v;
}

static struct str text_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

/* Renders; what came out is in out, or the sentence in err. */
static enum status render(struct str source, const json_t *context, const struct tm *now, struct buf *out,
                          struct error *err) {
    struct template *t;
    TRY(template_parse(source, "t", &t, err));
    enum status st = template_render(t, context, &(struct template_options){.now = now}, out, err);
    template_free(t);
    return st;
}

/* One case: "expected", or "raises" (a part of the error), or "fails": true (any error). */
static void check_case(const char *name, struct str source, const json_t *context, const struct tm *now,
                       const json_t *c) {
    struct error err = {0};
    struct buf out = {0};
    enum status st = render(source, context, now, &out, &err);
    const json_t *expected = json_object_get(c, "expected"), *raises = json_object_get(c, "raises");
    if (expected && st != OK)
        fail_msg("%s: %s", name, err.text);
    if (expected && !str_eq(buf_view(&out), text_of(expected)))
        fail_msg("%s: printed\n%s\nwanted\n%s", name, out.ptr ? out.ptr : "", json_string_value(expected));
    if (!expected && st == OK)
        fail_msg("%s: printed %s, wanted an error", name, out.ptr ? out.ptr : "");
    if (raises && !strstr(err.text, json_string_value(raises)))
        fail_msg("%s: %s, wanted %s", name, err.text, json_string_value(raises));
    buf_release(&out);
}

/* A file of {"cases": [{name, template, CONTEXT, ...}]}. */
static void check_file(const char *path, const char *context_key, size_t at_least) {
    json_t *file = load(path), *c;
    json_t *cases = json_object_get(file, "cases");
    struct error err;
    struct tm now;
    size_t i;
    EXPECT_OK(template_read_time("2026-03-14 09:26:53", "now", &now, &err), err);
    EXPECT(json_array_size(cases) >= at_least);
    json_array_foreach(cases, i, c) {
        const json_t *name = json_object_get(c, "name"), *source = json_object_get(c, "template");
        check_case(json_string_value(name ? name : source), text_of(source), json_object_get(c, context_key), &now, c);
    }
    json_decref(file);
}

static void small_cases_print_what_jinja_prints(void **state) {
    (void)state;
    check_file("build/data/chat/jinja_cases.json", "vars", 138);
}

static void templates_of_one_line_print_what_jinja_prints(void **state) {
    (void)state;
    check_file("build/data/chat/builtin_templates.json", "context", 18);
}

static void thousands_of_small_templates_print_or_fail_as_in_jinja(void **state) {
    (void)state;
    json_t *file = load("build/data/chat/language_cases.json"), *c;
    json_t *cases = json_object_get(file, "cases");
    struct error err;
    struct tm now;
    size_t i;
    EXPECT_OK(template_read_time(json_string_value(json_object_get(file, "now")), "now", &now, &err), err);
    EXPECT(json_array_size(cases) > 3500);
    json_array_foreach(cases, i, c) {
        const json_t *source = json_object_get(c, "template");
        check_case(json_string_value(source), text_of(source), json_object_get(file, "vars"), &now, c);
    }
    json_decref(file);
}

/* What transformers passes, and the conversation over it. */
static json_t *context_for(const json_t *template, const json_t *conversation) {
    json_t *context =
        json_pack("{s:n, s:n, s:b, s:O, s:O}", "documents", "tools", "add_generation_prompt", 1, "bos_token",
                  json_object_get(template, "bos_token"), "eos_token", json_object_get(template, "eos_token"));
    EXPECT(context);
    json_object_update(context, (json_t *)conversation);
    return context;
}

static void every_model_template_renders_every_conversation_as_jinja_does(void **state) {
    (void)state;
    json_t *rendered = load("build/data/chat/rendered.json"),
           *conversations = load("tests/data/chat/conversations.json");
    const char *name;
    json_t *template, *c;
    size_t i, n = 0;
    struct error err;
    struct tm now;
    EXPECT_OK(template_read_time(json_string_value(json_object_get(rendered, "strftime_now")), "now", &now, &err), err);
    json_object_foreach(json_object_get(rendered, "templates"), name, template) {
        char path[256];
        struct buf source = {0};
        snprintf(path, sizeof path, "tests/data/chat/templates/%s", name);
        EXPECT_OK(file_read(path, 0, &source, &err), err);
        json_array_foreach(json_object_get(template, "cases"), i, c) {
            const char *conversation = json_string_value(json_object_get(c, "conversation"));
            json_t *context = context_for(template, json_object_get(conversations, conversation));
            char what[400];
            snprintf(what, sizeof what, "%s on %s", name, conversation);
            check_case(what, buf_view(&source), context, &now, c);
            json_decref(context);
            n++;
        }
        buf_release(&source);
    }
    EXPECT_EQ(n, 633);
    json_decref(rendered);
    json_decref(conversations);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_cases_print_what_jinja_prints),
        cmocka_unit_test(templates_of_one_line_print_what_jinja_prints),
        cmocka_unit_test(thousands_of_small_templates_print_or_fail_as_in_jinja),
        cmocka_unit_test(every_model_template_renders_every_conversation_as_jinja_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
