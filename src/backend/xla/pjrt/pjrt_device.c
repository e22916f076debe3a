/* pjrt_device.c - see pjrt.h: what devices are, and buffers on them. */
#include "backend/xla/pjrt/pjrt.h"
#include "backend/xla/pjrt/pjrt_abi_run.h"

#include <stdio.h>
#include <string.h>

static struct pjrt_description *description_of(const struct pjrt *p, int device) {
    PJRT_PADDED(pjrt_description_args) args = {.a = {.device = p->devices[device]}};
    struct error ignored;
    return pjrt_call(p, PJRT_DEVICE_GET_DESCRIPTION, &args, "Device_GetDescription", &ignored) == OK
               ? args.a.description
               : NULL;
}

int pjrt_device_id(const struct pjrt *p, int device) {
    PJRT_PADDED(pjrt_description_id_args) args = {.a = {.description = description_of(p, device)}};
    struct error ignored;
    bool said =
        args.a.description && pjrt_call(p, PJRT_DEVICE_DESCRIPTION_ID, &args, "DeviceDescription_Id", &ignored) == OK;
    return said ? args.a.id : device;
}

void pjrt_device_kind(const struct pjrt *p, int device, char *out, size_t n) {
    PJRT_PADDED(pjrt_description_kind_args) args = {.a = {.description = description_of(p, device)}};
    struct error ignored;
    out[0] = '\0';
    if (args.a.description &&
        pjrt_call(p, PJRT_DEVICE_DESCRIPTION_KIND, &args, "DeviceDescription_Kind", &ignored) == OK)
        snprintf(out, n, "%.*s", (int)args.a.kind_size, args.a.kind);
}

void pjrt_device_memory(const struct pjrt *p, int device, struct pjrt_memory_bytes *out) {
    PJRT_PADDED(pjrt_device_memory_args) args = {.a = {.device = p->devices[device]}};
    struct error ignored; // the CPU has no numbers
    *out = (struct pjrt_memory_bytes){0};
    if (pjrt_call(p, PJRT_DEVICE_MEMORY_STATS, &args, "Device_MemoryStats", &ignored) == OK && args.a.limit_is_set)
        *out = (struct pjrt_memory_bytes){args.a.bytes_limit, args.a.bytes_in_use};
}

int64_t pjrt_type_bytes(enum pjrt_type type) {
    switch (type) {
    case PJRT_PRED:
    case PJRT_S8:
    case PJRT_U8: return 1;
    case PJRT_F16:
    case PJRT_BF16: return 2;
    case PJRT_S32:
    case PJRT_U32:
    case PJRT_F32: return 4;
    case PJRT_U64: return 8;
    }
    bug(__FILE__, __LINE__, "an element type without a size");
}

static enum status start(const struct pjrt *p, int device, enum pjrt_type type, const int64_t *dims, int n_dims,
                         const void *data, enum pjrt_semantics semantics, struct pjrt_buffer **out,
                         struct pjrt_event **done, struct error *err) {
    PJRT_PADDED(pjrt_from_host_args)
    args = {.a = {.client = p->client,
                  .data = data,
                  .type = (int32_t)type,
                  .dims = dims,
                  .n_dims = (size_t)n_dims,
                  .semantics = (int32_t)semantics,
                  .device = p->devices[device]}};
    TRY(pjrt_call(p, PJRT_CLIENT_BUFFER_FROM_HOST, &args, "Client_BufferFromHostBuffer", err));
    *out = args.a.buffer;
    *done = args.a.done;
    return OK;
}

enum status pjrt_upload_start(const struct pjrt *p, int device, enum pjrt_type type, const int64_t *dims, int n_dims,
                              const void *data, struct pjrt_buffer **out, struct pjrt_event **done, struct error *err) {
    return start(p, device, type, dims, n_dims, data, PJRT_UNTIL_TRANSFER, out, done, err);
}

enum status pjrt_upload(const struct pjrt *p, int device, enum pjrt_type type, const int64_t *dims, int n_dims,
                        const void *data, struct pjrt_buffer **out, struct error *err) {
    struct pjrt_event *done = NULL;
    TRY(start(p, device, type, dims, n_dims, data, PJRT_DURING_CALL, out, &done, err));
    enum status st = pjrt_await(p, done, "an upload", err);
    if (st != OK) {
        pjrt_buffer_free(p, *out);
        *out = NULL;
    }
    return st;
}

enum status pjrt_download(const struct pjrt *p, struct pjrt_buffer *buffer, void *to, int64_t n_bytes,
                          struct error *err) {
    PJRT_PADDED(pjrt_to_host_args) args = {.a = {.buffer = buffer, .to = to, .to_size = (size_t)n_bytes}};
    TRY(pjrt_call(p, PJRT_BUFFER_TO_HOST, &args, "Buffer_ToHostBuffer", err));
    return pjrt_await(p, args.a.event, "a download", err);
}

void pjrt_buffer_free(const struct pjrt *p, struct pjrt_buffer *buffer) {
    PJRT_PADDED(pjrt_buffer_args) args = {.a = {.buffer = buffer}};
    struct error ignored;
    if (buffer)
        (void)pjrt_call(p, PJRT_BUFFER_DESTROY, &args, "Buffer_Destroy", &ignored);
}
