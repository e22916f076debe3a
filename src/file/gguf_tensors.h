/* gguf_tensors.h - the tensors of one GGUF file: where each lies, and which format its type is.
 *
 * Types that are read: F32, F16, BF16, F64, I8, I16, I32 and I64 as elements; those of core/qformat.h's BLOCK_FORMATS
 * as rows of blocks. Others are refused by name, with the tensor. Shapes are turned round: outermost first.
 *
 * Refused besides, with one sentence that names the file and the tensor: a product of dimensions that does not fit; a
 * row that is no whole number of blocks; data past the end of the file; overlaps. Bytes that belong to no tensor are
 * allowed, since writers pad. */
#pragma once

#include "base/arena.h"
#include "base/gguf/gguf.h"
#include "file/stored.h"

/* Appends the tensors of g, whose n_bytes are at `bytes`, to `list` in the order of their data, with `file` as given.
 * Names are copied to `names`. After an error the list holds what it held before. */
enum status gguf_tensors(const struct gguf *g, const char *bytes, size_t n_bytes, int file, struct arena *names,
                         struct stored_list *list, struct error *err);

/* The number of a type, for writers: of elements of a dtype (format QFORMAT_PLAIN), or of blocks. */
uint32_t gguf_type_number(enum dtype dtype, enum qformat_id format);
