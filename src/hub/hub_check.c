/* hub_check.c - a blob's checksum, and its name when it is right: see hub_download.h. */
#include "hub/hub_download.h"

#include <errno.h>
#include <fcntl.h>
#include <sha1.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

/* Of large files the SHA-256, of small ones what git calls their blob: SHA-1 behind a line with the length. */
struct digest {
    bool is_sha256;
    crypto_hash_sha256_state sha256;
    SHA1_CTX sha1;
};

static void digest_begin(struct digest *d, const struct hub_blob *blob) {
    char head[64];
    d->is_sha256 = strlen(blob->hash) == 64;
    crypto_hash_sha256_init(&d->sha256);
    SHA1Init(&d->sha1);
    int n = snprintf(head, sizeof head, "blob %lld", (long long)blob->n_bytes);
    SHA1Update(&d->sha1, (const uint8_t *)head, (size_t)n + 1);
}

static void digest_take(struct digest *d, const unsigned char *bytes, size_t n) {
    if (d->is_sha256)
        crypto_hash_sha256_update(&d->sha256, bytes, n);
    else
        SHA1Update(&d->sha1, bytes, n);
}

static void digest_end(struct digest *d, char hex[HUB_HASH_BYTES]) {
    unsigned char bytes[32];
    if (d->is_sha256)
        crypto_hash_sha256_final(&d->sha256, bytes);
    else
        SHA1Final(bytes, &d->sha1);
    sodium_bin2hex(hex, HUB_HASH_BYTES, bytes, d->is_sha256 ? 32 : SHA1_DIGEST_LENGTH);
}

static enum status digest_of(const struct hub_blob *blob, const char *path, void (*step)(void *arg, int64_t done),
                             void *arg, char hex[HUB_HASH_BYTES], struct error *err) {
    struct digest d;
    int64_t done = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return fail(err, ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    unsigned char *piece = xmalloc(PIECE);
    ssize_t n;
    digest_begin(&d, blob);
    while ((n = read(fd, piece, PIECE)) > 0) {
        digest_take(&d, piece, (size_t)n);
        step(arg, done += n);
    }
    free(piece);
    close(fd);
    digest_end(&d, hex);
    return n == 0 ? OK : fail(err, ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
}

enum status hub_blob_finish(const struct hub_blob *blob, void (*step)(void *arg, int64_t done), void *arg,
                            struct error *err) {
    char part[FOLDER_PATH_BYTES + 16], record[FOLDER_PATH_BYTES + 16], hex[HUB_HASH_BYTES];
    snprintf(part, sizeof part, "%s.gyre-part", blob->path);
    snprintf(record, sizeof record, "%s.gyre-done", blob->path);
    TRY(digest_of(blob, part, step, arg, hex, err));
    bool right = strcmp(hex, blob->hash) == 0;
    unlink(record);
    if (right && rename(part, blob->path) != 0)
        return fail(err, ERR_IO, "%s: cannot be renamed: %s", part, strerror(errno));
    if (!right)
        unlink(part);
    return right ? OK
                 : fail(err, ERR_FORMAT,
                        "%s: what came has the checksum %.16s..., and not %.16s... as the hub says; it was deleted",
                        blob->url, hex, blob->hash);
}
