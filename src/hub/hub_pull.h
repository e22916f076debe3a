/* hub_pull.h - brings a model of the hub into its cache. libcurl must be open. */
#pragma once

#include "hub/hub_cache.h"
#include "hub/hub_download.h"

struct hub_report {
    size_t n_files;
    int64_t n_bytes, n_fetched; // of all files; of those that were not here
    char commit[HUB_HASH_BYTES];
};

/* What a person watching wants to see. stage: "downloading" or "checking". */
struct hub_progress {
    void (*begin)(void *arg, const char *stage, int64_t n_bytes);
    void (*step)(void *arg, int64_t done);
    void (*end)(void *arg);
    bool (*stopped)(void); // NULL: never
    void *arg;
};

/* Fetches what is missing, checks it, and writes to path what to open: the snapshot's folder or a GGUF file. Again is
 * quick, and asks whether the revision has moved. Two that pull the same model wait for each other. */
enum status hub_pull(const struct hub_name *name, const struct hub_progress *progress, struct hub_report *report,
                     char path[FOLDER_PATH_BYTES], struct error *err);
