/* imatrix.c - gyre imatrix MODEL TEXT -o FILE: how much each column of a model's matrices matters. */
#include "quantize/calibrate/imatrix.h"
#include "console/interrupt.h"
#include "console/progress.h"
#include "file/overwrite.h"
#include "main/model/calibration_text.h"
#include "main/verbs.h"

#include <stdio.h>

static struct {
    const char *out;
    int64_t chunk, max_chunks, n_threads;
} opt = {.chunk = 512};

static const struct flag flags[] = {
    {"output", 'o', FLAG_STRING, &opt.out, "FILE", "Output", "the GGUF file to write"},
    {"chunk", 0, FLAG_INT, &opt.chunk, "N", "Input", "tokens that the model sees at a time", .min = 2, .max = 1 << 20},
    {"chunks", 0, FLAG_INT, &opt.max_chunks, "N", "Input", "read this many chunks; 0: all", .min = 0, .max = 1 << 30},
    {"threads", 0, FLAG_INT, &opt.n_threads, "N", "Output", "threads; 0: one a processor", .min = 0, .max = 1024},
    ALLOW_LINKS_FLAG,
};

static bool step(void *context, int64_t done, int64_t total) {
    struct progress *bar = context;
    if (!bar->what)
        progress_begin(bar, "imatrix", "tokens", total);
    progress_step(bar, done);
    return !interrupt_taken();
}

static enum status measure(const char *path, const char *text, struct progress *bar, struct error *err) {
    TRY(overwrite_check(opt.out, 2, (const char *const[]){path, text}, err));
    struct bound_list taken = {0};
    struct token_ids tokens = {0};
    struct model *m = NULL;
    int n_matrices;
    enum status st = calibration_text(path, text, &tokens, err);
    if (st == OK)
        st = model_open(path, &(struct model_options){.taken = &taken}, &m, err);
    struct calibration c = {
        m, &taken, tokens.ids, (int64_t)tokens.n, (int)opt.chunk, (int)opt.n_threads, .step = step, .context = bar};
    if (opt.max_chunks)
        c.n_tokens = MIN(c.n_tokens, opt.max_chunks * opt.chunk);
    if (st == OK)
        st = imatrix_write(&c, text, opt.out, &n_matrices, err);
    progress_end(bar);
    if (st == OK)
        printf("%s: %d matrices, %lld chunks of %lld tokens\n", opt.out, n_matrices, (long long)(c.n_tokens / c.chunk),
               (long long)opt.chunk);
    model_free(m);
    free(taken.items);
    token_ids_release(&tokens);
    return st;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct progress bar = {0};
    if (!opt.out)
        return verb_misused(args->spec, "imatrix needs -o FILE");
    interrupt_catch();
    enum status st = measure(args->operands[0], args->operands[1], &bar, &err);
    interrupt_release();
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_imatrix = {
    "imatrix",
    "MODEL TEXT",
    "measures how much the columns of a model's matrices matter",
    flags,
    ARRAY_LEN(flags),
    2,
    2,
    .run = run,
    .epilogue = "Writes for each matrix the sums of the squares of what its columns read, in llama.cpp's layout.\n"
                "  gyre imatrix models/story models/story/heldout.txt -o story.imatrix.gguf\n"
                "  gyre quantize models/story story.gguf --type q3_k_m --imatrix story.imatrix.gguf\n"};
