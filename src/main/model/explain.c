/* explain.c - gyre explain MODEL: the program, one line an op; with --device what a step of it launches there. */
#include "main/verbs.h"

#include "backend/xla/topology.h"
#include "base/file.h"
#include "console/terminal.h"
#include "core/backend.h"
#include "core/pass/pass.h"
#include "engine/inspect.h"
#include "main/flags/engine_flags.h"
#include "main/model/model_path.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int64_t tokens, rows, rank, queries, context;
    const char *topology;
    struct engine_flags engine;
} opt = {.tokens = 512, .rows = 1, .queries = 1, .context = 512, .engine = ENGINE_FLAGS_DEFAULT};

static const struct flag flags[] = {
    {"tokens", 't', FLAG_INT, &opt.tokens, "N", "Output", "show the memory of activations for a step of N tokens",
     .min = 1, .max = 1 << 20},
    {"rows", 0, FLAG_INT, &opt.rows, "N", "Output", "with --device: the nodes of a step that decodes N sequences",
     .min = 1, .max = 4096},
    {"rank", 0, FLAG_INT, &opt.rank, "R", "Output",
     "with --tensor-parallel-size: the program of this one of the devices, from 0", .min = 0,
     .max = MAX_RANKS_OF_A_MODEL - 1},
    {"topology", 0, FLAG_STRING, &opt.topology, "NAME", "Compiling",
     "with --device xla: compile a launch of --rows sequences for these devices, which need not be there: v6e:2x2"},
    {"queries", 0, FLAG_INT, &opt.queries, "N", "Compiling", "token rows of each sequence: 1 decodes", .min = 1,
     .max = 1 << 16},
    {"context", 0, FLAG_INT, &opt.context, "N", "Compiling", "tokens that each sequence has", .min = 1, .max = 1 << 24},
    ENGINE_FLAGS(opt.engine),
};

static void print_memory(const struct program *p) {
    int64_t *offset = xcalloc((size_t)p->n_values, sizeof *offset);
    int64_t bytes = program_plan_memory(p, opt.tokens, MIN(opt.tokens, 256), offset);
    printf("; activations of a step of %lld tokens: %.1f MiB, planned by liveness\n", (long long)opt.tokens,
           (double)bytes / (1 << 20));
    free(offset);
}

static bool is_first_use(const struct program *p, int op, int slot) {
    for (int i = 0; i <= op; i++)
        for (int k = 0; k < (i < op ? OP_MAX_WEIGHTS : slot); k++)
            if (p->ops[i].weights[k] == p->ops[op].weights[slot])
                return false;
    return true;
}

/* As the checkpoint stores them. */
static void print_weights(const struct program *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++)
            if (p->ops[i].weights[k] && is_first_use(p, i, k))
                bytes += weight_stored_bytes(p->ops[i].weights[k]);
    printf("; weights: %.1f MiB as stored\n", (double)bytes / (1 << 20));
}

// ---- what a device makes of it ----------------------------------------------------------------------------------

static void print_node(const struct device_node *n, int previous_op) {
    char op[64] = "";
    if (n->op != previous_op)
        snprintf(op, sizeof op, "%d %s", n->op, n->op_name);
    printf("%-20s %-26s %-26s %5d rows  %s\n", op, n->kernel, n->file, n->n_rows, n->why ? n->why : "");
}

static void print_nodes(const struct backend_ops *ops, struct device_node *nodes, int n) {
    printf("; a step that decodes %lld sequences on %s: %d nodes\n", (long long)opt.rows, ops->name, n);
    for (int i = 0; i < n; i++)
        print_node(&nodes[i], i > 0 ? nodes[i - 1].op : -1);
}

static int explain_on_device(const struct verb_args *args) {
    enum { MOST_NODES = 1 << 16 };
    struct error err;
    struct gyre *g = NULL;
    opt.engine.max_seqs = MAX(opt.engine.max_seqs, opt.rows);
    if (engine_flags_open(&opt.engine, args->operands[0], &g, &err) != OK)
        return verb_failed(&err);
    enum status st = OK;
    struct engine_parts e = engine_parts(g);
    if (!e.ops->probes || !e.ops->probes->nodes) {
        st = fail(&err, ERR_UNSUPPORTED, "--device %s: it runs the program as it is and has no nodes to print",
                  e.ops->name);
    } else {
        struct device_node *nodes = xcalloc(MOST_NODES, sizeof *nodes);
        print_nodes(e.ops, nodes, MIN(e.ops->probes->nodes(e.exe, (int)opt.rows, nodes, MOST_NODES), MOST_NODES));
        free(nodes);
    }
    gyre_close(g);
    return st == OK ? 0 : verb_failed(&err);
}

/* For devices that are not there. */
static enum status compile_for(const struct program *whole, struct error *err) {
    const struct engine_flags *e = &opt.engine;
    struct shard_options share = {0, (int)e->n_ranks, e->by_expert};
    struct program *mine;
    struct buf text = {0};
    TRY(pass_shard(whole, &share, &mine, err));
    struct program *rings = opt.context > XLA_RINGS_BEYOND ? pass_rings(mine, (int)MAX(opt.queries, 512)) : NULL;
    struct xla_target target = {
        .plugin = e->xla_plugin,
        .topology = opt.topology,
        .load = {.dtype = strcmp(e->dtype, "auto") == 0 ? NULL : e->dtype,
                 .kv_dtype = strcmp(e->kv_cache_dtype, "auto") == 0 ? NULL : e->kv_cache_dtype,
                 .quantization = strcmp(e->quantization, "none") == 0 ? NULL : e->quantization},
        .n_seqs = (int)opt.rows,
        .n_queries = (int)opt.queries,
        .context = (int)opt.context,
        .block_size = (int)e->block_size,
        .blockwise = XLA_BLOCKWISE_TOKENS,
    };
    enum status st = xla_compile_for(rings ? rings : mine, &target, &text, err);
    if (st == OK)
        printf("%lld sequences of %lld rows, %lld tokens of context, on %lld of %s\n%s", (long long)opt.rows,
               (long long)opt.queries, (long long)opt.context, (long long)e->n_ranks, opt.topology, text.ptr);
    buf_release(&text);
    program_free(rings);
    program_free(mine);
    return st;
}

// ---- the program ------------------------------------------------------------------------------------------------

static int print_program(const struct program *whole) {
    struct error err;
    struct program *mine;
    struct shard_options options = {(int)opt.rank, (int)opt.engine.n_ranks, opt.engine.by_expert};
    if (pass_shard(whole, &options, &mine, &err) != OK)
        return verb_failed(&err);
    struct program *p = pass_shared_kv(mine, NULL); // as the CPU has it
    struct buf text = {0};
    program_explain(p, &text);
    terminal_print(stdout, buf_view(&text));
    print_weights(p);
    print_memory(p);
    buf_release(&text);
    program_free(p);
    program_free(mine);
    return 0;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct model *m;
    if (opt.rank >= opt.engine.n_ranks) {
        fail(&err, ERR_ARG, "--rank: %lld is not one of %lld, see --tensor-parallel-size", (long long)opt.rank,
             (long long)opt.engine.n_ranks);
        return verb_failed(&err);
    }
    bool is_compiled = opt.topology && strcmp(opt.engine.device, "xla") == 0;
    if (strcmp(opt.engine.device, "cpu") != 0 && !is_compiled)
        return explain_on_device(args);
    // A config.json alone is enough: the program does not depend on the weights' values.
    struct model_options options = {.load = file_exists(args->operands[0]) ? LOAD_PHANTOM : LOAD_CHECKPOINT};
    if (model_path_check(args->operands[0], MODEL_SETTINGS, &err) != OK ||
        model_open(args->operands[0], &options, &m, &err) != OK)
        return verb_failed(&err);
    int rc = !is_compiled ? print_program(m->program) : compile_for(m->program, &err) == OK ? 0 : verb_failed(&err);
    model_free(m);
    return rc;
}

const struct verb_spec verb_explain = {
    "explain",
    "MODEL|config.json",
    "prints the program that a model is, one line an op",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "With --device cuda: the nodes that a step launches, which kernel each is, and why that one. Wants a "
        "GPU; a config.json with\n"
        "--load-format dummy will do for a model.\n"
        "With --device xla --topology NAME: what compiling for a TPU says, without one (docs/tpu.md).\n"
        "With --tensor-parallel-size: what one of several devices computes, and how much of the weights it has.\n"
        "A value is written vN[rows,width]; rows are T (tokens of a step) or R (rows that give a token).\n"
        "What each op computes: src/core/ops.def.\n"};
