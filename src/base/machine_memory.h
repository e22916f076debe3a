/* machine_memory.h - how much memory a process may have, and how much of it is left: the machine's, less where a
 * control group (of version 1 or 2, as containers and services have them) or ulimit -v allows less. */
#pragma once

#include "base/status.h"

struct machine_memory {
    int64_t total; // bytes that there are, of whatever bounds this process most tightly
    int64_t
        available; // of them, that could be taken now without swapping: free, or held by files that can be read again
    const char *whose; // "the machine's", "the control group's", "ulimit -v's": of which `available` is
    int64_t of_these;  // bytes that this owner has, which may be more than the total
};

/* Asks the system. What it does not tell is taken for unbounded; where nothing is told, both are 4 GiB. */
void machine_memory_get(struct machine_memory *out);

/* The same of another root folder's /proc and /sys/fs/cgroup, and without ulimit; for tests. */
void machine_memory_read(const char *root, struct machine_memory *out);
