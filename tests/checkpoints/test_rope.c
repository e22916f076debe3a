/* test_rope.c - rope frequencies of each kind against those of transformers. */
#include "check.h"

#include "model/spec/rope.h"

#include <math.h>

static void check_frequencies(const char *name, const float *have, const json_t *want, int n) {
    EXPECT_EQ(json_array_size(want), n);
    for (int i = 0; i < n; i++) {
        double w = json_number_value(json_array_get(want, (size_t)i));
        // powf of torch and of libc differ by a unit in the last place; interpolation adds another
        if (fabs(have[i] - w) > 5e-7 * fabs(w))
            fail_msg("%s: frequency %d is %.9g, wanted %.9g", name, i, (double)have[i], w);
    }
}

static void check_long(const char *name, const struct rope *rope, const json_t *c) {
    const json_t *want = json_object_get(c, "inv_freq_long");
    int64_t length = json_integer_value(json_object_get(c, "long_length"));
    float cos_out[512], sin_out[512];
    rope_cos_sin(rope, 1, length, cos_out, sin_out);
    for (int i = 0; i < rope->dim / 2; i++) {
        double w = json_number_value(json_array_get(want, (size_t)i)), s = sin(w) * (double)rope->factor;
        if (fabs(sin_out[i] - s) > 2e-6 * fabs(s))
            fail_msg("%s: at length %lld sine %d is %.9g, wanted %.9g", name, (long long)length, i, (double)sin_out[i],
                     s);
    }
}

static void rope_frequencies_are_those_of_transformers(void **state) {
    (void)state;
    json_t *cases, *c;
    size_t i;
    struct error err;
    EXPECT_OK(jv_load("build/data/rope/frequencies.json", 0, 0, &cases, &err), err);
    EXPECT(json_array_size(cases) > 15);
    json_array_foreach(cases, i, c) {
        const char *name = json_string_value(json_object_get(c, "name")), *note;
        struct arena arena = {0};
        struct rope rope;
        struct rope_request q = {.parameters = json_object_get(c, "parameters"),
                                 .where = name,
                                 .theta = 1,
                                 .partial = 1,
                                 .head_dim = (int)json_integer_value(json_object_get(c, "head_dim")),
                                 .max_positions = json_integer_value(json_object_get(c, "max_positions"))};
        EXPECT_OK(rope_build(&q, &arena, &rope, &note, &err), err);
        check_frequencies(name, rope.inv_freq, json_object_get(c, "inv_freq"), rope.dim / 2);
        double factor = json_number_value(json_object_get(c, "attention_factor"));
        if (fabs(rope.factor - factor) > 1e-6 * factor)
            fail_msg("%s: attention factor %.9g, wanted %.9g", name, (double)rope.factor, factor);
        if (json_object_get(c, "long_length"))
            check_long(name, &rope, c);
        arena_release(&arena);
    }
    json_decref(cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_frequencies_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
