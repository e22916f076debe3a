/* checkpoint.h - the weights of a model as named tensors: opens a folder or a file and maps it.
 *
 *     struct checkpoint *c;
 *     TRY(checkpoint_open(&c, "models/story", &err));
 *     struct stored_tensor *t = checkpoint_find(c, "model.norm.weight");    // NULL when there is none
 *     for (size_t i = 0; i < checkpoint_count(c); i++) ... checkpoint_at(c, i)
 *     checkpoint_free(c);
 *
 * What PATH may be:
 *   a folder with model.safetensors                   that file (as in transformers it wins over an index)
 *   a folder with model.safetensors.index.json        the shards that the index names
 *   a folder with X-00001-of-00002.safetensors ...    those, all of them
 *   a file whose name ends in .safetensors            that file
 *   a GGUF file, or a folder without safetensors that has one (gguf_find.h)     it, and the others of its split
 *
 * Each file obeys safetensors.h or gguf_tensors.h, the index shard_index.h, and every file is found by the rules of
 * folder.h. Of a split GGUF file all parts must be there, say the same place as their names, and have together as many
 * tensors as split.tensors.count says.
 * With an index, a missing shard or tensor is refused by name; tensors of the shards that it does not list, or lists
 * elsewhere, are read as the others.
 *
 * Nothing is copied but safetensors files whose data begin at no multiple of 8 bytes; those are memory of the process.
 * Of the others opening reads only the headers: 100,000 tensors take half a second of one core, most of it JSON.
 * Not thread-safe while marks are written; reading is. */
#pragma once

#include "base/arena.h"
#include "base/load_progress.h"
#include "base/status.h"
#include "file/stored.h"

#include <stdatomic.h>

struct checkpoint;

enum status checkpoint_open(struct checkpoint **out, const char *path, struct error *err);
void checkpoint_free(struct checkpoint *c); // NULL is fine; every tensor of c dies with it

struct stored_tensor *checkpoint_find(const struct checkpoint *c, const char *name);
size_t checkpoint_count(const struct checkpoint *c);
size_t checkpoint_unlisted(const struct checkpoint *c); // how many an index does not list
struct stored_tensor *checkpoint_at(const struct checkpoint *c,
                                    size_t i); // in the order of files and offsets, i < count

/* Gives the tensors other names, and takes stacks of them apart: `rename` appends to `out` what a tensor becomes, with
 * names that live in `arena` or as long as c, and stored_name as the file has it. Data are not moved. A name that is
 * there twice then is refused as when opening. */
typedef enum status (*tensor_rename)(void *arg, const struct stored_tensor *t, struct arena *arena,
                                     struct stored_list *out, struct error *err);
enum status checkpoint_rename(struct checkpoint *c, tensor_rename rename, void *arg, struct error *err);

/* The path of the file a tensor is in, for sentences. */
const char *checkpoint_path(const struct checkpoint *c, const struct stored_tensor *t);

/* Reads what of the files is not in memory, in order and with large reads, so that whoever touches every weight next
 * does not fault them in page by page: a cold disk gives its full rate, and pages are large ones where the system
 * keeps files in such. Does nothing when the files are larger than
 * what of the memory is free, since the first would be dropped before it is used. */
void checkpoint_read_ahead(const struct checkpoint *c, const struct load_progress *progress);

/* The same of some tensors alone: wanted[i] of checkpoint_at(c, i). Those that lie side by side are read together. */
void checkpoint_read_ahead_some(const struct checkpoint *c, const bool *wanted, const struct load_progress *progress);

/* Of the same tensors: what the system keeps in small pages is copied into large ones (base/large_pages.h), until *stop
 * is set. Nothing is, where memory has no room for the copies, the files and `reserved` bytes beside one another, or
 * where so little is read that caches hold a part of it. Returns the bytes that were copied. */
int64_t checkpoint_put_in_large_pages(const struct checkpoint *c, const bool *wanted, int64_t reserved,
                                      const atomic_bool *stop);

/* ERR_IO with the file's name when a file lost bytes since it was opened (somebody cut it while it was
 * mapped): lost pages read as zeros, so whatever was computed from them is worthless. Cheap; ask after
 * loading and before handing out results. */
enum status checkpoint_check(const struct checkpoint *c, struct error *err);
