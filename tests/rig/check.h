/* check.h - what every test file includes: cmocka, and claims that print what they saw.
 *
 *     static void philox_gives_the_published_values(void **state) { ... EXPECT(x == 7); }
 *     int main(void) { const struct CMUnitTest tests[] = {cmocka_unit_test(philox_gives_the_published_values)};
 *                      return cmocka_run_group_tests(tests, NULL, NULL); }
 *
 * Random tests take their seed from test_seed() and so print it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#undef fail     // ours reports faults of the world
#undef fail_msg // is made of the macro above
#define fail_msg(...) (print_error("ERROR: " __VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

#define EXPECT(cond)                                                  \
    do {                                                              \
        if (!(cond))                                                  \
            fail_msg("%s:%d: not so: %s", __FILE__, __LINE__, #cond); \
    } while (0)

#define EXPECT_EQ(a, b)                                                                    \
    do {                                                                                   \
        long long a_ = (long long)(a), b_ = (long long)(b);                                \
        if (a_ != b_)                                                                      \
            fail_msg("%s:%d: %s is %lld, %s is %lld", __FILE__, __LINE__, #a, a_, #b, b_); \
    } while (0)

#define EXPECT_STR(a, b)                                                                    \
    do {                                                                                    \
        const char *a_ = (a), *b_ = (b);                                                    \
        if (strcmp(a_, b_) != 0)                                                            \
            fail_msg("%s:%d: %s is \"%s\", wanted \"%s\"", __FILE__, __LINE__, #a, a_, b_); \
    } while (0)

/* status must be OK, else the sentence in err is the failure. */
#define EXPECT_OK(call, err)                                                  \
    do {                                                                      \
        if ((call) != 0)                                                      \
            fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, #call, (err).text); \
    } while (0)

/* A group runs its tests whose names match GYRE_TEST_ONLY, a pattern with * and ?, if that is set. */
#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, setup, teardown) \
    (cmocka_set_test_filter(getenv("GYRE_TEST_ONLY")), \
     _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown))

/* Whether to draw fewer cases: make test-fast, and sanitizers of devices, where a step is slow. */
static inline bool test_is_brief(void) { return getenv("GYRE_TEST_BRIEF") != NULL; }

/* GYRE_TEST_SEED or the time; printed once, so that a failure can be repeated. Weak: all source files of a program have
 * one. Nothing is allocated: the first draw may be where that is forbidden (base/guard.h). */
__attribute__((weak)) uint64_t drawn_seed;

static inline uint64_t test_seed(void) {
    if (!drawn_seed) {
        const char *s = getenv("GYRE_TEST_SEED");
        struct timespec t;
        timespec_get(&t, TIME_UTC);
        drawn_seed = s ? strtoull(s, NULL, 0) : (uint64_t)t.tv_nsec * 2654435761u + (uint64_t)t.tv_sec;
        drawn_seed += !drawn_seed;
        printf("GYRE_TEST_SEED=%llu\n", (unsigned long long)drawn_seed);
    }
    return drawn_seed;
}
