/* engine_flags.h - the flags of every verb that opens a model to compute with it, and opening it. */
#pragma once

#include "backend/ranks/ranks.h"
#include "backend/ranks/stages.h"
#include "gyre.h"
#include "lib/backends.h"
#include "main/flags/flags.h"
#include "text/token_ids.h"

/* Of gyre_options; zeros: none. */
struct speculation {
    int n_guesses, ngram_min, ngram_max, guess_seqs, topk, rows;
    char method[64], model[4096]; // of a draft
    double synthetic;
    bool always, rejects;
};

struct engine_flags {
    const char *device, *xla_plugin, *dtype, *kv_cache_dtype, *quantization, *load_format;
    int64_t device_index, n_threads, max_model_len, kv_cache_memory, swap_space, max_batched_tokens, max_seqs,
        block_size;
    int64_t xla_steps;
    bool prefix_cache, enforce_eager, by_expert;
    bool serves; // set by verbs whose answers are for people, and not for comparing
    bool exact;  // activations are not rounded, unless --device-option says so: of verbs that show probabilities
    int64_t n_ranks, n_stages;
    int n_nodes; // hosts that have a stage each, this one the last; 0: one host
    struct flag_list device_options;
    const char *policy; // of servers: "fcfs", "sjf"
    double itl_target, gpu_memory_utilization, cache_idle;
    int n_tenants;                       // set by the verb, as are
    struct token_ids eos;                // the tokens that end an answer by the tokenizer
    const struct gyre_adapter *adapters; // adapter_flags.h
    size_t n_adapters;
    struct speculation speculation; // speculation_flags.h
    const char *draft_acceptance;
    double synthetic_acceptance;
};

#define ENGINE_FLAGS_DEFAULT                                                                                         \
    {                                                                                                                \
        .device = "cpu", .dtype = "auto", .kv_cache_dtype = "auto", .quantization = "none", .load_format = "auto",   \
        .gpu_memory_utilization = 0.92, .cache_idle = 300, .block_size = 64, .prefix_cache = true, .policy = "fcfs", \
        .n_ranks = 1, .n_stages = 1, .draft_acceptance = "draw"                                                      \
    }

/* Rows of a flag table. */
#define ENGINE_FLAGS(e)                                                                                                \
    ALLOW_LINKS_FLAG,                                                                                                  \
        {"device",                                                                                                     \
         0,                                                                                                            \
         FLAG_CHOICE,                                                                                                  \
         &(e).device,                                                                                                  \
         BACKEND_NAMES,                                                                                                \
         "Engine",                                                                                                     \
         "what computes; toy makes tokens up and reads no weights, to measure the rest"},                              \
        {"xla-plugin",                                                                                                 \
         0,                                                                                                            \
         FLAG_STRING,                                                                                                  \
         &(e).xla_plugin,                                                                                              \
         "FILE",                                                                                                       \
         "Engine",                                                                                                     \
         "the PJRT plugin of --device xla; otherwise that of a Python package is looked for"},                         \
        {"xla-steps",                                                                                                  \
         0,                                                                                                            \
         FLAG_INT,                                                                                                     \
         &(e).xla_steps,                                                                                               \
         "N",                                                                                                          \
         "Engine",                                                                                                     \
         "tokens of a sequence that a launch of --device xla makes, together; 8 on a TPU, else 1",                     \
         .min = 1,                                                                                                     \
         .max = 64},                                                                                                   \
        {"tensor-parallel-size",                                                                                       \
         0,                                                                                                            \
         FLAG_INT,                                                                                                     \
         &(e).n_ranks,                                                                                                 \
         "N",                                                                                                          \
         "Engine",                                                                                                     \
         "devices that have a share of each layer; on the CPU so many groups of threads, to try it",                   \
         .min = 1,                                                                                                     \
         .max = MAX_RANKS_OF_A_MODEL},                                                                                 \
        {"pipeline-parallel-size",                                                                                     \
         0,                                                                                                            \
         FLAG_INT,                                                                                                     \
         &(e).n_stages,                                                                                                \
         "N",                                                                                                          \
         "Engine",                                                                                                     \
         "devices that have some of the layers each, one behind the other",                                            \
         .min = 1,                                                                                                     \
         .max = MAX_STAGES},                                                                                           \
        {"enable-expert-parallel",                                                                                     \
         0,                                                                                                            \
         FLAG_BOOL,                                                                                                    \
         &(e).by_expert,                                                                                               \
         NULL,                                                                                                         \
         "Engine",                                                                                                     \
         "these have whole experts each, in place of a share of every one"},                                           \
        {"device-index", 0, FLAG_INT, &(e).device_index, "N", "Engine", "which of several GPUs", .min = 0, .max = 63}, \
        {"device-option",                                                                                              \
         0,                                                                                                            \
         FLAG_LIST,                                                                                                    \
         &(e).device_options,                                                                                          \
         "NAME=VALUE",                                                                                                 \
         "Engine",                                                                                                     \
         "what one device alone understands; may be repeated, and a wrong name is answered with those that there "     \
         "are"},                                                                                                       \
        {"dtype",                                                                                                      \
         0,                                                                                                            \
         FLAG_CHOICE,                                                                                                  \
         &(e).dtype,                                                                                                   \
         "auto|float32|float16|bfloat16",                                                                              \
         "Engine",                                                                                                     \
         "what products of matrices are made in; auto is what the device does best for the checkpoint. On a CPU that " \
         "is float32, but to serve 256 MiB and more bfloat16 where the processor has it (docs/numerics.md)"},          \
        {"kv-cache-dtype",                                                                                             \
         0,                                                                                                            \
         FLAG_CHOICE,                                                                                                  \
         &(e).kv_cache_dtype,                                                                                          \
         KV_CACHE_DTYPES,                                                                                              \
         "Engine",                                                                                                     \
         "what keys and values are kept in; auto is what the device computes in"},                                     \
        {"quantization",                                                                                               \
         0,                                                                                                            \
         FLAG_CHOICE,                                                                                                  \
         &(e).quantization,                                                                                            \
         "none|fp8|int8|int4|nvfp4",                                                                                   \
         "Engine",                                                                                                     \
         "matrices that are stored wider are made 8 bits, with a scale a row, or 4 when they are loaded"},             \
        {"enforce-eager",                                                                                              \
         0,                                                                                                            \
         FLAG_BOOL,                                                                                                    \
         &(e).enforce_eager,                                                                                           \
         NULL,                                                                                                         \
         "Engine",                                                                                                     \
         "start every operation of a step by itself, without CUDA graphs; the CPU always does"},                       \
        {"threads", 't',        FLAG_INT, &(e).n_threads, "N", "Engine", "threads of the CPU; 0 is one a processor",   \
         .min = 0,  .max = 1024},                                                                                      \
        {"load-format",                                                                                                \
         0,                                                                                                            \
         FLAG_CHOICE,                                                                                                  \
         &(e).load_format,                                                                                             \
         "auto|dummy",                                                                                                 \
         "Engine",                                                                                                     \
         "dummy: random weights in the shapes of config.json, to measure speed without a checkpoint"},                 \
        {"max-model-len",                                                                                              \
         0,                                                                                                            \
         FLAG_INT,                                                                                                     \
         &(e).max_model_len,                                                                                           \
         "N|auto",                                                                                                     \
         "Engine",                                                                                                     \
         "tokens of a prompt and its answer together; auto, or 0, is what the model and the memory allow",             \
         .min = 0,                                                                                                     \
         .max = 1 << 24},                                                                                              \
        {"kv-cache-memory",                                                                                            \
         0,                                                                                                            \
         FLAG_SIZE,                                                                                                    \
         &(e).kv_cache_memory,                                                                                         \
         "BYTES",                                                                                                      \
         "Engine",                                                                                                     \
         "memory for the cache of keys and values; 0 is up to a quarter of the machine's, or what is left of the "     \
         "GPU's",                                                                                                      \
         .min = 0,                                                                                                     \
         .max = 1e15},                                                                                                 \
        {"gpu-memory-utilization",                                                                                     \
         0,                                                                                                            \
         FLAG_REAL,                                                                                                    \
         &(e).gpu_memory_utilization,                                                                                  \
         "SHARE",                                                                                                      \
         "Engine",                                                                                                     \
         "of a GPU's memory, what may be taken by all together; --kv-cache-memory sets the cache's size instead",      \
         .min = 0.01,                                                                                                  \
         .max = 1},                                                                                                    \
        {"cache-idle",                                                                                                 \
         0,                                                                                                            \
         FLAG_REAL,                                                                                                    \
         &(e).cache_idle,                                                                                              \
         "SECONDS",                                                                                                    \
         "Engine",                                                                                                     \
         "without work, until a GPU gets back what memory the cache took by need, and prompts are forgotten; 0 is "    \
         "never",                                                                                                      \
         .min = 0,                                                                                                     \
         .max = 1e9},                                                                                                  \
        {"swap-space",                                                                                                 \
         0,                                                                                                            \
         FLAG_SIZE,                                                                                                    \
         &(e).swap_space,                                                                                              \
         "BYTES",                                                                                                      \
         "Engine",                                                                                                     \
         "host memory for the cache of requests that give way to others; without it that is computed again. Below "    \
         "1024: GiB",                                                                                                  \
         .min = 0,                                                                                                     \
         .max = 1e15},                                                                                                 \
        {"max-num-batched-tokens",                                                                                     \
         0,                                                                                                            \
         FLAG_INT,                                                                                                     \
         &(e).max_batched_tokens,                                                                                      \
         "N",                                                                                                          \
         "Engine",                                                                                                     \
         "tokens computed in one step: 8192 on a GPU (65535 at most) and through XLA, else 512. A longer prompt "      \
         "goes in chunks; through XLA one takes 512 of the 8192 unless this is given",                                 \
         .min = 1,                                                                                                     \
         .max = 1 << 20},                                                                                              \
        {"max-num-seqs",                                                                                               \
         0,                                                                                                            \
         FLAG_INT,                                                                                                     \
         &(e).max_seqs,                                                                                                \
         "N",                                                                                                          \
         "Engine",                                                                                                     \
         "sequences computed in one step, 512 on a GPU and 64 elsewhere unless said",                                  \
         .min = 1,                                                                                                     \
         .max = 1 << 14},                                                                                              \
    {                                                                                                                  \
        "block-size", 0, FLAG_INT, &(e).block_size, "N", "Engine", "tokens in a block of the cache; a power of two",   \
            .min = 1, .max = 1 << 14                                                                                   \
    }

/* Opens a model folder (or, with dummy weights, a config.json). Answers end at flags->eos too. */
enum status engine_flags_open(const struct engine_flags *flags, const char *model, struct gyre **out,
                              struct error *err);

/* What products are made in: --dtype, or what a verb that serves chooses where that is auto; NULL: the device's. */
const char *engine_flags_dtype(const struct engine_flags *flags, const char *model);

/* A node that has a stage of the model and no engine: works for node 0 until that leaves. */
struct node_flags {
    const char *address; // of node 0
    int rank, n_nodes;
    uint64_t identity;
    int64_t until_us;
    void (*joined)(void); // called when node 0 has been reached
};
enum status engine_flags_work(const struct engine_flags *f, const char *model, const struct node_flags *node,
                              struct error *err);

/* Of the machine's that one engine takes, from --device-index on. */
enum status engine_flags_n_devices(const struct engine_flags *flags, int *out, struct error *err);

/* The same n times, on devices of their own: behind each other those of one engine's ranks and stages. On the host they
 * share the processors, and the memory for caches is as large for each. */
enum status engine_flags_open_several(const struct engine_flags *flags, const char *model, int n, struct gyre **out,
                                      struct error *err);

/* Number i of those, again. */
enum status engine_flags_open_one_of(const struct engine_flags *flags, const char *model, int i, int n,
                                     struct gyre **out, struct error *err);

/* The engine's sentence as ours. */
enum status engine_fault(const struct gyre_error *from, struct error *err);
