/* model_pull.c - see model_pull.h. */
#include "main/model/model_pull.h"

#include "base/file.h"
#include "console/interrupt.h"
#include "console/progress.h"
#include "console/terminal.h"

#include <stdio.h>
#include <unistd.h>

static void begin(void *bar, const char *stage, int64_t n_bytes) { progress_begin(bar, stage, NULL, n_bytes); }
static void step(void *bar, int64_t done) { progress_step(bar, done); }
static void end(void *bar) {
    progress_end(bar);
    *(struct progress *)bar = (struct progress){0};
}

enum status model_pull(const struct hub_name *name, struct hub_report *report, char path[FOLDER_PATH_BYTES],
                       struct error *err) {
    struct progress bar = {0};
    struct hub_progress progress = {begin, step, end, interrupt_taken, &bar};
    TRY(libcurl_open(err));
    interrupt_catch();
    enum status st = hub_pull(name, &progress, report, path, err);
    interrupt_release();
    return st;
}

/* models/stroy beside a folder models is a slip of the finger, and no name. */
static bool begins_with_folder(const char *path) {
    char first[HUB_REPO_BYTES];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(path, "/"), path);
    return dir_exists(first);
}

enum status model_name_resolve(const char **model, bool may_pull, struct arena *memory, struct error *err) {
    struct hub_name name;
    struct hub_report report;
    char path[FOLDER_PATH_BYTES];
    const char *given = *model;
    if (access(given, F_OK) == 0 || !hub_name_read(given, &name) || begins_with_folder(given))
        return OK;
    if (!hub_cache_find(&name, path)) {
        if (hub_is_offline())
            return fail(err, ERR_IO, "%s: is no folder, and not in the hub's cache; HF_HUB_OFFLINE forbids to fetch it",
                        given);
        if (!may_pull)
            return fail(err, ERR_IO, "%s: is no folder, and not in the hub's cache: gyre pull %s brings it", given,
                        given);
        TRY(model_pull(&name, &report, path, err));
    }
    *model = arena_strdup(memory, str_of(path));
    return OK;
}
