/* rig.h - engines on the device that computes nothing: how one is opened, two requests, and what must be left. */
#pragma once

#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"
#include "check.h"

#include "backend/cuda/cuda.h"
#include "device.h"
#include "engine/engine.h"
#include "reports.h"

#include <stdio.h>
#include <stdlib.h>

#define SCREEN "64"

extern const struct backend_ops backend_cuda;

static inline void set_environment(void) {
    setenv("GYRE_ARGMAX_FILTER", SCREEN, 1); // heads of test models are small
    setenv("GYRE_L2_COPIES", "force", 1);    // their weights too
    setenv("HOME", "", 1);                   // plans are kept nowhere
    unsetenv("XDG_CACHE_HOME");
}

/* What happened to two requests, one of which wants all that is drawn and told on the way, one its vector. */
struct outcome {
    bool opened;
    int64_t opened_at;         // call
    struct gyre_error refused; // else
    int64_t n_lists_left;      // host_list_steps_total
    enum gyre_finish finish[2];
    char why[2][800];
};

static inline void submit(struct gyre *g, int which, struct outcome *o) {
    static const int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const struct gyre_logit_bias bias = {3, 1.0f};
    struct gyre_request q = gyre_request_default(g);
    uint64_t id;
    q.prompt = prompt, q.n_prompt = ARRAY_LEN(prompt), q.ignore_eos = true;
    q.max_tokens = which == 0 ? 4 : 0;
    q.user = (void *)(intptr_t)which;
    if (which == 0)
        q.temperature = 1, q.logit_bias = &bias, q.n_logit_bias = 1, q.repetition_penalty = 1.1f, q.logprobs = true,
        q.n_top_logprobs = 3;
    else
        q.pooling = GYRE_POOL_MEAN;
    struct gyre_error e;
    o->finish[which] = GYRE_FAILED;
    if (gyre_submit(g, &q, &id, &e) != 0)
        snprintf(o->why[which], sizeof o->why[which], "%s", e.text);
}

/* What gyre bench decode asks of a device besides. */
static inline void measure(struct gyre *g, struct outcome *o) {
    struct device_limits limits;
    struct error err = {0};
    double *op_us = xcalloc((size_t)g->program->n_ops, sizeof *op_us), seconds;
    int *op_nodes = xcalloc((size_t)g->program->n_ops, sizeof *op_nodes);
    enum status st = g->ops->probes->measure(g->loaded, &limits, &err);
    if (st == OK) // no figure is made of what did not run
        EXPECT(limits.read_bytes_per_s < 5e14 && limits.flops_per_s < 5e17 && limits.flops_per_s > 5e16);
    if (st == OK)
        st = g->ops->probes->trace(g->exe, op_us, op_nodes, &err);
    if (st == OK)
        st = g->ops->probes->library_floor(g->exe, 3, 2, &seconds, &err);
    o->finish[1] = st == OK ? GYRE_LENGTH : GYRE_FAILED;
    snprintf(o->why[1], sizeof o->why[1], "%s", err.text);
    free(op_us);
    free(op_nodes);
}

static inline void run(const struct gyre_options *options, bool measures, struct outcome *o) {
    struct gyre *g;
    *o = (struct outcome){.opened = false};
    if (gyre_open(options, &g, &o->refused) != 0)
        return;
    o->opened = true;
    o->opened_at = dry_calls();
    for (int which = 0; which < (measures ? 1 : 2); which++)
        submit(g, which, o);
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int i = 0, n = gyre_poll(g, e, 16); i < n; i++)
            if (e[i].kind == GYRE_DONE) {
                int which = (int)(intptr_t)e[i].user;
                o->finish[which] = e[i].finish;
                snprintf(o->why[which], sizeof o->why[which], "%s", e[i].error ? e[i].error : "");
            }
    }
    if (measures && o->finish[0] == GYRE_LENGTH)
        measure(g, o);
    o->n_lists_left = report_of(g->ops, g->exe, "host_list_steps_total");
    gyre_close(g);
}

static inline struct gyre_options options_for(const char *folder) {
    return (struct gyre_options){.model = folder,
                                 .backend = &backend_cuda,
                                 .dtype = "float16",
                                 .max_seqs = 4,
                                 .max_batched_tokens = 32,
                                 .max_model_len = 64,
                                 .kv_cache_bytes = 4 << 20};
}

static inline void expect_clean(const char *what) {
    if (dry_alive() > 0)
        dry_list_alive();
    if (dry_alive() > 0 || dry_misuse())
        fail_msg("%s: %lld things were not given back, misuse: %s", what, (long long)dry_alive(),
                 dry_misuse() ? dry_misuse() : "none");
}

static const char *const models[] = {"llama",   "qwen2",     "gemma2",      "gemma3",  "gemma4",   "gpt_oss",
                                     "mixtral", "qwen3_moe", "deepseek_v3", "qwen3_5", "diffllama"};

/* A model of one layer and one head without weights; path ends in XXXXXX.json. */
static inline void write_config(char *path, int hidden, int vocab) {
    int fd = mkstemps(path, 5);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    EXPECT(f != NULL);
    fprintf(
        f,
        "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", \"hidden_size\": %d, \"vocab_size\": "
        "%d, "
        "\"intermediate_size\": 128, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, "
        "\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
        "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}",
        hidden, vocab);
    EXPECT_EQ(fclose(f), 0);
}

static inline struct gyre *open_dry(const struct gyre_options *options) {
    struct gyre *g;
    struct gyre_error e;
    dry_begin(0, DRY_ONCE);
    if (gyre_open(options, &g, &e) != 0)
        fail_msg("%s: %s", options->model, e.text);
    return g;
}
