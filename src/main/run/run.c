/* run.c - gyre run MODEL [PROMPT]: one prompt, many (--batch), or a conversation on the terminal. */
#include "api/fields/request_fields.h"
#include "base/clock.h"
#include "base/file.h"
#include "console/terminal.h"
#include "main/flags/adapter_flags.h"
#include "main/flags/engine_flags.h"
#include "main/flags/grammar_flags.h"
#include "main/flags/node_flags.h"
#include "main/flags/speculation_flags.h"
#include "main/model/device_warnings.h"
#include "main/model/fingerprint.h"
#include "main/model/model_text.h"
#include "main/run/answer.h"
#include "main/run/engine_batch.h"
#include "main/run/engine_chat.h"
#include "main/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { MAX_PROMPT_BYTES = 256 << 20 };

/* Below a flag's least value: not given, so the model's own stands. */
static struct {
    const char *prompt, *file, *system, *output;
    struct flag_ids ids;
    bool batch, chat, ignore_eos;
    int64_t max_tokens, min_tokens, top_k, seed;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    struct flag_list stop;
    struct grammar_flags grammar;
    struct engine_flags engine;
    struct adapter_flags adapters;
    const char *speculation; // JSON
    struct nodes nodes;
} opt = {
    .output = "text",
    .max_tokens = -1,
    .top_k = -1,
    .seed = -1,
    .temperature = -1,
    .top_p = -1,
    .min_p = -1,
    .repetition_penalty = -1,
    .grammar = GRAMMAR_FLAGS_DEFAULT,
    .engine = ENGINE_FLAGS_DEFAULT,
    .nodes = NODES_DEFAULT,
};

static const struct flag flags[] = {
    {"prompt", 'p', FLAG_STRING, &opt.prompt, "TEXT", "Prompt", "what the model is to answer or go on from"},
    {"file", 'f', FLAG_STRING, &opt.file, "FILE", "Prompt", "the same from a file; - is standard input"},
    {"prompt-ids", 0, FLAG_IDS, &opt.ids, "1,2,3", "Prompt", "the prompt as token ids, which are taken as they are"},
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Prompt", "JSON lines in, one request each; JSON lines out, in order"},
    {"chat", 0, FLAG_BOOL, &opt.chat, NULL, "Prompt",
     "put the prompt through the model's chat template; --no-chat takes it raw. Unless one of them is given: chat "
     "where the model "
     "has a template and the output is text, raw otherwise"},
    {"system", 0, FLAG_STRING, &opt.system, "TEXT", "Prompt", "the system message of a chat"},
    {"max-tokens", 'n', FLAG_INT, &opt.max_tokens, "N", "Output",
     "stop after N tokens; otherwise at the end of the context", .min = 0, .max = 1 << 24},
    {"min-tokens", 0, FLAG_INT, &opt.min_tokens, "N", "Output", "do not stop before N tokens", .min = 0,
     .max = 1 << 24},
    {"stop", 0, FLAG_LIST, &opt.stop, "TEXT", "Output", "stop before this text; may be repeated"},
    {"ignore-eos", 0, FLAG_BOOL, &opt.ignore_eos, NULL, "Output", "go on after the model's end-of-sequence tokens"},
    GRAMMAR_FLAGS(opt.grammar),
    {"output", 0, FLAG_CHOICE, &opt.output, "text|ids|json", "Output",
     "text, as it comes; or the ids of the answer; or one object: prompt_ids, ids, text, finish_reason, timings"},
    {"temperature", 0, FLAG_REAL, &opt.temperature, "T", "Sampling",
     "0 takes the most probable token. This and the next: otherwise the model's generation_config.json, else off",
     .min = 0, .max = 100},
    {"top-k", 0, FLAG_INT, &opt.top_k, "K", "Sampling", "only the K most probable tokens; 0 is off", .min = 0,
     .max = INT32_MAX},
    {"top-p", 0, FLAG_REAL, &opt.top_p, "P", "Sampling",
     "only the most probable tokens that together have probability P; 1 is off", .min = 0, .max = 1},
    {"min-p", 0, FLAG_REAL, &opt.min_p, "P", "Sampling",
     "only tokens of at least P times the probability of the best; 0 is off", .min = 0, .max = 1},
    {"repetition-penalty", 0, FLAG_REAL, &opt.repetition_penalty, "X", "Sampling",
     "makes tokens seen before less probable; 1 is off", .min = 0.01, .max = 100},
    {"presence-penalty", 0, FLAG_REAL, &opt.presence_penalty, "X", "Sampling", "less, once, for tokens of the answer",
     .min = -2, .max = 2},
    {"frequency-penalty", 0, FLAG_REAL, &opt.frequency_penalty, "X", "Sampling",
     "less, each time, for tokens of the answer", .min = -2, .max = 2},
    {"seed", 0, FLAG_INT, &opt.seed, "N", "Sampling", "the same seed gives the same answer; otherwise a random one",
     .min = 0, .max = 1e18},
    ENGINE_FLAGS(opt.engine),
    ADAPTER_FLAGS(opt.adapters),
    SPECULATION_FLAGS(opt.speculation, opt.engine),
    NODE_FLAGS(opt.nodes),
};

struct runner {
    const char *model;
    struct gyre *g;
    struct model_text text; // .tok is NULL where the model has no tokenizer and none is needed
    struct gyre_request base;
    struct grammar_compiler grammars;
    bool chat;
    double load_seconds;
};

// ---- what was asked ---------------------------------------------------------------------------------------------

static uint64_t random_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)clock_us();
    return seed;
}

static struct gyre_request base_request(const struct gyre *g) {
    struct gyre_request q = gyre_request_default(g);
    q.max_tokens = opt.max_tokens;
    q.adapter = opt.engine.n_adapters > 0; // the first
    q.min_tokens = opt.min_tokens;
    q.ignore_eos = opt.ignore_eos;
    q.seed = opt.seed >= 0 ? (uint64_t)opt.seed : random_seed();
    if (opt.temperature >= 0)
        q.temperature = (float)opt.temperature;
    if (opt.top_k >= 0)
        q.top_k = (int32_t)opt.top_k;
    if (opt.top_p >= 0)
        q.top_p = (float)opt.top_p;
    if (opt.min_p >= 0)
        q.min_p = (float)opt.min_p;
    if (opt.repetition_penalty >= 0)
        q.repetition_penalty = (float)opt.repetition_penalty;
    q.presence_penalty = (float)opt.presence_penalty;
    q.frequency_penalty = (float)opt.frequency_penalty;
    return q;
}

static bool wants_text(void) { return strcmp(opt.output, "text") == 0; }
static bool is_conversation(void) { return !opt.batch && !opt.prompt && !opt.file && !opt.ids.given; }

static bool chooses_chat(const struct verb_args *args, const char *model) {
    if (opt.ids.given)
        return false;
    if (flag_given(args, "chat"))
        return opt.chat;
    if (is_conversation())
        return true;
    return wants_text() && !opt.batch && chat_template_exists(model);
}

/* Ids in and ids out need no tokenizer. Only a model that has none is run so: a faulty one is an error all the same. */
static bool can_do_without_text(const char *model) {
    return (opt.batch || (opt.ids.given && !wants_text())) && opt.stop.n == 0 && !tokenizer_in_folder(model);
}

static enum status open_text(struct runner *r, struct error *err) {
    if (can_do_without_text(r->model))
        return OK;
    TRY(model_text_open(&r->text, r->model, err));
    return r->chat ? model_text_open_chat(&r->text, r->model, err) : OK;
}

static enum status runner_open(struct runner *r, struct error *err) {
    int64_t start = clock_us();
    static char fingerprint[FINGERPRINT_BYTES];
    TRY(open_text(r, err));
    model_text_ends(&r->text, r->model, &opt.engine.eos);
    TRY(speculation_read(opt.speculation, &opt.engine.speculation, err));
    TRY(adapter_flags_read(&opt.adapters, NULL, 0, &opt.engine, err));
    fingerprint_of(&opt.engine, r->model, fingerprint);
    TRY(nodes_await(&opt.nodes, &opt.engine, fingerprint, err));
    TRY(engine_flags_open(&opt.engine, r->model, &r->g, err));
    r->base = base_request(r->g);
    r->load_seconds = clock_seconds_since(start);
    return OK;
}

// ---- prompts ----------------------------------------------------------------------------------------------------

static enum status encode_chat(struct runner *r, struct str prompt, struct token_ids *out, struct error *err) {
    json_t *messages = json_array(), *text = json_stringn(prompt.ptr, prompt.len);
    if (!text) {
        json_decref(messages);
        return fail(err, ERR_ARG, "the prompt is not UTF-8");
    }
    if (opt.system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", opt.system));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", text));
    enum status st = model_text_encode_chat(&r->text, messages, out, err);
    json_decref(messages);
    return st;
}

static enum status encode(struct runner *r, struct str prompt, struct token_ids *out, struct error *err) {
    if (!r->text.tok)
        return fail(err, ERR_ARG, "%s has no tokenizer: it takes prompt_ids only", r->model);
    return r->chat ? encode_chat(r, prompt, out, err) : model_text_encode(&r->text, prompt, out, err);
}

static enum status read_prompt(struct runner *r, struct token_ids *out, struct error *err) {
    if (opt.ids.given) {
        for (size_t i = 0; i < opt.ids.n; i++)
            token_ids_push(out, opt.ids.ids[i]);
        return OK;
    }
    if (opt.prompt)
        return encode(r, str_of(opt.prompt), out, err);
    struct buf text = {0};
    enum status st = file_read(opt.file, MAX_PROMPT_BYTES, &text, err);
    if (st == OK)
        st = encode(r, buf_view(&text), out, err);
    buf_release(&text);
    return st;
}

// ---- one prompt -------------------------------------------------------------------------------------------------

static void print_timings(const struct runner *r, const struct answer *a) {
    fprintf(stderr, "%sprompt %zu tokens, %.1f tok/s; decode %zu tokens, %.1f tok/s; loaded in %s%s\n",
            terminal_style(stderr, STYLE_DIM), a->prompt.n, answer_prompt_rate(a), a->ids.n, answer_decode_rate(a),
            human_seconds(r->load_seconds).text, terminal_style(stderr, STYLE_NONE));
}

static void print_result(const struct runner *r, const struct answer *a) {
    struct buf out = {0};
    if (wants_text()) {
        if (a->text.len == 0 || a->text.ptr[a->text.len - 1] != '\n')
            putchar('\n');
        fflush(stdout);
        print_timings(r, a);
        return;
    }
    if (strcmp(opt.output, "json") == 0)
        answer_json(a, &out);
    for (size_t i = 0; i < a->ids.n && strcmp(opt.output, "ids") == 0; i++)
        buf_printf(&out, i ? ",%d" : "%d", a->ids.ids[i]);
    buf_push(&out, '\n');
    terminal_print(stdout, buf_view(&out));
    buf_release(&out);
}

/* The grammar is compiled for the prompt, which was encoded last. */
static enum status submit(struct runner *r, struct gyre_request *q, struct answer *a, struct error *err) {
    struct gyre_grammar grammar;
    enum status st = grammar_flags_compile(&opt.grammar, &r->text, gyre_info(r->g), &r->grammars, &grammar, err);
    q->grammar = grammar.grammar ? &grammar : NULL;
    if (st == OK)
        st = answer_submit(a, r->g, q, err);
    a->request.grammar = NULL;
    grammar_release(grammar.grammar);
    return st;
}

static enum status generate(struct runner *r, struct answer *a, struct error *err) {
    struct token_ids prompt = {0};
    struct gyre_request q = r->base;
    enum status st = read_prompt(r, &prompt, err);
    q.prompt = prompt.ids, q.n_prompt = (int64_t)prompt.n;
    if (st == OK)
        st = submit(r, &q, a, err);
    token_ids_release(&prompt);
    TRY(st);
    for (size_t printed = 0; !a->done && !ferror(stdout);) {
        struct gyre_event events[64];
        int n = gyre_poll(r->g, events, 64);
        for (int i = 0; i < n; i++)
            TRY(answer_take(a, r->g, &events[i], err));
        if (wants_text())
            answer_print(a, &printed);
    }
    return OK;
}

static int run_once(struct runner *r) {
    struct answer a;
    struct error err;
    answer_init(&a, r->text.tok, opt.stop.items, opt.stop.n);
    enum status st = generate(r, &a, &err);
    if (st == OK && a.done) // not when standard output takes no more
        print_result(r, &a);
    answer_release(&a);
    return st == OK ? 0 : verb_failed(&err);
}

// ---- many -------------------------------------------------------------------------------------------------------

static enum status submit_line(struct runner *r, struct request_fields *f, void *user, struct answer *a,
                               struct error *err) {
    struct token_ids ids = {0};
    enum status st = OK;
    f->request.user = user;
    if (f->n_stop > 0 && !r->text.tok)
        return fail(err, ERR_ARG, "%s has no tokenizer: it cannot stop at a text", r->model);
    if (f->prompt) {
        st = encode(r, str_of(f->prompt), &ids, err);
        f->request.prompt = ids.ids, f->request.n_prompt = (int64_t)ids.n;
    }
    if (st == OK)
        st = submit(r, &f->request, a, err);
    token_ids_release(&ids);
    return st;
}

static void free_answer(void *job) {
    answer_release(job);
    free(job);
}

static enum status begin_line(void *arg, struct gyre *g, const json_t *line, void *user, void **job,
                              struct error *err) {
    struct runner *r = arg;
    struct request_fields f;
    (void)g;
    TRY(request_fields_read(line, &r->base, &f, err));
    struct answer *a = xcalloc(1, sizeof *a);
    answer_init(a, r->text.tok, f.stop ? f.stop : opt.stop.items, f.stop ? f.n_stop : opt.stop.n);
    enum status st = submit_line(r, &f, user, a, err);
    request_fields_release(&f);
    if (st == OK)
        *job = a;
    else
        free_answer(a);
    return st;
}

static enum status take_event(void *job, struct gyre *g, const struct gyre_event *event, struct error *err) {
    return answer_take(job, g, event, err);
}

static void put_answer(const void *job, struct buf *out) { answer_json(job, out); }

// ---- the verb ---------------------------------------------------------------------------------------------------

static int converse(struct runner *r) {
    struct engine_chat_options options = {r->base, opt.system, opt.stop.items, opt.stop.n};
    return engine_chat(r->g, &r->text, &options);
}

/* The prompt behind the model is as --prompt, and comes before the environment's; false: there are both. */
static bool take_prompt(const struct verb_args *args) {
    const char *of_environment = getenv("GYRE_PROMPT");
    if (args->n > 1 && opt.prompt && !(of_environment && strcmp(opt.prompt, of_environment) == 0))
        return false;
    opt.prompt = args->n > 1 ? args->operands[1] : opt.prompt;
    return true;
}

static const char *misuse(const struct verb_args *args) {
    if (!take_prompt(args) || !!opt.prompt + !!opt.file + opt.ids.given + opt.batch > 1)
        return "run takes one prompt: behind the model, by --prompt, --file or --prompt-ids, or many by --batch";
    if (opt.nodes.rank == 0 && is_conversation() && !(terminal_is(stdin) && terminal_is(stdout)))
        return "run needs a prompt (behind the model, or --prompt, --file, --prompt-ids or --batch) unless it talks "
               "with a terminal";
    if (is_conversation() && (!wants_text() || (flag_given(args, "chat") && !opt.chat)))
        return "a conversation goes through the chat template and gives text; for anything else give a prompt";
    if (opt.ids.given && flag_given(args, "chat") && opt.chat)
        return "--prompt-ids are the prompt as it is, --chat has no part in it";
    if (opt.system && !is_conversation() && !chooses_chat(args, args->operands[0]))
        return "--system belongs to a chat, and this prompt goes to the model as it is: add --chat";
    if (is_conversation() && grammar_flags_given(&opt.grammar))
        return "--json-schema, --grammar, --regex and --choice belong to a prompt";
    if (grammar_flags_misuse(&opt.grammar))
        return grammar_flags_misuse(&opt.grammar);
    for (size_t i = 0; i < opt.stop.n; i++)
        if (!opt.stop.items[i][0])
            return "--stop is empty";
    return NULL;
}

static enum status check_nodes(const struct verb_args *args, struct error *err) {
    TRY(nodes_read(&opt.nodes, args, err));
    return nodes_check(&opt.nodes, &opt.engine, opt.adapters.modules.n || opt.speculation, err);
}

static int run(const struct verb_args *args) {
    static const struct batch_verb batch = {begin_line, take_event, put_answer, free_answer};
    struct error err;
    if (check_nodes(args, &err) != OK)
        return verb_failed(&err);
    const char *wrong = misuse(args); // all nodes have the same flags, and end with them
    if (wrong)
        return verb_misused(args->spec, "%s", wrong);
    if (opt.nodes.rank > 0)
        return nodes_work(&opt.nodes, &opt.engine, args->operands[0]);
    struct runner r = {.model = args->operands[0], .chat = chooses_chat(args, args->operands[0])};
    int rc;
    if (runner_open(&r, &err) != OK)
        rc = verb_failed(&err);
    else if (opt.batch)
        rc = engine_batch(r.g, &batch, &r);
    else
        rc = is_conversation() ? converse(&r) : run_once(&r);
    device_warnings_of(r.g);
    gyre_close(r.g);
    nodes_leave();
    token_ids_release(&opt.engine.eos);
    grammar_compiler_release(&r.grammars);
    model_text_release(&r.text);
    return rc;
}

const struct verb_spec verb_run = {
    "run",
    "MODEL [PROMPT]",
    "generates text: one prompt, many, or a conversation",
    flags,
    ARRAY_LEN(flags),
    1,
    2,
    .run = run,
    .epilogue = "Without a prompt, on a terminal, run is a conversation; /help lists its commands.\n"
                "--batch reads objects with prompt or prompt_ids, and max_tokens min_tokens temperature top_k top_p "
                "min_p seed stop\n"
                "stop_token_ids allowed_token_ids ignore_eos repetition_penalty presence_penalty frequency_penalty "
                "logit_bias logprobs "
                "top_logprobs;\n"
                "what a line does not say is as the flags say. All lines share the steps, and are answered in order.\n"
                "  gyre run models/story --chat \"Tell me a story about a little fox.\" --temperature 0.7\n"
                "  gyre run models/story --no-chat -p \"Once upon a time\" -n 40 --output json\n"};
