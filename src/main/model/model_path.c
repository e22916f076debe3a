/* model_path.c - see model_path.h. */
#include "main/model/model_path.h"

#include "base/file.h"
#include "base/folder.h"
#include "base/gguf/gguf_find.h"
#include "hub/hub_name.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_BYTES = FOLDER_PATH_BYTES };
static const char wanted[] =
    "MODEL is a folder with config.json, *.safetensors and tokenizer.json, a GGUF file, or ORG/NAME of the hub";

static bool ends(const char *s, const char *with) { return str_ends(str_of(s), str_of(with)); }

static enum status nowhere(const char *path, struct error *err) {
    struct hub_name name;
    if (!path[0])
        return fail(err, ERR_ARG, "MODEL is empty; %s", wanted);
    if (hub_name_read(path, &name))
        return fail(err, ERR_IO, "%s: there is no such folder; gyre pull %s brings the model of that name from the hub",
                    path, path);
    return fail(err, ERR_IO, "%s: there is no such folder or file; %s (README.md, Models)", path, wanted);
}

/* ---- files ---- */

static bool starts_with_bytes(const char *path, const char *bytes) {
    char head[64] = {0};
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, strlen(bytes), f) : 0;
    if (f)
        fclose(f);
    return n == strlen(bytes) && memcmp(head, bytes, n) == 0;
}

/* "The folder it is in", of a file's path. */
static struct str folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == path ? STR("/") : slash ? (struct str){path, (size_t)(slash - path)} : STR(".");
}

static bool is_pickle(const char *name) {
    return ends(name, ".bin") || ends(name, ".pt") || ends(name, ".pth") || ends(name, ".ckpt");
}

static enum status pickled(const char *path, struct error *err) {
    return fail(err, ERR_UNSUPPORTED,
                "%s: holds pickled weights, which are not read since they can run code: save_pretrained() of "
                "transformers writes a folder with *.safetensors, which is a MODEL",
                path);
}

static bool will_do(const char *path, enum model_use use) {
    return (use == MODEL_SETTINGS && ends(path, ".json")) || use == MODEL_CHAT_TEMPLATE ||
           (use == MODEL_TOKENIZER && !ends(path, "config.json") &&
            (ends(path, ".json") || ends(path, ".model") || ends(path, ".tiktoken")));
}

static enum status check_file(const char *path, enum model_use use, struct error *err) {
    if (starts_with_bytes(path, "version https://git-lfs"))
        return fail(err, ERR_FORMAT, "%s: is a Git LFS pointer, not the file itself: run git lfs pull in its folder",
                    path);
    if (is_pickle(path))
        return pickled(path, err);
    struct str dir = folder_of(path);
    if (ends(path, ".safetensors"))
        return fail(err, ERR_ARG, "%s: holds weights alone, and MODEL is the folder that they are in: %.*s", path,
                    STR_ARG(dir));
    if (will_do(path, use))
        return OK;
    if (ends(path, ".json"))
        return fail(err, ERR_ARG, "%s: is one file of a model, and MODEL is the folder that it is in: %.*s", path,
                    STR_ARG(dir));
    return fail(err, ERR_ARG, "%s: is a file that gyre knows nothing of; %s", path, wanted);
}

/* ---- folders ---- */

/* The first name in dir that ends so; false when there is none. */
static bool has_ending(const char *dir, const char *ending, char name[NAME_MAX + 1]) {
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));)
        if (ends(e->d_name, ending)) {
            strcpy(name, e->d_name);
            found = true;
        }
    if (d)
        closedir(d);
    return found;
}

/* The one folder in dir; false when there is none or several. */
static bool only_folder(const char *dir, char out[PATH_BYTES]) {
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[PATH_BYTES];
        if (e->d_name[0] != '.' && path_join(path, sizeof path, dir, e->d_name, NULL) == OK && dir_exists(path) &&
            n++ == 0)
            strcpy(out, path);
    }
    if (d)
        closedir(d);
    return n == 1;
}

/* A folder in dir, or of the hub's cache below it, that is a model. */
static bool model_below(const char *dir, char out[PATH_BYTES]) {
    char inner[PATH_BYTES];
    if (path_join(inner, sizeof inner, dir, "snapshots", NULL) == OK && dir_exists(inner))
        return only_folder(inner, out);
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));)
        if (e->d_name[0] != '.' && path_join(inner, sizeof inner, dir, e->d_name, NULL) == OK &&
            folder_has(inner, "config.json")) {
            strcpy(out, inner);
            found = true;
        }
    if (d)
        closedir(d);
    return found;
}

static enum status not_a_model(const char *dir, struct error *err) {
    static const struct {
        const char *file, *says;
    } others[] = {
        {"adapter_config.json",
         "is an adapter (LoRA), not a model; merge it into its base model, with merge_and_unload() of peft"},
        {"model_index.json", "is a pipeline that makes images, not a language model"},
        {"params.json",
         "is in the layout of its makers (params.json); take the model in Hugging Face's layout, with config.json"},
    };
    char found[PATH_BYTES];
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (folder_has(dir, others[i].file))
            return fail(err, ERR_UNSUPPORTED, "%s: %s", dir, others[i].says);
    if (model_below(dir, found))
        return fail(err, ERR_ARG, "%s: has no config.json, so it is no model; %s is one", dir, found);
    return fail(err, ERR_IO, "%s: has no config.json, so it is no model; %s", dir, wanted);
}

static enum status check_weights(const char *dir, struct error *err) {
    char name[NAME_MAX + 1], path[PATH_BYTES];
    static const char *const pickles[] = {".bin", ".pt", ".pth"};
    if (has_ending(dir, ".safetensors", name) || folder_has(dir, "model.safetensors.index.json"))
        return OK;
    for (size_t i = 0; i < ARRAY_LEN(pickles); i++)
        if (has_ending(dir, pickles[i], name) && path_join(path, sizeof path, dir, name, NULL) == OK)
            return pickled(path, err);
    return fail(
        err, ERR_IO,
        "%s: has no weights (model.safetensors, or shards with model.safetensors.index.json); --load-format dummy "
        "makes random ones, to measure speed",
        dir);
}

static enum status no_tokenizer(const char *dir, struct error *err) {
    if (folder_has(dir, "tekken.json"))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: has no tokenizer that gyre reads: tekken.json alone; the model's page on the hub may have a "
                    "tokenizer.json",
                    dir);
    if (folder_has(dir, "vocab.json") && folder_has(dir, "merges.txt"))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: has no tokenizer.json; of vocab.json and merges.txt save_pretrained() of transformers' "
                    "AutoTokenizer makes one",
                    dir);
    return fail(err, ERR_IO,
                "%s: has no tokenizer (tokenizer.json, tokenizer.model, spiece.model or one .tiktoken file): take it "
                "from where "
                "the model came from; run --prompt-ids and score --prompt-ids do without",
                dir);
}

static enum status check_pointers(const char *dir, struct error *err) {
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer.model"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (path_join(path, sizeof path, dir, names[i], NULL) == OK && file_exists(path) &&
            starts_with_bytes(path, "version https://git-lfs"))
            return fail(err, ERR_FORMAT,
                        "%s: is a Git LFS pointer, not the file itself: run git lfs pull in its folder", path);
    return OK;
}

static enum status check_folder(const char *dir, enum model_use use, struct error *err) {
    bool is_model = folder_has(dir, "config.json");
    TRY(check_pointers(dir, err));
    if ((use == MODEL_TEXT || use == MODEL_TOKENIZER) && !tokenizer_in_folder(dir))
        return is_model ? no_tokenizer(dir, err) : not_a_model(dir, err);
    if ((use == MODEL_COMPUTE || use == MODEL_SETTINGS) && !is_model)
        return not_a_model(dir, err);
    return use == MODEL_COMPUTE ? check_weights(dir, err) : OK;
}

enum status model_path_check(const char *path, enum model_use use, struct error *err) {
    char found[PATH_BYTES];
    bool is_gguf;
    TRY(gguf_find_model(path, found, &is_gguf, err));
    if (is_gguf)
        return OK;
    if (dir_exists(path))
        return check_folder(path, use, err);
    if (file_exists(path))
        return check_file(path, use, err);
    return access(path, F_OK) == 0 ? OK : nowhere(path, err); // a pipe, perhaps: <(...) of a shell
}

bool model_path_has_weights(const char *path) {
    char found[PATH_BYTES];
    bool is_gguf;
    struct error none;
    if (gguf_find_model(path, found, &is_gguf, &none) != OK)
        return false;
    return is_gguf || (dir_exists(path) && check_folder(path, MODEL_COMPUTE, &none) == OK);
}

bool model_path_is_likely(const char *word) {
    return strchr(word, '/') || dir_exists(word) || ends(word, ".gguf") || ends(word, ".safetensors") ||
           ends(word, ".json");
}
