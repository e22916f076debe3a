/* safetensors_write.h - the header of a safetensors file, and where each tensor's data go. Format: safetensors.h. */
#pragma once

#include "base/buf.h"
#include "core/dtype.h"
#include "file/stored.h"

struct new_tensor {
    const char *name; // borrowed
    enum dtype dtype;
    int rank;
    int64_t shape[STORED_MAX_RANK]; // outermost first
    uint64_t offset;                // from the beginning of the file
};

uint64_t new_tensor_bytes(const struct new_tensor *t);

/* Sets the offsets, so that larger elements come first and none begins amiss, and appends everything in front of the
 * data. Returns the size of the whole file. Who calls names no tensor twice. */
uint64_t safetensors_write_head(struct new_tensor *tensors, size_t n, struct buf *out);
