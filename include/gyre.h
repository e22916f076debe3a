/* gyre.h - the engine: token ids in, token ids out. Text is in gyre_text.h.
 *
 *     struct gyre *g;
 *     struct gyre_error err;
 *     if (gyre_open(&(struct gyre_options){.model = "models/story", .backend = &backend_cpu}, &g, &err) != 0)
 *         die(err.text);
 *     struct gyre_request r = gyre_request_default(g);
 *     r.prompt = ids, r.n_prompt = n;
 *     if (gyre_submit(g, &r, &id, &err) != 0)
 *         die(err.text);
 *     while (gyre_busy(g)) {
 *         struct gyre_event e[64];
 *         int n_events = gyre_poll(g, e, 64);
 *         ...
 *     }
 *     gyre_close(g);
 *
 * An engine holds one model on one device. Requests that are in it together share its steps (continuous
 * batching), and each gets the tokens that it would have got alone.
 *
 * What the caller may lean on:
 * - gyre_submit either refuses with a sentence, or accepts; an accepted request gives any number of PROMPT and
 *   TOKEN events and then exactly one DONE, whatever happens.
 * - A fault of one request ends that request alone. A fault of the device ends all, each with DONE, and every
 *   later gyre_submit is refused with the device's sentence.
 * - Nothing is computed but inside gyre_poll, on the caller's thread (and the device's own, and those of grammars).
 * - All functions of one engine are called from one thread. Engines are independent of one another.
 * - A program runs with later libraries of the same major number. Structs that callers fill begin with struct_size,
 *   their sizeof; 0 stands for that of version 0.1. Members are only added, at the end, with zero for what was before;
 *   one that an older library does not know is refused unless it is zero. gyre_info grows so too; other structs stay.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GYRE_VERSION "0.1.0"
#define GYRE_VERSION_NUMBER 100 // 10000 * major + 100 * minor + patch
const char *gyre_version(void); // of the library, where GYRE_VERSION is of this header

struct gyre;
struct gyre_grammar; // compiled, see gyre_text.h
struct backend_ops;  // what stands in gyre_options.backend
extern const struct backend_ops backend_cpu;

/* Functions that can fail return 0, or a status after writing one sentence that a user can act on. */
enum gyre_status {
    GYRE_OK,
    GYRE_IO,
    GYRE_FORMAT,
    GYRE_UNSUPPORTED,
    GYRE_ARGUMENT,
    GYRE_FULL,
    GYRE_MEMORY,
    GYRE_LIMIT,
    GYRE_DEVICE
};
struct gyre_error {
    int status; // of enum gyre_status: GYRE_ARGUMENT and GYRE_UNSUPPORTED speak of what was asked, others of the world
    char text[704];
    char field[64]; // of struct gyre_request, where the sentence is about one: "prompt", "max_tokens"
};

/* By a device's name: "cpu"; "cuda", of libgyre-cuda.so in $GYRE_PLUGINS, or else beside this library or in
 * ../lib/gyre. */
int gyre_backend(const char *device, const struct backend_ops **out, struct gyre_error *err);

/* Who runs first when there is not room for all: by arrival, or short prompts first (and nobody waits for ever). */
enum gyre_policy { GYRE_FCFS, GYRE_SJF };

/* A low-rank adapter (LoRA) as PEFT writes it: a folder with adapter_config.json and adapter_model.safetensors. */
struct gyre_adapter {
    const char *name, *folder;
};

/* What each of n tokens stands for in a text: the bytes from start[i] to start[i + 1]; of a special token its name
 * behind a byte 0xff. `first` is the token that begins each text; -1: none does. */
struct gyre_token_bytes {
    const char *bytes;
    const uint32_t *start; // [n + 1]
    int32_t n, first;
};

/* Zero means the default everywhere. */
struct gyre_options {
    size_t struct_size; // sizeof(struct gyre_options)
    const char *model;  // a folder in Hugging Face's layout
    const struct backend_ops *backend;
    int device_index; // of several GPUs
    int n_threads;    // of the CPU; one a processor
    const char *const
        *device_options; // "name=value" ..., NULL: what one backend alone understands, see `gyre run --help`
    const char
        *dtype; // what products are made in: "float32", "float16", "bfloat16" if the device can; NULL: its choice
    const char *kv_cache_dtype; // "float32", "float16", "bfloat16", "fp8", "int8", "int4" if it can; NULL: its choice
    const char
        *quantization;  // "fp8": wider matrices are made e4m3 with a scale a row when they are loaded; "int4", "nvfp4":
                        // made so; NULL: as stored
    bool dummy_weights; // random weights in the shapes and types of config.json; no checkpoint is read
    int64_t max_model_len;  // tokens of a sequence, prompt and answer; the model's own
    int64_t swap_bytes;     // of the host's memory, for the cache of sequences that give way to others; none
    int64_t kv_cache_bytes; // not more than max_seqs sequences of max_model_len need, and a quarter of the host's
                            // memory, or on a GPU ...
    double gpu_memory_utilization; // ... what is left of this share of the GPU's: 0.92
    double cache_idle_s;    // a GPU's memory for cache is taken by need and goes back after so long without work: 300;
                            // below 0: never
    int max_batched_tokens; // tokens computed in one step; the device's own: 512 on the CPU, 8192 on a GPU
    int max_seqs;           // sequences in one step; likewise, 64 and 512
    int block_size;         // tokens in a block of cache, a power of two, 64
    enum gyre_policy policy;
    double itl_target_ms; // prompts are cut so that running streams get a token this often, if it can be; 0: no bound
    bool no_prefix_cache; // compute each prompt from its beginning
    int n_tenants;        // who share the engine fairly, and no cached prompts: see gyre_request.tenant. 1
    void (*load_step)(void *context, int64_t done,
                      int64_t total); // told by gyre_open how many bytes of weights are loaded
    void *load_context;
    const int32_t
        *eos;     // tokens that end an answer besides those that config.json and generation_config.json name: what the
    size_t n_eos; // tokenizer calls so (gyre_text_eos), which gyre_llm_open adds itself
    const struct gyre_adapter *adapters; // what requests may ask for beside the model itself; on the CPU
    size_t n_adapters;
    int n_guesses;            // tokens that are guessed and then checked in one step (speculation), at most 16; 0: none
    int ngram_min, ngram_max; // a guess is what followed where the last so many tokens stood before: 2, 4
    int guess_seqs;           // with more sequences in a step nothing is guessed; 8
    const char *draft_model;  // a folder: who guesses, in place of n-grams of the text; NULL: those
    const char *draft_method; // what it is: "draft_model"; NULL: what its config.json says
    bool always_guess;        // n_guesses each time, also where they take longer than they save
    bool draft_rejection;     // drawn guesses are kept by rejection sampling: texts are as likely, and others
    double synthetic_acceptance; // for benchmarks: tokens that a step gives, on average, whatever is guessed; 0: off
    const struct gyre_token_bytes *model_tokens,
        *draft_tokens; // a draft model may have others than the model then, and guesses through their bytes; copied.
                       // NULL: it must have the same. gyre_llm_open reads them itself
    int draft_topk;    // a tree of guesses, up to so many for one place, from a draft that is a program; 0, 1: a chain
    int draft_rows;    // that a sequence has in a step with a tree, its newest token among them; n_guesses + 1
};

/* Reads the model, places its weights and allocates the cache. */
int gyre_open(const struct gyre_options *options, struct gyre **out, struct gyre_error *err);

/* Ends whatever is running, without events. NULL is fine. */
void gyre_close(struct gyre *g);

enum { GYRE_MAX_TOP_LOGPROBS = 20 };

struct gyre_info {                   // what was opened; as long as the engine
    int32_t vocab_size, hidden_size; // the latter of what pooling gives; 0: the device cannot
    int32_t bos;                     // -1: none
    const int32_t *eos;              // [n_eos]: tokens that end an answer
    int n_eos;
    int64_t max_model_len;   // tokens that a sequence may have here ...
    int64_t model_max_len;   // ... and by the model's config; larger where the cache has no room or an option says so
    int64_t kv_cache_bytes;  // that the cache may take; a GPU's is taken by need
    int64_t kv_cache_tokens; // that the cache holds, of all sequences together
    int max_batched_tokens, max_seqs, block_size;
    int n_tenants, n_adapters;
};
const struct gyre_info *gyre_info(const struct gyre *g);

struct gyre_logit_bias {
    int32_t token;
    float bias;
};

/* Tokens that may not come one after the other, in what is generated; one token alone never comes. */
struct gyre_bad_sequence {
    const int32_t *tokens;
    size_t n; // at least 1
};

/* A text as one vector: the state behind the model's last norm, of the last prompt token, or averaged over the prompt's
 * tokens, all of which are then computed, whatever the prefix cache has. */
enum gyre_pooling { GYRE_POOL_NONE, GYRE_POOL_LAST, GYRE_POOL_MEAN };

/* Everything is copied by gyre_submit. */
struct gyre_request {
    size_t struct_size;    // gyre_request_default sets it
    const int32_t *prompt; // at least one id
    int64_t n_prompt;
    int64_t max_tokens; // to generate; 0: none, the prompt is only computed; -1: to the end of the context
    int64_t min_tokens; // before this many no end-of-sequence token and no stop id comes

    float temperature, top_p, min_p; // temperature 0: the most probable token; top_p 1, min_p 0: off
    int32_t top_k;                   // 0: off
    float repetition_penalty, presence_penalty, frequency_penalty; // 1, 0, 0: off
    const struct gyre_logit_bias *logit_bias;
    size_t n_logit_bias;
    const int32_t *allowed_ids; // only these may come; n_allowed_ids 0: all
    size_t n_allowed_ids;
    const struct gyre_bad_sequence *bad_sequences;
    size_t n_bad_sequences;
    uint64_t seed; // the same seed gives the same tokens, whatever runs beside

    int32_t priority; // lower runs first, and takes the place of higher ones where there is not room
    int32_t tenant;   // 0 .. n_tenants - 1: within a priority, tenants get equal shares of the tokens computed
    const char *
        cache_salt; // requests share cached prompts only with those of the same tenant and salt; NULL: with all of none

    bool ignore_eos;         // go on after the model's end-of-sequence tokens
    const int32_t *stop_ids; // tokens that end the answer besides
    size_t n_stop_ids;

    bool logprobs;      // TOKEN events carry the log-probability of their token ...
    int n_top_logprobs; // ... and of the most probable ones; more than GYRE_MAX_TOP_LOGPROBS: all logits in their place
    bool score_prompt;  // PROMPT events, one a prompt token ...
    int64_t score_from; // ... from this position on ...
    int n_prompt_top_logprobs; // ... with as many of the most probable next tokens
    bool want_last_logits;     // a PROMPT event for the last prompt token, with all logits

    enum gyre_pooling pooling; // DONE brings the vector; max_tokens must be 0

    void *user; // comes back with each event

    const struct gyre_grammar *grammar; // the answer is of it, or the beginning of one that is: gyre_grammar_compile of
                                        // gyre_text.h. NULL: any text
    int32_t adapter; // of gyre_options.adapters, from 1; 0: the model as it is. Prompts are cached for each apart
    const int32_t *prediction; // what the answer is expected to be: guesses, which change no token
    size_t n_prediction;       // at most 131072
};

/* The model's generation defaults; greedy where it has none. */
void gyre_request_init(const struct gyre *g, struct gyre_request *request, size_t struct_size);
static inline struct gyre_request gyre_request_default(const struct gyre *g) {
    struct gyre_request r;
    gyre_request_init(g, &r, sizeof r);
    return r;
}

/* Refuses what is out of range, prompts that are longer than the context or than the cache, and ids that are
 * not in the vocabulary. */
int gyre_submit(struct gyre *g, const struct gyre_request *request, uint64_t *id, struct gyre_error *err);

/* The request's next event is DONE with GYRE_CANCELLED, if it has not ended already. Unknown ids are fine. */
void gyre_cancel(struct gyre *g, uint64_t id);

enum gyre_event_kind {
    GYRE_PROMPT, // a prompt token was computed (score_prompt, want_last_logits)
    GYRE_TOKEN,  // a token was generated
    GYRE_DONE,   // the last event of its request
};

enum gyre_finish {
    GYRE_STOP,      // an end-of-sequence token or stop id, which was the last TOKEN event; or a grammar's end
    GYRE_LENGTH,    // max_tokens, or the end of the context
    GYRE_CANCELLED, // gyre_cancel
    GYRE_FAILED,    // see error
};

/* Why not more of a prompt came from the prefix cache. */
enum gyre_cache_miss {
    GYRE_MISS_NONE,       // all that can be reused was: whole blocks before the last token
    GYRE_MISS_DISABLED,   // gyre_options.no_prefix_cache, or a model whose cache cannot be shared
    GYRE_MISS_SHORT,      // there is no whole block before the last token
    GYRE_MISS_SCORED,     // log-probabilities were asked for from here on, so these tokens had to be computed
    GYRE_MISS_NEW,        // no earlier text went on like this, or it is long gone
    GYRE_MISS_SALT,       // one did, under another cache_salt
    GYRE_MISS_EVICTED,    // one did, and its blocks were taken for something else
    GYRE_MISS_WINDOW,     // its full-attention blocks are there, those of a sliding window were taken
    GYRE_MISS_CHECKPOINT, // its blocks are there, but of the recurrent state at their end no copy
};
const char *gyre_cache_miss_name(enum gyre_cache_miss miss); // "none", "disabled", ...

struct gyre_timing {
    int64_t queue_us;                             // from gyre_submit to the first step with this request
    int64_t prompt_us;                            // from there to the first token (or the end)
    int64_t decode_us;                            // from the first token to the last
    int64_t n_reused;                             // prompt tokens that were not computed again ...
    enum gyre_cache_miss cache_miss;              // ... and why those after them were
    int64_t n_tokens;                             // generated
    int64_t n_predicted_right, n_predicted_wrong; // of request.prediction: tokens that were tried
};

/* Pointers are good until the next call of gyre_poll. */
struct gyre_event {
    enum gyre_event_kind kind;
    uint64_t id;
    void *user;
    int64_t position; // PROMPT and TOKEN: of the token in its sequence
    int32_t token;    // TOKEN: the token; PROMPT: the most probable next token
    float logprob;    // TOKEN: its log-probability, if asked; PROMPT: that of the next prompt token (0 at the last)
    int32_t rank;     // PROMPT: the next prompt token's place among all by probability, from 1 (0 at the last)
    int n_top;        // the most probable tokens, best first: n_top_logprobs, n_prompt_top_logprobs of PROMPT
    const int32_t *top_tokens;
    const float *top_logprobs;
    const float
        *logits; // [vocab_size], if asked: by want_last_logits, or by more than GYRE_MAX_TOP_LOGPROBS; otherwise NULL
    bool stops;  // TOKEN: it is the end-of-sequence token or stop id that ended the answer
    enum gyre_finish finish;
    const char *error;         // DONE with GYRE_FAILED: the sentence ...
    bool error_of_request;     // ... and whether the request asked for what cannot be, or something broke
    struct gyre_timing timing; // DONE
    const float *pooled; // DONE with GYRE_LENGTH: the vector [hidden_size], if pooling was asked for; otherwise NULL
};

/* Hands out at most n_events events. When none is at hand it first runs one step, which may give none yet (a
 * long prompt, or a device that works a step ahead). */
int gyre_poll(struct gyre *g, struct gyre_event *events, int n_events);

/* Whether an accepted request has not had its DONE. */
bool gyre_busy(const struct gyre *g);

#ifdef __cplusplus
}
#endif
