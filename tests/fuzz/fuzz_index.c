/* fuzz_index.c - any bytes are a shard index or one sentence; no accepted file name leads out of the folder. */
#include "file/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    struct arena arena = {0};
    struct shard_index index = {0};
    struct error err = {0};
    enum status st = shard_index_parse((struct str){(const char *)bytes, n_bytes}, "fuzz", &arena, &index, &err);
    BUG_IF((st == OK) != (err.text[0] == '\0'));
    for (int i = 0; st == OK && i < index.n_files; i++)
        BUG_IF(strchr(index.files[i], '/') || strlen(index.files[i]) < 12);
    for (size_t i = 0; st == OK && i < index.n_entries; i++)
        BUG_IF(index.entries[i].file < 0 || index.entries[i].file >= index.n_files);
    arena_release(&arena);
    return 0;
}
