/* Our declarations of the HIP functions that hip.c calls, in one list. A test defines the handle types as the vendor
 * header's and assigns the real functions to them. Signatures: hip_runtime_api.h 5.2.3 to 6.2.2 (and the 7.1 binding),
 * where they are the same. The properties structure has two layouts and is read by offset (hip.c). */
#ifndef ST_RUNTIME_HIP_FUNCTIONS_H
#define ST_RUNTIME_HIP_FUNCTIONS_H

#include <stddef.h>
#include <stdint.h>

#ifndef HIP_FUNCTIONS_TYPES
#define HIP_FUNCTIONS_TYPES
typedef int hip_result;
typedef void *hip_address; /* of device memory */
typedef void *hip_stream;
typedef void *hip_event;
typedef void *hip_module;
typedef void *hip_function;
typedef void *hip_graph;
typedef void *hip_graph_exec;
typedef void hip_properties;
typedef int hip_capture_mode;
typedef int hip_function_attribute;
#endif

/* X(name without the prefix hip, return type, parameters, 1 when the runtime is unusable without it) */
#define HIP_FUNCTIONS(X)                                                                                               \
    X(Init, hip_result, (unsigned flags), 1)                                                                           \
    X(RuntimeGetVersion, hip_result, (int *version), 1)                                                                \
    X(GetErrorName, const char *, (hip_result result), 1)                                                              \
    X(GetErrorString, const char *, (hip_result result), 1)                                                            \
    X(GetDeviceCount, hip_result, (int *count), 1)                                                                     \
    X(GetDeviceProperties, hip_result, (hip_properties * properties, int device), 0)                                   \
    X(GetDevicePropertiesR0600, hip_result, (hip_properties * properties, int device), 0)                              \
    X(DeviceTotalMem, hip_result, (size_t * bytes, int device), 1)                                                     \
    X(DeviceGetPCIBusId, hip_result, (char *id, int length, int device), 1)                                            \
    X(DeviceCanAccessPeer, hip_result, (int *can, int device, int peer), 1)                                            \
    X(DeviceEnablePeerAccess, hip_result, (int peer, unsigned flags), 1)                                               \
    X(DeviceGetStreamPriorityRange, hip_result, (int *least, int *greatest), 1)                                        \
    X(SetDevice, hip_result, (int device), 1)                                                                          \
    X(DeviceSynchronize, hip_result, (void), 1)                                                                        \
    X(MemGetInfo, hip_result, (size_t * free_bytes, size_t * total), 1)                                                \
    X(Malloc, hip_result, (void **address, size_t size), 1)                                                            \
    X(Free, hip_result, (void *address), 1)                                                                            \
    X(HostMalloc, hip_result, (void **memory, size_t size, unsigned flags), 1)                                         \
    X(HostFree, hip_result, (void *memory), 1)                                                                         \
    X(HostRegister, hip_result, (void *memory, size_t size, unsigned flags), 1)                                        \
    X(HostUnregister, hip_result, (void *memory), 1)                                                                   \
    X(HostGetDevicePointer, hip_result, (void **address, void *memory, unsigned flags), 1)                             \
    X(MemcpyHtoDAsync, hip_result, (hip_address dst, void *src, size_t size, hip_stream stream), 1)                    \
    X(MemcpyDtoHAsync, hip_result, (void *dst, hip_address src, size_t size, hip_stream stream), 1)                    \
    X(MemcpyDtoDAsync, hip_result, (hip_address dst, hip_address src, size_t size, hip_stream stream), 1)              \
    X(MemcpyPeerAsync, hip_result,                                                                                     \
      (void *dst, int dst_device, const void *src, int src_device, size_t size, hip_stream stream), 1)                 \
    X(MemsetD8Async, hip_result, (hip_address dst, unsigned char value, size_t count, hip_stream stream), 1)           \
    X(StreamCreateWithPriority, hip_result, (hip_stream * stream, unsigned flags, int priority), 1)                    \
    X(StreamDestroy, hip_result, (hip_stream stream), 1)                                                               \
    X(StreamSynchronize, hip_result, (hip_stream stream), 1)                                                           \
    X(StreamWaitEvent, hip_result, (hip_stream stream, hip_event event, unsigned flags), 1)                            \
    X(EventCreateWithFlags, hip_result, (hip_event * event, unsigned flags), 1)                                        \
    X(EventDestroy, hip_result, (hip_event event), 1)                                                                  \
    X(EventRecord, hip_result, (hip_event event, hip_stream stream), 1)                                                \
    X(EventSynchronize, hip_result, (hip_event event), 1)                                                              \
    X(EventQuery, hip_result, (hip_event event), 1)                                                                    \
    X(EventElapsedTime, hip_result, (float *milliseconds, hip_event from, hip_event to), 1)                            \
    X(ModuleLoadData, hip_result, (hip_module * module, const void *image), 1)                                         \
    X(ModuleUnload, hip_result, (hip_module module), 1)                                                                \
    X(ModuleGetFunction, hip_result, (hip_function * function, hip_module module, const char *name), 1)                \
    X(FuncGetAttribute, hip_result, (int *value, hip_function_attribute attribute, hip_function function), 1)          \
    X(ModuleLaunchKernel, hip_result,                                                                                  \
      (hip_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,            \
       unsigned shared, hip_stream stream, void **params, void **extra),                                               \
      1)                                                                                                               \
    X(StreamBeginCapture, hip_result, (hip_stream stream, hip_capture_mode mode), 1)                                   \
    X(StreamEndCapture, hip_result, (hip_stream stream, hip_graph * graph), 1)                                         \
    X(GraphInstantiateWithFlags, hip_result, (hip_graph_exec * exec, hip_graph graph, unsigned long long flags), 1)    \
    X(GraphLaunch, hip_result, (hip_graph_exec exec, hip_stream stream), 1)                                            \
    X(GraphExecDestroy, hip_result, (hip_graph_exec exec), 1)                                                          \
    X(GraphDestroy, hip_result, (hip_graph graph), 1)

#define HIP_FUNCTIONS_MEMBER(name, result, params, required) result(*name) params;
struct hip_functions {
    HIP_FUNCTIONS(HIP_FUNCTIONS_MEMBER)
};
#undef HIP_FUNCTIONS_MEMBER

/* Where fields stand in the properties structure: the layout of HIP 5.x, and the one of 6.0 and later, which only
 * hipGetDevicePropertiesR0600 fills. size_t fields are 8 bytes, others int, names 256 bytes. */
struct hip_layout {
    uint16_t size, name, local_bytes, lanes, max_group, units, integrated, display, map_host, arch;
};
#define HIP_LAYOUT_5                                                                                                   \
    {                                                                                                                  \
        792, 0, 264, 276, 280, 336, 652, 736, 388, 396                                                                 \
    }
#define HIP_LAYOUT_6                                                                                                   \
    {                                                                                                                  \
        1472, 0, 296, 308, 320, 388, 396, 392, 400, 1160                                                               \
    }

#endif
