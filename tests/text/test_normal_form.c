/* test_normal_form.c - normal forms against utf8proc over whole texts, and what lets characters be passed over. */
#include "check.h"

#include "base/random.h"
#include "base/status.h"
#include "text/regex/unicode.h"
#include "text/stages/normal_form.h"

#include <time.h>
#include <utf8proc.h>

static const utf8proc_option_t options[] = {
    [FORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [FORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [FORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [FORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

static bool is_character(uint32_t cp) { return cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF); }

/* What whole decomposes to, in the given form; the number of code points. */
static int decompose(int32_t cp, utf8proc_option_t how, int32_t out[static 32]) {
    int last_class = 0;
    return (int)utf8proc_decompose_char(cp, out, 32, how, &last_class);
}

static void an_inert_character_stays_and_takes_no_part(void **state) {
    (void)state;
    for (enum normal_form form = FORM_NFC; form <= FORM_NFKD; form++) {
        bool composed = form == FORM_NFC || form == FORM_NFKC;
        for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
            if (!is_character(cp) || !normal_form_is_inert(form, cp))
                continue;
            int32_t parts[32];
            int n = decompose((int32_t)cp, options[form] & ~UTF8PROC_COMPOSE, parts);
            if (composed)
                n = (int)utf8proc_normalize_utf32(parts, n, options[form]);
            if (n != 1 || parts[0] != (int32_t)cp || utf8proc_get_property((int32_t)cp)->combining_class != 0)
                fail_msg("form %d: U+%04X is not inert", form, cp);
        }
    }
}

/* Every character that is the second of a composed pair, found by decomposing all of Unicode. */
static void nothing_inert_composes_with_what_is_before_it(void **state) {
    (void)state;
    int n_pairs = 0;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        int32_t parts[32];
        if (!is_character(cp))
            continue;
        int n = decompose((int32_t)cp, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, parts);
        int32_t last = parts[n - 1];
        if (n < 2 || utf8proc_normalize_utf32(parts, n, options[FORM_NFC]) != 1 || parts[0] != (int32_t)cp)
            continue; // it does not come together again
        n_pairs++;
        if (normal_form_is_inert(FORM_NFC, (uint32_t)last) || normal_form_is_inert(FORM_NFKC, (uint32_t)last))
            fail_msg("U+%04X composes into U+%04X", (unsigned)last, cp);
    }
    EXPECT(n_pairs > 12000); // 11,172 Hangul syllables among them
}

static uint32_t random_character(uint64_t n) {
    static const uint32_t some[] = {'a',    'e',    'o',    ' ',    0xE9,    0x300,   0x301, 0x323,  0x327,  0x345,
                                    0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01,  0x9C7,   0x9BE, 0x3099, 0x304B, 0xFB01,
                                    0x2126, 0x212B, 0x1E9B, 0xFDFA, 0x1D15F, 0x2F800, 0x958, 0x4E2D, 0x1F98A};
    struct philox r = philox4x32(test_seed(), n, 1);
    uint32_t cp = r.v[0] % 3 ? some[r.v[1] % ARRAY_LEN(some)] : r.v[1] % 0x30000;
    bool taken_for_final =
        cp == 0x11A7; // utf8proc drops it after a syllable without a final consonant; Unicode does not
    return is_character(cp) && !taken_for_final ? cp : 'x';
}

static void any_text_is_normalised_as_a_whole_would_be(void **state) {
    (void)state;
    struct normal_memory m = {0};
    struct buf text = {0}, out = {0};
    for (uint64_t n = 0; n < 20000; n++) {
        buf_clear(&text);
        for (uint64_t i = 0; i < n % 23; i++)
            buf_push_code_point(&text, random_character(n * 32 + i));
        buf_push(&text, 'z');
        for (enum normal_form form = FORM_NFC; form <= FORM_NFKD; form++) {
            utf8proc_uint8_t *wanted;
            EXPECT(utf8proc_map((const utf8proc_uint8_t *)text.ptr, (utf8proc_ssize_t)text.len, &wanted,
                                options[form]) >= 0);
            buf_clear(&out);
            bool same = normal_form_apply(form, &m, buf_view(&text), &out);
            EXPECT_STR(same ? text.ptr : out.ptr, (const char *)wanted);
            free(wanted);
        }
    }
    normal_memory_release(&m);
    buf_release(&text);
    buf_release(&out);
}

/* By exchanging neighbours these would take some ten minutes. */
static void marks_in_any_number_are_ordered_in_no_time(void **state) {
    (void)state;
    enum { PAIRS = 300000 };
    struct normal_memory m = {0};
    struct buf text = {0}, out = {0}, wanted = {0};
    buf_push(&text, 'a');
    for (int i = 0; i < PAIRS; i++) {
        buf_push_code_point(&text, 0x301); // above, and below, which comes first
        buf_push_code_point(&text, 0x316);
    }
    buf_push_code_point(&wanted, 0xE1); // a with the first that is above
    for (int i = 0; i < 2 * PAIRS - 1; i++)
        buf_push_code_point(&wanted, i < PAIRS ? 0x316 : 0x301);
    clock_t begin = clock();
    EXPECT(!normal_form_apply(FORM_NFC, &m, buf_view(&text), &out));
    EXPECT((double)(clock() - begin) < 5.0 * CLOCKS_PER_SEC);
    EXPECT(str_eq(buf_view(&out), buf_view(&wanted)));
    normal_memory_release(&m);
    buf_release(&text);
    buf_release(&out);
    buf_release(&wanted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_inert_character_stays_and_takes_no_part),
        cmocka_unit_test(nothing_inert_composes_with_what_is_before_it),
        cmocka_unit_test(any_text_is_normalised_as_a_whole_would_be),
        cmocka_unit_test(marks_in_any_number_are_ordered_in_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
