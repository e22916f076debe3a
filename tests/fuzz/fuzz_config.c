/* fuzz_config.c - any JSON is a config.json that can be described, or one sentence. */
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    json_t *root;
    struct error err = {0};
    struct model_spec *spec;
    if (jv_parse((struct str){(const char *)bytes, n_bytes}, "fuzz", JV_ALLOW_DUPLICATES, &root, &err) != OK)
        return 0;
    enum status st = model_spec_read(root, "fuzz", &spec, &err);
    BUG_IF((st == OK) != (err.text[0] == '\0'));
    // Counting is linear in the matrices: tens of thousands of experts are no finding, only slow.
    if (st == OK && (int64_t)spec->n_layers * (spec->moe.n_experts + 1) < 2000) {
        int64_t n_parameters, stored_bytes[N_STORAGES];
        st = model_count(spec, &n_parameters, stored_bytes, &err);
        BUG_IF(st == OK && n_parameters <= 0);
    }
    model_spec_free(spec);
    json_decref(root);
    return 0;
}
