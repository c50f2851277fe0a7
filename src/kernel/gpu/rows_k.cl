/* Products of few rows, types of 256 elements without a grid, Q8K activations; body and limits in rows.h. */
#include "rows.h"

ROWS_INTEGER(st_rows_q2_k, T_Q2_K)
ROWS_INTEGER(st_rows_q3_k, T_Q3_K)
ROWS_INTEGER(st_rows_q4_k, T_Q4_K)
ROWS_INTEGER(st_rows_q5_k, T_Q5_K)
ROWS_INTEGER(st_rows_q6_k, T_Q6_K)
ROWS_INTEGER(st_rows_iq4_xs, T_IQ4_XS)
