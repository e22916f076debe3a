/* serve.c - gyre serve MODEL: the OpenAI-compatible server. */
#include "hub/hub_cache.h"
#include "main/flags/speculation_flags.h"
#include "main/verbs.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/file.h"
#include "console/terminal.h"
#include "engine/roles/roles.h"
#include "main/flags/adapter_flags.h"
#include "main/flags/engine_flags.h"
#include "main/flags/node_flags.h"
#include "main/flags/request_defaults.h"
#include "main/flags/vllm_flags.h"
#include "main/model/fingerprint.h"
#include "main/model/memory_table.h"
#include "main/model/model_path.h"
#include "main/model/tokenizer_info.h"
#include "main/supervise.h"
#include "model/pooling.h"
#include "text/chat/turn_ends.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    const char *chat_template, *content_format, *template_kwargs;
    bool trust_request_template, exclude_tools, jumps;
    const char *host, *uds, *tls_cert, *tls_key, *cors, *pooling, *log_format, *generation_config, *generation_override,
        *key_file;
    bool no_log;
    double step_timeout, max_wait;
    struct flag_list names, keys, hosts;
    int64_t port, io_threads, text_threads, max_queued, max_connections, max_body, max_choices, stored_bytes,
        max_logprobs, drain_seconds, n_engines;
    struct engine_flags engine;
    struct adapter_flags adapters;
    const char *speculation; // JSON
    const char *role, *handover;
    struct nodes nodes;
    int64_t handover_least;
    double handover_timeout;
} opt = {.host = "127.0.0.1",
         .port = 8000,
         .io_threads = 2,
         .text_threads = 2,
         .max_queued = 4096,
         .max_connections = 16384,
         .max_body = 32 << 20,
         .max_choices = 128,
         .stored_bytes = 64 << 20,
         .max_logprobs = GYRE_MAX_TOP_LOGPROBS,
         .drain_seconds = 30,
         .n_engines = 1,
         .pooling = "auto",
         .generation_config = "auto",
         .content_format = "auto",
         .log_format = "text",
         .step_timeout = 120,
         .jumps = true,
         .role = "both",
         .nodes = NODES_DEFAULT,
         .handover_least = 256,
         .handover_timeout = 30,
         .engine = ENGINE_FLAGS_DEFAULT};

static const struct flag flags[] = {
    {"host", 0, FLAG_STRING, &opt.host, "ADDRESS", "Network", "address to listen on; 0.0.0.0 is every one"},
    {"port", 0, FLAG_INT, &opt.port, "N", "Network", "port to listen on; 0 lets the system choose", .min = 0,
     .max = 65535},
    {"uds", 0, FLAG_STRING, &opt.uds, "PATH", "Network", "listen on a Unix socket in place of a port"},
    {"ssl-certfile", 0, FLAG_STRING, &opt.tls_cert, "FILE", "Network",
     "PEM certificate; with --ssl-keyfile all connections are TLS"},
    {"ssl-keyfile", 0, FLAG_STRING, &opt.tls_key, "FILE", "Network", "PEM key"},
    {"allowed-origin", 0, FLAG_STRING, &opt.cors, "ORIGIN", "Network",
     "web pages of this origin may call, * is any; otherwise none"},
    {"allowed-host", 0, FLAG_LIST, &opt.hosts, "NAME", "Network",
     "Host that requests may have besides this machine's own names, * is any; may be repeated. Without keys a server "
     "on a loopback address "
     "takes no other"},
    {"io-threads", 0, FLAG_INT, &opt.io_threads, "N", "Network", "threads for connections and the text of answers",
     .min = 1, .max = 256},
    {"text-threads", 0, FLAG_INT, &opt.text_threads, "N", "Network",
     "threads that read requests: JSON, chat template, tokenizer. Of several the first takes small ones only", .min = 1,
     .max = 256},
    {"max-connections", 0, FLAG_INT, &opt.max_connections, "N", "Network", "one more is told 503", .min = 1,
     .max = 1 << 20},
    {"max-body", 0, FLAG_SIZE, &opt.max_body, "BYTES", "Network", "largest request body", .min = 1024, .max = 1 << 30},
    {"served-model-name", 0, FLAG_LIST, &opt.names, "NAME", "Requests",
     "name that requests use for the model; may be repeated. Otherwise its folder's"},
    {"api-key", 0, FLAG_LIST, &opt.keys, "KEY", "Requests",
     "requests must send this key (or another, if repeated); health probes need none"},
    {"api-key-file", 0, FLAG_STRING, &opt.key_file, "FILE", "Requests",
     "keys with a name and limits each, one a line; see docs/serving.md. SIGHUP reads it again"},
    {"max-queued-requests", 0, FLAG_INT, &opt.max_queued, "N", "Requests",
     "requests that may wait; one more is told 429. 0 is no limit", .min = 0, .max = 1 << 20},
    {"max-queue-wait", 0, FLAG_REAL, &opt.max_wait, "SECONDS", "Requests",
     "a request that would wait longer for its turn, as predicted, is told 429; 0 is no bound", .min = 0, .max = 86400},
    {"max-choices", 0, FLAG_INT, &opt.max_choices, "N", "Requests",
     "answers that one request may ask for (n, times prompts)", .min = 1, .max = 1 << 16},
    {"max-logprobs", 0, FLAG_INT, &opt.max_logprobs, "N", "Requests",
     "log-probabilities that a request may ask for of each token; -1 is all. More than 20 cost much: see "
     "docs/serving.md",
     .min = -1, .max = 1 << 24},
    {"stored-responses", 0, FLAG_SIZE, &opt.stored_bytes, "BYTES", "Requests",
     "memory for responses that are stored, as those of /v1/responses are unless told otherwise; the oldest go first. "
     "0: none are",
     .min = 0, .max = 1e12},
    {"drain-timeout", 0, FLAG_INT, &opt.drain_seconds, "SECONDS", "Requests",
     "after SIGTERM, how long requests in flight may take", .min = 0, .max = 86400},
    {"step-timeout", 0, FLAG_REAL, &opt.step_timeout, "SECONDS", "Requests",
     "a step that takes longer hangs: /health/ready answers 503 until it ends", .min = 0.01, .max = 86400},
    {"embedding-pooling", 0, FLAG_CHOICE, &opt.pooling, "auto|last|mean", "Requests",
     "state that embeddings are made of: of the last token, or averaged; auto is what modules.json says, or the last"},
    {"chat-template", 0, FLAG_STRING, &opt.chat_template, "FILE", "Requests",
     "chat template in place of the folder's: a file, or its text"},
    {"chat-template-content-format", 0, FLAG_CHOICE, &opt.content_format, "auto|string|openai", "Requests",
     "contents go into the template as texts, or as parts; auto is what the template reads"},
    {"generation-config", 0, FLAG_CHOICE, &opt.generation_config, "auto|vllm", "Requests",
     "what requests ask for where they say nothing: the model's generation_config.json, or vllm: what the API says"},
    {"override-generation-config", 0, FLAG_STRING, &opt.generation_override, "JSON", "Requests",
     "over that, such as {\"temperature\": 0.6}; max_new_tokens bounds every answer"},
    {"default-chat-template-kwargs", 0, FLAG_STRING, &opt.template_kwargs, "JSON", "Requests",
     "chat_template_kwargs that requests do not give, such as {\"enable_thinking\": false}"},
    {"trust-request-chat-template", 0, FLAG_BOOL, &opt.trust_request_template, NULL, "Requests",
     "a request may bring a chat_template of its own"},
    {"jump-forward", 0, FLAG_BOOL, &opt.jumps, NULL, "Requests",
     "where a grammar leaves no choice, put what must come into the answer at once; --no-jump-forward: the model "
     "writes it, a token a step"},
    {"exclude-tools-when-tool-choice-none", 0, FLAG_BOOL, &opt.exclude_tools, NULL, "Requests",
     "tools are not shown to a model that is to call none of them"},
    {"log-format", 0, FLAG_CHOICE, &opt.log_format, "text|json", "Logging",
     "a line on stderr for each request that is over"},
    {"disable-log-requests", 0, FLAG_BOOL, &opt.no_log, NULL, "Logging", "no such lines"},
    {"data-parallel-size", 0, FLAG_INT, &opt.n_engines, "N", "Engine",
     "engines that each have all of the model and share the requests, on devices of their own", .min = 1,
     .max = MOST_ENGINES},
    NODE_FLAGS(opt.nodes),
    {"role", 0, FLAG_CHOICE, &opt.role, "both|prefill|decode", "Roles",
     "prefill: gives other servers the cache of prompts; decode: has long prompts computed by such a server, and "
     "computes "
     "them itself where that does not answer"},
    {"handover-address", 0, FLAG_STRING, &opt.handover, "HOST:PORT", "Roles",
     "of the prefill server: what it listens on, or who is asked. The network must be your own: there is no key and no "
     "encryption"},
    {"handover-min-tokens", 0, FLAG_INT, &opt.handover_least, "N", "Roles",
     "prompts of so many tokens that are not cached here are fetched", .min = 1, .max = 1 << 24},
    {"handover-timeout", 0, FLAG_REAL, &opt.handover_timeout, "SECONDS", "Roles",
     "from when a request came, until its prompt is computed here after all", .min = 0.01, .max = 3600},
    {"scheduling-policy", 0, FLAG_CHOICE, &opt.engine.policy, "fcfs|sjf", "Scheduling",
     "who runs first: by arrival, or short prompts before long ones"},
    {"itl-target", 0, FLAG_REAL, &opt.engine.itl_target, "MS", "Scheduling",
     "cut prompts so that running streams get a token about this often; 0 is no bound", .min = 0, .max = 1e6},
    {"enable-prefix-caching", 0, FLAG_BOOL, &opt.engine.prefix_cache, NULL, "Scheduling",
     "do not compute again what earlier prompts began with"},
    ENGINE_FLAGS(opt.engine),
    ADAPTER_FLAGS(opt.adapters),
    SPECULATION_FLAGS(opt.speculation, opt.engine),
};

struct server {
    struct tokenizer *tok;
    struct chat_template *chat;
    json_t *tokenizer_info, *template_kwargs;
    struct request_defaults defaults;
    struct api *api;
    struct keyring *keyring; // NULL: everybody may ask
};

/* Weights that nobody will use are not waited for, nor can what reads them be told to end: the system takes all. */
static void leave_a_load(int code) {
    fprintf(stderr, "an engine that was being opened is not waited for\n");
    _exit(code);
}

static void server_end(struct server *s, int code) {
    api_stop(s->api, (int)(opt.drain_seconds * 1000));
    if (s->api && service_is_opening(s->api->service))
        leave_a_load(code);
    supervise_end();
    api_free(s->api);
    nodes_leave();
    chat_template_free(s->chat);
    json_decref(s->tokenizer_info);
    json_decref(s->template_kwargs);
    tokenizer_free(s->tok);
    token_ids_release(&opt.engine.eos);
    if (s->keyring)
        keyring_release(s->keyring);
    free(s->keyring);
}

/* The last part of a path, as model folders are called. */
static const char *folder_name(const char *path) {
    static char name[256];
    size_t n = strlen(path);
    if (hub_cache_repo_of(path, name))
        return name;
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(name, sizeof name, "%.*s", (int)MIN(n - start, sizeof name - 1), path + start);
    return name;
}

/* A folder that asks for what cannot be made is served without embeddings: everything else works. */
static void read_pooling(const char *model, struct api_options *o) {
    static struct error why; // options keep the address
    if (strcmp(opt.pooling, "auto") == 0) {
        if (pooling_read(model, &o->pooling, &o->normalize, &why) != OK)
            o->no_pooling = why.text;
        return;
    }
    o->pooling = strcmp(opt.pooling, "mean") == 0 ? GYRE_POOL_MEAN : GYRE_POOL_LAST;
    o->normalize = true;
}

/* Of requests that bring their own template the folder gives the special tokens. */
static enum status open_template(struct server *s, const char *model, struct error *err) {
    if (opt.chat_template || (opt.trust_request_template && !chat_template_exists(model)))
        TRY(chat_template_open_other(model, opt.chat_template, &s->chat, err));
    else if (chat_template_exists(model))
        TRY(chat_template_open(model, &s->chat, err));
    if (s->chat && strcmp(opt.content_format, "auto") != 0)
        chat_template_force_content(s->chat,
                                    strcmp(opt.content_format, "string") == 0 ? CHAT_CONTENT_TEXT : CHAT_CONTENT_PARTS);
    return OK;
}

static struct opened {
    const char *model;
    uint64_t fingerprint;
} opened; // what is served

/* Answers of another version would come under the tokenizer and the fingerprint of this one. */
static enum status check_still_there(const struct opened *was, struct error *err) {
    if (fingerprint_of_model(&opt.engine, was->model) == was->fingerprint)
        return OK;
    return fail(err, ERR_FORMAT, "%s: its weights or its config are not those that are served: start the server anew",
                was->model);
}

/* Before, as loading takes long, and behind it, as the folder may change meanwhile. */
static enum status open_still_same(const struct opened *was, int engine, struct gyre **out, struct error *err) {
    TRY(check_still_there(was, err));
    TRY(engine_flags_open_one_of(&opt.engine, was->model, engine, (int)opt.n_engines, out, err));
    if (check_still_there(was, err) == OK)
        return OK;
    gyre_close(*out);
    return err->status;
}

/* One of several that has failed. */
static int reopen(void *was, int engine, struct gyre **out, struct gyre_error *err) {
    struct error e;
    if (open_still_same(was, engine, out, &e) == OK)
        return 0;
    *err = (struct gyre_error){.status = e.status};
    snprintf(err->text, sizeof err->text, "%s", e.text);
    return e.status;
}

static enum status open_server(struct server *s, const char *model, struct error *err) {
    struct gyre *engines[MOST_ENGINES];
    static const char *own_name; // options keep the address, and that of what follows
    static char fingerprint[FINGERPRINT_BYTES];
    own_name = folder_name(model);
    TRY(model_path_check(model, MODEL_TEXT, err));
    TRY(speculation_read(opt.speculation, &opt.engine.speculation, err));
    TRY(adapter_flags_read(&opt.adapters, opt.names.n ? opt.names.items : &own_name, opt.names.n ? opt.names.n : 1,
                           &opt.engine, err));
    TRY(tokenizer_open(model, &s->tok, err));
    TRY(open_template(s, model, err));
    TRY(tokenizer_info_read(model, s->chat, &s->tokenizer_info, err));
    turn_ends_find(s->tok, s->chat, &opt.engine.eos);
    fingerprint_of(&opt.engine, model, fingerprint);
    TRY(nodes_await(&opt.nodes, &opt.engine, fingerprint, err));
    if (opt.n_engines > 1)
        opened = (struct opened){model, fingerprint_of_model(&opt.engine, model)};
    TRY(engine_flags_open_several(&opt.engine, model, (int)opt.n_engines, engines, err));
    memory_table_print(engines[0], stderr);
    struct api_options o = {
        .version = GYRE_VERSION,
        .fingerprint = fingerprint,
        .names = opt.names.n ? opt.names.items : &own_name,
        .n_names = opt.names.n ? opt.names.n : 1,
        .adapters = opt.engine.adapters,
        .n_adapters = opt.engine.n_adapters,
        .keyring = s->keyring,
        .tokenizer = s->tok,
        .chat = s->chat,
        .template_kwargs = s->template_kwargs,
        .trust_request_chat_template = opt.trust_request_template,
        .no_jumps = !opt.jumps,
        .exclude_tools_when_none = opt.exclude_tools,
        .tokenizer_info = s->tokenizer_info,
        .http = {.host = opt.host,
                 .port = opt.uds ? -1 : (int)opt.port,
                 .unix_path = opt.uds,
                 .guards_host = !s->keyring || opt.hosts.n > 0,
                 .allowed_hosts = opt.hosts.items,
                 .n_allowed_hosts = opt.hosts.n,
                 .tls_cert = opt.tls_cert,
                 .tls_key = opt.tls_key,
                 .n_threads = (int)opt.io_threads,
                 .max_connections = (int)opt.max_connections,
                 .max_body = (size_t)opt.max_body,
                 .cors_origin = opt.cors},
        .n_text_threads = (int)opt.text_threads,
        .stored_bytes = (size_t)opt.stored_bytes,
        .max_queued = (int)opt.max_queued,
        .max_wait_us = (int64_t)(opt.max_wait * 1e6),
        .step_timeout_us = (int64_t)(opt.step_timeout * 1e6),
        .reopen = reopen,
        .reopen_context = &opened,
        .limits = {.max_choices = opt.max_choices, .max_logprobs = opt.max_logprobs},
        .log_format = opt.no_log                            ? REQUEST_LOG_OFF
                      : strcmp(opt.log_format, "json") == 0 ? REQUEST_LOG_JSON
                                                            : REQUEST_LOG_TEXT,
    };
    read_pooling(model, &o);
    o.defaults = s->defaults;
    return api_open(engines, (int)opt.n_engines, &o, &s->api, err);
}

static void announce(const struct server *s, double seconds) {
    const struct gyre_info *info = service_info(s->api->service);
    terminal_say(stderr, "%s: %lld tokens of context, cache for %lld tokens, ready after %.2f s\n",
                 s->api->options.names[0], (long long)info->max_model_len, (long long)info->kv_cache_tokens, seconds);
    if (opt.uds)
        terminal_say(stderr, "listening on %s\n", opt.uds);
    else
        fprintf(stderr, "listening on %s://%s:%d\n", opt.tls_cert ? "https" : "http", opt.host,
                http_port(s->api->http));
}

/* Read before the model, so that a fault in them is told at once. VLLM_API_KEY belongs to a line for vllm serve:
 * without it the line would serve everybody. */
static enum status open_keys(struct server *s, struct error *err) {
    const char *theirs = opt.keys.n == 0 && !opt.key_file ? getenv("VLLM_API_KEY") : NULL;
    if (opt.keys.n == 0 && !opt.key_file && !theirs)
        return OK;
    s->keyring = xmalloc(sizeof *s->keyring);
    keyring_init(s->keyring);
    for (size_t i = 0; i < opt.keys.n; i++)
        TRY(keyring_add(s->keyring, opt.keys.items[i], err));
    if (theirs)
        TRY(keyring_add(s->keyring, theirs, err));
    if (opt.key_file)
        TRY(keyring_load(s->keyring, opt.key_file, err));
    if (opt.key_file || opt.keys.n > 1)
        opt.engine.n_tenants = KEYS_MAX + 1;
    return OK;
}

/* glibc keeps more at the end of its heaps the larger the pieces were that it gave out, and malloc_trim looks at the
 * end of the main heap only. So large pieces are maps of their own, always, and little stays. */
static void keep_little_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

static enum status check_flags(const struct verb_args *args, struct error *err) {
    if (!opt.tls_cert != !opt.tls_key)
        return fail(err, ERR_ARG, "--ssl-certfile and --ssl-keyfile go together");
    TRY(nodes_read(&opt.nodes, args, err));
    bool has_more = opt.n_engines > 1 || opt.adapters.modules.n || opt.speculation || opt.handover;
    TRY(nodes_check(&opt.nodes, &opt.engine, has_more, err));
    if ((strcmp(opt.role, "both") == 0) != !opt.handover)
        return fail(err, ERR_ARG, "--role prefill and decode go together with --handover-address");
    if (opt.handover && opt.n_engines > 1)
        return fail(err, ERR_ARG, "--role: a role is one engine's, and --data-parallel-size says %lld",
                    (long long)opt.n_engines);
    return OK;
}

static enum status read_kwargs(struct server *s, struct error *err) {
    if (!opt.template_kwargs)
        return OK;
    TRY(jv_parse(str_of(opt.template_kwargs), "--default-chat-template-kwargs", 0, &s->template_kwargs, err));
    return json_is_object(s->template_kwargs)
               ? OK
               : fail(err, ERR_ARG, "--default-chat-template-kwargs: it must be a JSON object");
}

static enum status take_role(const struct server *s, struct error *err) {
    struct service *service = s->api->service;
    uint64_t identity = nodes_identity(s->api->options.fingerprint);
    int port;
    if (strcmp(opt.role, "decode") == 0) {
        struct prompt_fetch_options o = {.address = opt.handover,
                                         .identity = identity,
                                         .least_tokens = opt.handover_least,
                                         .timeout_us = (int64_t)(opt.handover_timeout * 1e6)};
        return service_fetch_prompts(service, &o, err);
    }
    if (strcmp(opt.role, "prefill") != 0)
        return OK;
    TRY(service_give_prompts(service, opt.handover, identity, &port, err));
    fprintf(stderr, "gives prompts on port %d\n", port);
    return OK;
}

static enum status open_all(struct server *s, const char *model, struct error *err) {
    keep_little_memory();
    TRY(read_kwargs(s, err));
    TRY(request_defaults_read(opt.generation_override, strcmp(opt.generation_config, "auto") == 0, &s->defaults, err));
    TRY(open_keys(s, err));
    TRY(open_server(s, model, err));
    return take_role(s, err);
}

static int run(const struct verb_args *args) {
    struct error err;
    struct server s = {0};
    if (check_flags(args, &err) != OK)
        return verb_failed(&err);
    opt.engine.serves = true;
    if (opt.nodes.rank > 0)
        return nodes_work(&opt.nodes, &opt.engine, args->operands[0]);
    int64_t start = clock_us();
    supervise_load_begins();
    enum status st = open_all(&s, args->operands[0], &err);
    supervise_load_ends();
    if (st != OK) {
        server_end(&s, 1);
        return verb_failed(&err);
    }
    announce(&s, clock_seconds_since(start));
    int code = supervise(s.api, opt.key_file, opt.drain_seconds);
    server_end(&s, code);
    return code;
}

const struct verb_spec verb_serve = {
    "serve",
    "MODEL",
    "serves a model over HTTP, as OpenAI's API",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .translate = vllm_flags_translate,
    .epilogue = "A browser finds a chat page at /.\n"
                "Endpoints: /v1/completions /v1/chat/completions /v1/responses /v1/messages /v1/embeddings\n"
                "           /v1/models /tokenize /detokenize /abort_requests /health /metrics; /openapi.json says all\n"
                "Requests in flight finish after SIGTERM; see --drain-timeout.\n"};
