/* hub_index.c - see hub_index.h. */
#include "hub/hub_index.h"

enum { MAX_INDEX_BYTES = 64 << 20 };

enum status hub_index_read(const char *path, const char *where, json_t **shards, struct error *err) {
    json_t *index, *map, *file;
    const char *tensor;
    *shards = json_object();
    TRY(jv_load(path, MAX_INDEX_BYTES, JV_ALLOW_DUPLICATES, &index, err));
    enum status st = json_is_object(index) ? jv_object_or_null(index, where, "weight_map", &map, err)
                                           : fail(err, ERR_FORMAT, "%s: is %s, it must be an object", where,
                                                  jv_type_name(index));
    if (st == OK)
        json_object_foreach(map, tensor, file) if (json_is_string(file))
            json_object_set_new(*shards, json_string_value(file), json_true());
    json_decref(index);
    return st;
}
