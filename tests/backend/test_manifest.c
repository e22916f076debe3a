/* test_manifest.c - a library's kernels against the list that it was linked with, on device code that is none: no GPU
 * is needed. */
#include "check.h"

#include "backend/cuda/device/manifest.c"

/* Containers as the linker lays them out, in what is mapped for reading only. */
static const struct {
    uint64_t before;
    uint32_t magic;
    char code[44];
    uint64_t between;
    uint32_t next_magic;
    char next_code[20];
} device_code
    __attribute__((aligned(16), used)) = {1, 0xBA55ED50, "the code of one file", 2, 0xBA55ED50, "and of another"};

static struct kernel_file files[2]; // what the list says, which the tests change
static const char *const names[] = {"_Z3onev", "_Z3twov", "_Z5threev"};
static const struct kernel_arch hopper[] = {{90, true}},
                                several[] = {{80, false}, {89, false}, {90, true}, {100, false}};
static const struct kernel_list list = {files, names, hopper, 2, 3, 1};

static void fill_list(void) {
    files[0] = (struct kernel_file){"one", 48, XXH3_64bits(&device_code.magic, 48), 0, 1};
    files[1] = (struct kernel_file){"two", 24, XXH3_64bits(&device_code.next_magic, 24), 1, 2};
}

static void kernels_that_are_those_of_the_list_are_taken(void **state) {
    (void)state;
    struct error err;
    fill_list();
    EXPECT_OK(manifest_check_code(&list, &err), err);
}

static void a_file_that_differs_by_a_bit_is_named(void **state) {
    (void)state;
    struct error err;
    fill_list();
    files[1].hash ^= 1;
    EXPECT_EQ(manifest_check_code(&list, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "two.cu") && strstr(err.text, "make cuda") && strstr(err.text, "2 kernels"));
}

static void a_file_that_is_not_there_is_named(void **state) {
    (void)state;
    struct error err;
    fill_list();
    files[0].n_bytes = (uint64_t)1 << 60; // more than there is
    EXPECT_EQ(manifest_check_code(&list, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "one.cu") != NULL);
    fill_list();
    files[0] = files[1]; // the same bytes do not count twice
    EXPECT_EQ(manifest_check_code(&list, &err), ERR_FORMAT);
}

static void the_name_of_a_build_differs_with_any_kernel_and_with_their_order(void **state) {
    (void)state;
    fill_list();
    uint64_t name = manifest_hash(&list);
    EXPECT(manifest_hash(&list) == name);
    files[1].hash ^= 1;
    EXPECT(manifest_hash(&list) != name);
    fill_list();
    files[0].n_bytes++;
    EXPECT(manifest_hash(&list) != name);
    fill_list();
    struct kernel_file first = files[0];
    files[0] = files[1], files[1] = first;
    EXPECT(manifest_hash(&list) != name);
}

static void another_card_is_refused_with_what_to_do(void **state) {
    (void)state;
    static const int others[][2] = {{8, 0}, {8, 9}, {10, 0}, {12, 0}};
    const struct kernel_arch *arch;
    struct error err;
    struct machine_found m = {.device = 2, .major = 9, .minor = 0};
    fill_list();
    EXPECT_OK(manifest_check_card(&list, &m, &arch, &err), err);
    EXPECT(arch == &hopper[0]);
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        m.major = others[i][0], m.minor = others[i][1];
        EXPECT_EQ(manifest_check_card(&list, &m, &arch, &err), ERR_UNSUPPORTED);
        EXPECT(strstr(err.text, "sm_90a") && strstr(err.text, "GPU 2") && strstr(err.text, "CUDA_VISIBLE_DEVICES") &&
               strstr(err.text, "3 kernels"));
    }
}

static void a_card_that_is_not_there_is_refused_by_its_name(void **state) {
    (void)state;
    const struct kernel_arch *arch;
    struct error err;
    struct machine_found m = {.card = "B200", .major = 10};
    fill_list();
    EXPECT_EQ(manifest_check_card(&list, &m, &arch, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "--card: B200") && strstr(err.text, "10.0") && strstr(err.text, "sm_90a") &&
           strstr(err.text, "100 among ARCHS"));
    EXPECT(!strstr(err.text, "GPU 0") && !strstr(err.text, "CUDA_VISIBLE_DEVICES"));
    m = (struct machine_found){.card = "H200", .major = 9};
    EXPECT_OK(manifest_check_card(&list, &m, &arch, &err), err);
    EXPECT(arch == &hopper[0]);
}

static void a_card_runs_the_code_of_its_generation_that_is_nearest(void **state) {
    (void)state;
    static const int cases[][3] = {{8, 0, 0},  {8, 6, 0},  {8, 9, 1},   {9, 0, 2},  {10, 0, 3},
                                   {10, 3, 3}, {7, 5, -1}, {11, 0, -1}, {12, 0, -1}};
    const struct kernel_list of_several = {files, names, several, 2, 3, ARRAY_LEN(several)};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct kernel_arch *arch;
        struct machine_found m = {.major = cases[i][0], .minor = cases[i][1]};
        struct error err;
        enum status st = manifest_check_card(&of_several, &m, &arch, &err);
        EXPECT(arch == (cases[i][2] < 0 ? NULL : &several[cases[i][2]]));
        EXPECT_EQ(st, arch ? OK : ERR_UNSUPPORTED);
        EXPECT(arch || strstr(err.text, "sm_80, sm_89, sm_90a, sm_100"));
    }
}

static void a_driver_that_is_old_or_absent_is_refused_with_what_to_do(void **state) {
    (void)state;
    struct error err;
    struct machine_found m = {.driver = 13000, .runtime = 13010};
    EXPECT_OK(manifest_check_driver(&m, &err), err); // of the same major version any does
    m.driver = 12080;
    EXPECT_EQ(manifest_check_driver(&m, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "12.8") && strstr(err.text, "13.1") && strstr(err.text, "renew the driver"));
    m.driver = 0;
    EXPECT_EQ(manifest_check_driver(&m, &err), ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "no NVIDIA driver") && strstr(err.text, "--device cpu"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_that_are_those_of_the_list_are_taken),
        cmocka_unit_test(a_file_that_differs_by_a_bit_is_named),
        cmocka_unit_test(a_file_that_is_not_there_is_named),
        cmocka_unit_test(the_name_of_a_build_differs_with_any_kernel_and_with_their_order),
        cmocka_unit_test(another_card_is_refused_with_what_to_do),
        cmocka_unit_test(a_card_that_is_not_there_is_refused_by_its_name),
        cmocka_unit_test(a_card_runs_the_code_of_its_generation_that_is_nearest),
        cmocka_unit_test(a_driver_that_is_old_or_absent_is_refused_with_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
