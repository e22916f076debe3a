/* gguf_find.c - see gguf_find.h. */
#include "base/gguf/gguf_find.h"

#include "base/gguf/gguf.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum status gguf_part_path(const char *first, int number, char out[FOLDER_PATH_BYTES], struct error *err) {
    int own, count;
    const char *slash = strrchr(first, '/'), *base = slash ? slash + 1 : first;
    char dir[FOLDER_PATH_BYTES], name[NAME_MAX + 32];
    size_t n_stem = folder_part_of(base, ".gguf", &own, &count);
    BUG_IF(!n_stem);
    if (strlen(first) >= sizeof dir || n_stem > NAME_MAX)
        return fail(err, ERR_LIMIT, "%.80s...: path too long", first);
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - first) + 1 : 1, slash ? first : ".");
    snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)n_stem, base, number, count);
    if (!folder_has(dir, name))
        return fail(err, ERR_IO, "%s: %s is missing beside it", first, name);
    return folder_file(dir, name, out, err);
}

static enum status of_file(const char *path, char out[FOLDER_PATH_BYTES], bool *found, struct error *err) {
    int number, count;
    const char *slash = strrchr(path, '/');
    *found = str_ends(str_of(path), STR(".gguf")) || gguf_is(path);
    if (!*found)
        return OK;
    if (folder_part_of(slash ? slash + 1 : path, ".gguf", &number, &count) && number != 1)
        return gguf_part_path(path, 1, out, err);
    if (snprintf(out, FOLDER_PATH_BYTES, "%s", path) >= FOLDER_PATH_BYTES)
        return fail(err, ERR_LIMIT, "%.80s...: path too long", path);
    return OK;
}

/* A model's name: a file by itself, or the first of a split. */
static bool is_model(const char *name) {
    int number, count;
    return str_ends(str_of(name), STR(".gguf")) && strncmp(name, "mmproj", 6) != 0 &&
           (!folder_part_of(name, ".gguf", &number, &count) || number == 1);
}

static enum status of_folder(const char *dir, char out[FOLDER_PATH_BYTES], bool *found, struct error *err) {
    char name[NAME_MAX + 1] = "", other[NAME_MAX + 1] = "";
    bool has_safetensors = false;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        has_safetensors |= str_ends(str_of(e->d_name), STR(".safetensors")) ||
                           str_ends(str_of(e->d_name), STR(".safetensors.index.json"));
        if (!is_model(e->d_name))
            continue;
        if (!name[0] || strcmp(e->d_name, name) < 0)
            strcpy(other, name), strcpy(name, e->d_name);
        else if (!other[0] || strcmp(e->d_name, other) < 0)
            strcpy(other, e->d_name);
    }
    if (d)
        closedir(d);
    *found = name[0] && !has_safetensors;
    if (!*found)
        return OK;
    if (other[0])
        return fail(err, ERR_ARG, "%s: has several GGUF models, %s and %s among them: name the file of one", dir, name,
                    other);
    return folder_file(dir, name, out, err);
}

enum status gguf_find_model(const char *path, char out[FOLDER_PATH_BYTES], bool *found, struct error *err) {
    *found = false;
    if (dir_exists(path))
        return of_folder(path, out, found, err);
    return file_exists(path) ? of_file(path, out, found, err) : OK;
}
