/* tokenizer_open.c - opening a tokenizer from whatever a path holds. */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "base/folder.h"
#include "base/gguf/gguf_find.h"

#include <dirent.h>

static bool has_suffix(const char *path, const char *suffix) { return str_ends(str_of(path), str_of(suffix)); }

static enum status read_file(struct tokenizer *t, const char *path, struct error *err) {
    if (has_suffix(path, ".json"))
        return tokenizer_read_json(t, path, err);
    if (has_suffix(path, ".model"))
        return tokenizer_read_sentencepiece(t, path, err);
    if (has_suffix(path, ".tiktoken"))
        return tokenizer_read_tiktoken(t, path, err);
    return fail(err, ERR_UNSUPPORTED, "%s: a tokenizer is a folder, a tokenizer.json, a .model or a .tiktoken file",
                path);
}

/* How many *.tiktoken a folder has; the first one found goes into path. */
static enum status find_ranks(const char *folder, char path[static FOLDER_PATH_BYTES], size_t *n, struct error *err) {
    DIR *dir = opendir(folder);
    enum status st = OK;
    *n = 0;
    for (struct dirent *entry; dir && st == OK && (entry = readdir(dir));)
        if (has_suffix(entry->d_name, ".tiktoken") && (*n)++ == 0)
            st = folder_file(folder, entry->d_name, path, err);
    if (dir)
        closedir(dir);
    return st;
}

/* The folder's tokenizer but for ranks; *found is false when there is none. */
static enum status find_file(const char *folder, char path[static FOLDER_PATH_BYTES], bool *found, struct error *err) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"};
    *found = false;
    for (size_t i = 0; i < ARRAY_LEN(names) && !*found; i++)
        TRY(folder_find(folder, names[i], path, found, err));
    return OK;
}

bool tokenizer_in_folder(const char *folder) {
    char path[FOLDER_PATH_BYTES];
    struct error err;
    bool found;
    size_t n_ranks;
    if (gguf_find_model(folder, path, &found, &err) != OK || found)
        return true;
    if (find_file(folder, path, &found, &err) != OK || found)
        return true; // what is refused is there
    return find_ranks(folder, path, &n_ranks, &err) != OK || n_ranks > 0;
}

static enum status read_beside(struct tokenizer *t, const char *folder, struct error *err) {
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
    char paths[ARRAY_LEN(names)][FOLDER_PATH_BYTES];
    const char *there[ARRAY_LEN(names)];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        bool found;
        TRY(folder_find(folder, names[i], paths[i], &found, err));
        there[i] = found ? paths[i] : NULL;
    }
    return tokenizer_read_beside(t, there[0], there[1], there[2], err);
}

static enum status read_folder(struct tokenizer *t, const char *folder, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    bool found;
    size_t n_ranks;
    TRY(find_file(folder, path, &found, err));
    if (!found) { // what is beside the ranks is read with them
        TRY(find_ranks(folder, path, &n_ranks, err));
        if (n_ranks != 1)
            return fail(err, ERR_IO, "%s: no tokenizer.json, no tokenizer.model and %zu .tiktoken files in this folder",
                        folder, n_ranks);
        return tokenizer_read_tiktoken(t, path, err);
    }
    TRY(read_file(t, path, err));
    return read_beside(t, folder, err);
}

enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *err) {
    char gguf[FOLDER_PATH_BYTES];
    bool is_gguf;
    TRY(gguf_find_model(path, gguf, &is_gguf, err));
    struct tokenizer *t = xcalloc(1, sizeof *t);
    enum status st = is_gguf            ? tokenizer_read_gguf(t, gguf, err)
                     : dir_exists(path) ? read_folder(t, path, err)
                                        : read_file(t, path, err);
    if (st == OK && (st = added_tokens_build(&t->added, &t->vocab, &t->extra, &t->normalizer, err)) != OK)
        fail_within(err, st, "%s", path);
    if (st != OK) {
        tokenizer_free(t);
        return st;
    }
    *out = t;
    return OK;
}
