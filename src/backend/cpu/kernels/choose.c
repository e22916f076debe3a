/* choose.c - which kernels a device's options ask for. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/blocks.h"

#include <string.h>

static enum status is_exact(const char *const *own, bool *out, struct error *err) {
    const char *activations = device_option(own, "activations");
    *out = activations && strcmp(activations, "float32") == 0;
    if (!activations || *out || strcmp(activations, "int8") == 0)
        return OK;
    return fail(err, ERR_ARG, "activations: \"%.40s\" is neither int8 nor float32", activations);
}

enum status cpu_choose_kernels(const char *const *own, const struct kernels **out, bool *exact, struct error *err) {
    const char *name = device_option(own, "kernels");
    *out = NULL;
    TRY(is_exact(own, exact, err));
    if (name && strcmp(name, "reference") == 0)
        return OK;
    *out = kernels_find(name);
    return *out ? OK : fail(err, ERR_UNSUPPORTED, "kernels: this processor has no \"%s\"", name);
}

const struct kernels *cpu_products(const struct device *d, bool rounds) {
    const struct kernels *base = rounds ? kernels_bf16() : d->kernels;
    const struct kernels *of_blocks = base && !d->exact ? kernels_of_blocks(base) : NULL;
    return of_blocks ? of_blocks : base;
}
