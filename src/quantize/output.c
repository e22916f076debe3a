/* output.c - see output.h. */
#include "quantize/output.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void folder_of(const char *path, char out[FOLDER_PATH_BYTES]) {
    const char *slash = strrchr(path, '/');
    snprintf(out, FOLDER_PATH_BYTES, "%.*s", slash ? MAX((int)(slash - path), 1) : 1, slash ? path : ".");
}

enum status output_check_room(const char *path, uint64_t n_bytes, struct error *err) {
    char folder[FOLDER_PATH_BYTES];
    struct statvfs fs;
    folder_of(path, folder);
    if (statvfs(folder, &fs) != 0)
        return fail(err, ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes >= n_bytes)
        return OK;
    return fail(err, ERR_FULL, "%s: takes %.2f GB, and %s has %.2f GB free", path, (double)n_bytes * 1e-9, folder,
                (double)free_bytes * 1e-9);
}

enum status output_begin(struct output *o, const char *path, struct error *err) {
    *o = (struct output){.fd = -1, .path = path};
    int n = snprintf(o->temporary, sizeof o->temporary, "%s.XXXXXX", path);
    if (n < 0 || (size_t)n >= sizeof o->temporary)
        return fail(err, ERR_LIMIT, "%.80s...: path too long", path);
    o->fd = mkstemp(o->temporary);
    if (o->fd >= 0)
        return OK;
    o->path = NULL;
    return fail(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
}

enum status output_write(struct output *o, const void *bytes, size_t n, struct error *err) {
    const char *at = bytes;
    while (n > 0) {
        ssize_t done = write(o->fd, at, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail(err, ERR_IO, "%s: cannot write: %s", o->path, strerror(done < 0 ? errno : ENOSPC));
        at += done;
        n -= (size_t)done;
    }
    return OK;
}

enum status output_write_at(struct output *o, uint64_t offset, const void *bytes, size_t n, struct error *err) {
    if (lseek(o->fd, (off_t)offset, SEEK_SET) < 0)
        return fail(err, ERR_IO, "%s: cannot write: %s", o->path, strerror(errno));
    return output_write(o, bytes, n, err);
}

/* Of the files that were put into it, without folders below. */
static void remove_folder(const char *path) {
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(path);
}

enum status output_begin_folder(struct output *o, const char *path, struct error *err) {
    *o = (struct output){.fd = -1, .is_folder = true};
    if (access(path, F_OK) == 0 && rmdir(path) != 0)
        return fail(err, ERR_ARG, "%s: is there already, and is no empty folder", path);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    int written = snprintf(o->temporary, sizeof o->temporary, "%.*s.XXXXXX", (int)n, path);
    if (written < 0 || (size_t)written >= sizeof o->temporary)
        return fail(err, ERR_LIMIT, "%.80s...: path too long", path);
    if (!mkdtemp(o->temporary) || chmod(o->temporary, 0755) != 0)
        return fail(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    o->path = path;
    return OK;
}

enum status output_commit_folder(struct output *o, struct error *err) {
    if (rename(o->temporary, o->path) != 0) {
        enum status st = fail(err, ERR_IO, "%s: cannot write: %s", o->path, strerror(errno));
        output_abandon(o);
        return st;
    }
    o->path = NULL;
    return OK;
}

void output_abandon(struct output *o) {
    if (!o->path)
        return;
    if (o->fd >= 0)
        close(o->fd);
    if (o->is_folder)
        remove_folder(o->temporary);
    else
        unlink(o->temporary);
    o->path = NULL;
}

enum status output_commit(struct output *o, struct error *err) {
    bool good = fchmod(o->fd, 0644) == 0 && fsync(o->fd) == 0;
    good = close(o->fd) == 0 && good;
    o->fd = -1;
    if (!good || rename(o->temporary, o->path) != 0) {
        enum status st = fail(err, ERR_IO, "%s: cannot write: %s", o->path, strerror(errno));
        output_abandon(o);
        return st;
    }
    o->path = NULL;
    return OK;
}
