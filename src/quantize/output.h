/* output.h - a file, or a folder of files, that is there whole or not at all.
 *
 * What is written goes beside the place it is for, under a name of its own ("OUT.XXXXXX"), and gets the right name at
 * the end. Whether the disk has room is asked first. */
#pragma once

#include "base/folder.h"
#include "base/str.h"

struct output { // path is NULL when there is nothing to abandon
    int fd;
    bool is_folder;
    char temporary[FOLDER_PATH_BYTES];
    const char *path; // borrowed
};

/* ERR_FULL, with both figures, where the file system of `path` has less than n_bytes. */
enum status output_check_room(const char *path, uint64_t n_bytes, struct error *err);

/* Errors leave nothing behind; so does output_abandon, which is fine for a zeroed struct. */
enum status output_begin(struct output *o, const char *path, struct error *err);
enum status output_write(struct output *o, const void *bytes, size_t n, struct error *err);
enum status output_commit(struct output *o, struct error *err);
void output_abandon(struct output *o);

/* Bytes at a place of the file; what was not written before is zeros. */
enum status output_write_at(struct output *o, uint64_t offset, const void *bytes, size_t n, struct error *err);

/* A folder beside `path`, which must not be there, or be an empty folder. output_commit_folder gives it the name. */
enum status output_begin_folder(struct output *o, const char *path, struct error *err);
enum status output_commit_folder(struct output *o, struct error *err);
