/* shard_index.c - see shard_index.h. */
#include "file/shard_index.h"

#include "base/folder.h"
#include "base/json/json.h"

static enum status check_metadata(const json_t *root, const char *path, struct error *err) {
    json_t *metadata;
    double total;
    TRY(jv_object_or_null(root, path, "metadata", &metadata, err));
    TRY(jv_real_or(metadata, path, "total_size", 0, &total, err));
    if (total < 0)
        return fail(err, ERR_FORMAT, "%s: \"total_size\" is negative", path);
    return OK;
}

static enum status check_file_name(const char *path, const char *tensor, const json_t *value, const char **out,
                                   struct error *err) {
    const char *name = json_string_value(value);
    if (!name || strlen(name) != json_string_length(value))
        return fail(err, ERR_FORMAT, "%s: tensor %s: the file name is %s, it must be a string", path, tensor,
                    jv_type_name(value));
    if (!folder_name_stays_below(name) || !str_ends(str_of(name), STR(".safetensors")))
        return fail(err, ERR_FORMAT, "%s: tensor %s: \"%s\" is not the name of a safetensors file in this folder", path,
                    tensor, name);
    *out = name;
    return OK;
}

/* The number of a file; a new one is added to `out`, whose array has room for MAX_SHARDS. `known` maps names to
 * numbers, because 100,000 tensors in 2,000 shards are too many for a linear search. */
static enum status file_number(json_t *known, const char *path, const char *name, struct arena *arena,
                               struct shard_index *out, int *number, struct error *err) {
    json_t *n = json_object_get(known, name);
    if (n) {
        *number = (int)json_integer_value(n);
        return OK;
    }
    if (out->n_files == MAX_SHARDS)
        return fail(err, ERR_LIMIT, "%s: names more than %d files", path, MAX_SHARDS);
    *number = out->n_files++;
    out->files[*number] = arena_strdup(arena, str_of(name));
    json_object_set_new(known, name, json_integer(*number));
    return OK;
}

static enum status read_weight_map(json_t *map, json_t *known, const char *path, struct arena *arena,
                                   struct shard_index *out, struct error *err) {
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value) {
        const char *file_name = NULL;
        struct shard_entry *e = &out->entries[out->n_entries++];
        TRY(check_file_name(path, tensor, value, &file_name, err));
        TRY(file_number(known, path, file_name, arena, out, &e->file, err));
        e->name = arena_strdup(arena, str_of(tensor));
    }
    return OK;
}

static enum status read_index(const json_t *root, const char *path, struct arena *arena, struct shard_index *out,
                              struct error *err) {
    if (!json_is_object(root))
        return fail(err, ERR_FORMAT, "%s: is %s, it must be an object", path, jv_type_name(root));
    TRY(check_metadata(root, path, err));
    json_t *map;
    TRY(jv_object_or_null(root, path, "weight_map", &map, err));
    if (!map || json_object_size(map) == 0)
        return fail(err, ERR_FORMAT, "%s: \"weight_map\" is missing or empty", path);
    *out = (struct shard_index){.files = arena_calloc(arena, MAX_SHARDS, sizeof *out->files),
                                .entries = arena_calloc(arena, json_object_size(map), sizeof *out->entries)};
    json_t *known = json_object();
    enum status st = read_weight_map(map, known, path, arena, out, err);
    json_decref(known);
    return st;
}

enum status shard_index_parse(struct str text, const char *path, struct arena *arena, struct shard_index *out,
                              struct error *err) {
    json_t *root;
    TRY(jv_parse(text, path, 0, &root, err));
    enum status st = read_index(root, path, arena, out, err);
    json_decref(root);
    return st;
}
