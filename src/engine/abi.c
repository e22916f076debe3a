/* abi.c - see abi.h. */
#include "engine/abi.h"

#include <string.h>

const struct abi_struct abi_options = {"gyre_options", sizeof(struct gyre_options),
                                       ABI_SIZE_UP_TO(struct gyre_options, n_eos)};
const struct abi_struct abi_request = {"gyre_request", sizeof(struct gyre_request),
                                       ABI_SIZE_UP_TO(struct gyre_request, user)};

_Static_assert((int)GYRE_ARGUMENT == ERR_ARG && (int)GYRE_FULL == ERR_FULL && (int)GYRE_DEVICE == ERR_DEVICE,
               "one list of statuses");

enum { MAX_STRUCT_BYTES = 4096 }; // what is larger is no size but whatever stood in memory

enum status abi_read(const struct abi_struct *layout, const void *from, void *out, struct error *err) {
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size == 0)
        size = layout->least;
    if (size < layout->least || size > MAX_STRUCT_BYTES)
        return fail(err, ERR_ARG, "struct_size is %zu: set it to sizeof(struct %s), which is %zu here", size,
                    layout->name, layout->size);
    for (size_t i = layout->size; i < size; i++)
        if (((const char *)from)[i])
            return fail(err, ERR_UNSUPPORTED,
                        "struct %s comes from a newer gyre.h and asks for something that this library does not know "
                        "(byte %zu of %zu)",
                        layout->name, i, size);
    memset(out, 0, layout->size);
    memcpy(out, from, MIN(size, layout->size));
    memcpy(out, &layout->size, sizeof layout->size);
    return OK;
}

void abi_write(const struct abi_struct *layout, const void *from, void *out, size_t size) {
    BUG_IF(size < layout->least || size > MAX_STRUCT_BYTES);
    memset(out, 0, size);
    memcpy(out, from, MIN(size, layout->size));
    memcpy(out, &size, sizeof size);
}
