/* test_json_reader.c - the JSON reader for large files against the JSONTestSuite. */
#include "check.h"

#include "base/file.h"
#include "base/json/json_reader.h"

#include <dirent.h>

#define SUITE "tests/data/json/JSONTestSuite"

static enum status read_whole(struct str text, struct error *err) {
    struct json_reader r;
    json_reader_init(&r, text, "text");
    enum status st = json_skip(&r, NULL, err);
    if (st == OK)
        st = json_expect_end(&r, err);
    json_reader_release(&r);
    return st;
}

static void the_test_suite_is_judged_as_it_says(void **state) {
    (void)state;
    DIR *dir = opendir(SUITE);
    if (!dir)
        fail_msg("%s cannot be opened", SUITE);
    int n_files = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] != 'y' && entry->d_name[0] != 'n' && entry->d_name[0] != 'i')
            continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", SUITE, entry->d_name);
        struct buf text = {0};
        struct error err = {0};
        EXPECT_OK(file_read(path, 1 << 20, &text, &err), err);
        enum status st = read_whole(buf_view(&text), &err);
        if ((entry->d_name[0] == 'y' && st != OK) || (entry->d_name[0] == 'n' && st == OK))
            fail_msg("%s: %s", entry->d_name, st == OK ? "accepted" : err.text);
        if (st != OK)
            EXPECT(err.text[0]);
        buf_release(&text);
        n_files++;
    }
    closedir(dir);
    EXPECT(n_files > 150);
}

static void values_come_out_as_they_were_written(void **state) {
    (void)state;
    struct json_reader r;
    struct error err;
    json_reader_init(&r, STR(" {\"a\\u00e9\\n\": [1, -9223372036854775808, 2.5e1, true], \"b\":\"\\ud83e\\udd8a\"} "),
                     "text");
    EXPECT_OK(json_enter_object(&r, &err), err);
    struct str key;
    bool more, flag;
    int64_t n;
    double x;
    EXPECT_OK(json_next_key(&r, &key, &more, &err), err);
    EXPECT(more && str_eq(key, STR("a\xC3\xA9\n")));
    EXPECT_OK(json_enter_array(&r, &err), err);
    EXPECT(json_next_item(&r, &more, &err) == OK && more && json_take_int(&r, &n, &err) == OK && n == 1);
    EXPECT(json_next_item(&r, &more, &err) == OK && more && json_take_int(&r, &n, &err) == OK && n == INT64_MIN);
    EXPECT(json_next_item(&r, &more, &err) == OK && more && json_take_real(&r, &x, &err) == OK && x == 25);
    EXPECT(json_next_item(&r, &more, &err) == OK && more && json_take_bool(&r, &flag, &err) == OK && flag);
    EXPECT(json_next_item(&r, &more, &err) == OK && !more);
    EXPECT(json_next_key(&r, &key, &more, &err) == OK && more && str_eq(key, STR("b")));
    EXPECT(json_take_string(&r, &key, &err) == OK && str_eq(key, STR("\xF0\x9F\xA6\x8A")));
    EXPECT(json_next_key(&r, &key, &more, &err) == OK && !more);
    EXPECT_OK(json_expect_end(&r, &err), err);
    json_reader_release(&r);
}

static void a_fault_is_named_with_its_line(void **state) {
    (void)state;
    struct error err;
    EXPECT_EQ(read_whole(STR("{\n\"a\": 1,\n}"), &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "text: ") && strstr(err.text, "line 3"));
    struct json_reader r;
    int64_t n;
    json_reader_init(&r, STR("9223372036854775808"), "text");
    EXPECT_EQ(json_take_int(&r, &n, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "64 bits"));
    json_reader_release(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_test_suite_is_judged_as_it_says),
        cmocka_unit_test(values_come_out_as_they_were_written),
        cmocka_unit_test(a_fault_is_named_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
