/* test_plan_cache.c - the file of timed products is as it was written, or as if it were not there. */
#include "check.h"

#include "backend/cuda/linear/plan_cache.c" // part of the CUDA backend, which this build need not have

#include "base/random.h"

static char folder[] = "/tmp/gyre-plans-XXXXXX", path[200];
static const char machine[] = "Some card, 132 multiprocessors, driver 13000, cuBLASLt 130001";

static struct plan_key key_of(int i) { return (struct plan_key){1 << i % 8, 4608 + i, 3584, 4, 4, i & 1, 0, 256, 256}; }

static struct plan_choice choice_of(int i) {
    struct plan_choice c = {.path = i % 3, .us = i / 4.0};
    for (int k = 0; k < PLAN_WORDS; k++)
        c.algorithm[k] = k == 7 ? UINT64_MAX : philox4x32(7, (uint64_t)i, (uint64_t)k).v[0] * (uint64_t)i;
    return c;
}

static void write_some(int n) {
    struct error err;
    struct plan_cache *c = plan_cache_open(path, machine);
    for (int i = 1; i <= n; i++) {
        struct plan_key k = key_of(i);
        struct plan_choice choice = choice_of(i);
        plan_cache_add(c, &k, &choice);
    }
    EXPECT_OK(plan_cache_save(c, &err), err);
    plan_cache_free(c);
}

static int count_right(const char *for_machine, int n) {
    struct plan_cache *c = plan_cache_open(path, for_machine);
    int right = 0;
    for (int i = 1; i <= n; i++) {
        struct plan_key k = key_of(i);
        struct plan_choice want = choice_of(i);
        const struct plan_choice *got = plan_cache_find(c, &k);
        if (!got)
            continue;
        EXPECT_EQ(got->path, want.path);
        EXPECT_EQ((int)(got->us * 100), (int)(want.us * 100));
        EXPECT(memcmp(got->algorithm, want.algorithm, sizeof want.algorithm) == 0);
        right++;
    }
    EXPECT_EQ(c->n, right);
    plan_cache_free(c);
    return right;
}

static void plans_are_read_as_they_were_written(void **state) {
    (void)state;
    unlink(path);
    EXPECT_EQ(count_right(machine, 50), 0);
    write_some(50);
    EXPECT_EQ(count_right(machine, 50), 50);
}

static void what_is_not_timed_is_not_kept(void **state) {
    (void)state;
    unlink(path);
    struct error err;
    struct plan_key k = key_of(0);
    struct plan_choice choice = choice_of(0); // 0 microseconds
    struct plan_cache *c = plan_cache_open(path, machine);
    plan_cache_add(c, &k, &choice);
    EXPECT(plan_cache_find(c, &k) != NULL);
    EXPECT_OK(plan_cache_save(c, &err), err);
    plan_cache_free(c);
    EXPECT(!file_exists(path));
}

/* The same product in the same node as something else, or in another program, may be fastest by another path. */
static void plans_differ_by_what_is_done_in_the_node_and_where(void **state) {
    (void)state;
    unlink(path);
    struct error err;
    struct plan_cache *c = plan_cache_open(path, machine);
    for (int i = 0; i < 12; i++) {
        struct plan_key k = key_of(1);
        struct plan_choice choice = {.path = i % 6, .us = 1 + i};
        k.ending = i % 3;
        k.program = i % 6 / 3 * 1000000007; // twice all six: the second takes the place of the first
        plan_cache_add(c, &k, &choice);
    }
    EXPECT_EQ(c->n, 6);
    EXPECT_OK(plan_cache_save(c, &err), err);
    plan_cache_free(c);
    c = plan_cache_open(path, machine);
    EXPECT_EQ(c->n, 6);
    for (int i = 0; i < 6; i++) {
        struct plan_key k = key_of(1);
        k.ending = i % 3;
        k.program = i / 3 * 1000000007;
        EXPECT_EQ(plan_cache_find(c, &k)->path, i);
        EXPECT_EQ((int)plan_cache_find(c, &k)->us, 7 + i);
    }
    plan_cache_free(c);
}

static void another_machine_has_no_plans(void **state) {
    (void)state;
    write_some(20);
    EXPECT_EQ(count_right("Some card, 132 multiprocessors, driver 13000, cuBLASLt 130002", 20), 0);
    EXPECT_EQ(count_right("Some card, 132 multiprocessors, driver 13000, cuBLASLt 13000", 20), 0);
}

static void a_changed_or_cut_file_counts_as_none(void **state) {
    (void)state;
    unlink(path);
    write_some(12);
    struct buf whole = {0};
    struct error err;
    EXPECT_OK(file_read(path, 1 << 20, &whole, &err), err);
    for (int i = 0; i < 4000; i++) {
        struct philox r = philox4x32(test_seed(), (uint64_t)i, 2);
        struct buf changed = {0};
        buf_append(&changed, whole.ptr, whole.len);
        size_t at = r.v[0] % whole.len;
        if (r.v[1] % 3 == 0)
            changed.len = at;
        else if (r.v[1] % 3 == 1)
            changed.ptr[at] = (char)(changed.ptr[at] ^ (1 + r.v[2] % 255));
        else
            buf_append(&changed, whole.ptr + at, whole.len - at);
        EXPECT_OK(file_write(path, buf_view(&changed), &err), err);
        EXPECT_EQ(count_right(machine, 12), 0);
        buf_release(&changed);
    }
    EXPECT_OK(file_write(path, buf_view(&whole), &err), err);
    EXPECT_EQ(count_right(machine, 12), 12);
    buf_release(&whole);
}

static void a_file_that_others_may_write_to_counts_as_none(void **state) {
    (void)state;
    unlink(path);
    write_some(5);
    EXPECT_EQ(chmod(path, 0666), 0);
    EXPECT_EQ(count_right(machine, 5), 0);
    EXPECT_EQ(chmod(path, 0600), 0);
    EXPECT_EQ(count_right(machine, 5), 5);
}

static void the_file_lies_where_caches_do(void **state) {
    (void)state;
    char at[300];
    setenv("XDG_CACHE_HOME", "/x", 1);
    EXPECT(plan_cache_path(at, sizeof at, machine) && strncmp(at, "/x/gyre/cuda-plans-", 19) == 0);
    setenv("XDG_CACHE_HOME", "relative", 1); // counts as not set
    setenv("HOME", "/home/me", 1);
    EXPECT(plan_cache_path(at, sizeof at, machine) && strncmp(at, "/home/me/.cache/gyre/", 21) == 0);
    unsetenv("HOME");
    EXPECT(!plan_cache_path(at, sizeof at, machine));
    EXPECT(!plan_cache_path(at, 10, machine));
}

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/a/b/plans", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_read_as_they_were_written),
        cmocka_unit_test(what_is_not_timed_is_not_kept),
        cmocka_unit_test(plans_differ_by_what_is_done_in_the_node_and_where),
        cmocka_unit_test(another_machine_has_no_plans),
        cmocka_unit_test(a_changed_or_cut_file_counts_as_none),
        cmocka_unit_test(a_file_that_others_may_write_to_counts_as_none),
        cmocka_unit_test(the_file_lies_where_caches_do),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
