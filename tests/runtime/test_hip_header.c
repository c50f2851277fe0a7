/* Our declarations of HIP functions against the vendor's own header: every function of the header is assigned to our
 * type (a signature that differs does not compile), and the offsets of the properties structure are compared. Compiled
 * only; the library is not needed. */
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>

#include <stddef.h>
#include <stdio.h>

#define HIP_FUNCTIONS_TYPES
#define hip_result hipError_t
#define hip_address hipDeviceptr_t
#define hip_stream hipStream_t
#define hip_event hipEvent_t
#define hip_module hipModule_t
#define hip_function hipFunction_t
#define hip_graph hipGraph_t
#define hip_graph_exec hipGraphExec_t
#define hip_properties hipDeviceProp_t
#define hip_capture_mode hipStreamCaptureMode
#define hip_function_attribute hipFunction_attribute
#include "runtime/hip_functions.h"

/* Functions that the header of this version does not have yet are declared as the list says, so the assignment below is
 * trivial for them. */
#if HIP_VERSION_MAJOR < 6
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t *properties, int device);
#endif

/* Never called: the vendor's library is not linked. */
#define ASSIGN(name, result, params, required) functions->name = hip##name;
void st_assign_hip_functions(struct hip_functions *functions);
void st_assign_hip_functions(struct hip_functions *functions)
{
    HIP_FUNCTIONS(ASSIGN)
}

#if HIP_VERSION_MAJOR < 6
static const struct hip_layout layout = HIP_LAYOUT_5;
#else
static const struct hip_layout layout = HIP_LAYOUT_6;
#endif

struct pair {
    const char *name;
    size_t ours, theirs;
};

int main(void)
{
    const struct pair pairs[] = {
        {"size", layout.size, sizeof(hipDeviceProp_t)},
        {"name", layout.name, offsetof(hipDeviceProp_t, name)},
        {"sharedMemPerBlock", layout.local_bytes, offsetof(hipDeviceProp_t, sharedMemPerBlock)},
        {"warpSize", layout.lanes, offsetof(hipDeviceProp_t, warpSize)},
        {"maxThreadsPerBlock", layout.max_group, offsetof(hipDeviceProp_t, maxThreadsPerBlock)},
        {"multiProcessorCount", layout.units, offsetof(hipDeviceProp_t, multiProcessorCount)},
        {"integrated", layout.integrated, offsetof(hipDeviceProp_t, integrated)},
        {"kernelExecTimeoutEnabled", layout.display, offsetof(hipDeviceProp_t, kernelExecTimeoutEnabled)},
        {"canMapHostMemory", layout.map_host, offsetof(hipDeviceProp_t, canMapHostMemory)},
        {"gcnArchName", layout.arch, offsetof(hipDeviceProp_t, gcnArchName)},
        {"capture thread local", 1, hipStreamCaptureModeThreadLocal},
        {"stream non-blocking", 1, hipStreamNonBlocking},
        {"event without time", 2, hipEventDisableTiming},
        {"host portable, mapped, coherent", 0x40000003u,
         (size_t)(hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent)},
        {"register portable, mapped", 3, hipHostRegisterPortable | hipHostRegisterMapped},
        {"attribute registers", 4, HIP_FUNC_ATTRIBUTE_NUM_REGS},
        {"attribute local bytes", 3, HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
        {"attribute max threads", 0, HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {"no device", 100, hipErrorNoDevice},
        {"invalid device", 101, hipErrorInvalidDevice},
        {"out of memory", 2, hipErrorOutOfMemory},
        {"not ready", 600, hipErrorNotReady},
        {"illegal address", 700, hipErrorIllegalAddress},
        {"peer already on", 704, hipErrorPeerAccessAlreadyEnabled},
        {"already registered", 712, hipErrorHostMemoryAlreadyRegistered},
        {"not registered", 713, hipErrorHostMemoryNotRegistered},
    };
    int bad = 0;
    int count = (int)(sizeof pairs / sizeof pairs[0]);
    printf("1..%d\n", count);
    for (int i = 0; i < count; i++) {
        int same = pairs[i].ours == pairs[i].theirs;
        printf("%s %d - %s\n", same ? "ok" : "not ok", i + 1, pairs[i].name);
        if (!same)
            printf("# ours %zu, the header's %zu\n", pairs[i].ours, pairs[i].theirs);
        bad += !same;
    }
    return bad != 0;
}
