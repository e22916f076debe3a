/* pooling.c - see pooling.h. */
#include "model/pooling.h"

#include "base/file.h"
#include "base/folder.h"
#include "base/json/json.h"

#include <string.h>

enum { MAX_FILE = 1 << 20 };

/* {"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false, ...}: exactly one of them is true. */
static enum status read_modes(const json_t *config, const char *path, enum gyre_pooling *out, struct error *err) {
    const char *key;
    json_t *value;
    *out = GYRE_POOL_NONE;
    json_object_foreach((json_t *)config, key, value) {
        if (strncmp(key, "pooling_mode_", 13) != 0 || !json_is_true(value))
            continue;
        enum gyre_pooling mode = strcmp(key, "pooling_mode_lasttoken") == 0     ? GYRE_POOL_LAST
                                 : strcmp(key, "pooling_mode_mean_tokens") == 0 ? GYRE_POOL_MEAN
                                                                                : GYRE_POOL_NONE;
        if (mode == GYRE_POOL_NONE || *out != GYRE_POOL_NONE)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: %s: only one of pooling_mode_lasttoken and pooling_mode_mean_tokens is supported", path,
                        key);
        *out = mode;
    }
    if (*out == GYRE_POOL_NONE)
        return fail(err, ERR_FORMAT, "%s: no pooling_mode is true", path);
    return OK;
}

static enum status read_pooling_module(const char *folder, const char *module, enum gyre_pooling *out,
                                       struct error *err) {
    char name[FOLDER_PATH_BYTES], path[FOLDER_PATH_BYTES];
    json_t *config;
    if (!folder_name_is_plain(module))
        return fail(err, ERR_FORMAT, "%s/modules.json: path \"%s\" is no name of a folder", folder, module);
    TRY(path_join(name, sizeof name, module, "config.json", err));
    TRY(folder_file(folder, name, path, err));
    TRY(jv_load(path, MAX_FILE, 0, &config, err));
    enum status st = json_is_object(config) ? read_modes(config, path, out, err)
                                            : fail(err, ERR_FORMAT, "%s: must be an object", path);
    json_decref(config);
    return st;
}

static enum status read_module(const char *folder, const char *path, const json_t *module, enum gyre_pooling *pooling,
                               bool *normalize, struct error *err) {
    const char *type, *at;
    if (!json_is_object(module))
        return fail(err, ERR_FORMAT, "%s: must be an array of objects", path);
    TRY(jv_string(module, path, "type", &type, err));
    TRY(jv_string_or(module, path, "path", "", &at, err));
    const char *last = strrchr(type, '.');
    last = last ? last + 1 : type;
    if (strcmp(last, "Pooling") == 0)
        return read_pooling_module(folder, at, pooling, err);
    if (strcmp(last, "Normalize") == 0)
        *normalize = true;
    else if (strcmp(last, "Transformer") != 0)
        return fail(err, ERR_UNSUPPORTED, "%s: modules of type %s are not supported", path, type);
    return OK;
}

enum status pooling_read(const char *folder, enum gyre_pooling *pooling, bool *normalize, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    json_t *modules, *module;
    size_t i;
    bool found;
    *pooling = GYRE_POOL_LAST;
    *normalize = true;
    TRY(folder_find(folder, "modules.json", path, &found, err));
    if (!found)
        return OK;
    *normalize = false;
    TRY(jv_load(path, MAX_FILE, 0, &modules, err));
    enum status st = json_is_array(modules) ? OK : fail(err, ERR_FORMAT, "%s: must be an array of objects", path);
    json_array_foreach(modules, i, module) {
        if (st == OK)
            st = read_module(folder, path, module, pooling, normalize, err);
    }
    json_decref(modules);
    return st;
}
