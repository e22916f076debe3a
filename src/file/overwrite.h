/* overwrite.h - that what is to be written is none of what is read.
 *
 *     TRY(overwrite_check(out, 2, (const char *const[]){model, text}, &err));    // before work begins
 *
 * A file that is written by way of a rename takes the place of the old one without a word. A verb that writes beside
 * what it reads asks here first. Files are compared by device and inode, so another path, a link or a hard link to one
 * is seen as well. */
#pragma once

#include "base/status.h"

/* `read` [n]: what is read, of which each is
 *   a file               itself, and when it is one of a split GGUF model all of that
 *   a folder             every file in it and in the folders below
 *   "-"                  the file that standard input is
 *   NULL                 nothing
 * ERR_ARG names `out` and what it would take the place of. A path that is not there is passed over: who opens it
 * tells. An `out` that is not there is always fine. */
enum status overwrite_check(const char *out, int n, const char *const *read, struct error *err);
