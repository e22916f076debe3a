/* fuzz_adapter.c - any JSON is an adapter_config.json that can be read, or one sentence; and its patterns end. */
#include "model/adapter_config.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj",
                                          "lm_head"};
    json_t *root;
    struct error err = {0};
    struct adapter_config *config;
    if (jv_parse((struct str){(const char *)bytes, n_bytes}, "fuzz", JV_ALLOW_DUPLICATES, &root, &err) != OK)
        return 0;
    enum status st = adapter_config_read(root, "fuzz", &config, &err);
    BUG_IF((st == OK) != (err.text[0] == '\0') || (st == OK) != (config != NULL));
    for (size_t i = 0; config && i < ARRAY_LEN(modules); i++) {
        int64_t rank;
        double scale;
        if (adapter_config_rank(config, modules[i], &rank, &err) != OK)
            continue;
        BUG_IF(rank < 0);
        BUG_IF(adapter_config_scale(config, modules[i], rank + 1, &scale, &err) == OK && !isfinite(scale));
    }
    adapter_config_free(config);
    json_decref(root);
    return 0;
}
