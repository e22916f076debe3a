/* fuzz_shard.c - the model of any config.json that can be recorded can be cut for any number of ranks, or one sentence
 * says what cannot. The first byte says for how many, and whether experts are dealt out. */
#include "core/pass/pass.h"
#include "model/families/family.h"
#include "model/model.h"

static void cut(const struct program *p, int n, bool by_expert) {
    struct program *shards[2] = {NULL};
    struct error err = {0};
    for (int i = 0; i < 2; i++) { // the first and the last
        enum status st = pass_shard(p, &(struct shard_options){i ? n - 1 : 0, n, by_expert}, &shards[i], &err);
        BUG_IF((st == OK) != (shards[i] != NULL) || (st == OK) != (err.text[0] == '\0'));
        if (st != OK)
            break;
    }
    BUG_IF(shards[0] && shards[1] && shards[0]->n_ops != shards[1]->n_ops);
    program_free(shards[0]);
    program_free(shards[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    json_t *root;
    struct error err = {0};
    struct model_spec *spec;
    if (n_bytes < 1 ||
        jv_parse((struct str){(const char *)bytes + 1, n_bytes - 1}, "fuzz", JV_ALLOW_DUPLICATES, &root, &err) != OK)
        return 0;
    const struct family *family =
        model_spec_read(root, "fuzz", &spec, &err) == OK ? family_find(spec->model_type) : NULL;
    if (family && family->record && (int64_t)spec->n_layers * (spec->moe.n_experts + 1) < 500) {
        struct binder b;
        struct arena arena = {0};
        BUG_IF(binder_init(&b, LOAD_PHANTOM, NULL, spec, &arena, &err) != OK);
        const void *weights = family->bind(&b);
        if (binder_finish(&b, family->unused) == OK) {
            struct program *p = program_new("fuzz");
            family->record(p, spec, weights);
            cut(p, 1 + bytes[0] % 16, bytes[0] >= 128);
            program_free(p);
        }
        arena_release(&arena);
    }
    model_spec_free(spec);
    json_decref(root);
    return 0;
}
