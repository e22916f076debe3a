/* explain.c - gyre explain MODEL: the program, one line an op. */
#include "main/verbs.h"

#include "base/file.h"
#include "core/pass.h"
#include "main/model_path.h"
#include "main/terminal.h"
#include "model/model.h"

#include <stdio.h>

static struct { int64_t tokens; } opt = {.tokens = 512};

static const struct flag flags[] = {
    {"tokens", 't', FLAG_INT, &opt.tokens, "N", "Output", "show the memory of activations for a step of N tokens", .min = 1,
     .max = 1 << 20},
    ALLOW_LINKS_FLAG,
};

static void print_memory(const struct program *p) {
    int64_t *offset = xcalloc((size_t)p->n_values, sizeof *offset);
    int64_t bytes = program_plan_memory(p, opt.tokens, MIN(opt.tokens, 256), offset);
    printf("; activations of a step of %lld tokens: %.1f MiB, planned by liveness\n", (long long)opt.tokens, (double)bytes / (1 << 20));
    free(offset);
}

static int run(const struct verb_args *args) {
    struct error err;
    struct model *m;
    // A config.json alone is enough: the program does not depend on the weights' values.
    struct model_options options = {.load = file_exists(args->operands[0]) ? LOAD_PHANTOM : LOAD_CHECKPOINT};
    if (model_path_check(args->operands[0], MODEL_SETTINGS, &err) != OK || model_open(args->operands[0], &options, &m, &err) != OK)
        return verb_failed(&err);
    struct program *p = pass_shared_kv(m->program, NULL); // as the CPU has it
    struct buf text = {0};
    program_explain(p, &text);
    terminal_print(stdout, buf_view(&text));
    print_memory(p);
    program_free(p);
    buf_release(&text);
    model_free(m);
    return 0;
}

const struct verb_spec verb_explain = {
    "explain",
    "MODEL|config.json",
    "prints the program that a model is, one line an op",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue = "A value is written vN[rows,width]; rows are T (tokens of a step) or R (rows that give a token).\n"
                "What each op computes: src/core/ops.def.\n"};
