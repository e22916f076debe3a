/* pjrt_topology.c - see pjrt_run.h: programs for devices that are not there. */
#include "backend/xla/pjrt/pjrt_run.h"

#include <string.h>

static enum status create_topology(const struct pjrt *p, const char *name, struct pjrt_topology **out,
                                   struct error *err) {
    PJRT_PADDED(pjrt_topology_create_args) args = {.a = {.name = name, .name_size = strlen(name)}};
    TRY(pjrt_call(p, PJRT_TOPOLOGY_CREATE, &args, name, err));
    *out = args.a.topology;
    return OK;
}

static void destroy_topology(const struct pjrt *p, struct pjrt_topology *topology) {
    PJRT_PADDED(pjrt_topology_args) args = {.a = {.topology = topology}};
    struct error ignored;
    (void)pjrt_call(p, PJRT_TOPOLOGY_DESTROY, &args, "TopologyDescription_Destroy", &ignored);
}

static enum status compile(const struct pjrt *p, const struct pjrt_topology *topology, struct str text,
                           struct str options, struct pjrt_executable **out, struct error *err) {
    static const char format[] = "mlir";
    PJRT_PADDED(pjrt_program)
    program = {.a = {.struct_size = PJRT_STRUCT_BYTES,
                     .code = (char *)(uintptr_t)text.ptr,
                     .code_size = text.len,
                     .format = format,
                     .format_size = sizeof format - 1}};
    PJRT_PADDED(pjrt_compile_args)
    args = {.a = {.topology = topology, .program = &program.a, .options = options.ptr, .options_size = options.len}};
    TRY(pjrt_call(p, PJRT_COMPILE, &args, "compiling", err));
    *out = args.a.executable;
    return OK;
}

static double property(const struct pjrt_cost_args *args, const char *name) {
    for (size_t i = 0; i < args->n_properties; i++) {
        const struct pjrt_named_value *v = &args->properties[i];
        if (v->name_size == strlen(name) && memcmp(v->name, name, v->name_size) == 0 && v->type == PJRT_FLOAT)
            return (double)v->value.float32;
    }
    return 0;
}

static void read_cost(const struct pjrt *p, struct pjrt_executable *executable, struct pjrt_cost *out) {
    PJRT_PADDED(pjrt_cost_args) args = {.a = {.executable = executable}};
    struct error ignored; // not every plugin counts
    *out = (struct pjrt_cost){0};
    if (pjrt_call(p, PJRT_EXECUTABLE_COST_ANALYSIS, &args, "Executable_GetCostAnalysis", &ignored) == OK)
        *out = (struct pjrt_cost){property(&args.a, "flops"), property(&args.a, "bytes accessed")};
}

static enum status compile_and_read(const struct pjrt *p, const struct pjrt_topology *topology, struct str text,
                                    struct str options, struct pjrt_program_bytes *bytes, struct pjrt_cost *cost,
                                    struct error *err) {
    struct pjrt_executable *executable;
    TRY(compile(p, topology, text, options, &executable, err));
    enum status st = pjrt_bytes_of(p, executable, bytes, err);
    read_cost(p, executable, cost);
    pjrt_executable_free(p, executable);
    return st;
}

enum status pjrt_compile_for(const struct pjrt *p, const char *topology, struct str text, struct str options,
                             struct pjrt_program_bytes *bytes, struct pjrt_cost *cost, struct error *err) {
    struct pjrt_topology *t;
    TRY(create_topology(p, topology, &t, err));
    enum status st = compile_and_read(p, t, text, options, bytes, cost, err);
    destroy_topology(p, t);
    return st;
}
