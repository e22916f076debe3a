/* hub_download.c - see hub_download.h. */
#include "hub/hub_download.h"

#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 32 << 20,
    KEPT_EVERY = 1 << 20,
    CONNECTIONS = 8,
    TRIES = 8,
    FIRST_PAUSE_MS = 250,
    LONGEST_PAUSE_MS = 8000
};

/* A blob on its way. `done` lies at the end of PATH.gyre-done behind a line that says of which chunks. */
struct part_file {
    const struct hub_blob *blob;
    int data, record; // descriptors
    size_t n_chunks;
    int64_t *done;     // [n_chunks] bytes of each that are there
    bool *taken;       // [n_chunks] a connection is at it
    bool one_piece;    // the server gives no ranges
    int n_failed;      // connections that ended without a byte, since the last byte
    int64_t resume_us; // not before then
    char header[64];
};

struct transfer {
    CURL *easy;
    struct curl_slist *headers;
    struct part_file *file; // NULL: free
    size_t chunk;
    int64_t start, at, end; // offsets in the blob: asked for, next, and behind the last
    int64_t kept;           // what the record says of the chunk
    long status;
    bool began, no_ranges, lied;
    char text[CURL_ERROR_SIZE];
    struct error err;
};

struct download {
    const struct hub_server *server;
    const struct hub_watch *watch;
    CURLM *multi;
    struct part_file *files;
    size_t n_files;
    struct transfer transfers[CONNECTIONS];
    int64_t done;
};

// ---- the files on disk ------------------------------------------------------------------------------------------

static int64_t chunk_begin(const struct part_file *f, size_t chunk) {
    return f->one_piece ? 0 : (int64_t)chunk * CHUNK;
}
static int64_t chunk_end(const struct part_file *f, size_t chunk) {
    return f->one_piece ? f->blob->n_bytes : MIN(f->blob->n_bytes, (int64_t)(chunk + 1) * CHUNK);
}
static bool chunk_is_done(const struct part_file *f, size_t chunk) {
    return f->done[chunk] == chunk_end(f, chunk) - chunk_begin(f, chunk);
}

static enum status cannot(const struct part_file *f, const char *what, struct error *err) {
    return fail(err, ERR_IO, "%s: cannot %s: %s", f->blob->path, what, strerror(errno));
}

static enum status open_beside(const struct hub_blob *blob, const char *ending, int *fd, struct error *err) {
    char path[FOLDER_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s%s", blob->path, ending);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    return *fd >= 0 ? OK : fail(err, ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
}

/* What an earlier process noted; all zeros if that was of other chunks or is damaged. */
static void read_record(struct part_file *f) {
    char header[sizeof f->header];
    size_t n = f->n_chunks * sizeof *f->done;
    struct stat st;
    bool good = pread(f->record, header, sizeof header, 0) == sizeof header &&
                memcmp(header, f->header, sizeof header) == 0 &&
                pread(f->record, f->done, n, sizeof header) == (ssize_t)n && fstat(f->data, &st) == 0 &&
                st.st_size == f->blob->n_bytes;
    for (size_t i = 0; i < f->n_chunks; i++)
        if (!good || f->done[i] < 0 || f->done[i] > chunk_end(f, i) - chunk_begin(f, i))
            f->done[i] = 0;
}

static enum status keep_chunk(struct part_file *f, size_t chunk, struct error *err) {
    off_t at = (off_t)(sizeof f->header + chunk * sizeof *f->done);
    return pwrite(f->record, &f->done[chunk], sizeof *f->done, at) == sizeof *f->done ? OK
                                                                                      : cannot(f, "be written", err);
}

static enum status begin_anew(struct part_file *f, struct error *err) {
    memset(f->done, 0, f->n_chunks * sizeof *f->done);
    if (ftruncate(f->data, 0) != 0 || ftruncate(f->data, f->blob->n_bytes) != 0 ||
        pwrite(f->record, f->header, sizeof f->header, 0) != sizeof f->header ||
        pwrite(f->record, f->done, f->n_chunks * sizeof *f->done, sizeof f->header) < 0)
        return cannot(f, "be written", err);
    return OK;
}

static enum status open_part_file(struct part_file *f, const struct hub_blob *blob, struct error *err) {
    f->blob = blob;
    f->data = f->record = -1;
    f->n_chunks = (size_t)((blob->n_bytes + CHUNK - 1) / CHUNK);
    f->done = xcalloc(f->n_chunks + 1, sizeof *f->done);
    f->taken = xcalloc(f->n_chunks + 1, sizeof *f->taken);
    snprintf(f->header, sizeof f->header, "gyre parts 1 of %lld by %d", (long long)blob->n_bytes, CHUNK);
    TRY(open_beside(blob, ".gyre-part", &f->data, err));
    TRY(open_beside(blob, ".gyre-done", &f->record, err));
    read_record(f);
    bool any = false;
    for (size_t i = 0; i < f->n_chunks; i++)
        any |= f->done[i] > 0;
    return any ? OK : begin_anew(f, err);
}

static void close_part_file(struct part_file *f) {
    if (f->data >= 0)
        close(f->data);
    if (f->record >= 0)
        close(f->record);
    free(f->done);
    free(f->taken);
}

// ---- one connection ---------------------------------------------------------------------------------------------

/* "bytes 5-9/10": whether that is what was asked for. */
static bool is_range_asked_for(const struct transfer *t, const char *value) {
    long long first, last, total;
    return sscanf(value, " bytes %lld-%lld/%lld", &first, &last, &total) == 3 && first == t->start &&
           last == t->end - 1 && total == t->file->blob->n_bytes;
}

static size_t take_header(char *line, size_t one, size_t n, void *self) {
    struct transfer *t = self;
    char text[128];
    (void)one;
    snprintf(text, sizeof text, "%.*s", (int)MIN(n, sizeof text - 1), line);
    if (strncmp(text, "HTTP/", 5) == 0) { // of each answer on the way
        const char *space = strchr(text, ' ');
        t->status = space ? strtol(space, NULL, 10) : 0;
        t->lied = t->status == 206; // until it says which bytes
    }
    if (t->status == 206 && strncasecmp(text, "content-range:", 14) == 0)
        t->lied = !is_range_asked_for(t, text + 14);
    return n;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *self) {
    struct transfer *t = self;
    struct part_file *f = t->file;
    (void)one;
    if (t->status != 200 && t->status != 206)
        return n; // what an error says is of no use
    t->no_ranges |= t->status == 200 && (t->start > 0 || t->end < f->blob->n_bytes);
    if (t->no_ranges || t->lied)
        return 0;
    if ((int64_t)n > t->end - t->at) {
        t->lied = true;
        return 0;
    }
    for (size_t put = 0; put < n;) {
        ssize_t k = pwrite(f->data, bytes + put, n - put, t->at + (int64_t)put);
        if (k <= 0) {
            cannot(f, "be written", &t->err);
            return 0;
        }
        put += (size_t)k;
    }
    t->began = true;
    t->at += (int64_t)n;
    f->done[t->chunk] += (int64_t)n;
    f->n_failed = 0;
    if (f->done[t->chunk] - t->kept >= KEPT_EVERY) {
        t->kept = f->done[t->chunk];
        if (keep_chunk(f, t->chunk, &t->err) != OK)
            return 0;
    }
    return n;
}

static void begin_transfer(struct download *d, struct transfer *t, struct part_file *f, size_t chunk) {
    char range[64];
    CURL *easy = t->easy ? t->easy : libcurl.easy_init();
    BUG_IF(!easy);
    if (f->one_piece)
        f->done[0] = 0; // such a server begins at the beginning
    *t = (struct transfer){.easy = easy, .file = f, .chunk = chunk, .kept = f->done[chunk]};
    t->start = t->at = chunk_begin(f, chunk) + f->done[chunk];
    t->end = chunk_end(f, chunk);
    f->taken[chunk] = true;
    hub_request(d->server, easy, f->blob->url, &t->headers);
    if (!f->one_piece && f->blob->n_bytes > 0) {
        snprintf(range, sizeof range, "%lld-%lld", (long long)t->start, (long long)t->end - 1);
        libcurl.easy_setopt(easy, CURLOPT_RANGE, range);
    }
    libcurl.easy_setopt(easy, CURLOPT_ERRORBUFFER, t->text);
    libcurl.easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    libcurl.easy_setopt(easy, CURLOPT_HEADERDATA, t);
    libcurl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
    libcurl.easy_setopt(easy, CURLOPT_WRITEDATA, t);
    libcurl.easy_setopt(easy, CURLOPT_PRIVATE, t);
    libcurl.multi_add_handle(d->multi, easy);
}

static void leave_transfer(struct download *d, struct transfer *t) {
    libcurl.multi_remove_handle(d->multi, t->easy);
    libcurl.slist_free_all(t->headers);
    t->headers = NULL;
    t->file->taken[t->chunk] = false;
    t->file = NULL;
}

// ---- what a connection's end means ------------------------------------------------------------------------------

static void leave_all_of(struct download *d, const struct part_file *f) {
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (d->transfers[i].file == f)
            leave_transfer(d, &d->transfers[i]);
}

/* From here on one connection fetches the whole blob. */
static enum status do_without_ranges(struct download *d, struct part_file *f, struct error *err) {
    leave_all_of(d, f);
    TRY(begin_anew(f, err));
    f->one_piece = true;
    f->n_chunks = 1;
    return OK;
}

static const char *file_of(const struct part_file *f) {
    const char *at = strstr(f->blob->url, "/resolve/");
    return at && strchr(at + 9, '/') ? strchr(at + 9, '/') + 1 : f->blob->url;
}

static enum status try_again(struct part_file *f, const char *why, struct error *err) {
    if (++f->n_failed >= TRIES)
        return fail(err, ERR_IO, "%s: given up after %d tries: %s; the same command goes on where this one was",
                    file_of(f), TRIES, why);
    int64_t pause_ms = MIN((int64_t)FIRST_PAUSE_MS << f->n_failed, LONGEST_PAUSE_MS);
    f->resume_us = clock_us() + pause_ms * 1000;
    return OK;
}

static bool is_passing(long status) { return status == 408 || status == 429 || status >= 500; }

static enum status judge(struct download *d, struct transfer *t, CURLcode code, struct error *err) {
    struct part_file *f = t->file;
    char why[CURL_ERROR_SIZE + 64];
    bool no_ranges = t->no_ranges, lied = t->lied, whole = t->at == t->end;
    long status = t->status;
    struct error own = t->err;
    snprintf(why, sizeof why, "%s", *t->text ? t->text : libcurl.easy_strerror(code));
    enum status kept = keep_chunk(f, t->chunk, err);
    leave_transfer(d, t);
    TRY(kept);
    if (own.status != OK)
        return fail(err, own.status, "%s", own.text);
    if (no_ranges)
        return do_without_ranges(d, f, err);
    if (lied)
        return fail(err, ERR_FORMAT, "%s: the server gave other bytes of it than it was asked for", file_of(f));
    if (code == CURLE_OK && (status == 200 || status == 206)) // an end ahead of time is CURLE_PARTIAL_FILE, or none
        return whole ? OK : try_again(f, "the connection ended early", err);
    if (code == CURLE_OK && !is_passing(status))
        return fail(err, ERR_IO, "%s: the server answers %ld", file_of(f), status);
    if (code == CURLE_OK)
        snprintf(why, sizeof why, "the server answers %ld", status);
    return try_again(f, why, err);
}

static enum status take_ends(struct download *d, struct error *err) {
    int left;
    for (CURLMsg *m; (m = libcurl.multi_info_read(d->multi, &left));) {
        struct transfer *t;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        libcurl.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        TRY(judge(d, t, code, err));
    }
    return OK;
}

// ---- all together -----------------------------------------------------------------------------------------------

/* The next chunk that nobody is at. */
static bool find_work(struct download *d, struct part_file **file, size_t *chunk) {
    int64_t now_us = clock_us();
    for (size_t i = 0; i < d->n_files; i++) {
        struct part_file *f = &d->files[i];
        for (size_t k = 0; f->resume_us <= now_us && k < f->n_chunks; k++)
            if (!f->taken[k] && !chunk_is_done(f, k)) {
                *file = f, *chunk = k;
                return true;
            }
    }
    return false;
}

static bool is_done(struct download *d) {
    d->done = 0;
    bool all = true;
    for (size_t i = 0; i < d->n_files; i++)
        for (size_t k = 0; k < d->files[i].n_chunks; k++) {
            d->done += d->files[i].done[k];
            all &= chunk_is_done(&d->files[i], k);
        }
    return all;
}

static enum status fetch(struct download *d, struct error *err) {
    struct part_file *file;
    size_t chunk;
    int running;
    while (!is_done(d)) {
        if (d->watch->stopped && d->watch->stopped())
            return fail(err, ERR_LIMIT, "stopped; the same command goes on where this one was");
        for (size_t i = 0; i < CONNECTIONS; i++)
            if (!d->transfers[i].file && find_work(d, &file, &chunk))
                begin_transfer(d, &d->transfers[i], file, chunk);
        libcurl.multi_perform(d->multi, &running);
        TRY(take_ends(d, err));
        d->watch->step(d->watch->arg, d->done);
        libcurl.multi_poll(d->multi, NULL, 0, 100, NULL);
    }
    return OK;
}

/* What has come of chunks that are under way is noted, whatever the reason for the end. */
static void close_download(struct download *d) {
    for (size_t i = 0; i < CONNECTIONS; i++) {
        struct transfer *t = &d->transfers[i];
        if (t->file) {
            keep_chunk(t->file, t->chunk, NULL);
            leave_transfer(d, t);
        }
        if (t->easy)
            libcurl.easy_cleanup(t->easy);
    }
    libcurl.multi_cleanup(d->multi);
    for (size_t i = 0; i < d->n_files; i++)
        close_part_file(&d->files[i]);
    free(d->files);
}

enum status hub_download(const struct hub_server *s, const struct hub_blob *blobs, size_t n,
                         const struct hub_watch *watch, struct error *err) {
    struct download d = {.server = s, .watch = watch, .multi = libcurl.multi_init()};
    enum status st = OK;
    BUG_IF(!d.multi);
    d.files = xcalloc(n + 1, sizeof *d.files);
    for (; st == OK && d.n_files < n; d.n_files++) {
        st = open_part_file(&d.files[d.n_files], &blobs[d.n_files], err);
    }
    if (st == OK)
        st = fetch(&d, err);
    close_download(&d);
    return st;
}
