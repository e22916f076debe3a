/* file.h - whole files as memory, and paths. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

/* A read-only map of a regular file. bytes is "" for an empty file.
 *
 * A file that shrinks while it is mapped would kill the process with SIGBUS when the lost pages are
 * read. file_map_open installs a handler once a process: a lost page inside a live map is replaced by
 * zeros, and file_map_damaged() tells afterwards. A fault elsewhere is passed on. */
struct file_map {
    const char *bytes;
    size_t n_bytes;
    size_t shift; // how far behind the beginning of a page bytes lies: not 0 for a copy alone
    int slot;     // registration with the SIGBUS handler; -1 if nothing is mapped
};

/* Maps path. ERR_IO when it cannot be opened or is no regular file; ERR_LIMIT when it has more than
 * max_bytes (0: no limit). Errors name the path. */
enum status file_map_open(struct file_map *map, const char *path, size_t max_bytes, struct error *err);

/* Puts a copy in memory in place of the map, which begins `shift` bytes, less than 4,096, behind the beginning of a
 * page: for numbers that lie at odd places of a file. On failure the map is as it was. */
enum status file_map_copy(struct file_map *map, const char *path, size_t shift, struct error *err);

void file_map_close(struct file_map *map); // a zeroed or closed map is fine

/* True when a page of this map was lost since it was opened: what was computed from it is worthless. */
bool file_map_damaged(const struct file_map *map);

/* Appends everything that can be read from path (a regular file, a pipe, "-" for standard input). */
enum status file_read(const char *path, size_t max_bytes, struct buf *out, struct error *err);

/* Writes path by way of a temporary file beside it and a rename, so that a reader sees all or nothing. */
enum status file_write(const char *path, struct str bytes, struct error *err);

bool file_exists(const char *path); // regular file or link to one
bool dir_exists(const char *path);

/* dir/name into a fixed buffer; ERR_LIMIT when it does not fit. */
enum status path_join(char *out, size_t out_bytes, const char *dir, const char *name, struct error *err);
