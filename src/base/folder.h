/* folder.h - files of a model folder by name, without leaving the folder.
 *
 * A model folder may come from a stranger: a shard index can name "../../etc/passwd", and git and tar carry links. So
 * every file of a model is found here. A name is relative and never goes up, and the file that it leads to, with all
 * links followed, must lie
 *
 *   - below the folder's own real directory, as in a Kubernetes volume
 *         config.json -> ..data/config.json, ..data -> ..2026_01_01
 *     or,
 *   - when that directory is ROOT/snapshots/REVISION[/...], as in the hub's cache, directly in ROOT/blobs:
 *         models--org--name/snapshots/REV/model.safetensors -> ../../blobs/HASH
 *     ROOT/blobs may be a link itself, as when the cache was moved to another disk: to a folder called blobs, or
 *     for files that are called by hexadecimal digits only, as the hub's are. A link to ~/.ssh is neither.
 *
 * Anything else is refused with the place it leads to, unless folder_allow_links is set (--allow-links). The path of
 * the folder itself is the user's own and may go through any links. */
#pragma once

#include "base/status.h"

enum { FOLDER_PATH_BYTES = 4096 };

extern bool folder_allow_links; // false; to be set before a second thread runs

bool folder_name_is_plain(const char *name);    // one component: no '/', not "." or ".."
bool folder_name_stays_below(const char *name); // one or more of those with '/' between them

/* Of a name STEM-00002-of-00003ENDING, a file of several: the length of STEM, which file it is and of how many, as the
 * name says; 0 for another name. ending has its dot. */
size_t folder_part_of(const char *name, const char *ending, int *number, int *count);

/* True when the folder has an entry of that name, be it a link that leads nowhere. */
bool folder_has(const char *dir, const char *name);

/* Writes dir/name to path after the checks above. ERR_FORMAT when the name or the link is refused, ERR_IO when there is
 * no such file or it is no regular one. */
enum status folder_file(const char *dir, const char *name, char path[FOLDER_PATH_BYTES], struct error *err);

/* The same for a file that need not be there: then *found is false, and path dir/name all the same. A folder of that
 * name is no file; a link that leads nowhere is refused. */
enum status folder_find(const char *dir, const char *name, char path[FOLDER_PATH_BYTES], bool *found,
                        struct error *err);
