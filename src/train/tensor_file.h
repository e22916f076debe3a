/* tensor_file.h - tensors in memory as a safetensors file, which appears whole or not at all. */
#pragma once

#include "file/safetensors_write.h"

struct memory_tensor {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t shape[2]; // outermost first
    const void *data;
};

/* Writes a file beside `path` and renames it. Up to 16 tensors. */
enum status tensor_file_write(const char *path, const struct memory_tensor *tensors, size_t n, struct error *err);
