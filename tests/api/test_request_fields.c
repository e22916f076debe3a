/* test_request_fields.c - requests as JSON: what is understood, and that a fault names its field. */
#include "check.h"

#include "api/fields/request_fields.h"

static const struct gyre_request BASE = {
    .max_tokens = -1, .top_p = 1, .repetition_penalty = 1, .temperature = 0.5f, .seed = 77};

static enum status read_text(const char *text, struct request_fields *f, struct error *err) {
    json_t *doc;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &doc, err), *err);
    enum status st = request_fields_read(doc, &BASE, f, err);
    json_decref(doc); // what was read must not need it
    return st;
}

static void all_fields_are_read(void **state) {
    (void)state;
    struct request_fields f;
    struct error err;
    EXPECT_OK(
        read_text(
            "{\"prompt_ids\":[5,6,7],\"max_tokens\":40,\"min_tokens\":3,\"temperature\":0.25,\"top_p\":0.5,\"top_k\":8,"
            "\"min_p\":0.125,\"seed\":-3,\"stop\":[\"a\",\"\\nUser:\"],\"stop_token_ids\":[9],\"allowed_token_ids\":[7,"
            "9],"
            "\"ignore_eos\":true,"
            "\"repetition_penalty\":1.5,\"presence_penalty\":-1,\"frequency_penalty\":2,\"logit_bias\":{\"12\":-100,"
            "\"7\":2.5},"
            "\"logprobs\":true,\"top_logprobs\":4}",
            &f, &err),
        err);
    const struct gyre_request *r = &f.request;
    EXPECT(r->n_prompt == 3 && r->prompt[2] == 7 && f.prompt == NULL);
    EXPECT(r->max_tokens == 40 && r->min_tokens == 3 && r->top_k == 8 && r->seed == (uint64_t)-3 && r->ignore_eos);
    EXPECT(r->temperature == 0.25f && r->top_p == 0.5f && r->min_p == 0.125f);
    EXPECT(r->repetition_penalty == 1.5f && r->presence_penalty == -1 && r->frequency_penalty == 2);
    EXPECT(f.n_stop == 2 && strcmp(f.stop[1], "\nUser:") == 0 && r->n_stop_ids == 1 && r->stop_ids[0] == 9);
    EXPECT(r->n_logit_bias == 2 && r->logit_bias[0].token == 12 && r->logit_bias[0].bias == -100 &&
           r->logit_bias[1].bias == 2.5f);
    EXPECT(r->logprobs && r->n_top_logprobs == 4);
    EXPECT(r->n_allowed_ids == 2 && r->allowed_ids[0] == 7 && r->allowed_ids[1] == 9);
    request_fields_release(&f);
}

static void what_is_absent_or_null_is_as_the_base_says(void **state) {
    (void)state;
    struct request_fields f;
    struct error err;
    EXPECT_OK(
        read_text("{\"prompt\":\"Once upon\",\"temperature\":null,\"stop\":null,\"logit_bias\":null,\"logprobs\":null,"
                  "\"stop_token_ids\":null,\"prompt_ids\":null}",
                  &f, &err),
        err);
    EXPECT_STR(f.prompt, "Once upon");
    EXPECT(f.request.prompt == NULL && f.request.temperature == 0.5f && f.request.seed == 77 &&
           f.request.max_tokens == -1);
    EXPECT(f.n_stop == 0 && f.request.n_logit_bias == 0 && !f.request.logprobs);
    request_fields_release(&f);
    EXPECT_OK(read_text("{\"prompt\":\"\",\"stop\":\"x\",\"top_k\":-1,\"logprobs\":5,\"max_tokens\":1e2}", &f, &err),
              err);
    EXPECT(f.n_stop == 1 && f.request.top_k == 0 && f.request.logprobs && f.request.n_top_logprobs == 5 &&
           f.request.max_tokens == 100);
    request_fields_release(&f);
}

static void a_fault_names_its_field(void **state) {
    (void)state;
    static const struct {
        const char *word, *text;
    } cases[] = {
        {"prompt_ids", "{}"},
        {"prompt_ids", "{\"prompt\":\"a\",\"prompt_ids\":[1]}"},
        {"prompt_ids", "{\"prompt_ids\":\"a\"}"},
        {"prompt_ids", "{\"prompt_ids\":[1,\"2\"]}"},
        {"prompt_ids", "{\"prompt_ids\":[1,2.5]}"},
        {"prompt_ids", "{\"prompt_ids\":[99999999999]}"},
        {"\"prompt\"", "{\"prompt\":5}"},
        {"\"prompt\"", "{\"prompt\":[\"a\"]}"},
        {"NUL", "{\"prompt\":\"a\\u0000b\"}"},
        {"max_token", "{\"prompt\":\"a\",\"max_token\":5}"},
        {"messages", "{\"prompt\":\"a\",\"messages\":[]}"},
        {"max_tokens", "{\"prompt\":\"a\",\"max_tokens\":\"5\"}"},
        {"max_tokens", "{\"prompt\":\"a\",\"max_tokens\":-1}"},
        {"max_tokens", "{\"prompt\":\"a\",\"max_tokens\":1.5}"},
        {"temperature", "{\"prompt\":\"a\",\"temperature\":\"hot\"}"},
        {"temperature", "{\"prompt\":\"a\",\"temperature\":true}"},
        {"top_k", "{\"prompt\":\"a\",\"top_k\":3000000000}"},
        {"seed", "{\"prompt\":\"a\",\"seed\":0.5}"},
        {"ignore_eos", "{\"prompt\":\"a\",\"ignore_eos\":1}"},
        {"stop", "{\"prompt\":\"a\",\"stop\":5}"},
        {"stop", "{\"prompt\":\"a\",\"stop\":[\"a\",\"\"]}"},
        {"stop", "{\"prompt\":\"a\",\"stop\":{\"a\":1}}"},
        {"stop", "{\"prompt\":\"a\",\"stop\":[[\"a\"]]}"},
        {"stop_token_ids", "{\"prompt\":\"a\",\"stop_token_ids\":3}"},
        {"allowed_token_ids", "{\"prompt\":\"a\",\"allowed_token_ids\":[]}"},
        {"allowed_token_ids", "{\"prompt\":\"a\",\"allowed_token_ids\":[1,\"x\"]}"},
        {"top_logprobs", "{\"prompt\":\"a\",\"top_logprobs\":21}"},
        {"top_logprobs", "{\"prompt\":\"a\",\"logprobs\":true,\"top_logprobs\":-1}"},
        {"logit_bias", "{\"prompt\":\"a\",\"logit_bias\":[1]}"},
        {"logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}"},
        {"logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"-1\":1}}"},
        {"logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"99999999999999999999\":1}}"},
        {"logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"1\":\"2\"}}"},
        {"logprobs", "{\"prompt\":\"a\",\"logprobs\":21}"},
        {"logprobs", "{\"prompt\":\"a\",\"logprobs\":\"yes\"}"},
        {"object", "[1]"},
        {"object", "5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct request_fields f;
        struct error err;
        if (read_text(cases[i].text, &f, &err) == OK || !strstr(err.text, cases[i].word))
            fail_msg("%s: no word of %s in \"%s\"", cases[i].text, cases[i].word, err.text);
    }
}

static void a_prompt_alone_takes_no_sampling_fields(void **state) {
    (void)state;
    struct request_fields f;
    struct error err;
    json_t *doc;
    EXPECT_OK(jv_parse(STR("{\"prompt_ids\":[1,2],\"temperature\":1}"), "test", 0, &doc, &err), err);
    EXPECT(request_prompt_read(doc, &BASE, &f, &err) != OK && strstr(err.text, "temperature"));
    json_object_del(doc, "temperature");
    EXPECT_OK(request_prompt_read(doc, &BASE, &f, &err), err);
    EXPECT_EQ(f.request.n_prompt, 2);
    request_fields_release(&f);
    json_decref(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fields_are_read),
        cmocka_unit_test(what_is_absent_or_null_is_as_the_base_says),
        cmocka_unit_test(a_fault_names_its_field),
        cmocka_unit_test(a_prompt_alone_takes_no_sampling_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
