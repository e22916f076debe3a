/* guard.h - a stretch of code in which nothing may be allocated.
 *
 * A step of the engine runs many times a second for weeks: memory that it took would grow, fragment or stall it.
 * While a thread's guard is up, xmalloc and its kin (and so arenas and buffers) stop the program there. */
#pragma once

extern _Thread_local int alloc_guard_depth;

static inline void alloc_guard_begin(void) { alloc_guard_depth++; }
static inline void alloc_guard_end(void) { alloc_guard_depth--; }
