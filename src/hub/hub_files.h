/* hub_files.h - which files of a repository a model needs: weights, settings and tokenizer, and never code. */
#pragma once

#include "base/json/json.h"
#include "hub/hub_name.h"

enum { HUB_FILE_BYTES = 256, HUB_HASH_BYTES = 65 };

struct hub_file {
    char name[HUB_FILE_BYTES];
    char hash[HUB_HASH_BYTES]; // hexadecimal: 64 digits are SHA-256 of the bytes, 40 SHA-1 of git's blob of them
    int64_t n_bytes;
};

struct hub_listing {
    char commit[HUB_HASH_BYTES];
    struct hub_file *files;
    size_t n;
};

/* Reads what /api/models/REPO/revision/REV?blobs=true answers. where: what the server is called in errors. The server
 * is not trusted: names that leave the folder, hashes that are none and sizes below zero are faults. */
enum status hub_listing_read(const json_t *answer, const char *where, struct hub_listing *out, struct error *err);
void hub_listing_release(struct hub_listing *listing);

/* The index of shards, where it must be read before files can be chosen, as there are safetensors in folders below the
 * root: its shards, or other models. NULL: not here. */
const struct hub_file *hub_files_index(const struct hub_listing *listing, const struct hub_name *name);

/* Leaves in the listing what the model needs, in the order in which to fetch it: small files first. With safetensors
 * in the repository and no quant in the name: config, tokenizer, templates and all safetensors of the root, without
 * consolidated ones where others are, and those in folders that are keys of `shards`, the files that the index names
 * (NULL: none); else the GGUF file of that type, all of its parts. ERR_ARG names the types there are where the name
 * says none and several fit; ERR_UNSUPPORTED where there are only weights that are not read. */
enum status hub_files_choose(struct hub_listing *listing, const struct hub_name *name, const json_t *shards,
                             struct error *err);

/* Whether a file's name says that it is a GGUF model of that type; quant empty: of any type. */
bool hub_file_is_gguf(const char *file, const char *quant);

/* The parts of NAME-00002-of-00005.gguf: 5, and *part 2; otherwise 1. */
int hub_file_parts(const char *file, int *part);
