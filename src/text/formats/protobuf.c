/* protobuf.c - see protobuf.h. */
#include "text/formats/protobuf.h"

static bool take_varint(struct str *s, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && s->len > 0; shift += 7) {
        uint8_t byte = (uint8_t)*s->ptr++;
        s->len--;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static bool take_fixed(struct str *s, size_t n, uint64_t *out) {
    if (s->len < n)
        return false;
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)(uint8_t)s->ptr[i] << (8 * i);
    s->ptr += n;
    s->len -= n;
    return true;
}

static bool take_bytes(struct str *s, struct str *out) {
    uint64_t n;
    if (!take_varint(s, &n) || n > s->len)
        return false;
    *out = (struct str){s->ptr, (size_t)n};
    s->ptr += n;
    s->len -= (size_t)n;
    return true;
}

enum status protobuf_next(struct str *message, struct protobuf_field *field, bool *more, const char *where,
                          struct error *err) {
    *more = message->len > 0;
    if (!*more)
        return OK;
    uint64_t key;
    bool good = take_varint(message, &key) && key >> 3 > 0 && key >> 3 <= UINT32_MAX;
    *field = (struct protobuf_field){.number = good ? (uint32_t)(key >> 3) : 0,
                                     .wire = (enum protobuf_wire)(good ? key & 7 : 7)};
    switch (field->wire) {
    case PROTOBUF_VARINT: good = take_varint(message, &field->value); break;
    case PROTOBUF_FIXED64: good = take_fixed(message, 8, &field->value); break;
    case PROTOBUF_FIXED32: good = take_fixed(message, 4, &field->value); break;
    case PROTOBUF_BYTES: good = take_bytes(message, &field->bytes); break;
    default: good = false;
    }
    return good ? OK
                : fail(err, ERR_FORMAT, "%s: not a protocol-buffers message: field %u is broken or cut off", where,
                       field->number);
}

float protobuf_float(const struct protobuf_field *field) {
    uint32_t bits = (uint32_t)field->value;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
