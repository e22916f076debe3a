/* fuzz_gguf.c - any bytes are a GGUF file or one sentence; what is accepted lies inside the bytes and can be read. */
#include "file/gguf_tensors.h"

#include <stdlib.h>

static void read_value(const struct gguf_value *v, const char *end) {
    const char *at = v->at;
    for (uint64_t i = 0; i < v->n; i++) {
        if (v->type == GGUF_STRING) {
            struct str s = gguf_next_string(&at, v->end);
            BUG_IF(s.ptr > end || s.len > (size_t)(end - s.ptr));
        } else if (gguf_is_int(v->type))
            (void)gguf_item_int(v, i);
        else
            (void)gguf_item_real(v, i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    struct arena names = {0};
    struct stored_list list = {0};
    struct error err = {0};
    struct gguf g;
    const char *begin = (const char *)bytes;
    enum status st = gguf_parse(begin, n_bytes, "fuzz", &g, &err);
    for (size_t i = 0; i < g.n_values; i++)
        read_value(&g.values[i], begin + n_bytes);
    if (st == OK)
        st = gguf_tensors(&g, begin, n_bytes, 0, &names, &list, &err);
    BUG_IF((st == OK) != (err.text[0] == '\0'));
    for (size_t i = 0; i < list.n; i++) {
        const struct stored_tensor *t = &list.items[i];
        const char *at = t->data;
        BUG_IF(at < begin || t->n_bytes > (size_t)(begin + n_bytes - at));
    }
    free(list.items);
    arena_release(&names);
    gguf_release(&g);
    return 0;
}
