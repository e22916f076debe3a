/* test_template_chat.c - where a model folder keeps its chat template and special tokens. */
#include "check.h"

#include "base/file.h"
#include "text/chat/template_chat.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void put(const char *name, const char *text) {
    char path[256];
    struct error err;
    EXPECT_OK(path_join(path, sizeof path, folder, name, &err), err);
    EXPECT_OK(file_write(path, str_of(text), &err), err);
}

static void take_away(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static int make_folder(void **state) {
    (void)state;
    char sub[128];
    strcpy(folder, "/tmp/gyre-chat-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", folder);
    return mkdir(sub, 0700);
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const files[] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "additional_chat_templates/tool_use.jinja"};
    char sub[128];
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        take_away(files[i]);
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", folder);
    return rmdir(sub) | rmdir(folder);
}

static void expect_prompt(const char *request, const char *prompt) {
    struct chat_template *t;
    struct error err;
    struct buf out = {0};
    json_t *r;
    EXPECT_OK(jv_parse(str_of(request), "request", 0, &r, &err), err);
    EXPECT(chat_template_exists(folder));
    EXPECT_OK(chat_template_open(folder, &t, &err), err);
    EXPECT_OK(chat_template_render(t, r, &(struct template_options){0}, &out, &err), err);
    EXPECT_STR(out.ptr ? out.ptr : "", prompt);
    chat_template_free(t);
    json_decref(r);
    buf_release(&out);
}

static void expect_refused(enum status status, const char *sentence) {
    struct chat_template *t;
    struct error err;
    enum status st = chat_template_open(folder, &t, &err);
    EXPECT(!t);
    if (st != status || !strstr(err.text, sentence))
        fail_msg("%s: %s, wanted %s", status_name(st), err.text, sentence);
}

static void a_folder_without_a_template_says_so(void **state) {
    (void)state;
    EXPECT(!chat_template_exists(folder));
    expect_refused(ERR_IO, "no chat template here");
    put("tokenizer_config.json", "{\"chat_template\": null}");
    EXPECT(!chat_template_exists(folder));
    expect_refused(ERR_IO, "no chat template here");
}

static void the_config_holds_a_text(void **state) {
    (void)state;
    put("tokenizer_config.json", "{\"chat_template\": \"config {{ messages[0].content }}\"}");
    expect_prompt("{\"messages\": [{\"content\": \"hi\"}]}", "config hi");
}

static void the_config_holds_a_list_with_one_for_tools(void **state) {
    (void)state;
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools {{ tools|length }}\"},"
        "{\"name\": \"other\", \"template\": \"{% broken\"}, {\"name\": \"default\", \"template\": \"plain\"}]}");
    expect_prompt("{}", "plain");
    expect_prompt("{\"tools\": null}", "plain");
    expect_prompt("{\"tools\": [1, 2]}", "tools 2");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}]}");
    expect_prompt("{\"tools\": [1, 2]}", "plain");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, {\"name\": "
                                 "\"default\", \"template\": \"b\"}]}");
    expect_prompt("{}", "b");
    put("tokenizer_config.json", "{\"chat_template\": {\"tool_use\": \"of an object\", \"default\": \"plain\"}}");
    expect_prompt("{\"tools\": [1]}", "of an object");
    static const char *const empty[] = {"{\"chat_template\": []}", "{\"chat_template\": {}}"};
    for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
        put("tokenizer_config.json", empty[i]);
        EXPECT(!chat_template_exists(folder)); // so that all but chats is served
        expect_refused(ERR_IO, "no chat template here");
    }
    put("chat_template.json", empty[0]);
    expect_refused(ERR_FORMAT, "chat_template.json: \"chat_template\" is empty");
}

static void without_a_default_only_tools_are_rendered(void **state) {
    (void)state;
    struct chat_template *t;
    struct error err;
    struct buf out = {0};
    json_t *request = json_object();
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}]}");
    expect_prompt("{\"tools\": [1]}", "x");
    EXPECT_OK(chat_template_open(folder, &t, &err), err);
    EXPECT_EQ(chat_template_render(t, request, &(struct template_options){0}, &out, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "no chat template named \"default\""));
    chat_template_free(t);
    json_decref(request);
}

/* What transformers 5.24 does with each of these folders. */
static void named_files_hide_the_config(void **state) {
    (void)state;
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"config\"}]}");
    put("additional_chat_templates/tool_use.jinja", "file");
    expect_prompt("{\"tools\": [1]}", "file");
    put("tokenizer_config.json", "{}"); // a folder that has no other
    expect_prompt("{\"tools\": [1]}", "file");
    put("chat_template.jinja", "jinja");
    expect_prompt("{}", "jinja");
    put("additional_chat_templates/default.jinja", "named default");
    expect_prompt("{}", "named default");
    take_away("additional_chat_templates/default.jinja");
    put("additional_chat_templates/rag.jinja", "{% broken");
    expect_prompt("{}", "jinja");
    take_away("additional_chat_templates/rag.jinja");
}

static void files_of_their_own_come_before_the_config(void **state) {
    (void)state;
    put("tokenizer_config.json", "{\"chat_template\": \"config\", \"eos_token\": \"</s>\"}");
    put("chat_template.json", "{\"chat_template\": \"json{{ eos_token }}\"}");
    expect_prompt("{}", "json</s>");
    put("chat_template.jinja", "jinja{{ eos_token }}\n");
    expect_prompt("{\"tools\": [1]}", "jinja</s>");
    put("additional_chat_templates/tool_use.jinja", "with {{ tools[0] }}");
    expect_prompt("{\"tools\": [1]}", "with 1");
    expect_prompt("{\"tools\": null}", "jinja</s>");
}

static void special_tokens_are_texts_or_objects_and_the_request_wins(void **state) {
    (void)state;
    put("tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}, \"eos_token\": \"</s>\", \"pad_token\": null, "
        "\"add_bos_token\": true, \"tokenizer_class\": \"X\"}");
    put("special_tokens_map.json",
        "{\"bos_token\": \"other\", \"unk_token\": {\"content\": \"<unk>\"}, \"additional_special_tokens\": [\"a\"]}");
    put("chat_template.jinja",
        "{{ [bos_token, eos_token, unk_token, pad_token is defined, add_bos_token is defined]|join(' ') }}");
    expect_prompt("{}", "other </s> <unk> False False"); // as in transformers, where the config lists no added tokens
    expect_prompt("{\"bos_token\": \"mine\"}", "mine </s> <unk> False False");
    put("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"added_tokens_decoder\": {}}");
    expect_prompt("{}", "<s> </s> <unk> False False");
    put("tokenizer_config.json", "{\"image_token\": \"<i>\", \"extra_special_tokens\": {\"image_token\": \"<other>\", "
                                 "\"boi\": {\"content\": \"<boi>\"}, \"n\": 5}, "
                                 "\"model_specific_special_tokens\": {\"eoi_token\": \"<eoi>\"}}");
    put("chat_template.jinja", "{{ image_token }}{{ boi }}{{ eoi_token }}{{ n is defined }}");
    expect_prompt("{}", "<i><boi><eoi>False");
    put("tokenizer_config.json", "{\"extra_special_tokens\": [\"<x>\"]}"); // without names
    expect_prompt("{}", "False");
}

static void what_a_request_does_not_say_has_the_defaults_of_transformers(void **state) {
    (void)state;
    put("chat_template.jinja",
        "{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ bos_token is defined }} {{ enable_thinking }}");
    expect_prompt("{}", "None None True False ");
    expect_prompt("{\"add_generation_prompt\": false, \"documents\": [], \"enable_thinking\": true}",
                  "None [] False False True");
}

static void faults_name_the_file(void **state) {
    (void)state;
    put("tokenizer_config.json", "[]");
    expect_refused(ERR_FORMAT, "tokenizer_config.json: must be a JSON object");
    put("tokenizer_config.json", "{\"chat_template\": 5}");
    expect_refused(ERR_FORMAT, "tokenizer_config.json: \"chat_template\" is an integer, it must be a string");
    put("tokenizer_config.json", "{\"chat_template\": [{\"template\": \"x\"}]}");
    expect_refused(ERR_FORMAT, "tokenizer_config.json: \"name\" is missing");
    put("tokenizer_config.json", "{");
    expect_refused(ERR_FORMAT, "tokenizer_config.json: not valid JSON");
    put("tokenizer_config.json", "{}");
    put("chat_template.jinja", "\n\n{% if %}");
    expect_refused(ERR_FORMAT, "chat_template.jinja:3: Expected an expression");
    put("chat_template.jinja", "x");
    put("special_tokens_map.json", "\"x\"");
    expect_refused(ERR_FORMAT, "special_tokens_map.json: must be a JSON object");
}

static void a_file_is_a_template(void **state) {
    (void)state;
    struct chat_template *t;
    struct error err;
    struct buf out = {0};
    char path[256];
    json_t *request = json_object();
    put("chat_template.jinja", "{{ add_generation_prompt }}");
    EXPECT_OK(path_join(path, sizeof path, folder, "chat_template.jinja", &err), err);
    EXPECT_OK(chat_template_open(path, &t, &err), err);
    EXPECT_OK(chat_template_render(t, request, &(struct template_options){0}, &out, &err), err);
    EXPECT_STR(out.ptr, "True");
    json_decref(request);
    request = json_array();
    EXPECT_EQ(chat_template_render(t, request, &(struct template_options){0}, &out, &err), ERR_ARG);
    EXPECT(strstr(err.text, "must be a JSON object"));
    chat_template_free(t);
    json_decref(request);
    buf_release(&out);
    EXPECT_EQ(chat_template_open("/nowhere/x.jinja", &t, &err), ERR_IO);
    EXPECT(strstr(err.text, "/nowhere/x.jinja"));
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_folder_without_a_template_says_so),
        IN_A_FOLDER(the_config_holds_a_text),
        IN_A_FOLDER(the_config_holds_a_list_with_one_for_tools),
        IN_A_FOLDER(without_a_default_only_tools_are_rendered),
        IN_A_FOLDER(named_files_hide_the_config),
        IN_A_FOLDER(files_of_their_own_come_before_the_config),
        IN_A_FOLDER(special_tokens_are_texts_or_objects_and_the_request_wins),
        IN_A_FOLDER(what_a_request_does_not_say_has_the_defaults_of_transformers),
        IN_A_FOLDER(faults_name_the_file),
        IN_A_FOLDER(a_file_is_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
