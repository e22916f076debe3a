/* tokenizer_info.c - see tokenizer_info.h. */
#include "main/model/tokenizer_info.h"

#include "base/folder.h"

static enum status read_config(const char *folder, json_t **out, struct error *err) {
    enum { MAX_BYTES = 64 << 20 };
    char path[FOLDER_PATH_BYTES];
    bool found;
    TRY(folder_find(folder, "tokenizer_config.json", path, &found, err));
    if (found)
        TRY(jv_load(path, MAX_BYTES, JV_ALLOW_DUPLICATES | JV_PYTHON, out, err));
    else
        *out = json_object();
    return json_is_object(*out) ? OK : fail(err, ERR_FORMAT, "%s: must be a JSON object", path);
}

enum status tokenizer_info_read(const char *folder, const struct chat_template *chat, json_t **out, struct error *err) {
    *out = NULL;
    TRY(read_config(folder, out, err));
    if (!json_object_get(*out, "tokenizer_class"))
        json_object_set_new(*out, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    const struct chat_variant *usual = chat ? chat_template_named(chat, "default") : NULL;
    json_object_set_new(*out, "chat_template",
                        usual ? json_stringn(usual->source.ptr, usual->source.len) : json_null());
    return OK;
}
