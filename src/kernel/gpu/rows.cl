/* Products of few rows, types of 32 and 64 elements with Q8 activations; body and limits in rows.h. */
#include "rows.h"

ROWS_INTEGER(st_rows_q8_0, T_Q8_0)
ROWS_INTEGER(st_rows_q2_0, T_Q2_0)
ROWS_INTEGER(st_rows_iq4_nl, T_IQ4_NL)
ROWS_INTEGER(st_rows_q4_0, T_Q4_0)
ROWS_INTEGER(st_rows_q4_1, T_Q4_1)
ROWS_INTEGER(st_rows_q5_0, T_Q5_0)
ROWS_INTEGER(st_rows_q5_1, T_Q5_1)
ROWS_INTEGER(st_rows_mxfp4, T_MXFP4)
ROWS_INTEGER(st_rows_nvfp4, T_NVFP4)
