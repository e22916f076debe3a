/* backends.c - see backends.h: the one place that names the backends. */
#include "main/backends.h"

#include "backend/toy/toy.h"

static const struct backend_ops *const backends[] = {&backend_cpu, &backend_toy};

const struct backend_ops *backend_get(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(backends); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    BUG_IF(true);
}
