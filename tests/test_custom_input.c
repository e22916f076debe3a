/* test_custom_input.c - the input of a custom tool, out of arguments that come in pieces. */
#include "check.h"

#include "api/tools/custom.h"
#include "base/random.h"

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
               {"{\"input\": \"a\", \"b\": 1}", "a"}};
    struct draws rng = {.seed = test_seed()};
    for (size_t i = 0; i < ARRAY_LEN(cut); i++)
        expect(str_of(cut[i].text), str_of(cut[i].input), &rng);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_of_a_string_says_the_same),
        cmocka_unit_test(what_is_no_input_is_the_arguments_as_they_are),
        cmocka_unit_test(arguments_that_are_cut_say_what_they_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
