/* pjrt_abi.h - the part of PJRT's C interface that we call: slots of the table of functions, and argument structs.
 *
 * Facts of the interface as versions 0.57 to 0.116 have it, under names of our own. Where the official header
 * (pjrt_c_api.h) is found, tests/xla/abi_check.c asserts every size and offset below against it.
 *
 * The table begins with its size; function i lies at byte 40 + 8 i, and exists if the table is as long. Every argument
 * struct begins with its size and a list of extensions. A plugin refuses a struct smaller than its own and takes
 * a larger one, and its structs grow from version to version: so each is passed within PJRT_STRUCT_BYTES of zeros
 * (PJRT_PADDED), with that as its size. Zero means, of fields that we do not know, what callers without them mean. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PJRT_STRUCT_BYTES = 512, PJRT_TABLE_FIRST = 40, PJRT_MAJOR = 0, PJRT_LEAST_MINOR = 57 };

/* The slots that are used. */
enum pjrt_slot {
    PJRT_ERROR_DESTROY = 0,
    PJRT_ERROR_MESSAGE = 1,
    PJRT_ERROR_GET_CODE = 2,
    PJRT_PLUGIN_INITIALIZE = 3,
    PJRT_PLUGIN_ATTRIBUTES = 4,
    PJRT_EVENT_DESTROY = 5,
    PJRT_EVENT_AWAIT = 8,
    PJRT_CLIENT_CREATE = 10,
    PJRT_CLIENT_DESTROY = 11,
    PJRT_CLIENT_PLATFORM_NAME = 12,
    PJRT_CLIENT_PLATFORM_VERSION = 14,
    PJRT_CLIENT_ADDRESSABLE_DEVICES = 16,
    PJRT_CLIENT_COMPILE = 20,
    PJRT_CLIENT_BUFFER_FROM_HOST = 22,
    PJRT_DEVICE_DESCRIPTION_ID = 23,
    PJRT_DEVICE_DESCRIPTION_KIND = 26,
    PJRT_DEVICE_GET_DESCRIPTION = 29,
    PJRT_DEVICE_MEMORY_STATS = 34,
    PJRT_EXECUTABLE_DESTROY = 40,
    PJRT_EXECUTABLE_NUM_OUTPUTS = 44,
    PJRT_EXECUTABLE_COST_ANALYSIS = 46,
    PJRT_EXECUTABLE_SERIALIZE = 49,
    PJRT_LOADED_DESTROY = 50,
    PJRT_LOADED_GET_EXECUTABLE = 51,
    PJRT_LOADED_EXECUTE = 55,
    PJRT_DESERIALIZE_AND_LOAD = 56,
    PJRT_BUFFER_DESTROY = 58,
    PJRT_BUFFER_TO_HOST = 70,
    PJRT_BUFFER_READY_EVENT = 72,
    PJRT_TOPOLOGY_CREATE = 82,
    PJRT_TOPOLOGY_DESTROY = 83,
    PJRT_COMPILE = 89,
    PJRT_MEMORY_STATS = 96,
};

enum pjrt_type {
    PJRT_PRED = 1,
    PJRT_S8 = 2,
    PJRT_S32 = 4,
    PJRT_U8 = 6,
    PJRT_U32 = 8,
    PJRT_U64 = 9,
    PJRT_F16 = 10,
    PJRT_F32 = 11,
    PJRT_BF16 = 13,
};

/* When the host's bytes may be changed again: after the call, or once the event has come. */
enum pjrt_semantics { PJRT_DURING_CALL = 0, PJRT_UNTIL_TRANSFER = 1 };

enum pjrt_code { PJRT_RESOURCE_EXHAUSTED = 8, PJRT_UNIMPLEMENTED = 12 };

enum pjrt_value_type { PJRT_STRING, PJRT_INT64, PJRT_INT64_LIST, PJRT_FLOAT, PJRT_BOOL };

/* The plugin's own. */
struct pjrt_error;
struct pjrt_event;
struct pjrt_client;
struct pjrt_device;
struct pjrt_description;
struct pjrt_memory;
struct pjrt_executable; // compiled
struct pjrt_loaded;     // compiled and on devices
struct pjrt_buffer;
struct pjrt_topology;

#define PJRT_HEAD       \
    size_t struct_size; \
    void *extension

struct pjrt_named_value { // stands in arrays: never padded
    PJRT_HEAD;
    const char *name;
    size_t name_size;
    int32_t type; // enum pjrt_value_type
    union {
        const char *string;
        int64_t int64;
        const int64_t *int64_list;
        float float32;
        bool boolean;
    } value;
    size_t value_size; // of strings and lists; else 1
};

struct pjrt_error_args { // Error_Destroy
    PJRT_HEAD;
    struct pjrt_error *error;
};
struct pjrt_error_message_args {
    PJRT_HEAD;
    struct pjrt_error *error;
    const char *message;
    size_t message_size;
};
struct pjrt_error_code_args {
    PJRT_HEAD;
    struct pjrt_error *error;
    int32_t code;
};
struct pjrt_plugin_args { // Plugin_Initialize
    PJRT_HEAD;
};
struct pjrt_attributes_args { // Plugin_Attributes
    PJRT_HEAD;
    const struct pjrt_named_value *attributes;
    size_t n_attributes;
};
struct pjrt_event_args { // Event_Destroy, Event_Await
    PJRT_HEAD;
    struct pjrt_event *event;
};
struct pjrt_client_create_args {
    PJRT_HEAD;
    const struct pjrt_named_value *options;
    size_t n_options;
    void *kv_get, *kv_get_arg, *kv_put, *kv_put_arg;
    struct pjrt_client *client;
};
struct pjrt_client_args { // Client_Destroy
    PJRT_HEAD;
    struct pjrt_client *client;
};
struct pjrt_client_text_args { // Client_PlatformName, Client_PlatformVersion
    PJRT_HEAD;
    struct pjrt_client *client;
    const char *text;
    size_t text_size;
};
struct pjrt_devices_args { // Client_AddressableDevices
    PJRT_HEAD;
    struct pjrt_client *client;
    struct pjrt_device *const *devices;
    size_t n_devices;
};
struct pjrt_description_args { // Device_GetDescription
    PJRT_HEAD;
    struct pjrt_device *device;
    struct pjrt_description *description;
};
struct pjrt_description_id_args {
    PJRT_HEAD;
    struct pjrt_description *description;
    int32_t id;
};
struct pjrt_description_kind_args {
    PJRT_HEAD;
    struct pjrt_description *description;
    const char *kind;
    size_t kind_size;
};
struct pjrt_device_memory_args { // Device_MemoryStats
    PJRT_HEAD;
    struct pjrt_device *device;
    int64_t bytes_in_use;
    int64_t peak_bytes_in_use;
    bool peak_is_set;
    int64_t n_allocs;
    bool n_allocs_is_set;
    int64_t largest_alloc;
    bool largest_is_set;
    int64_t bytes_limit;
    bool limit_is_set;
};

/* Field `a` is the struct; all is zero but what an initialiser names. */
#define PJRT_PADDED(type)                                             \
    struct {                                                          \
        struct type a;                                                \
        unsigned char zeros[PJRT_STRUCT_BYTES - sizeof(struct type)]; \
    }
