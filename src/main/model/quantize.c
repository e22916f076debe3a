/* quantize.c - gyre quantize MODEL OUT --type TYPE: writes a model in fewer bits. */
#include "quantize/quantize.h"
#include "console/interrupt.h"
#include "console/progress.h"
#include "console/terminal.h"
#include "main/model/calibration_text.h"
#include "main/verbs.h"

#include "base/buf.h"

#include <math.h>
#include <stdio.h>

static struct {
    const char *type, *format, *imatrix, *calibration;
    int64_t chunk, max_chunks;
    bool may_requantize, quiet;
    int64_t n_threads;
} opt = {.chunk = 512, .max_chunks = 128};

#define TYPES                                                                                                          \
    "f32|f16|bf16|q8_0|q6_k|q5_k_m|q5_1|q5_0|q4_k_m|q4_1|q4_0|iq4_nl|mxfp4|q3_k_m|q2_k|fp8|int8|nvfp4|int4|gptq-int4|" \
    "awq-int4|smoothquant-int8"

static const struct flag flags[] = {
    {"type", 0, FLAG_CHOICE, &opt.type, TYPES, "Output", "what weights become"},
    {"format", 0, FLAG_CHOICE, &opt.format, "gguf|safetensors", "Output",
     "a GGUF file, or a folder of safetensors as compressed-tensors lays them out (the default for fp8, int8, int4 and "
     "nvfp4)"},
    {"allow-requantize", 0, FLAG_BOOL, &opt.may_requantize, NULL, "Input",
     "take weights that are quantised already, which loses more than quantising the original does"},
    {"imatrix", 0, FLAG_STRING, &opt.imatrix, "FILE", "Input",
     "how much each column matters, from gyre imatrix or llama.cpp; errors count by it"},
    {"calibration", 0, FLAG_STRING, &opt.calibration, "FILE", "Input",
     "the text that gptq-int4, awq-int4 and smoothquant-int8 look at the model with"},
    {"chunk", 0, FLAG_INT, &opt.chunk, "N", "Input", "tokens of it that the model sees at a time", .min = 2,
     .max = 1 << 20},
    {"chunks", 0, FLAG_INT, &opt.max_chunks, "N", "Input", "read this many chunks; 0: all", .min = 0, .max = 1 << 30},
    {"quiet", 'q', FLAG_BOOL, &opt.quiet, NULL, "Output", "print no table of tensors"},
    {"threads", 0, FLAG_INT, &opt.n_threads, "N", "Output", "threads; 0: one a processor", .min = 0, .max = 1024},
    ALLOW_LINKS_FLAG,
};

struct shown {
    struct progress bar;
    struct buf table; // printed when all is done: lines of it would tear the bar
    bool reads;       // the bar is of the text
    uint64_t n_bytes;
    struct loss loss;
};

static bool step(void *context, uint64_t done, uint64_t total) {
    struct shown *s = context;
    if (!s->bar.what)
        progress_begin(&s->bar, "quantize", NULL, (int64_t)total);
    progress_step(&s->bar, (int64_t)done);
    return !interrupt_taken();
}

static bool read_step(void *context, int64_t done, int64_t total) {
    struct shown *s = context;
    if (!s->bar.what || done < s->bar.done || !s->reads)
        progress_begin(&s->bar, "calibrate", "tokens", total);
    s->reads = done < total;
    progress_step(&s->bar, done);
    if (!s->reads) {
        progress_end(&s->bar);
        s->bar.what = NULL;
    }
    return !interrupt_taken();
}

/* Of vectors and copies nothing is lost, and nothing said. */
static void report(void *context, const struct tensor_report *r) {
    struct shown *s = context;
    const struct loss *l = &r->loss;
    s->n_bytes += r->n_bytes;
    if (l->errors == 0)
        return;
    loss_join(&s->loss, l);
    if (s->table.len == 0)
        buf_printf(&s->table, "%-36s %-6s %-7s %10s %9s %11s  %s\n", "tensor", "from", "to", "rmse", "relative",
                   "worst block", "row, column");
    buf_printf(&s->table, "%-36s %-6s %-7s %10.3e %8.3f%% %11.3e  %lld, %lld\n", r->name, r->from, r->to,
               sqrt(l->errors / (double)MAX(l->n, 1)), 100 * sqrt(l->errors / l->squares), l->worst, (long long)l->row,
               (long long)l->block * LOSS_BLOCK);
}

static void note(void *context, const char *sentence) {
    (void)context;
    fprintf(stderr, "gyre: %s\n", sentence);
}

static int tell(struct shown *s, const char *path) {
    if (!opt.quiet)
        fwrite(s->table.ptr ? s->table.ptr : "", 1, s->table.len, stdout);
    double relative = s->loss.squares > 0 ? sqrt(s->loss.errors / s->loss.squares) : 0;
    printf("%s: %s, relative error of what was rounded %.3f%%\n", path, human_bytes((double)s->n_bytes).text,
           100 * relative);
    return 0;
}

static bool is_folder(void) {
    static const char *const types[] = {"fp8", "int8", "int4", "nvfp4", "gptq-int4", "awq-int4", "smoothquant-int8"};
    bool usual = false;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        usual = usual || strcmp(opt.type, types[i]) == 0;
    return opt.format ? strcmp(opt.format, "safetensors") == 0 : usual;
}

/* Codes of these follow from a number, or from the largest of a block: there is no choice that columns could weigh. */
static bool searches(void) {
    static const char *const types[] = {"f32", "f16", "bf16", "q8_0"};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (strcmp(opt.type, types[i]) == 0)
            return false;
    return true;
}

/* Flags that the type has no use for; NULL: none. */
static const char *idle_flag(const struct verb_args *args) {
    bool calibrates = strchr(opt.type, '-') != NULL; // gptq-int4, awq-int4, smoothquant-int8
    if (opt.imatrix && is_folder())
        return "--imatrix is for GGUF files";
    if (opt.imatrix && !searches())
        return "--imatrix changes nothing of f32, f16, bf16 and q8_0";
    if (!opt.calibration && (flag_given(args, "chunk") || flag_given(args, "chunks")))
        return "--chunk and --chunks are of the text of --calibration FILE";
    if (opt.calibration && !calibrates)
        return "--calibration is for gptq-int4, awq-int4 and smoothquant-int8";
    return opt.may_requantize && is_folder() ? "--allow-requantize is for GGUF files" : NULL;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct shown s = {0};
    if (!opt.type)
        return verb_misused(args->spec, "quantize needs --type");
    if (idle_flag(args))
        return verb_misused(args->spec, "%s", idle_flag(args));
    struct quantize_job job = {.model = args->operands[0],
                               .out = args->operands[1],
                               .type = opt.type,
                               .imatrix = opt.imatrix,
                               .may_requantize = opt.may_requantize,
                               .n_threads = (int)opt.n_threads,
                               .progress = {.step = step, .context = &s},
                               .report = report,
                               .note = note,
                               .read = read_step,
                               .context = &s};
    struct token_ids tokens = {0};
    enum status st = opt.calibration ? calibration_text(args->operands[0], opt.calibration, &tokens, &err) : OK;
    if (opt.calibration && st == OK)
        job.tokens = tokens.ids, job.n_tokens = (int64_t)tokens.n, job.chunk = (int)opt.chunk;
    if (opt.max_chunks)
        job.n_tokens = MIN(job.n_tokens, opt.max_chunks * opt.chunk);
    interrupt_catch();
    if (st == OK)
        st = is_folder() ? quantize_safetensors(&job, &err) : quantize_gguf(&job, &err);
    interrupt_release();
    progress_end(&s.bar);
    int code = st == OK ? tell(&s, job.out) : verb_failed(&err);
    buf_release(&s.table);
    token_ids_release(&tokens);
    return code;
}

const struct verb_spec verb_quantize = {
    "quantize",
    "MODEL OUT",
    "writes a model in fewer bits",
    flags,
    ARRAY_LEN(flags),
    2,
    2,
    .run = run,
    .epilogue =
        "MODEL is a model folder or a GGUF file, OUT what to write. The table tells for each tensor the root\n"
        "of the mean squared error, that as a share of the tensor's own size, and the worst block of 32 columns.\n"
        "  gyre quantize models/story story-q4_k_m.gguf --type q4_k_m\n"};
