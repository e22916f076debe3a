/* large_pages.h - memory that is read again and again, in large pages: the walks of page tables that small ones take
 * limit how fast it is read. */
#pragma once

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>

/* Bytes of [at, at + n_bytes) that could lie in large pages of the process's own, and lie in small ones; 0 where the
 * system gives no large ones. What it keeps of a file in large pages is left as it is, where it tells (Linux 6.7). */
int64_t large_pages_missing(const void *at, size_t n_bytes);

/* Puts copies in large pages of the process's own, read-only, in place of what is missing, at the same addresses: of a
 * private map that is not written. Other threads may read it meanwhile, and what the file loses afterwards is not lost
 * here. What the system refuses, and what is left when *stop is set, stays as it is. Returns what was put, in bytes. */
int64_t large_pages_put(const void *at, size_t n_bytes, const atomic_bool *stop);
