/* render.c - gyre render MODEL|TEMPLATE.jinja -f REQUEST.json: what a chat template makes of a conversation. */
#include "base/file.h"
#include "console/terminal.h"
#include "main/model/model_path.h"
#include "main/run/batch.h"
#include "main/verbs.h"
#include "text/chat/template_chat.h"

#include <stdio.h>

enum { MAX_REQUEST_BYTES = 256 << 20 };

static struct {
    const char *file, *now;
    bool batch;
} opt;

static const struct flag flags[] = {
    {"file", 'f', FLAG_STRING, &opt.file, "REQUEST", "Input",
     "JSON with messages, tools and other variables; - is standard input"},
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Input",
     "JSON lines in, each a request; JSON lines out, each a string or an error"},
    {"now", 0, FLAG_STRING, &opt.now, "'YYYY-MM-DD HH:MM:SS'", "Input",
     "what strftime_now tells the template instead of the time"},
    ALLOW_LINKS_FLAG,
};

struct job {
    const struct chat_template *chat;
    struct template_options options;
};

static enum status answer(void *arg, const json_t *request, struct buf *out, struct error *err) {
    const struct job *job = arg;
    struct buf text = {0}, raised = {0};
    struct template_options options = job->options;
    options.raised = &raised;
    enum status st = chat_template_render(job->chat, request, &options, &text, err);
    if (st == OK) {
        buf_json_string(out, buf_view(&text));
    } else if (raised.len) { // whole, and with its newlines, which err cannot hold
        buf_str(out, STR("{\"error\":"));
        buf_json_string(out, buf_view(&raised));
        buf_push(out, '}');
        st = OK;
    }
    buf_release(&text);
    buf_release(&raised);
    return st;
}

static int render_one(const struct job *job) {
    struct error err;
    struct buf source = {0}, text = {0}, raised = {0};
    json_t *request = NULL;
    size_t budget = JV_MAX_BYTES;
    struct template_options options = job->options;
    options.raised = &raised;
    enum status st = file_read(opt.file, MAX_REQUEST_BYTES, &source, &err);
    if (st == OK)
        st = jv_parse_numbers(buf_view(&source), opt.file, 0, &budget, options.numbers, &request, &err);
    if (st == OK)
        st = chat_template_render(job->chat, request, &options, &text, &err);
    if (st == OK) {
        terminal_print(stdout, buf_view(&text));
    } else {
        fprintf(stderr, "gyre: ");
        terminal_print(stderr, raised.len ? buf_view(&raised) : str_of(err.text));
        fputc('\n', stderr);
    }
    json_decref(request);
    jv_numbers_release(options.numbers);
    buf_release(&source);
    buf_release(&text);
    buf_release(&raised);
    return st == OK ? 0 : 1;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct chat_template *chat;
    struct tm now;
    struct jv_numbers numbers = {0};
    struct job job = {.options = {.numbers = &numbers}};
    if (!opt.batch == !opt.file)
        return verb_misused(args->spec, "render takes one request with -f, or many with --batch");
    if (opt.now && template_read_time(opt.now, "--now", &now, &err) != OK)
        return verb_failed(&err);
    job.options.now = opt.now ? &now : NULL;
    if (model_path_check(args->operands[0], MODEL_CHAT_TEMPLATE, &err) != OK ||
        chat_template_open(args->operands[0], &chat, &err) != OK)
        return verb_failed(&err);
    job.chat = chat;
    int rc = opt.batch ? batch_run(answer, &job, &numbers) : render_one(&job);
    chat_template_free(chat);
    return rc;
}

const struct verb_spec verb_render = {
    "render",
    "MODEL|TEMPLATE.jinja",
    "prints the prompt that a chat template makes of a conversation",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "REQUEST holds messages, tools, add_generation_prompt (true unless given), bos_token and eos_token (the\n"
        "model's own unless given), and any other variable that the template reads, such as enable_thinking.\n"
        "When the template calls raise_exception, its message goes to standard error and the exit code is 1.\n"};
