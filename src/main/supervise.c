/* supervise.c - see supervise.h. */
#include "main/supervise.h"

#include "console/terminal.h"
#include "main/model/device_warnings.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const struct timespec tick = {.tv_nsec = 200 * 1000000}; // how late a step that hangs may be noticed

static sigset_t ending_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    return set;
}

static sigset_t watched_signals(void) {
    sigset_t set = ending_signals();
    sigaddset(&set, SIGHUP);
    return set;
}

static void block_signals(void) {
    sigset_t set = watched_signals();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

// ---- while the model is loaded ----------------------------------------------------------------------------------

static struct {
    pthread_t thread;
    bool is_watched;
    int signals, over; // descriptors: a signal is pending; the load is over
} load;

/* As if it had never been blocked. */
static void end_by_signal(int signo) {
    sigset_t set = ending_signals();
    fprintf(stderr, "gyre: a signal ended it before it served anything\n");
    signal(signo, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(signo);
    _exit(128 + signo); // the first process of a container does not die of it
}

/* A signal that comes later is supervise()'s: it is not taken here. */
static void *watch_load(void *arg) {
    struct pollfd p[] = {{.fd = load.over, .events = POLLIN}, {.fd = load.signals, .events = POLLIN}};
    struct signalfd_siginfo came;
    (void)arg;
    while (poll(p, 2, -1) < 0)
        ;
    if (!(p[0].revents & POLLIN) && read(load.signals, &came, sizeof came) == (ssize_t)sizeof came)
        end_by_signal((int)came.ssi_signo);
    return NULL;
}

void supervise_load_begins(void) {
    sigset_t set = ending_signals();
    block_signals();
    load.over = eventfd(0, EFD_CLOEXEC);
    load.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    load.is_watched = load.over >= 0 && load.signals >= 0 && pthread_create(&load.thread, NULL, watch_load, NULL) == 0;
}

void supervise_load_ends(void) {
    if (load.is_watched && eventfd_write(load.over, 1) == 0)
        pthread_join(load.thread, NULL);
    if (load.over >= 0)
        close(load.over);
    if (load.signals >= 0)
        close(load.signals);
}

// ---- while it serves --------------------------------------------------------------------------------------------

static struct http_server *hurried; // by the second signal

static void on_second_signal(int signo) {
    (void)signo;
    http_hurry(hurried);
}

static void await_second_signal(struct api *api) {
    sigset_t set = ending_signals();
    hurried = api->http;
    struct sigaction action = {.sa_handler = on_second_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void reload_keys(struct api *api, const char *path) {
    struct error err;
    if (!path)
        return;
    if (keyring_load(api->options.keyring, path, &err) == OK)
        terminal_say(stderr, "%s: its keys are taken over\n", path);
    else
        terminal_say(stderr, "%s; the keys stay as they were\n", err.text);
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
    block_signals(); // no other thread has them unblocked
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
