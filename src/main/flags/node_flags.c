/* node_flags.c - see node_flags.h. */
#include "main/flags/node_flags.h"

#include "base/clock.h"
#include "dist/remote.h"
#include "main/flags/launcher.h"
#include "main/model/fingerprint.h"
#include "main/verbs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(MAX_NODES == 16, "as --nnodes says");

static struct launched launched; // flags keep the job's name
static char address[300];        // of process 0, as the launcher says
static char origin[120];         // of the number of nodes, for sentences

static enum status take_launched(struct nodes *nodes, struct error *err) {
    TRY(launcher_read(getenv, &launched, err));
    if (launched.n < 2)
        return OK;
    snprintf(origin, sizeof origin, "%s=%d of the launcher (--nnodes 1: each alone)", launched.size, launched.n);
    if (launched.n > MAX_NODES)
        return fail(err, ERR_ARG, "%s: processes share a model, which has %d stages at most", origin, MAX_NODES);
    nodes->n = launched.n;
    nodes->rank = launched.rank;
    nodes->by = origin;
    nodes->job = launched.job;
    if (!nodes->master) {
        TRY(launcher_address(getenv, &launched, address, err));
        nodes->master = address;
    }
    if (nodes->rank == 0)
        fprintf(stderr, "gyre: %d processes share one model, as %s says; --nnodes 1: each has its own\n", launched.n,
                launched.size);
    return OK;
}

enum status nodes_read(struct nodes *nodes, const struct verb_args *args, struct error *err) {
    if (!flag_given(args, "nnodes") && nodes->rank == 0)
        TRY(take_launched(nodes, err));
    if ((nodes->n > 1) != (nodes->master != NULL))
        return fail(err, ERR_ARG, "--nnodes and --master-addr go together");
    return nodes->rank < nodes->n ? OK
                                  : fail(err, ERR_ARG, "--node-rank: %lld is not one of %lld, see --nnodes",
                                         (long long)nodes->rank, (long long)nodes->n);
}

enum status nodes_check(const struct nodes *nodes, const struct engine_flags *engine, bool has_more,
                        struct error *err) {
    if (nodes->n > 1 && has_more)
        return fail(err, ERR_ARG,
                    "%s: engines beside each other, adapters, speculation and roles are not for several hosts yet",
                    nodes->by);
    return nodes->n == 1 || engine->n_stages == 1
               ? OK
               : fail(err, ERR_ARG, "--pipeline-parallel-size: each host is one stage already, by %s", nodes->by);
}

static uint64_t add_to_hash(uint64_t h, const char *text) {
    for (const char *c = text; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u; // FNV-1a
    return h;
}

uint64_t nodes_identity(const char *fingerprint) { return add_to_hash(14695981039346656037u, fingerprint); }

static uint64_t identity_in_job(const struct nodes *nodes, const char *fingerprint) {
    return add_to_hash(add_to_hash(nodes_identity(fingerprint), "\n"), nodes->job);
}

static int64_t until_us(const struct nodes *nodes) { return clock_us() + (int64_t)(nodes->timeout * 1e6); }

enum status nodes_await(const struct nodes *nodes, struct engine_flags *engine, const char *fingerprint,
                        struct error *err) {
    if (nodes->n == 1)
        return OK;
    engine->n_nodes = (int)nodes->n;
    struct awaited a = {nodes->master, (int)nodes->n, identity_in_job(nodes, fingerprint), until_us(nodes)};
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
    struct node_flags node = {nodes->master,   (int)nodes->rank, (int)nodes->n, identity_in_job(nodes, fingerprint),
                              until_us(nodes), outlive_a_signal};
    return engine_flags_work(engine, model, &node, &err) == OK ? 0 : verb_failed(&err);
}
