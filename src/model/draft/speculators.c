/* speculators.c - config.json of drafts as the speculators library writes it: the draft's layer has a config of its
 * own, transformer_layer_config, beside what makes it a draft. */
#include "model/spec/spec_read.h"

static const char *const classes[][2] = {
    {"eagle3", "Eagle3Speculator"}, {"dflash", "DFlashDraftModel"}, {"dspark", "DSparkSpeculator"}};

enum status speculators_flat(const json_t *root, const char *path, json_t **out, struct error *err) {
    const char *type, *key, *class_name = NULL;
    json_t *layer, *value;
    *out = NULL;
    if (!json_object_get(root, "speculators_model_type"))
        return OK;
    TRY(jv_string(root, path, "speculators_model_type", &type, err));
    TRY(jv_object_or_null(root, path, "transformer_layer_config", &layer, err));
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (strcmp(classes[i][0], type) == 0)
            class_name = classes[i][1];
    if (!class_name || !layer)
        return fail(err, ERR_UNSUPPORTED, "%s: \"speculators_model_type\" %.100s %s", path, type,
                    class_name ? "has no \"transformer_layer_config\"" : "is not supported");
    *out = json_copy(layer);
    json_object_foreach((json_t *)root, key,
                        value) if (strcmp(key, "transformer_layer_config") != 0 && strcmp(key, "model_type") != 0)
        json_object_set(*out, key, value);
    json_object_set_new(*out, "architectures", json_pack("[s]", class_name));
    return OK;
}
