/* abi.h - structs of gyre.h from callers that were built with another version of it.
 *
 * A struct's first member, struct_size, is its size in the caller's header. A shorter struct is an older one: what it
 * lacks is zero. A longer one is newer: what this version does not know must be zero, or the caller would get something
 * other than it asked for. 0 stands for the struct of version 0.1. */
#pragma once

#include "gyre.h"

#include "base/status.h"

/* The size of a struct whose last member is `field`. */
#define ABI_SIZE_UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

struct abi_struct {
    const char *name;
    size_t size;  // here
    size_t least; // in version 0.1
};

extern const struct abi_struct abi_options, abi_request;

/* Copies what the caller gave into `out`, [layout->size] bytes, the first of which become the size. */
enum status abi_read(const struct abi_struct *layout, const void *from, void *out, struct error *err);

/* The other way: fills the caller's struct of `size` bytes from ours, and sets its struct_size. */
void abi_write(const struct abi_struct *layout, const void *from, void *out, size_t size);
