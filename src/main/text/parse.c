/* parse.c - gyre parse MODEL|TEMPLATE.jinja --batch: what a model's text is, in the form of its chat template. */
#include "main/model/model_path.h"
#include "main/run/batch.h"
#include "main/verbs.h"
#include "text/tools/tool_parser.h"

#include <stdlib.h>

static struct {
    bool batch;
    int64_t pieces;
} opt;

static const struct flag flags[] = {
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Input",
     "JSON lines in, each with an \"output\"; JSON lines out, each with its parts"},
    {"pieces", 0, FLAG_INT, &opt.pieces, "N", "Input", "feed the text N bytes at a time, as a stream comes", .min = 1,
     .max = 1 << 20},
    ALLOW_LINKS_FLAG,
};

struct job {
    const struct chat_template *chat;
    const struct chat_variant *variant;
    struct tool_format *format;
};

// ---- one answer -------------------------------------------------------------------------------------------------

struct call {
    struct buf name, id, arguments;
};

struct parts {
    struct buf content, reasoning;
    struct call *calls; // [n]
    size_t n;
};

static void take(void *arg, const struct tool_event *e) {
    struct parts *parts = arg;
    struct call *call = parts->n ? &parts->calls[parts->n - 1] : NULL;
    switch (e->kind) {
    case TOOL_EVENT_CONTENT: buf_str(&parts->content, e->text); break;
    case TOOL_EVENT_BLANKS: // not a character is lost
    case TOOL_EVENT_REASONING: buf_str(&parts->reasoning, e->text); break;
    case TOOL_EVENT_CALL:
        parts->calls = xrealloc(parts->calls, parts->n + 1, sizeof *parts->calls);
        call = &parts->calls[parts->n++];
        *call = (struct call){0};
        buf_str(&call->name, e->text);
        buf_str(&call->id, e->id);
        break;
    case TOOL_EVENT_ARGUMENTS: buf_str(&call->arguments, e->text); break;
    case TOOL_EVENT_ID: buf_str(&call->id, e->text); break;
    case TOOL_EVENT_END: break;
    }
}

static void release(struct parts *parts) {
    for (size_t i = 0; i < parts->n; i++) {
        buf_release(&parts->calls[i].name);
        buf_release(&parts->calls[i].id);
        buf_release(&parts->calls[i].arguments);
    }
    free(parts->calls);
    buf_release(&parts->content);
    buf_release(&parts->reasoning);
}

static void put_member(struct buf *out, const char *key, const struct buf *text) {
    buf_printf(out, "\"%s\":", key);
    buf_json_string(out, buf_view(text));
}

static void put_parts(struct buf *out, const struct parts *parts) {
    buf_push(out, '{');
    put_member(out, "content", &parts->content);
    buf_push(out, ',');
    put_member(out, "reasoning_content", &parts->reasoning);
    buf_str(out, STR(",\"tool_calls\":["));
    for (size_t i = 0; i < parts->n; i++) {
        const struct call *call = &parts->calls[i];
        buf_str(out, i ? STR(",{") : STR("{"));
        put_member(out, "name", &call->name);
        buf_push(out, ',');
        put_member(out, "arguments", &call->arguments);
        if (call->id.len) {
            buf_push(out, ',');
            put_member(out, "id", &call->id);
        }
        buf_push(out, '}');
    }
    buf_str(out, STR("]}"));
}

// ---- the prompt that it follows ---------------------------------------------------------------------------------

static bool render(const struct job *job, const json_t *request, struct buf *prompt) {
    buf_clear(prompt);
    return chat_variant_render(job->chat, job->variant, request, &(struct template_options){0}, prompt, NULL) == OK;
}

/* Prompts that want what a line does not have tell nothing about what they open. */
static void render_prompt(const struct job *job, const json_t *line, struct buf *prompt) {
    const json_t *thinking = json_object_get(line, "enable_thinking");
    bool on = !thinking || json_is_true(thinking);
    json_t *request = json_pack("{s:[{s:s, s:s}], s:b, s:b, s:s, s:s}", "messages", "role", "user", "content", "Hi",
                                "enable_thinking", on, "thinking", on, "bos_token", "", "eos_token", "");
    json_t *tools = json_object_get(line, "tools");
    if (json_is_array(tools))
        json_object_set(request, "tools", tools);
    if (!render(job, request, prompt)) {
        json_object_del(request, "tools");
        if (!render(job, request, prompt))
            buf_clear(prompt);
    }
    json_decref(request);
}

// ---- lines ------------------------------------------------------------------------------------------------------

static enum status check_line(const json_t *line, const char **output, size_t *n, struct error *err) {
    json_t *tools;
    const char *format;
    const json_t *text = json_object_get(line, "output");
    if (!json_is_object(line) || !json_is_string(text))
        return fail(err, ERR_ARG, "a line must be a JSON object with \"output\", a string");
    *output = json_string_value(text);
    *n = json_string_length(text);
    bool ignored;
    TRY(jv_array_or_null(line, "line", "tools", &tools, err));
    TRY(jv_string_or(line, "line", "reasoning_format", "auto", &format, err));
    TRY(jv_bool_or(line, "line", "is_partial", false, &ignored, err));
    TRY(jv_bool_or(line, "line", "enable_thinking", true, &ignored, err));
    return jv_bool_or(line, "line", "parallel_tool_calls", false, &ignored, err);
}

static enum status answer(void *arg, const json_t *line, struct buf *out, struct error *err) {
    const struct job *job = arg;
    const char *output = "";
    size_t n = 0;
    TRY(check_line(line, &output, &n, err));
    struct parts parts = {0};
    struct buf prompt = {0};
    const char *format = json_string_value(json_object_get(line, "reasoning_format"));
    render_prompt(job, line, &prompt);
    const struct tool_parser_options options = {.opened = tool_format_opened(job->format, buf_view(&prompt)),
                                                .tools = json_object_get(line, "tools"),
                                                .keep_reasoning = format && strcmp(format, "none") == 0,
                                                .told = take,
                                                .arg = &parts};
    struct tool_parser *p = tool_parser_open(job->format, &options);
    size_t step = opt.pieces ? (size_t)opt.pieces : MAX(n, 1);
    for (size_t at = 0; at < n; at += step)
        tool_parser_feed(p, (struct str){output + at, MIN(step, n - at)});
    tool_parser_finish(p, json_is_true(json_object_get(line, "is_partial")) ? TOOL_TEXT_PARTIAL : TOOL_TEXT_ENDED);
    put_parts(out, &parts);
    tool_parser_free(p);
    buf_release(&prompt);
    release(&parts);
    return OK;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct chat_template *chat;
    if (!opt.batch)
        return verb_misused(args->spec, "parse reads lines: give --batch");
    if (model_path_check(args->operands[0], MODEL_CHAT_TEMPLATE, &err) != OK ||
        chat_template_open(args->operands[0], &chat, &err) != OK)
        return verb_failed(&err);
    struct job job = {.chat = chat, .variant = chat_template_named(chat, "tool_use")};
    if (!job.variant)
        job.variant = chat_template_named(chat, "default");
    job.format = tool_format_open(chat, NULL);
    int rc = batch_run(answer, &job, NULL);
    tool_format_free(job.format);
    chat_template_free(chat);
    return rc;
}

const struct verb_spec verb_parse = {
    "parse",
    "MODEL|TEMPLATE.jinja",
    "parts what a model wrote into reasoning, content and tool calls",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "A line in: {\"output\": TEXT, \"tools\": [...], \"enable_thinking\": true, \"reasoning_format\": \"auto\",\n"
        "\"is_partial\": false}, where output is what followed the template's generation prompt and the rest may be\n"
        "left out. Without tools calls are text; with reasoning_format \"none\" reasoning stays in the content;\n"
        "is_partial: the text goes on, and what is certain so far is told.\n"
        "A line out: {\"content\", \"reasoning_content\", \"tool_calls\": [{\"name\", \"arguments\", \"id\"}]}.\n"
        "How the model writes them is found from its template: gyre info MODEL says what was found.\n"};
