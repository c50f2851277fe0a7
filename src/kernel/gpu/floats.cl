/* Products with FP32 activations, one float accumulator for each sixteenth column and output; body and limits in rows.h. */
#include "rows.h"

ROWS_FLOAT(st_floats_f32, T_F32)
ROWS_FLOAT(st_floats_f16, T_F16)
ROWS_FLOAT(st_floats_bf16, T_BF16)
