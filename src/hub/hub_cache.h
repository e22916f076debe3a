/* hub_cache.h - the hub's cache on this machine, in the layout of its own tools, which share it.
 *
 *     ROOT/models--ORG--NAME/blobs/HASH              the bytes, by SHA-256 (large files) or git's SHA-1
 *     ROOT/models--ORG--NAME/snapshots/COMMIT/FILE   a link to the blob
 *     ROOT/models--ORG--NAME/refs/REVISION           the commit that a branch or a tag had when it was last asked for
 *
 * ROOT is $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub. */
#pragma once

#include "base/folder.h"
#include "hub/hub_name.h"

#include <stdint.h>

/* ERR_ARG where no variable says where the cache is. */
enum status hub_cache_root(char out[FOLDER_PATH_BYTES], struct error *err);

/* ROOT/models--ORG--NAME, whether or not it is there. */
enum status hub_cache_folder(const struct hub_name *name, char out[FOLDER_PATH_BYTES], struct error *err);

/* What to open for a model that is here in full: the snapshot's folder, or the (first) GGUF file in it. False: it is
 * not here, or a part of it is missing. */
bool hub_cache_find(const struct hub_name *name, char out[FOLDER_PATH_BYTES]);

/* ORG/NAME of a path within a snapshot of such a cache; false for any other path. */
bool hub_cache_repo_of(const char *path, char out[HUB_REPO_BYTES]);

/* One snapshot of the cache. */
struct hub_entry {
    char repo[HUB_REPO_BYTES], revision[HUB_WORD_BYTES]; // the commit's first letters where no branch points to it
    char path[FOLDER_PATH_BYTES];
    uint64_t n_bytes;
    int64_t used; // seconds since 1970: when a file of it was last changed
    bool whole;
};

/* Calls each() for every snapshot, in order of names; a false ends it. No cache is as an empty one. */
enum status hub_cache_each(bool (*each)(void *arg, const struct hub_entry *entry), void *arg, struct error *err);

/* Removes a model: all of it, or what this revision alone has. *n_bytes: what the disk gets back. ERR_IO where it is
 * not here. Links are removed and never followed. */
enum status hub_cache_remove(const struct hub_name *name, bool whole, uint64_t *n_bytes, struct error *err);

/* ---- for who fills it ---- */

/* mkdir -p. */
enum status hub_cache_make(const char *dir, struct error *err);

/* snapshots/COMMIT/FILE becomes a link to blobs/HASH; what was there is replaced. */
enum status hub_cache_link(const char *folder, const char *commit, const char *file, const char *hash,
                           struct error *err);
