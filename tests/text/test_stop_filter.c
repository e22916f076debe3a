/* test_stop_filter.c - stop strings in a stream: found wherever the text is cut, and never shown in part. */
#include "check.h"

#include "base/random.h"
#include "text/stop_filter.h"

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 2) * n); }

/* The text before the stop string that is complete first, of equals the longest. */
static size_t expected_length(const char *text, size_t n, const char *const *stops, int n_stops, bool *stopped) {
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            size_t len = strlen(stops[i]);
            if (len <= end && len > longest && memcmp(text + end - len, stops[i], len) == 0)
                longest = len;
        }
        *stopped = longest > 0;
        if (*stopped)
            return end - longest;
    }
    return n;
}

static void the_text_ends_before_the_stop_wherever_it_is_cut(void **state) {
    (void)state;
    int n_stopped = 0;
    for (int trial = 0; trial < 20000; trial++) {
        char text[60], stop_text[4][8];
        const char *stops[4];
        int n = below(60), n_stops = below(5);
        for (int i = 0; i < n; i++)
            text[i] = (char)('a' + below(2));
        for (int i = 0; i < n_stops; i++) {
            int len = 1 + below(7);
            for (int j = 0; j < len; j++)
                stop_text[i][j] = (char)('a' + below(2));
            stop_text[i][len] = '\0';
            stops[i] = stop_text[i];
        }
        bool want_stop = false, stopped = false;
        size_t want = expected_length(text, (size_t)n, stops, n_stops, &want_stop);
        struct stop_filter f;
        struct buf out = {0};
        stop_filter_init(&f, stops, (size_t)n_stops);
        for (int at = 0; at < n;) {
            int piece = 1 + below(n - at);
            stopped = stop_filter_feed(&f, (struct str){text + at, (size_t)piece}, &out);
            EXPECT(out.len <= want); // nothing of a stop string is ever shown
            at += piece;
        }
        stop_filter_finish(&f, &out);
        EXPECT_EQ(stopped, want_stop);
        EXPECT_EQ(stop_filter_met(&f) >= 0, want_stop);
        if (want_stop) {
            size_t met = strlen(stops[stop_filter_met(&f)]);
            EXPECT(memcmp(text + want, stops[stop_filter_met(&f)], met) == 0);
        }
        EXPECT(out.len == want && memcmp(buf_view(&out).ptr, text, want) == 0);
        n_stopped += stopped;
        stop_filter_release(&f);
        buf_release(&out);
    }
    EXPECT(n_stopped > 5000);
}

static void only_what_could_become_a_stop_is_held_back(void **state) {
    (void)state;
    const char *stops[] = {"\nUser:", "END"};
    struct stop_filter f;
    struct buf out = {0};
    stop_filter_init(&f, stops, 2);
    EXPECT(!stop_filter_feed(&f, STR("hello\nUse"), &out));
    EXPECT_STR(out.ptr, "hello");
    EXPECT(!stop_filter_feed(&f, STR("ful E"), &out));
    EXPECT_STR(out.ptr, "hello\nUseful ");
    EXPECT(!stop_filter_feed(&f, STR("N"), &out));
    EXPECT_STR(out.ptr, "hello\nUseful ");
    EXPECT(stop_filter_feed(&f, STR("D of it"), &out));
    EXPECT(stop_filter_feed(&f, STR("more"), &out));
    stop_filter_finish(&f, &out);
    EXPECT_STR(out.ptr, "hello\nUseful ");
    stop_filter_release(&f);
    buf_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_ends_before_the_stop_wherever_it_is_cut),
        cmocka_unit_test(only_what_could_become_a_stop_is_held_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
