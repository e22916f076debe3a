/* node_flags.c - see node_flags.h. */
#include "main/flags/node_flags.h"

#include "base/clock.h"
#include "dist/remote.h"
#include "main/flags/launcher.h"
#include "main/model/fingerprint.h"
#include "main/verbs.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(MAX_NODES == 16, "as --nnodes says");

static struct launched launched;
static char address[300]; // of process 0, as the launcher says

enum status nodes_read(struct nodes *nodes, struct error *err) {
    if (nodes->n == 1 && nodes->rank == 0) {
        TRY(launcher_read(getenv, &launched, err));
        if (launched.n > MAX_NODES)
            return fail(err, ERR_ARG, "%d processes were launched: a model has %d stages at most", launched.n,
                        MAX_NODES);
        nodes->n = MAX(launched.n, 1);
        nodes->rank = launched.rank;
        if (nodes->n > 1 && !nodes->master) {
            TRY(launcher_address(getenv, &launched, address, err));
            nodes->master = address;
        }
    }
    if ((nodes->n > 1) != (nodes->master != NULL))
        return fail(err, ERR_ARG, "--nnodes and --master-addr go together");
    return nodes->rank < nodes->n ? OK
                                  : fail(err, ERR_ARG, "--node-rank: %lld is not one of %lld, see --nnodes",
                                         (long long)nodes->rank, (long long)nodes->n);
}

uint64_t nodes_identity(const char *fingerprint) {
    uint64_t h = 14695981039346656037u; // FNV-1a
    for (const char *c = fingerprint; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    return h;
}

static int64_t until_us(const struct nodes *nodes) { return clock_us() + (int64_t)(nodes->timeout * 1e6); }

enum status nodes_await(const struct nodes *nodes, struct engine_flags *engine, const char *fingerprint,
                        bool (*is_given_up)(void), struct error *err) {
    if (nodes->n == 1)
        return OK;
    engine->n_nodes = (int)nodes->n;
    struct awaited a = {nodes->master, (int)nodes->n, nodes_identity(fingerprint), until_us(nodes), is_given_up};
    return remote_nodes_await(&a, err);
}

void nodes_leave(void) { remote_nodes_leave(); }

/* Whoever ends a job ends all its processes at once: requests in flight want this one until node 0 leaves. */
static void stay(int signo) {
    static const char said[] = "this node ends when node 0 does; once more ends it now\n";
    (void)signo;
    (void)!write(STDERR_FILENO, said, sizeof said - 1);
}

static void outlive_a_signal(void) {
    struct sigaction action = {.sa_handler = stay, .sa_flags = SA_RESETHAND | SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

int nodes_work(const struct nodes *nodes, const struct engine_flags *engine, const char *model) {
    struct error err;
    static char fingerprint[FINGERPRINT_BYTES];
    fingerprint_of(engine, model, fingerprint);
    outlive_a_signal();
    struct node_flags node = {nodes->master, (int)nodes->rank, (int)nodes->n, nodes_identity(fingerprint),
                              until_us(nodes)};
    return engine_flags_work(engine, model, &node, &err) == OK ? 0 : verb_failed(&err);
}
