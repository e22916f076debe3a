/* pjrt_run.c - see pjrt_run.h. */
#include "backend/xla/pjrt/pjrt_run.h"

/* ---- CompileOptionsProto, by hand: its fields are few, and keep their numbers ---- */

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };

static void put_varint(struct buf *out, uint64_t x) {
    for (; x > 127; x >>= 7)
        buf_push(out, (char)((x & 127) | 128));
    buf_push(out, (char)x);
}

static void put_number(struct buf *out, int field, int64_t x) {
    put_varint(out, (uint64_t)field << 3 | WIRE_VARINT);
    put_varint(out, (uint64_t)x);
}

static void put_message(struct buf *out, int field, struct buf *message) {
    put_varint(out, (uint64_t)field << 3 | WIRE_BYTES);
    put_varint(out, message->len);
    buf_str(out, buf_view(message));
    buf_release(message);
}

/* DeviceAssignmentProto: one computation, on a device a replica. */
static void put_assignment(struct buf *out, int field, const int *ids, int n) {
    struct buf list = {0}, computation = {0}, assignment = {0};
    for (int i = 0; i < n; i++)
        put_varint(&list, (uint64_t)ids[i]);
    put_message(&computation, 1, &list); // replica_device_ids, packed
    put_number(&assignment, 1, n);       // replica_count
    put_number(&assignment, 2, 1);       // computation_count
    put_message(&assignment, 3, &computation);
    put_message(out, field, &assignment);
}

void pjrt_compile_options(const int *device_ids, int n_devices, struct buf *out) {
    struct buf build = {0};
    put_number(&build, 1, -1);        // device_ordinal: not set
    put_number(&build, 4, n_devices); // num_replicas
    put_number(&build, 5, 1);         // num_partitions
    put_assignment(&build, 9, device_ids, n_devices);
    put_message(out, 3, &build); // executable_build_options
}

/* ---- programs ---- */

enum status pjrt_compile(const struct pjrt *p, struct str text, struct str options, struct pjrt_loaded **out,
                         struct error *err) {
    static const char format[] = "mlir";
    PJRT_PADDED(pjrt_program)
    program = {.a = {.struct_size = PJRT_STRUCT_BYTES,
                     .code = (char *)(uintptr_t)text.ptr,
                     .code_size = text.len,
                     .format = format,
                     .format_size = sizeof format - 1}};
    PJRT_PADDED(pjrt_client_compile_args)
    args = {.a = {.client = p->client, .program = &program.a, .options = options.ptr, .options_size = options.len}};
    TRY(pjrt_call(p, PJRT_CLIENT_COMPILE, &args, "compiling", err));
    *out = args.a.loaded;
    return OK;
}

void pjrt_loaded_free(const struct pjrt *p, struct pjrt_loaded *loaded) {
    PJRT_PADDED(pjrt_loaded_args) args = {.a = {.loaded = loaded}};
    struct error ignored;
    if (loaded)
        (void)pjrt_call(p, PJRT_LOADED_DESTROY, &args, "LoadedExecutable_Destroy", &ignored);
}

static enum status get_executable(const struct pjrt *p, struct pjrt_loaded *loaded, struct pjrt_executable **out,
                                  struct error *err) {
    PJRT_PADDED(pjrt_get_executable_args) args = {.a = {.loaded = loaded}};
    TRY(pjrt_call(p, PJRT_LOADED_GET_EXECUTABLE, &args, "LoadedExecutable_GetExecutable", err));
    *out = args.a.executable;
    return OK;
}

void pjrt_executable_free(const struct pjrt *p, struct pjrt_executable *executable) {
    PJRT_PADDED(pjrt_executable_args) args = {.a = {.executable = executable}};
    struct error ignored;
    (void)pjrt_call(p, PJRT_EXECUTABLE_DESTROY, &args, "Executable_Destroy", &ignored);
}

enum status pjrt_bytes_of(const struct pjrt *p, struct pjrt_executable *executable, struct pjrt_program_bytes *out,
                          struct error *err) {
    PJRT_PADDED(pjrt_memory_stats_args) args = {.a = {.executable = executable}};
    TRY(pjrt_call(p, PJRT_MEMORY_STATS, &args, "Executable_GetCompiledMemoryStats", err));
    *out = (struct pjrt_program_bytes){args.a.code_bytes, args.a.argument_bytes, args.a.output_bytes,
                                       args.a.alias_bytes, args.a.temp_bytes};
    return OK;
}

enum status pjrt_program_bytes(const struct pjrt *p, struct pjrt_loaded *loaded, struct pjrt_program_bytes *out,
                               struct error *err) {
    struct pjrt_executable *executable;
    TRY(get_executable(p, loaded, &executable, err));
    enum status st = pjrt_bytes_of(p, executable, out, err);
    pjrt_executable_free(p, executable);
    return st;
}

enum status pjrt_serialize(const struct pjrt *p, struct pjrt_loaded *loaded, struct buf *out, struct error *err) {
    struct pjrt_executable *executable;
    TRY(get_executable(p, loaded, &executable, err));
    PJRT_PADDED(pjrt_serialize_args) args = {.a = {.executable = executable}};
    enum status st = pjrt_call(p, PJRT_EXECUTABLE_SERIALIZE, &args, "Executable_Serialize", err);
    if (st == OK) {
        buf_append(out, args.a.bytes, args.a.bytes_size);
        if (args.a.deleter)
            args.a.deleter(args.a.serialized);
    }
    pjrt_executable_free(p, executable);
    return st;
}

enum status pjrt_deserialize(const struct pjrt *p, struct str bytes, struct pjrt_loaded **out, struct error *err) {
    PJRT_PADDED(pjrt_deserialize_args)
    args = {.a = {.client = p->client, .bytes = bytes.ptr, .bytes_size = bytes.len}};
    TRY(pjrt_call(p, PJRT_DESERIALIZE_AND_LOAD, &args, "Executable_DeserializeAndLoad", err));
    *out = args.a.loaded;
    return OK;
}

enum status pjrt_execute(const struct pjrt *p, struct pjrt_loaded *loaded, struct pjrt_buffer *const *const *arguments,
                         int n_devices, int n_arguments, struct pjrt_buffer **const *outputs, struct error *err) {
    PJRT_PADDED(pjrt_execute_options) options = {.a = {.struct_size = PJRT_STRUCT_BYTES}};
    PJRT_PADDED(pjrt_execute_args)
    args = {.a = {.loaded = loaded,
                  .options = &options.a,
                  .arguments = arguments,
                  .n_devices = (size_t)n_devices,
                  .n_arguments = (size_t)n_arguments,
                  .outputs = outputs}};
    return pjrt_call(p, PJRT_LOADED_EXECUTE, &args, "LoadedExecutable_Execute", err);
}
