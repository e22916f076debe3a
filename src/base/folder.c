/* folder.c - see folder.h. */
#include "base/folder.h"

#include "base/file.h"
#include "base/str.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

bool folder_allow_links;

bool folder_name_is_plain(const char *name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

size_t folder_part_of(const char *name, const char *ending, int *number, int *count) {
    static const char form[] = "-00000-of-00000";
    size_t n = strlen(name), n_form = sizeof form - 1, n_ending = strlen(ending);
    if (n <= n_form + n_ending || strcmp(name + n - n_ending, ending) != 0)
        return 0;
    const char *p = name + n - n_ending - n_form;
    for (size_t i = 0; i < n_form; i++)
        if (form[i] == '0' ? p[i] < '0' || p[i] > '9' : p[i] != form[i])
            return 0;
    *number = atoi(p + 1);
    *count = atoi(p + sizeof "-00000-of-" - 1);
    return (size_t)(p - name);
}

bool folder_name_stays_below(const char *name) {
    for (const char *p = name;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
        if (!*p)
            return true;
    }
}

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

// real_file lies in ROOT/blobs; a link in its place may lead to a folder of that name, or to files that are named like
// blobs.
static bool is_hub_blob(const char *real_dir, const char *real_file) {
    char blobs[PATH_MAX], real_blobs[PATH_MAX];
    size_t root = hub_root_len(real_dir), parent = parent_len(real_file);
    if (!root || root + sizeof "/blobs" > sizeof blobs)
        return false;
    memcpy(blobs, real_dir, root);
    strcpy(blobs + root, "/blobs");
    if (!realpath(blobs, real_blobs) || !str_eq((struct str){real_file, parent}, str_of(real_blobs)))
        return false;
    const char *name = real_file + parent + 1;
    return str_ends(str_of(real_blobs), STR("/blobs")) || name[strspn(name, "0123456789abcdef")] == '\0';
}

static bool lies_inside(const char *real_dir, const char *real_file) {
    size_t n = strlen(real_dir);
    return (strncmp(real_file, real_dir, n) == 0 && real_file[n] == '/') || is_hub_blob(real_dir, real_file);
}

enum status folder_file(const char *dir, const char *name, char path[FOLDER_PATH_BYTES], struct error *err) {
    if (!folder_name_stays_below(name))
        return fail(err, ERR_FORMAT, "%s: \"%s\" is not the name of a file in this folder", dir, name);
    TRY(path_join(path, FOLDER_PATH_BYTES, dir, name, err));
    char real_dir[PATH_MAX], real_file[PATH_MAX];
    struct stat st;
    if (!realpath(dir, real_dir))
        return fail(err, ERR_IO, "%s: cannot open: %s", dir, strerror(errno));
    if (!realpath(path, real_file) || stat(real_file, &st) != 0)
        return fail(err, ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (!folder_allow_links && !lies_inside(strcmp(real_dir, "/") == 0 ? "" : real_dir, real_file))
        return fail(err, ERR_FORMAT, "%s: leads to %s, outside the model's folder; --allow-links follows such links",
                    path, real_file);
    return S_ISREG(st.st_mode) ? OK : fail(err, ERR_IO, "%s: not a regular file", path);
}

enum status folder_find(const char *dir, const char *name, char path[FOLDER_PATH_BYTES], bool *found,
                        struct error *err) {
    TRY(path_join(path, FOLDER_PATH_BYTES, dir, name, err));
    *found = folder_has(dir, name) && !dir_exists(path);
    return *found ? folder_file(dir, name, path, err) : OK;
}
