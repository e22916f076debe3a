/* test_flags.c - the command line: what is taken, what is refused, and what the sentence says. */
#include "check.h"

#include "backend/cpu/kernels/kernels.h"
#include "main/flags/engine_flags.h"
#include "main/flags/flag_help.h"
#include "main/flags/flags.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    const char *prompt, *output;
    int64_t n_tokens, memory;
    double temperature;
    bool chat;
    struct flag_list stop;
    struct flag_ids ids;
} opt;

static const struct flag flags[] = {
    {"prompt", 'p', FLAG_STRING, &opt.prompt, "TEXT", "Input", "the prompt"},
    {"n-tokens", 'n', FLAG_INT, &opt.n_tokens, "N", "Output", "stop after N tokens", .min = 0, .max = 1e9},
    {"memory", 'm', FLAG_SIZE, &opt.memory, "BYTES", "Machine", "memory for the cache", .min = 1, .max = 1e15},
    {"temperature", 0, FLAG_REAL, &opt.temperature, "T", "Sampling", "0 is greedy", .min = 0, .max = 100},
    {"chat", 'c', FLAG_BOOL, &opt.chat, NULL, "Input", "apply the chat template (--no-chat: raw text)"},
    {"stop", 's', FLAG_LIST, &opt.stop, "S", "Output", "stop at this text; may be repeated"},
    {"prompt-ids", 0, FLAG_IDS, &opt.ids, "1,2,3", "Input", "the prompt as token ids"},
    {"output", 0, FLAG_CHOICE, &opt.output, "text|ids|json", "Output", "what to print"},
};
static const struct verb_spec spec = {"toy", "MODEL", "is a toy", flags, ARRAY_LEN(flags), 1, 2};

static void reset(void) {
    memset(&opt, 0, sizeof opt);
    opt.n_tokens = 256, opt.memory = 4 << 20, opt.temperature = 1, opt.output = "text";
}

/* What the program says, in a file that is read back: [0] stdout, [1] stderr. */
static char said[2][8192];

static int parse_words(struct verb_args *args, int argc, const char **argv) {
    FILE *files[2] = {tmpfile(), tmpfile()};
    FILE *streams[2] = {stdout, stderr};
    int saved[2];
    for (int i = 0; i < 2; i++) {
        fflush(streams[i]);
        saved[i] = dup(i + 1);
        dup2(fileno(files[i]), i + 1);
    }
    int rc = flags_parse(&spec, argc, (char **)argv, args);
    for (int i = 0; i < 2; i++) {
        fflush(streams[i]);
        dup2(saved[i], i + 1);
        close(saved[i]);
        rewind(files[i]);
        said[i][fread(said[i], 1, sizeof said[i] - 1, files[i])] = '\0';
        fclose(files[i]);
    }
    return rc;
}

#define PARSE(args, ...)                                                      \
    parse_words(args, (int)ARRAY_LEN(((const char *[]){"toy", __VA_ARGS__})), \
                (const char *[]){"toy", __VA_ARGS__, NULL})

/* The words must be refused with exit code 2 and a first line that is exactly this. */
#define REFUSED(sentence, ...)                       \
    do {                                             \
        struct verb_args refused_;                   \
        reset();                                     \
        EXPECT_EQ(PARSE(&refused_, __VA_ARGS__), 2); \
        flags_release(&refused_);                    \
        said[1][strcspn(said[1], "\n")] = '\0';      \
        EXPECT_STR(said[1], "gyre toy: " sentence);  \
    } while (0)

static void every_spelling_of_a_flag_is_taken(void **state) {
    (void)state;
    struct verb_args args;
    reset();
    EXPECT_EQ(PARSE(&args, "--prompt", "a b", "folder", "--n_tokens=32k", "-s", "x", "-sy", "--stop=", "--chat",
                    "--temperature", "-0", "-m64k", "--output=json", "--", "-p"),
              -1);
    EXPECT_STR(opt.prompt, "a b");
    EXPECT_EQ(opt.n_tokens, 32000);
    EXPECT_EQ(opt.memory, 64 * 1024);
    EXPECT_EQ(opt.stop.n, 3);
    EXPECT_STR(opt.stop.items[0], "x");
    EXPECT_STR(opt.stop.items[1], "y");
    EXPECT_STR(opt.stop.items[2], "");
    EXPECT(opt.chat && opt.temperature == 0);
    EXPECT_STR(opt.output, "json");
    EXPECT_EQ(args.n, 2);
    EXPECT_STR(args.operands[0], "folder");
    EXPECT_STR(args.operands[1], "-p");
    EXPECT(flag_given(&args, "chat") && flag_given(&args, "n-tokens") && !flag_given(&args, "prompt-ids"));
    flags_release(&args);
}

static void the_last_of_two_wins_and_no_turns_off(void **state) {
    (void)state;
    struct verb_args args;
    reset();
    EXPECT_EQ(
        PARSE(&args, "m", "-n", "1", "-n", "2", "--chat", "--no-chat", "--prompt-ids", "1", "--prompt-ids", "7, 8,9"),
        -1);
    EXPECT_EQ(opt.n_tokens, 2);
    EXPECT(!opt.chat && flag_given(&args, "chat"));
    EXPECT_EQ(opt.ids.n, 3);
    EXPECT(opt.ids.ids[0] == 7 && opt.ids.ids[1] == 8 && opt.ids.ids[2] == 9);
    flags_release(&args);
    EXPECT_EQ(PARSE(&args, "m", "--prompt-ids", ""), -1);
    EXPECT(opt.ids.given && opt.ids.n == 0);
    flags_release(&args);
}

static void misuse_is_a_sentence_and_exit_code_2(void **state) {
    (void)state;
    REFUSED("MODEL is missing", "--chat");
    REFUSED("c is one argument too many", "a", "b", "c");
    REFUSED("--n-tokens wants a value: N", "m", "--n-tokens");
    REFUSED("-n wants a value: N", "m", "-n");
    REFUSED("--chat takes no value; its opposite is --no-chat", "m", "--chat=1");
    REFUSED("--output: \"xml\" is none of text|ids|json", "m", "--output", "xml");
    REFUSED("--output: \"\" is none of text|ids|json", "m", "--output=");
    REFUSED("--temperature: \"nan\" is not a number", "m", "--temperature", "nan");
    REFUSED("--temperature: \"1e999\" is not a number", "m", "--temperature", "1e999");
    REFUSED("--temperature: -1 is not between 0 and 100", "m", "--temperature", "-1");
    REFUSED("-n: -5 is not between 0 and 1000000000", "m", "-n", "-5");
    REFUSED("-n: \"5B\" is not a whole number, as 512, 32k or 16Ki", "m", "-n5B");
    REFUSED("-n: \"\" is not a whole number, as 512, 32k or 16Ki", "m", "--prompt", "", "-n", "");
    REFUSED("--prompt-ids: item 2 is not a whole number of 0 or more: wanted such with commas, as 1,2,3", "m",
            "--prompt-ids", "1,,3");
    REFUSED("--prompt-ids: item 2 is not a whole number of 0 or more: wanted such with commas, as 1,2,3", "m",
            "--prompt-ids", "1,");
    REFUSED("--prompt-ids: item 1 is not a whole number of 0 or more: wanted such with commas, as 1,2,3", "m",
            "--prompt-ids", "-1");
    REFUSED("--prompt-ids: item 1 is not a whole number of 0 or more: wanted such with commas, as 1,2,3", "m",
            "--prompt-ids", "99999999999");
}

static void an_unknown_flag_names_the_nearest(void **state) {
    (void)state;
    REFUSED("there is no flag --temprature; did you mean --temperature?", "m", "--temprature", "1");
    REFUSED("there is no flag --temp; did you mean --temperature?", "m", "--temp=1");
    REFUSED("there is no flag --no-chta; did you mean --no-chat?", "m", "--no-chta");
    REFUSED("there is no flag --no-prompt; did you mean --prompt?", "m", "--no-prompt");
    REFUSED("there is no flag --hlep; did you mean --help?", "m", "--hlep");
    REFUSED("there is no flag --frobnicate", "m", "--frobnicate");
    REFUSED("there is no flag -z", "m", "-z");
    REFUSED("there is no flag -cn", "m", "-cn");
}

static void the_environment_speaks_where_the_line_is_silent(void **state) {
    (void)state;
    struct verb_args args;
    reset();
    setenv("GYRE_N_TOKENS", "7", 1);
    setenv("GYRE_CHAT", "Yes", 1);
    setenv("GYRE_OUTPUT", "ids", 1);
    EXPECT_EQ(PARSE(&args, "m", "--output", "json"), -1);
    EXPECT_EQ(opt.n_tokens, 7);
    EXPECT(opt.chat && flag_given(&args, "n-tokens"));
    EXPECT_STR(opt.output, "json");
    flags_release(&args);
    setenv("GYRE_CHAT", "perhaps", 1);
    REFUSED("GYRE_CHAT: \"perhaps\" is neither 1 nor 0 (nor true, false, yes, no, on, off)", "m");
    reset();
    EXPECT_EQ(PARSE(&args, "m", "--no-chat"), -1); // a variable that is overridden is not looked at
    flags_release(&args);
    unsetenv("GYRE_CHAT");
    unsetenv("GYRE_OUTPUT");
    setenv("GYRE_N_TOKENS", "many", 1);
    REFUSED("GYRE_N_TOKENS: \"many\" is not a whole number, as 512, 32k or 16Ki", "m");
    unsetenv("GYRE_N_TOKENS");
}

static void numbers_are_exact_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool bytes;
        int64_t value; // -1: refused
    } cases[] = {
        {"0", false, 0},
        {"512", true, 512},
        {"512B", true, 512},
        {"32k", false, 32000},
        {"32K", false, 32000},
        {"4M", false, 4000000},
        {"2g", false, 2000000000},
        {"1t", false, 1000000000000},
        {"32Ki", false, 32768},
        {"16GiB", false, 17179869184},
        {"16GiB", true, 17179869184},
        {"16g", true, 17179869184},
        {"16GB", true, 17179869184},
        {"1.5k", false, 1500},
        {"1.5GiB", true, 1610612736},
        {"0.5Ki", false, 512},
        {"+7", false, 7},
        {"2.0", false, 2},
        {"9223372036854775807", false, INT64_MAX},
        {"1.5", false, -1},
        {"1.0001k", false, -1},
        {".5k", false, -1},
        {"1.", false, -1},
        {"1..5k", false, -1},
        {"1.2.3k", false, -1},
        {"9223372036854775808", false, -1},
        {"9300000000g", false, -1},
        {"5B", false, -1},
        {"5MB", false, -1},
        {"5kiX", false, -1},
        {"5i", false, -1},
        {"k", false, -1},
        {"", false, -1},
        {"0x10", false, -1},
        {" 5", false, -1},
        {"5 k", false, -1},
        {"1e3", false, -1},
        {"--5", false, -1},
        {"1.1234567k", false, -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err;
        int64_t value = -1;
        enum status status = parse_int(cases[i].text, "x", cases[i].bytes, &value, &err);
        if ((status != OK) != (cases[i].value == -1) || value != cases[i].value)
            fail_msg("\"%s\" gives %lld (%s), wanted %lld", cases[i].text, (long long)value, status_name(status),
                     (long long)cases[i].value);
    }
    int64_t value;
    struct error err;
    EXPECT_OK(parse_int("-3k", "x", false, &value, &err), err);
    EXPECT_EQ(value, -3000);
}

static void help_groups_by_topic_and_tells_defaults_before_the_line(void **state) {
    (void)state;
    struct verb_args args;
    reset();
    EXPECT_EQ(PARSE(&args, "-n", "9", "--help", "--nonsense"), 0);
    flags_release(&args);
    EXPECT_STR(said[0], "usage: gyre toy MODEL [FLAGS]\n"
                        "gyre toy: is a toy.\n"
                        "\n"
                        "Input:\n"
                        "  -p, --prompt TEXT           the prompt\n"
                        "  -c, --[no-]chat             apply the chat template (--no-chat: raw text)\n"
                        "      --prompt-ids 1,2,3      the prompt as token ids\n"
                        "\n"
                        "Output:\n"
                        "  -n, --n-tokens N            stop after N tokens (default 256)\n"
                        "  -s, --stop S                stop at this text; may be repeated\n"
                        "      --output text|ids|json  what to print (default text)\n"
                        "\n"
                        "Machine:\n"
                        "  -m, --memory BYTES          memory for the cache (1 or more; default 4MiB)\n"
                        "\n"
                        "Sampling:\n"
                        "      --temperature T         0 is greedy (0 to 100; default 1)\n"
                        "\n"
                        "Every flag can be set in the environment too: --prompt as GYRE_PROMPT.\n");
    EXPECT_STR(said[1], "");
}

static void a_default_outside_the_bounds_is_not_shown(void **state) {
    (void)state;
    char text[256];
    reset();
    opt.n_tokens = -1;
    help_flag_limits(&flags[1], text, sizeof text);
    EXPECT_STR(text, "");
    opt.temperature = NAN;
    help_flag_limits(&flags[3], text, sizeof text);
    EXPECT_STR(text, "(0 to 100)");
}

/* Engines beside each other begin behind the devices of the one before: ranks, times stages. */
static void an_engine_takes_the_devices_of_its_ranks_and_stages(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int stages = 1; stages <= 2; stages++) {
            struct engine_flags f = ENGINE_FLAGS_DEFAULT;
            struct error err;
            int n;
            f.n_ranks = ranks;
            f.n_stages = stages;
            EXPECT_OK(engine_flags_n_devices(&f, &n, &err), err);
            EXPECT_EQ(n, ranks * stages);
        }
}

/* Models of 256 MiB and more, in a folder or one GGUF file, are served with activations rounded where the processor has
 * products in bf16; others, and what compares, not. */
static void large_models_are_served_in_bf16_from_a_folder_and_from_a_file(void **state) {
    (void)state;
    char folder[] = "/tmp/gyre_flags_XXXXXX", file[64];
    struct engine_flags f = ENGINE_FLAGS_DEFAULT;
    const char *large = kernels_bf16() ? "bfloat16" : NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/model.gguf", folder);
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    for (int big = 0; big <= 1; big++) {
        assert_int_equal(ftruncate(fd, (256 << 20) - !big), 0); // a hole
        for (int serves = 0; serves <= 1; serves++) {
            const char *want = big && serves ? large : NULL;
            f.serves = serves;
            const char *of_folder = engine_flags_dtype(&f, folder), *of_file = engine_flags_dtype(&f, file);
            EXPECT(want ? of_folder && strcmp(of_folder, want) == 0 : !of_folder);
            EXPECT(want ? of_file && strcmp(of_file, want) == 0 : !of_file);
        }
    }
    close(fd);
    unlink(file);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spelling_of_a_flag_is_taken),
        cmocka_unit_test(the_last_of_two_wins_and_no_turns_off),
        cmocka_unit_test(misuse_is_a_sentence_and_exit_code_2),
        cmocka_unit_test(an_unknown_flag_names_the_nearest),
        cmocka_unit_test(the_environment_speaks_where_the_line_is_silent),
        cmocka_unit_test(numbers_are_exact_or_refused),
        cmocka_unit_test(help_groups_by_topic_and_tells_defaults_before_the_line),
        cmocka_unit_test(an_engine_takes_the_devices_of_its_ranks_and_stages),
        cmocka_unit_test(large_models_are_served_in_bf16_from_a_folder_and_from_a_file),
        cmocka_unit_test(a_default_outside_the_bounds_is_not_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
