/* test_train.c - what stands around a head in training: what the target shows, the draft's vocabulary, pieces of texts,
 * acceptance, files. tests/cli/verbs/test_train_draft.py trains. */
#include "check.h"
#include "train/tensor_file.h"
#include "train/training_state.h"

#include "base/file.h"
#include "base/random.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

// ---- the teacher ------------------------------------------------------------------------------------------------

struct seen {
    int32_t first[600];
    float logprob[600];
    double size[600]; // of the last state that is tapped
    int64_t n;
};

static void take(void *context, int64_t position, const struct sight *s) {
    struct seen *seen = context;
    EXPECT_EQ(position, seen->n);
    seen->first[seen->n] = s->token[0];
    seen->logprob[seen->n] = s->logprob[0];
    seen->size[seen->n++] = fabs((double)s->taps[2][0]);
    for (int i = 1; i < TEACHER_CHOICES; i++)
        EXPECT(s->logprob[i] <= s->logprob[i - 1] && s->token[i] != s->token[i - 1]);
}

/* Also past a step's end, for texts of more than 256 tokens. */
static void the_teacher_says_what_other_implementations_do(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "qwen3", "gemma3", "qwen3_5", "deepseek_v3"};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        char path[128];
        struct error err;
        struct model *model;
        struct teacher *t;
        json_t *golden, *one;
        size_t c, n_tested = 0;
        snprintf(path, sizeof path, "tests/models/%s", models[m]);
        EXPECT_OK(model_open(path, &(struct model_options){0}, &model, &err), err);
        struct teacher_options o = {&backend_cpu, {.n_threads = 1}, {0, 0, 1}, 600};
        EXPECT_OK(teacher_open(&o, model, &t, &err), err);
        snprintf(path, sizeof path, "tests/models/%s/golden.json", models[m]);
        EXPECT_OK(jv_load(path, 64 << 20, 0, &golden, &err), err);
        json_array_foreach(json_object_get(golden, "cases"), c, one) {
            const json_t *list = json_object_get(one, "ids"), *argmax = json_object_get(one, "argmax");
            int32_t ids[600];
            struct seen seen = {0};
            size_t n = json_array_size(list);
            EXPECT(n < 600);
            for (size_t i = 0; i < n; i++)
                ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
            EXPECT_OK(teacher_read(t, ids, (int64_t)n, take, &seen, &err), err);
            EXPECT_EQ(seen.n, n);
            for (size_t i = 0; i < n; i++, n_tested++)
                EXPECT_EQ(seen.first[i], json_integer_value(json_array_get(argmax, i)));
        }
        EXPECT(n_tested > 300);
        json_decref(golden);
        teacher_free(t);
        model_free(model);
    }
}

static void a_layer_that_is_not_there_is_refused(void **state) {
    (void)state;
    struct error err;
    struct model *model;
    struct teacher *t;
    EXPECT_OK(model_open("tests/models/llama", &(struct model_options){0}, &model, &err), err);
    struct teacher_options o = {&backend_cpu, {.n_threads = 1}, {0, 1, 99}, 600};
    EXPECT_EQ(teacher_open(&o, model, &t, &err), ERR_ARG);
    EXPECT(strstr(err.text, "99"));
    model_free(model);
}

// ---- rows -------------------------------------------------------------------------------------------------------

static void texts_are_cut_into_pieces_that_share_no_row(void **state) {
    (void)state;
    struct error err;
    struct model *model;
    struct teacher *t;
    struct examples e;
    int32_t ids[50];
    EXPECT_OK(model_open("tests/models/llama", &(struct model_options){0}, &model, &err), err);
    struct teacher_options o = {&backend_cpu, {.n_threads = 1}, {0, 0, 1}, 50};
    EXPECT_OK(teacher_open(&o, model, &t, &err), err);
    for (int i = 0; i < 50; i++)
        ids[i] = 10 + i % 7;
    examples_init(&e, 3 * model->spec->hidden_size, 16);
    EXPECT_OK(examples_add(&e, t, ids, 1, &err), err);
    EXPECT_EQ(e.n_pieces, 0);
    EXPECT_OK(examples_add(&e, t, ids, 17, &err), err); // 16 rows: a piece
    EXPECT_OK(examples_add(&e, t, ids, 50, &err), err); // 49 rows: four
    EXPECT_EQ(e.n_pieces, 5);
    EXPECT_EQ(e.n_rows, 65);
    EXPECT_EQ(e.start[1], 16);
    EXPECT_EQ(e.start[4], 64);
    EXPECT_EQ(e.start[5], 65);
    for (int i = 0; i < 49; i++) {
        EXPECT_EQ(e.next[16 + i], ids[i + 1]);
        if (i < 15) // the same text begins both
            EXPECT(memcmp(e.taps + i * e.tap_size, e.taps + (16 + i) * e.tap_size, (size_t)e.tap_size * 2) == 0);
        if (i < 15)
            EXPECT_EQ(e.choice[i * TEACHER_CHOICES], e.choice[(16 + i) * TEACHER_CHOICES]);
    }
    examples_release(&e);
    teacher_free(t);
    model_free(model);
}

static void the_most_frequent_tokens_are_the_vocabulary(void **state) {
    (void)state;
    int32_t next[] = {7, 7, 7, 2, 2, 5, 9, 9, 0};
    struct examples e = {.n_rows = 9, .next = next};
    struct draft_vocab v;
    draft_vocab_choose(&v, &e, 4, 10); // 0 and 5 are as frequent: the smaller
    EXPECT(memcmp(v.target_id, (int32_t[]){0, 2, 7, 9}, sizeof(int32_t[4])) == 0);
    EXPECT_EQ(v.place[7], 2);
    EXPECT_EQ(v.place[5], -1);
    EXPECT(fabs(draft_vocab_coverage(&v, &e) - 8.0 / 9) < 1e-12);
    draft_vocab_release(&v);
}

// ---- acceptance -------------------------------------------------------------------------------------------------

struct told {
    const int32_t *ids;
    int wrong_at; // guesses are right but for this place of each chain
};

static int32_t guess(const void *context, int i, int64_t row) {
    const struct told *t = context;
    return t->ids[row + 2] + (i == t->wrong_at);
}

static void acceptance_counts_what_a_server_would(void **state) {
    (void)state;
    int32_t ids[100];
    for (int i = 0; i < 100; i++)
        ids[i] = 3 * i;
    struct acceptance a = {0};
    acceptance_add(&a, ids, 20, 70, guess, &(struct told){ids, 9}); // all right: 6 tokens a step from the first on
    EXPECT_EQ(a.n_steps, 11);                                       // 1, 7, ... 61; 61 + 5 are there
    EXPECT(fabs(a.mean_length - 6) < 1e-12);
    acceptance_add(&a, ids, 20, 70, guess, &(struct told){ids, 0}); // all wrong: 1
    EXPECT_EQ(a.n_steps, 11 + 63);
    EXPECT(fabs(a.mean_length - (11 * 6 + 63) / 74.0) < 1e-12);
    EXPECT_EQ(a.n_reached[0], 74);
    EXPECT_EQ(a.n_right[0], 11);
    EXPECT_EQ(a.n_reached[1], 11);
    struct acceptance b = {0};
    acceptance_add(&b, ids, 20, 12, guess, &(struct told){ids, 2}); // 3 tokens a step, and the text ends early
    EXPECT_EQ(b.n_steps, 3);                                        // at 1, 4 and 7
    EXPECT(fabs(b.mean_length - 3) < 1e-12);
}

// ---- files ------------------------------------------------------------------------------------------------------

static void a_written_file_reads_back(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-train-XXXXXX/x.safetensors";
    struct error err;
    struct checkpoint *c;
    path[strlen("/tmp/gyre-train-XXXXXX")] = '\0';
    EXPECT(mkdtemp(path));
    path[strlen("/tmp/gyre-train-XXXXXX")] = '/';
    int8_t bytes[3] = {1, 2, 3};
    int64_t wide[2] = {-1, 1LL << 40};
    float none = 0;
    const struct memory_tensor tensors[] = {
        {"a \"b\"", DT_BOOL, 1, {3}, bytes}, {"c", DT_I64, 2, {2, 1}, wide}, {"empty", DT_F32, 2, {0, 7}, &none}};
    EXPECT_OK(tensor_file_write(path, tensors, 3, &err), err);
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    EXPECT_EQ(checkpoint_count(c), 3);
    EXPECT(memcmp(checkpoint_find(c, "c")->data, wide, sizeof wide) == 0);
    EXPECT(memcmp(checkpoint_find(c, "a \"b\"")->data, bytes, sizeof bytes) == 0);
    EXPECT_EQ(checkpoint_find(c, "empty")->n_bytes, 0);
    checkpoint_free(c);
    unlink(path);
    path[strlen("/tmp/gyre-train-XXXXXX")] = '\0';
    EXPECT_EQ(tensor_file_write(path, tensors, 3, &err), ERR_IO); // a folder
    EXPECT(strstr(err.text, path));
    EXPECT_EQ(tensor_file_write("/nowhere/x", tensors, 3, &err), ERR_IO);
    rmdir(path);
}

static int64_t config[12] = {1, 3, 1, 1, 2, 1, 2, 2, 0, 0, 0, 1}; // a head of 26 weights

/* Numbers that do not fit each other, in a file that is sound by itself. */
static void write_state(const char *path, const int64_t *start, const int32_t *ids, const int64_t *held_prompt,
                        const int32_t *vocab, int64_t n_weights) {
    struct error err;
    const int64_t step = 3, held_start[] = {0, 2};
    const double constants[] = {1e-5, 10000};
    const int32_t held_ids[] = {1, 2};
    const float weight[26] = {1, 2, 3, 4};
    const struct memory_tensor tensors[] = {
        {"step", DT_I64, 1, {1}, &step},
        {"start", DT_I64, 1, {3}, start},
        {"held_start", DT_I64, 1, {2}, held_start},
        {"held_prompt", DT_I64, 1, {1}, held_prompt},
        {"ids", DT_I32, 1, {4}, ids},
        {"held_ids", DT_I32, 1, {2}, held_ids},
        {"vocabulary", DT_I32, 1, {2}, vocab},
        {"config", DT_I64, 1, {12}, config},
        {"constants", DT_F64, 1, {2}, constants},
        {"weight", DT_F32, 1, {26}, weight},
        {"m", DT_F32, 1, {n_weights}, weight},
        {"v", DT_F32, 1, {26}, weight},
        {"options", DT_U8, 1, {2}, "{}"},
    };
    EXPECT_OK(tensor_file_write(path, tensors, ARRAY_LEN(tensors), &err), err);
}

static void a_state_that_does_not_fit_is_refused(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-state-XXXXXX";
    int fd = mkstemp(path);
    struct error err;
    struct training_state s;
    EXPECT(fd >= 0);
    close(fd);
    const int64_t start[] = {0, 1, 4}, back[] = {0, 5, 4}, late[] = {0, 1, 400}, prompt[] = {1}, long_prompt[] = {3};
    const int32_t ids[] = {1, 2, 3, 4}, beyond[] = {1, 2, 10, 4}, vocab[] = {1, 5}, twice[] = {5, 5};
    write_state(path, start, ids, prompt, vocab, 26);
    EXPECT_OK(training_load(path, 10, &s, &err), err);
    EXPECT(s.step == 3 && s.n_weights == 26 && s.config.layers[2] == 1 && s.texts.n == 2 &&
           strcmp(s.options, "{}") == 0 && s.vocab.n == 2);
    training_state_release(&s);
    const struct {
        const int64_t *start;
        const int32_t *ids;
        const int64_t *prompt;
        const int32_t *vocab;
        int64_t n_weights;
        const char *word;
    } wrong[] = {{back, ids, prompt, vocab, 26, "start"},       {late, ids, prompt, vocab, 26, "start"},
                 {start, beyond, prompt, vocab, 26, "ids"},     {start, ids, long_prompt, vocab, 26, "held_prompt"},
                 {start, ids, prompt, twice, 26, "vocabulary"}, {start, ids, prompt, vocab, 25, "weight"}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        write_state(path, wrong[i].start, wrong[i].ids, wrong[i].prompt, wrong[i].vocab, wrong[i].n_weights);
        EXPECT_EQ(training_load(path, 10, &s, &err), ERR_FORMAT);
        EXPECT(strstr(err.text, wrong[i].word) && strstr(err.text, path));
    }
    for (int i = 0; i < 12; i++) { // no head's size, or another's than the weights have
        int64_t sound = config[i];
        config[i] = i < 8 ? 1 << 20 : -1;
        write_state(path, start, ids, prompt, vocab, 26);
        EXPECT_EQ(training_load(path, 10, &s, &err), ERR_FORMAT);
        EXPECT(strstr(err.text, "weight") || strstr(err.text, "config"));
        config[i] = sound;
    }
    write_state(path, start, ids, prompt, vocab, 26);
    EXPECT_EQ(truncate(path, 500), 0);
    EXPECT_EQ(training_load(path, 10, &s, &err), ERR_FORMAT);
    unlink(path);
    EXPECT_EQ(training_load(path, 10, &s, &err), ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_teacher_says_what_other_implementations_do),
        cmocka_unit_test(a_layer_that_is_not_there_is_refused),
        cmocka_unit_test(texts_are_cut_into_pieces_that_share_no_row),
        cmocka_unit_test(the_most_frequent_tokens_are_the_vocabulary),
        cmocka_unit_test(acceptance_counts_what_a_server_would),
        cmocka_unit_test(a_written_file_reads_back),
        cmocka_unit_test(a_state_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
