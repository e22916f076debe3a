/* pjrt_abi_run.h - the rest of PJRT's C interface that we call (pjrt_abi.h): programs, buffers, execution. */
#pragma once

#include "backend/xla/pjrt/pjrt_abi.h"

struct pjrt_program {
    PJRT_HEAD;
    char *code;
    size_t code_size;
    const char *format;
    size_t format_size;
};
struct pjrt_client_compile_args {
    PJRT_HEAD;
    struct pjrt_client *client;
    const struct pjrt_program *program;
    const char *options;
    size_t options_size;
    struct pjrt_loaded *loaded;
};
struct pjrt_compile_args { // Compile, for a topology
    PJRT_HEAD;
    const struct pjrt_topology *topology;
    const struct pjrt_program *program;
    const char *options;
    size_t options_size;
    struct pjrt_client *client;
    struct pjrt_executable *executable;
};
struct pjrt_from_host_args { // Client_BufferFromHostBuffer
    PJRT_HEAD;
    struct pjrt_client *client;
    const void *data;
    int32_t type;
    const int64_t *dims;
    size_t n_dims;
    const int64_t *strides;
    size_t n_strides;
    int32_t semantics;
    struct pjrt_device *device;
    struct pjrt_memory *memory;
    void *layout;
    struct pjrt_event *done;
    struct pjrt_buffer *buffer;
};
struct pjrt_executable_args { // Executable_Destroy
    PJRT_HEAD;
    struct pjrt_executable *executable;
};
struct pjrt_loaded_args { // LoadedExecutable_Destroy
    PJRT_HEAD;
    struct pjrt_loaded *loaded;
};
struct pjrt_get_executable_args {
    PJRT_HEAD;
    struct pjrt_loaded *loaded;
    struct pjrt_executable *executable;
};
struct pjrt_n_outputs_args {
    PJRT_HEAD;
    struct pjrt_executable *executable;
    size_t n_outputs;
};
struct pjrt_cost_args { // Executable_GetCostAnalysis
    PJRT_HEAD;
    struct pjrt_executable *executable;
    size_t n_properties;
    const struct pjrt_named_value *properties;
};
struct pjrt_serialize_args {
    PJRT_HEAD;
    struct pjrt_executable *executable;
    const char *bytes;
    size_t bytes_size;
    void *serialized;
    void (*deleter)(void *serialized);
};
struct pjrt_deserialize_args { // Executable_DeserializeAndLoad
    PJRT_HEAD;
    struct pjrt_client *client;
    const char *bytes;
    size_t bytes_size;
    struct pjrt_loaded *loaded;
    const char *options;
    size_t options_size;
};
struct pjrt_memory_stats_args { // Executable_GetCompiledMemoryStats
    PJRT_HEAD;
    struct pjrt_executable *executable;
    int64_t code_bytes, argument_bytes, output_bytes, alias_bytes, temp_bytes;
};
struct pjrt_execute_options {
    PJRT_HEAD;
    void *send_callbacks, *recv_callbacks;
    size_t n_send, n_recv;
    int32_t launch_id;
    const int64_t *not_donated;
    size_t n_not_donated;
};
struct pjrt_execute_args {
    PJRT_HEAD;
    struct pjrt_loaded *loaded;
    struct pjrt_execute_options *options;
    struct pjrt_buffer *const *const *arguments; // [n_devices][n_arguments]
    size_t n_devices, n_arguments;
    struct pjrt_buffer **const *outputs; // [n_devices][n_outputs]
    struct pjrt_event **complete;        // [n_devices], or NULL
    struct pjrt_device *device;
};
struct pjrt_buffer_args { // Buffer_Destroy
    PJRT_HEAD;
    struct pjrt_buffer *buffer;
};
struct pjrt_to_host_args { // Buffer_ToHostBuffer
    PJRT_HEAD;
    struct pjrt_buffer *buffer;
    void *layout;
    void *to;
    size_t to_size;
    struct pjrt_event *event;
};
struct pjrt_ready_args { // Buffer_ReadyEvent
    PJRT_HEAD;
    struct pjrt_buffer *buffer;
    struct pjrt_event *event;
};
struct pjrt_topology_create_args {
    PJRT_HEAD;
    const char *name;
    size_t name_size;
    const struct pjrt_named_value *options;
    size_t n_options;
    struct pjrt_topology *topology;
};
struct pjrt_topology_args { // TopologyDescription_Destroy
    PJRT_HEAD;
    struct pjrt_topology *topology;
};
