/* test_json.c - which texts are JSON: JSONTestSuite's answers, and the bounds that are ours. */
#include "check.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json/json.h"

#include <dirent.h>

#define SUITE "tests/data/json/JSONTestSuite"

/* Loads every file of the suite whose name begins with `kind` and checks that the answer is `wanted`, or any
 * at all when wanted is negative. A refusal must be one sentence in UTF-8 that begins with the file's path. */
static void check_suite(char kind, int wanted, int at_least) {
    DIR *dir = opendir(SUITE);
    EXPECT(dir != NULL);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] != kind)
            continue;
        char path[512];
        snprintf(path, sizeof path, SUITE "/%.400s", e->d_name);
        struct error err = {0};
        json_t *value;
        bool accepted = jv_load(path, 1 << 20, JV_ALLOW_DUPLICATES, &value, &err) == OK;
        if (wanted >= 0 && accepted != (bool)wanted)
            fail_msg("%s is %s: %s", path, accepted ? "accepted" : "refused", err.text);
        if (accepted)
            json_decref(value);
        else if (!utf8_valid(str_of(err.text)) || !str_starts(str_of(err.text), str_of(path)) ||
                 err.status != ERR_FORMAT)
            fail_msg("%s is refused with: %s", path, err.text);
        n++;
    }
    closedir(dir);
    EXPECT(n >= at_least);
}

static void what_must_be_accepted_is(void **state) {
    (void)state;
    check_suite('y', 1, 50);
}

static void what_must_be_refused_is(void **state) {
    (void)state;
    check_suite('n', 0, 90);
}

static void what_may_be_either_ends_well(void **state) {
    (void)state;
    check_suite('i', -1, 20);
}

static enum status parse(const char *text, int flags, struct error *err) {
    json_t *value;
    enum status st = jv_parse(str_of(text), "x", flags, &value, err);
    if (st == OK)
        json_decref(value);
    return st;
}

static void equal_keys_are_refused_unless_allowed(void **state) {
    (void)state;
    struct error err = {0};
    EXPECT_EQ(parse("{\"a\":1,\"a\":2}", 0, &err), ERR_FORMAT);
    EXPECT_OK(parse("{\"a\":1,\"a\":2}", JV_ALLOW_DUPLICATES, &err), err);
    json_t *value;
    EXPECT_OK(jv_parse(STR("{\"a\":1,\"a\":2}"), "x", JV_ALLOW_DUPLICATES, &value, &err), err);
    EXPECT_EQ(json_integer_value(json_object_get(value, "a")), 2);
    json_decref(value);
}

/* Configurations of models are written by Python, some with "time_step_limit": [0.0, Infinity]. */
static void what_python_writes_for_numbers_that_are_none_is_read_where_it_may_come(void **state) {
    (void)state;
    static const char text[] = "{\"a\": [0.0, Infinity, -Infinity , -1],\"b\":\nNaN}";
    static const char *const faults[] = {"[Nan]",       "[infinity]", "[-Inf]",   "[NaNN]",
                                         "[Infinity1]", "{NaN:1}",    "+Infinity"};
    json_t *v;
    struct error err;
    EXPECT_EQ(jv_parse(STR(text), "f.json", 0, &v, &err), ERR_FORMAT);
    EXPECT_OK(jv_parse(STR(text), "f.json", JV_PYTHON, &v, &err), err);
    double number;
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(v, "a"), 3)), -1);
    EXPECT(strcmp(json_string_value(json_array_get(json_object_get(v, "a"), 2)), "-Infinity") == 0);
    EXPECT_EQ(jv_real_or(v, "f.json", "b", 1, &number, &err), ERR_FORMAT); // and no default in its place
    EXPECT(strstr(err.text, "\"b\""));
    json_decref(v);
    for (size_t i = 0; i < ARRAY_LEN(faults); i++)
        EXPECT_EQ(jv_parse(str_of(faults[i]), "f.json", JV_PYTHON, &v, &err), ERR_FORMAT);
}

static void depth_is_bounded(void **state) {
    (void)state;
    struct error err = {0};
    enum { N = 200000 };
    char *text = xmalloc(2 * N);
    for (int depth = 2000; depth <= N; depth += N - 2000) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        json_t *value = NULL;
        enum status st = jv_parse((struct str){text, 2 * (size_t)depth}, "x", 0, &value, &err);
        EXPECT_EQ(st, depth == 2000 ? OK : ERR_FORMAT);
        json_decref(value);
    }
    free(text);
}

static void an_oversized_file_is_refused_unread(void **state) {
    (void)state;
    struct error err = {0};
    json_t *value;
    EXPECT_EQ(jv_load(SUITE "/i_structure_500_nested_arrays.json", 999, 0, &value, &err), ERR_LIMIT);
    EXPECT_OK(jv_load(SUITE "/i_structure_500_nested_arrays.json", 1000, 0, &value, &err), err);
    json_decref(value);
}

static void every_string_survives_writing_and_reading(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp += cp < 0x3000 ? 1 : 97) {
        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        char utf8[4];
        struct str s = {utf8, (size_t)utf8_encode(cp, utf8)};
        struct buf b = {0};
        buf_json_string(&b, s);
        struct error err = {0};
        json_t *value;
        EXPECT_OK(jv_parse(buf_view(&b), "x", 0, &value, &err), err);
        struct str back = {json_string_value(value), json_string_length(value)};
        if (!str_eq(back, s))
            fail_msg("U+%04X comes back as %s", cp, b.ptr);
        json_decref(value);
        buf_release(&b);
    }
}

static void an_integer_past_64_bits_changes_no_other_number(void **state) {
    (void)state;
    struct error err = {0};
    json_t *value;
    EXPECT_OK(jv_parse(STR("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 7, \"ids\": [-1, 1.5, "
                           "-9223372036854775808]}"),
                       "x", 0, &value, &err),
              err);
    const json_t *ids = json_object_get(value, "ids");
    EXPECT(json_is_integer(json_object_get(value, "n")) && json_is_integer(json_array_get(ids, 0)));
    EXPECT(json_is_real(json_array_get(ids, 1)) && json_integer_value(json_array_get(ids, 2)) == INT64_MIN);
    EXPECT(json_real_value(json_object_get(value, "model_max_length")) == 1e30);
    int64_t n;
    EXPECT_EQ(jv_int(value, "x", "model_max_length", 0, INT64_MAX, &n, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "\"model_max_length\" is too large") != NULL);
    json_decref(value);
}

static void the_edges_of_64_bits_are_told_from_what_is_past_them(void **state) {
    (void)state;
    struct error err = {0};
    static const struct edge {
        const char *text, *why;
        int64_t n;
    } edges[] = {
        {"{\"n\":9223372036854775807}", NULL, INT64_MAX}, {"{\"n\":-9223372036854775808}", NULL, INT64_MIN},
        {"{\"n\":9223372036854775808}", "too large", 0},  {"{\"n\":-9223372036854777856}", "too small", 0},
        {"{\"n\":1e18}", NULL, 1000000000000000000},      {"{\"n\":1e19}", "too large", 0},
        {"{\"n\":1.5}", "it must be an integer", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(edges); i++) {
        json_t *value;
        int64_t n = 0;
        EXPECT_OK(jv_parse(str_of(edges[i].text), "x", 0, &value, &err), err);
        enum status st = jv_int(value, "x", "n", INT64_MIN, INT64_MAX, &n, &err);
        if (edges[i].why ? st != ERR_FORMAT || !strstr(err.text, edges[i].why) : st != OK || n != edges[i].n)
            fail_msg("%s: %lld, %s", edges[i].text, (long long)n, err.text);
        json_decref(value);
    }
}

/* What the values of a text take is counted before they are made: the text of a stranger may be 90 times shorter. */
static void what_values_take_is_bounded(void **state) {
    (void)state;
    static const char *const units[] = {"{}", "[]", "0", "\"\"", "{\"a\":0}", "true", "[[]]"};
    enum { MOST = 1 << 20 };
    for (size_t u = 0; u < ARRAY_LEN(units); u++) {
        struct error err = {0};
        json_t *value;
        struct buf text = {0};
        buf_push(&text, '[');
        for (int i = 0; i < 100000; i++)
            buf_printf(&text, "%s%s", i ? "," : "", units[u]);
        buf_push(&text, ']');
        size_t budget = MOST, enough = 100 * MOST;
        EXPECT_EQ(jv_parse_within(buf_view(&text), "x", 0, &budget, &value, &err), ERR_LIMIT);
        EXPECT(value == NULL && budget == 0 && strstr(err.text, "more than 1 MiB of memory") != NULL);
        EXPECT_OK(jv_parse_within(buf_view(&text), "x", 0, &enough, &value, &err), err);
        EXPECT(enough < 100 * MOST && enough > 0);
        json_decref(value);
        buf_release(&text);
    }
}

static void a_long_string_counts_as_one_value(void **state) {
    (void)state;
    struct error err = {0};
    json_t *value;
    struct buf text = {0};
    buf_push(&text, '"');
    for (int i = 0; i < 1 << 20; i++)
        buf_push(&text, 'a');
    buf_push(&text, '"');
    size_t budget = 1 << 10;
    EXPECT_OK(jv_parse_within(buf_view(&text), "x", 0, &budget, &value, &err), err);
    EXPECT_EQ(json_string_length(value), 1 << 20);
    json_decref(value);
    buf_release(&text);
}

static void *no_memory(size_t n_bytes) {
    (void)n_bytes;
    return NULL;
}

static void missing_memory_is_no_fault_of_the_text(void **state) {
    (void)state;
    static const char *const texts[] = {"1", "1.5", "\"a\"", "[]", "{}", "18446744073709551615"};
    json_set_alloc_funcs(no_memory, free);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct error err = {0};
        json_t *value;
        EXPECT_EQ(jv_parse(str_of(texts[i]), "x", 0, &value, &err), ERR_MEMORY);
        EXPECT_STR(err.text, "x: there is no memory for the values of its JSON");
    }
    json_set_alloc_funcs(malloc, free);
}

static long n_alive; // of what jansson allocates

static void *counted_malloc(size_t n_bytes) {
    n_alive++;
    return malloc(n_bytes);
}

static void counted_free(void *memory) {
    n_alive -= memory != NULL;
    free(memory);
}

static void a_text_that_passes_its_bound_leaves_nothing(void **state) {
    (void)state;
    static const char text[] = "{\"a\": \"a long text\", \"b\": [1, [2.5, {}], {\"c\": []}, null], \"d\": 3}";
    enum status st = ERR_LIMIT;
    json_set_alloc_funcs(counted_malloc, counted_free);
    for (size_t bytes = 0; st != OK; bytes += 8) {
        struct error err = {0};
        json_t *value;
        size_t budget = bytes;
        st = jv_parse_within(str_of(text), "x", 0, &budget, &value, &err);
        EXPECT(st == OK || (st == ERR_LIMIT && !value));
        json_decref(value);
        EXPECT_EQ(n_alive, 0);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_must_be_accepted_is),
        cmocka_unit_test(what_must_be_refused_is),
        cmocka_unit_test(what_may_be_either_ends_well),
        cmocka_unit_test(equal_keys_are_refused_unless_allowed),
        cmocka_unit_test(what_python_writes_for_numbers_that_are_none_is_read_where_it_may_come),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(an_oversized_file_is_refused_unread),
        cmocka_unit_test(every_string_survives_writing_and_reading),
        cmocka_unit_test(an_integer_past_64_bits_changes_no_other_number),
        cmocka_unit_test(the_edges_of_64_bits_are_told_from_what_is_past_them),
        cmocka_unit_test(what_values_take_is_bounded),
        cmocka_unit_test(a_long_string_counts_as_one_value),
        cmocka_unit_test(missing_memory_is_no_fault_of_the_text),
        cmocka_unit_test(a_text_that_passes_its_bound_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
