/* Products of few rows, types of 256 elements with a grid, Q8K activations; body and limits in rows.h. */
#include "rows.h"

ROWS_INTEGER(st_rows_iq1_s, T_IQ1_S)
ROWS_INTEGER(st_rows_iq1_m, T_IQ1_M)
ROWS_INTEGER(st_rows_iq2_xxs, T_IQ2_XXS)
ROWS_INTEGER(st_rows_iq2_xs, T_IQ2_XS)
ROWS_INTEGER(st_rows_iq2_s, T_IQ2_S)
ROWS_INTEGER(st_rows_iq3_xxs, T_IQ3_XXS)
ROWS_INTEGER(st_rows_iq3_s, T_IQ3_S)
