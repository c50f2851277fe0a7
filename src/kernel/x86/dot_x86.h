/* What the files of src/kernel/x86 share. Only st_dot_table_avx2 and st_dot_table_avx512 may use these, after they have
 * asked the processor. */
#ifndef ST_KERNEL_X86_DOT_X86_H
#define ST_KERNEL_X86_DOT_X86_H

#include "kernel/dot.h"

extern const struct st_dot_table st_x86_avx2_dot_table, st_x86_avx512_dot_table;

/* st_act_quantize with AVX2; both levels use it. */
void st_x86_act_quantize(enum st_act kind, const float *x, size_t n, struct st_act_row *row);

#endif
