/* abi_check.c - src/backend/xla/pjrt/pjrt_abi.h against the official header: tests/cli/xla/test_xla_plugin.py compiles
 * it where a package brings that. There is nothing to run: what differs does not compile. */
#include "backend/xla/pjrt/pjrt_abi_run.h"

#include "pjrt_c_api.h"

#define SLOT(ours, theirs)                                                                                       \
    _Static_assert(offsetof(PJRT_Api, PJRT_##theirs) == PJRT_TABLE_FIRST + sizeof(void *) * (size_t)PJRT_##ours, \
                   "slot of " #theirs)
SLOT(ERROR_DESTROY, Error_Destroy);
SLOT(ERROR_MESSAGE, Error_Message);
SLOT(ERROR_GET_CODE, Error_GetCode);
SLOT(PLUGIN_INITIALIZE, Plugin_Initialize);
SLOT(PLUGIN_ATTRIBUTES, Plugin_Attributes);
SLOT(EVENT_DESTROY, Event_Destroy);
SLOT(EVENT_AWAIT, Event_Await);
SLOT(CLIENT_CREATE, Client_Create);
SLOT(CLIENT_DESTROY, Client_Destroy);
SLOT(CLIENT_PLATFORM_NAME, Client_PlatformName);
SLOT(CLIENT_PLATFORM_VERSION, Client_PlatformVersion);
SLOT(CLIENT_ADDRESSABLE_DEVICES, Client_AddressableDevices);
SLOT(CLIENT_COMPILE, Client_Compile);
SLOT(CLIENT_BUFFER_FROM_HOST, Client_BufferFromHostBuffer);
SLOT(DEVICE_DESCRIPTION_ID, DeviceDescription_Id);
SLOT(DEVICE_DESCRIPTION_KIND, DeviceDescription_Kind);
SLOT(DEVICE_GET_DESCRIPTION, Device_GetDescription);
SLOT(DEVICE_MEMORY_STATS, Device_MemoryStats);
SLOT(EXECUTABLE_DESTROY, Executable_Destroy);
SLOT(EXECUTABLE_NUM_OUTPUTS, Executable_NumOutputs);
SLOT(EXECUTABLE_COST_ANALYSIS, Executable_GetCostAnalysis);
SLOT(EXECUTABLE_SERIALIZE, Executable_Serialize);
SLOT(LOADED_DESTROY, LoadedExecutable_Destroy);
SLOT(LOADED_GET_EXECUTABLE, LoadedExecutable_GetExecutable);
SLOT(LOADED_EXECUTE, LoadedExecutable_Execute);
SLOT(DESERIALIZE_AND_LOAD, Executable_DeserializeAndLoad);
SLOT(BUFFER_DESTROY, Buffer_Destroy);
SLOT(BUFFER_TO_HOST, Buffer_ToHostBuffer);
SLOT(BUFFER_READY_EVENT, Buffer_ReadyEvent);
SLOT(TOPOLOGY_CREATE, TopologyDescription_Create);
SLOT(TOPOLOGY_DESTROY, TopologyDescription_Destroy);
SLOT(COMPILE, Compile);
SLOT(MEMORY_STATS, Executable_GetCompiledMemoryStats);

#define FIELD(ours, field, theirs, their_field)                                                       \
    _Static_assert(offsetof(struct pjrt_##ours, field) == offsetof(PJRT_##theirs, their_field) &&     \
                       sizeof((struct pjrt_##ours){0}.field) == sizeof(((PJRT_##theirs){0}).their_field), \
                   #theirs "." #their_field)
#define EVERY(ours, theirs)                             \
    FIELD(ours, struct_size, theirs, struct_size);      \
    FIELD(ours, extension, theirs, extension_start);    \
    _Static_assert(sizeof(PJRT_##theirs) <= (size_t)PJRT_STRUCT_BYTES, #theirs " is longer than what is passed")

EVERY(named_value, NamedValue);
FIELD(named_value, name, NamedValue, name);
FIELD(named_value, name_size, NamedValue, name_size);
FIELD(named_value, type, NamedValue, type);
FIELD(named_value, value.string, NamedValue, string_value);
FIELD(named_value, value.int64_list, NamedValue, int64_array_value);
FIELD(named_value, value.boolean, NamedValue, bool_value);
FIELD(named_value, value_size, NamedValue, value_size);
_Static_assert(sizeof(struct pjrt_named_value) == sizeof(PJRT_NamedValue), "named values stand in arrays");
EVERY(error_args, Error_Destroy_Args);
FIELD(error_args, error, Error_Destroy_Args, error);
EVERY(error_message_args, Error_Message_Args);
FIELD(error_message_args, error, Error_Message_Args, error);
FIELD(error_message_args, message, Error_Message_Args, message);
FIELD(error_message_args, message_size, Error_Message_Args, message_size);
EVERY(error_code_args, Error_GetCode_Args);
FIELD(error_code_args, code, Error_GetCode_Args, code);
EVERY(plugin_args, Plugin_Initialize_Args);
EVERY(attributes_args, Plugin_Attributes_Args);
FIELD(attributes_args, attributes, Plugin_Attributes_Args, attributes);
FIELD(attributes_args, n_attributes, Plugin_Attributes_Args, num_attributes);
EVERY(event_args, Event_Await_Args);
EVERY(event_args, Event_Destroy_Args);
FIELD(event_args, event, Event_Await_Args, event);
EVERY(client_create_args, Client_Create_Args);
FIELD(client_create_args, options, Client_Create_Args, create_options);
FIELD(client_create_args, n_options, Client_Create_Args, num_options);
FIELD(client_create_args, client, Client_Create_Args, client);
EVERY(client_args, Client_Destroy_Args);
FIELD(client_args, client, Client_Destroy_Args, client);
EVERY(client_text_args, Client_PlatformName_Args);
FIELD(client_text_args, text, Client_PlatformName_Args, platform_name);
FIELD(client_text_args, text_size, Client_PlatformName_Args, platform_name_size);
FIELD(client_text_args, text, Client_PlatformVersion_Args, platform_version);
EVERY(devices_args, Client_AddressableDevices_Args);
FIELD(devices_args, devices, Client_AddressableDevices_Args, addressable_devices);
FIELD(devices_args, n_devices, Client_AddressableDevices_Args, num_addressable_devices);
EVERY(description_args, Device_GetDescription_Args);
FIELD(description_args, description, Device_GetDescription_Args, device_description);
EVERY(description_id_args, DeviceDescription_Id_Args);
FIELD(description_id_args, id, DeviceDescription_Id_Args, id);
EVERY(description_kind_args, DeviceDescription_Kind_Args);
FIELD(description_kind_args, kind, DeviceDescription_Kind_Args, device_kind);
FIELD(description_kind_args, kind_size, DeviceDescription_Kind_Args, device_kind_size);
EVERY(device_memory_args, Device_MemoryStats_Args);
FIELD(device_memory_args, bytes_in_use, Device_MemoryStats_Args, bytes_in_use);
FIELD(device_memory_args, bytes_limit, Device_MemoryStats_Args, bytes_limit);
FIELD(device_memory_args, limit_is_set, Device_MemoryStats_Args, bytes_limit_is_set);
EVERY(program, Program);
FIELD(program, code, Program, code);
FIELD(program, code_size, Program, code_size);
FIELD(program, format, Program, format);
FIELD(program, format_size, Program, format_size);
EVERY(client_compile_args, Client_Compile_Args);
FIELD(client_compile_args, client, Client_Compile_Args, client);
FIELD(client_compile_args, program, Client_Compile_Args, program);
FIELD(client_compile_args, options, Client_Compile_Args, compile_options);
FIELD(client_compile_args, options_size, Client_Compile_Args, compile_options_size);
FIELD(client_compile_args, loaded, Client_Compile_Args, executable);
EVERY(compile_args, Compile_Args);
FIELD(compile_args, topology, Compile_Args, topology);
FIELD(compile_args, program, Compile_Args, program);
FIELD(compile_args, options, Compile_Args, compile_options);
FIELD(compile_args, options_size, Compile_Args, compile_options_size);
FIELD(compile_args, client, Compile_Args, client);
FIELD(compile_args, executable, Compile_Args, executable);
EVERY(from_host_args, Client_BufferFromHostBuffer_Args);
FIELD(from_host_args, client, Client_BufferFromHostBuffer_Args, client);
FIELD(from_host_args, data, Client_BufferFromHostBuffer_Args, data);
FIELD(from_host_args, type, Client_BufferFromHostBuffer_Args, type);
FIELD(from_host_args, dims, Client_BufferFromHostBuffer_Args, dims);
FIELD(from_host_args, n_dims, Client_BufferFromHostBuffer_Args, num_dims);
FIELD(from_host_args, strides, Client_BufferFromHostBuffer_Args, byte_strides);
FIELD(from_host_args, semantics, Client_BufferFromHostBuffer_Args, host_buffer_semantics);
FIELD(from_host_args, device, Client_BufferFromHostBuffer_Args, device);
FIELD(from_host_args, layout, Client_BufferFromHostBuffer_Args, device_layout);
FIELD(from_host_args, done, Client_BufferFromHostBuffer_Args, done_with_host_buffer);
FIELD(from_host_args, buffer, Client_BufferFromHostBuffer_Args, buffer);
EVERY(executable_args, Executable_Destroy_Args);
FIELD(executable_args, executable, Executable_Destroy_Args, executable);
EVERY(loaded_args, LoadedExecutable_Destroy_Args);
FIELD(loaded_args, loaded, LoadedExecutable_Destroy_Args, executable);
EVERY(get_executable_args, LoadedExecutable_GetExecutable_Args);
FIELD(get_executable_args, loaded, LoadedExecutable_GetExecutable_Args, loaded_executable);
FIELD(get_executable_args, executable, LoadedExecutable_GetExecutable_Args, executable);
EVERY(n_outputs_args, Executable_NumOutputs_Args);
FIELD(n_outputs_args, n_outputs, Executable_NumOutputs_Args, num_outputs);
EVERY(cost_args, Executable_GetCostAnalysis_Args);
FIELD(cost_args, n_properties, Executable_GetCostAnalysis_Args, num_properties);
FIELD(cost_args, properties, Executable_GetCostAnalysis_Args, properties);
EVERY(serialize_args, Executable_Serialize_Args);
FIELD(serialize_args, bytes, Executable_Serialize_Args, serialized_bytes);
FIELD(serialize_args, bytes_size, Executable_Serialize_Args, serialized_bytes_size);
FIELD(serialize_args, serialized, Executable_Serialize_Args, serialized_executable);
FIELD(serialize_args, deleter, Executable_Serialize_Args, serialized_executable_deleter);
EVERY(deserialize_args, Executable_DeserializeAndLoad_Args);
FIELD(deserialize_args, bytes, Executable_DeserializeAndLoad_Args, serialized_executable);
FIELD(deserialize_args, bytes_size, Executable_DeserializeAndLoad_Args, serialized_executable_size);
FIELD(deserialize_args, loaded, Executable_DeserializeAndLoad_Args, loaded_executable);
FIELD(deserialize_args, options, Executable_DeserializeAndLoad_Args, overridden_serialized_compile_options);
EVERY(memory_stats_args, Executable_GetCompiledMemoryStats_Args);
FIELD(memory_stats_args, code_bytes, Executable_GetCompiledMemoryStats_Args, generated_code_size_in_bytes);
FIELD(memory_stats_args, argument_bytes, Executable_GetCompiledMemoryStats_Args, argument_size_in_bytes);
FIELD(memory_stats_args, output_bytes, Executable_GetCompiledMemoryStats_Args, output_size_in_bytes);
FIELD(memory_stats_args, alias_bytes, Executable_GetCompiledMemoryStats_Args, alias_size_in_bytes);
FIELD(memory_stats_args, temp_bytes, Executable_GetCompiledMemoryStats_Args, temp_size_in_bytes);
EVERY(execute_options, ExecuteOptions);
FIELD(execute_options, n_send, ExecuteOptions, num_send_ops);
FIELD(execute_options, launch_id, ExecuteOptions, launch_id);
FIELD(execute_options, not_donated, ExecuteOptions, non_donatable_input_indices);
FIELD(execute_options, n_not_donated, ExecuteOptions, num_non_donatable_input_indices);
EVERY(execute_args, LoadedExecutable_Execute_Args);
FIELD(execute_args, loaded, LoadedExecutable_Execute_Args, executable);
FIELD(execute_args, options, LoadedExecutable_Execute_Args, options);
FIELD(execute_args, arguments, LoadedExecutable_Execute_Args, argument_lists);
FIELD(execute_args, n_devices, LoadedExecutable_Execute_Args, num_devices);
FIELD(execute_args, n_arguments, LoadedExecutable_Execute_Args, num_args);
FIELD(execute_args, outputs, LoadedExecutable_Execute_Args, output_lists);
FIELD(execute_args, complete, LoadedExecutable_Execute_Args, device_complete_events);
FIELD(execute_args, device, LoadedExecutable_Execute_Args, execute_device);
EVERY(buffer_args, Buffer_Destroy_Args);
FIELD(buffer_args, buffer, Buffer_Destroy_Args, buffer);
EVERY(to_host_args, Buffer_ToHostBuffer_Args);
FIELD(to_host_args, buffer, Buffer_ToHostBuffer_Args, src);
FIELD(to_host_args, layout, Buffer_ToHostBuffer_Args, host_layout);
FIELD(to_host_args, to, Buffer_ToHostBuffer_Args, dst);
FIELD(to_host_args, to_size, Buffer_ToHostBuffer_Args, dst_size);
FIELD(to_host_args, event, Buffer_ToHostBuffer_Args, event);
EVERY(ready_args, Buffer_ReadyEvent_Args);
FIELD(ready_args, event, Buffer_ReadyEvent_Args, event);
EVERY(topology_create_args, TopologyDescription_Create_Args);
FIELD(topology_create_args, name, TopologyDescription_Create_Args, topology_name);
FIELD(topology_create_args, options, TopologyDescription_Create_Args, create_options);
FIELD(topology_create_args, topology, TopologyDescription_Create_Args, topology);
EVERY(topology_args, TopologyDescription_Destroy_Args);
FIELD(topology_args, topology, TopologyDescription_Destroy_Args, topology);

#define NUMBER(ours, theirs) _Static_assert((int)PJRT_##ours == (int)PJRT_##theirs, #theirs)
NUMBER(PRED, Buffer_Type_PRED);
NUMBER(S8, Buffer_Type_S8);
NUMBER(S32, Buffer_Type_S32);
NUMBER(U8, Buffer_Type_U8);
NUMBER(U32, Buffer_Type_U32);
NUMBER(U64, Buffer_Type_U64);
NUMBER(F16, Buffer_Type_F16);
NUMBER(F32, Buffer_Type_F32);
NUMBER(BF16, Buffer_Type_BF16);
NUMBER(DURING_CALL, HostBufferSemantics_kImmutableOnlyDuringCall);
NUMBER(UNTIL_TRANSFER, HostBufferSemantics_kImmutableUntilTransferCompletes);
NUMBER(RESOURCE_EXHAUSTED, Error_Code_RESOURCE_EXHAUSTED);
NUMBER(UNIMPLEMENTED, Error_Code_UNIMPLEMENTED);
NUMBER(STRING, NamedValue_kString);
NUMBER(INT64, NamedValue_kInt64);
NUMBER(INT64_LIST, NamedValue_kInt64List);
NUMBER(FLOAT, NamedValue_kFloat);
NUMBER(BOOL, NamedValue_kBool);
