/* hub_download.h - blobs in ranges, side by side, which go on where they were broken off.
 *
 * Each blob is fetched in chunks of 32 MiB by up to 8 connections together, into PATH.gyre-part; PATH.gyre-done says
 * how much of each chunk is there, so that a process that was killed loses 1 MiB a connection. A connection that breaks
 * or stalls for 30 seconds is tried again where it was, with growing pauses, and given up after 8 times in a row
 * without a byte. A server without ranges gets one connection a blob, from the beginning. */
#pragma once

#include "base/folder.h"
#include "hub/hub_server.h"

struct hub_blob {
    char *url;                    // owned by who made it
    char path[FOLDER_PATH_BYTES]; // of the finished blob
    char hash[HUB_HASH_BYTES];
    int64_t n_bytes;
};

struct hub_watch {
    void (*step)(void *arg, int64_t done); // bytes, those of before counted
    bool (*stopped)(void);                 // asked ten times a second; NULL: never
    void *arg;
};

/* Fetches all and leaves them at PATH.gyre-part, whole but not yet checked. Blobs are told apart by their paths.
 * ERR_LIMIT when stopped: what came is kept. */
enum status hub_download(const struct hub_server *s, const struct hub_blob *blobs, size_t n,
                         const struct hub_watch *watch, struct error *err);

/* Compares PATH.gyre-part with its hash and makes PATH of it. A wrong one is deleted, and the error says so. */
enum status hub_blob_finish(const struct hub_blob *blob, void (*step)(void *arg, int64_t done), void *arg,
                            struct error *err);
