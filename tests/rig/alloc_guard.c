/* alloc_guard.c - what base/guard.h promises, for the C library's own functions too: linked into every test, an
 * allocation by anybody on a thread whose guard is up stops the program. Sanitizers bring their own malloc, and what
 * the CUDA driver and PJRT plugins do inside a step is not ours to forbid. */
#include "base/guard.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OTHER_MALLOC
#endif
#endif
#if !defined(OTHER_MALLOC) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)

void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *ptr, size_t n_bytes);

static bool has_driver(void) {
    const char *backend = getenv("GYRE_TEST_BACKEND");
    return backend && (strcmp(backend, "cuda") == 0 || strcmp(backend, "xla") == 0);
}

static void check(void) {
    static const char sentence[] = "an allocation where base/guard.h forbids it\n";
    if (alloc_guard_depth > 0 && !has_driver()) {
        alloc_guard_depth = 0;
        if (write(STDERR_FILENO, sentence, sizeof sentence - 1) >= 0)
            abort();
    }
}

void *malloc(size_t n_bytes) {
    check();
    return __libc_malloc(n_bytes);
}

void *calloc(size_t n, size_t size) {
    check();
    return __libc_calloc(n, size);
}

void *realloc(void *ptr, size_t n_bytes) {
    check();
    return __libc_realloc(ptr, n_bytes);
}

#endif
