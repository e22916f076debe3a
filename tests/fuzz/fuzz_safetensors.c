/* fuzz_safetensors.c - any bytes are a safetensors file or one sentence; what is accepted lies inside the bytes. */
#include "file/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    struct arena names = {0};
    struct stored_list list = {0};
    struct error err = {0};
    enum status st = safetensors_parse((const char *)bytes, n_bytes, "fuzz", 0, &names, &list, &err);
    BUG_IF((st == OK) != (err.text[0] == '\0'));
    for (size_t i = 0; i < list.n; i++) {
        const struct stored_tensor *t = &list.items[i];
        const char *begin = t->data;
        BUG_IF(begin < (const char *)bytes || t->n_bytes > (size_t)((const char *)bytes + n_bytes - begin));
    }
    free(list.items);
    arena_release(&names);
    return 0;
}
