/* The model families that this build knows. */
#ifndef ST_MODEL_FAMILIES_H
#define ST_MODEL_FAMILIES_H

struct st_convert_family;

extern const struct st_convert_family st_qwen4exp_convert;

#endif
