/* Every GPU kernel compiled for the host, for waves of ST_LANES lanes, and a table of them. Included by one file for each
 * width. A kernel's first word in the list is its arguments as in gpu_kernels.h. */
#include "kernel/gpu_kernels.h"

#include "kernel/gpu/host_dialect.h"

#include "copy.cl"
#undef GROUP
#include "dialect.cl"
#undef GROUP
#include "norm.cl"
#undef GROUP
#include "matvec.cl"

#include "experts.cl"

#define P(i) ((void *)(uintptr_t)args[i].p)
#define UNPACK_(name) (void)args, name()
#define UNPACK_pcl(name) name(P(0), P(1), args[2].l)
#define UNPACK_pci(name) name(P(0), P(1), args[2].i)
#define UNPACK_pppcc(name) name(P(0), P(1), P(2), P(3), P(4))
#define UNPACK_pcciiif(name) name(P(0), P(1), P(2), args[3].i, args[4].i, args[5].i, args[6].f)
#define UNPACK_ppcciiif(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i, args[7].f)
#define UNPACK_pcciiiiii(name) name(P(0), P(1), P(2), args[3].i, args[4].i, args[5].i, args[6].i, args[7].i, args[8].i)
#define UNPACK_pccciiiii(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i, args[7].i, args[8].i)

#define ROWS(X, args, name) X(args, name##_1) X(args, name##_8)
#define HOST_KERNELS(X)                                                                                               \
    X(, st_empty)                                                                                                     \
    X(pcl, st_copy)                                                                                                   \
    X(pcl, st_read)                                                                                                   \
    X(pppcc, st_dialect)                                                                                              \
    X(pcciiif, st_norm)                                                                                               \
    X(ppcciiif, st_norm_q8)                                                                                           \
    X(ppcciiif, st_norm_q8k)                                                                                          \
    X(pci, st_quant_q8)                                                                                               \
    X(pci, st_quant_q8k)                                                                                              \
    ROWS(X, pcciiiiii, st_mv_q8_0)                                                                                     \
    ROWS(X, pcciiiiii, st_mv_q2_0)                                                                                     \
    ROWS(X, pcciiiiii, st_mv_iq4_nl)                                                                                   \
    ROWS(X, pcciiiiii, st_mv_q4_k)                                                                                     \
    ROWS(X, pccciiiii, st_gate_up_q8_0)                                                                                \
    ROWS(X, pccciiiii, st_gate_up_q2_0)                                                                                \
    ROWS(X, pccciiiii, st_down_q8_0)                                                                                   \
    ROWS(X, pccciiiii, st_down_q2_0)

#define CALL(kind, name)                                                                                              \
    static void call_##name(const union st_arg *args)                                                                 \
    {                                                                                                                 \
        UNPACK_##kind(name);                                                                                          \
    }
HOST_KERNELS(CALL)

#define ENTRY(kind, name) {#name, call_##name},
static const struct st_host_kernel host_kernels[] = {HOST_KERNELS(ENTRY)};

const struct st_host_kernel *ST_HOST_FIND(const char *name)
{
    for (size_t i = 0; i < sizeof host_kernels / sizeof *host_kernels; i++)
        if (strcmp(host_kernels[i].name, name) == 0)
            return &host_kernels[i];
    return NULL;
}
