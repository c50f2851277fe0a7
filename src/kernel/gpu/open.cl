/* Opened weights for prompts, types of 32 and 64 elements; body and limits in opened.h. */
#include "opened.h"

OPENED(st_open_q8_0, T_Q8_0)
OPENED(st_open_q2_0, T_Q2_0)
OPENED(st_open_iq4_nl, T_IQ4_NL)
OPENED(st_open_q4_0, T_Q4_0)
OPENED(st_open_q4_1, T_Q4_1)
OPENED(st_open_q5_0, T_Q5_0)
OPENED(st_open_q5_1, T_Q5_1)
OPENED(st_open_mxfp4, T_MXFP4)
OPENED(st_open_nvfp4, T_NVFP4)
