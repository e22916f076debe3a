/* safetensors.h - one safetensors file, from bytes to tensors, with every rule of the format checked.
 *
 *     0        8                    8+N                                    file end
 *     | N: u64 | JSON object, N bytes | data: the tensors, one after another |
 *
 *     {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *      "__metadata__": {"text": "text"}}                     offsets count from the start of data
 *
 * Refused, each with one sentence that names the file and, where there is one, the tensor: N over 100 MB
 * or past the end of the file; a header that is not a JSON object starting at its first byte, or has a key
 * twice; an entry without dtype, shape and offsets, or with a dtype unknown to core/dtype.h, more than 8
 * dimensions, a negative one, or a product that does not fit; offsets that are reversed, past the end of
 * the file, or of another length than shape and dtype give; overlaps, holes, and bytes after the last
 * tensor (the format wants all of data covered); a tensor whose address is no multiple of its element size,
 * because nothing is copied here and the kernels read elements where they lie. The format wants data to begin
 * nowhere in particular, and writers of 2022 and 2023 did not fill the header up. */
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "file/stored.h"

/* Where data begin in such a file, as far as its first 8 bytes tell; 0 where there are none. */
uint64_t safetensors_data_begin(const char *bytes, size_t n_bytes);

/* Appends the tensors of one file to `list` in the order of their data, with `file` as given.
 *
 * The file is the n_bytes at `bytes`, placed so that its data begin at a multiple of 8; names are copied to `names`,
 * data is not copied. On failure the list holds what it held before. O(n log n) in the number of tensors. */
enum status safetensors_parse(const char *bytes, size_t n_bytes, const char *path, int file, struct arena *names,
                              struct stored_list *list, struct error *err);
