/* test_terminal.c - sizes as people read them, and the progress line. */
#include "check.h"

#include "console/progress.h"
#include "console/terminal.h"

#include <math.h>
#include <unistd.h>

static void bytes_have_three_figures(void **state) {
    (void)state;
    EXPECT_STR(human_bytes(0).text, "0 B");
    EXPECT_STR(human_bytes(1023).text, "1023 B");
    EXPECT_STR(human_bytes(1024).text, "1.00 KiB");
    EXPECT_STR(human_bytes(1024 * 1023.6).text, "1.00 MiB");
    EXPECT_STR(human_bytes(15.23 * (1 << 30)).text, "15.2 GiB");
    EXPECT_STR(human_bytes(7.0 * 1024 * 1024 * 100).text, "700 MiB");
    EXPECT_STR(human_bytes(9.999 * 1024).text, "10.0 KiB");
    EXPECT_STR(human_bytes(1e30).text, "888178419700125 PiB");
}

static void counts_have_the_letters_of_parameters(void **state) {
    (void)state;
    EXPECT_STR(human_count(0).text, "0");
    EXPECT_STR(human_count(4096).text, "4096");
    EXPECT_STR(human_count(9999).text, "9999");
    EXPECT_STR(human_count(10000).text, "10.0 k");
    EXPECT_STR(human_count(494032768).text, "494 M");
    EXPECT_STR(human_count(7615616512).text, "7.62 B");
    EXPECT_STR(human_count(999600).text, "1.00 M");
    EXPECT_STR(human_count(1.026e12).text, "1.03 T");
}

static void seconds_read_like_a_clock(void **state) {
    (void)state;
    EXPECT_STR(human_seconds(0.42).text, "420 ms");
    EXPECT_STR(human_seconds(0.9996).text, "1.0 s");
    EXPECT_STR(human_seconds(3.14).text, "3.1 s");
    EXPECT_STR(human_seconds(59.96).text, "1:00");
    EXPECT_STR(human_seconds(127).text, "2:07");
    EXPECT_STR(human_seconds(3760).text, "1:02:40");
    EXPECT_STR(human_seconds(NAN).text, "--");
    EXPECT_STR(human_seconds(INFINITY).text, "--");
}

static void the_line_tells_share_rate_and_time_left(void **state) {
    (void)state;
    struct progress p = {.what = "perplexity", .unit = "tokens", .total = 16320, .done = 7000};
    char line[256];
    progress_line(&p, 14, 200, line, sizeof line);
    EXPECT_STR(line, "perplexity  [==========>             ]   42%  7000/16.3 k tokens  500 tokens/s  18.6 s left");
    p.done = 16320;
    progress_line(&p, 30, 200, line, sizeof line);
    EXPECT_STR(line, "perplexity  [========================]  100%  16.3 k/16.3 k tokens  544 tokens/s  0 ms left");
    p.done = 0;
    progress_line(&p, 0, 200, line, sizeof line);
    EXPECT_STR(line, "perplexity  [>                       ]    0%  0/16.3 k tokens  0 tokens/s  -- left");
    p.done = 5796;
    progress_line(&p, 3.7, 79, line, sizeof line);
    EXPECT_STR(line, "perplexity  [====>       ]   35%  5796/16.3 k tokens  1566 tokens/s  6.7 s left");
    progress_line(&p, 3.7, 65, line, sizeof line);
    EXPECT_STR(line, "perplexity   35%  5796/16.3 k tokens  1566 tokens/s  6.7 s left");
    progress_line(&p, 0, 20, line, sizeof line);
    EXPECT_EQ(strlen(line), 20);
}

static void without_a_total_there_is_no_bar(void **state) {
    (void)state;
    struct progress p = {.what = "reading", .done = 3 << 20};
    char line[256];
    progress_line(&p, 2, 200, line, sizeof line);
    EXPECT_STR(line, "reading  3.00 MiB  1.50 MiB/s");
}

/* What is written to stderr while weights are loaded, `seconds` after the last line. */
static void loaded_line(double seconds, char *out, size_t size) {
    struct progress p = {0};
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);
    progress_of_load(&p, 0, 100 << 20);
    p.shown = false; // as in a log, whatever stderr is here
    p.start_us -= (int64_t)(seconds * 1e6);
    p.drawn_us = p.start_us;
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    progress_of_load(&p, 34 << 20, 100 << 20);
    progress_of_load(&p, 35 << 20, 100 << 20); // at once: no second line
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void a_log_gets_a_line_of_a_long_load_now_and_then(void **state) {
    (void)state;
    char said[512];
    loaded_line(6, said, sizeof said);
    EXPECT(strstr(said, "gyre: loading weights") == said && strstr(said, "34%") && strstr(said, "100 MiB") &&
           strstr(said, "left\n"));
    EXPECT(strchr(said, '\n') == said + strlen(said) - 1);
    loaded_line(1, said, sizeof said);
    EXPECT_STR(said, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_gets_a_line_of_a_long_load_now_and_then),
        cmocka_unit_test(bytes_have_three_figures),
        cmocka_unit_test(counts_have_the_letters_of_parameters),
        cmocka_unit_test(seconds_read_like_a_clock),
        cmocka_unit_test(the_line_tells_share_rate_and_time_left),
        cmocka_unit_test(without_a_total_there_is_no_bar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
