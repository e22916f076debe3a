/* plugin.c - what libgyre-cuda.so exports. */
#include "core/plugin.h"
#include "backend/cuda/cuda.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

extern const struct backend_ops backend_cuda;

__attribute__((visibility("default"))) struct plugin gyre_plugin;
__attribute__((constructor)) static void fill(void) {
    gyre_plugin = (struct plugin){GYRE_VERSION, GYRE_INTERFACE, "CUDA " TEXT(CUDART_VERSION) ", sm_90a", &backend_cuda};
}
