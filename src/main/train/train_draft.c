/* train_draft.c - gyre train-draft MODEL OUT: trains a head that guesses for a model, on what that writes itself. */
#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "console/interrupt.h"
#include "console/progress.h"
#include "console/terminal.h"
#include "main/flags/engine_flags.h"
#include "main/train/train_texts.h"
#include "main/verbs.h"
#include "model/draft/draft.h"
#include "train/training_state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct {
    struct text_options texts;
    const char *kind, *init;
    bool resume;
    struct flag_ids layers;
    int64_t guesses, batch, window, steps, vocab, ffn;
    double minutes, lr;
    struct engine_flags engine;
} opt = {.texts = TEXT_OPTIONS_DEFAULT,
         .kind = "eagle3",
         .guesses = 3,
         .batch = 4,
         .window = 256,
         .steps = -1,
         .vocab = -1,
         .ffn = -1,
         .minutes = 10,
         .lr = 2e-3,
         .engine = ENGINE_FLAGS_DEFAULT};

/* clang-format off */
static const struct flag flags[] = {
    TEXT_FLAGS(opt.texts),
    {"kind", 0, FLAG_CHOICE, &opt.kind, "eagle3|mtp", "Head", "what is trained: an EAGLE-3 head, or the next-token predictor that Qwen3.5 has beside its layers"},
    {"init", 0, FLAG_STRING, &opt.init, "FOLDER", "Head", "go on from this head, and not from the model's last layer or, with mtp, the predictor that it has"},
    {"layers", 0, FLAG_IDS, &opt.layers, "A,B,C", "Head", "of the model, whose outputs are read; unless it is said 1, L/2-1, L-4 of L"},
    {"draft-vocab-size", 0, FLAG_INT, &opt.vocab, "N", "Head", "tokens that can be guessed, the most frequent ones; unless it is said a quarter of the model's, 32000 at most", .min = 1, .max = 1 << 24},
    {"intermediate-size", 0, FLAG_INT, &opt.ffn, "N", "Head", "of its layer; unless it is said the model's width, which is less than its own", .min = 1, .max = 1 << 24},
    {"guesses", 0, FLAG_INT, &opt.guesses, "N", "Training", "steps of a chain that are trained together", .min = 1, .max = MOST_HEAD_STEPS},
    {"batch", 0, FLAG_INT, &opt.batch, "N", "Training", "texts a step", .min = 1, .max = 4096},
    {"window", 0, FLAG_INT, &opt.window, "N", "Training", "tokens of a text at a time", .min = 8, .max = 1 << 16},
    {"steps", 0, FLAG_INT, &opt.steps, "N", "Training", "of training; 0 only measures the head as it is, and writes nothing", .min = 0, .max = 1e12},
    {"minutes", 0, FLAG_REAL, &opt.minutes, "M", "Training", "without --steps: as many steps as fit into the rest of M minutes, by the time of the first", .min = 0.0001, .max = 1e6},
    {"lr", 0, FLAG_REAL, &opt.lr, "R", "Training", "highest learning rate; it falls to a fiftieth along a cosine", .min = 1e-9, .max = 1},
    {"seed", 0, FLAG_INT, &opt.texts.seed, "N", "Training", "the same seed, data and steps give the same head, whatever the number of threads", .min = 0, .max = 1e18},
    {"resume", 0, FLAG_BOOL, &opt.resume, NULL, "Training", "go on with what OUT holds of a training that was stopped"},
    ENGINE_FLAGS(opt.engine),
};
/* clang-format on */

/* What a training is told once: kept with it, and not changed when it goes on. */
static const struct kept {
    const char *flag;
    int64_t *whole;
    double *real;
} kept[] = {
    {"guesses", &opt.guesses, NULL},       {"batch", &opt.batch, NULL},     {"window", &opt.window, NULL},
    {"steps", &opt.steps, NULL},           {"seed", &opt.texts.seed, NULL}, {"draft-vocab-size", &opt.vocab, NULL},
    {"intermediate-size", &opt.ffn, NULL}, {"lr", NULL, &opt.lr},
};

struct training {
    const struct verb_args *args;
    const char *model_path, *out;
    char state_path[FOLDER_PATH_BYTES];
    int64_t start_us;
    struct texts texts;
    struct held_out held;
    struct training_state state; // of a training that goes on
    struct model *model;
    struct head_file *init;
    struct head_config config;
    struct draft_vocab vocab;
    struct examples examples;
    struct trainer trainer;
    double loss[MOST_HEAD_STEPS], total; // sums since they were printed last
    int64_t n_loss, saved_us;
};

// ---- what a training is told ------------------------------------------------------------------------------------

static char *kept_text(void) {
    json_t *all = json_object();
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        json_object_set_new(all, kept[i].flag, kept[i].whole ? json_integer(*kept[i].whole) : json_real(*kept[i].real));
    char *text = json_dumps(all, JSON_REAL_PRECISION(17));
    json_decref(all);
    return text;
}

static enum status take_kept(struct training *t, const json_t *all, const struct kept *k, struct error *err) {
    const char *path = t->state_path;
    int64_t whole = 0;
    double real = 0;
    TRY(k->whole ? jv_int(all, path, k->flag, -1, INT64_MAX, &whole, err) : jv_real(all, path, k->flag, &real, err));
    bool is_other = k->whole ? whole != *k->whole : real != *k->real;
    if (is_other && flag_given(t->args, k->flag))
        return fail(err, ERR_ARG, "--%s: the training in %s was begun with another, %.12g; without the flag it goes on",
                    k->flag, t->out, k->whole ? (double)whole : real);
    if (k->whole)
        *k->whole = whole;
    else
        *k->real = real;
    return OK;
}

static enum head_kind kind_of_flags(void) { return strcmp(opt.kind, "mtp") == 0 ? HEAD_MTP : HEAD_EAGLE3; }

/* A predictor is of the shape that the model gives it. */
static enum status take_kind(const struct training *t, struct error *err) {
    const struct head_shape *s = &t->config.shape;
    struct head_config own;
    if (flag_given(t->args, "kind") && kind_of_flags() != s->kind)
        return fail(err, ERR_ARG, "--kind: the training in %s is of %s", t->out,
                    s->kind == HEAD_MTP ? "a predictor, mtp" : "an EAGLE-3 head, eagle3");
    if (s->kind != HEAD_MTP)
        return OK;
    TRY(head_config_for(HEAD_MTP, t->model, 0, &own, err));
    bool fits = s->n_heads == own.shape.n_heads && s->n_kv_heads == own.shape.n_kv_heads && s->ffn == own.shape.ffn &&
                s->head_dim == own.shape.head_dim && s->rope_dim == own.shape.rope_dim && s->vocab == own.shape.vocab;
    return fits ? OK : fail(err, ERR_FORMAT, "%s: is of a predictor for another model", t->state_path);
}

static enum status take_all_kept(struct training *t, struct error *err) {
    enum { MOST_BATCH = 4096, MOST_WINDOW = 1 << 16 };
    json_t *all;
    enum status st = OK;
    TRY(jv_parse(str_of(t->state.options), t->state_path, 0, &all, err));
    for (size_t i = 0; i < ARRAY_LEN(kept) && st == OK; i++)
        st = take_kept(t, all, &kept[i], err);
    json_decref(all);
    TRY(st);
    bool fine = opt.batch >= 1 && opt.batch <= MOST_BATCH && opt.window >= 8 && opt.window <= MOST_WINDOW;
    if (!fine || opt.guesses < 1 || opt.guesses > MOST_HEAD_STEPS || opt.steps < 1)
        return fail(err, ERR_FORMAT, "%s: its options are not those of a training", t->state_path);
    t->config = t->state.config;
    return t->config.shape.hidden == t->model->spec->hidden_size
               ? take_kind(t, err)
               : fail(err, ERR_FORMAT, "%s: is of a head for a model of width %lld, not %d", t->state_path,
                      (long long)t->config.shape.hidden, t->model->spec->hidden_size);
}

static struct progress bar;

// ---- hidden states ----------------------------------------------------------------------------------------------

static int64_t longest_of(const struct texts *texts) {
    int64_t most = 2;
    for (int64_t i = 0; i < texts->n; i++)
        most = MAX(most, texts_length(texts, i));
    return most;
}

/* Each has a token of an answer at least, and so a piece. */
static enum status see_held(struct training *t, struct teacher *teacher, struct error *err) {
    struct held_out *h = &t->held;
    h->longest = longest_of(&h->texts);
    examples_init(&h->examples, t->config.shape.taps, h->longest);
    for (int64_t i = 0; i < h->texts.n; i++)
        TRY(examples_add(&h->examples, teacher, texts_ids(&h->texts, i), texts_length(&h->texts, i), err));
    return OK;
}

static enum status see_all(struct training *t, struct teacher *teacher, struct error *err) {
    TRY(examples_check_memory(texts_tokens(&t->texts), t->config.shape.taps, err));
    examples_init(&t->examples, t->config.shape.taps, opt.window);
    for (int64_t i = 0; i < t->texts.n; i++) {
        TRY(examples_add(&t->examples, teacher, texts_ids(&t->texts, i), texts_length(&t->texts, i), err));
        progress_step(&bar, texts_tokens(&t->texts) * i / t->texts.n);
    }
    return see_held(t, teacher, err);
}

static enum status see_states(struct training *t, struct error *err) {
    struct teacher *teacher;
    struct teacher_options o = {.device = {.n_threads = (int)opt.engine.n_threads}};
    int64_t start = clock_us();
    TRY(backend_get("cpu", &o.ops, err));
    memcpy(o.layers, t->config.layers, sizeof o.layers);
    o.reads_last = t->config.shape.kind == HEAD_MTP;
    o.longest = MAX(longest_of(&t->texts), longest_of(&t->held.texts));
    TRY(teacher_open(&o, t->model, &teacher, err));
    progress_begin(&bar, "hidden states", "tokens", texts_tokens(&t->texts));
    enum status st = see_all(t, teacher, err);
    progress_end(&bar);
    teacher_free(teacher);
    TRY(st);
    printf("hidden states: %lld tokens, %s\n", (long long)t->examples.n_rows,
           human_seconds(clock_seconds_since(start)).text);
    return t->examples.n_rows > 0 ? OK : fail(err, ERR_FORMAT, "training: no text has two tokens");
}

// ---- the head ---------------------------------------------------------------------------------------------------

static enum status choose_config(struct training *t, struct error *err) {
    const struct model_spec *s = t->model->spec;
    int64_t vocab = opt.vocab > 0 ? MIN(opt.vocab, s->vocab_size) : MIN(32000, MAX(s->vocab_size / 4, 1));
    enum head_kind kind = kind_of_flags();
    TRY(head_config_for(kind, t->model, vocab, &t->config, err));
    if (opt.init || (kind == HEAD_MTP && head_is_stored(t->model))) {
        TRY(head_open(kind, opt.init ? opt.init : t->model_path, t->model, &t->init, err));
        t->config = *head_file_config(t->init);
        printf("begins with %s\n", opt.init ? opt.init : "the predictor that the model has");
    }
    if (opt.ffn > 0)
        t->config.shape.ffn = opt.ffn;
    for (size_t i = 0; i < opt.layers.n; i++)
        t->config.layers[i] = opt.layers.ids[i];
    opt.ffn = t->config.shape.ffn, opt.vocab = t->config.shape.vocab;
    return OK;
}

static void choose_vocab(struct training *t) {
    int32_t n = (int32_t)t->config.shape.vocab, n_target = t->model->spec->vocab_size;
    const struct draft_vocab *from = opt.resume ? &t->state.vocab : t->init ? head_file_vocab(t->init) : NULL;
    if (n == n_target)
        draft_vocab_all(&t->vocab, n);
    else if (from)
        draft_vocab_of(&t->vocab, from->target_id, from->n, n_target);
    else
        draft_vocab_choose(&t->vocab, &t->examples, n, n_target);
    if (n < n_target)
        printf("the draft's %d tokens of %d cover %.2f %% of the text\n", n, n_target,
               100 * draft_vocab_coverage(&t->vocab, &t->examples));
}

static enum status set_weights(struct training *t, struct error *err) {
    float *weight = t->trainer.head.weight;
    int64_t n = head_size(&t->config.shape);
    if (opt.resume) {
        memcpy(weight, t->state.weight, (size_t)n * sizeof *weight);
        memcpy(t->trainer.m, t->state.m, (size_t)n * sizeof *weight);
        memcpy(t->trainer.v, t->state.v, (size_t)n * sizeof *weight);
        t->trainer.step = t->state.step;
        return OK;
    }
    if (t->init)
        return head_read(t->init, weight, err);
    head_start(&t->config, &t->vocab, t->model, (uint64_t)opt.texts.seed, weight);
    return OK;
}

static enum status open_trainer(struct training *t, struct error *err) {
    struct draft_target target;
    TRY(draft_target_of(t->model, &target, err));
    if (target.embed->in != t->config.shape.hidden)
        return fail(err, ERR_UNSUPPORTED, "%s: its embedding is %lld wide, a head of its width %lld cannot share it",
                    t->model->spec->path, (long long)target.embed->in, (long long)t->config.shape.hidden);
    struct trainer_options o = {.guesses = (int)opt.guesses,
                                .batch = (int)opt.batch,
                                .window = opt.window,
                                .lr = opt.lr,
                                .seed = (uint64_t)opt.texts.seed,
                                .n_threads = (int)opt.engine.n_threads};
    TRY(trainer_init(&t->trainer, &o, &t->config, &t->vocab, &target, &t->examples, &t->held, err));
    printf("%lld weights\n", (long long)head_size(&t->config.shape));
    return set_weights(t, err);
}

// ---- training ---------------------------------------------------------------------------------------------------

static void print_acceptance(const struct acceptance *a) {
    if (a->n_steps == 0) {
        printf("no held-out text is long enough to measure with\n");
        return;
    }
    printf("accepted length %.3f with %d guesses (", a->mean_length, ACCEPTANCE_GUESSES);
    for (int i = 0; i < ACCEPTANCE_GUESSES; i++)
        printf(i ? " %.3f" : "%.3f", (double)a->n_right[i] / (double)MAX(a->n_reached[i], 1));
    printf(" where those before were right), %lld steps of held-out text\n", (long long)a->n_steps);
}

static void measure(struct training *t) {
    struct acceptance a;
    trainer_measure(&t->trainer, &a);
    print_acceptance(&a);
}

static void add_loss(struct training *t) {
    t->total += t->trainer.head.total;
    for (int i = 0; i < opt.guesses; i++)
        t->loss[i] += t->trainer.head.loss[i];
    t->n_loss++;
}

static void print_loss(struct training *t) {
    if (t->n_loss == 0)
        return;
    double n = (double)t->n_loss;
    printf("step %lld of %lld: loss %.4f (", (long long)t->trainer.step, (long long)opt.steps, t->total / n);
    for (int i = 0; i < opt.guesses; i++)
        printf(i ? " %.3f" : "%.3f", t->loss[i] / n);
    printf(")\n");
    memset(t->loss, 0, sizeof t->loss);
    t->total = 0, t->n_loss = 0;
}

static enum status save(struct training *t, struct error *err) {
    char *options = kept_text();
    enum status st = training_save(t->state_path, &t->trainer, &t->texts, options, err);
    free(options);
    t->saved_us = clock_us();
    return st == OK ? head_write(t->out, &t->config, &t->vocab, t->model->spec, t->trainer.head.weight, err) : st;
}

static enum status train_steps(struct training *t, bool *stopped, struct error *err) {
    enum { LINES = 40, SAVE_US = 60 * 1000000 };
    struct trainer *r = &t->trainer;
    int64_t a_line = MAX(opt.steps / LINES, 1), a_epoch = trainer_epoch_steps(r);
    while (r->step < opt.steps && !*stopped) {
        TRY(trainer_step(r, err));
        add_loss(t);
        progress_step(&bar, r->step);
        bool is_epoch = r->step % a_epoch == 0 && r->step < opt.steps;
        if (r->step % a_line == 0 || is_epoch)
            print_loss(t);
        if (is_epoch) {
            printf("epoch %lld: ", (long long)(r->step / a_epoch));
            measure(t);
        }
        *stopped = interrupt_taken();
        if (is_epoch || *stopped || clock_us() - t->saved_us > SAVE_US)
            TRY(save(t, err));
    }
    return *stopped ? OK : save(t, err);
}

/* As many as fit into what is left of the time, less a twentieth for measuring and saving. */
static enum status choose_steps(struct training *t, struct error *err) {
    if (opt.steps >= 0)
        return OK;
    double gone = clock_seconds_since(t->start_us), each = trainer_step_seconds(&t->trainer);
    opt.steps = (int64_t)(0.95 * (opt.minutes * 60 - gone) / each);
    if (opt.steps < 1)
        return fail(err, ERR_LIMIT,
                    "--minutes: texts and hidden states alone took %s; ask for more, or fewer --answers",
                    human_seconds(gone).text);
    printf("%lld steps of %.0f ms; --steps %lld makes the same head again\n", (long long)opt.steps, each * 1e3,
           (long long)opt.steps);
    return OK;
}

static void print_end(const struct training *t) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu =
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    printf("%s, %.0f s of processor time\n", human_seconds(clock_seconds_since(t->start_us)).text, cpu);
}

static enum status train(struct training *t, bool *stopped, struct error *err) {
    interrupt_catch();
    TRY(choose_steps(t, err));
    t->trainer.o.n_steps = opt.steps;
    if (opt.steps == 0) {
        measure(t);
        return OK;
    }
    if (mkdir(t->out, 0777) != 0 && errno != EEXIST)
        return fail(err, ERR_IO, "%s: cannot be made: %s", t->out, strerror(errno));
    t->saved_us = clock_us();
    progress_begin(&bar, "training", "steps", opt.steps);
    enum status st = train_steps(t, stopped, err);
    progress_end(&bar);
    interrupt_release();
    TRY(st);
    print_loss(t);
    if (*stopped)
        printf("stopped at step %lld of %lld: --resume goes on\n", (long long)t->trainer.step, (long long)opt.steps);
    else
        measure(t);
    print_end(t);
    return OK;
}

// ---- the verb ---------------------------------------------------------------------------------------------------

static enum status prepare(struct training *t, struct error *err) {
    TRY(path_join(t->state_path, sizeof t->state_path, t->out, "training_state", err));
    TRY(model_open(t->model_path, &(struct model_options){0}, &t->model, err));
    if (opt.resume) {
        TRY(training_load(t->state_path, t->model->spec->vocab_size, &t->state, err));
        t->texts = t->state.texts, t->held.texts = t->state.held_texts, t->held.n_prompt = t->state.n_prompt;
        t->state.texts = t->state.held_texts = (struct texts){0};
        t->state.n_prompt = NULL;
    }
    TRY(opt.resume ? take_all_kept(t, err) : choose_config(t, err));
    return opt.resume ? OK : train_texts_make(&opt.texts, &opt.engine, t->model_path, &t->texts, &t->held, err);
}

static enum status train_draft(struct training *t, bool *stopped, struct error *err) {
    TRY(prepare(t, err));
    TRY(see_states(t, err));
    choose_vocab(t);
    TRY(open_trainer(t, err));
    return train(t, stopped, err);
}

static void release(struct training *t) {
    trainer_release(&t->trainer);
    examples_release(&t->examples);
    held_out_release(&t->held);
    draft_vocab_release(&t->vocab);
    texts_release(&t->texts);
    training_state_release(&t->state);
    head_close(t->init);
    model_free(t->model);
}

/* Those that say of what and until when a training is made: it has its texts and steps when it goes on. */
static bool has_begun_otherwise(const struct verb_args *args) {
    static const char *const names[] = {"data",          "held-out",    "init",     "layers",       "answers",
                                        "answer-tokens", "temperature", "generate", "held-prompts", "minutes"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (flag_given(args, names[i]))
            return true;
    return false;
}

/* A sentence about flags that do not go together; NULL: they do. */
static const char *misuse(const struct verb_args *args) {
    char path[FOLDER_PATH_BYTES];
    struct error err;
    if (opt.resume && has_begun_otherwise(args))
        return "--resume goes on with the texts, the head and the steps of the training: without --data, --held-out, "
               "--held-prompts, --answers, --answer-tokens, --temperature, --generate, --init, --layers and --minutes";
    if (!opt.resume && !opt.texts.data)
        return "train-draft needs a text or prompts: --data FILE";
    if (opt.init && (opt.layers.given || flag_given(args, "draft-vocab-size") || flag_given(args, "intermediate-size")))
        return "--init: the head says its --layers, --draft-vocab-size and --intermediate-size itself";
    if (kind_of_flags() == HEAD_MTP &&
        (opt.layers.given || flag_given(args, "draft-vocab-size") || flag_given(args, "intermediate-size")))
        return "--kind mtp: the model says what its predictor is like: without --layers, --draft-vocab-size and "
               "--intermediate-size";
    if (opt.layers.given && opt.layers.n != TEACHER_TAPS)
        return "--layers names three layers";
    if (strcmp(opt.engine.device, "cpu") != 0)
        return "train-draft runs on the CPU";
    if (!opt.resume && opt.steps != 0 && path_join(path, sizeof path, args->operands[1], "config.json", &err) == OK &&
        file_exists(path))
        return "OUT holds a model already; --resume goes on with a training";
    return NULL;
}

static int run(const struct verb_args *args) {
    struct error err;
    const char *wrong = misuse(args);
    if (wrong)
        return verb_misused(args->spec, "%s", wrong);
    struct training t = {
        .args = args, .model_path = args->operands[0], .out = args->operands[1], .start_us = clock_us()};
    bool stopped = false;
    setvbuf(stdout, NULL, _IOLBF, 0); // who watches a file or a pipe sees lines when they come
    enum status st = train_draft(&t, &stopped, &err);
    release(&t);
    return st != OK ? verb_failed(&err) : stopped ? 130 : 0;
}

const struct verb_spec verb_train_draft = {
    "train-draft",
    "MODEL OUT",
    "trains a head that guesses for a model",
    flags,
    ARRAY_LEN(flags),
    2,
    2,
    .run = run,
    .epilogue =
        "The model writes texts; a head is trained to say what the model says two tokens ahead. OUT gets config.json\n"
        "and model.safetensors, of an EAGLE-3 head as SpecForge writes them, and training_state, which --resume needs\n"
        "and nobody else. docs/speculation.md has the figures.\n"
        "  gyre train-draft models/story story-draft --data models/story/heldout.txt --minutes 10\n"
        "  gyre serve models/story --speculative-config '{\"model\": \"story-draft\"}'\n"};
