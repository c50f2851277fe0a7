/* Our declarations for opencl.c: the numbers that it passes and the functions that it calls, in one list. Source: Khronos
 * OpenCL-Headers. */
#ifndef ST_RUNTIME_OPENCL_FUNCTIONS_H
#define ST_RUNTIME_OPENCL_FUNCTIONS_H

#include <stddef.h>
#include <stdint.h>

enum {
    CL_DEVICE_NOT_FOUND = -1,
    CL_MEM_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_BUILD_FAILURE = -11,
    CL_NO_PLATFORM = -1001,
    CL_PLATFORM_VERSION = 0x901,
    CL_PLATFORM_NAME = 0x902,
    CL_CONTEXT_PLATFORM = 0x1084,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_QUEUE_PROFILING = 2,
    CL_PROFILING_END = 0x1283,
    CL_EVENT_STATUS = 0x11D3,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_LOG = 0x1183,
    CL_KERNEL_MAX_GROUP = 0x11B0,
    CL_KERNEL_LOCAL = 0x11B2,
    CL_KERNEL_PRIVATE = 0x11B4,
    CL_KERNEL_SVM_POINTERS = 0x11B6,
    DEVICE_TYPE_CPU = 2,
};

enum {
    D_TYPE = 0x1000,
    D_UNITS = 0x1002,
    D_MAX_GROUP = 0x1004,
    D_ADDRESS_BITS = 0x100D,
    D_MAX_ALLOCATION = 0x1010,
    D_SINGLE_FP = 0x101B,
    D_MEMORY = 0x101F,
    D_LOCAL = 0x1023,
    D_LITTLE_ENDIAN = 0x1026,
    D_AVAILABLE = 0x1027,
    D_COMPILER = 0x1028,
    D_NAME = 0x102B,
    D_DRIVER = 0x102D,
    D_VERSION = 0x102F,
    D_EXTENSIONS = 0x1030,
    D_UNIFIED = 0x1035,
    D_SVM = 0x1053,
    D_C_VERSIONS = 0x1066,
    D_UUID = 0x106A,
    D_AMD_TOPOLOGY = 0x4037,
    D_AMD_BOARD = 0x4038,
    D_NV_BUS = 0x4008,
    D_NV_SLOT = 0x4009,
    D_NV_DOMAIN = 0x400A,
    D_PCI = 0x410F,
};

/* Handles are pointers; cl_bitfield and cl_device_type are 64 bits, cl_bool, cl_int, cl_uint 32. */
#define OPENCL_FUNCTIONS(X)                                                                                            \
    X(GetPlatformIDs, int32_t, (uint32_t n, void **list, uint32_t *count))                                             \
    X(GetPlatformInfo, int32_t, (void *platform, uint32_t what, size_t size, void *value, size_t *got))                \
    X(GetDeviceIDs, int32_t, (void *platform, uint64_t type, uint32_t n, void **list, uint32_t *count))                \
    X(GetDeviceInfo, int32_t, (void *device, uint32_t what, size_t size, void *value, size_t *got))                    \
    X(CreateContext, void *,                                                                                           \
      (const intptr_t *properties, uint32_t n, void *const *devices,                                                   \
       void (*notify)(const char *, const void *, size_t, void *), void *user, int32_t *result))                       \
    X(ReleaseContext, int32_t, (void *context))                                                                        \
    X(CreateCommandQueueWithProperties, void *,                                                                        \
      (void *context, void *device, const uint64_t *properties, int32_t *result))                                      \
    X(ReleaseCommandQueue, int32_t, (void *queue))                                                                     \
    X(Flush, int32_t, (void *queue))                                                                                   \
    X(Finish, int32_t, (void *queue))                                                                                  \
    X(SVMAlloc, void *, (void *context, uint64_t flags, size_t size, uint32_t align))                                  \
    X(SVMFree, void, (void *context, void *memory))                                                                    \
    X(EnqueueSVMMemcpy, int32_t,                                                                                       \
      (void *queue, uint32_t blocking, void *dst, const void *src, size_t size, uint32_t n, void *const *wait,         \
       void **event))                                                                                                  \
    X(EnqueueSVMMemFill, int32_t,                                                                                      \
      (void *queue, void *dst, const void *pattern, size_t pattern_size, size_t size, uint32_t n, void *const *wait,   \
       void **event))                                                                                                  \
    X(CreateProgramWithSource, void *,                                                                                 \
      (void *context, uint32_t n, const char **texts, const size_t *sizes, int32_t *result))                           \
    X(CreateProgramWithBinary, void *,                                                                                 \
      (void *context, uint32_t n, void *const *devices, const size_t *sizes, const unsigned char **binaries,           \
       int32_t *status, int32_t *result))                                                                              \
    X(BuildProgram, int32_t,                                                                                           \
      (void *program, uint32_t n, void *const *devices, const char *options, void (*notify)(void *, void *),           \
       void *user))                                                                                                    \
    X(GetProgramInfo, int32_t, (void *program, uint32_t what, size_t size, void *value, size_t *got))                  \
    X(GetProgramBuildInfo, int32_t,                                                                                    \
      (void *program, void *device, uint32_t what, size_t size, void *value, size_t *got))                             \
    X(ReleaseProgram, int32_t, (void *program))                                                                        \
    X(CreateKernel, void *, (void *program, const char *name, int32_t *result))                                        \
    X(ReleaseKernel, int32_t, (void *kernel))                                                                          \
    X(GetKernelWorkGroupInfo, int32_t,                                                                                 \
      (void *kernel, void *device, uint32_t what, size_t size, void *value, size_t *got))                              \
    X(SetKernelArg, int32_t, (void *kernel, uint32_t index, size_t size, const void *value))                           \
    X(SetKernelArgSVMPointer, int32_t, (void *kernel, uint32_t index, const void *value))                              \
    X(SetKernelExecInfo, int32_t, (void *kernel, uint32_t what, size_t size, const void *value))                       \
    X(EnqueueNDRangeKernel, int32_t,                                                                                   \
      (void *queue, void *kernel, uint32_t dims, const size_t *offset, const size_t *global, const size_t *local,      \
       uint32_t n, void *const *wait, void **event))                                                                   \
    X(EnqueueMarkerWithWaitList, int32_t, (void *queue, uint32_t n, void *const *wait, void **event))                  \
    X(EnqueueBarrierWithWaitList, int32_t, (void *queue, uint32_t n, void *const *wait, void **event))                 \
    X(WaitForEvents, int32_t, (uint32_t n, void *const *events))                                                       \
    X(GetEventInfo, int32_t, (void *event, uint32_t what, size_t size, void *value, size_t *got))                      \
    X(GetEventProfilingInfo, int32_t, (void *event, uint32_t what, size_t size, void *value, size_t *got))             \
    X(ReleaseEvent, int32_t, (void *event))

#define MEMBER(name, result, params) result(*name) params;
struct opencl_functions {
    OPENCL_FUNCTIONS(MEMBER)
};
#undef MEMBER

#endif
