/* test_dtype.c - conversions between element types are exact, and round to nearest even. */
#include "check.h"

#include "core/dtype.h"

#include <math.h>

static bool same(float a, float b) { return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b)); }

static void every_small_float_survives_a_round_trip(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float h = f16_to_f32((uint16_t)i), b = bf16_to_f32((uint16_t)i);
        EXPECT(same(f16_to_f32(f32_to_f16(h)), h));
        EXPECT(same(bf16_to_f32(f32_to_bf16(b)), b));
    }
    for (uint32_t i = 0; i < 256; i++)
        EXPECT(same(f8_e4m3_to_f32(f32_to_f8_e4m3(f8_e4m3_to_f32((uint8_t)i))), f8_e4m3_to_f32((uint8_t)i)));
}

static void known_values(void **state) {
    (void)state;
    EXPECT(f16_to_f32(0x3C00) == 1 && f16_to_f32(0x7BFF) == 65504 && f16_to_f32(1) == 0x1p-24f &&
           isinf(f16_to_f32(0xFC00)));
    EXPECT(f8_e4m3_to_f32(0x7E) == 448 && f8_e4m3_to_f32(0x01) == 0x1p-9f && f8_e4m3_to_f32(0x38) == 1 &&
           isnan(f8_e4m3_to_f32(0xFF)));
    EXPECT(f8_e5m2_to_f32(0x7B) == 57344 && f8_e5m2_to_f32(0x3C) == 1);
    EXPECT(f8_e8m0_to_f32(127) == 1 && f8_e8m0_to_f32(0) == 0x1p-127f);
    EXPECT(e2m1_to_f32(7) == 6 && e2m1_to_f32(9) == -0.5f);
}

/* What each byte says, by its definition. */
static void every_byte_is_its_sign_mantissa_and_exponent(void **state) {
    (void)state;
    for (int b = 0; b < 256; b++) {
        double sign = b & 0x80 ? -1 : 1;
        int e = b >> 3 & 15, m = b & 7;
        float e4m3 = (b & 0x7F) == 0x7F ? NAN : (float)(sign * (e ? ldexp(8 + m, e - 10) : ldexp(m, -9)));
        EXPECT(same(f8_e4m3_to_f32((uint8_t)b), e4m3));
        EXPECT(same(f8_e8m0_to_f32((uint8_t)b), b == 255 ? NAN : (float)ldexp(1, b - 127)));
    }
    for (int h = 0; h < 65536; h++) {
        int e = h >> 10 & 31, m = h & 1023;
        double magnitude = e == 31 ? m ? NAN : INFINITY : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        EXPECT(same(f16_to_f32((uint16_t)h), (float)(h & 0x8000 ? -magnitude : magnitude)));
    }
}

/* For any float, the rounded value is no farther than both neighbours, and ties go to the even code. */
static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    uint64_t s = test_seed();
    for (int i = 0; i < 2000000; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        float mantissa = 1 + (float)(s >> 40) * 0x1p-24f,
              f = ldexpf(s & 1 ? -mantissa : mantissa, (int)(s >> 8 & 63) - 34);
        if (i % 3 == 0) // make exact ties common
            f = ldexpf(rintf(ldexpf(mantissa, 8)) + 0.5f, (int)(s >> 8 & 31) - 20);
        uint16_t h = f32_to_f16(f);
        if ((h & 0x7FFF) < 0x7BFF && (h & 0x7FFF) > 0) {
            double d = fabs((double)f16_to_f32(h) - f), up = fabs((double)f16_to_f32(h + 1) - f),
                   down = fabs((double)f16_to_f32(h - 1) - f);
            EXPECT(d <= up && d <= down && (!(d == up || d == down) || !(h & 1)));
        }
        uint8_t e = f32_to_f8_e4m3(f);
        if ((e & 0x7F) < 0x7E && (e & 0x7F) > 0) {
            double d = fabs((double)f8_e4m3_to_f32(e) - f), up = fabs((double)f8_e4m3_to_f32(e + 1) - f),
                   down = fabs((double)f8_e4m3_to_f32(e - 1) - f);
            EXPECT(d <= up && d <= down && (!(d == up || d == down) || !(e & 1)));
        }
    }
    EXPECT_EQ(f32_to_f8_e4m3(1e9f), 0x7E);
    EXPECT_EQ(f32_to_f16(65519.99f), 0x7BFF);
    EXPECT_EQ(f32_to_f16(65520), 0x7C00);
    EXPECT_EQ(f32_to_bf16(bf16_to_f32(0x3F80) + 0x1p-8f), 0x3F80); // tie to even
    EXPECT_EQ(f32_to_bf16(bf16_to_f32(0x3F81) + 0x1p-8f), 0x3F82);
}

static void names_of_both_worlds_are_known(void **state) {
    (void)state;
    enum dtype dt;
    EXPECT(dtype_from_file_name("F8_E4M3", &dt) && dt == DT_F8_E4M3);
    EXPECT(dtype_from_name("torch.bfloat16", &dt) && dt == DT_BF16);
    EXPECT(!dtype_from_name("bf17", &dt) && !dtype_from_file_name("bf16", &dt));
    EXPECT_EQ(dtype_bytes(DT_I64), 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_float_survives_a_round_trip),
        cmocka_unit_test(known_values),
        cmocka_unit_test(every_byte_is_its_sign_mantissa_and_exponent),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(names_of_both_worlds_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
