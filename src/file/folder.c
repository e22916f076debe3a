/* folder.c - see folder.h. */
#include "file/folder.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

bool folder_name_is_plain(const char *name) { return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0; }

bool folder_has(const char *dir, const char *name) {
    char path[FOLDER_PATH_BYTES];
    struct stat st;
    return path_join(path, sizeof path, dir, name, NULL) == OK && lstat(path, &st) == 0;
}

// The length of path without its last component and the '/' before it.
static size_t parent_len(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

// dir is ROOT/snapshots/...: the length of ROOT; 0 when it is not.
static size_t hub_root_len(const char *dir) {
    static const char marker[] = "/snapshots/";
    const char *last = NULL;
    for (const char *p = strstr(dir, marker); p; p = strstr(p + 1, marker))
        last = p;
    return last ? (size_t)(last - dir) : 0;
}

static bool lies_inside(const char *real_dir, const char *real_file) {
    struct str parent = {real_file, parent_len(real_file)};
    if (str_eq(parent, str_of(real_dir)))
        return true;
    size_t root = hub_root_len(real_dir);
    return root && str_starts(parent, (struct str){real_dir, root}) &&
           str_eq((struct str){parent.ptr + root, parent.len - root}, STR("/blobs"));
}

enum status folder_file(const char *dir, const char *name, char path[FOLDER_PATH_BYTES], struct error *err) {
    if (!folder_name_is_plain(name))
        return fail(err, ERR_FORMAT, "%s: \"%s\" is not the name of a file in this folder", dir, name);
    TRY(path_join(path, FOLDER_PATH_BYTES, dir, name, err));
    char real_dir[PATH_MAX], real_file[PATH_MAX];
    if (!realpath(dir, real_dir))
        return fail(err, ERR_IO, "%s: cannot open: %s", dir, strerror(errno));
    if (!realpath(path, real_file))
        return fail(err, ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (!lies_inside(strcmp(real_dir, "/") == 0 ? "" : real_dir, real_file))
        return fail(err, ERR_FORMAT, "%s: leads to %s, outside the model's folder", path, real_file);
    return OK;
}
