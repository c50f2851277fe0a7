/* strata-device --bench --device cpu: what the processor's kernels reach when weights come from memory. */
#include <stdio.h>

#include "cli/device_bench.h"
#include "cli/options.h"
#include "format/quant.h"
#include "runtime/measure_cpu.h"

enum { HIDDEN = 2560, WIDTH = 640, USED = 10 };

static void print_line(const char *what, struct st_line l, double bytes)
{
    printf("  %s %7.2f us + bytes at %6.1f GB/s; %5.2f MiB at %6.1f GB/s", what, l.start * 1e6, l.rate * 1e-9,
           bytes / 0x1p20, bytes / st_line_at(l, bytes) * 1e-9);
}

int st_device_bench_cpu(void)
{
    static const int types[] = {ST_TYPE_Q8_0, ST_TYPE_Q6_K, ST_TYPE_Q4_K, ST_TYPE_IQ3_S, ST_TYPE_Q2_0};
    struct st_kernels kernels;
    struct strata_error err;
    enum strata_result r = st_kernels_choose(NULL, &kernels, &err);
    int threads = st_cpu_cores();
    if (!r)
        printf("cpu: %s, %d threads; a command of a list, and the experts that a token chooses in a layer (%d of %d x %d)\n",
               kernels.name, threads, USED, HIDDEN, WIDTH);
    for (size_t i = 0; i < sizeof types / sizeof *types && !r; i++) {
        int type = types[i], other = type == ST_TYPE_Q2_0 || type == ST_TYPE_Q8_0 ? type : ST_TYPE_IQ4_NL; /* 640 is no multiple of 256 */
        struct st_decode_shape shape = {.dense = st_decode_weight(type, HIDDEN, HIDDEN),
                                     .gate = st_decode_weight(type, HIDDEN, WIDTH),
                                     .up = st_decode_weight(type, HIDDEN, WIDTH),
                                     .down = st_decode_weight(other, WIDTH, HIDDEN),
                                     .used = USED};
        struct st_cpu_rates rates;
        r = st_cpu_measure(&kernels, threads, &shape, &rates, &err);
        if (r)
            break;
        double expert = st_weight_bytes(&shape.gate) + st_weight_bytes(&shape.up) + st_weight_bytes(&shape.down);
        printf("  %-6s", st_type_info(type)->name);
        print_line("dense", rates.dense, st_weight_bytes(&shape.dense));
        print_line("  experts", rates.experts, expert * USED);
        putchar('\n');
    }
    return r ? st_report(&err) : ST_EXIT_OK;
}
