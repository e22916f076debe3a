/* manifest.h - which kernels the library was built with, and whether those that were loaded are them.
 *
 * tools/kernels.py writes the list when the library is linked. A start compares it with the device code in memory, so
 * that a library that is damaged or was put together from several builds, one for another card, and a driver that is
 * too old are refused with a sentence, before a kernel gives wrong numbers or a launch fails in the middle. Knows
 * nothing of CUDA's headers. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kernel_file {
    const char *name;       // of the .cu
    uint64_t n_bytes, hash; // of its device code: XXH3
    int first, n;           // of the names
};

/* What kernels were compiled for. */
struct kernel_arch {
    int number;   // 80: sm_80; 90: sm_90a
    bool is_fast; // every .cu was; else plain kernels alone (build.mk)
};

/* One for each .cu of the build. */
struct kernel_list {
    const struct kernel_file *files; // [n_files]
    const char *const *names;        // [n_names], mangled
    const struct kernel_arch *archs; // [n_archs], by number
    int n_files, n_names, n_archs;
};
extern const struct kernel_list kernel_list; // of this library

struct machine_found {
    const char *card;         // of a GPU that is not there its name: device, driver and runtime are not used. Else NULL
    int device, major, minor; // the GPU and its compute capability
    int driver, runtime;      // as CUDA counts: 13000; driver 0: there is none
};

/* ERR_UNSUPPORTED says what does not go together, and what to do. */
enum status manifest_check_driver(const struct machine_found *m, struct error *err);

/* Which of the list's code the GPU runs: that of its generation with the largest number up to its own. */
enum status manifest_check_card(const struct kernel_list *list, const struct machine_found *m,
                                const struct kernel_arch **out, struct error *err);

/* Hashes the device code of the object that the list is in: 10 MB, about a millisecond. ERR_FORMAT names the file that
 * differs. */
enum status manifest_check_code(const struct kernel_list *list, struct error *err);

/* A name for the build's device code: other for any kernel that differs. */
uint64_t manifest_hash(const struct kernel_list *list);
