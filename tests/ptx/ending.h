/* ending.h - for tests of the machine: what it says when it ends the program. */
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A child process whose stderr is read. */
struct ending {
    int said[2];
    pid_t child;
};

/* True in the child, which is to do what must end it. */
static inline int ending_begins(struct ending *e) {
    assert_int_equal(pipe(e->said), 0);
    e->child = fork();
    if (e->child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(e->said[1], 2);
    }
    return e->child == 0;
}

/* That a signal ended it, and that it said so before. */
static inline void ending_says(struct ending *e, const char *part) {
    char line[4096] = "";
    size_t n = 0;
    ssize_t got;
    int status;
    close(e->said[1]);
    while (n + 1 < sizeof line && (got = read(e->said[0], line + n, sizeof line - 1 - n)) > 0)
        n += (size_t)got;
    close(e->said[0]);
    waitpid(e->child, &status, 0);
    if (!WIFSIGNALED(status) || !strstr(line, part))
        fail_msg("'%s' is wanted, said was '%s'", part, line);
}

#define ENDS(call, part)             \
    do {                             \
        struct ending ending_;       \
        if (ending_begins(&ending_)) \
            (call), _exit(0);        \
        ending_says(&ending_, part); \
    } while (0)
