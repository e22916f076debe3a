/* guard.h - a stretch of code in which nothing may be allocated.
 *
 * A step of the engine runs many times a second for weeks: memory that it took would grow, fragment or stall it.
 * While a thread's guard is up, xmalloc and its kin (and so arenas and buffers) stop the program there.
 *
 * And a stretch of code that an allocation which fails ends, in place of the process: what is done for one client.
 *
 *     struct alloc_scope scope;
 *     alloc_scope_begin(&scope);
 *     if (setjmp(scope.env) == 0) {
 *         work();
 *         alloc_scope_end(&scope);
 *     } else { ... an allocation of work() failed ... }
 *
 * What work() had allocated by then is lost, unless somebody else knows it: the large things should be known. It holds
 * no lock where it allocates but one that it took with alloc_scope_lock, no frames of a library stand between, and
 * locals that it changes are volatile (C17, 7.13.2.1). */
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>

extern _Thread_local int alloc_guard_depth;

static inline void alloc_guard_begin(void) { alloc_guard_depth++; }
static inline void alloc_guard_end(void) { alloc_guard_depth--; }

struct alloc_scope {
    jmp_buf env;
    struct alloc_scope *outer;
    pthread_mutex_t *held; // is given back when an allocation fails
};
extern _Thread_local struct alloc_scope *alloc_scope; // the innermost of this thread; NULL: the process ends

static inline void alloc_scope_begin(struct alloc_scope *scope) {
    scope->outer = alloc_scope;
    scope->held = NULL;
    alloc_scope = scope;
}
static inline void alloc_scope_end(const struct alloc_scope *scope) { alloc_scope = scope->outer; }

/* A lock, one at a time, under which memory may run out; what it guards is as before when an allocation fails. */
static inline void alloc_scope_lock(pthread_mutex_t *lock) {
    pthread_mutex_lock(lock);
    if (alloc_scope)
        alloc_scope->held = lock;
}
static inline void alloc_scope_unlock(pthread_mutex_t *lock) {
    if (alloc_scope)
        alloc_scope->held = NULL;
    pthread_mutex_unlock(lock);
}

/* For libraries that say so themselves: ends the scope, or the process with a sentence. */
_Noreturn void alloc_failed(size_t n_bytes);
