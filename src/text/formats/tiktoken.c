/* tiktoken.c - reading a .tiktoken file: a line a token, its bytes in base64 and its rank, which is its id.
 *
 * The splitting pattern and the special tokens are not in it; see tokenizer_open for where they are looked for. */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "base/folder.h"
#include "text/formats/base64.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>

enum { FILE_MAX_BYTES = 256 << 20, PATTERN_FILE_MAX_BYTES = 1 << 16 };

static enum status read_line(struct tokenizer *t, struct str line, size_t number, const char *path, struct buf *token,
                             struct error *err) {
    const char *space = memchr(line.ptr, ' ', line.len);
    size_t n_base64 = space ? (size_t)(space - line.ptr) : 0, n_digits = space ? line.len - n_base64 - 1 : 0;
    int64_t rank = 0;
    bool good = n_base64 > 0 && n_digits > 0 && n_digits < 12;
    for (size_t i = 0; good && i < n_digits; i++) {
        good = space[1 + i] >= '0' && space[1 + i] <= '9';
        rank = rank * 10 + (space[1 + i] - '0');
    }
    buf_clear(token);
    if (!good || !base64_decode((struct str){line.ptr, n_base64}, token) || token->len == 0)
        return fail(err, ERR_FORMAT, "%s: line %zu is not a token in base64 and its rank", path, number);
    int32_t old;
    TRY(vocab_add(&t->vocab, buf_view(token), rank, path, &old, err));
    return old < 0 ? OK : fail(err, ERR_FORMAT, "%s: line %zu has the token of rank %d again", path, number, old);
}

static enum status read_ranks(struct tokenizer *t, struct str text, const char *path, struct error *err) {
    struct buf token = {0};
    enum status st = OK;
    vocab_reserve(&t->vocab, text.len / 16);
    size_t number = 0;
    for (const char *at = text.ptr, *end = at + text.len; st == OK && at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        struct str line = {at, (size_t)(stop - at)};
        line.len -= str_ends(line, STR("\r"));
        number++;
        if (line.len > 0)
            st = read_line(t, line, number, path, &token, err);
        at = stop + (stop < end);
    }
    buf_release(&token);
    if (st == OK && t->vocab.n_tokens == 0)
        st = fail(err, ERR_FORMAT, "%s: the file has no tokens", path);
    return st;
}

/* The folder of path, and its name without .tiktoken. */
static enum status split_path(const char *path, char folder[static PATH_MAX], char stem[static PATH_MAX],
                              struct error *err) {
    const char *slash = strrchr(path, '/');
    size_t n_folder = slash ? (size_t)(slash - path) : 0,
           n_stem = strlen(slash ? slash + 1 : path) - strlen(".tiktoken");
    if (n_folder >= PATH_MAX || n_stem >= PATH_MAX)
        return fail(err, ERR_LIMIT, "%s: the path is too long", path);
    snprintf(folder, PATH_MAX, "%.*s", n_folder ? (int)n_folder : 1, n_folder ? path : slash ? "/" : ".");
    snprintf(stem, PATH_MAX, "%.*s", (int)n_stem, slash ? slash + 1 : path);
    return OK;
}

static enum status find_pattern(const char *folder, const char *stem, char path[static FOLDER_PATH_BYTES],
                                struct error *err) {
    char name[PATH_MAX + 16];
    bool found;
    snprintf(name, sizeof name, "%s.pattern.txt", stem);
    TRY(folder_find(folder, name, path, &found, err));
    if (!found)
        TRY(folder_find(folder, "pattern.txt", path, &found, err));
    if (found)
        return OK;
    return fail(err, ERR_IO, "%s: %s.tiktoken needs its splitting pattern in %s or pattern.txt beside it", folder, stem,
                name);
}

static enum status read_pattern(struct tokenizer *t, const char *folder, const char *stem, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    TRY(find_pattern(folder, stem, path, err));
    struct buf text = {0};
    struct pattern pattern;
    enum status st = file_read(path, PATTERN_FILE_MAX_BYTES, &text, err);
    while (text.len > 0 && (text.ptr[text.len - 1] == '\n' || text.ptr[text.len - 1] == '\r'))
        text.len--;
    if (st == OK)
        st = pattern_of_regex(buf_view(&text), REGEX_RUST, path, &pattern, err);
    buf_release(&text);
    TRY(st);
    // What the pattern does not match is dropped, as tiktoken does.
    pretokenizer_take_step(&t->pretokenizer,
                           (struct pretokenizer_step){
                               .kind = PRETOKEN_SPLIT, .pattern = pattern, .behavior = SPLIT_REMOVED, .invert = true});
    return OK;
}

/* tokenizer_config.json, or the one file whose name ends so; path is empty when there is none. */
static enum status find_config(const char *folder, char path[static FOLDER_PATH_BYTES], struct error *err) {
    bool found;
    TRY(folder_find(folder, "tokenizer_config.json", path, &found, err));
    if (found)
        return OK;
    path[0] = '\0';
    DIR *dir = opendir(folder);
    enum status st = OK;
    size_t n = 0;
    for (struct dirent *entry; dir && st == OK && (entry = readdir(dir));)
        if (str_ends(str_of(entry->d_name), STR("_tokenizer_config.json")) && n++ == 0)
            st = folder_file(folder, entry->d_name, path, err);
    if (dir)
        closedir(dir);
    TRY(st);
    return n < 2 ? OK
                 : fail(err, ERR_FORMAT, "%s: %zu files *_tokenizer_config.json, there must be one at most", folder, n);
}

enum status tokenizer_read_tiktoken(struct tokenizer *t, const char *path, struct error *err) {
    char folder[PATH_MAX], stem[PATH_MAX], config[FOLDER_PATH_BYTES];
    struct file_map map;
    TRY(file_map_open(&map, path, FILE_MAX_BYTES, err));
    enum status st = read_ranks(t, (struct str){map.bytes, map.n_bytes}, path, err);
    file_map_close(&map);
    TRY(st);
    t->kind = MODEL_BPE;
    t->bpe = (struct bpe){
        .vocab = &t->vocab, .by_text = true, .by_bytes = true, .whole_word_first = true, .unk_id = BPE_LOST_UNK};
    decoder_take_stage(&t->decoder, (struct decoder_stage){.kind = DECODE_RAW_BYTES});
    TRY(split_path(path, folder, stem, err));
    TRY(read_pattern(t, folder, stem, err));
    TRY(find_config(folder, config, err));
    return config[0] ? tokenizer_read_beside(t, config, NULL, NULL, err) : OK;
}
