/* hub_files.c - see hub_files.h. */
#include "hub/hub_files.h"

#include "base/buf.h"
#include "base/folder.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { MAX_FILES = 100000 };
static const int64_t MAX_FILE_BYTES = INT64_C(1) << 43; // times MAX_FILES it fits 63 bits

static bool ends(const char *s, const char *with) { return str_ends(str_of(s), str_of(with)); }

// ---- a listing --------------------------------------------------------------------------------------------------

static bool is_hex(const char *s, size_t n) { return strlen(s) == n && strspn(s, "0123456789abcdef") == n; }

/* Relative, of parts that begin with no dot, without what steers a terminal. */
static bool is_safe_name(const char *name) {
    if (strlen(name) >= HUB_FILE_BYTES)
        return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '\\' ||
            ((p == name || p[-1] == '/') && (*p == '.' || *p == '/')))
            return false;
    return *name && name[strlen(name) - 1] != '/';
}

/* A file that nobody could need (.gitattributes) is passed over; of the others every field is checked. */
static enum status read_file(const json_t *entry, const char *where, struct hub_listing *out, struct error *err) {
    struct hub_file *f = &out->files[out->n];
    const char *name, *hash;
    json_t *lfs;
    TRY(jv_string(entry, where, "rfilename", &name, err));
    if (name[0] == '.' && !strstr(name, ".."))
        return OK;
    if (!is_safe_name(name))
        return fail(err, ERR_FORMAT, "%s: the name \"%s\" of a file is not taken", where, name);
    TRY(jv_object_or_null(entry, where, "lfs", &lfs, err));
    TRY(jv_int(lfs ? lfs : entry, where, "size", 0, MAX_FILE_BYTES, &f->n_bytes, err));
    TRY(jv_string(lfs ? lfs : entry, where, lfs ? "sha256" : "blobId", &hash, err));
    if (!is_hex(hash, lfs ? 64 : 40))
        return fail(err, ERR_FORMAT, "%s: \"%s\" is no checksum of %s", where, hash, name);
    strcpy(f->name, name);
    strcpy(f->hash, hash);
    out->n++;
    return OK;
}

enum status hub_listing_read(const json_t *answer, const char *where, struct hub_listing *out, struct error *err) {
    const char *commit;
    json_t *files, *entry;
    size_t i;
    enum status st = OK;
    *out = (struct hub_listing){0};
    if (!json_is_object(answer))
        return fail(err, ERR_FORMAT, "%s: %s in place of a model's description", where, jv_type_name(answer));
    TRY(jv_string(answer, where, "sha", &commit, err));
    if (!is_hex(commit, 40))
        return fail(err, ERR_FORMAT, "%s: sha is \"%s\", which is no commit", where, commit);
    TRY(jv_array_or_null(answer, where, "siblings", &files, err));
    if (json_array_size(files) > MAX_FILES)
        return fail(err, ERR_LIMIT, "%s: more than %d files", where, MAX_FILES);
    strcpy(out->commit, commit);
    out->files = xcalloc(json_array_size(files) + 1, sizeof *out->files);
    json_array_foreach(files, i, entry) {
        if (st == OK)
            st = read_file(entry, where, out, err);
    }
    if (st != OK)
        hub_listing_release(out);
    return st;
}

void hub_listing_release(struct hub_listing *listing) {
    free(listing->files);
    *listing = (struct hub_listing){0};
}

// ---- names ------------------------------------------------------------------------------------------------------

/* Where in a file's name a type stands as a word of its own: Q4_K is not in Q4_K_M. */
static bool has_word(const char *name, const char *word) {
    size_t n = strlen(word);
    for (const char *p = name; *p; p++)
        if (strncasecmp(p, word, n) == 0 && (p == name || !isalnum((unsigned char)p[-1])) &&
            !isalnum((unsigned char)p[n]) && p[n] != '_')
            return true;
    return false;
}

bool hub_file_is_gguf(const char *file, const char *quant) {
    return ends(file, ".gguf") && !strcasestr(file, "mmproj") && !strcasestr(file, "imatrix") &&
           (!*quant || has_word(file, quant));
}

int hub_file_parts(const char *file, int *part) {
    const char *dot = strrchr(file, '.');
    int n;
    if (dot && folder_part_of(file, dot, part, &n) && *part >= 1 && *part <= n)
        return n;
    *part = 1;
    return 1;
}

// ---- choosing ---------------------------------------------------------------------------------------------------

static bool in_root(const char *name) { return !strchr(name, '/'); }

static bool is_setting(const char *name) {
    static const char *const whole[] = {"merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
                                        "sentencepiece.bpe.model"};
    if (strncmp(name, "additional_chat_templates/", 26) == 0)
        return in_root(name + 26) && ends(name, ".jinja");
    if (!in_root(name) || ends(name, ".bin.index.json") || ends(name, ".h5.index.json"))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(whole); i++)
        if (strcmp(name, whole[i]) == 0)
            return true;
    return ends(name, ".json") || ends(name, ".jinja") || ends(name, ".tiktoken");
}

static bool is_weights(const char *name) { return in_root(name) && ends(name, ".safetensors"); }
static bool is_consolidated(const char *name) { return strncmp(name, "consolidated", 12) == 0; }

static bool any(const struct hub_listing *l, bool (*is)(const char *name)) {
    for (size_t i = 0; i < l->n; i++)
        if (is(l->files[i].name))
            return true;
    return false;
}

static bool is_usual_weights(const char *name) { return is_weights(name) && !is_consolidated(name); }
static bool is_any_gguf(const char *name) { return hub_file_is_gguf(name, ""); }
static bool is_pickle(const char *name) { return ends(name, ".bin") || ends(name, ".pt") || ends(name, ".pth"); }

static int by_size(const void *a, const void *b) {
    const struct hub_file *x = a, *y = b;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes ? 1 : strcmp(x->name, y->name);
}

static bool is_below(const char *name) { return !in_root(name) && ends(name, ".safetensors"); }

const struct hub_file *hub_files_index(const struct hub_listing *l, const struct hub_name *name) {
    for (size_t i = 0; i < l->n && !*name->quant; i++)
        if (strcmp(l->files[i].name, "model.safetensors.index.json") == 0)
            return any(l, is_below) ? &l->files[i] : NULL;
    return NULL;
}

static bool is_shard_below(const json_t *shards, const char *name) {
    return is_below(name) && json_object_get(shards, name);
}

static bool any_shard_below(const struct hub_listing *l, const json_t *shards) {
    for (size_t i = 0; i < l->n; i++)
        if (is_shard_below(shards, l->files[i].name))
            return true;
    return false;
}

static void keep_safetensors(struct hub_listing *l, const json_t *shards) {
    bool usual = any(l, is_usual_weights);
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->files[i].name;
        if (is_setting(name) || (usual ? is_usual_weights : is_weights)(name) || is_shard_below(shards, name))
            l->files[n++] = l->files[i];
    }
    l->n = n;
    qsort(l->files, n, sizeof *l->files, by_size);
}

/* Whether two names are parts of one model. */
static bool same_model(const char *a, const char *b) {
    int part;
    size_t n = strlen(a);
    if (hub_file_parts(a, &part) == 1 || hub_file_parts(b, &part) == 1)
        return strcmp(a, b) == 0;
    return strlen(b) == n && strncmp(a, b, n - 20) == 0; // up to -00001-of-00005.gguf
}

/* The first file of that type; *several: there are others, of another model. */
static const struct hub_file *find_gguf(const struct hub_listing *l, const char *quant, bool *several) {
    const struct hub_file *found = NULL;
    *several = false;
    for (size_t i = 0; i < l->n; i++)
        if (hub_file_is_gguf(l->files[i].name, quant)) {
            *several |= found && !same_model(found->name, l->files[i].name);
            found = found ? found : &l->files[i];
        }
    return found;
}

static enum status which_gguf(const struct hub_listing *l, const struct hub_name *name, const struct hub_file **out,
                              struct error *err) {
    static const char *const usual[] = {"Q4_K_M", "Q8_0"};
    bool several;
    *out = find_gguf(l, name->quant, &several);
    for (size_t i = 0; several && !*name->quant && i < ARRAY_LEN(usual); i++) {
        const struct hub_file *found = find_gguf(l, usual[i], &several);
        if (found && !several)
            *out = found;
        else
            several = true;
    }
    if (*out && !several)
        return OK;
    struct buf names = {0};
    for (size_t i = 0; i < l->n && names.len < 400; i++)
        if (hub_file_is_gguf(l->files[i].name, *out ? name->quant : ""))
            buf_printf(&names, "%s%s", names.len ? ", " : "", l->files[i].name);
    enum status st = fail(err, ERR_ARG,
                          *out ? "%s: several files fit; name the type, as in %s:Q4_K_M: %s"
                               : "%s: has no GGUF file of that type (%s); there are: %s",
                          name->repo, *out ? name->repo : name->quant, names.len ? names.ptr : "none");
    buf_release(&names);
    return st;
}

static enum status keep_gguf(struct hub_listing *l, const struct hub_name *name, struct error *err) {
    const struct hub_file *chosen;
    TRY(which_gguf(l, name, &chosen, err));
    struct hub_file first = *chosen;
    int part, parts = hub_file_parts(first.name, &part);
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (same_model(first.name, l->files[i].name))
            l->files[n++] = l->files[i];
    l->n = n;
    if (n != (size_t)parts)
        return fail(err, ERR_FORMAT, "%s: of the %d parts of %s there are %zu", name->repo, parts, first.name, n);
    return OK;
}

enum status hub_files_choose(struct hub_listing *l, const struct hub_name *name, const json_t *shards,
                             struct error *err) {
    if (!*name->quant && (any(l, is_weights) || any_shard_below(l, shards))) {
        keep_safetensors(l, shards);
        return OK;
    }
    if (*name->quant || any(l, is_any_gguf))
        return keep_gguf(l, name, err);
    return fail(err, ERR_UNSUPPORTED,
                any(l, is_below) ? "%s: has no weights in its root; a model in a folder of a repository is not "
                                   "pulled, but hf download --local-dir brings one"
                : any(l, is_pickle) ? "%s: has pickled weights alone, which are not read since they can run code; many "
                                    "models have a second repository with safetensors"
                                  : "%s: has no weights that gyre reads (safetensors or GGUF)",
                name->repo);
}
