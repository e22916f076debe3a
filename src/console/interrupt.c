/* interrupt.c - see interrupt.h. */
#include "console/interrupt.h"

#include <signal.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void interrupt_catch(void) {
    struct sigaction action = {.sa_handler = on_interrupt}; // no SA_RESTART: a read that waits comes back
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void interrupt_release(void) { signal(SIGINT, SIG_DFL); }

bool interrupt_taken(void) {
    bool taken = interrupted != 0;
    interrupted = 0;
    return taken;
}
