/* status.h - how gyre reports faults of the world, and stops on its own mistakes.
 *
 * A function that can fail for a reason outside the program (a file, a number in a file, memory for
 * weights, a device) returns enum status and fills the caller's struct error with one sentence a user
 * can act on. The sentence names the file and the field. Nothing below main/ exits the process.
 *
 *     if (n_bytes > file_bytes - offset)
 *         return fail(err, ERR_FORMAT, "%s: tensor %s ends past the file", path, name);
 *     TRY(config_read(path, &cfg, err));              // hands the status up
 *
 * BUG_IF is for what only our own mistake can cause. It is compiled into every build, and no value read
 * from a request or a file may reach one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum status {
    OK = 0,
    ERR_IO,          // the operating system refused: open, read, map, write
    ERR_FORMAT,      // bytes that do not say what their format requires
    ERR_UNSUPPORTED, // well-formed, but asks for something that this build does not do
    ERR_ARG,         // an argument or a request field out of its range
    ERR_FULL,        // no room now (blocks, queue); asking again later may succeed
    ERR_MEMORY,      // a large allocation failed: weights, cache, device
    ERR_LIMIT,       // a stated bound on steps, depth, time or output was reached
    ERR_DEVICE,      // a device failed; sticky
};

struct error {
    enum status status;
    char text[704]; // one sentence, no newline, UTF-8; empty when status is OK
    char field[64]; // of a request, as its JSON names it: "tools[0].function.name"; empty where none is to blame
};

/* Writes the sentence (truncated to fit on a UTF-8 boundary; what steers a terminal and what is not UTF-8 become '?')
 * and returns `status`. err may be NULL. */
enum status fail(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* The same of a field of a request. One whose sentence begins with "field: " can be said by fail too (api/reply.c). A
 * name that does not fit is left out. */
enum status fail_field(struct error *err, enum status status, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

/* Puts "prefix: " before the sentence already in err; for adding the file's name on the way up. */
enum status fail_within(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

const char *status_name(enum status status);

#define TRY(call)                         \
    do {                                  \
        enum status try_status_ = (call); \
        if (try_status_ != OK)            \
            return try_status_;           \
    } while (0)

_Noreturn void bug(const char *file, int line, const char *condition) __attribute__((cold));
#define BUG_IF(condition)                        \
    do {                                         \
        if (__builtin_expect(!!(condition), 0))  \
            bug(__FILE__, __LINE__, #condition); \
    } while (0)

/* Small host allocations; they never return NULL (the process ends with a sentence, or the alloc_scope: guard.h). Sizes
 * that come from a file must have been bounded first. xcalloc checks n * size. Freed with free(). */
void *xmalloc(size_t n_bytes) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));
void *xrealloc(void *ptr, size_t n, size_t size) __attribute__((returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));

/* Checked arithmetic on sizes that come from outside: false when the result does not fit. */
static inline bool size_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
