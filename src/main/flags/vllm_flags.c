/* vllm_flags.c - see vllm_flags.h. The names are those of vLLM 0.11's `vllm serve --help=all`, with some that were
 * there before. */
#include "main/flags/vllm_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum vllm_kind {
    AS,      // `to` is our name
    SAME,    // `to` lists the values that are fine, with | between
    NOTE,    // no effect, because `why`
    REFUSED, // because `why`
    MODEL,   // the operand
    ORIGINS, // a JSON list of one
};

enum vllm_shape { SWITCH, VALUE, VALUES }; // nothing, one value, one or more

struct vllm_flag {
    const char *name, *short_name; // without dashes
    enum vllm_shape shape;
    enum vllm_kind kind;
    const char *to, *why;
};

#define ONE_DEVICE "one device computes everything"
#define CHECKPOINT "weights are used as the checkpoint stores them"
#define NO_IMAGES "prompts are text; requests with images are refused"
#define NO_TOOLS "calls are found by the chat template's own form; the server runs no tool itself"
#define ALL_LORA "all adapters of --lora-modules are loaded, of any rank"
#define NO_HUB "nothing is downloaded"
#define SCHEDULER "each step takes what the token budget and --itl-target allow"

static const struct vllm_flag table[] = {
    // what answers say
    {"model", NULL, VALUE, MODEL, NULL, NULL},
    {"quantization", "q", VALUE, AS, "quantization", NULL}, // for its short name
    {"mamba-cache-dtype", NULL, VALUE, SAME, "auto", "recurrent states of another type"},
    {"mamba-ssm-cache-dtype", NULL, VALUE, SAME, "auto", "recurrent states of another type"},
    {"task", NULL, VALUE, SAME, "auto|generate", "another task"},
    {"runner", NULL, VALUE, SAME, "auto|generate", "another task"},
    {"convert", NULL, VALUE, SAME, "auto|none", "another task"},
    {"tokenizer", NULL, VALUE, REFUSED, NULL, "another tokenizer than the model folder's"},
    {"tokenizer-mode", NULL, VALUE, SAME, "auto|hf", "another tokenizer"},
    {"tokenizer-revision", NULL, VALUE, REFUSED, NULL, "revisions: the folder that is named is served"},
    {"revision", NULL, VALUE, REFUSED, NULL, "revisions: the folder that is named is served"},
    {"code-revision", NULL, VALUE, NOTE, NULL, "no code of a model is ever run"},
    {"trust-remote-code", NULL, SWITCH, NOTE, NULL, "no code of a model is ever run"},
    {"hf-config-path", NULL, VALUE, REFUSED, NULL, "a configuration from elsewhere"},
    {"hf-overrides", NULL, VALUE, SAME, "{}", "changes to config.json (edit the file)"},
    {"rope-scaling", NULL, VALUE, SAME, "{}", "changes to config.json (edit the file)"},
    {"rope-theta", NULL, VALUE, REFUSED, NULL, "changes to config.json (edit the file)"},
    {"response-role", NULL, VALUE, SAME, "assistant", "another role in answers"},
    {"return-tokens-as-token-ids", NULL, SWITCH, REFUSED, NULL, "token ids for the text of tokens"},
    {"enable-force-include-usage", NULL, SWITCH, REFUSED, NULL, "usage that was not asked for"},
    {"logits-processors", NULL, VALUES, REFUSED, NULL, "processors of logits"},
    {"logits-processor-pattern", NULL, VALUE, REFUSED, NULL, "processors of logits"},
    {"logprobs-mode", NULL, VALUE, SAME, "raw_logprobs", "log-probabilities after temperature and penalties"},
    {"disable-sliding-window", NULL, SWITCH, REFUSED, NULL, "a model without its windows"},
    {"enable-prompt-embeds", NULL, SWITCH, REFUSED, NULL, "prompts as embeddings"},
    {"skip-tokenizer-init", NULL, SWITCH, REFUSED, NULL, "serving without a tokenizer"},
    {"pooler-config", NULL, VALUE, REFUSED, NULL, "pooling by JSON (see --embedding-pooling)"},
    {"enable-lora", NULL, SWITCH, NOTE, NULL, "adapters are those of --lora-modules"},
    {"max-loras", NULL, VALUE, NOTE, NULL, ALL_LORA},
    {"max-lora-rank", NULL, VALUE, NOTE, NULL, ALL_LORA},
    {"max-cpu-loras", NULL, VALUE, NOTE, NULL, ALL_LORA},
    {"lora-dtype", NULL, VALUE, NOTE, NULL, ALL_LORA},
    {"fully-sharded-loras", NULL, SWITCH, NOTE, NULL, ALL_LORA},
    {"seed", NULL, VALUE, NOTE, NULL, "a request's own seed decides; one without gets a seed of its own"},
    {"model-impl", NULL, VALUE, NOTE, NULL, "there is one implementation of each model"},
    {"config-format", NULL, VALUE, SAME, "auto|hf", "another form of configuration"},
    // tools, reasoning, structure
    {"enable-auto-tool-choice", NULL, SWITCH, NOTE, NULL, NO_TOOLS},
    {"tool-call-parser", NULL, VALUE, NOTE, NULL, NO_TOOLS},
    {"tool-parser-plugin", NULL, VALUE, NOTE, NULL, NO_TOOLS},
    {"tool-server", NULL, VALUE, NOTE, NULL, NO_TOOLS},
    {"reasoning-parser", NULL, VALUE, NOTE, NULL, "reasoning is found by the chat template's own marks"},
    {"enable-reasoning", NULL, SWITCH, NOTE, NULL, "reasoning is found by the chat template's own marks"},
    {"guided-decoding-backend", NULL, VALUE, NOTE, NULL, "there is one kind of grammar, and no other to choose"},
    {"structured-outputs-config", NULL, VALUE, NOTE, NULL, "there is one kind of grammar, and no other to choose"},
    {"limit-mm-per-prompt", NULL, VALUE, NOTE, NULL, NO_IMAGES},
    {"mm-processor-kwargs", NULL, VALUE, NOTE, NULL, NO_IMAGES},
    {"mm-processor-cache-gb", NULL, VALUE, NOTE, NULL, NO_IMAGES},
    {"mm-encoder-tp-mode", NULL, VALUE, NOTE, NULL, NO_IMAGES},
    {"media-io-kwargs", NULL, VALUE, NOTE, NULL, NO_IMAGES},
    {"allowed-local-media-path", NULL, VALUE, NOTE, NULL, NO_IMAGES},
    {"allowed-media-domains", NULL, VALUES, NOTE, NULL, NO_IMAGES},
    {"skip-mm-profiling", NULL, SWITCH, NOTE, NULL, NO_IMAGES},
    {"interleave-mm-strings", NULL, SWITCH, NOTE, NULL, NO_IMAGES},
    {"disable-mm-preprocessor-cache", NULL, SWITCH, NOTE, NULL, NO_IMAGES},
    // devices and memory
    {"tensor-parallel-size", "tp", VALUE, AS, "tensor-parallel-size", NULL}, // for its short name
    {"pipeline-parallel-size", "pp", VALUE, AS, "pipeline-parallel-size", NULL},
    {"data-parallel-size", "dp", VALUE, AS, "data-parallel-size", NULL},
    {"decode-context-parallel-size", "dcp", VALUE, SAME, "1", "more than one device"},
    {"enable-expert-parallel", "ep", SWITCH, AS, "enable-expert-parallel", NULL},
    {"nnodes", "n", VALUE, AS, "nnodes", NULL},
    {"node-rank", "r", VALUE, AS, "node-rank", NULL},
    {"headless", NULL, SWITCH, REFUSED, NULL, "a process without a server"},
    {"distributed-executor-backend", NULL, VALUE, NOTE, NULL, ONE_DEVICE},
    {"disable-custom-all-reduce", NULL, SWITCH, NOTE, NULL, ONE_DEVICE},
    {"max-parallel-loading-workers", NULL, VALUE, NOTE, NULL, ONE_DEVICE},
    {"kv-cache-memory-bytes", NULL, VALUE, AS, "kv-cache-memory", NULL},
    {"num-gpu-blocks-override", NULL, VALUE, NOTE, NULL, "--kv-cache-memory sets the size of the cache"},
    {"cpu-offload-gb", NULL, VALUE, NOTE, NULL,
     "a device holds all weights; a model that is too large for it is refused"},
    {"kv-offloading-size", NULL, VALUE, NOTE, NULL, "see --swap-space"},
    {"calculate-kv-scales", NULL, SWITCH, NOTE, NULL,
     "a cache of 8 bits has a scale for each key and value, made as it is written"},
    {"prefix-caching-hash-algo", NULL, VALUE, NOTE, NULL, "hashes are keyed, and what they find is compared"},
    {"kv-transfer-config", NULL, VALUE, REFUSED, NULL, "moving caches between servers"},
    {"kv-events-config", NULL, VALUE, REFUSED, NULL, "events of the cache"},
    {"attention-backend", NULL, VALUE, NOTE, NULL, "the device chooses its kernels by shape"},
    {"compilation-config", "O", VALUE, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"optimization-level", NULL, VALUE, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"O0", "O0", SWITCH, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"O1", "O1", SWITCH, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"O2", "O2", SWITCH, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"O3", "O3", SWITCH, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"cudagraph-capture-sizes", NULL, VALUES, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"max-seq-len-to-capture", NULL, VALUE, NOTE, NULL, "nothing is compiled or captured while it runs"},
    {"disable-cascade-attn", NULL, SWITCH, NOTE, NULL, "there is no cascade attention"},
    // loading
    {"download-dir", NULL, VALUE, NOTE, NULL, NO_HUB},
    {"hf-token", NULL, VALUE, NOTE, NULL, NO_HUB},
    {"ignore-patterns", NULL, VALUES, NOTE, NULL, NO_HUB},
    {"safetensors-load-strategy", NULL, VALUE, NOTE, NULL, "weights are mapped"},
    {"model-loader-extra-config", NULL, VALUE, NOTE, NULL, "weights are mapped"},
    {"use-tqdm-on-load", NULL, SWITCH, NOTE, NULL, "a terminal is shown a bar"},
    {"pt-load-map-location", NULL, VALUE, NOTE, NULL, CHECKPOINT},
    // scheduling
    {"enable-chunked-prefill", NULL, SWITCH, NOTE, NULL, "long prompts are always cut"},
    {"max-num-partial-prefills", NULL, VALUE, NOTE, NULL, SCHEDULER},
    {"max-long-partial-prefills", NULL, VALUE, NOTE, NULL, SCHEDULER},
    {"long-prefill-token-threshold", NULL, VALUE, NOTE, NULL, SCHEDULER},
    {"num-scheduler-steps", NULL, VALUE, NOTE, NULL, SCHEDULER},
    {"scheduler-delay-factor", NULL, VALUE, NOTE, NULL, SCHEDULER},
    {"preemption-mode", NULL, VALUE, NOTE, NULL, "with --swap-space what is predicted to take less time is done"},
    {"async-scheduling", NULL, SWITCH, NOTE, NULL,
     "the next step is planned while one runs, where the device allows it"},
    {"disable-hybrid-kv-cache-manager", NULL, SWITCH, NOTE, NULL, "each kind of layer has a cache of its own"},
    {"disable-chunked-mm-input", NULL, SWITCH, NOTE, NULL, NO_IMAGES},
    {"stream-interval", NULL, VALUE, SAME, "1", "holding tokens back"},
    {"scheduler-cls", NULL, VALUE, REFUSED, NULL, "another scheduler"},
    {"max-num-queued-reqs", NULL, VALUE, AS, "max-queued-requests", NULL},
    {"use-v2-block-manager", NULL, SWITCH, NOTE, NULL, SCHEDULER},
    // the front
    {"api-server-count", "asc", VALUE, AS, "io-threads", NULL},
    {"shutdown-timeout", NULL, VALUE, AS, "drain-timeout", NULL},
    {"allowed-origins", NULL, VALUE, ORIGINS, "allowed-origin", "more than one origin"},
    {"allowed-methods", NULL, VALUE, NOTE, NULL, "a page may use the methods that a path has"},
    {"allowed-headers", NULL, VALUE, NOTE, NULL, "a page may send any field"},
    {"allow-credentials", NULL, SWITCH, REFUSED, NULL, "cookies of other origins"},
    {"root-path", NULL, VALUE, SAME, "", "a path before all paths"},
    {"middleware", NULL, VALUE, REFUSED, NULL, "code of others in the server"},
    {"ssl-ca-certs", NULL, VALUE, REFUSED, NULL, "certificates of clients"},
    {"ssl-cert-reqs", NULL, VALUE, SAME, "0", "certificates of clients"},
    {"enable-ssl-refresh", NULL, SWITCH, REFUSED, NULL, "certificates that are read again"},
    {"config", NULL, VALUE, REFUSED, NULL, "flags from a YAML file (each is an environment variable, GYRE_...)"},
    {"enable-request-id-headers", NULL, SWITCH, NOTE, NULL, "X-Request-Id is always sent"},
    {"enable-tokenizer-info-endpoint", NULL, SWITCH, NOTE, NULL, "/tokenizer_info is always there"},
    {"enable-prompt-tokens-details", NULL, SWITCH, NOTE, NULL, "cached tokens are always told"},
    {"enable-server-load-tracking", NULL, SWITCH, NOTE, NULL, "/metrics has the load"},
    {"enable-log-requests", NULL, SWITCH, NOTE, NULL, "there is a line for each request unless --disable-log-requests"},
    {"enable-log-outputs", NULL, SWITCH, NOTE, NULL, "text is never logged"},
    {"max-log-len", NULL, VALUE, NOTE, NULL, "text is never logged"},
    {"disable-log-stats", NULL, SWITCH, NOTE, NULL, "numbers are in /metrics, not in the log"},
    {"disable-uvicorn-access-log", NULL, SWITCH, NOTE, NULL,
     "the one line a request is turned off by --disable-log-requests"},
    {"uvicorn-log-level", NULL, VALUE, NOTE, NULL, "the log has no levels"},
    {"log-config-file", NULL, VALUE, NOTE, NULL, "see --log-format"},
    {"disable-frontend-multiprocessing", NULL, SWITCH, NOTE, NULL, "there is one process"},
    {"disable-fastapi-docs", NULL, SWITCH, NOTE, NULL, "there is /openapi.json, and no page of it"},
    {"h11-max-header-count", NULL, VALUE, NOTE, NULL, "at most 100 fields are read"},
    {"h11-max-incomplete-event-size", NULL, VALUE, NOTE, NULL, "heads are read up to 16 KiB"},
    {"otlp-traces-endpoint", NULL, VALUE, NOTE, NULL, "there are no traces; see /debug/requests"},
    {"collect-detailed-traces", NULL, VALUES, NOTE, NULL, "there are no traces; see /debug/requests"},
    {"show-hidden-metrics-for-version", NULL, VALUE, NOTE, NULL, "no metrics are hidden"},
    {"additional-config", NULL, VALUE, NOTE, NULL, "it is for platforms that are not here"},
};

/* Flags of ours that take several values at once there; and values of ours that have another name there. */
static const char *const with_values[] = {"served-model-name", "api-key", "lora-modules"};
static const struct {
    const char *flag, *value, *ours;
} renamed[] = {{"scheduling-policy", "priority", "fcfs"}, // priorities come first in any policy
               {"load-format", "safetensors", "auto"},
               {"device", "auto", "cpu"},
               {"dtype", "float", "float32"},
               {"dtype", "half", "float16"},
               {"kv-cache-dtype", "fp8_e4m3", "fp8"},
               {"quantization", "compressed-tensors", "none"}, // what is stored so needs no flag
               {"quantization", "awq", "none"},
               {"quantization", "gptq", "none"},
               {"quantization", "awq_marlin", "none"},
               {"quantization", "gptq_marlin", "none"},
               {"quantization", "mxfp4", "none"},
               {"quantization", "modelopt", "none"},
               {"quantization", "modelopt_fp4", "none"}};

// ---- rewriting ----------------------------------------------------------------------------------------------------

struct rewrite {
    const struct verb_spec *spec;
    struct arena *memory;
    char **in;
    int n_in, at;
    char **out;
    int n_out;
    bool has_model; // an operand was there
};

static void put(struct rewrite *w, const char *word) { w->out[w->n_out++] = (char *)word; }

static bool same_name(const char *name, const char *typed, size_t n) {
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] != (typed[i] == '_' ? '-' : typed[i]))
            return false;
    return true;
}

static bool is_ours(const struct verb_spec *spec, const char *typed, size_t n) {
    for (size_t i = 0; i < spec->n_flags; i++)
        if (same_name(spec->flags[i].name, typed, n))
            return true;
    return false;
}

/* By "--name", "--no-name" (switches), or a short name of one letter or more with one dash. */
static const struct vllm_flag *find(const char *word, bool *off) {
    bool is_long = word[1] == '-';
    const char *typed = word + 1 + is_long;
    size_t n = strcspn(typed, "=");
    *off = false;
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (is_long ? same_name(table[i].name, typed, n)
                    : table[i].short_name && same_name(table[i].short_name, typed, n))
            return &table[i];
    if (!is_long || n < 3 || !same_name("no-", typed, 3))
        return NULL;
    *off = true;
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].shape == SWITCH && same_name(table[i].name, typed + 3, n - 3))
            return &table[i];
    return NULL;
}

static bool is_listed(const char *list, const char *value) {
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, "|");
        if (strlen(value) == n && memcmp(p, value, n) == 0)
            return true;
        p += n;
        if (!*p)
            return false;
    }
}

static int refuse(const struct rewrite *w, const char *word, const char *why) {
    return verb_misused(w->spec, "%.*s: %s is not supported here", (int)strcspn(word, "="), word, why);
}

/* ["*"] or ["https://one.example"]; also without the list. */
static int put_origin(struct rewrite *w, const struct vllm_flag *f, const char *word, const char *value) {
    char *origin = arena_strdup(w->memory, str_of(value));
    size_t n = strlen(origin);
    if (n >= 2 && origin[0] == '[' && origin[n - 1] == ']') {
        origin[n - 1] = '\0';
        origin++;
        origin += strspn(origin, " ");
        n = strlen(origin);
        if (n >= 2 && origin[0] == '"' && origin[n - 1] == '"') {
            origin[n - 1] = '\0';
            origin++;
        }
    }
    if (strpbrk(origin, "\",[] "))
        return refuse(w, word, f->why);
    put(w, "--allowed-origin");
    put(w, origin);
    return -1;
}

static const char *value_of_ours(const char *flag, const char *value) {
    for (size_t i = 0; i < ARRAY_LEN(renamed); i++)
        if (same_name(renamed[i].flag, flag, strlen(flag)) && strcmp(renamed[i].value, value) == 0)
            return renamed[i].ours;
    return value;
}

static int take(struct rewrite *w, const struct vllm_flag *f, const char *word, const char *value, bool off) {
    switch (f->kind) {
    case AS:
        put(w, arena_printf(w->memory, "--%s%s", off ? "no-" : "", f->to));
        if (f->shape != SWITCH)
            put(w, value_of_ours(f->to, value));
        return -1;
    case SAME: return is_listed(f->to, value) ? -1 : refuse(w, word, f->why);
    case NOTE:
        if (!off)
            fprintf(stderr, "gyre %s: %.*s has no effect: %s\n", w->spec->name, (int)strcspn(word, "="), word, f->why);
        return -1;
    case REFUSED: return off ? -1 : refuse(w, word, f->why);
    case MODEL:
        put(w, value);
        w->has_model = true;
        return -1;
    case ORIGINS: return put_origin(w, f, word, value);
    }
    BUG_IF(true);
}

static bool is_value(const struct rewrite *w) {
    return w->at < w->n_in && (w->in[w->at][0] != '-' || w->in[w->at][1] == '\0');
}

/* A flag of theirs; w->at stands behind it. */
static int translate_flag(struct rewrite *w, const struct vllm_flag *f, const char *word, bool off) {
    const char *equals = strchr(word, '='), *value = equals ? equals + 1 : NULL;
    if (f->shape == SWITCH)
        return equals ? verb_misused(w->spec, "%.*s takes no value", (int)(equals - word), word)
                      : take(w, f, word, NULL, off);
    if (!value && w->at < w->n_in)
        value = w->in[w->at++];
    if (!value)
        return verb_misused(w->spec, "%s wants a value", word);
    while (f->shape == VALUES && is_value(w))
        w->at++;
    return take(w, f, word, value, off);
}

static bool takes_values(const char *typed) {
    for (size_t i = 0; i < ARRAY_LEN(with_values); i++)
        if (same_name(with_values[i], typed, strlen(typed)))
            return true;
    return false;
}

static bool is_switch(const struct verb_spec *spec, const char *typed, size_t n) {
    for (size_t i = 0; i < spec->n_flags; i++)
        if (same_name(spec->flags[i].name, typed, n))
            return spec->flags[i].kind == FLAG_BOOL;
    return false;
}

/* A flag of ours, or one that nobody knows: left as it is, but for the values above. Several values are taken only
 * behind the model, which could be meant otherwise. */
static void keep_flag(struct rewrite *w, const char *word) {
    const char *typed = word + 2, *equals = strchr(word, '=');
    size_t n = strcspn(typed, "=");
    if (equals) {
        const char *name = arena_strdup(w->memory, (struct str){typed, n});
        put(w, arena_printf(w->memory, "--%s=%s", name, value_of_ours(name, equals + 1)));
        return;
    }
    put(w, word);
    if (!is_ours(w->spec, typed, n) || is_switch(w->spec, typed, n) || w->at == w->n_in)
        return;
    put(w, value_of_ours(typed, w->in[w->at++]));
    while (takes_values(typed) && w->has_model && is_value(w)) {
        put(w, word);
        put(w, w->in[w->at++]);
    }
}

static int translate_word(struct rewrite *w) {
    const char *word = w->in[w->at++];
    bool off;
    if (word[0] != '-' || word[1] == '\0') {
        put(w, word);
        w->has_model = true;
        return -1;
    }
    const struct vllm_flag *f = find(word, &off);
    if (f && !(word[1] == '-' && is_ours(w->spec, word + 2, strcspn(word + 2, "="))))
        return translate_flag(w, f, word, off);
    if (word[1] == '-') {
        keep_flag(w, word);
        return -1;
    }
    put(w, word); // a short flag of ours; its value, if any, is no flag of theirs
    if (word[2] == '\0' && w->at < w->n_in)
        put(w, w->in[w->at++]);
    return -1;
}

static bool wants_help(const struct rewrite *w) {
    for (int i = 1; i < w->n_in && strcmp(w->in[i], "--") != 0; i++)
        if (strcmp(w->in[i], "--help") == 0 || strcmp(w->in[i], "-h") == 0)
            return true;
    return false;
}

int vllm_flags_translate(const struct verb_spec *spec, struct arena *memory, int *argc, char ***argv) {
    struct rewrite w = {.spec = spec, .memory = memory, .in = *argv, .n_in = *argc, .at = 1};
    w.out = arena_calloc(memory, 2 * (size_t)w.n_in + 1, sizeof *w.out); // a word becomes two at most
    put(&w, w.n_in > 0 ? w.in[0] : spec->name);
    if (wants_help(&w)) {
        put(&w, "--help");
        w.at = w.n_in;
    }
    while (w.at < w.n_in) {
        if (strcmp(w.in[w.at], "--") == 0) {
            while (w.at < w.n_in)
                put(&w, w.in[w.at++]);
            break;
        }
        int rc = translate_word(&w);
        if (rc >= 0)
            return rc;
    }
    *argc = w.n_out;
    *argv = w.out;
    return -1;
}
