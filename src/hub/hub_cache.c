/* hub_cache.c - see hub_cache.h. */
#include "hub/hub_cache.h"

#include "base/file.h"
#include "base/folder.h"
#include "hub/hub_files.h"
#include "hub/hub_index.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = FOLDER_PATH_BYTES, MAX_NAMES = 10000 };

// ---- places -----------------------------------------------------------------------------------------------------

static enum status put(char out[PATH_BYTES], struct error *err, int n) {
    return n >= 0 && n < PATH_BYTES ? OK : fail(err, ERR_LIMIT, "the path of the hub's cache is too long: %.200s", out);
}

enum status hub_cache_root(char out[PATH_BYTES], struct error *err) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value)
            return put(out, err, snprintf(out, PATH_BYTES, "%s%s", value, places[i].below));
    }
    return fail(err, ERR_ARG, "there is no place for models: set HF_HUB_CACHE to a folder");
}

enum status hub_cache_folder(const struct hub_name *name, char out[PATH_BYTES], struct error *err) {
    char root[PATH_BYTES];
    const char *slash = strchr(name->repo, '/');
    TRY(hub_cache_root(root, err));
    return put(
        out, err,
        snprintf(out, PATH_BYTES, "%s/models--%.*s--%s", root, (int)(slash - name->repo), name->repo, slash + 1));
}

/* folder/a/b; false where it does not fit. */
static bool below(char out[PATH_BYTES], const char *folder, const char *a, const char *b) {
    int n = snprintf(out, PATH_BYTES, "%s/%s%s%s", folder, a, *b ? "/" : "", b);
    return n >= 0 && n < PATH_BYTES;
}

/* ORG/NAME of models--ORG--NAME. */
static bool read_folder_name(struct str name, char out[HUB_REPO_BYTES]) {
    static const struct str head = {"models--", 8};
    if (!str_starts(name, head) || name.len >= HUB_REPO_BYTES)
        return false;
    name.ptr += head.len, name.len -= head.len;
    const char *split = memmem(name.ptr, name.len, "--", 2);
    if (split)
        snprintf(out, HUB_REPO_BYTES, "%.*s/%.*s", (int)(split - name.ptr), name.ptr,
                 (int)(name.ptr + name.len - split) - 2, split + 2);
    return split;
}

bool hub_cache_repo_of(const char *path, char out[HUB_REPO_BYTES]) {
    const char *inner = strstr(path, "/snapshots/"), *begin = inner;
    while (begin && begin > path && begin[-1] != '/')
        begin--;
    return inner && read_folder_name((struct str){begin, (size_t)(inner - begin)}, out);
}

static bool is_commit(const char *s) { return strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40; }

/* The commit of a branch or tag, or the name itself if it is one. */
static bool commit_of(const char *folder, const char *revision, char out[HUB_HASH_BYTES]) {
    char path[PATH_BYTES];
    if (is_commit(revision)) {
        strcpy(out, revision);
        return true;
    }
    FILE *f = below(path, folder, "refs", revision) ? fopen(path, "r") : NULL;
    bool found = f && fscanf(f, "%64s", out) == 1 && is_commit(out);
    if (f)
        fclose(f);
    return found;
}

// ---- what is in a snapshot --------------------------------------------------------------------------------------

struct names {
    char (*at)[HUB_FILE_BYTES];
    size_t n;
    uint64_t n_bytes;
    int64_t used;
};

/* Regular files, links followed, at most two folders deep; a link that leads nowhere is no file. */
static void collect(const char *dir, const char *prefix, int depth, struct names *out) {
    char path[PATH_BYTES], name[HUB_FILE_BYTES];
    DIR *d = opendir(dir);
    for (struct dirent *e; d && out->n < MAX_NAMES && (e = readdir(d));) {
        struct stat st;
        int n = snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
        if (e->d_name[0] == '.' || n < 0 || (size_t)n + 1 >= sizeof name || !below(path, dir, e->d_name, "") ||
            stat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode) && depth > 0) {
            strcat(name, "/");
            collect(path, name, depth - 1, out);
        } else if (S_ISREG(st.st_mode)) {
            out->at = xrealloc(out->at, out->n + 1, sizeof *out->at);
            strcpy(out->at[out->n++], name);
            out->n_bytes += (uint64_t)st.st_size;
            out->used = MAX(out->used, (int64_t)st.st_mtime);
        }
    }
    if (d)
        closedir(d);
}

static bool has_name(const struct names *names, const char *name) {
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->at[i], name) == 0)
            return true;
    return false;
}

/* Whether all parts are there of a file that is one. */
static bool has_all_parts(const struct names *names, const char *file) {
    int part, n = hub_file_parts(file, &part);
    char other[HUB_FILE_BYTES];
    const char *dot = strrchr(file, '.');
    for (int i = 1; n > 1 && i <= n; i++) {
        snprintf(other, sizeof other, "%.*s-%05d-of-%05d%s", (int)(dot - file) - 15, file, i, n, dot);
        if (!has_name(names, other))
            return false;
    }
    return true;
}

static bool is_weights(const char *name) { return !strchr(name, '/') && str_ends(str_of(name), STR(".safetensors")); }

/* Whether all files are there that the index names, if any: they may lie in folders below. Of an index that cannot be
 * read whoever opens it tells. */
static bool has_indexed(const char *snapshot, bool *any) {
    char path[PATH_BYTES];
    struct error err;
    struct stat st;
    const char *file;
    json_t *shards = NULL, *unused;
    bool all = true;
    if (below(path, snapshot, "model.safetensors.index.json", "") && stat(path, &st) == 0 &&
        hub_index_read(path, path, &shards, &err) == OK)
        json_object_foreach(shards, file, unused) {
            bool there = folder_name_stays_below(file) && below(path, snapshot, file, "") && stat(path, &st) == 0;
            *any = true, all = all && there;
        }
    json_decref(shards);
    return all;
}

/* A model in Hugging Face's layout with all of its weights. */
static bool is_whole(const char *snapshot, const struct names *names) {
    bool any = false;
    for (size_t i = 0; i < names->n; i++)
        if (is_weights(names->at[i])) {
            any = true;
            if (!has_all_parts(names, names->at[i]))
                return false;
        }
    bool has_config = has_name(names, "config.json") || has_name(names, "adapter_config.json");
    return has_config && has_indexed(snapshot, &any) && any;
}

/* The first part of a GGUF model of that type; of several the usual types go first. NULL: none that is whole. */
static const char *find_gguf(const struct names *names, const char *quant) {
    static const char *const usual[] = {"Q4_K_M", "Q8_0", ""};
    for (size_t k = *quant ? ARRAY_LEN(usual) - 1 : 0; k < ARRAY_LEN(usual); k++)
        for (size_t i = 0; i < names->n; i++) {
            int part;
            hub_file_parts(names->at[i], &part);
            if (part == 1 && hub_file_is_gguf(names->at[i], *quant ? quant : usual[k]) &&
                has_all_parts(names, names->at[i]))
                return names->at[i];
        }
    return NULL;
}

static bool what_to_open(const char *snapshot, const char *quant, char out[PATH_BYTES]) {
    struct names names = {0};
    collect(snapshot, "", 2, &names);
    bool whole = !*quant && is_whole(snapshot, &names);
    const char *gguf = whole ? NULL : find_gguf(&names, quant);
    bool found = gguf ? below(out, snapshot, gguf, "") : whole && below(out, snapshot, ".", "");
    if (found && !gguf)
        out[strlen(out) - 2] = '\0'; // without the /.
    free(names.at);
    return found;
}

bool hub_cache_find(const struct hub_name *name, char out[PATH_BYTES]) {
    char folder[PATH_BYTES], snapshot[PATH_BYTES], commit[HUB_HASH_BYTES];
    return hub_cache_folder(name, folder, NULL) == OK && commit_of(folder, name->revision, commit) &&
           below(snapshot, folder, "snapshots", commit) && what_to_open(snapshot, name->quant, out);
}

// ---- all of them ------------------------------------------------------------------------------------------------

/* The branch or tag that points to the commit; its first letters where none does. */
static void name_revision(const char *folder, const char *commit, char out[HUB_WORD_BYTES]) {
    char refs[PATH_BYTES], of[HUB_HASH_BYTES];
    DIR *d = below(refs, folder, "refs", "") ? opendir(refs) : NULL;
    snprintf(out, HUB_WORD_BYTES, "%.8s", commit);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && strlen(e->d_name) < HUB_WORD_BYTES && commit_of(folder, e->d_name, of) &&
            strcmp(of, commit) == 0)
            strcpy(out, e->d_name);
    if (d)
        closedir(d);
}

static bool tell_snapshots(const char *folder, const char *repo, bool (*each)(void *arg, const struct hub_entry *entry),
                           void *arg) {
    char snapshots[PATH_BYTES], open[PATH_BYTES];
    struct hub_entry entry = {0};
    DIR *d = below(snapshots, folder, "snapshots", "") ? opendir(snapshots) : NULL;
    bool more = true;
    snprintf(entry.repo, sizeof entry.repo, "%s", repo);
    for (struct dirent *e; d && more && (e = readdir(d));) {
        struct names names = {0};
        if (!is_commit(e->d_name) || !below(entry.path, snapshots, e->d_name, ""))
            continue;
        name_revision(folder, e->d_name, entry.revision);
        collect(entry.path, "", 2, &names);
        entry.n_bytes = names.n_bytes, entry.used = names.used;
        entry.whole = what_to_open(entry.path, "", open);
        free(names.at);
        more = each(arg, &entry);
    }
    if (d)
        closedir(d);
    return more;
}

enum status hub_cache_each(bool (*each)(void *arg, const struct hub_entry *entry), void *arg, struct error *err) {
    char root[PATH_BYTES], folder[PATH_BYTES], repo[HUB_REPO_BYTES];
    struct dirent **entries;
    TRY(hub_cache_root(root, err));
    int n = scandir(root, &entries, NULL, alphasort);
    bool more = true;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (more && read_folder_name(str_of(name), repo) && below(folder, root, name, ""))
            more = tell_snapshots(folder, repo, each, arg);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return OK;
}

// ---- changing it ------------------------------------------------------------------------------------------------

enum status hub_cache_make(const char *dir, struct error *err) {
    char path[PATH_BYTES];
    TRY(put(path, err, snprintf(path, sizeof path, "%s", dir)));
    for (char *p = path + 1;; p++)
        if (*p == '/' || !*p) {
            char was = *p;
            *p = '\0';
            if (mkdir(path, 0777) != 0 && errno != EEXIST)
                return fail(err, ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
            *p = was;
            if (!was)
                return OK;
        }
}

enum status hub_cache_link(const char *folder, const char *commit, const char *file, const char *hash,
                           struct error *err) {
    char path[PATH_BYTES], temporary[PATH_BYTES], target[PATH_BYTES] = "";
    TRY(put(path, err, snprintf(path, sizeof path, "%s/snapshots/%s/%s", folder, commit, file)));
    TRY(put(temporary, err, snprintf(temporary, sizeof temporary, "%s.gyre-link", path)));
    for (const char *p = file; (p = strchr(p, '/')); p++)
        strcat(target, "../"); // a name has fewer slashes than a path has room
    TRY(put(path, err, snprintf(target + strlen(target), sizeof target - strlen(target), "../../blobs/%s", hash)));
    char *last = strrchr(path, '/');
    *last = '\0';
    TRY(hub_cache_make(path, err));
    *last = '/';
    unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0)
        return fail(err, ERR_IO, "%s: cannot be made a link: %s", path, strerror(errno));
    return OK;
}

/* Removes a folder with what is in it; links themselves. */
static void remove_tree(const char *dir, uint64_t *n_bytes) {
    char path[PATH_BYTES];
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || !below(path, dir, e->d_name, "") ||
            lstat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode))
            remove_tree(path, n_bytes);
        else if (unlink(path) == 0)
            *n_bytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

/* Whether any snapshot below dir has a link to that blob. */
static bool is_linked(const char *dir, const char *hash) {
    char path[PATH_BYTES], target[PATH_BYTES];
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !below(path, dir, e->d_name, ""))
            continue;
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        const char *last = strrchr(target, '/');
        found = n > 0 ? last && strcmp(last + 1, hash) == 0 : is_linked(path, hash);
    }
    if (d)
        closedir(d);
    return found;
}

static void remove_blobs_without_links(const char *folder, uint64_t *n_bytes) {
    char blobs[PATH_BYTES], snapshots[PATH_BYTES], path[PATH_BYTES];
    struct stat st;
    DIR *d = below(blobs, folder, "blobs", "") && below(snapshots, folder, "snapshots", "") ? opendir(blobs) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && below(path, blobs, e->d_name, "") && lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
            !is_linked(snapshots, e->d_name) && unlink(path) == 0)
            *n_bytes += (uint64_t)st.st_size;
    if (d)
        closedir(d);
}

enum status hub_cache_remove(const struct hub_name *name, bool whole, uint64_t *n_bytes, struct error *err) {
    char folder[PATH_BYTES], path[PATH_BYTES], commit[HUB_HASH_BYTES];
    *n_bytes = 0;
    TRY(hub_cache_folder(name, folder, err));
    if (!dir_exists(folder))
        return fail(err, ERR_IO, "%s: is not here; gyre list shows what is", name->repo);
    if (whole) {
        remove_tree(folder, n_bytes);
        return OK;
    }
    if (!commit_of(folder, name->revision, commit) || !below(path, folder, "snapshots", commit) || !dir_exists(path))
        return fail(err, ERR_IO, "%s: there is no revision %s here; gyre list shows what is", name->repo,
                    name->revision);
    remove_tree(path, n_bytes);
    if (below(path, folder, "refs", name->revision))
        unlink(path);
    remove_blobs_without_links(folder, n_bytes);
    return OK;
}
