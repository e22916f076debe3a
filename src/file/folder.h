/* folder.h - files of a model folder by name, without leaving the folder.
 *
 * A model folder may come from a stranger: a shard index can name "../../etc/passwd" and a folder can
 * hold a link to it. So names are plain (no '/', not "." or ".."), and the file that a name leads to,
 * with all links followed, must lie
 *
 *   - directly in the folder's own real directory, or,
 *   - when that directory is ROOT/snapshots/REVISION[/...], as in the hub's cache, directly in ROOT/blobs:
 *         models--org--name/snapshots/REV/model.safetensors -> ../../blobs/HASH
 *
 * Anything else is refused with the place it leads to. The path of the folder itself is the user's own and
 * may go through any links. */
#pragma once

#include "base/status.h"

enum { FOLDER_PATH_BYTES = 4096 };

bool folder_name_is_plain(const char *name);

/* True when the folder has an entry of that name, be it a link that leads nowhere. */
bool folder_has(const char *dir, const char *name);

/* Writes dir/name to path after the checks above. ERR_FORMAT when the name or the link is refused, ERR_IO
 * when there is no such file. */
enum status folder_file(const char *dir, const char *name, char path[FOLDER_PATH_BYTES], struct error *err);
