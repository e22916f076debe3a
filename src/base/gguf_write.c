/* gguf_write.c - see gguf_write.h. */
#include "base/gguf_write.h"

#include "base/status.h"

static void put_le(struct buf *b, uint64_t value, int n_bytes) {
    char bytes[8];
    for (int i = 0; i < n_bytes; i++)
        bytes[i] = (char)(value >> 8 * i);
    buf_append(b, bytes, (size_t)n_bytes);
}

static void put_text(struct buf *b, struct str s) {
    put_le(b, s.len, 8);
    buf_str(b, s);
}

static void begin_key(struct gguf_writer *w, struct str key, enum gguf_type type) {
    put_text(&w->keys, key);
    put_le(&w->keys, type, 4);
    w->n_keys++;
}

void gguf_writer_release(struct gguf_writer *w) {
    buf_release(&w->keys);
    buf_release(&w->tensors);
    *w = (struct gguf_writer){0};
}

void gguf_item_u32(struct gguf_writer *w, uint32_t value) { put_le(&w->keys, value, 4); }
void gguf_item_bool(struct gguf_writer *w, bool value) { put_le(&w->keys, value, 1); }
void gguf_item_string(struct gguf_writer *w, struct str value) { put_text(&w->keys, value); }

void gguf_item_f32(struct gguf_writer *w, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_le(&w->keys, bits, 4);
}

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value) {
    begin_key(w, str_of(key), GGUF_U32);
    gguf_item_u32(w, value);
}

void gguf_put_f32(struct gguf_writer *w, const char *key, float value) {
    begin_key(w, str_of(key), GGUF_F32);
    gguf_item_f32(w, value);
}

void gguf_put_bool(struct gguf_writer *w, const char *key, bool value) {
    begin_key(w, str_of(key), GGUF_BOOL);
    gguf_item_bool(w, value);
}

void gguf_put_string(struct gguf_writer *w, const char *key, struct str value) {
    begin_key(w, str_of(key), GGUF_STRING);
    gguf_item_string(w, value);
}

void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n) {
    begin_key(w, str_of(key), GGUF_ARRAY);
    put_le(&w->keys, type, 4);
    put_le(&w->keys, n, 8);
}

void gguf_put_value(struct gguf_writer *w, const struct gguf_value *v) {
    begin_key(w, v->key, v->is_array ? GGUF_ARRAY : v->type);
    if (v->is_array) {
        put_le(&w->keys, v->type, 4);
        put_le(&w->keys, v->n, 8);
    }
    buf_append(&w->keys, v->at, (size_t)(v->end - v->at));
}

static uint64_t padded(uint64_t n) { return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT; }

uint64_t gguf_put_tensor(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *dims, uint32_t type,
                         uint64_t n_bytes) {
    uint64_t at = w->data_bytes;
    put_text(&w->tensors, str_of(name));
    put_le(&w->tensors, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        put_le(&w->tensors, dims[i], 8);
    put_le(&w->tensors, type, 4);
    put_le(&w->tensors, at, 8);
    w->n_tensors++;
    w->data_bytes = padded(at + n_bytes);
    return at;
}

void gguf_write_head(const struct gguf_writer *w, struct buf *out) {
    size_t begin = out->len;
    buf_str(out, STR("GGUF"));
    put_le(out, 3, 4);
    put_le(out, w->n_tensors, 8);
    put_le(out, w->n_keys, 8);
    buf_str(out, buf_view(&w->keys));
    buf_str(out, buf_view(&w->tensors));
    while ((out->len - begin) % GGUF_ALIGNMENT)
        buf_push(out, '\0');
}
