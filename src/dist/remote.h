/* remote.h - stages of a model on other hosts, as a backend: another process does what it is asked to (worker.h).
 *
 *     TRY(remote_nodes_await(&(struct awaited){"0.0.0.0:9000", 3, identity, until_us}, &err)); // 1 and 2 have come
 *     ... backend_remote.open with device_options.index 1 is the device of node 1 ...
 *
 * Stage i of a pipeline is node i + 1's, and the last one is here, where tokens are drawn: what a draw depends on stays
 * in this process. Each call waits for its answer, PATIENCE seconds at most (the device option "patience"), and when
 * the node loads or compiles, as much behind each word that it still does (its weights are read then, worker.h); a node
 * that is gone or late is named, and its device has failed for good. */
#pragma once

#include "core/backend.h"

enum { MAX_NODES = 16 };

extern const struct backend_ops backend_remote;

struct awaited {
    const char *address; // "host:port"
    int n_nodes;         // this one, too
    uint64_t identity;   // of model and numerics
    int64_t until_us;
};

/* Listens until nodes 1 .. n_nodes - 1 have come. One that leaves meanwhile may come again. Who has another model,
 * another number of nodes or a number that is taken is sent away. ERR_IO: not all came in time. */
enum status remote_nodes_await(const struct awaited *a, struct error *err);
void remote_nodes_leave(void); // they end, too
