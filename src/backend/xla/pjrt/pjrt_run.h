/* pjrt_run.h - programs: compiling them, running them, keeping them on disk. */
#pragma once

#include "backend/xla/pjrt/pjrt.h"
#include "backend/xla/pjrt/pjrt_abi_run.h"
#include "base/buf.h"

/* Serialised CompileOptionsProto: a replica on each of these devices (pjrt_device_id), which may be one. */
void pjrt_compile_options(const int *device_ids, int n_devices, struct buf *out);

/* What it takes on a device; 0: the plugin does not say. */
struct pjrt_program_bytes {
    int64_t code, arguments, outputs, aliased, temporary;
};

enum status pjrt_compile(const struct pjrt *p, struct str text, struct str options, struct pjrt_loaded **out,
                         struct error *err);
void pjrt_loaded_free(const struct pjrt *p, struct pjrt_loaded *loaded); // NULL is fine
enum status pjrt_program_bytes(const struct pjrt *p, struct pjrt_loaded *loaded, struct pjrt_program_bytes *out,
                               struct error *err);

enum status pjrt_bytes_of(const struct pjrt *p, struct pjrt_executable *executable, struct pjrt_program_bytes *out,
                          struct error *err);
void pjrt_executable_free(const struct pjrt *p, struct pjrt_executable *executable);

/* By the compiler's count of a launch; 0: it has none. */
struct pjrt_cost {
    double flops, bytes;
};
/* Compiles for devices that are not there, "v6e:2x2", numbered from 0 in the options; with no client. */
enum status pjrt_compile_for(const struct pjrt *p, const char *topology, struct str text, struct str options,
                             struct pjrt_program_bytes *bytes, struct pjrt_cost *cost, struct error *err);

/* The bytes that pjrt_deserialize makes the same program of: for this plugin and version alone. */
enum status pjrt_serialize(const struct pjrt *p, struct pjrt_loaded *loaded, struct buf *out, struct error *err);
enum status pjrt_deserialize(const struct pjrt *p, struct str bytes, struct pjrt_loaded **out, struct error *err);

/* arguments [n_devices][n_arguments], outputs [n_devices][..] as many as the program has. Returns when the work is
 * queued; what is given away is dead then, and still to be freed. */
enum status pjrt_execute(const struct pjrt *p, struct pjrt_loaded *loaded, struct pjrt_buffer *const *const *arguments,
                         int n_devices, int n_arguments, struct pjrt_buffer **const *outputs, struct error *err);
