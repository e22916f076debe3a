/* device.h - a CUDA runtime and a cuBLASLt that compute nothing, in place of NVIDIA's: the backend's host code runs on
 * them as it is, launchers of the .cu files and all, on a machine without a GPU. Memory is the host's, kernels and
 * products are looked at and dropped, graphs are lists.
 *
 * What is looked at, as a device would: grids, threads and shared memory of a launch beside the limits of sm_90; calls
 * that may not be made while a stream is captured; what is given back twice, or never. Any call can be made to fail.
 * What kernels compute is for a GPU to test. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum dry_fault {
    DRY_ONCE, // this call only, as where memory is short
    DRY_LOST  // this call and all behind it: the context is gone
};

/* From here on the fail_at-th of the calls that can fail does; 0: none. Counts begin anew, and no error is left. */
void dry_begin(int64_t fail_at, enum dry_fault fault);
int64_t dry_calls(void);             // so far, of those that can fail
const char *dry_failed(void);        // the function that was made to; NULL: none yet
const char *dry_failed_kernel(void); // likewise, where that was a launch
int64_t dry_alive(void);             // what was made and not given back: memory, streams, events, graphs, descriptions
void dry_list_alive(void);           // on stderr
int64_t dry_unordered(void);         // writes to the device on the stream that a non-blocking one does not wait for
int64_t dry_most_rows(void);         // of a grid that was launched or recorded: its second dimension
int64_t dry_row_copies(void);        // calls of cudaMemcpy2DAsync
void dry_limit_pitch(int most);      // bytes from row to row that a device takes, 2^31 - 1 unless told
const char *dry_misuse(void);        // the first thing that no program should do; NULL: none
