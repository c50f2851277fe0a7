/* Opened weights for prompts, types of 256 elements with a grid; body and limits in opened.h. */
#include "opened.h"

OPENED(st_open_iq1_s, T_IQ1_S)
OPENED(st_open_iq1_m, T_IQ1_M)
OPENED(st_open_iq2_xxs, T_IQ2_XXS)
OPENED(st_open_iq2_xs, T_IQ2_XS)
OPENED(st_open_iq2_s, T_IQ2_S)
OPENED(st_open_iq3_xxs, T_IQ3_XXS)
OPENED(st_open_iq3_s, T_IQ3_S)
