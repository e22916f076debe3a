/* checkpoint.c - see checkpoint.h. */
#include "file/checkpoint.h"

#include "base/file.h"
#include "base/folder.h"
#include "base/gguf/gguf_find.h"
#include "base/large_pages.h"
#include "base/machine_memory.h"
#include "file/gguf_tensors.h"
#include "file/safetensors.h"
#include "file/shard_index.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const char single_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";
static const size_t max_index_bytes = 100 * 1000 * 1000, max_tensors = 1 << 24;

struct mapped_file {
    const char *path;
    struct file_map map;
};

struct checkpoint {
    struct arena arena; // names and paths
    struct mapped_file *files;
    int n_files; // those mapped
    struct stored_list list;
    uint32_t *table;   // open addressing: 1 + index into list, 0 is free
    size_t table_mask; // size - 1, size a power of two at least twice the number of tensors
    size_t n_unlisted;
};

static uint32_t *slot_of(const struct checkpoint *c, const char *name) {
    size_t at = XXH3_64bits(name, strlen(name)) & c->table_mask;
    while (c->table[at] && strcmp(c->list.items[c->table[at] - 1].name, name) != 0)
        at = (at + 1) & c->table_mask;
    return &c->table[at];
}

static enum status build_table(struct checkpoint *c, struct error *err) {
    if (c->list.n > max_tensors)
        return fail(err, ERR_LIMIT, "%s: %zu tensors, the limit is %zu", c->files[0].path, c->list.n, max_tensors);
    size_t size = 16;
    while (size < 2 * c->list.n)
        size *= 2;
    c->table = xcalloc(size, sizeof *c->table);
    c->table_mask = size - 1;
    for (size_t i = 0; i < c->list.n; i++) {
        struct stored_tensor *t = &c->list.items[i];
        uint32_t *slot = slot_of(c, t->name);
        if (*slot)
            return fail(err, ERR_FORMAT, "%s: tensor %s is also in %s", checkpoint_path(c, t), t->name,
                        checkpoint_path(c, &c->list.items[*slot - 1]));
        *slot = (uint32_t)(i + 1);
    }
    return OK;
}

static enum status damage(const struct mapped_file *f, struct error *err) {
    if (file_map_damaged(&f->map))
        return fail(err, ERR_IO, "%s: lost bytes while it was read: the file was cut short or its disk failed",
                    f->path);
    return OK;
}

/* What is read and copied is not dropped again before it is used. */
static bool fits(int64_t total) {
    struct machine_memory memory;
    machine_memory_get(&memory);
    return total <= memory.available / 16 * 15;
}

/* A file whose data begin at no multiple of 8 is read into memory, since no part of a page can be mapped elsewhere. */
static enum status align_data(struct mapped_file *f, struct error *err) {
    size_t over = safetensors_data_begin(f->map.bytes, f->map.n_bytes) % 8;
    if (over == 0)
        return OK;
    if (!fits((int64_t)f->map.n_bytes))
        return fail(err, ERR_MEMORY,
                    "%s: its data begin at an odd place, so that it has to be copied into memory, and its %zu bytes do "
                    "not fit; save_file() of the safetensors package writes it anew",
                    f->path, f->map.n_bytes);
    return file_map_copy(&f->map, f->path, 8 - over, err);
}

static enum status add_file(struct checkpoint *c, const char *path, struct error *err) {
    struct mapped_file *f = &c->files[c->n_files];
    f->path = arena_strdup(&c->arena, str_of(path));
    TRY(file_map_open(&f->map, path, 0, err));
    int number = c->n_files++;
    TRY(align_data(f, err));
    enum status st = safetensors_parse(f->map.bytes, f->map.n_bytes, f->path, number, &c->arena, &c->list, err);
    TRY(damage(f, err)); // explains a header that turned to zeros better than its parser can
    return st;
}

static enum status open_single(struct checkpoint *c, const char *path, struct error *err) {
    c->files = xcalloc(1, sizeof *c->files);
    TRY(add_file(c, path, err));
    return build_table(c, err);
}

/* Every entry of the index is in a shard. What else there is, and what is in another one, is read all the same, as
 * transformers does: the index says which files there are. */
static enum status match_index(struct checkpoint *c, const struct shard_index *index, const char *path,
                               struct error *err) {
    for (size_t i = 0; i < index->n_entries; i++) {
        const struct shard_entry *e = &index->entries[i];
        if (!checkpoint_find(c, e->name))
            return fail(err, ERR_FORMAT, "%s: tensor %s is not in %s", path, e->name, index->files[e->file]);
    }
    c->n_unlisted = c->list.n - index->n_entries; // names are unique on both sides
    return OK;
}

static enum status read_index(struct checkpoint *c, const char *path, struct shard_index *index, struct error *err) {
    struct file_map map;
    TRY(file_map_open(&map, path, max_index_bytes, err));
    enum status st = shard_index_parse((struct str){map.bytes, map.n_bytes}, path, &c->arena, index, err);
    file_map_close(&map);
    return st;
}

static enum status open_sharded(struct checkpoint *c, const char *dir, const char *index_path, struct error *err) {
    struct shard_index index;
    TRY(read_index(c, index_path, &index, err));
    c->files = xcalloc((size_t)index.n_files, sizeof *c->files);
    for (int i = 0; i < index.n_files; i++) {
        char path[FOLDER_PATH_BYTES];
        if (!folder_has(dir, index.files[i]))
            return fail(err, ERR_IO, "%s: shard %s is missing from the folder", index_path, index.files[i]);
        TRY(folder_file(dir, index.files[i], path, err));
        TRY(add_file(c, path, err));
    }
    TRY(build_table(c, err));
    return match_index(c, &index, index_path, err);
}

/* Whether shard a is to be opened before shard b, of names alone: model-... before others, then in order. */
static bool is_before(const char *a, const char *b) {
    static const char usual[] = "model-";
    int first = strncmp(a, usual, sizeof usual - 1) == 0, second = strncmp(b, usual, sizeof usual - 1) == 0;
    return first != second ? first > second : strcmp(a, b) < 0;
}

/* What there is of shards without an index: the first one's name, the last of its stem, and one of another stem. */
struct shards {
    char first[NAME_MAX + 1], last[NAME_MAX + 1], other[NAME_MAX + 1]; // empty where there is none
};

static void find_shards(const char *dir, struct shards *out) {
    int number, count;
    *out = (struct shards){0};
    for (int pass = 0; pass < 2; pass++) {
        DIR *d = opendir(dir);
        size_t n_stem = folder_part_of(out->first, ".safetensors", &number, &count);
        for (struct dirent *entry; d && (entry = readdir(d));) {
            bool hidden = entry->d_name[0] == '.'; // as the files that macOS puts beside those of other disks
            size_t n = hidden ? 0 : folder_part_of(entry->d_name, ".safetensors", &number, &count);
            bool is_one_of_them = n == n_stem && strncmp(entry->d_name, out->first, n) == 0;
            if (n && pass == 0 && (!out->first[0] || is_before(entry->d_name, out->first)))
                strcpy(out->first, entry->d_name);
            if (n && pass == 1 && is_one_of_them && strcmp(out->last, entry->d_name) < 0)
                strcpy(out->last, entry->d_name);
            if (n && pass == 1 && !is_one_of_them && (!out->other[0] || is_before(entry->d_name, out->other)))
                strcpy(out->other, entry->d_name);
        }
        if (d)
            closedir(d);
    }
}

/* Shards without an index: all that the names speak of. A tensor in two of them is refused as with an index. */
static enum status open_shards(struct checkpoint *c, const char *dir, const struct shards *s, struct error *err) {
    const char *one = s->first, *last = s->other[0] ? s->other : s->last;
    int number, count, last_count;
    size_t n_stem = folder_part_of(one, ".safetensors", &number, &count);
    folder_part_of(s->last, ".safetensors", &number, &last_count);
    if (s->other[0] || count != last_count || number > count)
        return fail(err, ERR_FORMAT, "%s: %s and %s are not of one set, and there is no %s that says which to read",
                    dir, one, last, index_name);
    if (count < 1 || count > MAX_SHARDS)
        return fail(err, ERR_LIMIT, "%s: %s is not one of 1 to %d shards", dir, one, MAX_SHARDS);
    c->files = xcalloc((size_t)count, sizeof *c->files);
    for (int i = 1; i <= count; i++) {
        char name[NAME_MAX + 32], path[FOLDER_PATH_BYTES];
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.safetensors", (int)n_stem, one, i, count);
        if (!folder_has(dir, name))
            return fail(err, ERR_IO, "%s: shard %s is missing from the folder, and there is no %s", dir, name,
                        index_name);
        TRY(folder_file(dir, name, path, err));
        TRY(add_file(c, path, err));
    }
    return build_table(c, err);
}

/* ---- GGUF ---- */

/* Adds one file, number `number` of `count`; *n_tensors is set where the file says how many all have together. */
static enum status add_gguf(struct checkpoint *c, const char *path, int number, int count, int64_t *n_tensors,
                            struct error *err) {
    struct mapped_file *f = &c->files[c->n_files];
    struct gguf g;
    int64_t no, of;
    f->path = arena_strdup(&c->arena, str_of(path));
    TRY(file_map_open(&f->map, path, 0, err));
    c->n_files++;
    enum status st = gguf_parse(f->map.bytes, f->map.n_bytes, f->path, &g, err);
    if (st == OK)
        st = gguf_int_or(&g, "split.no", 0, MAX_SHARDS, 0, &no, err);
    if (st == OK)
        st = gguf_int_or(&g, "split.count", 0, MAX_SHARDS, 1, &of, err);
    if (st == OK)
        st = gguf_int_or(&g, "split.tensors.count", 0, INT32_MAX, *n_tensors, n_tensors, err);
    if (st == OK && (no != number - 1 || MAX(of, 1) != count))
        st = fail(err, ERR_FORMAT, "%s: is file %lld of %lld by split.no and split.count, and %d of %d by its name",
                  f->path, (long long)no + 1, (long long)of, number, count);
    if (st == OK)
        st = gguf_tensors(&g, f->map.bytes, f->map.n_bytes, c->n_files - 1, &c->arena, &c->list, err);
    gguf_release(&g);
    TRY(damage(f, err));
    return st;
}

static enum status open_gguf(struct checkpoint *c, const char *first, struct error *err) {
    const char *slash = strrchr(first, '/');
    int number = 1, count = 1;
    int64_t n_tensors = -1;
    folder_part_of(slash ? slash + 1 : first, ".gguf", &number, &count);
    if (number != 1 || count < 1 || count > MAX_SHARDS)
        return fail(err, ERR_LIMIT, "%s: is not the first of 1 to %d files", first, MAX_SHARDS);
    c->files = xcalloc((size_t)count, sizeof *c->files);
    TRY(add_gguf(c, first, 1, count, &n_tensors, err));
    for (int i = 2; i <= count; i++) {
        char path[FOLDER_PATH_BYTES];
        TRY(gguf_part_path(first, i, path, err));
        TRY(add_gguf(c, path, i, count, &n_tensors, err));
    }
    if (n_tensors >= 0 && (size_t)n_tensors != c->list.n)
        return fail(err, ERR_FORMAT, "%s: split.tensors.count is %lld, and the files have %zu tensors", first,
                    (long long)n_tensors, c->list.n);
    return build_table(c, err);
}

/* ---- what a path is ---- */

static enum status open_folder(struct checkpoint *c, const char *dir, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    struct shards shards;
    if (folder_has(dir, single_name)) {
        TRY(folder_file(dir, single_name, path, err));
        return open_single(c, path, err);
    }
    if (folder_has(dir, index_name)) {
        TRY(folder_file(dir, index_name, path, err));
        return open_sharded(c, dir, path, err);
    }
    find_shards(dir, &shards);
    if (shards.first[0])
        return open_shards(c, dir, &shards, err);
    return fail(err, ERR_IO, "%s: has neither %s nor %s", dir, single_name, index_name);
}

enum status checkpoint_open(struct checkpoint **out, const char *path, struct error *err) {
    struct checkpoint *c = xcalloc(1, sizeof *c);
    char gguf[FOLDER_PATH_BYTES];
    bool is_gguf;
    enum status st = gguf_find_model(path, gguf, &is_gguf, err);
    if (st != OK)
        ;
    else if (is_gguf)
        st = open_gguf(c, gguf, err);
    else if (dir_exists(path))
        st = open_folder(c, path, err);
    else if (!file_exists(path))
        st = fail(err, ERR_IO, "%s: no such file or folder", path);
    else if (!str_ends(str_of(path), STR(".safetensors")))
        st = fail(err, ERR_UNSUPPORTED, "%s: not a model folder, and its name does not end in .safetensors", path);
    else
        st = open_single(c, path, err);
    if (st != OK) {
        checkpoint_free(c);
        c = NULL;
    }
    *out = c;
    return st;
}

void checkpoint_free(struct checkpoint *c) {
    if (!c)
        return;
    for (int i = 0; i < c->n_files; i++)
        file_map_close(&c->files[i].map);
    free(c->files);
    free(c->list.items);
    free(c->table);
    arena_release(&c->arena);
    free(c);
}

enum status checkpoint_rename(struct checkpoint *c, tensor_rename rename, void *arg, struct error *err) {
    struct stored_list list = {0};
    enum status st = OK;
    for (size_t i = 0; i < c->list.n && st == OK; i++)
        st = rename(arg, &c->list.items[i], &c->arena, &list, err);
    if (st != OK) {
        free(list.items);
        return st;
    }
    free(c->list.items);
    free(c->table);
    c->list = list;
    return build_table(c, err);
}

struct stored_tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    uint32_t found = *slot_of(c, name);
    return found ? &c->list.items[found - 1] : NULL;
}

size_t checkpoint_count(const struct checkpoint *c) { return c->list.n; }

size_t checkpoint_unlisted(const struct checkpoint *c) { return c->n_unlisted; }

struct stored_tensor *checkpoint_at(const struct checkpoint *c, size_t i) {
    BUG_IF(i >= c->list.n);
    return &c->list.items[i];
}

const char *checkpoint_path(const struct checkpoint *c, const struct stored_tensor *t) {
    return c->files[t->file].path;
}

/* ---- reading ahead ---- */

enum { READ_BYTES = 16 << 20 }; // at a time: long enough for any disk's full rate, short enough for a smooth bar

/* Whether all pages of [at, at + n) are in memory. at begins a page, n <= READ_BYTES. */
static bool is_resident(const char *at, size_t n, size_t page) {
    unsigned char pages[READ_BYTES / 4096];
    size_t n_pages = (n + page - 1) / page;
    if (n_pages > sizeof pages || mincore((void *)at, n, pages) != 0)
        return false;
    for (size_t i = 0; i < n_pages; i++)
        if (!(pages[i] & 1))
            return false;
    return true;
}

struct reading {
    const struct load_progress *progress;
    int64_t done, total;
};

/* All of this is advice: where the system refuses, pages come when they are touched, and only time is lost. Large pages
 * spare the walks of page tables that limit how fast weights are read, as long as the file is in memory, where the file
 * system can keep a file in such (ext4 since Linux 6.16); they can be dropped as others can. */
static void read_range(struct reading *r, const char *at, size_t n_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), before = (uintptr_t)at % page;
    madvise((void *)(at - before), n_bytes + before, MADV_HUGEPAGE);
    for (size_t begin = 0, n; begin < n_bytes; begin += n) {
        n = MIN((size_t)READ_BYTES - before, n_bytes - begin);
        if (!is_resident(at + begin - before, n + before, page))
            madvise((void *)(at + begin - before), n + before, MADV_POPULATE_READ);
        before = 0;
        r->done += (int64_t)n;
        load_progress_step(r->progress, r->done, r->total);
    }
}

void checkpoint_read_ahead(const struct checkpoint *c, const struct load_progress *progress) {
    struct reading r = {.progress = progress};
    for (int i = 0; i < c->n_files; i++)
        r.total += (int64_t)c->files[i].map.n_bytes;
    if (!fits(r.total))
        return;
    for (int i = 0; i < c->n_files; i++)
        read_range(&r, c->files[i].map.bytes, c->files[i].map.n_bytes);
}

/* From tensor *i on the first that is wanted, with those that lie behind it in its file and are wanted too; false:
 * there is none. */
static bool next_run(const struct checkpoint *c, const bool *wanted, size_t *i, const char **begin, size_t *n_bytes) {
    while (*i < c->list.n && !wanted[*i])
        ++*i;
    if (*i == c->list.n)
        return false;
    const struct stored_tensor *first = &c->list.items[*i], *t = first;
    const char *end = first->data;
    do
        end = (const char *)t->data + t->n_bytes, t++;
    while (++*i < c->list.n && wanted[*i] && t->file == first->file && (const char *)t->data >= end);
    *begin = first->data;
    *n_bytes = (size_t)(end - *begin);
    return true;
}

void checkpoint_read_ahead_some(const struct checkpoint *c, const bool *wanted, const struct load_progress *progress) {
    struct reading r = {.progress = progress};
    const char *at;
    size_t n;
    for (size_t i = 0; next_run(c, wanted, &i, &at, &n);)
        r.total += (int64_t)n;
    if (!fits(r.total))
        return;
    for (size_t i = 0; next_run(c, wanted, &i, &at, &n);)
        read_range(&r, at, n);
}

int64_t checkpoint_put_in_large_pages(const struct checkpoint *c, const bool *wanted, int64_t reserved,
                                      const atomic_bool *stop) {
    static const int64_t least = 256 << 20;
    const char *at;
    size_t n;
    int64_t total = 0, missing = 0, put = 0;
    for (size_t i = 0; next_run(c, wanted, &i, &at, &n);)
        total += (int64_t)n, missing += large_pages_missing(at, n);
    if (total < least || !fits(missing + total + reserved))
        return 0;
    for (size_t i = 0; next_run(c, wanted, &i, &at, &n);)
        put += large_pages_put(at, n, stop);
    return put;
}

enum status checkpoint_check(const struct checkpoint *c, struct error *err) {
    for (int i = 0; i < c->n_files; i++)
        TRY(damage(&c->files[i], err));
    return OK;
}
