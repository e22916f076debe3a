/* supervise.c - see supervise.h. */
#include "main/supervise.h"

#include "main/model/device_warnings.h"

#include <signal.h>
#include <stdio.h>

static const struct timespec tick = {.tv_nsec = 200 * 1000000}; // how late a step that hangs may be noticed

static sigset_t watched_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

void supervise_block_signals(void) {
    sigset_t set = watched_signals();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

bool supervise_is_told_to_end(void) {
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1;
}

static struct http_server *hurried; // by the second signal

static void on_second_signal(int signo) {
    (void)signo;
    http_hurry(hurried);
}

static void await_second_signal(struct api *api) {
    sigset_t set;
    hurried = api->http;
    struct sigaction action = {.sa_handler = on_second_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void reload_keys(struct api *api, const char *path) {
    struct error err;
    if (!path)
        return;
    if (keyring_load(api->options.keyring, path, &err) == OK)
        fprintf(stderr, "%s: its keys are taken over\n", path);
    else
        fprintf(stderr, "%s; the keys stay as they were\n", err.text);
}

/* What was told of the engines. */
struct told {
    bool hung;
    uint32_t warnings;
    bool failed[MOST_ENGINES];
    int n_reopen_faults[MOST_ENGINES], n_given_up[MOST_ENGINES];
    int n_failed;
};

/* `one` is engine i of n. */
static void tell_of_reopening(const struct service_state *one, int i, int n, struct told *told) {
    if (told->n_reopen_faults[i] != one->n_reopen_faults && one->failed)
        fprintf(stderr, "engine %d of %d stays failed: %s\n", i + 1, n, one->error);
    if (told->n_given_up[i] != one->n_given_up)
        fprintf(stderr, "engine %d of %d is given up for an hour: it was opened anew, or could not be, three times\n",
                i + 1, n);
    told->n_reopen_faults[i] = one->n_reopen_faults;
    told->n_given_up[i] = one->n_given_up;
}

static void tell_of_failed(const struct api *api, const struct service_state *all, struct told *told) {
    struct service_state one;
    for (int i = 0; i < all->n_engines && (all->n_failed > 0 || told->n_failed > 0); i++) {
        service_state_of(api->service, i, &one);
        bool is_new = told->failed[i] != one.failed;
        if (!is_new || !one.failed)
            tell_of_reopening(&one, i, all->n_engines, told);
        if (!is_new)
            continue;
        told->failed[i] = one.failed;
        told->n_failed += one.failed ? 1 : -1;
        if (!one.failed) {
            fprintf(stderr, "engine %d of %d works again\n", i + 1, all->n_engines);
            continue;
        }
        if (all->n_engines > 1)
            fprintf(stderr, "engine %d of %d has failed: ", i + 1, all->n_engines);
        fprintf(stderr, "%s\n", one.error);
    }
}

/* Tells of a step that hangs, and of its end; once, of what the device warns of, and of each engine that fails. True:
 * all have failed. */
static bool look_at_engines(struct api *api, struct told *told) {
    struct service_state state;
    service_state(api->service, &state);
    bool hangs = api_step_hangs(api, &state);
    if (hangs && !told->hung)
        fprintf(stderr, "the engine has been in one step for more than %lld s: /health/ready is 503 until it ends\n",
                (long long)(api->options.step_timeout_us / 1000000));
    if (!hangs && told->hung)
        fprintf(stderr, "the step that hung has ended\n");
    told->hung = hangs;
    device_warnings_print(state.device, state.n_device, &told->warnings, stderr);
    tell_of_failed(api, &state, told);
    return state.failed;
}

void supervise_end(void) {
    supervise_block_signals(); // no other thread has them unblocked
    hurried = NULL;
}

int supervise(struct api *api, const char *key_file, int64_t drain_seconds) {
    sigset_t set = watched_signals();
    struct told told = {0};
    for (;;) {
        int signo = sigtimedwait(&set, NULL, &tick);
        bool failed = look_at_engines(api, &told);
        if (signo == SIGHUP)
            reload_keys(api, key_file);
        if (!failed && signo != SIGTERM && signo != SIGINT)
            continue;
        fprintf(stderr, "shutting down: requests in flight have %lld s; %s ends them\n", (long long)drain_seconds,
                failed ? "a signal" : "once more");
        await_second_signal(api);
        return failed;
    }
}
