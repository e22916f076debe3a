/* safetensors_write.c - see safetensors_write.h. */
#include "file/safetensors_write.h"

#include "base/status.h"

uint64_t new_tensor_bytes(const struct new_tensor *t) {
    uint64_t n = dtype_bytes(t->dtype);
    for (int i = 0; i < t->rank; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

static const char *file_name_of(enum dtype dt) {
    static const char *const names[] = {
#define X(id, name, file_name, bits) [id] = file_name,
        DTYPES(X)
#undef X
    };
    return names[dt];
}

static void put_entry(const struct new_tensor *t, struct buf *out) {
    buf_json_string(out, str_of(t->name));
    buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", file_name_of(t->dtype));
    for (int i = 0; i < t->rank; i++)
        buf_printf(out, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    buf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset,
               (unsigned long long)(t->offset + new_tensor_bytes(t)));
}

uint64_t safetensors_write_head(struct new_tensor *tensors, size_t n, struct buf *out) {
    static const char metadata[] = "{\"__metadata__\":{\"format\":\"pt\"}";
    size_t begin = out->len;
    uint64_t at = 0;
    for (size_t bytes = 8; bytes > 0; bytes /= 2)
        for (size_t i = 0; i < n; i++)
            if (dtype_bytes(tensors[i].dtype) == bytes) {
                tensors[i].offset = at;
                at += new_tensor_bytes(&tensors[i]);
            }
    buf_append(out, "\0\0\0\0\0\0\0\0", 8);
    buf_str(out, str_of(metadata));
    for (size_t i = 0; i < n; i++) {
        buf_push(out, ',');
        put_entry(&tensors[i], out);
    }
    buf_push(out, '}');
    while ((out->len - begin) % 8)
        buf_push(out, ' ');
    uint64_t head = out->len - begin;
    for (int i = 0; i < 8; i++)
        out->ptr[begin + (size_t)i] = (char)((head - 8) >> 8 * i);
    for (size_t i = 0; i < n; i++)
        tensors[i].offset += head;
    return head + at;
}
