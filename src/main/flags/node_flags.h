/* node_flags.h - several processes, one a host or all on one, that have a stage of a model each: --nnodes and the
 * flags beside it, or what a launcher says (launcher.h). For verbs that compute with one engine.
 *
 *     check_flags    TRY(nodes_read(&opt.nodes, args, &err)), TRY(nodes_check(...))
 *     process 0      TRY(nodes_await(&opt.nodes, &opt.engine, fingerprint, &err)), opens the engine, closes it,
 *                    nodes_leave()
 *     the others     return nodes_work(&opt.nodes, &opt.engine, model) */
#pragma once

#include "main/flags/engine_flags.h"

struct nodes {
    const char *master;
    const char *by;  // what says n, for sentences: the flag, or the launcher's variable
    const char *job; // the launcher's name of it; empty: flags, or it has none
    int64_t n, rank;
    double timeout;
};
#define NODES_DEFAULT \
    { .by = "--nnodes", .job = "", .n = 1, .timeout = 600 }

#define NODE_FLAGS(o)                                                                                                 \
    {"nnodes",                                                                                                        \
     0,                                                                                                               \
     FLAG_INT,                                                                                                        \
     &(o).n,                                                                                                          \
     "N",                                                                                                             \
     "Hosts",                                                                                                         \
     "hosts, or processes, that have some of the layers each; under mpirun and srun it is their number, and 1 here "  \
     "lets each compute alone",                                                                                       \
     .min = 1,                                                                                                        \
     .max = 16},                                                                                                      \
        {"node-rank",                                                                                                 \
         0,                                                                                                           \
         FLAG_INT,                                                                                                    \
         &(o).rank,                                                                                                   \
         "R",                                                                                                         \
         "Hosts",                                                                                                     \
         "this one's number: 0 has the last layers and answers, the others work for it",                              \
         .min = 0,                                                                                                    \
         .max = 15},                                                                                                  \
        {"master-addr",                                                                                               \
         0,                                                                                                           \
         FLAG_STRING,                                                                                                 \
         &(o).master,                                                                                                 \
         "HOST:PORT",                                                                                                 \
         "Hosts",                                                                                                     \
         "of node 0, which listens there. The network must be your own: there is no key and no encryption"},          \
    {                                                                                                                 \
        "node-timeout", 0, FLAG_REAL, &(o).timeout, "SECONDS", "Hosts", "until all nodes must have come", .min = 0.1, \
                                                                                                          .max = 1e6  \
    }

/* Where --nnodes is not given, what a launcher says, if there is one; that processes share a model is told on stderr.
 * ERR_ARG: what does not go together. */
enum status nodes_read(struct nodes *nodes, const struct verb_args *args, struct error *err);

/* ERR_ARG: what several nodes cannot do. has_more: engines beside each other, adapters or speculation. */
enum status nodes_check(const struct nodes *nodes, const struct engine_flags *engine, bool has_more, struct error *err);

/* Two processes of one fingerprint have the same weights and numbers. Nodes must have the same job beside it. */
uint64_t nodes_identity(const char *fingerprint);

/* Node 0 waits for the others; the engine that is opened then is over all of them. */
enum status nodes_await(const struct nodes *nodes, struct engine_flags *engine, const char *fingerprint,
                        struct error *err);
void nodes_leave(void);

/* Another node works until node 0 leaves, and, once it has come to that, through one signal to end; the exit code, with
 * what went wrong told. */
int nodes_work(const struct nodes *nodes, const struct engine_flags *engine, const char *model);
