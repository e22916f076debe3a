/* tokenizer.c - opening a tokenizer from whatever a path holds, and the questions about its tokens. */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "base/folder.h"

#include <dirent.h>
#include <stdio.h>

enum { ADDED_TOKEN_MAX_BYTES = 4096 };

void vocab_find_bytes(const struct vocab *v, int32_t byte_id[static 256]) {
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        byte_id[b] = vocab_find(v, str_of(text));
    }
}

static void grow_roles(struct tokenizer *t, int32_t n) {
    int32_t wanted = MAX(n, MAX(tokenizer_n_vocab(t), t->n_roles * 2));
    t->roles = xrealloc(t->roles, (size_t)wanted, 1);
    memset(t->roles + t->n_roles, 0, (size_t)(wanted - t->n_roles));
    t->n_roles = wanted;
}

enum status tokenizer_add_token(struct tokenizer *t, struct str text, int64_t id, struct added_token flags, const char *where,
                                struct error *err) {
    if (text.len == 0) // matches nothing; passed over, as Hugging Face's library does
        return OK;
    if (text.len > ADDED_TOKEN_MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: the added token with the id %lld has a text of %zu bytes, the limit is %d", where, (long long)id,
                    text.len, ADDED_TOKEN_MAX_BYTES);
    int32_t known = tokenizer_find(t, text);
    if (known < 0 && vocab_has(&t->vocab, (int32_t)MIN(id, INT32_MAX)))
        return fail(err, ERR_FORMAT, "%s: the added token \"%.*s\" has the id %lld, which is another token's", where,
                    (int)MIN(text.len, 60), text.ptr, (long long)id);
    if (known < 0)
        TRY(vocab_add(&t->extra, text, id, where, NULL, err));
    else if (known != id)
        return fail(err, ERR_FORMAT, "%s: the added token \"%.*s\" has the id %lld, and %d in the vocabulary", where,
                    (int)MIN(text.len, 60), text.ptr, (long long)id, known);
    if (id >= t->n_roles)
        grow_roles(t, (int32_t)id + 1);
    if (t->roles[id])
        return OK;
    t->roles[id] = flags.special ? ROLE_SPECIAL : ROLE_ADDED;
    flags.id = (int32_t)id;
    added_tokens_append(&t->added, flags);
    return OK;
}

static bool has_suffix(const char *path, const char *suffix) { return str_ends(str_of(path), str_of(suffix)); }

static enum status read_file(struct tokenizer *t, const char *path, struct error *err) {
    if (has_suffix(path, ".json"))
        return tokenizer_read_json(t, path, err);
    if (has_suffix(path, ".model"))
        return tokenizer_read_sentencepiece(t, path, err);
    if (has_suffix(path, ".tiktoken"))
        return tokenizer_read_tiktoken(t, path, err);
    return fail(err, ERR_UNSUPPORTED, "%s: a tokenizer is a folder, a tokenizer.json, a .model or a .tiktoken file", path);
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
    if (find_file(folder, path, &found, &err) != OK || found)
        return true; // what is refused is there
    return find_ranks(folder, path, &n_ranks, &err) != OK || n_ranks > 0;
}

static enum status read_folder(struct tokenizer *t, const char *folder, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    bool found;
    size_t n_ranks;
    TRY(find_file(folder, path, &found, err));
    if (!found) { // what is beside the ranks is read with them
        TRY(find_ranks(folder, path, &n_ranks, err));
        if (n_ranks != 1)
            return fail(err, ERR_IO, "%s: no tokenizer.json, no tokenizer.model and %zu .tiktoken files in this folder", folder, n_ranks);
        return tokenizer_read_tiktoken(t, path, err);
    }
    TRY(read_file(t, path, err));
    TRY(folder_find(folder, "tokenizer_config.json", path, &found, err));
    if (found)
        TRY(tokenizer_read_config(t, path, err));
    TRY(folder_find(folder, "special_tokens_map.json", path, &found, err));
    return found ? tokenizer_read_special_map(t, path, err) : OK;
}

enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *err) {
    struct tokenizer *t = xcalloc(1, sizeof *t);
    enum status st = dir_exists(path) ? read_folder(t, path, err) : read_file(t, path, err);
    if (st == OK && (st = added_tokens_build(&t->added, &t->vocab, &t->extra, &t->normalizer, err)) != OK)
        fail_within(err, st, "%s", path);
    if (st != OK) {
        tokenizer_free(t);
        return st;
    }
    *out = t;
    return OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t)
        return;
    arena_release(&t->memory);
    byte_trie_release(&t->fixed);
    vocab_release(&t->vocab);
    vocab_release(&t->extra);
    bpe_release(&t->bpe);
    unigram_release(&t->unigram);
    wordpiece_release(&t->wordpiece);
    normalizer_release(&t->normalizer);
    pretokenizer_release(&t->pretokenizer);
    added_tokens_release(&t->added);
    postprocessor_release(&t->post);
    decoder_release(&t->decoder);
    free(t->roles);
    for (int i = 0; i < N_SPECIAL_NAMES; i++)
        free(t->special_text[i]);
    free(t);
}

int32_t tokenizer_n_vocab(const struct tokenizer *t) { return MAX(t->vocab.n, t->extra.n); }

struct str tokenizer_token_text(const struct tokenizer *t, int32_t id) {
    return vocab_has(&t->vocab, id) ? vocab_text(&t->vocab, id) : vocab_text(&t->extra, id);
}

int32_t tokenizer_find(const struct tokenizer *t, struct str text) {
    int32_t id = vocab_find(&t->vocab, text);
    return id >= 0 ? id : vocab_find(&t->extra, text);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) { return id >= 0 && id < t->n_roles && t->roles[id] == ROLE_SPECIAL; }

bool tokenizer_is_added(const struct tokenizer *t, int32_t id) { return id >= 0 && id < t->n_roles && t->roles[id] != 0; }

struct special_token tokenizer_special(const struct tokenizer *t, enum special_name name) {
    if (!t->special_text[name])
        return (struct special_token){STR(""), -1};
    struct str text = str_of(t->special_text[name]);
    return (struct special_token){text, tokenizer_find(t, text)};
}
