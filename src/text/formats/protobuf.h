/* protobuf.h - walking the fields of a protocol-buffers message in memory, without a schema. */
#pragma once

#include "base/status.h"
#include "base/str.h"

enum protobuf_wire { PROTOBUF_VARINT = 0, PROTOBUF_FIXED64 = 1, PROTOBUF_BYTES = 2, PROTOBUF_FIXED32 = 5 };

struct protobuf_field {
    uint32_t number;
    enum protobuf_wire wire;
    uint64_t value;   // VARINT, FIXED64, FIXED32
    struct str bytes; // BYTES: a text, or a message of its own
};

/* Takes the next field off the front of message. *more is false at its end. ERR_FORMAT names `where`. */
enum status protobuf_next(struct str *message, struct protobuf_field *field, bool *more, const char *where,
                          struct error *err);

/* The float in a FIXED32 field. */
float protobuf_float(const struct protobuf_field *field);
