/* overwrite.c - see overwrite.h. */
#include "file/overwrite.h"

#include "base/file.h"
#include "base/folder.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 16 }; // of folders

struct written {
    const char *path;
    struct stat is;
    struct error *err;
};

static enum status check_same(const struct written *w, const struct stat *is, const char *path) {
    if (is->st_dev == w->is.st_dev && is->st_ino == w->is.st_ino)
        return fail(w->err, ERR_ARG, "%s: would be written over %s, which is read; name another file", w->path, path);
    return OK;
}

static enum status check_file(const struct written *w, const char *path) {
    struct stat is;
    return stat(path, &is) == 0 ? check_same(w, &is, path) : OK;
}

/* The parts of a GGUF model that the file is one of. */
static enum status check_split(const struct written *w, const char *path) {
    char part[FOLDER_PATH_BYTES];
    int number, count = 0;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t stem = folder_part_of(name, ".gguf", &number, &count);
    for (int i = 1; stem && i <= count; i++) {
        int length = (int)(name - path) + (int)stem;
        if (snprintf(part, sizeof part, "%.*s-%05d-of-%05d.gguf", length, path, i, count) < (int)sizeof part)
            TRY(check_file(w, part));
    }
    return OK;
}

/* Links to folders are not followed, so there are no circles. */
static enum status check_folder(const struct written *w, const char *path, int depth) {
    char entry[FOLDER_PATH_BYTES];
    struct stat is;
    enum status st = OK;
    DIR *d = opendir(path);
    for (struct dirent *e; d && st == OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        st = path_join(entry, sizeof entry, path, e->d_name, w->err);
        if (st == OK && lstat(entry, &is) == 0 && S_ISDIR(is.st_mode))
            st = depth < MAX_DEPTH ? check_folder(w, entry, depth + 1) : OK;
        else if (st == OK)
            st = check_file(w, entry);
    }
    if (d)
        closedir(d);
    return st;
}

static enum status check_read(const struct written *w, const char *path) {
    struct stat is;
    if (strcmp(path, "-") == 0)
        return fstat(STDIN_FILENO, &is) == 0 ? check_same(w, &is, "standard input") : OK;
    if (dir_exists(path))
        return check_folder(w, path, 0);
    TRY(check_file(w, path));
    return check_split(w, path);
}

enum status overwrite_check(const char *out, int n, const char *const *read, struct error *err) {
    struct written w = {.path = out, .err = err};
    if (stat(out, &w.is) != 0 || !S_ISREG(w.is.st_mode))
        return OK;
    for (int i = 0; i < n; i++)
        if (read[i])
            TRY(check_read(&w, read[i]));
    return OK;
}
