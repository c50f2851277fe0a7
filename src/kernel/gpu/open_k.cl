/* Opened weights for prompts, types of 256 elements without a grid; body and limits in opened.h. */
#include "opened.h"

OPENED(st_open_q2_k, T_Q2_K)
OPENED(st_open_q3_k, T_Q3_K)
OPENED(st_open_q4_k, T_Q4_K)
OPENED(st_open_q5_k, T_Q5_K)
OPENED(st_open_q6_k, T_Q6_K)
OPENED(st_open_iq4_xs, T_IQ4_XS)
