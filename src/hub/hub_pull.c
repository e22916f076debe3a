/* hub_pull.c - see hub_pull.h. */
#include "hub/hub_pull.h"

#include "base/file.h"
#include "hub/hub_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct pull {
    const struct hub_name *name;
    const struct hub_progress *progress;
    struct hub_server server;
    struct hub_listing listing;
    char folder[FOLDER_PATH_BYTES];
    struct hub_blob *blobs; // what is missing
    size_t n_blobs;
    int64_t n_missing; // bytes of these
    int64_t n_index;   // and of an index that came before
    int64_t checked;
};

static enum status blob_path(const struct pull *p, const char *hash, char out[FOLDER_PATH_BYTES], struct error *err) {
    int n = snprintf(out, FOLDER_PATH_BYTES, "%s/blobs/%s", p->folder, hash);
    return n > 0 && n < FOLDER_PATH_BYTES ? OK : fail(err, ERR_LIMIT, "%s: the path is too long", p->folder);
}

static bool is_listed(const struct pull *p, const char *hash) {
    for (size_t i = 0; i < p->n_blobs; i++)
        if (strcmp(p->blobs[i].hash, hash) == 0)
            return true;
    return false;
}

static enum status find_missing(struct pull *p, struct error *err) {
    p->blobs = xcalloc(p->listing.n + 1, sizeof *p->blobs);
    for (size_t i = 0; i < p->listing.n; i++) {
        const struct hub_file *f = &p->listing.files[i];
        struct hub_blob *blob = &p->blobs[p->n_blobs];
        struct buf url = {0};
        struct stat st;
        TRY(blob_path(p, f->hash, blob->path, err));
        if ((stat(blob->path, &st) == 0 && st.st_size == f->n_bytes) || is_listed(p, f->hash))
            continue;
        hub_file_url(&p->server, p->name->repo, p->listing.commit, f->name, &url);
        blob->url = url.ptr;
        blob->n_bytes = f->n_bytes;
        strcpy(blob->hash, f->hash);
        p->n_blobs++;
        p->n_missing += f->n_bytes;
    }
    return OK;
}

/* What came of them before counts as free: it is no more than they will be. */
static enum status check_room(const struct pull *p, struct error *err) {
    char part[FOLDER_PATH_BYTES + 16];
    struct statvfs disk;
    struct stat st;
    int64_t wanted = p->n_missing;
    for (size_t i = 0; i < p->n_blobs; i++) {
        snprintf(part, sizeof part, "%s.gyre-part", p->blobs[i].path);
        if (stat(part, &st) == 0)
            wanted -= (int64_t)st.st_blocks * 512;
    }
    if (statvfs(p->folder, &disk) != 0 || wanted <= 0)
        return OK;
    double room = (double)disk.f_bavail * (double)disk.f_frsize;
    return (double)wanted <= room ? OK
                                  : fail(err, ERR_FULL,
                                         "%s: needs %.1f GiB more, and the disk of %s has %.1f GiB; HF_HUB_CACHE names "
                                         "another folder",
                                         p->name->repo, (double)wanted / (1 << 30), p->folder, room / (1 << 30));
}

static void step_download(void *self, int64_t done) {
    const struct pull *p = self;
    p->progress->step(p->progress->arg, done);
}

static void step_check(void *self, int64_t done) {
    const struct pull *p = self;
    p->progress->step(p->progress->arg, p->checked + done);
}

static enum status fetch_missing(struct pull *p, struct error *err) {
    const struct hub_progress *progress = p->progress;
    struct hub_watch watch = {.step = step_download, .stopped = progress->stopped, .arg = p};
    if (p->n_blobs == 0)
        return OK;
    TRY(check_room(p, err));
    progress->begin(progress->arg, "downloading", p->n_missing);
    enum status st = hub_download(&p->server, p->blobs, p->n_blobs, &watch, err);
    progress->end(progress->arg);
    TRY(st);
    progress->begin(progress->arg, "checking", p->n_missing);
    for (size_t i = 0; st == OK && i < p->n_blobs; i++) {
        st = hub_blob_finish(&p->blobs[i], step_check, p, err);
        p->checked += p->blobs[i].n_bytes;
    }
    progress->end(progress->arg);
    return st;
}

/* The reference comes last: what it points to is whole. */
static enum status link_all(struct pull *p, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    for (size_t i = 0; i < p->listing.n; i++)
        TRY(hub_cache_link(p->folder, p->listing.commit, p->listing.files[i].name, p->listing.files[i].hash, err));
    int n = snprintf(path, sizeof path, "%s/refs/%s", p->folder, p->name->revision);
    if (n < 0 || (size_t)n >= sizeof path)
        return fail(err, ERR_LIMIT, "%s: the path is too long", p->folder);
    if (strcmp(p->name->revision, p->listing.commit) == 0)
        return OK;
    char *last = strrchr(path, '/');
    *last = '\0';
    TRY(hub_cache_make(path, err));
    *last = '/';
    return file_write(path, str_of(p->listing.commit), err);
}

/* One process at a time fills a model's folder. */
static enum status lock_folder(const struct pull *p, int *fd, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/blobs", p->folder);
    if (n < 0 || (size_t)n + 16 >= sizeof path)
        return fail(err, ERR_LIMIT, "%s: the path is too long", p->folder);
    TRY(hub_cache_make(path, err));
    strcat(path, "/.gyre-lock");
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0)
        return fail(err, ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return fail(err, ERR_IO, "%s: cannot be locked: %s", path, strerror(errno));
        if (p->progress->stopped && p->progress->stopped())
            return fail(err, ERR_LIMIT, "stopped, while another gyre pulls %s", p->name->repo);
        usleep(100000);
    }
    return OK;
}

static void release_blobs(struct pull *p) {
    for (size_t i = 0; i < p->n_blobs; i++)
        free(p->blobs[i].url);
    free(p->blobs);
}

static enum status fetch_index(struct pull *p, const struct hub_file *index, json_t **shards, struct error *err) {
    struct hub_file file = *index;
    char path[FOLDER_PATH_BYTES];
    struct pull alone = *p;
    alone.listing.files = &file;
    alone.listing.n = 1;
    enum status st = find_missing(&alone, err);
    if (st == OK)
        st = fetch_missing(&alone, err);
    if (st == OK)
        st = blob_path(p, file.hash, path, err);
    p->n_index = alone.n_missing;
    release_blobs(&alone);
    return st == OK ? hub_index_read(path, file.name, shards, err) : st;
}

static enum status choose(struct pull *p, int *lock, struct error *err) {
    const struct hub_file *index = hub_files_index(&p->listing, p->name);
    json_t *shards = NULL;
    enum status st = OK;
    if (index && (st = lock_folder(p, lock, err)) == OK)
        st = fetch_index(p, index, &shards, err);
    if (st == OK)
        st = hub_files_choose(&p->listing, p->name, shards, err);
    json_decref(shards);
    return st;
}

static enum status pull(struct pull *p, int *lock, struct error *err) {
    TRY(hub_server_open(&p->server, err));
    TRY(hub_cache_folder(p->name, p->folder, err));
    TRY(hub_list(&p->server, p->name, &p->listing, err));
    TRY(choose(p, lock, err));
    if (*lock < 0)
        TRY(lock_folder(p, lock, err));
    TRY(find_missing(p, err));
    TRY(fetch_missing(p, err));
    return link_all(p, err);
}

enum status hub_pull(const struct hub_name *name, const struct hub_progress *progress, struct hub_report *report,
                     char path[FOLDER_PATH_BYTES], struct error *err) {
    struct pull p = {.name = name, .progress = progress};
    int lock = -1;
    enum status st = pull(&p, &lock, err);
    *report = (struct hub_report){.n_files = p.listing.n, .n_fetched = p.n_missing + p.n_index};
    for (size_t i = 0; i < p.listing.n; i++)
        report->n_bytes += p.listing.files[i].n_bytes;
    strcpy(report->commit, p.listing.commit);
    if (lock >= 0)
        close(lock);
    release_blobs(&p);
    hub_listing_release(&p.listing);
    if (st == OK && !hub_cache_find(name, path))
        st = fail(err, ERR_FORMAT,
                  "%s: what the hub has of it is no model that gyre opens: config.json or weights are missing",
                  name->repo);
    return st;
}
