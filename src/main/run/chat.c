/* chat.c - gyre chat: a conversation with an OpenAI-compatible server.
 *
 * What the server sends is hostile input: on a terminal control characters are shown as '?', so that a model cannot
 * move the cursor, set the title or type for the person. Into a file or pipe its text goes as it is. */
#include "main/verbs.h"

#include "client/call_collector.h"
#include "client/chat_exchange.h"
#include "console/dialogue.h"
#include "console/interrupt.h"
#include "console/terminal.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_ANSWER = 16 << 20, MAX_TOOLS = 16 << 20 };

static struct {
    const char *url, *ca_file, *key, *model, *system, *prompt, *tools;
    struct flag_list headers, stop;
    int64_t max_tokens, top_k, seed, patience_s;
    double temperature, top_p, min_p;
} opt = {.url = "http://127.0.0.1:8000",
         .max_tokens = -1,
         .top_k = -1,
         .seed = -1,
         .patience_s = 600,
         .temperature = -1,
         .top_p = -1,
         .min_p = -1};

static const struct flag flags[] = {
    {"url", 0, FLAG_STRING, &opt.url, "URL", "Server", "the server, with or without /v1"},
    {"api-key", 0, FLAG_STRING, &opt.key, "KEY", "Server",
     "sent as a bearer token; OPENAI_API_KEY is read too, for https. Other users see a command line"},
    {"model", 0, FLAG_STRING, &opt.model, "NAME", "Server", "otherwise the first that the server lists"},
    {"header", 0, FLAG_LIST, &opt.headers, "NAME: VALUE", "Server", "a header of each request; may be repeated"},
    {"cacert", 0, FLAG_STRING, &opt.ca_file, "FILE", "Server", "PEM certificates to trust in place of the system's"},
    {"timeout", 0, FLAG_INT, &opt.patience_s, "SECONDS", "Server",
     "how long the server may send nothing; 0 is no bound", .min = 0, .max = 86400},
    {"prompt", 'p', FLAG_STRING, &opt.prompt, "TEXT", "Conversation",
     "one message and its answer, in place of a conversation"},
    {"system", 0, FLAG_STRING, &opt.system, "TEXT", "Conversation", "the system message"},
    {"tools", 0, FLAG_STRING, &opt.tools, "FILE", "Conversation",
     "tools that the model may call, a JSON array as OpenAI's API has it. You type their results"},
    {"max-tokens", 'n', FLAG_INT, &opt.max_tokens, "N", "Sampling",
     "tokens of an answer. This and the next: otherwise as the server has it", .min = 1, .max = 1 << 24},
    {"stop", 0, FLAG_LIST, &opt.stop, "TEXT", "Sampling", "stop before this text; may be repeated"},
    {"temperature", 0, FLAG_REAL, &opt.temperature, "T", "Sampling", "0 takes the most probable token", .min = 0,
     .max = 100},
    {"top-k", 0, FLAG_INT, &opt.top_k, "K", "Sampling", "only the K most probable tokens", .min = 0, .max = INT32_MAX},
    {"top-p", 0, FLAG_REAL, &opt.top_p, "P", "Sampling",
     "only the most probable tokens that together have probability P", .min = 0, .max = 1},
    {"min-p", 0, FLAG_REAL, &opt.min_p, "P", "Sampling", "only tokens of at least P times the probability of the best",
     .min = 0, .max = 1},
    {"seed", 0, FLAG_INT, &opt.seed, "N", "Sampling", "the same seed gives the same answer", .min = 0, .max = 1e18},
};

struct client {
    struct api_server server;
    char *model;
    struct chat_exchange exchange;
    struct dialogue_answer *out;
    struct call_collector calls;
    json_t *tools; // as a request brings them; NULL: none
    bool thinking;
};

// ---- printing ---------------------------------------------------------------------------------------------------

static void print_text(struct str text) {
    terminal_print(stdout, text);
    fflush(stdout);
}

/* Reasoning is for who watches, dimmed; it is no part of the answer. */
static void print_reasoning(struct client *c, struct str text) {
    if (!terminal_is(stdout))
        return;
    if (!c->thinking)
        fputs(terminal_style(stdout, STYLE_DIM), stdout);
    c->thinking = true;
    print_text(text);
}

static void end_reasoning(struct client *c) {
    if (c->thinking)
        printf("%s\n\n", terminal_style(stdout, STYLE_NONE));
    c->thinking = false;
}

// ---- an answer --------------------------------------------------------------------------------------------------

static enum status take_piece(void *self, const struct answer_event *e, struct error *err) {
    struct client *c = self;
    if (c->out->text.len + e->content.len > MAX_ANSWER)
        return fail(err, ERR_LIMIT, "the answer is longer than %d MiB", MAX_ANSWER >> 20);
    if (e->reasoning.len > 0)
        print_reasoning(c, buf_view(&e->reasoning));
    if (e->content.len > 0) {
        end_reasoning(c);
        print_text(buf_view(&e->content));
        buf_str(&c->out->text, buf_view(&e->content));
    }
    return e->tool_calls.len > 0 ? call_collector_take(&c->calls, e->tool_calls, err) : OK;
}

static json_t *request_of(const struct client *c, json_t *messages) {
    json_t *body = json_pack("{s:s, s:O, s:b, s:{s:b}}", "model", c->model, "messages", messages, "stream", 1,
                             "stream_options", "include_usage", 1);
    if (c->tools)
        json_object_set(body, "tools", c->tools);
    if (opt.max_tokens > 0)
        json_object_set_new(body, "max_tokens", json_integer(opt.max_tokens));
    if (opt.top_k >= 0)
        json_object_set_new(body, "top_k", json_integer(opt.top_k));
    if (opt.seed >= 0)
        json_object_set_new(body, "seed", json_integer(opt.seed));
    if (opt.temperature >= 0)
        json_object_set_new(body, "temperature", json_real(opt.temperature));
    if (opt.top_p >= 0)
        json_object_set_new(body, "top_p", json_real(opt.top_p));
    if (opt.min_p >= 0)
        json_object_set_new(body, "min_p", json_real(opt.min_p));
    for (size_t i = 0; i < opt.stop.n; i++) {
        if (i == 0)
            json_object_set_new(body, "stop", json_array());
        json_array_append_new(json_object_get(body, "stop"), json_string(opt.stop.items[i]));
    }
    return body;
}

static void write_note(const struct chat_exchange *x, struct dialogue_answer *out) {
    int64_t n = x->n_tokens >= 0 ? x->n_tokens : x->n_pieces;
    const char *about = x->n_tokens >= 0 ? "" : "about ";
    int at = snprintf(out->note, sizeof out->note, "%s%lld tokens", about, (long long)n);
    if (x->last_us > x->first_us && n > 1)
        at += snprintf(out->note + at, sizeof out->note - (size_t)at, ", %.0f tok/s",
                       (double)(n - 1) / ((double)(x->last_us - x->first_us) * 1e-6));
    if (x->first_us)
        at += snprintf(out->note + at, sizeof out->note - (size_t)at, ", first after %s",
                       human_seconds((double)(x->first_us - x->start_us) * 1e-6).text);
    snprintf(out->note + at, sizeof out->note - (size_t)at, "%s",
             x->was_stopped     ? ", stopped"
             : x->out_of_tokens ? ", out of tokens"
                                : "");
}

static enum status answer(void *self, json_t *messages, struct dialogue_answer *out, struct error *err) {
    struct client *c = self;
    json_t *body = request_of(c, messages);
    c->out = out;
    c->thinking = false;
    enum status st = chat_exchange(&c->exchange, body, err);
    json_decref(body);
    end_reasoning(c);
    out->calls = call_collector_json(&c->calls);
    call_collector_release(&c->calls);
    write_note(&c->exchange, out);
    return st;
}

// ---- the verb ---------------------------------------------------------------------------------------------------

static enum status open_client(struct client *c, struct error *err) {
    c->server = (struct api_server){.base = opt.url,
                                    .key = api_key_or_environment(opt.key, opt.url),
                                    .headers = opt.headers.items,
                                    .n_headers = opt.headers.n,
                                    .ca_file = opt.ca_file};
    if (opt.tools) {
        TRY(jv_load(opt.tools, MAX_TOOLS, 0, &c->tools, err));
        if (!json_is_array(c->tools))
            return fail(err, ERR_FORMAT, "%s: %s in place of an array of tools", opt.tools, jv_type_name(c->tools));
    }
    c->exchange = (struct chat_exchange){
        .server = &c->server, .patience_s = opt.patience_s, .take = take_piece, .stopped = interrupt_taken, .user = c};
    if (!opt.model)
        return api_first_model(&c->server, &c->model, err);
    c->model = xstrdup(opt.model);
    return OK;
}

/* A line of JSON for each, for the program that reads them. */
static void print_calls(const json_t *calls) {
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call) {
        char *text = json_dumps(call, JSON_COMPACT);
        terminal_print(stdout, str_of(text));
        putchar('\n');
        free(text);
    }
}

static enum status ask_once(struct client *c, struct error *err) {
    struct dialogue_answer a = {0};
    json_t *messages = json_array(), *text = json_string(opt.prompt);
    if (opt.system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", opt.system));
    enum status st = text ? OK : fail(err, ERR_ARG, "the prompt is not UTF-8");
    if (text)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", text));
    if (st == OK)
        st = answer(c, messages, &a, err);
    if (a.text.len > 0 && a.text.ptr[a.text.len - 1] != '\n')
        putchar('\n');
    print_calls(a.calls);
    fflush(stdout);
    if (st == OK)
        fprintf(stderr, "%s%s%s\n", terminal_style(stderr, STYLE_DIM), a.note, terminal_style(stderr, STYLE_NONE));
    json_decref(messages);
    json_decref(a.calls);
    buf_release(&a.text);
    return st;
}

static int converse(struct client *c) {
    printf("%s", terminal_style(stdout, STYLE_DIM));
    terminal_print(stdout, str_of(c->model));
    printf(" at %s%s\n", opt.url, terminal_style(stdout, STYLE_NONE));
    return dialogue(&(struct dialogue_model){.answer = answer, .self = c}, opt.system);
}

static int run(const struct verb_args *args) {
    struct error err;
    struct client c = {0};
    if (!opt.prompt && !(terminal_is(stdin) && terminal_is(stdout)))
        return verb_misused(args->spec, "chat needs --prompt unless it talks with a terminal");
    for (size_t i = 0; i < opt.headers.n; i++)
        if (!strchr(opt.headers.items[i], ':') || strpbrk(opt.headers.items[i], "\r\n"))
            return verb_misused(args->spec, "--header: \"%s\" is not NAME: VALUE", opt.headers.items[i]);
    enum status st = libcurl_open(&err);
    if (st == OK)
        st = open_client(&c, &err);
    int rc = 0;
    if (st == OK && opt.prompt)
        st = ask_once(&c, &err);
    else if (st == OK)
        rc = converse(&c);
    chat_exchange_release(&c.exchange);
    json_decref(c.tools);
    free(c.model);
    return st == OK ? rc : verb_failed(&err);
}

const struct verb_spec verb_chat = {
    "chat",
    "",
    "talks with any OpenAI-compatible server",
    flags,
    ARRAY_LEN(flags),
    0,
    0,
    .run = run,
    .epilogue = "/help lists the commands of a conversation. A model's reasoning is shown dimmed, on a terminal only.\n"
                "With --prompt the calls of tools are printed behind the answer, a line of JSON each.\n"
                "  gyre chat --url http://localhost:8000\n"
                "  gyre chat --url https://api.example.com/v1 --model NAME -p \"Why is the sky blue?\"\n"};
